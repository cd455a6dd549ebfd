"""Several processes that write one log in turn: each reads the appends of the others."""

from __future__ import annotations

import pytest
from tests.simulated_disk.crash_model import Survival
from tests.simulated_disk.simulated_disk import SimulatedDisk
from tests.support.appending import (
    DIRECTORY,
    NOW_MS,
    append,
    append_batches,
    batch,
    created_log,
    disk_with_parent,
    fill,
    reopened,
    values_of,
)
from tests.support.batch_encoding import NewRecordBatch, encode_batch
from tests.support.crash_injection import crashes_after

from raftlog.errors import NotLeaderError
from raftlog.log.format.directory import PUBLISHED_NAME, read_listing, read_published
from raftlog.log.reading.transactions import CommitName, commit_header
from raftlog.log.recovery.repair import truncate_log_at
from raftlog.log.writing.producer_state import LastCommit
from raftlog.log.writing.properties import LogConfig
from raftlog.log.writing.single_voter_log import SingleVoterLog
from raftlog.records.record import NewRecord


@pytest.fixture
def disk() -> SimulatedDisk:
    return disk_with_parent()


def refresh(log: SingleVoterLog) -> bool:
    return log.refresh(now_ms=NOW_MS)


def published_end(disk: SimulatedDisk) -> int:
    published = read_published(disk, DIRECTORY, disk.boot_id())
    assert published is not None
    return published.end_offset


def test_a_process_that_returns_reads_on_and_appends_at_the_end(disk: SimulatedDisk) -> None:
    one = created_log(disk)
    other = reopened(disk.another_process())
    assert not refresh(one)
    for turn in range(40):
        for log in (one, other):
            assert refresh(log) == (log is other or turn > 0)
            fill(log, 1 + turn % 3)
            assert not refresh(log)
    assert refresh(one)
    assert (one.end_offset, one.epochs) == (other.end_offset, other.epochs)
    assert list(values_of(disk)) == list(range(1, one.end_offset))
    one.close()
    other.close()
    assert reopened(disk).end_offset == other.end_offset


def test_indexes_of_two_writers_equal_those_of_one(disk: SimulatedDisk) -> None:
    alone = disk_with_parent()
    single = created_log(alone)
    one = created_log(disk)
    other = reopened(disk.another_process())
    for turn in range(30):
        log = (one, other)[turn % 2]
        refresh(log)
        fill(log, 2)
        fill(single, 2)
    refresh(one)
    one.close()
    single.close()
    ours, expected = disk.files(), alone.files()
    for path, data in expected.items():
        if path.endswith((".log", "index")):
            assert ours[path] == data, path


def test_reading_on_costs_only_the_new_part(disk: SimulatedDisk) -> None:
    one = created_log(disk, config=LogConfig())
    fill(one, 3_000)
    process = disk.another_process()
    other = reopened(process)
    fill(one, 1)
    process.reads.clear()
    assert refresh(other)
    assert sum(process.reads.values()) < 1_000
    process.reads.clear()
    assert not refresh(other)
    assert sum(process.reads.values()) < 300


def test_commits_and_epochs_of_another_process_are_known(disk: SimulatedDisk) -> None:
    one = created_log(disk)
    other = reopened(disk.another_process())
    name = CommitName("app", "query", 7)
    record = NewRecord(None, b"x", headers=(commit_header(name),))
    new = NewRecordBatch(records=(record,), base_timestamp_ms=NOW_MS)
    append_batches(one, encode_batch(new, base_offset=1, leader_epoch=1))
    one.claim(now_ms=NOW_MS)
    refresh(other)
    assert other.producer_state.last_commit("app") == LastCommit(name, 1, 1, NOW_MS)
    assert (other.epoch, other.end_offset) == (2, 3)
    with pytest.raises(NotLeaderError):
        append_batches(other, batch(b"x", base_offset=3, epoch=1))


def test_unpublished_batches_of_a_dead_writer_are_backed_up_and_truncated(
    disk: SimulatedDisk,
) -> None:
    one = created_log(disk)
    process = disk.another_process()
    other = reopened(process)
    fill(other, 3)
    append(other, b"never acknowledged")
    process.kill()
    assert refresh(one)
    assert one.end_offset == 4
    (cut,) = one.report.truncated
    assert cut.first_offset == 4
    assert cut.saved_as is not None
    assert b"never acknowledged" in disk.files()[cut.saved_as]
    fill(one, 1)
    assert list(values_of(disk)) == [1, 2, 3, 4]


def operations_of_a_roll(disk: SimulatedDisk) -> int:
    """Return the number of operations in appending two more batches, during which the log rolls."""
    log = reopened(disk)
    before = disk.operation_count
    fill(log, 2)
    assert log._segments.sealed
    return disk.operation_count - before


def test_a_writer_that_dies_anywhere_in_a_roll_blocks_no_other(disk: SimulatedDisk) -> None:
    fill(created_log(disk), 11)
    for cut in range(operations_of_a_roll(disk.copy())):
        copy = disk.copy()
        stays = reopened(copy)
        dying = copy.another_process()
        log = reopened(dying)
        assert crashes_after(copy, cut, fill, log, 2)
        dying.kill()
        promised = published_end(copy)
        late = reopened(copy.another_process()) if cut % 2 else None
        refresh(stays)
        assert stays.end_offset == promised >= 12, cut
        fill(stays, 2)
        assert list(values_of(copy)) == list(range(1, promised + 2)), cut
        if late is not None:
            refresh(late)
            fill(late, 20)
            assert list(values_of(copy)) == list(range(1, promised + 22)), cut


def test_a_roll_of_another_process_is_followed(disk: SimulatedDisk) -> None:
    one = created_log(disk)
    other = reopened(disk.another_process())
    fill(other, 50)
    assert refresh(one)
    assert one.end_offset == other.end_offset
    assert [s.base_offset for s in one._segments.sealed] == [
        s.base_offset for s in other._segments.sealed
    ]
    assert not one.report.truncated
    fill(one, 30)
    refresh(other)
    assert list(values_of(disk)) == list(range(1, other.end_offset))


def test_records_deleted_by_another_process_are_known(disk: SimulatedDisk) -> None:
    one = created_log(disk)
    other = reopened(disk.another_process())
    fill(one, 50)
    refresh(other)
    writer = one.begin_snapshot(one.snapshot_id_at(30), now_ms=NOW_MS)
    assert writer is not None
    one.delete_before(writer.freeze())
    assert refresh(other)
    assert not refresh(other)
    assert (other.log_start_offset, other.snapshots, other.epochs) == (
        30,
        one.snapshots,
        one.epochs,
    )
    bases = [segment.base_offset for segment in other._segments.sealed]
    assert bases == [segment.base_offset for segment in one._segments.sealed]


def test_a_process_that_closes_does_not_affect_the_others(disk: SimulatedDisk) -> None:
    one = created_log(disk)
    other = reopened(disk.another_process())
    fill(one, 3)
    one.close()
    refresh(other)
    fill(other, 3)
    disk.crash(Survival.EVERYTHING)
    log = reopened(disk)
    assert not log.report.was_clean, "the file has an earlier end"
    assert log.end_offset == 7


def test_a_lagging_process_closes_without_changing_the_log(disk: SimulatedDisk) -> None:
    one = created_log(disk)
    other = reopened(disk.another_process())
    fill(one, 1)
    refresh(other)
    fill(other, 40)
    before = disk.files()
    one.close()
    assert disk.files() == before
    refresh(other)
    fill(other, 1)


def test_after_a_half_written_published_line_the_next_process_scans_the_log(
    disk: SimulatedDisk,
) -> None:
    one = created_log(disk)
    fill(one, 5)
    with disk.open_for_writing(f"{DIRECTORY}/{PUBLISHED_NAME}") as file:
        file.write_at(60, b"torn")
    assert refresh(one)
    assert one.end_offset == 6
    assert published_end(disk) == 6
    assert list(values_of(disk)) == [1, 2, 3, 4, 5]


def test_the_next_process_completes_an_interrupted_claim(disk: SimulatedDisk) -> None:
    fill(created_log(disk), 3)
    deaths, has_died = 0, True
    while has_died:
        machine = disk.copy()
        one, process = reopened(machine), machine.another_process()
        other = reopened(process)
        fill(one, 2)
        refresh(other)
        has_died = crashes_after(machine, deaths, other.claim, now_ms=NOW_MS)
        deaths += has_died
        process.kill()
        refresh(one)
        fill(one, 2)
        found = reopened(machine.another_process())
        assert not found.is_read_only
        assert (found.end_offset, found.epochs) == (one.end_offset, one.epochs)
    assert deaths > 10


@pytest.mark.slow
def test_the_next_process_completes_an_interrupted_retention(disk: SimulatedDisk) -> None:
    fill(created_log(disk), 60)
    deaths, has_died = 0, True
    while has_died:
        machine = disk.copy()
        one, process = reopened(machine), machine.another_process()
        other = reopened(process)
        fill(one, 2)
        refresh(other)
        snapshot_id = other.snapshot_id_at(other.end_offset)
        writer = other.begin_snapshot(snapshot_id, now_ms=NOW_MS)
        assert writer is not None
        writer.freeze()
        has_died = crashes_after(machine, deaths, other.delete_before, snapshot_id)
        deaths += has_died
        process.kill()
        refresh(one)
        found = reopened(machine.another_process())
        assert one.log_start_offset == found.log_start_offset in (0, snapshot_id.end_offset)
        segments = read_listing(machine.list_names(DIRECTORY)).segments
        assert all(base > one.log_start_offset for base in segments[1:]), deaths
        fill(one, 20)
        assert list(values_of(machine))[-20:] == list(range(one.end_offset - 20, one.end_offset))
    assert deaths > 10


def test_no_process_appends_to_a_file_that_was_backed_up(disk: SimulatedDisk) -> None:
    one = created_log(disk)
    fill(one, 30)
    before = one.end_offset
    segment, published = f"{DIRECTORY}/{one._segments.active.base_offset:020d}.log", "/published"
    content = disk.files()
    for path in (segment, DIRECTORY + published):
        disk.rename(path, path + ".aside")
        disk.put(path, content[path])
    refresh(one)
    fill(one, 1)
    assert max(values_of(disk)) == before
    assert published_end(disk) == before + 1


def test_closing_does_not_change_a_log_that_replaced_the_open_one(disk: SimulatedDisk) -> None:
    one = created_log(disk)
    fill(one, 30)
    for path in disk.files():
        disk.unlink(path)
    new = created_log(disk.another_process())
    fill(new, 1)
    before = disk.files()
    one.close()
    assert disk.files() == before


@pytest.mark.parametrize("value_bytes", [100, 40])
def test_a_repair_and_appends_up_to_the_old_end_offset_are_known(
    disk: SimulatedDisk, value_bytes: int
) -> None:
    """End offset and epoch are those that the process knows, but the records are others.

    With values of the old size the file even has its old size.
    """
    one = created_log(disk)
    fill(one, 6)
    end = one.end_offset
    truncate_log_at(disk.another_process(), DIRECTORY, offset=3, config=one.config)
    other = reopened(disk.another_process())
    name = CommitName("app", "query", 1)
    data = NewRecordBatch(
        records=(NewRecord(None, b"named", headers=(commit_header(name),)),), base_timestamp_ms=1
    )
    append_batches(other, encode_batch(data, base_offset=3, leader_epoch=1))
    fill(other, end - other.end_offset, value_bytes=value_bytes)
    expected = values_of(disk)
    assert other.end_offset == one.end_offset
    assert refresh(one)
    assert one.producer_state.last_commit("app") is not None
    fill(one, 1)
    disk.crash(Survival.NOTHING)
    recovered = reopened(disk)
    assert recovered.end_offset == end + 1
    assert {at: value for at, value in values_of(disk).items() if at < end} == expected
