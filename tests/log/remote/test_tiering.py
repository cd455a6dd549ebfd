"""A log whose sealed segments are in an object store is the same log for its readers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from tests.log.cleaning.test_cleaned_transactions import interleave
from tests.log.remote.stored_backups import (
    STORE,
    FailingObjects,
    backed_up,
    restored,
    surroundings,
)
from tests.log.remote.tiered_logs import (
    OBJECTS,
    REMOTE,
    TIERED,
    CountedReads,
    InterruptedWrites,
    Unreachable,
    cleaned,
    manifest,
    objects,
    offsets,
    reader,
    remote_run,
    segments_of,
    store_on,
    tiered_log,
)
from tests.simulated_disk.simulated_disk import SimulatedDisk, Survival
from tests.support.appending import (
    DIRECTORY,
    TOPIC_ID,
    created_log,
    disk_with_parent,
    fill,
    reopened,
)
from tests.support.crash_injection import crashes_after

from raftlog.client.log_records import LogRecords
from raftlog.errors import CorruptBatchError, CorruptFileError, DataLossError, OptionError
from raftlog.limits import KIB, SMALL_FILE_BYTES_MAX
from raftlog.log.format import directory
from raftlog.log.format.directory import (
    EPOCH_CHECKPOINT_NAME,
    REMOTE_SEGMENTS_NAME,
    encode_epoch_checkpoint,
)
from raftlog.log.format.remote_chain import (
    RemoteChain,
    RemoteSegment,
    encode_remote_chain,
    read_remote_chain,
)
from raftlog.log.reading.directory_log import DirectoryLog
from raftlog.log.reading.opening import open_log
from raftlog.log.reading.reads import Isolation, LogKind
from raftlog.log.reading.transactions import ValueKind
from raftlog.log.remote.backup import back_up_log
from raftlog.log.writing.properties import (
    CleanupPolicy,
    LogConfig,
    LogProperties,
    encode_log_properties,
    parse_log_properties,
)
from raftlog.log.writing.single_voter_log import SingleVoterLog
from raftlog.storage.errors import (
    CorruptRemoteObjectError,
    LogEndsBeforeRemoteError,
    RemoteObjectNotFoundError,
    RemoteStorageError,
    WrongBackupError,
)
from raftlog.storage.objects import ObjectStore, StorageObjects

SUFFIXES = {".log", ".index", ".timeindex", ".leader_epoch_checkpoint", ".snapshot"}


# --- Copies ---------------------------------------------------------------------------------------


def test_sealed_segments_are_copied_with_their_indexes_and_each_once() -> None:
    disk, log = tiered_log()
    bases = segments_of(disk)
    counts = remote_run(log, store_on(disk), 1)
    assert (counts.copied_segments, counts.lag_segments) == (len(bases) - 1, 0)
    found = sorted(manifest(disk).ranges.values(), key=lambda one: one.metadata.first_offset)
    assert [one.metadata.first_offset for one in found] == bases[:-1]
    for one, base in zip(found, bases, strict=False):
        local = f"{DIRECTORY}/{base:020d}"
        remote = f"{REMOTE}/{one.metadata.object_name('')}"
        suffixes = {path.removeprefix(remote) for path in disk.files() if path.startswith(remote)}
        assert suffixes == SUFFIXES
        for suffix in (".log", ".index", ".timeindex"):
            assert disk.files()[remote + suffix] == disk.files()[local + suffix], suffix
    before = objects(disk)
    assert remote_run(log, store_on(disk), 2).copied_segments == 0
    fill(log, 30)
    counts = remote_run(log, store_on(disk), 3)
    assert counts.copied_segments == len(segments_of(disk)) - len(bases)
    assert before < objects(disk)


def test_the_lag_of_a_store_that_cannot_be_read_grows() -> None:
    disk, log = tiered_log()
    remote_run(log, store_on(disk), 1)
    (*_, next_base) = segments_of(disk)
    fill(log, 30)
    run = log.begin_remote_run(lambda _: Unreachable(store_on(disk)), surroundings(2), cache={})
    assert run is not None
    with run, pytest.raises(RemoteStorageError):
        run.run()
    left = [base for base in segments_of(disk)[:-1] if base >= next_base]
    assert run.counts.lag_segments == len(left) > 0
    sizes = [len(disk.files()[f"{DIRECTORY}/{base:020d}.log"]) for base in left]
    assert run.counts.lag_bytes == sum(sizes)


def test_a_segment_that_is_sealed_during_a_run_is_copied_by_the_next_one() -> None:
    disk, log = tiered_log(30)
    run = log.begin_remote_run(lambda _: store_on(disk), surroundings(1), cache={})
    assert run is not None
    fill(log, 30)  # sealed meanwhile: by the next run
    with run:
        run.run()
        log.complete_remote_run(run)
    chain = read_remote_chain(disk, DIRECTORY)
    assert chain is not None
    assert chain.copied_end_offset < 31 < log.end_offset
    assert remote_run(log, store_on(disk), 2).copied_segments == 3


def test_one_run_excludes_another_one() -> None:
    disk, log = tiered_log()
    run = log.begin_remote_run(lambda _: store_on(disk), surroundings(1), cache={})
    assert run is not None
    assert (
        reopened(disk).begin_remote_run(lambda _: store_on(disk), surroundings(2), cache={}) is None
    )
    run.close()
    assert remote_run(log, store_on(disk), 3).copied_segments > 3


def test_a_damaged_segment_is_not_copied_and_those_before_it_are() -> None:
    disk, log = tiered_log()
    bases = segments_of(disk)
    data = bytearray(disk.files()[f"{DIRECTORY}/{bases[2]:020d}.log"])
    data[700] ^= 1
    disk.put(f"{DIRECTORY}/{bases[2]:020d}.log", bytes(data))
    with pytest.raises(CorruptBatchError):
        remote_run(log, store_on(disk), 1)
    assert len(manifest(disk).ranges) == 2
    log.clean(now_ms=1_000_001)
    assert segments_of(disk) == bases


def test_a_store_with_another_log_is_not_written() -> None:
    disk, log = tiered_log()
    remote_run(log, store_on(disk), 1)
    other_disk, other = tiered_log(10)
    before = dict(disk.files())
    with pytest.raises(LogEndsBeforeRemoteError, match="another leader"):
        remote_run(other, store_on(disk), 2)
    for at in range(60):
        fill(other, 1, value_bytes=99 + at % 3)
    with pytest.raises(WrongBackupError, match="its last batch"):
        remote_run(other, store_on(disk), 3)
    assert disk.files() == before
    backed_up(other_disk, store_on(other_disk), 4, directory=DIRECTORY)
    with pytest.raises(WrongBackupError, match="a location of their own"):
        remote_run(other, store_on(other_disk), 5)


# --- Reads and local retention --------------------------------------------------------------------


def test_another_store_does_not_replace_the_remote_segments_of_a_log() -> None:
    disk, log = tiered_log()
    store = store_on(disk)
    cleaned(log, store, 1)
    other = StorageObjects(disk, "/other")
    with pytest.raises(WrongBackupError, match="local segments begin at"):
        remote_run(log, other, 2)
    assert not other.list_objects("")
    assert offsets(reader(disk, store)) == list(range(61))


def test_local_retention_deletes_what_was_copied_and_readers_see_every_record() -> None:
    disk, log = tiered_log()
    bases = segments_of(disk)
    log.clean(now_ms=1_000_000)
    assert segments_of(disk) == bases, "nothing was copied yet"
    cleaned(log, store_on(disk), 1)
    assert segments_of(disk) == bases[-2:]
    log_reader = reader(disk, store_on(disk))
    assert (log_reader.log_start_offset, log_reader.log_end_offset) == (0, 61)
    assert offsets(log_reader) == list(range(61))
    local = open_log(disk, DIRECTORY)
    assert (local.log_start_offset, local.log_end_offset) == (bases[-2], 61)
    log.close()
    log = reopened(disk)
    assert log.report.read_only is None
    fill(log, 30)
    cleaned(log, store_on(disk), 2)
    log_reader.refresh()
    assert offsets(log_reader) == list(range(91))
    for offset in (0, 7, bases[1], bases[-2] - 1, bases[-2], 60, 90):
        assert next(log_reader.batches(offset, 91)).base_offset == offset
    for at in (0, 5, bases[-2]):
        assert log_reader.offset_for_timestamp(1_000_000 + at) == at


def test_a_reader_sees_each_record_once_while_segments_are_copied_and_deleted() -> None:
    disk, log = tiered_log(30)
    log_reader = reader(disk, store_on(disk))
    seen: list[int] = []
    for seed in range(1, 12):
        fill(log, 10)
        cleaned(log, store_on(disk), seed)
        log_reader.refresh()
        start = seen[-1] + 1 if seen else 0
        for batch in log_reader.batches(start, log_reader.log_end_offset):
            seen += [record.offset for record in batch.records()]
        assert log_reader.log_start_offset == 0
    assert seen == list(range(log.end_offset))


def test_a_reader_of_a_log_that_starts_with_a_snapshot_finds_remote_segments_later() -> None:
    disk, log = tiered_log()
    cleaned(log, store_on(disk), 1)
    path = f"{DIRECTORY}/{REMOTE_SEGMENTS_NAME}"
    listed = disk.files()[path]
    disk.unlink(path)
    log_reader = reader(disk, store_on(disk))
    local_start = log_reader.log_start_offset
    log_reader.refresh()
    assert log_reader.log_start_offset == local_start > 0
    disk.put(path, listed)
    log_reader.refresh()
    assert offsets(log_reader) == list(range(61))


def test_a_read_that_began_before_a_deletion_continues_in_the_store() -> None:
    disk, log = tiered_log()
    log_reader = reader(disk, store_on(disk))
    batches = log_reader.batches(0, 61)
    assert next(batches).base_offset == 0
    cleaned(log, store_on(disk), 1)
    assert [one.base_offset for one in batches] == list(range(1, 61))


def test_remote_segments_of_a_node_with_other_boundaries_are_read_without_overlap() -> None:
    disk, log = tiered_log(45)
    store = store_on(disk)
    remote_run(log, store, 1)
    other_disk = disk_with_parent()
    other = created_log(other_disk, config=replace(TIERED, segment_bytes=3_100))
    fill(other, 90)
    assert segments_of(other_disk)[1] != segments_of(disk)[1]
    cleaned(other, store, 2)
    first = segments_of(other_disk)[0]
    assert first > 0
    assert offsets(reader(other_disk, store)) == list(range(91))
    fill(log, 45)
    assert cleaned(log, store, 3).copied_segments <= 1
    assert offsets(reader(disk, store)) == list(range(91))


def test_two_leaders_at_the_same_time_leave_one_whole_chain() -> None:
    disk, log = tiered_log(75)
    store = store_on(disk)
    other_disk = disk_with_parent()
    other = created_log(other_disk, config=replace(TIERED, segment_bytes=3_100))
    fill(other, 90)
    waiting = [lambda: remote_run(other, store, 3)]

    def second_leader(name: str) -> None:
        if waiting and name.startswith(OBJECTS):
            waiting.pop()()

    remote_run(log, InterruptedWrites(store, second_leader, at_name=".log"), 2)
    assert not waiting
    for at, (place, one) in enumerate([(disk, log), (other_disk, other)]):
        fill(one, 91 - one.end_offset)
        cleaned(one, store, 4 + at)
        assert segments_of(place)[0] > 0
        assert offsets(reader(place, store)) == list(range(91))


def test_a_follower_deletes_only_what_the_manifest_has() -> None:
    disk, leader = tiered_log(60)
    store = store_on(disk)
    other_disk = disk_with_parent()
    follower = created_log(other_disk, config=TIERED)
    fill(follower, 90)
    assert remote_run(follower, store, 1, is_leader=False).copied_segments == 0
    follower.clean(now_ms=1_000_000)
    assert segments_of(other_disk)[0] == 0
    remote_run(leader, store, 2)
    assert remote_run(follower, store, 3, is_leader=False).copied_segments == 0
    follower.clean(now_ms=1_000_000)
    assert segments_of(other_disk)[0] == segments_of(disk)[-1]
    assert offsets(reader(other_disk, store)) == list(range(91))


def test_leader_epochs_of_remote_segments_survive_local_deletion_and_crashes() -> None:
    disk, log = tiered_log(20)
    for _ in range(3):
        log.claim(now_ms=1_000_000)
        fill(log, 20)
    epochs = log.epochs
    cleaned(log, store_on(disk), 1)
    assert log.log_start_offset > 50
    assert log.epochs == epochs
    disk.crash(Survival.NOTHING)
    log = reopened(disk)
    assert log.epochs == epochs
    assert reader(disk, store_on(disk)).epochs == epochs


def test_an_upload_that_another_node_has_not_finished_is_deleted_after_a_day() -> None:
    disk, log = tiered_log()
    store = store_on(disk)
    run = log.begin_remote_run(lambda _: store, surroundings(1), cache={}, node_id=7)
    assert run is not None
    with run:
        run.run(lambda: bool(objects(disk)))  # aborted within the first segment
    assert manifest(disk).unfinished
    assert read_remote_chain(disk, DIRECTORY) is None
    remote_run(log, store, 2)
    assert [one.broker_id for one in manifest(disk).unfinished] == [7]
    remote_run(log, store, 24 * 60 * 60 * 1000 + 10)
    assert not manifest(disk).unfinished
    named = {one.metadata.object_name("") for one in manifest(disk).ranges.values()}
    assert {OBJECTS + name.partition(".")[0] for name in objects(disk)} == named


# --- Retention of the whole log -------------------------------------------------------------------


def test_retention_deletes_remote_segments_and_their_objects_in_the_next_run() -> None:
    disk, log = tiered_log(config=replace(TIERED, retention_bytes=5_000))
    store, bases = store_on(disk), segments_of(disk)
    cleaned(log, store, 1)
    before = objects(disk)
    log_reader = reader(disk, store)
    start = log_reader.log_start_offset
    assert start in bases
    assert 0 < start < segments_of(disk)[0]
    assert offsets(log_reader) == list(range(start, 61))
    with pytest.raises(DataLossError):
        next(log_reader.batches(0, 61))
    cleaned(log, store, 2)
    assert objects(disk) < before
    assert min(int(name[:20]) for name in objects(disk)) == start
    assert not manifest(disk).deleting
    assert offsets(reader(disk, store)) == list(range(start, 61))
    fill(log, 60)
    for seed in (3, 4):
        cleaned(log, store, seed)
    log_reader.refresh()
    assert offsets(log_reader) == list(range(log_reader.log_start_offset, 121))
    assert min(int(name[:20]) for name in objects(disk)) == log_reader.log_start_offset > start


def test_a_log_of_which_retention_deletes_everything_continues() -> None:
    disk, log = tiered_log(config=replace(TIERED, retention_ms=1_000))
    store = store_on(disk)
    for seed in range(10**9, 10**9 + 4):
        cleaned(log, store, seed)
    assert not objects(disk)
    log_reader = reader(disk, store)
    assert log_reader.log_start_offset == log_reader.log_end_offset == 61
    fill(log, 30)
    counts = remote_run(log, store, 5)
    assert counts.copied_segments == 2
    chain = read_remote_chain(disk, DIRECTORY)
    assert chain is not None
    assert chain.segments[0].first_offset == 61


@pytest.mark.parametrize("offset", [5, 14, 40, 57])
def test_deleted_records_stay_deleted_locally_and_remotely(offset: int) -> None:
    disk, log = tiered_log()
    store = store_on(disk)
    cleaned(log, store, 1)
    assert log.delete_records(offset, now_ms=1_000_002) == offset
    for seed in (3, 4, 5):
        assert offsets(reader(disk, store)) == list(range(offset, 61))
        cleaned(log, store, seed)
    assert all(one.metadata.last_offset >= offset for one in manifest(disk).ranges.values())


def test_records_that_were_deleted_before_are_not_copied() -> None:
    disk, log = tiered_log()
    store = store_on(disk)
    assert log.delete_records(5, now_ms=1_000_002) == 5
    remote_run(log, store, 1)
    assert min(one.metadata.first_offset for one in manifest(disk).ranges.values()) == 5
    disk.unlink(f"{DIRECTORY}/{REMOTE_SEGMENTS_NAME}")  # as a second node, in its first run
    remote_run(log, store, 2, is_leader=False)
    log.clean(now_ms=1_000_003)
    assert log.log_start_offset > 5
    assert offsets(reader(disk, store)) == list(range(5, 61))


# --- Crashes and failing stores -------------------------------------------------------------------


def continued(disk: SimulatedDisk, seed: int, what: str) -> None:
    """Open the log after a crash, and check that it is whole, now and after the next runs."""
    log = reopened(disk)
    assert log.report.read_only is None, what
    store = store_on(disk)
    assert offsets(reader(disk, store)) == list(range(log.end_offset)), what
    fill(log, 13)
    for at in range(2):
        cleaned(log, store, seed + at)
        assert offsets(reader(disk, store)) == list(range(log.end_offset)), what
    found = manifest(disk)
    assert not found.unfinished, what
    named = {one.metadata.object_name("").removeprefix(OBJECTS) for one in found.ranges.values()}
    assert {name.partition(".")[0] for name in objects(disk)} == named, what


SURVIVALS = (None, Survival.NOTHING, Survival.MIXED)
"""What survives a crash; None: all, because only the process ends."""


def crashes(batches: int, *, is_complete: bool) -> Iterator[tuple[SimulatedDisk, int, str]]:
    """Yield the disk after a crash at each operation of a second run and its local deletion; of
    all kinds if ``is_complete``, otherwise of each kind in turn."""
    for operations in range(10_000):
        for survival in SURVIVALS if is_complete else (SURVIVALS[operations % 3],):
            disk, log = tiered_log(batches)
            cleaned(log, store_on(disk), 1)
            fill(log, 12)
            is_crash = crashes_after(disk, operations, cleaned, log, store_on(disk), 2)
            if not is_crash:
                return
            disk.end(survival)
            yield disk, operations, f"operation {operations}, {survival}"


@pytest.mark.parametrize("is_complete", [False, pytest.param(True, marks=pytest.mark.nightly)])
def test_a_crash_at_any_operation_of_a_run_leaves_the_log_whole(is_complete: bool) -> None:
    count = 0
    for disk, operations, what in crashes(26, is_complete=is_complete):
        continued(disk, 10 + operations, what)
        count += 1
    assert count > (100 if is_complete else 33)


@pytest.mark.parametrize("byte_count", [None, 100])
def test_a_store_that_fails_at_any_write_leaves_the_log_whole(byte_count: int | None) -> None:
    for fail_at in range(1_000):
        disk, log = tiered_log(40)
        store = store_on(disk)
        try:
            cleaned(log, FailingObjects(store, fail_at, byte_count), 1)
        except RemoteStorageError:
            log.clean(now_ms=1_000_001)
            assert offsets(reader(disk, store)) == list(range(41)), fail_at
            for seed in (2, 3):
                cleaned(log, store, seed)
            assert offsets(reader(disk, store)) == list(range(41)), fail_at
            continue
        assert fail_at > 15
        return
    raise AssertionError("each write fails")


# --- Damage ---------------------------------------------------------------------------------------


def test_objects_that_are_missing_or_damaged_are_errors_with_their_names() -> None:
    disk, log = tiered_log()
    store = store_on(disk)
    cleaned(log, store, 1)
    (name,) = (one for one in objects(disk) if one.startswith("0" * 20) and one.endswith(".log"))
    path = f"{REMOTE}/{OBJECTS}{name}"
    data = disk.files()[path]
    disk.put(path, data[:-1])
    with pytest.raises(CorruptRemoteObjectError, match=name):
        offsets(reader(disk, store))
    disk.put(path, data[:500] + bytes((data[500] ^ 1,)) + data[501:])
    with pytest.raises(CorruptBatchError, match=name):
        offsets(reader(disk, store))
    disk.unlink(path)
    with pytest.raises(RemoteObjectNotFoundError, match=name):
        offsets(reader(disk, store))
    start = manifest(disk).ranges
    assert next(reader(disk, store).batches(20, 61)).base_offset == 20
    assert start
    disk.put(path, data)
    for suffix in (".index", ".timeindex"):
        disk.unlink(path.removesuffix(".log") + suffix)
    assert offsets(reader(disk, store)) == list(range(61))
    assert next(reader(disk, store).batches(7, 61)).base_offset == 7


@pytest.mark.parametrize("isolation", Isolation)
def test_records_in_the_directory_are_read_without_a_request_to_the_store(
    isolation: Isolation,
) -> None:
    disk, log = tiered_log(20)
    log.claim(now_ms=1_000)
    fill(log, 20)
    log.claim(now_ms=1_000)
    fill(log, 20)
    store = store_on(disk)
    cleaned(log, store, 1)
    start, end = log.log_start_offset, log.end_offset
    assert 22 < start < end
    found = reader(disk, store)
    unreachable = reader(disk, Unreachable(store))
    previous = None
    for _ in range(2):
        read_end = unreachable.read_end(isolation=isolation, previous=previous)
        assert read_end == found.read_end(isolation=isolation, previous=previous)
        assert read_end.offset == end
        plan = unreachable.plan(start, end, isolation=isolation)
        assert plan == found.plan(start, end, isolation=isolation)
        records = [
            one.offset for batch in unreachable.batches(start, end) for one in batch.records()
        ]
        assert records == list(range(start, end))
        previous = read_end
        unreachable.refresh()
    assert unreachable.epochs == found.epochs == log.epochs
    assert [one.start_offset for one in log.epochs.entries] == [0, 21, 42]


def committed_offsets(disk: SimulatedDisk, store: ObjectStore, start: int, end: int) -> list[int]:
    def opened() -> DirectoryLog:
        return open_log(disk, DIRECTORY, kind=LogKind.PARTITION, open_store=lambda _: store)

    return [one.offset for one in LogRecords(opened, start, end, Isolation.READ_COMMITTED)]


def log_of_transactions(seed: int) -> tuple[SimulatedDisk, SingleVoterLog, list[int]]:
    """Return a disk, its log of open, aborted and committed transactions, and the offsets of the
    committed records, read before any segment is remote."""
    disk = disk_with_parent()
    log = created_log(disk, config=TIERED)
    aborted = interleave(log, Random(seed), 120)
    expected = committed_offsets(disk, store_on(disk), 0, log.end_offset)
    assert aborted
    assert aborted.isdisjoint(expected)
    return disk, log, expected


@pytest.mark.parametrize("seed", range(4))
def test_a_read_of_committed_records_needs_no_segment_before_its_range(seed: int) -> None:
    """The producers at the end of each segment are stored beside it."""
    disk, log, expected = log_of_transactions(seed)
    end = log.end_offset
    cleaned(log, store_on(disk), 1)
    local_start = log.log_start_offset
    bases = sorted(int(name[:20]) for name in objects(disk) if name.endswith(".log"))
    assert len(bases) > 5
    for start in range(local_start):
        store = CountedReads(disk, REMOTE)
        wanted = [one for one in expected if start <= one < start + 3]
        assert committed_offsets(disk, store, start, min(start + 3, end)) == wanted
        assert min(store.bases) == max(base for base in bases if base <= start)
    assert committed_offsets(disk, store_on(disk), 0, end) == expected
    for name in objects(disk):
        if name.endswith(".snapshot"):
            disk.unlink(f"{REMOTE}/{OBJECTS}{name}")
    for start in range(0, local_start, 7):
        wanted = [one for one in expected if start <= one < start + 3]
        assert committed_offsets(disk, store_on(disk), start, min(start + 3, end)) == wanted


@pytest.mark.parametrize("seed", range(4))
def test_producers_that_are_left_after_their_local_segments_are_not_those_at_the_remote_ends(
    seed: int,
) -> None:
    """A crash, or a reader's listing, may be between both deletions."""
    disk, log, expected = log_of_transactions(seed)
    end = log.end_offset
    local = [path for path in disk.files() if path.startswith(f"{DIRECTORY}/")]
    snapshots = {path: disk.files()[path] for path in local if path.endswith(".snapshot")}
    cleaned(log, store_on(disk), 1)
    local_start = log.log_start_offset
    left = {path: data for path, data in snapshots.items() if path not in disk.files()}
    assert len(left) > 1
    for path, data in left.items():
        with disk.create_file(path) as file:
            file.write_at(0, data)
    for start in range(local_start):
        wanted = [one for one in expected if start <= one < start + 3]
        assert committed_offsets(disk, store_on(disk), start, min(start + 3, end)) == wanted
    assert committed_offsets(disk, store_on(disk), 0, end) == expected


def test_leader_epochs_that_the_checkpoint_lacks_are_those_of_the_remote_segments() -> None:
    disk, log = tiered_log(20)
    log.claim(now_ms=1_000)
    fill(log, 40)
    store = store_on(disk)
    cleaned(log, store, 1)
    path = f"{DIRECTORY}/{EPOCH_CHECKPOINT_NAME}"
    for data in (b"", encode_epoch_checkpoint(log.epochs.without_before(log.log_start_offset))):
        disk.put(path, data)
        assert reader(disk, store).epochs == log.epochs


def test_a_list_of_remote_segments_that_is_damaged_is_written_again() -> None:
    disk, log = tiered_log()
    store = store_on(disk)
    cleaned(log, store, 1)
    path = f"{DIRECTORY}/{REMOTE_SEGMENTS_NAME}"
    data = disk.files()[path]
    for damaged in (b"", data[:-1], data.replace(b"61", b"62", 1), b"00000000\n{}"):
        disk.put(path, damaged)
        if damaged != data:
            with pytest.raises(CorruptFileError):
                reader(disk, store)
    log.clean(now_ms=1_000_001)
    remote_run(log, store, 2)
    assert disk.files()[path] == data
    assert offsets(reader(disk, store)) == list(range(61))


@pytest.mark.parametrize(
    ("count", "byte_count_max"),
    [(400, 16 * KIB), pytest.param(250_000, SMALL_FILE_BYTES_MAX, marks=pytest.mark.nightly)],
)
def test_a_list_of_more_segments_than_a_small_file_can_have_is_read(
    count: int, byte_count_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(directory, "SMALL_FILE_BYTES_MAX", byte_count_max)
    disk = disk_with_parent()
    disk.make_directory(DIRECTORY)
    first = 10**18
    segments = tuple(
        RemoteSegment(
            first_offset=first + at,
            end_offset=first + at + 1,
            segment_id="A" * 22,
            byte_count=2**30,
            max_timestamp_ms=2**42,
        )
        for at in range(count)
    )
    chain = RemoteChain(uri=REMOTE, directory=OBJECTS, segments=segments)
    data = encode_remote_chain(chain)
    assert byte_count_max < len(data) < count * 100
    disk.put(f"{DIRECTORY}/{REMOTE_SEGMENTS_NAME}", data)
    assert read_remote_chain(disk, DIRECTORY) == chain


def test_an_object_that_the_store_refuses_is_an_error_of_the_store() -> None:
    disk, log = tiered_log()
    store = store_on(disk)
    cleaned(log, store, 1)
    with pytest.raises(RemoteStorageError, match="timeout"):
        offsets(reader(disk, Unreachable(store)))


def test_a_log_with_remote_segments_is_backed_up_as_a_whole() -> None:
    disk, log = tiered_log()
    cleaned(log, store_on(disk), 1)
    backups = StorageObjects(disk, STORE)
    back_up_log(reader(disk, store_on(disk)), backups, surroundings(2))
    disk.make_directory("/restored")
    done = restored(backups, disk, target="/restored/orders-0")
    assert (done.log_start_offset, done.end_offset) == (0, 61)
    copy = open_log(disk, "/restored/orders-0")
    assert offsets(copy) == list(range(61))
    assert not SingleVoterLog.open(
        disk, "/restored/orders-0", now_ms=5
    ).config.remote_storage_enable


# --- Settings -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("option", "settings"),
    [
        ("remote.storage.uri", {"remote_storage_uri": ""}),
        ("remote.storage.uri", {"remote_storage_uri": "s3://key:secret@bucket"}),
        ("remote.storage.uri", {"remote_storage_uri": "abfs://a/c/p?tenant_id=t&client_secret=s"}),
        ("remote.storage.uri", {"remote_storage_uri": "s3://user@bucket/p"}),
        ("remote.storage.uri", {"remote_storage_uri": "abfs://a/c/p?sig=secret"}),
        ("remote.storage.uri", {"remote_storage_uri": "abfs://c@a/p?sig=secret"}),
        (
            "remote.storage.uri",
            {"remote_storage_uri": "abfss://a:secret@a.blob.core.windows.net/c"},
        ),
        ("remote.storage.uri", {"remote_storage_uri": "/a b"}),
        ("remote.storage.uri", {"remote_storage_uri": "remote"}),
        ("remote.storage.enable", {"cleanup_policy": CleanupPolicy.COMPACT}),
        ("remote.storage.enable", {"values": ValueKind.KRAFT}),
        ("local.retention.ms", {"local_retention_ms": -3}),
    ],
)
def test_settings_that_contradict_each_other_are_refused(
    option: str, settings: dict[str, object]
) -> None:
    values: dict[str, Any] = {
        "remote_storage_enable": True,
        "remote_storage_uri": "/remote",
        **settings,
    }
    with pytest.raises(OptionError) as caught:
        LogConfig(**values)
    assert caught.value.option == option
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "uri",
    [
        "abfs://container@account.dfs.core.windows.net/logs/orders",
        "abfss://container@account.dfs.core.windows.net/logs",
        "abfss://account.blob.core.windows.net/container/logs",
        "abfs://account@127.0.0.1:10000/container/logs",
        "abfs://account@container/logs",
    ],
)
def test_the_uris_of_azure_have_a_container_or_an_account_before_the_at_sign(uri: str) -> None:
    config = replace(TIERED, remote_storage_uri=uri)
    properties = encode_log_properties(LogProperties(topic_id=TOPIC_ID, config=config))
    assert parse_log_properties(properties, "x").config.remote_storage_uri == uri


@pytest.mark.parametrize(
    ("local", "whole", "effective"),
    [(-2, None, None), (-2, 7, 7), (None, 7, 7), (5, 7, 5), (9, 7, 7), (5, None, 5)],
)
def test_local_retention_is_at_most_that_of_the_log(
    local: int | None, whole: int | None, effective: int | None
) -> None:
    config = replace(
        TIERED,
        local_retention_ms=local,
        retention_ms=whole,
        local_retention_bytes=local,
        retention_bytes=whole,
    )
    assert config.local_retention == (effective, effective)
    assert (
        parse_log_properties(
            encode_log_properties(LogProperties(topic_id=TOPIC_ID, config=config)), "x"
        ).config
        == config
    )
