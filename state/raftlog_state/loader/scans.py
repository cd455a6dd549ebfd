"""Loading of scanned columns, of a metadata log or of a snapshot, into a ``MetadataLoader``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from raftlog.client import SnapshotReader
from raftlog.errors import CorruptBatchError, RaftlogError
from raftlog.limits import MIB
from raftlog.records.batch_columns import Column, RecordColumns, Scan
from raftlog.records.control import decode_control
from raftlog_state.errors import MetadataParseError, ReplayError
from raftlog_state.image.delta import RecordChanges
from raftlog_state.replay.topics import MergedChange

from .merged_changes import merge
from .metadata_loader import LogRecord, MetadataLoader
from .payload import Payload

LOADER_COLUMNS = Column.ALL_BUT_HEADERS
"""Columns of a scan that the loader reads. Only control records have keys."""

WINDOW_BYTES: Final = 8 * MIB
"""Values whose changes are merged: the more, the fewer rows are written."""


def append_scan(loader: MetadataLoader, records: RecordColumns) -> list[RecordChanges]:
    """Replay the records of a scan. Raises the errors of ``MetadataLoader.append``."""
    if not len(records):
        return []
    return loader.append_columns(*_columns(records))


def advance(loader: MetadataLoader, scans: Iterable[Scan]) -> Iterator[int]:
    """Replay scans for the loader's image alone, and yield the next offset after several of them.

    Changes of a partition are merged where that gives the same state, in windows of
    ``WINDOW_BYTES`` of values. Raises the errors of ``append_scan`` and of ``scans``, in their
    order.
    """
    for window in _windows(scans):
        if not _append_merged(loader, window):
            for records in window:
                append_scan(loader, records)
        yield loader.next_offset


def _windows(scans: Iterable[Scan]) -> Iterator[list[RecordColumns]]:
    """Yield the records of several scans. Those before an error are yielded first."""
    window: list[RecordColumns] = []
    byte_count = 0
    try:
        for scan in scans:
            if len(scan.records):
                window.append(scan.records)
                byte_count += 0 if scan.records.value is None else scan.records.value.nbytes
            if byte_count >= WINDOW_BYTES:
                yield window
                window, byte_count = [], 0
    except RaftlogError:
        if window:
            yield window
        raise
    if window:
        yield window


def _append_merged(loader: MetadataLoader, window: Sequence[RecordColumns]) -> bool:
    """Replay a window with its partition changes merged; False if nothing was done."""
    offsets = _numbers([records.offset for records in window])
    leader_epochs = _numbers([records.leader_epoch for records in window])
    is_plain = (
        loader.open_transaction_offset is None
        and not any(records.is_control.any() for records in window)
        and offsets[0] == loader.next_offset
        and np.all(np.diff(offsets) == 1)
        and leader_epochs[0] >= loader.leader_epoch
        and np.all(np.diff(leader_epochs) >= 0)
    )
    if not is_plain:
        return False
    values = pa.concat_arrays([records.value for records in window])
    timestamps_ms = _numbers([records.timestamp_ms for records in window])
    try:
        merged = merge(values)
        if merged is None:
            return False
        remaining = values.take(pa.array(merged.remaining)).to_pylist()
        values_left = zip(merged.remaining.tolist(), remaining, strict=True)
        payloads: dict[int, Payload | MergedChange] = {**dict(values_left), **merged.changes}
        which = sorted(payloads)
        loader.append_selected(
            offsets[which].tolist(),
            leader_epochs[which].tolist(),
            timestamps_ms[which].tolist(),
            [payloads[row] for row in which],
            last=(int(offsets[-1]), int(leader_epochs[-1]), int(timestamps_ms[-1])),
        )
    except (MetadataParseError, ReplayError):
        return False  # record by record, the error has the offset of its record
    return True


def _numbers(columns: list[Any]) -> Any:
    return np.concatenate([column.to_numpy() for column in columns])


def load_snapshot(loader: MetadataLoader, snapshot: SnapshotReader) -> list[RecordChanges]:
    """Load a snapshot into a loader.

    Raises ``CorruptSnapshotError`` if it is damaged, and the errors of
    ``MetadataLoader.bootstrap``.
    """
    return loader.bootstrap(
        snapshot.snapshot_id, _log_records(snapshot.scan(columns=LOADER_COLUMNS))
    )


def _log_records(scans: Iterable[Scan]) -> Iterator[LogRecord]:
    for scan in scans:
        for row in zip(*_columns(scan.records), strict=True):
            yield LogRecord(*row)


def _columns(
    records: RecordColumns,
) -> tuple[list[int], list[int], list[int], list[Payload]]:
    offsets = _list(records.offset)
    payloads: list[Payload] = _list(records.value)
    controls = np.flatnonzero(records.is_control).tolist()
    if controls:
        keys = _list(records.key)
        for at in controls:
            try:
                payloads[at] = decode_control(keys[at], payloads[at])  # type: ignore[arg-type]
            except CorruptBatchError as error:
                raise ReplayError(
                    offset=offsets[at], record="a control record", reason=error.reason
                ) from None
    return offsets, _list(records.leader_epoch), _list(records.timestamp_ms), payloads


def _list(column: Any) -> list[Any]:
    assert column is not None, "the scan was requested with LOADER_COLUMNS"
    found: list[Any] = column.to_pylist()
    return found
