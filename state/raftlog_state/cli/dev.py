"""``raftlog dev``: a quorum on this machine, to try raftlog with.

Each node is a process, as in production. It reads its stdin and ends gracefully when that is
closed: so no node outlives the command, however that ends.
"""

from __future__ import annotations

import argparse
import os
import re
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from typing import TYPE_CHECKING, Final

from .output import Console, Output
from .parser import Commands

if TYPE_CHECKING:
    from raftlog.client.remote.voters import QuorumInfo
    from raftlog.node.config import NodeConfig

ABOUT: Final = """
Start a quorum of raftlog on this machine, to try it: create, format and start its nodes, print the
addresses to connect to, and stop all nodes at Ctrl-C. Each node is a separate process, so you can
kill one and see what happens.

The nodes listen only on loopback, without TLS, so every user of this machine can access them.
Without --dir, the data is in a temporary directory, which is removed at the end. With --dir, the
data is kept, and an existing DIR starts the same quorum again.
"""

EXAMPLES: Final = """
raftlog dev
raftlog dev --nodes 5 --dir quorum --port 9192
raftlog dev --values kraft
"""

NODES_DEFAULT: Final = 3
NODES_MAX: Final = 9
START_TIMEOUT_S: Final = 60.0
"""Time for the first election."""
STOP_TIMEOUT_S: Final = 20.0
"""Time for a node to hand over and close its log, after which it is killed."""
_LOOK_TIMEOUT_MS: Final = 1_000
_HOST: Final = "127.0.0.1"
_PORT_MAX: Final = 65_535
_CONFIG: Final = "node.toml"
_NODE: Final = re.compile(r"node-\d+")
_LINES: Final = "lines.json"
_TOML: Final = """[node]
id = {node_id}
directory = "data"
[listeners.both]
address = "{address}"
[log]
values = "{values}"
"""


def add_dev(commands: Commands) -> None:
    """Add ``raftlog dev``."""
    command = commands.add_parser("dev", about=ABOUT, examples=EXAMPLES)
    command.set_defaults(run=run_dev)
    command.add_argument(
        "--nodes", metavar="N", type=int, help=f"number of nodes; default: {NODES_DEFAULT}"
    )
    command.add_argument("--dir", metavar="DIR", help="directory in which the nodes' data is kept")
    command.add_argument(
        "--port",
        metavar="PORT",
        type=int,
        help="port of the first node; the others use the next ones; default: free ports",
    )
    command.add_argument(
        "--values",
        choices=("bytes", "msgpack", "kraft"),
        help="kind of the log's values, see `pydoc raftlog.node.config`; default: bytes",
    )


def run_dev(arguments: argparse.Namespace, output: Output, console: Console) -> int:
    """Run the quorum until a signal; return the exit code."""
    from .signals import StopSignals, TerminatedError

    with StopSignals(), suppress(TerminatedError), _home(arguments) as home, ExitStack() as ends:
        nodes = []
        for config in _configs(home):
            nodes.append(_Node(home, config))
            ends.callback(nodes[-1].close)
        for node in nodes:
            # A graceful end waits for seconds for a successor of the last leader. That is useless
            # if the data is removed.
            ends.callback(node.process.kill if arguments.dir is None else node.stop)
        info = _wait_for_leader(nodes)
        output.lines(_describe(nodes, info, home, is_kept=arguments.dir is not None))
        output.flush()
        _watch(nodes, console)
        return 1
    return 0


# --- the directory --------------------------------------------------------------------------------


@contextmanager
def _home(arguments: argparse.Namespace) -> Iterator[str]:
    """Yield the directory of the quorum, which is created unless it exists.

    Without ``--dir`` it is deleted afterwards. Raises ``OptionError``.
    """
    if arguments.dir is None:
        home = tempfile.mkdtemp(prefix="raftlog-dev-")
        try:
            _create(home, arguments, _ports(arguments))
            yield home
        finally:
            shutil.rmtree(home, ignore_errors=True)
        return
    home = os.path.abspath(arguments.dir)
    if os.path.isdir(home) and os.listdir(home):
        _check_existing(home, arguments)
    else:
        part, ports = f"{home}.part", _ports(arguments)
        _remove_interrupted(part)
        _make_directory(part)
        _create(part, arguments, ports)
        os.replace(part, home)
    yield home


def _remove_interrupted(part: str) -> None:
    """Delete what a killed command has left. Raises ``OptionError`` for other files."""
    from raftlog.errors import OptionError

    if os.path.isdir(part) and not all(map(_NODE.fullmatch, os.listdir(part))):
        reason = f"{part}, in which it would be created, has other files: name another directory"
        raise OptionError(option="--dir", reason=reason)
    shutil.rmtree(part, ignore_errors=True)


def _make_directory(path: str) -> None:
    from raftlog.errors import OptionError

    try:
        os.mkdir(path, 0o700)
    except OSError as error:
        reason = f"cannot be created: {(error.strerror or str(error)).lower()}"
        raise OptionError(option="--dir", reason=reason) from None


def _check_existing(home: str, arguments: argparse.Namespace) -> None:
    """Raise ``OptionError`` unless an existing directory has the quorum that is requested."""
    from raftlog.errors import OptionError

    count = len(_config_paths(home))
    if not count:
        reason = "it is not empty and has no quorum of `raftlog dev`: name another directory"
        raise OptionError(option="--dir", reason=reason)
    if arguments.nodes not in (None, count):
        reason = f"the quorum in --dir has {count} nodes"
        raise OptionError(option="--nodes", reason=reason)
    for option in ("port", "values"):
        if getattr(arguments, option) is not None:
            reason = "the quorum in --dir exists: its files have this setting"
            raise OptionError(option=f"--{option}", reason=reason)


def _config_paths(home: str) -> list[str]:
    paths = (os.path.join(home, f"node-{node_id}", _CONFIG) for node_id in range(1, NODES_MAX + 1))
    return [path for path in paths if os.path.isfile(path)]


def _configs(home: str) -> list[NodeConfig]:
    from raftlog.node.config import read_config

    return [read_config(path) for path in _config_paths(home)]


def _create(home: str, arguments: argparse.Namespace, ports: list[int]) -> None:
    """Write the configurations of all nodes into an empty directory, and format them."""
    from raftlog.node.addresses import parse_initial_voters
    from raftlog.node.formatting import format_directory, random_id

    voters = []
    for node_id, port in enumerate(ports, start=1):
        address = f"{_HOST}:{port}"
        voters.append(f"{node_id}@{address}:{random_id()}")
        os.mkdir(os.path.join(home, f"node-{node_id}"), 0o700)
        with open(os.path.join(home, f"node-{node_id}", _CONFIG), "w", encoding="utf-8") as file:
            values = arguments.values or "bytes"
            file.write(_TOML.format(node_id=node_id, address=address, values=values))
    cluster_id, initial_voters = random_id(), parse_initial_voters(",".join(voters))
    for config in _configs(home):
        format_directory(config, cluster_id=cluster_id, initial_voters=initial_voters)


def _ports(arguments: argparse.Namespace) -> list[int]:
    """Return the ports of the nodes. Raises ``OptionError``."""
    from raftlog.errors import OptionError

    count = NODES_DEFAULT if arguments.nodes is None else arguments.nodes
    first: int | None = arguments.port
    if not 1 <= count <= NODES_MAX:
        raise OptionError(option="--nodes", reason=f"must be from 1 to {NODES_MAX}")
    if first is not None:
        if not 0 < first <= _PORT_MAX - count + 1:
            raise OptionError(option="--port", reason=f"must be from 1 to {_PORT_MAX - count + 1}")
        return list(range(first, first + count))
    with ExitStack() as sockets:  # open at the same time, so that they differ
        free = [sockets.enter_context(socket.create_server((_HOST, 0))) for _ in range(count)]
        return [one.getsockname()[1] for one in free]


# --- the processes --------------------------------------------------------------------------------


class _Node:
    """Process of one node. It ends when the pipe to its stdin is closed."""

    def __init__(self, home: str, config: NodeConfig) -> None:
        assert config.clients is not None, "it has [listeners.both]"
        self.node_id: Final = config.node_id
        self.address: Final = config.clients.address
        self.lines: Final = os.path.join(home, f"node-{config.node_id}", _LINES)
        command = [sys.executable, "-m", __name__, str(config.path)]
        with open(self.lines, "ab") as lines:
            self.process: Final = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,  # nothing is written: the pipe ends when the process does
                stderr=lines,
                start_new_session=True,  # Ctrl-C is a signal to the command only
            )

    def stop(self) -> None:
        """Let the process shut down."""
        assert self.process.stdin is not None, "it is a pipe"
        self.process.stdin.close()

    def close(self) -> None:
        """Wait until the process has ended; kill it if it does not."""
        self.stop()
        try:
            self.process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        assert self.process.stdout is not None, "it is a pipe"
        self.process.stdout.close()

    def last_error(self) -> str:
        """Return the last line of its log lines."""
        with open(self.lines, encoding="utf-8", errors="replace") as file:
            return (file.read().strip().splitlines() or [""])[-1]


def _wait_for_leader(nodes: list[_Node]) -> QuorumInfo:
    """Return the quorum once it has a leader. Raises ``OptionError`` if a node ends before."""
    from raftlog.client.remote.leader_client import LeaderClient
    from raftlog.client.remote.nodes import parse_addresses
    from raftlog.client.remote.voters import describe_quorum
    from raftlog.errors import OptionError, QuorumUnavailableError

    addresses = parse_addresses(",".join(node.address for node in nodes))
    deadline_s = time.monotonic() + START_TIMEOUT_S
    while True:
        ended = next((node for node in nodes if node.process.poll() is not None), None)
        if ended is not None:
            reason = f"node {ended.node_id} has ended: {ended.last_error()}"
            raise OptionError(option="--dir", reason=reason)
        try:
            with closing(LeaderClient(addresses, timeout_ms=_LOOK_TIMEOUT_MS)) as leader:
                return describe_quorum(leader)
        except QuorumUnavailableError:
            if time.monotonic() > deadline_s:
                raise


def _describe(nodes: list[_Node], info: QuorumInfo, home: str, *, is_kept: bool) -> Iterator[str]:
    for node in nodes:
        role = "leader" if node.node_id == info.leader_id else "voter"
        yield f"node {node.node_id}: {node.address}, {role}, process {node.process.pid}"
    data = home if is_kept else f"{home}, removed at the end"
    yield f"cluster {info.cluster_id}, data in {data}"
    servers = ",".join(node.address for node in nodes)
    yield f'Python: raftlog.connect("{servers}")'
    yield f'Spark: .format("raftlog").option("bootstrap.servers", "{servers}")'
    yield f"raftlog quorum --bootstrap-server {servers}"
    yield "Ctrl-C ends all nodes"


def _watch(nodes: list[_Node], console: Console) -> None:
    """Log each node that ends; return when all have ended."""
    with selectors.DefaultSelector() as selector:
        for node in nodes:
            assert node.process.stdout is not None, "it is a pipe"
            selector.register(node.process.stdout, selectors.EVENT_READ, node)
        while selector.get_map():
            for key, _ in selector.select():
                selector.unregister(key.fileobj)
                ended = key.data
                code = ended.process.wait()
                how = f"signal {-code}" if code < 0 else f"exit code {code}"
                console.log(f"node {ended.node_id} has ended, {how}; see {ended.lines}")


def _run_node(config_path: str) -> int:
    """Run one node until its stdin is closed; return the exit code."""
    from .main import main

    def wait() -> None:
        while os.read(0, 1):  # not sys.stdin, whose lock would be held at exit
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, daemon=True).start()
    return main(["node", "start", "--config", config_path])


if __name__ == "__main__":
    sys.exit(_run_node(sys.argv[1]))
