"""The active controller of large clusters: memory, a snapshot loaded, a claim, changes, a snapshot.

    python -m benchmarks.controller [--partitions N ...] [--json]

Topics of 10 partitions with 3 replicas on 100 brokers. The log is in memory; each append is one
batch, which is committed by the call after it. CPU time, except for memory. Garbage collection is
that of a node's process. A change is compared with ``plan_changes``, which builds the state from an
image for each call.
"""

from __future__ import annotations

import argparse
import gc
import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

from benchmarks.run import Row, print_row, row

from raftlog.node.garbage_collection import survivors_frozen
from raftlog.node.raft_client import LeaderNotification
from raftlog.records.batch import RecordBatch, TornTail, read_batch
from raftlog.records.builder import BatchBuilder
from raftlog.types import SnapshotId
from raftlog_state.controller import (
    ChangeRequest,
    CreateTopic,
    FenceBroker,
    QuorumController,
    SetConfig,
    UnfenceBroker,
    plan_changes,
    write_change_in_steps,
    write_changes,
)
from raftlog_state.controller.active import NO_DEADLINE
from raftlog_state.image import (
    BrokerRow,
    FeatureRow,
    MetadataImage,
    PartitionRow,
    TopicRow,
)
from raftlog_state.image import (
    Row as StateRow,
)
from raftlog_state.image.image_writer import image_records
from raftlog_state.publishing import PublishingLoader, SnapshotGenerator
from raftlog_state.records import encode
from raftlog_state.snapshots import snapshot_bytes
from raftlog_state.steps import Steps

BROKERS: Final = 100
PARTITIONS_PER_TOPIC: Final = 10
OFFSET: Final = 9_999
DIRECTORY: Final = "A" * 21 + "g"


def state_rows(partition_count: int) -> Iterator[StateRow]:
    """Yield the rows of a cluster."""
    yield FeatureRow(name="metadata.version", level=30)
    for broker_id in range(1, BROKERS + 1):
        yield BrokerRow(
            broker_id=broker_id,
            incarnation_id=DIRECTORY,
            broker_epoch=broker_id,
            rack=None,
            fenced=False,
            in_controlled_shutdown=False,
            is_migrating_zk_broker=False,
            endpoints=(),
            features=(),
            log_dirs=(DIRECTORY,),
            cordoned_log_dirs=None,
        )
    for number in range(partition_count // PARTITIONS_PER_TOPIC):
        topic_id = f"{number:021d}A"
        yield TopicRow(topic_id=topic_id, name=f"topic-{number}")
        for partition_id in range(PARTITIONS_PER_TOPIC):
            first = number + partition_id
            replicas = tuple((first + step) % BROKERS + 1 for step in range(3))
            yield PartitionRow(
                topic_id=topic_id,
                partition_id=partition_id,
                topic_name=f"topic-{number}",
                replicas=replicas,
                isr=replicas,
                directories=(DIRECTORY,) * 3,
                leader=replicas[0],
                leader_epoch=0,
                partition_epoch=0,
            )


class MemorySnapshot:
    """Bytes of a snapshot."""

    def __init__(self, image: MetadataImage) -> None:
        self.snapshot_id: Final[SnapshotId] = image.snapshot_id
        self.data: Final = snapshot_bytes(image, written_ms=0)

    def batches(self) -> Iterator[RecordBatch]:
        position = 0
        while position < len(self.data):
            batch = read_batch(self.data, position)
            assert isinstance(batch, RecordBatch)
            yield batch
            position += batch.byte_count


class MemoryLog:
    """Log of one node, which leads it. ``appended``: batches that are not committed yet."""

    node_id = 1
    kraft_version = 1

    def __init__(self, end_offset: int) -> None:
        self.end_offset = end_offset
        self.appended: list[RecordBatch] = []
        self.byte_count = 0

    def append(
        self, epoch: int, records: Sequence[bytes], *, required_base_offset: int | None = None
    ) -> int:
        assert required_base_offset in (None, self.end_offset)
        builder = BatchBuilder(base_timestamp_ms=0, byte_count_max=1 << 24)
        builder.append(list(records))
        batch = read_batch(builder.build(self.end_offset, epoch).data)
        assert not isinstance(batch, TornTail)
        self.appended.append(batch)
        base_offset, self.end_offset = self.end_offset, batch.next_offset
        return base_offset

    def upgrade_kraft_version(
        self, epoch: int, version: int, *, required_base_offset: int, validate_only: bool
    ) -> int:
        raise AssertionError(f"kraft.version {version} is not measured")

    def resign(self, epoch: int) -> None:
        raise AssertionError(f"epoch {epoch} ended")

    def begin_snapshot(self, end_offset: int) -> MemoryWriter:
        return MemoryWriter(SnapshotId(epoch=1, end_offset=end_offset))


class MemoryWriter:
    """Writer of a snapshot, which counts bytes."""

    def __init__(self, snapshot_id: SnapshotId) -> None:
        self._snapshot_id = snapshot_id
        self.byte_count = 0

    def append(self, records: Sequence[bytes]) -> None:
        builder = BatchBuilder(base_timestamp_ms=0, byte_count_max=1 << 24)
        builder.append(list(records))
        self.byte_count += len(builder.build(0, 1).data)

    def finish(self) -> None:
        pass

    def sync(self) -> None:
        pass

    def freeze(self) -> SnapshotId:
        return self._snapshot_id

    def close(self) -> None:
        pass


class Silent:
    """Listener that fails on faults."""

    def log(self, message: str) -> None:
        pass

    def handle_fault(self, message: str, error: Exception) -> None:
        raise error

    handle_fatal_fault = handle_fault


def resident_bytes() -> int:
    """Return the memory of this process."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def cpu_s(call: Callable[[], object]) -> float:
    began_s = time.process_time()
    call()
    return time.process_time() - began_s


def step_times(begin: Callable[[], Steps]) -> list[float]:
    """Call a function, and run the steps that are left; return the CPU time of each step."""
    began_s = time.process_time()
    steps = begin()
    times = [time.process_time() - began_s]
    while steps is not None:
        began_s = time.process_time()
        if next(steps, steps) is steps:
            steps = None
        times.append(time.process_time() - began_s)
    return times


@contextmanager
def collection_times() -> Iterator[list[float]]:
    """Yield a list that gets the CPU time of each garbage collection in the block."""
    times: list[float] = []
    began_s = 0.0

    def note(phase: str, _: object) -> None:
        nonlocal began_s
        if phase == "start":
            began_s = time.process_time()
        else:
            times.append(time.process_time() - began_s)

    gc.callbacks.append(note)
    try:
        yield times
    finally:
        gc.callbacks.remove(note)


def collections_of_a_load(snapshot: MemorySnapshot) -> list[float]:
    """Return the times of Python's own garbage collections while a snapshot is loaded.

    Run it in another process.
    """
    gc.callbacks.clear()
    gc.unfreeze()
    controller = QuorumController(
        MemoryLog(OFFSET + 1), rng=random.Random(1), time_us=lambda: 0, listener=Silent()
    )
    with collection_times() as times:
        step_times(lambda: controller.handle_load_snapshot(snapshot))
    return times


def median_s(call: Callable[[int], object], count: int = 200) -> float:
    """Return the median CPU time of calls with the numbers from 0 on."""
    times = []
    for number in range(count):
        began_s = time.process_time()
        call(number)
        times.append(time.process_time() - began_s)
    return statistics.median(times)


def prepared(partition_count: int) -> tuple[MemorySnapshot, float]:
    """Return the snapshot of a cluster, and the time of a change of its image."""
    image = MetadataImage.from_rows(state_rows(partition_count), offset=OFFSET, leader_epoch=1)
    change = CreateTopic(topic="new", partitions=3, replication_factor=3)
    planned_s = cpu_s(lambda: plan_changes(image, [change], rng=random.Random(1)))
    return MemorySnapshot(image), planned_s


def measure(partition_count: int) -> Iterator[Row]:
    """Yield the rows of one number of partitions."""
    label = f"controller, {partition_count:,} partitions"
    with ProcessPoolExecutor(1) as another:  # so that its memory is not reused here
        snapshot, planned_s = another.submit(prepared, partition_count).result()
    with ProcessPoolExecutor(1) as another:
        default_times = another.submit(collections_of_a_load, snapshot).result()
    log = MemoryLog(OFFSET + 1)
    steps: list[Callable[[], None]] = []
    controller = QuorumController(
        log,
        rng=random.Random(1),
        time_us=lambda: 0,
        listener=Silent(),
        schedule=steps.append,
    )
    before = resident_bytes()
    load = f"{label}: load a snapshot of {len(snapshot.data) >> 20} MiB"
    with collection_times() as collections:
        times = step_times(lambda: controller.handle_load_snapshot(snapshot))
    yield row(f"{label}: memory", (resident_bytes() - before) / partition_count, "bytes each")
    yield row(load, sum(times), "s CPU")
    yield row(f"{load}, longest step", max(times) * 1e3, "ms CPU")
    yield row(
        f"{load}, longest garbage collection",
        max(collections) * 1e3,
        "ms CPU",
        max(default_times) * 1e3,
        "Python's default",
    )
    leader = LeaderNotification(2, 1, OFFSET + 1)
    claim_s = cpu_s(lambda: controller.handle_leader_change(leader))
    yield row(f"{label}: claim of a standby", claim_s * 1e6, "us CPU")

    def write(*changes: ChangeRequest) -> None:
        done = controller.write(
            "changes", lambda state: write_changes(changes, state), deadline_us=NO_DEADLINE
        )
        assert done.error is None
        controller.handle_commit(log.appended)
        log.appended.clear()
        assert done.is_done

    def topic(number: int) -> CreateTopic:
        return CreateTopic(topic=f"new-{number}", partitions=3, replication_factor=3)

    def retention(number: int) -> SetConfig:
        name = "retention.ms"
        return SetConfig(
            resource_type="TOPIC", resource_name="new-1", name=name, value=str(number + 1)
        )

    create_s = median_s(lambda number: write(topic(number)))
    yield row(
        f"{label}: create a topic of 3",
        create_s * 1e6,
        "us CPU",
        planned_s * 1e6,
        "state built from an image",
    )
    config_s = median_s(lambda number: write(retention(number)))
    yield row(f"{label}: set a config", config_s * 1e6, "us CPU")

    def times_of_steps(change: ChangeRequest, **options: Any) -> list[float]:
        """Return the times of the steps of a large write, and of its commit."""

        def begin() -> None:
            controller.write_in_steps(
                "large", partial(write_change_in_steps, change), deadline_us=NO_DEADLINE, **options
            )

        times = [cpu_s(begin)]
        while steps:
            times.append(cpu_s(steps.pop()))
        times.append(cpu_s(lambda: controller.handle_commit(log.appended)))
        log.appended.clear()
        return times

    large = CreateTopic(topic="large", partitions=9_999, replication_factor=3)
    for what, times in (
        ("create a topic of 9,999", times_of_steps(large)),
        (
            f"fence a broker of {partition_count * 3 // BROKERS:,}",
            times_of_steps(FenceBroker(broker_id=7), is_atomic=False),
        ),
    ):
        yield row(f"{label}: {what}", sum(times) * 1e3, "ms CPU")
        yield row(f"{label}: {what}, longest step", max(times) * 1e3, "ms CPU")
    times_of_steps(UnfenceBroker(broker_id=7), is_atomic=False)
    revert_s = cpu_s(lambda: controller.handle_leader_change(LeaderNotification(3, 2, OFFSET)))
    yield row(f"{label}: renounce, revert", revert_s * 1e6, "us CPU")
    yield from measure_publishing(label, snapshot, log)


def measure_publishing(label: str, snapshot: MemorySnapshot, log: MemoryLog) -> Iterator[Row]:
    """Yield the rows of images and snapshots."""
    steps: list[Callable[[], None]] = []
    loader = PublishingLoader(Silent())
    step_times(lambda: loader.handle_load_snapshot(snapshot))
    log.end_offset = snapshot.snapshot_id.end_offset
    generator = SnapshotGenerator(
        log,
        time_ms=lambda: 0,
        schedule=steps.append,
        sync=lambda _, when_done: when_done(None),
        listener=Silent(),
        bytes_max=1_000_000,
    )
    loader.install(generator)
    values = [encode(record) for record in image_records(small_image())]

    def commit() -> None:
        log.append(2, values)
        loader.handle_commit(log.appended)
        log.appended.clear()

    publish_s = median_s(lambda _: commit(), 50)
    yield row(f"{label}: publish a commit of {len(values)}", publish_s * 1e6, "us CPU")
    while not steps:
        commit()
    times = []
    while steps:
        times.append(cpu_s(steps.pop()))
    yield row(f"{label}: write a snapshot", sum(times), "s CPU")
    yield row(f"{label}: longest step of a snapshot", max(times) * 1e3, "ms CPU")


def small_image() -> MetadataImage:
    """Return an image of records that can be committed repeatedly."""
    rows: list[StateRow] = [one for one in state_rows(0) if isinstance(one, FeatureRow | BrokerRow)]
    return MetadataImage.from_rows(rows[:11], offset=0, leader_epoch=1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--partitions", type=int, nargs="+", default=[100_000, 1_000_000])
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    for partition_count in given.partitions:
        with survivors_frozen():
            for one in measure(partition_count):
                print_row(one, as_json=given.json, decimals=1)


if __name__ == "__main__":
    main()
