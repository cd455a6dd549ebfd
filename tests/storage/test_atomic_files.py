"""Small files are old or new, never between; damage differs from a concurrent change."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.simulated_disk.simulated_disk import SimulatedDisk, Survival
from tests.simulated_disk.simulated_machine import SimulatedFile

from raftlog.errors import CorruptFileError, DiskFailedError, DiskFullError
from raftlog.limits import SMALL_FILE_BYTES_MAX
from raftlog.log.format.directory import CHECKSUMS_NAME, encode_checksums, parse_checksums
from raftlog.log.writing.atomic_files import (
    back_up,
    read_checked,
    read_checksums,
    rebuild_checksums,
    replace_checked,
    replace_file,
)

EPOCHS = "leader-epoch-checkpoint"
POINT = "recovery-point-offset-checkpoint"


@pytest.fixture
def disk() -> SimulatedDisk:
    disk = SimulatedDisk()
    disk.make_directory("/d")
    disk.sync_directory("/")
    return disk


def read(disk: SimulatedDisk, name: str) -> bytes | None:
    return read_checked(disk, f"/d/{name}")


# --- one file -------------------------------------------------------------------------------------


def test_a_file_is_replaced_and_durable(disk: SimulatedDisk) -> None:
    for data in (b"first", b"second, longer", b""):
        replace_file(disk, "/d/a", data)
        assert disk.durable_files() == {"/d/a": data}


def test_the_temporary_file_of_a_dead_writer_is_ignored(disk: SimulatedDisk) -> None:
    disk.put("/d/a.tmp", b"much longer than what comes")
    replace_file(disk, "/d/a", b"x")
    assert disk.durable_files() == {"/d/a": b"x"}


def test_a_file_that_does_not_fit_leaves_nothing_on_the_disk(disk: SimulatedDisk) -> None:
    disk.put("/d/a", b"old")
    disk.leave_room(1)
    with pytest.raises(DiskFullError):
        replace_file(disk, "/d/a", b"too long")
    with pytest.raises(DiskFullError):
        back_up(disk, "/d/a", 1)
    assert disk.files() == {"/d/a": b"old"}


def test_a_crash_leaves_the_old_file_or_the_new_one(disk: SimulatedDisk) -> None:
    disk.put("/d/a", b"old")
    disk.put("/d/a.tmp", b"of a dead writer")
    recording = disk.record()
    replace_file(disk, "/d/a", b"new")
    seen = set()
    for state in recording.states(seeds=range(10)):
        after = SimulatedDisk.after(state)
        seen.add(after.files()["/d/a"])
        replace_file(after, "/d/a", b"newer")
        assert after.durable_files() == {"/d/a": b"newer"}
    assert seen == {b"old", b"new"}


def test_a_full_disk_leaves_the_old_file_and_uses_no_space(disk: SimulatedDisk) -> None:
    disk.put("/d/a", b"old")
    disk.full_at(5)
    with pytest.raises(DiskFullError):
        replace_file(disk, "/d/a", b"new")
    assert disk.files() == {"/d/a": b"old"}
    disk.full_at(None)
    replace_file(disk, "/d/a", b"new")
    assert disk.files() == {"/d/a": b"new"}


@pytest.mark.parametrize("pattern", ["/d/a.tmp", "/d"])
def test_a_failed_sync_is_reported_and_not_repeated(disk: SimulatedDisk, pattern: str) -> None:
    disk.put("/d/a", b"old")
    disk.fail_sync_once(pattern)
    with pytest.raises(DiskFailedError):
        replace_file(disk, "/d/a", b"new")
    disk.crash(Survival.EVERYTHING)
    assert disk.files()["/d/a"] == b"old"


# --- with checksums -------------------------------------------------------------------------------


def test_files_with_checksums_round_trip(disk: SimulatedDisk) -> None:
    replace_checked(disk, "/d", {EPOCHS: b"0\n0\n", POINT: b"0\n1\nt 0 5\n"})
    replace_checked(disk, "/d", {POINT: b"0\n1\nt 0 9\n"})
    assert read(disk, EPOCHS) == b"0\n0\n"
    assert read(disk, POINT) == b"0\n1\nt 0 9\n"
    assert read(disk, "quorum-state") is None
    assert disk.durable_files() == disk.files()
    assert sorted(disk.list_names("/d")) == sorted([CHECKSUMS_NAME, EPOCHS, POINT])


def test_a_directory_without_checksums_is_read_unchecked(disk: SimulatedDisk) -> None:
    disk.put(f"/d/{EPOCHS}", b"Kafka's")
    assert read(disk, EPOCHS) == b"Kafka's"
    assert read_checksums(disk, "/d") is None


def test_a_file_without_a_checksum_is_read_unchecked(disk: SimulatedDisk) -> None:
    replace_checked(disk, "/d", {EPOCHS: b"0\n0\n"})
    disk.put("/d/other", b"x")
    assert read(disk, "other") == b"x"


def test_every_flipped_bit_is_found(disk: SimulatedDisk) -> None:
    replace_checked(disk, "/d", {EPOCHS: b"0\n1\n1 0\n", POINT: b"0\n1\nt 0 5\n"})
    replace_checked(disk, "/d", {POINT: b"0\n1\nt 0 9\n"})  # the sidecar has two checksums
    for name in (EPOCHS, POINT, CHECKSUMS_NAME):
        path = f"/d/{name}"
        for bit in range(8 * len(disk.files()[path])):
            disk.flip_bit(path, bit)
            with pytest.raises(CorruptFileError) as caught:
                read(disk, POINT if name == CHECKSUMS_NAME else name)
            assert caught.value.path == path
            disk.flip_bit(path, bit)
        assert read(disk, POINT) == b"0\n1\nt 0 9\n"


@pytest.mark.parametrize("byte_count", range(0, 60, 7))
def test_a_shortened_sidecar_is_found(disk: SimulatedDisk, byte_count: int) -> None:
    replace_checked(disk, "/d", {EPOCHS: b"0\n0\n"})
    with disk.open_for_writing(f"/d/{CHECKSUMS_NAME}") as file:
        file.truncate(byte_count)
    with pytest.raises(CorruptFileError):
        read(disk, EPOCHS)


def test_an_oversized_file_is_damage(disk: SimulatedDisk) -> None:
    with disk.create_file(f"/d/{EPOCHS}") as file:
        file.truncate(SMALL_FILE_BYTES_MAX + 1)
    with pytest.raises(CorruptFileError, match="larger than"):
        read(disk, EPOCHS)


@pytest.mark.slow
def test_a_crash_between_files_and_checksums_does_not_read_as_damage(disk: SimulatedDisk) -> None:
    old = {EPOCHS: b"0\n0\n", POINT: b"0\n1\nt 0 5\n"}
    new = {EPOCHS: b"0\n1\n1 7\n", POINT: b"0\n1\nt 0 9\n"}
    replace_checked(disk, "/d", old)
    recording = disk.record()
    replace_checked(disk, "/d", new)
    seen = set()
    for state in recording.states(seeds=range(10)):
        after = SimulatedDisk.after(state)
        found = tuple(read(after, name) for name in (EPOCHS, POINT))
        seen.add(found)
        second = after.record()
        replace_checked(after, "/d", {POINT: b"0\n1\nt 0 11\n"})
        for again in second.states((Survival.NOTHING, Survival.MIXED), seeds=range(6)):
            later = SimulatedDisk.after(again)
            # After a kill without power loss, what was read may be in memory only.
            assert read(later, EPOCHS) in (found[0], None if state.survival else old[EPOCHS])
            assert read(later, POINT) in (found[1], old[POINT], b"0\n1\nt 0 11\n")
    assert seen == {(a, b) for a in (old[EPOCHS], new[EPOCHS]) for b in (old[POINT], new[POINT])}


def test_a_crash_during_the_first_write_does_not_read_as_damage(disk: SimulatedDisk) -> None:
    recording = disk.record()
    replace_checked(disk, "/d", {EPOCHS: b"0\n0\n"})
    found = {read(SimulatedDisk.after(state), EPOCHS) for state in recording.states()}
    assert found == {None, b"0\n0\n"}


def test_rewriting_the_same_content_leaves_the_sidecar_unchanged(disk: SimulatedDisk) -> None:
    replace_checked(disk, "/d", {EPOCHS: b"0\n0\n"})
    recording = disk.record()
    replace_checked(disk, "/d", {EPOCHS: b"0\n0\n"})
    assert not any(CHECKSUMS_NAME in operation.path for operation in recording.operations)


def test_a_damaged_file_is_not_accepted_while_it_is_replaced(disk: SimulatedDisk) -> None:
    replace_checked(disk, "/d", {EPOCHS: b"0\n0\n"})
    disk.flip_bit(f"/d/{EPOCHS}", 3)
    damaged = disk.files()[f"/d/{EPOCHS}"]
    recording = disk.record()
    replace_checked(disk, "/d", {EPOCHS: b"0\n1\n1 0\n"})
    for state in recording.states():
        after = SimulatedDisk.after(state)
        if after.files()[f"/d/{EPOCHS}"] == damaged:
            with pytest.raises(CorruptFileError):
                read(after, EPOCHS)
    assert read(disk, EPOCHS) == b"0\n1\n1 0\n"


def test_a_damaged_sidecar_is_rebuilt_from_files_known_to_be_valid(disk: SimulatedDisk) -> None:
    replace_checked(disk, "/d", {EPOCHS: b"0\n0\n", POINT: b"0\n1\nt 0 5\n"})
    disk.flip_bit(f"/d/{CHECKSUMS_NAME}", 200)
    with pytest.raises(CorruptFileError):
        read(disk, EPOCHS)
    rebuild_checksums(disk, "/d", [EPOCHS, POINT, "quorum-state"])
    assert read(disk, EPOCHS) == b"0\n0\n"
    assert set(read_checksums(disk, "/d") or ()) == {EPOCHS, POINT}
    disk.flip_bit(f"/d/{EPOCHS}", 3)
    with pytest.raises(CorruptFileError):
        read(disk, EPOCHS)


class ChangingDisk(SimulatedDisk):
    """Disk on which another process replaces a file whenever the sidecar is opened."""

    changes = 0
    changes_max = 0

    def open_file(self, path: str) -> SimulatedFile:
        if path.endswith(CHECKSUMS_NAME) and self.changes < self.changes_max:
            self.changes += 1
            limit, self.changes_max = self.changes_max, 0
            for number in range(3):  # so that the sidecar has not the checksum that the reader saw
                replace_checked(self, "/d", {POINT: f"{self.changes} {number}".encode()})
            self.changes_max = limit
        return super().open_file(path)


def test_a_concurrent_change_is_not_reported_as_damage() -> None:
    disk = ChangingDisk()
    disk.make_directory("/d")
    replace_checked(disk, "/d", {POINT: b"0 0"})
    disk.changes_max = 5
    assert read(disk, POINT) == b"5 2"


def test_the_sidecar_is_readable_text() -> None:
    text = encode_checksums({"b": (1, 0xFFFF_FFFF), "a": (0xE306_9283,)})
    first, a, b, last = text.decode().splitlines()
    assert first == "raftlog checksums 1"
    assert a == "a e3069283"
    assert b == "b 00000001 ffffffff"
    assert last.startswith("crc32c ")


@given(
    st.dictionaries(
        st.text("abc.-", min_size=1, max_size=9),
        st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=2).map(tuple),
        max_size=5,
    )
)
def test_a_sidecar_round_trips(checksums: dict[str, tuple[int, ...]]) -> None:
    assert parse_checksums(encode_checksums(checksums), "checksums") == checksums


@given(st.binary(max_size=80))
def test_other_contents_are_refused(data: bytes) -> None:
    with pytest.raises(CorruptFileError):
        parse_checksums(data, "checksums")
