"""Large batches and snapshots are replayed in steps of bounded work, between other events."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise

import pytest
from tests.support.batch_encoding import NewRecordBatch, encode_batch
from tests.support.controllers import (
    Controllers,
    Listener,
    bootstrap,
    hosted_on,
    replayed,
    write,
)

from raftlog.errors import CorruptBatchError, StateMachineError
from raftlog.records import RecordBatch
from raftlog.records.batch import read_batch
from raftlog.records.record import NewRecord
from raftlog.types import SnapshotId
from raftlog_state.controller import (
    CreateTopic,
    DeleteTopic,
    PendingState,
    QuorumController,
    write_change,
)
from raftlog_state.controller.active import NO_DEADLINE
from raftlog_state.controller_apis import HostedController
from raftlog_state.errors import NotControllerError
from raftlog_state.image import Entity, MetadataImage, PartitionRow, TopicRow
from raftlog_state.image.differences import diff
from raftlog_state.image.image_writer import image_records
from raftlog_state.loader.metadata_loader import LogRecord, MetadataLoader
from raftlog_state.publishing import Manifest, MetadataUpdate, PublishingLoader
from raftlog_state.publishing.publisher import LeaderAndEpoch
from raftlog_state.records import (
    BeginTransactionRecord,
    DecodedRecord,
    EndTransactionRecord,
    MetadataRecord,
    PartitionChangeRecord,
    PartitionRecord,
    RemoveTopicRecord,
    TopicRecord,
    encode,
)
from raftlog_state.steps import RECORDS_PER_STEP

PARTITIONS = 5 * RECORDS_PER_STEP // 2
RECORDS_PER_BATCH = 100


def large_records(topic_id: str) -> Iterator[MetadataRecord]:
    yield TopicRecord(name="large", topic_id=topic_id)
    for number in range(PARTITIONS):
        yield PartitionRecord(
            partition_id=number, topic_id=topic_id, replicas=(1,), isr=(1,), leader=1
        )


def create_large(state: PendingState) -> None:
    for record in large_records(state.random_uuid()):
        state.write(record)


def started(count: int = 2) -> Controllers:
    env = Controllers(count=count)
    write(env.elect(1), *bootstrap())
    env.shared.deliver()
    return env


def write_large(env: Controllers) -> None:
    done = env.all[1].write("test", create_large, deadline_us=NO_DEADLINE)
    assert done.error is None


def partition_count(controller: QuorumController) -> int:
    return len(controller.state.keys(Entity.PARTITION))


@dataclass
class Images:
    """Publisher that counts its updates."""

    name: str = "images"
    count: int = 0

    def on_metadata_update(
        self, update: MetadataUpdate, image: MetadataImage, manifest: Manifest
    ) -> None:
        self.count += 1

    def on_controller_change(self, leader: LeaderAndEpoch) -> None:
        pass

    def close(self) -> None:
        pass


def test_a_standby_replays_a_large_batch_in_steps_and_shows_it_as_a_whole() -> None:
    env = started()
    standby, images = env.all[2], Images()
    loader = PublishingLoader(Listener(), [images])
    env.shared.node(2).register(loader)
    env.shared.deliver()
    before, update_count = standby.image(), images.count
    write_large(env)
    counts = [0]
    while env.shared.node(2).deliver_once():
        counts.append(partition_count(standby))
        assert standby.is_replaying
        assert standby.image() == loader.image == before
        assert standby.metrics(0).last_committed_record_offset == before.offset
        assert images.count == update_count
    counts.append(partition_count(standby))
    assert not standby.is_replaying
    assert counts[-1] == PARTITIONS
    steps = [after - earlier for earlier, after in pairwise(counts)]
    assert max(steps) <= RECORDS_PER_STEP
    assert len(steps) == 3
    assert images.count == update_count + 1
    assert standby.image() == loader.image == replayed(env.shared.batches)
    env.shared.deliver()
    env.assert_states_equal_a_replay()


@pytest.mark.parametrize("what", ["deletion", "transaction"])
def test_a_record_that_changes_many_rows_is_replayed_in_steps(what: str) -> None:
    """The deletion of a topic deletes its partitions, and the end of a transaction replays all."""
    env = started()
    standby, images = env.all[2], Images()
    loader = PublishingLoader(Listener(), [images])
    env.shared.node(2).register(loader)
    env.shared.deliver()
    counts, name = [0], None
    operation: Callable[[PendingState], None] = create_large
    if what == "deletion":
        write_large(env)
        env.shared.deliver()
        counts, operation = [PARTITIONS], partial(write_change, DeleteTopic(topic="large"))
    else:
        name = "large"
    before, update_count = standby.image(), images.count
    done = env.all[1].write("test", operation, deadline_us=NO_DEADLINE, transaction_name=name)
    assert done.error is None
    while env.shared.node(2).deliver_once():
        counts.append(partition_count(standby))
        assert standby.is_replaying
        assert standby.image() == loader.image == before
        assert images.count == update_count
    counts.append(partition_count(standby))
    assert counts[-1] == PARTITIONS - counts[0]
    steps = [abs(after - earlier) for earlier, after in pairwise(counts)]
    assert max(steps) <= RECORDS_PER_STEP
    assert len([one for one in steps if one]) == 3
    assert images.count == update_count + 1
    assert standby.image() == loader.image == replayed(env.shared.batches)
    env.shared.deliver()
    env.assert_states_equal_a_replay()


def test_voters_that_change_within_a_transaction_are_shown_at_its_end() -> None:
    env = started()
    standby, epoch = env.all[2], env.shared.epoch
    begun = (BeginTransactionRecord(name="t"), *large_records("A" * 21 + "Q"))
    env.shared.append(1, epoch, [encode(one) for one in begun], None)
    env.shared.append_voters()
    deliver_all(env)
    before = standby.image()
    env.shared.append(1, epoch, [encode(EndTransactionRecord())], None)
    step_count = 1
    while env.shared.node(2).deliver_once():
        step_count += 1
        assert standby.image() == before
    assert step_count == 3
    assert len(standby.image().quorum.voters) == 1
    assert standby.image() == replayed(env.shared.batches)


@pytest.mark.parametrize("what", ["deletion", "transaction"])
def test_a_loader_that_is_closed_between_the_steps_of_a_record_is_unchanged(what: str) -> None:
    loader = MetadataLoader()
    topic_id = "A" * 21 + "Q"
    records: list[MetadataRecord] = [*large_records(topic_id), RemoveTopicRecord(topic_id=topic_id)]
    if what == "transaction":
        records = [BeginTransactionRecord(), *records[:-1], EndTransactionRecord()]
    *earlier, end = (
        LogRecord(offset, 1, 1, DecodedRecord(0, one)) for offset, one in enumerate(records)
    )
    loader.append(earlier)
    before = loader.image
    steps = loader.append_in_steps([end])
    next(steps)
    steps.close()
    assert loader.image == before
    assert loader.next_offset == end.offset
    assert len(loader.append([end])) == (1 if what == "deletion" else PARTITIONS + 2)
    assert len(loader.image.rows_of(PartitionRow)) == (0 if what == "deletion" else PARTITIONS)


def test_a_batch_that_the_active_controller_wrote_is_not_decoded_when_it_is_committed() -> None:
    env = started(count=1)
    active = env.all[1]
    env.hold()
    write_large(env)
    waiting = write(active, CreateTopic(topic="next", partitions=1, replication_factor=1))
    large, following = env.shared.batches[-2:]
    undecodable = replace(large, payload=b"")
    with pytest.raises(CorruptBatchError):
        list(undecodable.records())
    assert active.handle_commit([undecodable]) is None
    assert active.last_stable_offset == large.next_offset - 1
    assert active.handle_commit([following]) is None
    assert waiting.is_done
    assert not diff(active.image(), replayed(env.shared.batches))


@dataclass
class CountedSnapshot:
    """Snapshot of small batches, which counts the records that were read."""

    image: MetadataImage
    read_count: int = 0

    @property
    def snapshot_id(self) -> SnapshotId:
        return self.image.snapshot_id

    def batches(self) -> Iterator[RecordBatch]:
        values = [encode(one) for one in image_records(self.image)]
        for start in range(0, len(values), RECORDS_PER_BATCH):
            some = values[start : start + RECORDS_PER_BATCH]
            new = NewRecordBatch(
                records=tuple(NewRecord(None, value) for value in some), base_timestamp_ms=1
            )
            batch = read_batch(encode_batch(new, base_offset=start, leader_epoch=1))
            assert isinstance(batch, RecordBatch)
            self.read_count += len(some)
            yield batch


@pytest.mark.parametrize("is_publishing", [True, False])
def test_a_snapshot_is_loaded_in_steps_and_replaces_the_state_in_the_last_one(
    is_publishing: bool,
) -> None:
    env = started(count=1)
    write_large(env)
    env.shared.deliver()
    late = Controllers(count=1).all[1]
    loader = PublishingLoader(Listener())
    snapshot = CountedSnapshot(env.all[1].image())
    listener = loader if is_publishing else late
    steps, counts = listener.handle_load_snapshot(snapshot), [0, snapshot.read_count]
    while steps is not None and next(steps, snapshot) is not snapshot:
        counts.append(snapshot.read_count)
        assert loader.image.offset == late.last_stable_offset == -1
        assert not partition_count(late)
    counts.append(snapshot.read_count)
    each = [after - earlier for earlier, after in pairwise(counts)]
    assert max(each) <= RECORDS_PER_STEP + RECORDS_PER_BATCH
    assert len([one for one in each if one]) == 3
    found = loader.image if is_publishing else late.image()
    assert not diff(found, snapshot.image)
    assert len(found.rows_of(PartitionRow)) == PARTITIONS


def in_the_middle_of_a_batch(
    *last: MetadataRecord,
) -> tuple[Controllers, HostedController, list[int]]:
    """Return a hosted standby that has replayed a part of a batch, and the calls of its clock.

    ``last``: the last records of the batch.
    """
    env, clock = started(count=1), [0]

    def time_us() -> int:
        clock[0] += 1
        return 0

    node = env.shared.node(2)
    hosted = hosted_on(node, rng=random.Random(0), time_us=time_us)
    env.shared.deliver()
    values = [encode(one) for one in (*large_records("A" * 21 + "Q"), *last)]
    env.shared.append(1, env.shared.epoch, values, None)
    assert node.deliver_once(), "a part of the batch is replayed"
    return env, hosted, clock


def deliver_all(env: Controllers) -> None:
    """Deliver everything to the standby."""
    while env.shared.nodes[2].deliver_once():
        pass


def partitions_read(hosted: HostedController) -> asyncio.Task[int]:
    return asyncio.create_task(hosted.read("test", lambda state: len(state.keys(Entity.PARTITION))))


async def turns(count: int = 20) -> None:
    """Let the event loop handle what is due."""
    for _ in range(count):
        await asyncio.sleep(0)


def test_a_query_of_a_standby_waits_for_the_end_of_a_batch() -> None:
    async def check() -> None:
        env, hosted, clock = in_the_middle_of_a_batch()
        reading = asyncio.create_task(hosted.read("test", lambda state: state.rows_of(TopicRow)))
        counting = partitions_read(hosted)
        await turns()
        before = list(clock)
        await turns()
        assert clock == before, "it waits without a loop"
        assert not reading.done()
        deliver_all(env)
        assert [row.name for row in await reading] == ["large"]
        assert await counting == PARTITIONS
        hosted.begin_shutdown()

    asyncio.run(check())


@pytest.mark.parametrize("are_steps_closed", [True, False])
def test_a_query_is_not_answered_from_a_batch_that_a_shutdown_has_interrupted(
    are_steps_closed: bool,
) -> None:
    """A node that ends closes the steps, or keeps them for a while."""

    async def check() -> None:
        env, hosted, _ = in_the_middle_of_a_batch()
        before = partitions_read(hosted)
        await turns()
        if are_steps_closed:
            env.shared.nodes[2].shut_down()
        else:
            hosted.begin_shutdown()
        for reading in (before, partitions_read(hosted)):
            with pytest.raises(NotControllerError):
                await reading

    asyncio.run(check())


def test_a_query_is_not_answered_from_a_batch_that_cannot_be_replayed() -> None:
    async def check() -> None:
        wrong = PartitionChangeRecord(topic_id="A" * 21 + "g", partition_id=0)
        env, hosted, _ = in_the_middle_of_a_batch(wrong)
        before = partitions_read(hosted)
        await turns()
        with pytest.raises(StateMachineError):
            deliver_all(env)
        for reading in (before, partitions_read(hosted)):
            with pytest.raises(NotControllerError):
                await reading
        hosted.begin_shutdown()

    asyncio.run(check())
