"""The controller's state is that of a replay: at each registered offset, and after reverts."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from tests.support.cluster_changes import cluster
from tests.support.controller_context import found
from tests.support.random_metadata import RandomLog
from tests.support.sweep_size import nightly_except

from raftlog_state.controller.controller_state import (
    INDEXED_PER_STEP,
    KEYS_LIKE_A_SET,
    KEYS_PER_STEP,
    NO_LEADER,
    ControllerState,
)
from raftlog_state.errors import SnapshotEpochError
from raftlog_state.image import (
    AclRow,
    ConfigRow,
    Entity,
    MetadataImage,
    PartitionRow,
    Quorum,
    Row,
    TopicRow,
    acl_content,
    group_of,
)
from raftlog_state.loader.metadata_loader import LogRecord, MetadataLoader
from raftlog_state.records import MetadataRecord
from raftlog_state.replay import Position, replay
from raftlog_state.snapshots import snapshot_bytes
from raftlog_state.steps import SORTED_PER_STEP

PARTITION = PartitionRow(
    topic_id="",
    partition_id=0,
    topic_name="",
    replicas=(1,),
    isr=(1,),
    directories=("A" * 22,),
    leader=1,
    leader_epoch=0,
    partition_epoch=0,
)


class History:
    """Random log with reverts, replayed by a loader and by a controller's state."""

    def __init__(self, seed: int, level: int) -> None:
        self.chance = random.Random(f"{seed} {level}")
        self.log = RandomLog(seed, level)
        self.loader = MetadataLoader()
        self.state = ControllerState()
        self.images: dict[int, MetadataImage] = {}
        """Images of the loader at the registered offsets."""
        self.grow()

    def grow(self) -> None:
        self.log.grow(self.chance.randint(1, 15))
        for decoded in self.log.records[self.loader.next_offset :]:
            offset = self.loader.next_offset
            self.loader.append([LogRecord(offset, 1, offset, decoded)])
            assert isinstance(decoded.record, MetadataRecord)
            replay(decoded.record, self.state, Position(offset, offset, 1, offset))

    def register(self) -> None:
        image = self.loader.image
        self.state.registry.get_or_create_snapshot(image.offset)
        self.images[image.offset] = image

    def revert(self) -> None:
        if not self.images:
            return
        offset = self.chance.choice(list(self.images))
        self.state.registry.revert_to_snapshot(offset)
        self.images = {at: image for at, image in self.images.items() if at <= offset}
        self.loader = MetadataLoader(self.images[offset])
        self.log.truncate(self.images[offset])

    def forget(self) -> None:
        if self.images:
            offset = self.chance.choice(list(self.images))
            self.state.registry.delete_snapshots_up_to(offset)
            self.images = {at: image for at, image in self.images.items() if at >= offset}

    def check(self) -> None:
        for offset, expected in self.images.items():
            image = image_at(self.state, offset)
            assert image == expected
            assert snapshot_bytes(image, written_ms=0) == snapshot_bytes(expected, written_ms=0)
        self.register()
        assert image_at(self.state, self.loader.next_offset - 1) == self.loader.image
        assert_indexes_are_those_of_a_scan(self.state)


def image_at(state: ControllerState, offset: int) -> MetadataImage:
    return state.image_at(offset, leader_epoch=1, timestamp_ms=offset, quorum=Quorum())


def assert_indexes_are_those_of_a_scan(state: ControllerState) -> None:
    partitions = state.rows_of(PartitionRow)
    for broker_id in range(-1, 8):
        assert found(state.partitions_in_isr(broker_id)) == [
            r for r in partitions if broker_id in r.isr
        ]
        assert found(state.partitions_in_elr(broker_id)) == [
            r for r in partitions if broker_id in r.elr
        ]
    assert found(state.leaderless_partitions()) == [r for r in partitions if r.leader == NO_LEADER]
    for topic in state.rows_of(TopicRow):
        assert state.topic(topic.name) == topic
        of_topic = [row for row in partitions if row.topic_id == topic.topic_id]
        assert sorted(state.partition_keys(topic.topic_id)) == [row.key for row in of_topic]
    for config in state.rows_of(ConfigRow):
        group = group_of(config)
        assert group is not None
        assert config.key in state.group(group)
    for acl in state.rows_of(AclRow):
        assert state.has_acl(acl_content(acl))


@pytest.mark.parametrize("level", [7, 14, 23, 30])
@pytest.mark.parametrize("seed", nightly_except(range(1), range(3)))
def test_every_registered_offset_has_the_image_of_a_replay(seed: int, level: int) -> None:
    history = History(seed, level)
    steps = [history.grow] * 5 + [history.register] * 3 + [history.revert] * 2 + [history.forget]
    for _ in range(50):
        history.chance.choice(steps)()
        history.check()
    assert history.loader.next_offset > 20


def test_a_state_of_an_image_has_its_rows_and_indexes() -> None:
    log = RandomLog(seed=5, level=30)
    log.grow(400)
    loader = MetadataLoader()
    loader.append(LogRecord(at, 1, at, record) for at, record in enumerate(log.records))
    state = ControllerState.from_image(loader.image)
    state.registry.get_or_create_snapshot(loader.image.offset)
    assert image_at(state, loader.image.offset) == loader.image
    assert_indexes_are_those_of_a_scan(state)


def test_the_indexes_of_an_image_are_created_in_steps() -> None:
    """Each topic has a set of its partitions."""
    rows: list[Row] = []
    for number in range(3 * INDEXED_PER_STEP):
        topic = TopicRow(topic_id=f"{number:021d}A", name=f"topic-{number}")
        rows += [topic, replace(PARTITION, topic_id=topic.topic_id)]
    image = MetadataImage.from_rows(rows, offset=9, leader_epoch=1)
    sets = len(rows) // 2 * (KEYS_LIKE_A_SET + 1) // KEYS_PER_STEP
    assert sets > 5
    steps = list(ControllerState.from_image_in_steps(image))
    assert len(steps) == 2 + 2 + sets, "rows of topics and of partitions, and sets of topics"


def test_what_is_deleted_is_in_no_index() -> None:
    log = RandomLog(seed=6, level=30)
    log.grow(300)
    state = ControllerState()
    for offset, decoded in enumerate(log.records):
        assert isinstance(decoded.record, MetadataRecord)
        replay(decoded.record, state, Position(offset, offset, 1, offset))
    topics, acls = state.rows_of(TopicRow), state.rows_of(AclRow)
    for entity in (Entity.PARTITION, Entity.CONFIG, Entity.TOPIC, Entity.ACL):
        for key in state.keys(entity):
            assert state.delete(entity, key)
            assert not state.delete(entity, key)
    assert not any(found(state.partitions_in_isr(broker_id)) for broker_id in range(8))
    assert not found(state.leaderless_partitions())
    assert not any(state.topic(row.name) or state.partition_keys(row.topic_id) for row in topics)
    assert not any(state.has_acl(acl_content(row)) for row in acls)


def test_a_broker_change_visits_its_own_partitions_only() -> None:
    rows = [
        PartitionRow(
            topic_id="t" * 22,
            partition_id=number,
            topic_name="t",
            replicas=(1 + number % 100,),
            isr=(1 + number % 100,),
            directories=("A" * 22,),
            leader=1 + number % 100,
            leader_epoch=0,
            partition_epoch=0,
        )
        for number in range(1_000)
    ]
    state = ControllerState.from_image(cluster(*rows))
    assert [row.partition_id for row in found(state.partitions_in_isr(7))] == list(
        range(6, 1_000, 100)
    )


def test_many_partitions_of_a_broker_are_found_in_steps_and_in_order() -> None:
    count = 2 * SORTED_PER_STEP + 1
    rows = [replace(PARTITION, partition_id=number * 7919 % count) for number in range(count)]
    search = ControllerState.from_image(cluster(*rows)).partitions_in_isr(1)
    assert [next(search), next(search)] == [None, None], "the first two steps of three"
    assert [one.partition_id for one in found(search)] == list(range(count))


def test_names_that_differ_by_dot_and_underscore_collide() -> None:
    state = ControllerState()
    for name in ("a.b", "a_b", "a-b", "a.c"):
        state.put(TopicRow(topic_id=name.ljust(22, "A"), name=name))
    assert state.colliding_topics("a_b") == ["a.b", "a_b"]
    state.delete(Entity.TOPIC, ("a.b".ljust(22, "A"),))
    assert state.colliding_topics("a.b") == ["a_b"]


def test_an_offset_that_is_not_registered_has_no_image() -> None:
    state = ControllerState()
    with pytest.raises(SnapshotEpochError, match="epoch 4 does not exist"):
        image_at(state, 4)
