"""Time for the client and the node; the log and the quorum get it as arguments."""

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

    Timestamps in the log are ``wall_ms``; timeouts and deadlines use ``now_ms``. It can be pickled,
    as Spark requires of its readers.
    """

    wall_ms: Callable[[], int] = _wall_ms
    now_ms: Callable[[], float] = _monotonic_ms
    pause: Callable[[float], None] = time.sleep
