"""Kafka's own kafka-metadata-quorum adds and removes voters of a quorum of raftlog (KIP-853)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.kafka import kafka_jars, run_java
from tests.support.quorum_checks import is_level, voter_ids
from tests.support.quorum_processes import NodeProcess, QuorumProcesses, eventually

pytestmark = [pytest.mark.kafka, pytest.mark.slow]
TOOL = "org.apache.kafka.tools.MetadataQuorumCommand"


def controller_properties(node: NodeProcess) -> str:
    """Write a node's settings as Kafka's ``controller.properties``: the tool reads the new voter
    from it and from ``meta.properties`` in the log directory.
    """
    return "\n".join(
        (
            "process.roles=controller",
            f"node.id={node.node_id}",
            "controller.listener.names=CONTROLLER",
            f"listeners=CONTROLLER://{node.address}",
            f"advertised.listeners=CONTROLLER://{node.address}",
            f"controller.quorum.bootstrap.servers={node.address}",
            f"log.dirs={node.directory}",
            "",
        )
    )


@pytest.mark.parametrize("where", ["--bootstrap-server", "--bootstrap-controller"])
def test_the_tool_adds_and_removes_a_voter_at_any_node(tmp_path: Path, where: str) -> None:
    jars = kafka_jars()
    with QuorumProcesses(tmp_path) as quorum:
        new = quorum.new_node()
        new.start()
        eventually(lambda: is_level(quorum, new), "the new node follows")
        properties = tmp_path / "controller.properties"
        properties.write_text(controller_properties(new))
        at = (where, quorum.nodes[0].address)  # it may lead or not
        printed = run_java(jars, TOOL, *at, "--command-config", str(properties), "add-controller")
        assert f"Added controller {new.node_id}" in printed
        assert voter_ids(quorum) == [1, 2, 3, 4]
        removed = quorum.nodes[1]
        printed = run_java(
            jars,
            TOOL,
            *at,
            "remove-controller",
            *("--controller-id", str(removed.node_id)),
            *("--controller-directory-id", removed.directory_id),
        )
        assert "Removed" in printed
        assert voter_ids(quorum) == [1, 3, 4]
