"""Behaviour of a node toward any connection to its port."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from raftlog.append import AppendRequest, Done
from raftlog.node.apis import ClientApis
from raftlog.node.apis.produce import READ_AT_ONCE_BYTES_MAX, DelayedProduce
from raftlog.node.connection import REQUESTS_PER_TURN
from raftlog.node.raft_node import RaftNode
from raftlog.quorum.roles import Leader
from raftlog.wire import (
    ApiKey,
    ReplicaFetchCodec,
    RequestHeader,
    decode_versions_response,
    encode,
    encode_request,
    encode_request_header,
    encode_versions_request,
    frame,
)
from raftlog.wire.errors import UnsupportedFieldError
from tests.node.apis.batches import batch, produce
from tests.support.hostile_traffic import ACCESS, GREEDY, HEALTHY, MECHANISM, listeners
from tests.support.quorum_processes import free_ports
from tests.support.sasl_client import authenticate
from tests.support.served_node import RawConnection, ServedNode, appended, served_node


def with_node(home: Path, check: Callable[[ServedNode], Awaitable[None]], extra: str = "") -> None:
    """Run a check against a node that leads."""

    async def run() -> None:
        async with served_node(home, extra) as node:
            await check(node)

    asyncio.run(run())


def delayed_fetch(node: ServedNode, max_wait_ms: int) -> bytes:
    """Return a fetch of a caught-up replica, which is delayed until new records arrive."""
    return encode_request(node.fetch_at_the_end(max_wait_ms), 17, node.node.log_identity)


async def still_serves(node: ServedNode) -> None:
    async with await node.connect() as other:
        other.ask_versions(9)
        assert (await other.answer(ApiKey.API_VERSIONS, 3))[0] == 9


def test_the_tasks_of_a_server_end_before_its_descriptors_are_free(tmp_path: Path) -> None:
    async def check(node: ServedNode) -> None:
        loop = asyncio.get_running_loop()
        closing = asyncio.create_task(node.node.server.close(timeout_ms=0))
        await asyncio.sleep(0)  # the first step of `closing`
        with contextlib.ExitStack() as opened:
            others = [opened.enter_context(socket.socket()) for _ in range(16)]
            for other in others:
                loop.add_reader(other, bytes)
            await closing
            await asyncio.sleep(0)
            were_waiting = [loop.remove_reader(other) for other in others]
            assert were_waiting == [True] * len(others)

    with_node(tmp_path, check)


def test_responses_are_sent_in_the_order_of_requests(tmp_path: Path) -> None:
    async def check(node: ServedNode) -> None:
        async with await node.connect() as connection:
            connection.ask(ApiKey.FETCH, 17, delayed_fetch(node, 100), 1)
            connection.ask_versions(2)
            assert (await connection.answer(ApiKey.FETCH, 17))[0] == 1
            assert (await connection.answer(ApiKey.API_VERSIONS, 3))[0] == 2

    with_node(tmp_path, check)


def has_delayed_fetch(raft_node: RaftNode) -> bool:
    role = raft_node.replica.core.role
    assert isinstance(role, Leader)
    return bool(role.delayed_fetches)


def test_a_delayed_fetch_of_a_closed_connection_is_dropped(tmp_path: Path) -> None:
    async def check(node: ServedNode) -> None:
        raft_node = node.node.raft_node
        async with await node.connect() as connection:
            connection.ask(ApiKey.FETCH, 17, delayed_fetch(node, 60_000), 1)
            connection.ask_versions(2)
            while not has_delayed_fetch(raft_node):
                await asyncio.sleep(0)
        while has_delayed_fetch(raft_node):
            await asyncio.sleep(0)

    with_node(tmp_path, check)


@pytest.mark.parametrize(
    "bug",
    [
        UnsupportedFieldError(api="Fetch", version=17, field="f", reason="a bug"),
        KeyError("a bug"),
    ],
    ids=lambda one: type(one).__name__,
)
def test_a_response_that_cannot_be_encoded_delays_no_other_and_does_not_end_the_replica(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bug: Exception
) -> None:
    def not_encodable(*_: object) -> bytes:
        raise bug

    async def check(node: ServedNode) -> None:
        raft_node = node.node.raft_node
        async with await node.connect() as connection:
            connection.ask(ApiKey.FETCH, 17, delayed_fetch(node, 60_000), 1)
            while not has_delayed_fetch(raft_node):
                await asyncio.sleep(0)
            monkeypatch.setattr(ReplicaFetchCodec, "encode_response", not_encodable)
            answer = await appended(raft_node, AppendRequest(records=(b"a",), deadline_ms=1e12))
            assert isinstance(answer, Done)
            await _closes(connection, node)
        assert not raft_node.is_over

    with_node(tmp_path, check)


async def _closes(connection: RawConnection, node: ServedNode) -> None:
    assert await connection.next_frame() is None
    assert node.lines("refused")
    await still_serves(node)


def test_a_frame_above_the_limit_closes_the_connection_before_it_is_read(tmp_path: Path) -> None:
    async def check(node: ServedNode) -> None:
        async with await node.connect() as connection:
            connection.writer.write((2**30).to_bytes(4, "big"))
            await _closes(connection, node)
        assert "invalid frame size" in node.lines("refused")[0]["reason"]

    with_node(tmp_path, check)


def test_a_failed_accept_does_not_close_the_listener(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def check(node: ServedNode) -> None:
        loop = asyncio.get_running_loop()
        accept, failures = loop.sock_accept, [errno.ECONNABORTED, errno.EPERM]

        async def failing(listening: socket.socket) -> Any:
            accepted = await accept(listening)
            if failures:
                accepted[0].close()
                raise OSError(failures.pop(), "no")
            return accepted

        monkeypatch.setattr(loop, "sock_accept", failing)
        for _ in range(2):
            async with await node.connect() as connection:
                assert await connection.next_frame() is None
        await still_serves(node)

    with_node(tmp_path, check)


def test_a_client_that_cannot_be_answered_is_disconnected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def check(node: ServedNode) -> None:
        async def broken(*_: object) -> bytes:
            raise KeyError("a bug")

        monkeypatch.setattr(ClientApis, "_handle", broken)
        async with await node.connect() as connection:
            connection.ask(ApiKey.METADATA, 12, b"")
            await _closes(connection, node)

    with_node(tmp_path, check)


def test_an_append_that_cannot_be_answered_ends_its_connection_and_not_the_replica(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def check(node: ServedNode) -> None:
        def broken(*_: object) -> bytes:
            raise KeyError("a bug")

        replica = node.node.raft_node.replica
        end = replica.log.end_offset
        with monkeypatch.context() as patched:
            patched.setattr(DelayedProduce, "_encode_response", broken)
            async with await node.connect() as connection:
                request = produce(batch(b"x"), topic=node.node.log_identity.topic)
                connection.ask(ApiKey.PRODUCE, 9, encode(request, 9))
                await _closes(connection, node)
        assert replica.log.end_offset == end + 1
        assert not node.node.raft_node.is_over

    with_node(tmp_path, check)


def test_an_append_that_cannot_be_submitted_ends_its_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also after a batch that is read on the executor, when no request of the peer is handled."""
    read = DelayedProduce._read

    def broken(self: DelayedProduce, data: bytes) -> object:
        if len(data) < READ_AT_ONCE_BYTES_MAX:
            raise KeyError("a bug")
        return read(self, data)

    async def check(node: ServedNode) -> None:
        topic = node.node.log_identity.topic
        with monkeypatch.context() as patched:
            patched.setattr(DelayedProduce, "_read", broken)
            async with await node.connect() as connection:
                for value in (bytes(READ_AT_ONCE_BYTES_MAX), b"x"):
                    request = produce(batch(value), topic=topic)
                    connection.ask(ApiKey.PRODUCE, 9, encode(request, 9))
                await _closes(connection, node)

    with_node(tmp_path, check)


def test_a_read_batch_that_cannot_be_submitted_ends_its_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Later requests of the connection would wait for it."""

    def broken(*_: object) -> None:
        raise KeyError("a bug")

    async def check(node: ServedNode) -> None:
        request = produce(batch(bytes(READ_AT_ONCE_BYTES_MAX)), topic=node.node.log_identity.topic)
        with monkeypatch.context() as patched:
            patched.setattr(DelayedProduce, "_append", broken)
            async with await node.connect() as connection:
                connection.ask(ApiKey.PRODUCE, 9, encode(request, 9))
                await _closes(connection, node)

    with_node(tmp_path, check)


def test_bytes_that_are_no_request_close_the_connection(tmp_path: Path) -> None:
    async def check(node: ServedNode) -> None:
        async with await node.connect() as connection:
            connection.ask(ApiKey.FETCH, 17, b"\xff\xff\xff")
            await _closes(connection, node)

    with_node(tmp_path, check)


def test_an_unsupported_request_closes_the_connection(tmp_path: Path) -> None:
    async def check(node: ServedNode) -> None:
        async with await node.connect() as connection:
            header = (11).to_bytes(2, "big") + bytes(2) + bytes(4) + b"\xff\xff"  # JoinGroup
            connection.writer.write(len(header).to_bytes(4, "big") + header)
            await _closes(connection, node)

    with_node(tmp_path, check)


def test_supported_versions_are_sent_to_clients_of_a_newer_protocol(tmp_path: Path) -> None:
    async def check(node: ServedNode) -> None:
        async with await node.connect() as connection:
            header = (18).to_bytes(2, "big") + (99).to_bytes(2, "big") + bytes(4) + b"\xff\xff"
            connection.writer.write(len(header).to_bytes(4, "big") + header)
            _, body = await connection.answer(ApiKey.API_VERSIONS, 0)
            assert decode_versions_response(3, body).is_version_unsupported

    with_node(tmp_path, check)


def test_connections_beyond_the_limit_are_closed(tmp_path: Path) -> None:
    async def check(node: ServedNode) -> None:
        async with await node.connect() as first, await node.connect() as second:
            for connection in (first, second):
                connection.ask_versions()
                await connection.answer(ApiKey.API_VERSIONS, 3)
            async with await node.connect() as third:
                assert await third.next_frame() is None
            first.ask_versions(5)
            assert (await first.answer(ApiKey.API_VERSIONS, 3))[0] == 5
        refused = node.node.server.metrics.refused_connections
        assert refused == {"connections_per_address_max": 1}
        assert "limits.connections_per_address_max" in node.lines("limit")[0]["about"]

    with_node(tmp_path, check, "[limits]\nconnections_per_address_max = 2\n")


def test_an_idle_connection_is_closed(tmp_path: Path) -> None:
    async def check(node: ServedNode) -> None:
        async with await node.connect() as connection:
            assert await connection.next_frame() is None

    with_node(tmp_path, check, "[limits]\nidle_ms = 40\n")


def test_an_idle_connection_with_unread_responses_is_closed_too(tmp_path: Path) -> None:
    async def check(node: ServedNode) -> None:
        async with await node.connect() as connection:
            connection.ask_versions()
            await connection.answer(ApiKey.API_VERSIONS, 3)
            connection.transport.pause_reading()
            (served,) = node.node.server.connections
            transport = served._transport
            assert transport is not None
            transport.write(bytes(2**25))  # more than socket buffers hold
            async with asyncio.timeout(10):
                while node.node.server.connections:
                    await asyncio.sleep(0.01)

    with_node(tmp_path, check, "[limits]\nidle_ms = 40\n")


def test_requests_in_flight_are_bounded(tmp_path: Path) -> None:
    async def check(node: ServedNode) -> None:
        async with await node.connect() as connection:
            connection.ask(ApiKey.FETCH, 17, delayed_fetch(node, 200), 1)
            for number in range(2, 40):
                connection.ask_versions(number)
            await connection.writer.drain()
            most = 0
            numbers: list[int] = []
            while len(numbers) < 39:
                most = max(most, 0, *(one.in_flight_count for one in node.node.server.connections))
                key, version = (ApiKey.API_VERSIONS, 3) if numbers else (ApiKey.FETCH, 17)
                numbers.append((await connection.answer(key, version))[0])
            assert numbers == list(range(1, 40))
            assert most <= 4

    with_node(tmp_path, check, "[limits]\nrequests_in_flight_max = 4\n")


@pytest.mark.slow
def test_responses_to_a_slow_reader_do_not_occupy_the_node(tmp_path: Path) -> None:
    """The node stops reading a connection with unread responses, and serves others."""

    async def check(node: ServedNode) -> None:
        async with await node.connect() as connection:
            loop = asyncio.get_running_loop()
            end_s = loop.time() + 1
            connection.writer.transport.set_write_buffer_limits(high=2**14)
            for number in range(200_000):
                connection.ask_versions(number)
                if number % 100 == 0:
                    if loop.time() > end_s:
                        break
                    try:
                        await asyncio.wait_for(connection.writer.drain(), 0.2)
                    except TimeoutError:
                        break
            await still_serves(node)
            transports = [one._transport for one in node.node.server.connections]
            assert max(one.get_write_buffer_size() for one in transports if one) < 2**20

    with_node(tmp_path, check)


def test_memory_released_by_a_response_starts_no_request_in_the_same_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    depth = deepest = 0
    act = RaftNode.act

    def counted(raft_node: RaftNode, *args: Any) -> None:
        nonlocal depth, deepest
        depth += 1
        deepest = max(deepest, depth)
        act(raft_node, *args)
        depth -= 1

    async def check(node: ServedNode) -> None:
        raft_node = node.node.raft_node
        async with await node.connect() as first, await node.connect() as second:
            first.ask(ApiKey.FETCH, 17, delayed_fetch(node, 60_000), 1)
            while not has_delayed_fetch(raft_node):
                await asyncio.sleep(0)
            second.ask(ApiKey.FETCH, 17, delayed_fetch(node, 0), 2)
            await second.writer.drain()
            await asyncio.sleep(0.05)
            monkeypatch.setattr(RaftNode, "act", counted)
            await appended(raft_node, AppendRequest(records=(b"a",), deadline_ms=1e12))
            assert (await first.answer(ApiKey.FETCH, 17))[0] == 1
            assert (await second.answer(ApiKey.FETCH, 17))[0] == 2
        assert deepest == 1

    with_node(tmp_path, check, "[limits]\nqueued_bytes_max = 1\n")


def versions_requests(count: int) -> bytes:
    """Return the frames of requests with the correlation ids from 0 on."""
    body = encode_versions_request(3, software="test", software_version="1")
    frames = b""
    for number in range(count):
        header = RequestHeader(
            api_key=ApiKey.API_VERSIONS, api_version=3, correlation_id=number, client_id="test"
        )
        frames += frame(encode_request_header(header), body)
    return frames


def test_peers_without_rights_start_one_request_in_each_iteration(tmp_path: Path) -> None:
    """They are three connections, before their authentication by SASL."""
    count = 3 * REQUESTS_PER_TURN

    async def check(node: ServedNode) -> None:
        requests = node.node.server.metrics.requests
        async with (
            await node.connect() as first,
            await node.connect() as second,
            await node.connect() as third,
        ):
            strangers = (first, second, third)
            for one in strangers:
                one.ask_versions(0)
                assert (await one.answer(ApiKey.API_VERSIONS, 3))[0] == 0
            before = started = requests["API_VERSIONS"]
            for at_node in node.node.server.connections:
                at_node.data_received(versions_requests(count))
            assert requests["API_VERSIONS"] == before
            while started < before + 3 * count:
                await asyncio.sleep(0)
                turn, started = requests["API_VERSIONS"] - started, requests["API_VERSIONS"]
                assert turn <= 1
            for one in strangers:
                for number in range(count):
                    assert (await one.answer(ApiKey.API_VERSIONS, 3))[0] == number

    async def run() -> None:
        tables = listeners(tmp_path, *free_ports(2))
        async with served_node(tmp_path, ACCESS, listeners=tables) as node:
            await check(node)

    asyncio.run(run())


def test_one_connection_is_accepted_in_each_iteration(tmp_path: Path) -> None:
    count = 20

    async def check(node: ServedNode) -> None:
        metrics = node.node.server.metrics
        with contextlib.ExitStack() as opened:
            for _ in range(count):
                opened.enter_context(socket.create_connection(("127.0.0.1", node.port)))
            accepted = metrics.connections
            while accepted < count:
                await asyncio.sleep(0)
                turn, accepted = metrics.connections - accepted, metrics.connections
                assert turn <= 1
            while len(node.node.server.connections) < count:
                await asyncio.sleep(0)

    with_node(tmp_path, check)


def test_many_small_requests_of_a_connection_are_handled_in_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("raftlog.node.connection.TURN_S", 0)
    count = 20 * REQUESTS_PER_TURN

    async def check(node: ServedNode) -> None:
        requests = node.node.server.metrics.requests
        async with await node.connect() as peer:
            peer.ask_versions(0)
            assert (await peer.answer(ApiKey.API_VERSIONS, 3))[0] == 0
            (at_node,) = node.node.server.connections
            before = requests["API_VERSIONS"]
            at_node.data_received(versions_requests(count))
            assert requests["API_VERSIONS"] == before + REQUESTS_PER_TURN, "before others"
            await started_in_turns(requests, before + count)
            for number in range(count):
                assert (await peer.answer(ApiKey.API_VERSIONS, 3))[0] == number
            assert requests["API_VERSIONS"] == before + count

    with_node(tmp_path, check)


def test_all_connections_of_a_principal_share_its_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("raftlog.node.connection.TURN_S", 0)
    peer_count, count = 5, 3 * REQUESTS_PER_TURN

    async def check(node: ServedNode) -> None:
        requests = node.node.server.metrics.requests
        async with contextlib.AsyncExitStack() as opened:
            peers = [await open_one(opened, node, GREEDY, "greedy") for _ in range(peer_count)]
            before, known = requests["API_VERSIONS"], set(node.node.server.connections)
            await open_one(opened, node, HEALTHY, "healthy")
            (at_node,) = set(node.node.server.connections) - known
            for of_peer in known:
                of_peer.data_received(versions_requests(count))
            started = before + REQUESTS_PER_TURN + peer_count - 1
            assert requests["API_VERSIONS"] == started, "one of each that finds others waiting"
            at_node.data_received(versions_requests(REQUESTS_PER_TURN))
            started += REQUESTS_PER_TURN
            assert requests["API_VERSIONS"] == started, "another principal does not wait"
            await started_in_turns(requests, before + REQUESTS_PER_TURN + peer_count * count)
            for peer in peers:
                for number in range(count):
                    assert (await peer.answer(ApiKey.API_VERSIONS, 3))[0] == number

    async def run() -> None:
        tables = listeners(tmp_path, *free_ports(2))
        async with served_node(tmp_path, ACCESS, listeners=tables) as node:
            await check(node)

    asyncio.run(run())


async def open_one(
    opened: contextlib.AsyncExitStack, node: ServedNode, name: str, password: str
) -> RawConnection:
    """Open a connection as a user."""
    found = await opened.enter_async_context(await node.connect())
    await authenticate(found, MECHANISM, name, password)
    return found


async def started_in_turns(requests: Counter[str], count: int) -> None:
    """Wait until this number of requests is started, a turn in each iteration."""
    started = requests["API_VERSIONS"]
    while started < count:
        await asyncio.sleep(0)
        turn, started = requests["API_VERSIONS"] - started, requests["API_VERSIONS"]
        assert turn <= REQUESTS_PER_TURN, "before others"
