"""Clock for tests: time advances only by sleeping."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from raftlog.clock import Clock
from tests.support.small_logs import TIME_MS


@dataclass
class StoppedClock:
    """Clock that advances only by ``sleep``."""

    at_ms: int = TIME_MS + 10**12
    slept_ms: list[int] = field(default_factory=list)
    while_asleep: Callable[[], object] | None = None

    def as_clock(self) -> Clock:
        return Clock(wall_ms=self.now_ms, now_ms=self.now_ms, pause=self.pause)

    def pause(self, duration_s: float) -> None:
        self.sleep_ms(round(duration_s * 1_000))

    def now_ms(self) -> int:
        return self.at_ms

    def sleep_ms(self, duration_ms: int) -> None:
        self.at_ms += duration_ms
        self.slept_ms.append(duration_ms)
        if self.while_asleep is not None:
            self.while_asleep()
