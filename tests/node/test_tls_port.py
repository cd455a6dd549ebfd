"""A node's TLS port and connections that it refuses."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import socket
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from raftlog.append import AppendRequest, Done
from raftlog.node.connection import REQUESTS_PER_TURN, Connection
from raftlog.wire import ApiKey, encode
from tests.node.apis.requests import fetch
from tests.node.test_connections import versions_requests
from tests.support.certificates import Authority, KeyPair
from tests.support.hostile_traffic import LOST_PEERS
from tests.support.quorum_processes import free_ports
from tests.support.served_node import RawConnection, ServedNode, appended, served_node

HANDSHAKE_MS = 300


class TlsPort:
    """Node with TLS for clients, and its access table."""

    def __init__(self, home: Path) -> None:
        self._authority = Authority(home / "ca")
        self._home = home
        (self._port,) = free_ports(1)

    def run(
        self,
        check: Callable[[ServedNode, TlsPort], Awaitable[None]],
        limits: str = "",
        access: str = "",
    ) -> None:
        pair = self._authority.sign("node-1.example")
        listeners = (
            f'[listeners.clients]\naddress = "127.0.0.1:{self._port}"\n'
            f'tls = {{ certificate = "{pair.certificate}", key = "{pair.key}", '
            f'ca = "{self._authority.path}" }}\n'
            f'[listeners.voters]\naddress = "127.0.0.1:{free_ports(1)[0]}"\n'
        )
        extra = (
            f'[access]\nappend = ["jobs-*"]\nread = ["jobs-*"]\n{access}\n'
            f"[limits]\nhandshake_ms = {HANDSHAKE_MS}\n"
            f"connections_per_address_max = 2\n{limits}"
        )

        async def with_node() -> None:
            async with served_node(self._home, extra, listeners=listeners) as node:
                await check(node, self)

        asyncio.run(with_node())

    async def connect(
        self, name: str, *, maximum_version: ssl.TLSVersion = ssl.TLSVersion.MAXIMUM_SUPPORTED
    ) -> RawConnection:
        """Connect with a certificate of this name."""
        context = self._context(self._authority.sign(name))
        context.maximum_version = maximum_version
        return await self._connect(context)

    async def connect_without_tls(self) -> RawConnection:
        """Connect without TLS."""
        return await self._connect(None)

    async def _connect(self, context: ssl.SSLContext | None) -> RawConnection:
        reader, writer = await asyncio.open_connection(
            "127.0.0.1",
            self._port,
            ssl=context,
            server_hostname=None if context is None else "127.0.0.1",
        )
        return RawConnection(reader, writer)

    def _context(self, pair: KeyPair) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=self._authority.path)
        context.load_cert_chain(pair.certificate, pair.key)
        return context


async def _is_served(port: TlsPort) -> None:
    async with await port.connect("jobs-1") as connection:
        connection.ask_versions(7)
        assert (await connection.answer(ApiKey.API_VERSIONS, 3))[0] == 7


def test_a_silent_connection_is_closed_and_releases_its_slot(tmp_path: Path) -> None:
    async def check(node: ServedNode, port: TlsPort) -> None:
        silent = [await port.connect_without_tls() for _ in range(2)]
        for connection in silent:  # the slots of this address are occupied until their timeout
            assert await connection.next_frame() is None
            connection.writer.close()
        await _is_served(port)
        assert node.lines("refused")

    TlsPort(tmp_path).run(check)


def test_a_client_without_tls_1_3_is_refused_with_the_setting_that_allows_it(
    tmp_path: Path,
) -> None:
    async def check(node: ServedNode, port: TlsPort) -> None:
        with contextlib.suppress(OSError):  # an alert, or a reset if the node closes first
            await port.connect("jobs-1", maximum_version=ssl.TLSVersion.TLSv1_2)
        async with asyncio.timeout(20):
            while not node.lines("refused"):
                await asyncio.sleep(0.01)
        (line,) = node.lines("refused")
        assert "min_version" in line["reason"]

    TlsPort(tmp_path).run(check)


def test_the_name_of_a_connection_is_that_of_the_mapping_rules(tmp_path: Path) -> None:
    async def check(node: ServedNode, port: TlsPort) -> None:
        for certificate, name in (("robot-7", "jobs-7"), ("jobs-7", "")):
            async with await port.connect(certificate) as connection:
                connection.ask_versions(7)
                await connection.answer(ApiKey.API_VERSIONS, 3)
                sessions = [one._session for one in node.node.server.connections]
                assert [one and one.principal.name for one in sessions] == [name]
            async with asyncio.timeout(20):
                while node.node.server.connections:
                    await asyncio.sleep(0.01)

    rules = "principal_mapping_rules = 'RULE:^CN=robot-(.*)$/jobs-$1/'"
    TlsPort(tmp_path).run(check, access=rules)


@pytest.mark.parametrize(
    "data", [b"GET / HTTP/1.1\r\n\r\n", bytes(64), b"\x16\x03\x01\xff\xff" + b"x" * 300]
)
def test_a_connection_of_another_protocol_is_closed(tmp_path: Path, data: bytes) -> None:
    async def check(node: ServedNode, port: TlsPort) -> None:
        async with await port.connect_without_tls() as connection:
            connection.writer.write(data)
            while (await connection._reader.read(100)) != b"":  # an alert, perhaps
                pass
        await _is_served(port)
        assert node.lines("refused")

    TlsPort(tmp_path).run(check)


def test_a_connection_without_rights_gets_no_memory_for_large_frames(tmp_path: Path) -> None:
    async def check(node: ServedNode, port: TlsPort) -> None:
        large = (1024 * 1024).to_bytes(4, "big") + bytes(70_000)
        async with await port.connect("unauthorized") as unauthorized:
            unauthorized.writer.write(large)
            assert await unauthorized.next_frame() is None
        assert "invalid frame size" in node.lines("refused")[-1]["reason"]
        async with await port.connect("jobs-1") as job:
            job.writer.write(large)
            await job.writer.drain()
            await _is_served(port)  # the other slot: this connection is still read
            assert not job._reader.at_eof()

    TlsPort(tmp_path).run(check)


def test_a_certificate_without_rights_may_send_requests_and_is_disconnected_soon(
    tmp_path: Path,
) -> None:
    async def check(node: ServedNode, port: TlsPort) -> None:
        async with (
            await port.connect("unauthorized") as unauthorized,
            await port.connect("jobs-1") as job,
        ):
            unauthorized.ask_versions(3)
            assert (await unauthorized.answer(ApiKey.API_VERSIONS, 3))[0] == 3
            quotas = node.node.server.quotas
            assert (quotas.clients.count, quotas.unprivileged_count) == (1, 1)
            assert await unauthorized.next_frame() is None
            job.ask_versions(4)
            assert (await job.answer(ApiKey.API_VERSIONS, 3))[0] == 4
        assert node.node.server.metrics.closed_connections == {"no right": 1}
        assert "not authorized in time" in node.lines("refused")[0]["reason"]

    TlsPort(tmp_path).run(check)


def test_responses_for_a_slow_reader_are_held_back_and_arrive_complete(tmp_path: Path) -> None:
    """TLS has buffers of its own between a node's response and the socket."""

    async def check(node: ServedNode, port: TlsPort) -> None:
        for _ in range(9):
            request = AppendRequest(records=(bytes(2**20 - 1_000),), deadline_ms=1e12)
            assert isinstance(await appended(node.node.raft_node, request), Done)
        topic = node.node.log_identity.topic
        body = encode(fetch(max_bytes=2**23, partition_max_bytes=2**23, topic=topic), 9)
        async with await port.connect("jobs-1") as connection:
            connection.transport.pause_reading()
            for number in (1, 2, 3):
                connection.ask(ApiKey.FETCH, 9, body, number)
            (served,) = node.node.server.connections
            async with asyncio.timeout(20):
                while not served.memory.unread_byte_count:
                    await asyncio.sleep(0.01)
            await asyncio.sleep(0)
            assert served.in_flight_count == 0, (
                "no second response is created before this one is read"
            )
            connection.transport.resume_reading()
            for number in (1, 2, 3):
                correlation_id, answer = await connection.answer(ApiKey.FETCH, 9)
                assert correlation_id == number
                assert len(answer) > 7 * 2**20
            assert served.memory.unread_byte_count == 0

    TlsPort(tmp_path).run(check)


def test_a_connection_ends_with_its_certificate(tmp_path: Path) -> None:
    async def check(node: ServedNode, port: TlsPort) -> None:
        async with await port.connect("jobs-1") as connection:
            connection.ask_versions(7)
            assert (await connection.answer(ApiKey.API_VERSIONS, 3))[0] == 7
            node.node.server.wall_s = lambda: 2**33  # the year 2242
            assert await connection.next_frame() is None
        assert node.node.server.metrics.closed_connections == {"certificate expired": 1}

    TlsPort(tmp_path).run(check)


def test_an_old_connection_is_closed_although_it_is_used(tmp_path: Path) -> None:
    async def check(node: ServedNode, port: TlsPort) -> None:
        async with await port.connect("jobs-1") as connection:
            correlation_ids = itertools.count(1)
            with contextlib.suppress(OSError):
                for expected in correlation_ids:
                    connection.ask_versions(expected)
                    data = await connection.next_frame()
                    if data is None:
                        break
                    assert int.from_bytes(data[:4], "big") == expected
            assert next(correlation_ids) > 2
        await _is_served(port)
        assert node.node.server.metrics.closed_connections["age"] >= 1

    TlsPort(tmp_path).run(check, "connection_age_max_ms = 300\n")


def test_asyncio_warns_of_writes_to_a_lost_peer_although_its_transport_is_not_closing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The peer disconnects while its requests are started in turns. The node writes to no transport
    that is closing, so that the warning is not about a write after a close."""
    monkeypatch.setattr("raftlog.node.connection.TURN_S", 0)
    caplog.set_level(logging.WARNING, "asyncio")
    were_closing: list[bool] = []
    write = Connection._write

    def recorded(self: Connection, data: bytes) -> None:
        assert self._transport is not None
        were_closing.append(self._transport.is_closing())
        write(self, data)

    async def check(node: ServedNode, port: TlsPort) -> None:
        async with await port.connect("jobs-1") as peer:
            peer.ask_versions()
            await peer.answer(ApiKey.API_VERSIONS, 3)
            monkeypatch.setattr(Connection, "_write", recorded)
            peer.writer.write(versions_requests(20 * REQUESTS_PER_TURN))
            peer.writer.get_extra_info("socket").shutdown(socket.SHUT_WR)
            while node.node.server.connections:
                await asyncio.sleep(0)

    TlsPort(tmp_path).run(check)
    assert were_closing == [False] * 20
    assert {one.message for one in caplog.records} == {LOST_PEERS[1]}
