"""Leader epochs of a log and their start offsets.

Kafka: ``LeaderEpochFileCache`` (KIP-101, KIP-279).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass

from raftlog.types import (
    Diverging,
    OffsetAndEpoch,
    SnapshotId,
    SnapshotNeeded,
    Valid,
    ValidOffsetAndEpoch,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochEntry:
    """Start offset of a leader epoch."""

    epoch: int
    start_offset: int


@dataclass(frozen=True, slots=True)
class EpochCache:
    """Leader epochs of one log, oldest first; immutable.

    Entries ascend strictly in epoch and in start offset.
    """

    entries: tuple[EpochEntry, ...] = ()

    @property
    def latest_epoch(self) -> int | None:
        """Latest epoch, which may not have records yet; None without entries."""
        return self.entries[-1].epoch if self.entries else None

    def epoch_at(self, offset: int) -> int | None:
        """Return the epoch of the record at ``offset``; None before the first entry.

        The cache does not know the end of the log: the result past it is the latest epoch.
        """
        ordinal = bisect_right(self.entries, offset, key=lambda entry: entry.start_offset)
        return self.entries[ordinal - 1].epoch if ordinal else None

    def span_at(self, offset: int) -> tuple[int | None, int | None]:
        """Return the epoch of the record at ``offset``, and the next entry's start offset.

        The epoch is None before the first entry, the start offset is None if no entry follows.
        """
        ordinal = bisect_right(self.entries, offset, key=lambda entry: entry.start_offset)
        epoch = self.entries[ordinal - 1].epoch if ordinal else None
        is_last = ordinal == len(self.entries)
        return epoch, None if is_last else self.entries[ordinal].start_offset

    def end_offset_for(self, epoch: int, log_end_offset: int) -> OffsetAndEpoch | None:
        """Return the end offset (exclusive) of ``epoch`` in a log that ends at ``log_end_offset``.

        This is Kafka's ``endOffsetFor``. If the log has no records of ``epoch``, the result has the
        largest smaller epoch; below the first epoch, it has ``epoch`` itself and the first start
        offset. The result is None if ``epoch`` is -1 or newer than the latest, or without entries.
        """
        if epoch == -1 or not self.entries or epoch > self.entries[-1].epoch:
            return None
        if epoch == self.entries[-1].epoch:
            return OffsetAndEpoch(epoch=epoch, offset=log_end_offset)
        higher = bisect_right(self.entries, epoch, key=lambda entry: entry.epoch)
        found = self.entries[higher - 1].epoch if higher else epoch
        return OffsetAndEpoch(epoch=found, offset=self.entries[higher].start_offset)

    def assign(self, epoch: int, start_offset: int) -> EpochCache:
        """Return a cache with ``epoch`` from ``start_offset`` on; drop conflicting entries."""
        if self.entries:  # the usual case: a batch of the current epoch
            last = self.entries[-1]
            if last.epoch == epoch and start_offset >= last.start_offset:
                return self
        return self.assign_all([(epoch, start_offset)])

    def assign_all(self, pairs: Iterable[tuple[int, int]]) -> EpochCache:
        """Return a cache with (epoch, start offset) pairs assigned in order.

        Conflicting entries are always the last ones, so the run time is linear in the number of
        entries and pairs.
        """
        entries = list(self.entries)
        is_changed = False
        for epoch, start_offset in pairs:
            if entries and entries[-1].epoch == epoch and start_offset >= entries[-1].start_offset:
                continue
            while entries and not (
                entries[-1].epoch < epoch and entries[-1].start_offset < start_offset
            ):
                entries.pop()
            entries.append(EpochEntry(epoch=epoch, start_offset=start_offset))
            is_changed = True
        return EpochCache(tuple(entries)) if is_changed else self

    def without_from(self, end_offset: int) -> EpochCache:
        """Return a cache truncated to ``end_offset`` (Kafka: ``truncateFromEnd``)."""
        if not self.entries or self.entries[-1].start_offset < end_offset:
            return self
        return EpochCache(tuple(entry for entry in self.entries if entry.start_offset < end_offset))

    def without_before(self, start_offset: int) -> EpochCache:
        """Return a cache without epochs that end at or before ``start_offset``.

        An epoch that continues across the new start begins there (Kafka: ``truncateFromStart``).
        """
        covered = bisect_right(self.entries, start_offset, key=lambda entry: entry.start_offset)
        if covered == 0 or self.entries[0].start_offset == start_offset:
            return self
        first = EpochEntry(epoch=self.entries[covered - 1].epoch, start_offset=start_offset)
        return EpochCache((first, *self.entries[covered:]))

    @staticmethod
    def of(entries: Iterable[tuple[int, int]]) -> EpochCache:
        """Build a cache by assigning (epoch, start offset) pairs in order."""
        return EpochCache().assign_all(entries)


# --- Validation of a follower's fetch position, and the offset at which a follower truncates ------
# Pure functions of the log's epochs and snapshots. Kafka: ``RaftLog.validateOffsetAndEpoch`` and
# ``truncateToEndOffset``, ``KafkaRaftLog.endOffsetForEpoch`` (KIP-101, KIP-595, KIP-630). A fetch
# position consists of an offset and the epoch of the record before it. Epoch 0 has no leader and no
# records.


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochValidation:
    """The state of a log that validation depends on.

    ``snapshots`` are in ascending order, without the bootstrap checkpoint.
    """

    log_start_offset: int
    log_end_offset: int
    epochs: EpochCache
    snapshots: tuple[SnapshotId, ...]

    @property
    def last_fetched_epoch(self) -> int:
        """Epoch of the last record, or of the snapshot at which an empty log starts; else 0."""
        if self.epochs.latest_epoch is not None:
            return self.epochs.latest_epoch
        if self.snapshots:
            newest = self.snapshots[-1]
            if self.log_start_offset == self.log_end_offset == newest.end_offset:
                return newest.epoch
        return 0

    @property
    def _first_snapshot(self) -> SnapshotId | None:
        """Oldest snapshot at or after the log start. Older ones may not be deleted yet."""
        start = self.log_start_offset
        return next((one for one in self.snapshots if one.end_offset >= start), None)

    def end_offset_for_epoch(self, epoch: int) -> OffsetAndEpoch:
        """Return the largest epoch <= ``epoch`` and its end offset (exclusive) in this log.

        If ``epoch`` is newer than the log's last one, return that one and the log end offset.
        """
        found = self.epochs.end_offset_for(epoch, self.log_end_offset)
        if found is None:
            return OffsetAndEpoch(epoch=self.last_fetched_epoch, offset=self.log_end_offset)
        first = self._first_snapshot
        if first is not None and found == OffsetAndEpoch(epoch=epoch, offset=first.end_offset):
            return OffsetAndEpoch(epoch=first.epoch, offset=first.end_offset)
        return found

    def validate(self, *, offset: int, epoch: int) -> ValidOffsetAndEpoch:
        """Return whether a follower whose last record has ``epoch`` may fetch from ``offset``.

        ``Diverging``: the follower must truncate its log first. ``SnapshotNeeded``: it must fetch a
        snapshot.
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
