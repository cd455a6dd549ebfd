"""Damaged indexes of sealed segments are rebuilt when a log is opened for writing or repaired."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.simulated_disk.simulated_disk import SimulatedDisk
from tests.support.written_logs import DIRECTORY, WrittenLog

from raftlog.client.embedded.repair import recover_log
from raftlog.log.format.directory import CLEAN_SHUTDOWN_NAME, INDEX_SUFFIX, TIME_INDEX_SUFFIX

Hurt = Callable[[SimulatedDisk, str], None]


def missing(disk: SimulatedDisk, path: str) -> None:
    disk.unlink(path)


def emptied(disk: SimulatedDisk, path: str) -> None:
    disk.put(path, b"")


def torn(disk: SimulatedDisk, path: str) -> None:
    disk.put(path, disk.files()[path][:-3])


def last_entry_flipped(disk: SimulatedDisk, path: str) -> None:
    disk.flip_bit(path, 8 * (len(disk.files()[path]) - 2) + 2)


def first_entry_flipped(disk: SimulatedDisk, path: str) -> None:
    disk.flip_bit(path, 8 * 3 + 1)


def written() -> tuple[WrittenLog, int]:
    """Return a cleanly closed log, and the base offset of one of its sealed segments."""
    log = WrittenLog()
    log.fill(90)
    while len(log.disk.files()[log.active.removesuffix(".log") + INDEX_SUFFIX]) < 16:
        log.fill(1)
    sealed = [one.base_offset for one in log.log._segments.sealed]
    assert len(sealed) > 3
    log.log.close()
    return log, sealed[1]


@pytest.mark.parametrize("is_clean", [True, False])
@pytest.mark.parametrize("suffix", [INDEX_SUFFIX, TIME_INDEX_SUFFIX])
@pytest.mark.parametrize("damaged", [missing, emptied, torn, last_entry_flipped])
def test_opening_for_writing_rebuilds_an_index_whose_end_does_not_match(
    damaged: Hurt, suffix: str, is_clean: bool
) -> None:
    log, base = written()
    path = log.segment(base, suffix)
    before = log.disk.files()[path]
    damaged(log.disk, path)
    if not is_clean:
        log.disk.unlink(log.path(CLEAN_SHUTDOWN_NAME))
    log.reopen()
    assert log.log.report.was_clean is is_clean
    assert list(log.log.report.rebuilt) == [path]
    assert log.disk.durable_files()[path] == before
    log.log.close()
    log.reopen()
    assert list(log.log.report.rebuilt) == []


@pytest.mark.parametrize("suffix", [INDEX_SUFFIX, TIME_INDEX_SUFFIX])
@pytest.mark.parametrize("damaged", [missing, torn, first_entry_flipped, last_entry_flipped])
@pytest.mark.parametrize("is_active", [False, True])
def test_repair_reads_all_segments_and_rebuilds_wrong_indexes(
    damaged: Hurt, suffix: str, is_active: bool
) -> None:
    log, base = written()
    path = log.active.removesuffix(".log") + suffix if is_active else log.segment(base, suffix)
    damaged(log.disk, path)
    log.disk.kill()
    report, start_offset, end_offset = recover_log(DIRECTORY, storage=log.disk)
    assert (start_offset, end_offset) == (0, log.log.end_offset)
    if not is_active:
        assert path in report.rebuilt
    assert recover_log(DIRECTORY, storage=log.disk)[0].rebuilt == ()


def test_indexes_of_a_damaged_segment_are_not_changed() -> None:
    log, base = written()
    log.disk.flip_bit(log.segment(base), 8 * 70)
    path = log.segment(base, INDEX_SUFFIX)
    torn(log.disk, path)
    damaged = log.disk.files()[path]
    log.reopen()
    assert log.disk.files()[path] == damaged
    assert path not in log.log.report.rebuilt


def test_an_index_without_disk_space_does_not_prevent_opening() -> None:
    log, base = written()
    path = log.segment(base, INDEX_SUFFIX)
    before = log.disk.files()[path]
    missing(log.disk, path)
    log.disk.leave_room(0)
    log.reopen()
    assert log.log.end_offset > 90
    log.disk.full_at(None)
    log.reopen()
    assert log.disk.files()[path] == before
