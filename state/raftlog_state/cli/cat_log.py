"""Reading of a log for ``raftlog cat``.

Memory is bounded by one chunk of the log or one decompressed batch. Everything before a damaged
batch is printed before the error. A value that cannot be parsed, in a batch with a valid CRC, is
reported on stderr and skipped, and the exit code is 1. stderr also names the end offset in use, and
whether the records below it are committed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa

from raftlog.client import EndBasis, Isolation, LogKind, LogReader, SourceKind
from raftlog.errors import OffsetOutOfRangeError
from raftlog.records import RecordBatch
from raftlog.records.batch_columns import Column, RecordColumns, Scan
from raftlog_state.records import Redactor

from .output import Console, Output
from .record_lines import batch_line, metadata_lines, partition_lines, slices
from .selection import Selection

_OFFSET_END: Final = 2**63 - 1
_REPORTED_MAX: Final = 20
"""Damaged values that are reported individually."""


def print_records(
    log: LogReader,
    start_offset: int | None,
    end_offset: int | None,
    selection: Selection,
    redactor: Redactor,
    output: Output,
    console: Console,
) -> int:
    """Print records, one line each; return the exit code, 1 if a value is damaged."""
    damaged = _DamagedValues(log.path, console)
    is_metadata = log.kind is LogKind.METADATA
    columns = Column.ALL_BUT_HEADERS if is_metadata else Column.ALL
    for scan in _scans(log, start_offset, end_offset, columns, output, console):
        for part in slices(scan.records):
            if is_metadata:
                output.lines(metadata_lines(part, selection, redactor.record_json, damaged.report))
            else:
                output.lines(partition_lines(part, selection, damaged.report))
    return damaged.finish()


def print_batches(
    log: LogReader,
    start_offset: int | None,
    end_offset: int | None,
    output: Output,
    console: Console,
) -> int:
    """Print the batches that overlap the range, one line each; return the exit code."""
    is_remote = log.source is SourceKind.QUORUM
    for batch in _batches(log, start_offset, end_offset, console):
        output.line(batch_line(batch, None if is_remote else _file_name(batch)))
    return 0


def _file_name(batch: RecordBatch) -> str | None:
    return None if batch.path is None else batch.path.replace("\\", "/").rpartition("/")[2]


class _DamagedValues:
    """Report of the values that cannot be parsed: the first ones, then their number."""

    def __init__(self, path: str, console: Console) -> None:
        self._path = path
        self._console = console
        self._count = 0

    def report(self, offset: int, reason: str) -> None:
        self._count += 1
        if self._count <= _REPORTED_MAX:
            self._console.log(f"{self._path}, offset {offset}: {reason}")

    def finish(self) -> int:
        if self._count > _REPORTED_MAX:
            self._console.log(f"{self._count} records have damaged values in total")
        return 1 if self._count else 0


def _scans(
    log: LogReader,
    start_offset: int | None,
    end_offset: int | None,
    columns: Column,
    output: Output,
    console: Console,
) -> Iterator[Scan]:
    if output.is_terminal():
        console.disable_progress_bar()
    if log.source is SourceKind.CHECKPOINT:
        yield from _snapshot_scans(log, start_offset, end_offset, columns)
        return
    start, end = _range(log, start_offset, end_offset, console)
    for scan in log.scan(start, end, columns=columns):
        yield scan
        if len(scan.batches):
            console.progress(int(scan.batches.last_offset[-1]) - start, end - start)


def _snapshot_scans(
    log: LogReader, start_offset: int | None, end_offset: int | None, columns: Column
) -> Iterator[Scan]:
    """Yield the scans of a snapshot file, whose offsets begin at 0."""
    snapshot_id = log.newest_snapshot()
    assert snapshot_id is not None, "opened as a snapshot"
    start = 0 if start_offset is None else start_offset
    end = _OFFSET_END if end_offset is None else end_offset
    for scan in log.read_snapshot(snapshot_id).scan(columns=columns):
        yield replace(scan, records=_clip(scan.records, start, end))


def _batches(
    log: LogReader, start_offset: int | None, end_offset: int | None, console: Console
) -> Iterator[RecordBatch]:
    if log.source is not SourceKind.CHECKPOINT:
        start, end = _range(log, start_offset, end_offset, console)
        yield from log.batches(start, end)
        return
    snapshot_id = log.newest_snapshot()
    assert snapshot_id is not None, "opened as a snapshot"
    start = 0 if start_offset is None else start_offset
    end = _OFFSET_END if end_offset is None else end_offset
    for batch in log.read_snapshot(snapshot_id).batches():
        if batch.last_offset >= start and batch.base_offset < end:
            yield batch


def _range(
    log: LogReader, start_offset: int | None, end_offset: int | None, console: Console
) -> tuple[int, int]:
    """Return the start and end offset to print. Raises ``OffsetOutOfRangeError``."""
    log_start_offset = log.log_start_offset
    end = log.read_end(isolation=Isolation.READ_UNCOMMITTED)
    log_end_offset = end.offset
    if end_offset is None:
        console.log(f"reading up to offset {log_end_offset} (exclusive): {end.explanation}")
    elif end.basis in (EndBasis.DIRECTORY, EndBasis.FILE):
        console.log(f"the log ends at offset {log_end_offset} (exclusive): {end.explanation}")
    for wanted in (start_offset, end_offset):
        if wanted is not None and not log_start_offset <= wanted <= log_end_offset:
            raise OffsetOutOfRangeError(
                path=log.path,
                offset=wanted,
                log_start_offset=log_start_offset,
                log_end_offset=log_end_offset,
            )
    start = log_start_offset if start_offset is None else start_offset
    return start, log_end_offset if end_offset is None else end_offset


def _clip(records: RecordColumns, start_offset: int, end_offset: int) -> RecordColumns:
    """Return the records with offsets in [start, end)."""
    assert records.offset is not None, "a requested column"
    offsets = records.offset.to_numpy()
    mask = (offsets >= start_offset) & (offsets < end_offset)
    chosen: dict[str, Any] = {}
    for field in fields(records):
        column = getattr(records, field.name)
        if isinstance(column, np.ndarray):
            chosen[field.name] = column[mask]
        else:
            chosen[field.name] = None if column is None else column.filter(pa.array(mask))
    return RecordColumns(**chosen)
