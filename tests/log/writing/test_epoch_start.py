"""Start of an epoch: its leader change, and the abort of an earlier epoch's transaction."""

from __future__ import annotations

import pytest
from tests.simulated_disk.crash_model import Survival
from tests.simulated_disk.simulated_disk import SimulatedDisk
from tests.support.appending import (
    DIRECTORY,
    KRAFT_SMALL,
    NOW_MS,
    append,
    batches_of,
    created_log,
    disk_with_parent,
    fill,
    reopened,
)
from tests.support.crash_injection import crashes_after

from raftlog.errors import DiskFullError, LogClosedError
from raftlog.log.reading.transactions import Marker, marker_value
from raftlog.log.writing.single_voter_log import SingleVoterLog

FRAMED = b"\x01\x02\x00value"


def log_with_open_transaction() -> tuple[SimulatedDisk, SingleVoterLog]:
    disk = disk_with_parent()
    log = created_log(disk, config=KRAFT_SMALL)
    append(log, marker_value(Marker.BEGIN, "left open"))
    append(log, FRAMED)
    log.flush()
    return disk, log


def is_aborted_first(disk: SimulatedDisk) -> bool:
    """Return whether epoch 2 starts with its leader change and the abort of the transaction."""
    first, second = [one for one in batches_of(disk) if one.leader_epoch == 2][:2]
    values = [record.value for record in second.records()]
    return first.is_control and values == [marker_value(Marker.ABORT, "a later epoch began")]


@pytest.mark.parametrize("survival", Survival)
def test_no_power_loss_leaves_a_transaction_open_in_a_later_epoch(survival: Survival) -> None:
    deaths, has_died = 0, True
    while has_died:
        disk, log = log_with_open_transaction()
        has_died = crashes_after(disk, deaths, log.claim, now_ms=NOW_MS)
        deaths += has_died
        disk.crash(survival, 1)
        found = reopened(disk)
        if found.epoch == 1:
            assert found.producer_state.open_transaction is not None
            continue
        assert found.producer_state.open_transaction is None
        append(found, FRAMED)
        found.flush()
        assert is_aborted_first(disk)
    assert found.epoch == 2


def test_a_process_that_continues_a_half_started_epoch_aborts_the_open_transaction() -> None:
    disk, log = log_with_open_transaction()
    room = 2_000 - len(disk.files()[f"{DIRECTORY}/{0:020d}.log"]) - 250
    append(log, FRAMED + bytes(room))  # the leader change fits into the segment, the abort does not
    log.flush()
    deaths, has_died, followed = 0, True, 0
    while has_died:
        machine = disk.copy()
        one, process = reopened(machine), machine.another_process()
        other = reopened(process)
        has_died = crashes_after(machine, deaths, other.claim, now_ms=NOW_MS)
        deaths += has_died
        process.kill()
        one.refresh(now_ms=NOW_MS)
        if one.epoch == 2:
            assert one.producer_state.open_transaction is None
            assert is_aborted_first(machine)
            followed += has_died
    assert followed > 0


@pytest.mark.parametrize("room", range(0, 400, 10))
def test_on_a_full_disk_an_epoch_starts_completely_or_not_at_all(room: int) -> None:
    disk, log = log_with_open_transaction()
    disk.full_at(sum(map(len, disk.files().values())) + room)
    try:
        assert log.claim(now_ms=NOW_MS) == 2
        assert is_aborted_first(disk)
    except DiskFullError:
        with pytest.raises(LogClosedError):
            log.flush()
        disk.full_at(None)
        found = reopened(disk)
        assert (found.epoch, found.end_offset) == (1, 3)
        assert found.claim(now_ms=NOW_MS) == 2
        assert is_aborted_first(disk)


@pytest.mark.parametrize("is_power_lost", [False, True])
def test_an_epoch_without_a_record_is_ignored_after_a_clean_shutdown(
    is_power_lost: bool,
) -> None:
    deaths, has_died = 0, True
    while has_died:
        disk = disk_with_parent()
        one = created_log(disk)
        fill(one, 2)
        other = reopened(disk.another_process())
        fill(other, 2)
        other.close()
        one.refresh(now_ms=NOW_MS)
        has_died = crashes_after(disk, deaths, one.claim, now_ms=NOW_MS)
        deaths += has_died
        if is_power_lost:
            disk.crash(Survival.EVERYTHING, 1)
        disk.kill()
        found = reopened(disk)
        assert (found.epoch, found.end_offset) in ((1, 5), (2, 6))
