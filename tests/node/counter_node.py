"""Process of a node that counts: ``python -m tests.node.counter_node --config FILE``.

Every node counts the committed increments; the leader appends increments, with at most
``IN_FLIGHT_MAX`` uncommitted. Progress is logged every second. A gap or a repetition in the
increments ends the node, because the log has lost or duplicated a record.

Kafka: ``TestRaftServer``.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from typing import Final

from raftlog.errors import DiskFullError, LogClosedError, LogLockedError, NotLeaderError
from raftlog.node.config import read_config
from raftlog.node.log_lines import LogLines
from raftlog.node.process import run_node
from raftlog.node.raft_client import RaftClient
from raftlog.node.service import Service
from tests.support.replicated_counter import ReplicatedCounter

IN_FLIGHT_MAX: Final = 32
INTERVAL_S: Final = 0.002
LOG_INTERVAL_S: Final = 1.0
SNAPSHOT_EVERY: Final = 10_000
"""Increments between two snapshots of the count."""


class CounterWorkload(ReplicatedCounter):
    """Counter of one node, with the tasks that increment it on the node's event loop."""

    def __init__(self, log: RaftClient, lines: LogLines) -> None:
        super().__init__(log)
        self._lines = lines
        self._appended = 0
        self._snapshot_value = 0
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._count()), loop.create_task(self._log_progress())]

    def begin_shutdown(self) -> None:
        super().begin_shutdown()
        for task in self._tasks:
            task.cancel()

    async def _count(self) -> None:
        while True:
            self._fill()
            if self.value - self._snapshot_value >= SNAPSHOT_EVERY:
                self._snapshot_value = self.value
                with contextlib.suppress(DiskFullError, LogLockedError):
                    self.snapshot()
            await asyncio.sleep(INTERVAL_S)

    def _fill(self) -> None:
        """Append increments until ``IN_FLIGHT_MAX`` are uncommitted."""
        self._appended = 0 if self.epoch_led is None else max(self._appended, self.value)
        with contextlib.suppress(NotLeaderError, LogClosedError):
            while self._appended - self.value < IN_FLIGHT_MAX:
                value = self.increment()
                if value is None:
                    return
                self._appended = value

    async def _log_progress(self) -> None:
        logged = 0
        while True:
            await asyncio.sleep(LOG_INTERVAL_S)
            leads = self.epoch_led is not None
            self._lines.log(
                "counted", value=self.value, since_last=self.value - logged, leads=leads
            )
            logged = self.value


def main() -> int:
    config = read_config(sys.argv[sys.argv.index("--config") + 1])
    lines = LogLines(sys.stderr, config.node_id)
    return run_node(
        config, services=[lambda node: Service(listener=CounterWorkload(node.log, lines))]
    )


if __name__ == "__main__":
    sys.exit(main())
