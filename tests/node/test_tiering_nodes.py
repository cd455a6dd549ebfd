"""Nodes in processes of their own keep the older segments of their log in one object store."""

from __future__ import annotations

from pathlib import Path

import raftlog
from tests.support.cli import run
from tests.support.quorum_processes import QuorumProcesses, eventually

VALUES = [b"%0100d" % at for at in range(60)]


DELETED = 20
"""Offset below which an administrator deletes records."""


def test_processes_copy_and_delete_and_every_record_is_read_also_from_the_next_leader(
    tmp_path: Path,
) -> None:
    from confluent_kafka import TopicPartition
    from confluent_kafka.admin import AdminClient

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
        admin = AdminClient({"bootstrap.servers": quorum.bootstrap})
        (future,) = admin.delete_records([TopicPartition("raftlog", 0, DELETED)]).values()
        assert future.result(30).low_watermark == DELETED

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
