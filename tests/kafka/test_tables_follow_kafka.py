"""Tables that follow a running controller without Spark equal its admin client's view."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.cli import run
from tests.support.kafka import KafkaNode, running_node
from tests.support.kafka_state import ordered

from raftlog_state.tables import open_tables

pytestmark = pytest.mark.kafka

SMALL_FILES = (
    "internal.metadata.log.segment.bytes=16384",
    "metadata.log.max.record.bytes.between.snapshots=16384",
)
COLUMNS = ["topic_name", "topic_id", "partition_id", "leader", "replicas", "isr"]


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaNode]:
    with running_node(tmp_path_factory.mktemp("kafka"), *SMALL_FILES) as node:
        yield node


@pytest.mark.parametrize("by_network", [True, False])
def test_tables_follow_a_running_controller(
    node: KafkaNode, tmp_path: Path, by_network: bool
) -> None:
    place = str(tmp_path / "tables")
    source = ("--bootstrap-server", node.controller) if by_network else (node.log_dir,)
    for action in ("create", "change") if by_network else ("describe",):
        node.admin(action)
        described = node.admin("describe")
        options = ("--once", "--tail-holdback-ms", "0")
        status, _, err = run("tables", "follow", *source, place, *options)
        assert status == 0, err
        tables = open_tables(place)
        assert tables.status().offset >= described["high_watermark"] - 1
        assert tables.status().cluster_id == described["cluster_id"]
        partitions = tables.latest().partitions().select(COLUMNS).to_pylist()
        found = [tuple(row.values()) for row in partitions]
        assert ordered(found) == ordered(described["partitions"])
