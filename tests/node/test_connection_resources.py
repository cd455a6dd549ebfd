"""Every resource of a connection is released, however it ends."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

from raftlog.limits import MIB
from raftlog.node.access import Principal, Rights
from raftlog.node.connection import (
    REQUESTS_PER_TURN,
    Connection,
    FlushQueue,
    RequestQueue,
    TransferDeadline,
)
from raftlog.node.memory_pool import MemoryPool
from raftlog.node.request import Request
from raftlog.wire import APIS, ApiKey, Listener, RequestHeader, encode_request_header, frame
from tests.support.certificates import Authority
from tests.support.served_node import transport_of

FRAME_BYTES_MAX: Final = 100 * MIB
POOL_BYTES: Final = 64 * MIB
STALLED_S: Final = 500.0
CALLER: Final = Principal(
    name="client",
    node_id=None,
    listener=Listener.CLIENTS,
    rights=Rights.READ | Rights.APPEND,
)


def sent(key: ApiKey, version: int, correlation_id: int, body: bytes = b"") -> bytes:
    header = RequestHeader(
        api_key=key, api_version=version, correlation_id=correlation_id, client_id="test"
    )
    return frame(encode_request_header(header), body)


class Here:
    """Node side of one connection, whose requests wait until a test answers them."""

    def __init__(
        self,
        handle: Callable[[Connection, Request[Any]], None] | None = None,
        request_queue: RequestQueue | None = None,
    ) -> None:
        self.pool = MemoryPool(POOL_BYTES)
        self.requests: list[Request[Any]] = []
        self.is_closed = False
        self.flush_queue = FlushQueue(asyncio.get_running_loop())
        self.request_queue = request_queue or RequestQueue(
            asyncio.get_running_loop(), is_unprivileged=False
        )
        self.connection = Connection(
            where="there",
            authenticate=lambda _transport: CALLER,
            handle=handle or (lambda _connection, request: self.requests.append(request)),
            closed=self._close,
            log_event=lambda *_: None,
            apis=APIS,
            frame_bytes_max=lambda _caller: FRAME_BYTES_MAX,
            in_flight_max=100,
            memory_share=lambda principal: self.pool.share_of(principal.name),
            deadline=TransferDeadline(STALLED_S, bytes_per_second_min=1_000),
            flush_queue=self.flush_queue,
            request_queue=lambda _: self.request_queue,
        )

    def _close(self, _connection: Connection) -> None:
        self.is_closed = True

    @property
    def is_empty(self) -> bool:
        return self.pool.held_byte_count == 0 and self.pool.free_byte_count > 0


class BrokenTransport(asyncio.Transport):
    """Transport whose peer has disconnected: the first write finds that, and closes it."""

    def __init__(self) -> None:
        super().__init__()
        self.write_count = 0

    def is_closing(self) -> bool:
        return self.write_count > 0

    def write(self, _data: object) -> None:
        self.write_count += 1

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0


class SilentTransport(BrokenTransport):
    """Transport of a peer that receives nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.is_aborted = False

    def is_closing(self) -> bool:
        return self.is_aborted

    def abort(self) -> None:
        self.is_aborted = True

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass


def test_a_bug_in_a_queued_request_ends_its_connection_and_delays_no_other() -> None:
    async def run() -> None:
        broken: list[BaseException] = []
        asyncio.get_running_loop().set_exception_handler(
            lambda _, context: broken.append(context["exception"])
        )

        def handle(_connection: Connection, request: Request[Any]) -> None:
            if request.header.correlation_id == REQUESTS_PER_TURN:
                raise ZeroDivisionError

        one = Here(handle)
        other = Here(request_queue=one.request_queue)
        transports = [SilentTransport(), SilentTransport()]
        for here, transport in zip((one, other), transports, strict=True):
            here.connection.connection_made(transport)
            requests = [sent(ApiKey.METADATA, 9, at) for at in range(REQUESTS_PER_TURN + 1)]
            here.connection.data_received(b"".join(requests))
        await until(lambda: len(other.requests) == REQUESTS_PER_TURN + 1)
        assert [type(bug) for bug in broken] == [ZeroDivisionError]
        assert [transport.is_aborted for transport in transports] == [True, False]

    asyncio.run(run())


def test_nothing_is_written_after_a_write_found_the_connection_broken() -> None:
    async def run() -> None:
        here, transport = Here(), BrokenTransport()
        here.connection.connection_made(transport)
        here.connection.data_received(sent(ApiKey.METADATA, 9, 1, b"\x00" * 9))
        await until(lambda: len(here.requests) == 1)
        here.requests[0].respond(bytes(20 * MIB))
        await until(lambda: transport.write_count > 0)
        assert transport.write_count == 1

    asyncio.run(run())


Check = Callable[[Here, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def with_connection(
    check: Check, *, server: ssl.SSLContext | None = None, client: ssl.SSLContext | None = None
) -> None:
    async def run() -> None:
        here = Here()
        loop = asyncio.get_running_loop()
        listening = await loop.create_server(lambda: here.connection, "127.0.0.1", 0, ssl=server)
        port = listening.sockets[0].getsockname()[1]
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=client)
        try:
            await check(here, reader, writer)
        finally:
            writer.transport.abort()
            listening.close()
        await until(lambda: here.is_closed)
        for _ in range(5):
            await asyncio.sleep(0)
        assert here.is_empty

    asyncio.run(run())


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not is_so():
            await asyncio.sleep(0.002)


def partial_frame(byte_count: int, sent_byte_count: int = 1) -> bytes:
    return byte_count.to_bytes(4, "big") + bytes(sent_byte_count)


def test_a_partial_frame_is_released_when_its_peer_disconnects() -> None:
    async def check(here: Here, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(sent(ApiKey.METADATA, 9, 1))
        await until(lambda: len(here.requests) == 1)
        here.requests[0].respond(bytes(20 * MIB))
        writer.write(partial_frame(90 * MIB, 5 * MIB))
        writer.write_eof()
        while await reader.read(MIB):
            pass

    with_connection(check)


def test_a_frame_begun_after_the_connection_stopped_reading_is_not_held() -> None:
    async def check(here: Here, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        fetches = sent(ApiKey.FETCH, 12, 1) + sent(ApiKey.FETCH, 12, 2)
        writer.write(fetches + partial_frame(90 * MIB, 100_000))
        await until(lambda: len(here.requests) == 1)
        here.connection.finish()
        here.requests[0].respond(b"x")
        await until(lambda: here.is_closed)

    with_connection(check)


def test_a_connection_with_pending_responses_is_not_called_stalled_once_it_stopped_reading() -> (
    None
):
    async def check(here: Here, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(sent(ApiKey.METADATA, 9, 1) + partial_frame(90 * MIB, 2 * MIB))
        await until(lambda: here.pool.held_byte_count > 2 * MIB)
        later_s = asyncio.get_running_loop().time() + 3 * STALLED_S
        assert here.connection.is_stalled(later_s)
        here.connection.finish()
        assert here.pool.held_byte_count < MIB
        assert not here.connection.is_stalled(later_s)
        here.requests[0].respond(b"x")

    with_connection(check)


def test_a_partial_frame_holds_its_received_bytes_and_not_its_announced_length() -> None:
    async def check(here: Here, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        data = partial_frame(90 * MIB, 100)

        def holds(byte_count: int) -> bool:
            return here.pool.held_byte_count == byte_count

        for end in (1, 3, 5, 104):
            writer.write(data[here.pool.held_byte_count : end])
            await until(partial(holds, end))
        assert here.pool.free_byte_count > 0

    with_connection(check)


def test_complete_frames_in_the_queue_are_counted() -> None:
    async def check(here: Here, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(sent(ApiKey.FETCH, 12, 1) + sent(ApiKey.FETCH, 12, 2, bytes(MIB)))
        await until(lambda: here.pool.held_byte_count > MIB)
        writer.write(sent(ApiKey.FETCH, 12, 3))
        here.requests[0].respond(b"x")
        await until(lambda: len(here.requests) == 2)
        here.requests[1].respond(b"x")
        await until(lambda: len(here.requests) == 3)

    with_connection(check)


def test_a_received_request_starts_although_memory_is_exhausted() -> None:
    async def check(here: Here, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(sent(ApiKey.PRODUCE, 9, 1, bytes(90 * MIB)))
        await until(lambda: len(here.requests) == 1)
        assert here.pool.free_byte_count <= 0
        here.requests[0].respond(b"x")
        await until(lambda: here.pool.free_byte_count > 0)

    with_connection(check)


def test_a_completed_request_holds_only_its_response_while_an_earlier_one_waits() -> None:
    """Otherwise the earlier one would wait for memory that later ones hold."""

    async def check(here: Here, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(sent(ApiKey.FETCH, 12, 1) + sent(ApiKey.PRODUCE, 9, 2, bytes(90 * MIB)))
        await until(lambda: len(here.requests) == 2)
        here.requests[1].respond(b"x")
        await until(lambda: here.pool.share_of(CALLER.name).has_room)
        here.requests[0].respond(b"x")

    with_connection(check)


def test_a_tls_connection_may_be_closed_repeatedly(tmp_path: Path) -> None:
    """Without the peer's close_notify the connection is closed again, until it is aborted."""
    server, client = tls_contexts(tmp_path)

    async def check(here: Here, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await until(lambda: here.connection.is_open)
        transport_of(writer).pause_reading()
        for _ in range(3):
            here.connection.finish()
            here.connection.refuse("again")
            assert not here.connection.is_stalled(0)
            assert not here.connection.needs_reauthentication
        here.connection.abort()
        await until(lambda: here.is_closed)

    with_connection(check, server=server, client=client)


def tls_contexts(home: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    authority = Authority(home)
    pair = authority.sign("node-1.example")
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(pair.certificate, pair.key)
    return server, ssl.create_default_context(cafile=authority.path)


def test_a_tls_connection_with_bytes_that_are_not_decrypted_is_closed_in_a_callback_that_flushes(
    tmp_path: Path,
) -> None:
    server, client = tls_contexts(tmp_path)
    bugs: list[dict[str, Any]] = []

    async def check(here: Here, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: bugs.append(context))
        await until(lambda: here.connection.is_open)
        here.connection.mute()
        await until(lambda: not here.connection._is_reading)
        received: Any = here.connection._transport
        writer.write(sent(ApiKey.METADATA, 9, 1))
        await until(lambda: received._ssl_protocol._incoming.pending > 0)
        here.connection.unmute()  # resumes in the next iteration, and decrypts in that after it
        loop.call_soon(here.flush_queue.run, here.connection.finish)
        await until(lambda: here.is_closed)
        assert not here.requests

    with_connection(check, server=server, client=client)
    assert not bugs
