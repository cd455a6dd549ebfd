"""Conditions on keys of a simulated cluster's users, and the invariants of their results.

Invariants:

1. A user reads the committed log, or has read an earlier end of it.
2. The keys of an append that succeeded had the offsets that its user has read, in the committed
   log up to the append.
3. A refusal of a changed key has a committed record of that key which the user has not read.
"""

from __future__ import annotations

from collections.abc import Iterable
from random import Random
from typing import TYPE_CHECKING, Final

from raftlog.log.writing.key_offsets import UnchangedKeys
from raftlog.records.batch import RecordBatch, read_batch
from raftlog.records.record import NewRecord

from .invariants import Committed, InvariantViolationError, Witness

if TYPE_CHECKING:
    from .users import Operation

KEYS: Final = (b"a", b"b", b"c", b"d")


class KeyedAppends:
    """Conditions of appends, by what is committed."""

    def __init__(self, witness: Witness) -> None:
        self._witness = witness
        self._count = 0
        self._offsets: dict[bytes, int] = {}
        self._read = UnchangedKeys(dict.fromkeys(KEYS))

    def drawn(self, chance: Random) -> UnchangedKeys:
        """Return the condition of an append, for what its user has read now or before."""
        if chance.random() < 0.7:
            history = self._witness.history
            for committed in history[self._count :]:
                self._offsets.update(offsets_of(committed))
            self._count = len(history)
            offsets = {key: self._offsets.get(key) for key in KEYS}
            self._read = UnchangedKeys(offsets, self._witness.end_offset)
        read, some = self._read, chance.sample(KEYS, chance.choice((1, 1, 2)))
        return UnchangedKeys({key: read.offsets[key] for key in some}, read.since)


def records_of(operation: Operation) -> tuple[NewRecord, ...]:
    """Return the records of an append with a condition: all of its first key."""
    assert operation.unchanged is not None, "the append has a condition"
    key = next(iter(operation.unchanged.offsets))
    return tuple(NewRecord(key, value) for value in operation.values)


def offsets_of(committed: Committed) -> dict[bytes, int]:
    """Return the last offset of each key of a batch."""
    batch = read_batch(committed.data)
    assert isinstance(batch, RecordBatch)
    if batch.is_control:
        return {}
    return {one.key: one.offset for one in batch.records() if one.key in KEYS}


def check_keyed_appends(book: Iterable[Operation], history: Iterable[Committed]) -> None:
    """Raise ``InvariantViolationError`` if a result contradicts the committed log."""
    keyed = [one for one in book if one.unchanged is not None]
    appended = {one.base_offset: one for one in keyed if one.base_offset is not None}
    last: dict[bytes, int] = {}
    for committed in history:
        operation = appended.get(committed.base_offset)
        if operation is not None and operation.unchanged is not None:
            for key, offset in operation.unchanged.offsets.items():
                if last.get(key) != offset:
                    raise InvariantViolationError(
                        f"changed keys: {operation} was appended, and {key!r} is at {last.get(key)}"
                    )
        last.update(offsets_of(committed))
    for operation in keyed:
        if operation.is_changed and operation.unchanged is not None:
            since, offsets = operation.unchanged.since, operation.unchanged.offsets
            if all(last.get(key, -1) < since for key in offsets):
                raise InvariantViolationError(f"changed keys: {operation} was refused")
