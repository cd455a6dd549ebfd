"""Objects in the file systems of ``pyarrow.fs``: S3, Google Cloud Storage, Azure, by URI.

Imported where a URI is opened, not by the log. A stream that is closed, also by its destructor,
completes the upload of the bytes so far: so an upload that fails leaves a truncated object, which
no entry of the manifest declares as finished.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

from pyarrow import ArrowException, fs

from raftlog.errors import OptionError
from raftlog.printable import without_user_info

from .errors import RemoteObjectNotFoundError, RemoteStorageError
from .objects import StoredObject
from .protocol import Closeable, ReadableFile


class ArrowObjects:
    """Objects below a path of a file system of pyarrow's."""

    def __init__(self, files: fs.FileSystem, root: str, location: str) -> None:
        self._files = files
        self._root = root.rstrip("/")
        self.location = location

    @classmethod
    def of_uri(cls, uri: str) -> ArrowObjects:
        """Open a URI; its query has the options of the file system (``pyarrow.fs.S3FileSystem``).

        Raises ``OptionError``, which never contains the URI's user info or query.
        """
        try:
            files, root = fs.FileSystem.from_uri(uri)
        except (ArrowException, OSError, ValueError) as error:
            kind = "cannot be reached" if isinstance(error, OSError) else "is not supported"
            scheme = uri.partition("://")[0][:20]
            reason = f"the file system of this {scheme}:// URI {kind} by pyarrow"
            raise OptionError(option="URI", reason=reason) from None
        if not root.strip("/"):
            raise OptionError(option="URI", reason="it names no bucket or container")
        return cls(files, root, without_user_info(uri.partition("?")[0]).rstrip("/"))

    def put(self, name: str, chunks: Iterable[bytes]) -> None:
        path = self._path(name)
        with self._errors_of(name):
            if self._files.type_name == "local":  # the others have no directories
                self._files.create_dir(path.rpartition("/")[0], recursive=True)
            stream = self._files.open_output_stream(path)
        with self._errors_of(name), stream:
            for chunk in chunks:
                stream.write(chunk)

    def open_object(self, name: str) -> ReadableFile:
        with self._errors_of(name):
            return _ArrowFile(self, name, self._files.open_input_file(self._path(name)))

    def delete(self, name: str) -> None:
        with contextlib.suppress(RemoteObjectNotFoundError), self._errors_of(name):
            self._files.delete_file(self._path(name))

    def list_objects(self, directory: str) -> list[StoredObject]:
        selector = fs.FileSelector(self._path(directory), allow_not_found=True, recursive=True)
        with self._errors_of(directory):
            found = self._files.get_file_info(selector)
        start = len(self._root) + 1
        return sorted(
            StoredObject(info.path[start:], info.size)
            for info in found
            if info.type is fs.FileType.File
        )

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"

    @contextlib.contextmanager
    def _errors_of(self, name: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError:
            raise RemoteObjectNotFoundError(location=self.location, name=name) from None
        except (ArrowException, OSError, ValueError) as error:
            reason = " ".join(str(error).split()) or type(error).__name__
            raise RemoteStorageError(location=self.location, name=name, reason=reason) from error


class _ArrowFile(Closeable):
    """Object open for reading."""

    def __init__(self, objects: ArrowObjects, name: str, file: Any) -> None:
        self.path = f"{objects.location}/{name}"
        self._objects = objects
        self._name = name
        self._file = file

    def read_at(self, position: int, byte_count: int) -> bytes:
        with self._objects._errors_of(self._name):
            left = max(self._file.size() - position, 0)
            return bytes(self._file.read_at(min(byte_count, left), position)) if left else b""

    def byte_count(self) -> int:
        with self._objects._errors_of(self._name):
            return int(self._file.size())

    def close(self) -> None:
        self._file.close()
