"""Where a log ends, found without reading it all: from the last true entry of its last index.

Rules of this file:

1. The end is behind the last sound batch of the last segment, whatever damage lies before it: who
   reads up to there meets the damage and reports it. An end before the damage would hide it.
2. A last batch whose CRC does not hold is not there yet (``LogTail.error`` says so).
3. In a log of ours damage above the recovery point is a torn tail, sound batches behind it or not:
   who writes next cuts it there, so that for readers too the log ends there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from raftlog.records.columns import BatchColumns
from raftlog.storage.protocol import ReadableFile

from .chunks import HeaderChunk, HeaderDecoder, read_chunks
from .cursor import LogTail
from .files import LogFiles
from .resync import find_valid_batch

_ZEROS_BYTES: Final = 4096
_ENTRIES_TRIED: Final = 8
"""So many lying entries in a row, and the segment is read from its beginning."""


@dataclass(frozen=True, slots=True)
class LogEnd:
    """The end of a log (exclusive), the epoch of its last batch, and what lies behind it.

    ``epoch`` is None if the last segment holds no batch.
    """

    end_offset: int
    epoch: int | None
    tail: LogTail


def find_log_end(files: LogFiles, *, contiguous: bool) -> LogEnd:
    """Look at the end of a log that has a segment. Raises ``SegmentDeletedError``."""
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
    """Look at the end of a log of ours of which no writer has told anything.

    None if the log ends below its recovery point: then it is damaged, and not merely torn. Raises
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
    """How many batches follow each other from ``next_offset`` on, epochs not falling."""
    falls = np.flatnonzero(np.diff(batches.leader_epoch) < 0)
    count = batches.in_order_count(next_offset)
    return min(count, int(falls[0]) + 1) if len(falls) else count


def _end_after(batches: BatchColumns, end_offset: int, *, is_chained: bool) -> int:
    """The offset behind some batches, where ``end_offset`` is that behind those before them.

    ``is_chained``: the batches must follow it without a gap. A base offset lies outside the CRC, so
    where one contradicts, its batch counts for as many offsets as it has: whoever reads up to the
    end meets the contradiction, and nothing is hidden.
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
