"""Detection of changes of a log's directory by the status of its files."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.small_logs import LogWriter

import raftlog
from raftlog.client.watching import RECENT_COARSE_NS, RECENT_NS, DirectoryWatch

LATER_NS = 2 * RECENT_COARSE_NS


def set_time(directory: Path, time_ns: int) -> None:
    for path in (*directory.iterdir(), directory):
        os.utime(path, ns=(time_ns, time_ns))


class _Watched:
    """Directory whose files are as old as the test says."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.age_ns = LATER_NS
        self._watch = DirectoryWatch(str(directory), self._now_ns)

    def _now_ns(self) -> int:
        every = [self.directory, *self.directory.iterdir()]
        return max(path.stat().st_mtime_ns for path in every) + self.age_ns

    def stamp(self) -> object:
        return self._watch.stamp()


@pytest.fixture
def log(tmp_path: Path) -> LogWriter:
    log = LogWriter(tmp_path / "orders-0")
    log.append(b"1")
    return log


def test_an_unchanged_directory_has_the_same_stamp(log: LogWriter) -> None:
    watched = _Watched(log.directory)
    assert watched.stamp() is not None
    assert watched.stamp() == watched.stamp()


CHANGES: dict[str, Callable[[Path], object]] = {
    "a segment grows": lambda path: os.truncate(path / f"{0:020d}.log", 5_000),
    "a segment shrinks": lambda path: os.truncate(path / f"{0:020d}.log", 5),
    "a segment begins": lambda path: (path / f"{1:020d}.log").touch(),
    "a file is replaced": lambda path: (path / "leader-epoch-checkpoint").rename(path / "other"),
    "the log is deleted": lambda path: (path / f"{0:020d}.log").unlink(),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_is_seen(log: LogWriter, change: str) -> None:
    watched = _Watched(log.directory)
    old = watched.stamp()
    CHANGES[change](log.directory)
    for path in (log.directory, *log.directory.iterdir()):
        found = path.stat()
        os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns + 1))
    assert watched.stamp() != old


def test_an_append_to_an_embedded_log_is_seen(tmp_path: Path) -> None:
    path = tmp_path / "orders-0"
    with raftlog.open(path) as log:
        log.append(b"1")
        watched = _Watched(path)
        old = watched.stamp()
        assert old is not None
        log.append(b"2")
        assert watched.stamp() != old


def test_a_recent_change_hides_later_ones_so_there_is_no_stamp(log: LogWriter) -> None:
    watched = _Watched(log.directory)
    set_time(log.directory, 5_000_000_001)
    for age_ns in (0, RECENT_NS - 1, -LATER_NS):
        watched.age_ns = age_ns
        assert watched.stamp() is None
    watched.age_ns = RECENT_NS
    assert watched.stamp() is not None


def test_times_in_seconds_are_recent_for_longer(log: LogWriter) -> None:
    watched = _Watched(log.directory)
    set_time(log.directory, 5_000_000_000)
    watched.age_ns = RECENT_COARSE_NS - 1
    assert watched.stamp() is None
    watched.age_ns = RECENT_COARSE_NS
    assert watched.stamp() is not None


def test_a_directory_that_cannot_be_read_has_no_stamp(log: LogWriter) -> None:
    watch = DirectoryWatch(str(log.directory))
    shutil.rmtree(log.directory)
    assert watch.stamp() is None
