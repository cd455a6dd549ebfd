"""Nodes of a scenario: the real replica on a simulated disk, each with a clock of its own.

Rules of this file:

1. Nothing happens by itself: time passes, messages arrive and (if asked for) syncs end when the
   script says so. Everything that can be observed is told to ``say``, in the order it happens.
2. What must hold always is checked here too, by the witness of the simulated clusters.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from raftlog.client.requests import Answer, AppendRequest
from raftlog.errors import LogError
from raftlog.log.writing.properties import LogConfig
from raftlog.node.leader_appends import LeaderAppends
from raftlog.node.replica import Outgoing, Replica, RunSync
from raftlog.quorum.config import QuorumConfig
from raftlog.quorum.effects import (
    AdvanceHighWatermark,
    Effect,
    LeaderChanged,
    LeadershipConfirmed,
    PersistElection,
    Reply,
    Send,
    Tell,
)
from raftlog.quorum.events import Event, RequestReceived, ResponseReceived, TimePassed
from raftlog.quorum.messages import FetchRequest, Request, Response, VoteRequest, VoteResponse
from raftlog.quorum.roles import Leader, Role
from raftlog.quorum.voters import Voter, VoterSet
from raftlog.storage.simulated import SimulatedDisk
from raftlog.storage.survival import Survival
from tests.quorum.watching import watch_roles
from tests.simulation.invariants import Witness

from .post import Message, Post
from .words import (
    answer_words,
    election_words,
    records_words,
    request_words,
    response_words,
    role_words,
)

DIRECTORY: Final = "/data/orders-0"
TOPIC_ID: Final = "AAAAAAAAAAAAAAAAAAAAZw"
TIME_MS: Final = 1_700_000_000_000
"""The time of day of every record."""
BY_HAND: Final = -1
"""The life of an asker who is the script: answers are told, and go nowhere."""


class ToldReplica(Replica):
    """A replica whose work on its files is told."""

    say: Callable[[str], None]

    def _carry_out(self, effect: Effect) -> None:
        before, snapshots = self.log.end_offset, self.log.snapshots
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


@dataclass(slots=True, kw_only=True)
class Surroundings:
    """What all nodes of a scenario share."""

    voters: VoterSet
    kraft_version: int
    config: QuorumConfig
    log_config: LogConfig
    say: Callable[[str], None]
    witness: Witness
    post: Post
    asked: dict[int, AppendRequest] = field(default_factory=dict)


class ScriptedNode:
    """One node: alive or dead, with a disk that outlives it and a clock that goes on."""

    def __init__(self, voter: Voter, around: Surroundings) -> None:
        self.voter: Final = voter
        self.node_id: Final = voter.key.node_id
        self.now_ms = 0
        self.jitter_ms = 0
        self.is_sync_held = False
        self.life = 0
        self.held: list[RunSync] = []
        self.disk = self._new_disk()
        self._around = around
        self._replica: ToldReplica | None = None
        self._appends: LeaderAppends | None = None
        self._answer_to: dict[int, Message] = {}
        self._next_request_id = 1

    def _new_disk(self) -> SimulatedDisk:
        disk = SimulatedDisk(self.node_id)
        disk.make_directory("/data")
        disk.sync_directory("/")
        return disk

    @property
    def is_alive(self) -> bool:
        return self._replica is not None

    @property
    def replica(self) -> Replica:
        assert self._replica is not None, f"{self.node_id} is dead"
        return self._replica

    @property
    def role(self) -> Role:
        return self.replica.core.role

    def say(self, words: str) -> None:
        self._around.say(f"{self.node_id} {words}")

    # --- life and death ---------------------------------------------------------------------------

    def start(self) -> None:
        around = self._around
        assert self._replica is None, "it lives"
        self.life += 1
        around.witness.restarted(self.node_id)
        try:
            replica = ToldReplica.open(
                self.disk,
                DIRECTORY,
                me=self.voter,
                voters=around.voters,
                kraft_version=around.kraft_version,
                log_config=around.log_config,
                topic_id=TOPIC_ID,
                config=around.config,
                jitter_ms=lambda bound: min(self.jitter_ms, bound - 1),
                now_ms=self.now_ms,
                time_ms=TIME_MS,
            )
        except LogError as error:
            self.say(f"does not start: {type(error).__name__}")
            self.disk.kill()
            return
        replica.say = self.say
        self._replica = replica
        self._appends = LeaderAppends(replica, self._told)
        watch_roles(replica.core, lambda _old, new: self.say(f"becomes {role_words(new)}"))
        self.say(f"starts as {role_words(self.role)} end_offset={replica.log.end_offset}")
        self.tell(TimePassed())

    def kill(self) -> None:
        """The process ends, the machine goes on."""
        self._die("the node died")
        self.disk.kill()

    def lose_power(self) -> None:
        """The machine ends: what was not synced is gone."""
        self._die("the node died")
        self.disk.crash(Survival.NOTHING)

    def wipe(self) -> None:
        """The disk is replaced by an empty one."""
        self._die("the node died")
        self.disk = self._new_disk()

    def _die(self, reason: str) -> None:
        appends, self._appends = self._appends, None
        self._replica, self.held, self._answer_to = None, [], {}
        self.life += 1
        if appends is not None:
            appends.give_up(reason)

    # --- what happens -----------------------------------------------------------------------------

    def tell(self, event: Event) -> None:
        self.act(lambda replica, now_ms: replica.step(event, now_ms=now_ms, time_ms=TIME_MS))

    def act(self, do: Callable[[Replica, int], list[Outgoing]]) -> None:
        """Let the replica do something, and carry out what it asks for."""
        if self._replica is None:
            return
        life = self.life
        try:
            outgoing = do(self._replica, self.now_ms)
        except LogError as error:
            self.say(f"ends: {type(error).__name__}")
            self._die("the node ended")
            self.disk.kill()
            return
        for one in outgoing:
            if self.life == life:
                self._put_out(one)
        if self.life == life and self._appends is not None:
            self._appends.poll()

    def _put_out(self, outgoing: Outgoing) -> None:
        replica, witness = self.replica, self._around.witness
        match outgoing:
            case Send(correlation_id, target, _, request):
                self._send(correlation_id, target, request)
            case Reply(request_id, response):
                self._reply(request_id, response)
            case RunSync():
                if self.is_sync_held:
                    self.held.append(outgoing)
                else:
                    self._end_sync(outgoing)
            case AdvanceHighWatermark(offset):
                self.say(f"high watermark {offset}")
                witness.saw_high_watermark(self.node_id, self.life, offset, replica.log)
            case LeaderChanged(epoch=epoch, leader_id=leader_id):
                if leader_id == self.node_id:
                    witness.saw_leader(self.node_id, self.life, epoch, replica.log)
            case LeadershipConfirmed(ticket):
                assert self._appends is not None
                self._appends.confirmed(ticket)
            case Tell(text):
                if "refused" in text:
                    self.say("refuses " + ("a snapshot" if "snapshot" in text else "records"))
                elif replica.is_standing_still:
                    self.say("stands still")
                elif "goes on" in text:
                    self.say("goes on")

    def _send(self, correlation_id: int, target: int, request: Request) -> None:
        witness = self._around.witness
        if isinstance(request, FetchRequest):
            witness.saw_fetch(self.node_id, request.fetch_offset, self.replica.log)
        if isinstance(request, VoteRequest) and not request.is_pre_vote:
            witness.saw_vote(self.node_id, request.epoch, self.node_id)
        words = request_words(request)
        kind = words.split()[0]
        message = Message(self.node_id, target, self.life, correlation_id, kind, request)
        self._around.post.send(message, f"{self.node_id} -> {target} {words}")

    def _reply(self, request_id: int, response: Response) -> None:
        request = self._answer_to.pop(request_id, None)
        if request is None:
            return
        self._check_vote(request.body, response)
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

    def _check_vote(self, request: Request | Response, response: Response) -> None:
        if not isinstance(request, VoteRequest) or request.is_pre_vote:
            return
        if isinstance(response, VoteResponse) and response.is_granted:
            self._around.witness.saw_vote(self.node_id, request.epoch, request.candidate.node_id)
            written = self.replica.log.read_election()
            assert written is not None
            if written.leader_epoch > request.epoch:
                return  # it stood still, and more has happened since
            given = (request.epoch, request.candidate.node_id)
            assert (written.leader_epoch, written.voted_id) == given, "written before it is given"

    def receive(self, message: Message) -> None:
        """A message arrives."""
        if not message.is_answer:
            if self._replica is None:
                return
            request_id = self._next_request_id
            self._next_request_id += 1
            self._answer_to[request_id] = message
            self.tell(RequestReceived(request_id, message.body))  # type: ignore[arg-type]
        elif message.life == self.life:
            self.tell(ResponseReceived(message.correlation_id, message.body))  # type: ignore[arg-type]

    # --- syncs and time ---------------------------------------------------------------------------

    def end_held_sync(self) -> None:
        assert self.held, "no sync is under way"
        self._end_sync(self.held.pop(0))

    def _end_sync(self, sync: RunSync) -> None:
        ticket = sync.ticket
        ticket.run()
        if self.is_sync_held:
            self.say(f"has synced up to {ticket.end_offset}")
        self.act(
            lambda replica, now_ms: replica.complete_sync(ticket, now_ms=now_ms, time_ms=TIME_MS)
        )

    def pass_time(self, span_ms: int) -> None:
        """Let the clock go on, and wake the replica whenever it wants to be woken."""
        target_ms = self.now_ms + span_ms
        while self._replica is not None:
            deadline_ms = self._replica.next_deadline_ms
            if deadline_ms is None or deadline_ms > target_ms:
                break
            before_ms = self.now_ms
            self.now_ms = max(deadline_ms, self.now_ms)
            self.tell(TimePassed())
            if self._replica is not None:
                after_ms = self._replica.next_deadline_ms or math.inf
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
        appends = self._appends
        assert appends is not None, "it is dead"

        def submit(replica: Replica, now_ms: int) -> list[Outgoing]:
            before = replica.log.end_offset
            outgoing = appends.submit([request], now_ms=now_ms, time_ms=TIME_MS)
            assert isinstance(replica, ToldReplica)
            replica.tell_end(before)
            return outgoing

        self.act(submit)

    def _told(self, request: AppendRequest, answer: Answer) -> None:
        self._around.say(answer_words(request, answer))
