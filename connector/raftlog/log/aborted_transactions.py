"""What becomes of producers' transactions, found by whoever reads their records.

A record of an ordinary transaction is decided by the first marker of its producer behind it, so all
that is needed lies ahead: headers are read on from the record until that marker. ``.txnindex``
would name the aborted ones sooner, but has no checksum, and what is missing in it shows nowhere.

Rules of this file:

1. Ranges are asked for in ascending order and no header is read twice; going back begins anew.
2. Only what is aborted or open is kept, from the range that was asked for last to where reading
   had to go to decide it.
3. Damage hides only what it may have decided: all before that is told.
4. Kafka: KIP-98, ``ProducerStateManager``.
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
    """What is not committed in a range, and how far that is known.

    ``spans`` are complete below ``known_end`` (exclusive), which is the range's end unless
    ``error`` says why not: damage, or a log that ends before it decided.
    """

    spans: tuple[TransactionSpan, ...]
    known_end: int
    error: LogError | None = None


class AbortedTransactionsReader:
    """Reads ahead from ``start_offset``, as far as it must. Not shared between threads."""

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
        self._ahead: list[tuple[int, int, TransactionSpan]] = []
        self._here: list[TransactionSpan] = []

    def can_continue_at(self, start_offset: int) -> bool:
        """Whether nothing was forgotten that is needed from there on, and nothing skipped."""
        return self._requested_from <= start_offset <= self._cursor.next_offset

    def aborted_transactions(self, start_offset: int, end_offset: int) -> AbortedTransactions:
        """What is not committed of the batches that overlap [start_offset, end_offset).

        Raises what keeps the files from being read; damage is told, not raised.
        """
        assert self.can_continue_at(start_offset), "ranges ascend, or another one begins"
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
        """Those that touch a range. Each is looked at where it lies, however far ahead others are.

        They come in the order of their markers, and ranges ask for them in that of their records.
        """
        for span in self._transactions.drain_ended():
            heapq.heappush(self._ahead, (span.first_offset, span.producer_id, span))
        while self._ahead and self._ahead[0][0] < end_offset:
            self._here.append(heapq.heappop(self._ahead)[2])
        self._here = [span for span in self._here if not span.ended_before(start_offset)]
        return tuple(self._here)

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
            reason=f"the log ends at offset {self._cursor.next_offset} now, and does not tell what "
            f"became of the transaction at {offset}",
            remedy="the node truncated it, or this is another copy: plan the read again",
        )
