"""The one place of the client that looks at a clock or sleeps.

Rules of this file:

1. Time of day is for what lies in the log; how long somebody waits is of a clock that never goes
   back.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Clock:
    """What writers know of time. ``wall_ms``: since 1970; ``now_ms`` never goes back."""

    wall_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000
    now_ms: Callable[[], float] = lambda: time.monotonic_ns() / 1_000_000
    pause: Callable[[float], None] = time.sleep
