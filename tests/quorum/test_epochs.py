"""``EPOCH_MAX``: no candidate exceeds it, and a quorum-state file with a later epoch is damaged."""

from __future__ import annotations

import pytest

from raftlog.errors import CorruptFileError
from raftlog.limits import EPOCH_MAX, EPOCH_RESERVED_FROM
from raftlog.log.format.directory import QuorumState, encode_quorum_state, parse_quorum_state
from raftlog.quorum.config import QuorumConfig
from raftlog.quorum.core import QuorumCore
from raftlog.quorum.effects import AppendLeaderChange, Effect, ElectionState, PersistElection
from raftlog.quorum.events import RequestReceived, TimePassed
from raftlog.quorum.messages import BeginQuorumEpochRequest
from raftlog.quorum.state import InitialState
from raftlog.quorum.voters import Voter, VoterSet, VoterSetHistory
from raftlog.types import ReplicaKey
from tests.quorum.single_core import LogEnds


def core(epoch: int, *node_ids: int) -> QuorumCore:
    voters = VoterSet.of(Voter(key=ReplicaKey(node_id)) for node_id in node_ids)
    initial_state = InitialState(
        local_voter=Voter(key=ReplicaKey(1)),
        log=LogEnds(),
        election=ElectionState(epoch=epoch),
        voters=VoterSetHistory(voters),
        config=QuorumConfig(),
        jitter_ms=lambda _: 0,
    )
    return QuorumCore(initial_state, now_ms=0)


def epochs(effects: list[Effect]) -> list[int]:
    return [
        one.epoch if isinstance(one, AppendLeaderChange) else one.state.epoch
        for one in effects
        if isinstance(one, AppendLeaderChange | PersistElection)
    ]


def test_the_maximum_epoch_has_a_leader_and_no_successor() -> None:
    only = core(EPOCH_MAX - 1, 1)
    assert set(epochs(only.step(TimePassed(), now_ms=0))) == {EPOCH_MAX}
    last = core(EPOCH_MAX, 1)
    assert epochs(last.step(TimePassed(), now_ms=60_000)) == []
    assert last.epoch == EPOCH_MAX


def test_a_leader_of_the_maximum_epoch_resigns_without_a_later_one() -> None:
    restarted = InitialState(
        local_voter=Voter(key=ReplicaKey(1)),
        log=LogEnds(),
        election=ElectionState(epoch=EPOCH_MAX, leader_id=1, voted_key=ReplicaKey(1)),
        voters=VoterSetHistory(VoterSet.of([Voter(key=ReplicaKey(1)), Voter(key=ReplicaKey(2))])),
        config=QuorumConfig(),
        jitter_ms=lambda _: 0,
    )
    again = QuorumCore(restarted, now_ms=0)
    again.step(TimePassed(), now_ms=60_000)
    assert again.epoch == EPOCH_MAX


def test_a_reserved_epoch_is_reached_from_the_previous_one() -> None:
    two = core(EPOCH_RESERVED_FROM, 1, 2)
    for epoch, expected in (
        (EPOCH_RESERVED_FROM + 2, EPOCH_RESERVED_FROM),
        (EPOCH_RESERVED_FROM + 1, EPOCH_RESERVED_FROM + 1),
    ):
        request = BeginQuorumEpochRequest(epoch=epoch, leader_id=2, voter=None)
        two.step(RequestReceived(1, request), now_ms=0)
        assert two.epoch == expected


@pytest.mark.parametrize(("epoch", "is_possible"), [(EPOCH_MAX, True), (EPOCH_MAX + 1, False)])
def test_a_quorum_state_file_with_a_reserved_epoch_is_damaged(
    epoch: int, is_possible: bool
) -> None:
    data = encode_quorum_state(
        QuorumState(version=1, leader_epoch=epoch, leader_id=None, voted_id=None)
    )
    if is_possible:
        assert parse_quorum_state(data, "quorum-state").leader_epoch == epoch
        return
    with pytest.raises(CorruptFileError, match="quorum-state is corrupt: its leaderEpoch"):
        parse_quorum_state(data, "quorum-state")
