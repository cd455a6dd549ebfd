"""What a log tells the state machines that live on its node: commits, snapshots, leaders, the end.

Rules of this file:

1. A listener is given every committed batch once, in order and without a gap, control batches too,
   in pieces of a bounded size; never one that may still be lost.
2. A snapshot comes in the place of records: to a new listener if there is one, and to one that the
   log's start has overtaken. The records behind its end follow.
3. Leaders are told in the order of epochs. That this node leads is told only when everything below
   its epoch was given, the first record of the epoch too: whoever hears it knows all that was
   committed before, and may append. That it leads no more is told at once.
4. A listener is never called within another call of one. It calls the log by ``RaftClient`` only.

Kafka: ``RaftClient.Listener`` and ``KafkaRaftClient.ListenerContext`` (KIP-595, KIP-630).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from raftlog.log.snapshot import SnapshotReader
from raftlog.log.writing.quorum_log import QuorumLog
from raftlog.quorum.effects import LeaderChanged
from raftlog.records.batch import RecordBatch, TornTail, read_batch

from .replica import Outgoing, Replica

CHUNK_BYTES_MAX: Final = 1 << 20
"""So much is given to a listener at once, or one batch if that is more."""


@dataclass(frozen=True, slots=True)
class LeaderNotification:
    """Who leads ``epoch``; None: nobody that is known.

    ``end_offset``: the log's end if this node leads, which is where its next append goes.
    """

    epoch: int
    leader_id: int | None
    end_offset: int | None = None


class RaftListener(Protocol):
    """A state machine over the log. Its calls come on the thread that drives the replica."""

    def handle_commit(self, batches: Sequence[RecordBatch]) -> None:
        """These batches are committed, and follow what was given before."""

    def handle_load_snapshot(self, snapshot: SnapshotReader) -> None:
        """Forget the state, and take that of a snapshot."""

    def handle_leader_change(self, leader: LeaderNotification) -> None:
        """Another epoch has begun, or its leader is known now."""

    def begin_shutdown(self) -> None:
        """The node is about to stop: nothing more will be appended. Nothing is told afterwards."""


class RaftListeners:
    """The listeners of one replica. Not shared between threads.

    Whoever drives the replica gives ``handle`` all that it wants done, from its first step on, and
    then calls ``poll`` until there is nothing more to give.
    """

    def __init__(self, replica: Replica, *, chunk_bytes_max: int = CHUNK_BYTES_MAX) -> None:
        self._replica: Final = replica
        self._chunk_bytes_max = chunk_bytes_max
        self._leader: LeaderChanged | None = None
        self._all: list[_ListenerContext] = []
        self._is_polling = False

    def register(self, listener: RaftListener) -> None:
        """Give it everything, from the newest snapshot or the first record on."""
        progress = _ListenerContext(self._replica, listener, self._chunk_bytes_max)
        if self._leader is not None:
            progress.leaders.append(self._leader)
        self._all.append(progress)

    def next_offset(self, listener: RaftListener) -> int:
        """Everything below was given to it."""
        (found,) = (one for one in self._all if one.listener is listener)
        return found.next_offset

    def handle(self, outgoing: Outgoing) -> None:
        """Note what the replica tells of leaders."""
        if isinstance(outgoing, LeaderChanged):
            self._leader = outgoing
            for one in self._all:
                one.leaders.append(outgoing)

    def poll(self) -> bool:
        """Give each listener a piece of what it has not got; whether there is more to give."""
        if self._is_polling:
            return True  # a listener has appended something: it is given back later
        self._is_polling = True
        try:
            more = [one.advance() for one in list(self._all)]
        finally:
            self._is_polling = False
        return any(more)

    def begin_shutdown(self) -> None:
        """Tell all that the node is about to stop."""
        listening, self._all = self._all, []
        for one in listening:
            one.listener.begin_shutdown()


class _ListenerContext:
    """How far one listener is."""

    def __init__(self, replica: Replica, listener: RaftListener, chunk_bytes_max: int) -> None:
        self.listener: Final = listener
        self.next_offset = 0
        self.leaders: Final[deque[LeaderChanged]] = deque()
        """What is not told yet, the oldest first."""
        self._replica = replica
        self._chunk_bytes_max = chunk_bytes_max

    def advance(self) -> bool:
        """Give one piece, or a snapshot; whether there is more."""
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
        """Whether it is told, or need not be any more."""
        end_offset = None
        if leader.epoch_start_offset is not None:
            if leader is not self.leaders[-1]:
                return True  # this node leads that epoch no more
            if self.next_offset <= leader.epoch_start_offset:
                return False  # it has not got the first record of that epoch
            end_offset = self._replica.log.end_offset
        self.listener.handle_leader_change(
            LeaderNotification(leader.epoch, leader.leader_id, end_offset)
        )
        return True


def committed_batches(
    log: QuorumLog, start_offset: int, end_offset: int, byte_count_max: int
) -> tuple[RecordBatch, ...]:
    """The batches from one boundary up to another, at least one, and no more than so many bytes."""
    data, position = log.read_bytes(start_offset, byte_count_max), 0
    found: list[RecordBatch] = []
    while not isinstance(batch := read_batch(data, position), TornTail):
        if batch.base_offset >= end_offset:
            break
        found.append(batch)
        position += batch.byte_count
    assert found, "a committed batch lies there"
    assert found[-1].next_offset <= end_offset, "what is committed ends with a batch"
    return tuple(found)
