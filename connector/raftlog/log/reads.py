"""What a read is made of: where it ends and why, and how it is split.

Rules of this file:

1. Everything here is frozen, small and survives pickling: a plan travels to other processes.
2. Ends are exclusive and lie between batches.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final

from .transactions import TransactionSpan


class LogKind(enum.Enum):
    """What the log's records are."""

    METADATA = "metadata"
    """Kafka's ``__cluster_metadata``: contiguous offsets, transactions by marker records."""
    PARTITION = "partition"
    """An ordinary partition: offsets may skip (compaction), transactions by producers."""


class SourceKind(enum.Enum):
    """What was opened."""

    DIRECTORY = "directory"
    SEGMENT = "segment"
    CHECKPOINT = "checkpoint"
    VOTERS = "voters"
    QUORUM = "quorum"


class Isolation(enum.Enum):
    """What may be read."""

    READ_COMMITTED = "read_committed"
    """Nothing of a transaction that is not decided; aborted ones are told apart."""
    READ_UNCOMMITTED = "high_watermark"
    """Every record that is replicated, whatever becomes of its transaction."""


READ_UNCOMMITTED_NAME: Final = "read_uncommitted"
"""Kafka's name of ``READ_UNCOMMITTED`` (``isolation.level``)."""


class EndBasis(enum.Enum):
    """How the end of a read was chosen."""

    DIRECTORY = "directory"
    """The end of this one directory: its last records may not be committed."""
    HOLDBACK = "holdback"
    """This one directory without its young tail: very likely committed."""
    MAJORITY = "majority"
    """What a majority of the voters holds: committed."""
    REPLICAS = "replicas"
    """What all copies of an ordinary partition hold: committed if no in-sync replica is missing."""
    EMBEDDED = "embedded"
    """What the writers of an embedded log have synced: committed."""
    HIGH_WATERMARK = "high_watermark"
    """What the leader of a quorum says is committed."""
    FILE = "file"
    """The end of the one file that was given."""


@dataclass(frozen=True, slots=True)
class ReadEnd:
    """Where a read ends (exclusive), and in words why there.

    ``epoch`` is the leader epoch of the record before it; 0 if none is known, as in Kafka.
    ``lower_offset`` is the end that a later look found below this one, None if none did.
    """

    offset: int
    epoch: int
    basis: EndBasis
    reason: str
    lower_offset: int | None = None

    @property
    def explanation(self) -> str:
        """Why the read ends there, and why it stays there although the log's end fell."""
        if self.lower_offset is None:
            return self.reason
        return (
            f"{self.reason}; now it would be {self.lower_offset}, which is not loss: "
            "the end may fall until it is committed"
        )


@dataclass(frozen=True, slots=True)
class Split:
    """Offsets [start_offset, end_offset), both at batch boundaries where the plan could choose.

    ``spans``: every transaction that touches them. In an ordinary partition only aborted and open
    ones are named: all else is committed.
    """

    start_offset: int
    end_offset: int
    spans: tuple[TransactionSpan, ...] = ()


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """A range, divided into splits that lie one behind the other and cover it."""

    start_offset: int
    end_offset: int
    splits: tuple[Split, ...]
