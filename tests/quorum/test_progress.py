"""Progress of replicas on a leader, and the majority's end offset."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from raftlog.quorum.progress import Progress
from raftlog.quorum.voters import OwnVoterSet, Voter, VoterSet
from raftlog.types import ReplicaKey

DIRECTORIES = ("a", "b")
keys = st.builds(ReplicaKey, st.integers(1, 7), st.sampled_from(DIRECTORIES))
static_keys = st.builds(ReplicaKey, st.integers(1, 7))
fetches = st.lists(st.tuples(keys, st.integers(0, 12)), max_size=30)


def set_of(found: list[ReplicaKey]) -> VoterSet:
    return VoterSet.of(Voter(key=key) for key in {key.node_id: key for key in found}.values())


def own_set(voters: VoterSet, own: ReplicaKey) -> OwnVoterSet:
    return OwnVoterSet.of(voters, Voter(key=own))


def filled(history: list[tuple[ReplicaKey, int]]) -> Progress:
    progress = Progress()
    for now_ms, (key, end_offset) in enumerate(history, 1):
        progress.record_fetch(key, end_offset, leader_end_offset=12, now_ms=now_ms)
    return progress


def brute_force(voters: VoterSet, ends: dict[int, int]) -> int:
    """Return the greatest offset that more than half of the voters have reached."""
    reached = 0
    for offset in range(20):
        holders = sum(1 for voter in voters if ends.get(voter.key.node_id, 0) >= offset)
        if holders * 2 > len(voters):
            reached = offset
    return reached


@settings(max_examples=40)
@given(st.lists(keys, min_size=1, max_size=7), fetches, keys, st.integers(0, 12))
def test_a_majority_of_dynamic_voters_commits(
    found: list[ReplicaKey], history: list[tuple[ReplicaKey, int]], own: ReplicaKey, end: int
) -> None:
    """A voter is identified by node id and directory id: another disk does not count."""
    voters = set_of(found)
    members = {voter.key for voter in voters}
    others = [(key, offset) for key, offset in history if key.node_id != own.node_id]
    ends = {key.node_id: offset for key, offset in others if key in members}
    if own in members:
        ends[own.node_id] = end
    assert filled(others).majority_end_offset(own_set(voters, own), end) == brute_force(
        voters, ends
    )


@settings(max_examples=40)
@given(st.lists(static_keys, min_size=1, max_size=7), fetches, static_keys, st.integers(0, 12))
def test_a_majority_of_static_voters_commits(
    found: list[ReplicaKey], history: list[tuple[ReplicaKey, int]], own: ReplicaKey, end: int
) -> None:
    """Static voters have no directory id: the last fetch of the node id counts."""
    voters = set_of(found)
    others = [(key, offset) for key, offset in history if key.node_id != own.node_id]
    ends = {key.node_id: offset for key, offset in others}
    if own.node_id in voters.node_ids:
        ends[own.node_id] = end
    assert filled(others).majority_end_offset(own_set(voters, own), end) == brute_force(
        voters, ends
    )


def test_a_restarted_replica_counts_with_its_present_offset() -> None:
    voters = set_of([ReplicaKey(1), ReplicaKey(2), ReplicaKey(3)])
    progress = filled([(ReplicaKey(2), 9), (ReplicaKey(2), 4)])
    assert progress.majority_end_offset(own_set(voters, ReplicaKey(1)), 10) == 4


def test_a_replica_is_caught_up_at_the_leaders_end_of_its_previous_fetch() -> None:
    progress, key = Progress(), ReplicaKey(2)

    def fetch(end_offset: int, leader_end_offset: int, now_ms: int) -> int | None:
        progress.record_fetch(key, end_offset, leader_end_offset=leader_end_offset, now_ms=now_ms)
        found = progress.find(key)
        assert found is not None
        return found.caught_up_ms

    assert fetch(0, 5, 10) is None
    assert fetch(3, 8, 20) is None, "at 10 the leader had 5"
    assert fetch(8, 12, 30) == 20, "at 20 the leader had 8"
    assert fetch(12, 12, 40) == 40
    assert fetch(12, 15, 50) == 40, "no new information: at 40 it had everything"


def test_observers_expire_and_voters_do_not() -> None:
    voters = set_of([ReplicaKey(1), ReplicaKey(2)])
    progress = Progress()
    for node_id, now_ms in ((2, 1), (11, 2), (12, 3), (13, 4)):
        progress.record_fetch(ReplicaKey(node_id), 0, leader_end_offset=0, now_ms=now_ms)
    progress.clear_inactive_observers(voters, before_ms=3, count_max=10)
    assert {one.key.node_id for one in progress.observers(voters)} == {12, 13}
    progress.clear_inactive_observers(voters, before_ms=0, count_max=1)
    assert {one.key.node_id for one in progress.observers(voters)} == {13}
    assert progress.find(ReplicaKey(2)) is not None
