"""Sends appends to the leader, in their order, until each has its answer.

Rules of this file:

1. Sent in the order in which they came, over one connection, several at a time. After any trouble
   nothing new is sent before all that is under way is answered or lost; that goes again first.
2. What may have been taken is sent again only as itself (``sendings``). At its deadline it is
   ``AppendUnknownError``; what was not taken is ``QuorumUnavailableError``.
3. A producer id serves one batch at a time, and is used again once its batch has an answer.
4. What has its answer is not sent again, and nothing waits for it: a closed sender ends when the
   last append has its answer, at the latest at the last deadline, whether a node leads or not.
5. Lives on the network's loop. Nothing here is touched by another thread.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any, Final

from kio.schema.init_producer_id.v5.response import InitProducerIdResponse

from raftlog.append.requests import AppendRequest, AppendResult
from raftlog.client.clock import Clock
from raftlog.errors import (
    AccessDeniedError,
    AppendUnknownError,
    LogClosedError,
    NodeRefusedError,
    QuorumUnavailableError,
    RaftlogError,
    WireError,
)
from raftlog.wire import ApiKey, latest_schemas
from raftlog.wire.produce_error_messages import parse_appended_message

from . import messages
from .connection import ConnectionLostError, Reply
from .metadata import LeaderConnection, Metadata, is_access_error
from .packing import Packing
from .sendings import (
    AskWhether,
    Lane,
    LogSettings,
    Refused,
    SendAgain,
    Sending,
    fail_request,
    judged,
)

IN_FLIGHT_MAX: Final = 5
"""Batches that are sent and not answered (Kafka: ``max.in.flight.requests.per.connection``)."""
COMMIT_WAIT_MS: Final = 4000
"""How long a leader may wait for the commit before it says that it does not know."""
RESPONSE_TIMEOUT_S: Final = 6.0
"""How long a connection may stay silent before it is given up."""
EXPIRY_INTERVAL_S: Final = 0.05
SEARCH_S: Final = 10.0
PAUSE_FIRST_S: Final = 0.02
PAUSE_LONGEST_S: Final = 0.4


class Sender:
    """The appends of one handle: ``run`` sends those of ``add`` until ``close``."""

    def __init__(self, metadata: Metadata, settings: LogSettings, clock: Clock) -> None:
        self._metadata = metadata
        self._clock = clock
        self._waiting = Packing(settings, clock)
        self._in_flight: deque[Sending] = deque()
        self._again: deque[Sending] = deque()
        self._news = asyncio.Event()
        self._busy = asyncio.Event()
        self._search: asyncio.Task[LeaderConnection] | None = None
        self._trouble: str | None = None
        self._pause_s = 0.0
        self._is_closing = False

    def add(self, requests: list[AppendRequest]) -> None:
        """Take appends that wait to be sent."""
        self._waiting.add(requests)
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
        return bool(self._again or self._waiting)

    async def _wait_for_work(self) -> bool:
        while not self._has_work:
            if self._is_over:
                return False
            await self._wait_for_news()
        return True

    @property
    def _is_over(self) -> bool:
        """Whether it is closed, and every append has its answer."""
        is_waited_for = self._has_work or any(one.is_wanted for one in self._in_flight)
        return self._is_closing and not is_waited_for

    async def _wait_for_news(self) -> None:
        self._news.clear()
        await self._news.wait()

    async def _leader(self) -> LeaderConnection | None:
        """Return the leader; None if none is found, or nothing is to be sent any more."""
        until = asyncio.get_running_loop().time() + SEARCH_S
        self._search = search = asyncio.ensure_future(self._metadata.leader(until))
        try:
            await asyncio.wait((search,))
            return None if search.cancelled() else search.result()
        except QuorumUnavailableError:
            return None  # ``_expire`` answers what is late
        except (AccessDeniedError, NodeRefusedError) as error:
            self._fail_all(error)
            return None
        finally:
            search.cancel()
            self._search = None

    def _fail_all(self, error: RaftlogError) -> None:
        """Fail what waits: access is denied, or the sender has ended."""
        for sending in self._again:
            unknown = self._unknown(f"{sending.last_problem}; then: {error.message()}")
            sending.fail(unknown if sending.is_uncertain else error)
        self._again.clear()
        self._waiting.fail_all(error)

    def _give_up(self) -> None:
        for sending in self._in_flight:
            sending.fail(self._unanswered(sending, "the sender has ended"))
        self._fail_all(LogClosedError(path=self._metadata.path, reason="the sender has ended"))

    # --- sending ----------------------------------------------------------------------------------

    async def _serve(self, leader: LeaderConnection) -> None:
        """Send to a leader until there is trouble; return when nothing is under way."""
        self._trouble = None
        while self._trouble is None and (self._has_work or self._in_flight) and not self._is_over:
            if self._has_work and len(self._in_flight) < IN_FLIGHT_MAX:
                await self._send_next(leader)
            else:
                await self._wait_for_news()
        while self._in_flight and not self._is_over:
            await self._wait_for_news()
        if self._trouble is None:
            return
        if self._pause_s:
            await asyncio.sleep(self._pause_s)
        self._pause_s = min(max(self._pause_s * 2, PAUSE_FIRST_S), PAUSE_LONGEST_S)

    async def _send_next(self, leader: LeaderConnection) -> None:
        try:
            sending = self._next_again() or await self._next(leader)
        except ConnectionLostError as error:
            self._note_trouble(leader, str(error), is_lost=True)
        except WireError as error:
            self._note_trouble(leader, error.message(), is_lost=True)
        except AccessDeniedError as error:
            self._fail_all(error)
        else:
            if sending is None:
                return
            if self._trouble is None:
                self._send(leader, sending)
            else:  # while a producer id was asked for
                self._waiting.put_back(sending)

    def _next_again(self) -> Sending | None:
        while self._again:
            sending = self._again.popleft()
            if sending.is_wanted:
                return sending
            self._waiting.let_go(sending)
        return None

    async def _next(self, leader: LeaderConnection) -> Sending | None:
        """The next batch; None if what waited is cancelled, or refused here."""
        packed = self._waiting.packed()
        if packed is not None:
            split = packed.split
            if split is not None and any(one.split is split for one in self._in_flight):
                # A part that is refused must not be followed by the next one.
                self._waiting.put_back(packed)
                await self._wait_for_news()
                return None
            return packed
        needs = self._waiting.needs_lane(leader.epoch)
        if needs is None:
            return None
        lane = await self._lane(leader) if needs else None
        if self._waiting.needs_lane(leader.epoch) is needs:
            return self._waiting.pack(lane)
        if lane is not None:  # whose turn it was gave up meanwhile
            self._waiting.keep_lane(lane)
        return None

    async def _lane(self, leader: LeaderConnection) -> Lane:
        """A producer id that serves no batch now; a new one if need be (KIP-98)."""
        free = self._waiting.free_lane()
        if free is not None:
            return free
        answer = await leader.connection.request(
            ApiKey.INIT_PRODUCER_ID,
            messages.producer_id_request(),
            InitProducerIdResponse,
            timeout_s=RESPONSE_TIMEOUT_S,
        )
        error = int(answer.error_code)
        if is_access_error(error):
            reason = f"client not authorized to append (Kafka's error {error})"
            raise AccessDeniedError(path=self._metadata.path, reason=reason)
        if error:
            raise ConnectionLostError(f"InitProducerId failed with Kafka's error {error}")
        return Lane(int(answer.producer_id), int(answer.producer_epoch))

    def _send(self, leader: LeaderConnection, sending: Sending) -> None:
        if leader.epoch < 1 and sending.has_condition:
            self._again.appendleft(sending)  # without an epoch it would be written as it is
            self._note_trouble(leader, "its epoch is not known")
            return
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
                    reason=error.message(),
                )
            )
            self._waiting.let_go(sending)
            return
        self._in_flight.append(sending)
        timer = asyncio.get_running_loop().call_later(
            RESPONSE_TIMEOUT_S, leader.connection.close, "no response in time"
        )

        def answered(done: asyncio.Future[Reply]) -> None:
            timer.cancel()
            self._in_flight.remove(sending)
            self._answered(leader, sending, done)
            self._news.set()

        reply.add_done_callback(answered)
        self._metadata.watch(leader, reply)

    # --- answers ----------------------------------------------------------------------------------

    def _answered(
        self, leader: LeaderConnection, sending: Sending, done: asyncio.Future[Reply]
    ) -> None:
        try:
            answer = done.result().decoded(latest_schemas.ProduceResponse)
            partition = messages.only_partition(answer.responses, "partition_responses")
        except (ConnectionLostError, AccessDeniedError, WireError) as error:
            leader.connection.close("a response was lost")
            self._send_again(sending, str(error), is_uncertain=True)
            self._note_trouble(leader, str(error), is_lost=True)
            return
        code = int(partition.error_code)
        if not code:
            self._metadata.mark_healthy()
            self._pause_s = 0.0
            self._give_back(sending)
            sending.finish(_result(leader, sending, partition))
            return
        verdict = judged(sending, code, partition.error_message, self._metadata.path)
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
        is_known = isinstance(error, AppendUnknownError) or not sending.is_uncertain
        if len(sending.requests) > 1 and not is_known:
            # Another node may have taken it together: apart it could be written twice.
            sending.fail(self._unknown(f"a response was lost; then: {error.message()}"))
        elif len(sending.requests) > 1 and not isinstance(error, AppendUnknownError):
            self._waiting.take_apart(sending.requests)
        else:
            sending.fail(error)
        self._waiting.let_go(sending)

    def _send_again(self, sending: Sending, reason: str, *, is_uncertain: bool) -> None:
        sending.is_uncertain = sending.is_uncertain or (is_uncertain and sending.writes)
        sending.last_problem = reason
        self._again.append(sending)

    def _note_trouble(
        self, leader: LeaderConnection, reason: str, *, is_lost: bool = False
    ) -> None:
        self._trouble = reason
        self._metadata.invalidate(leader, reason, is_lost=is_lost)

    def _give_back(self, sending: Sending) -> None:
        """Its batch is in the log: the producer id is free."""
        if sending.lane is not None:
            self._waiting.keep_lane(sending.lane)

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
        now_ms, path = self._clock.now_ms(), self._metadata.path
        for sending in self._in_flight:
            for request in sending.late(now_ms):
                fail_request(request, self._unanswered(sending, "no response in time"))
        for sending in self._again:
            self._waiting.expire_batch(sending, now_ms, path, self._unavailable)
        self._again = self._waiting.wanted(self._again)
        self._waiting.expire(now_ms, path, self._unavailable)
        if not self._has_work and self._search is not None:
            self._search.cancel()
        if self._is_over:
            self._news.set()

    def _unanswered(self, sending: Sending, reason: str) -> RaftlogError:
        """Return the error of a batch under way that gets no answer."""
        return self._unknown(reason) if sending.writes else self._unavailable()

    def _unknown(self, reason: str) -> RaftlogError:
        return AppendUnknownError(path=self._metadata.path, reason=reason)

    def _unavailable(self) -> QuorumUnavailableError:
        return self._metadata.unavailable()


def _result(leader: LeaderConnection, sending: Sending, partition: Any) -> AppendResult:
    """Return the result in a response without an error."""
    base_offset = int(partition.base_offset)
    appended = parse_appended_message(partition.error_message)
    if appended is None:  # an older node
        return AppendResult(base_offset, base_offset + sending.record_count - 1, leader.epoch)
    # A retry by this client is no duplicate to the caller, which appended once.
    was_duplicate = appended.was_duplicate and sending.is_named
    return AppendResult(base_offset, appended.last_offset, appended.epoch, was_duplicate)
