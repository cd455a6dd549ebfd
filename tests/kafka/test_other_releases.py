"""Metadata and groups of other Kafka releases: the tools and the admin client of each judge."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from tests.kafka.kafka_cluster import KafkaCluster
from tests.support.cli import rows, run
from tests.support.jars import KAFKA_NEWEST
from tests.support.kafka import KafkaNode, run_java
from tests.support.kafka_state import assert_same_access, ordered
from tests.support.quorum_processes import eventually

from raftlog_state.loader.image_reader import ImageReader
from raftlog_state.records import Redactor

pytestmark = pytest.mark.kafka

OLD_DUMP = "kafka.tools.DumpLogSegments"
RELEASES = {
    **dict.fromkeys(("3.3.2", "3.5.2", "3.7.2", "4.2.0"), OLD_DUMP),
    KAFKA_NEWEST: "org.apache.kafka.tools.DumpLogSegments",
}
"""The first release whose KRaft is for production, two between it and 3.9, one after 4.0, and the
newest, with the class of dump-log."""
ACCESS = """authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:ANONYMOUS
metadata.log.max.record.bytes.between.snapshots=2048
group.initial.rebalance.delay.ms=0
"""
GROUP = "readers"
COMMITTED = {("orders-1", 0): 7, ("orders-1", 1): 11, ("orders-2", 2): 1}


class Cluster(NamedTuple):
    """Directories of a stopped cluster, and what its admin client saw."""

    jars: Path
    dump: str
    metadata: Path
    data: Path
    described: dict[str, Any]


@pytest.fixture(scope="module", params=RELEASES)
def cluster(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    home = tmp_path_factory.mktemp(f"kafka-{request.param}")
    with KafkaCluster(home, request.param, is_dynamic=False, properties=ACCESS) as running:
        controller = running.new_server(3000, is_controller=True)
        broker = running.new_server(1, is_controller=False)
        running.configure()
        running.format()
        running.start()
        node = KafkaNode(broker.address, broker.log_dir, running.jars, controller.address)
        node.admin("create", "change")
        produce_and_commit(broker.address)
        described = node.admin("describe")
        checkpoints = controller.log_dir / "__cluster_metadata-0"
        eventually(lambda: any(checkpoints.glob("*.checkpoint")), "a snapshot", patience_s=60)
        broker.kill()
        controller.kill()
        dump = RELEASES[request.param]
        yield Cluster(running.jars, dump, controller.log_dir, broker.log_dir, described)


def produce_and_commit(bootstrap: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "compression.type": "zstd"})
    for number in range(40):
        producer.produce("orders-2", key=str(number % 3), value=str(number), partition=2)
    assert producer.flush(120) == 0
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": GROUP})
    offsets = [TopicPartition(*at, offset) for at, offset in COMMITTED.items()]
    consumer.commit(offsets=offsets, asynchronous=False)
    consumer.close()


def test_records_are_printed_as_by_the_releases_dump_log(cluster: Cluster) -> None:
    directory = cluster.metadata / "__cluster_metadata-0"
    files = sorted([*directory.glob("*.log"), *directory.glob("*.checkpoint")])
    for file in files:
        text = run_java(
            cluster.jars, cluster.dump, "--cluster-metadata-decoder", "--files", str(file)
        )
        lines = [line.partition(" payload: ")[2] for line in text.splitlines()]
        dumped = [line for line in lines if line.startswith('{"type"')]
        assert dumped
        found = rows("cat", file, "--noop", "--reveal")
        printed = [{name: one[name] for name in ("type", "version", "data")} for one in found]
        assert [json.dumps(one) for one in printed] == [
            json.dumps(json.loads(line)) for line in dumped
        ]


def test_the_state_is_what_the_admin_client_saw(cluster: Cluster) -> None:
    end = ("--at", str(cluster.described["high_watermark"]))
    columns = ("topic_name", "topic_id", "partition_id", "leader", "replicas", "isr")
    partitions = rows("state", cluster.metadata, "partitions", *end)
    described = cluster.described
    assert ordered([row[name] for name in columns] for row in partitions) == ordered(
        described["partitions"]
    )
    settings = ("resource_type", "resource_name", "name", "value")
    configs = rows("state", cluster.metadata, "configs", *end)
    assert ordered([row[name] for name in settings] for row in configs) == ordered(
        described["configs"]
    )
    features = rows("state", cluster.metadata, "features", *end)
    assert {row["name"]: row["level"] for row in features}.items() >= {
        name: level for name, level in described["features"].items() if name != "kraft.version"
    }.items()
    images = ImageReader(str(cluster.metadata), Redactor(reveal=True))
    assert_same_access(described, images.image_at(described["high_watermark"]))


def test_the_directories_of_a_release_have_no_damage(cluster: Cluster) -> None:
    assert run("check", cluster.metadata)[0] == 0
    for partition in (*cluster.data.glob("orders-2-*"), cluster.data / "__consumer_offsets-0"):
        status, out, err = run("check", partition)
        assert status == 0, (out, err)
    assert [row["value"] for row in rows("cat", cluster.data / "orders-2-2")] == [
        str(number) for number in range(40)
    ]


def test_offsets_committed_in_a_release_are_found(cluster: Cluster) -> None:
    found = rows("state", cluster.data / "__consumer_offsets-0", "consumer_offsets")
    by_partition = {(row["topic"], row["partition"]): row["offset"] for row in found}
    assert by_partition == COMMITTED
    assert {row["group"] for row in found} == {GROUP}
