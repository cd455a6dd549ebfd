"""`raftlog dev`: a quorum of processes on this machine, which ends with its command."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.support.cli import run
from tests.support.quorum_processes import PATIENCE_S, eventually, free_ports
from tests.support.sweep_size import nightly_except

import raftlog

INTERRUPTED = 130


@dataclass
class Running:
    """A running command: its process, and what it has printed."""

    process: subprocess.Popen[str]
    bootstrap: str
    pids: list[int]
    home: Path

    def end(self, number: signal.Signals) -> int:
        self.process.send_signal(number)
        return self.process.wait(PATIENCE_S)


@contextmanager
def running(*words: str | Path) -> Iterator[Running]:
    """Run the command with its own SIGINT handler, as a shell does; kill it at the end."""
    code = (
        "import signal, sys\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from raftlog_state.cli.main import main\n"
        "sys.exit(main())"
    )
    command = [sys.executable, "-c", code, "dev", *map(str, words)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        printed = ""
        while "Ctrl-C ends" not in printed:
            line = process.stdout.readline()
            assert line, process.stderr.read()
            printed += line
        bootstrap = re.search(r'connect\("(.*)"\)', printed)
        home = re.search(r"data in ([^,\n]*)", printed)
        assert bootstrap is not None
        assert home is not None
        pids = [int(pid) for pid in re.findall(r"process (\d+)", printed)]
        yield Running(process, bootstrap[1], pids, Path(home[1]))
    finally:
        process.kill()
        process.communicate()


def has_ended(bootstrap: str) -> bool:
    """Return whether none of the addresses accepts a connection."""
    for address in bootstrap.split(","):
        host, _, port = address.rpartition(":")
        with socket.socket() as probe:
            if probe.connect_ex((host, int(port))) == 0:
                return False
    return True


@pytest.mark.slow
@pytest.mark.parametrize("node_count", nightly_except([1], [1, 3]))
def test_a_quorum_is_started_used_and_removed(node_count: int) -> None:
    with running("--nodes", str(node_count)) as dev:
        assert len(dev.bootstrap.split(",")) == len(dev.pids) == node_count
        with raftlog.connect(dev.bootstrap) as log:
            done = log.append([b"a", b"b"])
            assert [record.value for record in log.read(done.base_offset)] == [b"a", b"b"]
        assert dev.home.is_dir()
        assert dev.end(signal.SIGINT) == INTERRUPTED
        assert has_ended(dev.bootstrap)
        assert not dev.home.exists()


@pytest.mark.slow
def test_a_quorum_in_a_directory_is_started_again_with_its_records(tmp_path: Path) -> None:
    home, (first,) = tmp_path / "quorum", free_ports(1)
    with running("--dir", home, "--nodes", "1", "--port", str(first)) as dev:
        assert dev.bootstrap == f"127.0.0.1:{first}"
        with raftlog.connect(dev.bootstrap) as log:
            offset = log.append(b"kept").base_offset
        assert dev.end(signal.SIGTERM) == 0
    with running("--dir", home) as dev, raftlog.connect(dev.bootstrap) as log:
        assert [record.value for record in log.read(offset)] == [b"kept"]
    eventually(lambda: has_ended(dev.bootstrap), "the node of a killed command ends")
    for words, reason in (
        (("--nodes", "3"), "the quorum in --dir has 1 nodes"),
        (("--port", "9192"), "its files have this setting"),
    ):
        status, _, err = run("dev", "--dir", home, *words)
        assert status == 2
        assert reason in err


@pytest.mark.slow
def test_a_killed_node_is_reported_and_the_others_serve(tmp_path: Path) -> None:
    with running("--dir", tmp_path / "quorum") as dev:
        assert len(dev.bootstrap.split(",")) == len(dev.pids) == 3
        killed = subprocess.run(["kill", "-KILL", str(dev.pids[0])], check=True)
        assert killed.returncode == 0
        assert dev.process.stderr is not None
        assert "node 1 has ended, signal 9" in dev.process.stderr.readline()
        with raftlog.connect(dev.bootstrap) as log:
            assert log.append(b"by two").end_offset == log.end_offset
        assert dev.end(signal.SIGINT) == INTERRUPTED
        assert has_ended(dev.bootstrap)


@pytest.mark.slow
def test_a_port_in_use_is_an_error_and_leaves_no_process(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        status, out, err = run("dev", "--nodes", "1", "--port", str(port))
    assert (status, out) == (2, "")
    assert (
        f"node 1 has ended: raftlog: [RAFTLOG_NODE_ADDRESS] cannot listen on 127.0.0.1:{port}"
        in (err)
    )


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("--nodes", "0"), "--nodes: must be from 1 to 9"),
        (("--nodes", "10"), "--nodes: must be from 1 to 9"),
        (("--port", "65534"), "--port: must be from 1 to 65533"),
        (("--dir", "missing/quorum"), "--dir: cannot be created: no such file or directory"),
    ],
)
def test_invalid_options_start_nothing(words: tuple[str, str], reason: str) -> None:
    status, out, err = run("dev", *words)
    assert (status, out) == (2, "")
    assert reason in err


def test_invalid_options_leave_no_directory(tmp_path: Path) -> None:
    for words in (("--nodes", "10"), ("--port", "65534")):
        assert run("dev", "--dir", tmp_path / "quorum", *words)[0] == 2
        assert list(tmp_path.iterdir()) == []


def test_a_directory_of_something_else_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("kept")
    status, _, err = run("dev", "--dir", tmp_path)
    assert status == 2
    assert "has no quorum of `raftlog dev`" in err
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_files_beside_the_directory_are_not_deleted(tmp_path: Path) -> None:
    other = tmp_path / "data.part" / "thesis"
    other.parent.mkdir()
    other.write_text("mine")
    status, _, err = run("dev", "--dir", tmp_path / "data", "--nodes", "1")
    assert status == 2
    assert "has other files" in err
    assert other.read_text() == "mine"
