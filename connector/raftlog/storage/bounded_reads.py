"""Reads of an object store that end within a time limit.

A store may never respond, for example a network mount, or a server that hangs. A node has threads
for that (``raftlog.node.apis.remote_reads``). The readers of a directory call the store in the
caller's thread, which would wait without a limit and could not be interrupted.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from functools import partial
from typing import Any, TypeVar

from raftlog.daemon_threads import DaemonThreads

from .errors import RemoteStorageError
from .objects import ObjectStore, StoredObject
from .protocol import Closeable, ReadableFile

T = TypeVar("T")


class BoundedReads:
    """Object store whose objects are read in another thread. Used by one thread at a time.

    A read has a result within ``timeout_ms``, or raises ``RemoteStorageError``. Each read has its
    own thread, so that no thread remains between reads or is missing in a forked child. While one
    hangs, its process starts no other. Writes are not bounded, because only runs write, in their
    own threads.
    """

    def __init__(self, objects: ObjectStore, timeout_ms: int) -> None:
        self.location = objects.location
        self._objects = objects
        self._timeout_ms = timeout_ms
        self._hanging: tuple[int, Future[Any]] | None = None
        """Id of the process that waits for a read, and the read."""

    def put(self, name: str, chunks: Iterable[bytes]) -> None:
        self._objects.put(name, chunks)

    def open_object(self, name: str) -> ReadableFile:
        return _BoundedFile(self.call(name, partial(self._objects.open_object, name)), self, name)

    def delete(self, name: str) -> None:
        self._objects.delete(name)

    def list_objects(self, directory: str) -> list[StoredObject]:
        return self.call(directory, partial(self._objects.list_objects, directory))

    def call(self, name: str, request: Callable[[], T]) -> T:
        """Return the result of a request for an object. Raises its error, and the errors above."""
        process_id = os.getpid()
        if self._hanging is not None and self._hanging[0] == process_id:
            self._await(self._hanging[1], name)
        threads = DaemonThreads(1, "raftlog-remote-read")
        reading = threads.submit(request)
        self._hanging = process_id, reading
        threads.close()
        try:
            self._await(reading, name)
        except BaseException:  # including an interrupt of the caller
            reading.add_done_callback(_close_file)
            raise
        return reading.result()

    def _await(self, reading: Future[Any], name: str) -> None:
        """Wait for the end of a read. Raises ``RemoteStorageError`` after the time limit."""
        try:
            reading.exception(self._timeout_ms / 1000)
        except TimeoutError:
            reason = f"no response within {self._timeout_ms} ms"
            raise RemoteStorageError(location=self.location, name=name, reason=reason) from None
        self._hanging = None


def _close_file(reading: Future[Any]) -> None:
    """Close the file that a read has opened after its caller stopped waiting."""
    if reading.exception() is None and isinstance(file := reading.result(), ReadableFile):
        file.close()


class _BoundedFile(Closeable):
    """Object that is read within its store's time limit."""

    def __init__(self, file: ReadableFile, reads: BoundedReads, name: str) -> None:
        self.path = file.path
        self._file = file
        self._reads = reads
        self._name = name

    def read_at(self, position: int, byte_count: int) -> bytes:
        return self._reads.call(self._name, partial(self._file.read_at, position, byte_count))

    def byte_count(self) -> int:
        return self._reads.call(self._name, self._file.byte_count)

    def close(self) -> None:
        self._file.close()
