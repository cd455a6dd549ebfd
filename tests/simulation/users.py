"""Users of a simulated cluster: their appends, results and retries.

Invariants:

1. A user has one operation at a time. Operations and results are recorded in the book in virtual
   time; the checker uses nothing else.
2. A value is written by one operation only, so that finding it twice is a duplicate.
3. An append with an identity (a commit's name, a producer's sequence) is retried after an unknown
   outcome until it is known; without one it is not, and either outcome is correct.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from raftlog.append import AppendRequest, AppendResult, Done, RequestResult
from raftlog.errors import (
    AppendUnknownError,
    DiskFullError,
    KeyChangedError,
    NotLeaderError,
    RaftlogError,
    UnexpectedEndOffsetError,
)
from raftlog.log.reading.transactions import CommitName
from raftlog.log.writing.key_offsets import UnchangedKeys
from raftlog.records.builder import ProducerStamp
from raftlog.records.record import NewRecord

from .cluster import Cluster
from .compaction import keyed
from .keyed_appends import KeyedAppends, records_of

ANSWER_WAIT_US: Final = 3_000_000
RETRY_US: Final = 30_000


class Kind(enum.Enum):
    """Kind of a user's append."""

    PLAIN = "plain"
    CONDITIONAL = "conditional"
    NAMED = "named"
    NAMED_CONDITIONAL = "named conditional"
    PRODUCER = "producer"
    CHECK = "check"
    """Append without records under a required offset: it checks the end of the log."""


class Outcome(enum.Enum):
    OPEN = "open"
    DONE = "done"
    REFUSED = "refused"
    UNKNOWN = "unknown"


@dataclass(slots=True)
class Operation:
    """Operation of a user. ``base_offset`` and ``end_offset``: its offsets, if it succeeded."""

    kind: Kind
    values: tuple[bytes, ...]
    invoked_us: int
    required_base_offset: int | None
    outcome: Outcome = Outcome.OPEN
    returned_us: int | None = None
    base_offset: int | None = None
    end_offset: int | None = None
    refused_end_offset: int | None = None
    """End of the log in a refusal."""
    unchanged: UnchangedKeys | None = None
    is_changed: bool = False
    """Whether it was refused because a key has changed."""


class User:
    """User with an id of its own on the network."""

    keyed: KeyedAppends | None = None
    """Conditions on keys of its appends without a required offset, if they have any."""

    def __init__(self, cluster: Cluster, number: int, book: list[Operation], pause_us: int) -> None:
        """``pause_us``: maximal pause between two operations."""
        self.node_id: Final = 100 + number
        self._cluster = cluster
        self._chance = cluster.world.chance(f"user {number}")
        self._book = book
        self._pause_us = pause_us
        self._count = 0
        self._target = 1 + number % len(cluster.nodes)
        self._end_offset = 0
        """End of the log that the user expects."""
        self._sequence = 0
        self._version = 0
        self._attempt = 0
        self._operation: Operation | None = None
        self._request: AppendRequest | None = None
        self.is_stopping = False

    @property
    def is_idle(self) -> bool:
        return self._operation is None

    # --- requests ---------------------------------------------------------------------------------

    def begin(self) -> None:
        """Begin the next operation, if there is one."""
        if self.is_stopping:
            return
        kind = self._chance.choice(list(Kind))
        count = 0 if kind is Kind.CHECK else self._chance.choice((1, 1, 2, 5))
        values = []
        for _ in range(count):
            self._count += 1
            padding = b"." * self._chance.choice((0, 10, 400))
            values.append(b"%d:%d:%s" % (self.node_id, self._count, padding))
        has_required_offset = kind in (Kind.CONDITIONAL, Kind.NAMED_CONDITIONAL, Kind.CHECK)
        operation = Operation(
            kind,
            tuple(values),
            self._cluster.world.now_us,
            self._end_offset if has_required_offset else None,
        )
        if self.keyed is not None and values and not has_required_offset:
            operation.unchanged = self.keyed.drawn(self._chance)
        if kind in (Kind.NAMED, Kind.NAMED_CONDITIONAL):
            self._version += 1
        self._operation = operation
        self._book.append(operation)
        self._cluster.count(f"{kind.value} append")
        self._send()

    def _send(self) -> None:
        """Send to the presumed leader; without a response in time, retry."""
        operation, cluster = self._operation, self._cluster
        assert operation is not None
        self._attempt += 1
        attempt, target = self._attempt, self._target
        request = self._new_request(operation)
        self._request = request
        cluster.network.send(
            self.node_id, target, lambda: cluster.users_append(target, request, self, attempt)
        )
        cluster.world.after(ANSWER_WAIT_US, lambda: self._waited(attempt))

    def _new_request(self, operation: Operation) -> AppendRequest:
        name = producer = None
        if operation.kind in (Kind.NAMED, Kind.NAMED_CONDITIONAL):
            name = CommitName(f"app-{self.node_id}", "query", self._version)
        if operation.kind is Kind.PRODUCER:
            producer = ProducerStamp(self.node_id, 0, self._sequence)
        return AppendRequest(
            records=self._records(operation),
            required_base_offset=operation.required_base_offset,
            unchanged=operation.unchanged,
            is_atomic=True,
            commit=name,
            producer=producer,
            deadline_ms=0,
        )

    def _records(self, operation: Operation) -> Sequence[bytes] | Sequence[NewRecord]:
        if operation.unchanged is not None:
            return records_of(operation)
        return operation.values if self._cluster.cleaning is None else keyed(operation)

    # --- results ----------------------------------------------------------------------------------

    def receive_result(
        self, target: int, attempt: int, answer: RequestResult, leader_id: int | None
    ) -> None:
        """Receive a result at the node's end: it still has to be delivered here."""
        self._cluster.network.send(
            target, self.node_id, lambda: self._deliver_result(attempt, answer, leader_id)
        )

    def _deliver_result(self, attempt: int, answer: RequestResult, leader_id: int | None) -> None:
        operation = self._operation
        if operation is None or attempt != self._attempt:
            return
        if isinstance(answer, Done):
            result = answer.value
            assert isinstance(result, AppendResult)
            operation.base_offset, operation.end_offset = result.base_offset, result.end_offset
            self._end_offset = max(self._end_offset, result.end_offset)
            self._ended(operation, Outcome.DONE)
            return
        error = answer.error
        if isinstance(error, UnexpectedEndOffsetError):
            operation.refused_end_offset = error.log_end_offset
            self._end_offset = error.log_end_offset
            self._ended(operation, Outcome.REFUSED)
        elif isinstance(error, KeyChangedError):
            operation.is_changed = True
            self._ended(operation, Outcome.REFUSED)
        elif isinstance(error, NotLeaderError):
            self._target = leader_id or self._another()
            self._later(attempt)
        elif isinstance(error, AppendUnknownError):
            self._not_known(operation, attempt)
        elif isinstance(error, DiskFullError):
            self._cluster.count("no room")
            self._nothing_written(operation, attempt)
        else:
            self._fault(operation, error)

    def _fault(self, operation: Operation, error: RaftlogError) -> None:
        raise AssertionError(f"{operation} was refused: {error}")

    def _waited(self, attempt: int) -> None:
        operation = self._operation
        if operation is not None and attempt == self._attempt:
            self._target = self._another()
            self._not_known(operation, attempt)

    def _not_known(self, operation: Operation, attempt: int) -> None:
        """Handle an unknown outcome. An append with an identity is retried, and so is a check."""
        if operation.kind in (Kind.PLAIN, Kind.CONDITIONAL):
            self._ended(operation, Outcome.UNKNOWN)
        else:
            self._later(attempt)

    def _nothing_written(self, operation: Operation, attempt: int) -> None:
        """Handle an attempt that wrote nothing; an earlier one of its name may have."""
        if operation.kind in (Kind.PLAIN, Kind.CONDITIONAL):
            self._ended(operation, Outcome.REFUSED)
        else:
            self._later(attempt)

    def _later(self, attempt: int) -> None:
        def again() -> None:
            if self._operation is not None and attempt == self._attempt:
                self._send()

        self._cluster.world.after(RETRY_US + self._chance.randrange(RETRY_US), again)

    def _another(self) -> int:
        return self._chance.choice(list(self._cluster.nodes))

    def _ended(self, operation: Operation, outcome: Outcome) -> None:
        operation.outcome = outcome
        operation.returned_us = self._cluster.world.now_us
        self._cluster.count(f"{operation.kind.value} {outcome.value}")
        if operation.unchanged is not None:
            self._cluster.count(f"keyed {'changed' if operation.is_changed else outcome.value}")
        if operation.kind is Kind.PRODUCER and outcome is not Outcome.REFUSED:
            self._sequence += len(operation.values)
        self._operation = self._request = None
        self._attempt += 1
        self._cluster.world.after(self._chance.randrange(self._pause_us), self.begin)
