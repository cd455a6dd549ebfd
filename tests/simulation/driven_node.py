"""Node of a test: the real replica on a simulated disk, driven by the test, with a witness.

Invariants:

1. A node behaves as the real one: the same ``Replica``, the same files. Only transport, syncs and
   time differ: subclasses define them.
2. The witness sees every action of a node before any other node does.
"""

from __future__ import annotations

import abc
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Final

from raftlog.append import AppendRequest, RequestResult
from raftlog.errors import LogError
from raftlog.log.writing.properties import LogConfig
from raftlog.node.pending_appends import PendingAppends
from raftlog.node.replica import Outgoing, Replica, RunSync
from raftlog.quorum.config import QuorumConfig
from raftlog.quorum.effects import (
    AdvanceHighWatermark,
    LeaderChanged,
    LogMessage,
    ReadIndexConfirmed,
    Reply,
    RoleChanged,
    Send,
)
from raftlog.quorum.events import Event
from raftlog.quorum.messages import FetchRequest, Request, Response, VoteRequest, VoteResponse
from raftlog.quorum.voters import Endpoint, Voter, VoterSet
from tests.quorum.checked_core import CheckedReplica
from tests.simulated_disk.simulated_disk import SimulatedDisk

from .invariants import Witness

DIRECTORY: Final = "/data/orders-0"
TOPIC_ID: Final = "AAAAAAAAAAAAAAAAAAAAZw"
LISTENER_NAME: Final = "PEERS"
TIME_MS: Final = 1_700_000_000_000
"""Time of day at the start of a run."""


def new_disk(seed: int) -> SimulatedDisk:
    """Return an empty disk for a node."""
    disk = SimulatedDisk(seed)
    disk.make_directory("/data")
    disk.sync_directory("/")
    return disk


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Configuration shared by all nodes of a cluster."""

    voters: VoterSet
    kraft_version: int
    config: QuorumConfig
    log_config: LogConfig
    witness: Witness
    bootstrap: tuple[tuple[Endpoint, ...], ...] = ()


class DrivenNode(abc.ABC):
    """Node that is running or not, with a disk that survives it."""

    replica_type: ClassVar[type[Replica]] = CheckedReplica

    def __init__(self, voter: Voter, setting: Setting, disk: SimulatedDisk) -> None:
        self.voter = voter
        self.node_id: Final = voter.key.node_id
        self.disk = disk
        self.life = 0
        self.appends: PendingAppends | None = None
        self.formatted_voters = setting.voters
        """Voters that apply while the log has none."""
        self._setting = setting
        self._running: Replica | None = None
        self._asked: dict[int, Request] = {}
        self._next_request_id = 1

    @property
    def is_alive(self) -> bool:
        return self._running is not None

    # --- defined by subclasses --------------------------------------------------------------------

    @abc.abstractmethod
    def _times_ms(self) -> tuple[int, int]:
        """Return the quorum's clock, and the time of day."""

    @abc.abstractmethod
    def _draw_ms(self, bound_ms: int) -> int:
        """Draw a number below a bound, randomly or from the script."""

    @abc.abstractmethod
    def _send(self, send: Send) -> None:
        """Send a request to a replica."""

    @abc.abstractmethod
    def _answer(self, request_id: int, response: Response) -> None:
        """Respond to a request."""

    @abc.abstractmethod
    def _begin_sync(self, sync: RunSync) -> None:
        """Begin to make earlier writes durable."""

    @abc.abstractmethod
    def _notify(
        self, news: AdvanceHighWatermark | LeaderChanged | RoleChanged | LogMessage
    ) -> None:
        """Handle a notification of the replica."""

    @abc.abstractmethod
    def _on_append_result(self, request: AppendRequest, answer: RequestResult) -> None:
        """Handle the result of a user's append."""

    @abc.abstractmethod
    def _ended(self, error: LogError) -> None:
        """Handle the end of a replica that stopped itself; the process is over."""

    # --- starting and stopping --------------------------------------------------------------------

    def _open(self) -> Replica:
        """Start another incarnation. Raises the errors of opening a replica."""
        assert self._running is None, "the node is stopped"
        setting, (now_ms, time_ms) = self._setting, self._times_ms()
        self.life += 1
        setting.witness.restarted(self.node_id)
        replica = self.replica_type.open(
            self.disk,
            DIRECTORY,
            local_voter=self.voter,
            voters=self.formatted_voters,
            kraft_version=setting.kraft_version,
            log_config=setting.log_config,
            topic_id=TOPIC_ID,
            config=setting.config,
            jitter_ms=self._draw_ms,
            bootstrap=setting.bootstrap,
            now_ms=now_ms,
            time_ms=time_ms,
        )
        self._running = replica
        self.appends = PendingAppends(replica, self._on_append_result)
        return replica

    def _die(self, reason: str = "the node died") -> None:
        appends, self.appends = self.appends, None
        self._running, self._asked = None, {}
        self.life += 1
        if appends is not None:
            appends.abandon(reason)

    # --- events -----------------------------------------------------------------------------------

    def act(self, do: Callable[[Replica, int, int], list[Outgoing]]) -> None:
        """Run an action of the replica, and execute its effects."""
        replica, life = self._running, self.life
        if replica is None:
            return
        try:
            outgoing = do(replica, *self._times_ms())
        except LogError as error:
            self._fail(error)
            return
        for one in outgoing:
            if self.life == life:
                self._execute_outputs(one)
        if self.life == life and self.appends is not None:
            self.appends.poll()

    def step(self, event: Event) -> None:
        """Step the replica with an event."""
        self.act(lambda replica, now, time: replica.step(event, now_ms=now, time_ms=time))

    def note_request(self, request: Request) -> int:
        """Register a request; return the number of its response."""
        request_id = self._next_request_id
        self._next_request_id += 1
        self._asked[request_id] = request
        return request_id

    def complete_sync(self, sync: RunSync) -> None:
        """Handle the end of a sync."""
        ticket = sync.ticket
        self.act(lambda replica, now, time: replica.complete_sync(ticket, now_ms=now, time_ms=time))

    def _fail(self, error: LogError) -> None:
        self._die("the node ended")
        self.disk.kill()
        self._ended(error)

    def _execute_outputs(self, outgoing: Outgoing) -> None:
        replica, witness = self._running, self._setting.witness
        assert replica is not None
        match outgoing:
            case Send(request=request):
                self._check_sent(replica, request)
                self._send(outgoing)
            case Reply(request_id, response):
                asked = self._asked.pop(request_id, None)
                if asked is not None:
                    self._check_response(replica, asked, response)
                    self._answer(request_id, response)
            case RunSync():
                self._begin_sync(outgoing)
            case AdvanceHighWatermark(offset):
                witness.saw_high_watermark(self.node_id, self.life, offset, replica.log)
                self._notify(outgoing)
            case LeaderChanged(epoch=epoch, leader_id=leader_id):
                if leader_id == self.node_id:
                    witness.saw_leader(self.node_id, self.life, epoch, replica.log)
                self._notify(outgoing)
            case ReadIndexConfirmed(ticket):
                assert self.appends is not None
                self.appends.confirmed(ticket)
            case _:
                self._notify(outgoing)

    # --- checks -----------------------------------------------------------------------------------

    def _check_sent(self, replica: Replica, request: Request) -> None:
        witness = self._setting.witness
        if isinstance(request, FetchRequest):
            witness.saw_fetch(self.node_id, request.fetch_offset, replica.log)
            return
        if isinstance(request, VoteRequest) and not request.is_pre_vote:
            witness.saw_vote(self.voter.key, request.epoch, request.candidate)
        written = replica.log.read_election_state()
        witness.saw_epoch(self.voter.key, 0 if written is None else written.leader_epoch)

    def _check_response(self, replica: Replica, request: Request, response: Response) -> None:
        if not isinstance(request, VoteRequest) or request.is_pre_vote:
            return
        if isinstance(response, VoteResponse) and response.is_granted:
            candidate = request.candidate
            self._setting.witness.saw_vote(self.voter.key, request.epoch, candidate)
            written = replica.log.read_election_state()
            assert written is not None
            if written.leader_epoch > request.epoch:
                return  # it was stalled, and has advanced since
            given = (request.epoch, candidate.node_id)
            assert (written.leader_epoch, written.voted_id) == given, "stored before it is granted"
