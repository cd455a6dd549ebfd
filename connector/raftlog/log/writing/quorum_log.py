"""A copy of a quorum's log: what a replica asks of it, and what it does to it.

Rules of this file:

1. What is durable is told by syncs; what is committed, by the replica. Nothing is published: no
   other process writes here, and readers ask the node.
2. The log begins anew behind a snapshot that is further than it, at any opening too (Kafka:
   ``truncateToLatestSnapshot``): so installing one is giving it its name, and opening the log.
3. Damage below the durable mark makes the log read-only. Then it is for the replica to say whether
   others have what is gone: ``open_damaged`` cuts it, and the copy is withdrawn until it has caught
   up.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Self

from raftlog.errors import (
    CorruptBatchError,
    CorruptSnapshotError,
    DiskFullError,
    LogReadOnlyError,
)
from raftlog.log.files import LogFiles
from raftlog.log.names import RAFTLOG_PROPERTIES_NAME, checkpoint_name
from raftlog.log.small_files import QuorumState
from raftlog.log.snapshot import SnapshotReader
from raftlog.records.batch import RecordBatch
from raftlog.records.control import ControlRecord, KRaftVoters
from raftlog.storage.protocol import WritableStorage
from raftlog.types import SnapshotId

from .batch_metadata import BatchMetadata, batch_metadata, control_of
from .log_directory import LogDirectory
from .properties import LogConfig
from .repair import truncate_log_at
from .replicated_log import ReplicatedLog
from .snapshot_receiver import SnapshotReceiver
from .tail_cache import TailCache


class QuorumLog(ReplicatedLog):
    """A partition's directory on one node of a quorum. Not shared between threads."""

    def __init__(self, directory: LogDirectory, config: LogConfig, *, is_single: bool) -> None:
        super().__init__(directory, config, is_single=is_single)
        self._receiver: SnapshotReceiver | None = None
        self._tail_cache = TailCache()
        self._control: list[tuple[int, ControlRecord]] = []

    @classmethod
    def open_or_create(
        cls,
        storage: WritableStorage,
        directory: str,
        *,
        config: LogConfig,
        topic_id: str,
        now_ms: int,
    ) -> Self:
        """Open the copy in a directory; an empty one is made if there is none."""
        if LogDirectory(storage, directory).has(RAFTLOG_PROPERTIES_NAME):
            log = cls.open(storage, directory, now_ms=now_ms, is_single=False)
        else:
            log = cls.create(
                storage,
                directory,
                config=config,
                topic_id=topic_id,
                now_ms=now_ms,
                epoch=None,
                is_single=False,
            )
        log._truncate_to_latest_snapshot()
        return log

    @classmethod
    def open_damaged(
        cls, storage: WritableStorage, directory: str, *, end_offset: int, reason: str, now_ms: int
    ) -> Self:
        """Cut a copy where it is damaged, saving what goes, and open it.

        First it is written down that this replica has lost what it vouched for: it must not vote
        until it has caught up. Raises what ``truncate_log_at`` raises.
        """
        files = LogDirectory(storage, directory)
        files.leave_election(f"the log was damaged and cut at offset {end_offset}: {reason}\n")
        log = cls.open(storage, directory, now_ms=now_ms, is_single=False)
        if end_offset <= log.log_start_offset > 0:  # nothing is left: begin behind a snapshot
            if not log.snapshots or log.snapshots[-1].end_offset < log.log_start_offset:
                raise log.report.read_only or LogReadOnlyError(
                    path=log.path,
                    offset=end_offset,
                    reason="it is damaged where it begins, and no snapshot stands in front of it",
                    remedy="give this node an empty directory: the others have what is gone",
                )
            log._truncate_fully_and_start_at(log.snapshots[-1], is_damaged=True)
            return log
        log.close()
        properties = files.read_properties()
        assert properties is not None, "the log is ours"
        truncate_log_at(storage, directory, offset=end_offset, config=properties.config)
        log = cls.open(storage, directory, now_ms=now_ms, is_single=False)
        log._truncate_to_latest_snapshot()
        return log

    # --- what a replica asks ----------------------------------------------------------------------

    @property
    def last_fetched_epoch(self) -> int:
        """The epoch of the last record, or of the snapshot that the log begins behind; else 0."""
        return self._lineage.last_fetched_epoch

    def snapshot_byte_count(self, snapshot_id: SnapshotId) -> int | None:
        """How long a snapshot's file is; None if it is not among ``snapshots``."""
        if snapshot_id not in self.snapshots:
            return None
        path = self._directory.file(checkpoint_name(snapshot_id))
        with self._directory.storage.open_file(path) as file:
            return file.byte_count()

    def read_snapshot_bytes(self, snapshot_id: SnapshotId, position: int, byte_count: int) -> bytes:
        """Bytes of a snapshot's file."""
        path = self._directory.file(checkpoint_name(snapshot_id))
        with self._directory.storage.open_file(path) as file:
            return file.read_at(position, byte_count)

    def read_bytes(self, offset: int, byte_count_max: int) -> bytes:
        """Whole batches from a batch boundary on, the last one perhaps cut off: at least one, and
        no more than ``byte_count_max`` if that is less. Nothing at the end of the log."""
        if offset >= self._end_offset:
            return b""
        return self._tail_cache.read(offset, byte_count_max) or self.read_stored_bytes(
            offset, byte_count_max
        )

    def read_stored_bytes(self, offset: int, byte_count_max: int) -> bytes:
        """The same, from the files."""
        return self._segments.read_bytes(offset, byte_count_max)

    def open_snapshot(self, snapshot_id: SnapshotId) -> SnapshotReader:
        """One of ``snapshots``, to be read."""
        return SnapshotReader(
            LogFiles.of_directory(self._directory.storage, self.path), snapshot_id
        )

    @property
    def is_out_of_election(self) -> bool:
        """Whether this copy was damaged and has not caught up since."""
        return self._directory.is_out_of_election()

    def out_of_election_reason(self) -> str | None:
        """Return why this copy does not vote; None if it does."""
        return self._directory.read_out_of_election_reason()

    def read_election_state(self) -> QuorumState | None:
        """What the replica wrote down of elections; None before the first."""
        return self._directory.read_quorum_state()

    def snapshot_voters(self) -> tuple[int, KRaftVoters | None, int | None] | None:
        """What the newest snapshot says of voters and kraft.version, and its last offset."""
        if not self.snapshots:
            return None
        newest = self.snapshots[-1]
        reader = self.open_snapshot(newest)
        return newest.end_offset - 1, reader.voters, reader.kraft_version or None

    def control_records(self) -> Iterator[tuple[int, ControlRecord]]:
        """The control records behind the newest snapshot with their offsets, in order."""
        for batch in self._batches_after_snapshot():
            if batch.is_control:
                yield from control_of(batch_metadata(batch, self.config.values))

    def valid_end_offset(self) -> int:
        """Where damage begins in what ``control_records`` reads, or the end: recovery does not look
        at what was durable long before."""
        offset = self._offset_after_snapshot
        try:
            for batch in self._batches_after_snapshot():
                offset = batch.next_offset
        except CorruptBatchError:
            pass
        return offset

    @property
    def _offset_after_snapshot(self) -> int:
        newest = self.snapshots[-1].end_offset if self.snapshots else 0
        return max(self.log_start_offset, newest)

    def _batches_after_snapshot(self) -> Iterator[RecordBatch]:
        start = self._offset_after_snapshot
        if start < self._end_offset:
            yield from self._segments.batches(start, self._end_offset)

    def drain_control_records(self) -> list[tuple[int, ControlRecord]]:
        """The control records that were appended since the last time, with their offsets."""
        taken, self._control = self._control, []
        return taken

    # --- what it does -----------------------------------------------------------------------------

    def write_election_state(self, state: QuorumState) -> None:
        """Write down of elections; durable on return. A full disk changes nothing."""
        with self._failing():
            self._directory.write_quorum_state(state)

    def rejoin_election(self) -> None:
        """Write down that the copy has caught up; durable on return."""
        with self._failing(also_full=True):
            self._directory.rejoin_election()

    def begin_epoch(self, epoch: int, head: Sequence[ControlRecord], *, now_ms: int) -> None:
        """Lead an epoch: its first batch is ``head``. Only the epoch itself is durable yet.

        A metadata transaction that an earlier epoch left open is aborted right behind. Raises
        ``DiskFullError``: then try again, with the same arguments, before anything else is done.
        """
        assert epoch >= self.epoch, "epochs never fall"
        with self._changing():
            before = self.epochs
            if epoch > self.epoch:
                try:
                    self._segments.begin_epoch(epoch, self._end_offset)
                    self._append_control(head, now_ms)
                except DiskFullError:
                    self._segments.revert_epoch(before)
                    raise
            if self._producer_state.open_transaction is not None:
                self._append_abort(now_ms)

    def append_control(self, controls: Sequence[ControlRecord], *, now_ms: int) -> None:
        """Append control records in a batch of their own, in the epoch that is led."""
        self._append_control(controls, now_ms)

    @property
    def is_receiving_snapshot(self) -> bool:
        """Whether bytes of a snapshot are here that is not installed yet."""
        return self._receiver is not None

    def store_snapshot_bytes(self, snapshot_id: SnapshotId, position: int, data: bytes) -> None:
        """Keep bytes of a snapshot that is fetched; position 0 begins it anew.

        Raises ``DiskFullError``: then all of them are dropped, and it is to be begun anew; and
        ``LogLockedError`` while this node writes a snapshot of its own: then try again later.
        """
        self._check_writable()
        with self._failing():
            try:
                if position == 0:
                    self.drop_received_snapshot()
                    self._receiver = SnapshotReceiver(self._directory, snapshot_id)
                assert self._receiver is not None, "it was begun"
                self._receiver.write(position, data)
            except DiskFullError:
                self.drop_received_snapshot()
                raise

    def drop_received_snapshot(self) -> None:
        """Delete the bytes of a snapshot that is fetched no more; its lock is free again."""
        receiver, self._receiver = self._receiver, None
        if receiver is not None:
            with self._failing(also_full=True):
                receiver.drop()

    def install_snapshot(self, snapshot_id: SnapshotId) -> SnapshotReceiver:
        """Keep the snapshot whose bytes are all here, and begin the log behind it, durably.

        Raises ``CorruptSnapshotError``: then it is dropped, and the log is as it was.
        """
        self._check_writable()
        receiver, self._receiver = self._receiver, None
        assert receiver is not None, "its bytes were stored"
        assert receiver.snapshot_id == snapshot_id, "one is fetched at a time"
        with self._failing(also_full=True):
            try:
                receiver.keep()
            except CorruptSnapshotError as error:
                damage = error
            else:
                self._segments.list_snapshots()
                self._truncate_to_latest_snapshot()
                self._segments.delete_snapshots_before(snapshot_id)
                return receiver
        raise damage

    def _truncate_to_latest_snapshot(self) -> None:
        """Begin anew if a snapshot is further than the log; not if more was known to be durable."""
        if not self.snapshots:
            return
        newest = self.snapshots[-1]
        own = SnapshotId(epoch=self.last_fetched_epoch, end_offset=self._end_offset)
        if newest <= own or self._has_lost_records_after(newest):
            return
        self._truncate_fully_and_start_at(newest)

    def _has_lost_records_after(self, snapshot_id: SnapshotId) -> bool:
        """Whether something that was durable is gone, and is not in the snapshot either."""
        if not self.is_read_only:
            return False
        published = self._directory.published()
        synced = 0 if published is None else published.end_offset
        return max(self._segments.recovery_point, synced) > snapshot_id.end_offset

    def _truncate_fully_and_start_at(
        self, snapshot_id: SnapshotId, *, is_damaged: bool = False
    ) -> None:
        with self._failing(also_full=True):
            self._directory.remove_clean_shutdown()
            self._directory.unpublish()
            deleted = self._segments.truncate_fully_and_start_at(snapshot_id, is_damaged=is_damaged)
            self._recover()
            self.report = replace(self.report, deleted_backups=deleted)
            self._high_watermark = max(self._high_watermark, snapshot_id.end_offset)

    def _append_one(self, data: bytes | memoryview, metadata: BatchMetadata) -> None:
        super()._append_one(data, metadata)
        self._tail_cache.add(metadata.base_offset, bytes(data))
        self._control += control_of(metadata)

    def _recover(self) -> None:
        self._tail_cache.clear()
        super()._recover()

    def _release(self, reason: str) -> None:
        if self._receiver is not None:
            self._receiver.abandon()
        super()._release(reason)
