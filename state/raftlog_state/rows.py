"""Rows of cluster state: one frozen dataclass for each kind of entity in Kafka's metadata.

Field names are the column names of the tables. A row has every field of Kafka's records, so that
it can be written back as a record without loss.

Rows are immutable values. Collections that Kafka keeps in hash maps (endpoints, features, quota
entities, log directories) are sorted, so that a state replayed from the log equals the same state
loaded from a snapshot.

``row.key`` is unique within the row's entity, and the keys of one entity can be sorted. Times are
milliseconds since 1970 UTC; uuids are Kafka's base64 text of 22 characters.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from enum import StrEnum
from typing import ClassVar, Final

from raftlog.types import ZERO_UUID

from .enums import (
    ACL_OPERATIONS,
    ACL_PERMISSIONS,
    ACL_RESOURCE_TYPES,
    CONFIG_RESOURCE_TYPES,
    LEADER_RECOVERY_STATES,
    PATTERN_TYPES,
    SCRAM_MECHANISMS,
    SECURITY_PROTOCOLS,
    ZK_MIGRATION_STATES,
    enum_name,
)

Key = tuple[int | str, ...]
"""Primary key of a row within its entity."""


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


STATE_ENTITIES = tuple(e for e in Entity if e not in (Entity.EPOCH, Entity.TRANSACTION))
"""Entities in a snapshot. Epochs and transactions are history of the log, not state."""


# --- parts of rows --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Listener of a broker or controller; ``protocol`` is the id of Kafka's SecurityProtocol."""

    name: str
    host: str
    port: int
    protocol: int

    @property
    def protocol_name(self) -> str:
        return enum_name(SECURITY_PROTOCOLS, self.protocol)


@dataclass(frozen=True, slots=True)
class FeatureRange:
    """Levels of one feature that a node supports, both inclusive."""

    name: str
    min_version: int
    max_version: int


@dataclass(frozen=True, slots=True)
class VoterEndpoint:
    """Listener of a voter (Kafka: VotersRecord)."""

    name: str
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class Voter:
    """Voter of the quorum. Of a LeaderChangeMessage only ids are known; the rest has defaults."""

    voter_id: int
    directory_id: str = ZERO_UUID
    endpoints: tuple[VoterEndpoint, ...] = ()
    min_kraft_version: int = 0
    max_kraft_version: int = 0


Part = Endpoint | FeatureRange | VoterEndpoint | Voter
"""Dataclasses that a row may have tuples of, besides plain values."""

PARTS: Final = (Endpoint, FeatureRange, VoterEndpoint, Voter)


def quota_entity_key(entity: tuple[tuple[str, str | None], ...]) -> str:
    """Return a quota's entity as compact JSON, sorted by type."""
    return json.dumps(dict(sorted(entity)), separators=(",", ":"), ensure_ascii=False)


# --- rows -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureRow:
    """Finalized feature, for instance ``metadata.version``; ``level`` > 0 (0 deletes the row)."""

    ENTITY: ClassVar[Entity] = Entity.FEATURE
    name: str
    level: int

    @property
    def key(self) -> Key:
        return (self.name,)


@dataclass(frozen=True, slots=True, kw_only=True)
class ZkMigrationRow:
    """State of a migration from ZooKeeper, written by Kafka 3.4 to 3.9 and ignored by 4.x."""

    ENTITY: ClassVar[Entity] = Entity.ZK_MIGRATION
    state: int

    @property
    def key(self) -> Key:
        return ("state",)

    @property
    def state_name(self) -> str:
        return enum_name(ZK_MIGRATION_STATES, self.state)


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerRow:
    """Registered broker. ``cordoned_log_dirs`` is None if the broker never sent it."""

    ENTITY: ClassVar[Entity] = Entity.BROKER
    broker_id: int
    incarnation_id: str
    broker_epoch: int
    rack: str | None
    fenced: bool
    in_controlled_shutdown: bool
    is_migrating_zk_broker: bool
    endpoints: tuple[Endpoint, ...]
    features: tuple[FeatureRange, ...]
    log_dirs: tuple[str, ...]
    cordoned_log_dirs: tuple[str, ...] | None

    @property
    def key(self) -> Key:
        return (self.broker_id,)


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerRow:
    """Registered controller."""

    ENTITY: ClassVar[Entity] = Entity.CONTROLLER
    controller_id: int
    incarnation_id: str
    zk_migration_ready: bool
    endpoints: tuple[Endpoint, ...]
    features: tuple[FeatureRange, ...]

    @property
    def key(self) -> Key:
        return (self.controller_id,)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRow:
    """Topic. A topic that was deleted and created again under its name has another id."""

    ENTITY: ClassVar[Entity] = Entity.TOPIC
    topic_id: str
    name: str

    @property
    def key(self) -> Key:
        return (self.topic_id,)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionRow:
    """Partition. ``directories`` is parallel to ``replicas``; ``leader`` -1: no leader."""

    ENTITY: ClassVar[Entity] = Entity.PARTITION
    topic_id: str
    partition_id: int
    topic_name: str
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    adding_replicas: tuple[int, ...]
    removing_replicas: tuple[int, ...]
    elr: tuple[int, ...]
    last_known_elr: tuple[int, ...]
    directories: tuple[str, ...]
    leader: int
    leader_epoch: int
    partition_epoch: int
    leader_recovery_state: int

    @property
    def key(self) -> Key:
        return (self.topic_id, self.partition_id)

    @property
    def leader_recovery_state_name(self) -> str:
        return enum_name(LEADER_RECOVERY_STATES, self.leader_recovery_state)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigRow:
    """Config that is set. A broker config with resource name "" is the default of all brokers.

    The value may be a secret and is not in ``repr``.
    """

    ENTITY: ClassVar[Entity] = Entity.CONFIG
    resource_type: int
    resource_name: str
    name: str
    value: str = field(repr=False)

    @property
    def key(self) -> Key:
        return (self.resource_type, self.resource_name, self.name)

    @property
    def resource_type_name(self) -> str:
        return enum_name(CONFIG_RESOURCE_TYPES, self.resource_type)


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaRow:
    """Client quota. ``entity``: pairs of type (user, client-id, ip) and name (None: the default),
    sorted by type."""

    ENTITY: ClassVar[Entity] = Entity.QUOTA
    entity: tuple[tuple[str, str | None], ...]
    quota: str
    value: float

    @property
    def key(self) -> Key:
        return (self.entity_key, self.quota)

    @property
    def entity_key(self) -> str:
        """The entity as compact JSON: ``{"client-id":"a","user":null}``."""
        return quota_entity_key(self.entity)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerIdsRow:
    """Next producer id to allocate: a single row.

    Broker and broker epoch of the last block are not in a snapshot (Kafka: ProducerIdsImage writes
    -1), so they are not compared and not part of the digest.
    """

    ENTITY: ClassVar[Entity] = Entity.PRODUCER_IDS
    next_producer_id: int
    broker_id: int = field(default=-1, compare=False)
    broker_epoch: int = field(default=-1, compare=False)

    @property
    def key(self) -> Key:
        return ("next",)


@dataclass(frozen=True, slots=True, kw_only=True)
class AclRow:
    """ACL. ACLs with equal content and different ids are separate rows."""

    ENTITY: ClassVar[Entity] = Entity.ACL
    acl_id: str
    resource_type: int
    resource_name: str
    pattern_type: int
    principal: str
    host: str
    operation: int
    permission: int

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


@dataclass(frozen=True, slots=True, kw_only=True)
class ScramRow:
    """SCRAM credential of a user. Salt and keys are secrets and not in ``repr``."""

    ENTITY: ClassVar[Entity] = Entity.SCRAM
    user: str
    mechanism: int
    iterations: int
    salt: bytes = field(repr=False)
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)

    @property
    def key(self) -> Key:
        return (self.user, self.mechanism)

    @property
    def mechanism_name(self) -> str:
        return enum_name(SCRAM_MECHANISMS, self.mechanism)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRow:
    """Delegation token: owner, renewers and expiry. Its HMAC is not in the log."""

    ENTITY: ClassVar[Entity] = Entity.TOKEN
    token_id: str
    owner: str
    requester: str
    renewers: tuple[str, ...]
    issue_timestamp_ms: int
    max_timestamp_ms: int
    expiration_timestamp_ms: int

    @property
    def key(self) -> Key:
        return (self.token_id,)


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochRow:
    """Leader epoch. ``end_offset`` (exclusive) is None for the current epoch or if unknown.

    ``start_offset`` and ``leader_id`` are None if the epoch began before the first record that was
    read, in a snapshot.
    """

    ENTITY: ClassVar[Entity] = Entity.EPOCH
    leader_epoch: int
    start_offset: int | None
    end_offset: int | None
    leader_id: int | None
    voters: tuple[Voter, ...]
    kraft_version: int

    @property
    def key(self) -> Key:
        return (self.leader_epoch,)


class TransactionOutcome(StrEnum):
    """Outcome of a metadata transaction."""

    COMMITTED = "committed"
    ABORTED = "aborted"


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionRow:
    """Completed metadata transaction (KIP-868).

    ``begin_offset`` is that of the begin marker, ``end_offset`` (exclusive) the one after the end
    or abort marker; ``record_count`` counts the metadata records between the markers.
    """

    ENTITY: ClassVar[Entity] = Entity.TRANSACTION
    begin_offset: int
    end_offset: int
    outcome: TransactionOutcome
    name: str | None
    reason: str | None
    record_count: int

    @property
    def key(self) -> Key:
        return (self.begin_offset,)


Row = (
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
    | EpochRow
    | TransactionRow
)
"""Any row."""

ROW_TYPES: Final[Mapping[Entity, type[Row]]] = {
    kind.ENTITY: kind
    for kind in (
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
        EpochRow,
        TransactionRow,
    )
}
assert set(ROW_TYPES) == set(Entity), "every entity has a row type"

_PLURALS: Final[Mapping[Entity, str]] = {
    Entity.ZK_MIGRATION: "zk_migration",
    Entity.PRODUCER_IDS: "producer_ids",
    Entity.SCRAM: "scram",
    Entity.PARTITION: "partitions",
}


def table_of(entity: Entity) -> str:
    """Return the table name of an entity: ``topics``, ``scram``, ..."""
    return _PLURALS.get(entity, f"{entity}s")


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


def _plain(value: object) -> object:
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: _plain(getattr(value, f.name)) for f in fields(value)}
    return value


def _with_names(value: Row | Part) -> dict[str, object]:
    found: dict[str, object] = {}
    for entry in fields(value):
        column = getattr(value, entry.name)
        if isinstance(column, tuple):
            found[entry.name] = [
                _with_names(item) if isinstance(item, PARTS) else item for item in column
            ]
        else:
            found[entry.name] = _plain(column)
    for name in vars(type(value)):
        if name.endswith("_name") and name not in found:
            found[name] = getattr(value, name)
    return found
