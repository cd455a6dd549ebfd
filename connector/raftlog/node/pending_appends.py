"""Appends of users at the leader: written immediately, completed once their result is final.

Invariants:

1. Appends submitted together are written together, and may share a batch, as in an embedded log.
2. An append succeeds when its last record is committed in the epoch in which it was written. If the
   leader changes before, its outcome is unknown.
3. A rejection because of the log's content is reported after the end of that log is committed. A
   rejection because the log is shorter than required or the epoch older, and the result of an empty
   append, wait until a majority has confirmed this leader. A rejected append leaves no trace in the
   log of any leader.
4. A duplicate waits until the first append is committed.
5. An append that does not fit on the disk is rejected, together with the appends submitted with it,
   and the leader continues. Later appends of its ``InOrderGate`` are rejected too.
6. The records of a written append are released; only its result is kept.
7. A higher high watermark costs as much as the appends that it completes, however many wait.
"""

from __future__ import annotations

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
    LogError,
    NotLeaderError,
    OutOfOrderSequenceError,
    RaftlogError,
    StaleCommitError,
    UnexpectedEndOffsetError,
)
from raftlog.quorum.events import ReadIndex
from raftlog.quorum.roles import Leader

from .replica import Outgoing, Replica

_IMMEDIATE: Final = (DiskFullError, AppendUnknownError)
"""Errors that are reported immediately, because waiting cannot change them."""


_ABOUT_THE_LOG: Final = (
    UnexpectedEndOffsetError,
    StaleCommitError,
    ForeignCommitError,
    OutOfOrderSequenceError,
    InvalidProducerEpochError,
)
"""Errors that depend on the content of the log, and so wait until it is committed."""


@dataclass(slots=True, eq=False)
class PendingAppend:
    """Result that waits until the high watermark is at ``end_offset`` and ``ticket`` confirmed."""

    request: AppendRequest
    result: RequestResult
    is_empty: bool
    """Whether the request has no records."""
    epoch: int
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
        self._waiting: Final[deque[PendingAppend]] = deque()
        """Without a ticket, ascending by end offset and epoch."""
        self._others: list[PendingAppend] = []
        """All others: with a ticket, or duplicates of earlier appends."""
        self._last_ticket = 0
        self._confirmed_ticket = 0

    @property
    def waiting_count(self) -> int:
        return len(self._waiting) + len(self._others)

    def submit(
        self, requests: Sequence[AppendRequest], *, now_ms: int, time_ms: int
    ) -> list[Outgoing]:
        """Write appends in this order, or reject them; return the outputs of the replica.

        After an error of the storage the replica has ended, and ``abandon`` must follow.
        """
        replica = self._replica
        role = replica.core.role
        refusal = replica.append_refusal()
        if refusal is not None or not isinstance(role, Leader):
            for request in requests:
                self._refuse(request, failed(refusal or self._not_leader()))
            return []
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
            is_empty = not request.records
            request.records = ()
            ticket = self._ticket_for(result, is_empty=is_empty)
            end_offset = self._end_to_wait_for(result)
            self._add(PendingAppend(request, result, is_empty, role.epoch, end_offset, ticket))
        if self._last_ticket != last_ticket:
            confirm = ReadIndex(self._last_ticket)
            outgoing += replica.step(confirm, now_ms=now_ms, time_ms=time_ms)
        self.poll()
        return outgoing

    def _add(self, one: PendingAppend) -> None:
        waiting = self._waiting
        is_in_order = not waiting or waiting[-1].end_offset <= one.end_offset
        (waiting if is_in_order and not one.ticket else self._others).append(one)

    def _refuse(self, request: AppendRequest, refused: Failed) -> None:
        """Complete a rejected request immediately."""
        if request.gate is not None and isinstance(refused.error, DiskFullError):
            request.gate.refuse(request.identity, refused.error)
        self._complete(request, refused)

    def _write(self, requests: Sequence[AppendRequest], time_ms: int) -> list[RequestResult]:
        """Write appends to the log; those that do not fit on the disk are rejected."""
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
        high_watermark = self._replica.core.high_watermark or 0
        waiting = self._waiting
        while waiting and (waiting[0].epoch != epoch or waiting[0].end_offset <= high_watermark):
            self._complete_one(waiting.popleft(), epoch)
        if not self._others:
            return
        others, self._others = self._others, []
        for one in others:
            is_final = one.end_offset <= high_watermark and one.ticket <= self._confirmed_ticket
            if is_final or one.epoch != epoch:
                self._complete_one(one, epoch)
            else:
                self._others.append(one)

    def _complete_one(self, one: PendingAppend, epoch: int | None) -> None:
        """Complete an append that is final in the epoch in which this node leads, or lost."""
        self._complete(one.request, one.result if one.epoch == epoch else self._lost(one))

    def abandon(self, reason: str) -> None:
        """Complete all pending appends after the end of the replica: outcome unknown, or not leader
        for requests without records."""
        left = [*self._waiting, *self._others]
        self._waiting.clear()
        self._others = []
        for one in left:
            result = failed(self._not_leader()) if one.is_empty else self._unknown(reason)
            self._complete(one.request, result)

    def _lost(self, one: PendingAppend) -> RequestResult:
        """Return the result after a leader change: unknown, unless nothing was appended."""
        if isinstance(one.result, Failed) or one.is_empty:
            return failed(self._not_leader())
        return self._unknown("another node became the leader")

    def _unknown(self, reason: str) -> RequestResult:
        return failed(AppendUnknownError(path=self._replica.log.path, reason=reason))

    def _not_leader(self) -> NotLeaderError:
        epoch = self._replica.core.epoch
        return NotLeaderError(epoch=epoch, current_epoch=epoch)


def _is_log_shorter(error: RaftlogError) -> bool:
    """Return whether a request names an offset or epoch above this log's: there may be a newer
    leader."""
    if isinstance(error, FutureEpochError):
        return True
    if not isinstance(error, UnexpectedEndOffsetError):
        return False
    end, base = error.required_end_offset, error.required_base_offset
    return (end is not None and end > error.next_available_offset) or (
        base is not None and base > error.log_end_offset
    )
