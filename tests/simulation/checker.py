"""Whether what users heard can be true of one log, given what the log holds in the end.

Rules of this file:

1. Offsets are unique, so no search is needed: each promise is one pass over the book.
2. An unknown outcome may have come true or not. A refusal and a promise may not.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from raftlog.records.batch import RecordBatch, read_batch

from .invariants import BrokenPromiseError, Committed
from .users import Kind, Operation, Outcome


def values_by_offset(history: Iterable[Committed]) -> dict[int, bytes | None]:
    """What the one true log holds, without what it wrote about itself."""
    found: dict[int, bytes | None] = {}
    for committed in history:
        batch = read_batch(committed.data)
        assert isinstance(batch, RecordBatch)
        if not batch.is_control:
            found.update((record.offset, record.value) for record in batch.records())
    return found


def check_book(book: Sequence[Operation], history: Sequence[Committed]) -> None:
    """Hold everything that users were told against the log. Raises ``BrokenPromiseError``."""
    values = values_by_offset(history)
    offsets: dict[bytes, list[int]] = {}
    for offset, value in values.items():
        assert value is not None
        offsets.setdefault(value, []).append(offset)
    for operation in book:
        _check_places(operation, values, offsets)
        _check_token(operation)
    _check_checks(book, history)
    _check_real_time(book)


def _check_places(
    operation: Operation, values: dict[int, bytes | None], offsets: dict[bytes, list[int]]
) -> None:
    for at, value in enumerate(operation.values):
        found = offsets.get(value, [])
        if len(found) > 1:
            raise BrokenPromiseError(f"written twice, at {found}: {operation}")
        if operation.outcome is Outcome.DONE:
            assert operation.base_offset is not None
            if values.get(operation.base_offset + at) != value:
                raise BrokenPromiseError(f"acknowledged and not there: {operation}")
        if operation.outcome is Outcome.REFUSED and found:
            raise BrokenPromiseError(f"refused, and there at {found}: {operation}")
    places = [offsets[value][0] for value in operation.values if value in offsets]
    if places and (
        len(places) != len(operation.values) or places[-1] - places[0] != len(places) - 1
    ):
        raise BrokenPromiseError(f"not whole: {operation} lies at {places}")


def _check_token(operation: Operation) -> None:
    wanted = operation.required_base_offset
    if wanted is None or not operation.values:
        return
    if operation.outcome is Outcome.DONE and operation.base_offset != wanted:
        raise BrokenPromiseError(f"not where its token says: {operation}")
    if operation.outcome is Outcome.REFUSED and operation.told_end_offset == wanted:
        raise BrokenPromiseError(f"refused, and its token was right: {operation}")


def _check_checks(book: Sequence[Operation], history: Sequence[Committed]) -> None:
    """A check that succeeded: at some moment of it the log ended there, so whatever was done before
    it began lies below, and whatever began after it lies above."""
    ends = {one.next_offset for one in history} | {0}
    for operation in book:
        if operation.kind is not Kind.CHECK or operation.outcome is not Outcome.DONE:
            continue
        wanted = operation.required_base_offset
        if wanted not in ends:
            raise BrokenPromiseError(f"the log never ended there: {operation}")


def _check_real_time(book: Sequence[Operation]) -> None:
    """What was done before another thing began comes first in the log.

    Walk from the greatest end offset down, and remember the earliest return seen so far.
    """
    done = [one for one in book if one.outcome is Outcome.DONE]
    # Of equal ends an append comes before the checks of its end.
    done.sort(key=lambda one: (one.end_offset or 0, not one.values))
    earliest_us: int | None = None
    earliest: Operation | None = None
    for operation in reversed(done):
        if earliest_us is not None and operation.invoked_us > earliest_us:
            raise BrokenPromiseError(
                f"{operation} began after {earliest} was done, and is below it"
            )
        assert operation.returned_us is not None
        if earliest_us is None or operation.returned_us < earliest_us:
            earliest_us, earliest = operation.returned_us, operation
