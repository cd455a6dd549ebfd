"""Mutated TLS records at a listener with TLS: each ends its own connection, or is harmless.

The flights of a client are OpenSSL's: hello, finished, and a request. One of them is mutated.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import random
import ssl
import weakref
from pathlib import Path
from typing import Any

import pytest

import raftlog
from raftlog.node.event_loop import NodeEventLoop
from tests.node.test_connections import versions_requests
from tests.support.certificates import Authority
from tests.support.corpora import COUNT, SEED
from tests.support.hostile_bytes import mutations
from tests.support.hostile_traffic import ACCESS, LIMITS, LOG, healthy_options, listeners
from tests.support.quorum_processes import free_ports
from tests.support.served_node import RawConnection, ServedNode, served_node

FLIGHTS = 3
AT_A_TIME = 12


async def converse(connection: RawConnection, tls: ssl.SSLContext, rng: random.Random) -> bool:
    """Send the flights, one of them mutated, or none; return whether the request was answered."""
    received, sent = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = tls.wrap_bio(received, sent, server_hostname="127.0.0.1")
    mutated = rng.randrange(FLIGHTS + 1)
    for at in range(FLIGHTS):
        with contextlib.suppress(ssl.SSLError):
            if at < FLIGHTS - 1:
                client.do_handshake()
            else:
                client.write(versions_requests(1))
        data = sent.read()
        connection.writer.write(next(mutations(data, rng)) if at == mutated else data)
        if at != 1:  # a node without session tickets sends nothing after the second flight
            answer = await connection.read_some()
            received.write(answer)
    with contextlib.suppress(ssl.SSLError):
        return bool(client.read())
    return False


async def attack(node: ServedNode, tls: ssl.SSLContext, seeds: list[str]) -> int:
    """Open a connection for each seed; return how many requests were answered."""
    count = 0
    while seeds:
        rng = random.Random(seeds.pop())
        async with await node.connect() as connection:
            with contextlib.suppress(OSError):
                count += await converse(connection, tls, rng)
            connection.writer.transport.abort()
    return count


def append_one(where: str, options: dict[str, str]) -> None:
    with raftlog.connect(where, config=options) as log:
        log.append(b"x")


def run(home: Path, seed: int, count: int) -> None:
    authority = Authority(home / "ca")
    tables = listeners(home, *free_ports(2), authority=authority)
    tls = ssl.create_default_context(cafile=authority.path)

    async def check() -> None:
        broken: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, what: broken.append(what))
        async with served_node(home, ACCESS + LIMITS + LOG, listeners=tables) as node:
            seeds = [f"{seed}:{at}" for at in range(count)]
            answered = await asyncio.gather(*(attack(node, tls, seeds) for _ in range(AT_A_TIME)))
            assert 0 < sum(answered) < count // 2, "of those without a mutation"
            where = f"127.0.0.1:{node.port}"
            await asyncio.to_thread(append_one, where, healthy_options(authority))
            while node.node.server.connections:
                await asyncio.sleep(0.01)
            assert node.node.server.clients_memory.held_byte_count == 0
            assert not broken, broken[0]

    with asyncio.Runner(loop_factory=NodeEventLoop) as runner:
        runner.run(check())


def test_a_connection_whose_handshake_has_failed_is_not_kept(tmp_path: Path) -> None:
    """Also by a listener with SASL, which peers without a certificate may reach."""
    authority = Authority(tmp_path / "ca")
    tables = listeners(tmp_path, *free_ports(2), authority=authority)

    async def check() -> None:
        async with served_node(tmp_path, ACCESS + LIMITS + LOG, listeners=tables) as node:
            server = node.node.server
            async with await node.connect() as peer:
                while not server.connections:
                    await asyncio.sleep(0)
                kept = [weakref.ref(one) for one in server.connections]
                peer.writer.write(b"not a handshake of TLS")
                while await peer.read_some():
                    pass
            while server.connections:
                await asyncio.sleep(0)
            gc.collect()
            assert [one() for one in kept] == [None]

    asyncio.run(check())


@pytest.mark.slow
def test_mutated_tls_records_end_their_connection_only(tmp_path: Path) -> None:
    run(tmp_path, seed=1, count=10 * AT_A_TIME)


@pytest.mark.nightly
def test_many_mutated_tls_records_end_their_connection_only(tmp_path: Path) -> None:
    run(tmp_path, seed=SEED, count=COUNT // 10)
