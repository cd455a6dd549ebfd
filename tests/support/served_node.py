"""Nodes in the test's own event loop, a quorum of one or several, and raw connections to them.

A node uses real files and a real loopback socket; only the process is the test's.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, Self

from raftlog.append import AppendRequest, RequestResult
from raftlog.node.addresses import parse_initial_voters
from raftlog.node.config import NodeConfig, parse_config
from raftlog.node.formatting import format_directory, random_id, read_identity
from raftlog.node.log_lines import LogLines
from raftlog.node.process import Node
from raftlog.node.raft_node import RaftNode
from raftlog.node.service import CreateService
from raftlog.node.settings import ReloadableSettings
from raftlog.quorum.messages import FetchRequest
from raftlog.storage.local import ReservedDescriptorStorage
from raftlog.types import ReplicaKey
from raftlog.wire import (
    ApiKey,
    FrameDecoder,
    RequestHeader,
    decode_response_header,
    encode_request_header,
    encode_versions_request,
    frame,
)

from .quorum_processes import free_ports

PATIENCE_S = 20.0


class ServedNode:
    """Node, its configuration and log lines."""

    def __init__(self, node: Node, config: NodeConfig, lines: io.StringIO) -> None:
        self.node = node
        self.config = config
        self._lines = lines

    @property
    def port(self) -> int:
        return self.config.listeners[0].port

    @property
    def all_lines(self) -> str:
        """Its log lines."""
        return self._lines.getvalue()

    def lines(self, event: str) -> list[dict[str, Any]]:
        """Return its log lines of an event."""
        found = [json.loads(line) for line in self._lines.getvalue().splitlines()]
        return [line for line in found if line["event"] == event]

    def fetch_at_the_end(self, max_wait_ms: int) -> FetchRequest:
        """Return the fetch of a replica at the log end, which the node delays."""
        replica = self.node.raft_node.replica
        return FetchRequest(
            replica=ReplicaKey(7),
            epoch=replica.core.epoch,
            fetch_offset=replica.log.end_offset,
            last_fetched_epoch=replica.log.last_fetched_epoch,
            max_bytes=1000,
            max_wait_ms=max_wait_ms,
            high_watermark=replica.core.high_watermark,
        )

    async def connect(self) -> RawConnection:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        return RawConnection(reader, writer)


class RawConnection:
    """Connection that sends and receives bytes of a node."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.writer = writer
        self._splitter = FrameDecoder(2**27, "the node")
        self._frames: list[bytes] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.writer.close()
        with contextlib.suppress(OSError):
            await self.writer.wait_closed()

    @property
    def transport(self) -> asyncio.Transport:
        """The transport, which can be paused."""
        return transport_of(self.writer)

    def ask(self, key: ApiKey, version: int, body: bytes, correlation_id: int = 1) -> None:
        """Send one request."""
        header = RequestHeader(
            api_key=key, api_version=version, correlation_id=correlation_id, client_id="test"
        )
        self.writer.write(frame(encode_request_header(header), body))

    def ask_versions(self, correlation_id: int = 1) -> None:
        body = encode_versions_request(3, software="test", software_version="1")
        self.ask(ApiKey.API_VERSIONS, 3, body, correlation_id)

    async def next_frame(self) -> bytes | None:
        """Return the next response frame; None if the node closed the connection."""
        while not self._frames:
            try:
                data = await asyncio.wait_for(self._reader.read(2**16), PATIENCE_S)
            except ConnectionError:
                return None
            if not data:
                return None
            self._frames += self._splitter.feed(data)
        return self._frames.pop(0)

    async def read_some(self) -> bytes:
        """Return the next bytes; none if the node closed the connection."""
        return await asyncio.wait_for(self._reader.read(2**16), PATIENCE_S)

    async def answer(self, key: ApiKey, version: int) -> tuple[int, bytes]:
        """Return correlation id and body of the next response, which is of this kind."""
        data = await self.next_frame()
        assert data is not None, "the node closed the connection"
        correlation_id, start = decode_response_header(data, key, version)
        return correlation_id, data[start:]


def transport_of(writer: asyncio.StreamWriter) -> asyncio.Transport:
    """Return the transport of a stream, which has both directions although typed for one."""
    assert isinstance(writer.transport, asyncio.Transport)
    return writer.transport


def appended(raft_node: RaftNode, request: AppendRequest) -> asyncio.Future[RequestResult]:
    """Append to the log of a leader; return the result."""
    result: asyncio.Future[RequestResult] = asyncio.get_running_loop().create_future()
    raft_node.append(request, result.set_result)
    return result


@contextlib.asynccontextmanager
async def served_node(
    home: Path,
    extra: str = "",
    *,
    listeners: str | None = None,
    services: Sequence[CreateService] = (),
) -> AsyncIterator[ServedNode]:
    """Run a node that leads its quorum of one; shut it down at the end. ``extra`` is added to its
    configuration, and ``listeners`` replaces the default listener."""
    if listeners is None:
        listeners = _listener(*free_ports(1))
    config = _config(1, home / "data", listeners + extra)
    format_directory(config, cluster_id=random_id(), is_standalone=True)
    async with _running(config, services) as served:
        raft_node = served.node.raft_node
        assert await raft_node.wait_until(lambda: _leads(raft_node), timeout_ms=20_000)
        yield served


@contextlib.asynccontextmanager
async def served_quorum(home: Path, extra: str = "") -> AsyncIterator[list[ServedNode]]:
    """Run three nodes, of which the first one in the list leads."""
    configs = [
        _config(node_id, home / str(node_id), _listener(port) + extra)
        for node_id, port in enumerate(free_ports(3), 1)
    ]
    cluster_id, names = random_id(), [one.listeners[0].address for one in configs]
    voters = parse_initial_voters(
        ",".join(f"{at}@{name}:{random_id()}" for at, name in enumerate(names, 1))
    )
    for config in configs:
        format_directory(config, cluster_id=cluster_id, initial_voters=voters)
    async with contextlib.AsyncExitStack() as running:
        served = [await running.enter_async_context(_running(config)) for config in configs]
        while not any(_leads(one.node.raft_node) for one in served):
            await asyncio.sleep(0.01)
        yield sorted(served, key=lambda one: not _leads(one.node.raft_node))


def _leads(raft_node: RaftNode) -> bool:
    """Return whether a node leads, and a record of its epoch is committed."""
    core = raft_node.replica.core
    return core.is_leader and bool(core.high_watermark)


def _listener(port: int) -> str:
    return f'[listeners.both]\naddress = "127.0.0.1:{port}"\n'


def _config(node_id: int, directory: Path, tables: str) -> NodeConfig:
    return parse_config(f'[node]\nid = {node_id}\ndirectory = "{directory}"\n{tables}', "node.toml")


@contextlib.asynccontextmanager
async def _running(
    config: NodeConfig, services: Sequence[CreateService] = ()
) -> AsyncIterator[ServedNode]:
    """Run a node with a formatted directory; shut it down at the end."""
    storage, lines = ReservedDescriptorStorage(), io.StringIO()
    node = Node(
        config,
        read_identity(config, storage),
        storage,
        settings=ReloadableSettings(config),
        lines=LogLines(lines, config.node_id),
        services=services,
    )
    try:
        await node.start()
        yield ServedNode(node, config, lines)
    finally:
        await node.close()
        storage.close()
