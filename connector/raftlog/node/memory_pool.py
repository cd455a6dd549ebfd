"""Memory of requests and responses, shared by principals.

1. Reading a frame of any size may start while memory is free. Without free memory, one frame per
   principal is still received to its end; otherwise incomplete frames would wait for each other. So
   the maximum is exceeded by at most one frame per principal, or one response, and a large request
   is not delayed forever.
2. A principal may hold as much as is free (the "dynamic threshold" of shared packet buffers): half
   of the pool if it is alone, a third if there is a second one. So there is always memory for one
   more principal.
3. When memory is freed, all waiting connections that have room are called. They wait again if
   others have taken the memory (Kafka: ``queued.max.request.bytes``, ``MemoryPool``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final
from weakref import WeakValueDictionary


class MemoryPool:
    """Memory of all connections: incomplete frames, requests in flight, unread responses."""

    def __init__(self, byte_count_max: int) -> None:
        self.byte_count_max: Final = byte_count_max
        self._byte_count = 0
        self._shares: WeakValueDictionary[str, MemoryShare] = WeakValueDictionary()
        self._waiting: dict[Callable[[], None], MemoryShare] = {}

    @property
    def held_byte_count(self) -> int:
        """Return how many bytes all principals hold."""
        return self._byte_count

    @property
    def free_byte_count(self) -> int:
        """Return how many bytes are free; negative if the maximum is exceeded."""
        return self.byte_count_max - self._byte_count

    @property
    def waiting_count(self) -> int:
        """Return how many connections and requests wait for free memory."""
        return len(self._waiting)

    def share_of(self, principal: str) -> MemoryShare:
        """Return a principal's share, which all of its connections use."""
        found = self._shares.get(principal)
        if found is None:
            found = self._shares[principal] = MemoryShare(self)
        return found

    def _release(self, byte_count: int) -> None:
        self._byte_count -= byte_count
        assert self._byte_count >= 0, "not more than was allocated"
        if self._waiting:
            self._resume_if(lambda share: share.has_room)

    def _resume_if(self, is_ready: Callable[[MemoryShare], bool]) -> None:
        ready = [resume for resume, share in self._waiting.items() if is_ready(share)]
        for resume in ready:
            del self._waiting[resume]
        for resume in ready:
            resume()


class MemoryShare:
    """Memory of one principal within a pool."""

    def __init__(self, pool: MemoryPool) -> None:
        self.pool: Final = pool
        self._byte_count = 0
        self.overdrawn_by: Callable[[], None] | None = None
        """``resume`` of the connection that receives without free memory, if there is one."""

    @property
    def held_byte_count(self) -> int:
        """Return how many bytes this principal holds."""
        return self._byte_count

    @property
    def has_room(self) -> bool:
        """Return whether this principal may send a request, or more of one."""
        return self._byte_count < self.pool.free_byte_count

    def allocate(self, byte_count: int) -> None:
        """Add bytes to the count."""
        self._byte_count += byte_count
        self.pool._byte_count += byte_count

    def release(self, byte_count: int) -> None:
        """Subtract bytes from the count, and call waiting connections that now have room."""
        self._byte_count -= byte_count
        assert self._byte_count >= 0, "not more than was allocated"
        self.pool._release(byte_count)

    def may_overdraw(self, resume: Callable[[], None]) -> bool:
        """Return whether a connection may receive the rest of its frame without free memory.

        Only one connection per principal may do so at a time; ``resume`` identifies it.
        """
        if self.overdrawn_by is None:
            self.overdrawn_by = resume
        return self.overdrawn_by == resume

    def end_overdraft(self, resume: Callable[[], None]) -> None:
        """End the overdraft of a connection, and call the principal's waiting connections."""
        if self.overdrawn_by == resume:
            self.overdrawn_by = None
            self.pool._resume_if(lambda share: share is self)

    def wait(self, resume: Callable[[], None]) -> None:
        """Call ``resume`` once when there is room, however often it was registered."""
        self.pool._waiting[resume] = self

    def cancel_wait(self, resume: Callable[[], None]) -> None:
        """Unregister ``resume``, and end its overdraft."""
        self.pool._waiting.pop(resume, None)
        self.end_overdraft(resume)


class ConnectionMemory:
    """Memory of one connection by purpose. ``report`` adds changes of the sum to its share."""

    __slots__ = (
        "_reported_byte_count",
        "in_flight_byte_count",
        "partial_byte_count",
        "queued_byte_count",
        "unread_byte_count",
    )

    def __init__(self) -> None:
        self.partial_byte_count = 0
        """Received part of an incomplete frame."""
        self.queued_byte_count = 0
        """Frames of requests that have not been started."""
        self.in_flight_byte_count = 0
        """Requests in flight, and responses that wait for responses to older requests."""
        self.unread_byte_count = 0
        """Responses that the peer has not read, at the last count."""
        self._reported_byte_count = 0

    @property
    def byte_count(self) -> int:
        """Return the sum of all counts."""
        return (
            self.partial_byte_count
            + self.queued_byte_count
            + self.in_flight_byte_count
            + self.unread_byte_count
        )

    def report(self, share: MemoryShare) -> None:
        """Add the change since the last report to the share, which is the same until ``move``."""
        more = (
            self.partial_byte_count
            + self.queued_byte_count
            + self.in_flight_byte_count
            + self.unread_byte_count
            - self._reported_byte_count
        )
        if more > 0:
            self._reported_byte_count += more
            share.allocate(more)
        elif more < 0:
            self._reported_byte_count += more
            share.release(-more)

    def move(self, before: MemoryShare, after: MemoryShare) -> None:
        """Count the reported bytes in another share from now on."""
        before.release(self._reported_byte_count)
        after.allocate(self._reported_byte_count)

    def clear_frames(self) -> None:
        """Clear the counts of requests that are not started."""
        self.partial_byte_count = self.queued_byte_count = 0

    def clear(self) -> None:
        """Clear all counts, after the connection is lost."""
        self.clear_frames()
        self.in_flight_byte_count = self.unread_byte_count = 0
