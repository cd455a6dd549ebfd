"""Which old segments and snapshots a log may forget. Pure decisions; others do the deleting.

Rules of this file:

1. Only what lies wholly below the high watermark goes, oldest first and without a gap, and never
   the active segment.
2. Kafka: ``UnifiedLog.deleteRetentionMsBreachedSegments``, ``deleteRetentionSizeBreachedSegments``;
   ``KafkaRaftLog.cleanSnapshotsRetentionSize`` and ``...Ms`` for a log that has a state machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from raftlog.types import SnapshotId


@dataclass(frozen=True, slots=True)
class RetentionSegment:
    """A sealed segment. ``max_timestamp_ms`` -1: its records have no time, and never grow old."""

    end_offset: int
    byte_count: int
    max_timestamp_ms: int


@dataclass(frozen=True, slots=True)
class RetentionSnapshot:
    """A snapshot, its size, and the log time of the last record that it contains."""

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
    """The log start (exclusive end of what goes) that retention asks for, or None for no change.

    A segment goes when its newest record is older than ``retention_ms``, or while the log without
    it would still hold ``retention_bytes``.
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
    """The snapshot that the log may begin behind, or None for no change. The newest always stays.

    ``snapshots`` ascend. The oldest goes while it is older than ``retention_ms``, or while log and
    snapshots together hold more than ``retention_bytes``.
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
