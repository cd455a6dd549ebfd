"""A log that is written: created, appended to, rolled, synced, closed and opened again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.simulated_disk.crash_model import Survival
from tests.simulated_disk.simulated_disk import SimulatedDisk
from tests.support.appending import (
    DIRECTORY,
    NOW_MS,
    SMALL,
    TOPIC_ID,
    append,
    append_batches,
    batch,
    batches_of,
    created_log,
    disk_with_parent,
    fill,
    reopened,
    values_of,
)

from raftlog.errors import (
    DiskFailedError,
    DiskFullError,
    FileExistsLogError,
    FutureEpochError,
    InvalidAppendError,
    LogClosedError,
    NotALogError,
    NotLeaderError,
)
from raftlog.log.format.directory import read_published
from raftlog.log.format.epoch_cache import EpochEntry
from raftlog.log.reading.chunks import parse_offset_index
from raftlog.log.recovery.recover import read_checkpoint_files
from raftlog.log.writing.active_segment import SegmentIndexer
from raftlog.log.writing.properties import LogConfig
from raftlog.log.writing.single_voter_log import SingleVoterLog
from raftlog.records.control import LeaderChange, decode_control
from raftlog.storage.local import WritableLocalStorage
from raftlog.storage.protocol import WritableStorage


@pytest.fixture
def disk() -> SimulatedDisk:
    return disk_with_parent()


@pytest.fixture(params=["simulated", "local"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[WritableStorage, str]]:
    """A storage, and a directory in it that does not exist yet."""
    if request.param == "simulated":
        yield disk_with_parent(), DIRECTORY
    else:
        yield WritableLocalStorage(), str(tmp_path / "orders-0")


def test_a_new_log_starts_with_a_leader_change(disk: SimulatedDisk) -> None:
    log = created_log(disk)
    (first,) = batches_of(disk)
    assert (first.base_offset, first.leader_epoch, first.is_control) == (0, 1, True)
    (record,) = first.records()
    change = decode_control(record.key, record.value)
    assert isinstance(change, LeaderChange)
    assert (log.log_start_offset, log.end_offset, log.high_watermark, log.epoch) == (0, 1, 1, 1)
    assert log.epochs.entries == (EpochEntry(epoch=1, start_offset=0),)


@pytest.mark.parametrize("survival", list(Survival))
def test_a_created_log_is_durable(disk: SimulatedDisk, survival: Survival) -> None:
    created_log(disk)
    disk.crash(survival)
    log = reopened(disk)
    assert (log.end_offset, log.epoch, log.report.read_only) == (1, 1, None)


def test_appended_records_are_read_after_a_clean_shutdown(
    place: tuple[WritableStorage, str],
) -> None:
    storage, directory = place
    log = created_log(storage, directory=directory)
    fill(log, 100)
    end, epochs = log.end_offset, log.epochs
    log.close()
    log = reopened(storage, directory=directory)
    assert log.report.was_clean
    assert (log.end_offset, log.epochs, log.synced_end_offset) == (end, epochs, end)
    assert list(values_of(storage, directory)) == list(range(1, 101))
    fill(log, 1)
    log.close()
    assert list(values_of(storage, directory)) == list(range(1, 102))


def test_a_clean_open_of_a_longer_log_reads_no_more(disk: SimulatedDisk) -> None:
    log = created_log(disk, config=LogConfig(segment_bytes=20_000))
    read = []
    for batch_count in (300, 3_000):
        fill(log, batch_count)
        log.close()
        disk.reads.clear()
        log = reopened(disk)
        assert log.report.was_clean
        logs = sum(count for path, count in disk.reads.items() if path.endswith(".log"))
        read.append(logs)
    assert read[1] < read[0] * 2 + 40_000


def test_an_append_reads_and_lists_nothing(disk: SimulatedDisk) -> None:
    log = created_log(disk, config=LogConfig())
    fill(log, 10)
    disk.reads.clear()
    before = disk.operation_count
    append(log, b"x")
    assert not disk.reads
    assert disk.operation_count == before + 1
    log.flush()
    assert disk.operation_count == before + 3  # the sync, and the line of published


def test_records_count_as_synced_only_after_the_sync_is_complete(disk: SimulatedDisk) -> None:
    log = created_log(disk)
    append(log, b"one")
    ticket = log.start_sync()
    append(log, b"two")
    assert (log.end_offset, log.synced_end_offset, log.high_watermark) == (3, 1, 1)
    ticket.run()
    assert log.synced_end_offset == 1
    log.complete_sync(ticket)
    assert (log.synced_end_offset, log.high_watermark) == (2, 2)
    published = read_published(disk, DIRECTORY, disk.boot_id())
    assert published is not None
    assert published.end_offset == 2
    assert log.flush() == 3


def test_the_log_may_roll_during_a_sync(disk: SimulatedDisk) -> None:
    log = created_log(disk)
    append(log, b"one")
    ticket = log.start_sync()
    while len(log._segments.sealed) < 2:
        append(log, bytes(200))
    ticket.run()
    synced = log.synced_end_offset
    log.complete_sync(ticket)
    assert log.synced_end_offset == synced > ticket.end_offset
    log.flush()
    log.close()
    assert disk.open_files == 0


def test_a_sync_that_ends_after_a_roll_does_not_lower_the_synced_end(disk: SimulatedDisk) -> None:
    log = created_log(disk)
    append(log, bytes(1_500))
    ticket = log.start_sync()
    append(log, bytes(1_500))
    assert log._segments.sealed
    ticket.run()
    log.complete_sync(ticket)
    published = read_published(disk, DIRECTORY, disk.boot_id())
    assert published is not None
    assert (published.end_offset, published.segment_base_offset) == (2, 2)
    assert published.file_position == 0


def test_a_sync_that_ends_after_a_failure_is_ignored(disk: SimulatedDisk) -> None:
    log = created_log(disk)
    append(log, b"one")
    ticket = log.start_sync()
    disk.fail_sync_once("*.log")
    with pytest.raises(DiskFailedError):
        log.flush()
    ticket.run()
    with pytest.raises(LogClosedError):
        log.complete_sync(ticket)
    assert log.synced_end_offset == 1
    assert disk.open_files == 0


def test_a_segment_is_durable_before_the_next_one_is_written(disk: SimulatedDisk) -> None:
    log = created_log(disk)
    recording = disk.record()
    while not log._segments.sealed:
        append(log, bytes(200))
    (sealed,) = log._segments.sealed
    names = [(one.kind.name, one.path.rsplit("/", 1)[-1]) for one in recording.operations]
    new = f"{sealed.end_offset:020d}.log"
    first_byte = names.index(("WRITE", new))
    for suffix in (".log", ".index", ".timeindex"):
        assert ("SYNC", f"{0:020d}{suffix}") in names[:first_byte]
    created = names.index(("CREATE", new))
    assert ("SYNC_DIRECTORY", "orders-0") in names[created:first_byte]
    recovery_point = names.index(("RENAME", "recovery-point-offset-checkpoint.tmp"))
    assert names.index(("SYNC", f"{0:020d}.log")) < recovery_point


@pytest.mark.parametrize("survival", list(Survival))
def test_synced_records_survive_a_power_loss(disk: SimulatedDisk, survival: Survival) -> None:
    log = created_log(disk)
    fill(log, 45)
    synced = log.end_offset
    append(log, b"not synced")
    disk.crash(survival)
    log = reopened(disk)
    assert log.report.read_only is None
    assert log.end_offset in (synced, synced + 1)
    assert list(values_of(disk))[: synced - 1] == list(range(1, synced))


def test_the_recovery_point_is_never_above_the_synced_end(disk: SimulatedDisk) -> None:
    log = created_log(disk)
    for _ in range(60):
        append(log, bytes(150))
        point = read_checkpoint_files(disk, DIRECTORY).recovery_point
        durable = sum(
            len(content)
            for path, content in disk.durable_files().items()
            if path.endswith(".log") and int(path.rsplit("/", 1)[-1][:20]) < point
        )
        written = sum(
            len(content)
            for path, content in disk.files().items()
            if path.endswith(".log") and int(path.rsplit("/", 1)[-1][:20]) < point
        )
        assert durable == written


def test_indexes_of_a_reopened_log_are_those_of_its_batches(
    disk: SimulatedDisk,
) -> None:
    config = LogConfig(index_interval_bytes=300, segment_bytes=6_000)
    log = created_log(disk, config=config)
    for count in (1, 7, 20, 3, 40):
        fill(log, count)
        log.close()
        log = reopened(disk)
    log.close()
    files = disk.files()
    entries = 0
    for path in [path for path in files if path.endswith(".log")]:
        base = int(path.rsplit("/", 1)[-1][:20])
        indexer = SegmentIndexer(base, interval_bytes=300)
        position = 0
        for one in batches_of(disk):
            if base <= one.base_offset and one.path == path:
                indexer.add_batch(
                    position=position,
                    byte_count=one.byte_count,
                    last_offset=one.last_offset,
                    max_timestamp_ms=one.max_timestamp_ms,
                )
                position += one.byte_count
        indexer.add_time_entry()
        new = indexer.take()
        assert files[path.replace(".log", ".index")] == new.offset_entries
        assert files[path.replace(".log", ".timeindex")] == new.time_entries
        entries += len(parse_offset_index(new.offset_entries, base))
    assert entries > 20


@pytest.mark.parametrize("damage", ["missing", "empty", "garbage", "too long"])
def test_a_segment_is_opened_whatever_its_indexes_are(disk: SimulatedDisk, damage: str) -> None:
    log = created_log(disk, config=LogConfig(index_interval_bytes=300))
    fill(log, 50)
    log.close()
    expected = {path: data for path, data in disk.files().items() if path.endswith("index")}
    for path, data in expected.items():
        if damage == "missing":
            disk.unlink(path)
        else:
            changed = {"empty": b"", "garbage": b"\x07" * len(data), "too long": data + b"\x01" * 7}
            disk.put(path, changed[damage])
    log = reopened(disk)
    fill(log, 1)
    log.close()
    found = {path: data for path, data in disk.files().items() if path.endswith("index")}
    for path, data in expected.items():
        entry_bytes = 12 if path.endswith(".timeindex") else 8
        shared = len(data) - entry_bytes
        assert found[path][:shared] == data[:shared]


@pytest.mark.parametrize("byte", [-5, -1], ids=["offset", "position"])
def test_an_index_with_a_wrong_last_entry_is_rebuilt(disk: SimulatedDisk, byte: int) -> None:
    log = created_log(disk, config=LogConfig(index_interval_bytes=300))
    fill(log, 50)
    log.close()
    path = next(path for path in disk.files() if path.endswith(".index"))
    true = disk.files()[path]
    lying = bytearray(true)
    lying[byte] += 1
    disk.put(path, bytes(lying))
    log = reopened(disk)
    fill(log, 1)
    log.close()
    assert disk.files()[path][: len(true)] == true


def test_a_segment_rolls_by_record_timestamps_and_not_by_a_clock(disk: SimulatedDisk) -> None:
    log = created_log(disk, config=LogConfig(segment_ms=1_000))
    append(log, b"a", timestamp_ms=NOW_MS + 1_000)
    assert not log._segments.sealed
    append(log, b"b", timestamp_ms=NOW_MS + 1_001)
    assert [one.end_offset for one in log._segments.sealed] == [2]
    append(log, b"c", timestamp_ms=NOW_MS + 2_000)
    assert [one.end_offset for one in log._segments.sealed] == [2]


def test_a_segment_rolls_when_an_index_is_full(disk: SimulatedDisk) -> None:
    config = LogConfig(index_interval_bytes=0, segment_index_bytes=48)
    log = created_log(disk, config=config)
    fill(log, 20)
    assert len(log._segments.sealed) > 3
    for path, data in disk.files().items():
        if path.endswith("index"):
            assert len(data) <= 48


def test_a_batch_larger_than_a_segment_gets_its_own(disk: SimulatedDisk) -> None:
    log = created_log(disk)
    append(log, bytes(5_000))
    append(log, bytes(5_000))
    log.flush()
    assert [(one.base_offset, one.end_offset) for one in log._segments.sealed] == [(0, 1), (1, 2)]


# --- refused appends ------------------------------------------------------------------------------


def test_only_the_latest_epoch_appends(disk: SimulatedDisk) -> None:
    log = created_log(disk)
    with pytest.raises(FutureEpochError):
        append_batches(log, batch(b"x", base_offset=1, epoch=2))
    assert log.claim(now_ms=NOW_MS) == 2
    with pytest.raises(NotLeaderError):
        append_batches(log, batch(b"x", base_offset=2, epoch=1))
    assert log.end_offset == 2
    assert [one.epoch for one in log.epochs.entries] == [1, 2]


@pytest.mark.parametrize("base_offset", [0, 2])
def test_a_leader_appends_only_at_the_end(disk: SimulatedDisk, base_offset: int) -> None:
    log = created_log(disk)
    with pytest.raises(InvalidAppendError):
        append_batches(log, batch(b"x", base_offset=base_offset))
    assert log.end_offset == 1


def test_a_directory_with_a_log_is_not_created_again(disk: SimulatedDisk) -> None:
    created_log(disk)
    with pytest.raises(FileExistsLogError):
        created_log(disk)


def test_kafkas_directory_is_neither_created_nor_opened(disk: SimulatedDisk) -> None:
    disk.put(f"{DIRECTORY}/{0:020d}.log", batch(b"x", base_offset=0))
    before = disk.files()
    with pytest.raises(NotALogError, match="which raftlog does not write"):
        created_log(disk)
    with pytest.raises(NotALogError, match="is not a log of raftlog: it has no"):
        reopened(disk)
    assert disk.files() == before


@pytest.mark.slow
def test_a_half_created_log_is_created_or_opened(disk: SimulatedDisk) -> None:
    created_log(disk)
    recorded = disk_with_parent()
    recording = recorded.record()
    created_log(recorded)
    for state in recording.states():
        half = SimulatedDisk.after(state)
        try:
            log = created_log(half)
        except FileExistsLogError:
            log = reopened(half)
        assert (log.end_offset, log.epoch, log.is_read_only) == (1, 1, False), str(state)
        fill(log, 3)
        log.close()
        assert reopened(half).end_offset == 4


# --- disk failures --------------------------------------------------------------------------------


def test_a_full_disk_changes_nothing_and_the_append_can_be_retried(disk: SimulatedDisk) -> None:
    log = created_log(disk)
    fill(log, 40)
    held = sum(map(len, disk.files().values()))
    end = log.end_offset
    for room in range(0, 1_000, 37):
        disk.full_at(held + room)
        with pytest.raises(DiskFullError):
            fill(log, 20)
        disk.full_at(None)
        held = sum(map(len, disk.files().values()))
        log.flush()
    fill(log, 20)
    assert log.end_offset > end
    assert list(values_of(disk)) == list(range(1, log.end_offset))
    log.close()
    assert reopened(disk).report.was_clean


def test_a_failed_sync_closes_the_log_and_no_later_append_counts(disk: SimulatedDisk) -> None:
    log = created_log(disk)
    fill(log, 3)
    append(log, b"lost")
    disk.fail_sync_once("*.log")
    with pytest.raises(DiskFailedError):
        log.flush()
    assert log.synced_end_offset == 4
    with pytest.raises(LogClosedError):
        append(log, b"x")
    with pytest.raises(LogClosedError):
        log.flush()
    log.close()
    assert disk.open_files == 0
    log = reopened(disk)
    assert log.end_offset == 4
    (cut,) = log.report.truncated
    assert cut.first_offset == 4
    assert cut.saved_as is not None


def test_a_failed_sync_during_a_roll_closes_the_log(disk: SimulatedDisk) -> None:
    log = created_log(disk)
    disk.fail_sync_once(f"*{0:020d}.log")
    with pytest.raises(DiskFailedError):
        fill(log, 30)
    with pytest.raises(LogClosedError):
        append(log, b"x")
    disk.crash(Survival.NOTHING)
    log = reopened(disk)
    assert (log.end_offset, log.report.read_only) == (1, None)


def test_closing_twice_is_allowed_and_a_closed_log_refuses_appends(disk: SimulatedDisk) -> None:
    log = created_log(disk)
    log.close()
    log.close()
    with pytest.raises(LogClosedError, match=r"close\(\) was called"):
        append(log, b"x")
    assert disk.open_files == 0


def test_the_clean_shutdown_file_is_deleted_before_the_first_write(disk: SimulatedDisk) -> None:
    log = created_log(disk)
    log.close()
    assert read_checkpoint_files(disk, DIRECTORY).clean is not None
    log = reopened(disk)
    log.close()  # nothing was written: the file is unchanged
    log = reopened(disk)
    assert log.report.was_clean
    recording = disk.record()
    append(log, b"x")
    kinds = [one.kind.name for one in recording.operations]
    assert kinds.index("UNLINK") < kinds.index("SYNC_DIRECTORY") < kinds.index("WRITE")
    assert read_checkpoint_files(disk, DIRECTORY).clean is None


def test_a_log_of_local_files_uses_only_the_storage_protocol(tmp_path: Path) -> None:
    log = SingleVoterLog.create(
        WritableLocalStorage(),
        str(tmp_path / "t-1"),
        config=SMALL,
        topic_id=TOPIC_ID,
        now_ms=NOW_MS,
    )
    fill(log, 50)
    log.claim(now_ms=NOW_MS)
    log.close()
    names = sorted(path.name for path in (tmp_path / "t-1").iterdir())
    assert not [name for name in names if name.endswith(".tmp")]
    assert (tmp_path / "t-1" / "recovery-point-offset-checkpoint").read_text() == (
        f"0\n1\nt 1 {log.end_offset}\n"
    )
