"""Search for the end of a log, from the last valid entry of its last segment's offset index.

Example: a segment with base offset 40 and batches of five records.

    offset      40   45   50    55   60   65
    segment     | b0 | b1 | b2  | b3 | b4 | torn |     end_offset 65, tail: the torn bytes
    index                        ^ last valid entry: b3, reading starts there

    segment     | b0 | b1 | bad | b3 | b4 | torn |     end_offset 65: a read to it finds "bad"
    segment     | b0 | b1 | b2  | b3 | bad | b5 |      end_offset 70, likewise
    embedded    | b0 | b1 | b2  | b3 | bad | b5 |      end_offset 60 with a recovery point <= 60

Invariants:

1. The end is after the last valid batch of the last segment, also if there is damage before it: a
   read to an end before the damage would not report it.
2. A last batch with a wrong CRC is not part of the log (``LogTail.error``).
3. In an embedded log damage above the recovery point is a torn tail, with or without valid batches
   after it: the next writer truncates there, so the log ends there for readers too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from raftlog.records.batch_columns import BatchColumns
from raftlog.storage.protocol import ReadableFile

from .chunks import HeaderChunk, HeaderDecoder, read_chunks
from .cursor import LogTail
from .files import LogFiles
from .resync import find_valid_batch

_ZEROS_BYTES: Final = 4096
_ENTRIES_TRIED: Final = 8
"""After so many wrong index entries in a row the segment is read from its start."""


@dataclass(frozen=True, slots=True)
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
            valid = _find_valid_after(file, position, end_offset)
            if valid is None:
                tail = LogTail(file.path, position, max(file.byte_count() - position, 0), error)
                return LogEnd(end_offset, epoch, tail)
            position, follows = valid, False


def find_durable_log_end(files: LogFiles, recovery_point: int) -> LogEnd | None:
    """Return the end of an embedded log whose writers have published none in this boot.

    None if the log ends below its recovery point: it is damaged, not torn. Raises
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
        return LogEnd(end_offset, epoch, LogTail(file.path, end_position, left, error))


def _chained_count(batches: BatchColumns, next_offset: int) -> int:
    """Return how many batches follow ``next_offset`` in order, with no falling epoch."""
    falls = np.flatnonzero(np.diff(batches.leader_epoch) < 0)
    count = batches.in_order_count(next_offset)
    return min(count, int(falls[0]) + 1) if len(falls) else count


def _end_after(batches: BatchColumns, end_offset: int, *, is_chained: bool) -> int:
    """Return the end offset after ``batches``, given the end offset before them.

    With ``is_chained`` the batches must be consecutive. A base offset is outside the CRC: a batch
    with a wrong one counts with its number of offsets, and a read up to the end reports it.
    """
    if is_chained:
        return end_offset + int((batches.last_offset - batches.base_offset + 1).sum())
    return max(end_offset, int(batches.last_offset[-1]) + 1)


def _chunks_from(file: ReadableFile, position: int) -> Iterator[tuple[int, HeaderChunk]]:
    decoder = HeaderDecoder(check_all=True)
    return read_chunks(file, position, decoder, start_offset=None, end_offset=None)


def _last_known_position(files: LogFiles, file: ReadableFile, base_offset: int) -> int:
    index = files.offset_index(base_offset)
    for ordinal in range(len(index) - 1, max(len(index) - _ENTRIES_TRIED, 0) - 1, -1):
        if files.is_entry_valid(file, index, ordinal):
            return int(index.positions[ordinal])
    return 0


def _find_valid_after(file: ReadableFile, position: int, next_offset: int) -> int | None:
    if not any(file.read_at(position, _ZEROS_BYTES)):
        return None
    return find_valid_batch(file, position, next_offset)
