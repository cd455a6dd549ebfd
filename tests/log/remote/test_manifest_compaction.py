"""A manifest is compacted, and every reader has the same entries before, meanwhile and after."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.log.remote.stored_backups import STORE, FailingObjects, InterruptedObjects, surroundings
from tests.simulated_disk.simulated_disk import SimulatedDisk, Survival
from tests.support.cli import rows
from tests.support.crash_injection import crashes_after

from raftlog.client.object_stores import open_object_store
from raftlog.log.format.epoch_cache import EpochEntry
from raftlog.log.remote import compaction
from raftlog.log.remote.compaction import (
    COMPACTIONS_DIRECTORY,
    KEPT_MS,
    LISTING_MS_MAX,
    OBJECTS_MAX,
    compact_manifest,
    parse_compaction,
)
from raftlog.log.remote.manifest import (
    ManifestWriter,
    RemoteLogManifest,
    Surroundings,
    state_change,
)
from raftlog.log.remote.segment_metadata import (
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
    SegmentRange,
)
from raftlog.storage.errors import CorruptRemoteObjectError, RemoteStorageError
from raftlog.storage.objects import StorageObjects
from raftlog.types import TopicPartition

FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED
DELETING = RemoteLogSegmentState.DELETE_SEGMENT_STARTED
DELETED = RemoteLogSegmentState.DELETE_SEGMENT_FINISHED
TIME_MS = 1_000_000
COUNT = 60
SMALL_COUNT = 8


def at_time(now_ms: int, seed: int = 1) -> Surroundings:
    one = surroundings(seed)
    return Surroundings(now_ms=lambda: now_ms, new_id=one.new_id, new_partition=one.new_partition)


def an_entry(at: int) -> RemoteLogSegmentMetadata:
    return RemoteLogSegmentMetadata(
        segment_id=f"{at:021d}A",
        topic_partition=TopicPartition("orders", 0),
        topic_id="t" * 21 + "A",
        first_offset=at * 10,
        last_offset=at * 10 + 9,
        broker_id=1,
        max_timestamp_ms=TIME_MS,
        event_timestamp_ms=TIME_MS,
        leader_epochs=(EpochEntry(epoch=1, start_offset=at * 10),),
        byte_count=1_000,
        state=RemoteLogSegmentState.COPY_SEGMENT_STARTED,
    )


def range_of(entry: RemoteLogSegmentMetadata) -> SegmentRange:
    return SegmentRange(
        metadata=entry,
        base_offset=entry.first_offset,
        position=0,
        crc32c=1,
        last_batch_position=0,
        last_batch_crc32c=1,
    )


def filled(count: int = COUNT) -> tuple[SimulatedDisk, StorageObjects]:
    """Return a store with a manifest of some partitions with two to four objects each: the first
    quarter of the entries is deleted, the last is being deleted, and one is unfinished."""
    disk = SimulatedDisk()
    store = StorageObjects(disk, STORE)
    for at in range(count):
        entry, writer = an_entry(at), ManifestWriter(store, at)
        writer.append([entry])
        if at == count // 2:
            continue
        writer.finish(range_of(entry), now_ms=TIME_MS)
        states = (DELETING, DELETED) if at < count // 4 else (DELETING,) if at == count - 1 else ()
        for state in states:
            writer.append([state_change(entry, state, now_ms=TIME_MS)])
    return disk, store


def content(manifest: RemoteLogManifest) -> tuple[Any, ...]:
    """Return all that a reader has of a manifest."""
    return (
        manifest.ranges,
        *(
            sorted(entries, key=lambda one: one.segment_id)
            for entries in (manifest.unfinished, manifest.deleting, manifest.copied_before)
        ),
    )


def compacted(store: Any, now_ms: int = TIME_MS, seed: int = 1) -> bool:
    return compact_manifest(store, RemoteLogManifest(store), at_time(now_ms, seed))


def object_names(store: StorageObjects) -> list[str]:
    return [
        one.name
        for directory in ("manifest", COMPACTIONS_DIRECTORY)
        for one in store.list_objects(directory)
    ]


def test_a_manifest_of_many_objects_becomes_one_of_few_with_the_same_entries() -> None:
    _, store = filled()
    before = RemoteLogManifest(store)
    assert before.object_count > OBJECTS_MAX
    names = set(object_names(store))
    assert compacted(store)
    after = RemoteLogManifest(store)
    assert content(after) == content(before)
    assert after.object_count == 1
    assert names < set(object_names(store)), "readers that have listed the objects read them"
    assert not compacted(store, TIME_MS + LISTING_MS_MAX - 1)
    assert names < set(object_names(store))
    assert not compacted(store, TIME_MS + LISTING_MS_MAX)
    assert len(object_names(store)) == 2
    assert content(RemoteLogManifest(store)) == content(before)


def test_the_command_prints_the_same_segments_of_a_compacted_manifest(tmp_path: Path) -> None:
    _, simulated = filled()
    store = open_object_store(tmp_path / "store")
    for one in simulated.list_objects("manifest"):
        with simulated.open_object(one.name) as file:
            store.put(one.name, [file.read_at(0, file.byte_count())])
    before = rows("state", tmp_path / "store/manifest", "remote_segments")
    assert len(before) > COUNT // 2
    for now_ms in (TIME_MS, TIME_MS + LISTING_MS_MAX):
        compacted(store, now_ms)
        assert rows("state", tmp_path / "store/manifest", "remote_segments") == before
    assert len(store.list_objects("manifest")) == 1


def test_events_of_deleted_segments_drop_out_but_for_the_end_of_what_was_copied() -> None:
    _, store = filled()
    before = RemoteLogManifest(store)
    assert len(before.deleted) == COUNT // 4
    assert compacted(store, TIME_MS + KEPT_MS)
    after = RemoteLogManifest(store)
    last = max(before.copied_before, key=lambda one: one.last_offset)
    assert after.ranges == before.ranges
    assert (after.unfinished, after.deleting) == (before.unfinished, before.deleting)
    assert not after.deleted
    assert [one.segment_id for one in after.copied_before] == [last.segment_id]
    assert last == before.deleting[0]


def test_a_small_manifest_is_not_compacted() -> None:
    store = StorageObjects(SimulatedDisk(), STORE)
    for at in range(OBJECTS_MAX + 1):
        ManifestWriter(store, at).append([an_entry(at)])
    assert not compacted(store)
    ManifestWriter(store, COUNT * 10).append([an_entry(COUNT * 10)])
    assert compacted(store)


def test_a_writer_continues_after_a_compaction() -> None:
    _, store = filled()
    entry, writer = an_entry(COUNT), ManifestWriter(store, COUNT)
    writer.append([entry])
    for hours in range(1, 4):
        first = COUNT * 10 + hours * 2 * OBJECTS_MAX
        for at in range(first, first + OBJECTS_MAX + 1):
            ManifestWriter(store, at).append([an_entry(at)])
        assert compacted(store, TIME_MS + hours * LISTING_MS_MAX, seed=hours)
    before = RemoteLogManifest(store)
    writer.finish(range_of(entry), now_ms=TIME_MS)
    after = RemoteLogManifest(store)
    assert after.ranges.keys() - before.ranges.keys() == {entry.segment_id}
    assert len(store.list_objects(COMPACTIONS_DIRECTORY)) <= 2
    for hours in range(5, 8):
        compacted(store, TIME_MS + hours * LISTING_MS_MAX, seed=hours)
    assert content(RemoteLogManifest(store)) == content(after)
    assert len(store.list_objects(COMPACTIONS_DIRECTORY)) == 1


def test_a_late_event_of_a_segment_that_was_dropped_is_ignored() -> None:
    _, store = filled()
    assert compacted(store, TIME_MS + KEPT_MS)
    before = RemoteLogManifest(store)
    late = ManifestWriter(store, COUNT * 10)
    late.finish(range_of(an_entry(0)), now_ms=TIME_MS)
    late.append([state_change(an_entry(0), DELETING, now_ms=TIME_MS)])
    assert content(RemoteLogManifest(store)) == content(before)


def test_two_compactions_at_the_same_time_leave_every_entry() -> None:
    disk, store = filled()
    before = RemoteLogManifest(store)
    second = [lambda: compacted(store, TIME_MS + 1, seed=2)]

    def interrupt() -> None:
        if second:
            assert second.pop()()

    assert compacted(InterruptedObjects(disk, interrupt))
    assert content(RemoteLogManifest(store)) == content(before)
    assert len(store.list_objects(COMPACTIONS_DIRECTORY)) == 2
    for hours in (1, 2):
        compacted(store, TIME_MS + 1 + hours * LISTING_MS_MAX)
        assert content(RemoteLogManifest(store)) == content(before)


@pytest.fixture
def small_compactions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compact manifests of as many objects as ``SMALL_COUNT`` entries have."""
    monkeypatch.setattr(compaction, "OBJECTS_MAX", SMALL_COUNT)


def each_step(check: Callable[[SimulatedDisk, int], bool]) -> int:
    """Check a compaction and the deletion after it at each operation; return how many."""
    filled_disk, filled_store = filled(SMALL_COUNT)
    before = content(RemoteLogManifest(filled_store))
    for operations in range(10_000):
        disk = filled_disk.copy()
        store = StorageObjects(disk, STORE)
        has_crashed = check(disk, operations)
        assert content(RemoteLogManifest(store)) == before, operations
        later = TIME_MS + 2 * LISTING_MS_MAX
        for at in range(3):
            compacted(store, later + at * LISTING_MS_MAX, seed=7 + at)
            assert content(RemoteLogManifest(store)) == before, operations
        assert len(object_names(store)) <= 3, operations  # one may be torn
        if not has_crashed:
            return operations
    raise AssertionError("a compaction ends")


@pytest.mark.usefixtures("small_compactions")
@pytest.mark.parametrize(
    "survivals",
    [
        (None, Survival.NOTHING, Survival.MIXED),
        *(
            pytest.param((one,), marks=pytest.mark.nightly)
            for one in (None, Survival.NOTHING, Survival.MIXED)
        ),
    ],
    ids=["in turn", "killed", "nothing", "mixed"],
)
def test_a_crash_at_any_step_of_a_compaction_leaves_every_entry(
    survivals: tuple[Survival | None, ...],
) -> None:
    def check(disk: SimulatedDisk, operations: int) -> bool:
        store = StorageObjects(disk, STORE)

        def work() -> None:
            compacted(store)
            compacted(store, TIME_MS + LISTING_MS_MAX)

        has_crashed = crashes_after(disk, operations, work)
        disk.end(survivals[operations % len(survivals)])
        return has_crashed

    assert each_step(check) > 30


@pytest.mark.usefixtures("small_compactions")
@pytest.mark.parametrize("byte_count", [None, 0, 50])
def test_a_store_that_fails_at_any_write_of_a_compaction_leaves_every_entry(
    byte_count: int | None,
) -> None:
    def check(disk: SimulatedDisk, operations: int) -> bool:
        store = FailingObjects(StorageObjects(disk, STORE), operations, byte_count)
        try:
            compacted(store)
        except RemoteStorageError:
            return True
        return False

    assert each_step(check) == 2


@pytest.mark.parametrize("data", [b"", b"00000000\n{}", b"[]", b"7", b'{"version":2}'])
def test_an_object_that_is_no_compaction_supersedes_nothing(data: bytes) -> None:
    assert parse_compaction(data) is None
    _, store = filled()
    before = content(RemoteLogManifest(store))
    store.put(f"{COMPACTIONS_DIRECTORY}/0000000007.json", [data])
    assert content(RemoteLogManifest(store)) == before
    assert compacted(store)
    assert content(RemoteLogManifest(store)) == before


def test_a_compacted_manifest_with_a_missing_object_is_corrupt() -> None:
    _, store = filled()
    assert compacted(store)
    (name,) = RemoteLogManifest(store).ends.keys() - set(range(COUNT))
    store.delete(f"manifest/__remote_log_metadata-{name}/{'0' * 20}.log")
    with pytest.raises(CorruptRemoteObjectError, match="ends at 0, and had"):
        RemoteLogManifest(store)
