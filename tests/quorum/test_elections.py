"""Elections of a single core, step by step."""

from __future__ import annotations

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
from tests.quorum.one_core import (
    ME,
    SECOND,
    LogEnds,
    OneCore,
    found,
    vote_request,
    voter_set,
)


def test_a_vote_is_written_down_before_it_is_granted() -> None:
    effects = OneCore().step(RequestReceived(1, vote_request(SECOND, 1)))
    at, reply = next((at, one) for at, one in enumerate(effects) if isinstance(one, Reply))
    assert isinstance(reply.response, VoteResponse)
    assert reply.response.is_granted
    written = found(effects[:at], PersistElection)[-1].state
    assert written == ElectionState(epoch=1, voted_key=SECOND)


def test_a_leader_that_restarts_does_not_lead_its_epoch_again() -> None:
    """Its unsynced records may be lost here although other replicas have them."""
    led = ElectionState(epoch=3, leader_id=1, voted_key=ME)
    one = OneCore(
        log=LogEnds(end_offset=5, synced_end_offset=5, last_fetched_epoch=3), election=led
    )
    assert not votes_asked(one.step(TimePassed()))
    assert one.elect(2, 3).epoch > 3


def votes_asked(effects: list[Effect]) -> list[VoteRequest]:
    requests = [one.request for one in found(effects, Send)]
    return [one for one in requests if isinstance(one, VoteRequest)]


def missing_its_leader() -> OneCore:
    """Return a prospective replica that followed 2 in epoch 1."""
    one = OneCore()
    one.follow(2, 1)
    one.reach_deadline()
    assert isinstance(one.core.role, Prospective)
    return one


def test_a_voter_that_still_names_the_missed_leader_does_not_bring_it_back() -> None:
    one = missing_its_leader()
    leader_and_epoch = LeaderAndEpoch(epoch=1, leader_id=2)
    one.answer(3, VoteResponse(leader_and_epoch=leader_and_epoch, is_granted=True))
    assert isinstance(one.core.role, Candidate), "its pre-vote counts"


def test_the_missed_leader_itself_is_followed_again() -> None:
    one = missing_its_leader()
    one.ask(BeginQuorumEpochRequest(epoch=1, leader_id=2, voter=ME))
    assert isinstance(one.core.role, Follower)


def leaving() -> OneCore:
    """Return a replica that appended its own removal, which is not committed."""
    history = VoterSetHistory(voter_set(ME, SECOND), kraft_version=1)
    history.add_voters(4, voter_set(SECOND))
    log = LogEnds(end_offset=5, synced_end_offset=5, last_fetched_epoch=1)
    return OneCore(log=log, history=history, election=ElectionState(epoch=2))


def test_a_voter_whose_removal_is_not_committed_stands_for_election() -> None:
    """The other voter needs its log (Raft's dissertation, 4.2.2)."""
    one = leaving()
    (pre_vote,) = votes_asked(one.reach_deadline())
    assert pre_vote.is_pre_vote
    (vote,) = votes_asked(one.grant(2))
    assert (vote.is_pre_vote, vote.epoch) == (False, 3)
    assert [begun.epoch for begun in found(one.grant(2), AppendLeaderChange)] == [3]


def test_a_replica_that_is_no_voter_does_not_count_its_own_vote() -> None:
    """The remaining voter must grant both votes; its own vote would be a majority of one."""
    one = leaving()
    effects = one.reach_deadline()
    assert not found(effects, AppendLeaderChange)
    assert one.core.epoch == 2, "not even its pre-vote counts"
    effects = one.grant(2)
    assert isinstance(one.core.role, Candidate)
    assert not found(effects, AppendLeaderChange)
