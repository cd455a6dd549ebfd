"""Sends appends to whoever leads, in their order, until each has its answer.

Rules of this file:

1. Sent in the order in which they came, over one connection, several at a time. After any trouble
   nothing new is sent before all that is under way is answered or lost; that goes again first.
2. What may have been taken is sent again only as itself (``sendings``). At its deadline it is
   ``AppendUnknownError``; what was not taken is ``QuorumUnavailableError``.
3. A producer id serves one batch at a time, and is used again once its batch has an answer.
4. Lives on the network's loop. Nothing here is touched by another thread.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator
from typing import Any, Final

from kio.schema.init_producer_id.v5.response import InitProducerIdResponse

from raftlog.client.clock import Clock
from raftlog.client.requests import AppendRequest, AppendResult
from raftlog.errors import (
    AccessDeniedError,
    AppendUnknownError,
    FutureEpochError,
    LogClosedError,
    NodeRefusedError,
    NotLeaderError,
    QuorumUnavailableError,
    RaftlogError,
    RecordBatchTooLargeError,
    WireError,
)
from raftlog.records.header import INT32_MAX
from raftlog.wire import ApiKey, wide
from raftlog.wire.append_refusals import parse_appended

from . import messages
from .connection import ConnectionLostError, Reply
from .leaders import Leader, Leaders, is_access_error
from .sendings import (
    MERGED_BYTES_MAX,
    MERGED_REQUESTS_MAX,
    AskWhether,
    Lane,
    LogSettings,
    Refused,
    SendAgain,
    Sending,
    alone,
    fail_request,
    judged,
    may_share,
    merged,
    needs_lane,
    split_up,
    unknown_or_unavailable,
)

IN_FLIGHT_MAX: Final = 5
"""Batches that are sent and not answered (Kafka: ``max.in.flight.requests.per.connection``)."""
COMMIT_WAIT_MS: Final = 4000
"""How long a leader may wait for the commit before it says that it does not know."""
ANSWER_TIMEOUT_S: Final = 6.0
"""How long a connection may stay silent before it is given up."""
EXPIRY_INTERVAL_S: Final = 0.05
SEARCH_S: Final = 10.0
PAUSE_FIRST_S: Final = 0.02
PAUSE_LONGEST_S: Final = 0.4


class Sender:
    """The appends of one handle. ``run`` is its life; ``add`` and ``close`` are told to it."""

    def __init__(self, leaders: Leaders, settings: LogSettings, clock: Clock) -> None:
        self._leaders = leaders
        self._settings = settings
        self._clock = clock
        self._queue: deque[AppendRequest] = deque()
        self._ready: deque[Sending] = deque()
        self._in_flight: deque[Sending] = deque()
        self._again: deque[Sending] = deque()
        self._lanes: list[Lane] = []
        self._apart: set[AppendRequest] = set()
        self._news = asyncio.Event()
        self._busy = asyncio.Event()
        self._trouble: str | None = None
        self._pause_s = 0.0
        self._is_closing = False

    def add(self, requests: list[AppendRequest]) -> None:
        """Take appends that wait to be sent."""
        self._queue += requests
        self._news.set()
        self._busy.set()

    def close(self) -> None:
        """End when all has its answer."""
        self._is_closing = True
        self._news.set()

    async def run(self) -> None:
        """Send until it is closed and nothing waits."""
        expiring = asyncio.ensure_future(self._expire_regularly())
        try:
            while await self._wait_for_work():
                leader = await self._leader()
                if leader is not None:
                    await self._serve(leader)
        finally:
            expiring.cancel()
            self._give_up()

    # --- what waits -------------------------------------------------------------------------------

    @property
    def _has_work(self) -> bool:
        return bool(self._again or self._ready or self._queue)

    async def _wait_for_work(self) -> bool:
        while not self._has_work:
            if self._is_closing and not self._in_flight:
                return False
            await self._wait_for_news()
        return True

    async def _wait_for_news(self) -> None:
        self._news.clear()
        await self._news.wait()

    async def _leader(self) -> Leader | None:
        """The leader, as long as somebody waits for it; None if nobody does any more."""
        loop = asyncio.get_running_loop()
        try:
            return await self._leaders.leader(loop.time() + SEARCH_S)
        except QuorumUnavailableError:
            return None  # whose time is up is told so by ``_expire``
        except (AccessDeniedError, NodeRefusedError) as error:
            self._fail_all(error)
            return None

    def _fail_all(self, error: RaftlogError) -> None:
        """Nobody will be let in: answer what waits."""
        for sending in (*self._again, *self._ready):
            unknown = self._unknown(f"{sending.last_problem}; then: {error.sentence()}")
            sending.fail(unknown if sending.is_uncertain else error)
        self._again.clear()
        self._ready.clear()
        while self._queue:
            fail_request(self._queue.popleft(), error)

    def _give_up(self) -> None:
        """Answer whoever is left: nobody sends any more."""
        reason = "what sends has ended"
        for sending in (*self._in_flight, *self._again, *self._ready):
            is_uncertain = sending.is_uncertain or sending in self._in_flight
            sending.fail(self._unknown(reason) if is_uncertain else self._closed(reason))
        for request in self._queue:
            if self._take(request):
                fail_request(request, self._closed(reason))

    def _closed(self, reason: str) -> RaftlogError:
        return LogClosedError(path=self._leaders.path, reason=reason)

    # --- sending ----------------------------------------------------------------------------------

    async def _serve(self, leader: Leader) -> None:
        """Send to a leader until there is trouble; return when nothing is under way."""
        self._trouble = None
        while self._trouble is None and (self._has_work or self._in_flight):
            if self._has_work and len(self._in_flight) < IN_FLIGHT_MAX:
                await self._send_next(leader)
            else:
                await self._wait_for_news()
        while self._in_flight:
            await self._wait_for_news()
        if self._trouble is None:
            self._pause_s = 0.0
            return
        if self._pause_s:
            await asyncio.sleep(self._pause_s)
        self._pause_s = min(max(self._pause_s * 2, PAUSE_FIRST_S), PAUSE_LONGEST_S)

    async def _send_next(self, leader: Leader) -> None:
        try:
            sending = self._next_again() or await self._next(leader)
        except ConnectionLostError as error:
            self._note_trouble(leader, str(error), is_lost=True)
            return
        except WireError as error:
            self._note_trouble(leader, error.sentence(), is_lost=True)
            return
        except (AccessDeniedError, NodeRefusedError) as error:
            self._fail_all(error)
            return
        if sending is None:
            return
        if self._trouble is not None:
            self._ready.appendleft(sending)  # while a producer id was asked for
            return
        self._send(leader, sending)

    def _next_again(self) -> Sending | None:
        while self._again:
            sending = self._again.popleft()
            if sending.is_wanted:
                return sending
            self._let_go(sending)
        return None

    async def _next(self, leader: Leader) -> Sending | None:
        """The next batch; None if what waited is cancelled, or refused here."""
        while self._ready:
            sending = self._ready.popleft()
            if sending.is_wanted:
                return sending
            self._let_go(sending)
        while self._queue and not self._take(self._queue[0]):
            self._queue.popleft()
        if not self._queue:
            return None
        if self._is_refused_here(leader, self._queue[0]):
            return None
        lane = await self._lane(leader) if needs_lane(self._queue[0]) else None
        if not self._queue or needs_lane(self._queue[0]) is not (lane is not None):
            if lane is not None:  # whose turn it was gave up meanwhile
                self._lanes.append(lane)
            return None
        try:
            return self._packed(lane)
        except RecordBatchTooLargeError as error:
            fail_request(self._queue.popleft(), error)
            if lane is not None:
                self._lanes.append(lane)
            return None

    def _is_refused_here(self, leader: Leader, request: AppendRequest) -> bool:
        """Refuse an epoch that the wire cannot say, or that means "any" there."""
        epoch = request.epoch
        if epoch is None or 1 <= epoch <= INT32_MAX:
            return False
        kind = NotLeaderError if epoch < 1 else FutureEpochError
        fail_request(self._queue.popleft(), kind(epoch=epoch, current_epoch=leader.epoch))
        return True

    def _take(self, request: AppendRequest) -> bool:
        """Whether an append is still wanted; from now on it cannot be cancelled."""
        future = request.future
        return future.running() or (not future.done() and future.set_running_or_notify_cancel())

    def _packed(self, lane: Lane | None) -> Sending:
        """The batch of the first append that waits, and of those behind it that may share it.

        Raises ``RecordBatchTooLargeError``, and then has taken nothing out of the queue.
        """
        now_ms, first = self._clock.wall_ms(), self._queue[0]
        if lane is None or not may_share(first):
            sending = alone(first, self._settings, now_ms, lane)
            self._queue.popleft()
            return sending
        group = list(self._group())
        shared = merged(group, self._settings, now_ms, lane)
        if shared is None and len(group) > 1:
            group = group[:1]
            shared = merged(group, self._settings, now_ms, lane)
        if shared is None and first.is_atomic:
            return alone(first, self._settings, now_ms, lane)  # raises: it is too large
        if shared is None:
            shared, *others = split_up(first, self._settings, now_ms, lane)
            self._ready.extend(others)
        for request in group:
            self._queue.popleft()
            self._apart.discard(request)
        return shared

    def _group(self) -> Iterator[AppendRequest]:
        """Appends from the front of the queue that may share a batch."""
        limit = min(MERGED_BYTES_MAX, self._settings.batch_bytes_max)
        byte_count = 0
        for ordinal, request in enumerate(self._queue):
            byte_count += request.byte_count()
            if ordinal and (
                not may_share(request)
                or request in self._apart
                or ordinal == MERGED_REQUESTS_MAX
                or byte_count > limit
                or not self._take(request)
            ):
                return
            yield request
            if request in self._apart:
                return

    async def _lane(self, leader: Leader) -> Lane:
        """A producer id that serves no batch now."""
        if self._lanes:
            return self._lanes.pop()
        answer = await leader.connection.ask(
            ApiKey.INIT_PRODUCER_ID,
            messages.producer_id_request(),
            InitProducerIdResponse,
            timeout_s=ANSWER_TIMEOUT_S,
        )
        error = int(answer.error_code)
        if is_access_error(error):
            reason = f"appending is not allowed to this caller (Kafka's error {error})"
            raise AccessDeniedError(path=self._leaders.path, reason=reason)
        if error:
            raise ConnectionLostError(f"InitProducerId was answered with Kafka's error {error}")
        return Lane(int(answer.producer_id), int(answer.producer_epoch))

    def _send(self, leader: Leader, sending: Sending) -> None:
        timeout_ms = COMMIT_WAIT_MS
        batch = sending.stamped(leader.epoch)
        message = messages.produce_request(leader.log, batch, timeout_ms)
        try:
            reply = leader.connection.send(ApiKey.PRODUCE, message)
        except ConnectionLostError as error:
            self._again.appendleft(sending)
            self._note_trouble(leader, str(error), is_lost=True)
            return
        except WireError as error:
            sending.fail(
                NodeRefusedError(
                    path=str(leader.connection.address),
                    api="Produce",
                    error=35,
                    reason=error.sentence(),
                )
            )
            self._let_go(sending)
            return
        self._in_flight.append(sending)
        timer = asyncio.get_running_loop().call_later(
            ANSWER_TIMEOUT_S, leader.connection.close, "it did not answer in time"
        )

        def answered(done: asyncio.Future[Reply]) -> None:
            timer.cancel()
            self._in_flight.remove(sending)
            self._answered(leader, sending, done)
            self._news.set()

        reply.add_done_callback(answered)
        self._leaders.watch(leader, reply)

    # --- answers ----------------------------------------------------------------------------------

    def _answered(self, leader: Leader, sending: Sending, done: asyncio.Future[Reply]) -> None:
        try:
            answer = done.result().decoded(wide.ProduceResponse)
            partition = messages.only(answer.responses, "partition_responses")
        except (ConnectionLostError, AccessDeniedError, WireError) as error:
            leader.connection.close("an answer was lost")
            self._send_again(sending, str(error), is_uncertain=True)
            self._note_trouble(leader, str(error), is_lost=True)
            return
        code = int(partition.error_code)
        if not code:
            self._leaders.works()
            self._pause_s = 0.0
            self._give_back(sending)
            sending.finish(_result(leader, sending, partition))
            return
        verdict = judged(sending, code, partition.error_message, self._leaders.path)
        if isinstance(verdict, Refused):
            self._refuse(sending, verdict.error)
            return
        if isinstance(verdict, AskWhether):
            sending.refusal = verdict.error
            verdict = SendAgain(str(verdict.error))
        self._send_again(sending, verdict.reason, is_uncertain=verdict.is_uncertain)
        self._trouble = verdict.reason
        if verdict.is_leader_gone:
            self._note_trouble(leader, verdict.reason)

    def _refuse(self, sending: Sending, error: RaftlogError) -> None:
        if len(sending.requests) > 1 and not isinstance(error, AppendUnknownError):
            self._apart.update(sending.requests)  # one of them is to blame, not all
            self._queue.extendleft(reversed(sending.requests))
        else:
            sending.fail(error)
        self._let_go(sending)

    def _send_again(self, sending: Sending, reason: str, *, is_uncertain: bool) -> None:
        sending.is_uncertain = sending.is_uncertain or is_uncertain
        sending.last_problem = reason
        self._again.append(sending)

    def _note_trouble(self, leader: Leader, reason: str, *, is_lost: bool = False) -> None:
        self._trouble = reason
        self._leaders.distrust(leader, reason, is_lost=is_lost)

    def _give_back(self, sending: Sending) -> None:
        """Its batch is in the log: the producer id is free."""
        if sending.lane is not None:
            self._lanes.append(sending.lane)

    def _let_go(self, sending: Sending) -> None:
        """Its batch is not sent any more. If it may have been taken, its producer id is spent."""
        lane, sending.lane = sending.lane, None
        if lane is not None and not sending.is_uncertain and sending.split is None:
            lane.advance(-sending.record_count)
            self._lanes.append(lane)

    # --- deadlines --------------------------------------------------------------------------------

    async def _expire_regularly(self) -> None:
        while True:
            if not self._has_work and not self._in_flight:
                self._busy.clear()
            await self._busy.wait()
            await asyncio.sleep(EXPIRY_INTERVAL_S)
            self._expire()

    def _expire(self) -> None:
        """Answer those whose time is up."""
        now_ms = self._clock.now_ms()
        for sending in self._in_flight:
            for request in sending.requests:
                if request.deadline_ms <= now_ms and not request.future.done():
                    reason = "no answer came in time"
                    fail_request(request, self._unknown(reason))
        for sending in (*self._again, *self._ready):
            for request in sending.requests:
                if request.deadline_ms <= now_ms and not request.future.done():
                    error = unknown_or_unavailable(sending, self._unavailable, self._leaders.path)
                    if sending.split is not None:
                        sending.split.fail(error)
                    else:
                        fail_request(request, error)
        if any(request.deadline_ms <= now_ms for request in self._queue):
            waiting, self._queue = self._queue, deque()
            for request in waiting:
                if request.deadline_ms > now_ms:
                    self._queue.append(request)
                elif self._take(request):
                    fail_request(request, self._unavailable())

    def _unknown(self, reason: str) -> RaftlogError:
        return AppendUnknownError(path=self._leaders.path, reason=reason)

    def _unavailable(self) -> QuorumUnavailableError:
        return self._leaders.unavailable()


def _result(leader: Leader, sending: Sending, partition: Any) -> AppendResult:
    """What an answer without an error says."""
    base_offset = int(partition.base_offset)
    told = parse_appended(partition.error_message)
    if told is None:  # an older node
        return AppendResult(base_offset, base_offset + sending.record_count - 1, leader.epoch)
    # A repetition that only the client made is none to its caller, who asked once.
    was_duplicate = told.was_duplicate and sending.is_named
    return AppendResult(base_offset, told.last_offset, told.epoch, was_duplicate)
