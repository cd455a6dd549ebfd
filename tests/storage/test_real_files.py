"""System calls of real files, and the errors that they become."""

from __future__ import annotations

import errno
import fcntl
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from raftlog.errors import (
    DiskFailedError,
    DiskFullError,
    LogAccessError,
    LogError,
    LogNotFoundError,
)
from raftlog.storage.local import WritableLocalFile, WritableLocalStorage

STORAGE = WritableLocalStorage()

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="other systems sync otherwise")


@pytest.fixture
def file(tmp_path: Path) -> Iterator[WritableLocalFile]:
    with STORAGE.create_file(str(tmp_path / "a.log")) as file:
        yield file


class Refusing:
    """System function that fails or does less than requested, and counts its calls."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.calls = 0

    def __call__(self, *_: object) -> int:
        self.calls += 1
        raise OSError(self.number, os.strerror(self.number))


@linux_only
def test_syncing_reaches_the_device_once(
    file: WritableLocalFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[str, str]] = []
    for name in ("fsync", "fdatasync"):

        def note(descriptor: int, name: str = name) -> None:
            calls.append((name, os.readlink(f"/proc/self/fd/{descriptor}")))

        monkeypatch.setattr(os, name, note)
    file.write_at(0, b"x")
    assert calls == []
    file.sync()
    STORAGE.sync_directory(os.path.dirname(file.path))
    assert calls == [("fdatasync", file.path), ("fsync", os.path.dirname(file.path))]


@linux_only
@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC, errno.EDQUOT])
def test_a_failed_sync_is_not_repeated(
    file: WritableLocalFile, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    refuse = Refusing(number)
    monkeypatch.setattr(os, "fdatasync", refuse)
    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(DiskFailedError) as caught:
        file.sync()
    assert caught.value.path == file.path
    assert "close this log" in str(caught.value)
    with pytest.raises(DiskFailedError):
        STORAGE.sync_directory(os.path.dirname(file.path))
    assert refuse.calls == 2


@pytest.mark.parametrize(
    ("number", "kind", "words"),
    [
        (errno.EIO, DiskFailedError, "input/output error"),
        (errno.ENOSPC, DiskFullError, "no space left on device; free space"),
        (errno.EDQUOT, DiskFullError, "quota"),
        (errno.EFBIG, DiskFullError, "too large"),
        (errno.EROFS, LogAccessError, "cannot be written: read-only file system; grant this user"),
    ],
)
def test_a_refused_write_has_a_reason(
    file: WritableLocalFile,
    monkeypatch: pytest.MonkeyPatch,
    number: int,
    kind: type[LogError],
    words: str,
) -> None:
    monkeypatch.setattr(os, "pwrite", Refusing(number))
    monkeypatch.setattr(os, "ftruncate", Refusing(number))
    calls: list[Callable[[], None]] = [
        lambda: file.write_at(0, b"x"),
        lambda: file.truncate(5),
    ]
    for call in calls:
        with pytest.raises(kind) as caught:
            call()
        assert words in str(caught.value)
        assert file.path in str(caught.value)


def test_a_short_write_is_continued(
    file: WritableLocalFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    pwrite = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: pwrite(fd, data[:3], at))
    file.write_at(2, b"0123456789")
    assert file.read_at(0, 99) == b"\0\0" + b"0123456789"


def test_too_many_open_files_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").write_bytes(b"")
    monkeypatch.setattr(os, "open", Refusing(errno.EMFILE))
    for call in (STORAGE.open_file, STORAGE.open_for_writing, STORAGE.try_lock):
        with pytest.raises(LogAccessError) as caught:
            call(str(tmp_path / "a"))
        assert "too many open files; close files, or raise the limit" in str(caught.value)


def test_a_file_system_without_locks_is_distinguished_from_a_held_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = len(os.listdir("/proc/self/fd")) if sys.platform == "linux" else 0
    monkeypatch.setattr(fcntl, "fcntl", Refusing(errno.ENOLCK))
    monkeypatch.setattr(fcntl, "flock", Refusing(errno.ENOLCK))
    with pytest.raises(LogAccessError):
        STORAGE.try_lock(str(tmp_path / "lock"))
    if sys.platform == "linux":
        assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize(
    "look", [STORAGE.open_file, STORAGE.open_for_writing, STORAGE.is_directory]
)
def test_a_file_that_appears_while_it_is_looked_up_is_missing(
    look: Callable[[str], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, stat = tmp_path / "0.index", os.stat

    def stat_before_it_appears(*args: Any, **options: Any) -> os.stat_result:
        try:
            return stat(*args, **options)
        finally:
            path.touch()

    monkeypatch.setattr(os, "stat", stat_before_it_appears)
    with pytest.raises(LogNotFoundError):
        look(str(path))


def test_opening_a_pipe_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.log")
    with pytest.raises(LogError):
        STORAGE.open_for_writing(str(tmp_path / "a.log"))


def test_the_boot_id_of_macos_is_read_by_its_sysctl_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = tmp_path / "sysctl"
    tool.write_text('#!/bin/sh\n[ "$*" = "-n kern.bootsessionuuid" ] && echo ABC-1\n')
    tool.chmod(0o755)
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert STORAGE.boot_id() == "ABC-1"
    tool.write_text("#!/bin/sh\nexit 1\n")
    with pytest.raises(LogAccessError) as caught:
        STORAGE.boot_id()
    assert "has no boot id" in str(caught.value)
    assert isinstance(caught.value, LogError)


def test_storage_can_be_pickled() -> None:
    assert isinstance(pickle.loads(pickle.dumps(STORAGE)), WritableLocalStorage)


def test_writing_imports_no_large_module() -> None:
    code = (
        "import sys, raftlog.log.cleaning.compaction, raftlog.log.writing.atomic_files;"
        "sys.exit(bool({'numpy', 'pyarrow'} & sys.modules.keys()))"
    )
    source_root = Path(__file__).parents[2] / "connector"
    environment = {**os.environ, "PYTHONPATH": str(source_root)}
    assert (
        subprocess.run([sys.executable, "-c", code], check=False, env=environment).returncode == 0
    )
