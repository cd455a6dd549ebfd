"""The cluster as clients are told of it: who listens for them, who leads, which log there is.

Rules of this file:

1. A client is told of the nodes that say where they listen for clients; a voter that does not is no
   broker to it. All is as this node knows it, now.
2. There is one topic with one partition. What else is asked for gets Kafka's own error.
"""

from __future__ import annotations

import uuid
from collections import Counter
from dataclasses import dataclass
from typing import Final

from kio.schema.errors import ErrorCode

from raftlog.node.access import Principal, Rights
from raftlog.node.log_service import LogService
from raftlog.quorum.core import QuorumCore
from raftlog.quorum.roles import Leader, Resigned
from raftlog.quorum.voters import Endpoint
from raftlog.wire import LogIdentity
from raftlog.wire.log_identity import PARTITION, uuid_or_none, uuid_text

from .executor import Executor

CLIENTS_LISTENER: Final = "CLIENTS"
"""What voters call the endpoint at which they listen for clients."""
IN_SYNC_MS: Final = 30_000
"""How long ago a replica may have had everything to be called in sync (Kafka:
``replica.lag.time.max.ms``)."""


@dataclass(frozen=True, slots=True)
class Broker:
    """A node, and where it listens for clients."""

    node_id: int
    host: str
    port: int


class MetadataCache:
    """What one node knows of its cluster."""

    def __init__(self, node: LogService, executor: Executor, *, is_one_socket: bool) -> None:
        """``executor`` does beside the loop what takes long. ``is_one_socket``: nodes listen for
        clients where they listen for voters, which is said of each voter, of one that is configured
        or new too."""
        self._node: Final = node
        self._is_one_socket: Final = is_one_socket
        self.executor: Final = executor
        self.waiting_fetches: Final[Counter[str]] = Counter()
        """How many fetches of each principal wait for records."""

    @property
    def node(self) -> LogService:
        return self._node

    @property
    def identity(self) -> LogIdentity:
        return self._node.identity

    @property
    def core(self) -> QuorumCore:
        return self._node.replica.core

    # --- nodes ------------------------------------------------------------------------------------

    def brokers(self) -> tuple[Broker, ...]:
        """Everybody that listens for clients, ascending by node id."""
        return self.listeners_named(CLIENTS_LISTENER)

    def controllers(self) -> tuple[Broker, ...]:
        """The voters, where they listen for each other."""
        return self.listeners_named(self.identity.listener_name)

    def listeners_named(self, name: str) -> tuple[Broker, ...]:
        found: dict[int, Endpoint] = {}
        names = [name]
        if self._is_one_socket and name == CLIENTS_LISTENER:
            names.insert(0, self.identity.listener_name)
        for one in names:
            for voter in self.core.voters:
                for endpoint in voter.endpoints:
                    if endpoint.name == one:
                        found[voter.key.node_id] = endpoint
        return tuple(Broker(at, one.host, one.port) for at, one in sorted(found.items()))

    def leader_id(self) -> int | None:
        """Who leads, as far as this node knows; None also for one that has resigned."""
        role = self.core.role
        return None if isinstance(role, Resigned) else self.core.leader_id

    def leader(self) -> Broker | None:
        """The leader, if it is known and listens for clients."""
        leader_id = self.leader_id()
        return next((one for one in self.brokers() if one.node_id == leader_id), None)

    @property
    def is_leader(self) -> bool:
        """Whether this node leads, and has a log to lead: it may have failed, or be stopping."""
        return isinstance(self.core.role, Leader) and not self._node.replica.log.is_closed

    @property
    def has_committed_in_epoch(self) -> bool:
        """Whether this leader has committed a record of its own epoch: only then does it know how
        far the log is committed."""
        role = self.core.role
        return isinstance(role, Leader) and role.has_committed_in_epoch

    @property
    def high_watermark(self) -> int:
        """Everything below is committed; the start of the log while nothing more is known."""
        log = self._node.replica.log
        return max(self.core.high_watermark or 0, log.log_start_offset)

    def leader_error(self, epoch: int) -> ErrorCode:
        """Why a request under this leader epoch (-1: whichever) is not this node's to answer."""
        if 0 <= epoch < self.core.epoch:
            return ErrorCode.fenced_leader_epoch
        if epoch > self.core.epoch:
            return ErrorCode.unknown_leader_epoch
        return ErrorCode.none if self.is_leader else ErrorCode.not_leader_or_follower

    def in_sync(self) -> tuple[int, ...]:
        """The voters that are in sync. Only a leader can tell; another says all of them."""
        core, role = self.core, self.core.role
        if not isinstance(role, Leader):
            return core.voters.node_ids
        since_ms = self._node.now_ms() - IN_SYNC_MS
        found = []
        for node_id in core.voters.node_ids:
            progress = role.progress.voter(core.voters, node_id)
            caught_up_ms = None if progress is None else progress.caught_up_ms
            if node_id == core.node_id or (caught_up_ms is not None and caught_up_ms >= since_ms):
                found.append(node_id)
        return tuple(found)

    # --- the log ----------------------------------------------------------------------------------

    def name_error(self, topic: str, partition: int = PARTITION) -> ErrorCode:
        """Whether a topic and partition are this log."""
        is_here = topic == self.identity.topic and partition == PARTITION
        return ErrorCode.none if is_here else ErrorCode.unknown_topic_or_partition

    def id_error(self, topic_id: uuid.UUID | None, partition: int = PARTITION) -> ErrorCode:
        """The same by the topic's id."""
        if topic_id is None or uuid_text(topic_id) != self.identity.topic_id:
            return ErrorCode.unknown_topic_id
        return ErrorCode.none if partition == PARTITION else ErrorCode.unknown_topic_or_partition

    @property
    def topic_uuid(self) -> uuid.UUID | None:
        return uuid_or_none(self.identity.topic_id)


# --- rights ---------------------------------------------------------------------------------------

NOT_ASKED: Final = -(2**31)
_OPERATIONS: Final = {
    Rights.READ: (3, 8),
    Rights.APPEND: (4, 8),
    Rights.DESCRIBE: (8, 10),
    Rights.ADMIN: (7, 8, 10),
    Rights.VOTE: (8, 9),
}
"""Kafka's ``AclOperation`` that a right stands for: read 3, write 4, alter 7, describe 8,
cluster action 9, describe configs 10."""


def may_describe(caller: Principal) -> bool:
    """Whether a caller may know what there is: every other right implies this one (Kafka: an ACL
    that allows read or write implies describe)."""
    return bool(caller.rights)


def operations(caller: Principal, *, is_asked: bool) -> int:
    """A set of bits: what the caller may do. Kafka's word for it if nobody asked."""
    if not is_asked:
        return NOT_ASKED
    bits = {bit for right in caller.rights for bit in _OPERATIONS[right]}
    return sum(1 << bit for bit in bits)
