"""Positions of the batches in a buffer.

Each batch's length gives the position of the next one: a chain that starts at the first byte. A
metadata log has so many batches of one record that following the chain in Python costs more than
decoding the batches. For small batches numpy therefore finds *candidates*, positions whose bytes
look like a batch header, and the chain is compared with them. Only candidates on the chain count,
so the result is the same as that of following every length.

    candidate    c0    c1    c2    c3    c4    c5
    start         0    80   160   210   300   380
    next         80   160   300   250   380   460     start plus the candidate's size
    break                     x     x           x     next is not the start of the next candidate

From position 0 the chain takes c0, c1, c2 as one slice, up to the break, and continues at 300 with
c4, c5. c3 is never reached: its bytes are inside a record of batch c2. Where the chain reaches no
candidate, one batch is followed in Python.

The positions are those of plausible lengths; magic, header and CRC are checked by the callers.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

import numpy as np

from raftlog.limits import BATCH_HEADER_BYTES, LOG_OVERHEAD_BYTES

from .columns import Int64s
from .header import BATCH_LENGTH, BATCH_MAGIC, LENGTH_MIN, LENGTH_POSITION, MAGIC_POSITION

_PROBE_BATCHES: Final = 64
_SMALL_BYTES: Final = 400
"""Mean batch size below which the pass over all bytes for candidates pays off."""
_MISSES_MAX: Final = 16
"""Candidates are used if at most one in this many is a break: each break costs as much as following
many batches in Python."""


def find_batch_positions(view: memoryview) -> tuple[Int64s, int]:
    """Return the positions of complete batches, and the end position of the last one.

    The end is that of the buffer, or the position of an incomplete batch or an invalid length.
    """
    positions, position, ended = _follow(view, 0, _PROBE_BATCHES)
    found = [np.array(positions, np.int64)]
    if not ended and position < _SMALL_BYTES * _PROBE_BATCHES:
        candidates = _Candidates(view, position)
        if candidates.is_plausible():
            position, ended = candidates.follow(found, position)
    if not ended:
        positions, position, _ = _follow(view, position, None)
        found.append(np.array(positions, np.int64))
    return np.concatenate(found), position


def _follow(view: memoryview, position: int, count_max: int | None) -> tuple[list[int], int, bool]:
    """Follow the chain of lengths for at most ``count_max`` batches.

    Returns their positions, the position after them, and whether the chain ended there.
    """
    length_at = BATCH_LENGTH.unpack_from
    byte_count = len(view)
    last = byte_count - BATCH_HEADER_BYTES
    positions: list[int] = []
    add = positions.append
    while position <= last:
        (length,) = length_at(view, position + LENGTH_POSITION)
        after = position + LOG_OVERHEAD_BYTES + length
        if length < LENGTH_MIN or after > byte_count:
            break
        add(position)
        position = after
        if count_max is not None and len(positions) == count_max:
            return positions, position, False
    return positions, position, True


class _Candidates:
    """Positions from ``position`` on whose bytes look like the header of a small batch."""

    __slots__ = ("_breaks", "_next", "_start", "_view")

    def __init__(self, view: memoryview, position: int) -> None:
        data = np.frombuffer(view[position:], np.uint8)
        magics = data[MAGIC_POSITION : len(data) - (BATCH_HEADER_BYTES - MAGIC_POSITION - 1)]
        start = np.flatnonzero(magics == BATCH_MAGIC)
        # Length below 2**16; leader epoch below 2**24; high byte of the attributes 0; base
        # timestamp between 2004 and 2039 (its high bytes are 0, 0, 1).
        zeros = np.bitwise_or.reduce([data.take(start + at) for at in (8, 9, 12, 21, 27, 28)])
        start = start[(zeros == 0) & (data.take(start + 29) == 1)]
        low = data.take(start + 11)
        length = data.take(start + 10).astype(np.int64) << 8 | low
        after = start + LOG_OVERHEAD_BYTES + length
        whole = (length >= LENGTH_MIN) & (after <= len(data))
        self._view = view
        self._start = start[whole] + position
        self._next = after[whole] + position
        is_break = np.ones(len(self._start), np.bool_)
        is_break[:-1] = self._next[:-1] != self._start[1:]
        self._breaks = np.flatnonzero(is_break).tolist()

    def is_plausible(self) -> bool:
        """Return whether nearly every candidate ends where the next candidate starts."""
        return len(self._breaks) * _MISSES_MAX <= len(self._start)

    def follow(self, found: list[Int64s], position: int) -> tuple[int, bool]:
        """Append the positions on the chain to ``found``: slices of candidates, and single batches.

        Returns the position after them, and whether the chain ended there.
        """
        while True:
            at = int(np.searchsorted(self._start, position))
            if at < len(self._start) and self._start[at] == position:
                last = self._breaks[bisect_left(self._breaks, at)]
                found.append(self._start[at : last + 1])
                position = int(self._next[last])
                continue
            single, position, ended = _follow(self._view, position, 1)
            found.append(np.array(single, np.int64))
            if ended:
                return position, True
