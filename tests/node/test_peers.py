"""Calls to other nodes: each ends, whatever stands where an address should."""

from __future__ import annotations

import asyncio

import pytest

from raftlog.node.peers import Peers
from raftlog.quorum.effects import Send
from raftlog.quorum.events import Event, SendFailed
from raftlog.quorum.messages import VersionsRequest
from raftlog.quorum.voters import Endpoint
from raftlog.wire import LogIdentity


@pytest.mark.parametrize(("host", "port"), [("a..b", 9092), ("a\0b", 9092), ("127.0.0.1", 70_000)])
def test_an_address_that_cannot_be_is_a_call_in_vain(host: str, port: int) -> None:
    async def run() -> None:
        told: list[Event] = []
        heard: list[str] = []
        peers = Peers(
            LogIdentity(topic="t", topic_id="", cluster_id="c", listener_name="CONTROLLER"),
            client_id="test",
            software_version="1",
            tell=told.append,
            hear=lambda _node, reason: heard.append(reason),
            tls=lambda _node: None,
            frame_bytes_max=1000,
        )
        peers.send(Send(5, 2, (Endpoint("CONTROLLER", host, port),), VersionsRequest()))
        async with asyncio.timeout(5):
            while not told:
                await asyncio.sleep(0.01)
        assert told == [SendFailed(5)]
        assert len(heard) == 1
        await peers.close()

    asyncio.run(run())
