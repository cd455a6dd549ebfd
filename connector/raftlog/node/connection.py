"""Accepted connection: receives request frames, sends responses in the order of the requests.

Invariants:

1. The length of a frame is checked before its bytes are buffered. A malformed frame or request
   closes the connection, because the bytes after it cannot be interpreted.
2. Requests are started in the order of arrival, several may be in flight, and responses are sent
   in the order of the requests (as Kafka guarantees to clients).
3. Memory is counted: the received part of a frame, a request until its response, a response until
   the peer has read it. The announced length of a frame does not count. Nothing more is read while
   the budget is used up. Requests that were read are started regardless of the budget: otherwise
   connections would hold the memory that they wait for.
4. No request is started while the peer does not read responses, and at most one request with a
   possibly large response is in flight (Kafka mutes the whole channel).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from raftlog.errors import WireError
from raftlog.wire import (
    ApiKey,
    FrameDecoder,
    RequestHeader,
    UnknownApiVersions,
    encode_response_header,
    encode_unsupported_version_response,
    frame,
    receive_request,
)

from .access import Principal
from .held_bytes import HeldBytes
from .origin import Origin
from .pace import Pace
from .request_budget import BudgetShare

_WRITTEN_AT_ONCE_BYTES: Final = 256 * 1024
"""Maximum bytes of one write: TLS encrypts all bytes of a write before it pauses the writer."""
_LARGE_ANSWERS: Final = frozenset((ApiKey.FETCH, ApiKey.FETCH_SNAPSHOT))


@dataclass(frozen=True, slots=True)
class Asked:
    """Received request. ``answer`` takes the body of the response, or None for no response (Produce
    with acks 0)."""

    header: RequestHeader
    frame: bytes
    body_start: int
    origin: Origin
    answer: Callable[[bytes | None], None]


@dataclass(slots=True, eq=False)
class _Turn:
    """Slot of a request in the order of the responses."""

    byte_count: int
    api_key: int
    data: bytes | None = None
    is_answered: bool = False


class Connection(asyncio.Protocol):
    """Connection of one peer, from the end of its TLS handshake."""

    def __init__(
        self,
        *,
        where: str,
        authenticate: Callable[[asyncio.Transport], Principal | None],
        handle: Callable[[Connection, Asked], None],
        closed: Callable[[Connection], None],
        log_event: Callable[[str, str, str], None],
        frame_bytes_max: Callable[[Principal], int],
        in_flight_max: int,
        budget: Callable[[Principal], BudgetShare],
        pace: Pace,
    ) -> None:
        """``authenticate`` returns the principal, None to close the connection. ``handle`` is
        called with every request, ``closed`` once; ``log_event`` logs errors of the peer. ``pace``
        detects stalled peers."""
        self.where: Final = where
        self.requests_under_way: Final[set[int]] = set()
        """Ids of the requests that the replica has not answered, to drop when the peer is lost."""
        self.tasks: Final[set[asyncio.Task[None]]] = set()
        self.held: Final = HeldBytes()
        self.last_asked_s = asyncio.get_running_loop().time()
        self._authenticate = authenticate
        self._handle = handle
        self._closed = closed
        self._log_event = log_event
        self._frame_bytes_max = frame_bytes_max
        self._in_flight_max = in_flight_max
        self._budget_of = budget
        self._origin: Origin | None = None
        self._splitter: FrameDecoder | None = None
        self._transport: asyncio.Transport | None = None
        self._turns: deque[_Turn] = deque()
        self._frames: deque[bytes] = deque()
        self._pace = pace
        self._is_reading = True
        self._is_writable = True
        self._is_finishing = False

    # --- asyncio.Protocol -------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        caller = self._authenticate(transport)
        if caller is None:
            transport.abort()
            return
        self._origin = Origin(caller, self._budget_of(caller))
        self._splitter = FrameDecoder(self._frame_bytes_max(caller), self.where)
        transport.set_write_buffer_limits(high=1, low=0)  # with high=0 TLS would always pause

    def data_received(self, data: bytes) -> None:
        if self._splitter is None or self._is_finishing:
            return
        self._pace.move(len(data), asyncio.get_running_loop().time())
        try:
            frames = self._splitter.feed(data)
        except WireError as error:
            self._end("refused", error.message())
            return
        if frames:
            self._frames.extend(frames)
            self.held.queued_byte_count += sum(map(len, frames))
            if self._origin is not None:
                self._origin.budget.end_overdraft(self._take_frames_later)
        self.held.arrived_byte_count = self._splitter.buffered_byte_count
        self._hold()
        self._take_frames()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._turns.clear()
        self.held.clear()
        self._let_frames_go()
        for task in self.tasks:
            task.cancel()
        self._closed(self)

    def pause_writing(self) -> None:
        self._is_writable = False

    def resume_writing(self) -> None:
        self._is_writable = True
        self._count_unread()
        self._take_frames_later()

    # --- requests ---------------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    @property
    def needs_reauthentication(self) -> bool:
        """Return whether the connection would get another principal, or none, if opened now."""
        if self._transport is None or self._origin is None or not self.is_open:
            return False
        return self._authenticate(self._transport) != self._origin.caller

    @property
    def in_flight_count(self) -> int:
        return len(self._turns)

    @property
    def held_budget(self) -> BudgetShare | None:
        """Return the budget share that counts this connection's memory, or None if not
        authenticated."""
        return None if self._origin is None else self._origin.budget

    def is_stalled(self, now_s: float) -> bool:
        """Return whether the peer has stalled inside a request, or while reading responses."""
        self._count_unread()
        return self._pace.is_stalled(now_s)

    def look_at_pace(self, now_s: float) -> float | None:
        """Return how many seconds the peer needs to send its request and read its responses, at its
        pace since the last call; None if the node did not wait for it since then."""
        self._count_unread()
        awaited = 0 if self._splitter is None else self._splitter.expected_byte_count
        left = awaited - self.held.arrived_byte_count + self.held.unread_byte_count
        return self._pace.look(left, now_s)

    def finish(self) -> None:
        """Start no more requests, and close after the responses to those in flight."""
        self._is_finishing = True
        self._let_frames_go()
        self._close_if_finished()

    def abort(self) -> None:
        """Close immediately."""
        if self._transport is not None:
            self._transport.abort()

    def _take_frames(self) -> None:
        origin = self._origin
        while self._frames and origin is not None and self._may_take(self._frames[0]):
            data = self._frames.popleft()
            self.held.queued_byte_count -= len(data)
            self._take(data, origin)
        if origin is None or self._is_finishing or not self.is_open:
            return  # nothing more is read
        may_read = self._may_read(origin.budget)
        if not may_read and not origin.budget.has_room:
            origin.budget.wait(self._take_frames_later)
        if may_read is not self._is_reading:
            self._pause_or_resume(may_read=may_read)
        self._note_who_waits()

    def _take_frames_later(self) -> None:
        """Start requests in the next iteration of the event loop: this may be called from a step
        of the replica, and starting a request may begin one."""
        asyncio.get_running_loop().call_soon(self._take_frames)

    def _may_take(self, data: bytes) -> bool:
        """Return whether the request in this frame may be started."""
        return self._may_begin() and not (
            _api_key(data) in _LARGE_ANSWERS
            and any(turn.api_key in _LARGE_ANSWERS for turn in self._turns)
        )

    def _may_begin(self) -> bool:
        return len(self._turns) < self._in_flight_max and self._is_writable and self.is_open

    def _may_read(self, budget: BudgetShare) -> bool:
        """Return whether to read more bytes: the rest of a frame, or another request."""
        if self._frames or self._splitter is None:
            return False
        if not self._splitter.expected_byte_count:
            return self._may_begin() and budget.has_room
        return budget.has_room or budget.may_overdraw(self._take_frames_later)

    def _note_who_waits(self) -> None:
        """Start or stop the pace, by whether the node waits for the peer."""
        is_receiving = (
            self._is_reading and self._splitter is not None and self._splitter.expected_byte_count
        )
        if is_receiving or self.held.unread_byte_count:
            self._pace.await_peer(asyncio.get_running_loop().time())
        else:
            self._pace.stop()

    def _hold(self) -> None:
        if self._origin is not None:
            self.held.report(self._origin.budget)

    def _let_frames_go(self) -> None:
        """Discard the frames that are not started."""
        self._splitter = None
        self._frames.clear()
        self.held.clear_frames()
        if self._origin is not None:
            self._origin.budget.forget(self._take_frames_later)
        self._hold()
        self._note_who_waits()

    def _pause_or_resume(self, *, may_read: bool) -> None:
        assert self._transport is not None, "it is open"
        if may_read:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()
        self._is_reading = may_read

    def _take(self, data: bytes, origin: Origin) -> None:
        self.last_asked_s = asyncio.get_running_loop().time()
        turn = _Turn(len(data), _api_key(data))
        try:
            received = receive_request(data, origin.caller.listener)
        except WireError as error:
            self._end("refused", error.message())
            return
        self._turns.append(turn)
        self.held.turns_byte_count += turn.byte_count
        self._hold()
        if isinstance(received, UnknownApiVersions):
            head = encode_response_header(received.correlation_id, ApiKey.API_VERSIONS, 0)
            self._answered(turn, head, encode_unsupported_version_response())
            return
        header = received.header
        head = encode_response_header(header.correlation_id, header.api_key, header.api_version)
        asked = Asked(
            header,
            data,
            received.body_start,
            origin,
            lambda body: self._answered(turn, head, body),
        )
        try:
            self._handle(self, asked)
        except WireError as error:
            self._end("refused", error.message())

    # --- responses --------------------------------------------------------------------------------

    def _answered(self, turn: _Turn, head: bytes, body: bytes | None) -> None:
        turn.is_answered = True
        if self._transport is None:
            return  # the connection is lost
        turn.data = None if body is None else frame(head, body)
        self.held.turns_byte_count -= turn.byte_count
        turn.byte_count = 0 if turn.data is None else len(turn.data)
        self.held.turns_byte_count += turn.byte_count
        self._hold()
        self._flush()

    def _flush(self) -> None:
        ready: list[bytes] = []
        has_ended = False
        while self._turns and self._turns[0].is_answered:
            turn = self._turns.popleft()
            self.held.turns_byte_count -= turn.byte_count
            has_ended = True
            if turn.data is not None:
                ready.append(turn.data)
        if not has_ended:
            return  # the response to an older request is missing
        if ready:
            self._count_unread()
            self._write(b"".join(ready) if len(ready) > 1 else ready[0])
        self._count_unread()
        self._close_if_finished()
        if self._frames or not self._is_reading:
            self._take_frames_later()

    def _write(self, data: bytes) -> None:
        assert self._transport is not None, "checked by _answered"
        view = memoryview(data)
        for start in range(0, len(data), _WRITTEN_AT_ONCE_BYTES):
            if self._transport.is_closing():  # perhaps since the previous write
                return
            self._transport.write(view[start : start + _WRITTEN_AT_ONCE_BYTES])

    def _count_unread(self) -> None:
        """Update the count of unread responses. A closing transport is not asked: TLS has no write
        buffer size any more."""
        before = self.held.unread_byte_count
        if self._transport is not None and not self._transport.is_closing():
            self.held.unread_byte_count = self._transport.get_write_buffer_size()
        taken = before - self.held.unread_byte_count
        if taken > 0:
            self._pace.move(taken, asyncio.get_running_loop().time())
        self._hold()
        self._note_who_waits()

    def refuse(self, reason: str) -> None:
        """Log ``reason`` and close, because of an invalid request."""
        self._end("refused", reason)

    def _end(self, what: str, reason: str) -> None:
        self._log_event(what, self.where, reason)
        self._let_frames_go()
        self._close()

    def _close_if_finished(self) -> None:
        if self._is_finishing and not self._turns:
            self._close()

    def _close(self) -> None:
        """Close once: on a second call TLS would drop the connection without closing it."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.close()


def _api_key(data: bytes) -> int:
    """Return the API key: the first two bytes of a request frame."""
    return int.from_bytes(data[:2], "big", signed=True)
