"""Compare a log with the files beside it: indexes, epochs, properties.

Rules of this file:

1. Everything is read; nothing is repaired; every contradiction is given, none is raised.
2. Damage of the log itself is not told here: whoever scans it is told.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from raftlog.errors import CorruptFileError, LogError

from .files import LogFiles, read_small_file
from .names import (
    EPOCH_CHECKPOINT_NAME,
    INDEX_SUFFIX,
    PARTITION_METADATA_NAME,
    PRODUCER_SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
)
from .offset_index import OFFSET_ENTRY_BYTES
from .pieces import ReadHeaders, pieces
from .producer_snapshot import parse_producer_snapshot
from .reads import Isolation, LogKind
from .small_files import parse_partition_metadata
from .time_index import TIME_ENTRY_BYTES
from .transactions import Outcome
from .txn_index import parse_txn_index

if TYPE_CHECKING:
    from .single import SingleLog


def file_problems(log: SingleLog) -> Iterator[LogError]:
    """Give each contradiction between a log and the files beside it."""
    for base_offset in log.files.listing.segments:
        yield from _segment_problems(log.files, base_offset)
    if log.kind is LogKind.PARTITION:
        yield from _txn_index_problems(log)
    yield from _epoch_problems(log)
    yield from _small_file_problems(log)


def _segment_problems(files: LogFiles, base_offset: int) -> Iterator[LogError]:
    """Index entries that do not say what the segment's batches say."""
    position, last_offset, max_ms = _batches(files, base_offset)
    index = files.offset_index(base_offset)
    path = files.segment_path(base_offset, INDEX_SUFFIX)
    at = np.searchsorted(position, index.positions)
    for ordinal in range(len(index)):
        row = int(at[ordinal])
        if (
            row >= len(position)
            or position[row] != index.positions[ordinal]
            or last_offset[row] != index.last_offsets[ordinal]
        ):
            yield CorruptFileError(
                path=path,
                position=ordinal * OFFSET_ENTRY_BYTES,
                reason=f"no batch at byte {index.positions[ordinal]} of the segment ends with "
                f"offset {index.last_offsets[ordinal]}",
            )
    times = files.time_index(base_offset)
    path = files.segment_path(base_offset, TIME_INDEX_SUFFIX)
    greatest = np.maximum.accumulate(max_ms) if len(max_ms) else max_ms
    at = np.searchsorted(last_offset, times.last_offsets)
    for ordinal in range(len(times)):
        row = int(at[ordinal])
        if (
            row >= len(last_offset)
            or last_offset[row] != times.last_offsets[ordinal]
            or greatest[row] != times.timestamps_ms[ordinal]
        ):
            yield CorruptFileError(
                path=path,
                position=ordinal * TIME_ENTRY_BYTES,
                reason=f"{times.timestamps_ms[ordinal]} is not the greatest timestamp up to "
                f"offset {times.last_offsets[ordinal]}",
            )


def _batches(files: LogFiles, base_offset: int) -> tuple[Any, Any, Any]:
    """Positions, last offsets and greatest timestamps of a segment's batches, as arrays."""
    columns: list[tuple[Any, Any, Any]] = [(np.zeros(0, np.int64),) * 3]
    with files.open(files.segment_path(base_offset)) as file:
        for _, piece in pieces(file, 0, ReadHeaders(), start_offset=None, end_offset=None):
            batches = piece.batches
            columns.append((batches.position, batches.last_offset, batches.max_timestamp_ms))
    position, last_offset, max_ms = (
        np.concatenate(column) for column in zip(*columns, strict=True)
    )
    return position, last_offset, max_ms


def _txn_index_problems(log: SingleLog) -> Iterator[LogError]:
    """Transaction indexes that name other aborted transactions than the log holds."""
    start_offset, end_offset = log.log_start_offset, log.log_end_offset
    spans = log.known.spans(start_offset, end_offset, Isolation.READ_COMMITTED)
    aborted = {
        (span.producer_id, span.first_offset, span.marker_offset)
        for span in spans
        if span.outcome is Outcome.ABORTED
    }
    for base_offset in log.files.listing.segments:
        path = log.files.segment_path(base_offset, TXN_INDEX_SUFFIX)
        data = read_small_file(log.files.storage, path)
        following = log.files.segment_after(base_offset)
        here = {
            span
            for span in aborted
            if span[2] is not None
            and base_offset <= span[2]
            and (following is None or span[2] < following)
        }
        try:
            named = {
                (entry.producer_id, entry.first_offset, entry.last_offset)
                for entry in parse_txn_index(data or b"", path)
                if entry.first_offset >= start_offset
            }
        except CorruptFileError as error:
            yield error
            continue
        for producer_id, first_offset, last_offset in sorted(here ^ named):
            is_missing = (producer_id, first_offset, last_offset) in here
            words = "lacks" if is_missing else "invents"
            yield CorruptFileError(
                path=path,
                reason=f"it {words} the aborted transaction of producer {producer_id}, offsets "
                f"{first_offset} to {last_offset}",
            )


def _epoch_problems(log: SingleLog) -> Iterator[LogError]:
    """An epoch checkpoint that contradicts the epochs of the batches."""
    path = log.files.storage.join(log.files.directory, EPOCH_CHECKPOINT_NAME)
    try:
        checkpoint = log.known.epoch_checkpoint
    except CorruptFileError as error:
        yield error
        return
    if checkpoint is None:
        return
    start_offset, end_offset = log.log_start_offset, log.log_end_offset
    for ordinal, entry in enumerate(checkpoint.entries):
        if not start_offset <= entry.start_offset < end_offset:
            continue
        actual = log.epochs.epoch_at(entry.start_offset)
        before = log.epochs.epoch_at(entry.start_offset - 1)
        # The first entry moves up with the log start offset, which the segments may lie below.
        if actual != entry.epoch or (ordinal > 0 and before == entry.epoch):
            yield CorruptFileError(
                path=path,
                reason=f"it lets epoch {entry.epoch} begin at offset {entry.start_offset}, where "
                f"the log has epoch {actual} behind {before}",
            )
    known = {entry.epoch for entry in checkpoint.entries}
    first = checkpoint.entries[0].start_offset if checkpoint.entries else start_offset
    for entry in log.epochs.entries:
        if entry.epoch not in known and first <= entry.start_offset:
            yield CorruptFileError(
                path=path,
                reason=f"it lacks epoch {entry.epoch}, which begins at {entry.start_offset}",
            )


def _small_file_problems(log: SingleLog) -> Iterator[LogError]:
    """Small files that do not parse."""
    files = log.files
    looks: list[Callable[[], object]] = [
        lambda: log.meta_properties,
        lambda: log.quorum_state,
        lambda: _parsed(files, PARTITION_METADATA_NAME, parse_partition_metadata),
    ]
    for offset in files.listing.producer_snapshots:
        path = files.segment_path(offset, PRODUCER_SNAPSHOT_SUFFIX)
        name = files.storage.split(path)[1]
        looks.append(lambda name=name: _parsed(files, name, parse_producer_snapshot))  # type: ignore[misc]
    for look in looks:
        try:
            look()
        except CorruptFileError as error:
            yield error


def _parsed(files: LogFiles, name: str, parse: Callable[[bytes, str], object]) -> object:
    data = files.read_small(name)
    return None if data is None else parse(data, files.storage.join(files.directory, name))
