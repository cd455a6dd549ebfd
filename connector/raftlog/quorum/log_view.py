"""Read-only view of a replica's log; it answers from memory, without I/O."""

from __future__ import annotations

from typing import Protocol

from raftlog.types import SnapshotId, ValidOffsetAndEpoch


class LogView(Protocol):
    """Log of a replica. It changes by the replica's effects and by the leader's appends.

    Invariant: ``log_start_offset <= synced_end_offset <= end_offset``.
    """

    @property
    def log_start_offset(self) -> int: ...

    @property
    def end_offset(self) -> int:
        """Offset of the next record to append."""
        ...

    @property
    def synced_end_offset(self) -> int:
        """End offset (exclusive) of the durable records."""
        ...

    @property
    def last_fetched_epoch(self) -> int:
        """Epoch of the last record, else of the snapshot that the log starts after, else 0."""
        ...

    @property
    def snapshots(self) -> tuple[SnapshotId, ...]:
        """Snapshots that replicas may fetch, ascending."""
        ...

    def snapshot_byte_count(self, snapshot_id: SnapshotId) -> int | None:
        """Return the size of a snapshot file in bytes; None if there is no such snapshot."""
        ...

    def validate_offset_and_epoch(self, offset: int, epoch: int) -> ValidOffsetAndEpoch:
        """Return whether a follower with last epoch ``epoch`` may fetch from ``offset``.

        Kafka: ``ReplicatedLog.validateOffsetAndEpoch``.
        """
        ...
