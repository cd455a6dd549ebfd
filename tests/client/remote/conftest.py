"""Quorums of real processes, one for each format of values, and both ways to open a log."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import pytest
from tests.support.quorum_processes import QuorumProcesses

import raftlog
from raftlog import ConnectedLog, EmbeddedLog

AnyLog: TypeAlias = EmbeddedLog | ConnectedLog


@dataclass(frozen=True)
class Quorums:
    """Quorums of one node, each started on first use."""

    of: Callable[[str], QuorumProcesses]


@pytest.fixture(scope="session")
def quorums(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Quorums]:
    with ExitStack() as stack:
        running: dict[str, QuorumProcesses] = {}

        def of(values: str) -> QuorumProcesses:
            if values not in running:
                home = tmp_path_factory.mktemp(f"quorum-{values}")
                nodes = QuorumProcesses(home, 1, extra=f'[log]\nvalues = "{values}"\n')
                running[values] = stack.enter_context(nodes)
            return running[values]

        yield Quorums(of)


@dataclass(frozen=True)
class LogOpener:
    """One of the two ways to open a log."""

    name: str
    address: Callable[[str], str]

    def open(self, values: str = "bytes") -> AnyLog:
        """Return the log with values of this format: the same one each time."""
        if self.name == "embedded":
            return raftlog.open(self.address(values), values=values)
        return raftlog.connect(self.address(values))


@pytest.fixture(params=["embedded", "quorum"])
def opener(request: pytest.FixtureRequest, tmp_path: Path) -> LogOpener:
    if request.param == "embedded":
        return LogOpener("embedded", lambda values: str(tmp_path / f"{values}-0"))
    quorums: Quorums = request.getfixturevalue("quorums")
    return LogOpener("quorum", lambda values: quorums.of(values).bootstrap)


@pytest.fixture
def log(opener: LogOpener) -> Iterator[AnyLog]:
    with opener.open() as opened:
        yield opened
