"""How much memory all questions that are being answered may hold together.

Rules of this file:

1. A question is begun while there is room left, however large it is: so the bound is exceeded by
   one frame at most, and a large frame is never refused for ever.
2. Who found no room is called when there is some, in the order of waiting (Kafka:
   ``queued.max.request.bytes``).
"""

from __future__ import annotations

from collections.abc import Callable


class RequestBudget:
    """Bytes of questions under way, of all connections."""

    def __init__(self, byte_count_max: int) -> None:
        self._byte_count_max = byte_count_max
        self._byte_count = 0
        self._waiting: dict[Callable[[], None], None] = {}

    @property
    def has_room(self) -> bool:
        return self._byte_count < self._byte_count_max

    def take(self, byte_count: int) -> None:
        """A question of so many bytes is begun."""
        self._byte_count += byte_count

    def give(self, byte_count: int) -> None:
        """It is answered, or nobody waits for the answer any more."""
        self._byte_count -= byte_count
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
