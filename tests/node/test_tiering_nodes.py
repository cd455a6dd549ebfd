"""Nodes in processes of their own keep the older segments of their log in one object store."""

from __future__ import annotations

from pathlib import Path

import raftlog
from tests.support.cli import run
from tests.support.quorum_processes import QuorumProcesses, eventually

VALUES = [b"%0100d" % at for at in range(60)]


def test_processes_copy_and_delete_and_every_record_is_read_also_from_the_next_leader(
    tmp_path: Path,
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
        leader.kill()
        with raftlog.connect(quorum.bootstrap) as log_of_nodes:
            log_of_nodes.append([b"last"])
            read = [one.value for one in log_of_nodes.read() if one.value]
            assert read == [*VALUES, b"last"]
        status, out, _ = run("cat", leader.directory / "raftlog-0")
        assert status == 0
        assert out.count("\n") >= len(VALUES)
