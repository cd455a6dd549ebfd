"""Accepted connection: receives request frames, sends responses in the order of the requests.

Invariants:

1. The length of a frame is checked before its bytes are buffered. A malformed frame or request
   closes the connection, because the bytes after it cannot be interpreted.
2. Requests are started in the order of arrival. Several may be in flight. Responses are sent in the
   order of the requests, as Kafka guarantees to clients.
3. Memory is counted: the received part of a frame, a request until its response, and a response
   until the peer has read it. The announced length of a frame does not count. Nothing more is read
   while the pool is full. Requests that were already read are started nevertheless; otherwise
   connections would hold the memory that they wait for.
4. No request is started while the peer does not read its responses, and at most one request with a
   possibly large response is in flight (Kafka mutes the whole channel).
5. All responses that a connection gets in one callback of the event loop are sent with one write,
   at the end of the callback. A response that is already available does not wait for another
   iteration.
6. All connections without any right together start one request per iteration of the event loop, so
   that their number does not delay clients. A principal's connections share its time in each
   iteration, except that ``DIRECT_PER_ITERATION`` requests are started when they are received.
7. While a connection is muted because its client exceeds a quota, nothing is read from it and no
   request is started.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import ssl
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, ParamSpec

from raftlog.receiving import ReceivingProtocol
from raftlog.wire import (
    Api,
    ApiKey,
    FrameDecoder,
    RequestHeader,
    RequestReceiver,
    UnknownApiVersions,
    encode_response_header,
    encode_unsupported_version_response,
    frame,
)
from raftlog.wire.errors import WireError

from .access import Principal
from .event_loop import NO_DESCRIPTOR, NodeEventLoop
from .memory_pool import ConnectionMemory, MemoryShare
from .request import Request, Session
from .sasl import SaslAuthenticator

P = ParamSpec("P")
_WRITE_BYTES_MAX: Final = 256 * 1024
"""Maximum bytes of one write, because TLS encrypts a whole write before it pauses the writer."""
REQUESTS_PER_TURN: Final = 8
"""Requests that a connection starts before other connections start theirs."""
DIRECT_PER_ITERATION: Final = 4 * REQUESTS_PER_TURN
"""Requests that all connections of a principal start in one iteration without the queue. So
requests that arrive one at a time do not wait for a connection with thousands."""
TURN_S: Final = 0.0002
"""Time in seconds for a principal's queued requests in each iteration of the event loop. A
principal with thousands of small requests must not delay other clients by much more."""
_LARGE_RESPONSES: Final = frozenset((ApiKey.FETCH, ApiKey.FETCH_SNAPSHOT))


class FlushQueue:
    """Connections with unwritten responses, and work that all sockets of an iteration share.

    Each connection is flushed once, whatever the number of its responses: at the end of ``run``, or
    otherwise in the next iteration of the event loop. The shared work is called after the last
    socket. A flush never happens within a call of the replica, because a flushed connection may
    start requests, which call the replica. The response to a request that is started this way is
    flushed in the next iteration.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._node_loop = loop if isinstance(loop, NodeEventLoop) else None
        self._connections: list[Connection] = []
        self._is_running = False
        self._work: Callable[[], object] | None = None
        """The function that is called after the last socket of this iteration."""
        self.descriptor = NO_DESCRIPTOR
        """Descriptor of the connection that last received bytes."""

    def run(self, work: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> None:
        """Call ``work``, which is all of an event loop callback or its last part, then flush."""
        assert not self._is_running, "not within a callback that flushes"
        self._is_running = True
        try:
            work(*args, **kwargs)
        finally:
            self._is_running = False
            if self._connections:
                self._flush()
            if self._work is not None and self._is_last:
                self._call_work()

    def call_after(self, work: Callable[[], object]) -> None:
        """Call ``work``, which flushes, once for all sockets that are served in this iteration of
        the event loop: at the end of the last socket's callback if it belongs to a connection, and
        otherwise in the next iteration."""
        if not self._is_running or self._work is not None:
            self._loop.call_soon(work)
            return
        self._work = work
        if not self._is_last:
            self._loop.call_soon(self._call_work)

    @property
    def _is_last(self) -> bool:
        """Return whether the last socket of this iteration is being served or has been."""
        loop = self._node_loop
        return loop is not None and loop.last_descriptor == self.descriptor

    def _call_work(self) -> None:
        work, self._work = self._work, None
        if work is not None:
            work()

    def add(self, connection: Connection) -> None:
        """Queue a connection, which is not queued yet, for a flush."""
        if not self._connections and not self._is_running:
            self._loop.call_soon(self._flush)
        self._connections.append(connection)

    def _flush(self) -> None:
        connections, self._connections = self._connections, []
        for connection in connections:
            _run_step(self._loop, connection, connection.flush)


def _run_step(
    loop: asyncio.AbstractEventLoop,
    connection: Connection,
    step: Callable[P, None],
    *args: P.args,
    **kwargs: P.kwargs,
) -> None:
    """Call a step of a connection. A bug in it ends this connection, not the work of others."""
    try:
        step(*args, **kwargs)
    except Exception as bug:  # noqa: BLE001 - as asyncio does after ``data_received``
        message = f"{step.__name__} of a connection failed"
        loop.call_exception_handler({"message": message, "exception": bug})
        connection.abort()


class RequestQueue:
    """Connections of one principal, or of all peers without any right, with requests to start.

    In each iteration of the event loop they start requests in turn until the principal's time is
    used up. Other principals wait no longer than that, however many connections and requests it
    has. Peers without any right start one request per iteration.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        is_unprivileged: bool,
        iteration: Callable[[], int] | None = None,
    ) -> None:
        """``iteration`` returns the number of the current iteration; None: each call is its own."""
        self._loop = loop
        self._is_unprivileged = is_unprivileged
        self._iteration = iteration or itertools.count().__next__
        self._direct_iteration = -1
        self._direct_left = 0
        self._connections: deque[Connection] = deque()
        self._is_run_queued = False

    def take_direct(self, count: int) -> int:
        """Return how many of this number of received requests a connection may start without the
        queue; they count for the iteration."""
        if self._is_unprivileged:
            return 0
        iteration = self._iteration()
        if iteration != self._direct_iteration:
            self._direct_iteration, self._direct_left = iteration, DIRECT_PER_ITERATION
        found = min(count, 1 if self._connections else REQUESTS_PER_TURN, self._direct_left)
        self._direct_left -= found
        return found

    def add(self, connection: Connection) -> None:
        """Queue a connection, which is not queued yet, to start requests."""
        self._connections.append(connection)
        self._queue_run()

    def _queue_run(self) -> None:
        if not self._is_run_queued:
            self._is_run_queued = True
            self._loop.call_soon(self._run)

    def _run(self) -> None:
        self._is_run_queued = False
        if self._is_unprivileged:
            self._start_next(1)
        else:
            end_s = self._loop.time() + TURN_S
            while self._connections:
                self._start_next(REQUESTS_PER_TURN)
                if self._loop.time() >= end_s:
                    break
        if self._connections:
            self._queue_run()

    def _start_next(self, count_max: int) -> None:
        connection = self._connections.popleft()
        _run_step(self._loop, connection, connection.start_queued, count_max)


class Connection(ReceivingProtocol):
    """Connection of one peer, from the end of its TLS handshake."""

    def __init__(
        self,
        *,
        where: str,
        authenticate: Callable[[asyncio.Transport], Principal | None],
        handle: Callable[[Connection, Request[Any]], None],
        closed: Callable[[Connection], None],
        log_event: Callable[[str, str, str], None],
        apis: Mapping[int, Api],
        frame_bytes_max: Callable[[Principal], int],
        in_flight_max: int,
        memory_share: Callable[[Principal], MemoryShare],
        deadline: TransferDeadline,
        flush_queue: FlushQueue,
        request_queue: Callable[[Principal], RequestQueue],
        sasl: SaslAuthenticator | None = None,
    ) -> None:
        """``authenticate`` returns the principal; None to close the connection. ``handle`` is
        called with every request, ``closed`` once. ``log_event`` logs errors of the peer. ``apis``
        are the APIs that the node serves. ``memory_share`` and ``request_queue`` return a
        principal's."""
        self.where: Final = where
        self.raft_request_ids: Final[set[int]] = set()
        """Ids of requests that the replica is processing, to drop when the peer is lost."""
        self.tasks: Final[set[asyncio.Task[None]]] = set()
        self.memory: Final = ConnectionMemory()
        self.time_s: Final = asyncio.get_running_loop().time  # looking up the loop is a system call
        self.began_s: Final = self.time_s()
        self.last_request_s = self.began_s
        self.sasl: Final = sasl
        self._authenticate = authenticate
        self._handle = handle
        self._closed = closed
        self._log_event = log_event
        self._receiver = RequestReceiver(apis)
        self._frame_bytes_max = frame_bytes_max
        self._in_flight_max = in_flight_max
        self._memory_share_of = memory_share
        self._session: Session | None = None
        self._decoder: FrameDecoder | None = None
        self._transport: asyncio.Transport | None = None
        self._descriptor = -2
        """Its socket's; without a socket, a number that differs from ``NO_DESCRIPTOR``."""
        self._requests: deque[Request[Any]] = deque()
        self._frames: deque[bytes] = deque()
        self._deadline = deadline
        self._flush_queue = flush_queue
        self._request_queue_of = request_queue
        self._request_queue: RequestQueue | None = None
        self._is_flush_queued = False
        self._is_start_queued = False
        self._is_reading = True
        self._is_writable = True
        self._is_finishing = False
        self._is_muted = False

    # --- asyncio.BufferedProtocol -----------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        accepted = transport.get_extra_info("socket")
        if accepted is not None:
            self._descriptor = accepted.fileno()
        principal = self._authenticate(transport)
        if principal is None:
            transport.abort()
            return
        self._begin_session(principal, self._memory_share_of(principal))
        self._decoder = FrameDecoder(self._frame_bytes_max(principal), self.where)
        transport.set_write_buffer_limits(high=1, low=0)  # with high=0 TLS would always pause

    def change_principal(self, principal: Principal) -> None:
        """Continue as a principal that has authenticated with SASL."""
        assert self._session is not None, "the connection is open"
        before, after = self._session.memory, self._memory_share_of(principal)
        if principal == self._session.principal:
            return
        before.cancel_wait(self._start_requests_soon)
        self.memory.move(before, after)
        self._begin_session(principal, after)
        if self._decoder is not None:
            self._decoder.byte_count_max = self._frame_bytes_max(principal)

    def _begin_session(self, principal: Principal, memory: MemoryShare) -> None:
        self._session = Session(principal, memory)
        self._request_queue = self._request_queue_of(principal)

    def data_received(self, data: bytes) -> None:
        # TLS also calls this from within ``close``, perhaps in a callback that flushes
        if self._decoder is not None and not self._is_finishing:
            self._flush_queue.descriptor = self._descriptor
            self._flush_queue.run(self._receive, data, self._decoder)

    def _receive(self, data: bytes, decoder: FrameDecoder) -> None:
        if self._deadline.deadline_s is not None:
            self._deadline.extend(len(data), self.time_s())
        try:
            frames = decoder.feed(data)
        except WireError as error:
            self.refuse(error)
            return
        if frames:
            self._frames.extend(frames)
            self.memory.queued_byte_count += sum(map(len, frames))
            if self._session is not None and self._session.memory.overdrawn_by is not None:
                self._session.memory.end_overdraft(self._start_requests_soon)
        self.memory.partial_byte_count = decoder.buffered_byte_count
        assert self._request_queue is not None, "the connection is open"
        self._start_requests(self._request_queue.take_direct(len(self._frames)))

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._requests.clear()
        self.memory.clear()
        self._discard_frames()
        for task in self.tasks:
            task.cancel()
        if self._session is not None:
            self._session.cancel()
        self._closed(self)

    def pause_writing(self) -> None:
        self._is_writable = False

    def resume_writing(self) -> None:
        self._is_writable = True
        self._count_unread()
        self._start_requests_soon()

    # --- requests ---------------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def authenticate_again(self) -> Principal | None:
        """Return the principal that the connection would get if it were opened now, if any."""
        return None if self._transport is None else self._authenticate(self._transport)

    @property
    def is_finishing(self) -> bool:
        return self._is_finishing

    @property
    def needs_reauthentication(self) -> bool:
        """Return whether the connection would get another principal, or none, if opened now."""
        if self._session is None or not self.is_open:
            return False
        return self.authenticate_again() != self._session.principal

    def has_expired(self, wall_s: float) -> bool:
        """Return whether the peer's certificate has expired. ``wall_s``: seconds since 1970."""
        not_after = None if self._session is None else self._session.principal.not_after
        return not_after is not None and wall_s > ssl.cert_time_to_seconds(not_after)

    @property
    def in_flight_count(self) -> int:
        return len(self._requests)

    @property
    def memory_share(self) -> MemoryShare | None:
        """Return the share that counts this connection's memory; None if not authenticated."""
        return None if self._session is None else self._session.memory

    def is_stalled(self, now_s: float) -> bool:
        """Return whether the peer has stalled inside a request, or while reading responses."""
        self._count_unread()
        return self._deadline.is_stalled(now_s)

    def measure_remaining_s(self, now_s: float) -> float | None:
        """Return how many seconds the peer needs to send its request and read its responses, at its
        rate since the last call; None if the node has not waited for it since then."""
        self._count_unread()
        awaited = 0 if self._decoder is None else self._decoder.expected_byte_count
        left = awaited - self.memory.partial_byte_count + self.memory.unread_byte_count
        return self._deadline.measure_remaining_s(left, now_s)

    def finish(self) -> None:
        """Start no more requests, and close after the responses to requests in flight."""
        self._is_finishing = True
        self._discard_frames()
        self._close_if_finished()

    def mute(self) -> bool:
        """Start and read no more requests until ``unmute``; responses are still written. Return
        False if the connection is closed."""
        self._is_muted = self.is_open
        self._start_requests_soon()
        return self._is_muted

    def unmute(self) -> None:
        """Start requests again."""
        self._is_muted = False
        self._start_requests_soon()

    def abort(self) -> None:
        """Close immediately."""
        if self._transport is not None:
            self._transport.abort()

    def _start_requests(self, count_max: int) -> None:
        """Start up to this number of requests, and queue the connection for the rest."""
        left = count_max
        while self._frames and self._session and self._may_start(self._frames[0]):
            if not left:
                self._start_requests_soon()
                break
            left -= 1
            data = self._frames.popleft()
            self.memory.queued_byte_count -= len(data)
            self._start_request(data, self._session)
        session = self._session
        if session is None:
            return
        self.memory.report(session.memory)
        if self._is_finishing or not self.is_open:
            return  # nothing more is read
        may_read = self._may_read(session.memory)
        if not may_read and not session.memory.has_room:
            session.memory.wait(self._start_requests_soon)
        if may_read is not self._is_reading:
            self._pause_or_resume(may_read=may_read)
        self._update_deadline()

    def _start_requests_soon(self) -> None:
        """Start requests in the next iteration of the event loop. This may be called from a step of
        the replica, and starting a request may begin another step. Repeated calls count as one."""
        if self._is_start_queued:
            return
        if self._request_queue is not None:
            self._is_start_queued = True
            self._request_queue.add(self)

    def start_queued(self, count_max: int) -> None:
        """Start up to this number of requests, in the call that was queued."""
        self._is_start_queued = False
        self._start_requests(count_max)

    def _may_start(self, data: bytes) -> bool:
        """Return whether the request in this frame may be started."""
        return self._may_start_any() and not (
            self._requests
            and _api_key(data) in _LARGE_RESPONSES
            and any(one.header.api_key in _LARGE_RESPONSES for one in self._requests)
        )

    def _may_start_any(self) -> bool:
        transport = self._transport
        if transport is None or transport.is_closing():
            return False
        has_place = len(self._requests) < self._in_flight_max and not self._is_muted
        return has_place and self._is_writable

    def _may_read(self, share: MemoryShare) -> bool:
        """Return whether to read more bytes: the rest of a frame, or another request."""
        if self._frames or self._decoder is None or self._is_muted:
            return False
        if not self._decoder.expected_byte_count:
            return self._may_start_any() and share.has_room
        return share.has_room or share.may_overdraw(self._start_requests_soon)

    def _update_deadline(self) -> None:
        """Start or stop the deadline, depending on whether the node waits for the peer."""
        is_receiving = (
            self._is_reading and self._decoder is not None and self._decoder.expected_byte_count
        )
        if is_receiving or self.memory.unread_byte_count:
            self._deadline.start(self.time_s())
        elif self._deadline.deadline_s is not None:
            self._deadline.stop()

    def _report_memory(self) -> None:
        if self._session is not None:
            self.memory.report(self._session.memory)

    def _discard_frames(self) -> None:
        """Discard the frames that are not started."""
        self._decoder = None
        self._frames.clear()
        self.memory.clear_frames()
        if self._session is not None:
            self._session.memory.cancel_wait(self._start_requests_soon)
        self._report_memory()
        self._update_deadline()

    def _pause_or_resume(self, *, may_read: bool) -> None:
        assert self._transport is not None, "it is open"
        if may_read:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()
        self._is_reading = may_read

    def _start_request(self, data: bytes, session: Session) -> None:
        """Start the request in a frame. ApiVersions of an unknown version has a special response
        (KIP-511); any other unknown version closes the connection."""
        self.last_request_s = now_s = self.time_s()
        try:
            received = self._receiver.receive(data, session.principal.listener)
        except WireError as error:
            self.refuse(error)
            return
        if isinstance(received, UnknownApiVersions):
            correlation_id, body_start = received.correlation_id, len(data)
            header = RequestHeader(
                api_key=ApiKey.API_VERSIONS, api_version=0, correlation_id=correlation_id
            )
        else:
            header, body_start = received.header, received.body_start
        request: Request[Any] = Request(session, header, data, body_start, self)
        self._requests.append(request)
        self.memory.in_flight_byte_count += len(data)
        if isinstance(received, UnknownApiVersions):
            request.respond(encode_unsupported_version_response())
            return
        request.begin_work(now_s)
        try:
            self._handle(self, request)
        except WireError as error:
            self.refuse(error)
        finally:
            request.end_work()

    # --- responses --------------------------------------------------------------------------------

    def respond(self, request: Request[Any], body: bytes | Sequence[bytes] | None) -> None:
        """Send the response to a request, after the responses to older ones; None: no response."""
        response = None
        if body is not None and self._transport is not None:
            header = request.header
            head = encode_response_header(header.correlation_id, header.api_key, header.api_version)
            parts = (body,) if isinstance(body, bytes) else body
            response = frame(head, *parts)
        before = request.byte_count
        request.complete(response)
        if self._transport is None:
            return  # the connection is lost
        more = request.byte_count - before
        self.memory.in_flight_byte_count += more
        if more > 0:
            self._report_memory()  # a decrease is reported when the response is written
        if not self._is_flush_queued:
            self._is_flush_queued = True
            self._flush_queue.add(self)

    def flush(self) -> None:
        """Write the responses that no older request delays, and start requests."""
        self._is_flush_queued = False
        ready: list[bytes] = []
        has_ended = False
        while self._requests and self._requests[0].is_answered:
            request = self._requests.popleft()
            self.memory.in_flight_byte_count -= request.byte_count
            has_ended = True
            if request.response is not None:
                ready.append(request.response)
        if not has_ended or self._transport is None:
            self._report_memory()  # of a response that waits for older ones
            return
        if ready:
            if self.memory.unread_byte_count:
                self._count_unread()
            self._write(b"".join(ready) if len(ready) > 1 else ready[0])
        self._count_unread()
        if self._is_finishing:
            self._close_if_finished()
        if self._frames:
            self._start_requests_soon()
        elif not self._is_reading:
            self._start_requests(0)  # none: only continue to read

    def _write(self, data: bytes) -> None:
        transport = self._transport
        assert transport is not None, "checked by flush"
        if len(data) <= _WRITE_BYTES_MAX:
            if not transport.is_closing():
                transport.write(data)
            return
        view = memoryview(data)
        for start in range(0, len(data), _WRITE_BYTES_MAX):
            if transport.is_closing():  # perhaps since the previous write
                return
            transport.write(view[start : start + _WRITE_BYTES_MAX])

    def _count_unread(self) -> None:
        """Update the count of unread responses. A closing transport is skipped, because TLS no
        longer has a write buffer size."""
        memory, transport = self.memory, self._transport
        before = memory.unread_byte_count
        if transport is not None and not transport.is_closing():
            memory.unread_byte_count = transport.get_write_buffer_size()
        taken = before - memory.unread_byte_count
        if taken > 0:
            self._deadline.extend(taken, self.time_s())
        if self._session is not None:
            memory.report(self._session.memory)
        self._update_deadline()

    def refuse(self, why: WireError | str) -> None:
        """Log why a request has no response, and close."""
        self._log_event("refused", self.where, why if isinstance(why, str) else why.message())
        self._discard_frames()
        self.flush()
        self._close()

    def _close_if_finished(self) -> None:
        if self._is_finishing and not self._requests:
            self._close()

    def _close(self) -> None:
        """Close only once: on a second call TLS would drop the connection without closing it."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.close()


def _api_key(data: bytes) -> int:
    """Return the API key: the first two bytes of a request frame."""
    return int.from_bytes(data[:2], "big", signed=True)


class TransferDeadline:
    """Time by which a peer must have sent the rest of a request, or read its responses.

    A peer may pause for ``stalled_s``, and must transfer ``bytes_per_second_min`` on average. Each
    byte extends the deadline by 1 / ``bytes_per_second_min``, at most to ``stalled_s`` from now, so
    that an occasional byte does not keep a connection open. Time in which the node itself does not
    read, for lack of memory, does not count. Methods take the current time in seconds.
    """

    __slots__ = (
        "_bytes_per_second_min",
        "_measured_s",
        "_transferred_byte_count",
        "deadline_s",
        "stalled_s",
    )

    def __init__(self, stalled_s: float, bytes_per_second_min: float) -> None:
        self.stalled_s: Final = stalled_s
        self._bytes_per_second_min = bytes_per_second_min
        self.deadline_s: float | None = None
        """None while the node does not wait for the peer. Only this object changes it."""
        self._measured_s: float | None = None
        self._transferred_byte_count = 0

    def start(self, now_s: float) -> None:
        """Start the deadline, unless the node already waits for the peer."""
        if self.deadline_s is None:
            self.deadline_s = now_s + self.stalled_s
            self._measured_s = None
            self._transferred_byte_count = 0

    def stop(self) -> None:
        """Clear the deadline, because the node does not wait for the peer."""
        self.deadline_s = None

    def extend(self, byte_count: int, now_s: float) -> None:
        """Extend the deadline for bytes that the peer has sent or read."""
        if self.deadline_s is not None:
            later_s = self.deadline_s + byte_count / self._bytes_per_second_min
            self.deadline_s = min(later_s, now_s + self.stalled_s)
            self._transferred_byte_count += byte_count

    def is_stalled(self, now_s: float) -> bool:
        """Return whether the deadline has passed: the peer has stalled or is too slow."""
        return self.deadline_s is not None and now_s > self.deadline_s

    def measure_remaining_s(self, remaining_byte_count: int, now_s: float) -> float | None:
        """Return how many seconds the remaining bytes will take at the rate since the last call;
        None if the node does not wait for the peer, or did not at the last call."""
        if self.deadline_s is None:
            return None
        measured_s, transferred = self._measured_s, self._transferred_byte_count
        self._measured_s, self._transferred_byte_count = now_s, 0
        if measured_s is None or now_s <= measured_s:
            return None
        return (
            remaining_byte_count * (now_s - measured_s) / transferred if transferred else math.inf
        )
