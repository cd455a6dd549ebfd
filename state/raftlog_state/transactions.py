"""Metadata transactions: records between two markers count together, or not at all (KIP-868).

Rules of this file:

1. One transaction is open at a time. What lies in it waits until its end marker, over as many
   batches as it takes; an abort marker discards it, and moves the offset all the same.
2. Control records between the markers are the log's own and are not part of the transaction.

Source: KIP-868. Unlike Kafka's ``MetadataBatchLoader``, which may let records of an aborted
transaction through when more follow in the same read, an abort here always discards.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Final, TypeAlias

from raftlog.records.control import ControlRecord

from .image import TransactionOutcome, TransactionRow
from .records import (
    AbortTransactionRecord,
    BeginTransactionRecord,
    EndTransactionRecord,
    MetadataRecord,
    UnknownRecord,
)
from .replay import Position


@dataclass(frozen=True, slots=True)
class BeginMarker:
    """What follows waits. ``name`` says what for, if the writer gave one."""

    name: str | None
    record_name: ClassVar[str] = BeginTransactionRecord.schema.name


@dataclass(frozen=True, slots=True)
class EndMarker:
    """The transaction is over: committed, or aborted for a ``reason``."""

    outcome: TransactionOutcome
    reason: str | None

    @property
    def record_name(self) -> str:
        """``EndTransactionRecord`` or ``AbortTransactionRecord``."""
        return self._kind.schema.name

    @property
    def record_type(self) -> str:
        """``END_TRANSACTION_RECORD`` or ``ABORT_TRANSACTION_RECORD``."""
        return self._kind.schema.json_type

    @property
    def _kind(self) -> type[MetadataRecord]:
        aborted = self.outcome is TransactionOutcome.ABORTED
        return AbortTransactionRecord if aborted else EndTransactionRecord


Marker: TypeAlias = BeginMarker | EndMarker

MARKERS: Final = (
    BeginTransactionRecord,
    EndTransactionRecord,
    AbortTransactionRecord,
    UnknownRecord,
)
"""The types that ``marker_of`` may find a marker in: a quick look before it is asked."""

_BEGIN: Final = BeginTransactionRecord.schema.api_key
_END: Final = EndTransactionRecord.schema.api_key
_ABORT: Final = AbortTransactionRecord.schema.api_key


def marker_of(record: MetadataRecord | UnknownRecord) -> Marker | None:
    """The marker that a record is, or None.

    A marker in a version that is not known is still a marker: skipping it would leave a
    transaction open for ever, or let half of one be seen.
    """
    api_key = record.api_key if isinstance(record, UnknownRecord) else record.schema.api_key
    if api_key == _BEGIN:
        return BeginMarker(record.name if isinstance(record, BeginTransactionRecord) else None)
    if api_key == _END:
        return EndMarker(TransactionOutcome.COMMITTED, None)
    if api_key == _ABORT:
        reason = record.reason if isinstance(record, AbortTransactionRecord) else None
        return EndMarker(TransactionOutcome.ABORTED, reason)
    return None


@dataclass(slots=True)
class OpenTransaction:
    """A transaction that has begun. ``begin_offset`` is its marker's own offset."""

    begin_offset: int
    name: str | None
    records: list[tuple[Position, MetadataRecord | UnknownRecord]] = field(default_factory=list)
    controls: list[tuple[Position, ControlRecord]] = field(default_factory=list)
    record_count: int = 0

    def sizes(self) -> tuple[int, int, int]:
        """How much it holds, to come back to."""
        return len(self.records), len(self.controls), self.record_count

    def truncate(self, sizes: tuple[int, int, int]) -> None:
        """Forget what came after ``sizes`` was asked for."""
        record_count, control_count, self.record_count = sizes
        del self.records[record_count:]
        del self.controls[control_count:]

    def to_row(self, end: EndMarker, marker_offset: int) -> TransactionRow:
        """The row of the transaction once its marker was read."""
        return TransactionRow(
            begin_offset=self.begin_offset,
            end_offset=marker_offset + 1,
            outcome=end.outcome,
            name=self.name,
            reason=end.reason,
            record_count=self.record_count,
        )
