"""Quorum core that checks the effects of every step; simulated and scripted nodes run it.

1. Votes, epochs and truncations are durable before messages that depend on them are sent.
2. No timer is overdue after a step.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import ClassVar

from raftlog.node.replica import Replica
from raftlog.quorum.core import QuorumCore
from raftlog.quorum.effects import (
    AdvanceHighWatermark,
    AppendLeaderChange,
    Effect,
    ElectionState,
    InstallSnapshot,
    PersistElection,
    Reply,
    ReplyWithRecords,
    ReplyWithSnapshot,
    RoleChanged,
    Send,
    TruncateToEndOfEpoch,
)
from raftlog.quorum.events import Event, RequestReceived
from raftlog.quorum.messages import FetchRequest, Response, VoteRequest, VoteResponse
from raftlog.quorum.roles import RoleType
from raftlog.quorum.state import InitialState


class ObservedSteps:
    """Role transitions and counts of all steps while ``recording`` is active."""

    def __init__(self) -> None:
        self.changes: set[tuple[RoleType, RoleType]] = set()
        self.step_count = 0
        self.vote_count = 0
        self.fetch_count = 0


class CheckedCore(QuorumCore):
    """Quorum core that asserts the module's invariants."""

    seen: ClassVar[ObservedSteps] = ObservedSteps()

    def __init__(self, initial_state: InitialState, *, now_ms: int) -> None:
        super().__init__(initial_state, now_ms=now_ms)
        self._written = initial_state.election
        self._votes_asked: dict[int, VoteRequest] = {}

    def step(self, event: Event, *, now_ms: int) -> list[Effect]:
        effects = super().step(event, now_ms=now_ms)
        self.seen.step_count += 1
        if isinstance(event, RequestReceived) and isinstance(event.request, VoteRequest):
            self._votes_asked[event.request_id] = event.request
        for at, effect in enumerate(effects):
            self._check_effect(effect, effects[:at] if isinstance(effect, Send) else ())
        marks = [effect.offset for effect in effects if isinstance(effect, AdvanceHighWatermark)]
        assert marks == sorted(set(marks)), "high watermarks increase"
        deadline_ms = self.next_deadline_ms
        assert deadline_ms is None or deadline_ms > now_ms, f"due since {deadline_ms}: {self.role}"
        return effects

    def _check_effect(self, effect: Effect, before: Sequence[Effect]) -> None:
        if isinstance(effect, PersistElection):
            self._check_written(effect.state)
        elif isinstance(effect, Send):
            self._check_sent(effect, before)
        elif isinstance(effect, Reply | ReplyWithRecords | ReplyWithSnapshot):
            self._check_response(effect.request_id, effect.response)
        elif isinstance(effect, AppendLeaderChange):
            written = self._written
            assert (written.epoch, written.leader_id) == (effect.epoch, self.node_id)
        elif isinstance(effect, RoleChanged) and effect.old is not None:
            self.seen.changes.add((effect.old, effect.new))

    def _check_written(self, state: ElectionState) -> None:
        before = self._written
        assert state.epoch >= before.epoch, "epochs never decrease"
        if state.epoch == before.epoch:
            if before.voted_key is not None:
                assert state.voted_key is not None, "a vote is not withdrawn"
                assert before.voted_key.matches(state.voted_key), "one vote per epoch"
            assert before.leader_id in (None, state.leader_id), "one leader per epoch"
        self._written = state

    def _check_sent(self, sent: Send, before: Sequence[Effect]) -> None:
        request, log, written = sent.request, self._state.log, self._written
        if isinstance(request, FetchRequest):
            self.seen.fetch_count += 1
            assert request.fetch_offset <= log.synced_end_offset, "fetch offsets are durable"
            changed = [one for one in before if isinstance(one, TruncateToEndOfEpoch)]
            assert not changed, "no fetch before a truncation has completed"
            assert not [one for one in before if isinstance(one, InstallSnapshot)]
        if isinstance(request, VoteRequest) and not request.is_pre_vote:
            assert (written.epoch, written.voted_key) == (request.epoch, request.candidate), (
                "written"
            )
        epoch = getattr(request, "epoch", 0)
        assert epoch <= max(written.epoch, log.last_fetched_epoch), "epochs are durable when sent"

    def _check_response(self, request_id: int, response: Response) -> None:
        written = self._written
        leader_and_epoch = getattr(response, "leader_and_epoch", None)
        if leader_and_epoch is not None:
            assert leader_and_epoch.epoch <= written.epoch, "epochs are durable when sent"
        asked = self._votes_asked.pop(request_id, None)
        if asked is None or not isinstance(response, VoteResponse):
            return
        if response.is_granted and not asked.is_pre_vote:
            self.seen.vote_count += 1
            assert written.epoch == asked.epoch, "votes are durable when sent"
            assert written.voted_key == asked.candidate


class CheckedReplica(Replica):
    """Replica with a ``CheckedCore``."""

    core_type = CheckedCore


@contextmanager
def recording() -> Iterator[ObservedSteps]:
    """Record the steps of all cores."""
    before, CheckedCore.seen = CheckedCore.seen, ObservedSteps()
    try:
        yield CheckedCore.seen
    finally:
        CheckedCore.seen = before
