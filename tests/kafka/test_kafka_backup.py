"""Kafka starts from a backup of when it was running, and prints the manifest."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer
from tests.support.cli import rows, run
from tests.support.kafka import KafkaNode, formatted, read_values, run_java, running_node

pytestmark = pytest.mark.kafka

LOGS = ("__cluster_metadata-0", "orders-0")
VALUES = [f"order {at}" for at in range(200)]


def produce(node: KafkaNode, values: list[str]) -> None:
    producer = Producer({"bootstrap.servers": node.bootstrap})
    for value in values:
        producer.produce("orders", value.encode(), partition=0)
    assert producer.flush(60) == 0


def abort(node: KafkaNode, values: list[str]) -> None:
    producer = Producer({"bootstrap.servers": node.bootstrap, "transactional.id": "aborting"})
    producer.init_transactions(120)
    producer.begin_transaction()
    for value in values:
        producer.produce("orders", value.encode(), partition=0)
    producer.flush(60)
    producer.abort_transaction(60)


def back_up(node: KafkaNode, location: Path) -> None:
    location.mkdir(exist_ok=True)
    for name in LOGS:
        assert run("backup", node.log_dir / name, location / name)[0] == 0


def check_manifest(node: KafkaNode, manifest: Path) -> None:
    """Compare what Kafka's tool and raftlog print of each object."""
    printed = rows("state", manifest, "remote_segments")
    assert {row["state"] for row in printed} == {"CopySegmentFinished"}
    count = 0
    for path in manifest.glob("*/*.log"):
        text = run_java(
            node.jars,
            "org.apache.kafka.tools.DumpLogSegments",
            *("--remote-log-metadata-decoder", "--files", str(path)),
        )
        assert text.count("isvalid: true") == text.count("isvalid:") == 1
        count += text.count("RemoteLogSegmentMetadata{")
    assert count == len(printed)


def test_kafka_starts_from_directories_that_were_restored(tmp_path: Path) -> None:
    location, data = tmp_path / "backups", tmp_path / "second" / "data"
    (tmp_path / "first").mkdir()
    data.mkdir(parents=True)
    with running_node(tmp_path / "first") as node:
        produce(node, VALUES[:150])
        back_up(node, location)
        produce(node, VALUES[150:])
        back_up(node, location)
        client, controller = (int(one.split(":")[1]) for one in (node.bootstrap, node.controller))
        check_manifest(node, location / "orders-0" / "manifest")
    shutil.copy(node.log_dir / "meta.properties", data)
    for name in LOGS:
        assert run("restore", location / name, data / name)[0] == 0
        assert run("check", data / name)[0] == 0
    segment = "orders-0/00000000000000000000.log"
    assert (data / segment).read_bytes() == (node.log_dir / segment).read_bytes()
    with formatted(data, client, controller) as node:
        consumer = Consumer(
            {"bootstrap.servers": node.bootstrap, "group.id": "a", "auto.offset.reset": "earliest"}
        )
        consumer.subscribe(["orders"])
        assert read_values(consumer, len(VALUES), patience_s=120) == VALUES


def test_aborted_records_are_hidden_after_a_restore_into_a_stopped_broker(tmp_path: Path) -> None:
    with running_node(tmp_path) as node:
        produce(node, VALUES[:100])
        abort(node, ["aborted 1", "aborted 2"])
        produce(node, VALUES[100:])
        client, controller = (int(one.split(":")[1]) for one in (node.bootstrap, node.controller))
    log = node.log_dir / "orders-0"
    assert (node.log_dir / ".kafka_cleanshutdown").exists()
    assert run("backup", log, tmp_path / "backups")[0] == 0
    shutil.rmtree(log)
    assert run("restore", tmp_path / "backups", log)[0] == 0
    with formatted(node.log_dir, client, controller) as node:
        settings = {"group.id": "a", "auto.offset.reset": "earliest"}
        settings["isolation.level"] = "read_committed"
        consumer = Consumer({"bootstrap.servers": node.bootstrap, **settings})
        consumer.subscribe(["orders"])
        assert read_values(consumer, len(VALUES), patience_s=120) == VALUES
