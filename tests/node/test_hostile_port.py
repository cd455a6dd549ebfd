"""Any bytes to a node's port: a response or a closed connection, and the node continues."""

from __future__ import annotations

import asyncio
import random
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from raftlog.limits import KIB, MIB
from raftlog.wire import (
    APIS,
    ApiKey,
    Listener,
    RequestHeader,
    encode,
    encode_request_header,
    frame,
)
from tests.support.hostile_bytes import mutations
from tests.support.served_node import ServedNode, served_node
from tests.support.wire_messages import message_kinds, random_message

QUIET_S = 0.02
"""Time for which a connection is read after a frame."""


def frames(rng: random.Random) -> Iterator[bytes]:
    """Yield endless frames: requests of every served type and version with random content, most of
    them malformed, and now and then bytes that are no frame.
    """
    kinds = [
        (api, kind, version)
        for api, kind, version in message_kinds()
        if kind.__name__.endswith("Request") and _is_served(api.key, version)
    ]
    while True:
        api, kind, version = rng.choice(kinds)
        header = RequestHeader(
            api_key=api.key,
            api_version=version,
            correlation_id=rng.randrange(2**31),
            client_id="x" * rng.randrange(20),
        )
        body = encode(random_message(kind, version, rng), version)
        data = encode_request_header(header) + body
        for _ in range(rng.randrange(3)):
            data = next(mutations(data, rng))
        yield frame(data) if rng.random() > 0.05 else data


def _is_served(key: ApiKey, version: int) -> bool:
    api = APIS.get(key)  # others are for nodes with a controller
    versions = None if api is None else api.on(Listener.CLIENTS | Listener.VOTERS)
    return versions is not None and version in versions


async def attack(node: ServedNode, rng: random.Random, count: int) -> int:
    """Send this number of frames over as many connections as necessary; return the connections."""
    incoming, connections, sent = frames(rng), 0, 0
    while sent < count:
        connections += 1
        async with await node.connect() as connection:
            for _ in range(rng.randrange(1, 30)):
                connection.writer.write(next(incoming))
                sent += 1
            try:
                await asyncio.wait_for(connection.writer.drain(), QUIET_S)
                await asyncio.wait_for(_until_closed(connection), QUIET_S)
            except (TimeoutError, ConnectionError):
                pass
    return connections


async def _until_closed(connection: Any) -> None:
    while await connection.next_frame() is not None:
        pass


def run(home: Path, seed: int, count: int) -> None:
    async def check() -> None:
        broken: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, what: broken.append(what))
        async with served_node(home) as node:
            replica = node.node.raft_node.replica
            before = replica.log.end_offset, replica.core.epoch
            most_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            assert await attack(node, random.Random(seed), count) > 1
            assert not broken, broken[0]
            assert not node.node.raft_node.is_over
            grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - most_kib
            assert grown * KIB < 64 * MIB, "memory is bounded"
            assert (replica.log.end_offset, replica.core.epoch) == before
            async with await node.connect() as other:
                other.ask_versions(9)
                assert (await other.answer(ApiKey.API_VERSIONS, 3))[0] == 9

    asyncio.run(check())


def test_hostile_frames_are_answered_or_close_their_connection(tmp_path: Path) -> None:
    run(tmp_path, seed=1, count=300)


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(2, 4))
def test_many_hostile_frames_are_answered_or_close_their_connection(
    tmp_path: Path, seed: int
) -> None:
    run(tmp_path, seed=seed, count=10_000)
