"""Contract of every storage, checked for real files and for the storages of tests."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.simulated_disk.simulated_disk import SimulatedDisk
from tests.support.memory_storage import MemoryStorage

from raftlog.errors import LogAccessError, LogNotFoundError, NotALogError
from raftlog.storage.local import LocalStorage
from raftlog.storage.protocol import ReadableFile, Storage


class Node:
    """Writing side of a storage: changes of files as a node makes them."""

    def __init__(self, storage: Storage, home: str) -> None:
        self.storage = storage
        self.home = home

    def path(self, name: str) -> str:
        return f"{self.home}/{name}"

    def append(self, name: str, data: bytes) -> None:
        if isinstance(self.storage, MemoryStorage):
            self.storage.append(self.path(name), data)
            return
        if isinstance(self.storage, SimulatedDisk):
            if self.path(name) not in self.storage.files():
                self.storage.put(self.path(name), b"")
            with self.storage.open_for_writing(self.path(name)) as simulated_file:
                simulated_file.write_at(simulated_file.byte_count(), data)
            return
        Path(self.path(name)).parent.mkdir(parents=True, exist_ok=True)
        with open(self.path(name), "ab") as file:
            file.write(data)

    def rename(self, name: str, new_name: str) -> None:
        if isinstance(self.storage, MemoryStorage | SimulatedDisk):
            self.storage.rename(self.path(name), self.path(new_name))
        else:
            os.rename(self.path(name), self.path(new_name))

    def delete(self, name: str) -> None:
        if isinstance(self.storage, MemoryStorage):
            self.storage.delete(self.path(name))
        elif isinstance(self.storage, SimulatedDisk):
            self.storage.unlink(self.path(name))
        else:
            os.unlink(self.path(name))


def local(tmp_path: Path) -> Node:
    return Node(LocalStorage(), str(tmp_path))


def memory(tmp_path: Path) -> Node:
    return Node(MemoryStorage(), "/logs")


def simulated(tmp_path: Path) -> Node:
    return Node(SimulatedDisk(), "/logs")


@pytest.fixture(params=[local, memory, simulated], ids=["local", "memory", "simulated"])
def node(request: pytest.FixtureRequest, tmp_path: Path) -> Node:
    make: Callable[[Path], Node] = request.param
    return make(tmp_path)


def test_it_implements_the_storage_protocol(node: Node) -> None:
    node.append("a.log", b"x")
    assert isinstance(node.storage, Storage)
    with node.storage.open_file(node.path("a.log")) as file:
        assert isinstance(file, ReadableFile)


def test_names_are_sorted(node: Node) -> None:
    for name in ("b.log", "a.log", "c/d.log"):
        node.append(name, b"x")
    assert node.storage.list_names(node.home) == ["a.log", "b.log", "c"]
    assert node.storage.list_names(node.path("c")) == ["d.log"]


def test_a_read_is_short_only_at_the_end_of_the_file(node: Node) -> None:
    node.append("a.log", b"0123456789")
    with node.storage.open_file(node.path("a.log")) as file:
        assert file.read_at(2, 3) == b"234"
        assert file.read_at(8, 100) == b"89"
        assert file.read_at(10, 1) == b""
        assert file.read_at(99, 1) == b""
        assert file.read_at(0, 0) == b""


def test_an_open_file_grows(node: Node) -> None:
    node.append("a.log", b"01")
    with node.storage.open_file(node.path("a.log")) as file:
        assert file.byte_count() == 2
        node.append("a.log", b"23")
        assert file.byte_count() == 4
        assert file.read_at(0, 9) == b"0123"


@pytest.mark.parametrize("leave", ["delete", "rename"])
def test_an_open_file_stays_readable_after_it_is_unlinked(node: Node, leave: str) -> None:
    node.append("a.log", b"01")
    with node.storage.open_file(node.path("a.log")) as file:
        if leave == "delete":
            node.append("other", b"")
            node.delete("a.log")
        else:
            node.rename("a.log", "a.log.deleted")
        assert file.read_at(0, 9) == b"01"
        assert "a.log" not in node.storage.list_names(node.home)
        with pytest.raises(LogNotFoundError):
            node.storage.open_file(node.path("a.log"))


def test_missing_paths_are_reported(node: Node) -> None:
    node.append("a.log", b"01")
    missing = node.path("missing")
    for call in (node.storage.list_names, node.storage.open_file, node.storage.is_directory):
        with pytest.raises(LogNotFoundError) as caught:
            call(missing)
        assert caught.value.path == missing


def test_directories_and_files_are_distinguished(node: Node) -> None:
    node.append("c/d.log", b"x")
    assert node.storage.is_directory(node.path("c"))
    assert not node.storage.is_directory(node.path("c/d.log"))
    with pytest.raises(NotALogError):
        node.storage.open_file(node.path("c"))
    with pytest.raises(NotALogError):
        node.storage.list_names(node.path("c/d.log"))


def test_paths_are_joined_and_split(node: Node) -> None:
    path = node.storage.join(node.home, "a.log")
    assert path == node.path("a.log")
    assert node.storage.split(path) == (node.home, "a.log")
    assert node.storage.split(node.home + "/")[1] == node.home.rsplit("/", 1)[1]


def test_a_pattern_matches_files_and_directories(node: Node) -> None:
    for name in ("n1/a.log", "n2/a.log", "m/a.log"):
        node.append(name, b"x")
    assert node.storage.expand(node.path("n*")) == [node.path("n1"), node.path("n2")]
    assert node.storage.expand(node.path("*/a.log"))[0] == node.path("m/a.log")
    assert node.storage.expand(node.path("x*")) == []


def test_closing_twice_is_allowed(node: Node) -> None:
    node.append("a.log", b"x")
    file = node.storage.open_file(node.path("a.log"))
    file.close()
    file.close()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_missing_permission_is_distinguished_from_a_missing_file(tmp_path: Path) -> None:
    file = tmp_path / "a.log"
    file.write_bytes(b"x")
    file.chmod(0)
    with pytest.raises(LogAccessError) as caught:
        LocalStorage().open_file(str(file))
    assert "permission denied" in str(caught.value)


def test_opening_a_pipe_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.log")
    with pytest.raises(NotALogError):
        LocalStorage().open_file(str(tmp_path / "a.log"))


def test_a_path_with_a_nul_byte_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LogNotFoundError):
        LocalStorage().open_file("a\0b")
    with pytest.raises(LogNotFoundError):
        LocalStorage().is_directory("a\0b")
