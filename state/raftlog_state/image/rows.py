"""Rows of cluster state: one frozen dataclass for each kind of entity in Kafka's metadata.

A field is declared here once: ``RECORD`` is the record that the row is read from and written to,
and the columns of the tables have the fields' names (see ``row_schema``). A row has every field of
its record, so it can be written back without loss.

Rows are immutable values. Collections that Kafka keeps in hash maps (endpoints, features, quota
entities, log directories) are sorted, so that a state replayed from the log equals the same state
loaded from a snapshot.

``row.key`` is unique within the row's entity, and the keys of one entity can be sorted. Times are
milliseconds since 1970 UTC; uuids are Kafka's base64 text of 22 characters.
"""

from __future__ import annotations

import base64
import binascii
import json
import struct
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass, replace
from enum import StrEnum
from itertools import chain
from operator import attrgetter
from typing import ClassVar, Final, TypeAlias

from raftlog.printable import compact_json
from raftlog.types import (
    CONSUMER_OFFSETS_TOPIC,
    REMOTE_LOG_METADATA_TOPIC,
    SHARE_GROUP_STATE_TOPIC,
    TRANSACTION_STATE_TOPIC,
    ZERO_UUID,
)
from raftlog_state.enums import (
    ACL_OPERATIONS,
    ACL_PERMISSIONS,
    ACL_RESOURCE_TYPES,
    CONFIG_RESOURCE_TYPES,
    DELIVERY_STATES,
    LEADER_RECOVERY_STATES,
    PATTERN_TYPES,
    SCRAM_MECHANISMS,
    SECURITY_PROTOCOLS,
    ZK_MIGRATION_STATES,
    enum_name,
)
from raftlog_state.records import (
    AccessControlEntryRecord,
    BrokerEndpoint,
    BrokerFeature,
    ClientQuotaRecord,
    ConfigRecord,
    DelegationTokenRecord,
    FeatureLevelRecord,
    PartitionRecord,
    ProducerIdsRecord,
    RegisterBrokerRecord,
    RegisterControllerRecord,
    TopicRecord,
    UserScramCredentialRecord,
    ZkMigrationStateRecord,
)
from raftlog_state.records.declare import INT8, INT16, INT32, INT64, STRING, UUID, Array

from .row_schema import TEXT_PAIRS, TIMESTAMP_MS, Parts, column, part, row, row_schema

Key = tuple[int | str, ...]
"""Primary key of a row within its entity."""

DIRECTORY_MIGRATING: Final = "AAAAAAAAAAAAAAAAAAAAAA"
"""Directory of a replica whose broker has not reported one (Kafka: ``DirectoryId.MIGRATING``)."""

_SIGNED_LONGS: Final = struct.Struct(">qq")


class Entity(StrEnum):
    """Kinds of rows, in the order in which they are listed."""

    FEATURE = "feature"
    ZK_MIGRATION = "zk_migration"
    BROKER = "broker"
    CONTROLLER = "controller"
    TOPIC = "topic"
    PARTITION = "partition"
    CONFIG = "config"
    QUOTA = "quota"
    PRODUCER_IDS = "producer_ids"
    ACL = "acl"
    SCRAM = "scram"
    TOKEN = "token"
    EPOCH = "epoch"
    TRANSACTION = "transaction"
    CONSUMER_OFFSET = "consumer_offset"
    PENDING_OFFSET = "pending_offset"
    GROUP = "group"
    GROUP_MEMBER = "group_member"
    PRODUCER_TRANSACTION = "producer_transaction"
    SHARE_PARTITION = "share_partition"
    REMOTE_SEGMENT = "remote_segment"


INTERNAL_ENTITIES: Final[Mapping[str, tuple[Entity, ...]]] = {
    CONSUMER_OFFSETS_TOPIC: (
        Entity.CONSUMER_OFFSET,
        Entity.PENDING_OFFSET,
        Entity.GROUP,
        Entity.GROUP_MEMBER,
    ),
    TRANSACTION_STATE_TOPIC: (Entity.PRODUCER_TRANSACTION,),
    SHARE_GROUP_STATE_TOPIC: (Entity.SHARE_PARTITION,),
    REMOTE_LOG_METADATA_TOPIC: (Entity.REMOTE_SEGMENT,),
}
"""Entities of Kafka's other internal logs (``raftlog_state.internal``), by topic."""
METADATA_ENTITIES: Final = tuple(e for e in Entity if e not in chain(*INTERNAL_ENTITIES.values()))
"""Entities of metadata logs."""
STATE_ENTITIES = tuple(e for e in METADATA_ENTITIES if e not in (Entity.EPOCH, Entity.TRANSACTION))
"""Entities in a snapshot. Epochs and transactions are history of the log, not state."""


# --- parts of rows --------------------------------------------------------------------------------


@part
class Endpoint:
    """Listener of a broker or controller; ``protocol`` is the id of Kafka's SecurityProtocol."""

    RECORD: ClassVar = BrokerEndpoint
    name: str = column()
    host: str = column()
    port: int = column()
    protocol: int = column(record="security_protocol")

    @property
    def protocol_name(self) -> str:
        return enum_name(SECURITY_PROTOCOLS, self.protocol)


@part
class FeatureRange:
    """Levels of one feature that a node supports, both inclusive."""

    RECORD: ClassVar = BrokerFeature
    name: str = column()
    min_version: int = column(record="min_supported_version")
    max_version: int = column(record="max_supported_version")


@part
class VoterEndpoint:
    """Listener of a voter (Kafka: VotersRecord)."""

    name: str = column(STRING)
    host: str = column(STRING)
    port: int = column(INT32)


@part
class Voter:
    """Voter of the quorum. A LeaderChangeMessage has only its id; other fields have defaults."""

    voter_id: int = column(INT32)
    directory_id: str = column(STRING, default=ZERO_UUID)
    endpoints: tuple[VoterEndpoint, ...] = column(Parts(VoterEndpoint), default=())
    min_kraft_version: int = column(INT32, default=0)
    max_kraft_version: int = column(INT32, default=0)


@part
class ShareBatch:
    """Range of records of a share partition in one delivery state, both ends inclusive."""

    first_offset: int = column(INT64)
    last_offset: int = column(INT64)
    delivery_count: int = column(INT16)
    delivery_state: int = column(INT8)

    @property
    def delivery_state_name(self) -> str:
        return enum_name(DELIVERY_STATES, self.delivery_state)


@part
class MemberPartitions:
    """Partitions of a topic or of a subtopology that are assigned to a group's member.

    Classic groups have the topic's name, streams groups the subtopology, others the topic id.
    """

    topic: str | None = column(STRING)
    topic_id: str | None = column(UUID)
    subtopology_id: str | None = column(STRING)
    partitions: tuple[int, ...] = column(Array(INT32))


Part = Endpoint | FeatureRange | VoterEndpoint | Voter | ShareBatch | MemberPartitions
"""Dataclasses that tuples in a row may contain, besides plain values."""


def quota_entity_key(entity: tuple[tuple[str, str | None], ...]) -> str:
    """Return a quota's entity as compact JSON, sorted by type."""
    return compact_json(dict(sorted(entity)))


def _sorted_uuids(uuids: tuple[str, ...]) -> tuple[str, ...]:
    """Sort in the order of Kafka's ``Uuid``: as pairs of signed 64-bit numbers."""
    return tuple(sorted(uuids, key=_uuid_order))


def _uuid_order(uuid: str) -> tuple[int, int]:
    raw = binascii.a2b_base64(uuid.replace("-", "+").replace("_", "/") + "==")
    high, low = _SIGNED_LONGS.unpack(raw)
    return high, low


# --- rows -----------------------------------------------------------------------------------------


@row
class FeatureRow:
    """Finalized feature, for instance ``metadata.version``; ``level`` > 0 (0 deletes the row)."""

    ENTITY: ClassVar[Entity] = Entity.FEATURE
    RECORD: ClassVar = FeatureLevelRecord
    name: str = column(comment="Name")
    level: int = column(record="feature_level", comment="Finalized level")

    @property
    def key(self) -> Key:
        return (self.name,)


@row
class ZkMigrationRow:
    """State of a migration from ZooKeeper, written by Kafka 3.4 to 3.9 and ignored by 4.x."""

    ENTITY: ClassVar[Entity] = Entity.ZK_MIGRATION
    RECORD: ClassVar = ZkMigrationStateRecord
    state: int = column(record="zk_migration_state", comment="State, as a number")

    @property
    def key(self) -> Key:
        return ("state",)

    @property
    def state_name(self) -> str:
        return enum_name(ZK_MIGRATION_STATES, self.state)


@row
class BrokerRow:
    """Registered broker. ``cordoned_log_dirs`` is None if the broker never sent it.

    As in Kafka's ``BrokerRegistration``, ``log_dirs`` are sorted and ``cordoned_log_dirs`` have the
    order of the record.
    """

    ENTITY: ClassVar[Entity] = Entity.BROKER
    RECORD: ClassVar = RegisterBrokerRecord
    broker_id: int = column(comment="Broker id (node.id)")
    incarnation_id: str = column(comment="Id of the process, which changes at each start")
    broker_epoch: int = column(comment="Broker epoch: the offset of the registration")
    rack: str | None = column(comment="Rack of the broker (broker.rack)")
    fenced: bool = column(comment="Whether the broker is fenced and cannot lead partitions")
    in_controlled_shutdown: bool = column(comment="Whether the broker is in a controlled shutdown")
    is_migrating_zk_broker: bool = column(comment="Whether the broker still uses ZooKeeper")
    endpoints: tuple[Endpoint, ...] = column(
        Parts(Endpoint),
        record="end_points",
        comment="Listeners: name, host, port and id of the security protocol",
    )
    features: tuple[FeatureRange, ...] = column(
        Parts(FeatureRange, by_name=True), comment="Supported levels of each feature"
    )
    log_dirs: tuple[str, ...] = column(sort=_sorted_uuids, comment="Ids of the log directories")
    cordoned_log_dirs: tuple[str, ...] | None = column(
        comment="Ids of log directories that get no new replicas; null if never sent by the broker"
    )

    @property
    def key(self) -> Key:
        return (self.broker_id,)


@row
class ControllerRow:
    """Registered controller."""

    ENTITY: ClassVar[Entity] = Entity.CONTROLLER
    RECORD: ClassVar = RegisterControllerRecord
    controller_id: int = column(comment="Controller id (node.id)")
    incarnation_id: str = column(comment="Id of the process, which changes at each start")
    zk_migration_ready: bool = column(
        comment="Whether the controller is ready for a migration from ZooKeeper"
    )
    endpoints: tuple[Endpoint, ...] = column(
        Parts(Endpoint),
        record="end_points",
        comment="Listeners: name, host, port and id of the security protocol",
    )
    features: tuple[FeatureRange, ...] = column(
        Parts(FeatureRange, by_name=True), comment="Supported levels of each feature"
    )

    @property
    def key(self) -> Key:
        return (self.controller_id,)


@row
class TopicRow:
    """Topic. A topic that was deleted and created again under its name has another id."""

    ENTITY: ClassVar[Entity] = Entity.TOPIC
    RECORD: ClassVar = TopicRecord
    topic_id: str = column(comment="Topic id")
    name: str = column(comment="Name")

    @property
    def key(self) -> Key:
        return (self.topic_id,)


@row
class PartitionRow:
    """Partition. ``directories`` is parallel to ``replicas``; ``leader`` -1: no leader."""

    ENTITY: ClassVar[Entity] = Entity.PARTITION
    RECORD: ClassVar = PartitionRecord
    topic_id: str = column(comment="Topic id")
    partition_id: int = column(comment="Partition within the topic")
    topic_name: str = column(STRING, comment="Name of the topic")
    replicas: tuple[int, ...] = column(comment="Replicas: broker ids, the preferred leader first")
    isr: tuple[int, ...] = column(comment="In-sync replicas: broker ids")
    adding_replicas: tuple[int, ...] = column(
        default=(), comment="Broker ids that a reassignment adds"
    )
    removing_replicas: tuple[int, ...] = column(
        default=(), comment="Broker ids that a reassignment removes"
    )
    elr: tuple[int, ...] = column(
        record="eligible_leader_replicas",
        default=(),
        empty_is_null=True,
        comment="Eligible leader replicas (KIP-966): brokers that have all committed records",
    )
    last_known_elr: tuple[int, ...] = column(
        default=(), empty_is_null=True, comment="Last known eligible leader replicas (KIP-966)"
    )
    directories: tuple[str, ...] = column(
        comment="Ids of the log directories of the replicas, in their order"
    )
    leader: int = column(comment="Broker id of the leader; -1 without a leader")
    leader_epoch: int = column(comment="Leader epoch of the partition")
    partition_epoch: int = column(comment="Partition epoch, which increases with each change")
    leader_recovery_state: int = column(default=0, comment="Leader recovery state, as a number")

    @property
    def key(self) -> Key:
        return (self.topic_id, self.partition_id)

    @property
    def leader_recovery_state_name(self) -> str:
        return enum_name(LEADER_RECOVERY_STATES, self.leader_recovery_state)

    def without_elr(self) -> PartitionRow:
        """Return the row without eligible leader replicas (KIP-966): itself if it has none."""
        if not self.elr and not self.last_known_elr:
            return self
        return replace(self, elr=(), last_known_elr=())


@row
class ConfigRow:
    """Config that is set. A broker config with resource name "" is the default of all brokers.

    The value may be a secret and is not in ``repr``.
    """

    ENTITY: ClassVar[Entity] = Entity.CONFIG
    RECORD: ClassVar = ConfigRecord
    resource_type: int = column(comment="Resource type, as a number")
    resource_name: str = column(
        comment="Resource name; for brokers, empty means the default of all brokers"
    )
    name: str = column(comment="Name")
    value: str = column(comment="Value")

    @property
    def key(self) -> Key:
        return (self.resource_type, self.resource_name, self.name)

    @property
    def resource_type_name(self) -> str:
        return enum_name(CONFIG_RESOURCE_TYPES, self.resource_type)


@row
class QuotaRow:
    """Client quota. ``entity``: pairs of type (user, client-id, ip) and name (None: the default),
    sorted by type."""

    ENTITY: ClassVar[Entity] = Entity.QUOTA
    RECORD: ClassVar = ClientQuotaRecord
    entity: tuple[tuple[str, str | None], ...] = column(
        TEXT_PAIRS, comment="Entity by type (user, client-id, ip); a null name is the default"
    )
    quota: str = column(record="key", comment="Name of the quota, such as producer_byte_rate")
    value: float = column(comment="Value")

    @property
    def key(self) -> Key:
        return (self.entity_key, self.quota)

    @property
    def entity_key(self) -> str:
        """The entity as compact JSON: ``{"client-id":"a","user":null}``."""
        return quota_entity_key(self.entity)


@row
class ProducerIdsRow:
    """Next producer id to allocate: a single row.

    A snapshot does not contain the broker and the broker epoch of the last block (Kafka:
    ProducerIdsImage writes -1), so they are neither compared nor part of the digest.
    """

    ENTITY: ClassVar[Entity] = Entity.PRODUCER_IDS
    RECORD: ClassVar = ProducerIdsRecord
    next_producer_id: int = column(comment="First producer id that is not allocated yet")
    broker_id: int = column(
        default=-1,
        compare=False,
        comment="Broker that allocated the last block; -1 if the log does not contain it",
    )
    broker_epoch: int = column(default=-1, compare=False, comment="Epoch of that broker")

    @property
    def key(self) -> Key:
        return ("next",)


@row
class AclRow:
    """ACL. ACLs with equal content and different ids are separate rows."""

    ENTITY: ClassVar[Entity] = Entity.ACL
    RECORD: ClassVar = AccessControlEntryRecord
    acl_id: str = column(record="id", comment="Id of the ACL in the log")
    resource_type: int = column(comment="Resource type, as a number")
    resource_name: str = column(
        comment="Resource name, or its prefix with pattern type PREFIXED; * is any"
    )
    pattern_type: int = column(comment="Pattern type, as a number")
    principal: str = column(comment="Principal, such as User:alice")
    host: str = column(comment="Host to which the entry applies; * is any host")
    operation: int = column(comment="Operation, as a number")
    permission: int = column(record="permission_type", comment="Permission, as a number")

    @property
    def key(self) -> Key:
        return (self.acl_id,)

    @property
    def resource_type_name(self) -> str:
        return enum_name(ACL_RESOURCE_TYPES, self.resource_type)

    @property
    def pattern_type_name(self) -> str:
        return enum_name(PATTERN_TYPES, self.pattern_type)

    @property
    def operation_name(self) -> str:
        return enum_name(ACL_OPERATIONS, self.operation)

    @property
    def permission_name(self) -> str:
        return enum_name(ACL_PERMISSIONS, self.permission)


AclContent: TypeAlias = tuple[int, str, int, str, str, int, int]

acl_content: Final[Callable[[object], AclContent]] = attrgetter(
    *("resource_type", "resource_name", "pattern_type", "principal"),
    *("host", "operation", "permission"),
)
"""Returns the content of an ACL without its id, for a row or for an ACL of a request."""


@row
class ScramRow:
    """SCRAM credential of a user. Salt and keys are secrets and not in ``repr``."""

    ENTITY: ClassVar[Entity] = Entity.SCRAM
    RECORD: ClassVar = UserScramCredentialRecord
    user: str = column(record="name", comment="User")
    mechanism: int = column(comment="SCRAM mechanism, as a number")
    iterations: int = column(comment="Number of hash iterations")
    salt: bytes = column(comment="Salt; redacted")
    stored_key: bytes = column(comment="Stored key; redacted")
    server_key: bytes = column(comment="Server key; redacted")

    @property
    def key(self) -> Key:
        return (self.user, self.mechanism)

    @property
    def mechanism_name(self) -> str:
        return enum_name(SCRAM_MECHANISMS, self.mechanism)


@row
class TokenRow:
    """Delegation token: owner, renewers and expiry. Its HMAC is not in the log."""

    ENTITY: ClassVar[Entity] = Entity.TOKEN
    RECORD: ClassVar = DelegationTokenRecord
    token_id: str = column(comment="Id of the token; not a secret")
    owner: str = column(comment="Principal that owns the token")
    requester: str = column(comment="Principal that requested the token")
    renewers: tuple[str, ...] = column(comment="Principals that may renew the token")
    issue_timestamp_ms: int = column(
        TIMESTAMP_MS, record="issue_timestamp", comment="Time at which the token was issued"
    )
    max_timestamp_ms: int = column(
        TIMESTAMP_MS, record="max_timestamp", comment="Time after which the token cannot be renewed"
    )
    expiration_timestamp_ms: int = column(
        TIMESTAMP_MS,
        record="expiration_timestamp",
        comment="Time at which the token expires unless it is renewed",
    )

    @property
    def key(self) -> Key:
        return (self.token_id,)


@row
class EpochRow:
    """Leader epoch. ``end_offset`` (exclusive) is None for the current epoch or if unknown.

    ``start_offset`` and ``leader_id`` are None if the epoch began in a snapshot, before the first
    record that was read.
    """

    ENTITY: ClassVar[Entity] = Entity.EPOCH
    leader_epoch: int = column(INT32, comment="Leader epoch of the quorum")
    start_offset: int | None = column(
        INT64, comment="First offset of the epoch; null if the log does not contain it"
    )
    end_offset: int | None = column(
        INT64, comment="Offset after the last record of the epoch; null for the current epoch"
    )
    leader_id: int | None = column(
        INT32, comment="Node id of the leader; null if the log does not contain it"
    )
    voters: tuple[Voter, ...] = column(Parts(Voter), comment="Voters of the quorum")
    kraft_version: int = column(INT32, comment="Finalized kraft.version; 1 allows dynamic voters")

    @property
    def key(self) -> Key:
        return (self.leader_epoch,)


class TransactionOutcome(StrEnum):
    """Outcome of a metadata transaction."""

    COMMITTED = "committed"
    ABORTED = "aborted"


@row
class TransactionRow:
    """Completed metadata transaction (KIP-868).

    ``begin_offset`` is that of the begin marker, ``end_offset`` (exclusive) the one after the end
    or abort marker; ``record_count`` counts the metadata records between the markers.
    """

    ENTITY: ClassVar[Entity] = Entity.TRANSACTION
    begin_offset: int = column(INT64, comment="Offset of the begin marker")
    end_offset: int = column(INT64, comment="Offset after the end or abort marker")
    outcome: TransactionOutcome = column(TransactionOutcome, comment="committed or aborted")
    name: str | None = column(STRING, comment="Name")
    reason: str | None = column(STRING, comment="Reason for an abort")
    record_count: int = column(INT32, comment="Number of metadata records between the markers")

    @property
    def key(self) -> Key:
        return (self.begin_offset,)


# --- rows of other internal logs ------------------------------------------------------------------


@row
class OffsetCommit:
    """Columns of an offset that a group commits in a partition."""

    group: str = column(STRING, comment="Group")
    topic: str = column(STRING, comment="Topic")
    partition: int = column(INT32, comment="Partition of the topic")
    offset: int = column(INT64, comment="Committed offset: the next one that the group reads")
    leader_epoch: int | None = column(
        INT32, comment="Leader epoch of the last record that was read; null if unknown"
    )
    metadata: str = column(STRING, comment="Text that the client committed")
    commit_timestamp_ms: int = column(TIMESTAMP_MS, comment="Time of the commit")
    expire_timestamp_ms: int | None = column(
        TIMESTAMP_MS, comment="Time at which the offset expires; null if the commit sets none"
    )
    topic_id: str | None = column(
        UUID, comment="Id of the topic; null if the client did not send it"
    )


@row
class ConsumerOffsetRow(OffsetCommit):
    """Committed offset of a group in a partition, from ``__consumer_offsets``."""

    ENTITY: ClassVar[Entity] = Entity.CONSUMER_OFFSET

    @property
    def key(self) -> Key:
        return self.group, self.topic, self.partition


@row
class PendingOffsetRow(OffsetCommit):
    """Offset commit in an open transaction, from ``__consumer_offsets``.

    The producer's marker turns it into a ``ConsumerOffsetRow``, or deletes it.
    """

    ENTITY: ClassVar[Entity] = Entity.PENDING_OFFSET
    producer_id: int = column(INT64, comment="Producer of the transaction")
    record_offset: int = column(INT64, comment="Offset of the commit record")

    @property
    def key(self) -> Key:
        return self.producer_id, self.group, self.topic, self.partition


@row
class GroupRow:
    """Group of any protocol, from ``__consumer_offsets``."""

    ENTITY: ClassVar[Entity] = Entity.GROUP
    group: str = column(STRING, comment="Group")
    type: str = column(STRING, comment="classic, consumer (KIP-848), share or streams")
    protocol_type: str = column(
        STRING, comment="Protocol type, such as consumer; empty if there are only committed offsets"
    )
    state: str | None = column(
        STRING, comment="State, such as Stable; null for streams groups with members"
    )
    epoch: int = column(INT32, comment="Group epoch; of a classic group, its generation")
    assignment_epoch: int | None = column(
        INT32, comment="Epoch of the target assignment; null without an assignment"
    )
    protocol: str | None = column(STRING, comment="Assignor of a classic group")
    leader: str | None = column(STRING, comment="Leader of a classic group")
    member_count: int = column(INT32, comment="Number of members")

    @property
    def key(self) -> Key:
        return (self.group,)


@row
class GroupMemberRow:
    """Member of a group, from ``__consumer_offsets``."""

    ENTITY: ClassVar[Entity] = Entity.GROUP_MEMBER
    group: str = column(STRING, comment="Group")
    member_id: str = column(STRING, comment="Member id")
    instance_id: str | None = column(STRING, comment="group.instance.id of a static member")
    client_id: str = column(STRING, comment="Client id")
    client_host: str = column(STRING, comment="Address of the client")
    rack_id: str | None = column(STRING, comment="Rack of the client")
    epoch: int | None = column(INT32, comment="Epoch of the member; null in a classic group")
    state: str | None = column(STRING, comment="State, such as Stable; null in a classic group")
    topics: tuple[str, ...] = column(Array(STRING), comment="Subscribed topics")
    topic_regex: str | None = column(STRING, comment="Regular expression for subscribed topics")
    assignment: tuple[MemberPartitions, ...] = column(
        Parts(MemberPartitions), comment="Partitions assigned to the member"
    )

    @property
    def key(self) -> Key:
        return self.group, self.member_id


@row
class ProducerTransactionRow:
    """State of a transactional id, from ``__transaction_state``."""

    ENTITY: ClassVar[Entity] = Entity.PRODUCER_TRANSACTION
    transactional_id: str = column(STRING, comment="Transactional id")
    producer_id: int = column(INT64, comment="Producer id")
    producer_epoch: int = column(INT16, comment="Producer epoch")
    state: str = column(STRING, comment="State, such as Ongoing; a number if unknown")
    timeout_ms: int = column(INT32, comment="Transaction timeout in milliseconds")
    start_timestamp_ms: int | None = column(
        TIMESTAMP_MS, comment="Time at which the last transaction began; null if there was none"
    )
    last_update_timestamp_ms: int = column(TIMESTAMP_MS, comment="Time of the last change")
    partitions: tuple[str, ...] = column(
        Array(STRING), comment="Partitions in the transaction, such as orders-0"
    )

    @property
    def key(self) -> Key:
        return (self.transactional_id,)


@row
class SharePartitionRow:
    """State of a partition as a share group reads it, from ``__share_group_state`` (KIP-932)."""

    ENTITY: ClassVar[Entity] = Entity.SHARE_PARTITION
    group: str = column(STRING, comment="Share group")
    topic_id: str = column(UUID, comment="Id of the topic")
    partition: int = column(INT32, comment="Partition of the topic")
    start_offset: int | None = column(
        INT64, comment="First offset whose delivery is not complete; null before the first read"
    )
    delivery_complete_count: int | None = column(
        INT32, comment="Number of records at or above the start offset whose delivery is complete"
    )
    state_epoch: int | None = column(INT32, comment="Epoch of the state; null if unknown")
    leader_epoch: int | None = column(
        INT32, comment="Leader epoch of the partition; null if unknown"
    )
    snapshot_epoch: int = column(INT32, comment="Epoch of the last snapshot")
    create_timestamp_ms: int | None = column(TIMESTAMP_MS, comment="Time of the first snapshot")
    write_timestamp_ms: int | None = column(TIMESTAMP_MS, comment="Time of the last snapshot")
    state_batches: tuple[ShareBatch, ...] = column(
        Parts(ShareBatch), comment="Ranges of records by their delivery state"
    )

    @property
    def key(self) -> Key:
        return self.group, self.topic_id, self.partition


@row
class RemoteSegmentRow:
    """Segment in remote storage, from ``__remote_log_metadata`` (KIP-405)."""

    ENTITY: ClassVar[Entity] = Entity.REMOTE_SEGMENT
    topic: str = column(STRING, comment="Topic")
    partition: int = column(INT32, comment="Partition of the topic")
    start_offset: int = column(INT64, comment="First offset of the segment")
    end_offset: int = column(INT64, comment="Last offset of the segment")
    state: str = column(STRING, comment="State, such as CopySegmentFinished; a number if unknown")
    segment_size_in_bytes: int = column(INT32, comment="Size in bytes")
    max_timestamp_ms: int = column(TIMESTAMP_MS, comment="Latest timestamp of its records")
    event_timestamp_ms: int = column(TIMESTAMP_MS, comment="Time at which the copy began")
    broker_id: int = column(INT32, comment="Broker that copied the segment")
    topic_id: str = column(UUID, comment="Id of the topic")
    segment_id: str = column(UUID, comment="Id of the segment")

    @property
    def key(self) -> Key:
        return (self.segment_id,)


InternalRow = (
    ConsumerOffsetRow
    | PendingOffsetRow
    | GroupRow
    | GroupMemberRow
    | ProducerTransactionRow
    | SharePartitionRow
    | RemoteSegmentRow
)
"""Row of an internal log other than that of the metadata."""

RecordRow = (
    FeatureRow
    | ZkMigrationRow
    | BrokerRow
    | ControllerRow
    | TopicRow
    | PartitionRow
    | ConfigRow
    | QuotaRow
    | ProducerIdsRow
    | AclRow
    | ScramRow
    | TokenRow
)
"""Row of state: it has a ``RECORD``."""

Row = RecordRow | EpochRow | TransactionRow | InternalRow
"""Any row."""

RECORD_ROW_TYPES: Final[tuple[type[RecordRow], ...]] = (
    FeatureRow,
    ZkMigrationRow,
    BrokerRow,
    ControllerRow,
    TopicRow,
    PartitionRow,
    ConfigRow,
    QuotaRow,
    ProducerIdsRow,
    AclRow,
    ScramRow,
    TokenRow,
)

ROW_TYPES: Final[Mapping[Entity, type[Row]]] = {
    kind.ENTITY: kind
    for kind in (
        *(*RECORD_ROW_TYPES, EpochRow, TransactionRow),
        *(ConsumerOffsetRow, PendingOffsetRow, GroupRow, GroupMemberRow),
        *(ProducerTransactionRow, SharePartitionRow, RemoteSegmentRow),
    )
}
assert set(ROW_TYPES) == set(Entity), "every entity has a row type"

_PLURALS: Final[Mapping[Entity, str]] = {
    Entity.ZK_MIGRATION: "zk_migration",
    Entity.PRODUCER_IDS: "producer_ids",
    Entity.SCRAM: "scram",
    Entity.PARTITION: "partitions",
    Entity.PRODUCER_TRANSACTION: "transactions_of_producers",
}


def table_of(entity: Entity) -> str:
    """Return the table name of an entity: ``topics``, ``scram``, ..."""
    return _PLURALS.get(entity, f"{entity}s")


_SCALARS: Final = frozenset({bool, float, int, str, type(None)})
"""Types of values that are JSON data, before the many comparisons of other types."""


def row_json(row: Row) -> dict[str, object]:
    """Return a row as JSON data: columns by name, enums also by name, bytes as base64."""
    found = _with_names(row)
    if isinstance(row, QuotaRow):
        found["entity"] = dict(row.entity)
    return found


def row_text(row: Row) -> str:
    """Return the input of a row's digest: its compared columns as JSON, in order."""
    values = [_plain(getattr(row, f.name)) for f in fields(row) if f.compare]
    return json.dumps([row.ENTITY, values], separators=(",", ":"))


def column_json(row: Row, name: str) -> object:
    """Return the value of one column of ``row_json``."""
    if isinstance(row, QuotaRow) and name == "entity":
        return dict(row.entity)
    content = getattr(row, name)
    if (name, True) in _json_columns(type(row)):
        return [_with_names(item) for item in content]
    return _plain(content)


def _plain(value: object) -> object:
    if type(value) in _SCALARS:
        return value
    if isinstance(value, tuple):
        return [item if type(item) in _SCALARS else _plain(item) for item in value]
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: _plain(getattr(value, f.name)) for f in fields(value)}
    return value


def _with_names(value: Row | Part) -> dict[str, object]:
    found: dict[str, object] = {}
    for name, has_parts in _json_columns(type(value)):
        content = getattr(value, name)
        found[name] = [_with_names(item) for item in content] if has_parts else _plain(content)
    return found


_JSON_COLUMNS: Final[dict[type, tuple[tuple[str, bool], ...]]] = {}


def _json_columns(kind: type) -> tuple[tuple[str, bool], ...]:
    """Return the columns of rows as JSON, each with whether its values are parts."""
    found = _JSON_COLUMNS.get(kind)
    if found is None:
        declared = row_schema(kind)
        names = [(f"{entry.name}_name", False) for entry in declared if entry.has_enum_name]
        found = (*((entry.name, isinstance(entry.kind, Parts)) for entry in declared), *names)
        _JSON_COLUMNS[kind] = found
    return found
