"""Find where the batches of a buffer begin: each one's length says where the next one is.

Rules of this file:

1. The chain of lengths decides, from the first byte on. Batches of one record, of which a metadata
   log is full, are so many that following them one by one costs more than decoding them: there
   numpy guesses from their looks which bytes begin a batch, and only guesses that lie on the chain
   count.
2. What is found are lengths that fit; whether they are batches is for others to see.
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
"""Below this many bytes a batch on average, guessing is worth its pass over all bytes."""
_MISSES_MAX: Final = 16
"""One guess in so many may be wrong: each costs as much as many batches followed in Python."""


def find_batch_positions(view: memoryview) -> tuple[Int64s, int]:
    """Positions of what look like whole batches, and where the last of them ends."""
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
    """Follow lengths one by one. Returns positions, the one behind them, and whether they ended."""
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
    """Bytes behind ``position`` that look like the beginning of a small batch."""

    __slots__ = ("_breaks", "_next", "_start", "_view")

    def __init__(self, view: memoryview, position: int) -> None:
        data = np.frombuffer(view[position:], np.uint8)
        magics = data[MAGIC_POSITION : len(data) - (BATCH_HEADER_BYTES - MAGIC_POSITION - 1)]
        start = np.flatnonzero(magics == BATCH_MAGIC)
        # Fewer than 65 536 bytes; a leader epoch below 2**24; no attributes in the high byte; a
        # base time between the years 2004 and 2039.
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
        """Whether nearly every guess is followed by the one that its length names."""
        return len(self._breaks) * _MISSES_MAX <= len(self._start)

    def follow(self, found: list[Int64s], position: int) -> tuple[int, bool]:
        """Add runs of guesses that lie on the chain, and single batches between them."""
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
