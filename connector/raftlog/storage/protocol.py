"""Protocol of all file access: a read part, and a write part that extends it.

Invariants:

1. ``Storage`` never writes, creates or locks anything, so that reads do not affect a running node.
2. An open file stays readable to its end after it was renamed or deleted, as on POSIX.
3. Errors are raftlog's own: ``LogNotFoundError`` (no such file or directory), ``LogAccessError``
   (permission denied, or an I/O error), ``NotALogError`` (a directory instead of a file, or the
   reverse), ``SegmentDeletedError`` (an open file is no longer accessible: ESTALE). Writes also
   raise ``FileExistsLogError``, ``DiskFullError`` and ``DiskFailedError``.
4. After a power loss only two things are certain: the bytes and length of a file at its last
   ``sync``, and the names in a directory at its last ``sync_directory``. Later changes may be there
   completely, in part, as zeros or not at all, each operation independently and in any order.
   Syncing a file does not make its name durable, and syncing a name does not make the file's bytes
   durable.
5. After ``DiskFailedError`` all writes since the last successful sync are in doubt, even if they
   can be read back, and no later sync makes them durable. The caller closes the log.
"""

from __future__ import annotations

import abc
from types import TracebackType
from typing import Protocol, Self, runtime_checkable

from raftlog.errors import LogNotFoundError


class Closeable(Protocol):
    """Context manager that calls ``close`` on exit, such as a file, a snapshot or a log."""

    __slots__ = ()

    @abc.abstractmethod
    def close(self) -> None:
        """Release the resource. Idempotent."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


@runtime_checkable
class ReadableFile(Closeable, Protocol):
    """File open for reading. Not thread-safe."""

    @property
    def path(self) -> str:
        """Path with which it was opened. It may have been renamed since."""
        ...

    def read_at(self, position: int, byte_count: int) -> bytes:
        """Read up to ``byte_count`` bytes from ``position``; fewer only at the end of the file."""
        ...

    def byte_count(self) -> int:
        """Return the current size of the file, which grows while a node appends."""
        ...


@runtime_checkable
class Storage(Protocol):
    """Tree of files. Paths are in the storage's own form, and only its methods parse them."""

    def list_names(self, directory: str) -> list[str]:
        """Return the names of all files and directories in ``directory``, sorted."""
        ...

    def open_file(self, path: str) -> ReadableFile:
        """Open a file for reading."""
        ...

    def is_directory(self, path: str) -> bool:
        """Return whether ``path`` is a directory. Raises ``LogNotFoundError`` if it is absent."""
        ...

    def join(self, directory: str, name: str) -> str:
        """Return the path of ``name`` in ``directory``."""
        ...

    def split(self, path: str) -> tuple[str, str]:
        """Return the directory and the name of ``path`` in its absolute form."""
        ...

    def expand(self, pattern: str) -> list[str]:
        """Return the paths that match a shell pattern (``*``, ``?``, ``[...]``), sorted.

        Raises ``LogAccessError`` if there are none because a directory of the path cannot be
        listed.
        """
        ...


@runtime_checkable
class WritableFile(ReadableFile, Protocol):
    """File open for reading and writing. Not thread-safe."""

    def write_at(self, position: int, data: bytes | memoryview) -> None:
        """Write all of ``data``, not durably. A gap before it reads as zeros.

        Raises ``DiskFullError`` (a part may have been written) and ``DiskFailedError``.
        """
        ...

    def truncate(self, byte_count: int) -> None:
        """Set the size of the file, not durably. Added bytes are zeros."""
        ...

    def is_in_place(self) -> bool:
        """Return whether its path still leads to this file, not replaced, renamed or deleted."""
        ...

    def sync(self) -> None:
        """Make the file's bytes and length durable, but not its name.

        Raises ``DiskFailedError``, after which it must never be called again (invariant 5).
        """
        ...


@runtime_checkable
class FileLock(Closeable, Protocol):
    """Exclusive lock that is held until it is released or its process ends."""

    def release(self) -> None:
        """Release the lock, as ``close`` does. Idempotent."""
        ...


@runtime_checkable
class WritableStorage(Storage, Protocol):
    """Tree of files that may be changed. Changes of names are durable after ``sync_directory``."""

    def create_file(self, path: str) -> WritableFile:
        """Create an empty file. Raises ``FileExistsLogError`` if the name exists."""
        ...

    def open_for_writing(self, path: str) -> WritableFile:
        """Open an existing file for reading and writing, without truncation."""
        ...

    def make_directory(self, path: str) -> bool:
        """Create a directory in an existing one; return False if it exists."""
        ...

    def remove_directory(self, path: str) -> bool:
        """Delete an empty directory; return False if it has entries or does not exist."""
        ...

    def rename(self, path: str, new_path: str) -> None:
        """Rename a file or directory within its directory, atomically.

        A file with the new name is replaced. Open files stay valid.
        """
        ...

    def unlink(self, path: str) -> None:
        """Remove a file's name from its directory. Raises ``LogNotFoundError``."""
        ...

    def set_read_only(self, path: str, *, owner_only: bool = False) -> None:
        """Remove a file's write permissions, and with ``owner_only`` others' read permissions.

        The file may still be renamed or deleted, and written through existing openings.
        """
        ...

    def sync_directory(self, directory: str) -> None:
        """Make the names in ``directory`` durable, each with the file that it refers to.

        This includes neither the contents of the files nor the name of ``directory`` itself. Raises
        ``DiskFailedError``.
        """
        ...

    def try_lock(self, path: str) -> FileLock | None:
        """Lock a file that exists only for this purpose; None if the lock is held. Never waits.

        The file is created if absent, and stays. Two locks of one process exclude each other just
        as those of two processes do. The lock ends with its process.
        """
        ...

    def boot_id(self) -> str:
        """Return the id of this boot: the same in all processes, different after a reboot.

        Bytes written in this boot are visible to all of its processes, synced or not.
        """
        ...


def split_new(storage: Storage, path: str) -> tuple[str, str]:
    """Return the directory in which ``path`` will be created, and its name in it.

    Raises ``LogNotFoundError`` if it does not exist, ``NotALogError`` if it is a file.
    """
    parent, name = storage.split(path)
    try:
        storage.is_directory(parent)
    except LogNotFoundError:
        remedy = "create this directory first, or correct the path"
        raise LogNotFoundError(path=parent, remedy=remedy) from None
    return parent, name
