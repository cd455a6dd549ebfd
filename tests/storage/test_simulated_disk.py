"""Simulated machine: its processes, its faults, and crashes at a chosen operation."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from tests.simulated_disk.simulated_disk import CrashPoint, SimulatedDisk, Survival

from raftlog.errors import DiskFailedError, DiskFullError, LogAccessError, LogNotFoundError


@pytest.fixture
def disk() -> SimulatedDisk:
    disk = SimulatedDisk()
    disk.make_directory("/d")
    disk.sync_directory("/")
    return disk


# --- crashes --------------------------------------------------------------------------------------


@pytest.mark.parametrize("die", [SimulatedDisk.kill, SimulatedDisk.crash], ids=["kill", "crash"])
def test_a_dead_process_can_only_close_and_release(
    disk: SimulatedDisk, die: Callable[[SimulatedDisk], None]
) -> None:
    disk.put("/d/a", b"x")
    lock = disk.try_lock("/d/lock")
    file = disk.open_for_writing("/d/a")
    assert lock is not None
    assert disk.open_files == 1
    die(disk)
    assert disk.open_files == 0
    for call in (
        file.sync,
        file.byte_count,
        lambda: file.read_at(0, 1),
        lambda: file.write_at(0, b"y"),
        lambda: file.truncate(0),
    ):
        with pytest.raises(CrashPoint):
            call()
    file.close()
    assert disk.files()["/d/a"] == b"x"
    successor = disk.try_lock("/d/lock")
    assert successor is not None
    lock.release()
    assert disk.try_lock("/d/lock") is None
    assert disk.open_files == 0


def test_only_a_power_loss_changes_the_boot_id(disk: SimulatedDisk) -> None:
    first = disk.boot_id()
    disk.kill()
    assert disk.boot_id() == first
    disk.crash()
    assert disk.boot_id() != first


def test_processes_share_files_and_exclude_each_other(disk: SimulatedDisk) -> None:
    other = disk.another_process()
    disk.put("/d/a", b"x")
    assert other.files() == {"/d/a": b"x"}
    mine = disk.try_lock("/d/lock")
    assert mine is not None
    assert other.try_lock("/d/lock") is None
    file = other.open_for_writing("/d/a")
    disk.kill()
    file.write_at(0, b"y")
    assert other.try_lock("/d/lock") is not None
    assert disk.files()["/d/a"] == b"y"


def test_a_power_loss_ends_every_process(disk: SimulatedDisk) -> None:
    other = disk.another_process()
    disk.put("/d/a", b"x")
    file = other.open_for_writing("/d/a")
    disk.crash()
    with pytest.raises(CrashPoint):
        file.sync()
    with pytest.raises(CrashPoint):
        other.list_names("/d")
    other.kill()
    assert other.list_names("/d") == ["a"]
    assert other.boot_id() == disk.boot_id()


def test_a_process_dies_at_the_chosen_operation(disk: SimulatedDisk) -> None:
    file = disk.create_file("/d/a")
    disk.stop_at(disk.operation_count + 2)
    file.write_at(0, b"1")
    file.sync()
    with pytest.raises(CrashPoint) as caught:
        file.write_at(1, b"2")
    assert "write /d/a at 1 1 bytes" in str(caught.value)
    for call in (file.sync, lambda: disk.unlink("/d/a"), lambda: disk.create_file("/d/b")):
        with pytest.raises(CrashPoint):
            call()
    disk.kill()
    assert disk.files() == {"/d/a": b"1"}
    disk.unlink("/d/a")


def test_a_crash_is_no_error_that_a_log_could_handle() -> None:
    assert not issubclass(CrashPoint, Exception)


def test_the_same_seed_leaves_the_same_disk() -> None:
    def run(seed: int) -> list[dict[str, bytes]]:
        disk, left = SimulatedDisk(seed), []
        for round_number in range(20):
            with disk.create_file(f"/{round_number}") as file:
                for position in range(0, 2000, 100):
                    file.write_at(position, bytes([round_number]) * 100)
            disk.crash()
            left.append(disk.files())
        return left

    assert run(1) == run(1)
    assert run(1) != run(2)


def test_a_copy_is_independent(disk: SimulatedDisk) -> None:
    file = disk.create_file("/d/a")
    file.write_at(0, b"1")
    copy = disk.copy()
    assert copy.boot_id() == disk.boot_id()
    with copy.open_for_writing("/d/a") as other:
        other.write_at(0, b"2")
        other.sync()
    copy.sync_directory("/d")
    file.write_at(1, b"x")
    assert copy.durable_files() == {"/d/a": b"2"}
    assert disk.durable_files() == {}
    assert disk.files() == {"/d/a": b"1x"}


# --- faults ---------------------------------------------------------------------------------------


def test_a_full_disk_accepts_the_first_part_of_a_write(disk: SimulatedDisk) -> None:
    disk.put("/d/a", b"12345")
    disk.full_at(8)
    file = disk.open_for_writing("/d/a")
    file.write_at(0, b"ABCDE")  # no file grows
    with pytest.raises(DiskFullError) as caught:
        file.write_at(5, b"678901")
    assert caught.value.path == "/d/a"
    assert file.read_at(0, 99) == b"ABCDE678"
    for call in (disk.create_file, disk.make_directory, disk.try_lock):
        with pytest.raises(DiskFullError):
            call("/d/b")
    file.truncate(7)
    disk.create_file("/d/b").close()
    disk.full_at(None)
    file.write_at(7, b"8" * 100)
    assert file.byte_count() == 107


def test_deleting_frees_space(disk: SimulatedDisk) -> None:
    disk.put("/d/a", b"x" * 100)
    disk.put("/d/b", b"")
    disk.full_at(100)
    disk.unlink("/d/a")
    with disk.open_for_writing("/d/b") as file:
        file.write_at(0, b"y" * 100)


def test_a_write_fails_once_at_the_matching_path(disk: SimulatedDisk) -> None:
    disk.put("/d/a.log", b"")
    disk.put("/d/b.index", b"")
    disk.fail_write_once("*.log")
    with disk.open_for_writing("/d/b.index") as file:
        file.write_at(0, b"x")
    with disk.open_for_writing("/d/a.log") as file:
        with pytest.raises(DiskFailedError):
            file.write_at(0, b"x")
        assert file.byte_count() == 0
        file.write_at(0, b"x")


def test_a_sync_fails_at_the_matching_path(disk: SimulatedDisk) -> None:
    disk.put("/d/a.log", b"")
    disk.fail_sync_once("/d")
    with disk.open_for_writing("/d/a.log") as file:
        file.sync()
    with pytest.raises(DiskFailedError):
        disk.sync_directory("/d")
    disk.sync_directory("/d")


def test_a_read_only_file_system_refuses_every_change(disk: SimulatedDisk) -> None:
    disk.put("/d/a", b"x")
    disk.refuse_writing("/d/*")
    with disk.open_for_writing("/d/a") as file:
        for call in (
            lambda: file.write_at(0, b"y"),
            lambda: file.truncate(0),
            lambda: disk.unlink("/d/a"),
            lambda: disk.rename("/d/a", "/d/b"),
            lambda: disk.create_file("/d/c"),
        ):
            with pytest.raises(LogAccessError) as caught:
                call()
            assert "cannot be written: read-only file system" in str(caught.value)
    assert disk.files() == {"/d/a": b"x"}
    disk.refuse_writing(None)
    disk.unlink("/d/a")


def test_a_frozen_file_is_not_opened_for_writing(disk: SimulatedDisk) -> None:
    disk.put("/d/a", b"x")
    disk.set_read_only("/d/a")
    with pytest.raises(LogAccessError):
        disk.open_for_writing("/d/a")
    disk.crash(Survival.EVERYTHING)
    with pytest.raises(LogAccessError):
        disk.open_for_writing("/d/a")
    assert disk.open_file("/d/a").read_at(0, 1) == b"x"


def test_the_limit_of_open_files_is_enforced(disk: SimulatedDisk) -> None:
    disk.put("/d/a", b"x")
    disk.open_files_max = 2
    files = [disk.open_file("/d/a"), disk.open_file("/d/a")]
    with pytest.raises(LogAccessError) as caught:
        disk.open_file("/d/a")
    assert "too many open files" in str(caught.value)
    files[0].close()
    disk.open_file("/d/a").close()
    assert disk.open_files == 1


def test_faults_end_with_a_power_loss(disk: SimulatedDisk) -> None:
    disk.put("/d/a", b"x")
    disk.full_at(0)
    disk.refuse_writing("*")
    disk.fail_sync_once()
    disk.fail_write_once()
    disk.crash()
    disk.put("/d/b", b"y")


# --- inspection -----------------------------------------------------------------------------------


def test_reads_are_counted_by_path(disk: SimulatedDisk) -> None:
    disk.put("/d/a", b"0123456789")
    with disk.open_file("/d/a") as file:
        file.read_at(0, 4)
        file.read_at(8, 4)
    assert disk.reads == {"/d/a": 6}


def test_putting_a_file_creates_its_directory(disk: SimulatedDisk) -> None:
    disk.put("/x/y/z", b"1")
    disk.put("/x/y/z", b"2")
    assert disk.durable_files() == {"/x/y/z": b"2"}
    with pytest.raises(LogNotFoundError):
        disk.list_names("/x/z")


def test_threads_may_use_different_files(disk: SimulatedDisk) -> None:
    def work(name: str) -> None:
        with disk.create_file(f"/d/{name}") as file:
            for position in range(300):
                file.write_at(position, b"x")
                file.sync()

    threads = [threading.Thread(target=work, args=(str(number),)) for number in range(4)]
    recording = disk.record()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert disk.files() == {f"/d/{number}": b"x" * 300 for number in range(4)}
    assert len(recording.operations) == 4 * 601
