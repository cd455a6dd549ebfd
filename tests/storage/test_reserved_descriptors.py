"""Files of a node whose process has no free descriptor."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.support.descriptor_exhaustion import occupy_descriptors

from raftlog.errors import LogAccessError
from raftlog.storage.local import PrivateLocalStorage, ReservedDescriptorStorage


def test_files_are_opened_with_reserved_descriptors(tmp_path: Path) -> None:
    directory, path = str(tmp_path), str(tmp_path / "a.log")
    boot_id = PrivateLocalStorage().boot_id()
    with ReservedDescriptorStorage(2) as storage:
        assert storage.refill()
        with occupy_descriptors(0) as taken:
            with pytest.raises(LogAccessError, match="too many open files"):
                PrivateLocalStorage().create_file(path)
            assert storage.boot_id() == boot_id
            with storage.create_file(path) as file:
                file.write_at(0, b"abc")
                with storage.open_file(path) as other:
                    assert other.read_at(0, 3) == b"abc"
                    with pytest.raises(LogAccessError, match="too many open files"):
                        storage.list_names(directory)
                    assert not storage.refill()
            assert storage.list_names(directory) == ["a.log"]
            storage.sync_directory(directory)
            with storage.open_for_writing(path):
                pass
            lock = storage.try_lock(str(tmp_path / "lock"))
            assert lock is not None
            with lock:
                pass
            assert storage.refill(), "the files are closed"
            os.close(taken.pop())
            assert storage.refill()
    with occupy_descriptors(1), PrivateLocalStorage().open_file(path):
        pass


def test_a_closed_reserved_descriptor_is_reserved_again() -> None:
    before = len(os.listdir("/dev/fd"))
    with ReservedDescriptorStorage(5) as storage:
        assert storage.refill()
        assert len(os.listdir("/dev/fd")) == before + 5
    assert len(os.listdir("/dev/fd")) == before
