"""A node that counts while it leads: a workload for whoever wants to see a quorum work, or break.

Rules of this file:

1. Every node of the quorum counts what is committed; the one that leads increments, with a bounded
   number of increments under way.
2. What it says once in a while is a line like the node's others. A count that does not follow the
   one before ends the node: the log has broken its promise.

Kafka: ``TestRaftServer``.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final

from raftlog.errors import DiskFullError, LogLockedError, NotLeaderError

from .driver import Driver
from .log_lines import LogLines
from .replicated_counter import ReplicatedCounter

IN_FLIGHT_MAX: Final = 32
INTERVAL_S: Final = 0.002
LOG_INTERVAL_S: Final = 1.0
SNAPSHOT_EVERY: Final = 10_000
"""Increments between two snapshots of the count."""


class CounterWorkload:
    """One node's counter, and what makes it count. On the node's loop, until ``stop``."""

    def __init__(self, driver: Driver, lines: LogLines) -> None:
        self.counter: Final = ReplicatedCounter(driver.raft_client)
        self._driver = driver
        self._lines = lines
        self._loop = asyncio.get_running_loop()
        self._placed = 0
        self._snapshot_value = 0
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Count from now on."""
        self._driver.register(self.counter)
        self._tasks += [
            self._loop.create_task(self._count()),
            self._loop.create_task(self._log_progress()),
        ]

    def stop(self) -> None:
        """Count no more."""
        for task in self._tasks:
            task.cancel()

    async def _count(self) -> None:
        while not self._driver.is_over:
            self._fill()
            if self.counter.value - self._snapshot_value >= SNAPSHOT_EVERY:
                self._snapshot_value = self.counter.value
                with contextlib.suppress(DiskFullError, LogLockedError):
                    self.counter.snapshot()
            await asyncio.sleep(INTERVAL_S)

    def _fill(self) -> None:
        """Place increments until enough are under way."""
        counter = self.counter
        self._placed = 0 if counter.epoch_led is None else max(self._placed, counter.value)
        with contextlib.suppress(NotLeaderError):
            while self._placed - counter.value < IN_FLIGHT_MAX:
                placed = counter.increment()
                if placed is None:
                    return
                self._placed = placed

    async def _log_progress(self) -> None:
        logged = 0
        while True:
            await asyncio.sleep(LOG_INTERVAL_S)
            value, leads = self.counter.value, self.counter.epoch_led is not None
            self._lines.log("counted", value=value, since_last=value - logged, leads=leads)
            logged = value
