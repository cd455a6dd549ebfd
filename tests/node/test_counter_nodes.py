"""Three nodes with the replicated counter on real logs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.quorum_checks import leader_of
from tests.support.quorum_processes import NodeProcess, QuorumProcesses, eventually

pytestmark = pytest.mark.slow


def counted(node: NodeProcess) -> int:
    """Return the count that the node logged last."""
    said: list[Any] = [line["value"] for line in node.lines() if line["event"] == "counted"]
    return said[-1] if said else 0


def test_counting_continues_when_the_leader_is_killed(tmp_path: Path) -> None:
    quorum = QuorumProcesses(tmp_path)
    for node in quorum.nodes:
        node.command = ("node", "workload")
    with quorum:
        eventually(lambda: min(map(counted, quorum.nodes)) > 50, "all nodes count")
        leader = eventually(lambda: leader_of(quorum), "a leader")
        leader.kill()
        rest = [node for node in quorum.nodes if node is not leader]
        before = max(map(counted, rest))
        eventually(lambda: min(map(counted, rest)) > before + 50, "the others continue counting")
        leader.start()
        eventually(lambda: counted(leader) > before + 50, "it has counted all increments")
        assert all(node.is_running for node in quorum.nodes), "counts never contradict earlier ones"
