"""Listener for clients of a simulated node: connections and request handlers of the product.

What the product's ``Server`` and ``Driver`` add are sockets, threads and quotas; here the node of
the simulation has their part.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, cast

from raftlog.append import AppendRequest, RequestResult
from raftlog.limits import MIB, WIRE_FRAME_BYTES_MAX
from raftlog.node.access import ANONYMOUS, Principal, Rights
from raftlog.node.apis.client_apis import ClientApis
from raftlog.node.connection import Connection, FlushQueue, TransferDeadline
from raftlog.node.memory_pool import MemoryPool
from raftlog.node.purgatory import AppendPurgatory, Complete, FetchPurgatory
from raftlog.node.raft_node import RaftNode
from raftlog.node.replica import Replica
from raftlog.node.request import Request
from raftlog.wire import ApiKey, Listener, LogIdentity, encode_versions_response

from .driven_node import LISTENER_NAME, TIME_MS, TOPIC_ID
from .event_loop import SimulatedLoop, SimulatedTransport

if TYPE_CHECKING:
    from .cluster import Cluster
    from .node import Node

IDENTITY: Final = LogIdentity(
    topic="orders", topic_id=TOPIC_ID, cluster_id="simulated", listener_name=LISTENER_NAME
)
CLIENT: Final = Principal(
    name=ANONYMOUS,
    node_id=None,
    listener=Listener.CLIENTS,
    rights=Rights.DESCRIBE | Rights.READ | Rights.APPEND,
)
STALLED_S: Final = 30
BYTES_PER_SECOND_MIN: Final = 4096


class ClientPort:
    """Connections of clients to one node, from its start to its end."""

    def __init__(self, node: Node, cluster: Cluster, later: Callable[..., None]) -> None:
        self._node = node
        self._cluster = cluster
        self._loop: Final = SimulatedLoop(cluster.peers, node.node_id, later)
        self._driver: Final = NodeDriver(self._loop, node, cluster)
        self._apis: Final = ClientApis(cast("RaftNode", self._driver), is_one_socket=True)
        self._memory: Final = MemoryPool(64 * MIB)
        self._flush_queue: Final = FlushQueue(self._loop)

    def poll(self) -> None:
        """Call what waits for the log, after a step of the replica."""
        self._driver.poll()

    def close(self, *, is_silent: bool) -> None:
        """End with the process."""
        for transport in self._cluster.peers.ends_at(self._node.node_id):
            transport.die(is_silent=is_silent)

    def accept(self, transport: SimulatedTransport) -> tuple[SimulatedLoop, asyncio.Protocol]:
        """Return the protocol of a connection."""
        where = f"client {transport.there}"
        return self._loop, self._loop.run_in(
            lambda: Connection(
                where=where,
                authenticate=lambda _: CLIENT,
                handle=self._handle,
                closed=lambda _: None,
                log_event=self._log_event,
                apis=self._apis.served,
                frame_bytes_max=lambda _: WIRE_FRAME_BYTES_MAX,
                in_flight_max=100,
                memory_share=lambda _: self._memory.share_of(where),
                deadline=TransferDeadline(STALLED_S, BYTES_PER_SECOND_MIN),
                flush_queue=self._flush_queue,
            )
        )

    def _log_event(self, what: str, where: str, reason: str) -> None:
        raise AssertionError(f"node {self._node.node_id} ends {where}: {what}: {reason}")

    def _handle(self, connection: Connection, request: Request[Any]) -> None:
        """Start a request, as the product's ``Server`` does."""
        key = ApiKey(request.header.api_key)
        self._cluster.count(f"request {key.name}")
        if key is ApiKey.API_VERSIONS:
            request.respond(
                encode_versions_response(
                    request.version,
                    request.principal.listener,
                    kraft_version=None,
                    features_epoch=None,
                    apis=self._apis.served,
                    features=self._apis.features(),
                )
            )
            return
        self._apis.start(request)


class NodeDriver:
    """The part of ``Driver`` that request handlers use."""

    identity: Final = IDENTITY

    def __init__(self, loop: SimulatedLoop, node: Node, cluster: Cluster) -> None:
        assert node.replica is not None, "it is alive"
        self.replica: Final[Replica] = node.replica
        self._loop = loop
        self._node_id = node.node_id
        self._cluster = cluster
        self._waiting: dict[asyncio.Future[bool], Callable[[], bool]] = {}
        self._purgatory: Final = AppendPurgatory(
            node.replica.log.path, self.now_ms, loop.call_later
        )
        self.fetches: Final = FetchPurgatory(
            node.replica, self.now_ms, loop.call_later, loop.call_soon
        )
        self._appends: list[AppendRequest] = []

    def now_ms(self) -> int:
        return self._cluster.world.now_ms

    def time_ms(self) -> int:
        return TIME_MS + self._cluster.world.now_ms

    def append(
        self, request: AppendRequest, complete: Complete, *, timeout_ms: int | None = None
    ) -> None:
        """Submit an append to the replica, with those of the same turn."""
        self._purgatory.add(request, complete, timeout_ms)
        self._appends.append(request)
        self._cluster.users_append(self._node_id, request, self, len(self._appends) - 1)

    def receive_result(
        self, target: int, attempt: int, answer: RequestResult, leader_id: int | None
    ) -> None:
        """Complete an append. Its number is ``attempt``."""
        del target, leader_id
        self._loop.run_in(lambda: self._purgatory.complete(self._appends[attempt], answer))

    async def wait_until(self, is_due: Callable[[], bool], *, timeout_ms: int) -> bool:
        """Wait until ``is_due`` returns True; return False after the timeout."""
        if is_due():
            return True
        if timeout_ms <= 0:
            return False
        due: asyncio.Future[bool] = self._loop.create_future()
        self._waiting[due] = is_due
        timer = self._loop.call_later(timeout_ms / 1000, _complete, due, False)
        try:
            return await due
        finally:
            timer.cancel()
            self._waiting.pop(due, None)

    def poll(self) -> None:
        """Complete the waits and fetches that are due."""
        for future, is_due in list(self._waiting.items()):
            if not future.done() and is_due():
                future.set_result(True)
        self.fetches.poll()


def _complete(future: asyncio.Future[bool], value: bool) -> None:
    if not future.done():
        future.set_result(value)
