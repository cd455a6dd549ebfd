"""Searches in a log's files that read few bytes: leader epochs, the end, batches by timestamp."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from raftlog.limits import INT64_MAX
from raftlog.log.format.epoch_cache import EpochCache
from raftlog.log.segment import find_header
from raftlog.records.batch import RecordBatch
from raftlog.records.batch_columns import BatchColumns, Scan
from raftlog.records.record import Record
from raftlog.storage.protocol import ReadableFile

from .chunks import HeaderChunk, HeaderDecoder, OffsetIndex, find_valid_batch, read_chunks
from .files import LogCursor, LogFiles, LogTail

# --- Leader epochs of a log's batches, found with few reads ---------------------------------------
# ``leader-epoch-checkpoint`` may be missing, older than the log, or truncated at a log start offset
# below which segments are still on disk. Therefore the batches are read. Epochs never decrease from
# batch to batch, so if two batches have the same epoch, all batches between them have it. This
# allows a binary search over the offset index, with a scan between two entries:
#
#   epoch     3     3     3     4     4     7
#   batches   |=====|=====|==*==|=====|==*==|      * first batch of another epoch
#   entries   ^     ^     ^     ^     ^


_EPOCHS: Final = HeaderDecoder(with_control=False)


def epochs_below(
    files: LogFiles, end_offset: int, *, end_epoch: int | None, start_offset: int = 0
) -> EpochCache:
    """Return the epochs of all batches below ``end_offset`` in segments from ``start_offset`` on.

    ``end_epoch`` is the epoch of the batch at ``end_offset``, if there is one. A segment that is
    damaged at a position that is read adds no entry.
    """
    segments = [base for base in files.listing.segments if start_offset <= base < end_offset]
    found: list[tuple[int, int]] = []
    for ordinal, base_offset in enumerate(segments):
        following = segments[ordinal + 1] if ordinal + 1 < len(segments) else None
        with files.open(files.segment_path(base_offset)) as file:
            first = find_header(file, 0)
            if first is None:
                continue
            found.append((first.leader_epoch, first.base_offset))
            last_epoch = end_epoch
            if following is not None:
                with files.open(files.segment_path(following)) as next_file:
                    head = find_header(next_file, 0)
                last_epoch = None if head is None else head.leader_epoch
            if last_epoch != first.leader_epoch:
                found += _changes(
                    files, file, base_offset, epoch=first.leader_epoch, end_offset=end_offset
                )
    return EpochCache.of(found)


def _changes(
    files: LogFiles, file: ReadableFile, base_offset: int, *, epoch: int, end_offset: int
) -> list[tuple[int, int]]:
    """Return the epochs that start inside a segment, by binary search in its offset index."""
    index = files.offset_index(base_offset)
    found: list[tuple[int, int]] = []
    position = 0
    while True:
        position = _last_of_epoch(files, file, index, position, epoch=epoch)
        change = _next_change(file, position, epoch=epoch, end_offset=end_offset)
        if change is None:
            return found
        epoch, offset, position = change
        found.append((epoch, offset))


def _last_of_epoch(
    files: LogFiles, file: ReadableFile, index: OffsetIndex, position: int, *, epoch: int
) -> int:
    """Return the position of the last batch with this epoch that a valid index entry has."""
    low, high = int(np.searchsorted(index.positions, position, side="right")), len(index)
    while low < high:
        middle = (low + high) // 2
        at = int(index.positions[middle])
        head = find_header(file, at) if files.is_entry_valid(file, index, middle) else None
        if head is not None and head.leader_epoch == epoch:
            position, low = at, middle + 1
        else:
            high = middle
    return position


def _next_change(
    file: ReadableFile, position: int, *, epoch: int, end_offset: int
) -> tuple[int, int, int] | None:
    """Return epoch, base offset and position of the next batch with another epoch."""
    for _, chunk in read_chunks(file, position, _EPOCHS, start_offset=None, end_offset=end_offset):
        other = np.flatnonzero(chunk.batches.leader_epoch != epoch)
        if len(other):
            at = other[0]
            return (
                int(chunk.batches.leader_epoch[at]),
                int(chunk.batches.base_offset[at]),
                int(chunk.batches.position[at]),
            )
    return None


# --- Search for the end of a log, from the last valid entry of its last segment's offset index ----
# Example: a segment with base offset 40 and batches of five records.
#
#     offset      40   45   50    55   60   65
#     segment     | b0 | b1 | b2  | b3 | b4 | torn |     end_offset 65, tail: the torn bytes
#     index                        ^ last valid entry: b3, reading starts there
#
#     segment     | b0 | b1 | bad | b3 | b4 | torn |     end_offset 65: a read to it finds "bad"
#     segment     | b0 | b1 | b2  | b3 | bad | b5 |      end_offset 70, likewise
#     embedded    | b0 | b1 | b2  | b3 | bad | b5 |      end_offset 60 with a recovery point <= 60
#
# Invariants:
#
# 1. The end is after the last valid batch of the last segment, even if there is damage before it.
#    If the log ended before the damage, no read would report it.
# 2. A last batch with a wrong CRC is not part of the log (``LogTail.error``).
# 3. In an embedded log, damage above the recovery point is a torn tail, with or without valid
#    batches after it. The next writer truncates there, so the log ends there for readers too.

_ZEROS_BYTES: Final = 4096
_ENTRIES_TRIED: Final = 8
"""After this many wrong index entries in a row the segment is read from its start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogEnd:
    """End offset of a log (exclusive), epoch of its last batch, and the bytes after it.

    ``epoch`` is None if no batch was read in the last segment.
    """

    end_offset: int
    epoch: int | None
    tail: LogTail


def find_log_end(files: LogFiles, *, contiguous: bool) -> LogEnd:
    """Return the end of a log that has a segment. Raises ``SegmentDeletedError``."""
    base_offset = files.listing.segments[-1]
    with files.open(files.segment_path(base_offset)) as file:
        end_offset, epoch = base_offset, None
        position = _last_known_position(files, file, base_offset)
        follows = position == 0
        while True:
            error = None
            for batch_end, chunk in _chunks_from(file, position):
                if len(chunk.batches):
                    is_chained = contiguous and follows
                    end_offset = _end_after(chunk.batches, end_offset, is_chained=is_chained)
                    epoch = int(chunk.batches.leader_epoch[-1])
                    follows = True
                position, error = batch_end, chunk.error
            valid = _find_valid_after(file, position, next_offset=end_offset)
            if valid is None:
                tail = LogTail(file.path, position, max(file.byte_count() - position, 0), error)
                return LogEnd(end_offset=end_offset, epoch=epoch, tail=tail)
            position, follows = valid, False


def find_durable_log_end(files: LogFiles, recovery_point: int) -> LogEnd | None:
    """Return the end of an embedded log whose writers have not published one in this boot.

    Returns None if the log ends below its recovery point: it is then damaged, not torn. Raises
    ``SegmentDeletedError``.
    """
    base_offset = files.listing.segments[-1]
    with files.open(files.segment_path(base_offset)) as file:
        end_position = files.find(file, base_offset, max(recovery_point, base_offset))
        end_offset = base_offset if end_position == 0 else None
        epoch, error = None, None
        for batch_end, chunk in _chunks_from(file, end_position):
            batches = chunk.batches
            if end_offset is None and len(batches):
                end_offset = int(batches.base_offset[0])
            count = 0 if end_offset is None else _chained_count(batches, end_offset)
            if count:
                end_offset = int(batches.next_offset[count - 1])
                epoch = int(batches.leader_epoch[count - 1])
            if count < len(batches):
                end_position = int(batches.position[count])
                break
            end_position, error = batch_end, chunk.error
        if end_offset is None or end_offset < recovery_point:
            return None
        left = max(file.byte_count() - end_position, 0)
        tail = LogTail(file.path, end_position, left, error)
        return LogEnd(end_offset=end_offset, epoch=epoch, tail=tail)


def _chained_count(batches: BatchColumns, next_offset: int) -> int:
    """Return how many batches follow ``next_offset`` in order, without a decreasing epoch."""
    falls = np.flatnonzero(np.diff(batches.leader_epoch) < 0)
    count = batches.in_order_count(next_offset)
    return min(count, int(falls[0]) + 1) if len(falls) else count


def _end_after(batches: BatchColumns, end_offset: int, *, is_chained: bool) -> int:
    """Return the end offset after ``batches``, given the end offset before them.

    With ``is_chained``, the batches must be consecutive. The CRC does not cover the base offset: a
    batch with a wrong one counts with its number of offsets, and a read up to the end reports it.
    """
    if is_chained:
        return end_offset + int((batches.last_offset - batches.base_offset + 1).sum())
    return max(end_offset, int(batches.last_offset[-1]) + 1)


def _chunks_from(file: ReadableFile, position: int) -> Iterator[tuple[int, HeaderChunk]]:
    decoder = HeaderDecoder(check_all=True, with_control=False)
    return read_chunks(file, position, decoder, start_offset=None, end_offset=None)


def _last_known_position(files: LogFiles, file: ReadableFile, base_offset: int) -> int:
    index = files.offset_index(base_offset)
    for ordinal in range(len(index) - 1, max(len(index) - _ENTRIES_TRIED, 0) - 1, -1):
        if files.is_entry_valid(file, index, ordinal):
            return int(index.positions[ordinal])
    return 0


def _find_valid_after(file: ReadableFile, position: int, *, next_offset: int) -> int | None:
    if not any(file.read_at(position, _ZEROS_BYTES)):
        return None
    return find_valid_batch(file, position, next_offset=next_offset)


# --- Search for batches by timestamp --------------------------------------------------------------
# Timestamps need not ascend, since producers and leaders have different clocks. The result is the
# first batch in log order whose maximum timestamp exceeds a bound. An entry of the time index is
# used only as a start position, and only if its batch has the entry's timestamp.


def offset_for_timestamp(scan: Scan, timestamp_ms: int) -> int | None:
    """Return the first offset of a scan whose timestamp is >= ``timestamp_ms``; None without one.

    The scan must have the columns OFFSET and TIMESTAMP.
    """
    records = scan.records
    assert records.timestamp_ms is not None, "the scan has this column"
    assert records.offset is not None, "the scan has this column"
    late = np.flatnonzero(records.timestamp_ms.to_numpy() >= timestamp_ms)
    return int(records.offset[int(late[0])].as_py()) if len(late) else None


def find_batch_after_timestamp(
    files: LogFiles,
    timestamp_ms: int,
    *,
    start_offset: int,
    end_offset: int,
    contiguous: bool,
    timestamp_ms_max: int = INT64_MAX,
) -> BatchColumns | None:
    """Return the first batch in [start_offset, end_offset) with a timestamp > ``timestamp_ms``.

    Batches with a maximum timestamp above ``timestamp_ms_max`` are skipped. Returns None if there
    is no such batch. Raises what ``LogCursor.read`` raises.
    """
    for base_offset in files.listing.segments:
        following = files.segment_after(base_offset)
        end = end_offset if following is None else min(following, end_offset)
        if end <= start_offset:
            continue
        start = max(start_offset, base_offset)
        if not files.was_read_to(start, base_offset):
            start = max(start, _lower_bound_by_time_index(files, base_offset, timestamp_ms))
        if start >= end_offset:
            return None
        cursor = LogCursor(files, start, contiguous=contiguous)
        for chunk in cursor.read(HeaderDecoder(), end):
            claimed_ms = chunk.batches.max_timestamp_ms
            found = np.flatnonzero((claimed_ms > timestamp_ms) & (claimed_ms <= timestamp_ms_max))
            if len(found):
                batch = chunk.batches[found[:1]]
                # The next search, which is for a later timestamp, starts here.
                files.remember_position(
                    int(batch.base_offset[0]),
                    base_offset=base_offset,
                    position=int(batch.position[0]),
                )
                return batch
    return None


def find_record_for_timestamp(
    files: LogFiles,
    timestamp_ms: int,
    *,
    start_offset: int,
    end_offset: int,
    read_batches: Callable[[int, int], Iterable[RecordBatch]],
) -> Record | None:
    """Return the first record in [start_offset, end_offset) with a timestamp >= the given one.

    ``end_offset`` must be a batch boundary of a log without gaps. ``read_batches`` returns the
    batches between two boundaries. Control records have timestamps too (Kafka:
    ``LogSegment.findOffsetByTimestamp``). Raises what ``LogCursor.read`` raises, and
    ``CorruptBatchError``.
    """
    while start_offset < end_offset:
        found = find_batch_after_timestamp(
            files,
            timestamp_ms - 1,
            start_offset=start_offset,
            end_offset=end_offset,
            contiguous=True,
        )
        if found is None:
            return None
        base_offset, next_offset = int(found.base_offset[0]), int(found.next_offset[0])
        for batch in read_batches(base_offset, next_offset):
            for record in batch.records():
                if record.offset >= start_offset and record.timestamp_ms >= timestamp_ms:
                    return record
        start_offset = next_offset  # a header's timestamp may exceed those of all its records
    return None


def _lower_bound_by_time_index(files: LogFiles, base_offset: int, timestamp_ms: int) -> int:
    """Return an offset below which no record of the segment is later than ``timestamp_ms``."""
    index = files.time_index(base_offset)
    ordinal = index.entry_before(timestamp_ms + 1)
    if ordinal is None:
        return base_offset
    last_offset = int(index.last_offsets[ordinal])
    with files.open(files.segment_path(base_offset)) as file:
        position = files.find(file, base_offset, last_offset)
        for _, chunk in read_chunks(
            file, position, HeaderDecoder(), start_offset=last_offset, end_offset=last_offset + 1
        ):
            if len(chunk.batches):
                is_valid = int(chunk.batches.last_offset[0]) == last_offset and int(
                    chunk.batches.max_timestamp_ms[0]
                ) == int(index.timestamps_ms[ordinal])
                return last_offset + 1 if is_valid else base_offset
    return base_offset
