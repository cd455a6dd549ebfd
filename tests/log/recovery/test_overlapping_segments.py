"""Segments that do not start where the previous one ends: each is kept or reported."""

from __future__ import annotations

import pytest
from tests.simulated_disk.crash_model import Survival
from tests.support.crash_injection import crashes_after
from tests.support.written_logs import ONE_SEGMENT, SMALL, WrittenLog, encoded

from raftlog.errors import LogReadOnlyError
from raftlog.log.format.directory import RECOVERY_POINT_CHECKPOINT_NAME
from raftlog.log.recovery.recover import ScanEnd


def overlapped(recovery_point: int) -> tuple[WrittenLog, bytes]:
    """Return a log of 21 offsets in one segment, and another segment of offsets 15 to 17."""
    log = WrittenLog(ONE_SEGMENT)
    log.fill(20)
    if recovery_point:
        log.log._directory.write_recovery_point(recovery_point)
    log.disk.crash(Survival.EVERYTHING, 1)
    other = b"".join(encoded(b"other %d" % at, base_offset=at) for at in range(15, 18))
    log.disk.put(log.segment(15), other)
    return log, other


@pytest.mark.parametrize("recovery_point", [0, 10, 15])
def test_an_overlapping_segment_is_backed_up_and_reported(recovery_point: int) -> None:
    log, other = overlapped(recovery_point)
    recovered = log.recover()
    assert recovered.end_offset == 21
    (cut,) = recovered.report.truncated
    assert (cut.path, cut.first_offset) == (log.segment(15), 15)
    assert cut.saved_as is not None
    assert log.disk.durable_files()[cut.saved_as] == other
    assert [one.kind for one in recovered.report.anomalies] == [ScanEnd.OVERLAP]
    log.reopen()
    assert log.append(b"goes on") == 22


def test_of_two_synced_overlapping_segments_none_is_dropped() -> None:
    log, _ = overlapped(17)
    before = log.disk.files()
    report = log.recover().report
    assert report.read_only is not None
    assert report.read_only.path == log.segment(15)
    assert "offsets 15 to 20 are in two segments" in str(report.read_only)
    assert log.disk.files() == before
    log.reopen()
    with pytest.raises(LogReadOnlyError):
        log.append(b"x")


def test_a_deleted_segment_does_not_reappear_after_a_power_loss() -> None:
    """Killed while rolling, and again after the half-written segment was deleted, but only in
    memory: the next writer must sync the deletion before it writes a segment that a power loss
    could leave beside it.
    """
    deaths, has_died, found = 0, True, 0
    while has_died:
        log = WrittenLog(SMALL)
        while len(log.disk.files()[log.active]) < 1_900:
            log.fill(1)
        new = log.segment(log.log.end_offset)
        has_died = crashes_after(log.disk, deaths, log.fill, 1)
        deaths += has_died
        log.disk.kill()
        if not has_died or new not in log.disk.files():
            continue
        found += 1
        log.disk.unlink(new)
        log.disk.kill()
        log.reopen()
        assert new not in log.disk.durable_files()
    assert found > 3


def test_a_sealed_segment_that_is_too_short_is_damage() -> None:
    log = WrittenLog(SMALL)
    log.fill(60)
    bases = [int(name[:20]) for name in log.names() if name.endswith(".log")]
    log.disk.crash(Survival.EVERYTHING, 1)
    with log.disk.open_for_writing(log.segment(bases[-2])) as file:
        file.truncate(file.byte_count() - 10)
        file.sync()
    assert log.disk.files()[log.path(RECOVERY_POINT_CHECKPOINT_NAME)].split()[-1] == (
        b"%d" % bases[-1]
    )
    report = log.recover().report
    assert report.read_only is not None
    assert report.read_only.path == log.segment(bases[-2])
    assert report.read_only.offset == bases[-1] - 1
