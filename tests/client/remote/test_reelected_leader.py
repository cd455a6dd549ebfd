"""Leaders of several epochs: one elected again without the loss of a connection, and a deposed one
that still takes itself for the leader."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.client.remote.test_invalid_responses import batch
from tests.support.scripted_controller import Controller
from tests.support.served_node import PATIENCE_S, served_node

import raftlog
from raftlog.client import Isolation
from raftlog.errors import QuorumUnavailableError
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


def test_a_client_does_not_return_to_a_leader_of_an_older_epoch() -> None:
    """Its log may lack what was read: the end would go back, and a read would report data loss."""
    deposed = Controller(batch(0, b"a"), high_watermark=1, leader_epoch=1)
    leader = Controller(batch(0, b"a") + batch(1, b"b"), high_watermark=2, leader_epoch=2)
    with deposed.node as old:
        with leader.node as new:
            log = raftlog.follow(f"{new.address},{old.address}", timeout_ms=1_000)
            assert log.log_end_offset == 2
        log.refresh()
        reason = f"{old.address} reports a leader of epoch 1, but epoch 2 has had one"
        with pytest.raises(QuorumUnavailableError, match=reason):
            _ = log.log_end_offset
        log.close()
