"""Values of a read: its kind, isolation, end and splits.

All are immutable, small and picklable, because a plan is sent to other processes. Ends are
exclusive and between batches.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from .transactions import TransactionSpan, spans_by_range


class LogKind(enum.Enum):
    """Kind of a log's records."""

    METADATA = "metadata"
    """Kafka's ``__cluster_metadata``: consecutive offsets, transactions by marker records."""
    PARTITION = "partition"
    """An ordinary partition: offsets with gaps (compaction), transactions of producers."""


class SourceKind(enum.Enum):
    """Kind of the path that was opened."""

    DIRECTORY = "directory"
    SEGMENT = "segment"
    CHECKPOINT = "checkpoint"
    VOTERS = "voters"
    QUORUM = "quorum"


class Isolation(enum.Enum):
    """Isolation level of a read."""

    READ_COMMITTED = "read_committed"
    """No records of open transactions; aborted transactions are marked."""
    READ_UNCOMMITTED = "high_watermark"
    """Every replicated record, including those of open and aborted transactions."""


READ_UNCOMMITTED_NAME: Final = "read_uncommitted"
"""Kafka's name for ``READ_UNCOMMITTED`` (``isolation.level``)."""


class EndBasis(enum.Enum):
    """How the end of a read was chosen."""

    DIRECTORY = "directory"
    """The end of one directory, whose last records may not be committed."""
    HOLDBACK = "holdback"
    """The end of one directory without its youngest records, which is very likely committed."""
    MAJORITY = "majority"
    """The end of the records that a majority of the voters has, which are committed."""
    REPLICAS = "replicas"
    """The end of the records that all given copies have, which are committed if the copies include
    all in-sync replicas."""
    EMBEDDED = "embedded"
    """The synced end of an embedded log: committed."""
    HIGH_WATERMARK = "high_watermark"
    """The high watermark of the quorum's leader."""
    FILE = "file"
    """The end of the one segment that was given, whose last records may not be committed."""
    SNAPSHOT = "snapshot"
    """The end of the one snapshot that was given: committed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadEnd:
    """End of a read (exclusive), and the reason for it.

    ``epoch`` is the leader epoch of the record before it, or 0 if unknown (as in Kafka).
    ``lower_offset`` is a smaller end that was found later, or None.
    """

    offset: int
    epoch: int
    basis: EndBasis
    reason: str
    lower_offset: int | None = None

    @property
    def explanation(self) -> str:
        """Reason for the end, and for keeping it after the log's end decreased."""
        if self.lower_offset is None:
            return self.reason
        return (
            f"{self.reason}; the end is now {self.lower_offset}, which is no data loss: "
            "uncommitted records may be truncated"
        )


@dataclass(frozen=True, slots=True)
class Split:
    """Offsets [start_offset, end_offset), between batches except at the ends of the range.

    ``spans``: the transactions that touch it; in an ordinary partition only aborted and open ones.
    """

    start_offset: int
    end_offset: int
    spans: tuple[TransactionSpan, ...] = ()


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """Range that is divided into consecutive splits."""

    start_offset: int
    end_offset: int
    splits: tuple[Split, ...]


# --- Division of a range of offsets into splits ---------------------------------------------------
# Splits cover the range exactly, and none is empty. They end between batches, except at the ends of
# the range.

FindBatch = Callable[[int], tuple[int, int]]
"""Returns base and next offset of the batch that contains an offset, or of the next batch."""


def plan_range(
    start_offset: int,
    end_offset: int,
    spans: Sequence[TransactionSpan],
    find_batch: FindBatch,
    *,
    max_splits: int,
    max_records: int | None,
) -> ReadPlan:
    """Return the plan of a range: ``split_range``, and the transactions that each split touches."""
    ranges = split_range(
        start_offset, end_offset, find_batch, max_splits=max_splits, max_records=max_records
    )
    splits = tuple(
        Split(start, end, touching)
        for (start, end), touching in zip(ranges, spans_by_range(spans, ranges), strict=True)
    )
    return ReadPlan(start_offset, end_offset, splits)


def split_range(
    start_offset: int,
    end_offset: int,
    find_batch: FindBatch,
    *,
    max_splits: int,
    max_records: int | None,
) -> list[tuple[int, int]]:
    """Divide [start_offset, end_offset) into about ``max_splits`` splits of similar size.

    There are more if ``max_records`` requires it. A batch is never divided.
    """
    splits: list[tuple[int, int]] = []
    start = start_offset
    while start < end_offset:
        left = max(max_splits - len(splits), 1)
        wanted = -(-(end_offset - start) // left)
        if max_records is not None:
            wanted = min(wanted, max_records)
        end = end_offset
        if start + wanted < end_offset:
            base_offset, next_offset = find_batch(start + wanted)
            end = base_offset if base_offset > start else min(next_offset, end_offset)
        splits.append((start, end))
        start = end
    return splits
