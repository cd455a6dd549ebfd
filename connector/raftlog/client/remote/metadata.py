"""Who leads the log now, and the connections to the nodes.

Rules of this file:

1. All addresses that are known are asked at once, those that were given and those that nodes told:
   the first that knows a leader is believed, unless it is one that has just been found wanting;
   then the newest epoch wins, for an old leader may not know yet that it is one no more.
2. Two kinds of nodes are known by what they serve: those with Metadata, and Kafka's controllers,
   which tell by DescribeCluster and DescribeQuorum (KIP-919).
3. Who is let in by nobody does not ask again: ``AccessDeniedError`` ends the search.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from kio.schema.describe_cluster.v2.response import DescribeClusterResponse
from kio.schema.describe_quorum.v2.response import DescribeQuorumResponse

from raftlog.errors import (
    AccessDeniedError,
    NodeRefusedError,
    QuorumUnavailableError,
    WireError,
)
from raftlog.types import CLUSTER_METADATA_TOPIC
from raftlog.wire import ApiKey, latest_schemas
from raftlog.wire.log_identity import uuid_or_none

from . import messages
from .addresses import Address
from .connection import Connection, ConnectionLostError
from .messages import TopicIdentity

ASK_TIMEOUT_S: Final = 5.0
"""How long one node may take to connect, or to say who leads."""
GRACE_FIRST_S: Final = 0.3
"""How long others are waited for when the first has answered, and knew nothing better: a node that
stands still shall hold up nobody. Twice as long the next time, for they may be far away."""
GRACE_LONGEST_S: Final = 1.0
REASON_INTERVAL_S: Final = 2.0
"""How often a node that knows no leader is asked for the reason."""
PROBE_AFTER_S: Final = 0.5
"""How long a leader may be silent before others are asked whether it still is one."""
PAUSE_FIRST_S: Final = 0.02
PAUSE_LONGEST_S: Final = 0.4
_METADATA_TOPIC_ID: Final = "AAAAAAAAAAAAAAAAAAAAAQ"
_ACCESS_ERRORS: Final = frozenset((29, 30, 31, 33, 34, 53, 58))
"""Kafka's codes for what a caller may not do: with a topic, a group, the cluster, an application id
(as a transactional id), and for failures to authenticate."""


@dataclass(frozen=True, slots=True)
class LeaderConnection:
    """The node that leads, as somebody told it, and a connection to it."""

    log: TopicIdentity
    node_id: int
    epoch: int
    connection: Connection


@dataclass(frozen=True, slots=True)
class _LeaderInfo:
    """What one node says."""

    log: TopicIdentity
    leader_id: int
    epoch: int
    nodes: Mapping[int, Address]


class Metadata:
    """The nodes of one quorum. Lives on the loop of one thread."""

    def __init__(self, bootstrap: tuple[Address, ...], context: ssl.SSLContext | None) -> None:
        self.path: Final = ",".join(map(str, bootstrap))
        self._bootstrap = bootstrap
        self._context = context
        self._nodes: dict[int, Address] = {}
        self._connections: dict[Address, Connection] = {}
        self._opening: dict[Address, asyncio.Task[Connection]] = {}
        self._leader: LeaderConnection | None = None
        self._invalidated_epoch = -1
        self._searching = asyncio.Lock()
        self._last_problem = "nobody was asked yet"
        self._problems: dict[Address, tuple[float, str | None]] = {}
        """Of each node that knew no leader: when it was asked for the reason, and what it said."""
        self._unavailable_since: float | None = None
        self._probing: asyncio.Task[None] | None = None

    @property
    def last_problem(self) -> str:
        """What went wrong last."""
        return self._last_problem

    async def leader(self, until: float) -> LeaderConnection:
        """The leader; looked for until the loop's time ``until``, if it is not known.

        Raises ``QuorumUnavailableError``, ``AccessDeniedError``, and ``NodeRefusedError`` if the
        nodes keep no log of ours.
        """
        pause_s, grace_s = PAUSE_FIRST_S, GRACE_FIRST_S
        if self._leader is None and self._unavailable_since is None:
            self._unavailable_since = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout_at(until), self._searching:
                while self._leader is None or not self._leader.connection.is_open:
                    self._leader = None
                    self._leader = await self._find(grace_s)
                    if self._leader is None:
                        await asyncio.sleep(pause_s * (0.5 + random.random() / 2))
                    pause_s = min(pause_s * 2, PAUSE_LONGEST_S)
                    grace_s = min(grace_s * 2, GRACE_LONGEST_S)
                return self._leader
        except TimeoutError:
            raise self.unavailable() from None

    def mark_healthy(self) -> None:
        """The leader has answered."""
        self._unavailable_since = None

    def invalidate(self, leader: LeaderConnection, reason: str, *, is_lost: bool = False) -> None:
        """Look for a leader again. Unless only the connection was lost, it is another's turn."""
        self._last_problem = reason
        if self._unavailable_since is None:
            self._unavailable_since = asyncio.get_running_loop().time()
        if self._leader is leader:
            self._leader = None
            self._invalidated_epoch = leader.epoch if not is_lost else leader.epoch - 1

    def watch(self, leader: LeaderConnection, reply: asyncio.Future[Any]) -> None:
        """While an answer does not come, ask others whether another leads by now.

        If so the connection is closed: who leads no more answers late, or never.
        """
        timer: asyncio.TimerHandle

        def probe_later() -> None:
            nonlocal timer
            if not reply.done():
                timer = loop.call_later(PROBE_AFTER_S, probe_later)
                self._start_probe(leader)

        loop = asyncio.get_running_loop()
        timer = loop.call_later(PROBE_AFTER_S, probe_later)
        reply.add_done_callback(lambda _: timer.cancel())

    def _start_probe(self, leader: LeaderConnection) -> None:
        if self._probing is None or self._probing.done():
            self._probing = asyncio.ensure_future(self._probe(leader))

    async def _probe(self, leader: LeaderConnection) -> None:
        with contextlib.suppress(AccessDeniedError, NodeRefusedError):
            info = await self._ask_all(leader.epoch, GRACE_FIRST_S)
            if info is not None and info.epoch > leader.epoch and leader.connection.is_open:
                leader.connection.close(f"node {info.leader_id} leads now")

    def unavailable(self) -> QuorumUnavailableError:
        """What is told to who waited for nothing: for how long no leader has answered."""
        since, now = self._unavailable_since, asyncio.get_running_loop().time()
        waited_s = 0.0 if since is None else now - since
        return QuorumUnavailableError(
            path=self.path, waited_ms=round(waited_s * 1000), reason=self._last_problem
        )

    def close(self) -> None:
        """Close all connections."""
        for connection in self._connections.values():
            connection.close("its owner closed it")
        self._connections.clear()

    # --- inside -----------------------------------------------------------------------------------

    async def _find(self, grace_s: float) -> LeaderConnection | None:
        info = await self._ask_all(self._invalidated_epoch, grace_s)
        if info is None:
            return None
        self._nodes = dict(info.nodes)
        address = info.nodes.get(info.leader_id)
        if address is None:
            self._last_problem = f"node {info.leader_id} leads, and nobody told where it listens"
            return None
        try:
            connection = await self._connection(address)
        except ConnectionLostError as error:
            self._last_problem = f"node {info.leader_id} leads: {error}"
            return None
        return LeaderConnection(info.log, info.leader_id, info.epoch, connection)

    async def _ask_all(self, epoch: int, grace_s: float) -> _LeaderInfo | None:
        """The best that anybody tells: at once if it is newer than ``epoch``, else when all have
        answered, or so long after the first one."""
        addresses = tuple(dict.fromkeys((*self._nodes.values(), *self._bootstrap)))
        asking = {asyncio.ensure_future(self._leader_info_from(address)) for address in addresses}
        for one in asking:  # one may fail after the best answer was found
            one.add_done_callback(lambda done: done.cancelled() or done.exception())
        best: _LeaderInfo | None = None
        timeout_s: float | None = None
        problem: AccessDeniedError | NodeRefusedError | None = None
        try:
            while asking:
                done, asking = await asyncio.wait(
                    asking, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED
                )
                if not done:
                    break
                for one in done:
                    try:
                        info = one.result()
                    except (AccessDeniedError, NodeRefusedError) as error:
                        problem = error
                        continue
                    if info is not None and (best is None or info.epoch > best.epoch):
                        best = info
                if best is not None and best.epoch > epoch:
                    break
                timeout_s = grace_s
        finally:
            for one in asking:
                one.cancel()
        if best is None and problem is not None:
            self._last_problem = problem.message()
            if not asking:
                raise problem
        return best

    async def _leader_info_from(self, address: Address) -> _LeaderInfo | None:
        """What one node says of the leader; None if it knows none, or cannot be asked."""
        try:
            connection = await self._connection(address)
            if connection.serves(ApiKey.METADATA):
                return await self._ask_broker(connection)
            return await self._ask_controller(connection)
        except ConnectionLostError as error:
            self._last_problem = str(error)
        except WireError as error:
            self._last_problem = error.message()
        return None

    async def _ask_broker(self, connection: Connection) -> _LeaderInfo | None:
        answer = await connection.request(
            ApiKey.METADATA,
            messages.metadata_request(),
            latest_schemas.MetadataResponse,
            timeout_s=ASK_TIMEOUT_S,
        )
        _check_access(connection, "Metadata", int(answer.error_code))
        topics = [one for one in answer.topics if not one.is_internal]
        if not topics:
            reason = "it shows this caller no log: it is a broker, or gives no right to see it"
            raise AccessDeniedError(path=str(connection.address), reason=reason)
        if len(topics) != 1 or topics[0].name is None:
            what = f"it keeps {len(topics)} topics, and a quorum of raftlog keeps one"
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
            TopicIdentity(str(topic.name), topic.topic_id, answer.cluster_id, False),
            int(partition.leader_id),
            int(partition.leader_epoch),
            {int(one.node_id): Address(one.host, int(one.port)) for one in answer.brokers},
        )

    async def _no_leader_reason(self, connection: Connection) -> str:
        """Return what the nodes know of why none leads; each is asked once in a while."""
        address, now_s = connection.address, asyncio.get_running_loop().time()
        asked_s, _ = self._problems.get(address, (now_s - REASON_INTERVAL_S, None))
        if connection.serves(ApiKey.DESCRIBE_QUORUM) and now_s - asked_s >= REASON_INTERVAL_S:
            self._problems[address] = now_s, None
            answer = await connection.request(
                ApiKey.DESCRIBE_QUORUM,
                messages.quorum_request(),
                DescribeQuorumResponse,
                timeout_s=ASK_TIMEOUT_S,
            )
            self._problems[address] = now_s, answer.error_message
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
        nodes = {
            node_id: Address(host, port)
            for node_id, (host, port) in messages.parse_controllers(cluster).items()
        }
        answer = await connection.request(
            ApiKey.DESCRIBE_QUORUM,
            messages.quorum_request(),
            DescribeQuorumResponse,
            timeout_s=ASK_TIMEOUT_S,
        )
        error, quorum = messages.parse_quorum(answer)
        _check_access(connection, "DescribeQuorum", error)
        if quorum is None or quorum.leader_id < 0 or (error and not quorum.leader_epoch):
            self._last_problem = f"{connection.address} knows no leader (Kafka's error {error})"
            if int(cluster.controller_id) >= 0:
                self._nodes = self._nodes | nodes  # ask that one the next time
            return None
        log = TopicIdentity(
            CLUSTER_METADATA_TOPIC, uuid_or_none(_METADATA_TOPIC_ID), cluster.cluster_id, True
        )
        return _LeaderInfo(log, int(quorum.leader_id), int(quorum.leader_epoch), nodes)

    async def _connection(self, address: Address) -> Connection:
        """An open connection to an address. Making one goes on when nobody waits for it."""
        known = self._connections.get(address)
        if known is not None and known.is_open:
            return known
        opening = self._opening.get(address)
        if opening is None:
            opening = asyncio.ensure_future(self._open(address))
            self._opening[address] = opening
            opening.add_done_callback(lambda done: done.cancelled() or done.exception())
        return await asyncio.shield(opening)

    async def _open(self, address: Address) -> Connection:
        try:
            made = await Connection.open(address, self._context, timeout_s=ASK_TIMEOUT_S)
            self._connections[address] = made
            return made
        finally:
            del self._opening[address]


def is_access_error(error: int) -> bool:
    """Whether Kafka's code says that this caller may not."""
    return error in _ACCESS_ERRORS


def _check_access(connection: Connection, api: str, error: int) -> None:
    if is_access_error(error):
        reason = f"{api} is not allowed to this caller (Kafka's error {error})"
        raise AccessDeniedError(path=str(connection.address), reason=reason)
