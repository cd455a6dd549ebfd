"""Check the results of a simulated cluster's users against the log, with `tests.judge`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

from raftlog.records.batch import RecordBatch, read_batch
from tests.judge.history import Append, FinalLog
from tests.judge.history import Outcome as Judged
from tests.judge.linearizability import anomalies

from .invariants import Committed, InvariantViolationError
from .users import Operation, Outcome

_OUTCOMES: Final = {
    Outcome.DONE: Judged.OK,
    Outcome.REFUSED: Judged.REFUSED,
    Outcome.UNKNOWN: Judged.UNKNOWN,
    Outcome.OPEN: Judged.UNKNOWN,
}
_OF_A_USER: Final = re.compile(rb"\d+:\d+:\.*")
"""Values of ``users``; the counters check their own."""


def final_log(history: Iterable[Committed]) -> FinalLog:
    """Return the users' records of the committed log, and its end offset."""
    values: dict[int, bytes] = {}
    ends = {0}
    for committed in history:
        batch = read_batch(committed.data)
        assert isinstance(batch, RecordBatch)
        ends.add(committed.next_offset)
        if not batch.is_control:
            # of appends in one batch, deletions are not in the book
            ends.update(record.offset + 1 for record in batch.records() if record.value is None)
            values.update(
                (record.offset, record.value)
                for record in batch.records()
                if record.value is not None and _OF_A_USER.fullmatch(record.value)
            )
    return FinalLog(values, frozenset(ends))


def judged(number: int, operation: Operation) -> Append:
    """Return an operation as a call of the history."""
    is_done = operation.outcome is Outcome.DONE
    returned_us = operation.returned_us
    return Append(
        client=number,
        invoked=operation.invoked_us,
        returned=operation.invoked_us if returned_us is None else returned_us,
        outcome=_OUTCOMES[operation.outcome],
        values=operation.values,
        required_base_offset=operation.required_base_offset,
        base_offset=operation.base_offset if is_done else None,
        observed_end_offset=operation.refused_end_offset,
    )


def check_book(book: Sequence[Operation], history: Sequence[Committed]) -> None:
    """Raise ``InvariantViolationError`` if no order of the operations explains results and log."""
    calls = [judged(number, operation) for number, operation in enumerate(book)]
    for anomaly in anomalies(calls, final_log(history)):
        raise InvariantViolationError(f"linearizability: {anomaly}")
