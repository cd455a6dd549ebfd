"""Listener for clients of a simulated node: connections and request handlers of the product.

What the product's ``Server`` adds are sockets and limits of connections.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from raftlog.limits import MIB, WIRE_FRAME_BYTES_MAX
from raftlog.node.access import ANONYMOUS, Principal, Rights
from raftlog.node.apis.client_apis import ClientApis
from raftlog.node.client_quotas import ClientQuota, QuotaTable, QuotaType
from raftlog.node.connection import Connection, FlushQueue, RequestQueue, TransferDeadline
from raftlog.node.memory_pool import MemoryPool
from raftlog.node.raft_node import RaftNode
from raftlog.node.request import Request
from raftlog.receiving import ReceivingProtocol
from raftlog.wire import ApiKey, Listener, encode_versions_response

from .event_loop import SimulatedLoop, SimulatedTransport

if TYPE_CHECKING:
    from .cluster import Cluster

CLIENT: Final = Principal(
    name=ANONYMOUS,
    node_id=None,
    listener=Listener.CLIENTS,
    rights=Rights.DESCRIBE | Rights.READ | Rights.APPEND,
)
ANY_CLIENT: Final = (("client-id", None),)
STALLED_S: Final = 30
BYTES_PER_SECOND_MIN: Final = 4096


class ClientPort:
    """Connections of clients to one node, from its start to its end."""

    def __init__(
        self, node_id: int, raft_node: RaftNode, cluster: Cluster, loop: SimulatedLoop
    ) -> None:
        self._node_id = node_id
        self._cluster = cluster
        self._loop: Final = loop
        self._raft_node: Final = raft_node
        rate = cluster.client_byte_rate
        quotas = () if rate is None else (ClientQuota(ANY_CLIENT, QuotaType.PRODUCE, rate),)
        limits = QuotaTable(quotas)
        self._apis: Final = ClientApis(raft_node, is_one_socket=True, quota_limits=limits)
        self._memory: Final = MemoryPool(64 * MIB)
        self._flush_queue: Final = FlushQueue(self._loop)
        self._request_queue: Final = RequestQueue(self._loop, is_unprivileged=False)

    def close(self, *, is_silent: bool) -> None:
        """End with the process."""
        for transport in self._cluster.peers.ends_at(self._node_id):
            transport.die(is_silent=is_silent)

    def accept(self, transport: SimulatedTransport) -> tuple[SimulatedLoop, ReceivingProtocol]:
        """Return the protocol of a connection."""
        where = f"client {transport.there}"
        return self._loop, self._loop.run_in(
            lambda: Connection(
                where=where,
                authenticate=lambda _: CLIENT,
                handle=self._handle,
                closed=self._closed,
                log_event=self._log_event,
                apis=self._apis.served,
                frame_bytes_max=lambda _: WIRE_FRAME_BYTES_MAX,
                in_flight_max=100,
                memory_share=lambda _: self._memory.share_of(where),
                deadline=TransferDeadline(STALLED_S, BYTES_PER_SECOND_MIN),
                flush_queue=self._flush_queue,
                request_queue=lambda _: self._request_queue,
            )
        )

    def _count_throttled(self) -> None:
        throttled = self._apis.quotas.throttled_requests
        for _ in range(throttled.total()):
            self._cluster.count("throttled")
        throttled.clear()

    def _closed(self, connection: Connection) -> None:
        self._count_throttled()
        self._raft_node.throttled.remove(connection)

    def _log_event(self, what: str, where: str, reason: str) -> None:
        raise AssertionError(f"node {self._node_id} ends {where}: {what}: {reason}")

    def _handle(self, connection: Connection, request: Request[Any]) -> None:
        """Start a request, as the product's ``Server`` does."""
        self._count_throttled()
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
