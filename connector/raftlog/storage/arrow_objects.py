"""Objects in the file systems of ``pyarrow.fs`` (S3, Google Cloud Storage, Azure), by URI.

``ArrowObjects`` stores the objects of backups; ``ArrowStorage`` reads the files of a log. The log
itself does not import this module; it is imported where a URI is opened. Closing a stream, even by
its destructor, completes the upload with the bytes so far. An upload that fails therefore leaves a
truncated object, which no entry of the manifest declares as finished.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterable, Iterator
from fnmatch import fnmatchcase
from functools import partial
from typing import Any, Final

from pyarrow import ArrowException, fs

from raftlog.errors import LogAccessError, LogNotFoundError, NotALogError, OptionError
from raftlog.limits import MIB
from raftlog.printable import store_location

from .errors import RemoteObjectNotFoundError, RemoteStorageError
from .objects import ReadAheadFile, StoredObject
from .protocol import Closeable, ReadableFile

READ_AHEAD_BYTES: Final = 1 * MIB
"""Least bytes of a file that one request reads, since batch headers are read one by one."""
_ALIAS: Final = re.compile(r"s3[an]?(?=://)", re.IGNORECASE)
"""Hadoop's URI schemes for S3."""
_MAGIC: Final = re.compile(r"[*\[]")
_QUERY: Final = re.compile(r"(://[^\s?]*)\?[^\s'\"]*")
"""Query of a URL, which may contain a key."""


def _file_system(uri: str, option: str) -> tuple[fs.FileSystem, str]:
    """Return the file system of a URI, and the path in it.

    Raises ``OptionError``, which never contains the URI's user info or query.
    """
    try:
        files, root = fs.FileSystem.from_uri(_ALIAS.sub("s3", uri))
    except (ArrowException, OSError, ValueError) as error:
        kind = "cannot be reached" if isinstance(error, OSError) else "is not supported"
        scheme = uri.partition("://")[0][:20]
        reason = f"the file system of this {scheme}:// URI {kind} by pyarrow"
        if isinstance(error, OSError) and scheme.startswith("s3"):
            reason += "; check the network, and give the region of the bucket: ?region=eu-central-1"
        raise OptionError(option=option, reason=reason) from None
    if not root.strip("/"):
        raise OptionError(option=option, reason="the URI names no bucket or container")
    return files, root


class ArrowObjects:
    """Objects below a path of a pyarrow file system."""

    def __init__(self, files: fs.FileSystem, root: str, location: str) -> None:
        self._files = files
        self._root = root.rstrip("/")
        self.location = location

    @classmethod
    def of_uri(cls, uri: str) -> ArrowObjects:
        """Open a URI, whose query has the file system's options (``pyarrow.fs.S3FileSystem``).

        Raises ``OptionError``, which never contains the URI's user info or query.
        """
        files, root = _file_system(uri, "URI")
        return cls(files, root, store_location(uri).rstrip("/"))

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
            file = self._files.open_input_file(self._path(name))
        return _ArrowFile(f"{self.location}/{name}", file, partial(self._errors_of, name))

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
            reason = _reason(error)
            raise RemoteStorageError(location=self.location, name=name, reason=reason) from None


class _ArrowFile(Closeable):
    """File of pyarrow; ``errors`` returns the context that raises raftlog's own errors."""

    def __init__(
        self, path: str, file: Any, errors: Callable[[], contextlib.AbstractContextManager[None]]
    ) -> None:
        self.path = path
        self._file = file
        self._errors = errors

    def read_at(self, position: int, byte_count: int) -> bytes:
        with self._errors():
            left = max(self._file.size() - position, 0)
            return bytes(self._file.read_at(min(byte_count, left), position)) if left else b""

    def byte_count(self) -> int:
        with self._errors():
            return int(self._file.size())

    def close(self) -> None:
        self._file.close()


class ArrowStorage:
    """Tree of files in a pyarrow file system, for reading (``Storage``).

    Paths are URIs without a query. Paths below ``uri`` and its parents correspond to the file
    system's paths below and above ``path``.
    """

    def __init__(self, files: fs.FileSystem, path: str, uri: str) -> None:
        self._files = files
        same = 0
        for one, other in zip(reversed(path), reversed(uri), strict=False):
            if one != other:
                break
            same += 1
        self._before_path = path[: len(path) - same]
        self._before_uri = uri[: len(uri) - same]

    @classmethod
    def of_uri(cls, uri: str) -> tuple[ArrowStorage, str]:
        """Open the file system of a URI. Return it with the path, which may be a pattern.

        The URI's query has the file system's options, but no keys. Raises ``OptionError``.
        """
        text, mark, query = uri.partition("?")
        text = text.rstrip("/")
        pattern = _MAGIC.search(text)
        base = text if pattern is None else text[: pattern.start()].rpartition("/")[0]
        files, path = _file_system(base + mark + query, "path")
        return cls(files, path.rstrip("/"), base), text

    def list_names(self, directory: str) -> list[str]:
        with self._errors_of(directory):
            found = self._files.get_file_info(fs.FileSelector(self._path(directory)))
        return sorted(info.base_name for info in found)

    def open_file(self, path: str) -> ReadableFile:
        with self._errors_of(path):
            if self._info(path).type is fs.FileType.Directory:
                raise NotALogError(path=path, reason="a file was expected there")
            file = self._files.open_input_file(self._path(path))
        return ReadAheadFile(
            _ArrowFile(path, file, partial(self._errors_of, path)),
            byte_count_min=READ_AHEAD_BYTES,
            sequential_bytes=READ_AHEAD_BYTES,
        )

    def is_directory(self, path: str) -> bool:
        with self._errors_of(path):
            return bool(self._info(path).type is fs.FileType.Directory)

    def join(self, directory: str, name: str) -> str:
        return f"{directory}/{name}"

    def split(self, path: str) -> tuple[str, str]:
        directory, _, name = path.rstrip("/").rpartition("/")
        return directory, name

    def expand(self, pattern: str) -> list[str]:
        first, *names = pattern[len(self._before_uri) :].split("/")
        found = [self._before_uri + first]
        for name in names:
            if _MAGIC.search(name) is None:
                found = [self.join(directory, name) for directory in found]
            else:
                found = [
                    self.join(directory, one)
                    for directory in found
                    for one in self._names_in(directory)
                    if fnmatchcase(one, name)
                ]
        return sorted(filter(self._is_there, found))

    def _names_in(self, path: str) -> list[str]:
        """Return the names in a path; none if it is not a directory."""
        try:
            return self.list_names(path)
        except (LogNotFoundError, NotALogError):
            return []

    def _is_there(self, path: str) -> bool:
        with self._errors_of(path):
            return bool(
                self._files.get_file_info(self._path(path)).type is not fs.FileType.NotFound
            )

    def _info(self, path: str) -> fs.FileInfo:
        info = self._files.get_file_info(self._path(path))
        if info.type is fs.FileType.NotFound:
            raise LogNotFoundError(path=path)
        return info

    def _path(self, uri: str) -> str:
        return self._before_path + uri[len(self._before_uri) :]

    @contextlib.contextmanager
    def _errors_of(self, path: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError:
            raise LogNotFoundError(path=path) from None
        except NotADirectoryError:
            raise NotALogError(path=path, reason="a directory was expected there") from None
        except (ArrowException, OSError, ValueError) as error:
            raise LogAccessError(
                path=path,
                reason=_reason(error),
                remedy="check that the store can be reached and grants access",
            ) from None


def _reason(error: Exception) -> str:
    """Return the text of a pyarrow error, without the queries of URLs."""
    return _QUERY.sub(r"\1", " ".join(str(error).split())) or type(error).__name__
