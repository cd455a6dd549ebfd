"""What must hold of every step of a core, whoever drives it: checked by wrapping ``step``.

Rules of this file:

1. Nothing is said before what it vouches for is asked to be written down: a vote, an epoch, a
   durable end of the log.
2. A step leaves nothing undone that was due.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from weakref import WeakKeyDictionary

from raftlog.quorum.core import QuorumCore
from raftlog.quorum.effects import (
    AdvanceHighWatermark,
    BeginEpoch,
    Effect,
    ElectionState,
    InstallSnapshot,
    PersistElection,
    Reply,
    ReplyWithRecords,
    ReplyWithSnapshot,
    Send,
    TruncateToEndOfEpoch,
)
from raftlog.quorum.events import Event, RequestReceived
from raftlog.quorum.messages import FetchRequest, Response, VoteRequest, VoteResponse
from raftlog.quorum.roles import RoleType
from raftlog.quorum.state import Beginning, ReplicaState

Step = Callable[..., list[Effect]]


class StepChecks:
    """Looks at each step of all cores while ``watching`` lasts; counts what it has seen."""

    def __init__(self) -> None:
        self.changes: set[tuple[RoleType, RoleType]] = set()
        self.step_count = 0
        self.vote_count = 0
        self.fetch_count = 0
        self._written: WeakKeyDictionary[QuorumCore, ElectionState] = WeakKeyDictionary()
        self._votes_asked: WeakKeyDictionary[QuorumCore, dict[int, VoteRequest]] = (
            WeakKeyDictionary()
        )

    def look(self, core: QuorumCore, event: Event, now_ms: int, effects: list[Effect]) -> None:
        self.step_count += 1
        if isinstance(event, RequestReceived) and isinstance(event.request, VoteRequest):
            self._votes_asked.setdefault(core, {})[event.request_id] = event.request
        for at, effect in enumerate(effects):
            if isinstance(effect, PersistElection):
                self._check_written(core, effect.state)
            elif isinstance(effect, Send):
                self._check_sent(core, effect, effects[:at])
            elif isinstance(effect, Reply | ReplyWithRecords | ReplyWithSnapshot):
                self._check_said(core, effect.request_id, effect.response)
            elif isinstance(effect, BeginEpoch):
                written = self._written[core]
                assert (written.epoch, written.leader_id) == (effect.epoch, core.node_id)
        marks = [effect.offset for effect in effects if isinstance(effect, AdvanceHighWatermark)]
        assert marks == sorted(set(marks)), "high watermarks rise"
        deadline_ms = core.next_deadline_ms
        assert deadline_ms is None or deadline_ms > now_ms, f"due since {deadline_ms}: {core.role}"

    def _check_written(self, core: QuorumCore, state: ElectionState) -> None:
        before = self._written.get(core, ElectionState(epoch=0))
        assert state.epoch >= before.epoch, "epochs never fall"
        if state.epoch == before.epoch:
            assert before.voted in (None, state.voted), "a vote is not taken back"
            assert before.leader_id in (None, state.leader_id), "nor is a leader"
        self._written[core] = state

    def _check_sent(self, core: QuorumCore, sent: Send, before: list[Effect]) -> None:
        request, log = sent.request, core._state.log
        written = self._written.get(core, ElectionState(epoch=0))
        if isinstance(request, FetchRequest):
            self.fetch_count += 1
            assert request.fetch_offset <= log.synced_end_offset, "durable before it is told"
            changed = [one for one in before if isinstance(one, TruncateToEndOfEpoch)]
            assert not changed, "the log is asked for again when it is cut"
            assert not [one for one in before if isinstance(one, InstallSnapshot)]
        if isinstance(request, VoteRequest) and not request.is_pre_vote:
            assert (written.epoch, written.voted) == (request.epoch, request.candidate), "written"
        epoch = getattr(request, "epoch", 0)
        assert epoch <= max(written.epoch, log.last_fetched_epoch), "an epoch is written down first"

    def _check_said(self, core: QuorumCore, request_id: int, response: Response) -> None:
        written = self._written.get(core, ElectionState(epoch=0))
        standing = getattr(response, "standing", None)
        if standing is not None:
            assert standing.epoch <= written.epoch, "an epoch is written down before it is told"
        asked = self._votes_asked.get(core, {}).pop(request_id, None)
        if asked is None or not isinstance(response, VoteResponse):
            return
        if response.is_granted and not asked.is_pre_vote:
            self.vote_count += 1
            assert written.epoch == asked.epoch, "written down before it is given"
            assert written.voted == asked.candidate

    def started(self, core: QuorumCore, election: ElectionState) -> None:
        self._written[core] = election


@contextmanager
def watching() -> Iterator[StepChecks]:
    """Check every step of every core."""
    checks = StepChecks()
    step, change, begin = QuorumCore.step, ReplicaState._change, QuorumCore.__init__

    def checked_step(core: QuorumCore, event: Event, *, now_ms: int) -> list[Effect]:
        effects = step(core, event, now_ms=now_ms)
        checks.look(core, event, now_ms, effects)
        return effects

    def seen_change(state: ReplicaState, role: object, *rest: object, **named: object) -> None:
        old = type(state.role)
        change(state, role, *rest, **named)  # type: ignore[arg-type]
        checks.changes.add((old, type(state.role)))

    def seen_begin(core: QuorumCore, beginning: Beginning, *, now_ms: int) -> None:
        begin(core, beginning, now_ms=now_ms)
        checks.started(core, beginning.election)

    QuorumCore.step = checked_step  # type: ignore[method-assign]
    ReplicaState._change = seen_change  # type: ignore[method-assign]
    QuorumCore.__init__ = seen_begin  # type: ignore[method-assign]
    try:
        yield checks
    finally:
        QuorumCore.step = step  # type: ignore[method-assign]
        ReplicaState._change = change  # type: ignore[method-assign]
        QuorumCore.__init__ = begin  # type: ignore[method-assign]
