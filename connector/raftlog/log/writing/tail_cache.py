"""The last batches of a log in memory: what followers ask for is nearly always what came last.

Rules of this file:

1. Batches follow one another without a gap, or the older ones go. Memory is bounded by bytes, but
   for the newest batch.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

from raftlog.limits import MIB

TAIL_CACHE_BYTES_MAX: Final = 1 * MIB


class TailCache:
    """Batches in order, by the base offset of each."""

    def __init__(self, byte_count_max: int = TAIL_CACHE_BYTES_MAX) -> None:
        self._byte_count_max = byte_count_max
        self._bases: list[int] = []
        self._batches: list[bytes] = []
        self._byte_count = 0

    def add(self, base_offset: int, data: bytes) -> None:
        """The log has grown by a batch."""
        self._bases.append(base_offset)
        self._batches.append(data)
        self._byte_count += len(data)
        if self._byte_count > self._byte_count_max and len(self._batches) > 1:
            self._evict()

    def clear(self) -> None:
        """The log is not what it was."""
        self._bases.clear()
        self._batches.clear()
        self._byte_count = 0

    def read(self, offset: int, byte_count_max: int) -> bytes:
        """Whole batches from the one that begins at ``offset``: one at least, then what fits.

        Nothing if that one is not here.
        """
        at = bisect_left(self._bases, offset)
        if at == len(self._bases) or self._bases[at] != offset:
            return b""
        end, left = at + 1, byte_count_max - len(self._batches[at])
        while end < len(self._batches) and len(self._batches[end]) <= left:
            left -= len(self._batches[end])
            end += 1
        return b"".join(self._batches[at:end])

    def _evict(self) -> None:
        """Let go of the oldest half, so that forgetting costs little for each batch."""
        count = 0
        while count < len(self._batches) - 1 and self._byte_count > self._byte_count_max // 2:
            self._byte_count -= len(self._batches[count])
            count += 1
        del self._bases[:count], self._batches[:count]
