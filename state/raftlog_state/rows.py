"""What cluster state is made of: one frozen row for each thing that Kafka's metadata can name.

Rules of this file:

1. A row is a row of a table: its field names are the table's column names, and it holds every
   field that Kafka's records hold, so that the way back to records loses nothing.
2. Rows are values: hashable, compared by content, never changed. What Kafka keeps in hash maps
   (endpoints, features, quota entities, log directories) is sorted here, so that a state replayed
   from the log equals the same state loaded from a checkpoint.
3. ``row.key`` identifies the row among those of its entity; keys of one entity can be sorted.
4. Times are milliseconds since 1970 UTC; offsets and epochs are Kafka's own numbers; uuids are
   Kafka's base64 text of 22 characters.
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
"""What identifies a row among the rows of its entity."""


class Entity(StrEnum):
    """The kinds of rows. The order of the members is the order of every listing."""

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
"""What a checkpoint holds. Epochs and transactions are the log's own history, not state."""


# --- parts of rows --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A listener of a broker or controller; ``protocol`` is Kafka's SecurityProtocol number."""

    name: str
    host: str
    port: int
    protocol: int

    @property
    def protocol_name(self) -> str:
        return enum_name(SECURITY_PROTOCOLS, self.protocol)


@dataclass(frozen=True, slots=True)
class FeatureRange:
    """The levels of one feature that a node supports, both inclusive."""

    name: str
    min_version: int
    max_version: int


@dataclass(frozen=True, slots=True)
class VoterEndpoint:
    """Where a voter listens (Kafka: VotersRecord)."""

    name: str
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class Voter:
    """A voter of the quorum. A leader-change record knows ids only: the rest is then unknown."""

    voter_id: int
    directory_id: str = ZERO_UUID
    endpoints: tuple[VoterEndpoint, ...] = ()
    min_kraft_version: int = 0
    max_kraft_version: int = 0


Part = Endpoint | FeatureRange | VoterEndpoint | Voter
"""What a row may hold lists of, beside plain values."""

PARTS: Final = (Endpoint, FeatureRange, VoterEndpoint, Voter)


def quota_entity_key(entity: tuple[tuple[str, str | None], ...]) -> str:
    """A quota's entity as compact JSON, types in order: two orders of one entity are one key."""
    return json.dumps(dict(sorted(entity)), separators=(",", ":"), ensure_ascii=False)


# --- rows -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureRow:
    """A finalized feature; ``metadata.version`` is one. Level 0 does not exist: it deletes."""

    ENTITY: ClassVar[Entity] = Entity.FEATURE
    name: str
    level: int

    @property
    def key(self) -> Key:
        return (self.name,)


@dataclass(frozen=True, slots=True, kw_only=True)
class ZkMigrationRow:
    """How far a migration from ZooKeeper had come. Kafka 3.4 to 3.9 wrote it; 4.x ignores it."""

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
    """A registered broker. ``cordoned_log_dirs`` is None while the broker has never said."""

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
    """A registered controller."""

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
    """A topic. A name that was deleted and made again is another topic: the id differs."""

    ENTITY: ClassVar[Entity] = Entity.TOPIC
    topic_id: str
    name: str

    @property
    def key(self) -> Key:
        return (self.topic_id,)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionRow:
    """A partition. ``directories`` runs beside ``replicas``; leader -1 means that there is none."""

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
    """A config that somebody set. Broker configs with resource name "" are cluster defaults.

    The value may be a secret: no repr shows it.
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
    """A client quota. ``entity`` pairs a type (user, client-id, ip) with a name, None = default.

    The pairs are sorted by type: in Kafka their order means nothing.
    """

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
    """The first producer id that nobody has been given yet. One row.

    A checkpoint does not keep who took the last block (Kafka: ProducerIdsImage writes -1), so
    broker and its epoch take no part in comparison and digest.
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
    """An access rule. Two rules with the same content and different ids are two rows."""

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
    """A user's SCRAM credential. Salt and keys are secrets: no repr shows them."""

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
    """A delegation token: who, until when. The log never holds its HMAC."""

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
    """A leader's reign. ``end_offset`` (exclusive) is None while it lasts or is not known.

    ``start_offset`` and ``leader_id`` are None when the epoch began before the first record that
    was read (behind a checkpoint).
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
    """How a metadata transaction ended."""

    COMMITTED = "committed"
    ABORTED = "aborted"


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionRow:
    """A metadata transaction (KIP-868) that has ended.

    ``begin_offset`` is its begin marker's, ``end_offset`` (exclusive) the one after its end or
    abort marker; ``record_count`` counts the metadata records between the two.
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
"""Any row: a closed union."""

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
assert set(ROW_TYPES) == set(Entity), "every entity has its row"

_PLURALS: Final[Mapping[Entity, str]] = {
    Entity.ZK_MIGRATION: "zk_migration",
    Entity.PRODUCER_IDS: "producer_ids",
    Entity.SCRAM: "scram",
    Entity.PARTITION: "partitions",
}


def table_of(entity: Entity) -> str:
    """The name under which people find an entity's rows: ``topics``, ``scram``, ..."""
    return _PLURALS.get(entity, f"{entity}s")


def row_json(row: Row) -> dict[str, object]:
    """A row as JSON data: columns by name, the words beside the numbers, bytes as base64."""
    found = _with_names(row)
    if isinstance(row, QuotaRow):
        found["entity"] = dict(row.entity)
    return found


def row_text(row: Row) -> str:
    """What a row's digest is made of: its compared columns, as JSON, in their order."""
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
