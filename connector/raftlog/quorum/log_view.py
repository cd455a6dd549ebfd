"""What a replica may ask its log: facts in memory, never a file, and never a change."""

from __future__ import annotations

from typing import Protocol

from raftlog.types import SnapshotId, ValidOffsetAndEpoch


class LogView(Protocol):
    """A log as the replica sees it. It changes by the replica's effects, and by its appends."""

    @property
    def log_start_offset(self) -> int: ...

    @property
    def end_offset(self) -> int:
        """Where the next record goes."""
        ...

    @property
    def synced_end_offset(self) -> int:
        """Everything below is durable."""
        ...

    @property
    def last_fetched_epoch(self) -> int:
        """The epoch of the last record, or of the snapshot that the log begins behind; else 0."""
        ...

    @property
    def snapshots(self) -> tuple[SnapshotId, ...]:
        """The snapshots that others may fetch, ascending."""
        ...

    def snapshot_byte_count(self, snapshot_id: SnapshotId) -> int | None:
        """How long a snapshot's file is; None if there is none."""
        ...

    def validate_offset_and_epoch(self, offset: int, epoch: int) -> ValidOffsetAndEpoch:
        """Whether a follower may fetch from ``offset``, its last record being of ``epoch``."""
        ...
