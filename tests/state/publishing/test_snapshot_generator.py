"""Snapshots of a node's log by bytes and by age, and the log that they allow to trim.

Kafka: ``SnapshotGeneratorTest``; the names of its cases are in docstrings.
"""

from __future__ import annotations

import random
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

import pytest
from tests.support.controllers import Controllers, Listener, bootstrap, replayed, write
from tests.support.one_replica import TIME_MS, OneReplica

from raftlog import ValueKind
from raftlog.errors import DiskFailedError, DiskFullError, LogError, LogLockedError
from raftlog.log.writing.properties import LogConfig
from raftlog_state.controller import CreateTopic, QuorumController
from raftlog_state.image.differences import diff
from raftlog_state.publishing import PublishingLoader, SnapshotGenerator
from raftlog_state.records import DecodedRecord, NoOpRecord, encode

NODE = 9


@dataclass
class Scheduled:
    """Calls to make later, and the time."""

    calls: deque[Callable[[], None]] = field(default_factory=deque)
    syncs: deque[tuple[Callable[[], None], Callable[[Exception | None], None]]] = field(
        default_factory=deque
    )
    time_ms: int = 0

    def sync(self, sync: Callable[[], None], when_done: Callable[[Exception | None], None]) -> None:
        self.syncs.append((sync, when_done))

    def step(self) -> bool:
        """Make the next call, or run the next sync; return whether there was one."""
        if self.calls:
            self.calls.popleft()()
        elif self.syncs:
            sync, when_done = self.syncs.popleft()
            try:
                sync()
            except LogError as error:
                when_done(error)
            else:
                when_done(None)
        else:
            return False
        return True

    def run(self) -> int:
        count = 0
        while self.step():
            count += 1
        return count

    def until_sync(self) -> tuple[Callable[[], None], Callable[[Exception | None], None]]:
        """Make calls up to the first sync, and return it."""
        while not self.syncs:
            self.calls.popleft()()
        return self.syncs.popleft()


def started(
    *,
    bytes_max: int = 10**9,
    interval_ms: int = 0,
    records_per_step: int = 10,
    records_per_batch_max: int = 10_000,
) -> tuple[Controllers, SnapshotGenerator, Scheduled, Listener]:
    env = Controllers(count=1, records_per_batch_max=records_per_batch_max)
    listener, later = Listener(), Scheduled()
    node = env.shared.node(NODE)
    generator = SnapshotGenerator(
        node,
        time_ms=lambda: later.time_ms,
        schedule=later.calls.append,
        sync=later.sync,
        listener=listener,
        bytes_max=bytes_max,
        interval_ms=interval_ms,
        records_per_step=records_per_step,
    )
    node.register(PublishingLoader(listener, [generator]))
    write(env.elect(1), *bootstrap())
    env.shared.deliver()
    return env, generator, later, listener


def create(env: Controllers, name: str, partitions: int = 1) -> None:
    topic = CreateTopic(topic=name, partitions=partitions, replication_factor=1)
    assert write(env.all[1], topic).error is None
    env.shared.deliver()


def test_a_snapshot_is_written_after_so_many_bytes_in_steps_of_the_committed_state() -> None:
    """testGenerateSnapshotOnMaxBytes, testLastSnapshotEmitted."""
    env, generator, later, listener = started(bytes_max=6_000)
    create(env, "a", 20)
    assert not generator.is_writing
    env.hold()
    write(env.all[1], CreateTopic(topic="uncommitted", partitions=99, replication_factor=1))
    env.shared.deliver()
    assert not generator.is_writing, "it is not committed"
    env.release()
    expected = replayed(env.shared.batches)
    assert generator.is_writing
    create(env, "after", 99)
    assert later.run() > 10
    assert not generator.is_writing
    (snapshot_id,) = env.shared.snapshots
    assert snapshot_id == expected.snapshot_id
    assert listener.messages == [
        f"Creating new KRaft snapshot file {snapshot_id} because we have replayed at least 6000 "
        "bytes."
    ]
    loader = PublishingLoader(Listener())
    loader.handle_load_snapshot(env.shared.open_snapshot())
    assert loader.image == expected
    assert generator.metrics().latest_snapshot_generated_bytes > 1_000


def test_a_snapshot_is_written_after_so_much_time_if_there_are_new_records() -> None:
    """testTimeBasedSnapshots."""
    env, generator, later, listener = started(interval_ms=3_600_000)
    later.time_ms = 3_599_999
    create(env, "a")
    assert not later.calls
    later.time_ms += 1
    create(env, "b")
    later.run()
    assert env.shared.snapshots == (replayed(env.shared.batches).snapshot_id,)
    assert listener.messages[0].endswith("because we have waited at least 60 minute(s).")
    later.time_ms += 5
    assert generator.metrics().latest_snapshot_generated_age_ms == 5
    create(env, "c")
    assert not later.calls, "the interval begins again"


def test_a_loaded_snapshot_resets_the_counters() -> None:
    env, _, _, _ = started()
    later, listener = Scheduled(), Listener()
    generator = SnapshotGenerator(
        env.shared.node(NODE),
        time_ms=lambda: later.time_ms,
        schedule=later.calls.append,
        sync=later.sync,
        listener=listener,
        bytes_max=6_000,
        interval_ms=1_000,
    )
    loader = PublishingLoader(listener, [generator])
    create(env, "a", 30)
    loader.handle_commit(env.shared.batches)
    later.time_ms = 999
    env.snapshot(replayed(env.shared.batches))
    loader.handle_load_snapshot(env.shared.open_snapshot())
    later.time_ms = 1_998
    create(env, "b", 30)
    loader.handle_commit(env.shared.batches)
    assert not generator.is_writing
    later.time_ms = 1_999
    create(env, "c")
    loader.handle_commit(env.shared.batches[-1:])
    assert generator.is_writing


def test_no_snapshot_loses_records_that_this_release_does_not_support() -> None:
    env, generator, later, listener = started(bytes_max=2_000)
    later.run()
    known = env.shared.snapshots
    env.shared.append(1, env.shared.epoch, [b"\x01\x7f\x00\x00"], None)
    for _ in range(60):
        env.shared.append(1, env.shared.epoch, [encode(DecodedRecord(0, NoOpRecord()))], None)
    env.shared.deliver()
    assert not generator.is_writing
    assert env.shared.snapshots == known
    assert "1 records that this release does not support" in listener.messages[-1]
    assert len(listener.messages) < 5, "it is logged once an interval"


def test_no_snapshot_ends_inside_a_batch_or_a_transaction() -> None:
    env, generator, later, _ = started(bytes_max=2_000, records_per_batch_max=2)
    later.run()
    known = env.shared.snapshots
    env.hold()
    topic = CreateTopic(topic="large", partitions=60, replication_factor=1)
    write(env.all[1], topic, transaction_name="large")
    env.shared.committed_max = env.shared.batches[-2].next_offset
    env.shared.deliver()
    assert not generator.is_writing
    env.release()
    later.run()
    assert env.shared.snapshots[-1].end_offset == env.shared.end_offset
    assert len(env.shared.snapshots) == len(known) + 1


def test_a_closed_generator_drops_what_it_writes_and_begins_nothing() -> None:
    env, generator, later, _ = started(bytes_max=2_000, records_per_step=1)
    create(env, "a", 60)
    later.calls[0]()
    generator.close()
    later.run()
    assert env.shared.snapshots == ()
    assert env.shared.directory.listing().snapshots == ()
    create(env, "b", 60)
    assert not later.calls


def test_a_full_disk_is_a_fault_and_the_next_snapshot_is_begun_after_as_many_bytes() -> None:
    env, generator, later, listener = started(bytes_max=3_000, records_per_step=1_000)
    env.shared.disk.leave_room(100)
    create(env, "a", 60)
    later.run()
    ((message, error),) = listener.faults
    assert message == "KRaft snapshot file generation error"
    assert isinstance(error, DiskFullError)
    env.shared.disk.full_at(None)
    create(env, "b")
    assert not generator.is_writing
    create(env, "c", 60)
    later.run()
    assert len(env.shared.snapshots) == 1


def test_a_snapshot_is_published_after_its_sync_which_may_run_in_another_thread() -> None:
    env, generator, later, listener = started(bytes_max=2_000)
    create(env, "a", 60)
    sync, when_done = later.until_sync()
    other = threading.Thread(target=sync)
    other.start()
    other.join()
    assert not env.shared.snapshots
    env.shared.disk.fail_sync_once("*.part")
    when_done(None)
    assert not listener.faults, "the file is synced once"
    assert len(env.shared.snapshots) == 1
    assert not generator.is_writing


def test_a_generator_that_is_closed_during_a_sync_closes_the_file_after_it() -> None:
    env, generator, later, listener = started(bytes_max=2_000)
    create(env, "a", 60)
    sync, when_done = later.until_sync()
    generator.close()
    sync()
    when_done(None)
    assert (parts(env), env.shared.snapshots, listener.faults) == ([], (), [])
    create(env, "b", 60)
    assert not later.calls


def test_a_failed_sync_is_a_fault_and_the_snapshot_is_deleted() -> None:
    env, generator, later, listener = started(bytes_max=2_000)
    create(env, "a", 60)
    env.shared.disk.fail_sync_once("*.part")
    sync, when_done = later.until_sync()
    assert not listener.faults, "it is synced by `sync` alone"
    with pytest.raises(DiskFailedError) as failed:
        sync()
    when_done(failed.value)
    assert [error for _, error in listener.faults] == [failed.value]
    assert (parts(env), env.shared.snapshots, generator.is_writing) == ([], (), False)


def parts(env: Controllers) -> list[str]:
    return [path for path in env.shared.disk.files() if path.endswith(".part")]


@pytest.mark.parametrize("seed", range(3))
def test_the_log_of_a_replica_is_trimmed_and_a_new_controller_starts_from_its_snapshot(
    seed: int,
) -> None:
    chance = random.Random(seed)
    config = LogConfig(values=ValueKind.KRAFT, segment_bytes=2_000, retention_bytes=4_000)
    one, listener, later = OneReplica(log_config=config), Listener(), Scheduled()
    generator = SnapshotGenerator(
        one.log,
        time_ms=lambda: 0,
        schedule=later.calls.append,
        sync=later.sync,
        listener=listener,
        bytes_max=chance.choice([2_000, 5_000]),
        records_per_step=chance.choice([1, 50]),
    )
    loader = PublishingLoader(listener, [generator])
    controller = new_controller(one, listener, seed)
    one.register(controller)
    one.register(loader)
    one.elect()
    write(controller, *bootstrap())
    for number in range(60):
        topic = CreateTopic(topic=f"t{number}", partitions=2, replication_factor=1)
        assert write(controller, topic).error is None
        one.poll()
        for _ in range(chance.randrange(20)):
            later.step()
        with suppress(LogLockedError):  # a snapshot is being written
            one.replica.clean(time_ms=TIME_MS)
    later.run()
    one.replica.clean(time_ms=TIME_MS)
    log = one.replica.log
    assert log.log_start_offset > log.end_offset / 2, "it is trimmed by itself"
    assert not listener.faults
    standby, late = new_controller(one, Listener(), seed), PublishingLoader(Listener())
    one.register(standby)
    one.register(late)
    one.poll()
    assert late.image == loader.image == controller.image() == standby.image()
    assert not diff(late.image, loader.image)


def new_controller(one: OneReplica, listener: Listener, seed: int) -> QuorumController:
    return QuorumController(one.log, rng=random.Random(seed), time_us=lambda: 0, listener=listener)
