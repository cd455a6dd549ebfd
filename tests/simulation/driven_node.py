"""Node of a test: the real replica on a simulated disk, driven by the test, with a witness.

Invariants:

1. A node behaves as the real one: the same ``RaftNode``, the same files. Only transport, syncs and
   time differ: subclasses define them.
2. The witness sees every action of a node before any other node does.
"""

from __future__ import annotations

import abc
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Final

from raftlog.clock import Clock
from raftlog.errors import LogError
from raftlog.log.cleaning.compaction import Compaction
from raftlog.log.remote.tiering import RemoteLogRun
from raftlog.log.writing.active_segment import PendingSync
from raftlog.log.writing.properties import LogConfig
from raftlog.node.raft_client import CHUNK_BYTES_MAX
from raftlog.node.raft_node import Notification, RaftNode, RemoteStorage
from raftlog.node.replica import Replica
from raftlog.quorum.config import QuorumConfig
from raftlog.quorum.effects import AdvanceHighWatermark, LeaderChanged, Send
from raftlog.quorum.events import Event
from raftlog.quorum.messages import FetchRequest, Request, Response, VoteRequest, VoteResponse
from raftlog.quorum.voters import Endpoint, Voter, VoterSet
from raftlog.wire import LogIdentity
from tests.quorum.checked_core import CheckedReplica
from tests.simulated_disk.simulated_disk import SimulatedDisk

from .invariants import Witness

DIRECTORY: Final = "/data/orders-0"
TOPIC_ID: Final = "AAAAAAAAAAAAAAAAAAAAZw"
LISTENER_NAME: Final = "PEERS"
IDENTITY: Final = LogIdentity(
    topic="orders", topic_id=TOPIC_ID, cluster_id="simulated", listener_name=LISTENER_NAME
)
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
    remote: RemoteStorage | None = None
    clean_interval_ms: int | None = None


class DrivenNode(abc.ABC):
    """Node that is running or not, with a disk that survives it: ``Runner`` of its ``RaftNode``."""

    replica_type: ClassVar[type[Replica]] = CheckedReplica
    chunk_bytes_max: ClassVar[int] = CHUNK_BYTES_MAX

    def __init__(self, voter: Voter, setting: Setting, disk: SimulatedDisk) -> None:
        self.voter = voter
        self.node_id: Final = voter.key.node_id
        self.disk = disk
        self.life = 0
        self.raft_node: RaftNode | None = None
        self.formatted_voters = setting.voters
        """Voters that apply while the log has none."""
        self._setting = setting

    @property
    def is_alive(self) -> bool:
        return self.raft_node is not None

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
    def run_sync(self, ticket: PendingSync) -> None:
        """Begin to make earlier writes durable."""

    def run_compaction(self, compaction: Compaction) -> None:
        raise AssertionError(f"no log of a simulated cluster is compacted: {compaction}")

    def run_remote(self, run: RemoteLogRun) -> None:
        raise AssertionError(f"this cluster has no remote storage: {run}")

    @abc.abstractmethod
    def submit_soon(self) -> None:
        """Submit the appends that are received until then."""

    @abc.abstractmethod
    def set_timer(self) -> None:
        """Set a timer for the deadline of the node."""

    @abc.abstractmethod
    def _notify(self, news: Notification) -> None:
        """Handle a notification of the replica."""

    @abc.abstractmethod
    def _ended(self, error: LogError) -> None:
        """Handle the end of a replica that stopped itself; the process is over."""

    # --- starting and stopping --------------------------------------------------------------------

    def _open(self) -> RaftNode:
        """Start another incarnation. Raises the errors of opening a replica."""
        assert self.raft_node is None, "the node is stopped"
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
        clock = Clock(wall_ms=lambda: self._times_ms()[1], now_ms=lambda: self._times_ms()[0])
        node = RaftNode(
            replica,
            IDENTITY,
            self,
            clock,
            chunk_bytes_max=self.chunk_bytes_max,
            clean_interval_ms=setting.clean_interval_ms,
            remote=setting.remote,
        )
        self.raft_node = node
        return node

    def _die(self, reason: str = "the node died") -> None:
        node, self.raft_node = self.raft_node, None
        if node is not None:
            node.end(reason)
        self.life += 1

    # --- inputs -----------------------------------------------------------------------------------

    def step(self, event: Event) -> None:
        """Step the node with an event."""
        if self.raft_node is not None:
            self.raft_node.step(event)

    def receive_request(self, request: Request, reply: Callable[[Response], None]) -> None:
        """Pass a request to the node."""

        node = self.raft_node
        if node is None:
            return
        replica = node.replica

        def respond(response: Response) -> None:
            self._check_response(replica, request, response)
            reply(response)

        node.receive(request, respond)

    # --- outputs ----------------------------------------------------------------------------------

    def send(self, request: Send) -> None:
        assert self.raft_node is not None
        self._check_sent(self.raft_node.replica, request.request)
        self._send(request)

    def notify(self, notification: Notification) -> None:
        assert self.raft_node is not None
        witness, log = self._setting.witness, self.raft_node.replica.log
        match notification:
            case AdvanceHighWatermark(offset):
                witness.saw_high_watermark(self.node_id, self.life, offset, log)
            case LeaderChanged(epoch=epoch, leader_id=leader_id) if leader_id == self.node_id:
                witness.saw_leader(self.node_id, self.life, epoch, log)
            case _:
                pass
        self._notify(notification)

    def failed(self, error: Exception) -> None:
        if not isinstance(error, LogError):
            raise error
        self._die("the node ended")
        self.disk.kill()
        self._ended(error)

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
