"""Logs with remote segments, on simulated disks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from tests.log.remote.stored_backups import surroundings
from tests.simulated_disk.simulated_disk import SimulatedDisk
from tests.support.appending import DIRECTORY, SMALL, TOPIC_ID, created_log, disk_with_parent, fill

from raftlog.log.reading.directory_log import DirectoryLog
from raftlog.log.reading.opening import open_log
from raftlog.log.remote.manifest import RemoteLogManifest
from raftlog.log.remote.tiering import RemoteCounts
from raftlog.log.writing.properties import LogConfig
from raftlog.log.writing.replicated_log import ReplicatedLog
from raftlog.log.writing.single_voter_log import SingleVoterLog
from raftlog.storage.errors import RemoteStorageError
from raftlog.storage.objects import ObjectStore, StorageObjects, StoredObject
from raftlog.storage.protocol import ReadableFile

REMOTE = "/remote"
OBJECTS = f"orders-0-{TOPIC_ID}/"
TIERED = replace(
    SMALL, remote_storage_enable=True, remote_storage_uri=REMOTE, local_retention_bytes=2_500
)


def tiered_log(
    batches: int = 60, config: LogConfig = TIERED
) -> tuple[SimulatedDisk, SingleVoterLog]:
    disk = disk_with_parent()
    log = created_log(disk, config=config)
    fill(log, batches)
    return disk, log


def store_on(disk: SimulatedDisk) -> StorageObjects:
    return StorageObjects(disk, REMOTE)


def remote_run(
    log: ReplicatedLog, store: ObjectStore, seed: int, *, is_leader: bool = True
) -> RemoteCounts:
    """Copy and delete, and complete the run."""
    run = log.begin_remote_run(lambda _: store, surroundings(seed), cache={}, is_leader=is_leader)
    assert run is not None
    with run:
        run.run()
        log.complete_remote_run(run)
    return run.counts


def cleaned(log: ReplicatedLog, store: ObjectStore, seed: int) -> RemoteCounts:
    """Run the remote storage, then retention, as a handle does."""
    counts = remote_run(log, store, seed)
    log.clean(now_ms=1_000_000 + seed)
    return counts


def reader(disk: SimulatedDisk, store: ObjectStore) -> DirectoryLog:
    return open_log(disk, DIRECTORY, open_store=lambda _: store)


def offsets(log: DirectoryLog) -> list[int]:
    """Return the offset of each record of a log, in the order of a read from its start."""
    start, end = log.log_start_offset, log.log_end_offset
    found: list[int] = []
    for batch in log.batches(start, end):
        found += [record.offset for record in batch.records() if record.offset >= start]
    return found


def objects(disk: SimulatedDisk) -> set[str]:
    """Return the names of the objects of segments."""
    prefix = f"{REMOTE}/{OBJECTS}"
    return {path.removeprefix(prefix) for path in disk.files() if path.startswith(prefix)}


def segments_of(disk: SimulatedDisk) -> list[int]:
    """Return the base offsets of the local segments."""
    names = disk.list_names(DIRECTORY)
    return sorted(int(name[:20]) for name in names if name.endswith(".log"))


def manifest(disk: SimulatedDisk) -> RemoteLogManifest:
    return RemoteLogManifest(store_on(disk))


class InterruptedWrites:
    """Store that calls a function before each write of an object whose name has this end."""

    def __init__(
        self, objects: ObjectStore, action: Callable[[str], object], *, at_name: str
    ) -> None:
        self._objects = objects
        self._action = action
        self._at_name = at_name
        self.location = objects.location

    def put(self, name: str, chunks: Iterable[bytes]) -> None:
        if name.endswith(self._at_name):
            self._action(name)
        self._objects.put(name, chunks)

    def open_object(self, name: str) -> ReadableFile:
        return self._objects.open_object(name)

    def delete(self, name: str) -> None:
        self._objects.delete(name)

    def list_objects(self, directory: str) -> list[StoredObject]:
        return self._objects.list_objects(directory)


class Unreachable(InterruptedWrites):
    """Store that does not answer reads."""

    def __init__(self, objects: ObjectStore) -> None:
        super().__init__(objects, lambda _: None, at_name="")

    def open_object(self, name: str) -> ReadableFile:
        raise RemoteStorageError(location=self.location, name=name, reason="timeout")


class CountedReads(StorageObjects):
    """Store that notes the first offsets of the segments whose records are read."""

    def __init__(self, disk: SimulatedDisk, directory: str) -> None:
        super().__init__(disk, directory)
        self.bases: set[int] = set()

    def open_object(self, name: str) -> ReadableFile:
        if name.endswith(".log"):
            self.bases.add(int(name.rpartition("/")[2][:20]))
        return super().open_object(name)


def segment_names(disk: SimulatedDisk, remote: str) -> set[str]:
    """Return the names of the segments' objects, without their directory."""
    paths = (path for path in disk.files() if path.startswith(remote) and path.endswith(".log"))
    return {path.rpartition("/")[2] for path in paths if "/manifest/" not in path}
