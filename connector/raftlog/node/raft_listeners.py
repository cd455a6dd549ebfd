"""Listeners of a replica: state machines that follow its committed records and its leader.

Invariants:

1. A listener receives every committed batch exactly once, in order and without a gap, including
   control batches, in chunks of a bounded size. It never receives a batch that is not committed.
2. A snapshot replaces records for a new listener, if there is a snapshot, and for a listener whose
   next offset is below the log's start. The records from the snapshot's end on follow.
3. Leader changes are delivered in the order of epochs. That this node leads is delivered only after
   all records up to and including the first record of its epoch: the listener has then applied
   everything committed before, and may append. That it leads no longer is delivered immediately.
4. A listener is never called from within a call to a listener. It calls the log through
   ``RaftClient`` only.

Kafka: ``RaftClient.Listener`` and ``KafkaRaftClient.ListenerContext`` (KIP-595, KIP-630).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from raftlog.log.reading.snapshot import SnapshotReader
from raftlog.log.writing.quorum_log import QuorumLog
from raftlog.quorum.effects import LeaderChanged
from raftlog.records.batch import RecordBatch, TornTail, read_batch

from .replica import Outgoing, Replica

CHUNK_BYTES_MAX: Final = 1 << 20
"""Maximum bytes of one ``handle_commit`` call; a larger batch is delivered alone."""


@dataclass(frozen=True, slots=True)
class LeaderNotification:
    """Leader of ``epoch``; ``leader_id`` is None if it is unknown.

    ``end_offset``: base offset of the next append if this node leads, else None.
    """

    epoch: int
    leader_id: int | None
    end_offset: int | None = None


class RaftListener(Protocol):
    """State machine over the log. It is called on the thread that drives the replica."""

    def handle_commit(self, batches: Sequence[RecordBatch]) -> None:
        """Apply committed batches, which follow the ones delivered before."""

    def handle_load_snapshot(self, snapshot: SnapshotReader) -> None:
        """Replace the state by that of a snapshot."""

    def handle_leader_change(self, leader: LeaderNotification) -> None:
        """Handle a new epoch, or the leader of the current one becoming known."""

    def begin_shutdown(self) -> None:
        """Handle the shutdown of the node: no appends any more. This is the last call."""


class RaftListeners:
    """Listeners of one replica. Not thread-safe.

    The replica's driver passes every output of the replica, from its first step on, to ``handle``,
    then calls ``poll`` until it returns False.
    """

    def __init__(self, replica: Replica, *, chunk_bytes_max: int = CHUNK_BYTES_MAX) -> None:
        self._replica: Final = replica
        self._chunk_bytes_max = chunk_bytes_max
        self._leader: LeaderChanged | None = None
        self._all: list[_ListenerContext] = []
        self._is_polling = False

    def register(self, listener: RaftListener) -> None:
        """Add a listener; it starts at the newest snapshot, or else at the first record."""
        progress = _ListenerContext(self._replica, listener, self._chunk_bytes_max)
        if self._leader is not None:
            progress.leaders.append(self._leader)
        self._all.append(progress)

    def next_offset(self, listener: RaftListener) -> int:
        """Return the offset of the next record to deliver to a listener."""
        (found,) = (one for one in self._all if one.listener is listener)
        return found.next_offset

    def handle(self, outgoing: Outgoing) -> None:
        """Queue a leader change for all listeners; ignore other outputs."""
        if isinstance(outgoing, LeaderChanged):
            self._leader = outgoing
            for one in self._all:
                one.leaders.append(outgoing)

    def poll(self) -> bool:
        """Deliver one chunk to each listener; return whether there is more to deliver."""
        if self._is_polling:
            return True  # a listener has appended records: deliver them later
        self._is_polling = True
        try:
            more = [one.advance() for one in list(self._all)]
        finally:
            self._is_polling = False
        return any(more)

    def begin_shutdown(self) -> None:
        """Notify all listeners of the shutdown, and remove them."""
        listening, self._all = self._all, []
        for one in listening:
            one.listener.begin_shutdown()


class _ListenerContext:
    """Position of one listener."""

    def __init__(self, replica: Replica, listener: RaftListener, chunk_bytes_max: int) -> None:
        self.listener: Final = listener
        self.next_offset = 0
        self.leaders: Final[deque[LeaderChanged]] = deque()
        """Leader changes not delivered yet, the oldest first."""
        self._replica = replica
        self._chunk_bytes_max = chunk_bytes_max

    def advance(self) -> bool:
        """Deliver one chunk, or a snapshot; return whether there is more."""
        log, committed = self._replica.log, self._replica.core.high_watermark or 0
        is_overtaken = self.next_offset < log.log_start_offset
        if (is_overtaken or self.next_offset == 0) and log.snapshots:
            snapshot_id = log.snapshots[-1]
            self.listener.handle_load_snapshot(log.open_snapshot(snapshot_id))
            self.next_offset = snapshot_id.end_offset
        elif self.next_offset < committed:
            batches = committed_batches(log, self.next_offset, committed, self._chunk_bytes_max)
            self.listener.handle_commit(batches)
            self.next_offset = batches[-1].next_offset
        while self.leaders and self._notify_leader(self.leaders[0]):
            self.leaders.popleft()
        return self.next_offset < (self._replica.core.high_watermark or 0)

    def _notify_leader(self, leader: LeaderChanged) -> bool:
        """Deliver a leader change if it is due; return whether it is delivered or obsolete."""
        end_offset = None
        if leader.epoch_start_offset is not None:
            if leader is not self.leaders[-1]:
                return True  # this node no longer leads that epoch
            if self.next_offset <= leader.epoch_start_offset:
                return False  # the first record of that epoch is not delivered yet
            end_offset = self._replica.log.end_offset
        self.listener.handle_leader_change(
            LeaderNotification(leader.epoch, leader.leader_id, end_offset)
        )
        return True


def committed_batches(
    log: QuorumLog, start_offset: int, end_offset: int, byte_count_max: int
) -> tuple[RecordBatch, ...]:
    """Return the batches from ``start_offset`` to ``end_offset``, both batch boundaries: at least
    one batch, and otherwise at most ``byte_count_max`` bytes."""
    data, position = log.read_bytes(start_offset, byte_count_max), 0
    found: list[RecordBatch] = []
    while not isinstance(batch := read_batch(data, position), TornTail):
        if batch.base_offset >= end_offset:
            break
        found.append(batch)
        position += batch.byte_count
    assert found, "there is a committed batch at start_offset"
    assert found[-1].next_offset <= end_offset, "end_offset is a batch boundary"
    return tuple(found)
