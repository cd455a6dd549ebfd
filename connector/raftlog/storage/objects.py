"""Protocol of object stores, a store that keeps objects as files of a storage, and read-ahead.

Invariants:

1. An object never changes: its name contains a unique id, and it is written once. Names are
   relative and use ``/``.
2. ``put`` is durable on return. After an error, or a crash before it returns, the object may be
   absent, complete or, if uploads have parts, truncated. The manifest decides what is stored, not
   the store.
3. When the last object of a storage's directory is deleted, the directory is deleted too if
   possible.
4. Errors are raftlog's own: ``RemoteObjectNotFoundError``, ``RemoteStorageError`` and, if objects
   are files, those of ``storage.protocol``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple, Protocol

from raftlog.errors import LogAccessError, LogError, LogNotFoundError

from .errors import RemoteObjectNotFoundError
from .protocol import Closeable, ReadableFile, WritableFile, WritableStorage

_TEMPORARY_SUFFIX: Final = ".tmp"
_ATTEMPTS_MAX: Final = 10


class StoredObject(NamedTuple):
    """Object in a listing: its name, and its size in bytes."""

    name: str
    byte_count: int


class ObjectStore(Protocol):
    """Objects below one location (Kafka: ``RemoteStorageManager``)."""

    @property
    def location(self) -> str:
        """Location for messages, without user info."""
        ...

    def put(self, name: str, chunks: Iterable[bytes]) -> None:
        """Write an object."""
        ...

    def open_object(self, name: str) -> ReadableFile:
        """Open an object for reading. Raises ``RemoteObjectNotFoundError``."""
        ...

    def delete(self, name: str) -> None:
        """Delete an object, durably on return. An object that does not exist counts as deleted."""
        ...

    def list_objects(self, directory: str) -> list[StoredObject]:
        """Return the objects whose names begin with ``directory/``, sorted; none if absent."""
        ...


class StorageObjects:
    """Objects as files below a directory of a storage."""

    def __init__(self, storage: WritableStorage, directory: str) -> None:
        self._storage = storage
        self._directory = directory

    @property
    def location(self) -> str:
        return self._directory

    def put(self, name: str, chunks: Iterable[bytes]) -> None:
        *names, file_name = name.split("/")
        directories = [self._directory]
        for part in names:
            directories.append(self._storage.join(directories[-1], part))
        path = self._storage.join(directories[-1], file_name)
        temporary = path + _TEMPORARY_SUFFIX
        self._unlink(temporary)  # left by a crash
        try:
            with self._created(temporary, directories) as file:
                position = 0
                for chunk in chunks:
                    file.write_at(position, chunk)
                    position += len(chunk)
                file.sync()
        except BaseException:
            # A retry uses another name, so on a full disk each attempt would leave another file.
            with contextlib.suppress(LogError):
                self._unlink(temporary)
            raise
        self._storage.rename(temporary, path)
        for directory in reversed(directories):
            self._storage.sync_directory(directory)
        # The directories cannot be removed any more. Another process may have created them and not
        # synced them yet.
        self._storage.sync_directory(self._storage.split(self._directory)[0])

    def open_object(self, name: str) -> ReadableFile:
        path = self._directory
        for part in name.split("/"):
            path = self._storage.join(path, part)
        try:
            return self._storage.open_file(path)
        except LogNotFoundError:
            raise RemoteObjectNotFoundError(location=self.location, name=name) from None

    def delete(self, name: str) -> None:
        path = self._directory
        for part in name.split("/"):
            path = self._storage.join(path, part)
        with contextlib.suppress(LogNotFoundError):
            self._unlink(path + _TEMPORARY_SUFFIX)  # left by a crash
            self._storage.unlink(path)
            self._storage.sync_directory(self._storage.split(path)[0])
        with contextlib.suppress(LogAccessError):  # a mount point, or its parent is not writable
            for _ in name.split("/")[1:]:
                path = self._storage.split(path)[0]
                if not self._storage.remove_directory(path):
                    break

    def list_objects(self, directory: str) -> list[StoredObject]:
        path = self._directory
        for part in directory.split("/"):
            path = self._storage.join(path, part)
        try:
            names = self._storage.list_names(path)
        except LogNotFoundError:
            return []
        return sorted(self._below(path, directory, names))

    def _below(self, path: str, name: str, entries: list[str]) -> Iterator[StoredObject]:
        for entry in entries:
            if entry.endswith(_TEMPORARY_SUFFIX):  # a writer may rename it meanwhile
                continue
            below, entry_name = self._storage.join(path, entry), f"{name}/{entry}"
            try:
                is_directory = self._storage.is_directory(below)
                names = self._storage.list_names(below) if is_directory else []
            except LogNotFoundError:  # it was deleted meanwhile
                continue
            if is_directory:
                yield from self._below(below, entry_name, names)
            else:
                with self._storage.open_file(below) as file:
                    yield StoredObject(entry_name, file.byte_count())

    def _unlink(self, path: str) -> None:
        with contextlib.suppress(LogNotFoundError):
            self._storage.unlink(path)

    def _created(self, path: str, directories: Sequence[str]) -> WritableFile:
        """Create a file and the directories above it. Another process may remove such a directory
        in between, if it is empty because the process has deleted the last object in it."""
        for _ in range(_ATTEMPTS_MAX):
            with contextlib.suppress(LogNotFoundError):
                for directory in directories:
                    self._storage.make_directory(directory)
                return self._storage.create_file(path)
        return self._storage.create_file(path)


class ReadAheadFile(Closeable):
    """Object that is read in few requests, each of which reads more bytes than requested.

    A request that continues in or after the last one reads at least ``sequential_bytes``, any other
    at least ``byte_count_min``. One request's bytes are kept in memory. Objects are written as a
    whole, so the size at the opening stays valid.
    """

    def __init__(self, file: ReadableFile, *, byte_count_min: int, sequential_bytes: int) -> None:
        self._file = file
        self._byte_count = file.byte_count()
        self._byte_count_min = byte_count_min
        self._sequential_bytes = sequential_bytes
        self._position = 0
        self._block = b""

    @property
    def path(self) -> str:
        return self._file.path

    def read_at(self, position: int, byte_count: int) -> bytes:
        end = min(position + byte_count, self._byte_count)
        if position >= end:
            return b""
        block_end = self._position + len(self._block)
        if not self._position <= position < end <= block_end:
            is_next = self._block and self._position <= position <= block_end
            wanted = max(
                end - position, self._sequential_bytes if is_next else self._byte_count_min
            )
            self._block = self._file.read_at(position, min(wanted, self._byte_count - position))
            self._position = position
        at = position - self._position
        return self._block[at : at + end - position]

    def byte_count(self) -> int:
        return self._byte_count

    def close(self) -> None:
        self._block = b""
        self._file.close()
