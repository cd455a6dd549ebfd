"""How much memory all questions that are being answered may hold together, with their answers.

Rules of this file:

1. Something is begun while there is room left, however large it is: so the bound is exceeded by
   one frame or one answer at most, and a large one is never refused for ever.
2. All who found no room are called when there is some, and who comes too late waits again (Kafka:
   ``queued.max.request.bytes``, ``MemoryPool``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class RequestBudget:
    """Bytes of frames on their way in, of questions under way and of answers that are not taken,
    of all connections."""

    def __init__(self, byte_count_max: int) -> None:
        self._byte_count_max = byte_count_max
        self._byte_count = 0
        self._waiting: dict[Callable[[], None], None] = {}

    @property
    def held_byte_count(self) -> int:
        return self._byte_count

    @property
    def has_room(self) -> bool:
        return self._byte_count < self._byte_count_max

    def take(self, byte_count: int) -> None:
        """So many bytes more are held."""
        self._byte_count += byte_count

    def give(self, byte_count: int) -> None:
        """They are held no more."""
        self._byte_count -= byte_count
        assert self._byte_count >= 0, "nobody gives what was not taken"
        if self._waiting and self.has_room:
            waiting, self._waiting = self._waiting, {}
            for go_on in waiting:
                go_on()

    def wait(self, go_on: Callable[[], None]) -> None:
        """Call this when there is room. Once, however often it is asked for."""
        self._waiting[go_on] = None

    def forget(self, go_on: Callable[[], None]) -> None:
        """Call it no more."""
        self._waiting.pop(go_on, None)

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
                self.forget(go_on)
