"""What a leader answers a follower about its place in the log, and where a follower cuts its own.

Rules of this file:

1. Pure: the log's facts are arguments. Kafka: ``RaftLog.validateOffsetAndEpoch`` and
   ``truncateToEndOffset``, ``KafkaRaftLog.endOffsetForEpoch`` (KIP-101, KIP-595, KIP-630).
2. A place is (offset, epoch of the record before it). Epoch 0 has no leader and no records.
"""

from __future__ import annotations

from dataclasses import dataclass

from raftlog.log.epoch_cache import EpochCache
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
    """A log as far as such answers need it. Snapshots ascend, without the bootstrap's."""

    log_start_offset: int
    log_end_offset: int
    epochs: EpochCache
    snapshots: tuple[SnapshotId, ...]

    @property
    def last_fetched_epoch(self) -> int:
        """The epoch of the last record, or of the snapshot that the log begins behind; else 0."""
        if self.epochs.latest_epoch is not None:
            return self.epochs.latest_epoch
        if self.snapshots:
            newest = self.snapshots[-1]
            if self.log_start_offset == self.log_end_offset == newest.end_offset:
                return newest.epoch
        return 0

    @property
    def _first_snapshot(self) -> SnapshotId | None:
        """The oldest snapshot that reaches the log's start; older ones may be there still."""
        start = self.log_start_offset
        return next((one for one in self.snapshots if one.end_offset >= start), None)

    def end_offset_for_epoch(self, epoch: int) -> OffsetAndEpoch:
        """Where (exclusive) the newest epoch that is not above ``epoch`` ends in this log.

        For an epoch above all: the log's end and its last epoch.
        """
        found = self.epochs.end_offset_for(epoch, self.log_end_offset)
        if found is None:
            return OffsetAndEpoch(epoch=self.last_fetched_epoch, offset=self.log_end_offset)
        first = self._first_snapshot
        if first is not None and found == OffsetAndEpoch(epoch=epoch, offset=first.end_offset):
            return OffsetAndEpoch(epoch=first.epoch, offset=first.end_offset)
        return found

    def validate(self, offset: int, epoch: int) -> ValidOffsetAndEpoch:
        """Whether a follower may fetch from ``offset`` if ``epoch`` is that of its last record."""
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
        """Where (exclusive) a follower ends its log when its leader answered ``Diverging``."""
        if diverging.epoch == 0:
            return min(diverging.offset, self.log_end_offset)
        own = self.end_offset_for_epoch(diverging.epoch)
        return min(own.offset, diverging.offset) if own.epoch == diverging.epoch else own.offset
