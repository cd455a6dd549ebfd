"""Leader epochs and divergence: a leader's answers, and a follower's truncation."""

from __future__ import annotations

import pytest
from tests.simulated_disk.crash_model import Survival
from tests.simulated_disk.simulated_disk import SimulatedDisk
from tests.support.appending import (
    DIRECTORY,
    KRAFT_SMALL,
    NOW_MS,
    append_batches,
    batches_of,
    begin_next_epoch,
    created_log,
    created_replica,
    disk_with_parent,
    fill,
    reopened,
    reopened_replica,
    values_of,
)
from tests.support.batch_encoding import NewRecordBatch, encode_batch

from raftlog.errors import TruncationRefusedError
from raftlog.log.format.epoch_cache import EpochCache, EpochEntry, EpochValidation
from raftlog.log.reading.transactions import Marker, marker_of, marker_value
from raftlog.log.recovery.recover import read_checkpoint_files
from raftlog.log.writing.quorum_log import QuorumLog
from raftlog.records.record import NewRecord
from raftlog.types import Diverging, OffsetAndEpoch, SnapshotId, SnapshotNeeded, Valid


@pytest.fixture
def disk() -> SimulatedDisk:
    return disk_with_parent()


def lineage(
    *entries: tuple[int, int], start: int = 0, end: int, snapshots: tuple[SnapshotId, ...] = ()
) -> EpochValidation:
    return EpochValidation(
        log_start_offset=start,
        log_end_offset=end,
        epochs=EpochCache.of(entries),
        snapshots=snapshots,
    )


@pytest.mark.parametrize(
    ("epoch", "answer"),
    [(1, (1, 10)), (2, (2, 20)), (3, (2, 20)), (5, (4, 30)), (7, (7, 45)), (8, (7, 45))],
)
def test_the_end_of_an_epoch_is_the_start_of_the_next(epoch: int, answer: tuple[int, int]) -> None:
    found = lineage((2, 10), (4, 20), (7, 30), end=45).end_offset_for_epoch(epoch)
    assert (found.epoch, found.offset) == answer


def test_an_empty_log_has_epoch_0_or_that_of_its_snapshot() -> None:
    assert lineage(end=0).last_fetched_epoch == 0
    snapshot_id = SnapshotId(epoch=3, end_offset=12)
    begun = lineage(start=12, end=12, snapshots=(snapshot_id,))
    assert begun.last_fetched_epoch == 3
    assert begun.end_offset_for_epoch(9) == OffsetAndEpoch(epoch=3, offset=12)
    assert lineage(start=5, end=12, snapshots=(snapshot_id,)).last_fetched_epoch == 0


def test_the_end_of_the_oldest_snapshots_epoch_is_that_snapshot() -> None:
    snapshot_id = SnapshotId(epoch=1, end_offset=20)
    log = lineage((2, 20), (3, 30), start=20, end=40, snapshots=(snapshot_id,))
    assert log.end_offset_for_epoch(1) == OffsetAndEpoch(epoch=1, offset=20)
    assert log.validate(offset=20, epoch=1) == Valid()
    assert log.validate(offset=20, epoch=2) == SnapshotNeeded(snapshot_id)


@pytest.mark.parametrize(
    ("offset", "epoch", "answer"),
    [
        (0, 0, Valid()),
        (0, 9, Valid()),
        (10, 2, Valid()),
        (20, 2, Valid()),
        (21, 2, Diverging(OffsetAndEpoch(epoch=2, offset=20))),
        (45, 7, Valid()),
        (46, 7, Diverging(OffsetAndEpoch(epoch=7, offset=45))),
        (25, 5, Diverging(OffsetAndEpoch(epoch=4, offset=30))),
        (45, 8, Diverging(OffsetAndEpoch(epoch=7, offset=45))),
    ],
)
def test_an_offset_is_valid_if_its_epoch_extends_to_it(
    offset: int, epoch: int, answer: Valid | Diverging
) -> None:
    assert lineage((2, 0), (4, 20), (7, 30), end=45).validate(offset=offset, epoch=epoch) == answer


@pytest.mark.parametrize(
    ("offset", "epoch", "is_needed"),
    [(0, 0, True), (9, 2, True), (10, 2, False), (10, 3, True), (15, 1, True), (15, 2, False)],
)
def test_a_follower_below_the_log_start_is_sent_the_newest_snapshot(
    offset: int, epoch: int, is_needed: bool
) -> None:
    snapshots = (SnapshotId(epoch=2, end_offset=10), SnapshotId(epoch=4, end_offset=22))
    log = lineage((2, 10), (4, 20), start=10, end=30, snapshots=snapshots)
    assert log.validate(offset=offset, epoch=epoch) == (
        SnapshotNeeded(snapshots[1]) if is_needed else Valid()
    )


def test_a_snapshot_older_than_the_log_start_decides_nothing() -> None:
    """Such a snapshot is deleted only after the log has started again at a later one."""
    older, first = SnapshotId(epoch=1, end_offset=3), SnapshotId(epoch=2, end_offset=10)
    log = lineage((7, 10), start=10, end=11, snapshots=(older, first))
    assert log.validate(offset=10, epoch=2) == Valid()
    assert log.validate(offset=10, epoch=1) == SnapshotNeeded(first)
    assert log.end_offset_for_epoch(2) == OffsetAndEpoch(epoch=2, offset=10)


@pytest.mark.parametrize(
    ("leader", "cut_at"),
    [((0, 7), 7), ((0, 99), 45), ((4, 25), 25), ((4, 99), 30), ((5, 25), 30), ((7, 50), 45)],
)
def test_a_follower_truncates_where_both_logs_agree(leader: tuple[int, int], cut_at: int) -> None:
    epoch, offset = leader
    log = lineage((2, 0), (4, 20), (7, 30), end=45)
    assert log.truncation_offset(OffsetAndEpoch(epoch=epoch, offset=offset)) == cut_at


# --- truncated files ------------------------------------------------------------------------------


def follower(disk: SimulatedDisk) -> QuorumLog:
    """Return a log of offsets 0 to 60 in several segments, with epoch 2 from 21 on."""
    log = created_replica(disk)
    fill(log, 20)
    begin_next_epoch(log)
    fill(log, 39)
    assert log.end_offset == 61
    assert len(log._segments.sealed) > 2
    return log


@pytest.mark.parametrize("offset", [0, 1, 11, 12, 13, 20, 21, 22, 40, 59, 60, 61, 99])
def test_the_log_ends_at_the_truncation(disk: SimulatedDisk, offset: int) -> None:
    log = follower(disk)
    log.truncate_to(offset)
    assert log.end_offset == min(offset, 61)
    assert log.producer_state.end_offset == log.end_offset
    assert log.epoch == (2 if offset > 21 else 1 if offset else 0)
    assert (read_checkpoint_files(disk, DIRECTORY).epochs or EpochCache()) == log.epochs
    begin_next_epoch(log)
    fill(log, 30)
    end = log.end_offset
    log.close()
    log = reopened_replica(disk)
    assert (log.report.was_clean, log.end_offset) == (True, end)
    assert [one.base_offset for one in batches_of(disk)] == list(range(end))


def test_a_batch_is_truncated_as_a_whole(disk: SimulatedDisk) -> None:
    log = created_replica(disk)
    records = tuple(NewRecord(None, b"%d" % at) for at in range(5))
    new = NewRecordBatch(records=records, base_timestamp_ms=NOW_MS)
    append_batches(log, encode_batch(new, base_offset=1, leader_epoch=1))
    log.truncate_to(4)
    assert log.end_offset == 1


def test_committed_records_are_not_truncated(disk: SimulatedDisk) -> None:
    log = follower(disk)
    log.advance_high_watermark(30)
    with pytest.raises(TruncationRefusedError):
        log.truncate_to(29)
    log.truncate_to(30)
    assert (log.end_offset, log.high_watermark) == (30, 30)


def stored_bytes(disk: SimulatedDisk, *, is_saved: bool) -> bytes:
    """Return the bytes of the segments, or of the backups, in the order of the log."""
    parts = []
    for name in sorted(disk.list_names(DIRECTORY)):
        if ".log.cut-" in name if is_saved else name.endswith(".log"):
            with disk.open_file(f"{DIRECTORY}/{name}") as file:
                parts.append(file.read_at(0, file.byte_count()))
    return b"".join(parts)


@pytest.mark.parametrize("offset", [0, 12, 13, 40, 60])
def test_truncated_records_are_backed_up(disk: SimulatedDisk, offset: int) -> None:
    log = follower(disk)
    before = stored_bytes(disk, is_saved=False)
    log.truncate_to(offset)
    left, saved = stored_bytes(disk, is_saved=False), stored_bytes(disk, is_saved=True)
    assert left + saved == before
    assert len(saved) > 0
    assert reopened_replica(disk).end_offset == offset
    assert stored_bytes(disk, is_saved=True) == saved


def test_a_log_is_truncated_although_there_is_no_space_for_a_backup(disk: SimulatedDisk) -> None:
    log = follower(disk)
    log.flush()
    disk.leave_room(100)
    log.truncate_to(13)
    assert (log.end_offset, stored_bytes(disk, is_saved=True)) == (13, b"")
    disk.full_at(None)
    fill(log, 5)
    assert log.end_offset == 18


@pytest.mark.slow
def test_an_interrupted_truncation_leaves_a_log_that_can_be_truncated_again(
    disk: SimulatedDisk,
) -> None:
    log = follower(disk)
    log.flush()
    recording = disk.record()
    log.truncate_to(15)
    for state in recording.states([Survival.MIXED, Survival.NOTHING]):
        crashed = SimulatedDisk.after(state)
        log = reopened_replica(crashed)
        assert not log.is_read_only, str(state)
        assert 15 <= log.end_offset <= 61
        log.truncate_to(15)
        begin_next_epoch(log)
        assert sorted(values_of(crashed)) == list(range(1, 15)), str(state)


def test_diverging_logs_converge(disk: SimulatedDisk) -> None:
    """The case of KAFKA-3919: a follower with a longer log than the new leader."""
    follows = created_replica(disk)
    leads_on = disk_with_parent()
    leads = created_replica(leads_on)
    shared = b""
    for log in (follows, leads):
        fill(log, 20)
    fill(follows, 15)
    begin_next_epoch(leads)
    fill(leads, 30)
    answer = leads.validate_offset_and_epoch(offset=follows.end_offset, epoch=follows.epoch)
    assert answer == Diverging(OffsetAndEpoch(epoch=1, offset=21))
    assert follows.truncate_to_end_of_epoch(answer.end) == 21
    assert leads.validate_offset_and_epoch(offset=21, epoch=follows.epoch) == Valid()
    for one in batches_of(leads_on):
        if one.base_offset >= 21:
            with leads_on.open_file(str(one.path)) as file:
                shared += file.read_at(one.position, one.byte_count)
    follows.append_as_follower(shared, leader_epoch=2)
    follows.flush()
    ours = {path: data for path, data in disk.files().items() if path.endswith(".log")}
    assert ours == {path: data for path, data in leads_on.files().items() if path.endswith(".log")}
    assert follows.epochs.entries == (
        EpochEntry(epoch=1, start_offset=0),
        EpochEntry(epoch=2, start_offset=21),
    )


# --- transactions left open by an earlier epoch ---------------------------------------------------


def test_the_start_of_a_later_epoch_aborts_an_open_transaction(disk: SimulatedDisk) -> None:
    log = created_log(disk, config=KRAFT_SMALL)
    begin = NewRecord(None, marker_value(Marker.BEGIN, "half done"))
    new = NewRecordBatch(records=(begin,), base_timestamp_ms=NOW_MS)
    append_batches(log, encode_batch(new, base_offset=1, leader_epoch=1))
    log.flush()
    assert (log.high_watermark, log.last_stable_offset) == (2, 1)
    disk.crash()
    log = reopened(disk)
    assert log.last_stable_offset == 1
    begin_next_epoch(log)
    change, abort = batches_of(disk)[-2:]
    assert (change.is_control, change.leader_epoch) == (True, 2)
    (record,) = abort.records()
    assert marker_of(record.value) is Marker.ABORT
    assert log.last_stable_offset == log.high_watermark == 4
