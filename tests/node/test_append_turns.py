"""What one append of one client costs on three nodes: callbacks of the event loop, syncs, calls."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from types import FrameType
from typing import Any, Final

import pytest

from raftlog.client.remote.messages import TopicIdentity, produce_request
from raftlog.node.event_loop import NodeEventLoop
from raftlog.quorum.roles import Leader
from raftlog.wire import ApiKey, encode_produce_request
from tests.node.apis.batches import batch
from tests.support.served_node import PATIENCE_S, RawConnection, ServedNode, served_quorum

VERSION: Final = 11
LOG: Final = TopicIdentity("raftlog", topic_id=None, cluster_id=None, is_controller=False)
QUIET: Final = """[quorum]
fetch_timeout_ms = 120_000
request_timeout_ms = 60_000
fetch_max_wait_ms = 30_000
fetch_hw_delay_ms = 30_000
"""
"""No election, and no fetch without records, during a test."""


WHOLE_CODEC: Final = (
    "encode_fetch_request",
    "decode_fetch_request",
    "encode_fetch_response",
    "decode_fetch_response",
)


async def until_all_fetch(leader: ServedNode) -> None:
    """Wait until the fetches of both followers are delayed."""
    role = leader.node.raft_node.replica.core.role
    assert isinstance(role, Leader)
    while len(role.delayed_fetches) < 2:
        await asyncio.sleep(0)


def produce_body() -> bytes:
    request = produce_request(LOG, batch(b"a"), timeout_ms=30_000)
    return encode_produce_request(VERSION, request)


async def append(connection: RawConnection, leader: ServedNode) -> None:
    """Append a record, and wait until it is on all nodes."""
    connection.ask(ApiKey.PRODUCE, VERSION, produce_body())
    await connection.answer(ApiKey.PRODUCE, VERSION)
    await until_all_fetch(leader)


@contextlib.asynccontextmanager
async def quiet_quorum(home: Path) -> AsyncIterator[tuple[list[ServedNode], RawConnection]]:
    """Run three nodes, of which the first has had an append of the connection."""
    async with (
        served_quorum(home, QUIET) as nodes,
        asyncio.timeout(PATIENCE_S),
        await nodes[0].connect() as connection,
    ):
        await append(connection, nodes[0])
        for one in nodes:
            for _ in range(20):  # of a fast disk
                one.node.driver.sync_durations.add(0.0)
        yield nodes, connection


def test_one_append_is_one_callback_and_one_sync_of_each_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    callbacks: list[str] = []
    syncs: list[int] = []

    async def run() -> None:
        loop = asyncio.get_running_loop()
        call_soon, fdatasync = loop.call_soon, os.fdatasync

        def counted(callback: Any, *args: Any, **context: Any) -> Any:
            if (getattr(callback, "__module__", None) or "").startswith("raftlog."):
                callbacks.append(callback.__qualname__)
            return call_soon(callback, *args, **context)

        def synced(descriptor: int) -> None:
            syncs.append(descriptor)
            fdatasync(descriptor)

        async with quiet_quorum(tmp_path) as (nodes, connection):
            end_offset = nodes[0].node.raft_node.replica.log.end_offset
            monkeypatch.setattr(loop, "call_soon", counted)
            monkeypatch.setattr(os, "fdatasync", synced)
            await append(connection, nodes[0])
            monkeypatch.undo()
            ends = {one.node.raft_node.replica.log.synced_end_offset for one in nodes}
            assert ends == {end_offset + 1}

    asyncio.run(run())
    callbacks = [one for one in callbacks if one != "Driver._on_time"]
    assert callbacks == ["FlushQueue._call_work"], "of the leader: it is written with others"
    assert len(syncs) == len(set(syncs)) == 3


def test_appends_are_written_together_in_the_iteration_that_receives_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    iterations: list[int] = []
    written: list[int] = []
    fdatasync = os.fdatasync

    async def run() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, NodeEventLoop)
        async with quiet_quorum(tmp_path) as (nodes, connection), await nodes[0].connect() as other:
            await append(other, nodes[0])
            log, select = nodes[0].node.raft_node.replica.log, loop._privileged_first.select

            def selected(timeout: float | None) -> Any:
                ends.append(log.end_offset)
                return select(timeout)

            def synced(descriptor: int) -> None:
                syncs.append(descriptor)
                fdatasync(descriptor)

            for senders in ((connection,), (connection, other)):
                ends: list[int] = []
                syncs: list[int] = []
                body = produce_body()
                monkeypatch.setattr(loop._privileged_first, "select", selected)
                monkeypatch.setattr(os, "fdatasync", synced)
                for sender in senders:
                    sender.ask(ApiKey.PRODUCE, VERSION, body)
                await connection._reader.read(2**16)
                await until_all_fetch(nodes[0])
                monkeypatch.undo()
                iterations.append(ends.count(ends[0]))
                written.append(next(end - ends[0] for end in ends if end != ends[0]))
                assert len(syncs) == len(set(syncs)) == 3, "of each node, together"

    with asyncio.Runner(loop_factory=NodeEventLoop) as runner:
        runner.run(run())
    assert iterations == [1, 1], "iterations that begin before the append is written"
    assert written == [1, 2]


def test_an_append_derives_deadlines_once_a_callback_and_nothing_from_known_voters(
    tmp_path: Path,
) -> None:
    calls = Counter[str]()

    def count(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            calls[frame.f_code.co_qualname] += 1

    async def run() -> None:
        async with quiet_quorum(tmp_path) as (nodes, connection):
            before = sys.getprofile()
            sys.setprofile(count)
            try:
                await append(connection, nodes[0])
            finally:
                sys.setprofile(before)

    asyncio.run(run())
    callbacks_of_the_leader, callbacks_of_followers = 3, 2  # the append and two fetches; responses
    assert (
        calls["RaftNode.next_deadline_ms"] - calls["Driver._on_time"]
        == callbacks_of_the_leader + callbacks_of_followers
    )
    assert calls["QuorumCore.step"] > 0
    assert not calls["OwnVoterSet.of"]
    assert not [name for name in calls if name in WHOLE_CODEC], "offsets and records only"
