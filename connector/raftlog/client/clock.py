"""Clock of the client, an argument so that tests control time.

Timestamps in the log are wall-clock time; timeouts and deadlines use the monotonic clock.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Clock:
    """Time source. ``wall_ms``: since 1970; ``now_ms``: monotonic; ``pause`` takes seconds."""

    wall_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000
    now_ms: Callable[[], float] = lambda: time.monotonic_ns() / 1_000_000
    pause: Callable[[float], None] = time.sleep
