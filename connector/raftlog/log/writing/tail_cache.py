"""Cache of a log's last batches, from which nearly all follower fetches are served.

The cached batches are contiguous. Their size is bounded, except that the newest batch is always
kept.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

from raftlog.limits import MIB

TAIL_CACHE_BYTES_MAX: Final = 1 * MIB


class TailCache:
    """Batches in order, found by base offset."""

    def __init__(self, byte_count_max: int = TAIL_CACHE_BYTES_MAX) -> None:
        self._byte_count_max = byte_count_max
        self._bases: list[int] = []
        self._batches: list[bytes] = []
        self._byte_count = 0

    def add(self, base_offset: int, data: bytes) -> None:
        """Add the batch that was appended at the end of the log."""
        self._bases.append(base_offset)
        self._batches.append(data)
        self._byte_count += len(data)
        if self._byte_count > self._byte_count_max and len(self._batches) > 1:
            self._evict()

    def clear(self) -> None:
        """Drop all batches, because the log was truncated or recovered."""
        self._bases.clear()
        self._batches.clear()
        self._byte_count = 0

    def read(self, offset: int, byte_count_max: int) -> bytes:
        """Return whole batches from the batch at ``offset``: the first one always, then what fits.

        Returns b"" if that batch is not cached.
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
        """Evict the oldest half, so that the cost per appended batch is small."""
        count = 0
        while count < len(self._batches) - 1 and self._byte_count > self._byte_count_max // 2:
            self._byte_count -= len(self._batches[count])
            count += 1
        del self._bases[:count], self._batches[:count]
