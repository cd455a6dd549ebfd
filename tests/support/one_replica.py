"""Quorum of one voter on a simulated disk, for tests of state machines."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from raftlog.log.writing.properties import LogConfig
from raftlog.node.raft_client import RaftListener, RaftListeners, ReplicaRaftClient
from raftlog.node.replica import Outgoing, Replica, RunSync
from raftlog.quorum.config import QuorumConfig
from raftlog.quorum.events import ShutDown, TimePassed
from raftlog.quorum.voters import Voter, VoterSet
from raftlog.types import ZERO_UUID, ReplicaKey
from tests.simulated_disk.simulated_disk import SimulatedDisk

DIRECTORY: Final = "/data/orders-0"
TOPIC_ID: Final = "AAAAAAAAAAAAAAAAAAAAZw"
TIME_MS: Final = 1_700_000_000_000


class OneReplica:
    """Node without a network. Syncs end immediately, or wait for ``release`` if ``is_held``."""

    def __init__(
        self,
        disk: SimulatedDisk | None = None,
        *,
        chunk_bytes_max: int = 1 << 20,
        is_held: bool = False,
        log_config: LogConfig | None = None,
        directory_id: str = ZERO_UUID,
    ) -> None:
        if disk is None:
            disk = SimulatedDisk()
            disk.make_directory("/data")
            disk.sync_directory("/")
        self.disk: Final = disk
        self.is_held = is_held
        self._held: list[RunSync] = []
        self._now_ms = 0
        me = Voter(key=ReplicaKey(1, directory_id))
        self.replica: Final = Replica.open(
            disk,
            DIRECTORY,
            local_voter=me,
            voters=VoterSet.of([Voter(key=ReplicaKey(1))]),
            kraft_version=0,
            log_config=log_config or LogConfig(segment_bytes=2_000, index_interval_bytes=200),
            topic_id=TOPIC_ID,
            config=QuorumConfig(),
            jitter_ms=lambda _bound: 0,
            now_ms=0,
            time_ms=TIME_MS,
        )
        self.listeners: Final = RaftListeners(self.replica, chunk_bytes_max=chunk_bytes_max)
        self.log: Final = ReplicaRaftClient(self.replica, self.act, lambda: TIME_MS)
        self._step(TimePassed())

    def register(self, listener: RaftListener) -> None:
        self.listeners.register(listener)
        self.poll()

    def elect(self) -> None:
        """Advance time until it is the leader."""
        while not self.replica.core.is_leader:
            deadline_ms = self.replica.next_deadline_ms
            assert deadline_ms is not None, "it campaigns"
            self._now_ms = max(deadline_ms, self._now_ms)
            self._step(TimePassed())
        self.poll()

    def release(self) -> None:
        """End the held syncs."""
        self.is_held = False
        held, self._held = self._held, []
        for one in held:
            self._sync(one)
        self.poll()

    def poll(self) -> None:
        """Deliver everything that is pending to the listeners."""
        while self.listeners.poll():
            pass

    def shut_down(self) -> None:
        self.listeners.begin_shutdown()
        self._step(ShutDown())

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

    # --- driving ----------------------------------------------------------------------------------

    def act(self, act: Callable[[int, int], list[Outgoing]]) -> None:
        for one in act(self._now_ms, TIME_MS):
            self.listeners.handle(one)
            if isinstance(one, RunSync):
                if self.is_held:
                    self._held.append(one)
                else:
                    self._sync(one)
        self.listeners.poll()

    def _step(self, event: TimePassed | ShutDown) -> None:
        self.act(lambda now_ms, time_ms: self.replica.step(event, now_ms=now_ms, time_ms=time_ms))

    def _sync(self, sync: RunSync) -> None:
        sync.ticket.run()
        self.act(
            lambda now_ms, time_ms: self.replica.complete_sync(
                sync.ticket, now_ms=now_ms, time_ms=time_ms
            )
        )
