"""Backups on simulated disks, and object stores that fail at any write."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Iterator
from random import Random

from tests.simulated_disk.simulated_disk import SimulatedDisk
from tests.support.written_logs import DIRECTORY

from raftlog.log.reading.opening import open_log
from raftlog.log.remote.backup import BackupReport, back_up_log
from raftlog.log.remote.manifest import Surroundings
from raftlog.log.remote.restore import RestoredLog, restore_log
from raftlog.storage.errors import RemoteStorageError
from raftlog.storage.objects import ObjectStore, StorageObjects, StoredObject
from raftlog.storage.protocol import ReadableFile, Storage

STORE = "/backups"
TARGET = "/restored/decisions-0"
PROCESS_FILES = (
    *(".append.lock", ".append.turn", ".snapshot.lock", ".cleaner.lock"),
    *(".kafka_cleanshutdown", "published", "checksums"),
)
"""Files that are valid for one process or one boot, and ``checksums``, which is written again."""


def surroundings(seed: int) -> Surroundings:
    chance = Random(seed)
    return Surroundings(
        now_ms=lambda: 1_000_000 + seed,
        new_id=lambda: base64.urlsafe_b64encode(chance.randbytes(16)).decode().rstrip("="),
        new_partition=lambda: chance.randrange(2**31),
    )


def store_disk() -> SimulatedDisk:
    """Return a disk with the durable directories above stores and restored logs."""
    disk = SimulatedDisk()
    disk.make_directory("/restored")
    disk.sync_directory("/")
    return disk


def backed_up(
    source: Storage, store: ObjectStore, seed: int, *, directory: str = DIRECTORY
) -> BackupReport:
    return back_up_log(open_log(source, directory), store, surroundings(seed))


def restored(
    store: ObjectStore, disk: SimulatedDisk, *, target: str = TARGET, to_offset: int | None = None
) -> RestoredLog:
    return restore_log(store, disk, target, to_offset=to_offset)


def files_of(disk: SimulatedDisk, directory: str) -> dict[str, bytes]:
    """Return the files of a log that are restored as they were, by name.

    The last entry of the active segment's time index is written when the segment is closed.
    """
    found = {
        path.removeprefix(directory + "/"): data
        for path, data in disk.files().items()
        if path.startswith(directory + "/")
    }
    last = max(name for name in found if name.endswith(".log")).removesuffix("log")
    return {
        name: data
        for name, data in found.items()
        if name not in PROCESS_FILES and name != f"{last}timeindex"
    }


class InterruptedObjects(StorageObjects):
    """Store that calls a function before write number ``at_write``."""

    def __init__(
        self, disk: SimulatedDisk, action: Callable[[], object], *, at_write: int = 0
    ) -> None:
        super().__init__(disk, STORE)
        self._action = action
        self._left = at_write

    def put(self, name: str, chunks: Iterable[bytes]) -> None:
        if self._left == 0:
            self._action()
        self._left -= 1
        super().put(name, chunks)


class FailingObjects:
    """Store whose write number ``fail_at`` fails, after ``byte_count`` bytes of the object.

    As of an upload in parts whose stream is closed early: what was written becomes visible.
    """

    def __init__(self, objects: StorageObjects, fail_at: int, byte_count: int | None) -> None:
        self._objects = objects
        self._left = fail_at
        self._byte_count = byte_count
        self.location = objects.location

    def put(self, name: str, chunks: Iterable[bytes]) -> None:
        self._left -= 1
        if self._left >= 0:
            self._objects.put(name, chunks)
            return
        data = b"".join(chunks)
        if self._byte_count is not None:
            self._objects.put(name, [data[: self._byte_count]])
        raise RemoteStorageError(location=self.location, name=name, reason="the test fails it")

    def delete(self, name: str) -> None:
        self._objects.delete(name)

    def open_object(self, name: str) -> ReadableFile:
        return self._objects.open_object(name)

    def list_objects(self, directory: str) -> list[StoredObject]:
        return self._objects.list_objects(directory)


def objects_of(disk: SimulatedDisk) -> Iterator[tuple[str, bytes]]:
    """Yield the names and contents of all objects of the store."""
    for path, data in sorted(disk.files().items()):
        if path.startswith(STORE + "/"):
            yield path.removeprefix(STORE + "/"), data
