"""Visibility of records by their transactions.

In a metadata log, at most one transaction is open, and all records between its markers belong to it
(KIP-868). Once committed, they are visible from its end marker on. In other logs, a transaction
belongs to a producer, and records of other producers are interleaved (KIP-98). Once committed, its
records are visible from their own offsets on. The task that reads the records finds the markers.
Records of aborted and open transactions are not visible.

    metadata log  offset    10     11  12  13  14       producers  offset   20  21  22  23
                  record    BEGIN  a   b   c   END                 record   p1  p2  p1  p1 aborts
                  visible   14     14  14  14  14                  visible  -1  21  -1
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np
import numpy.typing as npt

from raftlog.client import Outcome, TransactionSpan

if TYPE_CHECKING:
    from raftlog.client import LogReader
    from raftlog.errors import LogError
    from raftlog.records.scan import BatchColumns, Scan

Bools = npt.NDArray[np.bool_]
Int64s = npt.NDArray[np.int64]

NEVER: Final = -1
"""Visible offset of a record of an aborted or open transaction."""


@dataclass(frozen=True, slots=True)
class Visibility:
    """Visible offset (or ``NEVER``) of each record, and whether its transaction was aborted.

    If ``known_end`` is set, records from there on are unknown, because of ``error``.
    """

    offset: Int64s
    aborted: Bools
    known_end: int | None = None
    error: LogError | None = None


def transactional_producers(batches: BatchColumns) -> Int64s:
    """Return the producer whose transaction contains or ends with each batch; -1 without one."""
    return np.where(batches.is_transactional, batches.producer_id, -1)


class TransactionLookup(Protocol):
    """Lookup of the visibility of a scan's records."""

    def visibility(self, scan: Scan, offset: Int64s) -> Visibility:
        """Return the visibility of the records of ``scan``, whose offsets are ``offset``."""
        ...


class ProducerTransactions:
    """Transactions of an ordinary partition, found in the log when their records are read.

    The log is searched only if a scan has transactional records.
    """

    def __init__(self, log: LogReader) -> None:
        self._log = log

    def visibility(self, scan: Scan, offset: Int64s) -> Visibility:
        """Return the visibility of the records of ``scan``; scans must be in offset order."""
        batches = scan.batches
        if not (batches.is_transactional & ~batches.is_control).any():
            return Transactions.none().visibility(scan, offset)
        found = self._log.aborted_transactions(
            int(batches.base_offset[0]), int(batches.next_offset[-1])
        )
        visibility = Transactions(found.spans, is_metadata=False).visibility(scan, offset)
        if found.error is None:
            return visibility
        return replace(visibility, known_end=found.known_end, error=found.error)


class Transactions:
    """Transactions that overlap a range."""

    def __init__(self, spans: Sequence[TransactionSpan], *, is_metadata: bool) -> None:
        self._is_metadata = is_metadata
        self._by_producer = {
            producer_id: _Spans([span for span in spans if span.producer_id == producer_id])
            for producer_id in {span.producer_id for span in spans}
        }

    @classmethod
    def none(cls) -> Transactions:
        """Return a lookup for records outside of transactions, such as a snapshot's."""
        return cls((), is_metadata=True)

    def visibility(self, scan: Scan, offset: Int64s) -> Visibility:
        """Return the visibility of the records of ``scan``, whose offsets are ``offset``."""
        if self._is_metadata:
            return self._of_metadata(offset)
        visible, aborted = self._of_batches(scan.batches)
        ordinal = scan.records.batch_ordinal
        of_batch = visible[ordinal]
        return Visibility(np.where(of_batch == _OWN, offset, of_batch), aborted[ordinal])

    def _of_metadata(self, offset: Int64s) -> Visibility:
        aborted = np.zeros(len(offset), dtype=np.bool_)
        visible = offset.copy() if self._by_producer else offset
        for spans in self._by_producer.values():
            inside, which = spans.find(offset, last_is_inside=True)
            visible[inside] = spans.visible[which[inside]]
            aborted[inside] = spans.aborted[which[inside]]
        return Visibility(visible, aborted)

    def _of_batches(self, batches: BatchColumns) -> tuple[Int64s, Bools]:
        visible = np.full(len(batches), _OWN, dtype=np.int64)
        aborted = np.zeros(len(batches), dtype=np.bool_)
        transactional = batches.is_transactional & ~batches.is_control
        for producer_id in np.unique(batches.producer_id[transactional]):
            own = np.flatnonzero(transactional & (batches.producer_id == producer_id))
            spans = self._by_producer.get(int(producer_id))
            if spans is not None:
                inside, which = spans.find(batches.base_offset[own], last_is_inside=False)
                visible[own] = np.where(inside & ~spans.committed[which], NEVER, _OWN)
                aborted[own] = inside & spans.aborted[which]
        return visible, aborted


_OWN: Final = -2
_OPEN_END: Final = np.iinfo(np.int64).max


class _Spans:
    """Transactions of one producer or of the controller, which do not overlap."""

    def __init__(self, spans: Sequence[TransactionSpan]) -> None:
        ordered = sorted(spans, key=lambda span: span.first_offset)
        outcome = [span.outcome for span in ordered]
        marker = [_OPEN_END if s.marker_offset is None else s.marker_offset for s in ordered]
        self._first = np.array([span.first_offset for span in ordered], dtype=np.int64)
        self._marker = np.array(marker, dtype=np.int64)
        self.committed = np.array([o is Outcome.COMMITTED for o in outcome])
        self.visible = np.where(self.committed, self._marker, NEVER)
        self.aborted = np.array([o is Outcome.ABORTED for o in outcome])

    def find(self, offset: Int64s, *, last_is_inside: bool) -> tuple[Bools, Int64s]:
        """Return which offsets are in a transaction, and its index (arbitrary if in none)."""
        which = np.searchsorted(self._first, offset, side="right") - 1
        marker = self._marker[which]
        inside = (which >= 0) & ((offset <= marker) if last_is_inside else (offset < marker))
        return inside, which
