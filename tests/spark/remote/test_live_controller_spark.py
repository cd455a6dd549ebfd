"""Tables that follow a running Kafka controller by network equal its admin client's view."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.kafka import KafkaNode, running_node
from tests.support.kafka_state import ordered

pytestmark = [pytest.mark.kafka, pytest.mark.spark]


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaNode]:
    files = "internal.metadata.log.segment.bytes=16384"
    snapshots = "metadata.log.max.record.bytes.between.snapshots=16384"
    with running_node(tmp_path_factory.mktemp("kafka"), files, snapshots) as node:
        yield node


def test_tables_follow_a_controller_over_the_network(
    spark: Any, node: KafkaNode, tmp_path: Path
) -> None:
    from raftlog_state.tables import open_cluster

    tables = open_cluster(spark, str(tmp_path / "tables"))
    for action in ("create", "change"):
        node.admin(action)
        described = node.admin("describe")
        query = tables.materialize(
            {"bootstrap.servers": node.controller},
            checkpoint=str(tmp_path / "checkpoint"),
            trigger="availableNow",
        )
        query.awaitTermination()
        assert tables.latest().offset >= described["high_watermark"] - 1
        found = tables.latest().partitions()
        columns = ("topic_name", "topic_id", "partition_id", "leader", "replicas", "isr")
        assert ordered(found.select(*columns).collect()) == ordered(described["partitions"])
    report = tables.verify()
    assert report.ok, report
    rows = spark.read.format("raftlog").option("kafka.bootstrap.servers", node.controller).load()
    assert rows.filter("recordType = 'TOPIC_RECORD'").count() > 0
