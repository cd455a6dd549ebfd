"""The controller of a running Apache Kafka, read over the network: equal to its directory."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from itertools import count, islice
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from tests.support.cli import rows, run
from tests.support.kafka import KafkaNode, running_node
from tests.support.quorum_processes import eventually

import raftlog
from raftlog.client import EndBasis, Isolation, LogKind, LogReader, SourceKind, open_path
from raftlog.client.remote.log import RemoteLog
from raftlog.errors import DataLossError, NodeRefusedError, OffsetOutOfRangeError
from raftlog_state.loader.image_reader import ImageReader
from raftlog_state.records import Redactor

pytestmark = pytest.mark.kafka

SMALL_FILES = (
    "internal.metadata.log.segment.bytes=16384",
    "metadata.log.max.record.bytes.between.snapshots=16384",
)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaNode]:
    with running_node(tmp_path_factory.mktemp("kafka"), *SMALL_FILES) as node:
        yield node


@pytest.fixture
def remote(node: KafkaNode) -> RemoteLog:
    return raftlog.follow(node.controller)


def batches(log: LogReader, start: int, end: int) -> list[object]:
    return [
        (
            batch.base_offset,
            batch.leader_epoch,
            batch.is_control,
            [(one.offset, one.timestamp_ms, one.key, one.value) for one in batch.records()],
        )
        for batch in log.batches(start, end)
    ]


def test_the_log_is_the_cluster_metadata_up_to_the_high_watermark(
    node: KafkaNode, remote: RemoteLog
) -> None:
    assert (remote.topic, remote.partition) == ("__cluster_metadata", 0)
    assert (remote.kind, remote.source, remote.is_raftlog) == (
        LogKind.METADATA,
        SourceKind.QUORUM,
        False,
    )
    end = remote.read_end(isolation=Isolation.READ_COMMITTED)
    assert end.basis is EndBasis.HIGH_WATERMARK
    assert "committed" in end.explanation
    files = open_path(str(node.log_dir))
    assert remote.cluster_id == files.cluster_id
    assert end.offset <= files.log_end_offset
    assert remote.epochs == files.epochs
    start = remote.log_start_offset
    assert batches(remote, start, end.offset) == batches(files, start, end.offset)


def test_plans_are_those_of_its_directory(node: KafkaNode, remote: RemoteLog) -> None:
    node.admin("create")
    remote.refresh()
    start, end = remote.log_start_offset, remote.log_end_offset
    files = open_path(str(node.log_dir))
    committed = Isolation.READ_COMMITTED
    for slices in (1, 3):
        ours = remote.plan(start, end, isolation=committed, max_splits=slices)
        theirs = files.plan(start, end, isolation=committed, max_splits=slices)
        assert ours == theirs
    assert any(piece.spans for piece in ours.splits), "Kafka's own bootstrap is a transaction"
    begins = [batch.base_offset for batch in files.batches(start, end)]
    for limit in range(1, 12):
        for offset in begins[::5]:
            found = remote.next_boundary(offset, end_offset=end, max_records=limit)
            assert found == files.next_boundary(offset, end_offset=end, max_records=limit)
            size = 100 * limit
            found = remote.next_boundary(offset, end_offset=end, max_bytes=size)
            assert found == files.next_boundary(offset, end_offset=end, max_bytes=size)
    ours_at = remote.offset_for_timestamp(0)
    assert ours_at == files.offset_for_timestamp(0)
    with pytest.raises(OffsetOutOfRangeError):
        remote.plan(start, end + 1000, isolation=committed)


def test_its_snapshot_and_the_log_after_it_give_the_state(node: KafkaNode) -> None:
    """The node takes a snapshot between changes of topics; then its log starts above 0."""

    admin = AdminClient({"bootstrap.servers": node.bootstrap})
    names = (f"topic-{number}" for number in count())

    def grown() -> RemoteLog | None:
        topics = [NewTopic(name, 3, 1) for name in islice(names, 20)]
        for created in admin.create_topics(topics).values():
            created.result(60)
        log = raftlog.follow(node.controller)
        return log if log.snapshots else None

    remote = eventually(grown, "a snapshot", patience_s=120)
    files = open_path(str(node.log_dir))
    (newest,) = remote.snapshots
    assert newest in files.snapshots
    ours = [one for batch in remote.read_snapshot(newest).batches() for one in batch.records()]
    theirs = [one for batch in files.read_snapshot(newest).batches() for one in batch.records()]
    assert ours == theirs
    end = remote.read_end(isolation=Isolation.READ_COMMITTED).offset
    state = ImageReader(remote, Redactor()).image_at(end)
    assert state == ImageReader(str(node.log_dir), Redactor()).image_at(end)
    with pytest.raises(DataLossError):
        list(remote.scan(0, end))


def test_the_command_line_prints_the_same_for_a_controller_and_its_files(
    node: KafkaNode, tmp_path: Path
) -> None:
    nodes, files = ("--bootstrap-server", node.controller), str(node.log_dir)
    live = raftlog.follow(node.controller)
    start, end = live.log_start_offset, live.log_end_offset
    of_cat = ("--control", "--noop", "--from", str(start), "--to", str(end))
    assert rows("cat", *nodes, *of_cat) == rows("cat", files, *of_cat)
    for kind in ((), ("topics",), ("configs",)):
        at = ("--at", str(end))
        printed = run("state", *kind, *nodes, *at)
        assert printed[:2] == (0, run("state", files, *kind, *at)[1])
    changes = ("--from", str(end - 1), "--to", str(end))
    assert rows("diff", *nodes, *changes) == rows("diff", files, *changes)
    checkpoints = (tmp_path / "a.checkpoint", tmp_path / "b.checkpoint")
    for where, path in zip((nodes, (files,)), checkpoints, strict=True):
        (written,) = rows("snapshot", *where, path, "--at", str(end), "--reveal")
        assert written["end_offset"] == end
    of_nodes, of_files = (
        [(row["type"], row["data"]) for row in rows("cat", path)] for path in checkpoints
    )
    assert of_nodes == of_files


def test_a_brokers_listener_is_refused(node: KafkaNode) -> None:
    with pytest.raises(NodeRefusedError, match="topics"):
        raftlog.follow(node.bootstrap, timeout_ms=5000)
    with pytest.raises(NodeRefusedError):
        raftlog.connect(node.controller, timeout_ms=5000)


def test_no_thread_is_left_running(node: KafkaNode) -> None:
    before = set(threading.enumerate())
    log = raftlog.follow(node.controller)
    assert log.log_end_offset > 0
    (thread,) = set(threading.enumerate()) - before
    del log
    gc.collect()
    eventually(lambda: not thread.is_alive(), "the thread ends with its last handle")
