"""The simulated disk behaves as this machine's file system, errors included."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.simulated_disk.simulated_disk import SimulatedDisk, Survival

from raftlog.errors import LogError
from raftlog.storage.local import WritableLocalStorage
from raftlog.storage.protocol import FileLock, WritableFile, WritableStorage

PATHS = st.sampled_from(["a", "b", "c", "d", "d/a", "d/b", "a/x", "e/x"])
SIZES = st.integers(0, 1300)
FILE_NUMBERS = st.integers(0, 3)
STEPS = st.one_of(
    st.tuples(st.just("create"), PATHS),
    st.tuples(st.just("open"), PATHS),
    st.tuples(st.just("write"), FILE_NUMBERS, SIZES, st.binary(max_size=40)),
    st.tuples(st.just("truncate"), FILE_NUMBERS, SIZES),
    st.tuples(st.just("sync"), FILE_NUMBERS),
    st.tuples(st.just("read"), FILE_NUMBERS, SIZES, SIZES),
    st.tuples(st.just("close"), FILE_NUMBERS),
    st.tuples(st.just("make_directory"), PATHS),
    st.tuples(st.just("rename"), PATHS, st.sampled_from("abcd")),
    st.tuples(st.just("unlink"), PATHS),
    st.tuples(st.just("sync_directory"), PATHS),
    st.tuples(st.just("list"), PATHS),
    st.tuples(st.just("kind"), PATHS),
    st.tuples(st.just("expand"), st.sampled_from(["*", "a*", "d/*", "*/a", "[ab]", "?"])),
    st.tuples(st.just("lock"), PATHS),
    st.tuples(st.just("unlock"), FILE_NUMBERS),
)


class Runner:
    """Runner of a script on one storage below one directory; results omit that directory."""

    def __init__(self, storage: WritableStorage, home: str) -> None:
        self.storage = storage
        self.home = home
        self.files: list[WritableFile] = []
        self.locks: list[FileLock] = []

    def run(self, step: tuple[object, ...]) -> object:
        kind, *arguments = step
        call: Callable[..., object] = getattr(self, str(kind))
        try:
            return call(*arguments)
        except LogError as error:
            path = getattr(error, "path", "")
            return type(error).__name__, path.removeprefix(self.home)

    def path(self, name: str) -> str:
        return f"{self.home}/{name}"

    def create(self, name: str) -> None:
        self.files.append(self.storage.create_file(self.path(name)))

    def open(self, name: str) -> None:
        self.files.append(self.storage.open_for_writing(self.path(name)))

    def file(self, number: int) -> WritableFile | None:
        return self.files[number % len(self.files)] if self.files else None

    def write(self, number: int, position: int, data: bytes) -> None:
        if file := self.file(number):
            file.write_at(position, data)

    def truncate(self, number: int, byte_count: int) -> None:
        if file := self.file(number):
            file.truncate(byte_count)

    def sync(self, number: int) -> None:
        if file := self.file(number):
            file.sync()

    def read(self, number: int, position: int, byte_count: int) -> object:
        file = self.file(number)
        return file and (file.read_at(position, byte_count), file.byte_count())

    def close(self, number: int) -> None:
        if file := self.file(number):
            self.files.remove(file)
            file.close()

    def make_directory(self, name: str) -> bool:
        return self.storage.make_directory(self.path(name))

    def remove_directory(self, name: str) -> bool:
        return self.storage.remove_directory(self.path(name))

    def rename(self, name: str, new_name: str) -> None:
        directory, _ = self.storage.split(self.path(name))
        self.storage.rename(self.path(name), self.storage.join(directory, new_name))

    def unlink(self, name: str) -> None:
        self.storage.unlink(self.path(name))

    def sync_directory(self, name: str) -> None:
        self.storage.sync_directory(self.path(name))

    def list(self, name: str) -> object:
        return self.storage.list_names(self.path(name))

    def kind(self, name: str) -> object:
        return self.storage.is_directory(self.path(name))

    def expand(self, pattern: str) -> object:
        return [path.removeprefix(self.home) for path in self.storage.expand(self.path(pattern))]

    def lock(self, name: str) -> object:
        lock = self.storage.try_lock(self.path(name))
        if lock is not None:
            self.locks.append(lock)
        return lock is not None

    def unlock(self, number: int) -> None:
        if self.locks:
            self.locks.pop(number % len(self.locks)).release()

    def end(self) -> None:
        for file in self.files:
            file.close()
        for lock in self.locks:
            lock.release()


def real_files(home: Path) -> dict[str, bytes]:
    return {
        f"/home/{path.relative_to(home)}": path.read_bytes()
        for path in home.rglob("*")
        if path.is_file()
    }


@settings(max_examples=80)
@given(st.lists(STEPS | st.tuples(st.just("remove_directory"), PATHS), min_size=5, max_size=60))
def test_a_script_has_the_same_results_on_both(script: list[tuple[object, ...]]) -> None:
    disk = SimulatedDisk()
    disk.make_directory("/home")
    with tempfile.TemporaryDirectory() as directory:
        real = Runner(WritableLocalStorage(), directory)
        simulated = Runner(disk, "/home")
        try:
            for step in script:
                # real syncs are slow, and have no visible effect
                if step[0] not in ("sync", "sync_directory"):
                    assert real.run(step) == simulated.run(step), step
            assert real_files(Path(directory)) == disk.files()
        finally:
            real.end()
        disk.kill()
        assert real_files(Path(directory)) == disk.files()


@pytest.mark.slow
@settings(max_examples=100)
@given(st.lists(STEPS, min_size=5, max_size=60), st.integers(0, 2**32))
def test_a_power_loss_keeps_durable_data_and_invents_nothing(
    script: list[tuple[object, ...]], seed: int
) -> None:
    """Data that every outcome keeps is in every state; data that was never written is in none."""
    disk = SimulatedDisk()
    disk.make_directory("/home")
    disk.sync_directory("/")
    runner, written = Runner(disk, "/home"), {0}
    for step in script:
        runner.run(step)
        written.update(*(part for part in step if isinstance(part, bytes)))
    now, durable = disk.files(), disk.durable_files()
    sure = {path: data for path, data in durable.items() if now.get(path) == data}
    settled = disk.copy()
    for path in now:
        with settled.open_for_writing(path) as file:
            file.sync()
    for directory in ("/home", "/home/a", "/home/b", "/home/c", "/home/d"):
        if directory in settled.expand("/home") + settled.expand("/home/*") and (
            settled.is_directory(directory)
        ):
            settled.sync_directory(directory)
    assert settled.durable_files() == now
    for survival in Survival:
        copy = disk.copy()
        copy.crash(survival, seed)
        after = copy.files()
        assert copy.durable_files() == after
        assert all(set(data) <= written for data in after.values())
        if survival is Survival.EVERYTHING:
            assert after == now
        if survival is Survival.NOTHING:
            assert after == durable
    settled.crash(Survival.MIXED, seed)
    assert settled.files() == now
    assert sure.items() <= now.items()
