"""Leader of the log, and the connections to the nodes.

All known nodes, both the bootstrap addresses and those reported by nodes, are asked for the leader
concurrently. The first leader that is reported is used, unless a leader of the same or a newer
epoch has just failed: then all responses are compared and the newest epoch is used, because a
deposed leader may not know yet that it was deposed. A leader of an epoch older than one that was
reported before is never used, as in Kafka's clients: its log may lack records that were read.

Nodes that support Metadata are raftlog's; the others are Kafka's controllers, which are asked with
DescribeCluster and DescribeQuorum (KIP-919). If every node denies access, the search ends with
``AccessDeniedError``.

All nodes must belong to one cluster: the given one, or that of the first node that responds. The
first search waits for the other nodes, for as long as it would for a newer leader, and checks later
responses too. A response from another cluster ends this and later searches with
``WrongClusterError``: each cluster has its own leader, and each leader would accept the same
required offset.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from kio.schema.describe_cluster.v2.response import DescribeClusterResponse
from kio.schema.describe_quorum.v2.response import DescribeQuorumResponse

from raftlog.errors import (
    AccessDeniedError,
    NodeRefusedError,
    QuorumUnavailableError,
    WrongClusterError,
)
from raftlog.types import CLUSTER_METADATA_TOPIC
from raftlog.wire import ApiKey, latest_schemas
from raftlog.wire.errors import WireError
from raftlog.wire.log_identity import uuid_or_none

from . import messages
from .connection import Connection, ConnectionLostError, Connections
from .login import SaslLogin, TokenFunctionError
from .messages import TopicIdentity
from .nodes import Address
from .tls import SslFactory

ASK_TIMEOUT_S: Final = 5.0
"""Time limit for connecting to a node, and for its response about the leader."""
GRACE_FIRST_S: Final = 0.3
"""How long to wait for other nodes after one has responded without a newer leader, so that a node
that hangs does not delay clients. Doubled with each attempt, since nodes may be far away."""
GRACE_LONGEST_S: Final = 1.0
REASON_INTERVAL_S: Final = 2.0
"""Interval at which a node that knows no leader is asked for the reason."""
PROBE_AFTER_S: Final = 0.5
"""Time without a response after which other nodes are asked whether the leader changed."""
THROTTLE_CHECK_S: Final = 1.0
"""Interval at which a throttled client checks whether the leader has changed or is lost."""
PAUSE_FIRST_S: Final = 0.02
"""Pause before a client retries a search for the leader, a request or a batch that failed."""
PAUSE_LONGEST_S: Final = 0.4
_METADATA_TOPIC_ID: Final = "AAAAAAAAAAAAAAAAAAAAAQ"


@dataclass(frozen=True, slots=True)
class LeaderConnection:
    """Leader as reported by a node, and a connection to it."""

    log: TopicIdentity
    node_id: int
    epoch: int
    connection: Connection


@dataclass(frozen=True, slots=True)
class _LeaderInfo:
    """Leader and nodes as reported by one node."""

    log: TopicIdentity
    leader_id: int
    epoch: int
    nodes: Mapping[int, Address]


class Metadata:
    """Nodes of one quorum, and its leader. Used on one event loop only."""

    def __init__(
        self,
        bootstrap: tuple[Address, ...],
        tls: SslFactory | None,
        login: SaslLogin | None = None,
        cluster_id: str | None = None,
        *,
        draw: Callable[[], float] = random.random,
    ) -> None:
        """``draw`` returns random numbers from 0 to 1, for the jitter of retries."""
        self.path: Final = ",".join(map(str, bootstrap))
        self._bootstrap = bootstrap
        self._draw = draw
        self._nodes: dict[int, Address] = {}
        self._connections: Final = Connections(tls, login, timeout_s=ASK_TIMEOUT_S)
        self._leader: LeaderConnection | None = None
        self._invalidated_epoch = -1
        self._newest_epoch = -1
        """The newest epoch with a leader in a node's response."""
        self._searching = asyncio.Lock()
        self._last_problem = "no node was asked yet"
        self._problems: dict[Address, tuple[float, str | None]] = {}
        """By node that knows no leader: when it was asked for the reason, and its response."""
        self._unavailable_since: float | None = None
        self._probing: asyncio.Task[None] | None = None
        self._cluster_id = cluster_id
        self._has_asked_all = False
        self._wrong_cluster: WrongClusterError | None = None

    @property
    def last_problem(self) -> str:
        """The last problem that was seen."""
        return self._last_problem

    async def leader(self, until: float) -> LeaderConnection:
        """Return the leader; if it is unknown, search for it until the loop time ``until``.

        Raises ``QuorumUnavailableError``, ``AccessDeniedError``, ``WrongClusterError``,
        ``TokenFunctionError`` and, if the nodes are not a raftlog quorum, ``NodeRefusedError``.
        """
        if self._wrong_cluster is not None:
            raise copy.copy(self._wrong_cluster)
        pause_s, grace_s = PAUSE_FIRST_S, GRACE_FIRST_S
        if self._leader is None and self._unavailable_since is None:
            self._unavailable_since = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout_at(until), self._searching:
                while self._leader is None or not self._leader.connection.is_open:
                    self._leader = None
                    self._leader = await self._find(grace_s)
                    if self._leader is None:
                        await asyncio.sleep(pause_s * (0.5 + self._draw() / 2))
                    pause_s = min(pause_s * 2, PAUSE_LONGEST_S)
                    grace_s = min(grace_s * 2, GRACE_LONGEST_S)
                return self._leader
        except TimeoutError:
            raise self.unavailable() from None

    def mark_healthy(self) -> None:
        """Record that the leader has responded."""
        self._unavailable_since = None

    def note_problem(self, reason: str) -> None:
        """Record why the leader has not responded."""
        self._last_problem = reason
        if self._unavailable_since is None:
            self._unavailable_since = asyncio.get_running_loop().time()

    def invalidate(self, leader: LeaderConnection, reason: str, *, is_lost: bool = False) -> None:
        """Search for a leader again: of a newer epoch, unless only the connection was lost."""
        self.note_problem(reason)
        if self._leader is leader:
            self._leader = None
            self._invalidated_epoch = leader.epoch if not is_lost else leader.epoch - 1

    def watch(self, leader: LeaderConnection, response: asyncio.Future[Any]) -> None:
        """While a response is outstanding, ask the other nodes whether the leader changed.

        If it has, close the connection, because a deposed leader responds late or never.
        """
        timer: asyncio.TimerHandle

        def probe_later() -> None:
            nonlocal timer
            if not response.done():
                timer = loop.call_later(PROBE_AFTER_S, probe_later)
                self._start_probe(leader)

        loop = asyncio.get_running_loop()
        timer = loop.call_later(PROBE_AFTER_S, probe_later)
        response.add_done_callback(lambda _: timer.cancel())

    def _start_probe(self, leader: LeaderConnection) -> None:
        if self._probing is None or self._probing.done():
            self._probing = asyncio.ensure_future(self._probe(leader))

    async def _probe(self, leader: LeaderConnection) -> None:
        with contextlib.suppress(
            AccessDeniedError, NodeRefusedError, TokenFunctionError, WrongClusterError
        ):
            info = await self._ask_all(leader.epoch, GRACE_FIRST_S)
            if info is not None and info.epoch > leader.epoch and leader.connection.is_open:
                leader.connection.close(f"node {info.leader_id} is the leader now")

    def throttle_pause_s(self, leader: LeaderConnection) -> float:
        """Return how long to send nothing to a leader that throttles this client (KIP-219) before
        calling this again; 0: send now. Meanwhile ask the other nodes whether the leader changed.
        """
        left_s = leader.connection.throttle_left_s
        if left_s:
            self.note_problem(_throttled(leader.connection))
            self._start_probe(leader)
        return min(left_s, THROTTLE_CHECK_S)

    def unavailable(self) -> QuorumUnavailableError:
        """Return the error for a timeout, with the time since a leader last responded."""
        since, now = self._unavailable_since, asyncio.get_running_loop().time()
        waited_s = 0.0 if since is None else now - since
        return QuorumUnavailableError(
            path=self.path, waited_ms=round(waited_s * 1000), reason=self._last_problem
        )

    def close(self) -> None:
        """Close all connections."""
        self._connections.close()

    # --- inside -----------------------------------------------------------------------------------

    async def _find(self, grace_s: float) -> LeaderConnection | None:
        info = await self._ask_all(self._invalidated_epoch, grace_s)
        if info is None:
            return None
        self._nodes = dict(info.nodes)
        address = info.nodes.get(info.leader_id)
        if address is None:
            self._last_problem = f"no node reports an address of the leader, node {info.leader_id}"
            return None
        try:
            connection = await self._connections.get(address)
        except ConnectionLostError as error:
            self._last_problem = f"node {info.leader_id} is the leader: {error}"
            return None
        return LeaderConnection(info.log, info.leader_id, info.epoch, connection)

    async def _ask_all(self, epoch: int, grace_s: float) -> _LeaderInfo | None:
        """Return the leader that the nodes report; None if they report none.

        Returns immediately for an epoch newer than ``epoch``, except in the first search. Otherwise
        returns the newest epoch that is reported by all nodes, or by the nodes that responded
        before ``grace_s`` passed without a response.
        """
        addresses = dict.fromkeys((*self._nodes.values(), *self._bootstrap))
        for connection in self._connections.opened():
            if connection.throttle_left_s and connection.address in addresses:
                del addresses[connection.address]
                self._last_problem = _throttled(connection)
        asking = [asyncio.ensure_future(self._leader_info_from(address)) for address in addresses]
        for one in asking:  # one may fail after the search has ended
            one.add_done_callback(self._note_cluster)
        best: _LeaderInfo | None = None
        timeout_s: float | None = None
        problem: AccessDeniedError | NodeRefusedError | None = None
        try:
            while asking:
                await asyncio.wait(asking, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
                done = [one for one in asking if one.done()]
                if not done:
                    break
                asking = [one for one in asking if not one.done()]
                for one in done:
                    try:
                        info = one.result()
                    except (AccessDeniedError, NodeRefusedError) as error:
                        problem = error
                        continue
                    if info is not None and (best is None or info.epoch > best.epoch):
                        best = info
                if best is not None and best.epoch > epoch and self._has_asked_all:
                    break
                timeout_s = grace_s
        finally:
            if best is None or self._has_asked_all:
                for one in asking:
                    one.cancel()
            self._has_asked_all = best is not None or self._has_asked_all
        if best is None and problem is not None:
            self._last_problem = problem.message()
            if not asking:
                raise problem
        return best

    def _note_cluster(self, done: asyncio.Future[Any]) -> None:
        """Keep the error if a node belongs to another cluster, even after the search."""
        error = None if done.cancelled() else done.exception()
        if isinstance(error, WrongClusterError):
            self._wrong_cluster = error

    def _check_cluster(self, connection: Connection, cluster_id: str | None) -> None:
        if cluster_id is None:
            return
        if self._cluster_id is None:
            self._cluster_id = cluster_id
        if cluster_id != self._cluster_id:
            raise WrongClusterError(
                path=str(connection.address),
                expected_cluster_id=self._cluster_id,
                cluster_id=cluster_id,
                remedy="give addresses of one cluster; nodes that were each formatted with "
                "--standalone are a cluster each (see `raftlog node format --help`)",
            )

    async def _leader_info_from(self, address: Address) -> _LeaderInfo | None:
        """Return what one node reports; None if it knows no leader or does not respond."""
        connection = None
        try:
            connection = await self._connections.get(address)
            ask = self._ask_broker if connection.serves(ApiKey.METADATA) else self._ask_controller
            return self._unless_deposed(address, await ask(connection))
        except ConnectionLostError as error:
            self._last_problem = str(error)
            await self._connections.check_protocol(address, connection, error)
        except WireError as error:
            self._last_problem = error.message()
        return None

    def _unless_deposed(self, address: Address, info: _LeaderInfo | None) -> _LeaderInfo | None:
        """Return what a node reports; None if a later epoch has had a leader."""
        if info is None:
            return None
        if info.epoch < self._newest_epoch:
            self._last_problem = (
                f"{address} reports a leader of epoch {info.epoch}, but epoch "
                f"{self._newest_epoch} has had one"
            )
            return None
        self._newest_epoch = info.epoch
        return info

    async def _ask_broker(self, connection: Connection) -> _LeaderInfo | None:
        response = await connection.request(
            ApiKey.METADATA,
            messages.metadata_request(),
            latest_schemas.MetadataResponse,
            timeout_s=ASK_TIMEOUT_S,
        )
        _check_access(connection, "Metadata", int(response.error_code))
        self._check_cluster(connection, response.cluster_id)
        topics = [
            one
            for one in response.topics
            if one.name == CLUSTER_METADATA_TOPIC or not one.is_internal
        ]
        if not topics:
            raise AccessDeniedError(
                path=str(connection.address),
                reason="it lists no topic: it is a broker, or this client may not describe the "
                "topic",
                remedy="name the controllers of a Kafka cluster or the nodes of a raftlog quorum, "
                "or grant this principal the right to describe the topic",
            )
        if len(topics) != 1 or topics[0].name is None:
            what = (
                f"it is a broker with {len(topics)} topics; name the controllers of a Kafka "
                "cluster or the nodes of a raftlog quorum"
            )
            raise NodeRefusedError(
                path=str(connection.address), api="Metadata", error=0, reason=what
            )
        topic = topics[0]
        _check_access(connection, "Metadata", int(topic.error_code))
        partition = next((one for one in topic.partitions if one.partition_index == 0), None)
        if partition is None or partition.leader_id < 0:
            self._last_problem = await self._no_leader_reason(connection)
            return None
        self._problems.clear()
        return _LeaderInfo(
            TopicIdentity(str(topic.name), topic.topic_id, response.cluster_id, False),
            int(partition.leader_id),
            int(partition.leader_epoch),
            {int(one.node_id): Address(one.host, int(one.port)) for one in response.brokers},
        )

    async def _no_leader_reason(self, connection: Connection) -> str:
        """Return the nodes' reasons for having no leader, requested at intervals."""
        address, now_s = connection.address, asyncio.get_running_loop().time()
        asked_s, _ = self._problems.get(address, (now_s - REASON_INTERVAL_S, None))
        if connection.serves(ApiKey.DESCRIBE_QUORUM) and now_s - asked_s >= REASON_INTERVAL_S:
            self._problems[address] = now_s, None
            response = await connection.request(
                ApiKey.DESCRIBE_QUORUM,
                messages.quorum_request(),
                DescribeQuorumResponse,
                timeout_s=ASK_TIMEOUT_S,
            )
            self._problems[address] = now_s, response.error_message
        known = [f"{at}: {text}" for at, (_, text) in self._problems.items() if text]
        return "; ".join((f"{address} knows no leader", *sorted(known)))

    async def _ask_controller(self, connection: Connection) -> _LeaderInfo | None:
        cluster = await connection.request(
            ApiKey.DESCRIBE_CLUSTER,
            messages.controllers_request(),
            DescribeClusterResponse,
            timeout_s=ASK_TIMEOUT_S,
        )
        _check_access(connection, "DescribeCluster", int(cluster.error_code))
        self._check_cluster(connection, cluster.cluster_id)
        nodes = {
            node_id: Address(host, port)
            for node_id, (host, port) in messages.parse_controllers(cluster).items()
        }
        response = await connection.request(
            ApiKey.DESCRIBE_QUORUM,
            messages.quorum_request(),
            DescribeQuorumResponse,
            timeout_s=ASK_TIMEOUT_S,
        )
        error, quorum = messages.parse_partition(response)
        _check_access(connection, "DescribeQuorum", error)
        if quorum is None or quorum.leader_id < 0 or (error and not quorum.leader_epoch):
            self._last_problem = f"{connection.address} knows no leader (Kafka's error {error})"
            if int(cluster.controller_id) >= 0:
                self._nodes = self._nodes | nodes  # asked in the next attempt
            return None
        log = TopicIdentity(
            CLUSTER_METADATA_TOPIC, uuid_or_none(_METADATA_TOPIC_ID), cluster.cluster_id, True
        )
        return _LeaderInfo(log, int(quorum.leader_id), int(quorum.leader_epoch), nodes)


def _throttled(connection: Connection) -> str:
    left_s = connection.throttle_left_s
    return (
        f"{connection.address}: it throttles this client, which exceeds a quota, for {left_s:.1f} s"
    )


def _check_access(connection: Connection, api: str, error: int) -> None:
    if messages.is_access_error(error):
        reason = f"client not authorized for {api} (Kafka's error {error})"
        raise AccessDeniedError(path=str(connection.address), reason=reason)
