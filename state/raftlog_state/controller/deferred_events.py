"""Writes of the active controller that wait until their records are committed.

Source: Kafka ``ControllerPurgatory``, later ``DeferredEventQueue``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Final, Generic, TypeVar

T = TypeVar("T")


class Write(Generic[T]):
    """Write event. ``deadline_us`` is a time of the controller's clock.

    ``started_us``: when the event was started, None if it was not. ``last_offset``: the offset of
    its last record, or of the last record that it has read; None before the append. ``when_done``
    is called once the write is done; it must not call the controller.
    """

    def __init__(self, name: str, deadline_us: int) -> None:
        self.name: Final = name
        self.deadline_us: Final = deadline_us
        self.started_us: int | None = None
        self.last_offset: int | None = None
        self.response: T | None = None
        self.error: Exception | None = None
        self.is_done = False
        self.when_done: Callable[[], object] = lambda: None

    def __repr__(self) -> str:
        state = "waiting" if not self.is_done else "completed" if self.error is None else "failed"
        return f"Write({self.name!r}, last_offset={self.last_offset}, {state})"

    def complete(self) -> None:
        """Return the response to the caller: the records are committed."""
        assert not self.is_done, "a write is completed once"
        self.is_done = True
        self.when_done()

    def fail(self, error: Exception) -> None:
        """Return an error to the caller."""
        assert not self.is_done, "a write is completed once"
        self.is_done, self.error = True, error
        self.when_done()


class DeferredEventQueue:
    """Waiting writes, in the order of their last offsets."""

    def __init__(self) -> None:
        self._waiting: deque[Write[Any]] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, write: Write[Any]) -> None:
        """Add a write whose ``last_offset`` is at or after those of the waiting writes."""
        self._waiting.append(write)

    def remove(self, write: Write[Any]) -> None:
        """Remove a waiting write whose records were not appended."""
        self._waiting.remove(write)

    def complete_up_to(self, offset: int) -> list[Write[Any]]:
        """Complete the writes up to an offset, inclusive, and return them."""
        completed: list[Write[Any]] = []
        while self._waiting:
            last_offset = self._waiting[0].last_offset
            assert last_offset is not None, "its records are appended"
            if last_offset > offset:
                break
            completed.append(self._waiting.popleft())
            completed[-1].complete()
        return completed

    def take_expired(self, now_us: int) -> list[Write[Any]]:
        """Remove and return the writes whose deadline is at or before a time."""
        expired = [write for write in self._waiting if write.deadline_us <= now_us]
        if expired:
            self._waiting = deque(write for write in self._waiting if write.deadline_us > now_us)
        return expired

    def take_all(self) -> list[Write[Any]]:
        """Remove and return all writes."""
        taken, self._waiting = list(self._waiting), deque()
        return taken
