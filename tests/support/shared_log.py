"""Log in memory shared by several state machines, in place of a quorum.

It has the guarantees and errors of a quorum's log, by the same types: code that runs on it runs on
a real one. The test decides the leader and the high watermark. Listeners are called only in
``deliver``, step by step.

Kafka: ``LocalLogManager`` and its ``SharedLogData``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from raftlog.errors import (
    DiskFullError,
    FutureEpochError,
    InvalidUpdateVersionError,
    NotLeaderError,
    RecordBatchTooLargeError,
    UnexpectedEndOffsetError,
)
from raftlog.log.reading.files import LogFiles
from raftlog.log.reading.snapshot import SnapshotReader
from raftlog.log.writing.producer_state import ProducerStateManager
from raftlog.log.writing.segments import LogDirectory
from raftlog.log.writing.snapshots import SnapshotWriter, snapshot_head
from raftlog.node.raft_client import LeaderNotification, RaftListener, Steps
from raftlog.records.batch import RecordBatch, TornTail, read_batch
from raftlog.records.compression import Compression
from raftlog.records.control import (
    ControlRecord,
    KRaftVersion,
    KRaftVoters,
    LeaderChange,
    LeaderChangeVoter,
    Voter,
    VoterEndpoint,
    encode_control,
)
from raftlog.records.record import NewRecord
from raftlog.types import SnapshotId
from tests.simulated_disk.simulated_disk import SimulatedDisk
from tests.support.batch_encoding import NewRecordBatch, encode_batch

_DIRECTORY: Final = "/shared-0"
_TIME_MS: Final = 1_700_000_000_000
_BATCH_BYTES_MAX: Final = 1 << 20


class SharedLog:
    """The log, and its leader."""

    def __init__(self) -> None:
        self.batches: list[RecordBatch] = []
        self.epoch = 0
        self.leader_id: int | None = None
        self.leaders: list[tuple[int, int | None]] = []
        """Epochs and their leaders, in the order in which they became known."""
        self.start_offset = 0
        self.committed_max: int | None = None
        """High watermark; None: everything is committed when it is appended."""
        self.kraft_version = 0
        self.batch_bytes_max = _BATCH_BYTES_MAX
        self.appends_left: int | None = None
        """Number of appends of nodes until the disk is full; None: it has room."""
        self.nodes: dict[int, SharedLogNode] = {}
        self.disk: Final = SimulatedDisk()
        self.disk.make_directory(_DIRECTORY)
        self.directory: Final = LogDirectory(self.disk, _DIRECTORY)
        self._starts: dict[int, int] = {}

    @property
    def end_offset(self) -> int:
        return self.batches[-1].next_offset if self.batches else self.start_offset

    @property
    def committed_end(self) -> int:
        if self.committed_max is None:
            return self.end_offset
        fitting = [one.next_offset for one in self.batches if one.next_offset <= self.committed_max]
        return max(fitting, default=self.start_offset)

    @property
    def snapshots(self) -> tuple[SnapshotId, ...]:
        return self.directory.listing().snapshots

    def node(self, node_id: int) -> SharedLogNode:
        return self.nodes.setdefault(node_id, SharedLogNode(self, node_id))

    # --- what a quorum decides --------------------------------------------------------------------

    def elect(self, node_id: int) -> None:
        """Start the next epoch with this node as leader: its first record is a LeaderChange.
        Uncommitted records of the last leader are lost."""
        self.lose_uncommitted()
        self.depose()
        self.leader_id = node_id
        self.leaders.append((self.epoch, node_id))
        self._starts[self.epoch] = self.end_offset
        voters = (LeaderChangeVoter(node_id),)
        change = LeaderChange(leader_id=node_id, voters=voters, granting_voters=voters)
        self._append([NewRecord(*encode_control(change))], is_control=True)

    def depose(self) -> None:
        """Start an epoch without a leader."""
        self.epoch, self.leader_id = self.epoch + 1, None
        self.leaders.append((self.epoch, None))

    def lose_uncommitted(self) -> None:
        end_offset = self.committed_end
        self.batches = [one for one in self.batches if one.next_offset <= end_offset]

    def delete_before(self, snapshot_id: SnapshotId) -> None:
        """Start the log at the end of a snapshot."""
        assert snapshot_id in self.snapshots, "the log starts after a snapshot"
        self.start_offset = snapshot_id.end_offset
        self.batches = [one for one in self.batches if one.base_offset >= self.start_offset]

    def deliver(self) -> None:
        """Deliver everything that is pending to all listeners."""
        while any([node.deliver_once() for node in self.nodes.values()]):  # noqa: C419 (each one)
            pass

    # --- requests of nodes ------------------------------------------------------------------------

    def append(
        self, node_id: int, epoch: int, records: Sequence[bytes], required_base_offset: int | None
    ) -> int:
        self._check_leader(node_id, epoch)
        base_offset, byte_count = self.end_offset, sum(map(len, records))
        if byte_count > self.batch_bytes_max:
            raise RecordBatchTooLargeError(
                byte_count=byte_count, byte_count_max=self.batch_bytes_max
            )
        self._check_append(required_base_offset, len(records))
        self._append([NewRecord(None, record) for record in records], is_control=False)
        return base_offset

    def _check_leader(self, node_id: int, epoch: int) -> None:
        if epoch > self.epoch:
            raise FutureEpochError(epoch=epoch, current_epoch=self.epoch)
        if epoch < self.epoch or node_id != self.leader_id:
            raise NotLeaderError(epoch=epoch, current_epoch=self.epoch)

    def _check_append(self, required_base_offset: int | None, record_count: int) -> None:
        if required_base_offset not in (None, self.end_offset):
            raise UnexpectedEndOffsetError(
                required_base_offset=required_base_offset,
                record_count=record_count,
                log_end_offset=self.end_offset,
            )
        if self.appends_left is not None:
            if self.appends_left == 0:
                raise DiskFullError(path=_DIRECTORY, reason="no space left on device")
            self.appends_left -= 1

    def upgrade_kraft_version(
        self, node_id: int, epoch: int, version: int, required_base_offset: int, *, is_dry: bool
    ) -> int:
        self._check_leader(node_id, epoch)
        if version < self.kraft_version or not self.supports_kraft_version(version):
            raise InvalidUpdateVersionError(reason=f"it is {self.kraft_version}")
        if is_dry or version == self.kraft_version:
            return self.end_offset
        self._check_append(required_base_offset, 2)
        self.kraft_version = version
        records: list[ControlRecord] = [KRaftVersion(kraft_version=version), self._voters()]
        self._append([NewRecord(*encode_control(one)) for one in records], is_control=True)
        return self.end_offset

    def supports_kraft_version(self, version: int) -> bool:
        return version <= 1

    def append_voters(self) -> None:
        """Append a control record, as the leader's log does when voters change."""
        self._append([NewRecord(*encode_control(self._voters()))], is_control=True)

    def _voters(self) -> KRaftVoters:
        voter = Voter(
            voter_id=1,
            voter_directory_id="A" * 21 + "g",
            endpoints=(VoterEndpoint(name="C", host="h", port=9093),),
            min_supported_version=0,
            max_supported_version=1,
        )
        return KRaftVoters(voters=(voter,))

    def open_snapshot(self) -> SnapshotReader:
        """Return a reader of the newest snapshot."""
        return SnapshotReader(LogFiles.of_directory(self.disk, _DIRECTORY), self.snapshots[-1])

    def _append(self, records: Sequence[NewRecord], *, is_control: bool) -> None:
        new = NewRecordBatch(
            records=tuple(records), base_timestamp_ms=_TIME_MS, is_control=is_control
        )
        data = encode_batch(new, base_offset=self.end_offset, leader_epoch=self.epoch)
        batch = read_batch(data)
        assert not isinstance(batch, TornTail)
        self.batches.append(batch)

    def epoch_start(self, epoch: int) -> int:
        return self._starts[epoch]

    def begin_snapshot(self, end_offset: int) -> SnapshotWriter | None:
        if end_offset < max(self.start_offset, 1) or end_offset > self.committed_end:
            return None
        epoch = max(one.leader_epoch for one in self.batches if one.next_offset <= end_offset)
        snapshot_id = SnapshotId(epoch=epoch, end_offset=end_offset)
        if snapshot_id in self.snapshots:
            return None
        head = snapshot_head(
            ProducerStateManager(_DIRECTORY),
            last_contained_log_timestamp_ms=_TIME_MS,
            kraft_version=None,
            voters=None,
        )
        return SnapshotWriter(
            self.directory,
            snapshot_id,
            head,
            now_ms=_TIME_MS,
            batch_bytes_max=_BATCH_BYTES_MAX,
            compression=Compression.NONE,
            on_frozen=lambda _: None,
        )


@dataclass(slots=True, eq=False)
class _Listening:
    """Position of one listener."""

    listener: RaftListener
    next_offset: int = 0
    notified_count: int = 0
    """Number of leader changes that were delivered."""
    steps: Steps = None
    steps_end: int = 0


class SharedLogNode:
    """The log as one node sees it: a ``RaftClient`` to register listeners with."""

    def __init__(self, shared: SharedLog, node_id: int) -> None:
        self._shared = shared
        self._node_id = node_id
        self._listening: list[_Listening] = []

    @property
    def node_id(self) -> int:
        return self._node_id

    def register(self, listener: RaftListener) -> None:
        known = len(self._shared.leaders)
        self._listening.append(_Listening(listener, notified_count=max(known - 1, 0)))

    def append(
        self, epoch: int, records: Sequence[bytes], *, required_base_offset: int | None = None
    ) -> int:
        return self._shared.append(self._node_id, epoch, records, required_base_offset)

    @property
    def kraft_version(self) -> int:
        return self._shared.kraft_version

    def upgrade_kraft_version(
        self, epoch: int, version: int, *, required_base_offset: int, validate_only: bool
    ) -> int:
        return self._shared.upgrade_kraft_version(
            self._node_id, epoch, version, required_base_offset, is_dry=validate_only
        )

    def resign(self, epoch: int) -> None:
        shared = self._shared
        if shared.epoch == epoch and shared.leader_id == self._node_id:
            shared.depose()

    def begin_snapshot(self, end_offset: int) -> SnapshotWriter | None:
        return self._shared.begin_snapshot(end_offset)

    def shut_down(self) -> None:
        listening, self._listening = self._listening, []
        for one in listening:
            one.listener.begin_shutdown()
        self.resign(self._shared.epoch)

    def deliver_once(self) -> bool:
        """Deliver one batch or snapshot to each listener, or run a step of it; return whether more
        is pending."""
        return any([self._advance(one) for one in self._listening])  # noqa: C419 (each of them)

    def _advance(self, one: _Listening) -> bool:
        shared = self._shared
        if one.steps is None:
            self._deliver(one)
        elif next(one.steps, self) is self:
            one.steps = None
        if one.steps is not None:
            return True
        one.next_offset = one.steps_end
        self._notify_leader(one)
        return one.next_offset < shared.committed_end

    def _deliver(self, one: _Listening) -> None:
        shared = self._shared
        if (one.next_offset < shared.start_offset or one.next_offset == 0) and shared.snapshots:
            one.steps_end = shared.snapshots[-1].end_offset
            one.steps = one.listener.handle_load_snapshot(shared.open_snapshot())
        elif one.next_offset < shared.committed_end:
            batch = next(found for found in shared.batches if found.base_offset == one.next_offset)
            one.steps_end = batch.next_offset
            one.steps = one.listener.handle_commit([batch])

    def _notify_leader(self, one: _Listening) -> None:
        shared = self._shared
        for epoch, leader_id in shared.leaders[one.notified_count :]:
            if leader_id == self._node_id:
                if epoch < shared.epoch:
                    one.notified_count += 1  # it is no longer the leader
                    continue
                if one.next_offset <= shared.epoch_start(epoch):
                    return
            one.notified_count += 1
            one.listener.handle_leader_change(
                LeaderNotification(epoch, leader_id, shared.end_offset)
            )
