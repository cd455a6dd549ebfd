"""Errors of a log that closed itself have the cause: a disk is blamed only if it failed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from tests.simulated_disk.simulated_disk import SimulatedDisk
from tests.support.appending import (
    DIRECTORY,
    NOW_MS,
    SMALL,
    append,
    created_log,
    disk_with_parent,
    fill,
)

from raftlog.errors import LogClosedError, LogError
from raftlog.log.format.directory import LOG_SUFFIX, offset_name
from raftlog.log.writing.single_voter_log import SingleVoterLog

RETENTION = replace(SMALL, retention_bytes=3_000)
FIRST_SEGMENT = f"{DIRECTORY}/{offset_name(0, LOG_SUFFIX)}"
Act = Callable[[SimulatedDisk, SingleVoterLog], object]


def after_a_failed_sync(disk: SimulatedDisk, log: SingleVoterLog) -> object:
    disk.fail_sync_once("*.log")
    append(log, b"lost")
    return log.flush()


def on_a_read_only_file_system(disk: SimulatedDisk, log: SingleVoterLog) -> object:
    disk.refuse_writing("*")
    return append(log, b"refused")


def over_a_damaged_segment(disk: SimulatedDisk, log: SingleVoterLog) -> object:
    """Retention reads the producer state at the new log start."""
    for name in disk.list_names(DIRECTORY):
        if name.endswith(".snapshot"):
            disk.unlink(f"{DIRECTORY}/{name}")
    disk.flip_bit(FIRST_SEGMENT, 8 * 400)
    return log.clean(now_ms=NOW_MS)


def on_a_full_disk_during_a_change(disk: SimulatedDisk, log: SingleVoterLog) -> object:
    disk.leave_room(0)
    return log.claim(now_ms=NOW_MS)


def after_a_segment_was_deleted(disk: SimulatedDisk, log: SingleVoterLog) -> object:
    for name in disk.list_names(DIRECTORY):
        if name.endswith((".snapshot", ".log")):
            disk.unlink(f"{DIRECTORY}/{name}")
    return log.clean(now_ms=NOW_MS)


@pytest.mark.parametrize(
    ("act", "cause", "remedy"),
    [
        (after_a_failed_sync, "its disk failed: ", "check the disk"),
        (on_a_read_only_file_system, "the file system denied access: ", "read-only file system"),
        (over_a_damaged_segment, "its files are damaged: ", "`raftlog check`"),
        (
            on_a_full_disk_during_a_change,
            "the disk was full during a change",
            "free disk space",
        ),
        (after_a_segment_was_deleted, "its files were changed from outside: ", "open it again"),
    ],
)
def test_a_log_that_closed_itself_reports_the_cause_and_a_remedy(
    act: Act, cause: str, remedy: str
) -> None:
    disk = disk_with_parent()
    log = created_log(disk, config=RETENTION)
    fill(log, 60)
    with pytest.raises(LogError) as failed:
        act(disk, log)
    with pytest.raises(LogClosedError) as closed:
        append(log, b"later")
    text = closed.value.message()
    assert cause in text
    assert remedy in text
    assert failed.value.message().replace(f"{DIRECTORY}/", "") in text
    assert DIRECTORY not in closed.value.reason, "clients of a node are sent it"
    assert ("disk failed" in text) == (act is after_a_failed_sync)
