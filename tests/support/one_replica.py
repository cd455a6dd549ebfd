"""Quorum of one voter on a simulated disk, for tests of state machines and of appends."""

from __future__ import annotations

from functools import partial
from typing import Final

from raftlog.append import AppendRequest, RequestResult
from raftlog.clock import Clock
from raftlog.log.cleaning.compaction import Compaction
from raftlog.log.remote.tiering import RemoteLogRun
from raftlog.log.writing.active_segment import PendingSync
from raftlog.log.writing.properties import LogConfig
from raftlog.node.raft_client import CHUNK_BYTES_MAX, RaftClient, RaftListener, RaftListeners
from raftlog.node.raft_node import Notification, RaftNode
from raftlog.node.replica import Replica
from raftlog.quorum.config import QuorumConfig
from raftlog.quorum.effects import Send
from raftlog.quorum.events import TimePassed
from raftlog.quorum.voters import Endpoint, Voter, VoterSet
from raftlog.types import ZERO_UUID, ReplicaKey
from raftlog.wire import LogIdentity
from tests.quorum.checked_core import CheckedReplica
from tests.simulated_disk.simulated_disk import SimulatedDisk

DIRECTORY: Final = "/data/orders-0"
TOPIC_ID: Final = "AAAAAAAAAAAAAAAAAAAAZw"
TIME_MS: Final = 1_700_000_000_000


class OneReplica:
    """Node without a network: ``Runner`` of its ``RaftNode``.

    Syncs end immediately, or wait for ``release`` if ``is_held``. Only ``elect`` and ``pass_time``
    advance the time.
    """

    def __init__(
        self,
        disk: SimulatedDisk | None = None,
        *,
        chunk_bytes_max: int = CHUNK_BYTES_MAX,
        is_held: bool = False,
        log_config: LogConfig | None = None,
        directory_id: str = ZERO_UUID,
        endpoints: tuple[Endpoint, ...] = (),
        room_bytes: int | None = None,
        clean_interval_ms: int | None = None,
    ) -> None:
        """``endpoints``: of the only voter of a dynamic quorum; without any the voter is static.
        ``room_bytes``: free space of the disk after the log is opened."""
        if disk is None:
            disk = SimulatedDisk()
            disk.make_directory("/data")
            disk.sync_directory("/")
        self.disk: Final = disk
        self.is_held = is_held
        self.notifications: Final[list[Notification]] = []
        self.results: Final[dict[AppendRequest, RequestResult]] = {}
        """Of the appends of ``submit``."""
        self._held: list[PendingSync] = []
        self._now_ms = 0
        me = Voter(key=ReplicaKey(1, directory_id), endpoints=endpoints)
        replica = CheckedReplica.open(
            disk,
            DIRECTORY,
            local_voter=me,
            voters=VoterSet.of([me if endpoints else Voter(key=ReplicaKey(1))]),
            kraft_version=1 if endpoints else 0,
            log_config=log_config or LogConfig(segment_bytes=2_000, index_interval_bytes=200),
            topic_id=TOPIC_ID,
            config=QuorumConfig(),
            jitter_ms=lambda _bound: 0,
            now_ms=0,
            time_ms=TIME_MS,
        )
        if room_bytes is not None:
            disk.leave_room(room_bytes)
        clock = Clock(wall_ms=lambda: TIME_MS, now_ms=lambda: self._now_ms)
        identity = LogIdentity(topic="orders", topic_id=TOPIC_ID, cluster_id="one replica")
        self.raft_node: Final = RaftNode(
            replica,
            identity,
            self,
            clock,
            chunk_bytes_max=chunk_bytes_max,
            clean_interval_ms=clean_interval_ms,
        )
        self.raft_node.step(TimePassed())

    @property
    def replica(self) -> Replica:
        return self.raft_node.replica

    @property
    def log(self) -> RaftClient:
        return self.raft_node.raft_client

    @property
    def listeners(self) -> RaftListeners:
        return self.raft_node.listeners

    def register(self, listener: RaftListener) -> None:
        self.raft_node.register(listener)
        self.poll()

    def submit(self, *requests: AppendRequest) -> None:
        """Append these requests together."""
        for request in requests:
            self.raft_node.append(request, partial(self.results.__setitem__, request))
        self.raft_node.submit()

    def pass_time(self, now_ms: int) -> None:
        """Advance the time, and pass it."""
        self._now_ms = now_ms
        self.raft_node.pass_time()

    @property
    def now_ms(self) -> int:
        return self._now_ms

    @property
    def is_turn_due(self) -> bool:
        """Return whether a part of the work was left for a later turn, or a deadline has passed."""
        deadline_ms = self.raft_node.next_deadline_ms
        return deadline_ms is not None and deadline_ms <= self._now_ms

    def elect(self) -> None:
        """Advance time until it is the leader."""
        while not self.replica.core.is_leader:
            deadline_ms = self.raft_node.next_deadline_ms
            assert deadline_ms is not None, "it campaigns"
            self.pass_time(max(deadline_ms, self._now_ms))
        self.poll()

    def release(self) -> None:
        """End the held syncs."""
        self.is_held = False
        held, self._held = self._held, []
        for one in held:
            self._sync(one)
        self.poll()

    def poll(self) -> None:
        """Deliver everything that is pending to the listeners, and do what was left for later."""
        self.raft_node.deliver()
        while self.is_turn_due:
            self.raft_node.pass_time()

    def shut_down(self) -> None:
        self.raft_node.begin_shutdown()

    def snapshot(self, end_offset: int) -> None:
        """Write a snapshot without records, and start the log at its end."""
        log = self.replica.log
        writer = self.replica.begin_snapshot(end_offset, time_ms=TIME_MS)
        if writer is not None:
            with writer:
                writer.freeze()
        log.delete_before(log.snapshot_id_at(end_offset))

    def restarted(self, *, is_held: bool = False) -> OneReplica:
        """Return the next process on the same disk."""
        self.disk.kill()
        return OneReplica(self.disk, is_held=is_held)

    # --- outputs ----------------------------------------------------------------------------------

    def send(self, request: Send) -> None:
        raise AssertionError(f"there is no other node: {request}")

    def run_sync(self, ticket: PendingSync) -> None:
        if self.is_held:
            self._held.append(ticket)
        else:
            self._sync(ticket)

    def run_compaction(self, compaction: Compaction) -> None:
        compaction.run()
        self.raft_node.complete_compaction(compaction)

    def run_remote(self, run: RemoteLogRun) -> None:
        run.run()
        self.raft_node.complete_remote_run(run)

    def _sync(self, ticket: PendingSync) -> None:
        ticket.run()
        self.raft_node.complete_sync(ticket)

    def notify(self, notification: Notification) -> None:
        self.notifications.append(notification)

    def set_timer(self) -> None:
        """Do nothing: ``pass_time`` and ``poll`` follow."""

    def submit_soon(self) -> None:
        """Do nothing: ``submit`` follows."""

    def failed(self, error: Exception) -> None:
        raise error
