"""An unmodified Kafka broker whose controllers are three nodes of raftlog."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from tests.support.controller_nodes import CONTROLLER
from tests.support.kafka import kafka_jars, read_values, run_java
from tests.support.quorum_checks import leader_of
from tests.support.quorum_processes import QuorumProcesses, eventually, free_ports

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

TOPICS = "org.apache.kafka.tools.TopicCommand"
STARTED = "Kafka Server started"
PATIENCE_S = 90.0
PROPERTIES = """process.roles=broker
node.id=11
listeners=CLIENT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,CLIENT:PLAINTEXT
inter.broker.listener.name=CLIENT
controller.quorum.bootstrap.servers={controllers}
log.dirs={log_dir}
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.num.partitions=1
transaction.state.log.min.isr=1
group.initial.rebalance.delay.ms=0
"""


@contextmanager
def running_broker(home: Path, quorum: QuorumProcesses) -> Iterator[str]:
    """Run a broker of Kafka with its own directory; stop it when the block ends."""
    jars, (port,) = kafka_jars(), free_ports(1)
    config, out = home / "broker.properties", home / "broker.out"
    config.write_text(
        PROPERTIES.format(port=port, controllers=quorum.bootstrap, log_dir=home / "broker")
    )
    identity = ("-t", quorum.cluster_id, "-c", str(config))
    run_java(jars, "kafka.tools.StorageTool", "format", "--no-initial-controllers", *identity)
    command = ["java", "-Xmx384m", "-XX:+UseSerialGC", "-cp", f"{jars}/*", "kafka.Kafka"]
    with out.open("wb") as sink:
        process = subprocess.Popen([*command, str(config)], stdout=sink, stderr=subprocess.STDOUT)
    try:
        eventually(lambda: STARTED in out.read_text(), "the broker starts", patience_s=PATIENCE_S)
        yield f"127.0.0.1:{port}"
        process.terminate()
        assert process.wait(PATIENCE_S) in (0, 143), "a controlled shutdown"
    finally:
        process.kill()
        process.wait()


def topics(broker: str, *arguments: str) -> str:
    return run_java(kafka_jars(), TOPICS, "--bootstrap-server", broker, *arguments)


def produce(broker: str, topic: str, *values: str) -> None:
    """Produce values in a transaction, whose producer id the controllers allocate."""
    producer = Producer({"bootstrap.servers": broker, "transactional.id": f"test-{topic}"})
    producer.init_transactions(PATIENCE_S)
    producer.begin_transaction()
    for value in values:
        producer.produce(topic, value.encode())
    producer.commit_transaction(PATIENCE_S)


def consume(broker: str, topic: str, count: int) -> list[str]:
    """Return the values that a member of a consumer group reads."""
    settings: dict[str, Any] = {
        "bootstrap.servers": broker,
        "group.id": f"group-{topic}",
        "auto.offset.reset": "earliest",
        "isolation.level": "read_committed",
    }
    consumer = Consumer(settings)
    consumer.subscribe([topic])
    return read_values(consumer, count, patience_s=PATIENCE_S)


def test_a_broker_serves_topics_producers_and_consumers(tmp_path: Path) -> None:
    with QuorumProcesses(tmp_path / "quorum", extra=CONTROLLER) as quorum:
        first = eventually(lambda: leader_of(quorum), "a node leads")
        with running_broker(tmp_path, quorum) as broker:
            created = topics(broker, "--create", "--topic", "orders", "--partitions", "3")
            assert "Created topic orders." in created
            described = topics(broker, "--describe", "--topic", "orders")
            assert "PartitionCount: 3" in described
            assert described.count("Leader: 11") == 3
            produce(broker, "orders", "a", "b", "c")
            assert sorted(consume(broker, "orders", 3)) == ["a", "b", "c"]

            first.kill()
            assert "Created" in topics(broker, "--create", "--topic", "after-the-kill")
            produce(broker, "after-the-kill", "d")
            assert consume(broker, "after-the-kill", 1) == ["d"]
            topics(broker, "--alter", "--topic", "orders", "--partitions", "5")
            assert "PartitionCount: 5" in topics(broker, "--describe", "--topic", "orders")
            topics(broker, "--delete", "--topic", "orders")
            listed = topics(broker, "--list", "--exclude-internal").split()
            assert listed == ["after-the-kill"]
            first.start()
