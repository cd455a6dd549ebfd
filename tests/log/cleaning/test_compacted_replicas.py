"""Compaction of a quorum's logs: each replica on its own, below the high watermark, in steps."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from random import Random

import pytest
from tests.log.cleaning.test_compaction import COMPACTED, records_of, table
from tests.log.cleaning.test_retained_records import batch_bytes
from tests.simulated_disk.crash_points import CrashState
from tests.simulated_disk.simulated_disk import SimulatedDisk
from tests.support.appending import (
    DIRECTORY,
    NOW_MS,
    append_batches,
    batches_of,
    created_replica,
    disk_with_parent,
    reopened_replica,
)
from tests.support.sweep_size import CRASHES

from raftlog.errors import LogError, LogNotFoundError
from raftlog.log.format.directory import (
    CLEANED_SUFFIX,
    COMPACTED_CHECKPOINT_NAME,
    INDEX_SUFFIX,
    PRODUCER_SNAPSHOT_SUFFIX,
    TOMBSTONE_CHECKPOINT_NAME,
)
from raftlog.log.segment import OFFSET_ENTRY, Segment, SegmentMetadata
from raftlog.log.writing.quorum_log import QuorumLog, TailCache
from raftlog.records.batch import TornTail, read_batch
from raftlog.records.control import OffsetCommit


def append(log: QuorumLog, key: bytes, value: bytes | None, *, is_committed: bool = True) -> None:
    append_batches(log, batch_bytes(log.end_offset, (key, value), epoch=log.epoch))
    log.flush()
    if is_committed:
        log.advance_high_watermark(log.end_offset)


def fill(log: QuorumLog, seed: int, count: int) -> None:
    rng = Random(seed)
    for _ in range(count):
        value = None if rng.random() < 0.2 else b"%d" % rng.randrange(1_000) + b"v" * 20
        append(log, b"key %d" % rng.randrange(9), value)


def compact(log: QuorumLog, *, now_ms: int = NOW_MS) -> bool:
    begun = log.begin_compaction(now_ms=now_ms)
    if begun is None:
        return False
    with begun:
        begun.run()
        return log.complete_compaction(begun)


def check_indexes(disk: SimulatedDisk, segments: Iterable[SegmentMetadata], state: str) -> None:
    """Check that no offset index of these segments has positions of another file."""
    for base_offset in (one.base_offset for one in segments):
        segment = Segment.of_file(disk, DIRECTORY, base_offset)
        with (
            contextlib.suppress(LogNotFoundError),
            disk.open_file(segment.path(INDEX_SUFFIX)) as one,
        ):
            entries = list(OFFSET_ENTRY.iter_unpack(one.read_at(0, one.byte_count())))
            with disk.open_file(segment.path()) as log:
                assert all(segment.is_entry_valid(log, *entry) for entry in entries), state


def replica() -> tuple[SimulatedDisk, QuorumLog]:
    disk = disk_with_parent()
    log = created_replica(disk, config=COMPACTED)
    log.advance_high_watermark(log.end_offset)
    return disk, log


def copied(log: QuorumLog, *, until: int) -> tuple[SimulatedDisk, QuorumLog]:
    """Return a follower that has fetched below ``until``."""
    disk = disk_with_parent()
    follower = QuorumLog.create(
        disk, DIRECTORY, config=COMPACTED, topic_id="AAAAAAAAAAAAAAAAAAAAZw", now_ms=NOW_MS
    )
    while follower.end_offset < until:
        follower.append_as_follower(
            log.read_stored_bytes(follower.end_offset, 1),
            leader_epoch=log.epoch,
            compacted_offset=log.compacted_offset,
            tombstone_start_offset=log.tombstone_start_offset,
        )
    follower.flush()
    return disk, follower


@pytest.mark.parametrize(
    "seed", [1, 4, *(pytest.param(one, marks=pytest.mark.nightly) for one in (0, 2, 3, 5))]
)
def test_a_follower_at_any_offset_continues_from_a_leader_that_has_compacted_since(
    seed: int,
) -> None:
    disk, leader = replica()
    fill(leader, seed, 60)
    followers = [copied(leader, until=at) for at in range(1, leader.end_offset, 3)]
    wanted, end = table(disk), leader.end_offset
    assert compact(leader)
    joined = [one for one in batches_of(disk) if one.last_offset - one.base_offset > 1]
    assert joined, "dropped batches are joined, and followers end inside"
    for at, (copy, follower) in enumerate(followers):
        if at % 2:
            follower.advance_high_watermark(follower.end_offset)
            compact(follower)
        while follower.end_offset < end:
            data = leader.read_stored_bytes(follower.end_offset, 1 + at * 50)
            before = follower.end_offset
            assert follower.append_as_follower(data, leader_epoch=leader.epoch) > before
        follower.flush()
        follower.advance_high_watermark(end)
        assert table(copy) == wanted
        assert follower.epochs == leader.epochs
        follower.close()
        again = reopened_replica(copy)
        assert (again.end_offset, table(copy)) == (end, wanted)
        assert not again.is_read_only


def test_nothing_above_the_high_watermark_supersedes_a_record() -> None:
    disk, log = replica()
    append(log, b"a", b"committed" + b"v" * 60)
    append(log, b"b", b"committed" + b"v" * 60)
    committed = log.end_offset
    for _ in range(30):
        append(log, b"a", b"not committed" + b"v" * 60, is_committed=False)
    while compact(log):
        pass
    log.truncate_to(committed)
    assert {value.rstrip(b"v") for value in table(disk).values()} == {b"committed"}


def test_the_state_of_producers_and_groups_survives_a_truncation_and_a_scan_of_the_log() -> None:
    """What is after the compacted part is truncated, and producer snapshots are lost."""
    disk, log = replica()

    def produce(sequence: int) -> None:
        data = batch_bytes(
            log.end_offset, (b"a", b"%d" % sequence), epoch=log.epoch, producer=(7, 0, sequence)
        )
        append_batches(log, data)

    def commit(offset: int) -> None:
        record = OffsetCommit(group="g", offset=offset, commit_timestamp_ms=offset)
        log.append_control([record], now_ms=NOW_MS)

    for sequence in range(10):
        produce(sequence)
        commit(sequence)
    fill(log, 3, 30)
    committed = log.end_offset
    produce(10)
    commit(10)
    for _ in range(10):
        append(log, b"b", b"v" * 60, is_committed=False)
    control_count = sum(one.is_control for one in batches_of(disk))
    assert compact(log)
    assert sum(one.is_control for one in batches_of(disk)) == control_count - 9
    log.truncate_to(committed)
    log.close()
    for name in disk.list_names(DIRECTORY):
        if name.endswith(PRODUCER_SNAPSHOT_SUFFIX):
            disk.unlink(disk.join(DIRECTORY, name))
    disk.sync_directory(DIRECTORY)
    state = reopened_replica(disk).producer_state
    found = state.group_offsets.commit_of("g")
    assert found is not None
    assert found.offset == 9
    assert state.producer(7).last_sequence == 9


def test_a_reader_of_all_data_is_at_the_end_after_a_compaction_has_removed_commits() -> None:
    disk, log = replica()
    append(log, b"a", b"last data")
    data_end = log.end_offset
    for at in range(40):
        record = OffsetCommit(group="g", offset=data_end, commit_timestamp_ms=at)
        log.append_control([record], now_ms=NOW_MS)
    log.flush()
    log.advance_high_watermark(log.end_offset)
    assert compact(log)
    assert any(not one.record_count and one.base_offset >= data_end for one in batches_of(disk))
    _, follower = copied(log, until=log.end_offset)
    for one in (log, follower):
        assert one.producer_state.data_end_offset == data_end


@pytest.mark.slow
@CRASHES
def test_a_crash_at_any_step_between_appends_leaves_every_last_value(
    states_of: Callable[..., Iterator[CrashState]],
) -> None:
    disk, log = replica()
    fill(log, 11, 22)
    begun = log.begin_compaction(now_ms=NOW_MS)
    assert begun is not None
    begun.run()
    recording = disk.record()
    ends: list[tuple[int, dict[bytes, bytes]]] = []
    with begun:
        for at, _ in enumerate(log.replace_compacted(begun)):
            append(log, b"new %d" % at, b"value")
            ends.append((log.end_offset, table(disk)))
    assert len(ends) > 1
    final = table(disk)
    for state in states_of(recording):
        after = SimulatedDisk.after(state)
        check_indexes(after, begun.plan.segments, f"{state}")
        found = reopened_replica(after)
        assert not found.is_read_only, f"{state}: {found.report}"
        for one in batches_of(after):  # by the index of its segment
            assert found.base_offset_at(one.last_offset) == one.base_offset, f"{state}"
        known = table(after)
        keys = {key for key in final if not key.startswith(b"new")}
        assert {key: known.get(key) for key in keys} == {key: final[key] for key in keys}, (
            f"{state}"
        )
        found.advance_high_watermark(found.end_offset)
        compact(found, now_ms=NOW_MS + 10_000)
        assert table(after) == known, f"{state}"
        found.close()
        names = after.list_names(DIRECTORY)
        assert not [name for name in names if name.endswith(CLEANED_SUFFIX)], f"{state}"


def test_a_segment_that_is_deleted_between_two_steps_ends_the_compaction() -> None:
    disk, log = replica()
    fill(log, 12, 60)
    begun = log.begin_compaction(now_ms=NOW_MS)
    assert begun is not None
    begun.run()
    with begun:
        steps = log.replace_compacted(begun)
        next(steps)
        log.delete_records(log.end_offset, now_ms=NOW_MS)
        assert list(steps) == []
    append(log, b"a", b"goes on")
    assert records_of(disk)[-1].value == b"goes on"
    log.close()
    assert reopened_replica(disk).report.was_clean


def test_a_failed_directory_sync_in_a_step_fails_the_log() -> None:
    disk, log = replica()
    fill(log, 13, 60)
    begun = log.begin_compaction(now_ms=NOW_MS)
    assert begun is not None
    begun.run()
    steps = log.replace_compacted(begun)
    next(steps)
    disk.fail_sync_once("*")
    with pytest.raises(LogError):
        list(steps)
    assert log.is_closed


def test_a_damaged_compacted_offset_is_the_end_of_the_log_when_it_was_opened() -> None:
    disk, log = replica()
    fill(log, 4, 60)
    assert compact(log)
    log.close()
    disk.flip_bit(f"{DIRECTORY}/{COMPACTED_CHECKPOINT_NAME}", 8 * 14)
    log = reopened_replica(disk)
    end_offset = log.end_offset
    fill(log, 5, 10)
    assert log.compacted_offset == end_offset < log.end_offset
    log.close()
    assert reopened_replica(disk).compacted_offset == end_offset


def test_a_damaged_start_of_tombstones_is_the_compacted_offset_and_known_to_no_follower() -> None:
    disk, log = replica()
    append(log, b"deleted", b"v" * 40)
    append(log, b"deleted", None)
    for at in range(2):
        fill(log, at, 40)
        assert compact(log, now_ms=NOW_MS + 10_000 * at)
    start = log.tombstone_start_offset
    assert 0 < start < log.compacted_offset < log.end_offset
    assert not log.misses_tombstones(start)
    assert log.misses_tombstones(log.end_offset + 1)
    log.close()
    disk.flip_bit(f"{DIRECTORY}/{TOMBSTONE_CHECKPOINT_NAME}", 8 * 14)
    for _ in range(2):
        log = reopened_replica(disk)
        assert log.tombstone_start_offset == log.compacted_offset
        assert log.misses_tombstones(log.end_offset + 1)
        fill(log, 5, 40)
        log.advance_high_watermark(log.end_offset)
        assert compact(log, now_ms=NOW_MS + 40_000)
        log.close()


def test_the_start_of_tombstones_is_after_those_whose_horizon_has_passed_only() -> None:
    disk, log = replica()
    append(log, b"deleted", b"v" * 40)
    append(log, b"deleted", None)
    deleted_end = log.end_offset
    fill(log, 7, 40)
    assert compact(log)
    assert log.tombstone_start_offset == 0, "each is retained"
    append(log, b"later", b"v" * 40)
    append(log, b"later", None)
    for at in range(30):
        append(log, b"key 1", b"%d" % at + b"v" * 40)
    assert compact(log, now_ms=NOW_MS + 10_000)
    start, horizons = (
        log.tombstone_start_offset,
        [one.delete_horizon_ms for one in batches_of(disk)],
    )
    assert deleted_end <= start
    assert [one.key for found in batches_of(disk) for one in found.records()].count(b"later") == 1
    assert any(one is not None and one > NOW_MS + 10_000 for one in horizons)
    later = next(one for one in batches_of(disk) if b"later" in [at.key for at in one.records()])
    assert start <= later.base_offset


def test_a_log_that_is_fetched_while_segments_are_replaced_has_no_deleted_key() -> None:
    """The replica has got tombstones with their delete horizon, and removes them together with the
    values. What is fetched before that is fetched again, or has the tombstones."""
    _, source = replica()
    for at in range(40):
        append(source, b"key %d" % (at % 20), b"v" * 40)
    disk, log = copied(source, until=source.end_offset)
    for at in range(20):
        append(source, b"key %d" % at, None)
    fill(source, 3, 60)
    assert compact(source)
    while log.end_offset < source.end_offset:
        data = source.read_stored_bytes(log.end_offset, 1)
        log.append_as_follower(data, leader_epoch=source.epoch)
    log.flush()
    log.advance_high_watermark(log.end_offset)
    wanted, begun = table(disk), log.begin_compaction(now_ms=NOW_MS + 10_000)
    assert begun is not None
    followers, step_count = [], 0
    with begun:
        begun.run()
        for _ in log.replace_compacted(begun):
            step_count += 1
            ends = sorted({one.next_offset for one in batches_of(disk)})
            followers += [copied(log, until=at) for at in ends[::3]]
    start = log.tombstone_start_offset
    assert step_count > 3
    assert start > 0
    for copy, follower in followers:
        if follower.misses_tombstones(start):
            continue
        while follower.end_offset < log.end_offset:
            data = log.read_stored_bytes(follower.end_offset, 1)
            follower.append_as_follower(data, leader_epoch=log.epoch)
        assert table(copy) == wanted
    assert any(not one.misses_tombstones(start) for _, one in followers)


def test_followers_get_no_removed_record_from_the_tail_cache() -> None:
    disk, log = replica()
    fill(log, 4, 60)
    cached = [(one.base_offset, log.read_bytes(one.base_offset, 1)) for one in batches_of(disk)]
    assert compact(log)
    assert any(log.read_bytes(at, 1) != data for at, data in cached)
    for one in batches_of(disk):
        assert log.read_bytes(one.base_offset, 1) == log.read_stored_bytes(one.base_offset, 1)


def test_a_damaged_batch_is_no_empty_one() -> None:
    disk, log = replica()
    fill(log, 4, 60)
    compact(log)
    joined = next(one for one in batches_of(disk) if one.last_offset - one.base_offset > 1)
    rest = log.read_stored_bytes(joined.base_offset + 1, 1)
    batch = read_batch(rest)
    assert not isinstance(batch, TornTail)
    assert (batch.base_offset, batch.last_offset) == (joined.base_offset + 1, joined.last_offset)
    assert (batch.record_count, batch.leader_epoch) == (0, joined.leader_epoch)
    full = next(one for one in batches_of(disk) if one.record_count)
    assert full.base_offset == full.last_offset or not log.read_stored_bytes(
        full.base_offset + 1, 1
    )
    assert TailCache().read(0, 1) == b""
