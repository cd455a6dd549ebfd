"""Clock of the client and of the data source, an argument so that tests control time.

Timestamps in the log are wall-clock time; timeouts and deadlines use the monotonic clock.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000


def _monotonic_ms() -> float:
    return time.monotonic_ns() / 1_000_000


@dataclass(frozen=True, slots=True)
class Clock:
    """Time source. ``wall_ms``: since 1970; ``now_ms``: monotonic; ``pause`` takes seconds.

    It can be pickled, as Spark requires of its readers.
    """

    wall_ms: Callable[[], int] = _wall_ms
    now_ms: Callable[[], float] = _monotonic_ms
    pause: Callable[[float], None] = time.sleep
