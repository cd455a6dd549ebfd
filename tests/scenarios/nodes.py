"""Nodes of a scenario: the real replica on a simulated disk, each with a clock of its own.

Rules of this file:

1. Nothing happens by itself: time passes, messages arrive and (if asked for) syncs end when the
   script says so. Everything that can be observed is told to ``say``, in the order it happens.
2. What must hold always is checked here too, by the witness of the simulated clusters.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from raftlog.client.requests import Answer, AppendRequest
from raftlog.errors import LogError
from raftlog.node.replica import Outgoing, Replica, RunSync
from raftlog.quorum.effects import (
    AdvanceHighWatermark,
    Effect,
    LeaderChanged,
    PersistElection,
    RoleChanged,
    Send,
    Tell,
)
from raftlog.quorum.events import RequestReceived, ResponseReceived, TimePassed
from raftlog.quorum.messages import Response
from raftlog.quorum.roles import Leader, Role
from raftlog.quorum.voters import Voter
from raftlog.types import ReplicaKey
from tests.quorum.checked_core import CheckedReplica
from tests.simulated_disk.survival import Survival
from tests.simulation.driven_node import TIME_MS, DrivenNode, Setting, new_disk

from .post import Message, Post
from .words import (
    answer_words,
    append_words,
    election_words,
    records_words,
    request_words,
    response_words,
    role_change_words,
    role_words,
)

BY_HAND: Final = -1
"""The life of an asker who is the script: answers are told, and go nowhere."""


class ToldReplica(CheckedReplica):
    """A replica whose changes of role and work on its files are told."""

    say: Callable[[str], None]

    def _carry_out(self, effect: Effect) -> None:
        before, snapshots = self.log.end_offset, self.log.snapshots
        if isinstance(effect, RoleChanged) and effect.old is not None:
            self.say(f"becomes {role_change_words(effect)}")
        super()._carry_out(effect)
        if isinstance(effect, PersistElection):
            self.say(f"writes {election_words(effect.state)}")
        if self.log.snapshots != snapshots:
            self.say(f"begins its log anew at {self.log.end_offset}")
        elif self.log.end_offset != before:
            self.tell_end(before)

    def tell_end(self, before: int) -> None:
        """Tell what was appended behind ``before``, or what was cut."""
        end = self.log.end_offset
        if end > before:
            self.say(f"appends {records_words(self.log.read_bytes(before, 1 << 30))}")
        elif end < before:
            self.say(f"truncates {before} -> {end}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What all nodes of a scenario share."""

    setting: Setting
    say: Callable[[str], None]
    post: Post


class ScriptedNode(DrivenNode):
    """One node, with a clock that goes on when it is dead, too."""

    replica_type = ToldReplica

    def __init__(self, voter: Voter, around: Surroundings) -> None:
        super().__init__(voter, around.setting, new_disk(voter.key.node_id))
        self.now_ms = 0
        self.jitter_ms = 0
        self.is_sync_held = False
        self.held: list[RunSync] = []
        self._around = around
        self._messages: dict[int, Message] = {}
        self._appends_asked: dict[AppendRequest, str] = {}
        """What users want appended, in words."""

    @property
    def replica(self) -> Replica:
        assert self._running is not None, f"{self.node_id} is dead"
        return self._running

    @property
    def role(self) -> Role:
        return self.replica.core.role

    def say(self, words: str) -> None:
        self._around.say(f"{self.node_id} {words}")

    # --- life and death ---------------------------------------------------------------------------

    def start(self) -> None:
        try:
            replica = self._open()
        except LogError as error:
            self.say(f"does not start: {type(error).__name__}")
            self.disk.kill()
            return
        assert isinstance(replica, ToldReplica)
        replica.say = self.say
        self.say(f"starts as {role_words(self.role)} end_offset={replica.log.end_offset}")
        self.step(TimePassed())

    def kill(self) -> None:
        """The process ends, the machine goes on."""
        self._die()
        self.disk.kill()

    def lose_power(self) -> None:
        """The machine ends: what was not synced is gone."""
        self._die()
        self.disk.crash(Survival.NOTHING)

    def wipe(self, directory_id: str | None = None) -> None:
        """Replace the disk by an empty one, formatted with ``directory_id`` if one is given."""
        self._die()
        self.disk = new_disk(self.node_id)
        if directory_id is not None:
            key = ReplicaKey(self.node_id, directory_id)
            self.voter = replace(self.voter, key=key)

    def _die(self, reason: str = "the node died") -> None:
        self.held, self._messages = [], {}
        super()._die(reason)

    def _ended(self, error: LogError) -> None:
        self.say(f"ends: {type(error).__name__}")

    # --- what happens -----------------------------------------------------------------------------

    def _times_ms(self) -> tuple[int, int]:
        return self.now_ms, TIME_MS

    def _draw_ms(self, bound_ms: int) -> int:
        return min(self.jitter_ms, bound_ms - 1)

    def _hear(self, news: AdvanceHighWatermark | LeaderChanged | RoleChanged | Tell) -> None:
        if isinstance(news, AdvanceHighWatermark):
            self.say(f"high watermark {news.offset}")
        elif isinstance(news, Tell):
            if "refused" in news.text:
                self.say("refuses " + ("a snapshot" if "snapshot" in news.text else "records"))
            elif self.replica.is_standing_still:
                self.say("stands still")
            elif "goes on" in news.text:
                self.say("goes on")

    def _send(self, send: Send) -> None:
        words = request_words(send.request)
        kind, target = words.split()[0], send.node_id
        message = Message(self.node_id, target, self.life, send.correlation_id, kind, send.request)
        self._around.post.send(message, f"{self.node_id} -> {target} {words}")

    def _answer(self, request_id: int, response: Response) -> None:
        request = self._messages.pop(request_id)
        is_pre_vote = request.kind == "PreVote"
        words = (
            f"{request.asker} <- {self.node_id} {response_words(response, is_pre_vote=is_pre_vote)}"
        )
        if request.life == BY_HAND:
            self._around.say(words)
            return
        answer = Message(
            request.asker,
            self.node_id,
            request.life,
            request.correlation_id,
            request.kind,
            response,
            is_answer=True,
        )
        self._around.post.send(answer, words)

    def receive(self, message: Message) -> None:
        """A message arrives."""
        body = message.body
        if not message.is_answer:
            if self.is_alive:
                request_id = self.note_request(body)  # type: ignore[arg-type]
                self._messages[request_id] = message
                self.step(RequestReceived(request_id, body))  # type: ignore[arg-type]
        elif message.life == self.life:
            self.step(ResponseReceived(message.correlation_id, body))  # type: ignore[arg-type]

    # --- syncs and time ---------------------------------------------------------------------------

    def end_held_sync(self) -> None:
        assert self.held, "no sync is under way"
        self._end_sync(self.held.pop(0))

    def _begin_sync(self, sync: RunSync) -> None:
        if self.is_sync_held:
            self.held.append(sync)
        else:
            self._end_sync(sync)

    def _end_sync(self, sync: RunSync) -> None:
        sync.ticket.run()
        if self.is_sync_held:
            self.say(f"has synced up to {sync.ticket.end_offset}")
        self.complete_sync(sync)

    def pass_time(self, span_ms: int) -> None:
        """Let the clock go on, and wake the replica whenever it wants to be woken."""
        target_ms = self.now_ms + span_ms
        while self._running is not None:
            deadline_ms = self._running.next_deadline_ms
            if deadline_ms is None or deadline_ms > target_ms:
                break
            before_ms = self.now_ms
            self.now_ms = max(deadline_ms, self.now_ms)
            self.step(TimePassed())
            if self._running is not None:
                after_ms = self._running.next_deadline_ms or math.inf
                assert after_ms > self.now_ms or self.now_ms > before_ms, "it wakes for nothing"
        self.now_ms = target_ms

    @property
    def role_ends_in_ms(self) -> int:
        """How long until this role ends by time alone."""
        role = self.role
        if isinstance(role, Leader):
            deadline_ms = role.check_quorum_deadline_ms
        else:
            deadline_ms = getattr(role, "election_deadline_ms", None)
            if deadline_ms is None:
                deadline_ms = role.fetch_deadline_ms  # type: ignore[union-attr]
        return max(deadline_ms - self.now_ms, 0)

    # --- users ------------------------------------------------------------------------------------

    def append(self, request: AppendRequest) -> None:
        """A user's append reaches this node."""
        appends = self.appends
        assert appends is not None, "it is dead"
        self._appends_asked[request] = append_words(request)

        def submit(replica: Replica, now_ms: int, time_ms: int) -> list[Outgoing]:
            before = replica.log.end_offset
            outgoing = appends.submit([request], now_ms=now_ms, time_ms=time_ms)
            assert isinstance(replica, ToldReplica)
            replica.tell_end(before)
            return outgoing

        self.act(submit)

    def _told(self, request: AppendRequest, answer: Answer) -> None:
        self._around.say(answer_words(self._appends_asked.pop(request), answer))
