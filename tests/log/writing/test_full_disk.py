"""A full or failing disk: state of the active segment in memory and in its files."""

from __future__ import annotations

import pytest
from tests.simulated_disk.simulated_disk import SimulatedDisk
from tests.support.appending import (
    DIRECTORY,
    SMALL,
    append,
    created_log,
    disk_with_parent,
    values_of,
)

from raftlog.errors import DiskFullError, LogAccessError
from raftlog.log.format.directory import (
    LOG_SUFFIX,
    PRODUCER_SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    offset_name,
)
from raftlog.log.reading.chunks import parse_time_index
from raftlog.log.segment import TIME_ENTRY
from raftlog.log.writing.active_segment import ActiveSegment


@pytest.fixture
def disk() -> SimulatedDisk:
    return disk_with_parent()


def test_a_roll_without_disk_space_leaves_no_file_open(disk: SimulatedDisk) -> None:
    """The next segment's ``.log`` exists from an earlier try; its indexes do not fit."""
    log = created_log(disk)
    while not log._segments.active.should_roll(200, log.end_offset, 0):
        append(log, bytes(100))
    disk.create_file(f"{DIRECTORY}/{offset_name(log.end_offset, LOG_SUFFIX)}").close()
    log._segments.active.seal()
    before, end_offset = disk.open_files, log.end_offset
    for _ in range(50):
        # the first file that a roll writes
        disk.leave_room(len(log.producer_state.encode_snapshot()))
        with pytest.raises(DiskFullError):
            append(log, bytes(200))
        assert disk.open_files == before
        disk.full_at(None)
        disk.unlink(f"{DIRECTORY}/{offset_name(end_offset, PRODUCER_SNAPSHOT_SUFFIX)}")
    append(log, bytes(200))
    log.flush()
    assert len(values_of(disk)) == end_offset  # offset 0 is the leader change


@pytest.mark.parametrize("is_new", [True, False])
def test_a_segment_that_cannot_be_opened_leaves_no_file_open(
    disk: SimulatedDisk, is_new: bool
) -> None:
    if is_new:
        disk.make_directory(DIRECTORY)
    else:
        created_log(disk).close()
        disk.unlink(f"{DIRECTORY}/{offset_name(0, TIME_INDEX_SUFFIX)}")
    disk.refuse_writing("*.timeindex")
    before = disk.open_files
    with pytest.raises(LogAccessError):
        _ = (
            ActiveSegment.create(disk, DIRECTORY, 0, SMALL)
            if is_new
            else ActiveSegment.open(disk, DIRECTORY, 0, 61, SMALL)
        )
    assert disk.open_files == before


@pytest.mark.parametrize("room", range(1, 12))
def test_a_seal_without_disk_space_leaves_whole_time_entries_and_is_completed_later(
    disk: SimulatedDisk, room: int
) -> None:
    log = created_log(disk)
    append(log, b"later than all before", timestamp_ms=5_000_000)
    active = log._segments.active
    path = f"{DIRECTORY}/{offset_name(0, TIME_INDEX_SUFFIX)}"
    disk.leave_room(room)
    with pytest.raises(DiskFullError):
        active.seal()
    assert len(disk.files()[path]) % TIME_ENTRY.size == 0
    disk.full_at(None)
    active.seal()
    times = parse_time_index(disk.durable_files()[path], 0)
    assert times.timestamps_ms.tolist()[-1] == 5_000_000
    assert len(disk.durable_files()[path]) % TIME_ENTRY.size == 0
