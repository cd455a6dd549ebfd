"""Size of a range of a log: bytes from positions in the segment files, batches from a walk.

The bytes are those between the start of the first batch and the end of the last one, both of which
are looked up. The range may be a whole log; if it has more than ``_WALKED_BYTES_MAX``, its batches
are not counted::
    | segment 0  [first batch ...  | segment 900 ...  | segment 1800  ... last batch]  ... |
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from raftlog.limits import MIB

from .chunks import HeaderDecoder, read_chunks
from .files import LogCursor, LogFiles

_WALKED_BYTES_MAX: Final = 16 * MIB
_HEADERS: Final = HeaderDecoder(with_control=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeSize:
    """Size of the batches that overlap a range of offsets, and the time of the first of them.

    ``byte_count`` is None for a log without files here. ``batch_count`` is None in that case, and
    for a range of more than 16 MiB. ``first_timestamp_ms`` is the first record's timestamp. With
    LOG_APPEND_TIME, and after compaction, it is the latest one of its batch. It is None for a range
    without batches.
    """

    byte_count: int | None
    batch_count: int | None
    first_timestamp_ms: int | None

    @classmethod
    def of_parts(cls, parts: Iterable[RangeSize]) -> RangeSize:
        """Return the total size of the parts of a range, which are in order."""
        found = tuple(parts)
        times = [one.first_timestamp_ms for one in found if one.first_timestamp_ms is not None]
        return cls(
            byte_count=_sum_of(one.byte_count for one in found),
            batch_count=_sum_of(one.batch_count for one in found),
            first_timestamp_ms=times[0] if times else None,
        )


def _sum_of(counts: Iterable[int | None]) -> int | None:
    """Return a sum of counts; None if one of them is unknown."""
    total = 0
    for count in counts:
        if count is None:
            return None
        total += count
    return total


def size_in_files(
    files: LogFiles,
    start_offset: int,
    end_offset: int,
    *,
    contiguous: bool,
    walked_bytes_max: int = _WALKED_BYTES_MAX,
) -> tuple[int, int | None]:
    """Return the bytes and the number of the batches in a range; None if there are too many.

    Raises what ``LogCursor.read`` raises.
    """
    cursor = LogCursor(files, start_offset, contiguous=contiguous)
    first = next(cursor.read(_HEADERS, end_offset), None)
    if first is None:
        return 0, 0
    segment, position = cursor.segment, int(first.batches.position[0])
    last_segment, end_position = _end_of_batches(files, end_offset, contiguous)
    between = [one for one in files.listing.segments if segment <= one < last_segment]
    byte_count = sum(map(files.byte_count, between)) + end_position - position
    if byte_count > walked_bytes_max:
        return byte_count, None
    byte_count = batch_count = 0
    for chunk in LogCursor(files, start_offset, contiguous=contiguous).read(_HEADERS, end_offset):
        byte_count += int(chunk.batches.byte_count.sum())
        batch_count += len(chunk.batches)
    return byte_count, batch_count


def _end_of_batches(files: LogFiles, end_offset: int, contiguous: bool) -> tuple[int, int]:
    """Return a segment, and the position in it after the last batch that begins below an offset.

    There may be no batch with the offset before ``end_offset``: a compaction removed it, or a new
    segment has no batch yet.
    """
    segment = LogCursor(files, end_offset - 1, contiguous=contiguous).segment
    with files.open(files.segment_path(segment)) as file:
        position = files.find(file, segment, end_offset - 1)
        for _, chunk in read_chunks(
            file, position, _HEADERS, start_offset=None, end_offset=end_offset
        ):
            if len(chunk.batches):
                position = int(chunk.batches.position[-1] + chunk.batches.byte_count[-1])
    return segment, position
