"""Nodes of a quorum as real processes, to be queried, killed, stopped and restarted.

A node runs ``raftlog node start``: in tests in a process that is forked after its imports, in
benchmarks and if it has a ``command`` in a new one. Its directory is formatted in the process of
the test, as ``raftlog node format`` does. Waits are for an observable condition and bounded: a
timeout names the condition and the last log lines of the nodes.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from raftlog.node.addresses import parse_initial_voters
from raftlog.node.config import read_config
from raftlog.node.formatting import format_directory, random_id
from tests.support import forked_nodes
from tests.support.forked_nodes import ForkedProcess

T = TypeVar("T")
PATIENCE_S: Final = 30.0
"""Timeout of any wait on a busy machine."""
_LOOK_S: Final = 0.01
RARE_ELECTIONS: Final = "[quorum]\nfetch_timeout_ms = 3_000\n"
"""Table of nodes whose test expects exact offsets: an election, which writes a record, needs a
pause of 3 s. Voters also update their endpoints once in this time."""
COMMAND: Final = (sys.executable, "-m", "raftlog_state.cli")
START: Final = (*COMMAND, "node", "start")
"""Command of a node that is started as in production."""

_PORTS: Final = range(10_000, 30_000)
"""Below the ports that connections take by themselves."""
_ports = itertools.count(7_919 * os.getpid())


def free_ports(count: int) -> list[int]:
    """Return loopback ports that are free, none of them twice in this process.

    Processes that run tests beside each other draw from different places of the range.
    """
    found: list[int] = []
    for at in _ports:
        port = _PORTS[at % len(_PORTS)]
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            found.append(port)
        if len(found) == count:
            break
    return found


def eventually(look: Callable[[], T | None], what: str, *, patience_s: float = PATIENCE_S) -> T:
    """Poll until there is a result; return it. The ``AssertionError`` names what was awaited."""
    end = time.monotonic() + patience_s
    while True:
        found = look()
        if found:
            return found
        if time.monotonic() > end:
            raise AssertionError(f"waited {patience_s:.0f} s without success: {what}")
        time.sleep(_LOOK_S)


class NodeProcess:
    """One node: its directory and configuration, and its process while it runs."""

    def __init__(
        self, home: Path, node_id: int, port: int, *, extra: str = "", node_keys: str = ""
    ) -> None:
        """``node_keys`` are lines of the file's ``[node]``, ``extra`` its further tables."""
        self.node_id: Final = node_id
        self.port: Final = port
        self.home: Final = home
        self.directory: Final = home / "data"
        self.config: Final = home / "node.toml"
        self.lines_path: Final = home / "lines.json"
        self.directory_id = random_id()
        self.process: subprocess.Popen[bytes] | ForkedProcess | None = None
        self.wrapper: Sequence[str] = ()
        """Prefix of the command that starts the process, such as ``unshare``."""
        self.command: Sequence[str] = ()
        """Command that starts the process, if it is not forked."""
        self.before_launch: Callable[[], object] = lambda: None
        home.mkdir(parents=True, exist_ok=True)
        self.config.write_text(
            f'[node]\nid = {node_id}\ndirectory = "data"\n{node_keys}'
            f'[listeners.both]\naddress = "127.0.0.1:{port}"\n{extra}'
        )

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def voter(self) -> str:
        """The node as an element of ``--initial-voters``."""
        return f"{self.node_id}@{self.address}:{self.directory_id}"

    def format(self, cluster_id: str, *, initial_voters: str | None = None) -> None:
        """Format its directory; without voters it is to be added later."""
        voters = None if initial_voters is None else parse_initial_voters(initial_voters)
        self.directory_id = format_directory(
            read_config(self.config),
            cluster_id=cluster_id,
            initial_voters=voters,
            is_observer=voters is None,
        )

    def start(self) -> None:
        """Start it, and wait until it listens."""
        self.launch()
        self.wait_until_it_listens()

    def launch(self) -> None:
        """Start its process."""
        assert self.process is None, "it runs"
        self.before_launch()
        config = ("--config", str(self.config))
        if forked_nodes.is_enabled() and not (self.wrapper or self.command):
            self.process = ForkedProcess(("node", "start", *config), self.lines_path)
            return
        with self.lines_path.open("ab") as lines:
            self.process = subprocess.Popen(
                [*self.wrapper, *(self.command or START), *config],
                stderr=lines,
                stdout=lines,
                stdin=subprocess.DEVNULL,
            )

    def wait_until_it_listens(self) -> None:
        try:
            eventually(self._answers, f"node {self.node_id} listens")
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.last_lines()}") from None

    def _answers(self) -> bool:
        assert self.process is not None
        if self.process.poll() is not None:
            raise AssertionError(f"node {self.node_id} ended immediately")
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def kill(self) -> None:
        """Kill the process with SIGKILL."""
        self._end(signal.SIGKILL)

    def stop(self) -> int:
        """Shut it down gracefully; return its exit code."""
        return self._end(signal.SIGTERM)

    def _end(self, number: signal.Signals) -> int:
        process, self.process = self.process, None
        assert process is not None, "it runs"
        process.send_signal(number)
        return process.wait(PATIENCE_S)

    def pause(self) -> None:
        """Pause the process."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)

    def limit_files(self, byte_count: int | None) -> None:
        """Limit the size of each of its files, as on a full disk; None removes the limit."""
        assert self.process is not None
        limit = resource.RLIM_INFINITY if byte_count is None else byte_count
        bounds = (limit, resource.RLIM_INFINITY)
        resource.prlimit(self.process.pid, resource.RLIMIT_FSIZE, bounds)

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def lines(self) -> list[dict[str, Any]]:
        """Return all log lines of all its processes so far."""
        found = []
        for line in self.lines_path.read_text().splitlines():
            try:
                found.append(json.loads(line))
            except ValueError:
                found.append({"event": "not JSON", "text": line})
        return found

    def last_lines(self, count: int = 20) -> str:
        if not self.lines_path.exists():
            return ""
        return "\n".join(self.lines_path.read_text().splitlines()[-count:])


class QuorumProcesses:
    """Several nodes of one cluster. As a context manager it ends all their processes, also if one
    of them does not start, and an error has the last lines of each."""

    def __init__(
        self, home: Path, node_count: int = 3, *, extra: str = "", node_keys: str = ""
    ) -> None:
        self.home: Final = home
        self.cluster_id: Final = random_id()
        self.extra: Final = extra
        self.node_keys: Final = node_keys
        ports = free_ports(node_count)
        self.nodes: Final = [
            NodeProcess(home / f"node-{at}", at, port, extra=extra, node_keys=node_keys)
            for at, port in enumerate(ports, start=1)
        ]

    def __enter__(self) -> Self:
        voters = ",".join(node.voter for node in self.nodes)
        for node in self.nodes:
            node.format(self.cluster_id, initial_voters=voters)
        with contextlib.ExitStack() as unless_all_listen:
            unless_all_listen.push(self)
            for node in self.nodes:
                node.launch()
            for node in self.nodes:
                node.wait_until_it_listens()
            unless_all_listen.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for node in self.nodes:
            if node.process is not None:
                node.process.send_signal(signal.SIGCONT)
                node.kill()
        if error is not None and hasattr(error, "add_note"):
            for node in self.nodes:
                error.add_note(f"--- node {node.node_id} said last\n{node.last_lines()}")

    @property
    def bootstrap(self) -> str:
        return ",".join(node.address for node in self.nodes)

    def running(self) -> Iterator[NodeProcess]:
        return (node for node in self.nodes if node.is_running)

    def new_node(self, node_id: int | None = None) -> NodeProcess:
        """Return a formatted node that is not a voter and not started. With the id of an existing
        node it replaces that one, in its own directory."""
        (port,) = free_ports(1)
        if node_id is None:
            node_id = max(node.node_id for node in self.nodes) + 1
        others = [node for node in self.nodes if node.node_id != node_id]
        servers = ", ".join(f'"{node.address}"' for node in others)
        home = self.home / f"node-{node_id}-{len(list(self.home.iterdir()))}"
        keys = f"{self.node_keys}bootstrap_servers = [{servers}]\n"
        node = NodeProcess(home, node_id, port, extra=self.extra, node_keys=keys)
        node.format(self.cluster_id)
        self.nodes[:] = [*others, node]
        return node

    def node(self, node_id: int) -> NodeProcess:
        return next(node for node in self.nodes if node.node_id == node_id)
