"""Records of a snapshot by metadata.version, and invalid snapshots."""

from __future__ import annotations

import dataclasses

import pytest
from tests.support.metadata_logs import state_after
from tests.support.snapshot_files import image_from_records, snapshot_log_records

from raftlog.errors import CorruptBatchError, CorruptSnapshotError, RecordBatchTooLargeError
from raftlog.records import iter_batches
from raftlog_state.errors import UnsupportedVersionError
from raftlog_state.image import MetadataImage
from raftlog_state.image.image_writer import image_records
from raftlog_state.records import (
    AccessControlEntryRecord,
    BrokerEndpoint,
    BrokerFeature,
    ClientQuotaRecord,
    ConfigRecord,
    DelegationTokenRecord,
    EntityData,
    FeatureLevelRecord,
    MetadataRecord,
    PartitionRecord,
    ProducerIdsRecord,
    RegisterBrokerRecord,
    RegisterControllerRecord,
    TopicRecord,
    UserScramCredentialRecord,
    ZkMigrationStateRecord,
    decode,
    encode,
)
from raftlog_state.snapshots import snapshot_bytes

A = "muSNo3lITFSJf4sY_teOaw"
DIRECTORY = "IIzV3j_LQFClOqhX3gQ9wA"
TOPIC = TopicRecord(name="t", topic_id=A)
PARTITION = PartitionRecord(
    topic_id=A,
    partition_id=0,
    replicas=(1,),
    isr=(1,),
    leader=1,
    leader_epoch=0,
    partition_epoch=0,
)
BROKER = RegisterBrokerRecord(broker_id=1, rack=None)
ELR = FeatureLevelRecord(name="eligible.leader.replicas.version", feature_level=1)
SCRAM = UserScramCredentialRecord(name="u", mechanism=1)
TOKEN = DelegationTokenRecord(token_id="t")
CONTROLLER = RegisterControllerRecord(controller_id=1)
LEVELS = [7, 8, 10, 11, 13, 14, 15, 16, 17, 21, 22, 23, 29, 30, 33]


def state(level: int, *records: MetadataRecord) -> MetadataImage:
    return state_after(FeatureLevelRecord(name="metadata.version", feature_level=level), *records)


def version_of(kind: type[MetadataRecord], image: MetadataImage) -> int:
    (version,) = {
        decoded.version for decoded in image_records(image) if isinstance(decoded.record, kind)
    }
    return version


@pytest.mark.parametrize("level", LEVELS)
def test_record_versions_follow_the_metadata_version(level: int) -> None:
    image = state(level, BROKER, TOPIC, PARTITION)
    broker = 4 if level >= 30 else 3 if level >= 17 else 2 if level >= 8 else 1
    partition = 2 if level >= 23 else 1 if level >= 17 else 0
    assert version_of(RegisterBrokerRecord, image) == broker
    assert version_of(PartitionRecord, image) == partition
    assert version_of(TopicRecord, image) == version_of(FeatureLevelRecord, image) == 0
    for decoded in image_records(image):
        assert decode(encode(decoded)) == decoded


@pytest.mark.parametrize(("record", "level"), [(SCRAM, 11), (TOKEN, 14), (CONTROLLER, 15)])
def test_rows_that_a_metadata_version_cannot_store_are_refused(
    record: MetadataRecord, level: int
) -> None:
    assert [decoded.record for decoded in image_records(state(level, record))][-1] == record
    with pytest.raises(UnsupportedVersionError, match=f"is below {level}"):
        list(image_records(state(level - 1, record)))


@pytest.mark.parametrize(
    ("records", "level"),
    [
        ((dataclasses.replace(BROKER, log_dirs=(DIRECTORY,)),), 17),
        ((dataclasses.replace(BROKER, is_migrating_zk_broker=True),), 8),
        ((dataclasses.replace(BROKER, cordoned_log_dirs=()),), 30),
        ((TOPIC, dataclasses.replace(PARTITION, directories=(DIRECTORY,))), 17),
    ],
)
def test_fields_that_a_metadata_version_cannot_store_are_refused(
    records: tuple[MetadataRecord, ...], level: int
) -> None:
    assert snapshot_bytes(state(level, *records), written_ms=0)
    with pytest.raises(UnsupportedVersionError):
        snapshot_bytes(state(level - 1, *records), written_ms=0)


def partition_record(image: MetadataImage) -> PartitionRecord:
    (record,) = [
        decoded.record
        for decoded in image_records(image)
        if isinstance(decoded.record, PartitionRecord)
    ]
    return record


def test_migrating_directories_are_written_if_the_version_has_the_field() -> None:
    assert partition_record(state(16, TOPIC, PARTITION)).directories == ()
    assert partition_record(state(17, TOPIC, PARTITION)).directories == ("A" * 22,)


def test_eligible_leaders_are_written_while_the_feature_is_on() -> None:
    with_elr = dataclasses.replace(PARTITION, eligible_leader_replicas=(2,), last_known_elr=())
    on = partition_record(state(23, ELR, TOPIC, with_elr))
    assert (on.eligible_leader_replicas, on.last_known_elr) == ((2,), None)
    off = partition_record(state(23, TOPIC, with_elr))
    assert (off.eligible_leader_replicas, off.last_known_elr) == (None, None)


@pytest.mark.parametrize(("level", "written"), [(7, 0), (8, 1), (21, 1), (22, 0), (30, 0)])
def test_the_migration_state_is_written_by_the_versions_that_have_it(
    level: int, written: int
) -> None:
    image = state(level, ZkMigrationStateRecord(zk_migration_state=0))
    kinds = [type(decoded.record) for decoded in image_records(image)]
    assert kinds.count(ZkMigrationStateRecord) == written


def test_a_cluster_without_zookeeper_has_no_migration_state() -> None:
    kinds = [type(decoded.record) for decoded in image_records(state(21, BROKER))]
    assert kinds == [FeatureLevelRecord, RegisterBrokerRecord]


def test_every_field_of_a_broker_is_written() -> None:
    broker = RegisterBrokerRecord(
        broker_id=1,
        incarnation_id=A,
        broker_epoch=7,
        end_points=(BrokerEndpoint(name="PLAINTEXT", host="h", port=9, security_protocol=1),),
        features=(BrokerFeature(name="f", min_supported_version=1, max_supported_version=2),),
        rack="r",
        fenced=True,
        in_controlled_shutdown=True,
        log_dirs=(DIRECTORY,),
        cordoned_log_dirs=(DIRECTORY,),
    )
    records = [decoded.record for decoded in image_records(state(LEVELS[-1], broker))]
    assert [one for one in records if isinstance(one, RegisterBrokerRecord)] == [broker]


def test_the_order_is_kafkas_whatever_the_order_of_the_log() -> None:
    quota = ClientQuotaRecord(entity=(EntityData(entity_type="user", entity_name=None),), key="k")
    image = state_after(
        TOKEN,
        SCRAM,
        AccessControlEntryRecord(id=A),
        ProducerIdsRecord(next_producer_id=5, broker_id=9),
        quota,
        ConfigRecord(resource_type=2, resource_name="t", name="x", value="1"),
        TOPIC,
        dataclasses.replace(PARTITION, partition_id=1),
        PARTITION,
        CONTROLLER,
        BROKER,
        ZkMigrationStateRecord(zk_migration_state=0),
        FeatureLevelRecord(name="a.feature", feature_level=1),
        FeatureLevelRecord(name="metadata.version", feature_level=21),
    )
    records = [decoded.record for decoded in image_records(image)]
    assert [type(record) for record in records] == [
        FeatureLevelRecord,
        FeatureLevelRecord,
        ZkMigrationStateRecord,
        RegisterBrokerRecord,
        RegisterControllerRecord,
        TopicRecord,
        PartitionRecord,
        PartitionRecord,
        ConfigRecord,
        ClientQuotaRecord,
        ProducerIdsRecord,
        AccessControlEntryRecord,
        UserScramCredentialRecord,
        DelegationTokenRecord,
    ]
    assert records[0] == FeatureLevelRecord(name="metadata.version", feature_level=21)
    assert records[10] == ProducerIdsRecord(broker_id=-1, broker_epoch=-1, next_producer_id=5)


# --- complete files -------------------------------------------------------------------------------


def large() -> MetadataImage:
    topics = [TopicRecord(name=f"topic {n}", topic_id=f"{n:04}{'A' * 18}") for n in range(300)]
    return state(30, *topics)


def test_a_snapshot_is_split_into_batches_within_the_limit() -> None:
    image = large()
    data = snapshot_bytes(image, written_ms=7, batch_bytes_max=1_000)
    batches = list(iter_batches(data))
    assert len(batches) > 10
    assert all(batch.byte_count <= 1_000 for batch in batches)
    assert [batch.is_control for batch in batches] == [True] + [False] * (len(batches) - 2) + [True]
    assert [batch.base_offset for batch in batches[1:]] == [b.next_offset for b in batches[:-1]]
    assert {(b.leader_epoch, b.max_timestamp_ms) for b in batches} == {(image.leader_epoch, 7)}
    assert image_from_records(image.snapshot_id, snapshot_log_records(data)) == image


def test_a_record_larger_than_a_batch_is_refused() -> None:
    with pytest.raises(RecordBatchTooLargeError):
        snapshot_bytes(large(), written_ms=7, batch_bytes_max=90)


def test_an_empty_state_has_a_snapshot() -> None:
    data = snapshot_bytes(MetadataImage.empty(), written_ms=0)
    assert len(snapshot_log_records(data)) == 2


def test_a_snapshot_truncated_anywhere_is_refused() -> None:
    data = snapshot_bytes(state(30, BROKER, TOPIC), written_ms=7)
    for end in range(len(data)):
        with pytest.raises((CorruptSnapshotError, CorruptBatchError)):
            snapshot_log_records(data[:end], path="x.checkpoint")


def test_a_snapshot_without_header_or_footer_is_refused() -> None:
    data = snapshot_bytes(state(30, BROKER), written_ms=7)
    batches = list(iter_batches(data))
    head, foot = batches[0].byte_count, batches[-1].position
    with pytest.raises(CorruptSnapshotError, match="does not begin with a snapshot header"):
        snapshot_log_records(data[head:])
    with pytest.raises(CorruptSnapshotError, match="does not end with a snapshot footer"):
        snapshot_log_records(data[:foot])
    with pytest.raises(CorruptSnapshotError):
        snapshot_log_records(b"")
