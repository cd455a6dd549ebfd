"""Credible epochs of requests, of responses, and of unknown replicas."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from raftlog.limits import EPOCH_RESERVED_FROM, EPOCH_STEP_MAX
from raftlog.quorum.messages import (
    BeginQuorumEpochRequest,
    BeginQuorumEpochResponse,
    EndQuorumEpochRequest,
    EndQuorumEpochResponse,
    ErrorCode,
    LeaderAndEpoch,
    Request,
    VoteResponse,
)
from raftlog.types import ReplicaKey
from tests.quorum.single_core import ME, SECOND, STRANGER, THIRD, OneCore, vote_request


def requests_of(sender: ReplicaKey, epoch: int) -> tuple[Request, ...]:
    """Return the requests that may raise the epoch."""
    node_id = sender.node_id
    return (
        vote_request(sender, epoch),
        BeginQuorumEpochRequest(epoch=epoch, leader_id=node_id, voter=None),
        EndQuorumEpochRequest(epoch=epoch, leader_id=node_id, preferred_successors=()),
    )


@pytest.mark.parametrize("kind", [0, 1, 2])
def test_a_request_raises_the_epoch_by_a_bounded_step(kind: int) -> None:
    one = OneCore()
    refused = one.ask(requests_of(SECOND, EPOCH_STEP_MAX + 1)[kind])
    assert isinstance(refused, VoteResponse | BeginQuorumEpochResponse | EndQuorumEpochResponse)
    assert (refused.error, one.core.epoch) == (ErrorCode.INVALID_REQUEST, 0)
    one.ask(requests_of(SECOND, EPOCH_STEP_MAX)[kind])
    assert one.core.epoch == EPOCH_STEP_MAX


def test_an_epoch_without_a_leader_does_not_raise_the_bound_of_requests() -> None:
    """Otherwise a few requests, a step each, would exhaust the epochs."""
    one = OneCore()
    one.ask(vote_request(SECOND, EPOCH_STEP_MAX))
    one.ask(vote_request(SECOND, EPOCH_STEP_MAX + 2))
    assert one.core.epoch == EPOCH_STEP_MAX
    one.ask(vote_request(SECOND, EPOCH_STEP_MAX + 1))
    assert one.core.epoch == EPOCH_STEP_MAX + 1, "the next election is always credible"


def test_the_epoch_of_a_responding_leader_raises_the_bound_of_requests() -> None:
    one = OneCore()
    one.follow(2, EPOCH_STEP_MAX)
    one.ask(vote_request(THIRD, 2 * EPOCH_STEP_MAX))
    assert one.core.epoch == 2 * EPOCH_STEP_MAX


@pytest.mark.parametrize(
    ("epoch", "expected"),
    [
        (EPOCH_RESERVED_FROM - 1, EPOCH_RESERVED_FROM - 1),
        (EPOCH_RESERVED_FROM, 0),
        (2**31 - 1, 0),
    ],
)
def test_a_response_raises_the_epoch_to_any_unreserved_one(epoch: int, expected: int) -> None:
    one = OneCore()
    one.reach_deadline()
    one.answer(2, VoteResponse(leader_and_epoch=LeaderAndEpoch(epoch=epoch)))
    assert one.core.epoch == expected


def leader() -> OneCore:
    one = OneCore()
    one.elect(2, 3)
    return one


def follower() -> OneCore:
    one = OneCore()
    one.follow(2, 1)
    return one


@pytest.mark.parametrize("in_office", [leader, follower])
@pytest.mark.parametrize("kind", [0, 1, 2])
def test_an_unknown_replica_does_not_raise_the_epoch_while_there_is_a_leader(
    in_office: Callable[[], OneCore], kind: int
) -> None:
    one = in_office()
    response = one.ask(requests_of(STRANGER, 2)[kind])
    assert one.core.epoch == 1
    assert not getattr(response, "is_granted", False)
    one.ask(vote_request(THIRD, 2))
    assert one.core.epoch == 2, "a voter's request does"


def test_an_unknown_replica_gets_a_vote_after_the_fetch_timeout() -> None:
    """It may be a voter added after the end of this log, with the only complete log."""
    without_leader, missing_it = OneCore(), follower()
    missing_it.reach_deadline()
    for one in (without_leader, missing_it):
        response = one.ask(vote_request(STRANGER, 2, voter=ME))
        assert isinstance(response, VoteResponse)
        assert response.is_granted
