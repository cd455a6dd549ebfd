"""Records of a replica's log are deleted, locally and in its object store, through crashes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.log.cleaning.test_compacted_replicas import compact
from tests.log.cleaning.test_compacted_replicas import fill as fill_keys
from tests.log.cleaning.test_compaction import COMPACTED
from tests.log.remote.stored_backups import surroundings
from tests.log.remote.tiered_logs import (
    OBJECTS,
    TIERED,
    cleaned,
    manifest,
    objects,
    offsets,
    reader,
    store_on,
)
from tests.simulated_disk.simulated_disk import SimulatedDisk, Survival
from tests.support.appending import (
    DIRECTORY,
    TOPIC_ID,
    created_replica,
    disk_with_parent,
    fill,
    reopened_replica,
)
from tests.support.crash_injection import crashes_after

from raftlog.errors import OptionError
from raftlog.log.format.directory import RAFTLOG_PROPERTIES_NAME, REMOTE_SEGMENTS_NAME
from raftlog.log.remote.segment_metadata import RemoteLogSegmentState
from raftlog.log.writing.atomic_files import replace_checked
from raftlog.log.writing.properties import LogProperties, encode_log_properties
from raftlog.log.writing.quorum_log import QuorumLog

NOW_MS = 1_000_000
END = 41


def committed(log: QuorumLog) -> QuorumLog:
    log.advance_high_watermark(log.end_offset)
    return log


def tiered_replica() -> tuple[SimulatedDisk, QuorumLog]:
    """Return the log of a leader, of which most segments are objects only."""
    disk = disk_with_parent()
    log = created_replica(disk, config=TIERED)
    fill(log, END - 1)
    cleaned(committed(log), store_on(disk), 1)
    assert (log.end_offset, log.earliest_offset) == (END, 0)
    assert 15 < log.log_start_offset < 35
    return disk, log


def delete_everywhere(log: QuorumLog, disk: SimulatedDisk, offset: int) -> None:
    """Delete records, and run the remote storage until their objects are deleted."""
    log.delete_records(offset, now_ms=NOW_MS)
    for seed in (2, 3):
        cleaned(log, store_on(disk), seed)


def check_deleted(disk: SimulatedDisk, log: QuorumLog, offset: int, what: str) -> None:
    assert log.earliest_offset == offset, what
    assert offsets(reader(disk, store_on(disk))) == list(range(offset, log.end_offset)), what
    found = manifest(disk)
    assert not found.unfinished, what
    assert not found.deleting, what
    assert all(one.metadata.last_offset >= offset for one in found.ranges.values()), what
    named = {one.metadata.object_name("").removeprefix(OBJECTS) for one in found.ranges.values()}
    assert {name.partition(".")[0] for name in objects(disk)} == named, what


@pytest.mark.parametrize("offset", [5, 14, 38, END])
def test_a_replica_starts_at_the_offset_and_objects_below_it_are_deleted(offset: int) -> None:
    disk, log = tiered_replica()
    before = {one.segment_id for one in manifest(disk).copied_before}
    assert log.delete_records(offset, now_ms=NOW_MS) == offset
    assert log.earliest_offset == offset
    cleaned(log, store_on(disk), 2)
    deleting = manifest(disk).deleting
    assert all(one.last_offset < offset for one in deleting)
    assert all(one.state is RemoteLogSegmentState.DELETE_SEGMENT_STARTED for one in deleting)
    cleaned(log, store_on(disk), 3)
    after = {one.segment_id for one in manifest(disk).copied_before} - before
    assert after == {one.segment_id for one in deleting}
    check_deleted(disk, log, offset, "")
    disk.crash(Survival.NOTHING)
    check_deleted(disk, committed(reopened_replica(disk)), offset, "opened again")
    log = committed(reopened_replica(disk))
    assert log.delete_records(3, now_ms=NOW_MS) == offset, "a log start never decreases"


SURVIVALS = (None, Survival.NOTHING, Survival.MIXED)
"""What survives a crash; None: all, because only the process ends."""


def crashes(offset: int, *, is_complete: bool = False) -> Iterator[tuple[SimulatedDisk, int, str]]:
    """Yield the disk after a crash at each operation of a deletion and of the next two runs; of
    all kinds if ``is_complete``, otherwise of each kind in turn."""
    for operations in range(10_000):
        for survival in SURVIVALS if is_complete else (SURVIVALS[operations % 3],):
            disk, log = tiered_replica()
            if not crashes_after(disk, operations, delete_everywhere, log, disk, offset):
                return
            disk.end(survival)
            yield disk, operations, f"operation {operations}, {survival}"


@pytest.mark.parametrize(
    ("offset", "is_complete"),
    [(14, False), *(pytest.param(at, True, marks=pytest.mark.nightly) for at in (14, 38))],
)
def test_a_crash_at_any_operation_of_a_deletion_leaves_the_log_whole(
    offset: int, is_complete: bool
) -> None:
    starts = set()
    for disk, operations, what in crashes(offset, is_complete=is_complete):
        log = committed(reopened_replica(disk))
        assert log.report.read_only is None, what
        start = log.earliest_offset
        assert start in (0, offset), what
        starts.add(start)
        first = offsets(reader(disk, store_on(disk)))
        assert first[-1] == END - 1, what
        assert first == list(range(first[0], END)), what
        assert first[0] <= offset, what
        delete_everywhere(log, disk, offset)
        cleaned(log, store_on(disk), 10 + operations)
        fill(log, 13)
        for at in range(2):
            cleaned(committed(log), store_on(disk), 20 + operations + at)
        check_deleted(disk, log, offset, what)
    assert starts == {0, offset}


def test_local_segments_that_a_crash_has_left_below_the_start_are_deleted_by_the_next_check() -> (
    None
):
    left = 0
    for disk, _, what in crashes(38):
        log = committed(reopened_replica(disk))
        if log.earliest_offset == 38 > log.log_start_offset:
            left += 1
            assert log.clean(now_ms=NOW_MS), what
            assert log.log_start_offset == 38, what
            assert not log.clean(now_ms=NOW_MS), what
        elif left:
            break
    assert left


def test_a_log_without_a_list_of_remote_segments_keeps_the_start_until_there_is_one() -> None:
    """So it is with a replica that has fetched a snapshot, whose leader deletes records."""
    disk, log = tiered_replica()
    disk.unlink(f"{DIRECTORY}/{REMOTE_SEGMENTS_NAME}")
    disk.kill()
    log = committed(reopened_replica(disk))
    assert log.earliest_offset is None
    assert log.delete_records(14, now_ms=NOW_MS) == 14
    assert log.earliest_offset is None, "there may be remote segments from there on"
    delete_everywhere(log, disk, 14)
    check_deleted(disk, log, 14, "")


def test_records_that_replicas_have_compacted_are_not_copied_until_they_are_deleted() -> None:
    """The logs of two leaders differ there, and past states of neither have all keys."""
    disk = disk_with_parent()
    log = committed(created_replica(disk, config=COMPACTED))
    fill_keys(log, 1, 60)
    assert compact(log)
    compacted = log.compacted_offset
    log.close()
    settings = LogProperties(topic_id=TOPIC_ID, config=TIERED)
    replace_checked(disk, DIRECTORY, {RAFTLOG_PROPERTIES_NAME: encode_log_properties(settings)})
    log = committed(reopened_replica(disk))
    run = log.begin_remote_run(lambda _: store_on(disk), surroundings(1), cache={}, node_id=1)
    assert run is not None
    with run, pytest.raises(OptionError, match=f"below offset {compacted} were compacted"):
        run.run()
    assert not objects(disk)
    fill_keys(log, 2, 30)
    assert log.delete_records(compacted, now_ms=NOW_MS) == compacted
    run = log.begin_remote_run(lambda _: store_on(disk), surroundings(2), cache={}, node_id=1)
    assert run is not None
    with run:
        run.run()
        assert log.complete_remote_run(run)
    assert run.counts.copied_segments
    assert log.earliest_offset == compacted
