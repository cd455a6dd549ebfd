"""`raftlog rescue`: two of three disks of a real Kafka quorum are lost, a new quorum continues."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    Producer,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewTopic
from tests.kafka.kafka_cluster import PATIENCE_S, KafkaCluster
from tests.support.cli import rows, run
from tests.support.kafka import read_values, run_java
from tests.support.quorum_processes import eventually

from raftlog.node.formatting import random_id

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

QUORUM = "org.apache.kafka.tools.MetadataQuorumCommand"
PARTITIONS = {"orders": 3, "audit": 1}


def create(broker: str, *topics: NewTopic) -> None:
    """Create topics; ask again while the client has no controller, as when the broker starts."""

    def is_created() -> bool:
        admin = AdminClient({"bootstrap.servers": broker})
        for future in admin.create_topics(list(topics), request_timeout=10.0).values():
            try:
                future.result()
            except KafkaException as error:
                if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                    return False
        return True

    eventually(is_created, f"topics are created by {broker}", patience_s=PATIENCE_S)


def topic_ids(broker: str) -> dict[str, str]:
    """Return the ids of the topics once the broker has them."""

    def ids() -> dict[str, str] | None:
        admin = AdminClient({"bootstrap.servers": broker})
        found = admin.describe_topics(TopicCollection(list(PARTITIONS)))
        try:
            return {name: str(one.result().topic_id) for name, one in found.items()}
        except KafkaException:
            return None

    return eventually(ids, "the broker has the topics", patience_s=PATIENCE_S)


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
    return sorted(read_values(consumer, count, patience_s=PATIENCE_S))


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
        kept = {"retention.ms": "86400001"}
        topics = [NewTopic(name, n, 1, config=kept) for name, n in PARTITIONS.items()]
        create(broker.address, *topics)
        ids = topic_ids(broker.address)
        values = sorted(f"value {at}" for at in range(60))
        produce(broker.address, *values)

        survivor, out = old[1], tmp_path / "rescued"
        voters = [cluster.new_server(node_id, is_controller=True) for node_id in (102, 104, 105)]
        del cluster.controllers[:3]
        call = ("rescue", survivor.log_dir, "--voters", cluster.voters, "--out", out)
        status, _, err = run(*call)
        assert status == 1
        assert "in use by another process" in err

        old[1].kill()
        status, _, err = run(*call)
        assert status == 1
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
        assert topic_ids(broker.address) == ids
        assert consume(broker.address, len(values)) == values
        assert quorum_voters(cluster) == ({102, 104, 105}, cluster.cluster_id)
        configs = rows("state", "--bootstrap-server", voters[0].address, "configs")
        assert {
            row["resource_name"] for row in configs if row["name"] == "retention.ms"
        } == ids.keys()

        voters[0].kill()  # the other two are a majority
        create(broker.address, NewTopic("afterwards", 2, 1))
        produce(broker.address, "one more")
        assert len(consume(broker.address, len(values) + 1)) == len(values) + 1
