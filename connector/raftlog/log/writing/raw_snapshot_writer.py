"""Write the bytes of one checkpoint, which gets its name when it is complete and synced.

    create   <end offset>-<epoch>-0.checkpoint.part     ignored by every reader
    write, sync, set read-only
    rename   <end offset>-<epoch>.checkpoint
    sync the directory                                  the snapshot is durable

A directory has at most one writer at a time, whether a state machine, retention or a fetch from the
leader writes the snapshot: the writer holds ``.snapshot.lock``. Only the holder of the lock deletes
``.part`` files, because then no live writer has them open.

Kafka: ``FileRawSnapshotWriter``, used by ``RecordsSnapshotWriter`` and by
``KafkaRaftClient.handleFetchSnapshotResponse``.
"""

from __future__ import annotations

import contextlib
from typing import Final

from raftlog.closeable import Closeable
from raftlog.errors import LogError, LogLockedError, LogNotFoundError
from raftlog.log.names import CHECKPOINT_SUFFIX, checkpoint_name
from raftlog.storage.protocol import WritableFile
from raftlog.types import SnapshotId

from .log_directory import LogDirectory

PART_SUFFIX: Final = CHECKPOINT_SUFFIX + ".part"
SNAPSHOT_LOCK_NAME: Final = ".snapshot.lock"


class RawSnapshotWriter(Closeable):
    """One checkpoint file that is being written. Not shared between threads.

    End it with ``freeze``, or with ``close``, which deletes it. Raises ``LogLockedError`` if
    another snapshot is being written in this directory.
    """

    def __init__(self, directory: LogDirectory, snapshot_id: SnapshotId) -> None:
        self.snapshot_id: Final = snapshot_id
        self.path: Final = directory.file(f"{snapshot_id}-0{PART_SUFFIX}")
        self.byte_count = 0
        self._directory = directory
        self._file: WritableFile | None = None
        lock = directory.storage.try_lock(directory.file(SNAPSHOT_LOCK_NAME))
        if lock is None:
            raise LogLockedError(path=directory.file(SNAPSHOT_LOCK_NAME), waited_ms=0)
        self._lock = lock
        try:
            directory.unlink(_part_names(directory))
            self._file = directory.storage.create_file(self.path)
        except LogError:
            lock.release()
            raise

    def append(self, data: bytes) -> None:
        """Append bytes. Raises ``DiskFullError`` and ``DiskFailedError``."""
        self._open_file().write_at(self.byte_count, data)
        self.byte_count += len(data)

    def freeze(self) -> None:
        """Sync the file, rename it to its final name, durably, and release the lock."""
        file = self._open_file()
        file.sync()
        file.close()
        self._file = None
        storage = self._directory.storage
        storage.set_read_only(self.path)
        storage.rename(self.path, self._directory.file(checkpoint_name(self.snapshot_id)))
        self._directory.sync()
        self._lock.release()

    def close(self) -> None:
        """Delete the file unless it is frozen, and release the lock. May be called twice."""
        try:
            if self._file is not None:
                self._file.close()
                self._file = None
                with contextlib.suppress(LogNotFoundError):
                    self._directory.storage.unlink(self.path)
        finally:
            self._lock.release()

    def abandon(self) -> None:
        """Close the file after a storage failure, without deleting it: the next writer does."""
        if self._file is not None:
            self._file.close()
            self._file = None
        self._lock.release()

    def _open_file(self) -> WritableFile:
        assert self._file is not None, "the writer is frozen or closed"
        return self._file


def delete_unfinished_snapshots(directory: LogDirectory) -> None:
    """Delete ``.part`` files of dead writers; none while a live writer holds the lock."""
    if not _part_names(directory):
        return
    lock = directory.storage.try_lock(directory.file(SNAPSHOT_LOCK_NAME))
    if lock is None:
        return
    with lock:
        directory.unlink(_part_names(directory))


def _part_names(directory: LogDirectory) -> list[str]:
    names = directory.storage.list_names(directory.path)
    return [name for name in names if name.endswith(PART_SUFFIX)]
