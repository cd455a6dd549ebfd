"""Random changes of random clusters leave consistent states, equal to Kafka's."""

from __future__ import annotations

from collections import Counter

import pytest
from tests.support.cluster_changes import LEVELS, partition
from tests.support.kafka import kafka_jars
from tests.support.kafka_images import ask_kafka
from tests.support.metadata_logs import multiset
from tests.support.random_changes import Job, job_on_random_log

from raftlog_state.controller import (
    CHANGE_TYPES,
    AddAcl,
    AddPartitions,
    AppendConfig,
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
    RemoveToken,
    SetConfig,
    SetFeature,
    SetIsr,
    SetQuota,
    SetScram,
    SetToken,
    SubtractConfig,
    UnfenceBroker,
    UnregisterBroker,
)
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
    TokenRow,
    quota_entity_key,
)
from raftlog_state.image.differences import diff
from raftlog_state.image.image_writer import image_records
from raftlog_state.loader.metadata_loader import LogRecord, MetadataLoader
from raftlog_state.records import decode, encode

MAY_CHANGE: dict[str, set[Entity]] = {
    "create_topic": {Entity.TOPIC, Entity.PARTITION, Entity.CONFIG},
    "delete_topic": {Entity.TOPIC, Entity.PARTITION, Entity.CONFIG},
    "add_partitions": {Entity.PARTITION},
    "reassign_partition": {Entity.PARTITION},
    "set_isr": {Entity.PARTITION},
    "elect_leader": {Entity.PARTITION},
    "set_config": {Entity.CONFIG, Entity.PARTITION},
    "delete_config": {Entity.CONFIG, Entity.PARTITION},
    "append_config": {Entity.CONFIG},
    "subtract_config": {Entity.CONFIG},
    "add_acl": {Entity.ACL},
    "remove_acl": {Entity.ACL},
    "set_quota": {Entity.QUOTA},
    "remove_quota": {Entity.QUOTA},
    "set_feature": {Entity.FEATURE, Entity.CONFIG},
    "set_scram": {Entity.SCRAM},
    "remove_scram": {Entity.SCRAM},
    "set_token": {Entity.TOKEN},
    "remove_token": {Entity.TOKEN},
    "register_broker": {Entity.BROKER, Entity.PARTITION},
    "unregister_broker": {Entity.BROKER, Entity.PARTITION},
    "fence_broker": {Entity.BROKER, Entity.PARTITION},
    "unfence_broker": {Entity.BROKER, Entity.PARTITION},
}


def assert_applied(before: MetadataImage, change: ChangeRequest, image: MetadataImage) -> None:
    """Check that the change is applied, and nothing else has changed."""
    found = diff(before, image)
    assert {one.entity for one in found} <= MAY_CHANGE[change.KIND]
    match change:
        case CreateTopic():
            topic = image.topic(change.topic)
            assert topic is not None
            rows = [row for row in image.rows_of(PartitionRow) if row.topic_id == topic.topic_id]
            assert len(rows) == (change.partitions or len(change.assignment or ()))
            for name, value in change.configs.items():
                config = image.find(ConfigRow, 2, change.topic, name)
                assert config is not None
                assert config.value == value
        case DeleteTopic():
            assert image.topic(change.topic) is None
            assert not [
                row for row in image.rows_of(ConfigRow) if row.resource_name == change.topic
            ]
        case AddPartitions():
            numbers = [
                row.partition_id
                for row in image.rows_of(PartitionRow)
                if row.topic_name == change.topic
            ]
            assert numbers == list(range(change.partitions))
        case SetIsr():
            row = partition(image, change.topic, change.partition)
            assert set(row.isr) <= set(change.isr)
        case SetConfig() | DeleteConfig():
            configs = {row.key: row.value for row in image.rows_of(ConfigRow)}
            kinds = {"TOPIC": 2, "BROKER": 4, "GROUP": 32}
            kind = kinds.get(str(change.resource_type), change.resource_type)
            expected = change.value if isinstance(change, SetConfig) else None
            assert configs.get((kind, change.resource_name, change.name)) == expected
        case AppendConfig() | SubtractConfig():
            parts = {
                part
                for row in image.rows_of(ConfigRow)
                if (row.resource_name, row.name) == (change.resource_name, change.name)
                for part in row.value.split(",")
            }
            values = set(change.value.split(","))
            assert values <= parts if isinstance(change, AppendConfig) else not values & parts
        case AddAcl():
            contents: Counter[tuple[str | int, ...]] = Counter(
                (row.resource_type_name, row.resource_name, row.principal, row.operation_name)
                for row in image.rows_of(AclRow)
                if row.pattern_type_name == change.pattern_type
            )
            acl = (change.resource_type, change.resource_name, change.principal, change.operation)
            assert contents[acl] == 1
        case RemoveAcl():
            assert len(image.rows_of(AclRow)) < len(before.rows_of(AclRow))
        case SetQuota() | RemoveQuota():
            key = quota_entity_key(tuple(change.entity.items()))
            quota = image.find(QuotaRow, key, change.quota)
            limit = change.limit if isinstance(change, SetQuota) else None
            assert (None if quota is None else quota.value) == limit
        case SetFeature():
            feature = image.find(FeatureRow, change.feature)
            assert (0 if feature is None else feature.level) == change.level
        case SetScram() | RemoveScram():
            users = {row.user for row in image.rows_of(ScramRow)}
            assert not isinstance(change, SetScram) or change.user in users
        case SetToken():
            tokens = [row for row in image.rows_of(TokenRow) if row not in before.rows_of(TokenRow)]
            assert len(tokens) <= 1
            for token in tokens:
                assert token.owner == change.owner
                assert token.expiration_timestamp_ms == change.expiration_timestamp_ms
        case RemoveToken():
            assert image.find(TokenRow, change.token_id) is None
        case RegisterBroker() | FenceBroker() | UnfenceBroker() | UnregisterBroker():
            broker = image.find(BrokerRow, change.broker_id)
            is_fenced = None if broker is None else broker.fenced
            unregisters = isinstance(change, UnregisterBroker)
            assert is_fenced == (None if unregisters else not isinstance(change, UnfenceBroker))
        case ReassignPartition():
            was, row = (partition(one, change.topic, change.partition) for one in (before, image))
            if not was.removing_replicas:  # a deleted entity stays deleted otherwise, as in Kafka
                assert set(change.replicas or ()) <= set(row.replicas)
        case ElectLeader():
            assert found


def assert_consistent(before: MetadataImage, image: MetadataImage) -> None:
    """Check the invariants of every partition of a cluster that only its controller writes."""
    fenced = {row.broker_id for row in image.rows_of(BrokerRow) if row.fenced}
    for row in image.rows_of(PartitionRow):
        assert set(row.isr) <= set(row.replicas)
        assert not set(row.elr) & set(row.isr)
        assert len(set(row.replicas)) == len(row.replicas) == len(row.directories)
        assert row.leader == -1 or row.leader in row.isr
        assert row.leader not in fenced
        assert set(row.adding_replicas) | set(row.removing_replicas) <= set(row.replicas)
        was = before.find(PartitionRow, *row.key)
        if was is not None and was != row:
            assert row.partition_epoch > was.partition_epoch
            assert (row.leader_epoch > was.leader_epoch) or row.leader == was.leader


@pytest.mark.parametrize("level", LEVELS)
def test_random_changes_are_applied(level: int) -> None:
    job = Job(seed=1, level=level)
    job.grow(250)
    for before, change, image in job.applied:
        assert_applied(before, change, image)
        assert_consistent(before, image)
    assert job.refused_count < 250


def test_random_changes_are_of_every_kind() -> None:
    job = Job(seed=2, level=30)
    job.grow(400)
    assert {change.KIND for _, change, _ in job.applied} == set(CHANGE_TYPES)
    records = {type(one.record).__name__ for one in job.records}
    assert {"ClearElrRecord", "PartitionChangeRecord", "UnregisterBrokerRecord"} <= records


def assert_kafka_has_the_same_images(job: Job, every: int) -> None:
    values = [encode(record) for record in job.records]
    answer = ask_kafka(kafka_jars(), job.level, values, every)
    loader = MetadataLoader()
    for offset, value in enumerate(values):
        loader.append([LogRecord(offset, 1, offset, value)])
        theirs = answer.images.get(offset + 1)
        if theirs is not None:
            assert multiset(image_records(loader.image)) == multiset(map(decode, theirs))
    assert len(answer.images) >= 5
    assert loader.image.same_rows(job.image)


@pytest.mark.kafka
@pytest.mark.parametrize("level", [7, 12, 17, 23, 30])
def test_kafkas_image_of_the_records_is_equal(level: int) -> None:
    job = Job(seed=3, level=level)
    job.grow(1_000)
    assert_kafka_has_the_same_images(job, 100)


@pytest.mark.kafka
@pytest.mark.parametrize("level", [15, 21, 30])
def test_changes_of_any_state_give_kafkas_images(level: int) -> None:
    job = job_on_random_log(4, level, 500)
    job.grow(500)
    assert_kafka_has_the_same_images(job, 100)
