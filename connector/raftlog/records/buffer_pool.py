"""How much may wait to be written: the bound on an accumulator's memory.

Rules of this file:

1. Python's bytes cannot be written into twice, so what Kafka keeps as buffers for reuse (Kafka:
   ``BatchMemoryPool``) is here a balance: bytes are taken before they are held and given back
   when their batch has been written or dropped. All that was taken comes back.
2. No lock: whoever shares a pool between threads holds one, the accumulator's own.
"""

from __future__ import annotations

from raftlog.errors import BufferAllocationError


class BufferPool:
    """A balance of bytes, at most ``byte_count_max`` of them taken at once."""

    def __init__(self, byte_count_max: int) -> None:
        assert byte_count_max > 0, "a pool that gives nothing"
        self._byte_count_max = byte_count_max
        self._taken = 0

    @property
    def byte_count_max(self) -> int:
        """What can be taken from an idle pool."""
        return self._byte_count_max

    @property
    def taken_byte_count(self) -> int:
        """What is taken now."""
        return self._taken

    def take(self, byte_count: int) -> None:
        """Take bytes, all or none of them.

        Raises ``BufferAllocationError``: retriable, since what waits will be written. Asking for
        more than the pool has is a bug: it would never be given.
        """
        assert 0 <= byte_count <= self._byte_count_max, "more than the pool has"
        if self._taken + byte_count > self._byte_count_max:
            raise BufferAllocationError(byte_count=byte_count, byte_count_max=self._byte_count_max)
        self._taken += byte_count

    def give_back(self, byte_count: int) -> None:
        """Give back bytes that were taken."""
        assert 0 <= byte_count <= self._taken, "these bytes were never taken"
        self._taken -= byte_count
