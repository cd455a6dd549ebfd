"""Sender of a client's batches to the leader until each append has a result (Kafka: ``Sender``).

Rules of this file:

1. ``Producer`` decides which batch is sent and what its response means. Batches are sent in order
   over one connection. After a problem, the search for the leader starts once none is in flight.
2. The bytes of appends without a result are bounded. ``append`` waits for room until the append's
   deadline (``BufferAllocationError``, Kafka: ``max.block.ms``).
3. While the leader throttles this client (KIP-219) nothing is sent to it, so that an append whose
   deadline passes in that time was not written.
4. A closed sender ends when the last append has a result, with or without a leader: at the append's
   deadline at the latest.
5. ``append``, ``close`` and ``close_later`` are thread-safe. Everything else runs on the network
   loop.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import math
from collections.abc import Callable
from concurrent.futures import Future, wait
from functools import partial
from typing import Any, Final

from kio.schema.init_producer_id.v5.response import InitProducerIdResponse

from raftlog.append import WAITING_BYTES_MAX, AppendRequest, AppendResult, BufferPool
from raftlog.clock import Clock
from raftlog.errors import (
    AccessDeniedError,
    LogReadOnlyError,
    NodeRefusedError,
    QuorumUnavailableError,
    RaftlogError,
    SaslAuthenticationError,
)
from raftlog.wire import (
    ApiKey,
    ProduceResponse,
    ProduceResult,
    decode_produce_response,
    encode_produce_request,
)
from raftlog.wire.errors import WireError
from raftlog.wire.produce_codec import parse_appended_message

from . import messages
from .connection import ConnectionLostError, NetworkThread
from .login import TokenFunctionError
from .metadata import PAUSE_FIRST_S, PAUSE_LONGEST_S, LeaderConnection, Metadata
from .producer import Producer
from .producer_batches import LogSettings, ProducerBatch

COMMIT_WAIT_MS: Final = 4000
"""Time limit for a leader to commit a batch, or to respond that the outcome is unknown."""
RESPONSE_TIMEOUT_S: Final = 6.0
"""Time without a response after which a connection is closed."""
EXPIRY_INTERVAL_S: Final = 0.05
SEARCH_S: Final = 10.0


class Sender:
    """Sender of one handle, started by its first append.

    If the handle is not closed, its appends are still sent before the process exits.
    """

    def __init__(
        self, metadata: Metadata, network: NetworkThread, settings: LogSettings, clock: Clock
    ) -> None:
        self._metadata = metadata
        self.network: Final = network
        """Its thread completes the appends."""
        self._clock = clock
        self._pool: Final = BufferPool(metadata.path, WAITING_BYTES_MAX, clock.now_ms)
        self._new: list[AppendRequest] = []
        """Appends that the loop has not collected yet. The pool's lock guards them."""
        self._run_future: Future[None] | None = None
        # The attributes below are used only on the loop.
        self._producer: Final = Producer(metadata.path, settings)
        self._changed = asyncio.Event()
        self._active = asyncio.Event()
        self._search: asyncio.Task[LeaderConnection] | None = None
        self._problem: str | None = None
        self._pause_s = 0.0
        self._is_closing = False

    # --- any thread -------------------------------------------------------------------------------

    def append(self, request: AppendRequest) -> None:
        """Queue an append, whose future gets the result.

        Raises ``LogClosedError``, and ``BufferAllocationError`` if there is no room by the append's
        deadline, or now if this is the thread that makes room.
        """
        self._pool.check_process("it was connected")
        byte_count = request.byte_count()
        wait_until_ms = -math.inf if self.network.is_this_thread else request.deadline_ms
        with self._pool.changed:
            self._pool.wait_for_room(byte_count, wait_until_ms)
            if not self._new:
                self._wake_up()
            self._pool.allocate(byte_count)
            self._new.append(request)
        request.future.add_done_callback(partial(self._release_room, byte_count))

    def _release_room(self, byte_count: int, _: Any) -> None:
        with self._pool.changed:
            self._pool.release(byte_count)

    def _refuse_further(self, reason: str = "close() was called") -> None:
        with self._pool.changed:
            self._pool.close(reason)

    def _wake_up(self) -> None:
        """Start if necessary, and collect new appends. Called while an append is being queued."""
        if self._run_future is None:
            _senders.add(self)
            self._run_future = self.network.start(self._run())
        self.network.call(self._collect)

    def close(self) -> None:
        """Accept no more appends, and wait until all have a result."""
        if self.network.is_forked:
            return  # appends that a fork copied are sent by the parent
        self._refuse_further()
        future = self._run_future
        if future is not None and not self.network.is_this_thread:
            if not future.done():
                self.network.call(self._close)
            wait((future,))
        _senders.discard(self)

    def close_later(self, then: Callable[[], None]) -> None:
        """Accept no more appends; call ``then`` when all have a result, without blocking."""
        if self.network.is_forked:
            return
        self._refuse_further()
        future = self._run_future
        if future is None:
            then()
            return
        if not future.done():
            self.network.call(self._close)

        def finish(_: Future[None]) -> None:
            _senders.discard(self)
            then()

        future.add_done_callback(finish)

    # --- the loop ---------------------------------------------------------------------------------

    def _collect(self) -> None:
        with self._pool.changed:
            new, self._new = self._new, []
        self._producer.add(new)
        self._changed.set()
        self._active.set()

    def _close(self) -> None:
        self._is_closing = True
        self._changed.set()

    async def _run(self) -> None:
        """Send until the sender is closed and every append has a result."""
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
        while not self._producer.has_undrained:
            if self._is_over:
                return False
            await self._wait_for_change()
        return True

    @property
    def _is_over(self) -> bool:
        """Whether it is closed, and every append has a result."""
        return self._is_closing and self._producer.is_idle

    async def _wait_for_change(self, timeout_s: float | None = None) -> None:
        self._changed.clear()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._changed.wait(), timeout_s)

    async def _find_leader(self) -> LeaderConnection | None:
        """Return the leader; None if none is found or if there is nothing left to send."""
        until = asyncio.get_running_loop().time() + SEARCH_S
        self._search = search = asyncio.ensure_future(self._metadata.leader(until))
        try:
            await asyncio.wait((search,))
        finally:
            search.cancel()
            self._search = None
        if search.cancelled():
            return None
        error = search.exception()
        if error is None:
            return search.result()
        if isinstance(error, QuorumUnavailableError):
            return None  # ``_expire`` fails the appends at their deadlines
        if isinstance(error, TokenFunctionError):
            path, remedy = self._metadata.path, "the next append calls it again"
            error = SaslAuthenticationError(path=path, reason=str(error), remedy=remedy)
        elif not isinstance(error, RaftlogError):
            raise error  # a bug
        self._producer.fail_waiting(error)
        return None

    def _fail_unfinished(self, reason: str) -> None:
        """Fail the appends that have no result, and all later ones."""
        self._refuse_further(reason)
        self._collect()
        self._producer.fail_all(reason, self._metadata.unavailable)

    # --- sending ----------------------------------------------------------------------------------

    async def _serve(self, leader: LeaderConnection) -> None:
        """Send to a leader until there is a problem; return when no batch is in flight."""
        self._problem = None
        producer = self._producer
        while self._problem is None and (producer.has_undrained or producer.in_flight_count):
            if self._is_over:
                break
            pause_s = self._metadata.throttle_pause_s(leader)
            if pause_s or not await self._send_next(leader):
                await self._wait_for_change(pause_s or None)
        while producer.in_flight_count and not self._is_over:
            await self._wait_for_change()
        if self._problem is None:
            return
        if self._pause_s:
            await asyncio.sleep(self._pause_s)
        self._pause_s = min(max(self._pause_s * 2, PAUSE_FIRST_S), PAUSE_LONGEST_S)

    async def _send_next(self, leader: LeaderConnection) -> bool:
        """Send the next batch; return False if none may be sent before something changes."""
        producer = self._producer
        if not leader.connection.serves(ApiKey.PRODUCE):
            reason = "only the controllers of its nodes append to it, not clients"
            remedy = "change the metadata with the admin clients and tools of Kafka"
            path = self._metadata.path
            producer.fail_waiting(LogReadOnlyError(path=path, reason=reason, remedy=remedy))
            return not producer.in_flight_count
        if producer.needs_producer_id(leader.epoch):
            try:
                await self._request_producer_id(leader)
            except ConnectionLostError as error:
                self._invalidate(leader, str(error), is_lost=True)
            except WireError as error:
                self._invalidate(leader, error.message(), is_lost=True)
            except AccessDeniedError as error:
                producer.fail_waiting(error)
            return True
        batch = producer.next_batch(leader.epoch, self._clock.wall_ms())
        if batch is None:
            return not (producer.has_undrained or producer.in_flight_count)
        self._send(leader, batch)
        return True

    async def _request_producer_id(self, leader: LeaderConnection) -> None:
        """Request a producer id (KIP-98)."""
        response = await leader.connection.request(
            ApiKey.INIT_PRODUCER_ID,
            messages.producer_id_request(),
            InitProducerIdResponse,
            timeout_s=RESPONSE_TIMEOUT_S,
        )
        error = int(response.error_code)
        if messages.is_access_error(error):
            reason = f"client not authorized to append (Kafka's error {error})"
            raise AccessDeniedError(path=self._metadata.path, reason=reason)
        if error:
            raise ConnectionLostError(f"InitProducerId failed with Kafka's error {error}")
        self._producer.set_producer_id(int(response.producer_id), int(response.producer_epoch))

    def _send(self, leader: LeaderConnection, batch: ProducerBatch) -> None:
        if leader.epoch < 1 and batch.is_conditional:
            self._producer.return_unsent(batch)  # without an epoch its condition is ignored
            self._invalidate(leader, "its epoch is not known")
            return
        message = messages.produce_request(leader.log, batch.data_for(leader.epoch), COMMIT_WAIT_MS)
        connection = leader.connection
        try:
            response = connection.send_encoded(
                ApiKey.PRODUCE,
                lambda version: encode_produce_request(version, message),
                decode_produce_response,
            )
        except ConnectionLostError as error:
            self._producer.return_unsent(batch)
            self._invalidate(leader, str(error), is_lost=True)
            return
        except WireError as error:
            path, reason = str(connection.address), error.message()
            refusal = NodeRefusedError(path=path, api="Produce", error=35, reason=reason)
            self._producer.refuse(batch, refusal)
            return

        def handle(done: asyncio.Future[ProduceResponse]) -> None:
            self._handle_response(leader, batch, done)
            self._changed.set()

        response.add_done_callback(handle)
        connection.close_without(response, RESPONSE_TIMEOUT_S)
        self._metadata.watch(leader, response)

    # --- responses --------------------------------------------------------------------------------

    def _handle_response(
        self,
        leader: LeaderConnection,
        batch: ProducerBatch,
        done: asyncio.Future[ProduceResponse],
    ) -> None:
        try:
            result = messages.only_result(done.result())
        except (ConnectionLostError, AccessDeniedError, WireError) as error:
            leader.connection.close("a response was lost")
            self._producer.handle_lost(batch, str(error))
            self._invalidate(leader, str(error), is_lost=True)
            return
        code = result.error
        if not code:
            self._metadata.mark_healthy()
            self._pause_s = 0.0
            self._producer.complete(batch, _append_result(leader, batch, result))
            return
        problem = self._producer.handle_error(batch, code, result.message)
        if problem is None:
            return
        self._problem = problem.reason
        if problem.is_leader_lost:
            self._invalidate(leader, problem.reason)

    def _invalidate(self, leader: LeaderConnection, reason: str, *, is_lost: bool = False) -> None:
        self._problem = reason
        self._metadata.invalidate(leader, reason, is_lost=is_lost)

    # --- deadlines --------------------------------------------------------------------------------

    async def _expire_regularly(self) -> None:
        while True:
            if not self._producer.has_undrained and not self._producer.in_flight_count:
                self._active.clear()
            await self._active.wait()
            await asyncio.sleep(EXPIRY_INTERVAL_S)
            self._expire()

    def _expire(self) -> None:
        """Fail the appends whose deadline has passed."""
        clock, producer = self._clock, self._producer
        producer.expire(clock.now_ms(), clock.wall_ms(), self._metadata.unavailable)
        if not producer.has_undrained and self._search is not None:
            self._search.cancel()
        if self._is_over:
            self._changed.set()


_senders: Final[set[Sender]] = set()


@atexit.register
def _close_all() -> None:
    """Send queued appends when the interpreter exits."""
    for sender in list(_senders):
        sender.close()


def _append_result(
    leader: LeaderConnection, batch: ProducerBatch, result: ProduceResult
) -> AppendResult:
    """Return the result in a response without an error."""
    base_offset = result.base_offset
    appended = parse_appended_message(result.message)
    if appended is None:  # an older node
        return AppendResult(base_offset, base_offset + batch.record_count - 1, leader.epoch)
    # A retry by this client is not a duplicate for the caller, which appended once.
    was_duplicate = appended.was_duplicate and batch.is_named
    return AppendResult(base_offset, appended.last_offset, appended.epoch, was_duplicate)
