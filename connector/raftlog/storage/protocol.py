"""The small protocol through which every file is reached; its read half.

Rules of this file:

1. A storage never writes, creates or locks anything here: reading must not disturb a running node.
2. A file that was opened stays readable to its end after it was renamed or deleted, as on POSIX.
3. Errors are raftlog's own: ``LogNotFoundError`` (no such file or directory), ``LogAccessError``
   (the file system refuses, or fails), ``NotALogError`` (a directory where a file should be, or
   the reverse), ``SegmentVanishedError`` (the file system took an open file away).
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
