"""What callers ask of an embedded log's writer, and what it answers.

Rules of this file:

1. A request is complete and checked before it is queued: nothing of it can fail on the thread that
   writes but what only the log can know.
2. Times are milliseconds of a clock that never goes back.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from raftlog.errors import InvalidAppendError, RaftlogError
from raftlog.limits import BATCH_HEADER_BYTES
from raftlog.log.writing.batch_metadata import CommitName
from raftlog.records.builder import ProducerStamp
from raftlog.records.encoding import RecordToAppend
from raftlog.records.packed import PackedRecords

from .in_order_gate import InOrderGate

if TYPE_CHECKING:
    from raftlog.log.writing.replicated_log import ReplicatedLog

_RECORD_OVERHEAD_BYTES: Final = 24
"""Lengths and deltas of a record, at most about this much."""


@dataclass(frozen=True, slots=True)
class AppendResult:
    """Where the records are: both offsets inclusive; without records the last is one less.

    ``was_duplicate``: the log had them already, under the same commit name or producer's sequence;
    nothing was appended, and the offsets are those of then.
    """

    base_offset: int
    last_offset: int
    epoch: int
    was_duplicate: bool = False

    @property
    def end_offset(self) -> int:
        """The offset behind them: what a next append may require as its base offset."""
        return self.last_offset + 1


@dataclass(slots=True, kw_only=True, eq=False)
class AppendRequest:
    """Records to be appended, and under which conditions. ``deadline_ms``: no lock after that."""

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
        """By what it is known when it comes again, if it is."""
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
        """Whether it has records: what has none, and only asks, is never in doubt."""
        return bool(self.records)

    def byte_count(self) -> int:
        """About how much memory it holds, and its batch will."""
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
        """Raises ``InvalidAppendError`` for arguments that cannot be meant together."""
        reason = None
        if not self.records and self.epoch is None and not self.needs_own_batch:
            reason = "there is no record to append, and no token or epoch to check"
        elif self.commit is not None and self.producer is not None:
            reason = "a batch is either a named commit's or a producer's, not both"
        elif self.take_over_from is not None and self.commit is None:
            reason = "take_over_from is for a named commit, and none was given"
        elif self.producer is not None and not self.records:
            reason = "a producer's batch has at least one record"
        elif any(
            number is not None and number < 0
            for number in (self.epoch, self.required_end_offset, self.required_base_offset)
        ):
            reason = "epochs and offsets are not negative"
        if reason is not None:
            raise InvalidAppendError(reason=reason)


@dataclass(slots=True, kw_only=True, eq=False)
class Operation:
    """Something else to be done to the log while the lock is held, between the appends around it.

    ``run`` is given the log and the time of day in milliseconds. What it writes is synced with the
    group that it is in.
    """

    run: Callable[[ReplicatedLog, int], Any]
    deadline_ms: float
    future: Future[Any] = field(default_factory=Future)

    @property
    def writes(self) -> bool:
        """Whether it may write: what it does is not known."""
        return True

    def byte_count(self) -> int:
        return 0


Request: TypeAlias = AppendRequest | Operation


@dataclass(frozen=True, slots=True)
class Done:
    """The answer to a request: what its future will give."""

    value: Any


@dataclass(frozen=True, slots=True)
class Failed:
    """A request that was refused, or that failed. Each holds an error object of its own."""

    error: RaftlogError


RequestResult: TypeAlias = Done | Failed


def failed(error: RaftlogError) -> Failed:
    """An answer of which several callers may get one: each raises a copy, with its own trace."""
    return Failed(copy.copy(error))
