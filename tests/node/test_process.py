"""One node as people run it: from its file to its exit code."""

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


def start_again(node: NodeProcess) -> subprocess.CompletedProcess[str]:
    """Start what cannot be started, and wait for what it says."""
    command = [*COMMAND, "node", "start", "--config", str(node.config)]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)


def test_a_node_alone_stops_at_once_and_leaves_a_log_that_was_closed_in_order(
    node: NodeProcess,
) -> None:
    eventually(lambda: [one for one in node.lines() if one.get("new") == "leader"], "it leads")
    assert node.stop() == 0
    assert [one["event"] for one in node.lines()][-1] == "stopped"
    assert not [one for one in node.lines() if one["level"] == "warning"]
    assert (node.directory / "raftlog-0" / ".kafka_cleanshutdown").exists()


def test_a_second_process_is_told_that_the_node_runs(node: NodeProcess) -> None:
    done = start_again(node)
    assert done.returncode == 1
    assert "RAFTLOG_NODE_RUNNING" in done.stderr
    assert "Traceback" not in done.stderr
    assert node.is_running


def test_a_port_that_is_taken_is_named(node: NodeProcess, tmp_path: Path) -> None:
    other = NodeProcess(tmp_path / "other", 1, node.port)
    other.format("AAAAAAAAAAAAAAAAAAAAZw", initial_voters=other.voter)
    done = start_again(other)
    assert done.returncode != 0
    assert "RAFTLOG_NODE_ADDRESS" in done.stderr
    assert str(node.port) in done.stderr
    assert "Traceback" not in done.stderr


def test_a_node_that_was_never_formatted_says_what_to_do(tmp_path: Path) -> None:
    done = start_again(NodeProcess(tmp_path / "new", 1, 9))
    assert done.returncode == 2
    assert "raftlog node format" in done.stderr


def test_a_killed_node_begins_again_with_what_it_had(node: NodeProcess) -> None:
    eventually(lambda: [one for one in node.lines() if one.get("new") == "leader"], "it leads")
    node.kill()
    node.start()
    eventually(
        lambda: [one for one in node.lines() if one.get("new") == "leader" and one["epoch"] > 1],
        "it leads again, in a new epoch",
    )
