"""Tasks read the remote segments of a log from its object store."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

import raftlog
from pyspark_raftlog.options import RaftlogOptions
from pyspark_raftlog.reader import RaftlogReader
from pyspark_raftlog.stream_reader import RaftlogStreamReader
from raftlog.storage.errors import RemoteObjectNotFoundError

VALUES = [b"%0100d" % at for at in range(60)]


@pytest.fixture
def log(tmp_path: Path) -> raftlog.EmbeddedLog:
    config = raftlog.LogConfig(
        segment_bytes=2_000,
        remote_storage_enable=True,
        remote_storage_uri=str(tmp_path / "remote"),
        local_retention_bytes=2_500,
    )
    log = raftlog.open(tmp_path / "orders-0", config=config)
    for value in VALUES:
        log.append([value])
    return log


def local_start(log: raftlog.EmbeddedLog) -> int:
    return min(int(path.stem) for path in Path(log.path).glob("*.log"))


def test_tasks_that_were_planned_before_a_deletion_read_the_store(
    log: raftlog.EmbeddedLog,
) -> None:
    options = RaftlogOptions.parse({"path": log.path, "minPartitions": "4"})
    planned = RaftlogReader(options, ("offset", "value")).partitions()
    log.clean()
    assert local_start(log) > 20
    for partitions in (planned, RaftlogReader(options, ("offset", "value")).partitions()):
        assert len(partitions) == 4
        found = []
        for one in partitions:
            task = pickle.loads(pickle.dumps(RaftlogReader(options, ("offset", "value"))))
            for batch in task.read(pickle.loads(pickle.dumps(one))):
                found += batch.column("value").to_pylist()
        assert [value for value in found if value in VALUES] == VALUES


def test_a_stream_continues_while_segments_are_copied_and_deleted(
    log: raftlog.EmbeddedLog,
) -> None:
    settings = {"startingOffset": "earliest", "maxOffsetsPerTrigger": "7", "path": log.path}
    reader = RaftlogStreamReader(RaftlogOptions.parse(settings), ("offset", "value"))
    start, found = reader.initialOffset(), []
    for _ in range(30):
        end = reader.latestOffset(start, reader.getDefaultReadLimit())
        if end == start:
            break
        for one in reader.partitions(start, end):
            for batch in reader.read(one):
                found += batch.column("value").to_pylist()
        start = end
        log.clean()
    assert local_start(log) > 20
    assert [value for value in found if value in VALUES] == VALUES


def test_an_object_that_is_missing_fails_the_task(log: raftlog.EmbeddedLog) -> None:
    log.clean()
    options = RaftlogOptions.parse({"path": log.path})
    (one,) = RaftlogReader(options, ("offset", "value")).partitions()
    for path in (Path(log.path).parent / "remote").rglob("0000*-*.log"):
        path.unlink()
    with pytest.raises(RemoteObjectNotFoundError):
        list(RaftlogReader(options, ("offset", "value")).read(one))
