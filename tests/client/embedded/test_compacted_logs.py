"""Logs with ``cleanup.policy=compact``, by the public interface."""

from __future__ import annotations

import gc
import threading
import weakref
from concurrent.futures import Future
from contextlib import closing
from pathlib import Path

import pytest
from tests.support.appending import TOPIC_ID
from tests.support.clock import StoppedClock
from tests.support.quorum_processes import eventually

import raftlog
from raftlog.client.embedded.directory import configure, read_settings
from raftlog.client.embedded.handle import EmbeddedLog, open_embedded
from raftlog.client.embedded.writer import CLEAN_INTERVAL_MS
from raftlog.errors import InvalidAppendError, OptionError
from raftlog.log.reading.transactions import ValueKind
from raftlog.log.writing.properties import CleanupPolicy, LogConfig
from raftlog.log.writing.quorum_log import QuorumLog
from raftlog.storage.local import WritableLocalStorage

COMPACTED = LogConfig(
    segment_bytes=2_000, cleanup_policy=CleanupPolicy.COMPACT, min_cleanable_dirty_ratio=0.0
)


def fill(log: EmbeddedLog, count: int = 100) -> dict[bytes, bytes]:
    """Append records of seven keys; return the last value of each."""
    last = {}
    for at in range(count):
        key, value = b"key %d" % (at % 7), b"%d" % at + b"v" * 50
        log.append([(key, value)])
        last[key] = value
    return last


def table(log: EmbeddedLog) -> dict[bytes, bytes]:
    return {one.key or b"": one.value or b"" for one in log.read()}


def test_clean_compacts_and_appends_keep_their_conditions(tmp_path: Path) -> None:
    with open_embedded(tmp_path / "state-0", config=COMPACTED) as log:
        result = log.append([(b"named", b"1")], commit=("app", "query", 1))
        last = fill(log)
        end = log.end_offset
        count = len(list(log.read()))
        assert log.clean()
        assert not log.clean()
        assert log.end_offset == end
        assert len(list(log.read())) < count / 2
        assert table(log) == last | {b"named": b"1"}
        again = log.append([(b"named", b"1")], commit=("app", "query", 1))
        assert (again.base_offset, again.was_duplicate) == (result.base_offset, True)
        assert log.append([(b"k", b"v")], required_base_offset=end).base_offset == end
    with open_embedded(tmp_path / "state-0") as log:
        assert table(log) == last | {b"named": b"1", b"k": b"v"}


def test_appends_start_a_compaction_every_few_minutes(tmp_path: Path) -> None:
    clock = StoppedClock()
    with open_embedded(tmp_path / "state-0", config=COMPACTED, clock=clock.as_clock()) as log:
        last = fill(log)
        count = len(list(log.read()))
        clock.at_ms += CLEAN_INTERVAL_MS
        log.append([(b"k", b"v")])
        eventually(lambda: len(list(log.read())) < count / 2, "the log is compacted")
        assert table(log) == last | {b"k": b"v"}
        cleaner = [one for one in threading.enumerate() if one.name == "raftlog-cleaner"]
        assert len(cleaner) <= 1


def test_an_append_succeeds_if_no_thread_can_be_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As at the exit of the interpreter; the next interval compacts the log."""
    clock = StoppedClock()
    with open_embedded(tmp_path / "state-0", config=COMPACTED, clock=clock.as_clock()) as log:
        fill(log)
        count = len(list(log.read()))

        def start(thread: threading.Thread) -> None:
            raise RuntimeError(f"can't start {thread.name}")

        clock.at_ms += CLEAN_INTERVAL_MS
        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", start)
            assert log.append([(b"k", b"v")]).base_offset
        clock.at_ms += CLEAN_INTERVAL_MS
        log.append([(b"k", b"v")])
        eventually(lambda: len(list(log.read())) < count / 2, "the log is compacted")


def test_close_ends_a_compaction(tmp_path: Path) -> None:
    clock = StoppedClock()
    log = open_embedded(tmp_path / "state-0", config=COMPACTED, clock=clock.as_clock())
    fill(log)
    clock.at_ms += CLEAN_INTERVAL_MS
    log.append([(b"k", b"v")])
    log.close()
    assert "raftlog-cleaner" not in [one.name for one in threading.enumerate()]
    assert not list((tmp_path / "state-0").glob("*.cleaned"))


def test_a_compaction_that_begins_for_a_caller_that_does_not_wait_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C while ``clean`` waits: the request was taken, so it is executed."""
    wait = Future.result
    interrupted: list[object] = []

    def interrupt(future: Future[object], timeout: float | None = None) -> object:
        found = wait(future, timeout)
        if not interrupted:
            interrupted.append(found)
            raise KeyboardInterrupt
        return found

    with open_embedded(tmp_path / "state-0", config=COMPACTED) as log:
        fill(log)
        with monkeypatch.context() as patched:
            patched.setattr(Future, "result", interrupt)
            with pytest.raises(KeyboardInterrupt):
                log._compact(30_000)
        assert interrupted != [None]
        assert log.clean(), "the lock of the cleaner is free"


def test_a_handle_that_is_not_closed_is_collected(tmp_path: Path) -> None:
    log = open_embedded(tmp_path / "state-0", config=COMPACTED)
    log.append([(b"k", b"v")])
    alive = weakref.ref(log)
    del log
    gc.collect()
    assert alive() is None


def test_a_record_without_a_key_is_refused(tmp_path: Path) -> None:
    with open_embedded(tmp_path / "state-0", config=COMPACTED) as log:
        for records in (b"value only", [(b"k", b"v"), (None, b"v")]):
            with pytest.raises(InvalidAppendError, match="needs a key"):
                log.append(records)
        log.append([(b"k", None)])
        assert [one.key for one in log.read()] == [b"k"]


def test_the_policy_is_a_setting(tmp_path: Path) -> None:
    path = tmp_path / "state-0"
    with open_embedded(path, config=LogConfig(segment_bytes=2_000)) as log:
        fill(log)
        assert not log.clean()
        configure(path, {"cleanup.policy": "delete, compact", "min.cleanable.dirty.ratio": "0.1"})
        assert read_settings(path)["cleanup.policy"] == "compact,delete"
        assert log.clean()
    for name, value in (
        ("cleanup.policy", "compress"),
        ("min.cleanable.dirty.ratio", "1.5"),
        ("min.cleanable.dirty.ratio", "nan"),
        ("delete.retention.ms", "-1"),
        ("max.compaction.lag.ms", "0"),
    ):
        with pytest.raises(OptionError, match=name):
            configure(path, {name: value})


def test_logs_of_metadata_are_not_compacted_and_those_of_stopped_nodes_may_be(
    tmp_path: Path,
) -> None:
    with pytest.raises(OptionError, match="no keys"):
        LogConfig(values=ValueKind.KRAFT, cleanup_policy=CleanupPolicy.COMPACT)
    with raftlog.open(tmp_path / "kraft-0", values="kraft"):
        pass
    with pytest.raises(OptionError, match="no keys"):
        configure(tmp_path / "kraft-0", {"cleanup.policy": "compact"})
    node = tmp_path / "raftlog-0"
    log = QuorumLog.create(
        WritableLocalStorage(),
        str(node),
        config=LogConfig(),
        topic_id=TOPIC_ID,
        now_ms=0,
    )
    log.close()
    (tmp_path / "meta.properties").write_text("version=1\n")
    changed = configure(node, {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.1"})
    assert changed["cleanup.policy"] == "compact"
    with closing(QuorumLog.open(WritableLocalStorage(), str(node), now_ms=0)) as opened:
        assert opened.config.cleanup_policy is CleanupPolicy.COMPACT
