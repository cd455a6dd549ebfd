"""Kafka's own tools against three nodes with a controller, by --bootstrap-controller."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from tests.support.controller_nodes import CONTROLLER, controller_nodes, hosted
from tests.support.kafka import dump_log, kafka_jars, run_java
from tests.support.quorum_checks import leader_of
from tests.support.quorum_processes import QuorumProcesses, eventually

from raftlog.node.service import CreateService
from raftlog_state.cli.controller_node import create_controller
from raftlog_state.cli.main import main
from raftlog_state.controller import CreateTopic, write_change

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

ACLS = "org.apache.kafka.tools.AclCommand"
CLUSTER = "org.apache.kafka.tools.ClusterTool"
CONFIGS = "kafka.admin.ConfigCommand"
FEATURES = "org.apache.kafka.tools.FeatureCommand"
SCRIPTS = {"kafka-features": FEATURES, "kafka-configs": CONFIGS, "kafka-acls": ACLS}


@pytest.fixture(scope="module")
def quorum(tmp_path_factory: pytest.TempPathFactory) -> Iterator[QuorumProcesses]:
    with QuorumProcesses(tmp_path_factory.mktemp("controllers"), extra=CONTROLLER) as quorum:
        yield quorum


def tool(quorum: QuorumProcesses, main: str, *arguments: str) -> str:
    first, *more = arguments
    at = ("--bootstrap-controller", quorum.bootstrap)
    if first.startswith("--"):
        return run_java(kafka_jars(), main, *at, *arguments)
    return run_java(kafka_jars(), main, *at, first, *more)


def described_features(quorum: QuorumProcesses) -> dict[str, str]:
    printed = tool(quorum, FEATURES, "describe")
    return {
        line.split()[1]: line.split("FinalizedVersionLevel:")[1].split()[0]
        for line in printed.splitlines()
    }


def test_features(quorum: QuorumProcesses) -> None:
    formatted = {
        "eligible.leader.replicas.version": "1",
        "group.version": "1",
        "kraft.version": "1",
        "metadata.version": "4.3-IV0",
        "share.version": "1",
        "streams.version": "1",
        "transaction.version": "2",
    }
    eventually(
        lambda: described_features(quorum) == formatted, "the node that the tool asks has them"
    )
    printed = tool(quorum, FEATURES, "downgrade", "--feature", "group.version=0")
    assert "group.version was downgraded to 0." in printed
    printed = tool(quorum, FEATURES, "upgrade", "--feature", "group.version=1")
    assert "group.version was upgraded to 1." in printed


@pytest.mark.parametrize(
    ("bootstrap", "services"),
    [("--bootstrap-controller", (create_controller,)), ("--bootstrap-server", ())],
)
def test_static_voters_become_dynamic(
    bootstrap: str, services: tuple[CreateService, ...], tmp_path: Path
) -> None:
    """kafka-features upgrade --feature kraft.version=1, twice, and a downgrade, of nodes with a
    controller and without."""

    async def check() -> None:
        extra = "[quorum]\nfetch_timeout_ms = 500\n"
        async with controller_nodes(
            tmp_path, 3, is_static=True, extra=extra, services=services
        ) as nodes:
            at = ",".join(node.config.listeners[0].address for node in nodes.nodes)

            def features(command: str, level: int) -> str:
                options = (bootstrap, at, command)
                try:
                    return run_java(
                        kafka_jars(), FEATURES, *options, "--feature", f"kraft.version={level}"
                    )
                except AssertionError as failed:
                    return str(failed)

            found = ""
            for _ in range(20):  # each voter reports its directory id first
                found = await asyncio.to_thread(features, "upgrade", 1)
                if "not all of the voters support it" not in found:
                    break
            assert "kraft.version was upgraded to 1." in found
            again = await asyncio.to_thread(features, "upgrade", 1)
            assert "kraft.version was upgraded to 1." in again
            down = await asyncio.to_thread(features, "downgrade", 0)
            assert "Could not downgrade kraft.version to 0." in down
            assert "Can't downgrade the version of this feature." in down
            assert {one.node.raft_node.replica.core.kraft_version for one in nodes.nodes} == {1}

    asyncio.run(check())


def test_configs(quorum: QuorumProcesses) -> None:
    everywhere = ("--entity-type", "brokers", "--entity-default")
    tool(quorum, CONFIGS, "--alter", *everywhere, "--add-config", "log.retention.ms=1000")
    described = tool(quorum, CONFIGS, "--describe", *everywhere)
    assert "log.retention.ms=1000 sensitive=false" in described
    tool(quorum, CONFIGS, "--alter", *everywhere, "--delete-config", "log.retention.ms")
    assert "log.retention.ms" not in tool(quorum, CONFIGS, "--describe", *everywhere)
    group = ("--entity-type", "groups", "--entity-name", "billing")
    change = ("--add-config", "share.session.timeout.ms=50000")
    assert "Completed updating" in tool(quorum, CONFIGS, "--alter", *group, *change)


def test_quotas_and_credentials(tmp_path: Path) -> None:
    """The tool alters them through any broker (KIP-919), which forwards them: here, one node."""
    with QuorumProcesses(tmp_path, 1, extra=CONTROLLER) as one:
        eventually(lambda: leader_of(one), "the node leads")
        at = ("--bootstrap-server", one.bootstrap)
        user = ("--entity-type", "users", "--entity-name", "alice")
        for change in ("producer_byte_rate=1024", "SCRAM-SHA-256=[iterations=8192,password=xyzzy]"):
            alter = ("--alter", *user, "--add-config", change)
            assert "Completed updating" in run_java(kafka_jars(), CONFIGS, *at, *alter)
        printed = run_java(kafka_jars(), CONFIGS, *at, "--describe", *user)
        assert "Quota configs for user-principal 'alice' are producer_byte_rate=1024.0" in printed
        assert "SCRAM-SHA-256=iterations=8192" in printed


def test_acls_survive_a_kill_of_the_active_controller(quorum: QuorumProcesses) -> None:
    rule = ("--allow-principal", "User:bob", "--operation", "read", "--topic", "orders")
    tool(quorum, ACLS, "--add", *rule)
    active = eventually(lambda: leader_of(quorum), "a node leads")
    active.kill()
    rule = ("--allow-principal", "User:carl", "--operation", "write", "--topic", "orders")
    tool(quorum, ACLS, "--add", *rule)
    printed = tool(quorum, ACLS, "--list", "--topic", "orders")
    assert "(principal=User:bob, host=*, operation=READ, permissionType=ALLOW)" in printed
    assert "(principal=User:carl, host=*, operation=WRITE, permissionType=ALLOW)" in printed
    active.start()
    tool(quorum, ACLS, "--remove", "--force", *rule)
    assert "User:carl" not in tool(quorum, ACLS, "--list")


def test_a_tool_works_through_any_node(quorum: QuorumProcesses) -> None:
    """A standby forwards the change to the active controller, as a broker does."""
    for node in quorum.nodes:
        rule = (
            "--allow-principal",
            f"User:n{node.node_id}",
            "--operation",
            "read",
            "--topic",
            "any",
        )
        run_java(kafka_jars(), ACLS, "--bootstrap-server", node.address, "--add", *rule)
    printed = tool(quorum, ACLS, "--list", "--topic", "any")
    for node in quorum.nodes:
        assert f"(principal=User:n{node.node_id}, host=*, operation=READ" in printed


CALLS = {
    "describeMetadataQuorum": [1, 2, 3],
    "createTopics": 2,
    "createTopicsAgain": "TopicExistsException",
    "createTopicsValidateOnly": 1,
    "createPartitions": "done",
    "incrementalAlterConfigs": "done",
    "describeConfigs": "77",
    "alterPartitionReassignments": "done",
    "listPartitionReassignments": 0,
    "electLeaders": ["ElectionNotNeededException"],
    "createAcls": "done",
    "describeAcls": 1,
    "deleteAcls": 1,
    "alterClientQuotas": "done",
    "describeClientQuotas": 1024.0,
    "alterUserScramCredentials": "done",
    "describeUserScramCredentials": 8192,
    "updateFeatures": "done",
    "describeFeatures": False,
    "unregisterBroker": "done",
    "deleteTopics": "done",
}
"""Calls of ``ControllerAdmin.java``, and their results."""
NOT_OF_CONTROLLERS = frozenset(
    {
        "createTopics",
        "createTopicsAgain",
        "createTopicsValidateOnly",
        "createPartitions",
        "electLeaders",
        "alterClientQuotas",
        "describeClientQuotas",
        "alterUserScramCredentials",
        "describeUserScramCredentials",
        "deleteTopics",
    }
)
"""Calls that Kafka's own client refuses with bootstrap.controllers (KIP-919)."""


@pytest.mark.parametrize("bootstrap", ["bootstrap.controllers", "bootstrap.servers"])
def test_kafkas_admin_client(bootstrap: str, tmp_path: Path) -> None:
    """The Java client, which has more calls than the tools, against three nodes."""
    program = str(Path(__file__).parent / "ControllerAdmin.java")

    async def check() -> None:
        async with controller_nodes(tmp_path, 3, extra="session_timeout_ms = 600000\n") as nodes:
            await nodes.add_brokers(1, 2)
            refused = NOT_OF_CONTROLLERS if bootstrap == "bootstrap.controllers" else frozenset()
            if refused:
                topic = CreateTopic(topic="orders", assignment=((1, 2), (2, 1)))
                await hosted(await nodes.until_active()).write("test", partial(write_change, topic))
            at = ",".join(node.config.listeners[0].address for node in nodes.nodes)
            printed = await asyncio.to_thread(run_java, kafka_jars(), program, bootstrap, at)
            found = json.loads(printed.splitlines()[-1])
            _, node_ids = found.pop("describeCluster")
            assert node_ids == [1, 2, 3]
            unsupported = dict.fromkeys(refused, "UnsupportedEndpointTypeException")
            differing = {
                name: got for name, got in found.items() if got != (CALLS | unsupported)[name]
            }
            assert not differing
            await nodes.until_equal()

    asyncio.run(check())


def test_the_cluster_id(quorum: QuorumProcesses) -> None:
    at = ("--bootstrap-controller", quorum.bootstrap)
    printed = run_java(kafka_jars(), CLUSTER, "cluster-id", *at)
    assert f"Cluster ID: {quorum.cluster_id}" in printed


def test_the_commands_of_the_page_of_controllers(quorum: QuorumProcesses) -> None:
    text = (Path(__file__).parents[2] / "docs" / "controller.md").read_text()
    lines = [line.split() for line in text.splitlines() if line.startswith("kafka-")]
    commands = [words for words in lines if "--bootstrap-controller" in words]
    assert [words[0] for words in commands] == list(SCRIPTS)
    for script, *words in commands:
        arguments = [quorum.bootstrap if word == "localhost:9093" else word for word in words]
        run_java(kafka_jars(), SCRIPTS[script], *arguments)
    assert "User:ana" in tool(quorum, ACLS, "--list")


@pytest.mark.parametrize("release", ["3.9", "4.3"])
def test_formatting_writes_the_bootstrap_records_of_kafka(tmp_path: Path, release: str) -> None:
    (tmp_path / "raftlog").mkdir()
    node = tmp_path / "raftlog" / "node.toml"
    node.write_text(
        '[node]\nid = 1\ndirectory = "data"\n[listeners.both]\naddress = "127.0.0.1:1"\n'
        + CONTROLLER
    )
    options = ["--standalone", "--release-version", release]
    assert main(["node", "format", "-c", str(node), *options]) == 0
    kafka = tmp_path / "kafka.properties"
    kafka.write_text(
        "process.roles=controller\nnode.id=1\ncontroller.listener.names=C\n"
        "listeners=C://127.0.0.1:1\nlistener.security.protocol.map=C:PLAINTEXT\n"
        f"controller.quorum.bootstrap.servers=127.0.0.1:1\nlog.dirs={tmp_path / 'kafka'}\n"
    )
    formatted = ("-t", "4L6g3nShT-eMCtK--X86sw", "-c", str(kafka))
    run_java(kafka_jars(), "kafka.tools.StorageTool", "format", *options, *formatted)
    ours, kafkas = (
        [line.partition("headerKeys")[2] for line in dump_log(kafka_jars(), path)]
        for path in (
            tmp_path / "raftlog" / "data" / "bootstrap.checkpoint",
            tmp_path / "kafka" / "bootstrap.checkpoint",
        )
    )
    assert ours == kafkas
    assert any("metadata.version" in line for line in ours)
