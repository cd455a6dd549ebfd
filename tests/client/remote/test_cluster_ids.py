"""Addresses of several clusters are refused, and a client is pinned to the cluster of its nodes."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.support.quorum_processes import NodeProcess, free_ports
from tests.support.scripted_controller import Controller

import raftlog
from raftlog.errors import LogClosedError, OptionError, WrongClusterError
from raftlog.node.config import read_config
from raftlog.node.formatting import format_directory, random_id

TIMEOUT_MS = 5_000


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("knows_leader", [True, False])
def test_addresses_of_two_clusters_are_refused(first: int, knows_leader: bool) -> None:
    one = Controller(cluster_id="one").node
    two = Controller(cluster_id="two", knows_leader=knows_leader).node
    with one, two:
        addresses = [one.address, two.address]
        given = ",".join((addresses[first], addresses[1 - first]))
        with pytest.raises(WrongClusterError) as caught:
            raftlog.follow(given, timeout_ms=TIMEOUT_MS)
    assert {caught.value.cluster_id, caught.value.expected_cluster_id} == {"one", "two"}
    assert "--standalone" in caught.value.message()


def test_a_cluster_id_pins_the_cluster() -> None:
    with Controller(cluster_id="one").node as node:
        log = raftlog.follow(node.address, cluster_id="one", timeout_ms=TIMEOUT_MS)
        assert log.cluster_id == "one"
        with pytest.raises(WrongClusterError) as caught:
            raftlog.follow(node.address, cluster_id="two", timeout_ms=TIMEOUT_MS)
    assert (caught.value.expected_cluster_id, caught.value.cluster_id) == ("two", "one")
    with pytest.raises(OptionError, match="cluster_id"):
        raftlog.connect("127.0.0.1:1", cluster_id="")


def test_a_client_stays_at_its_cluster_when_its_node_is_replaced() -> None:
    controller = Controller(cluster_id="one")
    with controller.node as node:
        log = raftlog.follow(node.address, timeout_ms=TIMEOUT_MS)
        controller.cluster_id = "two"
        node.disconnect()
        log.refresh()
        with pytest.raises(WrongClusterError):
            _ = log.log_end_offset


def test_a_reader_is_closed_with_its_connections() -> None:
    with Controller(cluster_id="one").node as node:
        with raftlog.follow(node.address, timeout_ms=TIMEOUT_MS) as log:
            log.refresh()
            assert log.log_start_offset == 0
        log.refresh()
        with pytest.raises(LogClosedError):
            _ = log.log_start_offset


@pytest.mark.slow
def test_three_nodes_that_were_each_formatted_alone_are_refused_as_one_quorum(
    tmp_path: Path,
) -> None:
    nodes = [NodeProcess(tmp_path / str(port), 1, port, node_keys="") for port in free_ports(3)]
    with ExitStack() as running:
        for node in nodes:
            config = read_config(node.config)
            format_directory(config, cluster_id=random_id(), is_standalone=True)
            node.start()
            running.callback(node.kill)
        for _ in range(3):
            with pytest.raises(WrongClusterError):
                raftlog.connect(",".join(node.address for node in nodes))
        for node in nodes:
            with raftlog.connect(node.address) as log:
                assert log.append([b"alone"]).base_offset < 10
