"""Violations that the witness reports, and behaviour that it accepts."""

from __future__ import annotations

import pytest

from raftlog.log.writing.quorum_log import QuorumLog
from raftlog.quorum.voters import Voter, VoterSet
from raftlog.types import ReplicaKey
from tests.simulation.cluster import Cluster
from tests.simulation.counters import WatchedCounter
from tests.simulation.invariants import InvariantViolationError, Witness
from tests.simulation.world import World
from tests.support.one_replica import OneReplica

OTHER = 2
LIFE = 1


def log_of_epochs(*values: bytes) -> QuorumLog:
    """Return the log of a node that led once for each of these values, and appended it."""
    one = OneReplica()
    for number, value in enumerate(values):
        if number:
            one = one.restarted()
        one.elect()
        one.log.append(one.replica.core.epoch, [value])
    return one.replica.log


def commit(witness: Witness, log: QuorumLog) -> int:
    """Commit all of a log; return its epoch."""
    witness.saw_high_watermark(1, LIFE, log.end_offset, log)
    return log.epoch


@pytest.mark.parametrize("later", [0, 1, 5])
def test_a_leader_without_records_committed_up_to_its_epoch_is_a_violation(
    later: int,
) -> None:
    witness, whole = Witness(), log_of_epochs(b"a", b"b")
    epoch = commit(witness, whole) + later
    with pytest.raises(InvariantViolationError, match="leader completeness"):
        witness.saw_leader(OTHER, LIFE, epoch, log_of_epochs(b"a"))


def test_a_leader_whose_epoch_started_late_needs_no_record_of_a_later_one() -> None:
    """Not even records of its own epoch, or of an older one."""
    witness = Witness()
    short, whole = log_of_epochs(b"a"), log_of_epochs(b"a", b"b", b"c")
    first = commit(witness, short)
    assert commit(witness, whole) > first + 1
    witness.saw_leader(OTHER, LIFE, first + 1, short)


def test_a_leader_whose_epoch_started_late_has_the_same_history() -> None:
    witness = Witness()
    epoch = commit(witness, log_of_epochs(b"a"))
    other = log_of_epochs(b"b")
    with pytest.raises(InvariantViolationError, match="never change"):
        witness.saw_leader(OTHER, LIFE, epoch + 1, other)
    witness.saw_leader(OTHER, LIFE, epoch - 1, other)


def voters_of(*node_ids: int) -> VoterSet:
    return VoterSet.of(Voter(key=ReplicaKey(node_id)) for node_id in node_ids)


def test_a_leader_commits_records_durable_on_a_majority_of_its_voters() -> None:
    witness, leader = Witness(), ReplicaKey(1)
    witness.saw_durable(leader, 7)
    witness.saw_durable(ReplicaKey(2), 6)
    witness.saw_durable(ReplicaKey(4), 9)
    witness.saw_commit(leader, 6, [voters_of(1, 2, 3)])
    with pytest.raises(InvariantViolationError, match="a majority has reached the high watermark"):
        witness.saw_commit(leader, 7, [voters_of(1, 2, 3)])
    witness.saw_commit(leader, 7, [voters_of(1, 2, 3), voters_of(1, 4)])


def test_a_newly_formatted_disk_has_no_durable_records() -> None:
    witness, leader = Witness(), ReplicaKey(1, "x" * 21 + "A")
    old, new = ReplicaKey(2, "y" * 21 + "A"), ReplicaKey(2, "z" * 21 + "A")
    witness.saw_durable(leader, 5)
    witness.saw_durable(new, 5)
    voters = VoterSet.of((Voter(key=leader), Voter(key=old)))
    with pytest.raises(InvariantViolationError, match="a majority has reached the high watermark"):
        witness.saw_commit(leader, 5, [voters])


def test_a_replica_votes_once_per_epoch_and_with_a_new_directory_is_another_replica() -> None:
    witness, candidate = Witness(), ReplicaKey(3, "x" * 21 + "A")
    old, new = ReplicaKey(2, "y" * 21 + "A"), ReplicaKey(2, "z" * 21 + "A")
    witness.saw_vote(old, 4, candidate)
    witness.saw_vote(new, 4, ReplicaKey(1))
    with pytest.raises(InvariantViolationError, match="one vote an epoch"):
        witness.saw_vote(old, 4, ReplicaKey(3, "z" * 21 + "A"))


def test_a_leading_counter_loads_no_snapshot() -> None:
    cluster = Cluster(World(7), has_counters=True)
    cluster.start()
    assert cluster.world.run(30_000_000, cluster.is_level), cluster.describe()
    assert cluster.world.run(
        60_000_000, lambda: any(counter.epoch_led for counter in counters_of(cluster))
    )
    leader, follower = sorted(counters_of(cluster), key=lambda one: one.epoch_led is None)[:2]
    node = cluster.leader()
    assert node is not None
    assert node.counter is leader
    node.snapshot()
    assert node.replica is not None
    snapshot = node.replica.log.open_snapshot(node.replica.log.snapshots[-1])
    follower.handle_load_snapshot(snapshot)
    with pytest.raises(InvariantViolationError, match="a leader never loads a snapshot"):
        leader.handle_load_snapshot(snapshot)


def counters_of(cluster: Cluster) -> list[WatchedCounter]:
    return [node.counter for node in cluster.nodes.values() if node.counter is not None]
