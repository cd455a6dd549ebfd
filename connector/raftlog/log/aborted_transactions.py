"""Aborted and open transactions of a range of an ordinary partition, found by reading ahead.

The outcome of a transactional record is its producer's next marker, so headers are read from the
record up to that marker (KIP-98, ``ProducerStateManager``). ``.txnindex`` would list aborted
transactions sooner, but it has no checksum, and a missing entry cannot be detected.

Ranges are requested in ascending order and no header is read twice. Only aborted and open
transactions are kept, from the last requested range on. After damage, outcomes decided before it
remain known.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

from raftlog.errors import CorruptBatchError, DataLossError, LogError, LogGapError

from .chunks import HeaderDecoder
from .cursor import LogCursor
from .files import LogFiles
from .transaction_markers import add_producer_transactions
from .transactions import TransactionIndex, TransactionSpan


@dataclass(frozen=True, slots=True)
class AbortedTransactions:
    """Transactions of a range that are not committed.

    ``spans`` are complete below ``known_end`` (exclusive). ``known_end`` is the end of the range,
    unless ``error`` is set: damage, or a log that ends before the outcome of a transaction.
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

        Damage is not raised: it is ``error`` of the result. Raises ``LogAccessError``,
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

        Transactions end in the order of their markers and are requested in the order of their first
        offsets: a heap holds those that begin after the range.
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
