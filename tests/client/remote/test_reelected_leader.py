"""A client whose leader was elected again, in a later epoch, without the loss of a connection."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.support.served_node import PATIENCE_S, served_node

import raftlog
from raftlog.client import Isolation
from raftlog.quorum.events import Resign


def test_a_reader_knows_the_epoch_of_a_leader_that_was_elected_again(tmp_path: Path) -> None:
    async def run() -> None:
        async with served_node(tmp_path) as one, asyncio.timeout(PATIENCE_S):
            node = one.node.raft_node
            core, bootstrap = node.replica.core, f"127.0.0.1:{one.port}"
            log = await asyncio.to_thread(raftlog.connect, bootstrap)
            with log:
                await asyncio.to_thread(log.append, b"a")
                reader = await asyncio.to_thread(log.reader)
                first = core.epoch
                node.step(Resign(first))
                while not (core.is_leader and core.epoch > first):
                    await asyncio.sleep(0)
                end_offset = node.replica.log.end_offset
                await node.wait_until(
                    lambda: (core.high_watermark or 0) >= end_offset, timeout_ms=10_000
                )
                found = await asyncio.to_thread(
                    reader.read_end, isolation=Isolation.READ_UNCOMMITTED
                )
                assert (found.offset, found.epoch) == (end_offset, core.epoch)
                assert reader.epochs == node.replica.log.epochs

    asyncio.run(run())
