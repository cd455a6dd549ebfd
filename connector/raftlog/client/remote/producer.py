"""Idempotent producer of one handle: which batch is sent next, and what its response means.

Sans-IO: no clock, connection or thread; times are arguments. ``Sender`` drives it, and so does a
test that loses and repeats requests.

Rules of this file:

1. A handle has one producer id. Batches with records get consecutive sequences in the order of the
   appends: a leader appends a batch only after the one with the previous sequence (KIP-98). Batches
   without a sequence are sent one at a time. So is every batch until an append with the id is
   acknowledged, because a leader accepts any first sequence of an id that it does not know.
2. From the first batch without an outcome on, at most ``IN_FLIGHT_MAX`` batches have a sequence,
   including batches that already have an outcome. A leader remembers that many, so it recognizes a
   batch that is sent again. A batch is sent again unchanged as long as it may be in the log.
3. A batch that was sent, is not in the log and is not sent again leaves a gap: no batch after it is
   in the log, and none will be in this epoch. When the batches before the gap have an outcome and
   none is in flight, the producer's epoch is increased, its sequences restart at 0, and the batches
   after the gap are stamped again (KIP-360). If the log has evicted the producer id, it accepts a
   batch after a gap. Then the appends that were to be sent before that batch fail.
4. At its deadline, an append that may have been written fails with ``AppendUnknownError``; any
   other append fails with the reason. Its batch is still sent again as long as the outcome of a
   later one depends on it. After the last batch with an unknown outcome the producer's epoch is
   increased.
5. If a batch may have been appended, its refusal proves that it is not in the log only if the
   leader checks a batch's identity before the reason for the refusal (``AppendBatch``). The epoch
   is checked before the identity. So if the epoch was refused, the batch is sent under the current
   epoch with a required offset that no log reaches.

Kafka: ``TransactionManager``, ``RecordAccumulator``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from raftlog.append import AppendRequest, AppendResult
from raftlog.errors import (
    AccessDeniedError,
    AppendUnknownError,
    BufferAllocationError,
    DiskFullError,
    FutureEpochError,
    InvalidAppendError,
    KeyChangedError,
    LogClosedError,
    LogLockedError,
    NodeRefusedError,
    NotLeaderError,
    OutOfOrderSequenceError,
    RaftlogError,
    RecordBatchTooLargeError,
    UnexpectedEndOffsetError,
)
from raftlog.limits import INT16_MAX, INT32_MAX, MIB, PRODUCER_BATCHES_KEPT
from raftlog.records.builder import SEQUENCES, ProducerStamp, decremented, incremented
from raftlog.wire.produce_codec import parse_error_message

from .messages import RETRIABLE_ERRORS, is_access_error
from .producer_batches import (
    IMPOSSIBLE_OFFSET,
    LogSettings,
    ProducerBatch,
    append_batches,
    can_share_batch,
    fail_request,
    needs_producer_id,
    remove_requests,
)

IN_FLIGHT_MAX: Final = PRODUCER_BATCHES_KEPT
"""Maximum of batches without a response (Kafka: ``max.in.flight.requests.per.connection``)."""
SHARED_BYTES_MAX: Final = MIB
"""Maximum size of a batch of several appends; larger batches are not faster."""
SHARED_REQUESTS_MAX: Final = 4096


class Producer:
    """One handle's appends without a result, in order, and their batches.

    ``path`` is for errors.
    """

    def __init__(self, path: str, settings: LogSettings) -> None:
        self._path = path
        self._settings = settings
        self._queue: deque[AppendRequest] = deque()
        """Appends that are not in a batch yet; they follow the appends in batches."""
        self._batches: list[ProducerBatch] = []
        """Batches without an outcome, in order; those with a stamp are first."""
        self._in_flight_count = 0
        self._is_recovering = False
        """Whether a batch is to be sent again once none is in flight."""
        self._producer_id: int | None = None
        self._producer_epoch = 0
        self._next_sequence = 0
        self._stamped_count = 0
        """Number of batches that got a sequence."""
        self._is_known = False
        """Whether an append with the producer id was acknowledged."""
        self._gap_ordinal: int | None = None
        """Ordinal of the first batch that leaves a gap; None if there is no gap."""
        self._has_unresolved_gap = False
        """Whether a late copy may still fill the gap."""

    # --- state ------------------------------------------------------------------------------------

    @property
    def in_flight_count(self) -> int:
        return self._in_flight_count

    @property
    def has_undrained(self) -> bool:
        """Whether an append or a batch waits to be sent."""
        return bool(self._queue) or len(self._batches) > self._in_flight_count

    @property
    def is_idle(self) -> bool:
        """Whether every append has a result."""
        return not self._queue and all(batch.is_done for batch in self._batches)

    # --- the next batch ---------------------------------------------------------------------------

    def add(self, requests: Iterable[AppendRequest]) -> None:
        """Queue appends."""
        self._queue.extend(requests)

    def needs_producer_id(self, leader_epoch: int) -> bool:
        """Return whether ``set_producer_id`` must be called before the next batch can be sent."""
        self._close_gap()
        if self._producer_id is not None or not self._may_send():
            return False
        batch = self._next_built()
        if batch is not None:
            return batch.has_sequence
        first = self._first_queued(leader_epoch)
        return first is not None and needs_producer_id(first)

    def set_producer_id(self, producer_id: int, producer_epoch: int) -> None:
        """Use a new producer id, which has no batches in the log."""
        self._producer_id, self._producer_epoch = producer_id, producer_epoch
        self._next_sequence, self._is_known = 0, False

    def next_batch(self, leader_epoch: int, wall_ms: int) -> ProducerBatch | None:
        """Return the next batch, which is then in flight; None if no batch may be sent."""
        self._close_gap()
        if not self._may_send():
            return None
        self._is_recovering = False
        batch = self._next_built()
        if self._gap_ordinal is not None and (
            batch is None or batch.stamp is None or self._is_after_gap(batch)
        ):
            return None
        while batch is None and self._first_queued(leader_epoch) is not None:
            self._build(wall_ms)
            batch = self._next_built()
        if batch is None or (self._in_flight_count and not batch.has_sequence):
            return None
        if batch.has_sequence and batch.stamp is None:
            first = self._batches[0]
            sent_count = self._stamped_count - first.ordinal if first.stamp is not None else 0
            if self._producer_id is None or sent_count >= IN_FLIGHT_MAX:
                return None
            sequence, epoch = self._next_sequence, self._producer_epoch
            batch.assign(ProducerStamp(self._producer_id, epoch, sequence))
            self._next_sequence = incremented(sequence, batch.record_count)
            batch.ordinal = self._stamped_count
            self._stamped_count += 1
        batch.is_in_flight = True
        self._in_flight_count += 1
        return batch

    def _may_send(self) -> bool:
        if not self._in_flight_count:
            return True
        if self._is_recovering or not self._batches[0].has_sequence:
            return False
        return self._is_known and self._in_flight_count < IN_FLIGHT_MAX

    def _next_built(self) -> ProducerBatch | None:
        return next((batch for batch in self._batches if not batch.is_in_flight), None)

    def _first_queued(self, leader_epoch: int) -> AppendRequest | None:
        """Return the first append in the queue that is neither cancelled nor refused."""
        while self._queue:
            first = self._queue[0]
            if _start(first) and not _is_refused(first, leader_epoch):
                return first
            self._queue.popleft()
        return None

    def _build(self, wall_ms: int) -> None:
        """Build the next batches from the front of the queue, or fail its first append."""
        group = list(self._group())
        batches = self._built(group, wall_ms)
        if not batches and len(group) > 1:
            group = group[:1]
            batches = self._built(group, wall_ms)
        for _ in group:
            self._queue.popleft()
        self._batches += batches

    def _built(self, group: list[AppendRequest], wall_ms: int) -> list[ProducerBatch]:
        try:
            return append_batches(group, self._settings, wall_ms)
        except (RecordBatchTooLargeError, InvalidAppendError) as error:
            if len(group) == 1:
                fail_request(group[0], error)
            return []

    def _group(self) -> Iterator[AppendRequest]:
        """Yield appends from the front of the queue that may share a batch."""
        limit = min(SHARED_BYTES_MAX, self._settings.batch_bytes_max)
        is_alone = not can_share_batch(self._queue[0])
        byte_count = 0
        for ordinal, request in enumerate(self._queue):
            byte_count += request.byte_count()
            if ordinal and (
                is_alone
                or not can_share_batch(request)
                or ordinal == SHARED_REQUESTS_MAX
                or byte_count > limit
                or not _start(request)
            ):
                return
            yield request

    # --- responses --------------------------------------------------------------------------------

    def complete(self, batch: ProducerBatch, result: AppendResult) -> None:
        """Complete the appends of a batch that was appended."""
        if self._is_after_gap(batch) and not result.was_duplicate:
            self._fail_earlier(batch)
        self._end_flight(batch)
        self._batches.remove(batch)
        # A repeated commit may be another producer's; then this batch's sequence is not in the log.
        self._is_known |= batch.stamp is not None and not result.was_duplicate
        batch.complete(result)

    def return_unsent(self, batch: ProducerBatch) -> None:
        """Put back a batch that could not be sent, to be sent later."""
        self._end_flight(batch)
        self._is_recovering = True

    def handle_lost(self, batch: ProducerBatch, reason: str) -> None:
        """Send a batch again, because its response was lost."""
        self._send_again(batch, reason, may_be_appended=True)

    def handle_error(self, batch: ProducerBatch, code: int, text: str | None) -> Retry | None:
        """Handle an error response. Returns the leader's problem, if any."""
        outcome = outcome_of_error(batch, code, text, self._path)
        if not isinstance(outcome, Retry):
            self.refuse(batch, outcome)
            return None
        if outcome.epoch_error is not None:
            batch.epoch_error = outcome.epoch_error
        is_first = self._batches[0] is batch
        self._send_again(batch, outcome.reason, may_be_appended=outcome.may_be_appended)
        if not outcome.is_out_of_order:
            return outcome
        if self._is_after_gap(batch) or not is_first or batch not in self._batches:
            return None  # as expected after a batch that was refused, or is sent again first
        # The batch before it was a repeated commit of another producer.
        self._begin_gap(batch.ordinal - 1)
        return outcome

    def refuse(self, batch: ProducerBatch, error: RaftlogError) -> None:
        """Fail the appends of a refused batch; if they share it, send them separately instead."""
        self._end_flight(batch)
        left: list[ProducerBatch] = []
        if len(batch.requests) > 1 and batch.may_be_appended:
            # Another node may have appended it, so its appends could be written twice if separated.
            error = self._unknown(f"a response was lost; then: {error.message()}")
        is_unknown = isinstance(error, AppendUnknownError)
        if len(batch.requests) == 1 or is_unknown:
            batch.fail(error)
        else:
            left = [one for request in batch.requests for one in self._separate(batch, request)]
        self._remove(batch, left, is_unknown=is_unknown)
        self._drop_done()

    def _separate(self, batch: ProducerBatch, request: AppendRequest) -> list[ProducerBatch]:
        if request.future.done():
            return []
        return self._built([request], batch.base_timestamp_ms)

    def _send_again(self, batch: ProducerBatch, reason: str, *, may_be_appended: bool) -> None:
        self._end_flight(batch)
        self._is_recovering = True
        batch.may_be_appended = batch.may_be_appended or (may_be_appended and batch.writes)
        batch.last_problem = reason
        self._drop_done()

    def _end_flight(self, batch: ProducerBatch) -> None:
        batch.is_in_flight = False
        self._in_flight_count -= 1

    # --- gaps in the sequences --------------------------------------------------------------------

    def _remove(
        self, batch: ProducerBatch, instead: Sequence[ProducerBatch] = (), *, is_unknown: bool
    ) -> None:
        """Remove a batch that was not acknowledged. ``is_unknown``: it may still reach the log."""
        position = self._batches.index(batch)
        self._batches[position : position + 1] = instead
        if batch.stamp is not None:
            self._begin_gap(batch.ordinal)
            self._has_unresolved_gap |= is_unknown

    def _begin_gap(self, ordinal: int) -> None:
        """Begin a gap before the batches that have sequences and a greater ordinal."""
        if self._gap_ordinal is None or ordinal < self._gap_ordinal:
            self._gap_ordinal = ordinal

    def _fail_earlier(self, appended: ProducerBatch) -> None:
        """Fail the appends of a refused batch that were to be sent separately before this one.

        The log had evicted the producer id. Then it accepts any sequence, even after a gap.
        """
        for batch in self._batches[: self._batches.index(appended)]:
            if batch.stamp is None:
                batch.fail(self._unknown("not sent again, since a later append is in the log"))
        self._drop_done()

    def _is_after_gap(self, batch: ProducerBatch) -> bool:
        """Return whether no batch will have the sequence before this one's."""
        gap_ordinal = self._gap_ordinal
        return gap_ordinal is not None and batch.stamp is not None and batch.ordinal > gap_ordinal

    def _close_gap(self) -> None:
        """Increase the producer's epoch after a gap, once the batches before it have an outcome."""
        if self._gap_ordinal is None or self._in_flight_count:
            return
        stamped = [batch for batch in self._batches if batch.stamp is not None]
        if not all(self._is_after_gap(batch) for batch in stamped):
            return
        for batch in stamped:
            if batch.may_be_appended and self._has_unresolved_gap:
                reason = f"{batch.last_problem}; then the outcome of an earlier batch was unknown"
                batch.fail(self._unknown(reason))
            elif batch.epoch_error is not None:
                batch.fail(batch.epoch_error)
            batch.stamp, batch.may_be_appended = None, False
        self._batches = [one for one in self._batches if not one.is_done]
        self._gap_ordinal, self._has_unresolved_gap = None, False
        self._next_sequence = 0
        self._producer_epoch += 1
        if self._producer_epoch > INT16_MAX:
            self._producer_id = None

    def _drop_done(self) -> None:
        """Remove the batches whose appends have results, unless a later one depends on them."""
        is_needed = False
        for batch in reversed(self._batches.copy()):
            is_unneeded = batch.is_done and not batch.is_in_flight
            if is_unneeded and not (batch.may_be_appended and is_needed):
                self._remove(batch, is_unknown=False)  # no later one is in doubt
            else:
                is_needed |= batch.stamp is not None and not self._is_after_gap(batch)

    # --- deadlines --------------------------------------------------------------------------------

    def expire(self, now_ms: float, wall_ms: int, unavailable: Callable[[], RaftlogError]) -> None:
        """Fail the appends whose deadline has passed."""
        for batch in self._batches:
            expired = batch.expired_requests(now_ms)
            if not expired:
                continue
            if batch.is_in_flight:
                reason = "no response in time"
                batch.fail_requests(expired, self._no_response(batch, reason, unavailable))
            else:
                self._expire_waiting(batch, expired, wall_ms, unavailable)
        self._drop_done()
        if not any(request.deadline_ms <= now_ms for request in self._queue):
            return
        for _ in range(len(self._queue)):
            request = self._queue[0]
            if request.deadline_ms > now_ms:
                self._queue.rotate(-1)
            elif _start(self._queue.popleft()):
                fail_request(request, unavailable())

    def _expire_waiting(
        self,
        batch: ProducerBatch,
        expired: list[AppendRequest],
        wall_ms: int,
        unavailable: Callable[[], RaftlogError],
    ) -> None:
        """Fail appends whose deadline has passed, in a batch that is not in flight.

        An append is refused (``unavailable``) only if it can no longer be written: the batch was
        never appended, and is built again without it.
        """
        stamp = batch.stamp
        is_removed = not batch.may_be_appended and remove_requests(
            batch, expired, self._settings, wall_ms
        )
        if is_removed:
            if stamp is not None:
                self._begin_gap(batch.ordinal)
            batch.fail_requests(expired, unavailable())
        else:
            reason = batch.last_problem or "its batch is still to be sent"
            batch.fail_requests(expired, self._unknown(reason))

    def _no_response(
        self, batch: ProducerBatch, reason: str, unavailable: Callable[[], RaftlogError]
    ) -> RaftlogError:
        """Return the error of a batch in flight that gets no response."""
        return self._unknown(reason) if batch.writes else unavailable()

    def fail_waiting(self, error: RaftlogError) -> None:
        """Fail all appends not in flight, because access is denied or the sender has ended."""
        for batch in [one for one in self._batches if not one.is_in_flight]:
            reason = f"{batch.last_problem}; then: {error.message()}"
            batch.fail(self._unknown(reason) if batch.may_be_appended else error)
            self._remove(batch, is_unknown=batch.may_be_appended)
        while self._queue:
            request = self._queue.popleft()
            if _start(request):
                fail_request(request, error)

    def fail_all(self, reason: str, unavailable: Callable[[], RaftlogError]) -> None:
        """Fail all appends, since nothing more is sent."""
        for batch in self._batches:
            if batch.is_in_flight:
                batch.fail(self._no_response(batch, reason, unavailable))
        self.fail_waiting(LogClosedError(path=self._path, reason=reason))

    def _unknown(self, reason: str) -> AppendUnknownError:
        return AppendUnknownError(path=self._path, reason=reason)


def _start(request: AppendRequest) -> bool:
    """Return whether an append is not cancelled. After this call it can no longer be cancelled."""
    future = request.future
    return future.running() or (not future.done() and future.set_running_or_notify_cancel())


def _is_refused(request: AppendRequest, leader_epoch: int) -> bool:
    """Refuse an epoch that a batch cannot have, or under which its condition would be ignored."""
    epoch = request.epoch
    if epoch is None or 1 <= epoch <= INT32_MAX:
        return False
    kind = NotLeaderError if epoch < 1 else FutureEpochError
    fail_request(request, kind(epoch=epoch, current_epoch=leader_epoch))
    return True


# --- Outcome of a batch by its response -----------------------------------------------------------

_RETRIABLE: Final = RETRIABLE_ERRORS | {19, 104}
"""Kafka's error codes after which nothing was appended, and a retry may help: those of all
requests, NOT_ENOUGH_REPLICAS and, from a node of another cluster, INCONSISTENT_CLUSTER_ID."""
_UNKNOWN: Final = frozenset((7, 20))
"""Kafka's codes for an unknown outcome (REQUEST_TIMED_OUT, NOT_ENOUGH_REPLICAS_AFTER_APPEND)."""
_TRANSIENT: Final = (LogClosedError, BufferAllocationError, LogLockedError, DiskFullError)
"""Errors of one leader at one time. A leader with a full disk resigns; another may have room."""
_CHECKED_AFTER_IDENTITY: Final = (UnexpectedEndOffsetError, KeyChangedError, InvalidAppendError)
"""Refusals that prove that the batch is not in the log: the leader checks for them after the
batch's identity, or the first attempt would have been refused too. A refusal of its size is not
among them, because leaders may have different limits."""


@dataclass(frozen=True, slots=True)
class Retry:
    """Outcome of a batch that is sent again. ``may_be_appended``: this attempt may be in the log.

    ``is_out_of_order``: the batch before it is not in the log, so neither is this one.
    ``epoch_error``: the refusal of the caller's epoch, if an earlier attempt may be in the log.
    """

    reason: str
    may_be_appended: bool = False
    is_leader_lost: bool = True
    is_out_of_order: bool = False
    epoch_error: RaftlogError | None = None


def outcome_of_error(
    batch: ProducerBatch, code: int, text: str | None, path: str
) -> Retry | RaftlogError:
    """Return the error of the appends in a batch, or ``Retry``. ``path`` names the quorum."""
    error = parse_error_message(text)
    if isinstance(error, AppendUnknownError) or (error is None and code in _UNKNOWN):
        reason = text or f"Kafka's error {code}"
        return Retry(reason, may_be_appended=True, is_leader_lost=False)
    if isinstance(error, OutOfOrderSequenceError) and batch.stamp is not None:
        reason = error.message()
        if decremented(error.expected_sequence, error.sequence) < SEQUENCES // 2:
            # Later batches are in the log, and the leader no longer remembers this one.
            return AppendUnknownError(path=path, reason=reason)
        return batch.epoch_error or Retry(reason, is_leader_lost=False, is_out_of_order=True)
    if isinstance(error, NotLeaderError | FutureEpochError):
        return _outcome_of_epoch_error(batch, error)
    if isinstance(error, _TRANSIENT):
        is_leader_lost = isinstance(error, LogClosedError | DiskFullError)
        return Retry(str(error), is_leader_lost=is_leader_lost)
    if error is None and code in _RETRIABLE:
        return Retry(text or f"Kafka's error {code}", is_leader_lost=code != 19)
    if error is None:
        error = _foreign_error(code, text, path)
    if batch.epoch_error is not None and isinstance(error, UnexpectedEndOffsetError):
        return batch.epoch_error
    if batch.may_be_appended and not _is_final(batch, error):
        reason = f"a response was lost, and a retry failed: {error.message()}"
        return AppendUnknownError(path=path, reason=reason)
    if isinstance(error, UnexpectedEndOffsetError):
        return _as_requested(batch, error)
    return error


def _is_final(batch: ProducerBatch, error: RaftlogError) -> bool:
    """Return whether a refusal proves that no earlier copy of the batch is or will be in the log.

    A required offset after the log's end proves nothing: once the log has grown to it, the leader
    may append a copy that was in transit on another connection. The same holds if a condition on
    keys refers to an end that this leader has not reached yet, and for a leader that does not
    support such conditions, as during a rolling upgrade.
    """
    has_keys = batch.requests[0].unchanged is not None
    if isinstance(error, UnexpectedEndOffsetError):
        wanted = batch.required_base_offset
        if has_keys:
            wanted = max(wanted, error.required_base_offset or 0)
        return not error.log_end_offset < wanted < IMPOSSIBLE_OFFSET
    if has_keys and isinstance(error, InvalidAppendError):
        return False
    return isinstance(error, _CHECKED_AFTER_IDENTITY)


def _outcome_of_epoch_error(
    batch: ProducerBatch, error: NotLeaderError | FutureEpochError
) -> Retry | RaftlogError:
    is_not_leader = isinstance(error, NotLeaderError) and error.epoch == error.current_epoch
    if batch.epoch is None or batch.epoch_error is not None or is_not_leader:
        return Retry(str(error))
    error = replace(error, epoch=batch.epoch)
    return Retry(str(error), epoch_error=error) if batch.may_be_appended else error


def _foreign_error(code: int, text: str | None, path: str) -> RaftlogError:
    if is_access_error(code):
        reason = text or f"client not authorized to append (Kafka's error {code})"
        return AccessDeniedError(path=path, reason=reason)
    return NodeRefusedError(path=path, api="Produce", error=code, reason=text or "no details given")


def _as_requested(
    batch: ProducerBatch, error: UnexpectedEndOffsetError
) -> UnexpectedEndOffsetError:
    """Return the error with the caller's required offsets, since a batch has only a base offset."""
    end_offset = error.log_end_offset
    wanted_end = batch.requests[0].required_end_offset
    wanted_base = batch.requests[0].required_base_offset
    if batch.requests[0].unchanged is not None and wanted_base is None:
        wanted_base = error.required_base_offset
    next_available = end_offset + batch.record_count - 1
    return UnexpectedEndOffsetError(
        required_end_offset=None if wanted_end == next_available else wanted_end,
        required_base_offset=None if wanted_base == end_offset else wanted_base,
        record_count=batch.record_count,
        log_end_offset=end_offset,
    )
