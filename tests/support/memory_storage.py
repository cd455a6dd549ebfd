"""Files in memory, for tests: grow, truncate, rename, delete or deny them at any moment.

Passes the same contract tests as the real files (``tests/log/test_storage.py``).
"""

from __future__ import annotations

import fnmatch
import posixpath
from pathlib import Path

from raftlog.errors import LogAccessError, LogNotFoundError, NotALogError
from raftlog.storage.protocol import Closeable


class MemoryFile(Closeable):
    def __init__(self, storage: MemoryStorage, path: str, content: bytearray) -> None:
        self._storage = storage
        self._path = path
        self._content: bytearray | None = content

    @property
    def path(self) -> str:
        return self._path

    def read_at(self, position: int, byte_count: int) -> bytes:
        assert self._content is not None, "the file was closed"
        data = bytes(self._content[position : position + max(byte_count, 0)])
        self._storage.reads.append((self._path, position, len(data)))
        return data

    def byte_count(self) -> int:
        assert self._content is not None, "the file was closed"
        return len(self._content)

    def close(self) -> None:
        if self._content is not None:
            self._storage.open_files -= 1
        self._content = None


class MemoryStorage:
    """Tree of files under ``/``. ``reads`` lists the reads: (path, position, bytes)."""

    def __init__(self) -> None:
        self.files: dict[str, bytearray] = {}
        self.refused: set[str] = set()
        self.reads: list[tuple[str, int, int]] = []
        self.open_files = 0

    # what a node does

    def append(self, path: str, data: bytes) -> None:
        self.files.setdefault(path, bytearray()).extend(data)

    def write(self, path: str, data: bytes) -> None:
        """Replace a file; a reader that has the old one open keeps reading the old one."""
        self.files[path] = bytearray(data)

    def truncate(self, path: str, byte_count: int) -> None:
        del self.files[path][byte_count:]

    def rename(self, path: str, new_path: str) -> None:
        self.files[new_path] = self.files.pop(path)

    def delete(self, path: str) -> None:
        del self.files[path]

    def copy_in(self, source: Path, directory: str) -> None:
        """Copy a real directory (without its dumps)."""
        for file in sorted(source.rglob("*")):
            if file.is_file() and not file.name.endswith(".dump.gz"):
                self.write(
                    posixpath.join(directory, str(file.relative_to(source))), file.read_bytes()
                )

    def read_bytes(self) -> int:
        """Return the number of bytes read since the last call."""
        count = sum(byte_count for _, _, byte_count in self.reads)
        self.reads.clear()
        return count

    # the protocol

    def list_names(self, directory: str) -> list[str]:
        self._check(directory)
        prefix = directory.rstrip("/") + "/"
        if directory in self.files:
            raise NotALogError(path=directory, reason="a directory was expected there")
        names = {
            path[len(prefix) :].split("/")[0] for path in self.files if path.startswith(prefix)
        }
        if not names:
            raise LogNotFoundError(path=directory)
        return sorted(names)

    def open_file(self, path: str) -> MemoryFile:
        self._check(path)
        if self.is_directory(path):
            raise NotALogError(path=path, reason="a file was expected there")
        self.open_files += 1
        return MemoryFile(self, path, self.files[path])

    def is_directory(self, path: str) -> bool:
        if path in self.files:
            return False
        if any(other.startswith(path.rstrip("/") + "/") for other in self.files):
            return True
        raise LogNotFoundError(path=path)

    def join(self, directory: str, name: str) -> str:
        return posixpath.join(directory, name)

    def split(self, path: str) -> tuple[str, str]:
        return posixpath.split(posixpath.normpath(path))

    def expand(self, pattern: str) -> list[str]:
        depth = pattern.rstrip("/").count("/")
        parents = {"/".join(path.split("/")[: depth + 1]) for path in self.files}
        return sorted(path for path in parents if fnmatch.fnmatchcase(path, pattern.rstrip("/")))

    def _check(self, path: str) -> None:
        if path in self.refused:
            raise LogAccessError(path=path, reason="permission denied")
