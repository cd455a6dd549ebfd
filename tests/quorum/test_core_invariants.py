"""Invariants of a replica's state, which are verified after every step."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from raftlog.quorum.effects import ElectionState
from raftlog.quorum.events import TimePassed
from raftlog.quorum.messages import FetchResponse, LeaderAndEpoch
from raftlog.quorum.roles import Leader
from raftlog.quorum.state import ReplicaState
from tests.quorum.single_core import SECOND, LogEnds, OneCore


def leading() -> OneCore:
    one = OneCore(log=LogEnds(end_offset=9, synced_end_offset=9))
    one.elect(2)
    assert isinstance(one.core._state.role, Leader)
    return one


CORRUPTIONS: dict[str, Callable[[ReplicaState], object]] = {
    "the epoch of the role is the stored one": lambda state: setattr(state.role, "epoch", 7),
    "the vote is the stored one": lambda state: setattr(state, "voted_key", SECOND),
    "the log has no later epoch": lambda state: setattr(state.log, "last_fetched_epoch", 7),
    "a replica that lost records neither": lambda state: setattr(state, "is_recovering", True),
    "its epoch begins in its log": lambda state: setattr(state.role, "epoch_start_offset", 10),
}


@pytest.mark.parametrize(("reason", "corrupt"), CORRUPTIONS.items(), ids=CORRUPTIONS)
def test_a_violated_invariant_ends_the_step(
    reason: str, corrupt: Callable[[ReplicaState], object]
) -> None:
    one = leading()
    one.step(TimePassed())
    corrupt(one.core._state)
    with pytest.raises(AssertionError, match=reason):
        one.step(TimePassed())


@pytest.mark.parametrize("high_watermark", [4, 10])
def test_the_high_watermark_neither_falls_nor_exceeds_the_log(high_watermark: int) -> None:
    one = leading()
    one.core._state.high_watermark = 5
    one.step(TimePassed())
    one.core._state.high_watermark = high_watermark
    with pytest.raises(AssertionError):
        one.step(TimePassed())


def test_a_follower_keeps_its_high_watermark_when_its_leader_reports_a_lower_one() -> None:
    ends = LogEnds(end_offset=9, synced_end_offset=9, last_fetched_epoch=1)
    one = OneCore(log=ends, election=ElectionState(epoch=1, leader_id=2))
    for reported, expected in ((7, 7), (3, 7), (8, 8)):
        one.step(TimePassed())
        leader = LeaderAndEpoch(epoch=1, leader_id=2)
        one.answer(2, FetchResponse(leader_and_epoch=leader, high_watermark=reported))
        assert one.core.high_watermark == expected
