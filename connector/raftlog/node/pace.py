"""Detection of stalled and slow peers.

A peer may pause for ``stalled_s`` while the node waits for the rest of a request or for the peer to
read responses, and must transfer ``bytes_per_second_min`` on average. Each byte extends the
deadline by 1 / ``bytes_per_second_min``, at most to ``stalled_s`` from now, so that a byte now and
then does not keep a connection open. Time in which the node itself does not read, for lack of
memory, does not count.
"""

from __future__ import annotations

import math
from typing import Final


class Pace:
    """Pace of one connection. Methods take the current time in seconds."""

    __slots__ = (
        "_bytes_per_second_min",
        "_deadline_s",
        "_looked_s",
        "_moved_byte_count",
        "stalled_s",
    )

    def __init__(self, stalled_s: float, bytes_per_second_min: float) -> None:
        self.stalled_s: Final = stalled_s
        self._bytes_per_second_min = bytes_per_second_min
        self._deadline_s: float | None = None
        self._looked_s: float | None = None
        self._moved_byte_count = 0

    def await_peer(self, now_s: float) -> None:
        """Start the deadline, unless the node already waits for the peer."""
        if self._deadline_s is None:
            self._deadline_s = now_s + self.stalled_s
            self._looked_s = None
            self._moved_byte_count = 0

    def stop(self) -> None:
        """Clear the deadline: the node does not wait for the peer."""
        self._deadline_s = None

    def move(self, byte_count: int, now_s: float) -> None:
        """Extend the deadline for bytes that the peer has sent or read."""
        if self._deadline_s is not None:
            later_s = self._deadline_s + byte_count / self._bytes_per_second_min
            self._deadline_s = min(later_s, now_s + self.stalled_s)
            self._moved_byte_count += byte_count

    def is_stalled(self, now_s: float) -> bool:
        """Return whether the deadline has passed: the peer has stalled, or is too slow."""
        return self._deadline_s is not None and now_s > self._deadline_s

    def look(self, left_byte_count: int, now_s: float) -> float | None:
        """Return how many seconds the remaining bytes will take at the pace since the last call;
        None if the node does not wait for the peer, or did not at the last call."""
        if self._deadline_s is None:
            return None
        looked_s, moved = self._looked_s, self._moved_byte_count
        self._looked_s, self._moved_byte_count = now_s, 0
        if looked_s is None or now_s <= looked_s:
            return None
        return left_byte_count * (now_s - looked_s) / moved if moved else math.inf
