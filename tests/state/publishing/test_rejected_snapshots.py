"""A snapshot with records that replay rejects: a controller fails, a publishing loader continues.

Kafka: ``QuorumController.handleLoadSnapshot``, ``MetadataLoader.loadSnapshot``.
"""

from __future__ import annotations

import pytest
from tests.support.controllers import Controllers, Listener, bootstrap, write

from raftlog.errors import StateMachineError
from raftlog_state.controller import CreateTopic
from raftlog_state.errors import ControllerTimeoutError, ReplayError
from raftlog_state.image import MetadataImage, TopicRow
from raftlog_state.image.image_writer import image_records
from raftlog_state.publishing import PublishingLoader
from raftlog_state.publishing.publisher import Manifest, MetadataUpdate
from raftlog_state.records import (
    DecodedRecord,
    PartitionRecord,
    RemoveTopicRecord,
    TopicRecord,
    encode,
)

UNKNOWN_TOPIC = "A" * 21 + "Q"
REASONS = {
    "PartitionRecord": f"there is no topic with id {UNKNOWN_TOPIC}",
    "RemoveTopicRecord": "a snapshot must not contain removals",
    "TopicRecord": "already exists",
}


class Recorder:
    """Publisher that keeps the manifests."""

    name = "recorder"

    def __init__(self) -> None:
        self.manifests: list[Manifest] = []

    def on_metadata_update(
        self, update: MetadataUpdate, image: MetadataImage, manifest: Manifest
    ) -> None:
        del update, image
        self.manifests.append(manifest)

    def on_controller_change(self, leader: object) -> None:
        pass

    def close(self) -> None:
        pass


def contradiction(kind: str, image: MetadataImage) -> DecodedRecord:
    """Return a record that contradicts those of an image."""
    (topic,) = image.rows_of(TopicRow)
    if kind == "RemoveTopicRecord":
        return DecodedRecord(0, RemoveTopicRecord(topic_id=topic.topic_id))
    if kind == "TopicRecord":
        return DecodedRecord(0, TopicRecord(name=topic.name, topic_id=UNKNOWN_TOPIC))
    lost = PartitionRecord(topic_id=UNKNOWN_TOPIC, replicas=(1,), isr=(1,), leader=1)
    return DecodedRecord(1, lost)


def log_with_snapshot(kind: str) -> tuple[Controllers, MetadataImage]:
    """Return controllers on a log that begins after a snapshot of an image, whose last record is
    rejected."""
    env = Controllers(count=1)
    active = env.elect(1)
    new = CreateTopic(topic="a", partitions=2, replication_factor=1)
    assert write(active, *bootstrap(), new).error is None
    env.shared.deliver()
    image = active.image()
    records = [*image_records(image), contradiction(kind, image)]
    writer = env.shared.begin_snapshot(image.offset + 1)
    assert writer is not None
    with writer:
        writer.append([encode(one) for one in records])
        writer.freeze()
    env.shared.delete_before(env.shared.snapshots[-1])
    return env, image


@pytest.mark.parametrize("kind", sorted(REASONS))
def test_a_controller_that_loads_it_fails_with_the_place_of_the_record(kind: str) -> None:
    env, image = log_with_snapshot(kind)
    count = len([*image_records(image)]) + 1
    late = env.start(2)
    with pytest.raises(StateMachineError) as raised:
        env.shared.deliver()
    (message, error), *others = env.listeners[2].fatal_faults
    assert not others
    assert isinstance(error, ReplayError)
    assert message.startswith(
        f"Unable to apply {kind} record from snapshot {image.snapshot_id} on standby controller, "
        f"which was {count} of {count} record(s) in the batch with baseOffset "
    )
    assert REASONS[kind] in message
    assert message in str(raised.value)
    assert isinstance(write(late).error, ControllerTimeoutError)
    with pytest.raises(StateMachineError):
        late.image()


@pytest.mark.parametrize("kind", sorted(REASONS))
def test_a_publishing_loader_leaves_the_record_out_and_follows_the_log(kind: str) -> None:
    env, image = log_with_snapshot(kind)
    listener, recorder = Listener(), Recorder()
    loader = PublishingLoader(listener, [recorder])
    env.shared.node(3).register(loader)
    env.shared.deliver()
    assert loader.failure is None
    assert loader.image == image
    ((message, error),) = listener.faults
    snapshot_id = image.snapshot_id
    assert message.startswith(f"Error loading metadata log record in snapshot {snapshot_id}: ")
    assert REASONS[kind] in str(error)
    rejected = recorder.manifests[-1].rejected
    assert rejected is not None, "no snapshot of this node is written: it would lose the record"
    assert rejected.record_count == 1
    assert loader.metrics().metadata_error_count == 1
    more = CreateTopic(topic="b", partitions=1, replication_factor=1)
    assert write(env.all[1], more).error is None
    env.shared.deliver()
    assert loader.image.offset == env.shared.end_offset - 1
    assert sorted(row.name for row in loader.image.rows_of(TopicRow)) == ["a", "b"]
