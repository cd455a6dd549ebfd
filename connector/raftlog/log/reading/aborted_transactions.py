"""Transaction markers among a log's records, and the transactions that were aborted."""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import Final

import numpy as np

from raftlog.errors import CorruptBatchError, DataLossError, LogError, LogGapError
from raftlog.records.batch_columns import Column, Scan
from raftlog.records.control import (
    ControlRecord,
    ControlType,
    EndTransactionMarker,
    KRaftVoters,
    LeaderChange,
    decode_control,
)
from raftlog.types import ReplicaKey

from .chunks import HeaderChunk, HeaderDecoder
from .files import LogCursor, LogFiles
from .transactions import (
    FRAME_VERSION,
    Marker,
    TransactionIndex,
    TransactionSpan,
    marker_of,
    transaction_name,
)

# --- Search for transaction markers and voters in the records of a log ----------------------------
# Of the metadata records, the log layer knows only the three that delimit a transaction (KIP-868).
# Their values begin with frame version 1 and api key 23, 24 or 25.
#
# Kafka: ``BeginTransactionRecord``, ``EndTransactionRecord``, ``AbortTransactionRecord``,
# ``LeaderChangeMessage``, ``VotersRecord``.

MARKER_COLUMNS: Final = Column.OFFSET | Column.KEY | Column.VALUE
"""Columns that the search for markers and voters needs in a scan."""
MARKER_PREFIXES: Final = tuple(bytes((FRAME_VERSION, marker)) for marker in Marker)
"""First bytes of the values that are markers. The search needs no rows for other values."""


@dataclass(frozen=True, slots=True)
class VoterSet:
    """Voters from ``offset`` on. Directory ids are known only with KIP-853."""

    offset: int
    voters: tuple[ReplicaKey, ...]


def add_metadata_markers(chunk: Scan, transactions: TransactionIndex, *, from_offset: int) -> None:
    """Add the transaction markers of a metadata log's scan, from ``from_offset`` on.

    The scan must have the rows of ``MARKER_PREFIXES``.
    """
    records = chunk.records
    assert records.offset is not None, "MARKER_COLUMNS were read"
    assert records.value is not None, "MARKER_COLUMNS were read"
    for row in np.flatnonzero(~records.is_control).tolist():
        offset = records.offset[row].as_py()
        value = records.value[row].as_py()
        marker = marker_of(value)
        if marker is None or offset < from_offset:
            continue
        name = transaction_name(value) if marker is Marker.BEGIN else None
        transactions.metadata_marker(
            marker,
            offset,
            batch_base_offset=int(chunk.batches.base_offset[records.batch_ordinal[row]]),
            name=name,
        )


def add_producer_transactions(
    chunk: HeaderChunk, transactions: TransactionIndex, *, from_offset: int
) -> None:
    """Add producers' transactions from the batch headers of an ordinary partition."""
    batches = chunk.batches
    control = dict(chunk.control)
    chosen = batches.is_transactional & (batches.last_offset >= from_offset)
    for ordinal in np.flatnonzero(chosen).tolist():
        producer_id = int(batches.producer_id[ordinal])
        batch = control.get(ordinal)
        if batch is None:
            transactions.open_transaction(
                producer_id, first_offset=int(batches.base_offset[ordinal])
            )
            continue
        for record in batch.records():
            marker = decode_control(record.key, record.value)
            if isinstance(marker, EndTransactionMarker):
                commit = marker.control_type is ControlType.COMMIT
                transactions.end_transaction(
                    producer_id, marker_offset=record.offset, commit=commit
                )


def last_voters(chunk: Scan, known: VoterSet | None, path: str) -> VoterSet | None:
    """Return the voters after a scan of a metadata log, given those before it.

    A leader change may lack directory ids, so it replaces a voter set only if the node ids differ.
    Raises ``CorruptBatchError`` if a control record cannot be parsed.
    """
    if not chunk.records.is_control.any():
        return known
    for row in _last_rows(chunk):
        match _control_at(chunk, row, path):
            case KRaftVoters() as control:
                known = VoterSet(_offset_at(chunk, row), replica_keys(control))
            case LeaderChange() as control:
                voters = tuple(
                    ReplicaKey(voter.voter_id, voter.voter_directory_id) for voter in control.voters
                )
                if known is None or _node_ids(known.voters) != _node_ids(voters):
                    known = VoterSet(_offset_at(chunk, row), voters)
            case _:
                pass
    return known


def _last_rows(chunk: Scan) -> list[int]:
    """Return the rows that decide: the last voter set, and the last leader change if later."""
    assert chunk.records.key is not None, "MARKER_COLUMNS were read"
    last: dict[bytes, int] = {}
    for row in np.flatnonzero(chunk.records.is_control).tolist():
        key = chunk.records.key[row].as_py() or b""
        last[key[2:4]] = row
    voters = last.get(_type_bytes(ControlType.KRAFT_VOTERS), -1)
    leader = last.get(_type_bytes(ControlType.LEADER_CHANGE), -1)
    return [row for row in (voters, leader) if row >= 0 and row >= voters]


def _type_bytes(control_type: ControlType) -> bytes:
    return int(control_type).to_bytes(2, "big")


def _offset_at(chunk: Scan, row: int) -> int:
    assert chunk.records.offset is not None, "MARKER_COLUMNS were read"
    offset: int = chunk.records.offset[row].as_py()
    return offset


def _control_at(chunk: Scan, row: int, path: str) -> ControlRecord:
    records = chunk.records
    assert records.key is not None, "MARKER_COLUMNS were read"
    assert records.value is not None, "MARKER_COLUMNS were read"
    try:
        return decode_control(records.key[row].as_py(), records.value[row].as_py())
    except CorruptBatchError as error:
        position = int(chunk.batches.position[records.batch_ordinal[row]])
        raise CorruptBatchError(
            reason=error.reason, path=path, position=position, offset=_offset_at(chunk, row)
        ) from None


def replica_keys(record: KRaftVoters) -> tuple[ReplicaKey, ...]:
    """Return the voters of a record."""
    return tuple(ReplicaKey(voter.voter_id, voter.voter_directory_id) for voter in record.voters)


def _node_ids(voters: tuple[ReplicaKey, ...]) -> set[int]:
    return {voter.node_id for voter in voters}


# --- Aborted and open transactions of a range of an ordinary partition, found by reading ahead ----
# A transactional record's outcome is its producer's next marker, so headers are read from the
# record up to that marker (KIP-98, ``ProducerStateManager``). ``.txnindex`` lists aborted
# transactions without this, but it has no checksum, and a missing entry cannot be detected.
#
# Ranges are requested in ascending order, and no header is read twice. Only aborted and open
# transactions from the last requested range on are kept. After damage, the outcomes decided before
# it remain known.


@dataclass(frozen=True, slots=True)
class AbortedTransactions:
    """Transactions of a range that are not committed.

    ``spans`` are complete below ``known_end`` (exclusive). This is the end of the range unless
    ``error`` is set, because of damage or because the log ends before a transaction's outcome.
    """

    spans: tuple[TransactionSpan, ...]
    known_end: int
    error: LogError | None = None


class AbortedTransactionsReader:
    """Reader of transaction outcomes from ``start_offset`` on. Not thread-safe."""

    def __init__(
        self, files: LogFiles, start_offset: int, *, contiguous: bool, log_end_offset: int | None
    ) -> None:
        self._files = files
        self._start_offset = start_offset
        self._log_end_offset = log_end_offset
        self._cursor = LogCursor(files, start_offset, contiguous=contiguous)
        self._damage: LogError | None = None
        self._requested_from = start_offset
        self._transactions = TransactionIndex(
            files.path, complete_from=start_offset, retained_max=None, retains_committed=False
        )
        self._later: list[tuple[int, int, TransactionSpan]] = []
        self._overlapping: list[TransactionSpan] = []

    def can_continue_at(self, start_offset: int) -> bool:
        """Return whether the transactions of a range from ``start_offset`` on are still known."""
        return self._requested_from <= start_offset <= self._cursor.next_offset

    def aborted_transactions(self, start_offset: int, end_offset: int) -> AbortedTransactions:
        """Return the uncommitted transactions of batches that overlap [start_offset, end_offset).

        Damage is not raised, but stored as ``error`` of the result. Raises ``LogAccessError``,
        ``SegmentDeletedError`` or ``DataLossError`` if a file cannot be read or the log was
        truncated.
        """
        assert self.can_continue_at(start_offset), (
            "ranges ascend: open another reader for an earlier one"
        )
        self._requested_from = start_offset
        try:
            self._read_on(end_offset)
        except (CorruptBatchError, LogGapError) as error:
            self._damage = error
        aborted = self._aborted(start_offset, end_offset)
        undecided = self._transactions.spans(start_offset, end_offset, with_committed=False)
        known_end = min(
            [end_offset, self._cursor.next_offset, *(span.first_offset for span in undecided)]
        )
        if known_end >= end_offset:
            return AbortedTransactions(aborted, end_offset)
        tail = self._cursor.tail
        why = self._damage or (tail.error if tail is not None else None)
        return AbortedTransactions(aborted, known_end, why or self._truncated_error(known_end))

    def _aborted(self, start_offset: int, end_offset: int) -> tuple[TransactionSpan, ...]:
        """Return the aborted transactions that overlap a range.

        Transactions end in the order of their markers, but are requested in the order of their
        first offsets. Therefore a heap keeps those that begin after the range.
        """
        for span in self._transactions.drain_ended():
            heapq.heappush(self._later, (span.first_offset, span.producer_id, span))
        while self._later and self._later[0][0] < end_offset:
            self._overlapping.append(heapq.heappop(self._later)[2])
        self._overlapping = [
            span for span in self._overlapping if not span.ended_before(start_offset)
        ]
        return tuple(self._overlapping)

    def _read_on(self, end_offset: int) -> None:
        if self._damage is not None or self._is_decided(end_offset):
            return
        for chunk in self._cursor.read(HeaderDecoder(), self._log_end_offset):
            add_producer_transactions(chunk, self._transactions, from_offset=self._start_offset)
            if self._is_decided(end_offset):
                return

    def _is_decided(self, end_offset: int) -> bool:
        return self._cursor.next_offset >= end_offset and not self._transactions.opened_before(
            end_offset
        )

    def _truncated_error(self, offset: int) -> DataLossError:
        return DataLossError(
            path=self._files.path,
            condition="LOG_TRUNCATED",
            reason=f"the log now ends at offset {self._cursor.next_offset}, before the outcome of "
            f"the transaction at offset {offset}",
            remedy="the log was truncated or replaced by another copy: plan the read again",
        )
