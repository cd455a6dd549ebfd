"""What ``raftlog state --as commands`` prints, run with Kafka's own tools, is the same state."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path

import pytest
from tests.support.cli import run
from tests.support.kafka import KafkaNode, kafka_jars, running_node

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

TOOLS = {
    "kafka-topics.sh": "org.apache.kafka.tools.TopicCommand",
    "kafka-configs.sh": "kafka.admin.ConfigCommand",
    "kafka-acls.sh": "org.apache.kafka.tools.AclCommand",
    "kafka-reassign-partitions.sh": "org.apache.kafka.tools.reassign.ReassignPartitionsCommand",
}
IGNORE = ("--ignore", "ids,epochs,leaders")
OF_ONE_NODE = {"broker", "controller", "scram", "producer_ids"}
"""What a node has of its own, and what no state contains: addresses, passwords."""


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with Kafka's tools under the names of its distribution."""
    directory = tmp_path_factory.mktemp("tools")
    options = "-Xmx256m -XX:+UseSerialGC -Dorg.slf4j.simpleLogger.defaultLogLevel=error"
    java = f'exec java {options} -cp "{kafka_jars()}/*"'
    for name, main in TOOLS.items():
        (directory / name).write_text(f'#!/bin/sh\n{java} {main} "$@"\n')
        (directory / name).chmod(0o755)
    return directory


def run_script(tools: Path, script: str, node: KafkaNode) -> None:
    done = subprocess.run(
        ["sh", "-s", "--", "--bootstrap-server", node.bootstrap],
        input=script,
        env={**os.environ, "PATH": f"{tools}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}\n{script}"


def differences(one: KafkaNode, other: KafkaNode) -> list[str]:
    """Return the differences of two nodes at their ends, as their controllers have them."""
    sides = ("--bootstrap-server", one.controller, "--other-bootstrap-server", other.controller)
    status, out, err = run("diff", *sides, *IGNORE, "--reveal")
    assert status in (0, 1), err
    return [
        line
        for line in out.splitlines()
        if not any(line.startswith(f'{{"entity":"{entity}"') for entity in OF_ONE_NODE)
    ]


def exported(*argv: str) -> str:
    status, out, err = run(*argv, "--as", "commands", "--reveal")
    assert status == 0, err
    return out


TOPIC = ("kafka-topics.sh", "--create", "--topic")
CONFIG = ("kafka-configs.sh", "--alter", "--entity-type")
ACL = ("kafka-acls.sh", "--add")
HOSTILE: tuple[tuple[str, ...], ...] = (
    (*TOPIC, "dot.and_under-score", "--partitions", "2"),
    (*TOPIC, "dotXandXscore", "--partitions", "1"),
    (
        *(*CONFIG, "topics", "--entity-name", "dot.and_under-score"),
        *("--add-config", "cleanup.policy=[compact,delete],retention.ms=1234"),
    ),
    (
        *(*CONFIG, "users", "--entity-name", 'it\'s $(HOME) `x` "q" \\ *'),
        *("--entity-type", "clients", "--entity-default"),
        *("--add-config", "request_percentage=12.5,producer_byte_rate=10"),
    ),
    (
        *(*CONFIG, "client-metrics", "--entity-name", "all metrics"),
        *("--add-config", "metrics=[a.b,c.d],interval.ms=1000"),
    ),
    (
        *(*ACL, "--deny-principal", 'User:CN=o\'neil,O=a "b" $c', "--deny-host", "10.0.0.1"),
        *("--topic", "*", "--operation", "Read", "--operation", "DescribeConfigs"),
    ),
    (
        *(*ACL, "--allow-principal", "User:ops", "--cluster"),
        *("--operation", "AlterConfigs", "--operation", "ClusterAction"),
    ),
    (
        *(*ACL, "--allow-principal", "User:é", "--transactional-id", "tx "),
        *("--resource-pattern-type", "prefixed", "--operation", "Write"),
    ),
)
"""Names and values that shells and tools read otherwise unless they are quoted."""

LATER_IN_ONE = (
    ("kafka-topics.sh", "--alter", "--topic", "orders-1", "--partitions", "5"),
    (*CONFIG, "topics", "--entity-name", "orders-5", "--add-config", "retention.ms=99"),
)
LATER_IN_TWO = (
    (*TOPIC, "dot.and.score", "--partitions", "1"),
    (*CONFIG, "topics", "--entity-name", "orders-4", "--add-config", "segment.ms=100000"),
    (*CONFIG, "topics", "--entity-name", "orders-8", "--delete-config", "retention.ms"),
    (*ACL, "--allow-principal", "User:new", "--group", "g", "--operation", "Read"),
)


def run_tools(tools: Path, node: KafkaNode, *calls: tuple[str, ...]) -> None:
    script = [shlex.join((name, "--bootstrap-server", node.bootstrap, *at)) for name, *at in calls]
    run_script(tools, "set -e\n" + "\n".join(script), node)


def test_an_exported_state_is_the_same_state_in_an_empty_cluster(
    tools: Path, tmp_path: Path
) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    with running_node(tmp_path / "one") as one, running_node(tmp_path / "two") as two:
        one.admin("create", "change")
        run_tools(tools, one, *HOSTILE)
        assert len(differences(one, two)) > 50
        run_script(tools, exported("state", "--bootstrap-server", one.controller), two)
        assert differences(one, two) == []

        run_tools(tools, one, *LATER_IN_ONE)
        run_tools(tools, two, *LATER_IN_TWO)
        assert len(differences(two, one)) > 5
        sides = ("--bootstrap-server", two.controller, "--other-bootstrap-server", one.controller)
        run_script(tools, exported("diff", *sides), two)
        assert differences(two, one) == []
