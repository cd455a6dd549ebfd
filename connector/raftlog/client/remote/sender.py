"""Sends the batches of a client to the leader until each append has a result (Kafka: ``Sender``).

Rules of this file:

1. Batches are sent in order over one connection, several at a time. After a problem no batch is
   sent before all batches in flight have a response or are lost; they are sent again first.
2. A batch that may be appended is sent again unchanged. At its deadline an append in it fails with
   ``AppendUnknownError``; any other append with ``QuorumUnavailableError``.
3. A refusal of a batch that may be appended proves that it is not in the log only if the leader
   checks the identity of a batch before the reason of the refusal (``AppendBatch``). The epoch is
   checked earlier: if it was refused, the batch is sent under the current epoch with a required
   offset that no log reaches.
4. A closed sender ends when the last append has a result, which is at its deadline at the latest,
   with or without a leader.
5. ``close`` and ``close_later`` are thread-safe. All else runs on the network's loop.
"""

from __future__ import annotations

import asyncio
import atexit
import os
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, wait
from dataclasses import dataclass, replace
from typing import Any, Final

from kio.schema.init_producer_id.v5.response import InitProducerIdResponse

from raftlog.append import AppendResult
from raftlog.client.log_handle import Clock
from raftlog.errors import (
    AccessDeniedError,
    AppendUnknownError,
    BufferAllocationError,
    DiskFullError,
    FutureEpochError,
    InvalidAppendError,
    LogClosedError,
    LogLockedError,
    LogReadOnlyError,
    NodeRefusedError,
    NotLeaderError,
    QuorumUnavailableError,
    RaftlogError,
    UnexpectedEndOffsetError,
    WireError,
    WrongClusterError,
)
from raftlog.wire import ApiKey, latest_schemas
from raftlog.wire.produce_error_messages import parse_appended_message, parse_error_message

from . import messages
from .connection import ConnectionLostError, NetworkThread
from .metadata import LeaderConnection, Metadata, is_access_error
from .producer_batches import LogSettings, ProducerBatch, ProducerState, fail_request
from .record_accumulator import RecordAccumulator

IN_FLIGHT_MAX: Final = 5
"""Batches without a response (Kafka: ``max.in.flight.requests.per.connection``)."""
COMMIT_WAIT_MS: Final = 4000
"""Time in which a leader commits a batch, or responds that the outcome is unknown."""
RESPONSE_TIMEOUT_S: Final = 6.0
"""Time without a response after which a connection is closed."""
EXPIRY_INTERVAL_S: Final = 0.05
SEARCH_S: Final = 10.0
PAUSE_FIRST_S: Final = 0.02
PAUSE_LONGEST_S: Final = 0.4


class Sender:
    """Sender of one handle, started by its first append, and the queue of its appends.

    Appends of a handle that is not closed are sent before the process exits.
    """

    def __init__(
        self, metadata: Metadata, network: NetworkThread, settings: LogSettings, clock: Clock
    ) -> None:
        self._metadata = metadata
        self._network = network
        self._clock = clock
        self.accumulator: Final = RecordAccumulator(metadata.path, settings, clock, self._wake_up)
        self._run_future: Future[None] | None = None
        # Below: used on the loop only.
        self._in_flight: deque[ProducerBatch] = deque()
        self._changed = asyncio.Event()
        self._active = asyncio.Event()
        self._search: asyncio.Task[LeaderConnection] | None = None
        self._problem: str | None = None
        self._pause_s = 0.0
        self._is_closing = False

    # --- any thread -------------------------------------------------------------------------------

    def _wake_up(self) -> None:
        """Start if necessary, and collect new appends. Called while an append is being queued."""
        if self._run_future is None:
            _senders.add(self)
            self._run_future = self._network.start(self._run())
        self._network.call(self._collect)

    def close(self) -> None:
        """Take no more appends, and wait until all have a result."""
        if os.getpid() != self._network.process_id:
            return  # appends that a fork copied are sent by the parent
        self.accumulator.close()
        future = self._run_future
        if future is not None and not self._network.is_this_thread:
            if not future.done():
                self._network.call(self._close)
            wait((future,))
        _senders.discard(self)

    def close_later(self, then: Callable[[], None]) -> None:
        """Take no more appends, and call ``then`` when all have a result, without waiting."""
        if os.getpid() != self._network.process_id:
            return
        self.accumulator.close()
        future = self._run_future
        if future is None:
            then()
            return
        if not future.done():
            self._network.call(self._close)

        def finish(_: Future[None]) -> None:
            _senders.discard(self)
            then()

        future.add_done_callback(finish)

    # --- the loop ---------------------------------------------------------------------------------

    def _collect(self) -> None:
        self.accumulator.collect()
        self._changed.set()
        self._active.set()

    def _close(self) -> None:
        self._is_closing = True
        self._changed.set()

    async def _run(self) -> None:
        """Send until it is closed and every append has a result."""
        reason = "the sender has ended"
        try:
            async with asyncio.TaskGroup() as group:
                expiring = group.create_task(self._expire_regularly())
                while await self._wait_for_work():
                    leader = await self._find_leader()
                    if leader is not None:
                        await self._serve(leader)
                expiring.cancel()
        except ExceptionGroup as bugs:
            reason = f"the sender failed: {bugs.exceptions[0]!r}"
            raise
        finally:
            self._fail_unfinished(reason)

    async def _wait_for_work(self) -> bool:
        while not self.accumulator.has_undrained:
            if self._is_over:
                return False
            await self._wait_for_change()
        return True

    @property
    def _is_over(self) -> bool:
        """Whether it is closed, and every append has a result."""
        is_needed = self.accumulator.has_undrained or any(
            not one.is_done for one in self._in_flight
        )
        return self._is_closing and not is_needed

    async def _wait_for_change(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    async def _find_leader(self) -> LeaderConnection | None:
        """Return the leader; None if none is found, or if nothing is to be sent any more."""
        until = asyncio.get_running_loop().time() + SEARCH_S
        self._search = search = asyncio.ensure_future(self._metadata.leader(until))
        try:
            await asyncio.wait((search,))
            return None if search.cancelled() else search.result()
        except QuorumUnavailableError:
            return None  # ``_expire`` fails the appends at their deadlines
        except (AccessDeniedError, NodeRefusedError, WrongClusterError) as error:
            self.accumulator.fail_all(error)
            return None
        finally:
            search.cancel()
            self._search = None

    def _fail_unfinished(self, reason: str) -> None:
        """Fail the appends without a result, and later ones."""
        self.accumulator.close(reason)
        self.accumulator.collect()
        for batch in self._in_flight:
            batch.fail(self._no_response(batch, reason))
        self.accumulator.fail_all(LogClosedError(path=self._metadata.path, reason=reason))

    # --- sending ----------------------------------------------------------------------------------

    async def _serve(self, leader: LeaderConnection) -> None:
        """Send to a leader until there is a problem; return when no batch is in flight."""
        self._problem = None
        accumulator, in_flight = self.accumulator, self._in_flight
        while self._problem is None and (accumulator.has_undrained or in_flight):
            if self._is_over:
                break
            if accumulator.has_undrained and len(in_flight) < IN_FLIGHT_MAX:
                await self._send_next(leader)
            else:
                await self._wait_for_change()
        while in_flight and not self._is_over:
            await self._wait_for_change()
        if self._problem is None:
            return
        if self._pause_s:
            await asyncio.sleep(self._pause_s)
        self._pause_s = min(max(self._pause_s * 2, PAUSE_FIRST_S), PAUSE_LONGEST_S)

    async def _send_next(self, leader: LeaderConnection) -> None:
        if not leader.connection.serves(ApiKey.PRODUCE):
            reason = "only the controllers of its nodes append to it, not clients"
            remedy = "change the metadata with the admin clients and tools of Kafka"
            path = self._metadata.path
            self.accumulator.fail_all(LogReadOnlyError(path=path, reason=reason, remedy=remedy))
            return
        try:
            batch = await self._next_batch(leader)
        except ConnectionLostError as error:
            self._invalidate(leader, str(error), is_lost=True)
        except WireError as error:
            self._invalidate(leader, error.message(), is_lost=True)
        except AccessDeniedError as error:
            self.accumulator.fail_all(error)
        else:
            if batch is None:
                return
            if self._problem is None:
                self._send(leader, batch)
            else:  # since a producer id was requested
                self.accumulator.reenqueue(batch)

    async def _next_batch(self, leader: LeaderConnection) -> ProducerBatch | None:
        """Return the next batch; None if the next appends are cancelled or refused."""
        accumulator = self.accumulator
        built = accumulator.next_built()
        if built is not None:
            split = built.split
            if split is not None and any(one.split is split for one in self._in_flight):
                # If one part is refused, the next one must not be sent.
                accumulator.reenqueue(built)
                await self._wait_for_change()
                return None
            return built
        is_needed = accumulator.needs_producer_id(leader.epoch)
        if is_needed is None:
            return None
        state = await self._producer_id(leader) if is_needed else None
        if accumulator.needs_producer_id(leader.epoch) is is_needed:
            return accumulator.drain(state)
        if state is not None:  # the append that needed it was cancelled or expired
            accumulator.idle_producers.append(state)
        return None

    async def _producer_id(self, leader: LeaderConnection) -> ProducerState:
        """Return a producer id that no batch uses, requested if necessary (KIP-98)."""
        if self.accumulator.idle_producers:
            return self.accumulator.idle_producers.pop()
        response = await leader.connection.request(
            ApiKey.INIT_PRODUCER_ID,
            messages.producer_id_request(),
            InitProducerIdResponse,
            timeout_s=RESPONSE_TIMEOUT_S,
        )
        error = int(response.error_code)
        if is_access_error(error):
            reason = f"client not authorized to append (Kafka's error {error})"
            raise AccessDeniedError(path=self._metadata.path, reason=reason)
        if error:
            raise ConnectionLostError(f"InitProducerId failed with Kafka's error {error}")
        return ProducerState(int(response.producer_id), int(response.producer_epoch))

    def _send(self, leader: LeaderConnection, batch: ProducerBatch) -> None:
        if leader.epoch < 1 and batch.is_conditional:
            self.accumulator.reenqueue(batch)  # without an epoch its condition is ignored
            self._invalidate(leader, "its epoch is not known")
            return
        message = messages.produce_request(leader.log, batch.data_for(leader.epoch), COMMIT_WAIT_MS)
        connection = leader.connection
        try:
            response = connection.send(ApiKey.PRODUCE, message, latest_schemas.ProduceResponse)
        except ConnectionLostError as error:
            self.accumulator.reenqueue(batch)
            self._invalidate(leader, str(error), is_lost=True)
            return
        except WireError as error:
            path, reason = str(connection.address), error.message()
            batch.fail(NodeRefusedError(path=path, api="Produce", error=35, reason=reason))
            self.accumulator.release(batch)
            return
        self._in_flight.append(batch)
        timer = asyncio.get_running_loop().call_later(
            RESPONSE_TIMEOUT_S, connection.close, "no response in time"
        )

        def handle(done: asyncio.Future[latest_schemas.ProduceResponse]) -> None:
            timer.cancel()
            self._in_flight.remove(batch)
            self._handle_response(leader, batch, done)
            self._changed.set()

        response.add_done_callback(handle)
        self._metadata.watch(leader, response)

    # --- responses --------------------------------------------------------------------------------

    def _handle_response(
        self,
        leader: LeaderConnection,
        batch: ProducerBatch,
        done: asyncio.Future[latest_schemas.ProduceResponse],
    ) -> None:
        try:
            partition = messages.only_partition(done.result().responses, "partition_responses")
        except (ConnectionLostError, AccessDeniedError, WireError) as error:
            leader.connection.close("a response was lost")
            self._send_again(batch, str(error), may_be_appended=True)
            self._invalidate(leader, str(error), is_lost=True)
            return
        code = int(partition.error_code)
        if not code:
            self._metadata.mark_healthy()
            self._pause_s = 0.0
            self.accumulator.release(batch, is_appended=True)
            batch.complete(_append_result(leader, batch, partition))
            return
        outcome = outcome_of_error(batch, code, partition.error_message, self._metadata.path)
        if not isinstance(outcome, Retry):
            self._refuse(batch, outcome)
            return
        if outcome.epoch_error is not None:
            batch.epoch_error = outcome.epoch_error
        self._send_again(batch, outcome.reason, may_be_appended=outcome.may_be_appended)
        self._problem = outcome.reason
        if outcome.is_leader_lost:
            self._invalidate(leader, outcome.reason)

    def _refuse(self, batch: ProducerBatch, error: RaftlogError) -> None:
        is_unknown = isinstance(error, AppendUnknownError)
        if len(batch.requests) == 1 or is_unknown:
            batch.fail(error)
        elif batch.may_be_appended:
            # Another node may have appended it: its appends could be written twice if separated.
            batch.fail(self._unknown(f"a response was lost; then: {error.message()}"))
        else:
            self.accumulator.split_and_reenqueue(batch)
        self.accumulator.release(batch)

    def _send_again(self, batch: ProducerBatch, reason: str, *, may_be_appended: bool) -> None:
        batch.may_be_appended = batch.may_be_appended or (may_be_appended and batch.writes)
        batch.last_problem = reason
        self.accumulator.reenqueue(batch)

    def _invalidate(self, leader: LeaderConnection, reason: str, *, is_lost: bool = False) -> None:
        self._problem = reason
        self._metadata.invalidate(leader, reason, is_lost=is_lost)

    # --- deadlines --------------------------------------------------------------------------------

    async def _expire_regularly(self) -> None:
        while True:
            if not self.accumulator.has_undrained and not self._in_flight:
                self._active.clear()
            await self._active.wait()
            await asyncio.sleep(EXPIRY_INTERVAL_S)
            self._expire()

    def _expire(self) -> None:
        """Fail the appends whose deadline has passed."""
        now_ms = self._clock.now_ms()
        for batch in self._in_flight:
            for request in batch.expired_requests(now_ms):
                fail_request(request, self._no_response(batch, "no response in time"))
        self.accumulator.expire(now_ms, self._metadata.unavailable)
        if not self.accumulator.has_undrained and self._search is not None:
            self._search.cancel()
        if self._is_over:
            self._changed.set()

    def _no_response(self, batch: ProducerBatch, reason: str) -> RaftlogError:
        """Return the error of a batch in flight that gets no response."""
        return self._unknown(reason) if batch.writes else self._metadata.unavailable()

    def _unknown(self, reason: str) -> AppendUnknownError:
        return AppendUnknownError(path=self._metadata.path, reason=reason)


_senders: Final[set[Sender]] = set()


@atexit.register
def _close_all() -> None:
    """Send queued appends when the interpreter exits."""
    for sender in list(_senders):
        sender.close()


# --- Outcome of a batch by its response -----------------------------------------------------------

_RETRIABLE: Final = frozenset((3, 5, 6, 8, 9, 13, 14, 15, 16, 19, 74, 75, 76, 100, 103, 104))
"""Kafka's error codes after which nothing was appended, and a retry may help."""
_UNKNOWN: Final = frozenset((7, 20))
"""Kafka's codes of an unknown outcome (REQUEST_TIMED_OUT, NOT_ENOUGH_REPLICAS_AFTER_APPEND)."""
_TRANSIENT: Final = (LogClosedError, BufferAllocationError, LogLockedError, DiskFullError)
"""Errors of one leader at one time. On a full disk it resigns: another may have room."""
_CHECKED_AFTER_IDENTITY: Final = (UnexpectedEndOffsetError, InvalidAppendError)
"""Refusals which prove that the batch is not in the log: they are checked after its identity, or
the first attempt would have got them, too. Not of its size: leaders may have different limits."""


@dataclass(frozen=True, slots=True)
class Retry:
    """Outcome of a batch that is sent again. ``may_be_appended``: this attempt may be in the log.

    ``epoch_error``: the refusal of the caller's epoch, if an earlier attempt may be in the log.
    """

    reason: str
    may_be_appended: bool = False
    is_leader_lost: bool = True
    epoch_error: RaftlogError | None = None


def outcome_of_error(
    batch: ProducerBatch, code: int, text: str | None, path: str
) -> Retry | RaftlogError:
    """Return the error of the appends in a batch, or ``Retry``. ``path`` names the quorum."""
    error = parse_error_message(text)
    if isinstance(error, AppendUnknownError) or (error is None and code in _UNKNOWN):
        reason = text or f"Kafka's error {code}"
        return Retry(reason, may_be_appended=True, is_leader_lost=False)
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
    if batch.may_be_appended and not isinstance(error, _CHECKED_AFTER_IDENTITY):
        reason = f"a response was lost, and a retry failed: {error.message()}"
        return AppendUnknownError(path=path, reason=reason)
    if isinstance(error, UnexpectedEndOffsetError):
        return _as_requested(batch, error.log_end_offset)
    return error


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


def _as_requested(batch: ProducerBatch, end_offset: int) -> UnexpectedEndOffsetError:
    """Return the error with the required offsets of the caller: a batch has a base offset only."""
    wanted_end = batch.requests[0].required_end_offset
    wanted_base = batch.requests[0].required_base_offset
    next_available = end_offset + batch.record_count - 1
    return UnexpectedEndOffsetError(
        required_end_offset=None if wanted_end == next_available else wanted_end,
        required_base_offset=None if wanted_base == end_offset else wanted_base,
        record_count=batch.record_count,
        log_end_offset=end_offset,
    )


def _append_result(leader: LeaderConnection, batch: ProducerBatch, partition: Any) -> AppendResult:
    """Return the result in a response without an error."""
    base_offset = int(partition.base_offset)
    appended = parse_appended_message(partition.error_message)
    if appended is None:  # an older node
        return AppendResult(base_offset, base_offset + batch.record_count - 1, leader.epoch)
    # A retry by this client is not a duplicate to the caller, which appended once.
    was_duplicate = appended.was_duplicate and batch.is_named
    return AppendResult(base_offset, appended.last_offset, appended.epoch, was_duplicate)
