"""Cluster metadata for client requests: brokers, controllers, leader, and the topic.

Brokers are the voters that advertise a listener for clients, as currently known to this node. There
is one topic with one partition; other topics and partitions get Kafka's error codes.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Final

from kio.schema.errors import ErrorCode

from raftlog.errors import CorruptBatchError, LogGapError, RaftlogError
from raftlog.node.access import Principal, Rights
from raftlog.node.addresses import CLIENTS_NAME
from raftlog.node.audit import NO_AUDIT, AuditLog
from raftlog.node.client_quotas import ClientQuotas
from raftlog.node.raft_node import RaftNode
from raftlog.quorum.core import QuorumCore
from raftlog.quorum.roles import Follower, Leader, Resigned
from raftlog.quorum.voters import Endpoint
from raftlog.storage.errors import CorruptRemoteObjectError, RemoteObjectNotFoundError
from raftlog.types import CLUSTER, Operation, Resource, ResourceType
from raftlog.wire import LeaderEndpoint, LogIdentity
from raftlog.wire.log_identity import PARTITION, uuid_bytes, uuid_or_none

from .remote_reads import RemoteReads

READ_COMMITTED: Final = 1
"""Kafka's isolation level."""
_DAMAGE: Final = (CorruptBatchError, CorruptRemoteObjectError, LogGapError)
"""Errors of reading a damaged log."""
WITH_LEADER: Final = (ErrorCode.not_leader_or_follower, ErrorCode.fenced_leader_epoch)
"""Errors of a partition for which a response names the leader (KIP-951)."""
IN_SYNC_MS: Final = 30_000
"""Maximum time since an in-sync replica was caught up (Kafka: ``replica.lag.time.max.ms``)."""


@dataclass(frozen=True, slots=True)
class Broker:
    """Node, and the endpoint of one of its listeners."""

    node_id: int
    host: str
    port: int


class MetadataCache:
    """Cluster metadata as known to one node."""

    def __init__(
        self,
        raft_node: RaftNode,
        executor: Executor,
        *,
        is_one_socket: bool,
        is_read_only: bool = False,
        warnings: Callable[[], Sequence[str]] = lambda: (),
        audit: AuditLog = NO_AUDIT,
        quotas: ClientQuotas,
    ) -> None:
        """``executor`` runs long work outside the event loop, in one thread to bound its memory.
        ``is_one_socket``: nodes have one listener for clients and voters, so every voter's endpoint
        is also a broker's. ``is_read_only``: clients may not append, because a service owns the
        log. ``warnings``: warnings about this node, for an operator."""
        self.raft_node: Final = raft_node
        self.is_read_only: Final = is_read_only
        self.warnings: Final = warnings
        self.audit: Final = audit
        self.quotas: Final = quotas
        self._is_one_socket: Final = is_one_socket
        self.executor: Final = executor
        self.remote: Final = RemoteReads(raft_node)

    @property
    def identity(self) -> LogIdentity:
        return self.raft_node.identity

    @property
    def core(self) -> QuorumCore:
        return self.raft_node.replica.core

    @property
    def topic(self) -> Resource:
        """Return the log as a resource of ACLs."""
        return Resource(ResourceType.TOPIC, self.identity.topic)

    def topic_operations(self, principal: Principal, *, is_requested: bool) -> int:
        """Return the authorized operations on the topic, as ``operations``."""
        found = operations(principal, is_requested=is_requested, resource=self.topic)
        hides_write = self.is_read_only and found != NOT_REQUESTED
        return found & ~(1 << Operation.WRITE) if hides_write else found

    # --- nodes ------------------------------------------------------------------------------------

    def brokers(self) -> tuple[Broker, ...]:
        """Return the voters with a listener for clients, ascending by node id."""
        return self._listeners_named(CLIENTS_NAME)

    def controllers(self) -> tuple[Broker, ...]:
        """Return the voters with their endpoints for voters, ascending by node id."""
        return self._listeners_named(self.identity.listener_name)

    def _listeners_named(self, name: str) -> tuple[Broker, ...]:
        found: dict[int, Endpoint] = {}
        names = [name]
        if self._is_one_socket and name == CLIENTS_NAME:
            names.insert(0, self.identity.listener_name)
        for one in names:
            for voter in self.core.voters:
                for endpoint in voter.endpoints:
                    if endpoint.name == one:
                        found[voter.key.node_id] = endpoint
        return tuple(Broker(at, one.host, one.port) for at, one in sorted(found.items()))

    def leader_id(self) -> int | None:
        """Return the leader known to this node, if any; None if this node led and resigned."""
        role = self.core.role
        return None if isinstance(role, Resigned) else self.core.leader_id

    def leader(self) -> Broker | None:
        """Return the leader; None if it is unknown or has no listener for clients."""
        leader_id = self.leader_id()
        return next((one for one in self.brokers() if one.node_id == leader_id), None)

    def leader_endpoints(self) -> tuple[LeaderEndpoint, ...]:
        """Return the endpoint of ``leader`` in the form of a response; empty without a leader."""
        one = self.leader()
        return () if one is None else (LeaderEndpoint(one.node_id, one.host, one.port),)

    @property
    def is_leader(self) -> bool:
        """Return whether this node leads and its log is open (not failed or stopping)."""
        return isinstance(self.core.role, Leader) and not self.raft_node.replica.log.is_closed

    @property
    def has_committed_in_epoch(self) -> bool:
        """Return whether this leader has committed a record of its own epoch. Before that its high
        watermark is not reliable."""
        role = self.core.role
        return isinstance(role, Leader) and role.has_committed_in_epoch

    @property
    def high_watermark(self) -> int:
        """Return the high watermark; the start of the log while it is unknown."""
        log = self.raft_node.replica.log
        return max(self.core.high_watermark or 0, log.log_start_offset)

    @property
    def last_stable_offset(self) -> int:
        """Return the end of the records outside open transactions, up to the high watermark."""
        return self.raft_node.replica.log.producer_state.last_stable_offset(self.high_watermark)

    def readable_end(self, isolation_level: int) -> int:
        """Return the end of the records that a client may read at Kafka's isolation level."""
        is_committed = isolation_level == READ_COMMITTED
        return self.last_stable_offset if is_committed else self.high_watermark

    def leader_error(self, epoch: int) -> ErrorCode:
        """Return the error of a request with this leader epoch (-1: any), or ``none``."""
        if 0 <= epoch < self.core.epoch:
            return ErrorCode.fenced_leader_epoch
        if epoch > self.core.epoch:
            return ErrorCode.unknown_leader_epoch
        return ErrorCode.none if self.is_leader else ErrorCode.not_leader_or_follower

    def follower_error(self, epoch: int, offset: int) -> ErrorCode:
        """Return the error of a consumer's fetch from this node as a follower, or ``none``.

        It is never ``OFFSET_OUT_OF_RANGE``, because the leader's log may start earlier, in remote
        storage, and end later. After ``NOT_LEADER_OR_FOLLOWER`` consumers fetch from the leader;
        after ``OFFSET_NOT_AVAILABLE`` they fetch from the leader or try again.
        """
        core, log = self.core, self.raft_node.replica.log
        if 0 <= epoch < core.epoch:
            return ErrorCode.fenced_leader_epoch
        if epoch > core.epoch:
            return ErrorCode.unknown_leader_epoch
        if not isinstance(core.role, Follower) or core.high_watermark is None or log.is_closed:
            return ErrorCode.not_leader_or_follower
        if offset < self.remote.start_offset:
            return ErrorCode.not_leader_or_follower
        return ErrorCode.offset_not_available if offset > log.end_offset else ErrorCode.none

    def read_error(self, error: RaftlogError) -> ErrorCode:
        """Return the error of a read of the log's records that failed.

        Consumers retry after ``KAFKA_STORAGE_ERROR``: a disk or a store may be available again,
        and another node may lead. A retry cannot repair damage, so they fail with
        ``CORRUPT_MESSAGE``. A missing object is damage, unless an earlier leader may have deleted
        it.
        """
        is_missing = isinstance(error, RemoteObjectNotFoundError)
        if isinstance(error, _DAMAGE) or (is_missing and self.raft_node.has_current_remote_list):
            return ErrorCode.corrupt_message
        return ErrorCode.kafka_storage_error

    def preferred_replica(self, rack: str, offset: int) -> int | None:
        """Return the follower that a consumer in ``rack`` should fetch from; None for this leader.

        The follower is in sync, fetches, has the offset (locally or in remote storage) and has
        named this rack. If there are several, it is the one that is most caught up. A follower
        counts as stopped if its connection was lost, or if it has not fetched for the time after
        which a leader without followers resigns. Otherwise it would remain in sync for another
        ``IN_SYNC_MS``, and consumers would be sent back and forth. librdkafka may not return if it
        is sent to a follower that it cannot connect to.

        Kafka: ``RackAwareReplicaSelector``.
        """
        role, racks = self.core.role, self.raft_node.racks
        if not isinstance(role, Leader) or rack == self.identity.rack or rack not in racks.values():
            return None
        served = {one.node_id for one in self.brokers()}
        since_ms = self.raft_node.now_ms() - self.core.config.check_quorum_timeout_ms
        found: list[tuple[int, int]] = []
        for node_id in self.in_sync():
            progress = role.progress.voter(self.core.voters, node_id)
            if progress is None or racks.get(node_id) != rack or node_id not in served:
                continue
            end_offset, start_offset = progress.end_offset or 0, progress.log_start_offset
            if start_offset is None:  # it does not know its remote segments yet
                start_offset = self.raft_node.replica.log.log_start_offset
            is_fetching = progress.fetched_ms is not None and progress.fetched_ms >= since_ms
            if is_fetching and not progress.is_lost and start_offset <= offset <= end_offset:
                found.append((end_offset, node_id))
        return max(found)[1] if found else None

    def rack_of(self, node_id: int) -> str | None:
        """Return the rack of a node, as far as this node knows."""
        own = self.identity.rack if node_id == self.core.node_id else ""
        return own or self.raft_node.racks.get(node_id)

    def in_sync(self) -> tuple[int, ...]:
        """Return the voters that are in sync. A node that does not lead returns all voters."""
        core, role = self.core, self.core.role
        if not isinstance(role, Leader):
            return core.voters.node_ids
        since_ms = self.raft_node.now_ms() - IN_SYNC_MS
        found = []
        for node_id in core.voters.node_ids:
            progress = role.progress.voter(core.voters, node_id)
            caught_up_ms = None if progress is None else progress.caught_up_ms
            if node_id == core.node_id or (caught_up_ms is not None and caught_up_ms >= since_ms):
                found.append(node_id)
        return tuple(found)

    # --- the log ----------------------------------------------------------------------------------

    def name_error(self, topic: str, partition: int = PARTITION) -> ErrorCode:
        """Return the error for a topic name and partition; ``none`` for this log."""
        is_here = topic == self.identity.topic and partition == PARTITION
        return ErrorCode.none if is_here else ErrorCode.unknown_topic_or_partition

    def id_error(self, topic_id: uuid.UUID | bytes | None, partition: int = PARTITION) -> ErrorCode:
        """Return the error for a topic id, or its bytes, and partition; ``none`` for this log."""
        data = topic_id.bytes if isinstance(topic_id, uuid.UUID) else topic_id
        if data is None or data != uuid_bytes(self.identity.topic_id):
            return ErrorCode.unknown_topic_id
        return ErrorCode.none if partition == PARTITION else ErrorCode.unknown_topic_or_partition

    def topic_error(self, topic_id: bytes, name: str, partition: int) -> ErrorCode:
        """Return the error for a topic, by its id or, if that is empty, by its name."""
        return self.id_error(topic_id, partition) if topic_id else self.name_error(name, partition)

    @property
    def topic_uuid(self) -> uuid.UUID | None:
        return uuid_or_none(self.identity.topic_id)


# --- rights ---------------------------------------------------------------------------------------

NOT_REQUESTED: Final = -(2**31)
_OPERATIONS: Final = {
    Rights.READ: (3, 8),
    Rights.APPEND: (4, 8),
    Rights.DESCRIBE: (8, 10),
    Rights.ADMIN: (7, 8, 10),
    Rights.VOTE: (8, 9),
}
"""Kafka's ``AclOperation`` that corresponds to a right: read 3, write 4, alter 7, describe 8,
cluster action 9, describe configs 10."""


_SUPPORTED: Final[Mapping[ResourceType, tuple[Operation, ...]]] = {
    ResourceType.TOPIC: (
        *(Operation.READ, Operation.WRITE, Operation.CREATE, Operation.DESCRIBE, Operation.DELETE),
        *(Operation.ALTER, Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS),
    ),
    ResourceType.CLUSTER: (
        *(Operation.CREATE, Operation.CLUSTER_ACTION, Operation.DESCRIBE_CONFIGS),
        *(Operation.ALTER_CONFIGS, Operation.IDEMPOTENT_WRITE, Operation.ALTER),
        Operation.DESCRIBE,
    ),
}
"""Kafka: ``AclEntry.supportedOperations``."""


def operations(principal: Principal, *, is_requested: bool, resource: Resource = CLUSTER) -> int:
    """Return the authorized operations as a bit set, or Kafka's constant if they are not requested.
    Without DESCRIBE of the resource, ACLs show no operations, as in Kafka."""
    if not is_requested:
        return NOT_REQUESTED
    if principal.authorizer is not None:
        if not principal.may(Operation.DESCRIBE, resource):
            return 0
        may = (one for one in _SUPPORTED[resource.kind] if principal.may(one, resource))
        return sum(1 << operation for operation in may)
    bits = {bit for right in principal.rights for bit in _OPERATIONS[right]}
    return sum(1 << bit for bit in bits)
