"""Nodes and clients that count: the log has every acknowledged increment once and in order."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import pytest

import raftlog
from tests.support.quorum_checks import leader_of
from tests.support.quorum_processes import NodeProcess, QuorumProcesses, eventually

from .counter_writers import CounterWriter, Tally, verify

COUNTER_NODE = (sys.executable, "-m", "tests.node.counter_node")


def counted(node: NodeProcess) -> int:
    """Return the count that the node logged last."""
    logged: list[Any] = [line["value"] for line in node.lines() if line["event"] == "counted"]
    return logged[-1] if logged else 0


@pytest.mark.slow
def test_counting_continues_when_the_leader_is_killed(tmp_path: Path) -> None:
    quorum = QuorumProcesses(tmp_path)
    for node in quorum.nodes:
        node.command = COUNTER_NODE
    with quorum:
        eventually(lambda: min(map(counted, quorum.nodes)) > 50, "all nodes count")
        leader = eventually(lambda: leader_of(quorum), "a leader")
        leader.kill()
        rest = [node for node in quorum.nodes if node is not leader]
        before = max(map(counted, rest))
        eventually(lambda: min(map(counted, rest)) > before + 50, "the others continue counting")
        leader.start()
        eventually(lambda: counted(leader) > before + 50, "it has counted all increments")
        assert all(node.is_running for node in quorum.nodes), "counts never contradict earlier ones"


@pytest.mark.nightly
def test_writers_lose_no_increment_when_a_node_is_killed(tmp_path: Path) -> None:
    """``make test`` has conditional appends in ``tests/client/remote/test_three_nodes.py``."""
    with QuorumProcesses(tmp_path) as quorum, raftlog.connect(quorum.bootstrap) as log:
        tally, until_s = Tally(), time.monotonic() + 8
        writers = [CounterWriter(quorum.bootstrap, tally, until_s) for _ in range(4)]
        for writer in writers:
            writer.start()
        eventually(lambda: tally.acknowledged, "an increment is acknowledged")
        quorum.node(1).kill()
        for writer in writers:
            writer.join()
        assert tally.error is None
        verdict = verify(log, tally)
        assert (verdict.lost, verdict.out_of_order) == ((), ())
        assert verdict.value >= max(tally.acknowledged.values())


def test_lost_duplicated_and_foreign_records_are_detected(tmp_path: Path) -> None:
    """The check is the same for any log: here one with the records of a broken quorum."""
    with raftlog.open(tmp_path / "counter-0") as log:
        first = log.append([b"increment 1", b"another record", b"increment 2"]).base_offset
        tally = Tally()
        for offset, number in ((first, 1), (first + 2, 2)):
            tally.record_acknowledged(offset, number)
        verdict = verify(log, tally)
        assert (verdict.lost, verdict.out_of_order) == ((), ())
        tally.record_acknowledged(first + 3, 3)
        verdict = verify(log, tally)
        assert (verdict.value, verdict.lost, verdict.out_of_order) == (2, (first + 3,), ())
        log.append(b"increment 2")
        verdict = verify(log, tally)
        assert (verdict.lost, verdict.out_of_order) == ((first + 3,), (first + 3,))
