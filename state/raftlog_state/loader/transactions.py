"""Metadata transactions: records between two markers that are applied atomically (KIP-868).

At most one transaction is open. Its records are buffered across batches until the end marker; an
abort marker discards them and still advances the offset. Control records between the markers are
not part of the transaction.

Kafka's ``MetadataBatchLoader`` may apply records of an aborted transaction if more records follow
in the same read; here an abort marker always discards them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Final, TypeAlias

from raftlog.records.control import ControlRecord
from raftlog_state.image import TransactionOutcome, TransactionRow
from raftlog_state.records import (
    AbortTransactionRecord,
    BeginTransactionRecord,
    EndTransactionRecord,
    MetadataRecord,
    UnknownRecord,
)
from raftlog_state.replay import Position


@dataclass(frozen=True, slots=True)
class BeginMarker:
    """Begin marker; ``name`` is the writer's description of the transaction, if any."""

    name: str | None
    record_name: ClassVar[str] = BeginTransactionRecord.schema.name


@dataclass(frozen=True, slots=True)
class EndMarker:
    """End or abort marker; ``reason`` is the writer's reason for an abort."""

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
"""Types for which ``marker_of`` may return a marker: a fast check before the call."""

_BEGIN: Final = BeginTransactionRecord.schema.api_key
_END: Final = EndTransactionRecord.schema.api_key
_ABORT: Final = AbortTransactionRecord.schema.api_key


def marker_of(record: MetadataRecord | UnknownRecord) -> Marker | None:
    """Return the transaction marker that a record is, or None.

    A marker in an unknown version is still a marker: without it a transaction would stay open, or
    its first records would be applied.
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
    """Transaction that has no end marker yet. ``begin_offset`` is the begin marker's offset."""

    begin_offset: int
    name: str | None
    records: list[tuple[Position, MetadataRecord | UnknownRecord]] = field(default_factory=list)
    controls: list[tuple[Position, ControlRecord]] = field(default_factory=list)
    record_count: int = 0

    def sizes(self) -> tuple[int, int, int]:
        """Return the sizes to truncate to (see ``truncate``)."""
        return len(self.records), len(self.controls), self.record_count

    def truncate(self, sizes: tuple[int, int, int]) -> None:
        """Discard the records appended after ``sizes`` was taken."""
        record_count, control_count, self.record_count = sizes
        del self.records[record_count:]
        del self.controls[control_count:]

    def to_row(self, end: EndMarker, marker_offset: int) -> TransactionRow:
        """Return the row of the transaction that ``end``, at ``marker_offset``, completes."""
        return TransactionRow(
            begin_offset=self.begin_offset,
            end_offset=marker_offset + 1,
            outcome=end.outcome,
            name=self.name,
            reason=end.reason,
            record_count=self.record_count,
        )
