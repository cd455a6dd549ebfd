"""Voters are added, removed and moved under load, with one change at a time (KIP-853)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest

from raftlog.append import AppendRequest, Done, RequestResult
from raftlog.log.writing.properties import LogConfig
from raftlog.quorum.messages import AddVoterRequest, ErrorCode, RemoveVoterRequest
from raftlog.quorum.voters import Endpoint
from raftlog.types import ReplicaKey
from tests.simulation.cluster import Cluster
from tests.simulation.driven_node import DIRECTORY
from tests.simulation.node import Node
from tests.simulation.world import World

LONG_US = 30_000_000
ANOTHER = "x" * 21 + "A"
"""Directory id of no node."""


def started(
    *,
    observers: int = 0,
    is_dynamic: bool = True,
    nodes: int = 3,
    log_config: LogConfig | None = None,
) -> Cluster:
    cluster = Cluster(
        World(7),
        node_count=nodes,
        observer_count=observers,
        is_dynamic=is_dynamic,
        log_config=log_config,
    )
    cluster.start()
    wait(cluster, cluster.is_level)
    return cluster


def wait(cluster: Cluster, is_so: Callable[[], bool]) -> None:
    assert cluster.world.run(cluster.world.now_us + LONG_US, is_so), cluster.describe()


def leader_of(cluster: Cluster) -> Node:
    leader = cluster.leader()
    assert leader is not None
    return leader


class BatchFeeder:
    """User at the leader that counts its completed appends."""

    def __init__(self, cluster: Cluster, node: Node) -> None:
        self.done_count = 0
        self._cluster, self._node = cluster, node

    def append(self, value: bytes) -> None:
        request = AppendRequest(records=(value,), deadline_ms=0)
        self._cluster.users_append(self._node.node_id, request, self, 1)

    def receive_result(
        self, _target: int, _attempt: int, answer: RequestResult, _leader_id: int | None
    ) -> None:
        assert isinstance(answer, Done)
        self.done_count += 1

    def has_done(self, count: int) -> bool:
        return self.done_count == count


def voters_of(node: Node) -> tuple[int, ...]:
    assert node.replica is not None
    return node.replica.core.voters.node_ids


def cut_off(cluster: Cluster, node: Node, *, is_cut: bool = True) -> None:
    for other in cluster.nodes:
        if other != node.node_id:
            cluster.network.link(node.node_id, other).is_cut = is_cut
            cluster.network.link(other, node.node_id).is_cut = is_cut


def answers(cluster: Cluster) -> dict[str, int]:
    words = "voter change "
    return {
        name.removeprefix(words): count
        for name, count in cluster.counts.items()
        if name.startswith(words)
    }


def wait_for_changes(cluster: Cluster, count: int) -> None:
    """Wait until this number of changes is submitted and completed."""
    wait(cluster, lambda: answers(cluster) == {"NONE": count} and cluster.is_level())


def test_a_caught_up_observer_becomes_a_voter() -> None:
    cluster = started(observers=1)
    leader = leader_of(cluster)
    leader.change_voters(AddVoterRequest(voter=cluster.nodes[4].voter, timeout_ms=5_000))
    wait(cluster, lambda: all(voters_of(one) == (1, 2, 3, 4) for one in cluster.nodes.values()))
    wait(cluster, lambda: answers(cluster) == {"NONE": 1})


def test_a_voter_that_does_not_know_that_it_is_one_votes_for_others() -> None:
    """It follows a dead leader and never campaigns: its vote is required nevertheless."""
    cluster = started(observers=1)
    old, new = leader_of(cluster), cluster.nodes[4]
    old.change_voters(AddVoterRequest(voter=new.voter, timeout_ms=5_000))
    rest = [one for one in cluster.nodes.values() if one not in (old, new)]
    wait(cluster, lambda: voters_of(old) == (1, 2, 3, 4))
    cluster.network.link(old.node_id, new.node_id).is_cut = True
    cluster.network.reset(old.node_id, new.node_id)  # the record was in flight already
    wait(cluster, lambda: all(voters_of(one) == (1, 2, 3, 4) for one in rest))
    assert voters_of(new) == (1, 2, 3)
    old.kill()
    wait(cluster, lambda: cluster.is_level(without=old.node_id))
    assert voters_of(new) == (1, 2, 3, 4)


def test_an_observer_finds_a_leader_that_is_no_voter_in_its_own_log() -> None:
    cluster = started(nodes=1, observers=2)
    old, new, late = (cluster.nodes[node_id] for node_id in (1, 2, 3))
    cut_off(cluster, late)
    old.change_voters(AddVoterRequest(voter=new.voter, timeout_ms=5_000))
    wait(cluster, lambda: answers(cluster) == {"NONE": 1} and cluster.is_level(without=3))
    old.change_voters(RemoveVoterRequest(voter=old.voter.key))
    wait(cluster, lambda: cluster.leader() is new and cluster.is_level(without=3))
    cut_off(cluster, late, is_cut=False)
    between = [cluster.network.link(*ends) for ends in ((2, 3), (3, 2))]
    for link in between:
        link.is_cut = True
    assert late.replica is not None
    core = late.replica.core
    wait(cluster, lambda: core.leader_id == 2)
    cluster.world.run(cluster.world.now_us + 5_000_000)
    assert voters_of(late) == (1,), "nor does it know a leader since"
    for link in between:
        link.is_cut = False
    wait(cluster, cluster.is_level)
    assert voters_of(late) == (2,)


def test_an_added_voter_is_one_after_a_snapshot_too() -> None:
    cluster = started(observers=1)
    leader_of(cluster).change_voters(
        AddVoterRequest(voter=cluster.nodes[4].voter, timeout_ms=5_000)
    )
    wait(cluster, lambda: answers(cluster) == {"NONE": 1} and cluster.is_level())
    for node in cluster.nodes.values():
        node.snapshot()
        node.kill()
        node.start()
    wait(cluster, cluster.is_level)
    assert all(voters_of(one) == (1, 2, 3, 4) for one in cluster.nodes.values())


def test_voters_are_known_after_retention_deleted_their_records() -> None:
    little = LogConfig(segment_bytes=1_000, retention_bytes=2_000)
    cluster = started(observers=1, log_config=little)
    leader = leader_of(cluster)
    leader.change_voters(AddVoterRequest(voter=cluster.nodes[4].voter, timeout_ms=5_000))
    wait(cluster, lambda: answers(cluster) == {"NONE": 1} and cluster.is_level())
    end_of_change = cluster.witness.end_offset
    user = BatchFeeder(cluster, leader)
    for number in range(60):  # one batch each
        user.append(b"x" * 100)
        wait(cluster, partial(user.has_done, number + 1))
    wait(cluster, cluster.is_level)
    for node in cluster.nodes.values():
        node.clean()
        assert node.replica is not None
        assert node.replica.log.log_start_offset > end_of_change
        node.kill()
        node.start()
        assert voters_of(node) == (1, 2, 3, 4)
        assert node.replica.begin_snapshot(end_of_change, time_ms=0) is None, (
            "it is below the log start"
        )
    wait(cluster, cluster.is_level)


def damaged(cluster: Cluster, node: Node) -> None:
    """Kill a node, corrupt its last record, and start it again."""
    user = BatchFeeder(cluster, leader_of(cluster))
    user.append(b"x" * 100)
    wait(cluster, lambda: user.done_count == 1 and cluster.is_level())
    node.kill()
    log = node.disk.files()[f"{DIRECTORY}/00000000000000000000.log"]
    assert node.flip_durable_bit(8 * (len(log) - 10))
    node.start()


def test_a_configured_only_voter_with_a_damaged_log_uses_the_voters_of_its_log() -> None:
    """It was configured alone and others have joined: they have the records that it lost."""
    cluster = started(nodes=1, observers=2)
    node = leader_of(cluster)
    for joining in (2, 3):
        node.change_voters(AddVoterRequest(voter=cluster.nodes[joining].voter, timeout_ms=5_000))
        wait_for_changes(cluster, joining - 1)
    damaged(cluster, node)
    assert node.is_damaged
    wait(cluster, lambda: cluster.is_level() and not node.is_damaged)
    assert voters_of(node) == (1, 2, 3)


@pytest.mark.parametrize("segment", [0, 1])
def test_a_node_repairs_damage_far_before_the_part_that_recovery_scans(segment: int) -> None:
    cluster = started(log_config=LogConfig(segment_bytes=1_000))
    user = BatchFeeder(cluster, leader_of(cluster))
    for number in range(40):
        user.append(b"x" * 100)
        wait(cluster, partial(user.has_done, number + 1))
    wait(cluster, cluster.is_level)
    node = next(one for one in cluster.nodes.values() if one is not leader_of(cluster))
    node.kill()
    assert node.flip_durable_bit(8 * 300, segment=segment)
    node.start()
    assert node.is_damaged
    wait(cluster, lambda: cluster.is_level() and not node.is_damaged)
    assert node.replica is not None
    cluster.witness.check_history(node.node_id, node.replica.log)


def test_the_only_remaining_voter_does_not_start_on_a_damaged_log() -> None:
    """Three were configured and two are removed: no other node has the lost records."""
    cluster = started()
    node = leader_of(cluster)
    others = [one for one in cluster.nodes.values() if one is not node]
    for count, removed in enumerate(others, 1):
        node.change_voters(RemoveVoterRequest(voter=removed.voter.key))
        wait_for_changes(cluster, count)
    damaged(cluster, node)
    assert not node.is_alive


def test_adding_an_unreachable_voter_times_out_and_others_can_be_added() -> None:
    cluster = started(observers=1)
    cut_off(cluster, cluster.nodes[4])
    leader = leader_of(cluster)
    leader.change_voters(AddVoterRequest(voter=cluster.nodes[4].voter, timeout_ms=500))
    wait(cluster, lambda: answers(cluster) == {"REQUEST_TIMED_OUT": 1})
    assert voters_of(leader) == (1, 2, 3)
    cut_off(cluster, cluster.nodes[4], is_cut=False)
    leader.change_voters(AddVoterRequest(voter=cluster.nodes[4].voter, timeout_ms=5_000))
    wait(cluster, lambda: answers(cluster) == {"REQUEST_TIMED_OUT": 1, "NONE": 1})


def test_a_removed_leader_resigns_once_its_removal_is_committed() -> None:
    cluster = started()
    leader = leader_of(cluster)
    leader.change_voters(RemoveVoterRequest(voter=leader.voter.key))
    wait(cluster, lambda: cluster.leader() not in (None, leader) and cluster.is_level())
    rest = tuple(one for one in (1, 2, 3) if one != leader.node_id)
    assert all(voters_of(one) == rest for one in cluster.nodes.values())
    assert answers(cluster) == {"NONE": 1}


def test_a_change_waits_until_the_previous_one_is_committed() -> None:
    """Two concurrent changes could allow two disjoint majorities."""
    cluster = started(nodes=5)
    leader = leader_of(cluster)
    cut_off(cluster, leader)
    others = [one for one in cluster.nodes.values() if one is not leader]
    for node in others[:2]:
        leader.change_voters(RemoveVoterRequest(voter=node.voter.key))
    assert answers(cluster) == {"REQUEST_TIMED_OUT": 1}
    assert len(voters_of(leader)) == 4


def test_an_uncommitted_voter_set_is_reverted() -> None:
    cluster = started()
    old = leader_of(cluster)
    cut_off(cluster, old)
    removed = next(one for one in cluster.nodes.values() if one is not old)
    old.change_voters(RemoveVoterRequest(voter=removed.voter.key))
    assert removed.node_id not in voters_of(old)
    wait(cluster, lambda: cluster.leader() not in (None, old))
    cut_off(cluster, old, is_cut=False)
    wait(cluster, cluster.is_level)
    assert all(voters_of(one) == (1, 2, 3) for one in cluster.nodes.values())
    assert answers(cluster) == {"NOT_LEADER_OR_FOLLOWER": 1}, "the outcome was unknown"


def test_a_moved_voter_registers_its_new_endpoint_with_the_leader() -> None:
    cluster = started()
    leader = leader_of(cluster)
    moved = next(one for one in cluster.nodes.values() if one is not leader)
    moved.kill()
    moved.voter = replace(moved.voter, endpoints=(Endpoint("PEERS", "elsewhere", moved.node_id),))
    moved.start()

    def is_known() -> bool:
        assert leader.replica is not None
        return moved.voter in leader.replica.core.voters.voters

    wait(cluster, is_known)
    wait(cluster, cluster.is_level)


@pytest.mark.parametrize(
    ("is_dynamic", "request_of", "error"),
    [
        (False, lambda _: RemoveVoterRequest(voter=ReplicaKey(1, ANOTHER)), "UNSUPPORTED_VERSION"),
        (
            True,
            lambda c: RemoveVoterRequest(voter=ReplicaKey(1, "x" * 21 + "A")),
            "VOTER_NOT_FOUND",
        ),
        (True, lambda _: RemoveVoterRequest(voter=ReplicaKey(9, ANOTHER)), "VOTER_NOT_FOUND"),
        (
            True,
            lambda c: AddVoterRequest(voter=c.nodes[2].voter, timeout_ms=100),
            "DUPLICATE_VOTER",
        ),
    ],
)
def test_invalid_changes_are_refused(
    is_dynamic: bool, request_of: Callable[[Cluster], RemoveVoterRequest], error: str
) -> None:
    cluster = started(is_dynamic=is_dynamic)
    before = cluster.witness.end_offset
    leader_of(cluster).change_voters(request_of(cluster))
    assert answers(cluster) == {ErrorCode[error].name: 1}
    assert cluster.witness.end_offset == before


def test_the_only_voter_cannot_be_removed() -> None:
    cluster = started(nodes=1)
    leader = leader_of(cluster)
    leader.change_voters(RemoveVoterRequest(voter=leader.voter.key))
    assert answers(cluster) == {"VOTER_NOT_FOUND": 1}
