"""Tables that follow running controllers without Spark equal their admin client's view."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient, NewTopic
from tests.kafka.kafka_cluster import PATIENCE_S, KafkaCluster, KafkaServer
from tests.kafka.test_rescue import create
from tests.support.cli import run
from tests.support.jars import KAFKA_VERSION
from tests.support.kafka import KafkaNode, run_java, running_node
from tests.support.kafka_state import ordered
from tests.support.quorum_processes import eventually

from raftlog.node.formatting import random_id
from raftlog_state.tables import open_tables

pytestmark = pytest.mark.kafka

SMALL_FILES = (
    "internal.metadata.log.segment.bytes=16384",
    "metadata.log.max.record.bytes.between.snapshots=16384",
)
URL_SAFE = str.maketrans("+/", "-_")
"""For topic ids of librdkafka, which are in the other alphabet of base64."""
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


def leader_of(cluster: KafkaCluster, asked: KafkaServer) -> KafkaServer:
    """Return the controller that leads."""
    tool, server = "org.apache.kafka.tools.MetadataQuorumCommand", asked.address
    text = run_java(cluster.jars, tool, "--bootstrap-controller", server, "describe", "--status")
    found = re.search(r"LeaderId:\s+(\d+)", text)
    assert found is not None, text
    return next(one for one in cluster.controllers if one.node_id == int(found[1]))


def described(broker: str, topics: list[str]) -> list[Any]:
    """Return the partitions of topics by the admin client, empty while it does not know them."""
    admin = AdminClient({"bootstrap.servers": broker})
    try:
        futures = admin.describe_topics(TopicCollection(topics))
        answers = [future.result() for future in futures.values()]
    except KafkaException:
        return []
    return ordered(
        (
            topic.name,
            str(topic.topic_id).translate(URL_SAFE),
            one.id,
            one.leader.id,
            [node.id for node in one.replicas],
            [node.id for node in one.isr],
        )
        for topic in answers
        for one in topic.partitions
    )


@contextmanager
def following(servers: str, place: Path, out: Path) -> Iterator[None]:
    """Follow controllers in a process, throughout."""
    command = [sys.executable, "-m", "raftlog_state.cli", "tables", "follow", "--bootstrap-server"]
    with out.open("wb") as sink:
        process = subprocess.Popen([*command, servers, str(place)], stderr=sink)
    try:
        yield
        assert process.poll() is None, out.read_text()
    finally:
        process.terminate()
        process.wait()


@pytest.mark.slow
def test_tables_follow_a_cluster_through_failovers(tmp_path: Path) -> None:
    place, fresh, topics = tmp_path / "tables", tmp_path / "fresh", ["topic-0"]

    def in_tables() -> list[Any]:
        rows = open_tables(str(place)).latest().partitions().select(COLUMNS).to_pylist()
        return ordered(tuple(row.values()) for row in rows)

    with KafkaCluster(tmp_path / "kafka", KAFKA_VERSION, is_dynamic=True) as cluster:
        voters = [cluster.new_server(node_id, is_controller=True) for node_id in (101, 102, 103)]
        broker = cluster.new_server(1, is_controller=False)
        cluster.configure()
        cluster.format([random_id() for _ in voters])
        cluster.start()
        servers = ",".join(one.address for one in voters)
        create(broker.address, NewTopic(topics[0], 3, 1))
        with following(servers, place, tmp_path / "follow.out"):
            asked = voters[0]
            for number in (1, 2):
                leader = leader_of(cluster, asked)
                leader.kill()
                asked = next(one for one in voters if one is not leader)
                topics.append(f"topic-{number}")
                create(broker.address, NewTopic(topics[-1], 2 * number, 1))
                leader.launch()
                leader.wait_until_started()
            eventually(
                lambda: in_tables() == described(broker.address, topics),
                "the tables have what the broker has",
                patience_s=PATIENCE_S,
            )
        status, _, err = run("tables", "follow", "--bootstrap-server", servers, fresh, "--once")
        assert status == 0, err
    epochs = open_tables(str(place)).latest().table("epochs")
    assert epochs.num_rows > 2, "leaders changed"
    followed = open_tables(str(place)).image()
    assert followed.same_rows(open_tables(str(fresh)).image(followed.offset))
