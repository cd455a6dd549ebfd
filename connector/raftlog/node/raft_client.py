"""Interface between a quorum's log and the state machines on one of its nodes.

Appended records are not committed yet; the listener receives them once they are. After a leader
change its uncommitted records may or may not be committed. An append names the epoch in which the
listener became leader, so it is rejected after a later election. No part of a rejected append is in
the log.

Invariants of the listeners:

1. A listener receives every committed batch exactly once, in order and without a gap, including
   control batches, in chunks of a bounded size. It never receives a batch that is not committed.
2. A new listener receives a snapshot first, if there is one; so does a listener whose next offset
   is below the log's start. The records from the snapshot's end on follow.
3. Leader changes are delivered in the order of epochs. A listener is notified that this node leads
   only after all records up to and including the first record of its epoch: it has then applied
   everything that was committed before, and may append. It is notified immediately that this node
   no longer leads.
4. A listener is never called from within a call to a listener. It calls the log only through
   ``RaftClient``.
5. A listener whose call returned steps gets no other call before they are done, except its
   shutdown. This includes the notification that this node no longer leads, so the steps must not
   append.

Kafka: ``RaftClient``, ``RaftClient.Listener``, ``KafkaRaftClient.ListenerContext`` (KIP-595, 630).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

from raftlog.append import NOT_AWAITED, AppendBatch, AppendRequest, AppendResult, Failed
from raftlog.errors import (
    AppendError,
    DiskFullError,
    FutureEpochError,
    InvalidUpdateVersionError,
    LogClosedError,
    NotLeaderError,
    UnexpectedEndOffsetError,
)
from raftlog.log.writing.quorum_log import QuorumLog
from raftlog.log.writing.snapshots import SnapshotWriter
from raftlog.quorum.effects import LeaderChanged
from raftlog.quorum.events import Resign, UpgradeKRaftVersion
from raftlog.records.batch import RecordBatch, TornTail, read_batch

from .replica import Outgoing, Replica

if TYPE_CHECKING:
    from raftlog.log.reading.snapshot import SnapshotReader

Steps: TypeAlias = Iterator[None] | None
"""Remaining work of a call, in parts of a few milliseconds; None if there is no such work."""

KRAFT_UPGRADE_RECORDS: Final = 2
"""Records of an upgrade of kraft.version: the version and the voters."""

Act: TypeAlias = Callable[[Callable[[int, int], list[Outgoing]]], None]


class RaftClient(Protocol):
    """Interface of the log for a state machine."""

    @property
    def node_id(self) -> int: ...

    def append(
        self, epoch: int, records: Sequence[bytes], *, required_base_offset: int | None = None
    ) -> int:
        """Append records as one batch, all or none; return the first record's offset.

        Raises ``NotLeaderError`` (a later epoch has begun, or this node is not the leader),
        ``FutureEpochError`` (a bug of the caller), ``UnexpectedEndOffsetError`` (the end offset is
        not ``required_base_offset``), ``RecordBatchTooLargeError``, ``DiskFullError``.
        """
        ...

    @property
    def kraft_version(self) -> int:
        """The latest kraft.version of the quorum, which may be uncommitted."""
        ...

    def upgrade_kraft_version(
        self, epoch: int, version: int, *, required_base_offset: int, validate_only: bool
    ) -> int:
        """Append kraft.version and the voters as one batch of control records, unless the quorum
        already has that version; return the log's end offset.

        Raises ``InvalidUpdateVersionError``, and the errors of ``append``.
        """
        ...

    def resign(self, epoch: int) -> None:
        """Resign as leader of ``epoch``; do nothing if a later epoch has begun."""
        ...

    def begin_snapshot(self, end_offset: int) -> SnapshotWriter | None:
        """Begin a snapshot of the state at ``end_offset`` (``ReplicatedLog.begin_snapshot``)."""
        ...


class ReplicaRaftClient:
    """``RaftClient`` of a replica. Use it on the thread that drives the replica."""

    def __init__(
        self,
        replica: Replica,
        act: Act,
        time_ms: Callable[[], int],
        on_disk_full: Callable[[], None],
    ) -> None:
        """``act`` calls its argument with the quorum's time and the wall-clock time, and executes
        the resulting outputs before it returns. ``time_ms`` returns the wall-clock time.
        ``on_disk_full`` is called when an append has failed with ``DiskFullError``."""
        self._replica: Final = replica
        self._act = act
        self._time_ms = time_ms
        self._on_disk_full = on_disk_full

    @property
    def node_id(self) -> int:
        return self._replica.core.node_id

    def append(
        self, epoch: int, records: Sequence[bytes], *, required_base_offset: int | None = None
    ) -> int:
        request = AppendRequest(
            records=tuple(records),
            epoch=epoch,
            required_base_offset=required_base_offset,
            is_atomic=True,
            deadline_ms=0,
            future=NOT_AWAITED,
        )
        request.check()

        def append(now_ms: int, time_ms: int) -> tuple[int, list[Outgoing]]:
            base_offset = self._append(epoch, request, time_ms)
            return base_offset, self._replica.appended(now_ms=now_ms, time_ms=time_ms)

        return self._change(append)

    @property
    def kraft_version(self) -> int:
        return self._replica.core.kraft_version

    def upgrade_kraft_version(
        self, epoch: int, version: int, *, required_base_offset: int, validate_only: bool
    ) -> int:
        def upgrade(now_ms: int, time_ms: int) -> tuple[int, list[Outgoing]]:
            core, log = self._replica.core, self._replica.log
            self._check_may_append(epoch)
            refusal = core.upgrade_refusal(version)
            if refusal is not None:
                raise InvalidUpdateVersionError(reason=refusal)
            if validate_only or core.kraft_version == version:
                return log.end_offset, []
            if log.end_offset != required_base_offset:
                raise UnexpectedEndOffsetError(
                    required_base_offset=required_base_offset,
                    record_count=KRAFT_UPGRADE_RECORDS,
                    log_end_offset=log.end_offset,
                )
            event = UpgradeKRaftVersion(version)
            outgoing = self._replica.step(event, now_ms=now_ms, time_ms=time_ms)
            if core.kraft_version < version:
                reason = "the records of kraft.version could not be written"
                raise DiskFullError(path=log.path, reason=reason)
            return log.end_offset, outgoing

        return self._change(upgrade)

    def _change(self, change: Callable[[int, int], tuple[int, list[Outgoing]]]) -> int:
        """Return the first result of a change of the log, and execute the outputs that follow."""
        outcome: list[int | AppendError | DiskFullError] = []

        def act(now_ms: int, time_ms: int) -> list[Outgoing]:
            try:
                value, outgoing = change(now_ms, time_ms)
            except (AppendError, DiskFullError) as refusal:
                outcome.append(refusal)
                return []
            outcome.append(value)
            return outgoing

        self._act(act)
        if not outcome:
            raise LogClosedError(path=self._replica.log.path, reason="the replica has stopped")
        if isinstance(outcome[0], DiskFullError):
            self._on_disk_full()
        if not isinstance(outcome[0], int):
            raise outcome[0]
        return outcome[0]

    def _check_may_append(self, epoch: int) -> None:
        current = self._replica.core.epoch
        if epoch > current:
            raise FutureEpochError(epoch=epoch, current_epoch=current)
        if epoch < current:
            raise NotLeaderError(epoch=epoch, current_epoch=current)
        refusal = self._replica.append_refusal()
        if refusal is not None:
            raise refusal

    def _append(self, epoch: int, request: AppendRequest, time_ms: int) -> int:
        self._check_may_append(epoch)
        group = AppendBatch(self._replica.log, time_ms)
        result = group.process(request)
        if isinstance(result, Failed):
            assert isinstance(result.error, AppendError), "no other failure is possible"
            raise result.error
        group.write()
        assert isinstance(result.value, AppendResult), "the request is an append"
        return result.value.base_offset

    def resign(self, epoch: int) -> None:
        resign = Resign(epoch)
        self._act(
            lambda now_ms, time_ms: self._replica.step(resign, now_ms=now_ms, time_ms=time_ms)
        )

    def begin_snapshot(self, end_offset: int) -> SnapshotWriter | None:
        return self._replica.begin_snapshot(end_offset, time_ms=self._time_ms())


# --- listeners ------------------------------------------------------------------------------------

CHUNK_BYTES_MAX: Final = 1 << 20
"""Maximum bytes in one ``handle_commit`` call; a larger batch is delivered alone."""


@dataclass(frozen=True, slots=True)
class LeaderNotification:
    """Leader of ``epoch``; ``leader_id`` is None if it is unknown.

    ``end_offset`` is the end of this node's log; if it leads, the base offset of its next append.
    """

    epoch: int
    leader_id: int | None
    end_offset: int


class RaftListener(Protocol):
    """State machine over the log. It is called on the thread that drives the replica.

    A call that would take long may do a part of its work and return the rest as steps, each of
    which is executed between other events.
    """

    def handle_commit(self, batches: Sequence[RecordBatch]) -> Steps:
        """Apply committed batches, which follow the ones delivered before."""

    def handle_load_snapshot(self, snapshot: SnapshotReader) -> Steps:
        """Replace the state with a snapshot's."""

    def handle_leader_change(self, leader: LeaderNotification) -> None:
        """Handle a new epoch, or the leader of the current one becoming known."""

    def begin_shutdown(self) -> None:
        """Handle the shutdown of the node: do not append after this, which is the last call."""


class RaftListeners:
    """Listeners of one replica. Not thread-safe.

    ``RaftNode`` passes leader changes to ``handle`` from the replica's first step on. Its runner
    then delivers until ``poll`` returns False.
    """

    def __init__(self, replica: Replica, *, chunk_bytes_max: int = CHUNK_BYTES_MAX) -> None:
        self._replica: Final = replica
        self._chunk_bytes_max = chunk_bytes_max
        self._leader: LeaderChanged | None = None
        self._all: list[_ListenerContext] = []
        self._is_polling = False

    def register(self, listener: RaftListener) -> None:
        """Add a listener; it starts at the newest snapshot, or else at the first record."""
        self._replica.has_listeners = True  # their snapshots determine the log's start
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
        """For each listener, deliver one chunk or run one step; return whether there is more."""
        if self._is_polling:
            return True  # a listener has appended records: deliver them later
        self._is_polling = True
        try:
            more = [one.advance() for one in list(self._all) if not one.is_removed]
        finally:
            self._is_polling = False
        return any(more)

    def begin_shutdown(self) -> None:
        """Notify all listeners of the shutdown, and remove them."""
        for one in self._remove_all():
            one.listener.begin_shutdown()

    def close(self) -> None:
        """Remove all listeners at the end of the replica; a running ``poll`` calls no others."""
        self._remove_all()

    def _remove_all(self) -> list[_ListenerContext]:
        removed, self._all = self._all, []
        for one in removed:
            one.is_removed = True
        return removed


class _ListenerContext:
    """Position of one listener."""

    def __init__(self, replica: Replica, listener: RaftListener, chunk_bytes_max: int) -> None:
        self.listener: Final = listener
        self.is_removed = False
        self.next_offset = 0
        self.leaders: Final[deque[LeaderChanged]] = deque()
        """Leader changes that are not delivered yet, the oldest first."""
        self._steps: Steps = None
        self._steps_end = 0
        """The next offset after the steps."""
        self._replica = replica
        self._chunk_bytes_max = chunk_bytes_max

    def advance(self) -> bool:
        """Deliver a chunk or a snapshot, or run a step of either; return whether there is more."""
        if self._steps is None:
            self._deliver()
        elif next(self._steps, self) is self:
            self._steps = None
        if self._steps is not None:
            return True
        self.next_offset = self._steps_end
        while not self.is_removed and self.leaders and self._notify_leader(self.leaders[0]):
            self.leaders.popleft()
        return self.next_offset < (self._replica.core.high_watermark or 0)

    def _deliver(self) -> None:
        log, committed = self._replica.log, self._replica.core.high_watermark or 0
        is_overtaken = self.next_offset < log.log_start_offset
        if (is_overtaken or self.next_offset == 0) and log.snapshots:
            snapshot_id = log.snapshots[-1]
            self._steps_end = snapshot_id.end_offset
            self._steps = self.listener.handle_load_snapshot(log.open_snapshot(snapshot_id))
        elif self.next_offset < committed:
            batches = committed_batches(log, self.next_offset, committed, self._chunk_bytes_max)
            self._steps_end = batches[-1].next_offset
            self._steps = self.listener.handle_commit(batches)

    def _notify_leader(self, leader: LeaderChanged) -> bool:
        """Deliver a leader change if it is due; return whether it is delivered or obsolete."""
        if leader.epoch_start_offset is not None:
            if leader is not self.leaders[-1]:
                return True  # this node no longer leads that epoch
            if self.next_offset <= leader.epoch_start_offset:
                return False  # the first record of that epoch is not delivered yet
        self.listener.handle_leader_change(
            LeaderNotification(leader.epoch, leader.leader_id, self._replica.log.end_offset)
        )
        return True


def committed_batches(
    log: QuorumLog, start_offset: int, end_offset: int, byte_count_max: int
) -> tuple[RecordBatch, ...]:
    """Return the batches between two batch boundaries: at least one batch, then at most
    ``byte_count_max`` bytes."""
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
