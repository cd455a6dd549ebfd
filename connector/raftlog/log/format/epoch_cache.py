"""Leader epochs and their start offsets, and the file ``leader-epoch-checkpoint``.

Kafka: ``LeaderEpochFileCache`` (KIP-101, KIP-279), ``LeaderEpochCheckpointFile``.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass

from raftlog.errors import CorruptFileError
from raftlog.types import OffsetAndEpoch

from .small_files import decoded_text, whole_number


@dataclass(frozen=True, slots=True)
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
        """Latest epoch, which may be without records yet; None without entries."""
        return self.entries[-1].epoch if self.entries else None

    def epoch_at(self, offset: int) -> int | None:
        """Return the epoch of the record at ``offset``; None before the first entry.

        The cache has no end offset: past the end of the log the result is the latest epoch.
        """
        ordinal = bisect_right(self.entries, offset, key=lambda entry: entry.start_offset)
        return self.entries[ordinal - 1].epoch if ordinal else None

    def end_offset_for(self, epoch: int, log_end_offset: int) -> OffsetAndEpoch | None:
        """Return the end offset (exclusive) of ``epoch`` in a log that ends at ``log_end_offset``.

        Kafka's ``endOffsetFor``: if the log has no record of ``epoch``, the result has the largest
        smaller epoch; below the first epoch, ``epoch`` itself and the first start offset. None if
        ``epoch`` is -1 or newer than the latest, or if there are no entries.
        """
        if epoch == -1 or not self.entries or epoch > self.entries[-1].epoch:
            return None
        if epoch == self.entries[-1].epoch:
            return OffsetAndEpoch(epoch=epoch, offset=log_end_offset)
        higher = bisect_right(self.entries, epoch, key=lambda entry: entry.epoch)
        found = self.entries[higher - 1].epoch if higher else epoch
        return OffsetAndEpoch(epoch=found, offset=self.entries[higher].start_offset)

    def assign(self, epoch: int, start_offset: int) -> EpochCache:
        """Return a cache with ``epoch`` from ``start_offset`` on, without conflicting entries."""
        if self.entries:  # the usual case: a batch of the current epoch
            last = self.entries[-1]
            if last.epoch == epoch and start_offset >= last.start_offset:
                return self
        return self.assign_all([(epoch, start_offset)])

    def assign_all(self, pairs: Iterable[tuple[int, int]]) -> EpochCache:
        """Return a cache with (epoch, start offset) pairs assigned in order.

        Conflicting entries are always the last ones, so the work is linear in entries and pairs.
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
            entries.append(EpochEntry(epoch, start_offset))
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
        first = EpochEntry(self.entries[covered - 1].epoch, start_offset)
        return EpochCache((first, *self.entries[covered:]))

    @staticmethod
    def of(entries: Iterable[tuple[int, int]]) -> EpochCache:
        """Build a cache by assigning (epoch, start offset) pairs in order."""
        return EpochCache().assign_all(entries)


def encode_epoch_checkpoint(cache: EpochCache) -> bytes:
    """Encode ``leader-epoch-checkpoint`` (Kafka: ``CheckpointFile``, version 0)."""
    rows = "".join(f"{entry.epoch} {entry.start_offset}\n" for entry in cache.entries)
    return f"0\n{len(cache.entries)}\n{rows}".encode("ascii")


def parse_epoch_checkpoint(data: bytes, path: str) -> EpochCache:
    """Parse ``leader-epoch-checkpoint``: version 0, the entry count, and lines ``epoch
    start_offset``.

    An empty file has no entries. Raises ``CorruptFileError`` for anything else, and for entries
    that do not ascend.
    """
    text = decoded_text(data, path)
    lines = text.splitlines()
    if not lines:
        return EpochCache()
    if whole_number(lines[0], path, "the version") != 0:
        raise CorruptFileError(path=path, reason=f"its version is {lines[0][:20]!r}, not 0")
    count = whole_number(lines[1], path, "the entry count") if len(lines) > 1 else -1
    rows = lines[2:]
    if count != len(rows):
        raise CorruptFileError(path=path, reason=f"it claims {count} entries and has {len(rows)}")
    entries: list[EpochEntry] = []
    for row in rows:
        fields = row.split()
        if len(fields) != 2:
            raise CorruptFileError(path=path, reason=f"{row[:40]!r} is not an epoch and an offset")
        entry = EpochEntry(
            whole_number(fields[0], path, "an epoch"), whole_number(fields[1], path, "an offset")
        )
        if entries and (
            entry.epoch <= entries[-1].epoch or entry.start_offset <= entries[-1].start_offset
        ):
            raise CorruptFileError(path=path, reason=f"{row[:40]!r} does not ascend")
        entries.append(entry)
    return EpochCache(tuple(entries))
