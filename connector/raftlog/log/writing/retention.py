"""Decide which old segments and snapshots retention deletes. Pure: nothing is deleted here.

Only segments wholly below the high watermark are deleted, oldest first and without a gap, and never
the active segment. Kafka: ``UnifiedLog.deleteRetentionMsBreachedSegments``,
``deleteRetentionSizeBreachedSegments``; ``KafkaRaftLog.cleanSnapshotsRetentionSize`` and
``cleanSnapshotsRetentionMs`` for a log with a state machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from raftlog.types import SnapshotId


@dataclass(frozen=True, slots=True)
class RetentionSegment:
    """A sealed segment. ``max_timestamp_ms`` -1: no record has a timestamp, so it never expires."""

    end_offset: int
    byte_count: int
    max_timestamp_ms: int


@dataclass(frozen=True, slots=True)
class RetentionSnapshot:
    """A snapshot, its size, and the timestamp of the last record that it contains."""

    snapshot_id: SnapshotId
    byte_count: int
    timestamp_ms: int


def start_after_retention(
    sealed: Sequence[RetentionSegment],
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
