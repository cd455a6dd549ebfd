"""Users' appends at the leader: placed at once, answered when the answer can no longer change.

Rules of this file:

1. Appends that come together are written together: they may share a batch, as in an embedded log.
2. Written is not done: an append is answered when its last record is committed, in the epoch it was
   written in. If another leads before that, nobody knows what became of it.
3. A refusal for what the log holds waits until the end of that log is committed; one that finds the
   log shorter than wanted, or its epoch older, like an empty append, until a majority has said that
   this is still the leader. What is refused leaves no trace, whoever leads next.
4. A repeated append waits for the first one.
5. An append that finds no room on the disk is refused, with those that were placed in one go with
   it, and the leader goes on. What comes behind it in its ``InOrderGate`` is refused too.
6. What is placed is in the log: its records are let go, and only the answer waits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from raftlog.client.append_batch import AppendBatch, fail_if_unwritten
from raftlog.client.requests import AppendRequest, Done, Failed, RequestResult, failed
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

_AT_ONCE: Final = (DiskFullError, AppendUnknownError)
"""What is answered at once: waiting would not make it known, or untrue."""


_ABOUT_THE_LOG: Final = (
    UnexpectedEndOffsetError,
    StaleCommitError,
    ForeignCommitError,
    OutOfOrderSequenceError,
    InvalidProducerEpochError,
)
"""Refusals that speak of what is in the log, and so wait until that is committed."""


@dataclass(frozen=True, slots=True)
class DelayedProduce:
    """An answer that waits: for the high watermark to be at ``end_offset``, and for a ticket."""

    request: AppendRequest
    answer: RequestResult
    is_empty: bool
    """Whether it asked for nothing to be appended."""
    epoch: int
    end_offset: int
    ticket: int


class PendingAppends:
    """The appends of one replica's users. Not shared between threads."""

    def __init__(
        self, replica: Replica, complete: Callable[[AppendRequest, RequestResult], None]
    ) -> None:
        """``complete`` is given each request once, with its answer."""
        self._replica: Final = replica
        self._complete = complete
        self._waiting: list[DelayedProduce] = []
        self._last_ticket = 0
        self._confirmed_ticket = 0

    @property
    def waiting_count(self) -> int:
        return len(self._waiting)

    def submit(
        self, requests: Sequence[AppendRequest], *, now_ms: int, time_ms: int
    ) -> list[Outgoing]:
        """Place appends in this order, or refuse them; what the replica wants done is returned.

        Raises what the storage raises: then the replica is over, and ``give_up`` answers.
        """
        replica = self._replica
        role = replica.core.role
        refusal = self._refusal()
        if refusal is not None or not isinstance(role, Leader):
            for request in requests:
                self._refuse(request, failed(refusal or self._not_leader()))
            return []
        before = replica.log.end_offset
        answers = self._place(requests, time_ms)
        outgoing: list[Outgoing] = []
        if replica.log.end_offset != before:
            outgoing += replica.appended(now_ms=now_ms, time_ms=time_ms)
        last_ticket = self._last_ticket
        for request, answer in zip(requests, answers, strict=True):
            if isinstance(answer, Failed) and isinstance(answer.error, _AT_ONCE):
                self._refuse(request, answer)
                continue
            is_empty = not request.records
            request.records = ()
            ticket = self._ticket_for(answer, is_empty=is_empty)
            end_offset = self._end_to_wait_for(answer)
            self._waiting.append(
                DelayedProduce(request, answer, is_empty, role.epoch, end_offset, ticket)
            )
        if self._last_ticket != last_ticket:
            confirm = ReadIndex(self._last_ticket)
            outgoing += replica.step(confirm, now_ms=now_ms, time_ms=time_ms)
        self.poll()
        return outgoing

    def _refusal(self) -> RaftlogError | None:
        """Why nothing can be appended now."""
        replica = self._replica
        if not isinstance(replica.core.role, Leader):
            return self._not_leader()
        if replica.is_stalled_on_disk_full:
            reason = "not even the begin of its epoch could be written"
            return DiskFullError(path=replica.log.path, reason=reason)
        return None

    def _refuse(self, request: AppendRequest, refused: Failed) -> None:
        """Tell it at once."""
        if request.gate is not None and isinstance(refused.error, DiskFullError):
            request.gate.refuse(request.identity, refused.error)
        self._complete(request, refused)

    def _place(self, requests: Sequence[AppendRequest], time_ms: int) -> list[RequestResult]:
        """Write appends to the log, as far as there is room."""
        log = self._replica.log
        group = AppendBatch(log, time_ms)
        answers: list[RequestResult] = []
        try:
            for request in requests:
                refusal = request.gate and request.gate.refusal_of(request.identity)
                answers.append(failed(refusal) if refusal else group.process(request))
            group.write()
        except DiskFullError as full:
            answers = [fail_if_unwritten(one, log.end_offset, full) for one in answers]
            answers += [failed(full) for _ in requests[len(answers) :]]
        except LogError as error:
            for request in requests:
                self._complete(request, self._unknown(error.message()))
            raise
        return answers

    def _ticket_for(self, answer: RequestResult, *, is_empty: bool) -> int:
        must_ask = _is_log_behind(answer.error) if isinstance(answer, Failed) else is_empty
        if not must_ask:
            return 0
        self._last_ticket += 1
        return self._last_ticket

    def _end_to_wait_for(self, answer: RequestResult) -> int:
        if isinstance(answer, Done):
            return int(answer.value.end_offset)
        if isinstance(answer.error, _ABOUT_THE_LOG):
            return self._replica.log.end_offset
        return 0

    def confirmed(self, ticket: int) -> None:
        """``ReadIndexConfirmed``."""
        self._confirmed_ticket = max(self._confirmed_ticket, ticket)
        self.poll()

    def poll(self) -> None:
        """Answer what can be answered: after a new high watermark, or a change of leaders."""
        role = self._replica.core.role
        epoch = role.epoch if isinstance(role, Leader) else None
        high_watermark = self._replica.core.high_watermark or 0
        waiting, self._waiting = self._waiting, []
        for one in waiting:
            if one.epoch != epoch:
                self._complete(one.request, self._lost(one))
            elif one.end_offset <= high_watermark and one.ticket <= self._confirmed_ticket:
                self._complete(one.request, one.answer)
            else:
                self._waiting.append(one)

    def give_up(self, reason: str) -> None:
        """The replica is over: what is not answered is not known. What appends nothing did nothing,
        and another node is to say what it waited for."""
        waiting, self._waiting = self._waiting, []
        for one in waiting:
            answer = failed(self._not_leader()) if one.is_empty else self._unknown(reason)
            self._complete(one.request, answer)

    def _lost(self, one: DelayedProduce) -> RequestResult:
        """Another leads. What was refused, or appended nothing, did nothing."""
        if isinstance(one.answer, Failed) or one.is_empty:
            return failed(self._not_leader())
        return self._unknown("another node leads now")

    def _unknown(self, reason: str) -> RequestResult:
        return failed(AppendUnknownError(path=self._replica.log.path, reason=reason))

    def _not_leader(self) -> NotLeaderError:
        epoch = self._replica.core.epoch
        return NotLeaderError(epoch=epoch, current_epoch=epoch)


def _is_log_behind(error: RaftlogError) -> bool:
    """Whether a place or an epoch is named that this log has not reached: another may lead by
    now."""
    if isinstance(error, FutureEpochError):
        return True
    if not isinstance(error, UnexpectedEndOffsetError):
        return False
    end, base = error.required_end_offset, error.required_base_offset
    return (end is not None and end > error.next_available_offset) or (
        base is not None and base > error.log_end_offset
    )
