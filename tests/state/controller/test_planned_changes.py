"""Changes as records of the metadata.version, and their effect on the state."""

from __future__ import annotations

import random

import pytest
from tests.support.cluster_changes import (
    LEVELS,
    after,
    broker,
    cluster,
    directory,
    partition,
    planned,
    records_of,
    replayed,
)

from raftlog_state.controller import (
    AddAcl,
    AddPartitions,
    CreateTopic,
    DeleteConfig,
    DeleteTopic,
    ElectLeader,
    FenceBroker,
    ReassignPartition,
    RegisterBroker,
    RemoveAcl,
    SetConfig,
    SetFeature,
    SetIsr,
    SetQuota,
    UnfenceBroker,
    UnregisterBroker,
    plan_changes,
)
from raftlog_state.image import AclRow, BrokerRow, ConfigRow, MetadataImage, PartitionRow, QuotaRow
from raftlog_state.image.rows import DIRECTORY_MIGRATING
from raftlog_state.records import (
    AccessControlEntryRecord,
    BeginTransactionRecord,
    ClearElrRecord,
    ConfigRecord,
    EndTransactionRecord,
    PartitionChangeRecord,
    PartitionRecord,
    RegisterBrokerRecord,
    decode,
)

ORDERS = CreateTopic(topic="orders", assignment=((1, 2, 3), (2, 3, 1)))
MIN_ISR = SetConfig(
    resource_type="TOPIC", resource_name="orders", name="min.insync.replicas", value="2"
)


@pytest.mark.parametrize("level", LEVELS)
def test_records_have_the_versions_of_the_metadata_version(level: int) -> None:
    image = cluster(level=level)
    planned_records = records_of(
        image,
        ORDERS,
        FenceBroker(broker_id=1),
        UnfenceBroker(broker_id=1),
        RegisterBroker(broker_id=7, endpoints={"A": "h:1"}, incarnation_id=directory(7)),
    )
    versions = {type(one.record): one.version for one in planned_records}
    partition_version = 2 if level >= 23 else 1 if level >= 17 else 0
    assert versions[PartitionRecord] == partition_version
    assert versions[PartitionChangeRecord] == partition_version
    registered = 4 if level >= 30 else 3 if level >= 17 else 2 if level >= 8 else 1
    assert versions[RegisterBrokerRecord] == registered
    values = planned(image, ORDERS, FenceBroker(broker_id=1)).values()
    assert [decode(value).version for value in values]  # each can be written in that version


@pytest.mark.parametrize("level", LEVELS)
def test_transactions_have_markers_if_the_metadata_version_supports_them(level: int) -> None:
    plan = planned(cluster(level=level), ORDERS)
    kinds = [type(one.record) for one in plan.records]
    if level < 13:
        assert kinds == [type(one.record) for one in plan.change_records]
    else:
        assert plan.records[0].record == BeginTransactionRecord(name="raftlog changes")
        assert kinds[1:-1] == [type(one.record) for one in plan.change_records]
        assert kinds[-1] is EndTransactionRecord


def test_changes_without_effect_have_no_records() -> None:
    image = after(cluster(), ORDERS, MIN_ISR)
    plan = planned(image, MIN_ISR, SetIsr(topic="orders", partition=0, isr=(1, 2, 3)))
    assert plan.records == ()
    assert plan.base_offset == image.offset + 1
    assert planned(image).records == ()


def test_a_new_log_starts_with_its_metadata_version() -> None:
    new = MetadataImage.from_rows([], offset=0, leader_epoch=1)
    first = SetFeature(feature="metadata.version", level=30)
    register = RegisterBroker(broker_id=4, endpoints={"A": "SSL://[::1]:9093", "B": "h:1"})
    plan = planned(new, first, register)
    image = replayed(new, plan.values())
    row = image.find(BrokerRow, 4)
    assert row is not None
    assert row.broker_epoch == 3, "the offset of its record, after the begin marker"
    assert (row.fenced, len(row.log_dirs)) == (True, 1)
    listeners = [(at.host, at.port, at.protocol_name) for at in row.endpoints]
    assert listeners == [("::1", 9093, "SSL"), ("h", 1, "PLAINTEXT")]
    without_markers = planned(new, SetFeature(feature="metadata.version", level=12), register)
    row = replayed(new, without_markers.values()).find(BrokerRow, 4)
    assert row is not None
    assert row.broker_epoch == 2


def test_a_repeated_registration_of_one_incarnation_updates_it() -> None:
    image = after(cluster(), ORDERS)
    before = image.find(BrokerRow, 1)
    assert before is not None
    again = RegisterBroker(
        broker_id=1,
        incarnation_id=before.incarnation_id,
        endpoints={"NEW": "h:1"},
    )
    amended = after(image, again)
    row = amended.find(BrokerRow, 1)
    assert row is not None
    assert (row.broker_epoch, row.fenced) == (before.broker_epoch, False)
    assert row.log_dirs == before.log_dirs, "omitted fields are unchanged"
    assert [at.name for at in row.endpoints] == ["NEW"]
    assert partition(amended, "orders") == partition(image, "orders")


def test_changes_see_earlier_ones_of_the_same_request() -> None:
    image = after(
        cluster(),
        ORDERS,
        AddPartitions(topic="orders", partitions=4),
        SetConfig(resource_type=2, resource_name="orders", name="retention.ms", value="1"),
        DeleteTopic(topic="orders"),
        CreateTopic(topic="orders", partitions=1),
        AddPartitions(topic="orders", partitions=2, assignment=((3,),)),
    )
    assert [row.replicas for row in image.rows_of(PartitionRow)][1] == (3,)
    assert len(image.rows_of(PartitionRow)) == 2
    assert image.rows_of(ConfigRow) == []


def test_equal_random_generators_give_equal_records() -> None:
    changes = (CreateTopic(topic="t", partitions=9, replication_factor=2), ORDERS)
    one, two, other = (records_of(cluster(), *changes, seed=seed) for seed in (5, 5, 6))
    assert one == two
    assert one != other
    ids = {row.topic_id for row in after(cluster(), *changes).rows_of(PartitionRow)}
    assert len(ids) == 2
    assert all(len(one) == 22 and not one.startswith("-") for one in ids)
    system = plan_changes(cluster(), changes, rng=random.SystemRandom())
    assert len(system.change_records) == len(one)


# --- partitions -----------------------------------------------------------------------------------


def test_a_new_partition_is_led_by_its_first_live_replica() -> None:
    image = cluster(broker(4, fenced=True), broker(5, log_dirs=(directory(5), directory(5, 1))))
    image = after(image, CreateTopic(topic="t", assignment=((4, 5, 1),)))
    row = partition(image, "t")
    assert (row.replicas, row.isr, row.leader) == ((4, 5, 1), (5, 1), 5)
    assert (row.leader_epoch, row.partition_epoch, row.leader_recovery_state) == (0, 0, 0)
    unassigned = "AAAAAAAAAAAAAAAAAAAAAQ"
    assert row.directories == (directory(4), unassigned, directory(1))
    old = partition(after(cluster(level=15), ORDERS), "orders")
    assert set(old.directories) == {DIRECTORY_MIGRATING}


def test_a_reassignment_waits_for_the_new_replicas() -> None:
    image = after(cluster(brokers=4), CreateTopic(topic="t", assignment=((1, 2),)))
    image = after(image, ReassignPartition(topic="t", partition=0, replicas=(3, 4)))
    row = partition(image, "t")
    assert row.replicas == (3, 4, 1, 2)
    assert (row.adding_replicas, row.removing_replicas) == ((3, 4), (1, 2))
    assert (row.isr, row.leader, row.leader_epoch) == ((1, 2), 1, 0)
    image = after(image, SetIsr(topic="t", partition=0, isr=(1, 2, 3)))
    assert partition(image, "t").adding_replicas == (3, 4)
    image = after(image, SetIsr(topic="t", partition=0, isr=(1, 2, 3, 4)))
    row = partition(image, "t")
    assert (row.replicas, row.isr, row.leader) == ((3, 4), (3, 4), 3)
    assert (row.adding_replicas, row.removing_replicas) == ((), ())
    assert row.directories == (directory(3), directory(4))
    assert (row.leader_epoch, row.partition_epoch) == (1, 3)


def test_a_reassignment_can_be_cancelled() -> None:
    image = after(cluster(brokers=4), CreateTopic(topic="t", assignment=((1, 2),)))
    before = partition(image, "t")
    moving = after(image, ReassignPartition(topic="t", partition=0, replicas=(3, 4)))
    row = partition(after(moving, ReassignPartition(topic="t", partition=0)), "t")
    assert (row.replicas, row.isr, row.leader) == (before.replicas, before.isr, before.leader)
    assert (row.adding_replicas, row.removing_replicas) == ((), ())
    assert row.partition_epoch == 2


def test_a_stopped_broker_leaves_every_isr_and_a_started_one_leads_leaderless_partitions() -> None:
    image = after(
        cluster(),
        CreateTopic(topic="t", assignment=((1,),)),
        CreateTopic(topic="u", assignment=((1, 2),)),
    )
    fenced = after(image, FenceBroker(broker_id=1))
    alone, shared = partition(fenced, "t"), partition(fenced, "u")
    assert (alone.isr, alone.leader, alone.leader_epoch) == ((1,), -1, 1)
    assert (shared.isr, shared.leader, shared.leader_epoch) == ((2,), 2, 1)
    back = after(fenced, UnfenceBroker(broker_id=1))
    assert partition(back, "t").leader == 1
    assert partition(back, "u") == shared, "it has to catch up first"
    unregistered = after(back, UnregisterBroker(broker_id=1))
    assert unregistered.find(BrokerRow, 1) is None
    assert partition(unregistered, "t").leader == -1


def test_a_preferred_leader_is_elected_and_an_unclean_one_is_recovering() -> None:
    image = after(cluster(), CreateTopic(topic="t", assignment=((1, 2),)))
    image = after(image, FenceBroker(broker_id=1), UnfenceBroker(broker_id=1))
    image = after(image, SetIsr(topic="t", partition=0, isr=(2, 1)))
    assert partition(image, "t").leader == 2
    image = after(image, ElectLeader(topic="t", partition=0))
    assert partition(image, "t").leader == 1
    image = after(
        image,
        SetIsr(topic="t", partition=0, isr=(1,)),
        FenceBroker(broker_id=1),
        ElectLeader(topic="t", partition=0, election="unclean"),
    )
    row = partition(image, "t")
    assert (row.leader, row.isr, row.leader_recovery_state_name) == (2, (2,), "RECOVERING")
    row = partition(after(image, SetIsr(topic="t", partition=0, isr=(2,))), "t")
    assert row.leader_recovery_state_name == "RECOVERED"


def test_a_smaller_isr_raises_the_leader_epoch_if_old_brokers_need_it() -> None:
    for level, leader_epoch in ((11, 1), (12, 0)):
        image = after(cluster(level=level), ORDERS)
        image = after(image, SetIsr(topic="orders", partition=0, isr=(1, 2)))
        row = partition(image, "orders")
        assert (row.leader_epoch, row.partition_epoch) == (leader_epoch, 1)


def test_replicas_removed_from_an_isr_below_the_minimum_are_eligible_leaders() -> None:
    image = after(cluster(elr=True), ORDERS, MIN_ISR)
    image = after(image, FenceBroker(broker_id=1), FenceBroker(broker_id=2))
    row = partition(image, "orders")
    assert (row.isr, row.elr, row.leader) == ((3,), (2,), 3)
    assert records_of(image, MIN_ISR) == [], "it is the leader already"
    unregistered = DeleteConfig(resource_type=2, resource_name="orders", name="min.insync.replicas")
    cleared = records_of(image, unregistered)
    assert [one.record for one in cleared][-1] == ClearElrRecord(topic_name="orders")


def test_eligible_leader_replicas_need_a_min_isr_for_all_brokers() -> None:
    own = SetConfig(resource_type=4, resource_name="1", name="min.insync.replicas", value="2")
    image = after(cluster(level=23), own)
    feature = SetFeature(feature="eligible.leader.replicas.version", level=1)
    planned_records = [one.record for one in records_of(image, feature)]
    assert planned_records[:-1] == [
        ConfigRecord(resource_type=4, name="min.insync.replicas", value="1"),
        ConfigRecord(resource_type=4, resource_name="1", name="min.insync.replicas", value=None),
    ]


# --- other entities -------------------------------------------------------------------------------


def test_a_repeated_config_is_written_for_brokers_and_not_for_topics() -> None:
    own = SetConfig(
        resource_type="BROKER", resource_name="1", name="ssl.keystore.location", value="/k"
    )
    image = after(cluster(), ORDERS, MIN_ISR, own)
    assert [type(one.record) for one in records_of(image, MIN_ISR, own)] == [ConfigRecord]
    unset = DeleteConfig(resource_type="BROKER", resource_name="2", name="a.b")
    assert [type(one.record) for one in records_of(image, unset)] == [ConfigRecord]
    unset = DeleteConfig(resource_type="TOPIC", resource_name="orders", name="segment.bytes")
    assert records_of(image, unset) == []


def test_an_acl_is_written_once_and_removed_by_its_content() -> None:
    read = AddAcl(resource_type=2, resource_name="t", principal="User:a", operation="read")
    write = AddAcl(resource_type=2, resource_name="t", principal="User:a", operation="WRITE")
    other = AddAcl(resource_type="GROUP", resource_name="g", principal="User:b", operation="ALL")
    image = after(cluster(), read, read, write, other)
    assert len(image.rows_of(AclRow)) == 3
    assert records_of(image, read) == []
    image = after(image, RemoveAcl(principal="User:a"), read)
    kinds = [(row.principal, row.operation_name) for row in image.rows_of(AclRow)]
    assert sorted(kinds) == [("User:a", "READ"), ("User:b", "ALL")]
    (again,) = records_of(after(image, RemoveAcl(principal="User:a")), read)
    assert isinstance(again.record, AccessControlEntryRecord)


def test_a_quota_does_not_depend_on_the_order_of_its_entity() -> None:
    quota = SetQuota(entity={"user": "a", "client-id": None}, quota="request_percentage", limit=7)
    turned = SetQuota(entity={"client-id": None, "user": "a"}, quota="request_percentage", limit=8)
    image = after(cluster(), quota)
    assert records_of(image, quota) == []
    assert [row.value for row in after(image, turned).rows_of(QuotaRow)] == [8]
    address = SetQuota(entity={"ip": "10.0.0.1"}, quota="connection_creation_rate", limit=5)
    default = SetQuota(entity={"ip": None}, quota="connection_creation_rate", limit=5)
    assert len(after(image, address, default).rows_of(QuotaRow)) == 3
