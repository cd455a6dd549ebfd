"""Requests to the writer of a log, and their results.

A request is validated before it is queued: on the writer thread it can only fail for reasons that
depend on the state of the log. Deadlines are monotonic milliseconds.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from raftlog.errors import InvalidAppendError, RaftlogError
from raftlog.limits import BATCH_HEADER_BYTES
from raftlog.log.writing.batch_metadata import CommitName
from raftlog.records.builder import ProducerStamp
from raftlog.records.encoding import PackedRecords, RecordToAppend

if TYPE_CHECKING:
    from raftlog.log.writing.replicated_log import ReplicatedLog


# --- Order of one client's appends after one of them was refused for lack of room -----------------
# A client has several appends in flight, and retries the refused one. Its later appends are refused
# too, or a small one would overtake a large one. The retry of a refused append shows that the
# client retries all of them in order and has no other in flight, so that it and those after it may
# pass. Only appends with an identity are kept in order: the retry of any other cannot be
# recognized.

REFUSED_MAX: Final = 16
"""Refusals after which a client that does not retry is accepted again. More than an ordered client
has in flight (Kafka: ``max.in.flight.requests.per.connection``, 5 with idempotence)."""


class InOrderGate:
    """Gate for the appends of one connection to a leader.

    ``identity`` of an append is what its retry is recognized by.
    """

    __slots__ = ("_refusal", "_refused")

    def __init__(self) -> None:
        self._refusal: RaftlogError | None = None
        self._refused: set[Hashable] = set()

    def refusal_of(self, identity: Hashable | None) -> RaftlogError | None:
        """Return why an append must be refused although there may be room, or None."""
        if identity in self._refused:
            self._clear()
        return None if identity is None else self._refusal

    def refuse(self, identity: Hashable | None, refusal: RaftlogError) -> None:
        """Record an append that was refused, for lack of room or after such an append."""
        if identity is None:
            return
        self._refusal = refusal
        self._refused.add(identity)
        if len(self._refused) == REFUSED_MAX:
            self._clear()

    def _clear(self) -> None:
        self._refusal = None
        self._refused.clear()


# --- Requests -------------------------------------------------------------------------------------

_RECORD_OVERHEAD_BYTES: Final = 24
"""Approximate upper bound of the lengths and deltas in an encoded record."""


@dataclass(frozen=True, slots=True)
class AppendResult:
    """Offsets of appended records, both inclusive, and the leader epoch that they have.

    Without records ``last_offset`` is ``base_offset - 1``. ``was_duplicate``: the log already had
    this commit or producer sequence; nothing was appended, and the offsets are the existing ones.
    """

    base_offset: int
    last_offset: int
    epoch: int
    was_duplicate: bool = False

    @property
    def end_offset(self) -> int:
        """The offset after the records: the ``required_base_offset`` of an append that follows."""
        return self.last_offset + 1


@dataclass(slots=True, kw_only=True, eq=False)
class AppendRequest:
    """Records to append, and the conditions. After ``deadline_ms`` the append is not begun."""

    records: Sequence[RecordToAppend]
    epoch: int | None = None
    required_end_offset: int | None = None
    required_base_offset: int | None = None
    is_atomic: bool = False
    commit: CommitName | None = None
    take_over_from: str | None = None
    producer: ProducerStamp | None = None
    deadline_ms: float
    gate: InOrderGate | None = None
    future: Future[AppendResult] = field(default_factory=Future)

    @property
    def identity(self) -> CommitName | ProducerStamp | None:
        """The commit name or producer stamp by which a retry is recognized, if any."""
        return self.producer if self.commit is None else self.commit

    @property
    def has_required_offset(self) -> bool:
        return self.required_end_offset is not None or self.required_base_offset is not None

    @property
    def needs_own_batch(self) -> bool:
        """Whether no other append may share its batch."""
        return self.has_required_offset or self.commit is not None or self.producer is not None

    @property
    def writes(self) -> bool:
        """Whether it has records. Without any, the outcome is never unknown: it is only a check."""
        return bool(self.records)

    def byte_count(self) -> int:
        """Return the approximate size of the records in memory and of their batch."""
        if isinstance(self.records, PackedRecords):
            return BATCH_HEADER_BYTES + self.records.byte_count()
        count = BATCH_HEADER_BYTES
        for record in self.records:
            count += _RECORD_OVERHEAD_BYTES
            if isinstance(record, bytes):
                count += len(record)
                continue
            count += len(record.key or b"") + len(record.value or b"")
            for header in record.headers:
                count += _RECORD_OVERHEAD_BYTES + len(header.key) + len(header.value or b"")
        return count

    def check(self) -> None:
        """Raise ``InvalidAppendError`` for arguments that are invalid in combination."""
        reason = None
        if not self.records and self.epoch is None and not self.needs_own_batch:
            reason = "there are no records to append, and no required offset or epoch to check"
        elif self.commit is not None and self.producer is not None:
            reason = "commit and producer cannot be given together"
        elif self.take_over_from is not None and self.commit is None:
            reason = "take_over_from requires commit"
        elif self.producer is not None and not self.records:
            reason = "an append with a producer needs at least one record"
        elif any(
            number is not None and number < 0
            for number in (self.epoch, self.required_end_offset, self.required_base_offset)
        ):
            reason = "epoch and required offsets must not be negative"
        if reason is not None:
            raise InvalidAppendError(reason=reason)


@dataclass(slots=True, kw_only=True, eq=False)
class Operation:
    """Operation on the log under its lock, between the appends before and after it.

    ``run`` takes the log and the wall-clock time in milliseconds. What it writes is synced with its
    group.
    """

    run: Callable[[ReplicatedLog, int], Any]
    deadline_ms: float
    future: Future[Any] = field(default_factory=Future)

    @property
    def writes(self) -> bool:
        """Always true: ``run`` may write."""
        return True

    def byte_count(self) -> int:
        return 0


Request: TypeAlias = AppendRequest | Operation


@dataclass(frozen=True, slots=True)
class Done:
    """Success of a request, with the result of its future."""

    value: Any


@dataclass(frozen=True, slots=True)
class Failed:
    """Refusal or failure of a request, with an error object of its own."""

    error: RaftlogError


RequestResult: TypeAlias = Done | Failed


def failed(error: RaftlogError) -> Failed:
    """Return a failure with a copy of ``error``: each caller raises one with its own traceback."""
    return Failed(copy.copy(error))
