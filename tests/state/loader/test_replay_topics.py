"""Effects of records on topics and partitions, rule by rule."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from tests.support.metadata_logs import changes_of, replayed, state_after

from raftlog_state.errors import ReplayError
from raftlog_state.image import ConfigRow, Entity, MetadataImage, PartitionRow, TopicRow
from raftlog_state.image.delta import Op
from raftlog_state.records import (
    ClearElrRecord,
    ConfigRecord,
    MetadataRecord,
    PartitionChangeRecord,
    PartitionRecord,
    RemoveTopicRecord,
    TopicRecord,
)

A = "AAAAAAAAQACAAAAAAAAAAA"
B = "AAAAAAAAQACAAAAAAAAAAB"[:-1] + "Q"
MIGRATING = "AAAAAAAAAAAAAAAAAAAAAA"
DIRS = ("oEgEPrivuWNp7aKJQ-ndSA", "aPBZglgo3Iw6yh602h38AQ", "rnew8ziT9D5U9OIedEcrLA")

TOPIC = TopicRecord(name="orders", topic_id=A)
PARTITION = PartitionRecord(
    topic_id=A,
    partition_id=0,
    replicas=(1, 2, 3),
    isr=(1, 2, 3),
    leader=1,
    leader_epoch=4,
    partition_epoch=9,
    directories=DIRS,
)
WITH_ELR = dataclasses.replace(
    PARTITION, isr=(1,), eligible_leader_replicas=(2,), last_known_elr=(3,)
)


def changed(change: PartitionChangeRecord, *, of: PartitionRecord = PARTITION) -> PartitionRow:
    """Return the partition after a change record."""
    row = state_after(TOPIC, of, change).find(PartitionRow, A, 0)
    assert row is not None
    return row


def change(**fields: Any) -> PartitionChangeRecord:
    return PartitionChangeRecord(topic_id=A, partition_id=0, **fields)


def before(of: PartitionRecord = PARTITION) -> PartitionRow:
    row = state_after(TOPIC, of).find(PartitionRow, A, 0)
    assert row is not None
    return row


# --- topics ---------------------------------------------------------------------------------------


def test_a_new_topic_has_no_partitions() -> None:
    image = state_after(TOPIC)
    assert image.rows(Entity.TOPIC) == [TopicRow(topic_id=A, name="orders")]
    assert image.topic("orders") == TopicRow(topic_id=A, name="orders")
    assert image.rows(Entity.PARTITION) == []


@pytest.mark.parametrize("again", [TopicRecord(name="orders", topic_id=B), TOPIC])
def test_a_topic_whose_name_or_id_is_in_use_is_refused(again: TopicRecord) -> None:
    with pytest.raises(ReplayError, match="already exists"):
        state_after(TOPIC, again)


def test_remove_topic_deletes_its_partitions_and_configs() -> None:
    other = TopicRecord(name="other", topic_id=B)
    kept = (
        ConfigRecord(resource_type=2, resource_name="other", name="x", value="1"),
        ConfigRecord(resource_type=4, resource_name="orders", name="x", value="1"),
    )
    image = state_after(
        TOPIC,
        PARTITION,
        dataclasses.replace(PARTITION, partition_id=1),
        other,
        dataclasses.replace(PARTITION, topic_id=B),
        ConfigRecord(resource_type=2, resource_name="orders", name="x", value="1"),
        *kept,
    )
    changes = changes_of(image, RemoveTopicRecord(topic_id=A))
    assert [(change.entity, change.key) for change in changes] == [
        (Entity.PARTITION, (A, 0)),
        (Entity.PARTITION, (A, 1)),
        (Entity.CONFIG, (2, "orders", "x")),
        (Entity.TOPIC, (A,)),
    ]
    assert all(change.op is Op.DELETE and change.after is None for change in changes)
    assert all(change.before == image.get(change.entity, change.key) for change in changes)


def test_remove_topic_deletes_configs_set_just_before() -> None:
    config = ConfigRecord(resource_type=2, resource_name="orders", name="x", value="1")
    image = state_after(TOPIC, PARTITION, config, RemoveTopicRecord(topic_id=A))
    assert image.same_rows(MetadataImage.empty())


def test_remove_topic_of_an_unknown_id_is_refused() -> None:
    with pytest.raises(ReplayError, match=f"no topic with id {B}") as caught:
        state_after(TOPIC, RemoveTopicRecord(topic_id=B))
    assert (caught.value.offset, caught.value.record) == (1, "RemoveTopicRecord")


def test_a_recreated_topic_has_none_of_the_old_configs() -> None:
    config = ConfigRecord(resource_type=2, resource_name="orders", name="x", value="1")
    image = state_after(
        TOPIC, config, RemoveTopicRecord(topic_id=A), TopicRecord(name="orders", topic_id=B)
    )
    assert image.topic("orders") == TopicRow(topic_id=B, name="orders")
    assert image.rows_of(ConfigRow) == []


# --- partition records ----------------------------------------------------------------------------


def test_a_partition_record_is_the_whole_row() -> None:
    assert before(WITH_ELR) == PartitionRow(
        topic_id=A,
        partition_id=0,
        topic_name="orders",
        replicas=(1, 2, 3),
        isr=(1,),
        adding_replicas=(),
        removing_replicas=(),
        elr=(2,),
        last_known_elr=(3,),
        directories=DIRS,
        leader=1,
        leader_epoch=4,
        partition_epoch=9,
        leader_recovery_state=0,
    )


def test_a_second_partition_record_replaces_the_row() -> None:
    again = dataclasses.replace(PARTITION, leader=2, leader_epoch=1, partition_epoch=1)
    row = state_after(TOPIC, WITH_ELR, again).find(PartitionRow, A, 0)
    assert row is not None
    assert (row.leader, row.leader_epoch, row.partition_epoch, row.elr) == (2, 1, 1, ())


@pytest.mark.parametrize("directories", [(), (MIGRATING,), (MIGRATING,) * 4])
def test_missing_directories_are_migrating_ones(directories: tuple[str, ...]) -> None:
    row = before(dataclasses.replace(PARTITION, directories=directories))
    assert row.directories == (MIGRATING,) * 3


def test_absent_elr_is_empty() -> None:
    row = before(PARTITION)
    assert (row.elr, row.last_known_elr) == ((), ())


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (dataclasses.replace(PARTITION, topic_id=B), f"no topic with id {B}"),
        (dataclasses.replace(PARTITION, directories=DIRS[:2]), "2 directories for 3 replicas"),
        (
            dataclasses.replace(PARTITION, leader_recovery_state=7),
            "unknown leader recovery state 7",
        ),
    ],
)
def test_an_invalid_partition_is_refused(record: MetadataRecord, reason: str) -> None:
    with pytest.raises(ReplayError, match=reason):
        state_after(TOPIC, record)


# --- partition changes ----------------------------------------------------------------------------


def test_an_empty_change_raises_only_the_partition_epoch() -> None:
    assert changed(change()) == dataclasses.replace(before(), partition_epoch=10)


@pytest.mark.parametrize("leader", [1, 2, -1])
def test_a_given_leader_raises_the_leader_epoch_even_if_it_is_the_same_or_none(leader: int) -> None:
    row = changed(change(leader=leader))
    assert row == dataclasses.replace(before(), leader=leader, leader_epoch=5, partition_epoch=10)


def test_leader_minus_two_keeps_leader_and_leader_epoch() -> None:
    row = changed(change(leader=-2, isr=(1, 2)))
    assert (row.leader, row.leader_epoch, row.partition_epoch, row.isr) == (1, 4, 10, (1, 2))


def test_epochs_are_counted_over_many_changes() -> None:
    records = [change(leader=2), change(isr=(2,)), change(leader=-1), change(leader=-1)]
    row = state_after(TOPIC, PARTITION, *records).find(PartitionRow, A, 0)
    assert row is not None
    assert (row.leader, row.leader_epoch, row.partition_epoch) == (-1, 7, 13)


LISTS = {
    "isr": "isr",
    "removing_replicas": "removing_replicas",
    "adding_replicas": "adding_replicas",
    "eligible_leader_replicas": "elr",
    "last_known_elr": "last_known_elr",
}


@pytest.mark.parametrize(("field", "column"), LISTS.items())
@pytest.mark.parametrize("value", [None, (), (3, 1)])
def test_null_keeps_a_list_and_an_empty_one_clears_it(
    field: str, column: str, value: tuple[int, ...] | None
) -> None:
    full = dataclasses.replace(WITH_ELR, removing_replicas=(2,), adding_replicas=(3,))
    row = changed(change(**{field: value}), of=full)
    expected = getattr(before(full), column) if value is None else value
    columns: dict[str, Any] = {"partition_epoch": 10, column: expected}
    assert row == dataclasses.replace(before(full), **columns)


@pytest.mark.parametrize(("recovery", "expected"), [(-1, 1), (0, 0), (1, 1)])
def test_recovery_state_minus_one_keeps_it(recovery: int, expected: int) -> None:
    recovering = dataclasses.replace(PARTITION, leader_recovery_state=1)
    row = changed(change(leader_recovery_state=recovery), of=recovering)
    assert row.leader_recovery_state == expected
    assert row.leader_epoch == 4


def test_new_replicas_have_their_directories() -> None:
    row = changed(change(replicas=(2, 1), directories=(DIRS[1], DIRS[0])))
    assert (row.replicas, row.directories) == ((2, 1), (DIRS[1], DIRS[0]))


def test_directories_without_replicas_replace_directories() -> None:
    turned = (DIRS[2], DIRS[1], DIRS[0])
    assert changed(change(directories=turned)).directories == turned


def test_new_replicas_without_directories_get_migrating_ones() -> None:
    unknown = dataclasses.replace(PARTITION, directories=())
    row = changed(change(replicas=(1, 2, 3, 4)), of=unknown)
    assert row.directories == (MIGRATING,) * 4


def test_empty_directories_are_migrating_ones() -> None:
    assert changed(change(directories=())).directories == (MIGRATING,) * 3


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (change(replicas=(1, 2)), "3 directories for 2 replicas"),
        (change(replicas=(1, 2), directories=DIRS), "3 directories for 2 replicas"),
        (change(directories=DIRS[:1]), "1 directories for 3 replicas"),
        (change(leader_recovery_state=2), "unknown leader recovery state 2"),
        (PartitionChangeRecord(topic_id=A, partition_id=1), f"{A} has no partition 1"),
        (PartitionChangeRecord(topic_id=B, partition_id=0), f"{B} has no partition 0"),
    ],
)
def test_an_invalid_change_is_refused(record: MetadataRecord, reason: str) -> None:
    with pytest.raises(ReplayError, match=reason) as caught:
        state_after(TOPIC, PARTITION, record)
    assert (caught.value.offset, caught.value.record) == (2, "PartitionChangeRecord")


def test_a_change_has_the_columns_that_differ() -> None:
    image = state_after(TOPIC, PARTITION)
    (changes,) = changes_of(image, change(leader=2, isr=(1, 2, 3)))
    assert changes.op is Op.UPDATE
    assert changes.changed == ("leader", "leader_epoch", "partition_epoch")
    assert changes.before == before()
    assert changes.key_json == f'["{A}",0]'


# --- eligible leader replicas ---------------------------------------------------------------------


def two_topics_with_elr() -> MetadataImage:
    return state_after(
        TOPIC,
        WITH_ELR,
        dataclasses.replace(PARTITION, partition_id=1),
        TopicRecord(name="other", topic_id=B),
        dataclasses.replace(WITH_ELR, topic_id=B, eligible_leader_replicas=()),
    )


def test_clear_elr_of_one_topic_changes_its_partitions_with_elr_and_no_leader_epoch() -> None:
    image = two_topics_with_elr()
    (changes,) = changes_of(image, ClearElrRecord(topic_name="orders"))
    assert changes.key == (A, 0)
    assert changes.changed == ("elr", "last_known_elr", "partition_epoch")
    assert isinstance(changes.after, PartitionRow)
    assert (changes.after.elr, changes.after.last_known_elr) == ((), ())
    assert (changes.after.leader_epoch, changes.after.partition_epoch) == (4, 10)


def test_clear_elr_without_a_name_is_for_all_topics() -> None:
    changes = changes_of(two_topics_with_elr(), ClearElrRecord(topic_name=""))
    assert [change.key for change in changes] == [(A, 0), (B, 0)]


def test_clear_elr_of_an_unknown_topic_is_refused() -> None:
    with pytest.raises(ReplayError, match="no topic 'gone'"):
        changes_of(two_topics_with_elr(), ClearElrRecord(topic_name="gone"))


def test_replay_never_changes_the_previous_image() -> None:
    loader = replayed(TOPIC, WITH_ELR)
    image = loader.image
    digest, rows = image.digest(), image.rows(Entity.PARTITION)
    changes_of(image, change(leader=2))
    changes_of(image, RemoveTopicRecord(topic_id=A))
    assert (image.digest(), image.rows(Entity.PARTITION)) == (digest, rows)
    assert image.group((Entity.PARTITION, A, "")) == ((A, 0),)
