"""Nodes in processes of their own keep the older segments of their log in one object store."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import raftlog
from tests.support.cli import run
from tests.support.kafka import kafka_jars, run_java
from tests.support.quorum_processes import QuorumProcesses, eventually

VALUES = [b"%0100d" % at for at in range(60)]


DELETED = 20
"""Offset below which an administrator deletes records."""


def delete_by_librdkafka(bootstrap: str, _: Path) -> int:
    """Delete the records below ``DELETED``; return the low watermark in the response."""
    from confluent_kafka import TopicPartition
    from confluent_kafka.admin import AdminClient

    admin = AdminClient({"bootstrap.servers": bootstrap})
    (future,) = admin.delete_records([TopicPartition("raftlog", 0, DELETED)]).values()
    return int(future.result(30).low_watermark)


def delete_by_kafka(bootstrap: str, home: Path) -> int:
    """As ``delete_by_librdkafka``, with kafka-delete-records."""
    partitions = [{"topic": "raftlog", "partition": 0, "offset": DELETED}]
    offsets = home / "offsets.json"
    offsets.write_text(json.dumps({"version": 1, "partitions": partitions}))
    tool = "org.apache.kafka.tools.DeleteRecordsCommand"
    at = ("--bootstrap-server", bootstrap, "--offset-json-file", str(offsets))
    printed = run_java(kafka_jars(), tool, *at)
    return int(printed.partition("partition: raftlog-0\tlow_watermark: ")[2])


@pytest.mark.parametrize(
    "delete",
    [
        pytest.param(delete_by_librdkafka, marks=pytest.mark.slow),
        pytest.param(delete_by_kafka, marks=pytest.mark.kafka),
    ],
)
def test_processes_copy_and_delete_and_every_record_is_read_also_from_the_next_leader(
    tmp_path: Path, delete: Callable[[str, Path], int]
) -> None:
    remote = tmp_path / "remote"
    log = (
        "[log]\nsegment_bytes = 2000\nlocal_retention_bytes = 2500\n"
        f'remote_storage_enable = true\nremote_storage_uri = "{remote}"\n'
    )
    keys = "retention_check_interval_ms = 300\n"
    with QuorumProcesses(tmp_path / "nodes", extra=log, node_keys=keys) as quorum:
        with raftlog.connect(quorum.bootstrap) as writer:
            for value in VALUES:
                writer.append([value])

        def local_starts() -> list[int]:
            found = []
            for node in quorum.nodes:
                directory = node.directory / "raftlog-0"
                found.append(min(int(path.stem) for path in directory.glob("*.log")))
            return found

        eventually(lambda: min(local_starts()) > 20, "all nodes delete local segments")
        with raftlog.connect(quorum.bootstrap) as log_of_nodes:
            assert [one.value for one in log_of_nodes.read() if one.value] == VALUES
            leader = quorum.node(log_of_nodes.leader_id)
            left = [one.value for one in log_of_nodes.read(DELETED) if one.value]
        assert delete(quorum.bootstrap, tmp_path) == DELETED

        def first_objects() -> list[int]:
            return sorted(int(path.name[:20]) for path in remote.glob("raftlog-0-*/*.log"))[:2]

        eventually(lambda: first_objects()[1] > DELETED, "the leader deletes the objects")
        leader.kill()
        with raftlog.connect(quorum.bootstrap) as log_of_nodes:
            log_of_nodes.append([b"last"])
            assert log_of_nodes.log_start_offset == DELETED
            read = [one.value for one in log_of_nodes.read() if one.value]
            assert read == [*left, b"last"]
        status, out, _ = run("cat", leader.directory / "raftlog-0")
        assert status == 0
        assert out.count("\n") >= len(left)
