"""Hostile connections of many kinds, each from an address of its own, to a node on loopback.

They are for tests and benchmarks: a node's listener for clients with SCRAM is what they reach.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import random
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final, TypeAlias

from raftlog.limits import KIB, MIB
from raftlog.node.sasl import no_users, with_password, write_users
from raftlog.wire import ApiKey, frame
from tests.support.certificates import Authority
from tests.support.sasl_client import authenticate, refused
from tests.support.served_node import RawConnection

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

LOST_PEERS: Final = ("socket.send() raised exception.", "SSL connection is closed")
"""Warnings of asyncio about the fifth write to a peer that has disconnected. They are no error of a
node: until asyncio calls ``connection_lost``, the transport is not closing. That of TLS ends so if
the peer ends its side without a ``close_notify`` while the node does not read.
"""

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
        name = len(MECHANISM).to_bytes(2, "big") + MECHANISM.encode()
        connection.ask(ApiKey.SASL_HANDSHAKE, 1, name)
        await connection.next_frame()
    await connection.next_frame()


@functools.cache
def client_hello_bytes() -> bytes:
    """Return the first flight of a TLS client."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    sent = ssl.MemoryBIO()
    client = context.wrap_bio(ssl.MemoryBIO(), sent, server_hostname="127.0.0.1")
    with contextlib.suppress(ssl.SSLWantReadError):
        client.do_handshake()
    return sent.read()


async def client_hello(connection: RawConnection, rng: random.Random) -> None:
    """Send recorded bytes that cost the node a key exchange and a signature, and nothing more."""
    connection.writer.write(client_hello_bytes())
    await connection.read_some()
    if rng.random() < 0.5:  # the others are closed by the node
        connection.writer.transport.abort()
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
TLS_ATTACKS: Final[tuple[Attack, ...]] = (*ATTACKS, client_hello)
"""Of a listener with TLS."""
_WITHOUT_TLS: Final = (half_handshake, client_hello)


async def attack_once(
    port: int, kind: Attack, rng: random.Random, tls: ssl.SSLContext | None = None
) -> None:
    """Make an attack of a kind, from one of a thousand addresses; return when it has ended.

    ``tls``: of a listener with TLS, at which some kinds begin before its handshake.
    """
    here = f"127.0.{rng.randrange(4)}.{rng.randrange(1, 250)}"
    context = None if kind in _WITHOUT_TLS else tls
    with contextlib.suppress(OSError):
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", port, local_addr=(here, 0), ssl=context
        )
        async with RawConnection(reader, writer) as connection:
            # closed by the node: in the middle of an exchange, too
            with contextlib.suppress(AssertionError, OSError):
                await kind(connection, rng)
            writer.transport.abort()


def healthy_options(authority: Authority | None = None) -> dict[str, str]:
    """Return the security options of the healthy client; with an authority by TLS."""
    tls = {} if authority is None else {"ssl.ca.location": authority.path}
    return {
        "security.protocol": "SASL_PLAINTEXT" if authority is None else "SASL_SSL",
        "sasl.mechanism": MECHANISM,
        "sasl.username": HEALTHY,
        "sasl.password": "healthy",
        **tls,
    }


def hostile_context(ca: str) -> ssl.SSLContext:
    """Return the TLS context of attackers; ``ca``: path of the CA of the node."""
    return ssl.create_default_context(cafile=ca)


def listeners(home: Path, clients: int, voters: int, *, authority: Authority | None = None) -> str:
    """Write the users of a node; return the tables of its listeners, with an authority by TLS."""
    tls = ""
    if authority is not None:
        pair = authority.sign("node.example")
        tls = (
            f'tls = {{ certificate = "{pair.certificate}", key = "{pair.key}", '
            f'ca = "{authority.path}", client_certificates = "optional" }}\n'
        )
    users = with_password(with_password(no_users(), HEALTHY, "healthy"), GREEDY, "greedy")
    write_users(users, str(home / "users.json"))
    return (
        f'[listeners.clients]\naddress = "127.0.0.1:{clients}"\n'
        f'{tls}sasl.users = "{home / "users.json"}"\n'
        f'[listeners.voters]\naddress = "127.0.0.1:{voters}"\n'
    )
