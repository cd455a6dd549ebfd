"""Memory for all requests that are being received or answered, with their answers, and how
principals share it.

Rules of this file:

1. A frame is begun while there is room left, however large it is, and one frame of each principal
   is received although there is no room, or frames that were begun would wait for each other. So
   the bound is exceeded by one frame of each principal, or one answer, and a large one is never
   refused for ever.
2. One principal may hold as much as is free (the "dynamic threshold" of shared packet buffers):
   half of the budget alone, a third beside another one that wants as much. There is always room
   for one more.
3. All that wait are called when they have room, and wait again if others were faster (Kafka:
   ``queued.max.request.bytes``, ``MemoryPool``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final
from weakref import WeakValueDictionary


class RequestBudget:
    """Bytes of frames on their way in, of requests under way and of answers that are not taken,
    of all connections."""

    def __init__(self, byte_count_max: int) -> None:
        self.byte_count_max: Final = byte_count_max
        self._byte_count = 0
        self._shares: WeakValueDictionary[str, BudgetShare] = WeakValueDictionary()
        self._waiting: dict[Callable[[], None], BudgetShare] = {}

    @property
    def held_byte_count(self) -> int:
        """How many bytes all principals hold."""
        return self._byte_count

    @property
    def free_byte_count(self) -> int:
        """How many bytes are left; below zero if the bound is exceeded."""
        return self.byte_count_max - self._byte_count

    @property
    def has_room(self) -> bool:
        """Whether a principal that holds nothing may begin a frame."""
        return self.free_byte_count > 0

    @property
    def waiting_count(self) -> int:
        """How many connections and requests wait for room."""
        return len(self._waiting)

    def share_of(self, principal: str) -> BudgetShare:
        """Return the share of one principal, for all of its connections."""
        found = self._shares.get(principal)
        if found is None:
            found = self._shares[principal] = BudgetShare(self)
        return found

    def _take(self, byte_count: int) -> None:
        self._byte_count += byte_count

    def _give(self, byte_count: int) -> None:
        self._byte_count -= byte_count
        assert self._byte_count >= 0, "only what was taken is given back"
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
    """Bytes of one principal, in a budget that it shares with others."""

    def __init__(self, budget: RequestBudget) -> None:
        self.budget: Final = budget
        self._byte_count = 0
        self._overdrawn_by: Callable[[], None] | None = None

    @property
    def held_byte_count(self) -> int:
        """How many bytes this principal holds."""
        return self._byte_count

    @property
    def has_room(self) -> bool:
        """Whether this principal may begin a frame, or receive more of one."""
        return self._byte_count < self.budget.free_byte_count

    def take(self, byte_count: int) -> None:
        """Count so many bytes more."""
        self._byte_count += byte_count
        self.budget._take(byte_count)

    def give(self, byte_count: int) -> None:
        """Count so many bytes less."""
        self._byte_count -= byte_count
        assert self._byte_count >= 0, "only what was taken is given back"
        self.budget._give(byte_count)

    def may_overdraw(self, go_on: Callable[[], None]) -> bool:
        """Return whether this one may receive the rest of its frame without room: one at a time."""
        if self._overdrawn_by is None:
            self._overdrawn_by = go_on
        return self._overdrawn_by == go_on

    def end_overdraft(self, go_on: Callable[[], None]) -> None:
        """Leave that to the next one, if it was this one."""
        if self._overdrawn_by == go_on:
            self._overdrawn_by = None
            self.budget._call_all_of(self)

    def wait(self, go_on: Callable[[], None]) -> None:
        """Call this when there is room. Once, however often it is asked for."""
        self.budget._wait(go_on, self)

    def forget(self, go_on: Callable[[], None]) -> None:
        """Call it no more."""
        self.budget._forget(go_on)
        self.end_overdraft(go_on)

    async def room(self) -> None:
        """Wait until there is room: what is taken without waiting again is within the bound."""
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
