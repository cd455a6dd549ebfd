"""Handle of a quorum apart from appends: errors, close, bounded memory and imports."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future

import pytest
from tests.client.remote.conftest import Quorums
from tests.support.quorum_processes import free_ports

import raftlog
from raftlog import ConnectedLog, EmbeddedLog
from raftlog.append import AppendResult
from raftlog.errors import (
    BufferAllocationError,
    LogClosedError,
    NotRemoteError,
    OptionError,
    QuorumUnavailableError,
)


def test_connecting_without_a_reachable_node_fails() -> None:
    (port,) = free_ports(1)
    with pytest.raises(QuorumUnavailableError) as caught:
        raftlog.connect(f"127.0.0.1:{port}", timeout_ms=200)
    assert caught.value.retriable
    assert f"127.0.0.1:{port}" in str(caught.value)
    with pytest.raises(QuorumUnavailableError):
        raftlog.follow(f"127.0.0.1:{port}", timeout_ms=200)
    assert not [one for one in threading.enumerate() if str(port) in one.name]
    with pytest.raises(OptionError):
        raftlog.connect(f"127.0.0.1:{port}", timeout_ms=-1)


def test_both_handles_have_the_same_methods() -> None:
    embedded = {name for name in vars(EmbeddedLog) if not name.startswith("_")}
    of_files = {"recovery_report"}
    missing = embedded - of_files - set(vars(ConnectedLog))
    assert not missing


@pytest.fixture
def log(quorums: Quorums) -> ConnectedLog:
    return raftlog.connect(quorums.of("bytes").bootstrap)


@pytest.mark.slow
@pytest.mark.parametrize(
    "call",
    [
        lambda log: log.claim(),
        lambda log: log.snapshot([b"state"], delete_before=True),
        lambda log: log.read_snapshot(),
        lambda log: log.clean(),
        lambda log: log.run(print),
    ],
)
def test_methods_that_need_the_directory_are_refused(
    log: ConnectedLog, call: Callable[[ConnectedLog], object]
) -> None:
    with log, pytest.raises(NotRemoteError, match="is not supported by a client"):
        call(log)


@pytest.mark.slow
def test_a_closed_handle_refuses_calls(log: ConnectedLog) -> None:
    log.close()
    for call in (lambda: log.append(b"x"), lambda: log.end_offset, lambda: list(log.read())):
        with pytest.raises(LogClosedError):
            call()
    log.close()


@pytest.mark.slow
def test_the_queue_is_bounded(log: ConnectedLog) -> None:
    with log:
        futures: list[Future[AppendResult]] = []

        def flood() -> None:
            for _ in range(100):
                futures.append(log.append_async(bytes(8 * 2**20 - 1000), timeout_ms=1))

        with pytest.raises(BufferAllocationError):
            flood()
        for future in futures:
            future.exception(30)
        assert log.append(b"room again").epoch >= 1


@pytest.mark.slow
def test_queued_appends_are_sent_before_the_process_exits(quorums: Quorums) -> None:
    address = quorums.of("bytes").bootstrap
    code = (
        "import raftlog, sys\n"
        "log = raftlog.connect(sys.argv[1])\n"
        "print(log.end_offset)\n"
        "for number in range(300): log.append_async(b'%d' % number)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, address], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")
    with raftlog.connect(address) as log:
        found = [record.value for record in log.read(int(done.stdout))]
    assert found == [b"%d" % number for number in range(300)]


@pytest.mark.slow
def test_an_appending_process_does_not_import_readers(quorums: Quorums) -> None:
    code = (
        "import raftlog, sys\n"
        "with raftlog.connect(sys.argv[1]) as log:\n"
        "    log.append(b'x', commit=('light', 'query', 1))\n"
        "    log.append([b'a', b'b'])\n"
        "    log.last_commit('light')\n"
        "print(*sys.modules)"
    )
    command = [sys.executable, "-c", code, quorums.of("bytes").bootstrap]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert not set(done.stdout.split()) & {"numpy", "pyarrow"}
