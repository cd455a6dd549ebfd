"""Invariants of a log that is open for writing: a violated one closes it before it is published."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.simulated_disk.simulated_disk import SimulatedDisk
from tests.support.appending import NOW_MS, append, created_log, disk_with_parent, fill, reopened

from raftlog.errors import DiskFullError, LogClosedError
from raftlog.log.writing.single_voter_log import SingleVoterLog
from raftlog.types import Position

FAR = 1_000_000
CORRUPTIONS: dict[str, Callable[[SingleVoterLog], object]] = {
    "the log start is above the end": lambda log: setattr(log._segments, "log_start_offset", FAR),
    "a sealed segment is missing": lambda log: log._segments.sealed.pop(),
    "the active segment has no bytes": lambda log: setattr(
        log._segments.active, "byte_count", Position(0)
    ),
    "the recovery point is not synced": lambda log: setattr(log._segments, "recovery_point", FAR),
    "the producer state is older": lambda log: setattr(log._producer_state, "end_offset", 3),
    "the synced end is above the end": lambda log: setattr(log._sync, "end_offset", FAR),
    "the synced position is above the bytes": lambda log: setattr(log._sync, "position", FAR),
    "the synced position is of another batch": lambda log: setattr(log._sync, "position", 0),
}


@pytest.fixture
def disk() -> SimulatedDisk:
    return disk_with_parent()


def filled(disk: SimulatedDisk) -> SingleVoterLog:
    """Return a log of several segments, whose last one has several batches."""
    log = created_log(disk)
    fill(log, 40)
    assert log._segments.sealed
    return log


@pytest.mark.parametrize("corrupt", CORRUPTIONS.values(), ids=CORRUPTIONS)
def test_a_violated_invariant_closes_the_log(
    disk: SimulatedDisk, corrupt: Callable[[SingleVoterLog], object]
) -> None:
    log = filled(disk)
    end_offset = log.end_offset
    corrupt(log)
    with pytest.raises(AssertionError):
        log.flush()
    with pytest.raises(LogClosedError, match="an invariant of the log is violated"):
        append(log, b"x")
    assert reopened(disk.another_process()).end_offset == end_offset


def test_a_synced_end_in_a_sealed_segment_closes_the_log(disk: SimulatedDisk) -> None:
    log = filled(disk)
    log._sync.end_offset = 1
    with pytest.raises(AssertionError):
        append(log, b"x")
    assert log.is_closed


def test_a_log_that_follows_another_process_is_checked(disk: SimulatedDisk) -> None:
    log = filled(disk)
    other = reopened(disk.another_process())
    append(other, b"x")
    other.flush()
    assert log.refresh(now_ms=NOW_MS)
    append(other, b"y")
    other.flush()
    CORRUPTIONS["a sealed segment is missing"](log)
    with pytest.raises(AssertionError, match="segments are contiguous"):
        log.refresh(now_ms=NOW_MS)
    assert log.is_closed


def test_an_append_that_did_not_fit_is_followed_by_a_check(disk: SimulatedDisk) -> None:
    log = filled(disk)
    disk.leave_room(10)
    with pytest.raises(DiskFullError):
        append(log, bytes(100))
    CORRUPTIONS["a sealed segment is missing"](log)
    with pytest.raises(AssertionError, match="segments are contiguous"):
        append(log, bytes(100))
    assert log.is_closed
