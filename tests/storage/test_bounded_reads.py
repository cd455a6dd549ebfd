"""Reads of an object store that does not answer."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from concurrent.futures import Future

import pytest
from tests.support.appending import disk_with_parent

from raftlog.errors import RaftlogError
from raftlog.storage.bounded_reads import BoundedReads
from raftlog.storage.errors import RemoteObjectNotFoundError, RemoteStorageError
from raftlog.storage.objects import StorageObjects
from raftlog.storage.protocol import ReadableFile

PATIENT_MS = 60_000


class ObservedFile(ReadableFile):
    """File that sets an event when it is closed."""

    def __init__(self, file: ReadableFile, closed: threading.Event) -> None:
        self._file = file
        self._closed = closed

    @property
    def path(self) -> str:
        return self._file.path

    def read_at(self, position: int, byte_count: int) -> bytes:
        return self._file.read_at(position, byte_count)

    def byte_count(self) -> int:
        return self._file.byte_count()

    def close(self) -> None:
        self._file.close()
        self._closed.set()


class HangingStore(StorageObjects):
    """Store whose requests wait until the test lets them pass."""

    def __init__(self) -> None:
        super().__init__(disk_with_parent(), "/objects")
        self.passes = threading.Event()
        self.passes.set()
        self.begun = 0
        self.closed = threading.Event()

    def open_object(self, name: str) -> ReadableFile:
        self.begun += 1
        self.passes.wait()
        return ObservedFile(super().open_object(name), self.closed)


@pytest.fixture
def store() -> Iterator[HangingStore]:
    found = HangingStore()
    found.put("a/1", [b"12", b"345"])
    yield found
    found.passes.set()


def test_objects_and_errors_are_those_of_the_store(store: HangingStore) -> None:
    bounded = BoundedReads(store, PATIENT_MS)
    with bounded.open_object("a/1") as file:
        assert (file.byte_count(), file.read_at(1, 3), file.read_at(9, 1)) == (5, b"234", b"")
        assert file.path == "/objects/a/1"
    assert [one.name for one in bounded.list_objects("a")] == ["a/1"]
    with pytest.raises(RemoteObjectNotFoundError):
        bounded.open_object("a/2")


def test_a_read_without_an_answer_is_an_error_and_the_next_one_starts_no_other(
    store: HangingStore,
) -> None:
    bounded = BoundedReads(store, 1)
    store.passes.clear()
    for _ in range(3):
        with pytest.raises(RemoteStorageError, match="a/1 in /objects: no response within 1 ms"):
            bounded.open_object("a/1")
    assert store.begun == 1
    store.passes.set()
    patient = BoundedReads(store, PATIENT_MS)
    with patient.open_object("a/1") as file:
        assert file.read_at(0, 5) == b"12345"


def test_a_store_that_answers_again_is_read(store: HangingStore) -> None:
    bounded = BoundedReads(store, PATIENT_MS)
    store.passes.clear()
    bounded._timeout_ms = 1
    with pytest.raises(RaftlogError):
        bounded.open_object("a/1")
    bounded._timeout_ms = PATIENT_MS
    store.passes.set()
    with bounded.open_object("a/1") as file:
        assert file.read_at(0, 2) == b"12"
    assert store.begun == 2


def test_a_file_that_is_opened_after_the_limit_is_closed(store: HangingStore) -> None:
    bounded = BoundedReads(store, 1)
    store.passes.clear()
    with pytest.raises(RemoteStorageError):
        bounded.open_object("a/1")
    store.passes.set()
    assert store.closed.wait(PATIENT_MS / 1000)


def test_after_an_interrupt_the_read_that_hangs_is_awaited_before_another(
    store: HangingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    bounded = BoundedReads(store, 1)
    store.passes.clear()

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Future, "exception", interrupted)
        with pytest.raises(KeyboardInterrupt):
            bounded.open_object("a/1")
    with pytest.raises(RemoteStorageError):
        bounded.open_object("a/1")
    assert store.begun == 1


def test_a_forked_child_does_not_wait_for_a_read_of_its_parent(store: HangingStore) -> None:
    """It has no thread that could end that."""
    bounded = BoundedReads(store, 1)
    store.passes.clear()
    with pytest.raises(RemoteStorageError):
        bounded.open_object("a/1")
    child = os.fork()
    if child == 0:
        status = 1
        try:
            store.passes.set()
            bounded._timeout_ms = PATIENT_MS
            with bounded.open_object("a/1") as file:
                status = int(file.read_at(0, 2) != b"12")
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
