"""Local files, read without effects on the node that writes them.

Files are opened ``O_RDONLY`` and read with ``pread``: no lock, no shared position, and nothing is
created. Every ``OSError`` is raised as an error of raftlog with the path.
"""

from __future__ import annotations

import errno
import glob
import os
from collections.abc import Callable
from typing import TypeVar

from raftlog.closeable import Closeable
from raftlog.errors import (
    LogAccessError,
    LogError,
    LogNotFoundError,
    NotALogError,
    SegmentDeletedError,
)

_T = TypeVar("_T")
_OPEN_FLAGS = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)


class LocalFile(Closeable):
    """Open file of this machine."""

    def __init__(self, path: str, descriptor: int) -> None:
        self._path = path
        self._descriptor: int | None = descriptor

    @property
    def path(self) -> str:
        return self._path

    def read_at(self, position: int, byte_count: int) -> bytes:
        """Read up to ``byte_count`` bytes; fewer only at the end of the file."""
        descriptor = self._open_descriptor()
        parts = []
        try:
            # One pread may return less before the end of the file: after a signal, or at 2 GiB.
            while byte_count > 0 and (part := os.pread(descriptor, byte_count, position)):
                parts.append(part)
                position += len(part)
                byte_count -= len(part)
        except OSError as error:
            raise translated(self._path, error) from None
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def byte_count(self) -> int:
        """Return the current size of the file."""
        try:
            return os.fstat(self._open_descriptor()).st_size
        except OSError as error:
            raise translated(self._path, error) from None

    def close(self) -> None:
        """Close the descriptor."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)

    def _open_descriptor(self) -> int:
        assert self._descriptor is not None, f"{self._path} was closed"
        return self._descriptor


class LocalStorage:
    """Files of this machine. Stateless: may be shared, copied and pickled."""

    def list_names(self, directory: str) -> list[str]:
        """Return the names in ``directory``, sorted."""
        try:
            return sorted(self._with_descriptor(lambda: os.listdir(directory)))
        except OSError as error:
            raise translated(directory, error) from None

    def open_file(self, path: str) -> LocalFile:
        """Open a regular file for reading; ``NotALogError`` for anything else."""
        try:
            if not os.path.isfile(path):
                os.stat(path)  # raises if nothing exists there
                raise NotALogError(path=path, reason="a file was expected there")
            return LocalFile(path, self._with_descriptor(lambda: os.open(path, _OPEN_FLAGS)))
        except OSError as error:
            raise translated(path, error) from None
        except ValueError:
            raise LogNotFoundError(path=repr(path)) from None

    def is_directory(self, path: str) -> bool:
        """Return whether ``path`` is a directory. Raises ``LogNotFoundError`` if it is absent."""
        try:
            os.stat(path)
            return os.path.isdir(path)
        except OSError as error:
            raise translated(path, error) from None
        except ValueError:  # a null byte in the path
            raise LogNotFoundError(path=repr(path)) from None

    def join(self, directory: str, name: str) -> str:
        """Return the path of ``name`` in ``directory``."""
        return os.path.join(directory, name)

    def split(self, path: str) -> tuple[str, str]:
        """Return the directory and the name of ``path`` in its absolute form."""
        return os.path.split(os.path.abspath(path))

    def _with_descriptor(self, opened: Callable[[], _T]) -> _T:
        """Return the result of a call that opens a descriptor."""
        return opened()

    def expand(self, pattern: str) -> list[str]:
        """Return the paths that match a shell pattern, sorted."""
        try:
            return sorted(glob.glob(pattern))
        except OSError as error:
            raise translated(pattern, error) from None


def translated(path: str, error: OSError) -> LogError:
    """Return raftlog's error for an error of the operating system on a read."""
    reason = (error.strerror or "the operating system gave no reason").lower()
    match error.errno:
        case errno.ENOENT | errno.ENAMETOOLONG:
            return LogNotFoundError(path=path)
        case errno.ENOTDIR:
            return NotALogError(path=path, reason="a directory was expected there")
        case errno.EISDIR:
            return NotALogError(path=path, reason="a file was expected there")
        case errno.ESTALE:
            return SegmentDeletedError(path=path)
        case errno.EMFILE | errno.ENFILE:
            remedy = "close files, or raise the limit of open files (ulimit -n)"
            return LogAccessError(path=path, reason=reason, remedy=remedy)
        case _:
            return LogAccessError(path=path, reason=reason)
