"""Quorum core that checks the effects of every step; simulated and scripted nodes run it.

1. A vote, an epoch or a truncation is made durable before a message that depends on it is sent.
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
            self._look(effect, effects[:at] if isinstance(effect, Send) else ())
        marks = [effect.offset for effect in effects if isinstance(effect, AdvanceHighWatermark)]
        assert marks == sorted(set(marks)), "high watermarks rise"
        deadline_ms = self.next_deadline_ms
        assert deadline_ms is None or deadline_ms > now_ms, f"due since {deadline_ms}: {self.role}"
        return effects

    def _look(self, effect: Effect, before: Sequence[Effect]) -> None:
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
        assert state.epoch >= before.epoch, "epochs never fall"
        if state.epoch == before.epoch:
            if before.voted_key is not None:
                assert state.voted_key is not None, "a vote is not taken back"
                assert before.voted_key.matches(state.voted_key), "nor given to another replica"
            assert before.leader_id in (None, state.leader_id), "nor is a leader"
        self._written = state

    def _check_sent(self, sent: Send, before: Sequence[Effect]) -> None:
        request, log, written = sent.request, self._state.log, self._written
        if isinstance(request, FetchRequest):
            self.seen.fetch_count += 1
            assert request.fetch_offset <= log.synced_end_offset, "durable before it is told"
            changed = [one for one in before if isinstance(one, TruncateToEndOfEpoch)]
            assert not changed, "the log is asked for again when it is cut"
            assert not [one for one in before if isinstance(one, InstallSnapshot)]
        if isinstance(request, VoteRequest) and not request.is_pre_vote:
            assert (written.epoch, written.voted_key) == (request.epoch, request.candidate), (
                "written"
            )
        epoch = getattr(request, "epoch", 0)
        assert epoch <= max(written.epoch, log.last_fetched_epoch), "an epoch is written down first"

    def _check_response(self, request_id: int, response: Response) -> None:
        written = self._written
        leader_and_epoch = getattr(response, "leader_and_epoch", None)
        if leader_and_epoch is not None:
            assert leader_and_epoch.epoch <= written.epoch, (
                "an epoch is written down before it is told"
            )
        asked = self._votes_asked.pop(request_id, None)
        if asked is None or not isinstance(response, VoteResponse):
            return
        if response.is_granted and not asked.is_pre_vote:
            self.seen.vote_count += 1
            assert written.epoch == asked.epoch, "written down before it is given"
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
