"""A node and the limit of file descriptors of its process."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from raftlog.append import AppendRequest, Done
from raftlog.node.config import parse_config
from raftlog.node.process import descriptors_needed
from raftlog.storage.local import SPARE_DESCRIPTORS
from raftlog.wire import ApiKey
from tests.support.descriptor_exhaustion import occupy_descriptors
from tests.support.served_node import RawConnection, ServedNode, appended, served_node

pytestmark = pytest.mark.slow

CONFIG = """[node]
id = 1
directory = "data"
[listeners.clients]
address = "127.0.0.1:1"
[listeners.voters]
address = "127.0.0.1:2"
[limits]
connections_max = 1000
voters_connections_max = 100
stranger_connections_max = 250
"""
NEEDED = 1_000 + 100 + 2 * 250 + 16 + 128
SCRIPT = """
import resource, sys
from raftlog.node.errors import ConfigError
from raftlog.node.config import parse_config
from raftlog.node.process import raise_descriptor_limit
resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[1]), int(sys.argv[2])))
try:
    raise_descriptor_limit(parse_config(sys.argv[3], "node.toml"))
except ConfigError as error:
    print(error.message())
print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
"""


def start(soft: int, hard: int) -> list[str]:
    """Return the output of a process that runs the node with these limits."""
    command = [sys.executable, "-c", SCRIPT, str(soft), str(hard), CONFIG]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()


def test_a_node_raises_the_soft_limit_to_what_its_connections_need() -> None:
    assert descriptors_needed(parse_config(CONFIG, "node.toml")) == NEEDED
    assert start(300, NEEDED) == [str(NEEDED)]
    assert start(NEEDED + 1, NEEDED + 2) == [str(NEEDED + 1)], "it is high enough"


def test_a_node_whose_connections_exceed_the_limit_does_not_start() -> None:
    reason, soft = start(300, NEEDED - 1)
    assert "node.toml: limits.connections_max" in reason
    assert f"need {NEEDED} file descriptors, but the limit of open files is {NEEDED - 1}" in reason
    assert "LimitNOFILE" in reason
    assert soft == "300"


def test_a_node_without_free_descriptors_continues_and_accepts_no_connection(
    tmp_path: Path,
) -> None:
    async def check(node: ServedNode) -> None:
        loop = asyncio.get_running_loop()
        early = await node.connect()
        early.ask_versions(1)
        await early.answer(ApiKey.API_VERSIONS, 3)
        late = [socket.socket() for _ in range(2 * SPARE_DESCRIPTORS)]
        for one in late:
            one.setblocking(False)
        with occupy_descriptors(0):
            for one in late:
                await loop.sock_connect(one, ("127.0.0.1", node.port))  # in the backlog
            for at in range(40):
                request = AppendRequest(records=(bytes(50_000),), deadline_ms=1e12)
                assert isinstance(await appended(node.node.raft_node, request), Done), at
            await _until_logged(node)
            assert not node.node.raft_node.is_over
            early.ask_versions(3)
            assert (await early.answer(ApiKey.API_VERSIONS, 3))[0] == 3
        assert len(list((tmp_path / "data" / "raftlog-0").glob("*.log"))) > 1
        for one in late:
            async with RawConnection(*await asyncio.open_connection(sock=one)) as connection:
                connection.ask_versions(2)
                assert (await connection.answer(ApiKey.API_VERSIONS, 3))[0] == 2
        early.writer.close()

    async def run() -> None:
        async with served_node(tmp_path, "[log]\nsegment_bytes = 200000\n") as node:
            await check(node)

    asyncio.run(run())


def test_a_connection_closed_before_its_handshake_is_not_counted(
    tmp_path: Path,
) -> None:
    """The first step of a handshake is in the next iteration: here another listener has found no
    descriptor in between."""

    async def run() -> None:
        async with served_node(tmp_path) as node:
            server = node.node.server
            (listener_socket,) = server._listener_sockets
            with (
                socket.create_server(("127.0.0.1", 0)) as listening,
                socket.create_connection(listening.getsockname()),
            ):
                peer, _ = listening.accept()
                server._enter(listener_socket, peer, ("127.0.0.1", 1))
                server._note_no_descriptor()
                assert server.metrics.closed_connections["no right"] == 1
                async with asyncio.timeout(10):
                    while server.metrics.connections:
                        await asyncio.sleep(0.01)
            assert not server.connections
            assert not server.quotas.unprivileged_count
            assert peer.fileno() < 0

    asyncio.run(run())


async def _until_logged(node: ServedNode) -> None:
    async with asyncio.timeout(20):
        while not [one for one in node.lines("limit") if one["about"] == "open files"]:
            await asyncio.sleep(0.01)
