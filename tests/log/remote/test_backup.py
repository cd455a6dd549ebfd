"""A restored log is the one that was backed up, whatever fails on the way."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.log.cleaning.test_compaction import compact, fill, log_of
from tests.log.remote.stored_backups import (
    STORE,
    TARGET,
    FailingObjects,
    InterruptedObjects,
    backed_up,
    files_of,
    objects_of,
    restored,
    store_disk,
)
from tests.simulated_disk.simulated_disk import SimulatedDisk, Survival
from tests.support.cli import rows, run
from tests.support.crash_injection import crashes_after
from tests.support.log_builder import LogBuilder
from tests.support.written_logs import DIRECTORY, SMALL, WrittenLog

import raftlog
from raftlog.errors import (
    CorruptBatchError,
    LogNotFoundError,
    NotALogError,
    OptionError,
)
from raftlog.log.format.directory import checkpoint_name, parse_epoch_checkpoint, parse_offset_name
from raftlog.log.reading.latest_by_key import LatestByKey
from raftlog.log.reading.opening import open_log
from raftlog.log.reading.reads import LogKind
from raftlog.log.writing.single_voter_log import SingleVoterLog
from raftlog.storage.errors import (
    BackupNotFoundError,
    CorruptRemoteObjectError,
    RemoteObjectNotFoundError,
    RemoteStorageError,
    WrongBackupError,
)
from raftlog.storage.local import LocalStorage
from raftlog.storage.objects import StorageObjects

KRAFT_LOGS = Path(__file__).parents[2] / "data" / "kraft-logs"
REAL_LOGS = [
    KRAFT_LOGS / "three-nodes-4.3.1" / "node-1" / "__cluster_metadata-0",
    KRAFT_LOGS / "trimmed-3.9.2" / "node-1" / "__cluster_metadata-0",
]


def written(batches: int = 60) -> WrittenLog:
    log = WrittenLog()
    log.fill(batches)
    return log


def record_bytes(storage: SimulatedDisk, directory: str) -> bytes:
    """Return all segments of a log together."""
    return b"".join(
        data
        for path, data in sorted(storage.files().items())
        if path.startswith(directory) and path.endswith(".log")
    )


def test_a_restored_log_has_the_same_files_and_can_be_continued() -> None:
    source, disk = written(), store_disk()
    report = backed_up(source.disk, StorageObjects(disk, STORE), 1)
    assert (report.log_start_offset, report.end_offset) == (0, source.log.end_offset)
    done = restored(StorageObjects(disk, STORE), disk)
    assert (done.log_start_offset, done.end_offset) == (0, source.log.end_offset)
    assert files_of(disk, TARGET) == files_of(source.disk, DIRECTORY)
    disk.crash(Survival.NOTHING)
    log = SingleVoterLog.open(disk, TARGET, now_ms=2_000_000)
    assert log.report.read_only is None
    assert not log.report.anomalies
    assert log.end_offset == source.log.end_offset


@pytest.mark.parametrize("path", REAL_LOGS, ids=lambda path: path.parts[-3])
def test_a_log_of_kafka_is_restored_byte_for_byte(path: Path, tmp_path: Path) -> None:
    backup, target = tmp_path / "backup", tmp_path / path.name
    assert run("backup", path, backup)[0] == 0
    assert run("restore", backup, target)[0] == 0
    expected = {
        one.name: one.read_bytes()
        for one in path.iterdir()
        if one.suffix not in (".gz", ".deleted")
    }
    meta = path.parent / "meta.properties"
    if meta.exists():
        expected[meta.name] = meta.read_bytes()
    actual = {one.name: one.read_bytes() for one in target.iterdir()}
    last = max(name for name in expected if name.endswith(".log")).removesuffix(".log")
    # Kafka builds those of the active segment, with its .txnindex, if .index is missing.
    rebuilt = {f"{last}.index", f"{last}.timeindex"}
    assert actual == {
        k: v for k, v in expected.items() if k not in rebuilt and not k.startswith(".")
    }
    assert run("check", target)[0] == 0
    assert run("cat", target)[1] == run("cat", path)[1]


def test_a_second_backup_uploads_only_what_is_new() -> None:
    source, disk = written(), store_disk()
    store = StorageObjects(disk, STORE)
    backed_up(source.disk, store, 1)
    before, size = dict(objects_of(disk)), len(record_bytes(source.disk, DIRECTORY))
    assert not backed_up(source.disk, store, 2).is_new
    assert dict(objects_of(disk)) == before
    source.fill(25)
    report = backed_up(source.disk, store, 3)
    after = dict(objects_of(disk))
    assert {name: after[name] for name in before} == before
    new = [name for name in after if name not in before]
    segments = sum(
        len(after[name]) for name in new if name.endswith(".log") and "manifest" not in name
    )
    assert segments == len(record_bytes(source.disk, DIRECTORY)) - size
    assert report.is_new
    assert report.reused_bytes >= size
    restored(store, disk)
    assert files_of(disk, TARGET) == files_of(source.disk, DIRECTORY)


def test_a_log_is_restored_up_to_any_offset() -> None:
    source, disk = written(40), store_disk()
    source.append(b"a", b"b", b"c")
    source.fill(3)
    store = StorageObjects(disk, STORE)
    backed_up(source.disk, store, 1)
    source.fill(30)
    backed_up(source.disk, store, 2)
    everything = record_bytes(source.disk, DIRECTORY)
    ends = {
        one.last_offset + 1
        for one in open_log(source.disk, DIRECTORY).batches(0, source.log.end_offset)
    }
    for to_offset in range(1, source.log.end_offset + 1):
        target = f"/restored/{to_offset}-0"
        done = restored(store, disk, target=target, to_offset=to_offset)
        assert done.end_offset == max(end for end in {0, *ends} if end <= to_offset)
        data = record_bytes(disk, target + "/")
        assert everything.startswith(data)
        log = SingleVoterLog.open(disk, target, now_ms=2_000_000)
        assert log.report.read_only is None
        assert not log.report.truncated
        assert log.end_offset == done.end_offset
        producers = (parse_offset_name(name, ".snapshot") for name in disk.list_names(target))
        assert all(one is None or one <= done.end_offset for one in producers)
        log.close()


def test_an_offset_without_a_backup_is_refused() -> None:
    source, disk = written(), store_disk()
    store = StorageObjects(disk, STORE)
    with pytest.raises(BackupNotFoundError, match="none that is complete"):
        restored(store, disk)
    backed_up(source.disk, store, 1)
    for to_offset in (0, source.log.end_offset + 1):
        with pytest.raises(BackupNotFoundError, match=f"offset {to_offset}; they have 0 to 61"):
            restored(store, disk, to_offset=to_offset)
    with pytest.raises(LogNotFoundError):
        disk.is_directory(TARGET + ".part")


def test_an_earlier_backup_is_used_for_an_offset_that_retention_has_deleted_since() -> None:
    source, disk = written(), store_disk()
    store = StorageObjects(disk, STORE)
    backed_up(source.disk, store, 1)
    earlier = record_bytes(source.disk, DIRECTORY)
    source.log.delete_records(40, now_ms=2_000_000)
    source.fill(10)
    report = backed_up(source.disk, store, 2)
    assert report.log_start_offset == 40
    restored(store, disk)
    assert files_of(disk, TARGET) == files_of(source.disk, DIRECTORY)
    done = restored(store, disk, target="/restored/old-0", to_offset=30)
    assert (done.log_start_offset, done.end_offset) == (0, 30)
    data = record_bytes(disk, "/restored/old-0")
    assert earlier.startswith(data)
    assert data


def test_a_segment_that_was_truncated_is_uploaded_again() -> None:
    source, disk = written(20), store_disk()
    store = StorageObjects(disk, STORE)
    earlier = source.disk.copy()
    source.append(b"lost")
    backed_up(source.disk, store, 1)
    other = SingleVoterLog.open(earlier, DIRECTORY, now_ms=3_000_000)
    other.claim(now_ms=3_000_000)
    other.flush()
    backed_up(earlier, store, 2)
    restored(store, disk)
    assert (
        files_of(disk, TARGET)["leader-epoch-checkpoint"]
        == files_of(earlier, DIRECTORY)["leader-epoch-checkpoint"]
    )
    assert record_bytes(disk, TARGET) == record_bytes(earlier, DIRECTORY)


def test_epochs_after_the_end_of_a_log_that_is_cut_are_not_restored() -> None:
    source, disk = written(8), store_disk()
    source.log.claim(now_ms=5_000)
    source.fill(8)
    store = StorageObjects(disk, STORE)
    backed_up(source.disk, store, 1)
    assert [one.epoch for one in open_log(source.disk, DIRECTORY).epochs.entries] == [1, 2]
    restored(store, disk, to_offset=9)
    epochs = parse_epoch_checkpoint(files_of(disk, TARGET)["leader-epoch-checkpoint"], "x")
    assert [one.epoch for one in epochs.entries] == [1]
    log = SingleVoterLog.open(disk, TARGET, now_ms=2_000_000)
    assert (log.end_offset, log.report.read_only, log.report.anomalies) == (9, None, ())


@pytest.mark.parametrize("at_write", range(5))
def test_a_log_that_is_truncated_meanwhile_is_backed_up_as_it_was_at_one_moment(
    at_write: int,
) -> None:
    log, disk = LogBuilder(directory="/data/orders-0"), store_disk()
    log.lead(1)
    log.no_ops(20)
    kept = len(log.storage.files[log.path()])
    log.no_ops(20)
    before = bytes(log.storage.files[log.path()])

    def truncate() -> None:
        log.storage.truncate(log.path(), kept)
        log.next_offset, log.epoch = 21, 2
        log.no_ops(4)

    store = InterruptedObjects(disk, truncate, at_write=at_write)
    report = backed_up(log.storage, store, 1, directory=log.directory)
    done = restored(store, disk)
    assert done.end_offset == report.end_offset == (25 if at_write < 2 else 41)
    expected = bytes(log.storage.files[log.path()]) if at_write < 2 else before
    assert record_bytes(disk, TARGET) == expected


@pytest.mark.parametrize("at_write", range(12))
def test_a_start_that_advances_meanwhile_is_that_of_the_restored_log(at_write: int) -> None:
    source, disk = written(6), store_disk()
    source.log.delete_records(1, now_ms=2_000_000)

    def delete() -> None:
        source.log.delete_records(4, now_ms=2_000_000)

    report = backed_up(source.disk, InterruptedObjects(disk, delete, at_write=at_write), 1)
    assert report.log_start_offset in (1, 4)
    assert restored(StorageObjects(disk, STORE), disk).log_start_offset == report.log_start_offset
    assert open_log(disk, TARGET).log_start_offset == report.log_start_offset


def test_a_snapshot_that_is_replaced_meanwhile_is_in_the_backup() -> None:
    log, disk = LogBuilder(), store_disk()
    log.lead(1)
    log.no_ops(10)
    first = log.checkpoint()
    log.roll()
    log.no_ops(5)
    log.delete_segment(0)

    def replace() -> None:
        log.checkpoint()
        log.storage.delete(log.file(checkpoint_name(first)))

    store = InterruptedObjects(disk, replace)
    assert backed_up(log.storage, store, 1, directory=log.directory).end_offset == 16
    restored(store, disk)
    assert [one.end_offset for one in open_log(disk, TARGET).snapshots] == [16]


@pytest.mark.parametrize("seed", range(4))
def test_of_two_backups_at_the_same_time_the_one_with_the_greater_end_is_restored(
    seed: int,
) -> None:
    source, disk = written(5), store_disk()
    store = StorageObjects(disk, STORE)

    def grow_and_back_up() -> None:
        source.fill(3)
        backed_up(source.disk, store, 100 + seed)

    backed_up(source.disk, InterruptedObjects(disk, grow_and_back_up), seed)
    assert restored(store, disk).end_offset == source.log.end_offset


def test_a_log_with_gaps_is_restored_up_to_any_offset() -> None:
    log, disk = LogBuilder(directory="/data/orders-0"), store_disk()
    for _ in range(5):
        log.data(b"a", b"b")
        log.next_offset += 3
    log.roll()
    log.data(b"c")
    store = StorageObjects(disk, STORE)
    assert backed_up(log.storage, store, 1, directory=log.directory).end_offset == 26
    for to_offset in range(1, 27):
        target = f"/restored/{to_offset}-0"
        done = restored(store, disk, target=target, to_offset=to_offset)
        ends = [one for one in (0, 2, 7, 12, 17, 22, 26) if one <= to_offset]
        assert done.end_offset == ends[-1]
        read = open_log(disk, target, kind=LogKind.PARTITION)
        assert sum(1 for _ in read.batches(0, done.end_offset)) == len(ends) - 1


def test_a_segment_that_was_compacted_is_uploaded_again() -> None:
    source, log = log_of()
    disk = store_disk()
    store = StorageObjects(disk, STORE)
    fill(log, 3)
    backed_up(source, store, 1, directory=log.path)
    assert compact(log)
    fill(log, 4, 5)
    backed_up(source, store, 2, directory=log.path)
    restored(store, disk)
    assert files_of(disk, TARGET) == files_of(source, log.path)


def latest_values(disk: SimulatedDisk, directory: str, end_offset: int) -> dict[bytes, bytes]:
    """Return the latest value of each key below an offset."""
    latest = LatestByKey(directory)
    latest.read(open_log(disk, directory, kind=LogKind.PARTITION), end_offset)
    return {key: one.value for key, one in latest.records() if one.value is not None}


def test_a_compacted_log_is_restored_only_up_to_an_offset_whose_keys_it_has() -> None:
    source, log = log_of()
    disk = store_disk()
    store = StorageObjects(disk, STORE)
    fill(log, 3)
    backed_up(source, store, 1, directory=log.path)
    early, end = log.end_offset - 20, log.end_offset
    values = {at: latest_values(source, log.path, at) for at in (early, end)}
    fill(log, 4)
    assert compact(log)
    compacted = open_log(source, log.path).compacted_offset
    assert end < compacted < log.end_offset
    fill(log, 5, 5)
    backed_up(source, store, 2, directory=log.path)
    for to_offset in (compacted, compacted + 1):
        values[to_offset] = latest_values(source, log.path, to_offset)
    for to_offset, expected in values.items():
        target = f"/restored/{to_offset}-0"
        assert restored(store, disk, target=target, to_offset=to_offset).end_offset == to_offset
        assert latest_values(disk, target, to_offset) == expected
    with pytest.raises(BackupNotFoundError, match=f"compacted up to offset {compacted}"):
        restored(store, disk, to_offset=compacted - 1)
    with pytest.raises(LogNotFoundError):
        disk.is_directory(TARGET + ".part")


def test_a_location_has_the_backups_of_one_log() -> None:
    source, disk = written(), store_disk()
    store = StorageObjects(disk, STORE)
    backed_up(source.disk, store, 1)
    before = dict(objects_of(disk))
    for path, topic_id, match in (
        ("/data/others-0", "x" * 21 + "A", "it is __cluster_metadata-0, not others-0"),
        ("/data/__cluster_metadata-0", "x" * 21 + "A", "its topic id is"),
    ):
        other = SingleVoterLog.create(
            source.disk, path, config=SMALL, topic_id=topic_id, now_ms=1_000
        )
        other.flush()
        with pytest.raises(WrongBackupError, match=match):
            backed_up(source.disk, store, 2, directory=path)
    assert dict(objects_of(disk)) == before


def test_a_location_in_a_directory_of_the_log_is_refused(tmp_path: Path) -> None:
    path, node = tmp_path / "a-0", tmp_path / "node"
    with raftlog.open(path) as log:
        log.append([b"x"])
    shutil.copytree(REAL_LOGS[0].parent, node)
    (tmp_path / "link").symlink_to(path)
    before = sorted(tmp_path.rglob("*"))
    for source, location in (
        (path, path),
        (path, path / "backups"),
        (path, tmp_path / "link" / "backups"),
        (node, node / "backups"),
        (node / "__cluster_metadata-0", node / "backups"),
    ):
        status, _, text = run("backup", source, location)
        assert (status, "a directory of the log: name one outside" in text) == (2, True)
    assert sorted(tmp_path.rglob("*")) == before
    assert run("backup", path, tmp_path / "a-0.backups")[0] == 0


def test_damage_of_the_log_is_not_backed_up() -> None:
    source, disk = written(), store_disk()
    source.disk.flip_bit(source.segment(0), 8 * 300)
    store = StorageObjects(disk, STORE)
    with pytest.raises(CorruptBatchError):
        backed_up(source.disk, store, 1)
    with pytest.raises(BackupNotFoundError):
        restored(store, disk)


def test_a_segment_that_retention_deletes_meanwhile_is_left_out() -> None:
    source, disk = written(), store_disk()

    def delete() -> None:
        source.log.delete_records(30, now_ms=2_000_000)

    backed_up(source.disk, InterruptedObjects(disk, delete), 1)
    restored(StorageObjects(disk, STORE), disk)
    assert files_of(disk, TARGET) == files_of(source.disk, DIRECTORY)


def test_a_log_that_grows_and_is_trimmed_meanwhile_is_backed_up_with_its_new_end() -> None:
    source, disk = written(3), store_disk()

    def grow() -> None:
        source.fill(3)
        source.log.delete_records(6, now_ms=2_000_000)

    report = backed_up(source.disk, InterruptedObjects(disk, grow), 1)
    assert (report.log_start_offset, report.end_offset) == (6, 7)
    assert restored(StorageObjects(disk, STORE), disk).log_start_offset == 6
    assert files_of(disk, TARGET) == files_of(source.disk, DIRECTORY)


def test_the_commands_print_extents_and_return_exit_codes(tmp_path: Path) -> None:
    path, location, target = tmp_path / "a-0", tmp_path / "backups", tmp_path / "b-0"
    with raftlog.open(path) as log:
        log.append([b"x", b"y"])
    status, out, _ = run("backup", path, location)
    assert (status, out.split(";")[0]) == (0, "backed up: offsets from 0 to 3 (exclusive)")
    unchanged = "unchanged: offsets from 0 to 3 (exclusive); nothing was written\n"
    assert run("backup", path, location) == (0, unchanged, "")
    status, out, _ = run("restore", location, target, "--to-offset", "2")
    assert (status, out.split(" (")[0]) == (0, f"restored: {target}: offsets from 0 to 1")
    assert re.search(r"; backup of \d{4}-\d\d-\d\dT[0-9:.]+Z, which ends at 3\n$", out)
    assert run("restore", location, target)[0] == 2
    with raftlog.open(path.with_name("other-0")) as log:
        log.append([b"z"])
    assert run("backup", path.with_name("other-0"), location)[0] == 2
    assert run("restore", location, tmp_path / "c-0", "--to-offset", "9")[0] == 1
    assert run("restore", tmp_path / "absent", tmp_path / "c-0")[0] == 1
    assert run("backup", tmp_path / "absent", location)[0] == 2
    assert run("backup", path, "s4://x/y")[0] == 2
    assert len(rows("state", location / "manifest", "remote_segments")) == 2
    assert (location / "manifest").stat().st_mode & 0o077 == 0


def test_a_later_backup_without_the_end_of_its_manifest_is_a_warning(tmp_path: Path) -> None:
    path, location = tmp_path / "a-0", tmp_path / "backups"
    for value in (b"x", b"y"):
        with raftlog.open(path) as log:
            log.append([value])
        assert run("backup", path, location)[0] == 0
    whole = run("restore", location, tmp_path / "b-0")
    assert (whole[1].rpartition(", which ")[2], whole[2]) == ("ends at 3\n", "")
    objects = (location / "manifest").glob("*/*.log")
    max(objects, key=lambda one: one.stat().st_mtime_ns).unlink()
    status, out, text = run("restore", location, tmp_path / "c-0")
    assert (status, out.rpartition(", which ")[2]) == (0, "ends at 2\n")
    assert "is not finished" in text


# --- crashes and failures -------------------------------------------------------------------------


def continued(disk: SimulatedDisk, source: WrittenLog, ends: tuple[int, ...], what: str) -> None:
    """Restore what a failed backup has left, then complete it and restore again."""
    store = StorageObjects(disk, STORE)
    disk.make_directory("/restored")
    try:
        assert restored(store, disk).end_offset in ends, what
    except BackupNotFoundError:
        assert ends[0] == 0, what
    backed_up(source.disk, store, 77)
    restored(store, disk, target="/restored/again-0")
    assert files_of(disk, "/restored/again-0") == files_of(source.disk, DIRECTORY), what


@pytest.mark.parametrize(
    ("batches", "step"),
    [
        pytest.param(4, 7, marks=pytest.mark.slow),
        pytest.param(30, 1, marks=pytest.mark.nightly),
    ],
)
def test_a_crash_of_a_backup_at_any_operation_leaves_the_earlier_one(
    batches: int, step: int
) -> None:
    source, disk = written(batches), store_disk()
    recording = disk.record()
    backed_up(source.disk, StorageObjects(disk, STORE), 1)
    first = len(recording.operations)
    end_offset = source.log.end_offset
    for state in recording.states(cuts=range(0, first + 1, step)):
        continued(SimulatedDisk.after(state), source, (0, end_offset), str(state))
    source.fill(16)
    backed_up(source.disk, StorageObjects(disk, STORE), 2)
    for state in recording.states(cuts=range(first, len(recording.operations) + 1, step)):
        ends = (end_offset, source.log.end_offset)
        continued(SimulatedDisk.after(state), source, ends, str(state))


@pytest.mark.parametrize("byte_count", [None, 0, 50, 100_000])
def test_a_store_that_fails_at_any_write_leaves_no_incomplete_backup(
    byte_count: int | None,
) -> None:
    source = written(30)
    for fail_at in range(100):
        disk = store_disk()
        failing = FailingObjects(StorageObjects(disk, STORE), fail_at, byte_count)
        try:
            backed_up(source.disk, failing, 1)
        except RemoteStorageError:
            continued(disk, source, (0, source.log.end_offset), f"write {fail_at}")
        else:
            assert fail_at > 10
            return
    raise AssertionError("the writes of a backup are fewer")


def test_a_crash_of_a_restore_leaves_the_directory_complete_or_absent() -> None:
    source, disk = written(30), store_disk()
    backed_up(source.disk, StorageObjects(disk, STORE), 1)
    for to_offset in (None, 25):
        target = f"/restored/{to_offset}-0"
        started = disk.copy()
        recording = started.record()
        restored(StorageObjects(started, STORE), started, target=target, to_offset=to_offset)
        complete = files_of(started, target)
        for state in recording.states():
            after = SimulatedDisk.after(state)
            try:
                after.is_directory(target)
            except LogNotFoundError:
                continue
            assert files_of(after, target) == complete, str(state)
    assert crashes_after(disk, 20, restored, StorageObjects(disk, STORE), disk)
    disk.kill()
    with pytest.raises(OptionError, match=r"/decisions-0\.part exists: another restore"):
        restored(StorageObjects(disk, STORE), disk)


def damaged(data: bytes) -> Iterator[bytes]:
    """Yield contents that an object may have instead of its own."""
    yield data[:-1]
    yield data + b"\0"
    yield b""
    for at in range(0, len(data), max(1, len(data) // 7)):
        yield data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :]


def test_a_damaged_or_missing_object_is_an_error_or_harmless() -> None:
    source, disk = written(30), store_disk()
    backed_up(source.disk, StorageObjects(disk, STORE), 1)
    source.fill(20)
    backed_up(source.disk, StorageObjects(disk, STORE), 2)
    expected = files_of(source.disk, DIRECTORY)
    kinds, texts = set(), set()
    for name, data in list(objects_of(disk)):
        for content in (None, *damaged(data)):
            changed = disk.copy()
            if content is None:
                changed.unlink(f"{STORE}/{name}")
            else:
                changed.put(f"{STORE}/{name}", content)
            try:
                done = restored(StorageObjects(changed, STORE), changed)
            except (RemoteObjectNotFoundError, CorruptRemoteObjectError) as error:
                kinds.add(type(error))
                texts.add(str(error))
            except BackupNotFoundError:
                assert "manifest" in name
            else:
                end_offset = open_log(changed, TARGET).log_end_offset
                # An earlier backup is restored if the end of the manifest is missing.
                is_earlier = "manifest" in name and end_offset == 31
                assert is_earlier or files_of(changed, TARGET) == expected, name
                assert done.backup_end_offset == end_offset
                assert (done.unfinished_time_ms is not None) == is_earlier
    assert kinds == {RemoteObjectNotFoundError, CorruptRemoteObjectError}
    assert all(f"in {STORE}" in text for text in texts)


def test_paths_that_are_no_log_are_refused(tmp_path: Path) -> None:
    disk = store_disk()
    (tmp_path / "empty-0").mkdir()
    (tmp_path / "empty-0" / "00000000000000000000.log").touch()
    for path in (tmp_path, tmp_path / "empty-0"):
        with pytest.raises(NotALogError):
            backed_up(LocalStorage(), StorageObjects(disk, STORE), 1, directory=str(path))
    assert not list(objects_of(disk))
