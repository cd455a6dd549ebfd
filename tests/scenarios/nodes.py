"""Nodes of a scenario: the real replica on a simulated disk, each with its own clock.

The script alone advances clocks, delivers messages and, on request, completes syncs. Every
observable event is written to ``write_line``, in order. The witness of the simulated clusters
checks the invariants here too.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from raftlog.append import AppendRequest, RequestResult
from raftlog.errors import LogError
from raftlog.log.cleaning.compaction import Compaction
from raftlog.log.remote.tiering import RemoteLogRun
from raftlog.log.writing.active_segment import PendingSync
from raftlog.node.raft_node import Notification
from raftlog.node.replica import Outgoing, Replica
from raftlog.quorum.effects import (
    AdvanceHighWatermark,
    Effect,
    LogMessage,
    PersistElection,
    RoleChanged,
    Send,
)
from raftlog.quorum.events import ResponseReceived, TimePassed
from raftlog.quorum.messages import Request, Response
from raftlog.quorum.roles import Follower, Leader, Role
from raftlog.quorum.voters import Voter
from raftlog.types import ReplicaKey
from tests.quorum.checked_core import CheckedReplica
from tests.simulated_disk.crash_model import Survival
from tests.simulation.driven_node import TIME_MS, DrivenNode, Setting, new_disk

from .formatting import (
    format_append,
    format_append_result,
    format_election,
    format_records,
    format_request,
    format_response,
    format_role,
    format_role_change,
)
from .message_queue import Message, MessageQueue

BY_HAND: Final = -1
"""Incarnation of the script as sender: responses are written and not delivered."""


class LoggedReplica(CheckedReplica):
    """Replica that writes its role transitions and changes of its files."""

    write_line: Callable[[str], None]
    _end_offset: int
    """The end that was written last."""

    def write_to(self, write_line: Callable[[str], None]) -> None:
        """Write to ``write_line`` what follows."""
        self.write_line = write_line
        self._end_offset = self.log.end_offset

    def appended(self, *, now_ms: int, time_ms: int) -> list[Outgoing]:
        self._write_end()
        return super().appended(now_ms=now_ms, time_ms=time_ms)

    def _execute(self, effect: Effect) -> None:
        snapshots = self.log.snapshots
        if isinstance(effect, RoleChanged) and effect.old is not None:
            self.write_line(f"becomes {format_role_change(effect)}")
        super()._execute(effect)
        if isinstance(effect, PersistElection):
            self.write_line(f"writes {format_election(effect.state)}")
        if self.log.snapshots != snapshots:
            self._end_offset = self.log.end_offset
            self.write_line(f"restarts its log at {self.log.end_offset}")
        self._write_end()

    def _write_end(self) -> None:
        """Write what was appended or truncated."""
        before, end = self._end_offset, self.log.end_offset
        self._end_offset = end
        if end > before:
            self.write_line(f"appends {format_records(self.log.read_bytes(before, 1 << 30))}")
        elif end < before:
            self.write_line(f"truncates {before} -> {end}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ScenarioContext:
    """Context shared by the nodes of a scenario."""

    setting: Setting
    write_line: Callable[[str], None]
    post: MessageQueue


class ScriptedNode(DrivenNode):
    """Node with its own clock, which also runs while the node is down."""

    replica_type = LoggedReplica

    def __init__(self, voter: Voter, context: ScenarioContext) -> None:
        super().__init__(voter, context.setting, new_disk(voter.key.node_id))
        self.now_ms = 0
        self.jitter_ms = 0
        self.is_sync_held = False
        self.held: list[PendingSync] = []
        self._context = context

    @property
    def replica(self) -> Replica:
        assert self.raft_node is not None, f"{self.node_id} is dead"
        return self.raft_node.replica

    @property
    def role(self) -> Role:
        return self.replica.core.role

    def write_line(self, words: str) -> None:
        self._context.write_line(f"{self.node_id} {words}")

    # --- starting and stopping --------------------------------------------------------------------

    def start(self) -> None:
        try:
            replica = self._open().replica
        except LogError as error:
            self.write_line(f"does not start: {type(error).__name__}")
            self.disk.kill()
            return
        assert isinstance(replica, LoggedReplica)
        replica.write_to(self.write_line)
        self.write_line(f"starts as {format_role(self.role)} end_offset={replica.log.end_offset}")
        self.step(TimePassed())

    def kill(self) -> None:
        """Stop the process; unsynced data is kept by the operating system."""
        self._die()
        self.disk.kill()

    def lose_power(self) -> None:
        """Cut the power: unsynced data is lost."""
        self._die()
        self.disk.crash(Survival.NOTHING)

    def wipe(self, directory_id: str | None = None) -> None:
        """Replace the disk by an empty one, formatted with ``directory_id`` if it is given."""
        self._die()
        self.disk = new_disk(self.node_id)
        if directory_id is not None:
            key = ReplicaKey(self.node_id, directory_id)
            self.voter = replace(self.voter, key=key)

    def _die(self, reason: str = "the node died") -> None:
        self.held = []
        super()._die(reason)

    def _ended(self, error: LogError) -> None:
        self.write_line(f"ends: {type(error).__name__}")

    # --- effects ----------------------------------------------------------------------------------

    def _times_ms(self) -> tuple[int, int]:
        return self.now_ms, TIME_MS

    def _draw_ms(self, bound_ms: int) -> int:
        return min(self.jitter_ms, bound_ms - 1)

    def _notify(self, news: Notification) -> None:
        if isinstance(news, AdvanceHighWatermark):
            self.write_line(f"high watermark {news.offset}")
        elif isinstance(news, LogMessage):
            if "refused" in news.text:
                self.write_line(
                    "refuses " + ("a snapshot" if "snapshot" in news.text else "records")
                )
            elif self.replica.is_stalled_on_disk_full:
                self.write_line("stands still")
            elif "resumed" in news.text:
                self.write_line("goes on")

    def _send(self, send: Send) -> None:
        words = format_request(send.request)
        kind, target = words.split()[0], send.node_id
        message = Message(self.node_id, target, self.life, send.correlation_id, kind, send.request)
        self._context.post.send(message, f"{self.node_id} -> {target} {words}")

    def _answer(self, request: Message, response: Response) -> None:
        is_pre_vote = request.kind == "PreVote"
        text = format_response(response, is_pre_vote=is_pre_vote)
        words = f"{request.asker} <- {self.node_id} {text}"
        if request.life == BY_HAND:
            self._context.write_line(words)
            return
        answer = Message(
            request.asker,
            self.node_id,
            request.life,
            request.correlation_id,
            request.kind,
            response,
            is_response=True,
        )
        self._context.post.send(answer, words)

    def receive(self, message: Message) -> None:
        """Deliver a message to this node."""
        body = message.body
        if isinstance(body, Request):
            self.receive_request(body, lambda response: self._answer(message, response))
        elif message.life == self.life:
            self.step(ResponseReceived(message.correlation_id, body))

    # --- syncs and time ---------------------------------------------------------------------------

    def end_held_sync(self) -> None:
        assert self.held, "no sync is running"
        self._end_sync(self.held.pop(0))

    def run_sync(self, ticket: PendingSync) -> None:
        if self.is_sync_held:
            self.held.append(ticket)
        else:
            self._end_sync(ticket)

    def run_compaction(self, compaction: Compaction) -> None:
        raise AssertionError(f"no log of a scenario is compacted: {compaction}")

    def run_remote(self, run: RemoteLogRun) -> None:
        raise AssertionError(f"no log of a scenario has remote storage: {run}")

    def _end_sync(self, ticket: PendingSync) -> None:
        ticket.run()
        if self.is_sync_held:
            self.write_line(f"has synced up to {ticket.end_offset}")
        if self.raft_node is not None:
            self.raft_node.complete_sync(ticket)

    def set_timer(self) -> None:
        """Do nothing: the script advances the clock."""

    def pass_time(self, span_ms: int) -> None:
        """Advance the clock, and pass the time at each deadline."""
        target_ms = self.now_ms + span_ms
        while self.raft_node is not None:
            deadline_ms = self.raft_node.next_deadline_ms
            if deadline_ms is None or deadline_ms > target_ms:
                break
            before_ms = self.now_ms
            self.now_ms = max(deadline_ms, self.now_ms)
            self.raft_node.pass_time()
            if self.raft_node is not None:
                after_ms = self.raft_node.next_deadline_ms or math.inf
                assert after_ms > self.now_ms or self.now_ms > before_ms, "a timer without effect"
        self.now_ms = target_ms

    @property
    def role_ends_in_ms(self) -> int:
        """Return the time until the current role times out."""
        role = self.role
        if isinstance(role, Leader):
            deadline_ms = role.check_quorum_deadline_ms
        elif isinstance(role, Follower):
            deadline_ms = role.fetch_deadline_ms
        else:
            deadline_ms = role.election_deadline_ms
        return max(deadline_ms - self.now_ms, 0)

    # --- users ------------------------------------------------------------------------------------

    def append(self, request: AppendRequest) -> None:
        """Submit a user's append to this node."""
        assert self.raft_node is not None, "the node is stopped"
        text = format_append(request)

        def complete(result: RequestResult) -> None:
            self._context.write_line(format_append_result(text, result))

        self.raft_node.append(request, complete)
        self.pass_time(0)

    def submit_soon(self) -> None:
        assert self.raft_node is not None, "it has received an append"
        self.raft_node.submit()
