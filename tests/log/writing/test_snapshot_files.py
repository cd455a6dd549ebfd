"""Writing of snapshots, and deletion of the records before them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.simulated_disk.crash_model import Survival
from tests.simulated_disk.simulated_disk import SimulatedDisk
from tests.support.appending import (
    DIRECTORY,
    KRAFT_SMALL,
    NOW_MS,
    append,
    append_batches,
    created_log,
    disk_with_parent,
    fill,
    reopened,
    values_of,
)
from tests.support.batch_encoding import NewRecordBatch, encode_batch

from raftlog.errors import (
    DataLossError,
    DiskFullError,
    LogAccessError,
    LogLockedError,
    RecordBatchTooLargeError,
    SnapshotRefusedError,
)
from raftlog.limits import KIB
from raftlog.log.format.directory import checkpoint_name, read_listing
from raftlog.log.format.epoch_cache import EpochEntry
from raftlog.log.reading.files import LogFiles
from raftlog.log.reading.opening import open_log
from raftlog.log.reading.snapshot import SnapshotReader
from raftlog.log.reading.transactions import CommitName, ValueKind, commit_header
from raftlog.log.segment import SegmentMetadata
from raftlog.log.writing.producer_state import ProducerStateManager
from raftlog.log.writing.properties import LogConfig
from raftlog.log.writing.single_voter_log import SingleVoterLog
from raftlog.log.writing.snapshots import (
    RetentionSnapshot,
    snapshot_to_start_after,
    start_after_retention,
)
from raftlog.records.batch import iter_batches
from raftlog.records.control import KRaftVoters, SnapshotHeader, Voter, decode_control
from raftlog.records.record import NewRecord
from raftlog.types import SnapshotId


@pytest.fixture
def disk() -> SimulatedDisk:
    return disk_with_parent()


def snapshot(log: SingleVoterLog, end_offset: int, *values: bytes) -> SnapshotId:
    writer = log.begin_snapshot(log.snapshot_id_at(end_offset), now_ms=NOW_MS)
    assert writer is not None
    writer.append(values)
    return writer.freeze()


def reader(disk: SimulatedDisk, snapshot_id: SnapshotId) -> SnapshotReader:
    return SnapshotReader(LogFiles.of_directory(disk, DIRECTORY), snapshot_id)


def memory_in(disk: SimulatedDisk, snapshot_id: SnapshotId) -> ProducerStateManager:
    path = f"{DIRECTORY}/{checkpoint_name(snapshot_id)}"
    first = next(iter_batches(disk.files()[path]))
    (header,) = (decode_control(record.key, record.value) for record in first.records())
    assert isinstance(header, SnapshotHeader)
    producer_state = ProducerStateManager.from_header_field(
        header.tagged_fields, path, snapshot_id.end_offset
    )
    assert producer_state is not None
    return producer_state


def commit(log: SingleVoterLog, version: int) -> None:
    name = CommitName("app", "query", version)
    record = NewRecord(None, b"x", headers=(commit_header(name),))
    new = NewRecordBatch(records=(record,), base_timestamp_ms=NOW_MS)
    data = encode_batch(new, base_offset=log.end_offset, leader_epoch=log.epoch)
    append_batches(log, data)


def test_a_written_snapshot_is_read_back(disk: SimulatedDisk) -> None:
    log = created_log(disk, config=LogConfig(values=ValueKind.KRAFT, batch_bytes_max=KIB))
    fill(log, 20)
    values = [b"%04d" % at * 20 for at in range(100)]
    snapshot_id = snapshot(log, log.end_offset, *values)
    assert snapshot_id == SnapshotId(epoch=1, end_offset=21)
    assert log.snapshots == (snapshot_id,)
    batches = list(reader(disk, snapshot_id).batches())
    assert {one.leader_epoch for one in batches} == {1}
    assert max(one.byte_count for one in batches) <= KIB
    read = [record for one in batches if not one.is_control for record in one.records()]
    assert [record.value for record in read] == values
    assert [record.offset for record in read] == list(range(1, 101))


def test_the_voters_are_in_the_first_batch(disk: SimulatedDisk) -> None:
    log = created_log(disk, config=KRAFT_SMALL)
    voters = KRaftVoters(
        voters=(
            Voter(
                voter_id=1,
                voter_directory_id="A" * 21 + "Q",
                endpoints=(),
                min_supported_version=0,
                max_supported_version=1,
            ),
        )
    )
    writer = log.begin_snapshot(
        log.snapshot_id_at(1),
        now_ms=NOW_MS,
        last_contained_log_timestamp_ms=77,
        kraft_version=1,
        voters=voters,
    )
    assert writer is not None
    read = reader(disk, writer.freeze())
    assert (read.kraft_version, read.voters) == (1, voters)
    assert read.last_contained_log_timestamp_ms == 77


def test_an_incomplete_snapshot_is_never_visible(disk: SimulatedDisk) -> None:
    log = created_log(disk)
    writer = log.begin_snapshot(log.snapshot_id_at(1), now_ms=NOW_MS)
    assert writer is not None
    writer.append([b"x"])
    assert not read_listing(disk.list_names(DIRECTORY)).snapshots
    writer.close()
    assert not [name for name in disk.list_names(DIRECTORY) if "checkpoint." in name]


def test_a_snapshot_is_complete_or_absent_after_a_crash(disk: SimulatedDisk) -> None:
    log = created_log(disk, config=KRAFT_SMALL)
    recording = disk.record()
    snapshot_id = snapshot(log, 1, b"one", b"two")
    seen = 0
    for state in recording.states():
        crashed = SimulatedDisk.after(state)
        names = crashed.list_names(DIRECTORY)
        if read_listing(names).snapshots:
            seen += 1
            batches = list(reader(crashed, snapshot_id).batches())
            assert len(batches) == 3, str(state)
        assert not reopened(crashed).is_read_only
    assert seen


def test_a_complete_snapshot_cannot_be_written_to(disk: SimulatedDisk) -> None:
    log = created_log(disk)
    snapshot_id = snapshot(log, 1)
    with pytest.raises(LogAccessError):
        disk.open_for_writing(f"{DIRECTORY}/{checkpoint_name(snapshot_id)}")
    assert log.begin_snapshot(snapshot_id, now_ms=NOW_MS) is None


def test_one_snapshot_is_written_at_a_time_and_an_abandoned_one_is_deleted(
    disk: SimulatedDisk,
) -> None:
    log = created_log(disk)
    process = disk.another_process()
    other = reopened(process)
    writer = other.begin_snapshot(other.snapshot_id_at(1), now_ms=NOW_MS)
    assert writer is not None
    with pytest.raises(LogLockedError):
        log.begin_snapshot(log.snapshot_id_at(1), now_ms=NOW_MS)
    process.kill()
    assert [name for name in disk.list_names(DIRECTORY) if name.endswith(".part")]
    snapshot(log, 1)
    assert not [name for name in disk.list_names(DIRECTORY) if name.endswith(".part")]


def test_a_snapshot_ends_after_a_committed_batch_of_its_epoch(disk: SimulatedDisk) -> None:
    log = created_log(disk)
    append(log, b"a", b"b", b"c")
    log.flush()
    append(log, b"not committed")
    for snapshot_id, reason in (
        (SnapshotId(epoch=1, end_offset=5), "above the high watermark 4"),
        (SnapshotId(epoch=1, end_offset=2), "inside a batch"),
        (SnapshotId(epoch=2, end_offset=4), "has epoch 1"),
    ):
        with pytest.raises(SnapshotRefusedError, match=reason):
            log.begin_snapshot(snapshot_id, now_ms=NOW_MS)
    assert log.begin_snapshot(SnapshotId(epoch=0, end_offset=0), now_ms=NOW_MS) is None


def test_a_record_larger_than_a_batch_is_refused(disk: SimulatedDisk) -> None:
    log = created_log(disk, config=LogConfig(batch_bytes_max=KIB))
    writer = log.begin_snapshot(log.snapshot_id_at(1), now_ms=NOW_MS)
    assert writer is not None
    with pytest.raises(RecordBatchTooLargeError), writer:
        writer.append([b"fits", bytes(2 * KIB)])
    assert log.snapshots == ()


def test_a_full_disk_leaves_no_snapshot_and_the_log_unchanged(disk: SimulatedDisk) -> None:
    log = created_log(disk)
    disk.full_at(sum(map(len, disk.files().values())) + 40)
    with pytest.raises(DiskFullError):
        log.begin_snapshot(log.snapshot_id_at(1), now_ms=NOW_MS)
    disk.full_at(None)
    fill(log, 1)
    snapshot(log, log.end_offset)


def test_commits_are_those_up_to_the_snapshots_end(disk: SimulatedDisk) -> None:
    log = created_log(disk)
    for version in range(40):
        commit(log, version)
    log.flush()
    for end_offset in (5, 20, 41):
        last = memory_in(disk, snapshot(log, end_offset)).last_commit("app")
        assert last is not None
        assert (last.name.version, last.last_offset) == (end_offset - 2, end_offset - 1)


# --- retention ------------------------------------------------------------------------------------


def test_the_log_starts_at_the_end_of_a_snapshot(disk: SimulatedDisk) -> None:
    log = created_log(disk)
    fill(log, 30)
    log.claim(now_ms=NOW_MS)
    fill(log, 30)
    ids = [snapshot(log, end) for end in (5, 25, 40)]
    bases = [one.base_offset for one in log._segments.sealed]
    assert log.delete_before(ids[1])
    assert log.log_start_offset == 25
    assert log.snapshots == tuple(ids[1:])
    kept = log._segments.sealed[0].base_offset
    assert kept == max(base for base in bases if base <= 25)
    assert log.epochs.entries == (
        EpochEntry(epoch=1, start_offset=kept),
        EpochEntry(epoch=2, start_offset=31),
    )
    assert not log.delete_before(ids[1])
    assert not log.delete_before(ids[0])
    names = disk.list_names(DIRECTORY)
    assert min(read_listing(names).segments) == kept
    assert not [name for name in names if name[:20].isdigit() and int(name[:20]) < kept]
    fill(log, 3)
    log.close()
    log = reopened(disk)
    assert (log.log_start_offset, log.report.was_clean) == (25, True)


@pytest.mark.parametrize("values", [ValueKind.BYTES, ValueKind.KRAFT])
def test_a_reader_starts_at_the_published_log_start_offset(
    disk: SimulatedDisk, values: ValueKind
) -> None:
    """The first segment starts earlier: its records below the log start offset are deleted."""
    log = created_log(disk, config=replace(KRAFT_SMALL, values=values))
    fill(log, 60)
    reader = open_log(disk, DIRECTORY)
    assert reader.log_start_offset == 0
    log.delete_before(snapshot(log, 55))
    reader.refresh()
    assert min(read_listing(disk.list_names(DIRECTORY)).segments) < 55
    assert reader.log_start_offset == log.log_start_offset == 55
    assert open_log(disk, DIRECTORY).log_start_offset == 55
    found = list(reader.batches(reader.log_start_offset, reader.log_end_offset))
    assert [one.base_offset for one in found] == list(range(55, 61))
    with pytest.raises(DataLossError, match="OFFSETS_DELETED"):
        reader.next_boundary(54, end_offset=61)
    assert reader.next_boundary(55, end_offset=61, max_records=100) == 61


def test_an_interrupted_retention_is_completed(disk: SimulatedDisk) -> None:
    log = created_log(disk)
    for version in range(50):
        commit(log, version)
    log.flush()
    snapshot_id = snapshot(log, 40)
    recording = disk.record()
    log.delete_before(snapshot_id)
    for state in recording.states([None, Survival.MIXED]):
        crashed = SimulatedDisk.after(state)
        log = reopened(crashed)
        assert not log.is_read_only, str(state)
        assert (log.end_offset, log.snapshots) == (51, (snapshot_id,))
        assert log.log_start_offset in (0, 40)
        assert set(range(40, 51)) <= values_of(crashed).keys()
        last = log.producer_state.last_commit("app")
        assert last is not None
        assert last.name.version == 49
        log.delete_before(snapshot_id)
        assert log.log_start_offset == 40


def test_retention_by_size_writes_a_snapshot_without_records(disk: SimulatedDisk) -> None:
    log = created_log(disk, config=LogConfig(segment_bytes=2_000, retention_bytes=4_000))
    commit(log, 7)
    fill(log, 60)
    assert log.clean(now_ms=NOW_MS)
    assert not log.clean(now_ms=NOW_MS)
    held = sum(len(data) for path, data in disk.files().items() if path.endswith(".log"))
    assert 4_000 <= held < 6_000
    (snapshot_id,) = log.snapshots
    assert log.log_start_offset == snapshot_id.end_offset == min(values_of(disk))
    assert [one.is_control for one in reader(disk, snapshot_id).batches()] == [True, True]
    last = memory_in(disk, snapshot_id).last_commit("app")
    assert last is not None
    assert last.name.version == 7
    log.close()
    log = reopened(disk)
    assert log.producer_state.last_commit("app") == last
    assert open_log(disk, DIRECTORY).log_start_offset == log.log_start_offset


def test_producer_state_may_be_larger_than_a_batch_of_the_log(disk: SimulatedDisk) -> None:
    log = created_log(disk, config=LogConfig(batch_bytes_max=1_024))
    for number in range(50):
        name = CommitName(f"application {number} {'x' * 100}", "query", 1)
        record = NewRecord(None, b"x", headers=(commit_header(name),))
        batch = NewRecordBatch(records=(record,), base_timestamp_ms=NOW_MS)
        data = encode_batch(batch, base_offset=log.end_offset, leader_epoch=1)
        append_batches(log, data)
    log.flush()
    snapshot_id = log.snapshot_id_at(log.end_offset)
    writer = log.begin_snapshot(snapshot_id, now_ms=NOW_MS)
    assert writer is not None
    with writer:
        writer.freeze()
    assert log.delete_before(snapshot_id)
    for path in disk.files():
        if path.endswith(".snapshot"):
            disk.unlink(path)
    disk.kill()
    assert len(reopened(disk).producer_state.commits) == 50


def test_retention_waits_while_a_snapshot_is_written(disk: SimulatedDisk) -> None:
    log = created_log(disk, config=LogConfig(segment_bytes=2_000, retention_bytes=4_000))
    fill(log, 60)
    with log.begin_snapshot(log.snapshot_id_at(5), now_ms=NOW_MS) or pytest.fail("it is wanted"):
        with pytest.raises(LogLockedError):
            log.clean(now_ms=NOW_MS)
        fill(log, 1)
    assert log.clean(now_ms=NOW_MS)


def test_retention_by_age_rolls_an_expired_active_segment(disk: SimulatedDisk) -> None:
    log = created_log(disk, config=LogConfig(segment_bytes=2_000, retention_ms=1_000))
    fill(log, 30)
    assert not log.clean(now_ms=NOW_MS + 900)
    assert log.clean(now_ms=NOW_MS + 10_000)
    assert log.log_start_offset == log.end_offset == 31
    assert not values_of(disk)
    fill(log, 1)
    log.close()
    assert reopened(disk).log_start_offset == 31


def test_a_log_with_a_state_machine_is_deleted_only_up_to_a_snapshot(disk: SimulatedDisk) -> None:
    config = LogConfig(values=ValueKind.KRAFT, segment_bytes=2_000, retention_bytes=3_000)
    log = created_log(disk, config=config)
    fill(log, 60)
    assert not log.clean(now_ms=NOW_MS)
    ids = [snapshot(log, end, b"state") for end in (20, 40)]
    assert log.clean(now_ms=NOW_MS)
    assert (log.log_start_offset, log.snapshots) == (40, (ids[1],))


def test_nothing_is_deleted_by_default(disk: SimulatedDisk) -> None:
    log = created_log(disk)
    fill(log, 60)
    assert not log.clean(now_ms=NOW_MS * 10**6)
    assert log.log_start_offset == 0


SEGMENTS = [
    SegmentMetadata(base_offset=0, end_offset=10, byte_count=100, max_timestamp_ms=1_000),
    SegmentMetadata(base_offset=10, end_offset=20, byte_count=100, max_timestamp_ms=2_000),
    SegmentMetadata(base_offset=20, end_offset=30, byte_count=100, max_timestamp_ms=-1),
]


@pytest.mark.parametrize(
    ("high_watermark", "retention_ms", "retention_bytes", "start"),
    [
        (99, None, None, None),
        (99, 2_000, None, 10),
        (99, 1_999, None, 10),
        (99, 999, None, 20),
        (99, 0, None, 20),
        (19, 0, None, 10),
        (9, 0, None, None),
        (99, None, 350, None),
        (99, None, 250, 10),
        (99, None, 249, 10),
        (99, None, 150, 20),
        (99, None, 0, 30),
        (25, None, 0, 20),
        (99, 1_999, 0, 30),
    ],
)
def test_records_that_exceed_age_or_size_are_deleted(
    high_watermark: int, retention_ms: int | None, retention_bytes: int | None, start: int | None
) -> None:
    found = start_after_retention(
        SEGMENTS,
        active_bytes=50,
        high_watermark=high_watermark,
        now_ms=3_001,
        retention_ms=retention_ms,
        retention_bytes=retention_bytes,
    )
    assert found == start


@pytest.mark.parametrize(
    ("retention_ms", "retention_bytes", "ordinal"),
    [(None, None, None), (2_000, None, 1), (0, None, 2), (None, 400, None), (None, 250, 2)],
)
def test_the_newest_snapshot_is_always_kept(
    retention_ms: int | None, retention_bytes: int | None, ordinal: int | None
) -> None:
    snapshots = [
        RetentionSnapshot(SnapshotId(epoch=1, end_offset=10 * at), 50, 1_000 * at)
        for at in (1, 2, 3)
    ]
    found = snapshot_to_start_after(
        snapshots,
        log_bytes=200,
        now_ms=3_001,
        retention_ms=retention_ms,
        retention_bytes=retention_bytes,
    )
    assert found == (None if ordinal is None else snapshots[ordinal].snapshot_id)
