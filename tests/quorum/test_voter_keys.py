"""Requests addressed to a voter by node id and directory id."""

from __future__ import annotations

import pytest

from raftlog.quorum.effects import AppendVoters, ElectionState, PersistElection, Reply
from raftlog.quorum.events import RequestReceived
from raftlog.quorum.messages import (
    BeginQuorumEpochRequest,
    BeginQuorumEpochResponse,
    ErrorCode,
    UpdateVoterRequest,
    VoterChangeResponse,
    VoteResponse,
)
from raftlog.quorum.voters import Endpoint, Voter
from raftlog.types import ReplicaKey
from tests.quorum.single_core import ME, SECOND, OneCore, found, vote_request

ADDRESSED = (
    (None, ErrorCode.NONE),
    (ME, ErrorCode.NONE),
    (ReplicaKey(ME.node_id), ErrorCode.NONE),
    (ReplicaKey(ME.node_id, "before it was formatted again"), ErrorCode.INVALID_VOTER_KEY),
    (SECOND, ErrorCode.INVALID_VOTER_KEY),
)


@pytest.mark.parametrize(("voter", "error"), ADDRESSED)
def test_a_voter_confirms_a_leader_only_under_its_own_directory_id(
    voter: ReplicaKey | None, error: ErrorCode
) -> None:
    """Otherwise a voter that was reformatted would confirm a deposed leader."""
    request = BeginQuorumEpochRequest(epoch=1, leader_id=2, voter=voter)
    response = OneCore().ask(request)
    assert isinstance(response, BeginQuorumEpochResponse)
    assert response.error is error


@pytest.mark.parametrize(("voter", "error"), ADDRESSED)
def test_a_vote_is_granted_only_under_the_replicas_own_directory_id(
    voter: ReplicaKey | None, error: ErrorCode
) -> None:
    response = OneCore().ask(vote_request(SECOND, 1, voter=voter))
    assert isinstance(response, VoteResponse)
    assert (response.error, response.is_granted) == (error, error is ErrorCode.NONE)


def test_a_stored_vote_without_a_directory_id_gets_the_first_candidates() -> None:
    one = OneCore(election=ElectionState(epoch=2, voted_key=ReplicaKey(3)))
    first, second = ReplicaKey(3, "c"), ReplicaKey(3, "d")
    effects = one.step(RequestReceived(1, vote_request(first, 2)))
    assert [written.state.voted_key for written in found(effects, PersistElection)] == [first]
    granted = []
    for candidate in (first, second, ReplicaKey(3)):
        response = one.ask(vote_request(candidate, 2))
        assert isinstance(response, VoteResponse)
        granted.append(response.is_granted)
    assert granted == [True, False, False]


def test_a_leader_does_not_change_its_own_listeners_on_a_request() -> None:
    one = OneCore(ME)
    one.elect()
    one.append(3)
    assert one.core.high_watermark == 3
    elsewhere = Voter(key=ME, endpoints=(Endpoint("PEERS", "elsewhere", 9999),))
    request = UpdateVoterRequest(epoch=one.core.epoch, voter=elsewhere)
    effects = one.step(RequestReceived(1, request))
    assert not found(effects, AppendVoters)
    (reply,) = found(effects, Reply)
    assert isinstance(reply.response, VoterChangeResponse)
    assert reply.response.error is ErrorCode.INVALID_REQUEST
