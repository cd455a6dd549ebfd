"""The one place of the source that looks at a clock or sleeps."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """What the stream reader needs to know of time, in milliseconds."""

    def now_ms(self) -> int:
        """Milliseconds since 1970, to compare with timestamps of records."""
        ...

    def sleep_ms(self, duration_ms: int) -> None:
        """Return after ``duration_ms``."""
        ...


class SystemClock:
    """The machine's own clock."""

    def now_ms(self) -> int:
        """Milliseconds since 1970."""
        return time.time_ns() // 1_000_000

    def sleep_ms(self, duration_ms: int) -> None:
        """Sleep for ``duration_ms``."""
        time.sleep(duration_ms / 1_000)
