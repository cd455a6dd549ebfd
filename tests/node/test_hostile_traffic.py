"""Hostile connections of many kinds and addresses beside a healthy client, by seed and count.

Memory, connections and file descriptors stay within their limits, and the healthy client completes
all of its appends.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final, TypeAlias

import pytest

import raftlog
from raftlog.limits import KIB, MIB
from raftlog.node.sasl import no_users, with_password, write_users
from raftlog.wire import ApiKey, frame
from tests.support.quorum_processes import free_ports
from tests.support.sasl_client import authenticate, refused
from tests.support.served_node import RawConnection, ServedNode, served_node

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="127.0.0.0/8 and /proc/self/fd are Linux's"
)

MECHANISM: Final = "SCRAM-SHA-256"
HEALTHY, GREEDY = "jobs-healthy", "jobs-greedy"
ATTACKERS: Final = 24
STRANGERS_MAX: Final = 16
QUEUED_BYTES_MAX: Final = 4 * MIB
LIMITS: Final = (
    "[limits]\n"
    f"stranger_connections_max = {STRANGERS_MAX}\nconnections_per_address_max = 8\n"
    "connection_rate_per_address_max = 2000\nhandshake_ms = 300\nstalled_ms = 300\n"
    f"queued_bytes_max = {QUEUED_BYTES_MAX}\nframe_bytes_max = {MIB}\n"
)
LOG: Final = f"[log]\nbatch_bytes_max = {MIB // 2}\n"
ACCESS: Final = '[access]\nread = ["jobs-*"]\nappend = ["jobs-*"]\n'

Attack: TypeAlias = Callable[[RawConnection, random.Random], Awaitable[None]]


async def garbage(connection: RawConnection, rng: random.Random) -> None:
    """Send bytes that are no frame, or a frame that is no request."""
    data = rng.randbytes(rng.randrange(1, 2_000))
    connection.writer.write(frame(data) if rng.random() < 0.5 else data)
    await connection.next_frame()


async def half_handshake(connection: RawConnection, rng: random.Random) -> None:
    """Begin a TLS handshake, or SASL, and send nothing more."""
    if rng.random() < 0.5:
        connection.writer.write(bytes([0x16, 3, 1, 2]) + rng.randbytes(rng.randrange(100)))
    else:
        connection.ask(ApiKey.SASL_HANDSHAKE, 1, len(MECHANISM).to_bytes(2, "big") + b"SCRAM")
    await connection.next_frame()


async def huge_length(connection: RawConnection, rng: random.Random) -> None:
    """Announce a frame of up to 2 GiB, or of a negative length."""
    length = rng.choice((2**31 - 1, MIB + 1, -1, -(2**31)))
    connection.writer.write(length.to_bytes(4, "big", signed=True) + rng.randbytes(100))
    await connection.next_frame()


async def slow_sender(connection: RawConnection, rng: random.Random) -> None:
    """Send a part of a large frame as a user, and then nothing."""
    await authenticate(connection, MECHANISM, GREEDY, "greedy")
    length = MIB - rng.randrange(KIB)
    connection.writer.write(length.to_bytes(4, "big") + rng.randbytes(rng.randrange(200 * KIB)))
    await connection.next_frame()


async def slow_reader(connection: RawConnection, rng: random.Random) -> None:
    """Send many requests as a user, and read no response."""
    await authenticate(connection, MECHANISM, GREEDY, "greedy")
    connection.transport.pause_reading()
    for at in range(rng.randrange(200, 2_000)):
        connection.ask_versions(at)
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(connection.writer.drain(), 0.5)


async def wrong_password(connection: RawConnection, rng: random.Random) -> None:
    """Guess the password of a user, known or not."""
    name = rng.choice((HEALTHY, GREEDY, f"unknown-{rng.randrange(100)}"))
    await refused(connection, MECHANISM, name, f"guess {rng.random()}")


async def unauthenticated(connection: RawConnection, rng: random.Random) -> None:
    """Send requests before the authentication."""
    key = rng.choice((ApiKey.METADATA, ApiKey.PRODUCE, ApiKey.FETCH))
    connection.ask(key, 9, rng.randbytes(rng.randrange(200)))
    await connection.next_frame()


ATTACKS: Final[tuple[Attack, ...]] = (
    garbage,
    half_handshake,
    huge_length,
    slow_sender,
    slow_reader,
    wrong_password,
    unauthenticated,
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


async def attack(node: ServedNode, watch: Watch, rng: random.Random, count: int) -> None:
    """Make this number of attacks, one after the other."""
    for _ in range(count):
        kind = rng.choice(ATTACKS)
        watch.attacks[kind.__name__] += 1
        here = f"127.0.{rng.randrange(4)}.{rng.randrange(1, 250)}"
        try:
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", node.port, local_addr=(here, 0)
            )
            async with RawConnection(reader, writer) as connection:
                # closed by the node: in the middle of an exchange, too
                with contextlib.suppress(AssertionError, OSError):
                    await kind(connection, rng)
                writer.transport.abort()
        except OSError:
            pass
        watch.look()


def append_all(bootstrap: str, count: int) -> list[int]:
    options = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": MECHANISM,
        "sasl.username": HEALTHY,
        "sasl.password": "healthy",
    }
    with raftlog.connect(bootstrap, config=options) as log:
        return [log.append(f"{at}".encode()).base_offset for at in range(count)]


def socket_count() -> int:
    """Return the number of open sockets; the other descriptors are of the log and its reserve."""
    found = 0
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            found += os.readlink(f"/proc/self/fd/{name}").startswith("socket:")
    return found


def run(home: Path, seed: int, *, attack_count: int, append_count: int) -> None:
    users = with_password(with_password(no_users(), HEALTHY, "healthy"), GREEDY, "greedy")
    write_users(users, str(home / "users.json"))
    clients, voters = free_ports(2)
    listeners = (
        f'[listeners.clients]\naddress = "127.0.0.1:{clients}"\n'
        f'sasl.users = "{home / "users.json"}"\n'
        f'[listeners.voters]\naddress = "127.0.0.1:{voters}"\n'
    )

    async def check() -> None:
        broken: list[dict[str, object]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, what: broken.append(what))
        async with served_node(home, ACCESS + LIMITS + LOG, listeners=listeners) as node:
            watch, before = Watch(node), socket_count()
            end_offset = node.node.raft_node.replica.log.end_offset
            attackers = [
                asyncio.ensure_future(
                    attack(node, watch, random.Random(f"{seed}:{at}"), attack_count // ATTACKERS)
                )
                for at in range(ATTACKERS)
            ]
            appending = asyncio.to_thread(append_all, f"127.0.0.1:{node.port}", append_count)
            offsets = await appending
            await asyncio.gather(*attackers)
            assert offsets == list(range(end_offset, end_offset + append_count)), "and no others"
            assert watch.attacks.keys() == {one.__name__ for one in ATTACKS}
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

    asyncio.run(check())


@pytest.mark.slow
def test_a_healthy_client_completes_its_appends_beside_hostile_connections(
    tmp_path: Path,
) -> None:
    run(tmp_path, 1, attack_count=10 * ATTACKERS, append_count=40)


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(2, 5))
def test_a_healthy_client_completes_its_appends_beside_many_hostile_connections(
    tmp_path: Path, seed: int
) -> None:
    run(tmp_path, seed, attack_count=200 * ATTACKERS, append_count=500)
