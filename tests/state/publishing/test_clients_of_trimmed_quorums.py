"""Clients of a quorum whose kraft log was trimmed by the snapshots that its node writes."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
from tests.support.controller_nodes import eventually
from tests.support.rival_changes import replayed_image
from tests.support.served_node import served_node

import raftlog
from raftlog.errors import DataLossError
from raftlog_state import apply_changes
from raftlog_state.cli.controller_node import create_publishers
from raftlog_state.image import MetadataImage, TopicRow
from raftlog_state.publishing import PublishingLoader

SETTINGS = """[log]
values = "kraft"
segment_bytes = 4096
retention_bytes = 8192
[snapshots]
bytes_max = 4000
"""
FIRST = [
    {"change": "set_feature", "feature": "metadata.version", "level": 30},
    {"change": "register_broker", "broker_id": 1, "endpoints": {"CLIENT": "localhost:9092"}},
    {"change": "unfence_broker", "broker_id": 1},
]
TOPICS = 60


def topic(number: int) -> dict[str, object]:
    name = f"t{number}"
    return {"change": "create_topic", "topic": name, "partitions": 3, "replication_factor": 1}


def test_a_new_client_begins_at_the_snapshot_of_a_trimmed_quorum(tmp_path: Path) -> None:
    images: list[MetadataImage] = []

    def change(bootstrap: str) -> None:
        with raftlog.connect(bootstrap) as log:
            apply_changes(log, FIRST)
            for number in range(TOPICS):
                apply_changes(log, [topic(number)])

    def read(bootstrap: str) -> None:
        with raftlog.connect(bootstrap) as log:
            assert log.log_start_offset > 0
            (snapshot_id,) = log.snapshots
            assert snapshot_id.end_offset >= log.log_start_offset
            images.append(replayed_image(log))
            assert apply_changes(log, [topic(TOPICS)], attempts=1).record_count == 4
            images.append(replayed_image(log))
            with pytest.raises(DataLossError, match=f"the log begins at {log.log_start_offset}"):
                list(log.read(0))

    async def run() -> MetadataImage:
        async with served_node(tmp_path, SETTINGS, services=[create_publishers]) as served:
            replica = served.node.raft_node.replica
            (service,) = served.node.services
            loader = service.listener
            assert isinstance(loader, PublishingLoader)
            bootstrap = f"127.0.0.1:{served.port}"
            await asyncio.to_thread(change, bootstrap)

            def is_trimmed() -> bool:
                if list(tmp_path.rglob("*.part")):
                    return False  # a snapshot is being written
                replica.clean(time_ms=time.time_ns() // 1_000_000)
                return replica.log.log_start_offset > 0

            await eventually(is_trimmed)
            await asyncio.to_thread(read, bootstrap)
            assert not [one for one in served.lines("metadata") if one["level"] == "error"]
            return loader.image

    last = asyncio.run(run())
    before, after = images
    assert len(before.rows_of(TopicRow)) == TOPICS
    assert len(after.rows_of(TopicRow)) == TOPICS + 1
    assert after == last
