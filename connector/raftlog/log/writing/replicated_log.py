"""A log that is open for writing: append, sync, truncate, epochs, snapshots, retention, close.

Invariants:

1. ``log_start_offset <= high_watermark <= end_offset`` and
   ``recovery_point <= synced_end_offset <= end_offset``, checked after each change.
2. Nothing counts as durable before ``complete_sync``.
3. A full disk leaves the log as it was before the batch. After any other storage error the content
   of the files is unknown: the log fails and must be opened again.
4. One caller at a time; no locks, no clock, no threads.
5. The offset and epoch of every batch are checked before it is written. If another process built
   the batch, its header and CRC are checked too (``QuorumLog.append_as_follower``).

An embedded log is a ``SingleVoterLog``, the log of a quorum's replica a ``QuorumLog``.

Kafka: ``KafkaRaftLog``, ``UnifiedLog``.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, Self

from raftlog.errors import (
    AppendError,
    CorruptBatchError,
    CorruptFileError,
    DiskFailedError,
    DiskFullError,
    DivergedLogError,
    FutureEpochError,
    InvalidAppendError,
    LogAccessError,
    LogClosedError,
    LogError,
    LogGapError,
    NotALogError,
    NotLeaderError,
)
from raftlog.log.cleaning.compaction import Compaction, begin_compaction
from raftlog.log.format.directory import (
    RAFTLOG_PROPERTIES_NAME,
    CleanShutdown,
    Published,
)
from raftlog.log.format.epoch_cache import EpochCache
from raftlog.log.reading.transactions import (
    BatchMetadata,
    Marker,
    MetadataMarker,
    encoded_metadata,
    marker_value,
)
from raftlog.log.recovery.recover import RecoveredLog, RecoveryReport, recover
from raftlog.records.builder import build_batch
from raftlog.records.control import (
    ControlRecord,
    KRaftVoters,
    encode_control,
)
from raftlog.records.encoding import RecordToAppend
from raftlog.records.record import NewRecord, Record
from raftlog.storage.protocol import WritableStorage
from raftlog.types import Position, SnapshotId

from .active_segment import PendingSync, SyncState
from .key_offsets import UnchangedKeys
from .producer_state import ProducerStateManager
from .properties import LogConfig, LogProperties
from .remote_storage import RemoteStorage
from .segments import LogDirectory, LogSegments
from .snapshots import (
    SnapshotWriter,
    VotersAt,
    begin_snapshot,
    check_snapshot_id,
    clean,
    delete_before_snapshot,
    is_active_segment_expired,
    start_log_at,
)

if TYPE_CHECKING:
    from raftlog.log.reading.remote_tier import OpenStore
    from raftlog.log.remote.manifest import ManifestCache, Surroundings
    from raftlog.log.remote.tiering import RemoteLogRun

_DONE: Final = object()
ABORT_REASON: Final = "a later epoch began"


class _Change:
    """Context of a change of a log. It is a class because every append enters one, and a generator
    takes three times as long."""

    __slots__ = ("_log",)

    def __init__(self, log: ReplicatedLog) -> None:
        self._log = log

    def __enter__(self) -> None:
        log = self._log
        log._check_writable()
        if not log._is_changed or log._directory.may_be_clean:
            log._begin_change()

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None:
            self._log._check_invariants()
        else:
            self._log._handle_refusal(error)


class _Failing:
    """Context that fails a log on a storage error. A class for the same reason as ``_Change``."""

    __slots__ = ("_also_full", "_log")

    def __init__(self, log: ReplicatedLog, *, also_full: bool) -> None:
        self._log = log
        self._also_full = also_full

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None:
            self._log._handle_error(error, also_full=self._also_full)


class ReplicatedLog(ABC):
    """A log that ``create`` or ``open`` has opened for writing. Not shared between threads."""

    def __init__(self, directory: LogDirectory, config: LogConfig) -> None:
        self.config: Final = config
        self.path: Final = directory.path
        self.report = RecoveryReport(was_clean=True)
        self._directory = directory
        self._segments = LogSegments(directory, config)
        self._producer_state = ProducerStateManager(directory.path)
        self._sync = SyncState(0, Position(0))
        self.end_offset = 0
        """Offset of the next record (Kafka: log end offset). Only the log changes it."""
        self._is_roll_due = False
        self._is_changed = False
        self._closed: str | None = None
        self._remedy: str | None = None

    # --- open -------------------------------------------------------------------------------------

    def _recover(self) -> None:
        self._install(recover(self._directory.storage, self._directory.path, config=self.config))

    def _install(self, recovered: RecoveredLog) -> None:
        self._segments.install(recovered)
        self.report = recovered.report
        self._producer_state = recovered.producer_state
        self.end_offset = recovered.end_offset
        self._is_changed = not recovered.report.was_clean
        self._is_roll_due = False
        if not self.is_read_only:
            self._sync = SyncState(recovered.end_offset, self._segments.active.byte_count)
            self._check_invariants()
            self._publish()

    # --- state ------------------------------------------------------------------------------------

    @property
    def is_read_only(self) -> bool:
        """Whether recovery found damage below the durable offset, or the log is Kafka's."""
        return self.report.read_only is not None

    @property
    def is_closed(self) -> bool:
        """Whether ``close`` or an error has closed the log."""
        return self._closed is not None

    @property
    def log_start_offset(self) -> int:
        """First offset of the log; its first segment may begin earlier."""
        return self._segments.log_start_offset

    @property
    def synced_end_offset(self) -> int:
        """Offset below which everything is durable."""
        return self._sync.end_offset if self.report.read_only is None else self.end_offset

    @property
    @abstractmethod
    def high_watermark(self) -> int:
        """Offset below which everything is committed."""

    @property
    def last_stable_offset(self) -> int:
        """Offset below which every transaction is committed or aborted."""
        return self._producer_state.last_stable_offset(self.high_watermark)

    @property
    def epoch(self) -> int:
        """Latest epoch; 0 before the first."""
        entries = self._segments.epochs.entries
        return entries[-1].epoch if entries else 0

    @property
    def epochs(self) -> EpochCache:
        return self._segments.epochs

    @property
    def producer_state(self) -> ProducerStateManager:
        """Producer state at ``end_offset``. Copy it to check appends."""
        return self._producer_state

    @property
    def snapshots(self) -> tuple[SnapshotId, ...]:
        """Snapshots in ascending order, as of the last listing of the directory."""
        return self._segments.snapshots

    # --- append -----------------------------------------------------------------------------------

    def _append(self, batches: Sequence[tuple[bytes | memoryview, BatchMetadata]]) -> int:
        """Append contiguous batches; return the new end offset.

        The batches of one segment and epoch are written together, up to ``WRITE_BYTES_MAX``.
        """
        if not batches:
            return self.end_offset
        with self._changing():
            segments, start = self._segments, 0
            epochs = segments.epochs
            for index, (data, metadata) in enumerate(batches):
                is_roll_due = self._is_roll_due or segments.active.should_roll(
                    len(data), metadata.last_offset, metadata.max_timestamp_ms
                )
                is_new_epoch = segments.is_new_epoch(metadata.leader_epoch)
                if is_roll_due or is_new_epoch or segments.active.is_write_full(len(data)):
                    self._write(batches[start:index], epochs)
                    start = index
                    if is_roll_due:
                        self._roll()
                    epochs = segments.epochs
                    if is_new_epoch:
                        segments.begin_epoch(
                            metadata.leader_epoch, start_offset=metadata.base_offset
                        )
                segments.active.stage(data, metadata)
            self._write(batches[start:], epochs)
        return self.end_offset

    def _write(
        self, batches: Sequence[tuple[bytes | memoryview, BatchMetadata]], epochs: EpochCache
    ) -> None:
        """Write the staged batches. If the disk is full, write those that fit. If not even the
        first one fits, revert to ``epochs``, the epochs before it."""
        if not batches:
            return
        active = self._segments.active
        try:
            active.write_staged()
        except DiskFullError:
            if len(batches) == 1:
                self._segments.revert_epoch(epochs)
                raise
            for data, metadata in batches:
                active.stage(data, metadata)
                self._write([(data, metadata)], epochs)
                epochs = self._segments.epochs
            return
        for data, metadata in batches:
            self._note_written(data, metadata)

    def _note_written(self, data: bytes | memoryview, metadata: BatchMetadata) -> None:
        """Account for a batch that has been written."""
        aborted = self._producer_state.apply(metadata)
        if aborted:
            self._segments.active.append_aborted(aborted)
        self.end_offset = metadata.last_offset + 1

    def _roll(self) -> None:
        """Seal the active segment, publish its end, and create the next one."""
        self._is_roll_due = True  # until done: an error may leave a part of the next segment
        active = self._segments.active
        active.seal()
        self._sync.advance(self.end_offset, active.byte_count)
        self._publish()
        self._segments.roll(self.end_offset, self._producer_state)
        self._sync.roll()
        self._is_roll_due = False

    # --- sync -------------------------------------------------------------------------------------

    def start_sync(self) -> PendingSync:
        """Start a sync of everything appended so far.

        Call ``run`` of the result, then ``complete_sync`` or ``fail_sync``.
        """
        self._check_writable()
        return self._sync.start(self._segments.active, self.end_offset)

    def complete_sync(self, pending: PendingSync) -> None:
        """Complete a sync whose ``run`` returned: advance the synced end, and publish it.

        This has no effect if the log was truncated since the start. Raises ``LogClosedError`` if
        the log has failed or was closed meanwhile; the sync must then not be acknowledged.
        """
        pending.segment.end_sync()
        self._check_writable()
        if pending.state is not self._sync:
            return
        self._sync.advance(pending.end_offset, pending.position)
        self._check_invariants()
        try:
            self._publish()
        except LogError as error:
            self._handle_error(error, also_full=True)  # others truncate what is not published
            raise
        self._producer_state.drop_decided(self.high_watermark)

    def fail_sync(self, pending: PendingSync, error: LogError) -> None:
        """Fail the log, because ``run`` of a sync raised ``error``."""
        pending.segment.end_sync()
        self._fail(error)

    def flush(self) -> int:
        """Sync what was appended; return the synced end offset. Raises ``DiskFailedError``."""
        pending = self.start_sync()
        try:
            pending.run()
        except LogError as error:
            self.fail_sync(pending, error)
            raise
        self.complete_sync(pending)
        return self.synced_end_offset

    def _publish(
        self, *, next_epoch: int | None = None, next_start_offset: int | None = None
    ) -> None:
        """Publish the synced end to other processes.

        ``next_epoch`` and ``next_start_offset`` are an epoch and a log start that are about to be
        written. They are published first, so that the next writer detects a crash in between.
        """
        self._directory.publish(
            Published(
                boot_id=self._directory.boot_id,
                end_offset=self._sync.end_offset,
                segment_base_offset=self._segments.active.base_offset,
                file_position=self._sync.position,
                epoch=self.epoch if next_epoch is None else next_epoch,
                log_start_offset=(
                    self.log_start_offset if next_start_offset is None else next_start_offset
                ),
            )
        )

    # --- close ------------------------------------------------------------------------------------

    def close(self) -> None:
        """Close the log cleanly. May be called twice.

        The order of the durable steps: seal the active segment; publish the end; write the producer
        snapshot, the recovery point and ``.kafka_cleanshutdown``. If another process has changed
        the log since this one's last change, the files are only closed.
        """
        if self._closed is not None:
            return
        try:
            if not self.is_read_only and self._is_changed and self._is_current():
                with self._failing():
                    self._close_cleanly()
        finally:
            self._release("close() was called")

    def _close_cleanly(self) -> None:
        active = self._segments.active
        self._directory.remove_clean_shutdown()
        active.seal()
        self._sync.advance(self.end_offset, active.byte_count)
        self._publish()
        self._directory.write_producer_snapshot(self._producer_state)
        self._segments.write_recovery_point(self.end_offset)
        self._segments.delete_stray_producer_snapshots(self.end_offset)
        self._directory.write_clean_shutdown(
            CleanShutdown(
                end_offset=self.end_offset,
                segment_base_offset=active.base_offset,
                byte_count=active.byte_count,
            )
        )

    def _is_current(self) -> bool:
        """Return whether no other process has changed the log since this one's last change."""
        active = self._segments.active
        return active.file.is_in_place() and active.file.byte_count() == active.byte_count

    def _release(self, reason: str) -> None:
        self._closed = reason
        self._segments.close()
        self._directory.close()

    # --- checks and errors ------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self._closed is not None:
            raise LogClosedError(path=self.path, reason=self._closed, remedy=self._remedy)

    def _check_writable(self) -> None:
        if self._closed is not None:
            self._check_open()
        if self.report.read_only is not None:
            raise copy.copy(self.report.read_only)

    def _changing(self) -> _Change:
        """Wrap a change of the log: check that it is writable, delete the clean shutdown file."""
        return _Change(self)

    def _failing(self, *, also_full: bool = False) -> _Failing:
        """Fail the log on a storage error, except for a full disk, which changes nothing.

        ``also_full``: fail on a full disk too. An ``AppendError``, which rejects a call, does not
        fail the log.
        """
        return _Failing(self, also_full=also_full)

    def _begin_change(self) -> None:
        """Delete the clean shutdown file, before the first change since it was written."""
        try:
            self._directory.remove_clean_shutdown()
        except LogError as error:
            self._handle_error(error, also_full=False)
            raise
        self._is_changed = True

    def _handle_refusal(self, error: BaseException) -> None:
        """Check the log after a change that was refused; fail it after any other error."""
        if not isinstance(error, AppendError | DiskFullError):
            self._handle_error(error, also_full=False)
        elif self._closed is None:
            self._check_invariants()

    def _handle_error(self, error: BaseException | None, *, also_full: bool) -> None:
        is_failure = isinstance(error, LogError) and not isinstance(error, AppendError)
        if is_failure and (also_full or not isinstance(error, DiskFullError)):
            assert isinstance(error, LogError)
            self._fail(error)

    def _fail(self, error: LogError) -> None:
        if self._closed is None:
            cause, self._remedy = _cause_and_remedy(error)
            # Clients receive this message: name the file without the machine's directories.
            path = getattr(error, "path", None)
            if isinstance(path, str):
                shown: dict[str, Any] = {"path": self._directory.storage.split(path)[1]}
                error = replace(error, **shown)
            self._release(f"{cause}: {error.message()}")

    def _check_invariants(self) -> None:
        """Assert what holds after every change of the log, or close it; not of a read-only log."""
        if self.report.read_only is not None:
            return
        segments, end, synced = self._segments, self.end_offset, self._sync.end_offset
        try:
            start, high_watermark = segments.log_start_offset, self.high_watermark
            assert start <= high_watermark <= end, (start, high_watermark, end)
            assert synced <= end, (synced, end)
            assert segments.recovery_point <= synced, (segments.recovery_point, synced)
            assert self._producer_state.end_offset == end, (self._producer_state.end_offset, end)
            segments.check_invariants(end)
            self._sync.check_invariants(segments.active, end)
        except AssertionError:
            self._release("an invariant of the log is violated")
            raise

    # --- create and open --------------------------------------------------------------------------

    @classmethod
    def create(
        cls,
        storage: WritableStorage,
        directory: str,
        *,
        config: LogConfig,
        topic_id: str,
        now_ms: int,
    ) -> Self:
        """Create a log in a directory, which is created if missing. Durable on return.

        Files left by an earlier ``create`` that was interrupted are replaced. Raises
        ``FileExistsLogError`` if the directory has a raftlog log, and ``NotALogError`` if it has a
        Kafka log.
        """
        storage.make_directory(directory)
        storage.sync_directory(storage.split(directory)[0])  # an earlier create may have died here
        files = LogDirectory(storage, directory)
        files.check_is_free()
        properties = LogProperties(topic_id=topic_id, config=config)
        log = cls(files, config)
        files.write_identity(properties, EpochCache())
        log._segments.create_first_segment()
        log._begin(now_ms)
        log.flush()
        files.sync()
        return log

    @classmethod
    def open(
        cls,
        storage: WritableStorage,
        directory: str,
        *,
        config: LogConfig | None = None,
        now_ms: int,
    ) -> Self:
        """Open a log, with recovery if needed; ``report`` is the recovery's result.

        If ``config`` is None, that of ``raftlog.properties`` is used. Raises ``NotALogError`` for a
        directory without that file, ``CorruptFileError``, and what recovery raises.
        """
        files = LogDirectory(storage, directory)
        if config is None:
            properties = files.read_properties()
            if properties is None:
                raise NotALogError(
                    path=directory,
                    expected="a log of raftlog",
                    reason=f"it has no {RAFTLOG_PROPERTIES_NAME}",
                )
            config = properties.config
        log = cls(files, config)
        log._recover()
        log._resume(now_ms)
        return log

    def _begin(self, now_ms: int) -> None:
        """Append the first batches of a new log: none, unless a subclass does."""
        return

    def _resume(self, now_ms: int) -> None:
        """Complete, after recovery, what an earlier process left unfinished: nothing here."""
        return

    # --- append -----------------------------------------------------------------------------------

    def append_as_leader(self, batches: Sequence[tuple[bytes, BatchMetadata]]) -> int:
        """Append batches that this process has built; return the new end offset.

        The batches' bytes are not parsed again: their metadata is that of ``encoded_metadata``.
        Nothing is durable yet. All batches are checked before the first one is written. Raises
        ``NotLeaderError`` and ``FutureEpochError`` if their epoch is not the log's,
        ``InvalidAppendError`` for wrong offsets, ``LogReadOnlyError`` and ``LogClosedError``. After
        a ``DiskFullError``, ``end_offset`` shows which batches were appended.
        """
        epoch, expected = self.epoch, self.end_offset
        for _, metadata in batches:
            if metadata.leader_epoch < epoch:
                raise NotLeaderError(epoch=metadata.leader_epoch, current_epoch=epoch)
            if metadata.leader_epoch > epoch:
                raise FutureEpochError(epoch=metadata.leader_epoch, current_epoch=epoch)
            if metadata.base_offset != expected:
                raise InvalidAppendError(
                    reason=f"its base offset is {metadata.base_offset}, expected {expected}"
                )
            expected = metadata.last_offset + 1
        return self._append(batches)

    def _begin_epoch(self, epoch: int, head: Sequence[ControlRecord], now_ms: int) -> None:
        """Begin an epoch with its first batch. If the disk is full, the log fails, and reopening it
        drops the epoch.

        The epoch is published first. If this process dies before the first batch is written,
        ``leader-epoch-checkpoint`` has an epoch without records. The next writer detects this from
        ``published`` and recovers the log.
        """
        with self._changing(), self._failing(also_full=True):
            if self.end_offset:
                self._publish(next_epoch=epoch)
            self._segments.begin_epoch(epoch, start_offset=self.end_offset)
            self.append_control(head, now_ms=now_ms)
            if self._producer_state.open_transaction is not None:
                self._append_abort(now_ms)

    def _append_abort(self, now_ms: int) -> None:
        marker = MetadataMarker(self.end_offset, Marker.ABORT)
        value = marker_value(Marker.ABORT, ABORT_REASON)
        self._append_batch([value], now_ms, markers=(marker,))

    def append_control(self, controls: Sequence[ControlRecord], *, now_ms: int) -> None:
        """Append control records in a batch of their own, in the current epoch."""
        records = [NewRecord(*encode_control(control)) for control in controls]
        self._append_batch(records, now_ms, control=controls)

    def _append_batch(
        self,
        records: Sequence[RecordToAppend],
        now_ms: int,
        *,
        markers: Sequence[MetadataMarker] = (),
        control: Sequence[ControlRecord] = (),
    ) -> None:
        batch = build_batch(
            records,
            base_offset=self.end_offset,
            leader_epoch=self.epoch,
            base_timestamp_ms=now_ms,
            is_control=bool(control),
        )
        metadata = encoded_metadata(batch, self.config.values, markers=markers, control=control)
        self.append_as_leader([(batch.data, metadata)])

    # --- look-ups ---------------------------------------------------------------------------------

    def check_unchanged(self, unchanged: UnchangedKeys, record_count: int) -> None:
        """Check the condition of an append at the log's end, as ``LogSegments`` does."""
        self._segments.check_unchanged(unchanged, record_count, end_offset=self.end_offset)

    def base_offset_at(self, offset: int) -> int:
        """Return the base offset of the batch that contains ``offset``."""
        return self._segments.boundary_at(offset)

    def record_for_timestamp(
        self, timestamp_ms: int, *, start_offset: int = 0, end_offset: int
    ) -> Record | None:
        """Return the first record from ``start_offset`` on whose timestamp is >= ``timestamp_ms``,
        or None. Only records below ``end_offset``, a batch boundary, are searched."""
        return self._segments.record_for_timestamp(
            timestamp_ms,
            start_offset=max(start_offset, self.log_start_offset),
            end_offset=end_offset,
        )

    def max_timestamp_ms(self) -> int:
        """Return the greatest timestamp of any batch; -1 if no batch has one."""
        return self._segments.max_timestamp_ms()

    # --- snapshots and retention ------------------------------------------------------------------

    def begin_snapshot(
        self,
        snapshot_id: SnapshotId,
        *,
        now_ms: int,
        last_contained_log_timestamp_ms: int | None = None,
        kraft_version: int | None = None,
        voters: KRaftVoters | None = None,
    ) -> SnapshotWriter | None:
        """Create the writer of a snapshot that ends at ``snapshot_id.end_offset``.

        Returns None if the snapshot exists or the log starts after it. If
        ``last_contained_log_timestamp_ms`` is None, the greatest timestamp of the contained records
        is used. Raises ``SnapshotRefusedError`` for an end offset that is not committed, is inside
        a batch or has another epoch, and ``LogLockedError`` while another snapshot is being
        written.
        """
        self._check_writable()
        if not check_snapshot_id(
            self._segments,
            snapshot_id,
            end_offset=self.end_offset,
            high_watermark=self.high_watermark,
        ):
            return None
        return begin_snapshot(
            self._segments,
            snapshot_id,
            self._producer_state_at(snapshot_id.end_offset),
            now_ms=now_ms,
            last_contained_log_timestamp_ms=last_contained_log_timestamp_ms,
            kraft_version=kraft_version,
            voters=voters,
        )

    def snapshot_id_at(self, end_offset: int) -> SnapshotId:
        """Return the id of a snapshot that ends at ``end_offset``."""
        return SnapshotId(epoch=self.epochs.epoch_at(end_offset - 1) or 0, end_offset=end_offset)

    def delete_before(self, snapshot_id: SnapshotId) -> bool:
        """Start the log at the end of a snapshot and delete older snapshots and segments.

        Returns whether anything changed (Kafka: ``KafkaRaftLog.deleteBeforeSnapshot``).
        """
        with self._changing():
            if snapshot_id.end_offset <= self.high_watermark:
                self.remote.delete_before(snapshot_id.end_offset)
            return delete_before_snapshot(
                self._segments,
                snapshot_id,
                high_watermark=self.high_watermark,
                publish_start=self._publish_start,
            )

    def clean(self, *, now_ms: int, voters_at: VotersAt | None = None) -> bool:
        """Delete what exceeds retention; return whether anything was deleted.

        If all records of the active segment have expired, it is rolled first. ``voters_at``: see
        ``snapshots.clean``. Raises ``LogLockedError`` while a snapshot is being written.
        """
        with self._changing():
            is_committed = self.end_offset == self.high_watermark
            if is_committed and is_active_segment_expired(self._segments, now_ms):
                self._roll()
            return clean(
                self._segments,
                high_watermark=self.high_watermark,
                now_ms=now_ms,
                publish_start=self._publish_start,
                producer_state_at=self._producer_state_at,
                voters_at=voters_at,
            )

    def delete_records(self, offset: int, *, now_ms: int, voters_at: VotersAt | None = None) -> int:
        """Start the log at the batch that contains ``offset``; return the start of that batch.

        If an empty batch contains ``offset``, the log starts after it: a compaction has joined the
        offsets of several batches, so on other replicas a batch may begin at ``offset``.

        ``offset`` must not exceed the high watermark. A log that starts after ``offset`` is
        unchanged. If a crash interrupted an earlier deletion after it wrote its snapshot, that
        deletion is completed first. Nothing is deleted if ``voters_at`` does not have the voters.
        Raises what ``clean`` raises.
        """
        with self._changing():
            assert offset <= self.high_watermark, "uncommitted records are not deleted"
            self._segments.list_snapshots()
            for snapshot_id in self._segments.snapshots[-1:]:
                delete_before_snapshot(
                    self._segments,
                    snapshot_id,
                    high_watermark=self.high_watermark,
                    publish_start=self._publish_start,
                )
            if offset <= self.log_start_offset:
                return offset if self.remote.delete_before(offset) else self.log_start_offset
            start = offset
            if offset < self.end_offset:
                start = self._deletion_boundary(offset)
            if start > self.log_start_offset:
                self.remote.delete_before(start)
                start_log_at(
                    self._segments,
                    start,
                    high_watermark=self.high_watermark,
                    now_ms=now_ms,
                    publish_start=self._publish_start,
                    producer_state_at=self._producer_state_at,
                    voters_at=voters_at,
                )
            return start

    def _deletion_boundary(self, offset: int) -> int:
        """Return the offset at which the log starts if records below ``offset`` are deleted."""
        start = self._segments.boundary_at(offset)
        if start < offset:
            batch = next(self._segments.batches(start, self.end_offset))
            if not batch.record_count and batch.next_offset <= self.high_watermark:
                return batch.next_offset
        return start

    def _producer_state_at(self, end_offset: int) -> ProducerStateManager:
        """Return the producer state at a batch boundary. If it is below the log's end, load the
        preceding producer snapshot and replay the batches after it."""
        if end_offset == self.end_offset:
            return self._producer_state
        return self._segments.producer_state_at(end_offset)

    # --- remote storage ---------------------------------------------------------------------------

    @cached_property
    def remote(self) -> RemoteStorage:
        """The remote segments of the log."""
        return RemoteStorage(self._segments)

    def begin_remote_run(
        self,
        open_store: OpenStore,
        context: Surroundings,
        *,
        cache: ManifestCache,
        node_id: int | None = None,
        is_leader: bool = True,
    ) -> RemoteLogRun | None:
        """Return a run of remote storage, which the caller must run, complete and close.

        Returns None without remote storage, or if a run is in progress. ``cache`` is kept between
        runs. Raises ``CorruptFileError`` for damaged properties; nothing is changed then. A
        follower's run only reads the manifest.
        """
        self._check_writable()
        return self.remote.begin_run(
            open_store,
            context,
            log_end_offset=self.end_offset,
            last_stable_offset=self.last_stable_offset,
            cache=cache,
            node_id=node_id,
            is_leader=is_leader,
        )

    def complete_remote_run(self, run: RemoteLogRun) -> bool:
        """Write what a run has found to the list of remote segments; return whether it changed.

        The local segments are deleted by ``clean``.
        """
        if run.chain is None or not self.config.remote_storage_enable:
            return False
        with self._changing():
            return self.remote.complete_run(run)

    # --- compaction -------------------------------------------------------------------------------

    def begin_compaction(self, *, now_ms: int, keeps_tombstones: bool = False) -> Compaction | None:
        """Return the compaction that is due, or None. The caller must run, complete and close it.

        ``keeps_tombstones``: it removes no tombstones, because another replica still reads them.
        """
        self._check_writable()
        if not self.config.cleanup_policy.compacts:
            return None
        return begin_compaction(
            self._segments,
            self.last_stable_offset,
            now_ms=now_ms,
            keeps_tombstones=keeps_tombstones,
        )

    def complete_compaction(self, compaction: Compaction) -> bool:
        """Replace all segments in one call, as by ``replace_compacted``; return if any changed."""
        return len(list(self.replace_compacted(compaction))) > 0

    def replace_compacted(self, compaction: Compaction) -> Iterator[None]:
        """Replace segments by what ``compaction.run`` wrote, one in each step; durable at the end.

        Other calls may run between two steps. If the disk becomes full, the remaining segments
        are not replaced. Each completed step is consistent by itself, and a segment without indexes
        is searched from its first batch.
        """
        steps, is_left = compaction.replace_segments(self._segments), True
        while is_left:
            with self._changing():
                is_left = next(steps, _DONE) is not _DONE
            if is_left:
                yield

    def _publish_start(self, offset: int) -> None:
        """Publish the next log start before it is written, so that a crash is detected."""
        self._publish(next_start_offset=offset)


def _cause_and_remedy(error: LogError) -> tuple[str, str]:
    """Return why an error closes a log, and what to do before opening it again."""
    match error:
        case DiskFailedError():
            return "its disk failed", "check the disk, then open the log again"
        case DiskFullError():
            return "the disk was full during a change", "free disk space, then open the log again"
        case LogAccessError():
            return "the file system denied access", "fix the cause, then open the log again"
        case CorruptBatchError() | CorruptFileError() | LogGapError() | DivergedLogError():
            return "its files are damaged", "run `raftlog check`, then open the log again"
        case _:
            return (
                "its files were changed from outside",
                "find what changed them, then open it again",
            )
