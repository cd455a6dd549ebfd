"""Effects of records on brokers, controllers, features and producer ids, rule by rule."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from tests.support.metadata_logs import changes_of, state_after

from raftlog_state.errors import ReplayError
from raftlog_state.image import (
    BrokerRow,
    ControllerRow,
    Endpoint,
    Entity,
    FeatureRange,
    FeatureRow,
    PartitionRow,
    ProducerIdsRow,
    ZkMigrationRow,
)
from raftlog_state.records import (
    RECORD_TYPES,
    AbortTransactionRecord,
    BeginTransactionRecord,
    BrokerEndpoint,
    BrokerFeature,
    BrokerRegistrationChangeRecord,
    ControllerEndpoint,
    ControllerFeature,
    EndTransactionRecord,
    FeatureLevelRecord,
    FenceBrokerRecord,
    MetadataRecord,
    NoOpRecord,
    PartitionRecord,
    ProducerIdsRecord,
    RegisterBrokerRecord,
    RegisterControllerRecord,
    TopicRecord,
    UnfenceBrokerRecord,
    UnregisterBrokerRecord,
    UnregisterControllerRecord,
    ZkMigrationStateRecord,
)
from raftlog_state.replay import replay

LOW = "AAAAAAAAAAAAAAAAAAAABQ"  # 0, 5
HIGH = "f_________8AAAAAAAAAAA"  # 2^63 - 1, 0
NEGATIVE = "gAAAAAAAAAAAAAAAAAAAAA"  # -2^63, 0
LOW_NEGATIVE = "AAAAAAAAAAD_________9g"  # 0, -10

BROKER = RegisterBrokerRecord(
    broker_id=7,
    incarnation_id=LOW,
    broker_epoch=100,
    end_points=(
        BrokerEndpoint(name="SSL", host="h", port=2, security_protocol=1),
        BrokerEndpoint(name="PLAIN", host="h", port=1, security_protocol=0),
    ),
    features=(
        BrokerFeature(name="metadata.version", min_supported_version=7, max_supported_version=30),
        BrokerFeature(name="group.version", min_supported_version=0, max_supported_version=1),
    ),
    rack="r1",
    fenced=True,
    log_dirs=(HIGH, LOW),
)


def broker(*records: MetadataRecord) -> BrokerRow:
    row = state_after(BROKER, *records).find(BrokerRow, 7)
    assert row is not None
    return row


def registration(**fields: Any) -> BrokerRegistrationChangeRecord:
    return BrokerRegistrationChangeRecord(broker_id=7, broker_epoch=100, **fields)


def test_every_record_type_has_its_function() -> None:
    markers = {BeginTransactionRecord, EndTransactionRecord, AbortTransactionRecord}
    missing = {kind for kind in RECORD_TYPES if replay.dispatch(kind) is replay.dispatch(object)}
    assert missing == markers


def test_a_registration_is_the_whole_row_with_maps_sorted() -> None:
    assert broker() == BrokerRow(
        broker_id=7,
        incarnation_id=LOW,
        broker_epoch=100,
        rack="r1",
        fenced=True,
        in_controlled_shutdown=False,
        is_migrating_zk_broker=False,
        endpoints=(Endpoint("PLAIN", "h", 1, 0), Endpoint("SSL", "h", 2, 1)),
        features=(FeatureRange("group.version", 0, 1), FeatureRange("metadata.version", 7, 30)),
        log_dirs=(LOW, HIGH),
        cordoned_log_dirs=None,
    )


def test_log_directories_are_sorted_by_two_signed_numbers() -> None:
    record = dataclasses.replace(BROKER, log_dirs=(HIGH, LOW, NEGATIVE, LOW_NEGATIVE))
    assert broker(record).log_dirs == (NEGATIVE, LOW_NEGATIVE, LOW, HIGH)


def test_of_equal_listener_names_the_last_one_is_used() -> None:
    twice = (BrokerEndpoint(name="A", port=1), BrokerEndpoint(name="A", port=2))
    assert broker(dataclasses.replace(BROKER, end_points=twice)).endpoints == (
        Endpoint("A", "", 2, 0),
    )


def test_a_new_registration_replaces_the_row() -> None:
    busy = registration(in_controlled_shutdown=1, fenced=-1, cordoned_log_dirs=(LOW,))
    again = dataclasses.replace(BROKER, broker_epoch=200, rack=None)
    row = broker(busy, again)
    assert (row.broker_epoch, row.rack, row.fenced) == (200, None, True)
    assert (row.in_controlled_shutdown, row.cordoned_log_dirs) == (False, None)


def test_unregister_deletes_whatever_the_epoch_and_even_missing_brokers() -> None:
    image = state_after(BROKER)
    (change,) = changes_of(image, UnregisterBrokerRecord(broker_id=7, broker_epoch=1))
    assert change.after is None
    assert changes_of(image, UnregisterBrokerRecord(broker_id=8, broker_epoch=1)) == ()


def test_unregistering_or_fencing_a_broker_changes_no_partition() -> None:
    topic = TopicRecord(name="t", topic_id=HIGH)
    partition = PartitionRecord(
        topic_id=HIGH, partition_id=0, replicas=(7,), isr=(7,), leader=7, leader_epoch=0
    )
    image = state_after(BROKER, topic, partition)
    row = image.find(PartitionRow, HIGH, 0)
    after = state_after(BROKER, topic, partition, UnregisterBrokerRecord(broker_id=7))
    assert after.find(PartitionRow, HIGH, 0) == row
    fenced = state_after(BROKER, topic, partition, FenceBrokerRecord(id=7, epoch=100))
    assert fenced.find(PartitionRow, HIGH, 0) == row


def test_a_broker_is_fenced_and_unfenced() -> None:
    assert broker(UnfenceBrokerRecord(id=7, epoch=100)).fenced is False
    both = UnfenceBrokerRecord(id=7, epoch=100), FenceBrokerRecord(id=7, epoch=100)
    assert broker(*both) == broker()


@pytest.mark.parametrize(
    "record",
    [
        FenceBrokerRecord(id=7, epoch=101),
        UnfenceBrokerRecord(id=7, epoch=99),
        BrokerRegistrationChangeRecord(broker_id=7, broker_epoch=0),
    ],
)
def test_an_epoch_other_than_the_brokers_is_refused(record: MetadataRecord) -> None:
    with pytest.raises(ReplayError, match="broker 7 has epoch 100") as caught:
        state_after(BROKER, record)
    assert (caught.value.offset, caught.value.record) == (1, type(record).__name__)


@pytest.mark.parametrize(
    "record",
    [
        FenceBrokerRecord(id=8, epoch=100),
        UnfenceBrokerRecord(id=8, epoch=100),
        BrokerRegistrationChangeRecord(broker_id=8, broker_epoch=100),
    ],
)
def test_an_unregistered_broker_cannot_change(record: MetadataRecord) -> None:
    with pytest.raises(ReplayError, match="broker 8 is not registered"):
        state_after(BROKER, record)


@pytest.mark.parametrize(
    ("start", "fenced", "expected"),
    [(True, 1, True), (True, 0, True), (True, -1, False), (False, 0, False), (False, 1, True)],
)
def test_fencing_has_three_states(start: bool, fenced: int, expected: bool) -> None:
    assert (
        broker(dataclasses.replace(BROKER, fenced=start), registration(fenced=fenced)).fenced
        is expected
    )


def test_controlled_shutdown_is_never_unset_by_a_change() -> None:
    set_once = broker(registration(in_controlled_shutdown=1), registration())
    assert set_once.in_controlled_shutdown is True
    assert broker(registration()).in_controlled_shutdown is False


def test_no_log_directories_are_no_change() -> None:
    assert broker(registration(log_dirs=())).log_dirs == (LOW, HIGH)
    assert broker(registration(log_dirs=(HIGH, NEGATIVE))).log_dirs == (NEGATIVE, HIGH)


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (None, None, None),
        ((HIGH, LOW), None, (HIGH, LOW)),
        ((HIGH, LOW), (), ()),
        (None, (), ()),
        ((), (LOW,), (LOW,)),
    ],
)
def test_null_keeps_cordoned_directories_and_an_empty_list_clears_them(
    first: tuple[str, ...] | None,
    second: tuple[str, ...] | None,
    expected: tuple[str, ...] | None,
) -> None:
    row = broker(
        dataclasses.replace(BROKER, cordoned_log_dirs=first), registration(cordoned_log_dirs=second)
    )
    assert row.cordoned_log_dirs == expected


@pytest.mark.parametrize(
    "record", [registration(fenced=2), registration(in_controlled_shutdown=-1)]
)
def test_a_change_that_kafka_does_not_define_is_refused(record: MetadataRecord) -> None:
    with pytest.raises(ReplayError, match="unknown value for"):
        state_after(BROKER, record)


def test_controllers_are_registered_again() -> None:
    record = RegisterControllerRecord(
        controller_id=3,
        incarnation_id=HIGH,
        zk_migration_ready=True,
        end_points=(ControllerEndpoint(name="C", host="h", port=9, security_protocol=3),),
        features=(ControllerFeature(name="f", min_supported_version=1, max_supported_version=2),),
    )
    row = ControllerRow(
        controller_id=3,
        incarnation_id=HIGH,
        zk_migration_ready=True,
        endpoints=(Endpoint("C", "h", 9, 3),),
        features=(FeatureRange("f", 1, 2),),
    )
    image = state_after(record)
    assert image.rows_of(ControllerRow) == [row]
    (change,) = changes_of(image, UnregisterControllerRecord(controller_id=3))
    assert change.after is None
    assert changes_of(image, UnregisterControllerRecord(controller_id=4)) == ()


def test_features_are_set_and_level_zero_deletes() -> None:
    image = state_after(
        FeatureLevelRecord(name="metadata.version", feature_level=29),
        FeatureLevelRecord(name="group.version", feature_level=1),
        FeatureLevelRecord(name="share.version", feature_level=1),
        FeatureLevelRecord(name="metadata.version", feature_level=30),
        FeatureLevelRecord(name="share.version", feature_level=0),
        FeatureLevelRecord(name="never.there", feature_level=0),
    )
    assert image.rows_of(FeatureRow) == [
        FeatureRow(name="group.version", level=1),
        FeatureRow(name="metadata.version", level=30),
    ]
    assert image.metadata_version == 30


def test_an_unknown_metadata_version_is_stored() -> None:
    image = state_after(FeatureLevelRecord(name="metadata.version", feature_level=999))
    assert image.metadata_version == 999


def test_kraft_version_as_a_feature_record_is_ignored() -> None:
    image = state_after(FeatureLevelRecord(name="kraft.version", feature_level=1))
    assert image.rows(Entity.FEATURE) == []


def test_producer_ids_are_replaced_and_their_owner_is_not_compared() -> None:
    image = state_after(
        ProducerIdsRecord(broker_id=1, broker_epoch=5, next_producer_id=1000),
        ProducerIdsRecord(broker_id=2, broker_epoch=6, next_producer_id=2000),
    )
    (row,) = image.rows_of(ProducerIdsRow)
    assert (row.next_producer_id, row.broker_id, row.broker_epoch) == (2000, 2, 6)
    assert row == ProducerIdsRow(next_producer_id=2000)


def test_the_migration_state_is_stored() -> None:
    image = state_after(
        ZkMigrationStateRecord(zk_migration_state=1), ZkMigrationStateRecord(zk_migration_state=3)
    )
    assert image.rows(Entity.ZK_MIGRATION) == [ZkMigrationRow(state=3)]
    assert image.rows_of(ZkMigrationRow)[0].state_name == "POST_MIGRATION"


def test_a_no_op_record_has_no_effect() -> None:
    assert changes_of(state_after(BROKER), NoOpRecord()) == ()
