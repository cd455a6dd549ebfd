"""Memory of a node that requests and unread responses hold."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest
from kio.schema.errors import ErrorCode

from raftlog.append import AppendRequest, Done
from raftlog.limits import KIB, MIB
from raftlog.node.connection import Connection
from raftlog.records.compression import Compression
from raftlog.wire import (
    ApiKey,
    RequestHeader,
    decode,
    encode,
    encode_request_header,
    frame,
    latest_schemas,
)
from tests.node.apis.batches import batch, produce
from tests.node.apis.requests import fetch
from tests.support.quorum_processes import free_ports
from tests.support.served_node import RawConnection, ServedNode, appended, served_node, transport_of

pytestmark = pytest.mark.slow

VERSION: Final = 9
HOST: Final = "host 127.0.0.1"
"""Name of the memory share of connections without an authenticated name."""
RECORD: Final = b"x" * (MIB - 1_000)


def with_node(
    home: Path, check: Callable[[ServedNode], Awaitable[None]], limits: str, log: str = ""
) -> None:
    """Run a check against a leader whose clients have a port of their own."""
    clients, voters = free_ports(2)
    listeners = (
        f'topic = "orders"\n[listeners.clients]\naddress = "127.0.0.1:{clients}"\n'
        f'[listeners.voters]\naddress = "127.0.0.1:{voters}"\n'
    )

    async def run() -> None:
        extra = f"[limits]\n{limits}\n[log]\n{log}\n"
        async with served_node(home, extra, listeners=listeners) as node:
            await check(node)

    asyncio.run(run())


def ask_fetch(connection: RawConnection, correlation_id: int = 1, **more: Any) -> None:
    request = fetch(max_bytes=8 * MIB, partition_max_bytes=8 * MIB, **more)
    connection.ask(ApiKey.FETCH, VERSION, encode(request, VERSION), correlation_id)


def ask_produce(connection: RawConnection, data: bytes, correlation_id: int = 1) -> None:
    body = encode(produce(data), VERSION)
    connection.ask(ApiKey.PRODUCE, VERSION, body, correlation_id)


async def produced(connection: RawConnection) -> Any:
    _, body = await connection.answer(ApiKey.PRODUCE, VERSION)
    response = decode(latest_schemas.ProduceResponse, VERSION, body)
    return response.responses[0].partition_responses[0]


async def fill(node: ServedNode, record_count: int) -> None:
    """Append records of almost a MiB, one per batch."""
    for _ in range(record_count):
        request = AppendRequest(records=(RECORD,), deadline_ms=1e12)
        assert isinstance(await appended(node.node.raft_node, request), Done)


@asynccontextmanager
async def non_reading_client(node: ServedNode) -> AsyncIterator[RawConnection]:
    """Return a connection with a very small receive buffer."""
    small = socket.socket()
    small.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * KIB)
    small.setblocking(False)
    await asyncio.get_running_loop().sock_connect(small, ("127.0.0.1", node.port))
    reader, writer = await asyncio.open_connection(sock=small, limit=KIB)
    transport_of(writer).pause_reading()
    async with RawConnection(reader, writer) as connection:
        yield connection


def unread(node: ServedNode) -> int:
    """Return the bytes of responses in the node that no client has read."""
    open_ones = [one for one in node.node.server.connections if one.is_open]
    return sum(one._transport.get_write_buffer_size() for one in open_ones if one._transport)


class Most:
    """Maximum of the unread bytes, sampled in every turn of the loop."""

    def __init__(self, node: ServedNode) -> None:
        self.byte_count = 0
        self._node = node
        self._look()

    def _look(self) -> None:
        self.byte_count = max(self.byte_count, unread(self._node))
        asyncio.get_running_loop().call_later(0.001, self._look)


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not is_so():
            await asyncio.sleep(0.005)


def test_unread_responses_hold_memory_that_later_responses_wait_for(tmp_path: Path) -> None:
    """One response beyond the bound is held; a client that does not read is disconnected, and then
    the others are answered.
    """

    async def check(node: ServedNode) -> None:
        await fill(node, 9)
        most = Most(node)
        async with (
            non_reading_client(node) as first,
            non_reading_client(node) as second,
            await node.connect() as reader,
        ):
            for one in (first, second):
                ask_fetch(one)
                ask_fetch(one, 2)
            await until(lambda: most.byte_count > 0)
            ask_fetch(reader, 7)
            assert (await reader.answer(ApiKey.FETCH, VERSION))[0] == 7
            await until(lambda: len(node.node.server.connections) == 1)
        assert node.node.server.metrics.closed_connections.total() == 2
        assert MIB < most.byte_count < 9 * MIB

    with_node(tmp_path, check, "queued_bytes_max = 1000000\nstalled_ms = 400")


def test_fetches_delayed_for_the_same_records_are_not_all_answered_together(
    tmp_path: Path,
) -> None:
    async def check(node: ServedNode) -> None:
        await fill(node, 1)
        most = Most(node)
        async with AsyncExitStack() as stack:
            for _ in range(5):
                one = await stack.enter_async_context(non_reading_client(node))
                ask_fetch(one, max_wait_ms=60_000, min_bytes=7 * len(RECORD) + 1)
            await until(lambda: [one.in_flight_count for one in _all(node)] == [1] * 5)
            await fill(node, 8)
            await until(lambda: most.byte_count > 0)
            await until(lambda: not any(one.in_flight_count for one in _all(node)))
        assert MIB < most.byte_count < 9 * MIB

    with_node(tmp_path, check, "queued_bytes_max = 1000000\nstalled_ms = 400")


def test_non_reading_clients_leave_memory_to_voters(tmp_path: Path) -> None:
    async def check(node: ServedNode) -> None:
        await fill(node, 9)
        voters = node.config.listeners[1].port
        async with non_reading_client(node) as first, await node.connect() as waits:
            ask_fetch(first)
            await until(lambda: node.node.server.clients_memory.free_byte_count <= 0)
            waits.ask_versions(4)
            assert (await waits.answer(ApiKey.API_VERSIONS, 3))[0] == 4, "it was read already"
            served = _at_the_node(waits, node)
            await until(lambda: not _is_reading(served))
            reader, writer = await asyncio.open_connection("127.0.0.1", voters)
            async with RawConnection(reader, writer) as voter:
                for number in (5, 6, 7):
                    voter.ask_versions(number)
                    assert (await voter.answer(ApiKey.API_VERSIONS, 3))[0] == number
            waits.ask_versions(8)
            assert node.node.server.clients_memory.free_byte_count <= 0
            first.transport.resume_reading()
            await first.answer(ApiKey.FETCH, VERSION)
            assert (await waits.answer(ApiKey.API_VERSIONS, 3))[0] == 8

    with_node(tmp_path, check, "queued_bytes_max = 1000000\nstalled_ms = 60000")


def _at_the_node(connection: RawConnection, node: ServedNode) -> Connection:
    host, port = connection.transport.get_extra_info("sockname")
    (found,) = (one for one in _all(node) if one.where == f"{host}:{port}")
    return found


def _of_client(name: str, correlation_id: int) -> bytes:
    header = RequestHeader(
        api_key=ApiKey.API_VERSIONS, api_version=0, correlation_id=correlation_id, client_id=name
    )
    return frame(encode_request_header(header))


def _is_reading(connection: Connection) -> bool:
    assert connection._transport is not None
    return connection._transport.is_reading()


def test_partial_frames_without_memory_are_received_one_by_one(tmp_path: Path) -> None:
    async def check(node: ServedNode) -> None:
        async with await node.connect() as first, await node.connect() as second:
            data = [_of_client("c" * 30_000, at) for at in (1, 2)]
            first.writer.write(data[0][:-1])
            await until(lambda: any(one.memory.partial_byte_count for one in _all(node)))
            second.writer.write(data[1][:-1])
            await until(lambda: not all(map(_is_reading, _all(node))))
            second.writer.write(data[1][-1:])
            first.writer.write(data[0][-1:])
            assert (await first.answer(ApiKey.API_VERSIONS, 0))[0] == 1
            assert (await second.answer(ApiKey.API_VERSIONS, 0))[0] == 2
            assert all(map(_is_reading, _all(node)))

    with_node(tmp_path, check, "queued_bytes_max = 20000")


def _all(node: ServedNode) -> tuple[Connection, ...]:
    return node.node.server.connections


def test_a_client_that_stops_in_the_middle_of_a_frame_is_disconnected(tmp_path: Path) -> None:
    async def check(node: ServedNode) -> None:
        async with await node.connect() as stuck, await node.connect() as fine:
            stuck.writer.write(MIB.to_bytes(4, "big") + bytes(1_000))
            assert await stuck.next_frame() is None
            fine.ask_versions(3)
            assert (await fine.answer(ApiKey.API_VERSIONS, 3))[0] == 3
        assert "stalled inside a request" in node.lines("refused")[-1]["reason"]

    with_node(tmp_path, check, "stalled_ms = 60")


def test_frames_announced_and_not_sent_block_no_other_client(tmp_path: Path) -> None:
    """Three connections of 100 MiB each, with a byte now and then, once blocked all others."""

    async def check(node: ServedNode) -> None:
        async with AsyncExitStack() as stack:
            for _ in range(3):
                silent = await stack.enter_async_context(await node.connect())
                silent.writer.write((100 * MIB).to_bytes(4, "big") + b"z")
            await until(lambda: len(_all(node)) == 3)
            await until(lambda: all(one.memory.byte_count for one in _all(node)))
            assert node.node.server.clients_memory.held_byte_count == 3 * 5
            fine = await stack.enter_async_context(await node.connect())
            ask_produce(fine, batch(b"x" * MIB))
            assert (await produced(fine)).error_code is ErrorCode.none

    with_node(tmp_path, check, "")


def test_a_stalled_client_is_disconnected_when_others_wait_for_its_memory(tmp_path: Path) -> None:
    async def check(node: ServedNode) -> None:
        async with await node.connect() as large, await node.connect() as small:
            small.writer.write((90_000).to_bytes(4, "big") + b"z" * 1_000)
            large.writer.write((9 * MIB).to_bytes(4, "big") + b"z" * 800_000)
            await until(lambda: not node.node.server.clients_memory.share_of(HOST).has_room)
            async with await node.connect() as fine:
                fine.ask_versions(5)
                assert (await fine.answer(ApiKey.API_VERSIONS, 3))[0] == 5
            assert await large.next_frame() is None
            assert len(_all(node)) >= 1, "the small one does not prevent it"
        assert "other connections wait" in node.lines("refused")[-1]["reason"]
        assert node.node.server.metrics.closed_connections == {"memory": 1}

    with_node(tmp_path, check, "queued_bytes_max = 1000000\nstalled_ms = 4000\nidle_ms = 200")


def test_a_connection_has_one_fetch_in_flight_and_other_requests_beside_it(tmp_path: Path) -> None:
    async def check(node: ServedNode) -> None:
        await fill(node, 1)
        end = node.node.raft_node.replica.log.end_offset
        async with await node.connect() as connection:
            connection.ask_versions(1)
            ask_fetch(connection, 2, offset=end, max_wait_ms=60_000)
            connection.ask_versions(3)
            ask_fetch(connection, 4)
            connection.ask_versions(5)
            assert (await connection.answer(ApiKey.API_VERSIONS, 3))[0] == 1
            (served,) = _all(node)
            await until(lambda: served.in_flight_count == 2)
            await fill(node, 1)
            found = [
                (await connection.answer(*kind))[0]
                for kind in (
                    (ApiKey.FETCH, VERSION),
                    (ApiKey.API_VERSIONS, 3),
                    (ApiKey.FETCH, VERSION),
                    (ApiKey.API_VERSIONS, 3),
                )
            ]
            assert found == [2, 3, 4, 5]

    with_node(tmp_path, check, "")


def _is_run_in_executor() -> bool:
    return any(one.name.startswith("raftlog-executor") for one in threading.enumerate())


def test_a_large_batch_is_decoded_in_an_executor_and_keeps_its_order(tmp_path: Path) -> None:
    async def check(node: ServedNode) -> None:
        many = [b"%08d" % at for at in range(100_000)]
        few_bytes = batch(*[bytes(1_000)] * 3_000, compression=Compression.ZSTD)
        assert len(few_bytes) < 20 * KIB
        async with await node.connect() as connection:
            ask_produce(connection, batch(b"first"), 1)
            assert (await produced(connection)).base_offset == (start := 3)
            assert not _is_run_in_executor()
            ask_produce(connection, batch(*many), 2)
            ask_produce(connection, batch(b"between"), 3)
            ask_produce(connection, few_bytes, 4)
            ask_produce(connection, batch(b"last"), 5)
            produce_responses = [await produced(connection) for _ in range(4)]
            assert [one.error_code for one in produce_responses] == [ErrorCode.none] * 4
            assert [one.base_offset for one in produce_responses] == [
                start + 1,
                start + 1 + 100_000,
                start + 1 + 100_001,
                start + 1 + 103_001,
            ]
            assert _is_run_in_executor()

    with_node(tmp_path, check, "", 'compression = "zstd"')


def test_appends_that_wait_for_a_large_one_end_with_their_connection(tmp_path: Path) -> None:
    async def check(node: ServedNode) -> None:
        executor, may_read = node.node.server._apis._executor, threading.Event()
        executor.submit(may_read.wait)
        end = node.node.raft_node.replica.log.end_offset
        async with await node.connect() as connection:
            ask_produce(connection, batch(b"x" * MIB), 1)
            ask_produce(connection, batch(b"small"), 2)
            await until(lambda: [one.in_flight_count for one in _all(node)] == [2])
        await until(lambda: not _all(node))
        may_read.set()
        await asyncio.wrap_future(executor.submit(bool))
        await fill(node, 1)
        assert node.node.raft_node.replica.log.end_offset == end + 1
        assert node.node.server.clients_memory.held_byte_count == 0

    with_node(tmp_path, check, "")


@pytest.mark.parametrize(
    "compression",
    [
        Compression.ZSTD,
        *(
            pytest.param(one, marks=pytest.mark.nightly)
            for one in Compression
            if one not in (Compression.NONE, Compression.ZSTD)
        ),
    ],
)
def test_a_decompression_bomb_is_refused_and_its_connection_stays_open(
    tmp_path: Path, compression: Compression
) -> None:
    async def check(node: ServedNode) -> None:
        bomb = batch(*[bytes(MIB)] * 60, compression=compression)
        async with await node.connect() as connection:
            ask_produce(connection, bomb, 1)
            ask_produce(connection, batch(b"x"), 2)
            assert (await produced(connection)).error_code is ErrorCode.message_too_large
            assert (await produced(connection)).error_code is ErrorCode.none

    with_node(tmp_path, check, "")
