"""What the export formats share: their result, the selected changes, and names of enum values."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import Final

from raftlog.types import (
    CONSUMER_OFFSETS_TOPIC,
    SHARE_GROUP_STATE_TOPIC,
    TRANSACTION_STATE_TOPIC,
)
from raftlog_state.controller import (
    AddAcl,
    AddPartitions,
    CreateTopic,
    DeleteConfig,
    DeleteTopic,
    ReassignPartition,
    RemoveAcl,
    RemoveQuota,
    RemoveScram,
    RemoveToken,
    SetConfig,
    SetQuota,
    SetToken,
)
from raftlog_state.controller.controller_state import TOPIC
from raftlog_state.desired_state import PlannedChanges, plan, target_replicas
from raftlog_state.enums import ACL_OPERATIONS, CONFIG_RESOURCE_TYPES, SCRAM_MECHANISMS, enum_name
from raftlog_state.image import (
    AclRow,
    BrokerRow,
    ConfigRow,
    Entity,
    FeatureRow,
    MetadataImage,
    PartitionRow,
    QuotaRow,
    ScramRow,
)
from raftlog_state.image.delta import MetadataDelta
from raftlog_state.image.differences import differences
from raftlog_state.image.row_schema import row_reader
from raftlog_state.records import RegisterBrokerRecord, is_redacted

QuotaEntity = tuple[tuple[str, str | None], ...]

_UNKNOWN_BROKER: Final = row_reader(BrokerRow, RegisterBrokerRecord)(
    RegisterBrokerRecord(rack=None)
)

INTERNAL_TOPICS: Final = frozenset(
    {CONSUMER_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC, SHARE_GROUP_STATE_TOPIC}
)
"""Topics that brokers create (Kafka: ``Topic.INTERNAL_TOPICS``)."""


@dataclass(frozen=True, slots=True)
class Exported:
    """Lines of an export, and descriptions of what its format cannot express.

    The lines contain secrets of configs in clear text if the state does.
    """

    lines: tuple[str, ...]
    left_out: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ExportedTopic:
    """Topic of a state, with only what was set."""

    name: str
    partitions: tuple[PartitionRow, ...]
    configs: Mapping[str, str]

    @property
    def clear_configs(self) -> dict[str, str]:
        """The configs that are not redacted, sorted by name."""
        return {
            name: value for name, value in sorted(self.configs.items()) if not is_redacted(value)
        }

    @property
    def replication_factor(self) -> int:
        """The number of replicas of its first partition."""
        return len(target_replicas(self.partitions[0]))

    @property
    def is_uniform(self) -> bool:
        """Whether all partitions have the same number of replicas."""
        return len({len(target_replicas(row)) for row in self.partitions}) == 1


@dataclass(slots=True)
class Declared:
    """Differences between two states, for formats that declare whole resources of the second."""

    topics: dict[str, ExportedTopic] = field(default_factory=dict)
    quotas: dict[QuotaEntity, dict[str, str]] = field(default_factory=dict)
    """Quotas of each entity whose quotas differ; empty if all were removed."""
    principals: set[str] = field(default_factory=set)
    """Principals whose ACLs differ."""
    credentials: dict[ScramRow, None] = field(default_factory=dict)
    """SCRAM credentials that differ."""
    deleted: list[str] = field(default_factory=list)
    """Topics and credentials that the second state lacks."""
    left_out: list[str] = field(default_factory=list)


def planned_changes(before: MetadataImage, after: MetadataImage) -> PlannedChanges:
    """Return the changes from one state to another, without those of brokers and features.

    Brokers register themselves. All brokers of both states, and all that have replicas, are
    therefore regarded as running. Features are set when storage is formatted.
    """
    brokers = {row.broker_id: row for one in (before, after) for row in one.rows_of(BrokerRow)}
    numbers = {
        number
        for one in (before, after)
        for row in one.rows_of(PartitionRow)
        for number in (*row.replicas, *row.isr)
    }
    running = [
        replace(
            brokers.get(number, _UNKNOWN_BROKER),
            broker_id=number,
            fenced=False,
            in_controlled_shutdown=False,
        )
        for number in sorted(numbers | brokers.keys())
    ]
    features = after.rows_of(FeatureRow)
    return plan(*(_with_rows(one, [*running, *features]) for one in (before, after)))


def _with_rows(image: MetadataImage, rows: Iterable[BrokerRow | FeatureRow]) -> MetadataImage:
    """Return an image whose brokers and features are replaced."""
    delta = MetadataDelta(image)
    for entity in (Entity.BROKER, Entity.FEATURE):
        for key in delta.keys(entity):
            delta.delete(entity, key)
    for row in rows:
        delta.put(row)
    return delta.apply(
        offset=image.offset, leader_epoch=image.leader_epoch, timestamp_ms=image.timestamp_ms
    )


def declared(before: MetadataImage, after: MetadataImage) -> Declared:
    """Return the differences, as in ``planned_changes``."""
    planned = planned_changes(before, after)
    found = Declared(left_out=list(planned.left_out))
    others: dict[str, None] = {}
    topics: dict[str, None] = {}
    entities: dict[QuotaEntity, None] = {}
    for change in planned.changes:
        match change:
            case CreateTopic() | AddPartitions() | ReassignPartition():
                topics[change.topic] = None
            case DeleteTopic() if after.topic(change.topic) is None:
                found.deleted.append(f"topic {change.topic!r}")
            case SetConfig() | DeleteConfig() if change.resource_type == TOPIC:
                topics[change.resource_name] = None
            case SetConfig() | DeleteConfig():
                others[config_text(change)] = None
            case AddAcl():
                found.principals.add(change.principal)
            case RemoveAcl():
                found.principals.add(acl_of(before, change).principal)
            case SetQuota() | RemoveQuota():
                entities[_entity_of(change)] = None
            case RemoveScram():
                mechanism = enum_name(SCRAM_MECHANISMS, int(change.mechanism))
                found.deleted.append(f"SCRAM credential {mechanism} of user {change.user!r}")
            case SetToken() | RemoveToken():
                found.left_out.append(token_text(change))
            case _:
                pass
    for difference in differences(before, after, Entity.SCRAM):
        if isinstance(difference.after, ScramRow):
            found.credentials[difference.after] = None
    found.left_out.extend(f"{what}: the form has configs of topics only" for what in others)
    for name in topics:
        topic = _topic_of(after, name)
        if topic.partitions and name not in INTERNAL_TOPICS:  # one without them is in left_out
            found.topics[name] = topic
    found.quotas = {entity: {} for entity in entities}
    for row in after.rows_of(QuotaRow):
        entity = tuple(sorted(row.entity, key=itemgetter(0)))
        if entity not in found.quotas:
            continue
        if math.isfinite(row.value):
            found.quotas[entity][row.quota] = number_text(row.value)
        else:
            what = f"quota {row.quota} of {entity_text(entity)}"
            found.left_out.append(f"{what}: it is no finite number")
    for topic in found.topics.values():
        if not topic.is_uniform:
            what = f"the numbers of replicas of topic {topic.name!r}"
            found.left_out.append(f"{what}: they differ, and a resource has one number")
        found.left_out.extend(
            f"config {name} of topic {topic.name!r}: it requires --reveal"
            for name, value in topic.configs.items()
            if is_redacted(value)
        )
    return found


def token_text(change: SetToken | RemoveToken) -> str:
    """Return why an export contains no delegation token."""
    return f"delegation token {change.token_id!r}: it is created by a request of its owner"


def config_text(change: SetConfig | DeleteConfig) -> str:
    """Return the config that a change belongs to, for messages."""
    kind = enum_name(CONFIG_RESOURCE_TYPES, int(change.resource_type)).lower()
    of_all = kind == "broker" and not change.resource_name
    return (
        f"config {change.name} of {'all brokers' if of_all else f'{kind} {change.resource_name!r}'}"
    )


def acl_of(before: MetadataImage, change: RemoveAcl) -> AclRow:
    """Return the ACL that a planned change removes."""
    found = before.find(AclRow, change.acl_id or "")
    assert found is not None, "planned from this state"
    return found


def _entity_of(change: SetQuota | RemoveQuota) -> QuotaEntity:
    return tuple(sorted(change.entity.items(), key=itemgetter(0)))


def _topic_of(image: MetadataImage, name: str) -> ExportedTopic:
    topic = image.topic(name)
    assert topic is not None, "planned for this state"
    partitions = image.group((Entity.PARTITION, topic.topic_id, ""))
    configs = image.group((Entity.CONFIG, TOPIC, name))
    return ExportedTopic(
        name,
        tuple(row for key in partitions if (row := image.find(PartitionRow, *key)) is not None),
        {
            config.name: config.value
            for key in configs
            if (config := image.find(ConfigRow, *key)) is not None
        },
    )


def number_text(value: float) -> str:
    """Return a quota as a number, without a fraction if it is whole."""
    return str(int(value)) if value.is_integer() and abs(value) < 2**63 else repr(value)


def entity_text(entity: QuotaEntity) -> str:
    """Return the entity of a quota as text, for messages."""
    return ", ".join(
        f"the default {kind}" if name is None else f"{kind} {name!r}" for kind, name in entity
    )


def acl_text(acl: AclRow) -> str:
    """Return an ACL as text, for messages."""
    what = f"{acl.resource_type_name} {acl.resource_name!r}"
    return f"ACL of {acl.principal!r}, {acl.operation_name} of {what}"


def operation_name(operation: int) -> str:
    """Return an operation as Kafka's tools write it: ``DescribeConfigs``."""
    return "".join(
        part.capitalize() for part in enum_name(ACL_OPERATIONS, operation).lower().split("_")
    )


def distinct_name(text: str, allowed: str, separator: str, length_max: int) -> str:
    """Return a name consisting of ``allowed`` characters and a hash of the text.

    ``allowed``: a character class of ``re``, such as ``a-z0-9``.
    """
    cased = text if "A-Z" in allowed else text.lower()
    plain = re.sub(f"[^{allowed}]", separator, cased).strip(separator)
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:10]
    return f"{plain[: length_max - 11].rstrip(separator)}{separator}{digest}".strip(separator)
