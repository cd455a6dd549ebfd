"""Stock consumers with a rack read from the follower in it, and from the leader after its end."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import raftlog
from raftlog.node.formatting import random_id
from tests.support.kafka import kafka_jars, run_java
from tests.support.node_metrics import metrics_at
from tests.support.quorum_processes import (
    RARE_ELECTIONS,
    NodeProcess,
    QuorumProcesses,
    eventually,
    free_ports,
)

TOPIC = "raftlog"
CONSOLE = "org.apache.kafka.tools.consumer.ConsoleConsumer"
PATIENCE_S = 60.0
VALUES = [b"%0100d" % at for at in range(100)]

Figure = Callable[[int, str], float]
"""Value of a counter of a node."""


def with_racks(processes: QuorumProcesses) -> Figure:
    """Give each node a rack of its own, and metrics."""
    ports = dict(zip((1, 2, 3), free_ports(3), strict=True))
    for node in processes.nodes:
        rack = f'[node]\nrack = "rack-{node.node_id}"\n'
        metrics = f'[metrics]\naddress = "127.0.0.1:{ports[node.node_id]}"\n'
        node.config.write_text(node.config.read_text().replace("[node]\n", rack) + metrics)
    return lambda node_id, name: metrics_at(ports[node_id])[f"raftlog_{name}_total",]


@pytest.fixture
def quorum(tmp_path: Path) -> Iterator[tuple[QuorumProcesses, Figure]]:
    processes = QuorumProcesses(tmp_path, extra=RARE_ELECTIONS)
    figure = with_racks(processes)
    with processes:
        yield processes, figure


def follower_of(processes: QuorumProcesses, leader: int | None) -> NodeProcess:
    return next(node for node in processes.nodes if node.node_id != leader)


def read(consumer: Any, count: int) -> list[bytes]:
    """Return the values of the next records."""
    found: list[bytes] = []
    until_s = time.monotonic() + PATIENCE_S
    while len(found) < count and time.monotonic() < until_s:
        found += [one.value() for one in consumer.consume(count - len(found), 1.0)]
    return found


async def read_with_aiokafka(bootstrap: str, rack: str, count: int) -> list[bytes | None]:
    """Return the values of the first records."""
    from aiokafka import AIOKafkaConsumer, TopicPartition

    consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap, client_rack=rack)
    await consumer.start()
    try:
        partition = TopicPartition(TOPIC, 0)
        consumer.assign([partition])
        consumer.seek(partition, 0)
        return [(await consumer.getone()).value for _ in range(count)]
    finally:
        await consumer.stop()


@pytest.mark.slow
def test_consumers_read_from_a_follower_in_their_rack_until_that_ends(
    quorum: tuple[QuorumProcesses, Figure],
) -> None:
    from confluent_kafka import Consumer, TopicPartition

    processes, figure = quorum
    with raftlog.connect(processes.bootstrap) as log:
        log.append(VALUES[:50])
        leader = log.leader_id
        follower = follower_of(processes, leader)
        rack = f"rack-{follower.node_id}"
        consumer = Consumer(
            {
                "bootstrap.servers": processes.bootstrap,
                "group.id": random_id(),
                "enable.auto.commit": False,
                "client.rack": rack,
                "log_level": 0,
            }
        )
        consumer.assign([TopicPartition(TOPIC, 0, 0)])
        assert read(consumer, 50) == VALUES[:50]
        before = figure(leader, "redirected_fetches"), figure(follower.node_id, "follower_fetches")
        assert min(before) >= 1
        values = asyncio.run(read_with_aiokafka(processes.bootstrap, rack, 50))
        assert values == VALUES[:50]
        assert figure(leader, "redirected_fetches") > before[0]
        follower.kill()
        log.append(VALUES[50:])
        assert read(consumer, 50) == VALUES[50:]
        consumer.close()


TIERED = (
    "[log]\nsegment_bytes = 2000\nlocal_retention_bytes = 2500\n"
    'remote_storage_enable = true\nremote_storage_uri = "{remote}"\n'
)


@pytest.mark.kafka
def test_javas_consumer_reads_remote_and_local_segments_from_a_follower_in_its_rack(
    tmp_path: Path,
) -> None:
    extra = RARE_ELECTIONS + TIERED.format(remote=tmp_path / "remote")
    keys = "retention_check_interval_ms = 300\n"
    processes = QuorumProcesses(tmp_path / "nodes", extra=extra, node_keys=keys)
    figure = with_racks(processes)

    def local_starts() -> list[int]:
        return [
            min(int(path.stem) for path in (node.directory / "raftlog-0").glob("*.log"))
            for node in processes.nodes
        ]

    with processes:
        with raftlog.connect(processes.bootstrap) as log:
            for value in VALUES:
                log.append([value])
            leader = log.leader_id
        follower = follower_of(processes, leader).node_id
        eventually(lambda: min(local_starts()) > 20, "all nodes delete local segments")
        config = tmp_path / "consumer.properties"
        config.write_text(f"client.rack=rack-{follower}\nauto.offset.reset=none\n")
        printed = run_java(
            kafka_jars(),
            CONSOLE,
            *("--bootstrap-server", processes.bootstrap, "--topic", TOPIC, "--partition", "0"),
            *("--offset", "0", "--max-messages", str(len(VALUES)), "--timeout-ms", "60000"),
            *("--consumer.config", str(config)),
        )
        assert re.findall(r"^\d+$", printed, re.M) == [value.decode() for value in VALUES]
        assert figure(leader, "redirected_fetches") >= 1
        assert figure(follower, "follower_fetches") >= 1
