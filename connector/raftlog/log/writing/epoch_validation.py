"""Validation of a follower's fetch position, and the offset at which a follower truncates.

Pure functions of the log's epochs and snapshots. Kafka: ``RaftLog.validateOffsetAndEpoch`` and
``truncateToEndOffset``, ``KafkaRaftLog.endOffsetForEpoch`` (KIP-101, KIP-595, KIP-630). A fetch
position is (offset, epoch of the record before it). Epoch 0 has no leader and no records.
"""

from __future__ import annotations

from dataclasses import dataclass

from raftlog.log.format.epoch_cache import EpochCache
from raftlog.types import (
    Diverging,
    OffsetAndEpoch,
    SnapshotId,
    SnapshotNeeded,
    Valid,
    ValidOffsetAndEpoch,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochValidation:
    """The facts of a log that validation needs.

    ``snapshots`` are in ascending order, without the bootstrap checkpoint.
    """

    log_start_offset: int
    log_end_offset: int
    epochs: EpochCache
    snapshots: tuple[SnapshotId, ...]

    @property
    def last_fetched_epoch(self) -> int:
        """The epoch of the last record, or of the snapshot at which an empty log starts; else 0."""
        if self.epochs.latest_epoch is not None:
            return self.epochs.latest_epoch
        if self.snapshots:
            newest = self.snapshots[-1]
            if self.log_start_offset == self.log_end_offset == newest.end_offset:
                return newest.epoch
        return 0

    @property
    def _first_snapshot(self) -> SnapshotId | None:
        """The oldest snapshot at or after the log start; older ones may not be deleted yet."""
        start = self.log_start_offset
        return next((one for one in self.snapshots if one.end_offset >= start), None)

    def end_offset_for_epoch(self, epoch: int) -> OffsetAndEpoch:
        """Return the largest epoch <= ``epoch`` and its end offset (exclusive) in this log.

        For an epoch newer than the log's last one: the last epoch and the log end offset.
        """
        found = self.epochs.end_offset_for(epoch, self.log_end_offset)
        if found is None:
            return OffsetAndEpoch(epoch=self.last_fetched_epoch, offset=self.log_end_offset)
        first = self._first_snapshot
        if first is not None and found == OffsetAndEpoch(epoch=epoch, offset=first.end_offset):
            return OffsetAndEpoch(epoch=first.epoch, offset=first.end_offset)
        return found

    def validate(self, offset: int, epoch: int) -> ValidOffsetAndEpoch:
        """Return whether a follower whose last record has ``epoch`` may fetch from ``offset``.

        ``Diverging``: it must truncate first. ``SnapshotNeeded``: it must fetch a snapshot.
        """
        if offset == 0 and self.snapshots:
            return SnapshotNeeded(self.snapshots[-1])
        if offset == 0 and self.log_start_offset == 0:
            return Valid()
        first = self._first_snapshot
        if first is not None:
            is_deleted = (
                offset < self.log_start_offset
                or (offset == self.log_start_offset and epoch != first.epoch)
                or epoch < first.epoch
            )
            if is_deleted:
                return SnapshotNeeded(self.snapshots[-1])
        end = self.end_offset_for_epoch(epoch)
        if end.epoch != epoch or end.offset < offset:
            return Diverging(end)
        return Valid()

    def truncation_offset(self, diverging: OffsetAndEpoch) -> int:
        """Return the offset to which a follower truncates after a ``Diverging`` response."""
        if diverging.epoch == 0:
            return min(diverging.offset, self.log_end_offset)
        own = self.end_offset_for_epoch(diverging.epoch)
        return min(own.offset, diverging.offset) if own.epoch == diverging.epoch else own.offset
