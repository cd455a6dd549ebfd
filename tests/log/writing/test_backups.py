"""Backups by recovery and repair: numbered by age and bounded; the latest are kept."""

from __future__ import annotations

import pytest
from tests.log.writing.test_quorum_log import CONFIG, DIRECTORY, NOW_MS, follow, new_disk, opened
from tests.simulated_disk.crash_model import Survival
from tests.support.written_logs import ONE_SEGMENT, WrittenLog

from raftlog.limits import BACKUP_BYTES_MAX, BACKUPS_MAX, MIB
from raftlog.log.recovery.repair import truncate_log_at
from raftlog.log.writing import atomic_files
from raftlog.log.writing.atomic_files import (
    backup_name,
    delete_old_backups,
    next_backup_ordinal,
)
from raftlog.log.writing.quorum_log import QuorumLog

SEGMENT = f"{0:020d}.log"


def torn(log: WrittenLog) -> tuple[str, ...]:
    """Write a torn tail and recover it; return the old backups that were deleted."""
    log.raw_append(log.active, b"\1" * (100 + log.log.end_offset))
    log.disk.crash(Survival.EVERYTHING)
    log.reopen()
    assert log.log.report.truncated
    forgotten = log.log.report.deleted_backups
    log.append(b"more")
    return forgotten


def copies(log: WrittenLog) -> list[str]:
    found = [name for name in log.names() if ".cut-" in name or ".damaged" in name]
    return sorted(found, key=lambda name: int(name.rpartition("-")[2]))


def test_backups_are_kept_up_to_a_count_and_the_oldest_are_deleted_and_reported() -> None:
    log = WrittenLog(ONE_SEGMENT)
    log.append(b"first")
    for _ in range(BACKUPS_MAX):
        assert torn(log) == ()
    oldest = copies(log)[:2]
    assert torn(log) == (log.path(oldest[0]),)
    assert torn(log) == (log.path(oldest[1]),)
    assert len(copies(log)) == BACKUPS_MAX
    assert not set(oldest) & set(log.names())


def test_backups_are_kept_up_to_a_size_and_the_latest_in_any_case(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(atomic_files, "BACKUP_BYTES_MAX", 250)
    log = WrittenLog(ONE_SEGMENT)
    log.append(b"first")
    assert torn(log) == ()
    assert torn(log) == ()
    assert len(torn(log)) == 1
    monkeypatch.setattr(atomic_files, "BACKUP_BYTES_MAX", 10)
    assert len(torn(log)) == 2
    assert len(copies(log)) == 1


def test_repair_keeps_all_its_backups_and_deletes_older_ones() -> None:
    log = WrittenLog()
    log.fill(60)
    torn(log)
    disk = log.disk
    (old,) = copies(log)
    for at in range(BACKUPS_MAX):
        disk.put(log.path(f"{0:020d}.log.cut-0-{at + 50}"), b"older")
    repaired = truncate_log_at(disk, log.directory, offset=10, config=log.config)
    saved = {cut.saved_as for cut in repaired.truncated}
    assert len(saved) > 3
    assert saved <= set(disk.files())
    assert log.path(old) == repaired.deleted_backups[0]
    assert len(copies(log)) == BACKUPS_MAX


def test_each_snapshot_that_a_repair_renames_has_a_number_of_its_own() -> None:
    log = WrittenLog()
    log.fill(60)
    for end_offset in (20, 30, 40):
        name = f"{end_offset:020d}-{1:010d}.checkpoint"
        log.disk.put(log.path(name), b"a snapshot after the new end")
    repaired = truncate_log_at(log.disk, log.directory, offset=10, config=log.config)
    numbers = [int(path.rpartition("-")[2]) for path in repaired.set_aside]
    assert len(set(numbers)) == 3


def test_a_second_damaged_segment_does_not_replace_the_backup_of_the_first() -> None:
    disk = new_disk()
    log = opened(disk)
    disk.put(f"{DIRECTORY}/{SEGMENT}.damaged", b"of an earlier release")
    disk.put(f"{DIRECTORY}/{SEGMENT}.damaged-1", b"the first")
    follow(log, 0, 5)
    log.advance_high_watermark(5)
    writer = log.begin_snapshot(log.snapshot_id_at(4), now_ms=NOW_MS)
    assert writer is not None
    log.delete_before(writer.freeze())
    disk.kill()
    disk.flip_bit(f"{DIRECTORY}/{SEGMENT}", 8 * 80)
    end_offset = opened(disk, CONFIG).end_offset
    QuorumLog.open_damaged(
        disk, DIRECTORY, end_offset=end_offset, reason="a flipped bit", now_ms=NOW_MS
    )
    files = disk.files()
    assert files[f"{DIRECTORY}/{SEGMENT}.damaged"] == b"of an earlier release"
    assert files[f"{DIRECTORY}/{SEGMENT}.damaged-1"] == b"the first"
    assert len(files[f"{DIRECTORY}/{SEGMENT}.damaged-2"]) > 100


def test_numbers_ascend_over_all_files_of_a_directory() -> None:
    names = [f"{7:020d}.log.cut-12-4", f"{9:020d}.log.damaged-6", f"{9:020d}.log.cut-1-9.tmp", "x"]
    assert next_backup_ordinal(names) == 7
    assert backup_name(SEGMENT, 55, names) == f"{SEGMENT}.cut-55-7"
    assert next_backup_ordinal([]) == 1


def test_only_backups_are_deleted() -> None:
    log = WrittenLog()
    log.fill(40)
    before = log.names()
    assert delete_old_backups(log.disk, log.directory, before=10**9) == ()
    assert log.names() == before
    assert BACKUP_BYTES_MAX >= 64 * MIB
