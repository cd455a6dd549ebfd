"""Small segments that a compaction makes one: which ones, crashes, readers, other writers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random

import pytest
from tests.log.cleaning.test_compaction import (
    COMPACTED,
    append,
    compact,
    fail_replacing,
    fill,
    log_of,
    records_of,
    snapshot_at,
    table,
)
from tests.log.cleaning.test_retained_records import check_contiguous
from tests.simulated_disk.crash_points import CrashState
from tests.simulated_disk.simulated_disk import SimulatedDisk
from tests.simulated_disk.simulated_tree import OperationKind
from tests.support.appending import (
    DIRECTORY,
    NOW_MS,
    TOPIC_ID,
    append_batches,
    batches_of,
    reopened,
)
from tests.support.batch_encoding import NewRecordBatch, encode_batch
from tests.support.log_builder import control_batch
from tests.support.sweep_size import CRASHES

from raftlog.log.cleaning.compaction import SegmentSizes, group_segments
from raftlog.log.format.directory import (
    CLEANED_SUFFIX,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    PARTITION_METADATA_NAME,
    PRODUCER_SNAPSHOT_SUFFIX,
    PUBLISHED_NAME,
    SWAP_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    offset_name,
    read_listing,
)
from raftlog.log.reading.chunks import ColumnDecoder
from raftlog.log.reading.directory_log import DirectoryLog
from raftlog.log.reading.files import LogCursor, LogFiles
from raftlog.log.reading.opening import open_log
from raftlog.log.reading.reads import Isolation, LogKind
from raftlog.log.segment import AbortedTransaction, SegmentMetadata, parse_txn_index
from raftlog.log.writing.single_voter_log import SingleVoterLog
from raftlog.records.batch_columns import Column
from raftlog.records.control import ControlType, EndTransactionMarker
from raftlog.records.record import NewRecord

OTHER_ID = "AAAAAAAAAAAAAAAAAAAAAw"


def sized(*sizes: tuple[int, int, int, int]) -> list[SegmentSizes]:
    """Return adjacent segments by their number of offsets and the sizes of their files."""
    found, base_offset = [], 0
    for offset_count, byte_count, *index_bytes in sizes:
        end_offset = base_offset + offset_count
        segment = SegmentMetadata(
            base_offset=base_offset, end_offset=end_offset, byte_count=byte_count
        )
        found.append(SegmentSizes(segment, *index_bytes))
        base_offset = end_offset
    return found


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([], []),
        ([(1, 40, 0, 0)] * 5, [2, 2, 1]),
        ([(1, 101, 0, 0), (1, 100, 0, 0), (1, 1, 0, 0)], [1, 1, 1]),
        ([(1, 0, 10, 0), (1, 0, 10, 0), (1, 0, 1, 0)], [2, 1]),
        ([(1, 0, 0, 10), (1, 0, 0, 11), (1, 0, 0, 9)], [1, 2]),
        ([(2**31 - 1, 1, 0, 0), (1, 1, 0, 0), (1, 1, 0, 0)], [2, 1]),
        ([(2**31 - 1, 1, 0, 0), (1, 0, 0, 0), (1, 0, 0, 0)], [3]),
        ([(1, 1, 0, 0), (2**31 - 2, 1, 0, 0)], [2]),
        ([(1, 1, 0, 0), (2**31, 1, 0, 0)], [1, 1]),
    ],
)
def test_adjacent_segments_become_one_while_their_files_and_offsets_fit(
    sizes: list[tuple[int, int, int, int]], expected: list[int]
) -> None:
    """At most 100 bytes, indexes of 20, and offsets that differ by 2^31 - 1."""
    segments = sized(*sizes)
    end_offset = segments[-1].segment.end_offset if segments else 0
    groups = group_segments(
        segments, segment_bytes=100, index_bytes=20, first_uncleanable_offset=end_offset
    )
    assert [len(one) for one in groups] == expected
    assert [one for group in groups for one in group] == [one.segment for one in segments]


def test_a_hundred_thousand_segments_become_one_in_linear_time() -> None:
    segments = sized(*[(1, 100, 0, 12)] * 100_000)
    groups = group_segments(
        segments, segment_bytes=2**30, index_bytes=2**24, first_uncleanable_offset=100_000
    )
    assert [len(one) for one in groups] == [100_000]


def small_segments(seed: int) -> tuple[SimulatedDisk, SingleVoterLog]:
    """Return a log whose first segments a compaction has left small."""
    disk, log = log_of()
    fill(log, seed, 40)
    assert compact(log)
    assert len(log._segments.sealed) > 3
    fill(log, seed + 100, 20)
    return disk, log


@pytest.mark.parametrize("seed", range(6))
def test_small_segments_become_one_segment(seed: int) -> None:
    disk, log = small_segments(seed)
    wanted, end, before = table(disk), log.end_offset, len(log._segments.sealed)
    bytes_before = batches_of(disk)
    assert compact(log)
    sealed = log._segments.sealed
    assert len(sealed) < before - 1
    assert all(one.byte_count <= COMPACTED.segment_bytes for one in sealed)
    check_contiguous(bytes_before, batches_of(disk))
    names = disk.list_names(DIRECTORY)
    kept = {*(one.base_offset for one in sealed), log._segments.active.base_offset}
    for suffix in (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX):
        assert {name for name in names if name.endswith(suffix)} == {
            offset_name(one, suffix) for one in kept
        }
    fill(log, seed + 200, 5)
    wanted = table(disk)
    log.close()
    log = reopened(disk)
    assert log.report.was_clean
    assert not log.report.rebuilt
    assert (table(disk), log.end_offset) == (wanted, end + 5)
    reader = open_log(disk, DIRECTORY)
    for offset in range(end):
        found = next(iter(reader.batches(offset, end)))
        assert found.base_offset <= offset <= found.last_offset


def offsets_read(cursor: LogCursor, end_offset: int) -> set[int | None]:
    """Return the offsets of the records that a cursor reads."""
    offsets: set[int | None] = set()
    for chunk in cursor.read(ColumnDecoder(Column.ALL_BUT_HEADERS, 200, 1 << 20), end_offset):
        assert chunk.records.offset is not None
        offsets |= set(chunk.records.offset.to_pylist())
    return offsets


@pytest.mark.slow  # with two kinds in turn, a replaced segment that is not durable is not found
def test_a_crash_at_any_operation_while_segments_become_one_leaves_every_last_value() -> None:
    disk, log = small_segments(3)
    wanted, end = table(disk), log.end_offset
    recording = disk.record()
    assert compact(log)
    kinds = [(one.kind, one.path) for one in recording.operations]
    assert any(kind is OperationKind.RENAME and SWAP_SUFFIX in path for kind, path in kinds)
    for state in recording.states():
        after = SimulatedDisk.after(state)
        found = reopened(after)
        assert not found.is_read_only, f"{state}: {found.report}"
        assert (table(after), found.end_offset) == (wanted, end), f"{state}"
        compact(found, now_ms=NOW_MS + 1_000)
        assert table(after) == wanted, f"{state}, compacted again"
        found.close()
        assert reopened(after).report.was_clean
        names = after.list_names(DIRECTORY)
        left = (CLEANED_SUFFIX, SWAP_SUFFIX)
        assert not [name for name in names if name.endswith(left)], f"{state}"


@pytest.mark.parametrize("every", [3, pytest.param(1, marks=pytest.mark.nightly)])
def test_readers_read_every_last_value_at_any_operation_while_segments_become_one(
    every: int,
) -> None:
    """Also those that have listed the segments before, and read some of them."""
    disk, log = small_segments(5)
    end, last = log.end_offset, {one.key: one for one in records_of(disk)}
    listing = LogFiles.of_directory(disk, DIRECTORY).listing
    starts = [one.base_offset for one in log._segments.sealed]
    recording = disk.record()
    assert compact(log)
    for state in recording.states((None,), cuts=range(0, len(recording.operations) + 1, every)):
        after = SimulatedDisk.after(state)
        for start in (0, *starts):
            files = LogFiles(after, DIRECTORY, listing)
            for cursor in (
                LogCursor(files, start, contiguous=True),
                LogCursor(LogFiles.of_directory(after, DIRECTORY), start, contiguous=True),
            ):
                wanted = {one.offset for one in last.values() if one.offset >= start}
                assert wanted <= offsets_read(cursor, end), f"{state}, from {start}"


LOOK_UPS: dict[str, Callable[[DirectoryLog], object]] = {
    "epochs": lambda log: log.epochs,
    "epoch": lambda log: log.epoch_before(log.log_end_offset),
    "last stable offset": lambda log: log.cached.last_stable_offset(9),
    "end": lambda log: log.read_end(isolation=Isolation.READ_COMMITTED).offset,
    "timestamp": lambda log: log.offset_for_timestamp(NOW_MS),
    "transactions": lambda log: log.cached.spans(0, log.log_end_offset, Isolation.READ_COMMITTED),
    "plan": lambda log: [
        (one.start_offset, one.end_offset)
        for one in log.plan(0, log.log_end_offset, isolation=Isolation.READ_COMMITTED).splits
    ],
    "voters": lambda log: log.voters(),
}


@pytest.mark.parametrize("name", LOOK_UPS)
def test_a_reader_whose_segments_have_become_one_since_its_listing_finds_the_same(
    name: str,
) -> None:
    disk, log = small_segments(1)
    log_reader = open_log(disk, DIRECTORY)
    assert log_reader.log_end_offset == log.end_offset
    assert compact(log)
    assert LOOK_UPS[name](log_reader) == LOOK_UPS[name](open_log(disk, DIRECTORY))


def end_transaction(log: SingleVoterLog, producer_id: int, outcome: ControlType) -> None:
    """Append a transaction of one record, and its marker."""
    at = log.end_offset
    data = NewRecordBatch(
        records=(NewRecord(b"key 0", b"v"),),
        base_timestamp_ms=NOW_MS,
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=0,
        is_transactional=True,
    )
    end = EndTransactionMarker(control_type=outcome, coordinator_epoch=0)
    append_batches(
        log,
        encode_batch(data, base_offset=at, leader_epoch=log.epoch),
        control_batch([end], base_offset=at + 1, epoch=log.epoch, producer_id=producer_id),
    )
    log.flush()


def aborted_of(disk: SimulatedDisk) -> list[AbortedTransaction]:
    """Return the aborted transactions by the ``.txnindex`` of each segment."""
    found: list[AbortedTransaction] = []
    for base in read_listing(disk.list_names(DIRECTORY)).segments:
        path = f"{DIRECTORY}/{offset_name(base, TXN_INDEX_SUFFIX)}"
        if path in disk.files():
            found += parse_txn_index(disk.files()[path], path)
    return found


@CRASHES
def test_the_transaction_index_of_one_segment_has_the_entries_of_all_that_it_replaces(
    states_of: Callable[..., Iterator[CrashState]],
) -> None:
    """After a crash at any operation, too; Kafka's consumers read aborted records without it."""
    disk, log = log_of()
    for producer_id in range(12):
        outcome = ControlType.COMMIT if producer_id % 4 == 0 else ControlType.ABORT
        end_transaction(log, producer_id, outcome)
        fill(log, producer_id, 3)
    assert compact(log)
    fill(log, 100, 20)
    wanted = aborted_of(disk)
    assert len(wanted) == 9
    count = sum(name.endswith(TXN_INDEX_SUFFIX) for name in disk.list_names(DIRECTORY))
    recording = disk.record()
    assert compact(log)
    assert aborted_of(disk) == wanted
    assert sum(name.endswith(TXN_INDEX_SUFFIX) for name in disk.list_names(DIRECTORY)) < count
    for state in states_of(recording):
        after = SimulatedDisk.after(state)
        reopened(after).close()
        assert aborted_of(after) == wanted, f"{state}"


class TornListings(SimulatedDisk):
    """Disk whose next listing is given: a directory may change while its names are read."""

    next_listing: list[str] | None = None

    def list_names(self, directory: str) -> list[str]:
        names, self.next_listing = self.next_listing, None
        return super().list_names(directory) if names is None else names


@pytest.mark.parametrize("count", [150, pytest.param(600, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("contiguous", [True, False])
def test_readers_read_every_last_value_by_names_of_two_moments_of_a_compaction(
    contiguous: bool, count: int
) -> None:
    """Listed at the start, or at the first listing after it."""
    disk, log = small_segments(5)
    end, last = log.end_offset, {one.key: one for one in records_of(disk)}
    recording = disk.record()
    assert compact(log)
    states = list(recording.states((None,), seeds=range(1)))
    names = [SimulatedDisk.after(one).list_names(DIRECTORY) for one in states]
    rng, wanted = Random(5), {one.offset for one in last.values()}
    for _ in range(count):
        first, second, third = sorted(rng.randrange(len(states)) for _ in range(3))
        order = sorted({*names[first], *names[second]})
        rng.shuffle(order)
        split = rng.randrange(len(order) + 1)
        torn = [one for one in order[:split] if one in names[first]]
        torn += [one for one in order[split:] if one in names[second]]
        after = TornListings.after(states[third])
        after.next_listing = torn
        if rng.random() < 0.5:
            listed = LogFiles.of_directory(after, DIRECTORY)
        else:
            listed = LogFiles(after, DIRECTORY, read_listing(names[first]))
        cursor = LogCursor(listed, 0, contiguous=contiguous)
        read_end = rng.choice((end, rng.randrange(end)))
        found = offsets_read(cursor, read_end)
        assert {one for one in wanted if one < read_end} <= found, (
            f"{first} {second} {third} {torn}"
        )


def test_a_log_is_opened_by_names_of_any_moment_of_a_compaction() -> None:
    disk, log = small_segments(3)
    end, recording = log.end_offset, disk.record()
    assert compact(log)
    states = list(recording.states((None,), seeds=range(1)))
    identity = f"{DIRECTORY}/{PARTITION_METADATA_NAME}"
    for state in states:
        disk = TornListings.after(states[-1])
        # Not the id of a cluster's metadata: the kind of the records is that of the first ones.
        content = disk.files()[identity].replace(TOPIC_ID.encode(), OTHER_ID.encode())
        disk.put(identity, content)
        disk.next_listing = SimulatedDisk.after(state).list_names(DIRECTORY)
        log_reader = open_log(disk, DIRECTORY)
        assert log_reader.kind is LogKind.PARTITION
        assert log_reader.log_end_offset == end
        assert next(log_reader.batches(0, end)).base_offset == 0


def test_another_writer_lists_the_segments_again_after_some_have_become_one() -> None:
    """By its old list, the first one would end before the log start, and be deleted."""
    disk, log = small_segments(7)
    other = SingleVoterLog.open(disk, DIRECTORY, now_ms=NOW_MS)
    log.refresh(now_ms=NOW_MS)
    before = [one.base_offset for one in other._segments.sealed]
    assert compact(log)
    wanted = table(disk)
    other.refresh(now_ms=NOW_MS)
    assert other._segments.sealed[0].end_offset == log._segments.sealed[0].end_offset > before[1]
    start = next(one.base_offset for one in batches_of(disk) if one.base_offset >= before[1])
    assert start < log._segments.sealed[0].end_offset
    other.delete_before(snapshot_at(other, start))
    append(other, (b"other", b"1"))
    log.refresh(now_ms=NOW_MS)
    assert table(disk) == {**wanted, b"other": b"1"}
    assert list(log._segments.batches(0, log.end_offset)) == batches_of(disk)


@pytest.mark.parametrize("seed", range(4))
def test_a_producer_snapshot_inside_an_empty_batch_is_that_of_its_offset(seed: int) -> None:
    """The empty batch has offsets of segments before and after the snapshot."""
    disk, log = small_segments(seed)
    append(log, (b"k", b"1"), producer=(5, 0, 0))
    fill(log, seed, 20)
    snapshots = LogFiles.of_directory(disk, DIRECTORY).listing.producer_snapshots
    assert compact(log)
    inside = [
        at
        for at in snapshots
        for one in batches_of(disk)
        if not one.record_count and one.base_offset < at <= one.last_offset
    ]
    assert inside
    for offset in inside:
        following = next(one for one in batches_of(disk) if one.base_offset >= offset)
        state = log._segments.producer_state_at(following.base_offset)
        assert state.end_offset == following.base_offset
    wanted = table(disk)
    disk.kill()
    for at in snapshots:
        if at > inside[0]:
            disk.unlink(f"{DIRECTORY}/{offset_name(at, PRODUCER_SNAPSHOT_SUFFIX)}")
    for name in ("recovery-point-offset-checkpoint", PUBLISHED_NAME):
        disk.unlink(f"{DIRECTORY}/{name}")
    log = reopened(disk)
    assert not log.is_read_only
    assert log.producer_state.producers[0].batches[-1].last_sequence == 0
    assert table(disk) == wanted


def test_a_writer_completes_what_another_one_has_died_at() -> None:
    disk, log = small_segments(9)
    other = SingleVoterLog.open(disk, DIRECTORY, now_ms=NOW_MS)
    log.refresh(now_ms=NOW_MS)
    wanted = table(disk)
    fail_replacing(disk, log)
    other.refresh(now_ms=NOW_MS)
    append(other, (b"other", b"1"))
    assert table(disk) == {**wanted, b"other": b"1"}


def test_nothing_is_replaced_from_a_group_on_whose_first_segments_were_deleted() -> None:
    """Its tombstones may delete values that the log has: it is not compacted, and stays dirty."""
    disk, log = small_segments(11)
    begun = log.begin_compaction(now_ms=NOW_MS)
    assert begun is not None
    with begun:
        begun.run()
        dirty = log._directory.read_cleaner_offset()
        log.delete_before(snapshot_at(log, log._segments.sealed[1].base_offset))
        before = batches_of(disk)
        assert not log.complete_compaction(begun)
    assert batches_of(disk) == before
    assert log._directory.read_cleaner_offset() == dirty
    assert compact(log)
