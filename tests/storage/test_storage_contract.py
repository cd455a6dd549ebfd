"""Contract of a writable storage: real files and the simulated disk pass the same tests."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

import pytest
from tests.simulated_disk.simulated_disk import SimulatedDisk

from raftlog.errors import (
    DiskFullError,
    FileExistsLogError,
    LogAccessError,
    LogError,
    LogNotFoundError,
    NotALogError,
)
from raftlog.storage.local import (
    PrivateLocalStorage,
    WritableLocalFile,
    WritableLocalStorage,
)
from raftlog.storage.protocol import FileLock, WritableFile, WritableStorage

_ANOTHER_USER: Final = 65_534


class Place(NamedTuple):
    """Storage, and an empty directory in it."""

    storage: WritableStorage
    home: str

    def path(self, name: str) -> str:
        return self.storage.join(self.home, name)

    def write(self, name: str, data: bytes) -> None:
        with self.storage.create_file(self.path(name)) as file:
            file.write_at(0, data)

    def read(self, name: str) -> bytes:
        with self.storage.open_file(self.path(name)) as file:
            return file.read_at(0, 1 << 20)

    def names(self) -> list[str]:
        return self.storage.list_names(self.home)


def local(tmp_path: Path) -> Place:
    return Place(WritableLocalStorage(), str(tmp_path))


def simulated(tmp_path: Path) -> Place:
    disk = SimulatedDisk()
    disk.make_directory("/home")
    return Place(disk, "/home")


@pytest.fixture(params=[local, simulated], ids=["local", "simulated"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    make: Callable[[Path], Place] = request.param
    return make(tmp_path)


class TestFiles:
    """Bytes of one file."""

    def test_it_implements_the_protocol(self, place: Place) -> None:
        assert isinstance(place.storage, WritableStorage)
        with place.storage.create_file(place.path("a")) as file:
            assert isinstance(file, WritableFile)
            assert file.path == place.path("a")

    def test_written_bytes_are_visible_immediately_to_all(self, place: Place) -> None:
        with (
            place.storage.create_file(place.path("a")) as file,
            place.storage.open_file(place.path("a")) as reader,
        ):
            assert file.byte_count() == 0
            file.write_at(0, b"0123456789")
            file.write_at(8, memoryview(b"abcd"))
            assert file.read_at(0, 99) == reader.read_at(0, 99) == b"01234567abcd"
            assert reader.byte_count() == 12

    def test_writing_no_bytes_changes_nothing(self, place: Place) -> None:
        with place.storage.create_file(place.path("a")) as file:
            file.write_at(7, b"")
            assert file.byte_count() == 0

    def test_a_view_of_wider_items_is_written_as_bytes(self, place: Place) -> None:
        with place.storage.create_file(place.path("a")) as file:
            file.write_at(0, memoryview(b"\1\0\0\0\2\0\0\0").cast("I"))
            assert file.read_at(0, 9) == b"\1\0\0\0\2\0\0\0"

    def test_a_hole_reads_as_zeros(self, place: Place) -> None:
        with place.storage.create_file(place.path("a")) as file:
            file.write_at(3, b"x")
            assert file.read_at(0, 9) == b"\0\0\0x"

    def test_a_file_is_truncated_and_extended(self, place: Place) -> None:
        with place.storage.create_file(place.path("a")) as file:
            file.write_at(0, b"012345")
            file.truncate(2)
            assert file.read_at(0, 9) == b"01"
            file.truncate(4)
            assert file.read_at(0, 9) == b"01\0\0"
            file.sync()
            assert file.byte_count() == 4

    def test_opening_for_writing_keeps_the_content(self, place: Place) -> None:
        place.write("a", b"0123")
        with place.storage.open_for_writing(place.path("a")) as file:
            assert file.read_at(1, 2) == b"12"
            file.write_at(4, b"4")
        assert place.read("a") == b"01234"

    def test_an_unlinked_file_can_still_be_written(self, place: Place) -> None:
        with place.storage.create_file(place.path("a")) as file:
            place.storage.unlink(place.path("a"))
            file.write_at(0, b"x")
            file.sync()
            assert file.read_at(0, 9) == b"x"
        assert place.names() == []

    def test_a_renamed_file_is_written_under_its_new_name(self, place: Place) -> None:
        with place.storage.create_file(place.path("a")) as file:
            place.storage.rename(place.path("a"), place.path("b"))
            file.write_at(0, b"x")
        assert place.read("b") == b"x"


class TestNames:
    """Names in a directory."""

    def test_a_file_is_created_once(self, place: Place) -> None:
        place.write("a", b"x")
        place.storage.make_directory(place.path("d"))
        for name in ("a", "d"):
            with pytest.raises(FileExistsLogError) as caught:
                place.storage.create_file(place.path(name))
            assert caught.value.path == place.path(name)
        assert place.read("a") == b"x"

    def test_opening_a_missing_file_does_not_create_it(self, place: Place) -> None:
        for call in (
            place.storage.open_for_writing,
            place.storage.unlink,
            place.storage.set_read_only,
            place.storage.sync_directory,
        ):
            with pytest.raises(LogNotFoundError) as caught:
                call(place.path("a"))
            assert caught.value.path == place.path("a")
        with pytest.raises(LogNotFoundError):
            place.storage.rename(place.path("a"), place.path("b"))
        assert place.names() == []

    def test_nothing_is_created_in_a_missing_directory(self, place: Place) -> None:
        for call in (
            place.storage.create_file,
            place.storage.make_directory,
            place.storage.try_lock,
        ):
            with pytest.raises(LogNotFoundError):
                call(place.path("missing/a"))

    def test_a_file_is_not_opened_as_a_directory(self, place: Place) -> None:
        place.write("a", b"x")
        for call in (
            place.storage.create_file,
            place.storage.make_directory,
            place.storage.open_for_writing,
            place.storage.unlink,
        ):
            with pytest.raises(NotALogError):
                call(place.path("a/b"))
        for refuse in (place.storage.make_directory, place.storage.sync_directory):
            with pytest.raises(NotALogError):
                refuse(place.path("a"))

    def test_a_directory_is_not_opened_as_a_file(self, place: Place) -> None:
        place.storage.make_directory(place.path("d"))
        for call in (place.storage.open_for_writing, place.storage.unlink):
            with pytest.raises(NotALogError):
                call(place.path("d"))
        place.write("a", b"x")
        with pytest.raises(NotALogError):
            place.storage.rename(place.path("a"), place.path("d"))
        with pytest.raises(NotALogError):
            place.storage.rename(place.path("d"), place.path("a"))
        assert place.names() == ["a", "d"]

    def test_a_directory_is_created_once(self, place: Place) -> None:
        assert place.storage.make_directory(place.path("d"))
        assert not place.storage.make_directory(place.path("d"))
        assert place.storage.is_directory(place.path("d"))
        assert place.storage.list_names(place.path("d")) == []
        place.write("d/a", b"x")
        assert place.names() == ["d"]
        assert place.read("d/a") == b"x"

    def test_renaming_replaces_atomically(self, place: Place) -> None:
        place.write("old", b"old")
        place.write("new", b"new")
        with place.storage.open_file(place.path("old")) as reader:
            place.storage.rename(place.path("new"), place.path("old"))
            assert reader.read_at(0, 9) == b"old"
        assert place.read("old") == b"new"
        assert place.names() == ["old"]

    def test_renaming_to_itself_changes_nothing(self, place: Place) -> None:
        place.write("a", b"x")
        place.storage.rename(place.path("a"), place.path("a"))
        assert place.read("a") == b"x"

    def test_a_directory_is_renamed_with_its_content(self, place: Place) -> None:
        place.storage.make_directory(place.path("d"))
        place.write("d/a", b"x")
        place.storage.rename(place.path("d"), place.path("e"))
        assert place.read("e/a") == b"x"

    def test_a_name_may_be_reused(self, place: Place) -> None:
        place.write("a", b"first")
        place.storage.unlink(place.path("a"))
        place.write("a", b"second")
        assert place.read("a") == b"second"

    def test_a_read_only_file_is_read_renamed_and_deleted(self, place: Place) -> None:
        place.write("a", b"x")
        place.storage.set_read_only(place.path("a"))
        place.storage.rename(place.path("a"), place.path("b"))
        assert place.read("b") == b"x"
        place.storage.unlink(place.path("b"))
        assert place.names() == []

    @pytest.mark.parametrize("name", ["a\0b", "a" * 300])
    def test_an_impossible_name_is_a_typed_error(self, tmp_path: Path, name: str) -> None:
        storage = WritableLocalStorage()
        for call in (
            storage.create_file,
            storage.open_for_writing,
            storage.make_directory,
            storage.unlink,
            storage.set_read_only,
            storage.sync_directory,
            storage.try_lock,
            lambda path: storage.rename(path, path + "2"),
        ):
            with pytest.raises(LogError):
                call(str(tmp_path / name))


class TestSyncing:
    """Syncs are possible; the tests of the crash model define their effect."""

    def test_files_and_directories_are_synced(self, place: Place) -> None:
        place.storage.make_directory(place.path("d"))
        with place.storage.create_file(place.path("d/a")) as file:
            file.write_at(0, b"x")
            file.sync()
            file.sync()
        place.storage.sync_directory(place.path("d"))
        place.storage.sync_directory(place.home)
        assert place.read("d/a") == b"x"


class TestLocks:
    """Locks inside one process; the tests of real locks have several."""

    def test_a_lock_excludes_until_it_is_released(self, place: Place) -> None:
        lock = place.storage.try_lock(place.path(".lock"))
        assert isinstance(lock, FileLock)
        assert place.names() == [".lock"]
        assert place.storage.try_lock(place.path(".lock")) is None
        lock.release()
        lock.release()
        with place.storage.try_lock(place.path(".lock")) or pytest.fail("it was released"):
            assert place.storage.try_lock(place.path(".lock")) is None
        assert place.storage.try_lock(place.path(".lock")) is not None

    def test_a_late_release_does_not_release_the_lock_of_another(self, place: Place) -> None:
        first = place.storage.try_lock(place.path(".lock"))
        assert first is not None
        first.release()
        second = place.storage.try_lock(place.path(".lock"))
        assert second is not None
        first.release()
        assert place.storage.try_lock(place.path(".lock")) is None

    def test_locks_of_two_files_are_independent(self, place: Place) -> None:
        first = place.storage.try_lock(place.path("a"))
        second = place.storage.try_lock(place.path("b"))
        assert first is not None
        assert second is not None

    def test_closing_another_open_file_keeps_the_lock(self, place: Place) -> None:
        lock = place.storage.try_lock(place.path("a"))
        assert lock is not None
        place.storage.open_for_writing(place.path("a")).close()
        place.storage.open_file(place.path("a")).close()
        assert place.storage.try_lock(place.path("a")) is None

    def test_a_directory_cannot_be_locked(self, place: Place) -> None:
        with pytest.raises((NotALogError, LogAccessError)):
            place.storage.try_lock(place.home)


class TestBoot:
    def test_all_processes_have_the_same_boot_id(self, place: Place) -> None:
        other = type(place.storage)() if isinstance(place.storage, WritableLocalStorage) else None
        assert place.storage.boot_id() == (other or place.storage).boot_id()
        assert len(place.storage.boot_id()) == 36


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everything")
def test_missing_permission_is_distinguished_from_a_missing_file(tmp_path: Path) -> None:
    file = tmp_path / "a.log"
    file.write_bytes(b"x")
    WritableLocalStorage().set_read_only(str(file))
    with pytest.raises(LogAccessError) as caught:
        WritableLocalStorage().open_for_writing(str(file))
    assert "cannot be written: permission denied" in str(caught.value)


@pytest.fixture
def shared_volume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Empty directory owned by root, in the current directory, that the user may write to."""
    tmp_path.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    volume = Path("volume")
    volume.mkdir()
    volume.chmod(0o777)
    os.seteuid(_ANOTHER_USER)
    yield volume
    os.seteuid(0)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_node_has_its_files_in_a_directory_of_another_user(shared_volume: Path) -> None:
    """As in a mounted volume: its root directory is owned by root, and a group may write to it."""
    storage = PrivateLocalStorage()
    assert not storage.make_directory(str(shared_volume))
    storage.create_file(str(shared_volume / "a.log")).close()
    assert (shared_volume / "a.log").stat().st_mode & 0o777 == 0o600
    assert shared_volume.stat().st_mode & 0o777 == 0o777


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_directory_with_accessible_files_needs_its_mode(shared_volume: Path) -> None:
    with pytest.raises(LogAccessError):
        WritableLocalStorage(directory_mode=0o700).make_directory(str(shared_volume))
    assert not WritableLocalStorage(directory_mode=0o777).make_directory(str(shared_volume))


def test_a_frozen_file_has_no_write_permission(tmp_path: Path) -> None:
    file = tmp_path / "a.checkpoint"
    file.write_bytes(b"x")
    file.chmod(0o664)
    WritableLocalStorage().set_read_only(str(file))
    assert file.stat().st_mode & 0o777 == 0o444
    WritableLocalStorage().set_read_only(str(file), owner_only=True)
    assert file.stat().st_mode & 0o777 == 0o400


def test_a_full_disk_is_distinguished_from_a_failed_one() -> None:
    if not os.path.exists("/dev/full"):
        pytest.skip("this system has no /dev/full")
    with (
        WritableLocalFile("/dev/full", os.open("/dev/full", os.O_RDWR)) as file,
        pytest.raises(DiskFullError) as caught,
    ):
        file.write_at(0, b"x")
    assert "no space left" in str(caught.value)


# --- replaced files -------------------------------------------------------------------------------


def test_a_file_is_in_place_until_its_path_refers_to_another(place: Place) -> None:
    place.write("log", b"one")
    with place.storage.open_for_writing(place.path("log")) as file:
        assert file.is_in_place()
        file.truncate(0)
        assert file.is_in_place()
        place.storage.rename(place.path("log"), place.path("aside"))
        assert not file.is_in_place()
        place.write("log", b"another")
        assert not file.is_in_place()
        place.storage.rename(place.path("aside"), place.path("log"))
        assert file.is_in_place()
        place.storage.unlink(place.path("log"))
        assert not file.is_in_place()
