"""Hostile connections of many kinds and addresses beside a healthy client, by seed and count.

Memory, connections and file descriptors stay within their limits, and the healthy client completes
all of its appends.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import ssl
import sys
from collections import Counter
from pathlib import Path

import pytest

import raftlog
from raftlog.limits import MIB
from raftlog.node.event_loop import NodeEventLoop
from tests.support.certificates import Authority
from tests.support.hostile_traffic import (
    ACCESS,
    ATTACKERS,
    ATTACKS,
    LIMITS,
    LOG,
    QUEUED_BYTES_MAX,
    STRANGERS_MAX,
    TLS_ATTACKS,
    attack_once,
    healthy_options,
    hostile_context,
    listeners,
)
from tests.support.quorum_processes import free_ports
from tests.support.served_node import ServedNode, served_node

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="127.0.0.0/8 and /proc/self/fd are Linux's"
)


class Watch:
    """The most of what the node had in use, and the attacks by kind."""

    def __init__(self, node: ServedNode) -> None:
        self._server = node.node.server
        self.attacks: Counter[str] = Counter()
        self.strangers = self.clients = self.held_bytes = 0

    def look(self) -> None:
        quotas = self._server.quotas
        self.strangers = max(self.strangers, quotas.unprivileged_count)
        self.clients = max(self.clients, quotas.clients.count)
        self.held_bytes = max(self.held_bytes, self._server.clients_memory.held_byte_count)


async def attack(
    node: ServedNode, watch: Watch, rng: random.Random, count: int, tls: ssl.SSLContext | None
) -> None:
    """Make this number of attacks, one after the other."""
    for _ in range(count):
        kind = rng.choice(TLS_ATTACKS if tls else ATTACKS)
        watch.attacks[kind.__name__] += 1
        await attack_once(node.port, kind, rng, tls)
        watch.look()


def append_all(bootstrap: str, options: dict[str, str], count: int) -> list[int]:
    with raftlog.connect(bootstrap, config=options) as log:
        return [log.append(f"{at}".encode()).base_offset for at in range(count)]


def socket_count() -> int:
    """Return the number of open sockets; the other descriptors are of the log and its reserve."""
    found = 0
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            found += os.readlink(f"/proc/self/fd/{name}").startswith("socket:")
    return found


def run(
    home: Path, seed: int, *, attack_count: int, append_count: int, has_tls: bool = False
) -> None:
    authority = Authority(home / "ca") if has_tls else None
    tables = listeners(home, *free_ports(2), authority=authority)
    tls = None if authority is None else hostile_context(authority.path)

    async def check() -> None:
        broken: list[dict[str, object]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, what: broken.append(what))
        async with served_node(home, ACCESS + LIMITS + LOG, listeners=tables) as node:
            watch, before = Watch(node), socket_count()
            end_offset = node.node.raft_node.replica.log.end_offset
            attackers = [
                asyncio.ensure_future(
                    attack(
                        node, watch, random.Random(f"{seed}:{at}"), attack_count // ATTACKERS, tls
                    )
                )
                for at in range(ATTACKERS)
            ]
            options, where = healthy_options(authority), f"127.0.0.1:{node.port}"
            offsets = await asyncio.to_thread(append_all, where, options, append_count)
            await asyncio.gather(*attackers)
            assert offsets == list(range(end_offset, end_offset + append_count)), "and no others"
            kinds = TLS_ATTACKS if has_tls else ATTACKS
            assert watch.attacks.keys() == {one.__name__ for one in kinds}
            assert 0 < watch.strangers <= STRANGERS_MAX
            assert 0 < watch.clients <= ATTACKERS + 4, "the healthy client has a few"
            # one incomplete frame or response of each principal is beyond the bound
            assert watch.held_bytes <= QUEUED_BYTES_MAX + 2 * MIB
            while node.node.server.connections:
                await asyncio.sleep(0.01)
            assert node.node.server.clients_memory.held_byte_count == 0
            assert node.node.server.quotas.clients.count == 0
            assert node.node.server.metrics.connections == 0
            assert socket_count() == before
            assert not broken, broken[0]

    with asyncio.Runner(loop_factory=NodeEventLoop) as runner:
        runner.run(check())


@pytest.mark.slow
def test_a_healthy_client_completes_its_appends_beside_hostile_connections(
    tmp_path: Path,
) -> None:
    run(tmp_path, 1, attack_count=10 * ATTACKERS, append_count=40)


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(2, 6))
def test_a_healthy_client_completes_its_appends_beside_many_hostile_connections(
    tmp_path: Path, seed: int
) -> None:
    run(tmp_path, seed, attack_count=200 * ATTACKERS, append_count=500, has_tls=seed % 2 == 0)
