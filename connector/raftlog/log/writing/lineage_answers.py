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
    FetchAnswer,
    OffsetAndEpoch,
    SnapshotId,
    SnapshotNeeded,
    Valid,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lineage:
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

    def end_offset_for_epoch(self, epoch: int) -> OffsetAndEpoch:
        """Where (exclusive) the newest epoch that is not above ``epoch`` ends in this log.

        For an epoch above all: the log's end and its last epoch.
        """
        found = self.epochs.end_offset_for(epoch, self.log_end_offset)
        if found is None:
            return OffsetAndEpoch(epoch=self.last_fetched_epoch, offset=self.log_end_offset)
        if self.snapshots and found.epoch == epoch:
            oldest = self.snapshots[0]
            if found.offset == oldest.end_offset:
                return OffsetAndEpoch(epoch=oldest.epoch, offset=oldest.end_offset)
        return found

    def validate(self, offset: int, epoch: int) -> FetchAnswer:
        """Whether a follower may fetch from ``offset`` if ``epoch`` is that of its last record."""
        if offset == 0 and self.snapshots:
            return SnapshotNeeded(self.snapshots[-1])
        if offset == 0 and self.log_start_offset == 0:
            return Valid()
        if self.snapshots:
            oldest = self.snapshots[0]
            is_gone = (
                offset < self.log_start_offset
                or (offset == self.log_start_offset and epoch != oldest.epoch)
                or epoch < oldest.epoch
            )
            if is_gone:
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
