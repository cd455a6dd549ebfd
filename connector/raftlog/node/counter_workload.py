"""Counter workload of a node, to watch a quorum in operation and under failures.

Every node counts the committed increments; the leader appends increments, with at most
``IN_FLIGHT_MAX`` uncommitted. Progress is logged every second. A gap or a repetition in the
increments ends the node, because the log has lost or duplicated a record.

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
    """Counter of one node and the tasks that increment it, on the node's event loop."""

    def __init__(self, driver: Driver, lines: LogLines) -> None:
        self.counter: Final = ReplicatedCounter(driver.raft_client)
        self._driver = driver
        self._lines = lines
        self._loop = asyncio.get_running_loop()
        self._appended = 0
        self._snapshot_value = 0
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Register the counter and start its tasks."""
        self._driver.register(self.counter)
        self._tasks += [
            self._loop.create_task(self._count()),
            self._loop.create_task(self._log_progress()),
        ]

    def stop(self) -> None:
        """Cancel the tasks."""
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
        """Append increments until ``IN_FLIGHT_MAX`` are uncommitted."""
        counter = self.counter
        self._appended = 0 if counter.epoch_led is None else max(self._appended, counter.value)
        with contextlib.suppress(NotLeaderError):
            while self._appended - counter.value < IN_FLIGHT_MAX:
                value = counter.increment()
                if value is None:
                    return
                self._appended = value

    async def _log_progress(self) -> None:
        logged = 0
        while True:
            await asyncio.sleep(LOG_INTERVAL_S)
            value, leads = self.counter.value, self.counter.epoch_led is not None
            self._lines.log("counted", value=value, since_last=value - logged, leads=leads)
            logged = value
