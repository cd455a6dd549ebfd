"""Simulated machine, and logs on it that several simulated processes open."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.simulated_disk.simulated_disk import SimulatedDisk

from raftlog.client.embedded.handle import EmbeddedLog, open_embedded
from raftlog.log.writing.properties import LogConfig

PATH = "/logs/orders-3"


class Machine:
    """Disk of one machine. Each ``open`` is a new process unless the test passes one."""

    def __init__(self) -> None:
        self.disk = SimulatedDisk()
        self.disk.make_directory("/logs")
        self.disk.sync_directory("/")
        self.logs: list[EmbeddedLog] = []

    def open(
        self,
        *,
        process: SimulatedDisk | None = None,
        values: str | None = None,
        config: LogConfig | None = None,
        create: bool = True,
    ) -> EmbeddedLog:
        process = self.disk.another_process() if process is None else process
        log = open_embedded(PATH, storage=process, values=values, config=config, create=create)
        self.logs.append(log)
        return log

    def close(self) -> None:
        for log in self.logs:
            log.close()


@pytest.fixture
def machine() -> Iterator[Machine]:
    simulated = Machine()
    yield simulated
    simulated.close()
