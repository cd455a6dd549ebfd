"""Granting votes and pre-votes in every role, with and without vote and leader."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace

import pytest

from raftlog.quorum.elections import can_grant_vote, check_vote_request
from raftlog.quorum.messages import ErrorCode, VoteRequest
from raftlog.quorum.progress import Progress
from raftlog.quorum.roles import (
    Candidate,
    Follower,
    Leader,
    Prospective,
    Resigned,
    Role,
    Unattached,
    Votes,
)
from raftlog.quorum.voters import Voter, VoterSet
from raftlog.types import ZERO_UUID, NodeId, OffsetAndEpoch, ReplicaKey

EPOCH = 5
ME, CANDIDATE, OTHER = ReplicaKey(1), ReplicaKey(2), ReplicaKey(3)
LOG_END = OffsetAndEpoch(epoch=3, offset=10)
GOOD_ENDS = ((3, 10), (3, 11), (4, 0))
BAD_ENDS = ((3, 9), (2, 100), (0, 0))


def unattached(leader_id: NodeId | None = None) -> Role:
    return Unattached(epoch=EPOCH, election_deadline_ms=0, leader_id=leader_id)


def prospective(leader_id: NodeId | None = None) -> Role:
    return Prospective(
        epoch=EPOCH,
        election_deadline_ms=0,
        leader_id=leader_id,
        leader_endpoints=(),
        votes=Votes(granted={1}),
    )


def follower(*, has_fetched_from_leader: bool) -> Role:
    return Follower(
        epoch=EPOCH,
        leader_id=NodeId(3),
        leader_endpoints=(),
        fetch_timeout_ms=0,
        fetch_deadline_ms=0,
        has_fetched_from_leader=has_fetched_from_leader,
    )


def candidate() -> Role:
    return Candidate(epoch=EPOCH, election_deadline_ms=0, votes=Votes(granted={1}))


def leader() -> Role:
    return Leader(
        epoch=EPOCH,
        leader_id=NodeId(1),
        epoch_start_offset=10,
        check_quorum_deadline_ms=0,
        begin_epoch_deadline_ms=0,
        progress=Progress(),
    )


def resigned() -> Role:
    return Resigned(
        epoch=EPOCH, election_deadline_ms=0, preferred_successors=(), leader_id=NodeId(1)
    )


YES, NO, IF_GOOD = "yes", "no", "if its log is as good"

# role, voted for, response to a vote request, response to a pre-vote request
TABLE: list[tuple[str, Callable[[], Role], ReplicaKey | None, str, str]] = [
    ("unattached", unattached, None, IF_GOOD, IF_GOOD),
    ("unattached, voted for it", unattached, CANDIDATE, YES, IF_GOOD),
    ("unattached, voted for another", unattached, OTHER, NO, IF_GOOD),
    ("unattached, knows a leader", lambda: unattached(NodeId(3)), None, NO, IF_GOOD),
    ("unattached, knows, voted for it", lambda: unattached(NodeId(3)), CANDIDATE, YES, IF_GOOD),
    ("prospective", prospective, None, IF_GOOD, IF_GOOD),
    ("prospective, voted for it", prospective, CANDIDATE, YES, IF_GOOD),
    ("prospective, voted for another", prospective, OTHER, NO, IF_GOOD),
    ("prospective, knows a leader", lambda: prospective(NodeId(3)), None, NO, IF_GOOD),
    ("follower", lambda: follower(has_fetched_from_leader=False), None, NO, IF_GOOD),
    (
        "follower, voted for it",
        lambda: follower(has_fetched_from_leader=False),
        CANDIDATE,
        NO,
        IF_GOOD,
    ),
    ("follower, has fetched", lambda: follower(has_fetched_from_leader=True), None, NO, NO),
    ("candidate", candidate, ME, NO, IF_GOOD),
    ("resigned", resigned, ME, NO, IF_GOOD),
    ("leader", leader, ME, NO, NO),
]


def request(end: tuple[int, int], *, is_pre_vote: bool) -> VoteRequest:
    return VoteRequest(
        epoch=EPOCH,
        candidate=CANDIDATE,
        voter=ME,
        last_epoch=end[0],
        last_offset=end[1],
        is_pre_vote=is_pre_vote,
    )


@pytest.mark.parametrize(
    ("role", "voted", "vote", "pre_vote"),
    [row[1:] for row in TABLE],
    ids=[row[0] for row in TABLE],
)
def test_votes_are_granted_according_to_the_table(
    role: Callable[[], Role], voted: ReplicaKey | None, vote: str, pre_vote: str
) -> None:
    for is_pre_vote, answer in ((False, vote), (True, pre_vote)):
        for end in GOOD_ENDS + BAD_ENDS:
            expected = answer == YES or (answer == IF_GOOD and end in GOOD_ENDS)
            found = can_grant_vote(
                request(end, is_pre_vote=is_pre_vote), role=role(), voted_key=voted, log_end=LOG_END
            )
            assert found == expected, (is_pre_vote, end)


def test_two_candidates_of_one_epoch_never_both_get_a_vote() -> None:
    """At most one vote per epoch in every role."""
    for _, role, voted, _, _ in TABLE:
        for end, other_end in itertools.product(GOOD_ENDS + BAD_ENDS, repeat=2):
            first = request(end, is_pre_vote=False)
            second = VoteRequest(
                epoch=EPOCH, candidate=OTHER, voter=ME, last_epoch=other_end[0], last_offset=99
            )
            if not can_grant_vote(first, role=role(), voted_key=voted, log_end=LOG_END):
                continue
            assert not can_grant_vote(second, role=role(), voted_key=CANDIDATE, log_end=LOG_END)


@pytest.mark.parametrize(
    ("epoch", "last_offset", "last_epoch", "node_id", "is_pre_vote", "expected"),
    [
        (5, 0, 0, 2, False, ErrorCode.NONE),
        (6, 3, 5, 2, False, ErrorCode.NONE),
        (5, -1, 0, 2, False, ErrorCode.INVALID_REQUEST),
        (5, 0, -1, 2, False, ErrorCode.INVALID_REQUEST),
        (5, 0, 0, -1, False, ErrorCode.INVALID_REQUEST),
        (5, 9, 5, 2, False, ErrorCode.INVALID_REQUEST),  # a candidate has no record of its epoch
        (5, 9, 5, 2, True, ErrorCode.NONE),  # a prospective replica has not raised its epoch
        (5, 9, 6, 2, True, ErrorCode.INVALID_REQUEST),
        (4, 9, 3, 2, False, ErrorCode.FENCED_LEADER_EPOCH),
        (4, 9, 3, 2, True, ErrorCode.FENCED_LEADER_EPOCH),
        (4, -1, 3, 2, False, ErrorCode.INVALID_REQUEST),  # checked before the epoch
    ],
)
def test_an_invalid_request_is_refused_before_it_changes_any_state(
    epoch: int,
    last_offset: int,
    last_epoch: int,
    node_id: int,
    is_pre_vote: bool,
    expected: ErrorCode,
) -> None:
    asked = VoteRequest(
        epoch=epoch,
        candidate=ReplicaKey(node_id),
        voter=None,
        last_offset=last_offset,
        last_epoch=last_epoch,
        is_pre_vote=is_pre_vote,
    )
    assert check_vote_request(asked, epoch=EPOCH) is expected


DIRECTORY, ANOTHER = "a", "b"
# directory ids of the stored vote and of the candidate, and whether the vote is granted again
STORED_VOTES = (
    (ZERO_UUID, ZERO_UUID, True),
    (ZERO_UUID, DIRECTORY, True),
    (DIRECTORY, DIRECTORY, True),
    (DIRECTORY, ANOTHER, False),
    (DIRECTORY, ZERO_UUID, False),
)


@pytest.mark.parametrize(("stored", "asking", "is_granted"), STORED_VOTES)
def test_a_vote_without_a_directory_id_matches_any_directory(
    stored: str, asking: str, is_granted: bool
) -> None:
    """Kafka: ``UnattachedStateTest``, canGrantVote with and without a voted directory id."""
    asked = replace(request((0, 0), is_pre_vote=False), candidate=ReplicaKey(2, asking))
    voted = ReplicaKey(2, stored)
    assert can_grant_vote(asked, role=unattached(), voted_key=voted, log_end=LOG_END) is is_granted
    assert not can_grant_vote(
        asked, role=unattached(), voted_key=ReplicaKey(3, stored), log_end=LOG_END
    ), "another node's"


@pytest.mark.parametrize(("in_set", "asking", "is_voter"), STORED_VOTES)
def test_a_voter_without_a_directory_id_matches_any_directory_of_its_node(
    in_set: str, asking: str, is_voter: bool
) -> None:
    voters = VoterSet.of(Voter(key=ReplicaKey(node_id, in_set)) for node_id in (1, 2))
    assert voters.has(ReplicaKey(2, asking)) is is_voter
    assert not voters.has(ReplicaKey(3, asking))


def test_a_granted_vote_is_never_withdrawn() -> None:
    votes = Votes()
    votes.record(2, is_granted=True)
    votes.record(2, is_granted=False)
    votes.record(3, is_granted=False)
    assert (votes.granted, votes.rejected) == ({2}, {3})
    votes.record(3, is_granted=True)
    assert (votes.granted, votes.rejected) == ({2, 3}, set())
