"""Stock consumers that assign partitions resume at their committed offset: three real processes.

librdkafka, Java's consumer, and kafka-consumer-groups, which lists, describes and resets the
offsets of groups without members.
"""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import raftlog
from raftlog.node.formatting import random_id
from tests.support.kafka import kafka_jars, run_java
from tests.support.quorum_processes import QuorumProcesses, eventually

TOPIC = "raftlog"
PATIENCE_S = 60.0
SILENCE_MS = 5_000
"""Timeout of a request. Librdkafka's default is longer than ``PATIENCE_S``: it waits a minute for a
leader that is silent, and then for the next one."""
DUMP = {"3.9.2": "kafka.tools.DumpLogSegments", "4.3.1": "org.apache.kafka.tools.DumpLogSegments"}
TOOL = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"


@pytest.fixture
def quorum(tmp_path: Path) -> Iterator[QuorumProcesses]:
    with QuorumProcesses(tmp_path) as processes:
        yield processes


def _append(quorum: QuorumProcesses, values: list[bytes]) -> None:
    with raftlog.connect(quorum.bootstrap) as log:
        for value in values:
            log.append([value])


def _resume(bootstrap: str, group: str, count: int) -> list[bytes]:
    """Return the values of records from the committed offset of a group on, and commit them."""
    from confluent_kafka import OFFSET_STORED, Consumer, TopicPartition

    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "socket.timeout.ms": SILENCE_MS,
            "log_level": 0,
        }
    )
    consumer.assign([TopicPartition(TOPIC, 0, OFFSET_STORED)])
    found: list[Any] = []
    until_s = time.monotonic() + PATIENCE_S
    while len(found) < count and time.monotonic() < until_s:
        found += [one for one in consumer.consume(1, 1.0) if not one.error()]
    (committed,) = consumer.commit(message=found[-1], asynchronous=False)
    assert committed.error is None
    assert committed.offset == found[-1].offset() + 1
    consumer.close()
    return [one.value() for one in found]


def _leader(quorum: QuorumProcesses) -> int:
    def look() -> int | None:
        said = [
            (line["epoch"], line["leader"])
            for node in quorum.running()
            for line in node.lines()
            if line["event"] == "leader" and line["leader"] is not None
        ]
        return max(said)[1] if said else None

    return eventually(look, "a leader is elected")


@pytest.mark.slow
def test_librdkafka_resumes_after_the_leader_was_killed_and_after_a_restart_of_all(
    quorum: QuorumProcesses,
) -> None:
    values = [b"%d" % at for at in range(30)]
    _append(quorum, values)
    group = random_id()
    assert _resume(quorum.bootstrap, group, 10) == values[:10]
    killed = quorum.node(_leader(quorum))
    killed.kill()
    assert _resume(quorum.bootstrap, group, 10) == values[10:20]
    killed.start()
    for node in quorum.nodes:
        node.kill()
    for node in quorum.nodes:
        node.launch()
    for node in quorum.nodes:
        node.wait_until_it_listens()
    _append(quorum, [b"after commits"])
    assert _resume(quorum.bootstrap, group, 11) == [*values[20:], b"after commits"]


@pytest.mark.kafka
@pytest.mark.parametrize("version", DUMP)
def test_javas_consumer_resumes_and_kafka_consumer_groups_describes_and_resets(
    quorum: QuorumProcesses, version: str
) -> None:
    jars = kafka_jars(version)
    values = [str(at) for at in range(20)]
    _append(quorum, [one.encode() for one in values])

    def resume(count: int) -> list[str]:
        program = str(Path(__file__).parent / "Resume.java")
        command = ["java", "-Xmx256m", "-cp", f"{jars}/*", program, quorum.bootstrap, "java's"]
        done = subprocess.run(
            [*command, str(count)], capture_output=True, text=True, timeout=240, check=False
        )
        assert done.returncode == 0, done.stderr
        *lines, committed = done.stdout.splitlines()
        assert committed == "committed true by Java"
        return lines

    def tool(*arguments: str) -> str:
        return run_java(jars, TOOL, "--bootstrap-server", quorum.bootstrap, *arguments)

    def described() -> tuple[int, int, int]:
        """Return committed offset, log end offset and lag."""
        printed = tool("--describe", "--group", "java's")
        found = re.search(rf"java's\s+{TOPIC}\s+0\s+(\d+)\s+(\d+)\s+(\d+)", printed)
        assert found is not None, printed
        offset, end, lag = map(int, found.groups())
        return offset, end, lag

    assert resume(12) == values[:12]
    _append(quorum, [b"after a commit"])
    values.append("after a commit")
    assert described()[2] > 0
    assert tool("--list").splitlines() == ["java's"]
    quorum.node(_leader(quorum)).kill()
    assert resume(9) == values[12:]
    offset, end, lag = described()
    assert (offset, lag) == (end, 0)
    on_topic = ("--group", "java's", "--topic", TOPIC, "--execute", "--reset-offsets")
    tool(*on_topic, "--to-earliest")
    assert described()[0] == 0
    assert resume(21) == values
    assert "was successful" in tool("--delete", "--group", "java's")
    assert resume(21) == values, "without an offset it starts at the first record"
    segment = quorum.node(_leader(quorum)).directory / f"{TOPIC}-0" / f"{0:020}.log"
    printed = run_java(jars, DUMP[version], "--print-data-log", "--files", str(segment))
    assert "controlType: UNKNOWN" in printed
    assert re.findall("payload: (.*)", printed) == values
