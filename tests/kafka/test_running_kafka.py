"""A running Kafka, read through the Spark stream into Delta, equals its admin client's view."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.kafka import KafkaNode, running_node
from tests.support.kafka_state import ordered

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

ROUNDS_MAX = 30
SMALL_FILES = (
    "internal.metadata.log.segment.bytes=16384",
    "metadata.log.max.record.bytes.between.snapshots=16384",
)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaNode]:
    with running_node(tmp_path_factory.mktemp("kafka"), *SMALL_FILES) as node:
        yield node


def follow_until(tables: Any, node: KafkaNode, checkpoint: Path, offset: int) -> None:
    """Run the stream over the available records until `offset` is applied."""
    for _ in range(ROUNDS_MAX):
        query = tables.materialize(
            {"path": str(node.log_dir), "tailHoldback": "0s"},
            checkpoint=str(checkpoint),
            trigger="availableNow",
        )
        query.awaitTermination()
        if tables.latest().offset >= offset:
            return
    raise AssertionError(f"offset {offset} was not reached")


def rows(frame: Any, *columns: str) -> list[list[Any]]:
    return ordered(frame.select(*columns).collect())


def assert_equal_to_the_admin_client(view: Any, described: dict[str, Any]) -> None:
    partitions = rows(
        view.partitions(), "topic_name", "topic_id", "partition_id", "leader", "replicas", "isr"
    )
    assert partitions == ordered(described["partitions"])
    configs = rows(view.configs(), "resource_type", "resource_name", "name", "value")
    assert configs == ordered(described["configs"])
    acls = rows(
        view.acls(),
        "resource_type",
        "resource_name",
        "pattern_type",
        "principal",
        "host",
        "operation",
        "permission",
    )
    assert acls == ordered(described["acls"])
    quotas = [
        [dict(row.entity), row.quota, row.value]
        for row in view.quotas().select("entity", "quota", "value").collect()
    ]
    assert ordered(quotas) == ordered(described["quotas"])
    assert rows(view.scram(), "user", "mechanism", "iterations") == ordered(described["scram"])
    features = {row.name: row.level for row in view.features().collect()}
    kraft_version = described["features"].pop("kraft.version")  # it is in control records
    assert features == described["features"]
    assert {row.kraft_version for row in view.epochs().collect()} == {kraft_version}
    assert {row.broker_id for row in view.brokers().collect() if not row.fenced} == {1}


def test_tables_that_follow_a_running_kafka_equal_its_admin_clients_view(
    spark: Any, node: KafkaNode, tmp_path: Path
) -> None:
    from raftlog_state.tables import open_cluster

    tables = open_cluster(spark, str(tmp_path / "tables"))
    node.admin("create")
    described = node.admin("describe")
    follow_until(tables, node, tmp_path / "checkpoint", described["high_watermark"] - 1)
    assert_equal_to_the_admin_client(tables.latest(), described)

    node.admin("change")
    described = node.admin("describe")
    follow_until(tables, node, tmp_path / "checkpoint", described["high_watermark"] - 1)
    assert_equal_to_the_admin_client(tables.latest(), described)
    report = tables.verify()
    assert report.ok, report


def test_the_running_node_was_not_disturbed(node: KafkaNode) -> None:
    """Its directory has no file of raftlog, and it still accepts changes."""
    kinds = {path.suffix for path in (node.log_dir / "__cluster_metadata-0").iterdir()}
    assert kinds <= {
        ".log",
        ".index",
        ".timeindex",
        ".snapshot",
        ".checkpoint",
        ".metadata",
        ".deleted",
        "",
    }
    assert node.admin("wait") == node.admin("describe")["cluster_id"]


def test_the_command_line_reads_a_running_node(node: KafkaNode, capfd: Any) -> None:
    from raftlog_state.cli.main import main

    assert main(["check", str(node.log_dir)]) == 0
    capfd.readouterr()
    assert main(["state", str(node.log_dir), "topics"]) == 0
    printed = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    names = {partition[0] for partition in node.admin("describe")["partitions"]}
    assert {row["name"] for row in printed} == names
