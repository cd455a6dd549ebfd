"""A compaction of a log on disk: what is compacted when, crashes at every step, other writers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from random import Random

import pytest
from tests.log.cleaning.test_retained_records import (
    batch_bytes,
    check_contiguous,
    cursors,
    filtered,
    new_batch,
    rows,
)
from tests.simulated_disk.crash_points import CrashState
from tests.simulated_disk.simulated_disk import SimulatedDisk
from tests.simulated_disk.simulated_tree import OperationKind
from tests.support.appending import (
    DIRECTORY,
    NOW_MS,
    append_batches,
    batches_of,
    created_log,
    disk_with_parent,
    reopened,
)
from tests.support.sweep_size import CRASHES

from raftlog.errors import CorruptBatchError, DiskFullError, LogError
from raftlog.log.cleaning import compaction as compaction_module
from raftlog.log.cleaning.compaction import Throttle, plan_compaction
from raftlog.log.cleaning.retained_records import OffsetMap, RetentionRules
from raftlog.log.format.directory import (
    CLEANED_SUFFIX,
    CLEANER_CHECKPOINT_NAME,
    COMPACTED_CHECKPOINT_NAME,
    INDEX_SUFFIX,
    offset_name,
)
from raftlog.log.reading.chunks import HeaderDecoder
from raftlog.log.reading.files import LogCursor, LogFiles
from raftlog.log.reading.opening import open_log
from raftlog.log.reading.reads import LogKind
from raftlog.log.reading.transactions import CommitName
from raftlog.log.recovery.repair import truncate_log_at
from raftlog.log.segment import SegmentMetadata
from raftlog.log.writing.producer_state import Duplicate
from raftlog.log.writing.properties import CleanupPolicy, LogConfig
from raftlog.log.writing.single_voter_log import SingleVoterLog
from raftlog.records.batch import iter_batches
from raftlog.records.record import Record
from raftlog.types import SnapshotId

COMPACTED = LogConfig(
    segment_bytes=700,
    index_interval_bytes=150,
    cleanup_policy=CleanupPolicy.COMPACT,
    min_cleanable_dirty_ratio=0.0,
    delete_retention_ms=1_000,
)
Pair = tuple[bytes, bytes | None]


def append(
    log: SingleVoterLog,
    *pairs: Pair,
    producer: tuple[int, int, int] = (-1, -1, -1),
    commit: CommitName | None = None,
) -> None:
    """Append and sync one batch."""
    append_batches(
        log,
        batch_bytes(log.end_offset, *pairs, epoch=log.epoch, producer=producer, commit=commit),
    )
    log.flush()


def fill(log: SingleVoterLog, seed: int, count: int = 60) -> None:
    """Append records of a few keys, some of which are deleted."""
    rng = Random(seed)
    for _ in range(count):
        value = None if rng.random() < 0.25 else b"%d" % rng.randrange(1_000) + b"v" * 20
        append(log, (b"key %d" % rng.randrange(9), value))


def compact(log: SingleVoterLog, *, now_ms: int = NOW_MS) -> bool:
    """Run the compaction that is due; return whether a segment changed."""
    begun = log.begin_compaction(now_ms=now_ms)
    if begun is None:
        return False
    with begun:
        begun.run()
        return log.complete_compaction(begun)


def records_of(disk: SimulatedDisk) -> list[Record]:
    """Return the data records on disk, by their batches."""
    found = [one for batch in batches_of(disk) if not batch.is_control for one in batch.records()]
    assert [one.offset for one in found] == sorted({one.offset for one in found})
    return found


def table(disk: SimulatedDisk) -> dict[bytes, bytes]:
    """Return the last value of each key that is not deleted."""
    last = {one.key: one.value for one in records_of(disk)}
    return {key: value for key, value in last.items() if key and value is not None}


def log_of(config: LogConfig = COMPACTED) -> tuple[SimulatedDisk, SingleVoterLog]:
    disk = disk_with_parent()
    return disk, created_log(disk, config=config)


# --- what is compacted ----------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(8))
def test_sealed_segments_have_the_last_record_of_each_key(seed: int) -> None:
    disk, log = log_of()
    fill(log, seed)
    before, wanted, end = batches_of(disk), table(disk), log.end_offset
    active = log._segments.active.base_offset
    assert compact(log)
    after = batches_of(disk)
    check_contiguous(before, after)
    last = {key: offset for offset, _, key, _ in rows(before) if offset < active}
    assert rows(one for one in after if not one.is_control) == [
        row
        for row in rows(one for one in before if not one.is_control)
        if row[0] >= active or last[row[2]] == row[0]
    ]
    assert table(disk) == wanted
    assert not compact(log), "nothing is dirty"
    reader = open_log(disk, DIRECTORY)
    assert reader.log_end_offset == end
    assert [one.base_offset for one in reader.batches(0, end)] == [one.base_offset for one in after]
    fill(log, seed + 100)
    wanted = table(disk)
    assert compact(log)
    log.close()
    log = reopened(disk)
    assert log.report.was_clean
    assert not log.report.rebuilt, "the indexes are those of the new segments"
    assert (table(disk), log.end_offset) == (wanted, end + 60)


def test_tombstones_disappear_after_their_retention() -> None:
    disk, log = log_of()
    fill(log, 1)
    compact(log)
    assert any(one.value is None for one in records_of(disk))
    fill(log, 2)
    wanted = table(disk)
    assert compact(log, now_ms=NOW_MS + 1_000)
    sealed_end = log._segments.active.base_offset
    old = [one for one in records_of(disk) if one.offset < 60 and one.value is None]
    assert not old
    assert table(disk) == wanted
    assert sealed_end > 60


def test_offsets_inside_an_empty_batch_can_be_read_from() -> None:
    disk, log = log_of()
    fill(log, 3)
    compact(log)
    empty = next(one for one in batches_of(disk) if not one.record_count)
    assert empty.last_offset > empty.base_offset
    reader = open_log(disk, DIRECTORY)
    for offset in range(empty.base_offset, empty.last_offset + 1):
        found = [one.base_offset for one in reader.batches(offset, log.end_offset)]
        assert found[0] in (empty.base_offset, empty.next_offset)


@pytest.mark.parametrize("bound", [1, 900])
def test_a_log_with_more_keys_than_memory_is_compacted_in_several_runs(
    bound: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, log = log_of()
    fill(log, 4)
    wanted, active = table(disk), log._segments.active.base_offset
    begin = compaction_module.begin_compaction
    monkeypatch.setattr(begin, "__kwdefaults__", {"offset_map_bytes_max": bound})
    run_count = 0
    while compact(log) or log._directory.read_cleaner_offset() != active:
        run_count += 1
        assert table(disk) == wanted
    assert run_count > 3
    keys = [one.key for one in records_of(disk) if one.offset < active]
    assert len(keys) == len(set(keys))


def test_the_last_batches_of_producers_and_applications_survive_a_rescan() -> None:
    """Producer snapshots are lost: the state is read from the compacted log alone."""
    disk, log = log_of()
    name = CommitName("app", "query", 7)
    append(log, (b"k", b"first"), producer=(5, 0, 0))
    append(log, (b"k", b"second"), (b"k", b"third"), producer=(5, 0, 1))
    append(log, (b"k", b"named"), commit=name)
    fill(log, 5)
    assert compact(log)
    disk.kill()
    for name_on_disk in disk.list_names(DIRECTORY):
        if name_on_disk.endswith((".snapshot", "recovery-point-offset-checkpoint")):
            disk.unlink(f"{DIRECTORY}/{name_on_disk}")
    log = reopened(disk)
    state = log.producer_state
    producer = state.producers[0]
    assert producer.check(0, 1, 2) == Duplicate(2, 3)
    assert producer.last_sequence == 2
    found = state.last_commit("app")
    assert found is not None
    assert found.name == name
    assert not log.is_read_only


# --- when -----------------------------------------------------------------------------------------


def segments(*sizes: int, newest_ms: int = 0) -> list[SegmentMetadata]:
    return [
        SegmentMetadata(
            base_offset=10 * at,
            end_offset=10 * at + 10,
            byte_count=size,
            max_timestamp_ms=newest_ms,
        )
        for at, size in enumerate(sizes)
    ]


@pytest.mark.parametrize(
    ("ratio", "first_dirty", "expected"),
    [
        (0.5, 10, 3),
        (0.5, 20, None),
        (0.33, 20, 3),
        (0.34, 20, None),
        (0.0, 30, None),
        (1.0, 0, None),
    ],
)
def test_the_dirty_part_decides(ratio: float, first_dirty: int, expected: int | None) -> None:
    """Of three segments of equal size; a ratio of 1 is never exceeded (Kafka's comparison)."""
    plan = plan_compaction(
        segments(100, 100, 100),
        first_dirty_offset=first_dirty,
        last_stable_offset=1_000,
        first_dirty_timestamp_ms=0,
        now_ms=NOW_MS,
        config=replace(COMPACTED, min_cleanable_dirty_ratio=ratio),
    )
    assert (None if plan is None else len(plan.segments)) == expected


def test_lags_and_the_last_stable_offset_limit_what_is_compacted() -> None:
    lagging = replace(COMPACTED, min_compaction_lag_ms=500)
    old, young = segments(100, 100, newest_ms=NOW_MS - 500), segments(100, newest_ms=NOW_MS - 499)
    young = [replace(young[0], base_offset=20, end_offset=30)]

    def planned(config: LogConfig, stable: int = 1_000, first_ms: int = -1) -> int | None:
        plan = plan_compaction(
            [*old, *young],
            first_dirty_offset=0,
            last_stable_offset=stable,
            first_dirty_timestamp_ms=first_ms,
            now_ms=NOW_MS,
            config=config,
        )
        return None if plan is None else len(plan.segments)

    assert planned(lagging) == 2
    assert planned(COMPACTED) == 3
    assert planned(COMPACTED, stable=19) == 1
    overdue = replace(COMPACTED, min_cleanable_dirty_ratio=1.0, max_compaction_lag_ms=100)
    assert planned(overdue, first_ms=NOW_MS - 100) is None
    assert planned(overdue, first_ms=NOW_MS - 101) == 3
    assert planned(overdue, first_ms=-1) is None, "without a timestamp"


def test_only_a_compacted_log_is_compacted_and_only_a_deleted_one_has_retention() -> None:
    _, log = log_of(replace(COMPACTED, cleanup_policy=CleanupPolicy.DELETE))
    fill(log, 1)
    assert log.begin_compaction(now_ms=NOW_MS) is None
    for policy, is_deleted in (
        (CleanupPolicy.COMPACT, False),
        (CleanupPolicy.COMPACT_DELETE, True),
    ):
        _, log = log_of(replace(COMPACTED, cleanup_policy=policy, retention_bytes=1_000))
        fill(log, 1)
        assert log.clean(now_ms=NOW_MS) is is_deleted
        assert compact(log)


def test_retention_by_age_deletes_segments_of_empty_batches() -> None:
    config = replace(COMPACTED, cleanup_policy=CleanupPolicy.COMPACT_DELETE, retention_ms=10)
    disk, log = log_of(config)
    for at in range(60):
        append(log, (b"k", b"%d" % at + b"v" * 40))
    assert compact(log)
    log.close()
    log = reopened(disk)
    assert log.clean(now_ms=NOW_MS * 10)
    assert log.log_start_offset == log.end_offset


def test_a_deleted_key_stays_deleted_if_its_last_value_named_a_commit() -> None:
    disk, log = log_of()
    append(log, (b"k", b"named"), commit=CommitName("app", "query", 7))
    append(log, (b"k", None))
    for at in range(3):
        fill(log, at)
        assert compact(log, now_ms=NOW_MS + at * 2_000)
        assert b"k" not in table(disk)
    commit = log.producer_state.last_commit("app")
    assert commit is not None
    append(log, (b"other", b"1"), commit=CommitName("app", "query", 8))
    for at in range(3, 6):
        fill(log, at)
        assert compact(log, now_ms=NOW_MS + at * 2_000)
        assert b"k" not in table(disk)
    assert not [one for one in records_of(disk) if one.key == b"k"]


def test_offsets_that_were_truncated_and_appended_again_are_compacted_again() -> None:
    """The tombstone is below the cleaner's offset before the repair."""
    disk, log = log_of()
    append(log, (b"deleted", b"1"))
    fill(log, 3)
    assert compact(log)
    compacted_end = log._directory.read_cleaner_offset()
    assert compacted_end is not None
    log.close()
    truncate_log_at(disk, DIRECTORY, offset=compacted_end - 20, config=COMPACTED)
    log = reopened(disk)
    assert log.end_offset < compacted_end
    append(log, (b"deleted", None))
    for at in range(2):
        fill(log, 4 + at)
        assert compact(log, now_ms=NOW_MS + at * 2_000)
        assert b"deleted" not in table(disk)


def test_nothing_is_replaced_after_another_process_has_truncated_the_log() -> None:
    """The compaction would drop the value that its removed successor superseded, and take the
    tombstone, which it has not read, for compacted."""
    disk, log = log_of()
    append(log, (b"kept", b"1"))
    append(log, (b"deleted", b"1"))
    fill(log, 3)
    truncation = log.end_offset
    append(log, (b"kept", b"2"))
    fill(log, 4)
    begun = log.begin_compaction(now_ms=NOW_MS)
    assert begun is not None
    with begun:
        begun.run()
        truncate_log_at(disk, DIRECTORY, offset=truncation, config=COMPACTED)
        assert log.refresh(now_ms=NOW_MS)
        append(log, (b"deleted", None))
        fill(log, 5)
        assert not log.complete_compaction(begun)
    for at in range(2):
        assert table(disk)[b"kept"] == b"1"
        assert b"deleted" not in table(disk)
        fill(log, 6 + at)
        assert compact(log, now_ms=NOW_MS + at * 2_000)


def test_segments_are_replaced_after_a_repair_has_truncated_later_ones() -> None:
    disk, log = log_of()
    fill(log, 3)
    append(log, (b"removed", b"1"))
    begun = log.begin_compaction(now_ms=NOW_MS)
    assert begun is not None
    with begun:
        begun.run()
        truncate_log_at(disk, DIRECTORY, offset=log.end_offset - 1, config=COMPACTED)
        assert log.refresh(now_ms=NOW_MS)
        wanted = table(disk)
        assert log.complete_compaction(begun)
    assert table(disk) == wanted
    assert b"removed" not in wanted


def test_a_log_start_inside_an_empty_batch() -> None:
    disk, log = log_of(replace(COMPACTED, segment_bytes=1_500))
    for at in range(60):
        append(log, (b"k", b"%d" % at + b"v" * 40))
    start = log._segments.sealed[1].base_offset + 4
    log.delete_before(snapshot_at(log, start))
    assert compact(log)
    assert [one for one in batches_of(disk) if one.base_offset < start <= one.last_offset]
    wanted = table(disk)
    disk.kill()
    for name in disk.list_names(DIRECTORY):
        if name.endswith((".snapshot", ".index", "recovery-point-offset-checkpoint")):
            disk.unlink(f"{DIRECTORY}/{name}")
    log = reopened(disk)
    assert not log.is_read_only
    assert (log.log_start_offset, table(disk)) == (start, wanted)
    reader = open_log(disk, DIRECTORY)
    assert list(reader.batches(start, log.end_offset))[-1].next_offset == log.end_offset
    fill(log, 4)
    wanted = table(disk)
    assert compact(log)
    assert table(disk) == wanted


# --- beside others --------------------------------------------------------------------------------


def test_appends_and_deletions_during_a_compaction() -> None:
    disk, log = log_of(replace(COMPACTED, cleanup_policy=CleanupPolicy.COMPACT_DELETE))
    fill(log, 6)
    begun = log.begin_compaction(now_ms=NOW_MS)
    assert begun is not None
    assert log.begin_compaction(now_ms=NOW_MS) is None, "one at a time"
    with begun:
        begun.run()
        first = log._segments.sealed[1].base_offset
        log.delete_before(snapshot_at(log, first))
        fill(log, 7)
        wanted = table(disk)
        assert log.complete_compaction(begun)
    assert log.log_start_offset == first
    assert table(disk) == wanted
    assert not [name for name in disk.list_names(DIRECTORY) if name.endswith(CLEANED_SUFFIX)]


def snapshot_at(log: SingleVoterLog, offset: int) -> SnapshotId:
    snapshot_id = log.snapshot_id_at(offset)
    writer = log.begin_snapshot(snapshot_id, now_ms=NOW_MS)
    assert writer is not None
    return writer.freeze()


def test_a_segment_deleted_while_it_is_read_ends_the_compaction_without_a_change() -> None:
    disk, log = log_of(replace(COMPACTED, cleanup_policy=CleanupPolicy.COMPACT_DELETE))
    fill(log, 8)
    begun = log.begin_compaction(now_ms=NOW_MS)
    assert begun is not None
    with begun:
        log.delete_before(snapshot_at(log, log._segments.sealed[2].base_offset))
        before = batches_of(disk)
        begun.run()
        assert not log.complete_compaction(begun)
    assert batches_of(disk) == before
    assert compact(log)


def test_another_writer_of_the_log_continues_after_a_compaction() -> None:
    disk, log = log_of()
    other = SingleVoterLog.open(disk, DIRECTORY, now_ms=NOW_MS)
    fill(log, 9)
    other.refresh(now_ms=NOW_MS)
    assert compact(log)
    fill(log, 10, count=3)
    other.refresh(now_ms=NOW_MS)
    append(other, (b"other", b"1"))
    assert other.begin_snapshot(other.snapshot_id_at(other.end_offset), now_ms=NOW_MS) is not None
    assert other._segments.producer_state_at(other.end_offset).end_offset == other.end_offset
    assert list(other._segments.batches(0, other.end_offset)) == batches_of(disk)
    log.refresh(now_ms=NOW_MS)
    assert log.end_offset == other.end_offset


def test_a_compaction_continues_while_another_process_recovers_the_log() -> None:
    """A log that is open is not cleanly closed: another process that opens it recovers it, and this
    one does after the other has rolled."""
    disk, log = log_of()
    fill(log, 20)
    wanted = table(disk)
    begun = log.begin_compaction(now_ms=NOW_MS)
    assert begun is not None
    with begun:
        begun.run()
        other = SingleVoterLog.open(disk, DIRECTORY, now_ms=NOW_MS)
        assert not other.report.was_clean
        active = log._segments.active.base_offset
        while other._segments.active.base_offset == active:
            append(other, (b"other", b"1" * 90))
        assert log.refresh(now_ms=NOW_MS)
        assert log.complete_compaction(begun)
    assert table(disk) == {**wanted, b"other": b"1" * 90}
    assert not [name for name in disk.list_names(DIRECTORY) if name.endswith(CLEANED_SUFFIX)]


def test_a_reader_of_the_old_segments_reads_them_to_the_end() -> None:
    disk, log = log_of()
    fill(log, 11)
    end, before = log.end_offset, batches_of(disk)
    reading = open_log(disk, DIRECTORY).batches(0, end)
    read = [next(reading) for _ in range(3)]
    assert compact(log)
    read += reading
    assert read[:3] == before[:3]
    assert read[-1].next_offset == end
    for one, following in pairwise(read):
        assert following.base_offset <= one.next_offset <= following.last_offset


def test_retention_by_size_uses_the_sizes_after_the_compaction_of_another_writer() -> None:
    _, log = log_of(
        replace(COMPACTED, cleanup_policy=CleanupPolicy.COMPACT_DELETE, retention_bytes=3_000)
    )
    other = SingleVoterLog.open(log._directory.storage, DIRECTORY, now_ms=NOW_MS)
    for at in range(60):
        append(log, (b"k", b"%d" % at + b"v" * 40))
    other.refresh(now_ms=NOW_MS)
    assert compact(log)
    other.refresh(now_ms=NOW_MS)
    assert not other.clean(now_ms=NOW_MS)
    assert (log.log_start_offset, other.log_start_offset) == (0, 0)


def test_nothing_is_replaced_after_the_policy_was_changed_to_delete() -> None:
    disk, log = log_of()
    fill(log, 17)
    before = batches_of(disk)
    begun = log.begin_compaction(now_ms=NOW_MS)
    assert begun is not None
    with begun:
        begun.run()
        deleting = SingleVoterLog.open(
            disk,
            DIRECTORY,
            config=replace(COMPACTED, cleanup_policy=CleanupPolicy.DELETE),
            now_ms=NOW_MS,
        )
        assert not deleting.complete_compaction(begun)
    assert batches_of(disk) == before
    assert not [name for name in disk.list_names(DIRECTORY) if name.endswith(CLEANED_SUFFIX)]


def test_a_closed_compaction_does_not_replace_segments_by_files_of_a_later_one() -> None:
    """As if the caller of the first one had stopped to wait while its last step was queued."""
    disk, log = log_of()
    fill(log, 18)
    wanted = table(disk)
    first = log.begin_compaction(now_ms=NOW_MS)
    assert first is not None
    first.run()
    first.close()
    second = log.begin_compaction(now_ms=NOW_MS)
    assert second is not None
    with second:
        second.run()
        before = disk.files()
        assert not log.complete_compaction(first)
        assert disk.files() == before
        first.close()
        assert log.complete_compaction(second)
    assert table(disk) == wanted


class PausedClock:
    """Clock that advances in pauses only."""

    def __init__(self) -> None:
        self.now_s = 5.0

    def pause(self, seconds: float) -> None:
        assert 0 < seconds <= 0.1
        self.now_s += seconds


@pytest.mark.parametrize("rate", [500, 4_000])
def test_a_throttled_compaction_reads_and_writes_at_the_rate(rate: int) -> None:
    _, log = log_of()
    fill(log, 3)
    begun = log.begin_compaction(now_ms=NOW_MS)
    assert begun is not None
    clock = PausedClock()
    byte_count = sum(one.byte_count for one in begun.plan.segments)
    with begun:
        begun.run(throttle=Throttle(rate, now_s=lambda: clock.now_s, pause=clock.pause))
        assert log.complete_compaction(begun)
    written = sum(after for _, after in begun.replaced_byte_counts)
    assert clock.now_s - 5 == pytest.approx((2 * byte_count + written) / rate, rel=0.02)


def test_a_throttled_compaction_ends_when_it_is_aborted() -> None:
    disk, log = log_of()
    fill(log, 3)
    before = batches_of(disk)
    begun = log.begin_compaction(now_ms=NOW_MS)
    assert begun is not None
    clock = PausedClock()
    with begun:
        throttle = Throttle(1, now_s=lambda: clock.now_s, pause=clock.pause)
        begun.run(lambda: clock.now_s > 6, throttle)
        assert clock.now_s < 6.2
        assert not log.complete_compaction(begun)
    assert batches_of(disk) == before


def test_an_aborted_compaction_changes_nothing() -> None:
    disk, log = log_of()
    fill(log, 19)
    before = batches_of(disk)
    for count in (0, 5, 15):
        begun = log.begin_compaction(now_ms=NOW_MS)
        assert begun is not None
        answers = iter([False] * count)
        with begun:
            begun.run(partial(next, answers, True))
            assert not log.complete_compaction(begun)
        assert batches_of(disk) == before
    assert compact(log)


@pytest.mark.parametrize("read_count", [1, 3, 8])
def test_a_cursor_continues_after_its_segment_was_replaced(read_count: int) -> None:
    """Its position is that of another batch now, or beyond the file."""
    disk, log = log_of()
    fill(log, 12, count=read_count)
    cursor = LogCursor(LogFiles.of_directory(disk, DIRECTORY), 0, contiguous=True)
    for _ in cursor.read(HeaderDecoder()):
        pass
    read_end = cursor.next_offset
    assert read_end == log.end_offset
    for at in range(60):
        append(log, (b"k", b"%d" % at + b"v" * 40))
    assert compact(log)
    bases = [
        int(one) for chunk in cursor.read(HeaderDecoder()) for one in chunk.batches.base_offset
    ]
    later = [one.base_offset for one in batches_of(disk) if one.last_offset >= read_end]
    assert bases == later
    assert cursor.next_offset == log.end_offset


@pytest.mark.parametrize("contiguous", [False, True])
@pytest.mark.parametrize("read_count", [1, 2, 3, 4])
@pytest.mark.parametrize("dropped", [(0, 2, 4), (0, 1, 3, 4, 5)])
def test_a_cursor_reads_every_batch_after_a_replacement_with_batches_of_equal_size(
    dropped: tuple[int, ...], read_count: int, *, contiguous: bool
) -> None:
    """Its position is a boundary of batches, or the end, of the new segment, too: Kafka's cleaner
    leaves gaps, raftlog's empty batches, which have half the size of these."""
    padding = b"v" * (123 - len(batch_bytes(0, (b"k", b"v"))))
    batches = [batch_bytes(at, (b"%d" % at, padding)) for at in range(6)]
    assert {len(one) for one in batches} == {2 * 61}
    disk = disk_with_parent()
    disk.make_directory(DIRECTORY)
    write_segment(disk, batches[:read_count])
    cursor = LogCursor(LogFiles.of_directory(disk, DIRECTORY), 0, contiguous=contiguous)
    assert bases_of(cursor) == list(range(read_count))
    offsets = OffsetMap(0, 1 << 20)
    assert offsets.add(new_batch(6, *((b"%d" % at, None) for at in dropped)))
    rules = RetentionRules(now_ms=0, delete_retention_ms=0)
    data, _ = filtered(cursors(b"".join(batches), 0), offsets, rules)
    ends = [one.position + one.byte_count for one in iter_batches(data)]
    cleaned = [data[start:end] for start, end in pairwise([0, *ends])]
    write_segment(disk, cleaned if contiguous else [one for one in cleaned if len(one) > 61])
    write_segment(disk, [batch_bytes(6, (b"k", b"v"))], 6)
    retained = [at for at in range(read_count, 7) if at not in dropped]
    assert [base for base in bases_of(cursor) if base in retained] == retained


def write_segment(disk: SimulatedDisk, batches: Sequence[bytes], base_offset: int = 0) -> None:
    """Write a segment, in place of the present one if there is one."""
    path = f"{DIRECTORY}/{offset_name(base_offset, '.log')}"
    with disk.create_file(path + CLEANED_SUFFIX) as file:
        file.write_at(0, b"".join(batches))
    disk.rename(path + CLEANED_SUFFIX, path)


def bases_of(cursor: LogCursor) -> list[int]:
    """Return the base offsets of the batches that a cursor reads up to the end of the log."""
    found = [chunk.batches.base_offset.tolist() for chunk in cursor.read(HeaderDecoder())]
    return [base for bases in found for base in bases]


# --- failures -------------------------------------------------------------------------------------


def test_a_damaged_segment_is_not_compacted() -> None:
    disk, log = log_of()
    fill(log, 12)
    path = f"{DIRECTORY}/{offset_name(log._segments.sealed[1].base_offset, '.log')}"
    disk.flip_bit(path, 8 * 100)
    before = disk.files()
    with pytest.raises(CorruptBatchError):
        compact(log)
    after = disk.files()
    assert {name: after[name] for name in before} == before
    assert not [name for name in after if name.endswith(CLEANED_SUFFIX)]


def test_a_full_disk_leaves_the_log_as_it_was() -> None:
    disk, log = log_of()
    fill(log, 13)
    wanted = table(disk)
    disk.leave_room(300)
    with pytest.raises(DiskFullError):
        compact(log)
    disk.full_at(None)
    assert table(disk) == wanted
    append(log, (b"goes on", b"1"))
    assert compact(log)


@CRASHES
def test_a_crash_at_any_operation_leaves_every_last_value_and_revives_no_deleted_key(
    states_of: Callable[..., Iterator[CrashState]],
) -> None:
    """The tombstone of ``a`` and the value before it are in different segments. Where the tombstone
    has a delete horizon, and so may be dropped, the value is dropped durably."""
    disk, log = log_of()
    for at, key in enumerate((b"a", b"b", b"a", b"b", b"b", b"b")):
        append(log, (key, b"%d" % at + b"v" * 60))
    second = log._segments.active.base_offset
    append(log, (b"c", b"c" * 90), (b"a", None), (b"d", b"d" * 90), (b"b", b"b" * 90))
    while not log._segments.active.base_offset > second:
        append(log, (b"d", b"d" * 90))
    assert {one.offset < second for one in records_of(disk) if one.key == b"a"} == {True, False}
    wanted, end = table(disk), log.end_offset
    recording = disk.record()
    assert compact(log)
    assert [one.value for one in records_of(disk) if one.key == b"a"] == [None]
    renamed = [one.path for one in recording.operations if one.kind is OperationKind.RENAME]
    assert sum(path.endswith(f".log{CLEANED_SUFFIX}") for path in renamed) == 2
    states = list(states_of(recording, seeds=range(3)))
    horizon_count = 0
    for state in states:
        after = SimulatedDisk.after(state)
        found = reopened(after)
        assert not found.is_read_only, f"{state}: {found.report}"
        assert (table(after), found.end_offset) == (wanted, end), f"{state}"
        if any(one.delete_horizon_ms for one in batches_of(after)):
            horizon_count += 1
            assert sum(one.key == b"a" for one in records_of(after)) == 1, f"{state}"
        compact(found, now_ms=NOW_MS + 1_000)
        assert table(after) == wanted, f"{state}, compacted again"
        assert not [one for one in records_of(after) if one.key == b"a" and one.value]
        found.close()
        assert reopened(after).report.was_clean
        names = after.list_names(DIRECTORY)
        assert not [name for name in names if name.endswith(CLEANED_SUFFIX)], f"{state}"
    assert len(states) > horizon_count > 10


def states_from(disk: SimulatedDisk, offset: int, end: int) -> dict[int, dict[bytes, bytes]]:
    """Return the state of the records below each offset in [``offset``, ``end``]."""
    records = {one.offset: one for one in records_of(disk)}
    state: dict[bytes, bytes] = {}
    found = {}
    for at in range(end + 1):
        if at >= offset:
            found[at] = dict(state)
        if at in records:
            key, value = records[at].key or b"", records[at].value
            state.pop(key, None)
            state |= {} if value is None else {key: value}
    return found


def compacted_offset(disk: SimulatedDisk) -> int:
    return open_log(disk, DIRECTORY, kind=LogKind.PARTITION).compacted_offset


@CRASHES
def test_after_a_crash_at_any_operation_states_from_the_compacted_offset_on_are_complete(
    states_of: Callable[..., Iterator[CrashState]],
) -> None:
    """The compaction also removes records of the part that was compacted before."""
    disk, log = log_of()
    fill(log, 17, 20)
    compact(log)
    fill(log, 18, 20)
    end = log.end_offset
    first = compacted_offset(disk)
    wanted, count = states_from(disk, first, end), len(records_of(disk))
    recording = disk.record()
    assert compact(log)
    removed = 0
    for state in states_of(recording):
        after = SimulatedDisk.after(state)
        offset = compacted_offset(after)
        if len(records_of(after)) < count:
            removed += 1
            assert offset > first, f"{state}"
        found = states_from(after, offset, end)
        assert found == {at: wanted[at] for at in found}, f"{state}"
    assert removed > 10
    assert 0 < first < offset <= log._segments.active.base_offset


def fail_replacing(disk: SimulatedDisk, log: SingleVoterLog) -> None:
    """Run the compaction that is due, and fail the first sync of its replacement of segments."""
    begun = log.begin_compaction(now_ms=NOW_MS)
    assert begun is not None
    with begun:
        begun.run()
        disk.fail_sync_once("*")
        with pytest.raises(LogError):
            log.complete_compaction(begun)


def test_a_failed_directory_sync_fails_the_log() -> None:
    disk, log = log_of()
    fill(log, 14)
    wanted = table(disk)
    fail_replacing(disk, log)
    assert log.is_closed
    disk.kill()
    assert table(disk) == wanted
    assert not reopened(disk).is_read_only


def test_a_damaged_checkpoint_of_the_cleaner_compacts_from_the_log_start() -> None:
    disk, log = log_of()
    fill(log, 15)
    compact(log)
    disk.flip_bit(f"{DIRECTORY}/{CLEANER_CHECKPOINT_NAME}", 8 * 14)
    fill(log, 16)
    wanted = table(disk)
    assert compact(log)
    assert table(disk) == wanted
    active = log._segments.active.base_offset
    assert log._directory.read_cleaner_offset() == active
    assert f"{DIRECTORY}/{offset_name(0, INDEX_SUFFIX)}" in disk.files()


def test_a_damaged_compacted_offset_is_not_lowered(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next compaction drops the tombstone, and ends below the first one: it has less memory."""
    disk, log = log_of()
    append(log, (b"deleted", b"1"))
    append(log, (b"deleted", None))
    fill(log, 15)
    assert compact(log)
    before = compacted_offset(disk)
    for name in (CLEANER_CHECKPOINT_NAME, COMPACTED_CHECKPOINT_NAME):
        disk.flip_bit(f"{DIRECTORY}/{name}", 8 * 14)
    begin = compaction_module.begin_compaction
    monkeypatch.setattr(begin, "__kwdefaults__", {"offset_map_bytes_max": 300})
    assert compact(log, now_ms=NOW_MS + 2_000)
    end_offset = log._directory.read_cleaner_offset()
    assert end_offset is not None
    assert end_offset < before <= compacted_offset(disk) <= log._segments.active.base_offset
