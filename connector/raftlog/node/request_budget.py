"""Memory budget of requests and responses, shared by principals.

1. Reading a frame of any size may start while memory is free. Without free memory one frame of each
   principal is still received to its end: otherwise incomplete frames would wait for each other.
   So the budget is exceeded by at most one frame of each principal, or one response, and a large
   request is not delayed forever.
2. A principal may hold as much as is free (the "dynamic threshold" of shared packet buffers): half
   of the budget alone, a third beside a second one. So there is always memory for one more.
3. When memory is freed, all waiting connections that have room are called; they wait again if
   others have taken it (Kafka: ``queued.max.request.bytes``, ``MemoryPool``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final
from weakref import WeakValueDictionary


class RequestBudget:
    """Memory of all connections: incomplete frames, requests in flight, unread responses."""

    def __init__(self, byte_count_max: int) -> None:
        self.byte_count_max: Final = byte_count_max
        self._byte_count = 0
        self._shares: WeakValueDictionary[str, BudgetShare] = WeakValueDictionary()
        self._waiting: dict[Callable[[], None], BudgetShare] = {}

    @property
    def held_byte_count(self) -> int:
        """Return how many bytes all principals hold."""
        return self._byte_count

    @property
    def free_byte_count(self) -> int:
        """Return how many bytes are free; negative if the budget is exceeded."""
        return self.byte_count_max - self._byte_count

    @property
    def has_room(self) -> bool:
        """Return whether a principal that holds nothing may start to send a request."""
        return self.free_byte_count > 0

    @property
    def waiting_count(self) -> int:
        """Return how many connections and requests wait for free memory."""
        return len(self._waiting)

    def share_of(self, principal: str) -> BudgetShare:
        """Return the share of a principal, common to all of its connections."""
        found = self._shares.get(principal)
        if found is None:
            found = self._shares[principal] = BudgetShare(self)
        return found

    def _take(self, byte_count: int) -> None:
        self._byte_count += byte_count

    def _give(self, byte_count: int) -> None:
        self._byte_count -= byte_count
        assert self._byte_count >= 0, "not more than was taken"
        self._call([go_on for go_on, share in self._waiting.items() if share.has_room])

    def _wait(self, go_on: Callable[[], None], share: BudgetShare) -> None:
        self._waiting[go_on] = share

    def _forget(self, go_on: Callable[[], None]) -> None:
        self._waiting.pop(go_on, None)

    def _call_all_of(self, share: BudgetShare) -> None:
        self._call([go_on for go_on, its_share in self._waiting.items() if its_share is share])

    def _call(self, ready: list[Callable[[], None]]) -> None:
        for go_on in ready:
            self._waiting.pop(go_on, None)
        for go_on in ready:
            go_on()


class BudgetShare:
    """Memory of one principal within a budget."""

    def __init__(self, budget: RequestBudget) -> None:
        self.budget: Final = budget
        self._byte_count = 0
        self._overdrawn_by: Callable[[], None] | None = None

    @property
    def held_byte_count(self) -> int:
        """Return how many bytes this principal holds."""
        return self._byte_count

    @property
    def has_room(self) -> bool:
        """Return whether this principal may send a request, or more of one."""
        return self._byte_count < self.budget.free_byte_count

    def take(self, byte_count: int) -> None:
        """Add bytes to the count."""
        self._byte_count += byte_count
        self.budget._take(byte_count)

    def give(self, byte_count: int) -> None:
        """Subtract bytes from the count, and call waiting connections that have room now."""
        self._byte_count -= byte_count
        assert self._byte_count >= 0, "not more than was taken"
        self.budget._give(byte_count)

    def may_overdraw(self, go_on: Callable[[], None]) -> bool:
        """Return whether a connection may receive the rest of its frame without free memory.

        One connection of a principal at a time, identified by ``go_on``.
        """
        if self._overdrawn_by is None:
            self._overdrawn_by = go_on
        return self._overdrawn_by == go_on

    def end_overdraft(self, go_on: Callable[[], None]) -> None:
        """End the overdraft of a connection, and call the principal's waiting connections."""
        if self._overdrawn_by == go_on:
            self._overdrawn_by = None
            self.budget._call_all_of(self)

    def wait(self, go_on: Callable[[], None]) -> None:
        """Call ``go_on`` once when there is room, however often it was registered."""
        self.budget._wait(go_on, self)

    def forget(self, go_on: Callable[[], None]) -> None:
        """Unregister ``go_on``, and end its overdraft."""
        self.budget._forget(go_on)
        self.end_overdraft(go_on)

    async def room(self) -> None:
        """Wait until there is room. Memory taken before the next ``await`` is within the budget."""
        while not self.has_room:
            there_is_room = asyncio.get_running_loop().create_future()

            def go_on(future: asyncio.Future[None] = there_is_room) -> None:
                if not future.done():
                    future.set_result(None)

            self.wait(go_on)
            try:
                await there_is_room
            finally:
                self.budget._forget(go_on)
