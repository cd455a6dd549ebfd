"""Clock of the data source; no other module reads the time or sleeps."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Clock in milliseconds, as Kafka's ``Time``."""

    def now_ms(self) -> int:
        """Return milliseconds since 1970, to compare with record timestamps."""
        ...

    def sleep_ms(self, duration_ms: int) -> None:
        """Sleep for ``duration_ms``."""
        ...


class SystemClock:
    """Clock of the operating system."""

    def now_ms(self) -> int:
        """Return milliseconds since 1970."""
        return time.time_ns() // 1_000_000

    def sleep_ms(self, duration_ms: int) -> None:
        """Sleep for ``duration_ms``."""
        time.sleep(duration_ms / 1_000)
