"""Requests to other nodes: each completes, whatever the address is."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

import pytest

from raftlog.node.access import AccessTable
from raftlog.node.config import TlsConfig
from raftlog.node.network_channel import NetworkChannel
from raftlog.node.tls import peer_context
from raftlog.quorum.effects import Send
from raftlog.quorum.events import Event, ResponseReceived, SendFailed
from raftlog.quorum.messages import (
    FetchRequest,
    FetchResponse,
    LeaderAndEpoch,
    Request,
    VersionsRequest,
)
from raftlog.quorum.voters import Endpoint
from raftlog.types import ReplicaKey
from raftlog.wire import (
    ApiKey,
    Listener,
    LogIdentity,
    VersionRange,
    encode_response,
    encode_response_header,
    encode_versions_response,
    frame,
)
from tests.support.certificates import Authority
from tests.support.quorum_processes import free_ports
from tests.support.served_node import served_node


def sent(correlation_id: int, request: Request, *, to: int, at: Endpoint) -> Send:
    return Send(correlation_id=correlation_id, node_id=to, endpoints=(at,), request=request)


def result_of_a_request(endpoint: Endpoint) -> tuple[list[Event], list[str]]:
    """Return the events after a request to node 2, and the reasons that are logged."""
    handled: list[Event] = []
    logged: list[str] = []

    async def run() -> None:
        peers = NetworkChannel(
            LogIdentity(topic="t", topic_id="", cluster_id="c", listener_name="CONTROLLER"),
            client_id="test",
            software_version="1",
            handle=handled.append,
            log_event=lambda _node, reason: logged.append(reason),
            tls=lambda _node: None,
            frame_bytes_max=1000,
        )
        peers.send(sent(5, VersionsRequest(), to=2, at=endpoint))
        async with asyncio.timeout(5):
            while not handled:
                await asyncio.sleep(0.01)
        await peers.close()

    asyncio.run(run())
    return handled, logged


@pytest.mark.parametrize(("host", "port"), [("a..b", 9092), ("a\0b", 9092), ("127.0.0.1", 70_000)])
def test_a_request_to_an_invalid_address_fails(host: str, port: int) -> None:
    handled, logged = result_of_a_request(Endpoint("CONTROLLER", host, port))
    assert handled == [SendFailed(5)]
    assert len(logged) == 1


@pytest.mark.parametrize(
    ("addresses", "is_refused"),
    [
        (("127.0.0.1",), True),
        (("127.0.0.1", "127.0.0.2"), True),
        (("127.0.0.1", "255.255.255.255"), False),
        (("255.255.255.255",), False),
    ],
)
def test_a_request_to_a_host_that_refuses_connections_fails_as_refused(
    addresses: tuple[str, ...], is_refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after the end of a node: no process listens at its port, at any address of its host."""
    port = free_ports(1)[0]
    tcp = (socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "")
    found = [(*tcp, (one, port)) for one in addresses]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_args, **_options: found)

    handled, _ = result_of_a_request(Endpoint("CONTROLLER", "node-2", port))
    assert handled == [SendFailed(5, is_refused=is_refused)]


def test_a_request_sent_on_a_response_uses_the_same_connection(tmp_path: Path) -> None:
    """As a follower's next fetch does."""

    async def run() -> None:
        async with served_node(tmp_path) as node:
            request = node.fetch_at_the_end(max_wait_ms=0)
            endpoint = Endpoint(node.node.log_identity.listener_name, "127.0.0.1", node.port)
            handled: list[Event] = []

            def handle(event: Event) -> None:
                handled.append(event)
                if len(handled) < 10:
                    peers.send(sent(len(handled), request, to=1, at=endpoint))

            peers = NetworkChannel(
                node.node.log_identity,
                client_id="test",
                software_version="1",
                handle=handle,
                log_event=lambda _node, reason: None,
                tls=lambda _node: None,
                frame_bytes_max=100_000,
            )
            peers.send(sent(0, request, to=1, at=endpoint))
            async with asyncio.timeout(20):
                while len(handled) < 10:
                    await asyncio.sleep(0.01)
            await peers.close()
            assert all(isinstance(one, ResponseReceived) for one in handled)
            asked = node.node.server.metrics.requests
            assert (asked["FETCH"], asked["API_VERSIONS"]) == (10, 1)

    asyncio.run(run())


class Scripted:
    """Node that answers ApiVersions requests, and further requests with what ``answers`` has."""

    def __init__(self, *answers: Callable[[int], bytes | None]) -> None:
        """An answer is the bytes for a correlation id; None to close the connection."""
        self._answers = list(answers)
        self.connection_count = 0
        self.requests: list[int] = []
        """Correlation ids of all requests but those for ApiVersions."""
        self.writers: list[asyncio.StreamWriter] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connection_count += 1
        self.writers.append(writer)
        with contextlib.suppress(OSError, EOFError):
            while True:
                data = await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))
                key, version, number = struct.unpack_from(">hhi", data)
                if key == ApiKey.API_VERSIONS:
                    levels = VersionRange(0, 1)
                    body = encode_versions_response(version, Listener.VOTERS, kraft_versions=levels)
                    writer.write(frame(encode_response_header(number, key, version), body))
                    continue
                self.requests.append(number)
                answer = self._answers.pop(0)(number)
                if answer is None:
                    writer.close()
                    return
                writer.write(answer)


def fetched(number: int) -> bytes:
    """Return the frame of an empty response."""
    response = FetchResponse(leader_and_epoch=LeaderAndEpoch(epoch=1, leader_id=2))
    head = encode_response_header(number, ApiKey.FETCH, 18)
    return frame(head, *encode_response(ApiKey.FETCH, 18, response, LOG))


LOG: Final = LogIdentity(
    topic="t", topic_id="AQIDBAUGBwgREhMUFRYXGA", cluster_id="c", listener_name="CONTROLLER"
)
FETCH: Final = FetchRequest(
    replica=ReplicaKey(1), epoch=1, fetch_offset=0, last_fetched_epoch=0, max_bytes=1, max_wait_ms=0
)


class Channel:
    """Channel to a scripted node, and its events."""

    def __init__(self, node: Scripted) -> None:
        self.node: Final = node
        self.events: list[Event] = []
        self.reasons: list[str] = []
        self._port = 0
        self._next_id = 0
        self.channel = NetworkChannel(
            LOG,
            client_id="test",
            software_version="1",
            handle=self.events.append,
            log_event=lambda _node, reason: self.reasons.append(reason),
            tls=lambda _node: None,
            frame_bytes_max=100_000,
        )

    def send(self) -> None:
        endpoint = Endpoint("CONTROLLER", "127.0.0.1", self._port)
        self.channel.send(sent(self._next_id, FETCH, to=2, at=endpoint))
        self._next_id += 1

    async def until(self, is_so: Callable[[], bool]) -> None:
        async with asyncio.timeout(20):
            while not is_so():
                await asyncio.sleep(0.001)

    async def event(self) -> Event:
        """Send a request; return its event."""
        count = len(self.events)
        self.send()
        assert len(self.events) == count, "not before send returns"
        await self.until(lambda: len(self.events) > count)
        return self.events[-1]

    def run(self, check: Callable[[], Awaitable[None]]) -> None:
        async def work() -> None:
            server = await asyncio.start_server(self.node.serve, "127.0.0.1", 0)
            self._port = server.sockets[0].getsockname()[1]
            try:
                await check()
            finally:
                await self.channel.close()
                server.close()
                for writer in self.node.writers:
                    writer.close()
                    with contextlib.suppress(OSError):
                        await writer.wait_closed()

        asyncio.run(work())


def test_a_request_on_an_open_connection_has_no_task() -> None:
    peer = Channel(Scripted(fetched, fetched))

    async def check() -> None:
        assert isinstance(await peer.event(), ResponseReceived)
        count = len(asyncio.all_tasks())
        peer.send()
        assert len(asyncio.all_tasks()) == count
        await peer.until(lambda: len(peer.events) == 2)
        assert isinstance(peer.events[-1], ResponseReceived)
        assert (peer.node.connection_count, peer.reasons) == (1, [])

    peer.run(check)


def test_a_connection_that_was_lost_while_idle_is_replaced_without_a_failure() -> None:
    peer = Channel(Scripted(fetched, fetched))

    async def check() -> None:
        await peer.event()
        peer.node.writers[0].close()
        await peer.until(lambda: not peer.channel._connections[2].is_open)
        assert isinstance(await peer.event(), ResponseReceived)
        assert (peer.node.connection_count, peer.reasons) == (2, [])

    peer.run(check)


def test_a_newer_request_closes_the_connection_of_one_in_flight() -> None:
    peer = Channel(Scripted(fetched, lambda _: b"", fetched))

    async def check() -> None:
        await peer.event()
        peer.send()
        await peer.until(lambda: len(peer.node.requests) == 2)
        event = await peer.event()
        assert isinstance(event, ResponseReceived)
        responses = [one for one in peer.events if isinstance(one, ResponseReceived)]
        assert [one.correlation_id for one in responses] == [0, 2]
        assert peer.events == responses
        assert peer.node.connection_count == 2

    peer.run(check)


def test_nothing_is_sent_after_close() -> None:
    """As by a step of the replica after a sync that ends later."""
    peer = Channel(Scripted(fetched))

    async def check() -> None:
        await peer.event()
        await peer.channel.close()
        tasks = asyncio.all_tasks()
        peer.send()
        assert asyncio.all_tasks() == tasks

    peer.run(check)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (lambda number: fetched(number + 1), "correlation id"),
        (lambda _: None, "closed the connection"),
        (lambda _: b"\xff" * 8, "frame"),
        (lambda number: fetched(number)[:-1] + b"\x07", "FETCH request failed"),
    ],
)
def test_a_request_without_a_valid_response_fails_and_the_connection_is_replaced(
    answer: Callable[[int], bytes | None], reason: str
) -> None:
    peer = Channel(Scripted(fetched, answer, fetched))

    async def check() -> None:
        await peer.event()
        assert await peer.event() == SendFailed(1)
        assert reason in peer.reasons[0]
        assert isinstance(await peer.event(), ResponseReceived)
        assert peer.node.connection_count == 2

    peer.run(check)


def test_a_request_in_flight_fails_when_nodes_authenticate_again() -> None:
    peer = Channel(Scripted(fetched, lambda _: b"", fetched))

    async def check() -> None:
        await peer.event()
        peer.send()
        await peer.until(lambda: len(peer.node.requests) == 2)
        peer.channel.disconnect()
        await peer.until(lambda: len(peer.events) == 2)
        assert peer.events[-1] == SendFailed(1)
        assert isinstance(await peer.event(), ResponseReceived)

    peer.run(check)


def test_a_connection_to_a_node_whose_certificate_has_expired_is_not_used(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "ca")
    pair = authority.sign("node-1.example")
    tls = TlsConfig(certificate=pair.certificate, key=pair.key, ca=authority.path)
    context = peer_context(tls, AccessTable(nodes={1: "node-1.example"}), 1)
    (port,) = free_ports(1)
    listeners = (
        f'[listeners.both]\naddress = "127.0.0.1:{port}"\ntls = {{ certificate = '
        f'"{pair.certificate}", key = "{pair.key}", ca = "{authority.path}" }}\n'
        '[access.nodes]\n1 = "node-1.example"\n'
    )

    async def run() -> None:
        async with served_node(tmp_path, listeners=listeners) as node:
            endpoint = Endpoint(node.node.log_identity.listener_name, "127.0.0.1", node.port)
            handled: list[Event] = []
            peers = NetworkChannel(
                node.node.log_identity,
                client_id="test",
                software_version="1",
                handle=handled.append,
                log_event=lambda _node, reason: None,
                tls=lambda _node: context,
                frame_bytes_max=100_000,
            )
            wall_s = [0.0]
            peers.wall_s = lambda: wall_s[-1]
            for sent, is_expired in enumerate((False, False, True)):
                wall_s.append(2**33 if is_expired else 2**30)
                request = node.fetch_at_the_end(max_wait_ms=0)
                peers.send(
                    Send(correlation_id=sent, node_id=1, endpoints=(endpoint,), request=request)
                )
                async with asyncio.timeout(20):
                    while len(handled) <= sent:
                        await asyncio.sleep(0.01)
            await peers.close()
            assert node.node.server.metrics.requests["API_VERSIONS"] == 2, "connections"

    asyncio.run(run())
