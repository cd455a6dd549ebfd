"""All readers of an embedded log with remote storage see the whole log."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.support.cli import run
from tests.support.clock import StoppedClock

import raftlog
from raftlog import LogConfig
from raftlog.client.embedded.directory import configure
from raftlog.client.embedded.writer import CLEAN_INTERVAL_MS
from raftlog.errors import OptionError
from raftlog.storage.errors import RemoteObjectNotFoundError


def config(remote: Path) -> LogConfig:
    return LogConfig(
        segment_bytes=2_000,
        remote_storage_enable=True,
        remote_storage_uri=str(remote),
        local_retention_bytes=2_500,
    )


def values(log: object) -> list[bytes]:
    assert isinstance(log, raftlog.EmbeddedLog)
    return [record.value for record in log.read() if record.value is not None]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Return a log whose older segments are only in its store."""
    path = tmp_path / "orders-0"
    with raftlog.open(path, config=config(tmp_path / "remote")) as handle:
        for at in range(60):
            handle.append([b"%0100d" % at])
        assert handle.clean()
        assert handle.remote_counts is not None
        assert handle.remote_counts.copied_segments > 3
    return path


EXPECTED = [b"%0100d" % at for at in range(60)]


def local_bases(path: Path) -> list[int]:
    return sorted(int(one.stem) for one in path.glob("*.log"))


def test_every_reader_sees_the_whole_log(log: Path) -> None:
    assert local_bases(log)[0] > 20
    with raftlog.open(log) as handle:
        assert handle.log_start_offset == 0
        assert values(handle) == EXPECTED
        handle.append([b"last"])
        assert values(handle) == [*EXPECTED, b"last"]
        assert next(iter(handle.read(5))).offset == 5
    status, out, _ = run("cat", log)
    assert status == 0
    lines = [json.loads(line) for line in out.splitlines()]
    assert [one["offset"] for one in lines if one.get("offset") is not None] == list(range(1, 62))
    assert run("check", log)[0] == 0


def test_a_handle_that_was_open_before_reads_on(tmp_path: Path) -> None:
    path = tmp_path / "orders-0"
    with raftlog.open(path, config=config(tmp_path / "remote")) as handle:
        reader = raftlog.open(path)
        for at in range(60):
            handle.append([b"%0100d" % at])
        assert values(reader) == EXPECTED
        handle.clean()
        assert local_bases(path)[0] > 20
        assert values(reader) == EXPECTED
        reader.close()


def test_appends_copy_in_a_thread_at_the_interval_of_retention(tmp_path: Path) -> None:
    path, clock = tmp_path / "orders-0", StoppedClock()
    with raftlog.open(path, config=config(tmp_path / "remote"), clock=clock.as_clock()) as handle:
        for at in range(60):
            handle.append([b"%0100d" % at])
        clock.sleep_ms(CLEAN_INTERVAL_MS)
        handle.append([b"x"])
    with raftlog.open(path) as handle:
        handle.clean()
        assert values(handle) == [*EXPECTED, b"x"]
    assert list((tmp_path / "remote").rglob("*.log"))


def test_remote_storage_is_enabled_and_disabled_by_its_settings(tmp_path: Path) -> None:
    path = tmp_path / "orders-0"
    with raftlog.open(path, config=LogConfig(segment_bytes=2_000)) as handle:
        for at in range(60):
            handle.append([b"%0100d" % at])
        with pytest.raises(OptionError, match=r"required by remote\.storage\.enable"):
            configure(path, {"remote.storage.enable": "true"})
        configure(
            path,
            {
                "remote.storage.enable": "true",
                "remote.storage.uri": str(tmp_path / "remote"),
                "local.retention.bytes": "2500",
            },
        )
        assert handle.clean()
        assert local_bases(path)[0] > 20
        configure(path, {"remote.storage.enable": "false"})
        assert not handle.clean()
        assert values(handle) == EXPECTED


def test_a_log_whose_objects_are_deleted_is_an_error_with_an_exit_code(log: Path) -> None:
    for path in (log.parent / "remote").rglob("0000*-*.log"):
        path.unlink()
    with raftlog.open(log) as handle, pytest.raises(RemoteObjectNotFoundError):
        values(handle)
    status, _, err = run("cat", log)
    assert status != 0
    assert "does not exist: it was deleted" in err
    assert "Traceback" not in err
