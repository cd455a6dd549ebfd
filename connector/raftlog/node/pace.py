"""How fast a peer sends the rest of a frame, and takes its answers, while the node waits for it.

Rules of this file:

1. A peer may stop for ``stalled_s``, and on the whole it moves ``bytes_per_second_min`` at least:
   each byte moves the deadline on by what it may take, never beyond ``stalled_s`` from now. One
   byte now and then buys no time.
2. Only the time in which the node waits for the peer counts: not while the node reads nothing
   because it has no room.
"""

from __future__ import annotations

import math
from typing import Final


class Pace:
    """The pace of one connection. It is given the time, in seconds."""

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
        """Note that the node waits for the peer from now on, if it did not before."""
        if self._deadline_s is None:
            self._deadline_s = now_s + self.stalled_s
            self._looked_s = None
            self._moved_byte_count = 0

    def stop(self) -> None:
        """Note that the node does not wait for the peer."""
        self._deadline_s = None

    def move(self, byte_count: int, now_s: float) -> None:
        """Count bytes that the peer has sent or taken."""
        if self._deadline_s is not None:
            later_s = self._deadline_s + byte_count / self._bytes_per_second_min
            self._deadline_s = min(later_s, now_s + self.stalled_s)
            self._moved_byte_count += byte_count

    def is_stalled(self, now_s: float) -> bool:
        """Return whether the peer has stopped for too long, or is too slow."""
        return self._deadline_s is not None and now_s > self._deadline_s

    def look(self, left_byte_count: int, now_s: float) -> float | None:
        """Return how many seconds the rest will take at the pace since the last look; None if the
        node does not wait, or did not at the last look."""
        if self._deadline_s is None:
            return None
        looked_s, moved = self._looked_s, self._moved_byte_count
        self._looked_s, self._moved_byte_count = now_s, 0
        if looked_s is None or now_s <= looked_s:
            return None
        return left_byte_count * (now_s - looked_s) / moved if moved else math.inf
