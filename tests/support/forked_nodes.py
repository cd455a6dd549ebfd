"""Node processes that are forked from a process that has imported raftlog.

A start by ``raftlog node start`` takes 0.8 s of processor time, 0.1 s without its imports: they run
once for all nodes of a run of tests, in a process that only forks. A node has a process of its own,
which reads its file, and is paused, killed and stopped as any other. ``tests/node/test_process.py``
starts nodes as operators do, and verifies what these import. Benchmarks do so, too: the memory of a
forked node is in part that of the other process.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

IMPORTED: Final = (
    "raftlog_state.cli.main",
    "raftlog_state.cli.node",
    "raftlog.node.config",
    "raftlog.node.process",
)
"""Modules that every node imports, with all that these import."""


_is_enabled = False


def enable() -> None:
    """Fork the nodes of this process from now on, if the system has descriptors of processes."""
    global _is_enabled
    _is_enabled = hasattr(os, "pidfd_open")


def is_enabled() -> bool:
    return _is_enabled


class ForkedProcess:
    """Process of a node, with the methods of ``subprocess.Popen`` that tests use."""

    def __init__(self, arguments: Sequence[str], output: Path) -> None:
        """Run ``raftlog`` with these arguments; its output is appended to a file."""
        self._server = _server()
        self.pid: int = self._server.request(
            arguments=["raftlog", *arguments],
            output=str(output.absolute()),
            directory=os.getcwd(),
            environment=dict(os.environ),
        )
        self._descriptor: Final = os.pidfd_open(self.pid)
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Return the exit code if it has ended: that of a signal is negative."""
        return self._ended_within(0)

    def wait(self, timeout: float | None = None) -> int:
        """Wait until it ends; return the exit code."""
        code = self._ended_within(timeout)
        if code is None:
            raise subprocess.TimeoutExpired("raftlog", timeout or 0)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            signal.pidfd_send_signal(self._descriptor, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _ended_within(self, timeout_s: float | None) -> int | None:
        if self.returncode is None:
            poll = select.poll()
            poll.register(self._descriptor, select.POLLIN)
            if poll.poll(None if timeout_s is None else 1000 * timeout_s):
                self.returncode = self._server.request(ended=self.pid)
                os.close(self._descriptor)
        return self.returncode


class _Server:
    """Client of the process that forks, which ends with this one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        own, other = socket.socketpair()
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, str(other.fileno())],
            pass_fds=[other.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
        other.close()
        self._socket = own
        self._lines = own.makefile("r")

    def request(self, **fields: Any) -> int:
        with self._lock:
            self._socket.sendall(json.dumps(fields).encode() + b"\n")
            return int(self._lines.readline())

    def close(self) -> None:
        self._lines.close()
        self._socket.close()
        self._process.wait()


@cache
def _server() -> _Server:
    server = _Server()
    atexit.register(server.close)
    return server


# --- the process that forks -----------------------------------------------------------------------


def serve(connection: socket.socket) -> None:
    """Fork a process for each request; return in each of these, with its arguments in place."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    running: set[int] = set()
    with connection, connection.makefile("r") as lines:
        for line in lines:
            request = json.loads(line)
            if "ended" in request:
                pid, status = os.waitpid(request["ended"], 0)
                running.discard(pid)
                answer = os.waitstatus_to_exitcode(status)
            elif answer := os.fork():
                running.add(answer)
            else:
                break
            connection.sendall(b"%d\n" % answer)
        else:
            for pid in running:
                os.kill(pid, signal.SIGKILL)
            sys.exit()
    become(request)


def become(request: dict[str, Any]) -> None:
    """Take over what a process has from its start: arguments, environment, directory, output."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.argv = request["arguments"]
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["directory"])
    output = os.open(request["output"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)


if __name__ == "__main__":
    for module in IMPORTED:
        importlib.import_module(module)
    assert threading.active_count() == 1, "a forked process would lack the other threads"
    gc.collect()
    gc.freeze()
    serve(socket.socket(fileno=int(sys.argv[1])))
    sys.exit(sys.modules["raftlog_state.cli.main"].main())
