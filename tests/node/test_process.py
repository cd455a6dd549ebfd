"""A node as operators run it: from its file to its exit code."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

import raftlog
from tests.support.forked_nodes import ForkedProcess
from tests.support.quorum_processes import (
    PATIENCE_S,
    START,
    NodeProcess,
    QuorumProcesses,
    eventually,
)

pytestmark = pytest.mark.slow


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeProcess]:
    with QuorumProcesses(tmp_path, 1) as quorum:
        yield quorum.nodes[0]


@pytest.fixture
def started(tmp_path: Path) -> Iterator[NodeProcess]:
    """A node that was started as in production."""
    quorum = QuorumProcesses(tmp_path, 1)
    quorum.nodes[0].command = START
    with quorum:
        yield quorum.nodes[0]


def failed_start(node: NodeProcess) -> subprocess.CompletedProcess[str]:
    """Start a node that cannot start, and return its output."""
    command = [*START, "--config", str(node.config)]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)


def test_a_single_node_stops_immediately_and_leaves_a_cleanly_closed_log(
    started: NodeProcess,
) -> None:
    eventually(lambda: [one for one in started.lines() if one.get("new") == "leader"], "it leads")
    assert started.stop() == 0
    assert [one["event"] for one in started.lines()][-1] == "stopped"
    assert not [one for one in started.lines() if one["level"] == "warning"]
    assert (started.directory / "raftlog-0" / ".kafka_cleanshutdown").exists()


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


def test_a_forked_node_has_the_exit_codes_of_a_started_one(tmp_path: Path) -> None:
    with QuorumProcesses(tmp_path, 1) as quorum:
        (node,) = quorum.nodes
        process = node.process
        assert isinstance(process, ForkedProcess)
        assert process.poll() is None
        node.kill()
        assert process.poll() == -signal.SIGKILL
        process.send_signal(signal.SIGTERM)  # its id may be that of another process by now
        node.start()
        assert node.stop() == 0
        lines = [one["event"] for one in node.lines()]
        assert lines.count("started") == 2
        assert lines[-1] == "stopped"
    unformatted = NodeProcess(tmp_path / "new", 1, 9)
    with pytest.raises(AssertionError, match="ended immediately"):
        unformatted.start()
    assert unformatted.process is not None
    assert unformatted.process.poll() == 2
    assert "raftlog node format" in unformatted.last_lines()


PRINTING_MODULES: Final = (
    sys.executable,
    "-c",
    "import sys; from raftlog_state.cli.main import main; "
    "code = main(['node', 'start', *sys.argv[1:]]); print('modules', *sys.modules); sys.exit(code)",
)
"""Starts a node that prints the names of the imported modules at its end."""


def modules_of(node: NodeProcess) -> list[set[str]]:
    """Return the modules that each process of a node had imported at its end."""
    lines = [one["text"] for one in node.lines() if one["event"] == "not JSON"]
    return [set(one.split()) for one in lines if one.startswith("modules ")]


def test_a_node_that_appends_and_serves_reads_imports_neither_numpy_nor_pyarrow(
    tmp_path: Path,
) -> None:
    quorum = QuorumProcesses(tmp_path, 3)
    for node in quorum.nodes:
        node.command = PRINTING_MODULES
    with quorum:
        with raftlog.connect(quorum.bootstrap) as log:
            for number in range(20):
                log.append(b"%d" % number, commit=("app", "query", number))
            assert log.last_commit("app") is not None
            assert len(list(log.read(0))) == 20
        for node in quorum.nodes:
            assert node.stop() == 0
        first = quorum.nodes[0]
        first.start()  # with records, after a clean shutdown
        assert first.stop() == 0
    for node in quorum.nodes:
        modules = modules_of(node)
        assert len(modules) == (2 if node is first else 1), "one was started twice"
        for found in modules:
            assert "raftlog.node.process" in found
            assert not found & {"numpy", "pyarrow", "raftlog_state.publishing"}
            assert "hypothesis" not in found, "as in production"


def test_a_node_that_was_killed_does_not_import_pyarrow(tmp_path: Path) -> None:
    with QuorumProcesses(tmp_path, 1) as quorum:
        (node,) = quorum.nodes
        with raftlog.connect(quorum.bootstrap) as log:
            log.append([b"1", b"2"], commit=("app", "query", 1))
            node.kill()
            node.command = PRINTING_MODULES
            node.start()
            assert log.append(b"3", timeout_ms=60_000).base_offset > 2
        assert node.stop() == 0
    (found,) = modules_of(node)
    assert "raftlog.log.recovery.load_log" in found
    assert "pyarrow" not in found
