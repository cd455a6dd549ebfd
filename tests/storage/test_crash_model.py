"""Outcomes of a power loss, case by case: no outcome is missing, and none is impossible."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.simulated_disk.crash_model import PENDING_CHANGES_MAX, SECTOR_BYTES
from tests.simulated_disk.simulated_disk import SimulatedDisk, Survival

from raftlog.errors import DiskFailedError

Files = frozenset[tuple[str, bytes]]
SEEDS = range(60)


def durable_disk(**files: bytes) -> SimulatedDisk:
    """Return a disk with these files in ``/d``, all of them durable."""
    disk = SimulatedDisk()
    disk.make_directory("/d")
    disk.sync_directory("/")
    for name, data in files.items():
        disk.put(f"/d/{name}", data)
    return disk


def write(disk: SimulatedDisk, name: str, data: bytes, *, at: int = 0, sync: bool = False) -> None:
    path = f"/d/{name}"
    is_there = name in disk.list_names("/d")
    with disk.open_for_writing(path) if is_there else disk.create_file(path) as file:
        file.write_at(at, data)
        if sync:
            file.sync()


def survivors(disk: SimulatedDisk) -> set[Files]:
    """Return all observed states of ``/d`` after a power loss, as names and contents."""
    found = set()
    for survival in Survival:
        for seed in SEEDS:
            copy = disk.copy()
            copy.crash(survival, seed)
            found.add(frozenset((path.removeprefix("/d/"), d) for path, d in copy.files().items()))
    return found


def contents(disk: SimulatedDisk, name: str) -> set[bytes | None]:
    """Return the observed contents under one name after a power loss; None: no such name."""
    return {dict(files).get(name) for files in survivors(disk)}


def state(**files: bytes) -> Files:
    return frozenset(files.items())


# --- bytes ----------------------------------------------------------------------------------------


def test_synced_data_with_a_synced_name_survives_unchanged() -> None:
    assert survivors(durable_disk(a=b"abc")) == {state(a=b"abc")}


def test_an_unsynced_append_survives_complete_truncated_zeroed_or_not_at_all() -> None:
    disk = durable_disk(a=b"")
    write(disk, "a", b"abc")
    assert contents(disk, "a") == {b"", b"a", b"ab", b"abc", b"\0\0\0"}


def test_an_append_does_not_affect_earlier_synced_data() -> None:
    disk = durable_disk(a=b"x" * 700)
    write(disk, "a", b"y" * 700, at=700)
    found = contents(disk, "a")
    assert all(data is not None and data.startswith(b"x" * 700) for data in found)
    assert len(found) > 4


def test_bytes_overwritten_in_place_are_old_or_new_and_never_zero() -> None:
    disk = durable_disk(a=b"OLD")
    write(disk, "a", b"new")
    assert contents(disk, "a") == {b"OLD", b"nLD", b"neD", b"new"}


def test_each_sector_is_written_or_not() -> None:
    disk = durable_disk(a=b"")
    one, two = b"1" * SECTOR_BYTES, b"2" * SECTOR_BYTES
    write(disk, "a", one + two)
    found = contents(disk, "a")
    assert {b"", one, one + two, bytes(SECTOR_BYTES) + two, bytes(2 * SECTOR_BYTES)} <= found


def test_sectors_are_aligned_to_the_file_and_not_to_the_write() -> None:
    disk = durable_disk(a=b"x" * 500)
    write(disk, "a", b"y" * 24, at=500)
    torn = set()
    for seed in SEEDS:
        copy = disk.copy()
        copy.crash(Survival.TORN, seed)
        torn.add(copy.files()["/d/a"][500:])
    assert torn == {b"", b"y" * 12, b"y" * 24, bytes(12) + b"y" * 12}


def test_a_later_append_may_survive_an_earlier_one() -> None:
    disk = durable_disk(a=b"")
    write(disk, "a", b"first")
    write(disk, "a", b"second", at=5)
    assert {b"first", b"firstsecond", b"\0\0\0\0\0second"} <= contents(disk, "a")


def test_a_sync_covers_writes_through_another_open_file() -> None:
    disk = durable_disk(a=b"")
    write(disk, "a", b"first")
    write(disk, "a", b"second", at=5, sync=True)
    assert contents(disk, "a") == {b"firstsecond"}


def test_there_is_no_order_between_files() -> None:
    disk = durable_disk(a=b"", b=b"")
    write(disk, "a", b"1")
    write(disk, "b", b"2")
    assert {state(a=b"", b=b"2"), state(a=b"1", b=b"")} <= survivors(disk)


def test_a_truncated_tail_may_reappear_until_it_is_synced() -> None:
    disk = durable_disk(a=b"abcdef")
    with disk.open_for_writing("/d/a") as file:
        file.truncate(2)
        assert contents(disk, "a") == {b"abcdef", b"ab"}
        file.sync()
    assert contents(disk, "a") == {b"ab"}


def test_a_truncated_tail_may_reappear_after_bytes_written_after_the_truncation() -> None:
    disk = durable_disk(a=b"abcdef")
    with disk.open_for_writing("/d/a") as file:
        file.truncate(2)
        file.write_at(2, b"XY")
    assert {b"abXYef", b"abXY", b"ab", b"abcdef", b"abXdef"} <= contents(disk, "a")


def test_bytes_written_before_a_truncation_do_not_replace_later_ones() -> None:
    disk = durable_disk(a=b"")
    write(disk, "a", b"abcd")
    with disk.open_for_writing("/d/a") as file:
        file.truncate(0)
        file.write_at(0, b"XYZW")
        file.sync()
    assert contents(disk, "a") == {b"XYZW"}


# --- names ----------------------------------------------------------------------------------------


def test_a_synced_file_is_lost_if_its_directory_was_not_synced() -> None:
    disk = durable_disk()
    write(disk, "a", b"abc", sync=True)
    assert contents(disk, "a") == {None, b"abc"}


def test_a_synced_name_does_not_imply_synced_content() -> None:
    disk = durable_disk()
    write(disk, "a", b"abc")
    disk.sync_directory("/d")
    assert contents(disk, "a") == {b"", b"a", b"ab", b"abc", b"\0\0\0"}


def test_a_renamed_file_has_one_of_both_names() -> None:
    disk = durable_disk(old=b"abc")
    disk.rename("/d/old", "/d/new")
    assert survivors(disk) == {state(old=b"abc"), state(new=b"abc")}


def test_replacing_by_a_synced_file_leaves_the_old_or_the_new_one_complete() -> None:
    disk = durable_disk(a=b"old")
    write(disk, "a.tmp", b"new", sync=True)
    disk.rename("/d/a.tmp", "/d/a")
    assert contents(disk, "a") == {b"old", b"new"}
    assert state(a=b"old", **{"a.tmp": b"new"}) in survivors(disk)
    disk.sync_directory("/d")
    assert survivors(disk) == {state(a=b"new")}


def test_replacing_by_an_unsynced_file_may_leave_an_empty_one() -> None:
    disk = durable_disk(a=b"old")
    write(disk, "a.tmp", b"new")
    disk.rename("/d/a.tmp", "/d/a")
    disk.sync_directory("/d")
    assert contents(disk, "a") == {b"", b"n", b"ne", b"new", b"\0\0\0"}


def test_a_deleted_file_may_reappear_until_the_directory_is_synced() -> None:
    disk = durable_disk(a=b"abc")
    disk.unlink("/d/a")
    assert contents(disk, "a") == {None, b"abc"}
    disk.sync_directory("/d")
    assert contents(disk, "a") == {None}


def test_of_two_deleted_files_either_may_reappear() -> None:
    disk = durable_disk(a=b"1", b=b"2")
    disk.unlink("/d/a")
    disk.unlink("/d/b")
    assert survivors(disk) == {state(a=b"1", b=b"2"), state(a=b"1"), state(b=b"2"), state()}


def test_a_renamed_file_is_never_lost_by_a_later_file_under_its_old_name() -> None:
    disk = durable_disk(a=b"precious")
    disk.rename("/d/a", "/d/a.saved")
    write(disk, "a", b"new", sync=True)
    write(disk, "a.tmp", b"newer", sync=True)
    disk.rename("/d/a.tmp", "/d/a")
    found = survivors(disk)
    assert all(b"precious" in dict(files).values() for files in found)
    assert {state(a=b"precious"), state(a=b"newer", **{"a.saved": b"precious"})} <= found


def test_a_directory_not_synced_in_its_parent_is_lost_with_its_content() -> None:
    disk = SimulatedDisk()
    disk.make_directory("/d")
    write(disk, "a", b"abc", sync=True)
    disk.sync_directory("/d")
    assert survivors(disk) == {state(), state(a=b"abc")}


# --- process death, and faults worse than a power loss --------------------------------------------


def test_a_killed_process_loses_nothing() -> None:
    disk = durable_disk(a=b"old")
    write(disk, "a", b"new")
    write(disk, "b", b"x")
    disk.kill()
    assert disk.files() == {"/d/a": b"new", "/d/b": b"x"}
    assert {b"OLD".lower(), b"new"} <= contents(disk, "a")


def test_the_state_after_a_power_loss_is_durable() -> None:
    disk = durable_disk(a=b"")
    write(disk, "a", b"abc")
    disk.crash(Survival.EVERYTHING)
    assert survivors(disk) == {state(a=b"abc")}


def test_data_of_a_failed_sync_can_be_read_and_is_lost_in_a_power_loss() -> None:
    disk = durable_disk(a=b"")
    with disk.open_for_writing("/d/a") as file:
        file.write_at(0, b"abc")
        disk.fail_sync_once("/d/a")
        with pytest.raises(DiskFailedError) as caught:
            file.sync()
        assert caught.value.path == "/d/a"
        file.sync()  # succeeds, and proves nothing
        assert file.read_at(0, 9) == b"abc"
    assert contents(disk, "a") == {b""}


def test_data_written_after_a_failed_sync_is_durable_after_a_hole() -> None:
    disk = durable_disk(a=b"")
    with disk.open_for_writing("/d/a") as file:
        file.write_at(0, b"abc")
        disk.fail_sync_once()
        with pytest.raises(DiskFailedError):
            file.sync()
        file.write_at(3, b"def")
        file.sync()
    assert contents(disk, "a") == {b"\0\0\0def"}


def test_names_of_a_failed_directory_sync_are_lost_in_a_power_loss() -> None:
    disk = durable_disk(a=b"old")
    write(disk, "a.tmp", b"new", sync=True)
    disk.rename("/d/a.tmp", "/d/a")
    disk.fail_sync_once("/d")
    with pytest.raises(DiskFailedError):
        disk.sync_directory("/d")
    disk.sync_directory("/d")
    assert disk.files() == {"/d/a": b"new"}
    assert survivors(disk) == {state(a=b"old")}


@pytest.mark.parametrize("damage_first", [True, False])
def test_a_flipped_bit_is_permanent(damage_first: bool) -> None:
    disk = durable_disk(a=b"abc")
    steps: list[Callable[[], None]] = [
        lambda: disk.flip_bit("/d/a", 8),
        lambda: write(disk, "a", b"def", at=3),
    ]
    for step in steps if damage_first else reversed(steps):
        step()
    assert disk.files()["/d/a"] == b"accdef"
    assert all(data is not None and data[:3] == b"acc" for data in contents(disk, "a"))


def test_each_survival_keeps_what_its_name_says() -> None:
    disk = durable_disk(old=b"o")
    write(disk, "old", b"x", at=1)
    write(disk, "new", b"n")
    kept = {}
    for survival in (
        Survival.NOTHING,
        Survival.EVERYTHING,
        Survival.NAMES_ONLY,
        Survival.DATA_ONLY,
    ):
        copy = disk.copy()
        copy.crash(survival)
        kept[survival] = copy.files()
    assert kept[Survival.NOTHING] == {"/d/old": b"o"} == disk.durable_files()
    assert kept[Survival.EVERYTHING] == {"/d/old": b"ox", "/d/new": b"n"} == disk.files()
    assert kept[Survival.NAMES_ONLY] == {"/d/old": b"o", "/d/new": b""}
    assert kept[Survival.DATA_ONLY] == {"/d/old": b"ox"}


def test_of_very_many_changes_the_oldest_are_durable() -> None:
    disk = durable_disk(a=b"")
    with disk.open_for_writing("/d/a") as file:
        for position in range(3 * PENDING_CHANGES_MAX):
            file.write_at(position, b"x")
    left = disk.durable_files()["/d/a"]
    assert set(left) == {ord("x")}
    assert 2 * PENDING_CHANGES_MAX <= len(left) < 3 * PENDING_CHANGES_MAX
