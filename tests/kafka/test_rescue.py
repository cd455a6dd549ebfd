"""`raftlog rescue`: two of three disks of a real Kafka quorum are lost, a new quorum continues."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from tests.support.cli import rows, run
from tests.support.kafka import run_java
from tests.support.kafka_cluster import PATIENCE_S, KafkaCluster
from tests.support.quorum_processes import eventually

from raftlog.node.formatting import random_id

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

QUORUM = "org.apache.kafka.tools.MetadataQuorumCommand"
PARTITIONS = {"orders": 3, "audit": 1}


def create(admin: AdminClient, *topics: NewTopic) -> None:
    for future in admin.create_topics(list(topics), operation_timeout=PATIENCE_S).values():
        future.result(PATIENCE_S)


def topic_ids(admin: AdminClient) -> dict[str, str]:
    found = admin.describe_topics(TopicCollection(list(PARTITIONS)))
    return {name: str(one.result(PATIENCE_S).topic_id) for name, one in found.items()}


def produce(broker: str, *values: str) -> None:
    producer = Producer({"bootstrap.servers": broker, "acks": "all"})
    for at, value in enumerate(values):
        producer.produce("orders", value.encode(), partition=at % PARTITIONS["orders"])
    assert producer.flush(PATIENCE_S) == 0


def consume(broker: str, count: int) -> list[str]:
    """Return the values of all partitions of the topic, in order of text."""
    consumer = Consumer({"bootstrap.servers": broker, "group.id": "unused"})
    consumer.assign(
        [TopicPartition("orders", at, OFFSET_BEGINNING) for at in range(PARTITIONS["orders"])]
    )
    values: list[str] = []

    def poll() -> bool:
        message = consumer.poll(1.0)
        if message is not None and message.error() is None:
            value = message.value()
            assert isinstance(value, bytes)
            values.append(value.decode())
        return len(values) >= count

    try:
        eventually(poll, f"{count} records", patience_s=PATIENCE_S)
    finally:
        consumer.close()
    return sorted(values)


def quorum_voters(cluster: KafkaCluster) -> tuple[set[int], str]:
    """Return the voters' node ids and the cluster id by the controllers."""
    address = cluster.controllers[0].address
    text = run_java(cluster.jars, QUORUM, "--bootstrap-controller", address, "describe", "--status")
    line = next(one for one in text.splitlines() if one.startswith("CurrentVoters:"))
    ids = re.findall(r'"id": ?(\d+)', line) or re.findall(r"\d+", line)
    cluster_id = re.search(r"ClusterId:\s+(\S+)", text)
    assert cluster_id is not None
    return {int(one) for one in ids}, cluster_id[1]


@pytest.mark.parametrize(("version", "is_dynamic"), [("4.3.1", True), ("3.9.2", False)])
def test_a_new_quorum_continues_from_one_of_three_controllers(
    tmp_path: Path, version: str, is_dynamic: bool
) -> None:
    with KafkaCluster(tmp_path, version, is_dynamic=is_dynamic) as cluster:
        old = [cluster.new_server(node_id, is_controller=True) for node_id in (101, 102, 103)]
        broker = cluster.new_server(1, is_controller=False)
        cluster.configure()
        cluster.format([random_id() for _ in old])
        cluster.start()
        admin = AdminClient({"bootstrap.servers": broker.address})
        kept = {"retention.ms": "86400001"}
        create(admin, *(NewTopic(name, n, 1, config=kept) for name, n in PARTITIONS.items()))
        ids = topic_ids(admin)
        values = sorted(f"value {at}" for at in range(60))
        produce(broker.address, *values)

        survivor, out = old[1], tmp_path / "rescued"
        voters = [cluster.new_server(node_id, is_controller=True) for node_id in (102, 104, 105)]
        del cluster.controllers[:3]
        call = ("rescue", survivor.log_dir, "--voters", cluster.voters, "--out", out)
        status, _, err = run(*call)
        assert status == 2
        assert "in use by another process" in err

        old[1].kill()
        status, _, err = run(*call)
        assert status == 2
        assert "a majority of the old voters (101, 102, 103) may be running: 101, 103" in err

        for server in (old[0], old[2], broker):
            server.kill()
        for server in (old[0], old[2]):
            shutil.rmtree(server.log_dir)
        status, printed, err = run(*call)
        assert (status, err) == (0, "")
        assert "nothing was written" in printed
        assert not out.exists()

        status, printed, err = run(*call, "--write")
        assert (status, err) == (0, "")
        for server in voters:
            shutil.move(out / f"controller-{server.node_id}", server.log_dir)
        cluster.configure()
        cluster.start()
        admin = AdminClient({"bootstrap.servers": broker.address})
        assert topic_ids(admin) == ids
        assert consume(broker.address, len(values)) == values
        assert quorum_voters(cluster) == ({102, 104, 105}, cluster.cluster_id)
        configs = rows("state", "--bootstrap-server", voters[0].address, "configs")
        assert {
            row["resource_name"] for row in configs if row["name"] == "retention.ms"
        } == ids.keys()

        voters[0].kill()  # the other two are a majority
        create(admin, NewTopic("afterwards", 2, 1))
        produce(broker.address, "one more")
        assert len(consume(broker.address, len(values) + 1)) == len(values) + 1
