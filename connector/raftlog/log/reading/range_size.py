"""Size of a range of a log: its bytes by positions in the segment files, its batches by a walk.

A walk of headers ends after ``_WALKED_BYTES_MAX``, since a range may be a whole log. The bytes of a
longer range are those between the positions of its first and its last batch, two look-ups::

    | segment 0  [first batch ...  | segment 900 ...  | segment 1800  ... last batch]  ... |
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from raftlog.limits import MIB

from .chunks import HeaderDecoder
from .files import LogCursor, LogFiles

_WALKED_BYTES_MAX: Final = 16 * MIB
_ONE_BATCH: Final = HeaderDecoder(chunk_bytes=16 * 1024)


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeSize:
    """Size of the batches that overlap a range of offsets, and the time of the first of them.

    ``byte_count`` is None for a log without files here, ``batch_count`` also for a range of more
    than 16 MiB. ``first_timestamp_ms`` is that of the first record, with LOG_APPEND_TIME and after
    compaction the latest of its batch; None for a range without batches.
    """

    byte_count: int | None
    batch_count: int | None
    first_timestamp_ms: int | None


def sum_of(counts: Iterable[int | None]) -> int | None:
    """Return a sum of counts; None if one of them is not known."""
    total = 0
    for count in counts:
        if count is None:
            return None
        total += count
    return total


def size_in_files(
    files: LogFiles, start_offset: int, end_offset: int, *, contiguous: bool
) -> tuple[int, int | None]:
    """Return the bytes and the number of the batches in a range; None if they are too many.

    Errors are those of ``LogCursor.read``.
    """
    byte_count = batch_count = 0
    cursor = LogCursor(files, start_offset, contiguous=contiguous)
    for chunk in cursor.read(HeaderDecoder(with_control=False), end_offset):
        byte_count += int(chunk.batches.byte_count.sum())
        batch_count += len(chunk.batches)
        if byte_count > _WALKED_BYTES_MAX:
            break
    else:
        return byte_count, batch_count
    segment, position, _ = _place(files, start_offset, end_offset, contiguous)
    last_segment, last_position, last_byte_count = _place(
        files, end_offset - 1, end_offset, contiguous
    )
    whole = 0
    for base_offset in files.listing.segments:
        if segment <= base_offset < last_segment:
            with files.open(files.segment_path(base_offset)) as file:
                whole += file.byte_count()
    return whole - position + last_position + last_byte_count, None


def _place(files: LogFiles, offset: int, end_offset: int, contiguous: bool) -> tuple[int, int, int]:
    """Return segment, position and size of the first batch from an offset on."""
    cursor = LogCursor(files, offset, contiguous=contiguous)
    batches = next(cursor.read(_ONE_BATCH, end_offset)).batches
    return cursor.segment, int(batches.position[0]), int(batches.byte_count[0])
