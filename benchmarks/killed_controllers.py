"""SIGKILL of the active controller while clients change metadata: raftlog and Apache Kafka.

The part `controllers` of `benchmarks.quorum`. Three nodes with `[controller] enabled = true`, and
three controllers of Kafka without brokers; the clients, in this process, are the same. Each alters
one client quota after another (AlterClientQuotas of Kafka's protocol, sent to the controllers
themselves), with one request in flight. After an error, a lost connection or `RESPONSE_S` without a
response it asks the next controller, `RETRY_S` later. The nodes have one listener for clients and
voters, on which a standby forwards the request to the active controller, with pauses of up to
100 ms; a standby of Kafka responds with NOT_CONTROLLER. Therefore some changes of raftlog are
acknowledged later than the new active controller could, none earlier.

The time is from the kill to the first acknowledgement of a change that was sent after the end of
the process. Before the next kill the process is started again, all voters have what was committed
then, and a random number of further changes is acknowledged.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any, Final, Protocol

from benchmarks.run import Row, row
from kio.schema.errors import ErrorCode
from tests.kafka.kafka_cluster import KafkaCluster
from tests.support.controller_connections import ControllerConnections
from tests.support.controller_nodes import CONTROLLER
from tests.support.jars import KAFKA_VERSION, JarError
from tests.support.kafka import kafka_jars
from tests.support.quorum_processes import QuorumProcesses

from raftlog.node.config import QUORUM_DEFAULT
from raftlog.node.formatting import random_id
from raftlog.types import CLUSTER_METADATA_TOPIC
from raftlog.wire import ApiKey

CLIENTS: Final = 4
RETRY_S: Final = 0.005
RESPONSE_S: Final = 2.0
PATIENCE_S: Final = 300.0
"""Timeout of a failover, and of the restart of a controller."""
CHANGES_BETWEEN_KILLS: Final = (100, 300)
JAVA_OPTIONS: Final = (
    *("-Xmx1G", "-Xms1G", "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20"),
    *("-XX:InitiatingHeapOccupancyPercent=35", "-XX:+ExplicitGCInvokesConcurrent"),
)
"""Of Kafka's `kafka-server-start.sh`."""
OWN_TIMEOUTS: Final = (
    f"controller.quorum.fetch.timeout.ms={QUORUM_DEFAULT.fetch_timeout_ms}\n"
    f"controller.quorum.election.timeout.ms={QUORUM_DEFAULT.election_timeout_ms}\n"
    f"controller.quorum.request.timeout.ms={QUORUM_DEFAULT.request_timeout_ms}\n"
    f"controller.quorum.retry.backoff.ms={QUORUM_DEFAULT.retry_backoff_ms}\n"
)
"""Timeouts of raftlog's nodes. Only that of fetches is not Kafka's default, which is 2 s."""
KAFKAS: Final = {
    "Kafka's controllers": "",
    "Kafka's controllers, raftlog's timeouts": OWN_TIMEOUTS,
}
"""Additional configuration, by the name of the peer."""


class Controller(Protocol):
    """Process of a controller: a ``NodeProcess`` or a ``KafkaServer``."""

    @property
    def port(self) -> int: ...

    def kill(self) -> None:
        """Kill it with SIGKILL."""

    def launch(self) -> None:
        """Start its process."""


class MetadataClients:
    """Clients that change metadata all the time, until ``is_ended``."""

    def __init__(self, controllers: Sequence[Controller]) -> None:
        self.is_ended = False
        self._controllers = controllers
        self._values = itertools.count(1)
        self._acknowledged = 0
        self._killed_s = math.inf
        """Time at which the killed process had ended."""
        self._acknowledged_s: float | None = None
        """Time of the first acknowledgement of a change that was sent after that."""

    async def run(self, number: int) -> None:
        """Alter the quota of one user again and again."""
        at = number
        async with ControllerConnections(RESPONSE_S) as connections:
            while not self.is_ended:
                controller = self._controllers[at % len(self._controllers)]
                sent_s = time.perf_counter()
                if await self._alter(connections, controller, f"user-{number}"):
                    self._acknowledged += 1
                    if self._acknowledged_s is None and sent_s >= self._killed_s:
                        self._acknowledged_s = time.perf_counter()
                else:
                    at += 1
                    await asyncio.sleep(RETRY_S)

    async def _alter(
        self, connections: ControllerConnections, controller: Controller, user: str
    ) -> bool:
        """Set a quota to a new value; return whether the controller acknowledged that."""
        quota = {"key": "producer_byte_rate", "value": float(next(self._values)), "remove": False}
        entry = {"entity": [{"entity_type": "user", "entity_name": user}], "ops": [quota]}
        key = ApiKey.ALTER_CLIENT_QUOTAS
        response = await connections.ask(controller.port, key, entries=[entry])
        return response is not None and response.entries[0].error_code is ErrorCode.none

    async def until_acknowledged(self, count: int) -> None:
        """Wait until so many more changes are acknowledged."""
        wanted = self._acknowledged + count
        await until(lambda: self._acknowledged >= wanted)

    async def failover_s(self) -> float:
        """Kill the active controller; return the seconds to the next acknowledged change. Starts
        the killed one again, and waits until it has replicated the log."""
        killed = await self.until_replicated()
        start_s = time.perf_counter()
        await asyncio.to_thread(killed.kill)
        self._acknowledged_s, self._killed_s = None, time.perf_counter()
        await until(lambda: self._acknowledged_s is not None)
        assert self._acknowledged_s is not None
        elapsed_s, self._killed_s = self._acknowledged_s - start_s, math.inf
        killed.launch()
        await self.until_replicated()
        return elapsed_s

    async def until_replicated(self) -> Controller:
        """Wait until all voters have what was committed first; return the active controller."""
        committed = -1
        async with ControllerConnections(RESPONSE_S) as connections, asyncio.timeout(PATIENCE_S):
            while True:
                leaders = [
                    (partition.leader_epoch, at, partition)
                    for at, controller in enumerate(self._controllers)
                    for partition in await described(connections, controller)
                ]
                if leaders:
                    _, at, partition = max(leaders, key=lambda one: one[:2])
                    if committed < 0:
                        committed = partition.high_watermark
                    ends = (voter.log_end_offset for voter in partition.current_voters)
                    if 0 <= committed <= min(ends):
                        return self._controllers[at]
                await asyncio.sleep(RETRY_S)


async def until(is_true: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not is_true():
            await asyncio.sleep(RETRY_S)


async def described(connections: ControllerConnections, controller: Controller) -> Sequence[Any]:
    """Return the metadata log's partition as its leader describes it; nothing of others."""
    topic = {"topic_name": CLUSTER_METADATA_TOPIC, "partitions": [{"partition_index": 0}]}
    response = await connections.ask(controller.port, ApiKey.DESCRIBE_QUORUM, topics=[topic])
    if response is None or response.error_code is not ErrorCode.none:
        return ()
    partitions = response.topics[0].partitions
    return [one for one in partitions if one.error_code is ErrorCode.none]


async def failovers_s(name: str, controllers: Sequence[Controller], kills: int) -> list[float]:
    """Kill the active controller so often; return the seconds of the failovers, sorted."""
    clients, rng, found = MetadataClients(controllers), Random(kills), []
    async with asyncio.TaskGroup() as group:
        for client in range(CLIENTS):
            group.create_task(clients.run(client))
        try:
            for number in range(1, kills + 1):
                await clients.until_acknowledged(rng.randrange(*CHANGES_BETWEEN_KILLS))
                found.append(await clients.failover_s())
                print(f"{name}, kill {number} of {kills}: {found[-1]:.2f} s", file=sys.stderr)
        finally:
            clients.is_ended = True
    return sorted(found)


def measure_raftlog(home: Path, kills: int) -> list[float]:
    with QuorumProcesses(home, extra=CONTROLLER) as quorum:
        return asyncio.run(failovers_s("raftlog", quorum.nodes, kills))


def measure_kafka(home: Path, name: str, properties: str, kills: int) -> list[float]:
    with KafkaCluster(
        home, KAFKA_VERSION, is_dynamic=True, properties=properties, java_options=JAVA_OPTIONS
    ) as cluster:
        for node_id in (1, 2, 3):
            cluster.new_server(node_id, is_controller=True)
        cluster.configure()
        cluster.format([random_id() for _ in cluster.controllers])
        cluster.start()
        return asyncio.run(failovers_s(name, cluster.controllers, kills))


def measure_controllers(home: Path, kills: int) -> Iterator[Row]:
    """Measure raftlog and then Kafka; yield the rows."""
    measured = measure_raftlog(home / "controllers", kills)
    for at, (name, properties) in enumerate(KAFKAS.items()):
        compared = measure_kafka(home / f"kafka-{at}", name, properties, kills)
        what = "change after SIGKILL of the active controller"
        yield from failover_rows(what, measured, compared, name)


def failover_rows(
    what: str, measured: Sequence[float], compared: Sequence[float], other: str
) -> Iterator[Row]:
    """Yield the rows of as many kills of two systems, whose seconds are sorted."""
    kills = len(measured)
    p95 = math.ceil(0.95 * kills) - 1
    for words, at in (("median", kills // 2), ("p95", p95), ("longest", kills - 1)):
        yield row(f"{what}, {words} of {kills}", measured[at], "s", compared[at], other)


def why_not() -> str | None:
    """Return why Kafka cannot be run; None if it can."""
    if shutil.which("java") is None:
        return "java is not installed"
    try:
        kafka_jars()
    except JarError as failed:
        return str(failed)
    return None
