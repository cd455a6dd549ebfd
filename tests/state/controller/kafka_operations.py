"""Records that a real controller wrote, split into its operations."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile

from raftlog_state.controller import (
    AddAcl,
    AddPartitions,
    ChangeRequest,
    CreateTopic,
    DeleteConfig,
    DeleteTopic,
    ElectLeader,
    FenceBroker,
    ReassignPartition,
    RegisterBroker,
    RemoveAcl,
    RemoveQuota,
    RemoveScram,
    SetConfig,
    SetFeature,
    SetIsr,
    SetQuota,
    UnfenceBroker,
    UnregisterBroker,
)
from raftlog_state.enums import SECURITY_PROTOCOLS
from raftlog_state.image import BrokerRow, MetadataImage, PartitionRow, TopicRow
from raftlog_state.records import (
    AccessControlEntryRecord,
    BrokerRegistrationChangeRecord,
    ClearElrRecord,
    ClientQuotaRecord,
    ConfigRecord,
    DecodedRecord,
    FeatureLevelRecord,
    PartitionChangeRecord,
    PartitionRecord,
    RegisterBrokerRecord,
    RemoveAccessControlEntryRecord,
    RemoveTopicRecord,
    RemoveUserScramCredentialRecord,
    TopicRecord,
    UnregisterBrokerRecord,
)


@dataclass(frozen=True)
class Operation:
    """Records of a batch, and the change they represent; None if raftlog has no such change."""

    records: tuple[DecodedRecord, ...]
    change: ChangeRequest | None


def operation_at(image: MetadataImage, records: Sequence[DecodedRecord], begin: int) -> Operation:
    """Return the operation that starts at a record of a batch, given the state before it."""
    rest = records[begin:]
    first = rest[0].record
    count = 1
    change: ChangeRequest | None = None
    match first:
        case TopicRecord():
            count, change = _new_topic(first, rest)
        case RemoveTopicRecord():
            topic = image.find(TopicRow, first.topic_id)
            assert topic is not None
            change = DeleteTopic(topic=topic.name)
        case PartitionRecord():
            count, change = _more_partitions(image, first, rest)
        case ConfigRecord():
            has_clear = len(rest) > 1 and isinstance(rest[1].record, ClearElrRecord)
            count, change = 1 + has_clear, _config(first)
        case ClientQuotaRecord():
            change = _quota(first)
        case AccessControlEntryRecord():
            change = _acl(first)
        case RemoveAccessControlEntryRecord():
            change = RemoveAcl(acl_id=first.id)
        case RemoveUserScramCredentialRecord():
            change = RemoveScram(user=first.name, mechanism=first.mechanism)
        case FeatureLevelRecord():
            change = SetFeature(feature=first.name, level=first.feature_level, allow_downgrade=True)
        case RegisterBrokerRecord():
            is_new = image.find(BrokerRow, first.broker_id) is None
            change = _registration(first) if is_new else None
        case PartitionChangeRecord() | BrokerRegistrationChangeRecord() | UnregisterBrokerRecord():
            count, change = _of_broker_or_partition(image, rest)
        case _:
            pass
    return Operation(tuple(rest[:count]), change)


def _new_topic(first: TopicRecord, rest: Sequence[DecodedRecord]) -> tuple[int, CreateTopic]:
    own = list(
        takewhile(
            lambda one: (
                isinstance(one.record, ConfigRecord | ClearElrRecord)
                or (
                    isinstance(one.record, PartitionRecord)
                    and one.record.topic_id == first.topic_id
                )
            ),
            rest[1:],
        )
    )
    configs = {
        one.record.name: one.record.value or ""
        for one in own
        if isinstance(one.record, ConfigRecord)
    }
    replicas = tuple(one.record.replicas for one in own if isinstance(one.record, PartitionRecord))
    change = CreateTopic(
        topic=first.name, topic_id=first.topic_id, assignment=replicas, configs=configs
    )
    return 1 + len(own), change


def _more_partitions(
    image: MetadataImage, first: PartitionRecord, rest: Sequence[DecodedRecord]
) -> tuple[int, AddPartitions]:
    topic = image.find(TopicRow, first.topic_id)
    assert topic is not None
    added = [
        one.record
        for one in takewhile(lambda one: isinstance(one.record, PartitionRecord), rest)
        if isinstance(one.record, PartitionRecord)
    ]
    change = AddPartitions(
        topic=topic.name,
        partitions=first.partition_id + len(added),
        assignment=tuple(one.replicas for one in added),
    )
    return len(added), change


def _config(record: ConfigRecord) -> SetConfig | DeleteConfig:
    where = (record.resource_type, record.resource_name, record.name)
    if record.value is None:
        return DeleteConfig(resource_type=where[0], resource_name=where[1], name=where[2])
    return SetConfig(
        resource_type=where[0], resource_name=where[1], name=where[2], value=record.value
    )


def _quota(record: ClientQuotaRecord) -> SetQuota | RemoveQuota:
    entity = {part.entity_type: part.entity_name for part in record.entity}
    if record.remove:
        return RemoveQuota(entity=entity, quota=record.key)
    return SetQuota(entity=entity, quota=record.key, limit=record.value)


def _acl(record: AccessControlEntryRecord) -> AddAcl:
    return AddAcl(
        acl_id=record.id,
        resource_type=record.resource_type,
        resource_name=record.resource_name,
        pattern_type=record.pattern_type,
        principal=record.principal,
        host=record.host,
        operation=record.operation,
        permission=record.permission_type,
    )


def _registration(record: RegisterBrokerRecord) -> RegisterBroker:
    return RegisterBroker(
        broker_id=record.broker_id,
        incarnation_id=record.incarnation_id,
        rack=record.rack,
        log_dirs=record.log_dirs,
        endpoints={
            at.name: f"{SECURITY_PROTOCOLS[at.security_protocol]}://{at.host}:{at.port}"
            for at in record.end_points
        },
        features={
            of.name: (of.min_supported_version, of.max_supported_version) for of in record.features
        },
    )


def _of_broker_or_partition(
    image: MetadataImage, rest: Sequence[DecodedRecord]
) -> tuple[int, ChangeRequest | None]:
    changes = list(takewhile(lambda one: isinstance(one.record, PartitionChangeRecord), rest))
    following = rest[len(changes)].record if len(changes) < len(rest) else None
    if isinstance(following, UnregisterBrokerRecord):
        return len(changes) + 1, UnregisterBroker(broker_id=following.broker_id)
    if isinstance(following, BrokerRegistrationChangeRecord) and following.fenced == 1:
        return len(changes) + 1, FenceBroker(broker_id=following.broker_id)
    first = rest[0].record
    if isinstance(first, BrokerRegistrationChangeRecord):
        others = takewhile(lambda one: isinstance(one.record, PartitionChangeRecord), rest[1:])
        is_unfencing = first.fenced == -1
        change = UnfenceBroker(broker_id=first.broker_id) if is_unfencing else None
        return 1 + len(list(others)), change
    assert isinstance(first, PartitionChangeRecord)
    return 1, _of_partition(image, first)


def _of_partition(image: MetadataImage, record: PartitionChangeRecord) -> ChangeRequest | None:
    row = image.find(PartitionRow, record.topic_id, record.partition_id)
    assert row is not None
    if record.adding_replicas:
        removing = record.removing_replicas or ()
        wanted = tuple(one for one in record.replicas or () if one not in removing)
        return ReassignPartition(topic=row.topic_name, partition=row.partition_id, replicas=wanted)
    if record.replicas is not None and not row.adding_replicas and not row.removing_replicas:
        # the present ISR sufficed: it is completed immediately
        return ReassignPartition(
            topic=row.topic_name, partition=row.partition_id, replicas=record.replicas
        )
    if row.adding_replicas and record.isr is not None:
        isr = (*record.isr, *row.removing_replicas)  # it completed a reassignment
        return SetIsr(topic=row.topic_name, partition=row.partition_id, isr=isr)
    if record.isr is not None:
        return SetIsr(topic=row.topic_name, partition=row.partition_id, isr=record.isr)
    return ElectLeader(topic=row.topic_name, partition=row.partition_id)


def in_any_order(records: Sequence[DecodedRecord]) -> Iterator[str]:
    """Return records as sorted text, with the lists that Kafka keeps in hash maps sorted."""
    for one in records:
        record = one.record
        if isinstance(record, ClientQuotaRecord):
            parts = tuple(sorted(record.entity, key=lambda part: part.entity_type))
            record = replace(record, entity=parts)
        if isinstance(record, RegisterBrokerRecord):
            record = replace(
                record,
                end_points=tuple(sorted(record.end_points, key=lambda at: at.name)),
                features=tuple(sorted(record.features, key=lambda of: of.name)),
            )
        yield f"{one.version} {record!r} {getattr(record, 'value', None)!r}"
