"""Real files, read without disturbing the node that writes them; ``local_writing`` writes them.

Rules of this file:

1. Files are opened ``O_RDONLY`` and read with ``pread``: no lock, no shared position, no change of
   an access mode. Nothing is ever created.
2. Every ``OSError`` becomes an error of raftlog's that names the path.
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
    """An open file of this machine."""

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
            # One pread may stop short before the end of the file: by a signal, or at 2 GiB.
            while byte_count > 0 and (part := os.pread(descriptor, byte_count, position)):
                parts.append(part)
                position += len(part)
                byte_count -= len(part)
        except OSError as error:
            raise translated(self._path, error) from None
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def byte_count(self) -> int:
        """How long the file is at this moment."""
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
    """The files of this machine. Holds no state: one may be shared, copied and pickled."""

    def list_names(self, directory: str) -> list[str]:
        """The names in ``directory``, sorted."""
        try:
            return sorted(self._with_descriptor(lambda: os.listdir(directory)))
        except OSError as error:
            raise translated(directory, error) from None

    def open_file(self, path: str) -> LocalFile:
        """Open a file for reading; a directory, a pipe or a device is refused."""
        try:
            if not os.path.isfile(path):
                os.stat(path)  # raises if there is nothing
                raise NotALogError(path=path, reason="a file was expected there")
            return LocalFile(path, self._with_descriptor(lambda: os.open(path, _OPEN_FLAGS)))
        except OSError as error:
            raise translated(path, error) from None
        except ValueError:
            raise LogNotFoundError(path=repr(path)) from None

    def is_directory(self, path: str) -> bool:
        """Whether ``path`` is a directory. Raises ``LogNotFoundError`` if nothing is there."""
        try:
            os.stat(path)
            return os.path.isdir(path)
        except OSError as error:
            raise translated(path, error) from None
        except ValueError:  # a zero byte in the path
            raise LogNotFoundError(path=repr(path)) from None

    def join(self, directory: str, name: str) -> str:
        """The path of ``name`` in ``directory``."""
        return os.path.join(directory, name)

    def split(self, path: str) -> tuple[str, str]:
        """The directory that ``path`` lies in and its own name, made absolute first."""
        return os.path.split(os.path.abspath(path))

    def _with_descriptor(self, opened: Callable[[], _T]) -> _T:
        """Return what a call gives that needs a descriptor."""
        return opened()

    def expand(self, pattern: str) -> list[str]:
        """The paths that a shell pattern matches, sorted."""
        try:
            return sorted(glob.glob(pattern))
        except OSError as error:
            raise translated(pattern, error) from None


def translated(path: str, error: OSError) -> LogError:
    """What raftlog says of an error of the operating system while reading."""
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
            remedy = "close some, or raise the limit of open files"
            return LogAccessError(path=path, reason=reason, remedy=remedy)
        case _:
            return LogAccessError(path=path, reason=reason)
