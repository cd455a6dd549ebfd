"""Delayed fetches of connections: no tasks, and nothing is left after the connections."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

import pytest

from raftlog.append import AppendRequest, Done
from raftlog.node.apis.fetch import ConsumerFetch
from raftlog.wire import ApiKey, decode, encode, latest_schemas
from tests.node.apis.requests import fetch
from tests.support.served_node import PATIENCE_S, RawConnection, ServedNode, appended, served_node

VERSION: Final = 12
COUNT: Final = 20


def with_node(home: Path, check: Callable[[ServedNode], Awaitable[None]]) -> None:
    async def run() -> None:
        async with served_node(home) as node, asyncio.timeout(PATIENCE_S):
            await check(node)

    asyncio.run(run())


async def until(is_so: Callable[[], bool]) -> None:
    while not is_so():
        await asyncio.sleep(0.001)


def ask(connection: RawConnection, node: ServedNode, offset: int, max_bytes: int = 1 << 20) -> None:
    topic = node.node.log_identity.topic
    request = fetch(offset, max_wait_ms=60_000, max_bytes=max_bytes, topic=topic)
    connection.ask(ApiKey.FETCH, VERSION, encode(request, VERSION))


async def records(connection: RawConnection) -> bytes:
    _, body = await connection.answer(ApiKey.FETCH, VERSION)
    (partition,) = decode(latest_schemas.FetchResponse, VERSION, body).responses[0].partitions
    return bytes(partition.records or b"")


def test_delayed_fetches_have_no_tasks_and_end_with_their_connections(tmp_path: Path) -> None:
    async def check(node: ServedNode) -> None:
        raft_node = node.node.raft_node
        async with AsyncExitStack() as stack:
            peers = [await stack.enter_async_context(await node.connect()) for _ in range(COUNT)]
            await until(lambda: len(node.node.server.connections) == COUNT)
            await until(lambda: len(asyncio.all_tasks()) < COUNT)  # the handshakes have ended
            end = raft_node.replica.log.end_offset
            for one in peers:
                ask(one, node, end)
            await until(lambda: raft_node.fetches.waiting_count == COUNT)
            assert len(asyncio.all_tasks()) < COUNT
            lost, *others = peers
            lost.writer.close()
            await until(lambda: raft_node.fetches.waiting_count == COUNT - 1)
            request = AppendRequest(records=(b"news",), deadline_ms=1e12)
            assert isinstance(await appended(raft_node, request), Done)
            for one in others:
                assert b"news" in await records(one)
            ask(others[0], node, end + 1)
            await until(lambda: raft_node.fetches.waiting_count == 1)
        await until(lambda: raft_node.fetches.waiting_count == 0)

    with_node(tmp_path, check)


def test_a_delayed_fetch_whose_check_fails_ends_its_connection_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_broken = 77
    check_all = ConsumerFetch._check

    def broken(self: ConsumerFetch) -> bool:
        if self._request.body.max_bytes == of_broken:
            raise KeyError("a bug")
        return check_all(self)

    async def check(node: ServedNode) -> None:
        raft_node = node.node.raft_node
        async with await node.connect() as failing, await node.connect() as other:
            end = raft_node.replica.log.end_offset
            ask(failing, node, end, of_broken)
            ask(other, node, end)
            await until(lambda: raft_node.fetches.waiting_count == 2)
            with monkeypatch.context() as patched:
                patched.setattr(ConsumerFetch, "_check", broken)
                request = AppendRequest(records=(b"news",), deadline_ms=1e12)
                assert isinstance(await appended(raft_node, request), Done)
                assert await failing.next_frame() is None
                assert b"news" in await records(other)
            assert raft_node.fetches.waiting_count == 0
        (refused,) = node.lines("refused")
        assert "internal error" in refused["reason"]
        assert not raft_node.is_over

    with_node(tmp_path, check)
