"""A node as operators run it: from its file to its exit code."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.quorum_processes import (
    COMMAND,
    PATIENCE_S,
    NodeProcess,
    QuorumProcesses,
    eventually,
)

pytestmark = pytest.mark.slow


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeProcess]:
    with QuorumProcesses(tmp_path, 1) as quorum:
        yield quorum.nodes[0]


def failed_start(node: NodeProcess) -> subprocess.CompletedProcess[str]:
    """Start a node that cannot start, and return its output."""
    command = [*COMMAND, "node", "start", "--config", str(node.config)]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)


def test_a_single_node_stops_immediately_and_leaves_a_cleanly_closed_log(
    node: NodeProcess,
) -> None:
    eventually(lambda: [one for one in node.lines() if one.get("new") == "leader"], "it leads")
    assert node.stop() == 0
    assert [one["event"] for one in node.lines()][-1] == "stopped"
    assert not [one for one in node.lines() if one["level"] == "warning"]
    assert (node.directory / "raftlog-0" / ".kafka_cleanshutdown").exists()


def test_a_second_process_reports_that_the_node_runs(node: NodeProcess) -> None:
    done = failed_start(node)
    assert done.returncode == 1
    assert "RAFTLOG_NODE_RUNNING" in done.stderr
    assert "Traceback" not in done.stderr
    assert node.is_running


def test_a_port_in_use_is_reported(node: NodeProcess, tmp_path: Path) -> None:
    other = NodeProcess(tmp_path / "other", 1, node.port)
    other.format("AAAAAAAAAAAAAAAAAAAAZw", initial_voters=other.voter)
    done = failed_start(other)
    assert done.returncode != 0
    assert "RAFTLOG_NODE_ADDRESS" in done.stderr
    assert str(node.port) in done.stderr
    assert "Traceback" not in done.stderr


def test_an_unformatted_node_reports_a_remedy(tmp_path: Path) -> None:
    done = failed_start(NodeProcess(tmp_path / "new", 1, 9))
    assert done.returncode == 2
    assert "raftlog node format" in done.stderr


def test_a_killed_node_restarts_with_its_records(node: NodeProcess) -> None:
    eventually(lambda: [one for one in node.lines() if one.get("new") == "leader"], "it leads")
    node.kill()
    node.start()
    eventually(
        lambda: [one for one in node.lines() if one.get("new") == "leader" and one["epoch"] > 1],
        "it leads again, in a new epoch",
    )
