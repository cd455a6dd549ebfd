"""Which offsets belong to transactions, and how those ended.

Two kinds of transactions exist, and one bookkeeping serves both:

- In a metadata log (KIP-868) the records Begin, End and Abort lie among the others, one transaction
  at a time. Records become visible at the End.
- In an ordinary partition (KIP-98) batches say that they are transactional and whose; a control
  batch ends the open transaction of its producer. Many producers may have one open at once.

Rules of this file:

1. Nothing is read here: markers and headers come in, in the order of the log.
2. A Begin inside a transaction, and an End or Abort outside one, contradict Kafka's rules. They
   change nothing, are kept as ``problems``, and stop only who asks for committed records. Before
   the first marker of a log whose beginning is gone, an End is no contradiction.
3. Kafka: ``MetadataBatchLoader``, ``ProducerStateManager``, ``TransactionIndex``.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from raftlog.errors import TransactionMarkerError

METADATA_PRODUCER_ID: Final = -1
"""Stands for "the metadata log" where a producer's id is asked for."""


class Outcome(enum.Enum):
    """How a transaction ended, as far as the log was read."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    OPEN = "open"


class Marker(enum.IntEnum):
    """The three metadata records that frame a transaction, by their api key."""

    BEGIN = 23
    END = 24
    ABORT = 25


@dataclass(frozen=True, slots=True)
class TransactionSpan:
    """Offsets of one transaction.

    From ``first_offset`` to ``marker_offset``, both inclusive; ``marker_offset`` is that of the
    record that ended it, or None while it is open. In a metadata log every record between belongs
    to it, and ``producer_id`` is -1. In an ordinary partition only the transactional batches of
    ``producer_id`` do. ``name`` is what a metadata transaction calls itself.
    """

    first_offset: int
    marker_offset: int | None
    outcome: Outcome
    producer_id: int = METADATA_PRODUCER_ID
    name: str | None = None

    def touches(self, start_offset: int, end_offset: int) -> bool:
        """Whether any offset in [start_offset, end_offset) may belong to it."""
        return self.first_offset < end_offset and not self.ended_before(start_offset)

    def ended_before(self, offset: int) -> bool:
        """Whether its marker lies below ``offset``."""
        return self.marker_offset is not None and self.marker_offset < offset


@dataclass(frozen=True, slots=True)
class _RetainedSpan:
    """A span and where the batch that holds its first record begins: a micro-batch ends there."""

    span: TransactionSpan
    batch_base_offset: int


class TransactionIndex:
    """The open transactions of a log, and its latest ended ones, as the log is read on.

    ``complete_from``: every transaction whose marker lies there or behind is known; the oldest
    ended ones are dropped beyond ``retained_max``. Producers' committed ones are dropped at once if
    ``retains_committed`` is false: then ``last_stable_offset`` has no answer for the past.
    """

    def __init__(
        self,
        path: str,
        *,
        complete_from: int,
        retained_max: int | None,
        retains_committed: bool = True,
    ) -> None:
        self.path = path
        self.complete_from = complete_from
        self.problems: list[TransactionMarkerError] = []
        self._retained_max = retained_max
        self._retains_committed = retains_committed
        self._open: dict[int, _RetainedSpan] = {}
        self._ended: deque[_RetainedSpan] = deque()
        self._may_be_open_until_marker = False

    def assume_open_transaction_at(self, start_offset: int) -> None:
        """Say that a metadata transaction may be open at the log's start: nobody knows."""
        self.complete_from = start_offset
        self._may_be_open_until_marker = True

    def copy(self) -> TransactionIndex:
        """A book that goes on by itself from here."""
        copied = TransactionIndex(
            self.path,
            complete_from=self.complete_from,
            retained_max=self._retained_max,
            retains_committed=self._retains_committed,
        )
        copied.problems = self.problems.copy()
        copied._open = self._open.copy()
        copied._ended = self._ended.copy()
        copied._may_be_open_until_marker = self._may_be_open_until_marker
        return copied

    # --- what the log says ------------------------------------------------------------------------

    def open_transaction(self, producer_id: int, first_offset: int) -> None:
        """A batch of an ordinary transaction: its first one opens it."""
        if producer_id not in self._open:
            span = TransactionSpan(first_offset, None, Outcome.OPEN, producer_id)
            self._open[producer_id] = _RetainedSpan(span, first_offset)

    def end_transaction(self, producer_id: int, marker_offset: int, *, commit: bool) -> None:
        """A control batch. One that ends nothing is normal: its transaction wrote elsewhere."""
        kept = self._open.pop(producer_id, None)
        if kept is not None and (self._retains_committed or not commit):
            outcome = Outcome.COMMITTED if commit else Outcome.ABORTED
            self._end(kept, marker_offset, outcome)

    def metadata_marker(
        self, marker: Marker, offset: int, *, batch_base_offset: int, name: str | None = None
    ) -> None:
        """A Begin, End or Abort of a metadata log."""
        inside_since_start = self._may_be_open_until_marker
        self._may_be_open_until_marker = False
        is_open = METADATA_PRODUCER_ID in self._open
        if marker is Marker.BEGIN:
            if is_open:
                self._problem(offset, "a transaction begins inside another one")
                return
            span = TransactionSpan(offset, None, Outcome.OPEN, METADATA_PRODUCER_ID, name)
            self._open[METADATA_PRODUCER_ID] = _RetainedSpan(span, batch_base_offset)
            return
        outcome = Outcome.COMMITTED if marker is Marker.END else Outcome.ABORTED
        if is_open:
            self._end(self._open.pop(METADATA_PRODUCER_ID), offset, outcome)
        elif inside_since_start:
            start = self.complete_from
            span = TransactionSpan(start, None, Outcome.OPEN, METADATA_PRODUCER_ID)
            self._end(_RetainedSpan(span, start), offset, outcome)
        else:
            self._problem(offset, f"a transaction ends ({marker.name}) where none is open")

    # --- what follows from it ---------------------------------------------------------------------

    def open_now(self) -> tuple[tuple[TransactionSpan, int], ...]:
        """The open transactions, each with the base offset of the batch that it begins in."""
        return tuple((kept.span, kept.batch_base_offset) for kept in self._open.values())

    def opened_before(self, offset: int) -> bool:
        """Whether a transaction that began below ``offset`` is still open."""
        return any(kept.span.first_offset < offset for kept in self._open.values())

    def spans(
        self, start_offset: int, end_offset: int, *, with_committed: bool
    ) -> tuple[TransactionSpan, ...]:
        """What touches [start_offset, end_offset), by first offset.

        Complete only if ``start_offset`` is not below ``complete_from``. A transaction whose
        marker lies at ``end_offset`` or behind shows its outcome if that was read.
        """
        found = [
            kept.span
            for kept in self._all_from(start_offset)
            if kept.span.first_offset < end_offset
            and (with_committed or kept.span.outcome is not Outcome.COMMITTED)
        ]
        return tuple(sorted(found, key=lambda span: (span.first_offset, span.producer_id)))

    def last_stable_offset(self, end_offset: int) -> int:
        """The last stable offset of a log whose end is ``end_offset`` (exclusive).

        Nothing below it belongs to a transaction that is undecided below ``end_offset``. In a
        metadata log it is a batch boundary outside every transaction; a batch may hold the end of
        one transaction and the beginning of the next, so that one step back is not always enough.
        """
        stable = end_offset
        while True:
            undecided = self._undecided(stable)
            lowest = min((kept.batch_base_offset for kept in undecided), default=stable)
            if lowest >= stable:
                return stable
            stable = lowest
            if any(kept.span.producer_id != METADATA_PRODUCER_ID for kept in undecided):
                return stable

    def first_problem(self, start_offset: int, end_offset: int) -> TransactionMarkerError | None:
        """The first contradiction in [start_offset, end_offset)."""
        inside = (error for error in self.problems if start_offset <= error.offset < end_offset)
        return next(inside, None)

    def retain_all(self, *, with_committed: bool) -> None:
        """Drop no ended transaction from here on, but by ``drop_ended_before``."""
        self._retained_max = None
        self._retains_committed = with_committed

    def drop_ended_before(self, offset: int) -> None:
        """Drop the transactions that were over before ``offset``."""
        while self._ended and self._ended[0].span.ended_before(offset):
            self._ended.popleft()
        self.complete_from = max(self.complete_from, offset)

    def drain_ended(self) -> list[TransactionSpan]:
        """Hand over the ended transactions, by their markers, and keep none of them."""
        taken = [kept.span for kept in self._ended]
        self._ended.clear()
        return taken

    def _undecided(self, end_offset: int) -> list[_RetainedSpan]:
        """What began below ``end_offset`` and did not end there. Markers ascend: few are seen."""
        return [kept for kept in self._all_from(end_offset) if kept.span.first_offset < end_offset]

    def _all_from(self, offset: int) -> Iterator[_RetainedSpan]:
        """The open transactions, and the ended ones whose markers are not below ``offset``."""
        yield from self._open.values()
        for kept in reversed(self._ended):
            if kept.span.ended_before(offset):
                return
            yield kept

    def _end(self, kept: _RetainedSpan, marker_offset: int, outcome: Outcome) -> None:
        span = replace(kept.span, marker_offset=marker_offset, outcome=outcome)
        self._ended.append(replace(kept, span=span))
        if self._retained_max is not None and len(self._ended) > self._retained_max:
            dropped = self._ended.popleft().span.marker_offset
            assert dropped is not None, "an ended transaction has a marker"
            self.complete_from = max(self.complete_from, dropped + 1)

    def _problem(self, offset: int, reason: str) -> None:
        self.problems.append(TransactionMarkerError(path=self.path, offset=offset, reason=reason))


def spans_by_range(
    spans: Sequence[TransactionSpan], ranges: Iterable[tuple[int, int]]
) -> Iterator[tuple[TransactionSpan, ...]]:
    """Those of ``spans`` that touch each of ``ranges``; both ascend, and no range overlaps another.

    No span is looked at again behind its end: logs have many of both.
    """
    coming = iter(spans)
    following = next(coming, None)
    current: list[TransactionSpan] = []
    for start_offset, end_offset in ranges:
        while following is not None and following.first_offset < end_offset:
            current.append(following)
            following = next(coming, None)
        current = [span for span in current if span.touches(start_offset, end_offset)]
        yield tuple(current)
