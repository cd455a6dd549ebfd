"""A record that contradicts the state, in the log of a node without a controller."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest
from tests.support.cli import run
from tests.support.controller_nodes import eventually
from tests.support.kafka import kafka_jars, run_java
from tests.support.node_metrics import Figures, metrics_at
from tests.support.quorum_processes import free_ports
from tests.support.rival_changes import replayed_image
from tests.support.served_node import served_node

import raftlog
from raftlog_state import apply_changes
from raftlog_state.cli.controller_node import create_publishers
from raftlog_state.errors import ReplayError
from raftlog_state.image import TopicRow
from raftlog_state.records import NO_OP_VALUE, RemoveTopicRecord, encode
from raftlog_state.records import DecodedRecord as Decoded

QUORUM_TOOL = "org.apache.kafka.tools.MetadataQuorumCommand"
FEATURE = {"change": "set_feature", "feature": "metadata.version", "level": 30}
CONTRADICTION = encode(Decoded(0, RemoveTopicRecord(topic_id="muSNo3lITFSJf4sY_teOaw")))


def settings(metrics_port: int, skip_rejected: str) -> str:
    return (
        '[log]\nvalues = "kraft"\nsegment_bytes = 4096\nretention_bytes = 8192\n[snapshots]\n'
        f"bytes_max = 4000\nskip_rejected = {skip_rejected}\n"
        f'[metrics]\naddress = "127.0.0.1:{metrics_port}"\n'
    )


def fill(bootstrap: str) -> int:
    """Append a contradiction among other records; return its offset."""
    with raftlog.connect(bootstrap) as log:
        apply_changes(log, [FEATURE])
        offset = log.append([CONTRADICTION]).base_offset
        with pytest.raises(ReplayError, match=f"RemoveTopicRecord at offset {offset}"):
            apply_changes(log, [FEATURE])
        for _ in range(30):
            log.append([NO_OP_VALUE] * 100)
        return offset


def describe(bootstrap: str) -> tuple[dict[str, Any], str]:
    """Return what `raftlog quorum` prints as JSON, and as a table."""
    node = ("--bootstrap-server", bootstrap)
    texts = [run("quorum", *node, *more)[1] for more in (("--json",), ())]
    return json.loads(texts[0]), texts[1]


def test_snapshots_stop_and_their_reason_has_the_remedy(tmp_path: Path) -> None:
    (port,) = free_ports(1)

    async def work() -> None:
        text = settings(port, "false")
        async with served_node(tmp_path, text, services=[create_publishers]) as served:
            bootstrap = f"127.0.0.1:{served.port}"
            offset = await asyncio.to_thread(fill, bootstrap)
            await eventually(lambda: "Not emitting" in served.all_lines)
            described, table = await asyncio.to_thread(describe, bootstrap)
            (warning,) = described["warnings"]
            assert warning.startswith("node 1 writes no snapshots: the log has 1 records that")
            assert f"is RemoveTopicRecord at offset {offset}: " in warning
            assert "skip_rejected = true in [snapshots]" in warning
            assert table.splitlines()[-1] == f"warning: {warning}"
            levels = [(one["level"], one["reason"]) for one in served.lines("metadata")]
            fault, disabled, *due = levels
            assert fault[0] == "error"
            assert fault[1].startswith(f"Error loading metadata log record from offset {offset}")
            assert disabled[1].startswith("Snapshots are disabled, so the log is not trimmed; ")
            assert due
            found: Figures = await asyncio.to_thread(metrics_at, port)
            assert found["raftlog_snapshots_disabled",] == 1
            assert found["raftlog_metadata_records_rejected",] == 1
            assert found["raftlog_metadata_errors_total",] == 1
            assert found["raftlog_snapshot_bytes",] == 0
            end = served.node.raft_node.replica.log.end_offset
            assert found["raftlog_metadata_applied_offset",] == end - 1
            assert not served.node.raft_node.replica.log.snapshots

    asyncio.run(work())


@pytest.mark.kafka
def test_kafkas_tool_describes_a_quorum_that_has_warnings(tmp_path: Path) -> None:
    jars = kafka_jars()
    (port,) = free_ports(1)

    async def work() -> None:
        text = settings(port, "false")
        async with served_node(tmp_path, text, services=[create_publishers]) as served:
            bootstrap = f"127.0.0.1:{served.port}"
            await asyncio.to_thread(fill, bootstrap)
            await eventually(lambda: "Not emitting" in served.all_lines)
            described, _ = await asyncio.to_thread(describe, bootstrap)
            assert described["warnings"]
            for where in ("--bootstrap-server", "--bootstrap-controller"):
                status, replication = [
                    await asyncio.to_thread(
                        run_java, jars, QUORUM_TOOL, where, bootstrap, "describe", *what
                    )
                    for what in (("--status",), ("--replication",))
                ]
                assert f"LeaderEpoch:            {described['epoch']}\n" in status
                (replica,) = replication.splitlines()[1:]
                assert replica.split()[0] == "1"

    asyncio.run(work())


def test_with_permission_the_log_is_trimmed_and_readers_start_at_the_snapshot(
    tmp_path: Path,
) -> None:
    (port,) = free_ports(1)

    def change(bootstrap: str) -> None:
        topic = {
            "change": "create_topic",
            "topic": "t",
            "partitions": 1,
            "replication_factor": 1,
        }
        with raftlog.connect(bootstrap) as log:
            broker = {"change": "register_broker", "broker_id": 1, "endpoints": {"C": "h:1"}}
            apply_changes(log, [broker, {"change": "unfence_broker", "broker_id": 1}])
            apply_changes(log, [topic])
            assert [row.name for row in replayed_image(log).rows_of(TopicRow)] == ["t"]

    async def work() -> None:
        text = settings(port, "true")
        async with served_node(tmp_path, text, services=[create_publishers]) as served:
            bootstrap, replica = f"127.0.0.1:{served.port}", served.node.raft_node.replica
            offset = await asyncio.to_thread(fill, bootstrap)

            def is_trimmed() -> bool:
                if not list(tmp_path.rglob("*.part")):  # no snapshot is being written
                    replica.clean(time_ms=time.time_ns() // 1_000_000)
                return replica.log.log_start_offset > offset

            await eventually(is_trimmed)
            await asyncio.to_thread(change, bootstrap)
            described, _ = await asyncio.to_thread(describe, bootstrap)
            assert described["warnings"] == []
            found: Figures = await asyncio.to_thread(metrics_at, port)
            assert found["raftlog_snapshots_disabled",] == 0
            assert found["raftlog_metadata_records_rejected",] == 1
            assert found["raftlog_snapshot_bytes",] > 0

    asyncio.run(work())
