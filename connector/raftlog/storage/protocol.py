"""The small protocol through which every file is reached: a read half, and a write half on it.

Rules of this file:

1. ``Storage`` never writes, creates or locks anything: reading must not disturb a running node.
2. A file that was opened stays readable to its end after it was renamed or deleted, as on POSIX.
3. Errors are raftlog's own: ``LogNotFoundError`` (no such file or directory), ``LogAccessError``
   (the file system refuses, or fails), ``NotALogError`` (a directory where a file should be, or
   the reverse), ``SegmentDeletedError`` (the file system took an open file away). Writing adds
   ``FileExistsLogError``, ``DiskFullError`` and ``DiskFailedError``.
4. After a power loss only this is sure: the bytes and the length of a file as its last ``sync``
   found them, and the names of a directory as its last ``sync_directory`` found them. Whatever came
   later may be there whole, in parts, as zeros or not at all, each operation on its own and in no
   order. Syncing a file says nothing of its name, nor syncing a name of the bytes behind it.
5. After ``DiskFailedError`` nothing that was written since the last good sync may be believed, even
   if it can be read back, and no later sync proves it: whoever gets one closes the log.
"""

from __future__ import annotations

from types import TracebackType
from typing import Protocol, Self, runtime_checkable


@runtime_checkable
class ReadableFile(Protocol):
    """A file open for reading. Not shared between threads."""

    @property
    def path(self) -> str:
        """The path that it was opened by; it may have been renamed since."""
        ...

    def read_at(self, position: int, byte_count: int) -> bytes:
        """Read up to ``byte_count`` bytes from ``position``; fewer only at the end of the file."""
        ...

    def byte_count(self) -> int:
        """How long the file is at this moment; a node that appends makes it grow."""
        ...

    def close(self) -> None:
        """Give the file back. Closing twice is allowed."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...


@runtime_checkable
class Storage(Protocol):
    """A tree of files. Paths are text in the storage's own form; take them apart only here."""

    def list_names(self, directory: str) -> list[str]:
        """The names of all files and directories in ``directory``, sorted."""
        ...

    def open_file(self, path: str) -> ReadableFile:
        """Open a file for reading."""
        ...

    def is_directory(self, path: str) -> bool:
        """Whether ``path`` is a directory. Raises ``LogNotFoundError`` if nothing is there."""
        ...

    def join(self, directory: str, name: str) -> str:
        """The path of ``name`` in ``directory``."""
        ...

    def split(self, path: str) -> tuple[str, str]:
        """The directory that ``path`` lies in and its own name, made absolute first."""
        ...

    def expand(self, pattern: str) -> list[str]:
        """The paths that a shell pattern (``*``, ``?``, ``[...]``) matches, sorted."""
        ...


@runtime_checkable
class WritableFile(ReadableFile, Protocol):
    """A file open for reading and writing. Not shared between threads."""

    def write_at(self, position: int, data: bytes | memoryview) -> None:
        """Write all of ``data``; a hole before it reads as zeros. Nothing is durable yet.

        Raises ``DiskFullError`` (a first part may have been written) and ``DiskFailedError``.
        """
        ...

    def truncate(self, byte_count: int) -> None:
        """Make the file this long, cutting its end or adding zeros. Not durable yet."""
        ...

    def is_in_place(self) -> bool:
        """Whether its path still leads to this file: it was not replaced, renamed or deleted."""
        ...

    def sync(self) -> None:
        """Return when the bytes and the length of the file are durable; its name need not be.

        Raises ``DiskFailedError``: then never sync again, see rule 5.
        """
        ...


@runtime_checkable
class FileLock(Protocol):
    """An exclusive lock that is held until it is released or its process ends."""

    def release(self) -> None:
        """Let others have it. Releasing twice is allowed."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...


@runtime_checkable
class WritableStorage(Storage, Protocol):
    """A tree of files that may be changed. Every change of a name needs ``sync_directory``."""

    def create_file(self, path: str) -> WritableFile:
        """Make an empty file. Raises ``FileExistsLogError`` if anything has that name."""
        ...

    def open_for_writing(self, path: str) -> WritableFile:
        """Open a file that is there, for reading and writing. Nothing is created or cut."""
        ...

    def make_directory(self, path: str) -> bool:
        """Make a directory in one that is there; False if it was there already."""
        ...

    def rename(self, path: str, new_path: str) -> None:
        """Give a file or directory another name in the same directory, in one step.

        A file that had the new name is gone from the directory; who has it open keeps it.
        """
        ...

    def unlink(self, path: str) -> None:
        """Take a file out of its directory. Raises ``LogNotFoundError`` if it is not there."""
        ...

    def set_read_only(self, path: str, *, owner_only: bool = False) -> None:
        """Take away everybody's right to write to a file, with ``owner_only`` others' to read it.

        It may still be renamed or deleted, and written by who has it open.
        """
        ...

    def sync_directory(self, directory: str) -> None:
        """Return when the names in ``directory`` are durable, and what each of them means.

        Raises ``DiskFailedError``. The name of ``directory`` itself is its parent's matter.
        """
        ...

    def try_lock(self, path: str) -> FileLock | None:
        """Lock a file that is there for nothing else, or say None if somebody holds it.

        Never waits. The file is made if it is absent, and stays. Two locks of one process exclude
        each other as those of two processes do. The lock does not outlive its process.
        """
        ...

    def boot_id(self) -> str:
        """What this boot of the machine is called: the same in all processes, another after a boot.

        Bytes that were written in this boot are visible to all of its processes, synced or not.
        """
        ...
