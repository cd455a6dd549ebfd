"""``Backoff``: growing pause between retries after errors. Followers and their upkeep use it."""

from __future__ import annotations

from typing import Final

from raftlog.errors import RaftlogError

BACKOFF_FIRST_S: Final = 0.5
BACKOFF_LONGEST_S: Final = 10.0


class Backoff:
    """Pause after an error. It doubles with each further error until something succeeds."""

    def __init__(
        self, first_s: float = BACKOFF_FIRST_S, longest_s: float = BACKOFF_LONGEST_S
    ) -> None:
        self._first_s = first_s
        self._longest_s = longest_s
        self._failed_at_s = 0.0
        self.pause_s = first_s
        """The pause after the last error."""
        self.error: RaftlogError | None = None
        """The last error; None after a success."""

    def failed(self, error: RaftlogError, now_s: float) -> bool:
        """Record an error; return whether its text differs from the last error's."""
        last, self.error, self._failed_at_s = self.error, error, now_s
        is_first = last is None
        self.pause_s = self._first_s if is_first else min(2 * self.pause_s, self._longest_s)
        return is_first or str(last) != str(error)

    def succeeded(self) -> bool:
        """Record a success; return whether it is the first one after an error."""
        last, self.error = self.error, None
        return last is not None

    def is_paused(self, now_s: float) -> bool:
        """Return whether it is too early to try again."""
        return self.error is not None and now_s < self._failed_at_s + self.pause_s
