"""Images of a node's log for publishers: updates, faults, leaders, publishers that start later."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from tests.support.controllers import Controllers, Listener, bootstrap, replayed, write

from raftlog.records.batch import RecordBatch
from raftlog.types import Operation
from raftlog_state.controller import ApiException, CreateTopic, DeleteTopic, FenceBroker
from raftlog_state.image import MetadataImage, TopicRow
from raftlog_state.image.delta import MetadataDelta
from raftlog_state.image.differences import diff
from raftlog_state.loader.metadata_loader import LogRecord, MetadataLoader
from raftlog_state.publishing import (
    AccessPublisher,
    ControllerMetadataMetricsPublisher,
    LogDeltaManifest,
    Manifest,
    MetadataProvenance,
    MetadataUpdate,
    MetadataVersionWatchdog,
    PublishingLoader,
    SnapshotGenerator,
    SnapshotManifest,
)
from raftlog_state.publishing.access_publisher import ROWS_PER_STEP
from raftlog_state.publishing.publisher import LeaderAndEpoch, UnknownLeader
from raftlog_state.records import (
    AccessControlEntryRecord,
    DecodedRecord,
    FeatureLevelRecord,
    MetadataRecord,
    NoOpRecord,
    PartitionRecord,
    RemoveTopicRecord,
    TopicRecord,
    encode,
)
from raftlog_state.steps import CHANGES_PER_STEP, Steps, begin

NODE = 9


@dataclass
class Recorder:
    """Publisher that applies each update to the image of the one before."""

    name: str = "recorder"
    fails: bool = False
    manifests: list[Manifest] = field(default_factory=list)
    images: list[MetadataImage] = field(default_factory=lambda: [MetadataImage.empty()])
    leaders: list[tuple[int, int | None]] = field(default_factory=list)
    is_closed: bool = False

    def on_metadata_update(
        self, update: MetadataUpdate, image: MetadataImage, manifest: Manifest
    ) -> Steps:
        if self.fails:
            raise ZeroDivisionError
        assert not diff(update.before, self.images[-1]), "updates have no gap"
        delta = MetadataDelta(update.before)
        for record in update.changes:
            for change in record.changes:
                if change.after is None:
                    delta.delete(change.entity, change.key)
                else:
                    delta.put(change.after)
        found = delta.apply(offset=image.offset, leader_epoch=0, timestamp_ms=0)
        assert not diff(found, image), "the changes lead to the image"
        self.images.append(image)
        self.manifests.append(manifest)
        return None

    def on_controller_change(self, leader: LeaderAndEpoch) -> None:
        self.leaders.append((leader.epoch, leader.leader_id))

    def close(self) -> None:
        self.is_closed = True


def topic(name: str, partitions: int = 2) -> CreateTopic:
    return CreateTopic(topic=name, partitions=partitions, replication_factor=2)


def started(
    *publishers: Recorder, records_per_batch_max: int = 10_000
) -> tuple[Controllers, PublishingLoader, Listener]:
    env = Controllers(count=2, records_per_batch_max=records_per_batch_max)
    listener = Listener()
    loader = PublishingLoader(listener, publishers)
    env.shared.node(NODE).register(loader)
    write(env.elect(1), *bootstrap())
    env.shared.deliver()
    return env, loader, listener


def snapshots_of(
    env: Controllers, listener: Listener, *, bytes_max: int, skips_rejected: bool = False
) -> SnapshotGenerator:
    """Return a generator that writes a snapshot in one step after so many bytes of the log."""
    return SnapshotGenerator(
        env.shared.node(NODE),
        time_ms=lambda: 0,
        schedule=lambda act: act(),
        sync=lambda _, when_done: when_done(None),
        listener=listener,
        bytes_max=bytes_max,
        skips_rejected=skips_rejected,
    )


def test_each_commit_is_an_update_with_its_changes_and_its_position() -> None:
    recorder = Recorder()
    env, loader, _ = started(recorder)
    write(env.all[1], topic("a"))
    env.shared.deliver()
    last, manifest = env.shared.batches[-1], recorder.manifests[-1]
    assert isinstance(manifest, LogDeltaManifest)
    assert (manifest.batch_count, manifest.byte_count) == (1, last.byte_count)
    at = manifest.provenance
    assert (at.last_contained_offset, at.last_contained_epoch) == (last.next_offset - 1, 1)
    assert at.is_offset_batch_aligned
    assert manifest.leader.leader_id == 1
    assert recorder.leaders[-1] == (1, 1)
    assert loader.image == recorder.images[-1] == replayed(env.shared.batches)
    metrics = loader.metrics()
    assert (metrics.current_metadata_version, metrics.current_controller_id) == (30, 1)
    assert metrics.last_applied_offset == last.next_offset - 1


def test_only_committed_records_outside_open_transactions_are_published() -> None:
    recorder = Recorder()
    env, loader, _ = started(recorder, records_per_batch_max=2)
    before = loader.image
    env.hold()
    write(env.all[1], topic("a"))
    env.shared.deliver()
    assert loader.image is before
    env.release()
    env.hold()
    write(env.all[1], topic("b", 5), transaction_name="large")
    env.shared.committed_max = env.shared.batches[-2].next_offset
    env.shared.deliver()
    assert [row.name for row in loader.image.rows_of(TopicRow)] == ["a"]
    assert not recorder.manifests[-1].provenance.is_offset_batch_aligned
    env.release()
    assert {row.name for row in loader.image.rows_of(TopicRow)} == {"a", "b"}
    assert recorder.manifests[-1].provenance.is_offset_batch_aligned
    assert loader.image == replayed(env.shared.batches)


def test_a_fault_of_one_publisher_does_not_stop_the_others() -> None:
    first, second = Recorder("first", fails=True), Recorder("second")
    env, loader, listener = started(first, second)
    write(env.all[1], topic("a"))
    env.shared.deliver()
    assert second.images[-1] == loader.image
    assert not first.manifests
    assert len(listener.faults) == loader.metrics().metadata_error_count > 1
    end = loader.image.offset
    assert listener.faults[-1][0] == (
        f"Unhandled error publishing the new metadata image ending at {end} with publisher first"
    )


def test_a_snapshot_is_an_update_from_the_image_before() -> None:
    recorder = Recorder()
    env, loader, _ = started()
    write(env.all[1], topic("a"), topic("b"))
    env.shared.deliver()
    late = PublishingLoader(Listener(), [recorder])
    late.handle_commit([one for one in env.shared.batches if one.leader_epoch == 1][:3])
    write(env.all[1], DeleteTopic(topic="a"))
    env.shared.deliver()
    env.snapshot(env.all[1].image())
    late.handle_load_snapshot(env.shared.open_snapshot())
    manifest = recorder.manifests[-1]
    assert isinstance(manifest, SnapshotManifest)
    assert manifest.snapshot_id == env.shared.snapshots[-1]
    assert late.image == loader.image == recorder.images[-1]
    assert late.metrics().handle_load_snapshot_count == 1


def test_a_publisher_that_is_installed_later_gets_the_whole_image_first() -> None:
    env, loader, _ = started()
    write(env.all[1], topic("a"))
    env.shared.deliver()
    recorder = Recorder()
    loader.install(recorder)
    assert isinstance(recorder.manifests[0], SnapshotManifest)
    assert recorder.leaders == [(1, 1)]
    with pytest.raises(ValueError, match="with the name recorder"):
        loader.install(Recorder())
    write(env.all[1], topic("b"))
    env.shared.deliver()
    assert recorder.images[-1] == loader.image
    loader.remove_and_close(recorder)
    write(env.all[1], topic("c"))
    env.shared.deliver()
    assert recorder.is_closed
    assert recorder.images[-1] != loader.image


def test_a_shutdown_closes_the_publishers() -> None:
    recorder = Recorder()
    env, _, _ = started(recorder)
    env.shared.nodes[NODE].shut_down()
    assert recorder.is_closed


CONTRADICTION = encode(DecodedRecord(0, RemoveTopicRecord(topic_id="a" * 21 + "A")))
DAMAGED = b"\x01\x02\x00\xff"
NO_OP = encode(DecodedRecord(0, NoOpRecord()))


def appended(env: Controllers, *values: bytes) -> list[RecordBatch]:
    """Append a batch to the log, for a loader alone; the controllers would fail at it."""
    env.shared.nodes.clear()
    env.shared.append(1, env.shared.epoch, list(values), None)
    return env.shared.batches[-1:]


def test_a_record_that_replay_rejects_is_a_fault_without_effect_and_later_ones_are_replayed() -> (
    None
):
    recorder = Recorder()
    env, loader, listener = started(recorder)
    write(env.all[1], topic("a"))
    env.shared.deliver()
    end = env.shared.end_offset
    row = encode(DecodedRecord(0, TopicRecord(name="b", topic_id="a" * 21 + "A")))
    loader.handle_commit(appended(env, NO_OP, CONTRADICTION, row, DAMAGED))
    loader.handle_commit(appended(env, CONTRADICTION))
    assert [message for message, _ in listener.faults] == [
        f"Error loading metadata log record from offset {end + 3}, and 1 before it: without "
        "effect on the image"
    ]
    assert {row.name for row in loader.image.rows_of(TopicRow)} == {"a"}, "the removal of b"
    rejected = recorder.manifests[-1].rejected
    assert rejected is not None
    assert rejected.first_error.offset == end + 1
    assert "RemoveTopicRecord" in str(rejected.first_error)
    metrics = loader.metrics()
    assert metrics.rejected_record_count == metrics.metadata_error_count == 2
    assert metrics.last_applied_offset == env.shared.end_offset - 1
    env.snapshot(loader.image)
    loader.handle_load_snapshot(env.shared.open_snapshot())
    assert loader.metrics().rejected_record_count == 0


@pytest.mark.parametrize("skips_rejected", [False, True])
def test_a_rejected_record_stops_snapshots_unless_the_operator_permits_to_lose_it(
    skips_rejected: bool,
) -> None:
    env, loader, _ = started()
    listener = Listener()
    generator = snapshots_of(env, listener, bytes_max=200, skips_rejected=skips_rejected)
    loader.install(generator)
    bad_offset = env.shared.end_offset
    loader.handle_commit(appended(env, CONTRADICTION, *[NO_OP] * 100))
    loader.handle_commit(appended(env, *[NO_OP] * 100))
    if skips_rejected:
        assert generator.stopped_reason is None
        (first, last) = env.shared.snapshots[0], loader.image.snapshot_id
        assert bad_offset < first.end_offset <= last.end_offset
        late = PublishingLoader(Listener())
        late.handle_load_snapshot(env.shared.open_snapshot())
        assert not diff(late.image, loader.image)
        return
    assert env.shared.snapshots == ()
    reason = (
        "the log has 1 records that replay rejects, which a snapshot would lose; the first is "
        f"RemoveTopicRecord at offset {bad_offset}: "
    )
    assert generator.stopped_reason is not None
    assert generator.stopped_reason.startswith(reason)
    assert "skip_rejected = true in [snapshots]" in generator.stopped_reason
    assert listener.messages[0] == (
        f"Snapshots are disabled, so the log is not trimmed; {generator.stopped_reason}"
    )
    text = listener.messages[-1]
    assert text.startswith(f"Not emitting {loader.image.snapshot_id} despite"), "one is due"
    assert text.endswith(generator.stopped_reason)
    env.snapshot(loader.image)
    loader.handle_load_snapshot(env.shared.open_snapshot())
    assert generator.stopped_reason is None, "a snapshot of another node is after the record"


def test_a_batch_whose_replay_fails_is_a_fault_and_a_snapshot_continues() -> None:
    recorder = Recorder()
    env, loader, listener = started(recorder)
    write(env.all[1], topic("a"))
    env.shared.deliver()
    before = loader.image
    end = env.shared.end_offset
    appended(env, NO_OP)
    loader.handle_commit(appended(env, NO_OP))
    ((message, _),) = listener.faults
    assert message.startswith(
        f"Error replaying the batch with base offset {end + 1}: the image ends"
    )
    assert loader.failure == message
    loader.handle_commit(env.shared.batches[-1:])
    assert loader.image == before
    assert len(listener.faults) == 1
    env.snapshot(before.at(offset=end + 1, leader_epoch=1, timestamp_ms=0, quorum=before.quorum))
    loader.handle_load_snapshot(env.shared.open_snapshot())
    assert loader.failure is None
    assert not diff(loader.image, before)
    assert isinstance(recorder.manifests[-1], SnapshotManifest)


def test_metrics_count_what_changes_as_the_image_does() -> None:
    metrics, late = ControllerMetadataMetricsPublisher(), ControllerMetadataMetricsPublisher()
    env, loader, _ = started()
    loader.install(metrics)
    write(env.all[1], topic("a", 4), topic("b"), topic("c"))
    write(env.all[1], DeleteTopic(topic="c"), FenceBroker(broker_id=2), FenceBroker(broker_id=3))
    env.shared.deliver()
    other = PublishingLoader(Listener())
    other.handle_commit(env.shared.batches)
    other.install(late)
    assert metrics.metrics == late.metrics
    found = metrics.metrics
    assert (found.global_topic_count, found.global_partition_count) == (2, 6)
    assert (found.active_broker_count, found.fenced_broker_count) == (1, 2)
    assert found.offline_partitions_count > 0
    assert found.preferred_replica_imbalance_count >= found.offline_partitions_count
    assert found.unclean_leader_elections == 0


def test_a_later_metadata_version_is_reported_and_forbids_snapshots_and_writes() -> None:
    env, loader, listener = started()
    generator = snapshots_of(env, listener, bytes_max=1)
    loader.install(MetadataVersionWatchdog(listener))
    level = FeatureLevelRecord(name="metadata.version", feature_level=34)
    env.shared.append(1, env.shared.epoch, [encode(DecodedRecord(0, level))], None)
    env.shared.deliver()
    loader.install(generator)
    active = env.elect(2)
    env.shared.append(2, env.shared.epoch, [encode(DecodedRecord(0, NoOpRecord()))], None)
    env.shared.deliver()
    ((message, _),) = listener.faults
    assert message.startswith("metadata.version 34 is not supported: this release supports 7 to 33")
    assert env.shared.snapshots == ()
    assert "metadata.version 34 is not supported" in listener.messages[-1]
    active = env.elect(1)
    refused = write(active, topic("a")).error
    assert isinstance(refused, ApiException)
    assert refused.kafka_code == 35
    assert active.active_epoch is not None, "it does not fail over"
    assert loader.image.metadata_version == 34


def test_unknown_records_are_counted_and_stay_in_the_log_of_the_controllers() -> None:
    env, loader, _ = started()
    for version in (0, 1, 1):
        env.shared.append(1, env.shared.epoch, [b"\x01\x7f" + bytes([version, 0])], None)
    env.shared.deliver()
    assert loader.metrics().skipped_record_count == 3
    assert loader.image == replayed(env.shared.batches)


@dataclass
class InSteps(Recorder):
    """Publisher with an update of three steps; the third one may fail."""

    fails_at: int = 0
    steps: list[int] = field(default_factory=list)

    def on_metadata_update(
        self, update: MetadataUpdate, image: MetadataImage, manifest: Manifest
    ) -> Steps:
        def all_steps() -> Iterator[None]:
            for number in (1, 2, 3):
                if number == self.fails_at:
                    raise ZeroDivisionError
                self.steps.append(number)
                yield
            self.images.append(image)

        return begin(all_steps())


def test_an_update_has_steps_between_which_a_publisher_may_fail_or_be_removed() -> None:
    """The others get the update, and a later publisher gets it after all steps."""
    failing, removed = InSteps("failing", fails_at=3), InSteps("removed")
    whole, last = InSteps("whole"), Recorder("last")
    env, loader, listener = started(failing, removed, whole, last)
    env.shared.deliver()
    for one in (failing, removed, whole):
        one.steps.clear()
    counts = len(whole.images), len(last.images)
    write(env.all[1], topic("a"))
    node, late = env.shared.node(NODE), InSteps("late")
    seen: list[tuple[int, ...]] = []
    while node.deliver_once():
        seen.append((*failing.steps, 0, *removed.steps, 0, *whole.steps))
        assert len(last.images) == counts[1], "it is after the others"
        if removed.steps and not removed.is_closed:
            loader.remove_and_close(removed)
            loader.install(late)
    assert late.steps == [1, 2, 3], "it has the image, and not this update again"
    assert seen == [
        (1, 0, 0),
        (1, 2, 0, 0),
        (1, 2, 0, 1, 0),
        (1, 2, 0, 1, 0, 1),
        (1, 2, 0, 1, 0, 1, 2),
        (1, 2, 0, 1, 0, 1, 2, 3),
    ]
    assert (len(whole.images), len(last.images)) == (counts[0] + 1, counts[1] + 1)
    assert removed.is_closed
    assert "publisher failing" in listener.faults[-1][0]


@pytest.mark.parametrize("is_snapshot", [True, False])
def test_publishers_of_large_updates_do_bounded_work_in_a_step(is_snapshot: bool) -> None:
    """ACLs and counted rows of a snapshot, or of one transaction."""
    topic_id = "A" * 21 + "Q"
    records: list[MetadataRecord] = [TopicRecord(name="t", topic_id=topic_id)]
    records += (
        PartitionRecord(partition_id=number, topic_id=topic_id, replicas=(1,), isr=(1,))
        for number in range(CHANGES_PER_STEP)
    )
    records += (
        AccessControlEntryRecord(
            id=f"{number:021}Q",
            principal=f"User:{number}",
            host="*",
            operation=3,
            permission_type=3,
        )
        for number in range(2 * ROWS_PER_STEP)
    )
    source = MetadataLoader()
    changes = source.append(
        LogRecord(offset, 1, 1, DecodedRecord(0, one)) for offset, one in enumerate(records)
    )
    metrics = ControllerMetadataMetricsPublisher()
    access = AccessPublisher(
        committed_at_start=lambda: 0, has_failed=lambda: False, credentials_changed=lambda: None
    )
    update = MetadataUpdate(MetadataImage.empty(), changes)
    image, manifest = source.image, manifest_of(source.image, is_snapshot=is_snapshot)
    for publisher in (metrics, access):
        steps, count = publisher.on_metadata_update(update, image, manifest), 1
        while steps is not None:
            assert not access.allowed_operations("User:7", "h")
            assert metrics.metrics.global_topic_count == (publisher is access)
            steps, count = begin(steps), count + 1
        assert count >= 2
    assert metrics.metrics.global_partition_count == CHANGES_PER_STEP
    assert access.allowed_operations("User:7", "h") == {Operation.READ}
    assert access.is_ready


def manifest_of(image: MetadataImage, *, is_snapshot: bool) -> Manifest:
    provenance = MetadataProvenance(
        last_contained_offset=image.offset,
        last_contained_epoch=1,
        last_contained_log_timestamp_ms=0,
        is_offset_batch_aligned=True,
    )
    if is_snapshot:
        return SnapshotManifest(
            provenance=provenance,
            leader=UnknownLeader(),
            snapshot_id=image.snapshot_id,
            skipped_count=0,
            rejected=None,
        )
    return LogDeltaManifest(
        provenance=provenance,
        leader=UnknownLeader(),
        batch_count=1,
        byte_count=1,
        skipped_count=0,
        rejected=None,
    )
