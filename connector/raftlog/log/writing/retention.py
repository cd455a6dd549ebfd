"""Retention: which old segments and snapshots are deleted, and in what order.

A log with a state machine (``kraft``) starts only at the end of a snapshot of its state. Another
log has retention by age and size, in whole segments. Its order of durable steps:

    1. write the checkpoint of the producer state at the new start (it has no records),
       so that a replica that starts there has the producers and commits
    2. publish the new log start           other processes detect a crash from here on
    3. write log-start-offset-checkpoint   recovery completes the deletion from here on
    4. delete segments, oldest first, and the snapshots before this one

Kafka: ``KafkaRaftLog.createNewSnapshot``, ``deleteBeforeSnapshot``, ``maybeClean``;
``UnifiedLog.deleteOldSegments``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

from raftlog.errors import CorruptSnapshotError, LogNotFoundError, SnapshotRefusedError
from raftlog.log.format.directory import checkpoint_name
from raftlog.log.reading.transactions import ValueKind
from raftlog.log.segment import SegmentMetadata, read_snapshot_head
from raftlog.records.control import KRaftVoters
from raftlog.types import SnapshotId

from .producer_state import ProducerStateManager
from .segments import LogSegments
from .snapshots import SnapshotWriter, snapshot_head

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

    A segment is deleted if its newest record is older than ``retention_ms``, or while the log
    without it would still hold at least ``retention_bytes``. None for either: no such limit.
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


def check_snapshot_id(
    segments: LogSegments, snapshot_id: SnapshotId, *, end_offset: int, high_watermark: int
) -> bool:
    """Return whether a snapshot is to be written: not if it exists or the log starts after it.

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
    """Create the writer of a checkpoint whose id was checked, and write its first batch."""
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
    there was anything to do.
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
    voters_at: VotersAt | None = None,
) -> bool:
    """Delete what exceeds retention; return whether there was anything.

    ``publish_start`` is called as in ``delete_before_snapshot``. The deleted records may contain
    the voters, so for a quorum's log ``voters_at`` returns them for the snapshot at the new start.
    If it returns None, nothing is deleted.
    """
    config = segments.config
    if config.retention_ms is None and config.retention_bytes is None:
        return False
    if config.values is ValueKind.KRAFT:
        return _clean_by_snapshots(
            segments, high_watermark=high_watermark, now_ms=now_ms, publish_start=publish_start
        )
    start = start_after_retention(
        segments.timed_segments(),
        active_bytes=segments.active.byte_count,
        high_watermark=high_watermark,
        now_ms=now_ms,
        retention_ms=config.retention_ms,
        retention_bytes=config.retention_bytes,
    )
    if start is None:
        return False
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
            segments.producer_state_at(start),
            now_ms=now_ms,
            kraft_version=kraft_version,
            voters=voters,
        ) as writer:
            writer.freeze()
    return delete_before_snapshot(
        segments, snapshot_id, high_watermark=high_watermark, publish_start=publish_start
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
