"""Recovery of a log: kept and dropped records, reports, and states that it refuses to change."""

from __future__ import annotations

import pytest
from tests.simulated_disk.crash_model import Survival
from tests.simulated_disk.simulated_disk import SimulatedDisk
from tests.simulated_disk.simulated_tree import OperationKind
from tests.support.appending import TOPIC_ID
from tests.support.log_builder import LogBuilder
from tests.support.written_logs import DIRECTORY, ONE_SEGMENT, WrittenLog, encoded

from raftlog.errors import DiskFailedError, DiskFullError, LogReadOnlyError
from raftlog.log.format.directory import read_listing
from raftlog.log.reading.transactions import CommitName
from raftlog.log.recovery.recover import (
    RecoveredLog,
    ScanEnd,
    read_checkpoint_files,
    recover,
)
from raftlog.log.writing.producer_state import Duplicate
from raftlog.log.writing.properties import LogConfig
from raftlog.log.writing.segments import LogDirectory
from raftlog.records.batch import iter_batches
from raftlog.records.compression import Compression


def facts_of(recovered: RecoveredLog) -> tuple[object, ...]:
    """Return the facts that must be the same however often a log is recovered."""
    return (
        recovered.segments,
        recovered.log_start_offset,
        recovered.end_offset,
        recovered.epochs,
        recovered.producer_state.commits,
        recovered.producer_state.producers,
        str(recovered.report.read_only),
    )


def log_files(disk: SimulatedDisk) -> dict[str, bytes]:
    return {path: data for path, data in disk.files().items() if path.startswith(DIRECTORY)}


def power_loss(log: WrittenLog, survival: Survival = Survival.EVERYTHING) -> None:
    log.disk.crash(survival, 1)


# --- clean shutdown -------------------------------------------------------------------------------


def test_a_cleanly_closed_log_is_not_scanned() -> None:
    log = WrittenLog(ONE_SEGMENT)
    log.fill(300)
    log.log.close()
    before = log_files(log.disk)
    log.disk.reads.clear()
    recovered = log.recover()
    assert recovered.report.was_clean
    assert recovered.end_offset == 301
    assert log.disk.reads[log.segment(0)] < 2_000
    assert log_files(log.disk) == before


@pytest.mark.parametrize("suffix", [".index", ".timeindex", ".snapshot"])
def test_a_clean_log_without_its_other_files_can_be_opened(suffix: str) -> None:
    log = WrittenLog(ONE_SEGMENT)
    log.append(b"a", commit=CommitName("app", "query", 3))
    log.fill(30)
    log.log.close()
    name = 0 if suffix != ".snapshot" else 32
    log.disk.unlink(log.segment(name, suffix))
    recovered = log.recover()
    assert recovered.end_offset == 32
    assert recovered.producer_state.last_commit("app") is not None
    assert recovered.report.read_only is None


@pytest.mark.parametrize("interval_bytes", [200, 4_096], ids=["indexed", "without an index"])
def test_a_clean_shutdown_file_of_an_earlier_end_is_ignored(interval_bytes: int) -> None:
    log = WrittenLog(LogConfig(index_interval_bytes=interval_bytes))
    log.fill(5)
    log.log.close()
    marker = log.disk.files()[log.path(".kafka_cleanshutdown")]
    log.reopen()
    log.fill(5)
    log.disk.put(log.path(".kafka_cleanshutdown"), marker)
    recovered = log.recover()
    assert not recovered.report.was_clean
    assert recovered.end_offset == 11


# --- torn tails -----------------------------------------------------------------------------------


@pytest.mark.parametrize("kept", [1, 11, 12, 60, 61, 70])
def test_a_torn_tail_is_backed_up_truncated_and_reported(kept: int) -> None:
    log = WrittenLog(ONE_SEGMENT)
    log.fill(3)
    power_loss(log)
    tail = encoded(b"never acknowledged", base_offset=4)[:kept]
    position = len(log.disk.files()[log.active])
    log.raw_append(log.active, tail)
    recovered = log.recover()
    assert recovered.end_offset == 4
    (cut,) = recovered.report.truncated
    assert (cut.path, cut.position, cut.first_offset) == (log.active, position, 4)
    assert len(log.disk.files()[log.active]) == position
    if any(tail):
        assert cut.saved_as == f"{log.active}.cut-{position}-1"
        assert log.disk.durable_files()[cut.saved_as] == tail
    assert recovered.report.anomalies[0].kind in (ScanEnd.TORN, ScanEnd.ZEROS)
    log.reopen()
    assert log.append(b"goes on") == 5


def test_zeros_after_the_end_are_truncated_without_a_backup() -> None:
    log = WrittenLog(ONE_SEGMENT)
    log.fill(3)
    power_loss(log)
    log.raw_append(log.active, bytes(10_000))
    recovered = log.recover()
    (cut,) = recovered.report.truncated
    assert (cut.byte_count, cut.saved_as) == (10_000, None)
    assert not any("cut-" in name for name in log.names())


def test_a_corrupt_last_batch_is_truncated_backed_up_and_reported() -> None:
    log = WrittenLog(ONE_SEGMENT)
    log.fill(3)
    power_loss(log)
    size = len(log.disk.files()[log.active])
    log.disk.flip_bit(log.active, 8 * (size - 5))
    recovered = log.recover()
    assert recovered.end_offset == 3
    (cut,) = recovered.report.truncated
    assert "CRC" in cut.reason
    assert cut.saved_as is not None


def test_after_a_reboot_valid_batches_are_kept_though_not_known_to_be_synced() -> None:
    log = WrittenLog(ONE_SEGMENT)
    log.fill(3)
    log.append(b"written, not synced", sync=False)
    power_loss(log, Survival.EVERYTHING)
    recovered = log.recover()
    assert recovered.end_offset == 5
    assert recovered.report.truncated == ()
    log.disk.crash(Survival.NOTHING)
    assert log.recover().end_offset == 5


def test_unsynced_batches_of_a_dead_writer_of_this_boot_are_truncated() -> None:
    log = WrittenLog(ONE_SEGMENT)
    log.fill(3)
    log.append(b"written, not synced", sync=False)
    log.disk.kill()
    recovered = log.recover()
    assert recovered.end_offset == 4
    (cut,) = recovered.report.truncated
    assert "died" in cut.reason
    assert cut.saved_as is not None


def test_opening_beside_a_running_writer_changes_nothing_and_syncs_directory_entries() -> None:
    log = WrittenLog()
    log.fill(40)
    before = log_files(log.disk)
    recording = log.disk.record()
    other = log.disk.another_process()
    recovered = recover(other, DIRECTORY, config=log.config)
    assert recovered.end_offset == log.log.end_offset
    assert log_files(log.disk) == before
    assert [one.kind for one in recording.operations] == [OperationKind.SYNC_DIRECTORY]


def test_a_segment_without_published_records_is_deleted() -> None:
    log = WrittenLog()
    log.fill(40)
    end = log.log.end_offset
    with log.disk.create_file(log.segment(end)) as file:
        file.write_at(0, encoded(b"in a segment that was never told of", base_offset=end))
    log.disk.kill()
    recovered = log.recover()
    assert recovered.end_offset == end
    (cut,) = recovered.report.truncated
    assert (cut.path, cut.position, cut.first_offset) == (log.segment(end), 0, end)
    assert cut.saved_as is not None
    assert log.segment(end) not in log.disk.files()
    assert log.recover().report.truncated == ()


# --- damage where nothing may be dropped ----------------------------------------------------------


def damaged_below() -> WrittenLog:
    log = WrittenLog()
    log.fill(60)
    power_loss(log)
    log.disk.flip_bit(log.segment(0), 8 * 700)
    log.disk.unlink(log.path("recovery-point-offset-checkpoint"))
    return log


def test_damage_below_the_recovery_point_makes_a_log_read_only() -> None:
    log = damaged_below()
    before = log_files(log.disk)
    recovered = log.recover()
    error = recovered.report.read_only
    assert error is not None
    assert error.path == log.segment(0)
    assert error.position is not None
    assert error.offset == recovered.end_offset
    assert f"--cut-at {recovered.end_offset}" in str(error)
    assert "CRC" in str(error)
    assert log_files(log.disk) == before
    assert log.recover().end_offset == recovered.end_offset


def test_a_read_only_log_refuses_to_append() -> None:
    log = damaged_below()
    log.reopen()
    assert log.log.is_read_only
    with pytest.raises(LogReadOnlyError):
        log.append(b"no")


def test_a_missing_segment_is_reported_as_a_gap() -> None:
    log = damaged_below()
    bases = [one.base_offset for one in log.recover().segments]
    assert bases == [0]
    log = WrittenLog()
    log.fill(60)
    power_loss(log)
    log.disk.unlink(log.path("recovery-point-offset-checkpoint"))
    names = [name for name in log.names() if name.endswith(".log")]
    log.disk.unlink(log.path(names[1]))
    recovered = log.recover()
    assert recovered.end_offset == int(names[1][:20])
    assert "are missing" in str(recovered.report.read_only)


def test_a_missing_last_segment_is_found_by_the_recovery_point() -> None:
    log = WrittenLog()
    log.fill(60)
    log.log.close()
    power_loss(log)
    log.disk.unlink(log.active)
    recovered = log.recover()
    assert recovered.report.read_only is not None
    assert "61" not in str(recovered.end_offset)


def test_damage_below_the_end_published_in_this_boot_is_not_truncated() -> None:
    log = WrittenLog(ONE_SEGMENT)
    log.fill(10)
    log.disk.flip_bit(log.active, 8 * 600)
    log.disk.kill()
    recovered = log.recover()
    assert recovered.report.read_only is not None
    assert recovered.report.anomalies[0].resumes_offset is not None


@pytest.mark.parametrize("is_closed", [False, True])
def test_damage_below_the_end_of_a_clean_shutdown_is_not_truncated(is_closed: bool) -> None:
    """The writer before the last one died: its records are synced by now, on disk too."""
    log = WrittenLog(ONE_SEGMENT)
    log.fill(5)
    log.log.close()
    log.reopen()
    log.fill(10)
    log.disk.kill()
    log.reopen()
    if not is_closed:
        log.fill(1)
    log.log.close()
    end_offset = log.log.end_offset
    log.reopen()
    log.log.close()
    assert read_checkpoint_files(log.disk, DIRECTORY).recovery_point == end_offset
    power_loss(log)
    log.disk.flip_bit(log.active, 8 * (len(log.disk.files()[log.active]) - 10))
    recovered = log.recover()
    assert recovered.report.read_only is not None
    assert not recovered.report.truncated


@pytest.mark.parametrize("is_reboot", [False, True])
def test_the_recovery_point_in_memory_is_that_on_disk(is_reboot: bool) -> None:
    log = WrittenLog(ONE_SEGMENT)
    for count in range(4):
        log.fill(3)
        if count % 2:
            log.log.close()
        if is_reboot:
            log.disk.crash(Survival.EVERYTHING)
        else:
            log.disk.kill()
        recovered = log.recover()
        on_disk = read_checkpoint_files(log.disk, DIRECTORY).recovery_point
        assert recovered.recovery_point == on_disk, count
        log.reopen()


def test_a_clean_opening_has_the_recovery_point_on_disk() -> None:
    """Earlier releases closed a log with a recovery point below its end."""
    log = WrittenLog(ONE_SEGMENT)
    log.fill(5)
    end_offset = log.log.end_offset
    log.log.close()
    LogDirectory(log.disk, DIRECTORY).write_recovery_point(2)
    recovered = log.recover()
    assert recovered.report.was_clean
    assert (recovered.recovery_point, recovered.end_offset) == (2, end_offset)


def test_kafkas_directory_is_never_written() -> None:
    builder = LogBuilder()
    builder.lead(1)
    builder.no_ops(20)
    disk = SimulatedDisk()
    for path, data in builder.storage.files.items():
        disk.put(path, bytes(data))
    with disk.open_for_writing(builder.path()) as file:
        file.write_at(file.byte_count(), b"\0\0\0\0\0\0\0\5torn")
        file.sync()
    before, operations = disk.files(), disk.operation_count
    recovered = recover(disk, builder.directory, config=LogConfig())
    assert recovered.end_offset == 21
    assert "a Kafka log" in str(recovered.report.read_only)
    assert (disk.files(), disk.operation_count) == (before, operations)


# --- repeated recovery ----------------------------------------------------------------------------


@pytest.mark.parametrize("survival", list(Survival))
def test_recovering_twice_equals_recovering_once(survival: Survival) -> None:
    for seed in range(5):
        log = WrittenLog()
        log.fill(20)
        log.append(b"p", producer=(7, 0, 0))
        log.append(b"c", commit=CommitName("app", "query", 1), sync=False)
        log.append(b"z" * 2_000, sync=False)
        log.disk.crash(survival, seed)
        once = log.recover()
        files = log_files(log.disk)
        assert facts_of(log.recover()) == facts_of(once)
        assert log_files(log.disk) == files
        log.disk.crash(Survival.NOTHING)
        assert facts_of(log.recover()) == facts_of(once)


def test_an_interrupted_recovery_is_completed_by_the_next() -> None:
    log = WrittenLog()
    log.fill(30)
    log.append(b"torn", sync=False)
    log.disk.crash(Survival.EVERYTHING, 0)
    log.raw_append(log.active, b"\1\2\3" * 30)
    copy = log.disk.copy()
    expected = facts_of(recover(copy, DIRECTORY, config=log.config))
    recording = log.disk.record()
    log.recover()
    states = 0
    for state in recording.states():
        states += 1
        disk = SimulatedDisk.after(state)
        again = recover(disk, DIRECTORY, config=log.config)
        assert facts_of(again) == expected, state
        saved = [data for path, data in disk.files().items() if ".cut-" in path]
        assert saved == [b"\1\2\3" * 30], state
    assert states > 20


def test_a_disk_error_during_recovery_loses_nothing() -> None:
    log = WrittenLog(ONE_SEGMENT)
    log.fill(10)
    power_loss(log)
    log.raw_append(log.active, b"\1\2\3" * 30)
    log.disk.full_at(sum(map(len, log.disk.files().values())))
    with pytest.raises(DiskFullError):
        log.recover()
    log.disk.full_at(None)
    log.disk.fail_sync_once("*.log")
    with pytest.raises(DiskFailedError):
        log.recover()
    log.disk.kill()
    recovered = log.recover()
    log.disk.crash(Survival.NOTHING)
    assert log.recover().end_offset == recovered.end_offset == 11


def test_pages_lost_by_a_failed_sync_are_written_again() -> None:
    log = WrittenLog(ONE_SEGMENT)
    log.fill(10)
    log.append(b"written, and its sync fails", sync=False)
    log.disk.fail_sync_once("*.log")
    with pytest.raises(DiskFailedError):
        log.log.flush()
    log.disk.unlink(log.path("published"))
    log.disk.kill()
    assert log.recover().end_offset == 12
    log.disk.crash(Survival.NOTHING)
    assert log.recover().end_offset == 12


# --- other files of the log -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        "leader-epoch-checkpoint",
        "recovery-point-offset-checkpoint",
        "checksums",
        "00000000000000000000.index",
        "00000000000000000000.timeindex",
    ],
)
@pytest.mark.parametrize("is_missing", [True, False])
def test_a_damaged_or_missing_auxiliary_file_is_rebuilt(name: str, is_missing: bool) -> None:
    log = WrittenLog(ONE_SEGMENT)
    log.fill(20)
    log.log.claim(now_ms=1_000)
    log.fill(20)
    log.log.close()
    power_loss(log)
    expected = facts_of(log.recover())
    good = log.disk.files()[log.path(name)]
    if is_missing:
        log.disk.unlink(log.path(name))
    else:
        log.disk.flip_bit(log.path(name), 8 * (len(good) // 2) + 3)
    recovered = log.recover()
    assert facts_of(recovered)[1:] == expected[1:]
    if name.endswith("index"):
        log.reopen()
        log.fill(1)
        log.disk.kill()
        log.recover()
        assert log.disk.files()[log.path(name)][:8] == good[:8]
    elif not is_missing:
        assert [one.path for one in recovered.report.anomalies][:1] == [log.path(name)]
    if name != "recovery-point-offset-checkpoint":
        assert log.path(name) in log.disk.files()
    assert log.recover().report.anomalies == ()


@pytest.mark.parametrize("is_reboot", [False, True])
@pytest.mark.parametrize(
    "name",
    [
        "leader-epoch-checkpoint",
        "log-start-offset-checkpoint",
        "partition.metadata",
        "recovery-point-offset-checkpoint",
    ],
)
def test_a_damaged_small_file_is_rewritten_once(name: str, is_reboot: bool) -> None:
    log = WrittenLog(ONE_SEGMENT)
    log.fill(20)
    log.log.close()
    LogDirectory(log.disk, DIRECTORY).write_log_start(7)
    if is_reboot:
        power_loss(log)
    log.disk.flip_bit(log.path(name), 27)
    assert [one.path for one in log.recover().report.anomalies] == [log.path(name)]
    log.reopen()
    assert log.log.report.anomalies == ()
    log.append(b"the log is closed cleanly")
    log.log.close()
    assert log.recover().report.was_clean
    if name == "partition.metadata":
        assert TOPIC_ID.encode() in log.disk.files()[log.path(name)]


def test_producer_state_is_rebuilt_from_batches_of_every_kind() -> None:
    log = WrittenLog(ONE_SEGMENT)
    log.fill(5)
    log.append(b"a", b"b", commit=CommitName("app", "query", 4))
    log.fill(5)
    log.append(b"c", b"d", commit=CommitName("zip", "q", 9), compression=Compression.ZSTD)
    log.append(b"e", b"f", producer=(77, 2, 10))
    log.fill(5)
    expected = log.log.producer_state.copy()
    power_loss(log)
    producer_state = log.recover().producer_state
    assert producer_state.commits == expected.commits
    assert producer_state.producers == expected.producers
    assert producer_state.end_offset == expected.end_offset
    assert producer_state.log_time_ms == expected.log_time_ms
    assert producer_state.check_producer(77, 2, 10, 2) == Duplicate(15, 16)


def test_a_damaged_producer_snapshot_is_skipped_for_an_older_one() -> None:
    log = WrittenLog()
    log.append(b"a", commit=CommitName("app", "query", 4))
    log.fill(60)
    power_loss(log)
    newest = [name for name in log.names() if name.endswith(".snapshot")][-1]
    log.disk.flip_bit(log.path(newest), 70)
    recovered = log.recover()
    assert recovered.producer_state.last_commit("app") is not None
    assert recovered.producer_state.end_offset == 62
    assert [one.path for one in recovered.report.anomalies] == [log.path(newest)]


def test_a_producer_snapshot_above_the_truncated_end_is_ignored() -> None:
    longer = WrittenLog()
    longer.fill(30)
    longer.append(b"a", commit=CommitName("app", "query", 4))
    longer.log.close()
    name = [name for name in longer.names() if name.endswith(".snapshot")][-1]
    log = WrittenLog()
    log.fill(10)
    log.disk.put(log.path(name), longer.disk.files()[longer.path(name)])
    power_loss(log)
    producer_state = log.recover().producer_state
    assert producer_state.end_offset == 11
    assert producer_state.last_commit("app") is None


def test_temporary_files_of_a_crash_are_deleted() -> None:
    log = WrittenLog()
    log.fill(30)
    power_loss(log)
    for name in (
        "leader-epoch-checkpoint.tmp",
        "00000000000000000009-0000000001-77.checkpoint.part",
        "00000000000000000999.index",
        "00000000000000000999.snapshot",
    ):
        log.disk.put(log.path(name), b"left over")
    log.recover()
    assert not [name for name in log.names() if log.disk.files()[log.path(name)] == b"left over"]


def test_a_stray_segment_of_the_cleaner_does_not_stop_a_recovery() -> None:
    log = WrittenLog(ONE_SEGMENT)
    log.fill(5)
    log.disk.kill()
    end_offset = log.log.end_offset
    log.disk.put(log.segment(3, ".log.swap"), b"raftlog has no cleaner")
    assert log.recover().end_offset == end_offset
    log.disk.crash(Survival.EVERYTHING)
    assert log.recover().end_offset == end_offset
    assert log.segment(3, ".log.swap") not in log.disk.files()


@pytest.mark.parametrize("is_kept", [True, False])
def test_a_kafka_log_whose_cleaner_replaces_a_segment_has_what_still_has_its_name(
    is_kept: bool,
) -> None:
    log = WrittenLog()
    log.fill(40)
    log.disk.kill()
    first, second = read_listing(log.names()).segments[:2]
    log.disk.put(log.segment(first, ".log.swap"), log.disk.files()[log.segment(first)])
    if not is_kept:
        log.disk.unlink(log.segment(first))
    log.disk.unlink(log.path("raftlog.properties"))
    before = log.disk.files()
    recovered = log.recover()
    assert recovered.report.read_only is not None
    assert recovered.log_start_offset == (first if is_kept else second)
    assert log.disk.files() == before


def test_an_outdated_epoch_checkpoint_is_completed_from_the_batches() -> None:
    log = WrittenLog(ONE_SEGMENT)
    log.fill(5)
    log.log.claim(now_ms=5)
    log.fill(5)
    power_loss(log)
    log.disk.unlink(log.path("leader-epoch-checkpoint"))
    recovered = log.recover()
    assert [(one.epoch, one.start_offset) for one in recovered.epochs.entries] == [(1, 0), (2, 6)]


def test_a_flipped_epoch_is_damage_although_the_crc_is_valid() -> None:
    log = WrittenLog(ONE_SEGMENT)
    log.fill(5)
    power_loss(log)
    last = list(iter_batches(log.disk.files()[log.active]))[-1]
    assert last.base_offset == 5
    log.disk.flip_bit(log.active, 8 * (last.position + 15) + 1)
    recovered = log.recover()
    assert recovered.end_offset == 5
    assert recovered.report.anomalies[0].kind is ScanEnd.EPOCH_MISMATCH


def test_the_epoch_of_a_log_without_records_is_kept() -> None:
    log = WrittenLog()
    log.log.claim(now_ms=5)
    log.fill(30)
    writer = log.log.begin_snapshot(log.log.snapshot_id_at(log.log.end_offset), now_ms=0)
    assert writer is not None
    log.log.delete_before(writer.freeze())
    end = log.log.end_offset
    log.log._roll()
    power_loss(log)
    log.log._directory.write_log_start(end)
    for _ in range(3):
        recovered = log.recover()
        assert recovered.end_offset == recovered.segments[0].base_offset == end
        assert recovered.epochs.latest_epoch == 2
