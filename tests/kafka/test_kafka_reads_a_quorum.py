"""The files of a node of a dynamic quorum, read by Kafka's dump-log."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.simulation.cluster import Cluster
from tests.simulation.driven_node import DIRECTORY
from tests.simulation.node import Node
from tests.simulation.world import World
from tests.support.dumps import DumpBatch, parse_dump
from tests.support.kafka import dump_log, kafka_jars

from raftlog.quorum.messages import AddVoterRequest

pytestmark = pytest.mark.kafka

LONG_US = 30_000_000


@pytest.fixture(scope="module")
def node() -> Node:
    """Leader of a three-voter quorum that was formatted with two voters; it has a snapshot."""
    cluster = Cluster(World(11), node_count=2, observer_count=1, is_dynamic=True)
    cluster.start()
    assert cluster.world.run(LONG_US, cluster.is_level)
    leader = cluster.leader()
    assert leader is not None
    leader.change_voters(AddVoterRequest(voter=cluster.nodes[3].voter, timeout_ms=5_000))
    is_done = "voter change NONE"
    assert cluster.world.run(
        cluster.world.now_us + LONG_US, lambda: is_done in cluster.counts and cluster.is_level()
    )
    leader.snapshot()
    assert leader.replica is not None
    assert leader.replica.log.log_start_offset == 4, "the active segment is kept"
    return leader


@pytest.fixture(scope="module")
def dumped(node: Node, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[DumpBatch]]:
    """Batches that dump-log prints, by file suffix."""
    directory = tmp_path_factory.mktemp("node")
    found = {}
    for path, data in node.disk.files().items():
        name = Path(path).name
        if path.startswith(DIRECTORY) and name.endswith((".log", ".checkpoint")):
            copy = directory / name
            copy.write_bytes(data)
            found[copy.suffix] = list(parse_dump(dump_log(kafka_jars(), copy)))
    return found


def said(batches: list[DumpBatch]) -> Iterator[str]:
    for batch in batches:
        assert batch.is_control
        assert batch.is_valid
        for record in batch.records:
            yield record.text


def test_the_log_starts_with_a_leader_change_and_voters(dumped: dict[str, list[DumpBatch]]) -> None:
    leader_change, version, voters, more = said(dumped[".log"])
    assert leader_change.startswith("LeaderChange")
    assert version.startswith("KRaftVersion")
    assert '"kRaftVersion":1' in version.replace(" ", "")
    assert voters.startswith("KRaftVoters")
    assert [ids(one) for one in (voters, more)] == [[1, 2], [1, 2, 3]]


def test_a_snapshot_has_the_voters(dumped: dict[str, list[DumpBatch]]) -> None:
    header, version, voters, footer = said(dumped[".checkpoint"])
    assert header.startswith("SnapshotHeader")
    assert version.startswith("KRaftVersion")
    assert ids(voters) == [1, 2, 3]
    assert footer.startswith("SnapshotFooter")


def ids(text: str) -> list[int]:
    """Return the voters' ids in a record that dump-log printed."""
    words = text.replace(" ", "").split('"voterId":')[1:]
    return [int(word.split(",")[0].rstrip("}]")) for word in words]
