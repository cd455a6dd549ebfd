"""Elections of a single core, step by step."""

from __future__ import annotations

from dataclasses import replace

from raftlog.quorum.effects import (
    AppendLeaderChange,
    Effect,
    ElectionState,
    PersistElection,
    Reply,
    Send,
)
from raftlog.quorum.events import RequestReceived, TimePassed
from raftlog.quorum.messages import (
    BeginQuorumEpochRequest,
    LeaderAndEpoch,
    VoteRequest,
    VoteResponse,
)
from raftlog.quorum.roles import Candidate, Follower, Prospective
from raftlog.quorum.voters import VoterSetHistory
from tests.quorum.single_core import (
    ME,
    SECOND,
    THIRD,
    LogEnds,
    OneCore,
    found,
    vote_request,
    voter_set,
)


def test_a_vote_is_durable_before_it_is_granted() -> None:
    effects = OneCore().step(RequestReceived(1, vote_request(SECOND, 1)))
    at, reply = next((at, one) for at, one in enumerate(effects) if isinstance(one, Reply))
    assert isinstance(reply.response, VoteResponse)
    assert reply.response.is_granted
    written = found(effects[:at], PersistElection)[-1].state
    assert written == ElectionState(epoch=1, voted_key=SECOND)


def test_a_restarted_leader_does_not_lead_its_epoch_again() -> None:
    """Its unsynced records may be lost here although other replicas have them."""
    led = ElectionState(epoch=3, leader_id=1, voted_key=ME)
    one = OneCore(
        log=LogEnds(end_offset=5, synced_end_offset=5, last_fetched_epoch=3), election=led
    )
    assert not requested_votes(one.step(TimePassed()))
    assert one.elect(2, 3).epoch > 3


def requested_votes(effects: list[Effect]) -> list[VoteRequest]:
    requests = [one.request for one in found(effects, Send)]
    return [one for one in requests if isinstance(one, VoteRequest)]


def prospective_without_leader() -> OneCore:
    """Return a prospective replica that followed 2 in epoch 1."""
    one = OneCore()
    one.follow(2, 1)
    one.reach_deadline()
    assert isinstance(one.core.role, Prospective)
    return one


def test_a_voter_that_still_names_the_lost_leader_does_not_restore_it() -> None:
    one = prospective_without_leader()
    leader_and_epoch = LeaderAndEpoch(epoch=1, leader_id=2)
    one.answer(3, VoteResponse(leader_and_epoch=leader_and_epoch, is_granted=True))
    assert isinstance(one.core.role, Candidate), "its pre-vote counts"


def test_the_lost_leader_is_followed_again_on_its_own_message() -> None:
    one = prospective_without_leader()
    one.ask(BeginQuorumEpochRequest(epoch=1, leader_id=2, voter=ME))
    assert isinstance(one.core.role, Follower)


def test_a_pre_vote_is_requested_again_of_a_voter_that_has_lost_the_leader_since() -> None:
    one = OneCore(log=LogEnds(end_offset=5, synced_end_offset=5, last_fetched_epoch=1))
    one.follow(2, 1)
    assert [vote.voter for vote in requested_votes(one.reach_deadline())] == [SECOND, THIRD]
    leader_and_epoch = LeaderAndEpoch(epoch=1, leader_id=2)
    one.answer(3, VoteResponse(leader_and_epoch=leader_and_epoch, is_granted=False))
    shorter = replace(vote_request(THIRD, 1, last_epoch=1, last_offset=4), is_pre_vote=True)
    effects = one.step(RequestReceived(7, shorter))
    assert [vote.voter for vote in requested_votes(effects)] == [THIRD]
    one.grant_vote(3)
    assert isinstance(one.core.role, Candidate)


def test_a_rejection_that_is_older_than_the_pre_vote_request_of_its_voter_does_not_count() -> None:
    """Their connections differ, so that the later one may be the first to be received."""
    one = OneCore(log=LogEnds(end_offset=5, synced_end_offset=5, last_fetched_epoch=1))
    one.follow(2, 1)
    one.reach_deadline()
    shorter = replace(vote_request(THIRD, 1, last_epoch=1, last_offset=4), is_pre_vote=True)
    assert not requested_votes(one.step(RequestReceived(7, shorter))), "one is in flight"
    rejection = VoteResponse(
        leader_and_epoch=LeaderAndEpoch(epoch=1, leader_id=2), is_granted=False
    )
    assert [vote.voter for vote in requested_votes(one.answer(3, rejection))] == [THIRD]
    assert not requested_votes(one.answer(3, rejection)), "the next one counts"


def leaving() -> OneCore:
    """Return a replica that appended its own removal, which is not committed."""
    history = VoterSetHistory(voter_set(ME, SECOND), kraft_version=1)
    history.add_voters(4, voter_set(SECOND))
    log = LogEnds(end_offset=5, synced_end_offset=5, last_fetched_epoch=1)
    return OneCore(log=log, history=history, election=ElectionState(epoch=2))


def test_a_voter_whose_removal_is_not_committed_campaigns() -> None:
    """The other voter needs its log (Raft's dissertation, 4.2.2)."""
    one = leaving()
    (pre_vote,) = requested_votes(one.reach_deadline())
    assert pre_vote.is_pre_vote
    (vote,) = requested_votes(one.grant_vote(2))
    assert (vote.is_pre_vote, vote.epoch) == (False, 3)
    assert [begun.epoch for begun in found(one.grant_vote(2), AppendLeaderChange)] == [3]


def test_a_replica_that_is_no_voter_does_not_count_its_own_vote() -> None:
    """The remaining voter must grant both votes; its own vote would be a majority of one."""
    one = leaving()
    effects = one.reach_deadline()
    assert not found(effects, AppendLeaderChange)
    assert one.core.epoch == 2, "not even its own pre-vote counts"
    effects = one.grant_vote(2)
    assert isinstance(one.core.role, Candidate)
    assert not found(effects, AppendLeaderChange)
