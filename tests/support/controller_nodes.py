"""Nodes with a controller in the test's own event loop, and a client of Kafka's admin requests."""

from __future__ import annotations

import asyncio
import contextlib
import io
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from raftlog.node.addresses import parse_initial_voters
from raftlog.node.config import parse_config
from raftlog.node.formatting import format_directory, random_id, read_identity
from raftlog.node.log_lines import LogLines
from raftlog.node.process import Node
from raftlog.node.service import CreateService
from raftlog.node.settings import ReloadableSettings
from raftlog.storage.local import ReservedDescriptorStorage
from raftlog.wire import ApiKey, decode, encode
from raftlog_state.cli.controller_node import create_controller
from raftlog_state.controller import RegisterBroker, UnfenceBroker, write_change
from raftlog_state.controller_apis import HostedController

from .quorum_processes import free_ports
from .request_builder import newest, request, response_class
from .served_node import RawConnection, ServedNode

T = TypeVar("T")
CONTROLLER = """\
[log]
values = "kraft"
[controller]
enabled = true
max_idle_interval_ms = 0
"""
"""Without NoOpRecords: a log ends with what a test has written."""
PATIENCE_S = 20.0


class ControllerNodes:
    """Nodes of one quorum, each with a controller."""

    def __init__(self, nodes: list[ServedNode]) -> None:
        self.nodes = nodes

    @property
    def active(self) -> ServedNode | None:
        """Return the node whose controller is active in the newest epoch."""
        found = [(epoch, at) for at in self.nodes if (epoch := active_epoch(at)) is not None]
        return max(found, key=lambda one: one[0])[1] if found else None

    async def until_active(self) -> ServedNode:
        """Wait until a controller is active, and its log quiet: all voters have written their
        endpoints, and the bootstrap records are committed."""

        def is_active() -> bool:
            node = self.active
            if node is None:
                return False
            core, log = node.node.raft_node.replica.core, node.node.raft_node.replica.log
            is_known = all(len(voter.endpoints) > 1 for voter in core.voters)
            is_committed = core.high_watermark == log.end_offset
            return is_known and is_committed and controller_of(node).last_stable_offset > 3

        await eventually(is_active)
        assert self.active is not None
        return self.active

    async def ask(self, key: ApiKey, request: Any, version: int | None = None) -> Any:
        """Return the response of the active controller."""
        return await ask(await self.until_active(), key, request, version)

    async def admin(self, key: ApiKey, version: int | None = None, **values: Any) -> Any:
        """Return the response of the active controller to a request with these fields."""
        return await self.ask(key, request(key, **values), version)

    async def add_brokers(self, *broker_ids: int) -> None:
        """Register and unfence brokers."""
        node = await self.until_active()
        for one in broker_ids:
            endpoints = {"CLIENT": f"host{one}:9092"}
            register = RegisterBroker(broker_id=one, endpoints=endpoints)
            for change in (register, UnfenceBroker(broker_id=one)):
                await hosted(node).write("test", partial(write_change, change))

    async def until_equal(self) -> None:
        """Wait until all controllers have replayed the same records."""
        await eventually(
            lambda: len({controller_of(node).last_stable_offset for node in self.nodes}) == 1
        )


async def eventually(is_true: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not is_true():
            await asyncio.sleep(0.005)


def hosted(node: ServedNode) -> HostedController:
    service = node.node.services[0]
    assert isinstance(service.listener, HostedController)
    return service.listener


def controller_of(node: ServedNode) -> Any:
    return hosted(node).controller


def active_epoch(node: ServedNode) -> int | None:
    epoch: int | None = controller_of(node).active_epoch
    return epoch


async def ask(
    node: ServedNode,
    key: ApiKey,
    request: Any,
    version: int | None = None,
    *,
    connect: Callable[[], Awaitable[RawConnection]] | None = None,
) -> Any:
    """Return the response of a node, by default in the newest version."""
    version = newest(key) if version is None else version
    async with await (node.connect if connect is None else connect)() as connection:
        connection.ask(key, version, encode(request, version))
        _, body = await connection.answer(key, version)
    return decode(response_class(key), version, body)


@contextlib.asynccontextmanager
async def controller_nodes(
    home: Path,
    count: int = 1,
    *,
    extra: str = "",
    bootstrap: bytes | None = None,
    services: Sequence[CreateService] = (create_controller,),
    ports: Sequence[int] = (),
    advertised: Sequence[int] = (),
    is_static: bool = False,
    users: str | None = None,
) -> AsyncIterator[ControllerNodes]:
    """Run the nodes of a quorum; shut them down at the end. The first service is a controller.

    ``ports`` of their listeners, by default free ones; ``advertised``: those that they advertise,
    of proxies for instance. ``is_static``: the voters are in the configuration, not in the log.
    ``users``: a file of users, of a listener for clients with SASL beside that for voters.
    """
    ids = [random_id() for _ in range(count)]
    ports = ports or free_ports(count)
    advertised = advertised or ports
    voters = ",".join(
        f"{at}@127.0.0.1:{port}:{directory_id}"
        for at, (port, directory_id) in enumerate(zip(advertised, ids, strict=True), start=1)
    )
    static = ", ".join(f'"{at}@127.0.0.1:{port}"' for at, port in enumerate(advertised, start=1))
    static_voters = f"static_voters = [{static}]\n" if is_static else ""
    cluster_id = random_id()
    async with contextlib.AsyncExitStack() as stack:
        nodes = []
        for node_id, (port, advertised_port) in enumerate(
            zip(ports, advertised, strict=True), start=1
        ):
            name = "both" if users is None else "voters"
            clients = ""
            if users is not None:
                (client_port,) = free_ports(1)
                clients = f'[listeners.clients]\naddress = "127.0.0.1:{client_port}"\n'
                clients += f'sasl.users = "{users}"\n'
            config = parse_config(
                f'[node]\nid = {node_id}\ndirectory = "{home / f"node-{node_id}"}"\n{static_voters}'
                f'{clients}[listeners.{name}]\naddress = "127.0.0.1:{port}"\n'
                f'advertised = "127.0.0.1:{advertised_port}"\n{CONTROLLER}{extra}',
                "node.toml",
            )
            format_directory(
                config,
                cluster_id=cluster_id,
                initial_voters=None if is_static else parse_initial_voters(voters),
                bootstrap=bootstrap,
            )
            storage = ReservedDescriptorStorage()
            stack.callback(storage.close)
            lines = io.StringIO()
            node = Node(
                config,
                read_identity(config, storage),
                storage,
                settings=ReloadableSettings(config),
                lines=LogLines(lines, node_id),
                services=services,
            )
            stack.push_async_callback(node.close)
            await node.start()
            nodes.append(ServedNode(node, config, lines))
        yield ControllerNodes(nodes)
