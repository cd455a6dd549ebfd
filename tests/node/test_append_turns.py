"""What one append of one client costs on three nodes: callbacks of the event loop, and syncs."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any, Final

import pytest

from raftlog.client.remote.messages import TopicIdentity, produce_request
from raftlog.quorum.roles import Leader
from raftlog.wire import ApiKey, encode_produce_request
from tests.node.apis.batches import batch
from tests.support.served_node import PATIENCE_S, RawConnection, ServedNode, served_quorum

VERSION: Final = 11
LOG: Final = TopicIdentity("raftlog", topic_id=None, cluster_id=None, is_controller=False)
QUIET: Final = "[quorum]\nfetch_timeout_ms = 60_000\nfetch_hw_delay_ms = 10_000\n"
"""No election, and no high watermark without records, during a test."""


async def until_all_fetch(leader: ServedNode) -> None:
    """Wait until the fetches of both followers are delayed."""
    role = leader.node.raft_node.replica.core.role
    assert isinstance(role, Leader)
    while len(role.delayed_fetches) < 2:
        await asyncio.sleep(0)


async def append(connection: RawConnection, leader: ServedNode) -> None:
    """Append a record, and wait until it is on all nodes."""
    body = encode_produce_request(VERSION, produce_request(LOG, batch(b"a"), timeout_ms=30_000))
    connection.ask(ApiKey.PRODUCE, VERSION, body)
    await connection.answer(ApiKey.PRODUCE, VERSION)
    await until_all_fetch(leader)


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

        async with served_quorum(tmp_path, QUIET) as nodes, asyncio.timeout(PATIENCE_S):
            leader = nodes[0]
            async with await leader.connect() as connection:
                await append(connection, leader)
                for one in nodes:
                    for _ in range(20):  # of a fast disk
                        one.node.driver.sync_durations.add(0.0)
                end_offset = leader.node.raft_node.replica.log.end_offset
                monkeypatch.setattr(loop, "call_soon", counted)
                monkeypatch.setattr(os, "fdatasync", synced)
                await append(connection, leader)
                monkeypatch.undo()
            ends = {one.node.raft_node.replica.log.synced_end_offset for one in nodes}
            assert ends == {end_offset + 1}

    asyncio.run(run())
    callbacks = [one for one in callbacks if one != "Driver._on_time"]
    assert callbacks == ["Driver._run"], "of the leader: the append is written with others"
    assert len(syncs) == len(set(syncs)) == 3
