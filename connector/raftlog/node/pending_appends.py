"""Users' appends at the leader: written immediately, completed once their result is final.

Invariants:

1. Appends submitted together are written together and may share a batch, as in an embedded log.
2. An append succeeds when its last record is committed in the epoch in which it was written. If the
   leader changes before that, the outcome is unknown.
3. A rejection because of the log's content is reported once the log is committed up to its end at
   that time. A rejection because the log is shorter or the epoch older than required waits until a
   majority has confirmed this leader; so does the result of an empty append. A rejected append
   leaves no trace in any leader's log.
4. A duplicate waits until the first append is committed.
5. An append that does not fit on the disk is rejected together with the appends submitted with it,
   and the leader continues. Later appends of its ``InOrderGate`` are rejected too.
6. The records and keys of a written append are released; only its result is kept.
7. The cost of a step depends on the number of appends that it completes or confirms, not on the
   number of pending ones.
8. All pending appends belong to one epoch.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from raftlog.append import (
    AppendBatch,
    AppendRequest,
    Done,
    Failed,
    RequestResult,
    fail_if_unwritten,
    failed,
)
from raftlog.errors import (
    AppendUnknownError,
    DiskFullError,
    ForeignCommitError,
    FutureEpochError,
    InvalidProducerEpochError,
    KeyChangedError,
    LogError,
    NotLeaderError,
    OutOfOrderSequenceError,
    RaftlogError,
    StaleCommitError,
    UnexpectedEndOffsetError,
)
from raftlog.quorum.events import ReadIndex
from raftlog.quorum.roles import Leader

from .purgatory import BucketQueue
from .replica import Outgoing, Replica

_IMMEDIATE: Final = (DiskFullError, AppendUnknownError)
"""Errors that are reported immediately, because waiting cannot change them."""


_ABOUT_THE_LOG: Final = (
    UnexpectedEndOffsetError,
    KeyChangedError,
    StaleCommitError,
    ForeignCommitError,
    OutOfOrderSequenceError,
    InvalidProducerEpochError,
)
"""Errors that depend on the log's content, and therefore wait until it is committed."""


@dataclass(slots=True, eq=False)
class PendingAppend:
    """Result that waits for the high watermark ``end_offset`` and for ``ticket``."""

    request: AppendRequest
    result: RequestResult
    is_empty: bool
    """Whether the request has no records."""
    end_offset: int
    ticket: int


class PendingAppends:
    """Pending appends of one replica. Not thread-safe."""

    def __init__(
        self, replica: Replica, complete: Callable[[AppendRequest, RequestResult], None]
    ) -> None:
        """``complete`` is called once for each request, with its result."""
        self._replica: Final = replica
        self._complete = complete
        self._epoch: int | None = None
        """Epoch of all pending appends, in which this node leads; None while it does not lead."""
        self._waiting: Final[deque[PendingAppend]] = deque()
        """Appends without a ticket, ascending by end offset."""
        self._unconfirmed: Final[deque[PendingAppend]] = deque()
        """Appends with an unconfirmed ticket, ascending by ticket."""
        self._others: Final[BucketQueue[PendingAppend]] = BucketQueue()
        """All others by end offset: with a confirmed ticket, or duplicates of earlier appends."""
        self._last_ticket = 0
        self._confirmed_ticket = 0

    @property
    def waiting_count(self) -> int:
        return len(self._waiting) + len(self._unconfirmed) + len(self._others)

    def submit(
        self, requests: Sequence[AppendRequest], *, now_ms: int, time_ms: int
    ) -> list[Outgoing]:
        """Write appends in this order, or reject them; return the outputs of the replica.

        After a storage error the replica has ended, and ``abandon`` must be called.
        """
        replica = self._replica
        refusal = replica.append_refusal()
        if refusal is not None:
            for request in requests:
                self._refuse(request, failed(refusal))
            return []
        self.poll()
        before = replica.log.end_offset
        results = self._write(requests, time_ms)
        outgoing: list[Outgoing] = []
        if replica.log.end_offset != before:
            outgoing += replica.appended(now_ms=now_ms, time_ms=time_ms)
        last_ticket = self._last_ticket
        for request, result in zip(requests, results, strict=True):
            if isinstance(result, Failed) and isinstance(result.error, _IMMEDIATE):
                self._refuse(request, result)
                continue
            is_empty = not request.writes
            request.records = request.control = ()
            request.unchanged = None
            ticket = self._ticket_for(result, is_empty=is_empty)
            end_offset = self._end_to_wait_for(result)
            self._add(PendingAppend(request, result, is_empty, end_offset, ticket))
        if self._last_ticket != last_ticket:
            confirm = ReadIndex(self._last_ticket)
            outgoing += replica.step(confirm, now_ms=now_ms, time_ms=time_ms)
        self.poll()
        return outgoing

    def _add(self, one: PendingAppend) -> None:
        waiting = self._waiting
        if one.ticket:
            self._unconfirmed.append(one)
        elif not waiting or waiting[-1].end_offset <= one.end_offset:
            waiting.append(one)
        else:
            self._others.add(one.end_offset, one)

    def _refuse(self, request: AppendRequest, refused: Failed) -> None:
        """Complete a rejected request immediately."""
        if request.gate is not None and isinstance(refused.error, DiskFullError):
            request.gate.refuse(request.identity, refused.error)
        self._complete(request, refused)

    def _write(self, requests: Sequence[AppendRequest], time_ms: int) -> list[RequestResult]:
        """Write appends to the log; reject those that do not fit on the disk."""
        log = self._replica.log
        group = AppendBatch(log, time_ms)
        results: list[RequestResult] = []
        try:
            for request in requests:
                refusal = request.gate and request.gate.refusal_of(request.identity)
                results.append(failed(refusal) if refusal else group.process(request))
            group.write()
        except DiskFullError as full:
            results = [fail_if_unwritten(one, log.end_offset, full) for one in results]
            results += [failed(full) for _ in requests[len(results) :]]
        except LogError as error:
            for request in requests:
                self._complete(request, self._unknown(error.message()))
            raise
        return results

    def _ticket_for(self, result: RequestResult, *, is_empty: bool) -> int:
        must_confirm = _is_log_shorter(result.error) if isinstance(result, Failed) else is_empty
        if not must_confirm:
            return 0
        self._last_ticket += 1
        return self._last_ticket

    def _end_to_wait_for(self, result: RequestResult) -> int:
        if isinstance(result, Done):
            return int(result.value.end_offset)
        if isinstance(result.error, _ABOUT_THE_LOG):
            return self._replica.log.end_offset
        return 0

    def confirmed(self, ticket: int) -> None:
        """Handle ``ReadIndexConfirmed``."""
        self._confirmed_ticket = max(self._confirmed_ticket, ticket)
        self.poll()

    def poll(self) -> None:
        """Complete the appends that are final, after a new high watermark or a leader change."""
        role = self._replica.core.role
        epoch = role.epoch if isinstance(role, Leader) else None
        if epoch is None and self._epoch is None:
            return  # nothing is pending on a follower
        if epoch != self._epoch:
            self._epoch = epoch
            for one in self._remove_all():
                self._complete(one.request, self._lost(one))
        high_watermark = self._replica.core.high_watermark or 0
        waiting, unconfirmed = self._waiting, self._unconfirmed
        while waiting and waiting[0].end_offset <= high_watermark:
            one = waiting.popleft()
            self._complete(one.request, one.result)
        while unconfirmed and unconfirmed[0].ticket <= self._confirmed_ticket:
            one = unconfirmed.popleft()
            self._others.add(one.end_offset, one)
        if self._others.lowest is not None:
            for one in self._others.pop_below(high_watermark + 1):
                self._complete(one.request, one.result)

    def _remove_all(self) -> list[PendingAppend]:
        removed = [*self._waiting, *self._unconfirmed, *self._others.pop_below(sys.maxsize)]
        self._waiting.clear()
        self._unconfirmed.clear()
        return removed

    def abandon(self, reason: str) -> None:
        """Complete all pending appends after the end of the replica: their outcome is unknown, or
        "not leader" for requests without records."""
        for one in self._remove_all():
            result = failed(self._not_leader()) if one.is_empty else self._unknown(reason)
            self._complete(one.request, result)

    def _lost(self, one: PendingAppend) -> RequestResult:
        """Return the result after a leader change, which is unknown unless nothing was appended."""
        if isinstance(one.result, Failed) or one.is_empty:
            return failed(self._not_leader())
        return self._unknown("another node became the leader")

    def _unknown(self, reason: str) -> RequestResult:
        return failed(AppendUnknownError(path=self._replica.log.path, reason=reason))

    def _not_leader(self) -> NotLeaderError:
        epoch = self._replica.core.epoch
        return NotLeaderError(epoch=epoch, current_epoch=epoch)


def _is_log_shorter(error: RaftlogError) -> bool:
    """Return whether a request names an offset or epoch above this log's, because there may be a
    newer leader."""
    if isinstance(error, FutureEpochError):
        return True
    if not isinstance(error, UnexpectedEndOffsetError):
        return False
    end, base = error.required_end_offset, error.required_base_offset
    return (end is not None and end > error.next_available_offset) or (
        base is not None and base > error.log_end_offset
    )
