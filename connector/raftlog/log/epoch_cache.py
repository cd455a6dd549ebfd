"""Which leader epoch wrote which offsets: the lineage by which two logs are compared.

Rules of this file:

1. Entries ascend in epoch and in start offset, both strictly. A cache is a value: every change
   gives a new one.
2. Kafka: ``LeaderEpochFileCache`` (KIP-101, KIP-279), ``LeaderEpochCheckpointFile``.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass

from raftlog.errors import CorruptFileError
from raftlog.types import OffsetAndEpoch

from .text_files import decoded_text, whole_number


@dataclass(frozen=True, slots=True)
class EpochEntry:
    """The records of ``epoch`` begin at ``start_offset``."""

    epoch: int
    start_offset: int


@dataclass(frozen=True, slots=True)
class EpochCache:
    """The epochs of one log, oldest first."""

    entries: tuple[EpochEntry, ...] = ()

    @property
    def latest_epoch(self) -> int | None:
        """The epoch of the newest record, or of a leader that has not written one yet."""
        return self.entries[-1].epoch if self.entries else None

    def epoch_at(self, offset: int) -> int | None:
        """The epoch of the record at ``offset``, or None before the first entry.

        The cache does not know where the log ends: beyond it the answer is the latest epoch.
        """
        ordinal = bisect_right(self.entries, offset, key=lambda entry: entry.start_offset)
        return self.entries[ordinal - 1].epoch if ordinal else None

    def end_offset_for(self, epoch: int, log_end_offset: int) -> OffsetAndEpoch | None:
        """Where the records of ``epoch`` end (exclusive) in this log.

        If the log has none of it, the answer names the largest epoch below it. Below the first
        epoch: itself, and where the first begins. None where nothing can be said: the epoch is
        newer than any here, or is -1, or no epoch is known.
        """
        if epoch == -1 or not self.entries or epoch > self.entries[-1].epoch:
            return None
        if epoch == self.entries[-1].epoch:
            return OffsetAndEpoch(epoch=epoch, offset=log_end_offset)
        higher = bisect_right(self.entries, epoch, key=lambda entry: entry.epoch)
        found = self.entries[higher - 1].epoch if higher else epoch
        return OffsetAndEpoch(epoch=found, offset=self.entries[higher].start_offset)

    def assign(self, epoch: int, start_offset: int) -> EpochCache:
        """Note that records from ``start_offset`` on are of ``epoch``; later claims give way."""
        if self.entries:  # nearly always: a batch of the epoch that is written
            last = self.entries[-1]
            if last.epoch == epoch and start_offset >= last.start_offset:
                return self
        return self.assign_all([(epoch, start_offset)])

    def assign_all(self, pairs: Iterable[tuple[int, int]]) -> EpochCache:
        """Assign (epoch, start offset) pairs in order.

        Entries ascend in both, so those that give way are at the end: the work is linear in the
        number of entries and pairs.
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
        """Forget what begins at or behind a log's new end (Kafka: ``truncateFromEnd``)."""
        if not self.entries or self.entries[-1].start_offset < end_offset:
            return self
        return EpochCache(tuple(entry for entry in self.entries if entry.start_offset < end_offset))

    def without_before(self, start_offset: int) -> EpochCache:
        """Forget what ends at or below a log's new start (Kafka: ``truncateFromStart``).

        The epoch that goes on across the start begins there from now on.
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
    """The bytes of ``leader-epoch-checkpoint`` (Kafka: ``CheckpointFile``, version 0)."""
    rows = "".join(f"{entry.epoch} {entry.start_offset}\n" for entry in cache.entries)
    return f"0\n{len(cache.entries)}\n{rows}".encode("ascii")


def parse_epoch_checkpoint(data: bytes, path: str) -> EpochCache:
    """Read ``leader-epoch-checkpoint``: version 0, the entry count, ``epoch start`` a line.

    An empty file has no entries. Raises ``CorruptFileError``.
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
        words = row.split()
        if len(words) != 2:
            raise CorruptFileError(path=path, reason=f"{row[:40]!r} is not an epoch and an offset")
        entry = EpochEntry(
            whole_number(words[0], path, "an epoch"), whole_number(words[1], path, "an offset")
        )
        if entries and (
            entry.epoch <= entries[-1].epoch or entry.start_offset <= entries[-1].start_offset
        ):
            raise CorruptFileError(path=path, reason=f"{row[:40]!r} does not come after the last")
        entries.append(entry)
    return EpochCache(tuple(entries))
