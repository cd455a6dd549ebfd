"""Writing and deleting snapshots of a log; and retention, which deletes the records below them.

A log with a state machine (``kraft``) starts only at the end of a snapshot of its state. Any other
log has retention by age and size, in whole segments. The order of retention's durable steps:

    1. write the checkpoint of the producer state at the new start (it has no records),
       so that a replica that starts there has the producers and commits
    2. publish the new log start           other processes detect a crash from here on
    3. write log-start-offset-checkpoint   recovery completes the deletion from here on
    4. delete segments, oldest first, and the snapshots before this one

Kafka: ``KafkaRaftLog.createNewSnapshot``, ``deleteBeforeSnapshot``, ``maybeClean``;
``UnifiedLog.deleteOldSegments``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, TypeAlias

from raftlog.errors import (
    CorruptFileError,
    CorruptSnapshotError,
    LogError,
    LogLockedError,
    LogNotFoundError,
    SnapshotRefusedError,
)
from raftlog.limits import BATCH_BYTES_MAX, INT64_MAX
from raftlog.log.format.directory import CHECKPOINT_SUFFIX, checkpoint_name
from raftlog.log.reading.transactions import ValueKind
from raftlog.log.segment import SegmentMetadata, read_snapshot_head
from raftlog.records.builder import BatchBuilder
from raftlog.records.compression import Compression
from raftlog.records.control import (
    ControlRecord,
    KRaftVersion,
    KRaftVoters,
    SnapshotFooter,
    SnapshotHeader,
    encode_control,
)
from raftlog.records.encoding import RecordToAppend
from raftlog.records.record import NewRecord
from raftlog.storage.protocol import Closeable, WritableFile
from raftlog.types import SnapshotId

from .producer_state import ProducerStateManager
from .segments import LogDirectory, LogSegments

# --- Write the bytes of one checkpoint, which gets its name when it is complete and synced --------
#     create   <end offset>-<epoch>-0.checkpoint.part     ignored by every reader
#     write, sync, set read-only
#     rename   <end offset>-<epoch>.checkpoint
#     sync the directory                                  the snapshot is durable
#
# A directory has at most one snapshot writer at a time, be it a state machine, retention or a fetch
# from the leader, because the writer holds ``.snapshot.lock``. Only the holder of the lock deletes
# ``.part`` files, because then no live writer has them open.
#
# Kafka: ``FileRawSnapshotWriter``, used by ``RecordsSnapshotWriter`` and by
# ``KafkaRaftClient.handleFetchSnapshotResponse``.

PART_SUFFIX: Final = CHECKPOINT_SUFFIX + ".part"
SNAPSHOT_LOCK_NAME: Final = ".snapshot.lock"


class RawSnapshotWriter(Closeable):
    """One checkpoint file that is being written. Not shared between threads, except for ``sync``.

    Call ``freeze`` at the end, or ``close``, which deletes the file. Raises ``LogLockedError`` if
    another snapshot is being written in this directory.
    """

    def __init__(self, directory: LogDirectory, snapshot_id: SnapshotId) -> None:
        self.snapshot_id: Final = snapshot_id
        self.path: Final = directory.file(f"{snapshot_id}-0{PART_SUFFIX}")
        self.byte_count = 0
        self._directory = directory
        self._file: WritableFile | None = None
        self._synced_byte_count = 0
        lock = directory.storage.try_lock(directory.file(SNAPSHOT_LOCK_NAME))
        if lock is None:
            raise LogLockedError(path=directory.file(SNAPSHOT_LOCK_NAME), waited_ms=0)
        self._lock = lock
        try:
            directory.unlink_suffix(PART_SUFFIX)
            self._file = directory.storage.create_file(self.path)
        except LogError:
            lock.release()
            raise

    def append(self, data: bytes) -> None:
        """Append bytes. Raises ``DiskFullError`` and ``DiskFailedError``."""
        self._open_file().write_at(self.byte_count, data)
        self.byte_count += len(data)

    def sync(self) -> None:
        """Sync the file, in any thread. No other method may be called meanwhile.

        Raises ``DiskFailedError``.
        """
        self._open_file().sync()
        self._synced_byte_count = self.byte_count

    def freeze(self) -> None:
        """Sync the file unless it is synced, rename it durably, and release the lock."""
        if self._synced_byte_count != self.byte_count:
            self.sync()
        self._open_file().close()
        self._file = None
        storage = self._directory.storage
        storage.set_read_only(self.path)
        storage.rename(self.path, self._directory.file(checkpoint_name(self.snapshot_id)))
        self._directory.sync()
        self._lock.release()

    def close(self) -> None:
        """Delete the file unless it is frozen, and release the lock. May be called twice."""
        try:
            if self._file is not None:
                self._file.close()
                self._file = None
                with contextlib.suppress(LogNotFoundError):
                    self._directory.storage.unlink(self.path)
        finally:
            self._lock.release()

    def abandon(self) -> None:
        """Close the file after a storage failure without deleting it; the next writer does that."""
        if self._file is not None:
            self._file.close()
            self._file = None
        self._lock.release()

    def _open_file(self) -> WritableFile:
        assert self._file is not None, "the writer is frozen or closed"
        return self._file


# --- Write a checkpoint of records: ``<end offset>-<epoch>.checkpoint`` (KIP-630) -----------------
# Offsets in it start at 0, and every batch has the snapshot id's epoch. The first batch is a
# control batch with a SnapshotHeader and, where known, KRaftVersion and KRaftVoters. The last batch
# is a SnapshotFooter. ``RawSnapshotWriter`` handles the lock, the names and the order of the
# durable steps. Kafka: ``RecordsSnapshotWriter``.


def snapshot_head(
    producer_state: ProducerStateManager,
    *,
    last_contained_log_timestamp_ms: int,
    kraft_version: int | None,
    voters: KRaftVoters | None,
) -> tuple[ControlRecord, ...]:
    """Return the first batch of a checkpoint: Kafka's control records and the producer state.

    A ``kraft_version`` of None or 0 is not written, as in Kafka.
    """
    head: list[ControlRecord] = [
        SnapshotHeader(
            last_contained_log_timestamp_ms=last_contained_log_timestamp_ms,
            tagged_fields=(producer_state.to_header_field(),),
        )
    ]
    if kraft_version:
        head.append(KRaftVersion(kraft_version=kraft_version))
        if voters is not None:
            head.append(voters)
    return tuple(head)


class SnapshotWriter(Closeable):
    """One checkpoint that is being written. Not shared between threads, except for ``sync``.

    Call ``freeze`` at the end, or ``close``, which deletes the file. ``freeze`` is short if
    ``finish`` and ``sync`` precede it. Raises ``LogLockedError`` if another snapshot is being
    written in this directory.
    """

    def __init__(
        self,
        directory: LogDirectory,
        snapshot_id: SnapshotId,
        head: Sequence[ControlRecord],
        *,
        now_ms: int,
        batch_bytes_max: int,
        compression: Compression,
        on_frozen: Callable[[SnapshotId], None],
    ) -> None:
        self.snapshot_id: Final = snapshot_id
        self._now_ms = now_ms
        self._batch_bytes_max = batch_bytes_max
        self._compression = compression
        self._on_frozen = on_frozen
        self._next_offset = 0
        self._builder: BatchBuilder | None = None
        self._is_finished = False
        self._raw = RawSnapshotWriter(directory, snapshot_id)
        try:
            self.append_control(head)
        except LogError:
            self.close()
            raise

    @property
    def byte_count(self) -> int:
        """Number of bytes written so far."""
        return self._raw.byte_count

    def append(self, records: Sequence[RecordToAppend]) -> None:
        """Append records of the state, in as many batches as needed.

        Raises ``DiskFullError``, and ``RecordBatchTooLargeError`` for a record that fits into no
        batch.
        """
        at = 0
        while at < len(records):
            builder = self._builder or self._new_builder(is_control=False)
            self._builder = builder
            count = builder.fitting_record_count(records, at)
            if count:
                builder.append(records[at : at + count])
                at += count
            elif builder.record_count:
                self._write(builder)
            else:
                raise builder.too_large(records[at : at + 1])

    def append_control(self, records: Sequence[ControlRecord]) -> None:
        """Append control records in a batch of their own."""
        self._flush()
        builder = self._new_builder(is_control=True)
        builder.append([NewRecord(*encode_control(record)) for record in records])
        self._write(builder)

    def finish(self) -> None:
        """Append the footer. May be called twice."""
        if not self._is_finished:
            self.append_control([SnapshotFooter()])
            self._is_finished = True

    def sync(self) -> None:
        """Sync the finished file, in any thread. No other method may be called meanwhile.

        Raises ``DiskFailedError``.
        """
        self._raw.sync()

    def freeze(self) -> SnapshotId:
        """Finish the file and rename it to its final name; durable on return."""
        self.finish()
        self._raw.freeze()
        self._on_frozen(self.snapshot_id)
        return self.snapshot_id

    def close(self) -> None:
        """Delete the file unless it is frozen. May be called twice."""
        self._raw.close()

    # --- batches ----------------------------------------------------------------------------------

    def _new_builder(self, *, is_control: bool) -> BatchBuilder:
        return BatchBuilder(
            base_timestamp_ms=self._now_ms,
            byte_count_max=max(self._batch_bytes_max, BATCH_BYTES_MAX)
            if is_control  # the header contains the whole producer state
            else self._batch_bytes_max,
            compression=Compression.NONE if is_control else self._compression,
            is_control=is_control,
        )

    def _flush(self) -> None:
        if self._builder is not None and self._builder.record_count:
            self._write(self._builder)

    def _write(self, builder: BatchBuilder) -> None:
        data = builder.build(self._next_offset, self.snapshot_id.epoch).data
        self._raw.append(data)
        self._next_offset += builder.record_count
        self._builder = None


# --- Decide what retention deletes ----------------------------------------------------------------
# Only segments wholly below the high watermark are deleted, oldest first and without a gap, and
# never the active segment. Kafka: ``UnifiedLog.deleteRetentionMsBreachedSegments``,
# ``deleteRetentionSizeBreachedSegments``; ``KafkaRaftLog.cleanSnapshotsRetentionSize`` and
# ``cleanSnapshotsRetentionMs`` for a log with a state machine.


@dataclass(frozen=True, slots=True)
class RetentionSnapshot:
    """A snapshot, its size, and the timestamp of the last record that it contains."""

    snapshot_id: SnapshotId
    byte_count: int
    timestamp_ms: int


def start_after_retention(
    sealed: Sequence[SegmentMetadata],
    *,
    active_bytes: int,
    high_watermark: int,
    now_ms: int,
    retention_ms: int | None,
    retention_bytes: int | None,
) -> int | None:
    """Return the log start offset that retention requires, or None for no change.

    A segment is deleted if its newest record is older than ``retention_ms``, or if the log would
    have at least ``retention_bytes`` without it. Either limit may be None for no limit.
    """
    surplus = sum(segment.byte_count for segment in sealed) + active_bytes
    surplus -= retention_bytes if retention_bytes is not None else surplus
    start = None
    for segment in sealed:
        is_old = (
            retention_ms is not None
            and segment.max_timestamp_ms is not None
            and segment.max_timestamp_ms >= 0
            and now_ms - segment.max_timestamp_ms > retention_ms
        )
        is_surplus = retention_bytes is not None and surplus >= segment.byte_count
        if segment.end_offset > high_watermark or not (is_old or is_surplus):
            break
        surplus -= segment.byte_count
        start = segment.end_offset
    return start


def snapshot_to_start_after(
    snapshots: Sequence[RetentionSnapshot],
    *,
    log_bytes: int,
    now_ms: int,
    retention_ms: int | None,
    retention_bytes: int | None,
) -> SnapshotId | None:
    """Return the snapshot at whose end the log may start, or None for no change.

    ``snapshots`` are in ascending order; the newest is always kept. The oldest is deleted while it
    is older than ``retention_ms``, or while log and snapshots together exceed ``retention_bytes``.
    """
    held = log_bytes + sum(snapshot.byte_count for snapshot in snapshots)
    kept = None
    for snapshot, following in pairwise(snapshots):
        is_old = retention_ms is not None and now_ms - snapshot.timestamp_ms > retention_ms
        is_surplus = retention_bytes is not None and held > retention_bytes
        if not (is_old or is_surplus):
            break
        held -= snapshot.byte_count
        kept = following.snapshot_id
    return kept


# --- Write snapshots and delete -------------------------------------------------------------------

VotersAt: TypeAlias = Callable[[int], "tuple[int, KRaftVoters | None] | None"]
"""Returns the kraft.version and the voters of a quorum's log below an end offset; None: unknown."""
ProducerStateAt: TypeAlias = Callable[[int], ProducerStateManager]
"""Returns the producer state at a batch boundary."""


def check_snapshot_id(
    segments: LogSegments, snapshot_id: SnapshotId, *, end_offset: int, high_watermark: int
) -> bool:
    """Return whether a snapshot must be written, which is not so if it exists or the log starts
    after it.

    Raises ``SnapshotRefusedError`` for an end offset that is not committed, is inside a batch or
    has another epoch.
    """
    segments.list_snapshots()
    if snapshot_id in segments.snapshots or snapshot_id.end_offset < segments.log_start_offset:
        return False
    if snapshot_id.end_offset == 0:
        return False
    reason = None
    epoch = segments.epochs.epoch_at(snapshot_id.end_offset - 1)
    if snapshot_id.end_offset > high_watermark:
        reason = f"it is above the high watermark {high_watermark}"
    elif epoch not in (None, snapshot_id.epoch):
        reason = f"the record before it has epoch {epoch}"
    elif not segments.is_boundary(snapshot_id.end_offset, end_offset):
        reason = "it is inside a batch"
    if reason is not None:
        raise SnapshotRefusedError(
            path=segments.directory.path,
            end_offset=snapshot_id.end_offset,
            epoch=snapshot_id.epoch,
            reason=reason,
        )
    return True


def begin_snapshot(
    segments: LogSegments,
    snapshot_id: SnapshotId,
    producer_state: ProducerStateManager,
    *,
    now_ms: int,
    last_contained_log_timestamp_ms: int | None = None,
    kraft_version: int | None = None,
    voters: KRaftVoters | None = None,
) -> SnapshotWriter:
    """Create the writer of a checkpoint whose id has been checked, and write its first batch."""
    if last_contained_log_timestamp_ms is None:
        last_contained_log_timestamp_ms = producer_state.log_time_ms
    head = snapshot_head(
        producer_state,
        last_contained_log_timestamp_ms=last_contained_log_timestamp_ms,
        kraft_version=kraft_version,
        voters=voters,
    )
    return SnapshotWriter(
        segments.directory,
        snapshot_id,
        head,
        now_ms=now_ms,
        batch_bytes_max=segments.config.batch_bytes_max,
        compression=segments.config.compression,
        on_frozen=lambda _: segments.list_snapshots(),
    )


def delete_before_snapshot(
    segments: LogSegments,
    snapshot_id: SnapshotId,
    *,
    high_watermark: int,
    publish_start: Callable[[int], None],
) -> bool:
    """Start the log at the end of a snapshot and delete older snapshots and segments.

    ``publish_start`` is called with the new log start before anything is changed. Returns whether
    anything changed.
    """
    segments.list_snapshots()
    if snapshot_id not in segments.snapshots or snapshot_id.end_offset > high_watermark:
        return False
    if snapshot_id == segments.snapshots[0] and snapshot_id.end_offset <= segments.log_start_offset:
        return False
    publish_start(max(segments.log_start_offset, snapshot_id.end_offset))
    segments.advance_start(snapshot_id.end_offset)
    segments.delete_snapshots_before(snapshot_id)
    return True


def clean(
    segments: LogSegments,
    *,
    high_watermark: int,
    now_ms: int,
    publish_start: Callable[[int], None],
    producer_state_at: ProducerStateAt,
    voters_at: VotersAt | None = None,
) -> bool:
    """Delete what exceeds retention; return whether anything was deleted.

    ``publish_start`` is called as in ``delete_before_snapshot``. The deleted records may contain
    the voters, so for a quorum's log ``voters_at`` returns them for the snapshot at the new start.
    If it returns None, nothing is deleted.
    """
    config = segments.config
    retention_ms, retention_bytes = config.local_retention
    if retention_ms is None and retention_bytes is None:
        return False
    if not config.cleanup_policy.deletes:
        return False
    if config.values is ValueKind.KRAFT:
        return _clean_by_snapshots(
            segments, high_watermark=high_watermark, now_ms=now_ms, publish_start=publish_start
        )
    start = start_after_retention(
        segments.timed_segments(),
        active_bytes=segments.active.byte_count,
        high_watermark=min(high_watermark, _deletable_end(segments)),
        now_ms=now_ms,
        retention_ms=retention_ms,
        retention_bytes=retention_bytes,
    )
    if start is None:
        return False
    return start_log_at(
        segments,
        start,
        high_watermark=high_watermark,
        now_ms=now_ms,
        publish_start=publish_start,
        producer_state_at=producer_state_at,
        voters_at=voters_at,
    )


def _deletable_end(segments: LogSegments) -> int:
    """Return the offset below which retention may delete local segments: with remote storage, the
    end of the copied segments.

    0 while the list of remote segments is damaged; the next run writes it again.
    """
    if not segments.config.remote_storage_enable:
        return INT64_MAX
    try:
        chain = segments.directory.read_remote_chain()
    except CorruptFileError:
        return 0
    return 0 if chain is None else chain.copied_end_offset


def start_log_at(
    segments: LogSegments,
    start: int,
    *,
    high_watermark: int,
    now_ms: int,
    publish_start: Callable[[int], None],
    producer_state_at: ProducerStateAt,
    voters_at: VotersAt | None = None,
) -> bool:
    """Start a log without a state machine at a batch boundary; return whether that changed it.

    A snapshot at the new start preserves the producer state and voters of the deleted records. The
    arguments are those of ``clean``.
    """
    snapshot_id = SnapshotId(epoch=segments.epochs.epoch_at(start - 1) or 0, end_offset=start)
    segments.list_snapshots()
    if snapshot_id not in segments.snapshots:
        kraft = (None, None) if voters_at is None else voters_at(start)
        if kraft is None:
            return False
        kraft_version, voters = kraft
        with begin_snapshot(
            segments,
            snapshot_id,
            producer_state_at(start),
            now_ms=now_ms,
            kraft_version=kraft_version,
            voters=voters,
        ) as writer:
            writer.freeze()
    return delete_before_snapshot(
        segments, snapshot_id, high_watermark=high_watermark, publish_start=publish_start
    )


def is_active_segment_expired(segments: LogSegments, now_ms: int) -> bool:
    """Return whether retention by age would delete the active segment if it were sealed."""
    config, newest_ms = segments.config, segments.active.max_timestamp_ms
    return (
        config.retention_ms is not None
        and config.cleanup_policy.deletes
        and config.values is not ValueKind.KRAFT
        and newest_ms >= 0
        and now_ms - newest_ms > config.retention_ms
    )


def _clean_by_snapshots(
    segments: LogSegments, *, high_watermark: int, now_ms: int, publish_start: Callable[[int], None]
) -> bool:
    segments.list_snapshots()
    snapshot_id = snapshot_to_start_after(
        [
            one
            for name in segments.snapshots
            if (one := _retention_snapshot(segments, name)) is not None
        ],
        log_bytes=sum(one.byte_count for one in segments.sealed) + segments.active.byte_count,
        now_ms=now_ms,
        retention_ms=segments.config.retention_ms,
        retention_bytes=segments.config.retention_bytes,
    )
    if snapshot_id is None:
        return False
    return delete_before_snapshot(
        segments, snapshot_id, high_watermark=high_watermark, publish_start=publish_start
    )


def _retention_snapshot(segments: LogSegments, snapshot_id: SnapshotId) -> RetentionSnapshot | None:
    """Return size and timestamp of a snapshot; None if it was deleted or its header is damaged."""
    path = segments.directory.file(checkpoint_name(snapshot_id))
    try:
        with segments.directory.storage.open_file(path) as file:
            header, _ = read_snapshot_head(file)
            time_ms = header.last_contained_log_timestamp_ms
            return RetentionSnapshot(snapshot_id, file.byte_count(), time_ms)
    except (LogNotFoundError, CorruptSnapshotError):
        return None
