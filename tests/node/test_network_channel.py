"""Requests to other nodes: each completes, whatever the address is."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from raftlog.node.access import AccessTable
from raftlog.node.config import TlsConfig
from raftlog.node.network_channel import NetworkChannel
from raftlog.node.tls import peer_context
from raftlog.quorum.effects import Send
from raftlog.quorum.events import Event, ResponseReceived, SendFailed
from raftlog.quorum.messages import Request, VersionsRequest
from raftlog.quorum.voters import Endpoint
from raftlog.wire import LogIdentity
from tests.support.certificates import Authority
from tests.support.quorum_processes import free_ports
from tests.support.served_node import served_node


def sent(correlation_id: int, request: Request, *, to: int, at: Endpoint) -> Send:
    return Send(correlation_id=correlation_id, node_id=to, endpoints=(at,), request=request)


@pytest.mark.parametrize(("host", "port"), [("a..b", 9092), ("a\0b", 9092), ("127.0.0.1", 70_000)])
def test_a_request_to_an_invalid_address_fails(host: str, port: int) -> None:
    async def run() -> None:
        handled: list[Event] = []
        logged: list[str] = []
        peers = NetworkChannel(
            LogIdentity(topic="t", topic_id="", cluster_id="c", listener_name="CONTROLLER"),
            client_id="test",
            software_version="1",
            handle=handled.append,
            log_event=lambda _node, reason: logged.append(reason),
            tls=lambda _node: None,
            frame_bytes_max=1000,
        )
        endpoint = Endpoint("CONTROLLER", host, port)
        peers.send(sent(5, VersionsRequest(), to=2, at=endpoint))
        async with asyncio.timeout(5):
            while not handled:
                await asyncio.sleep(0.01)
        assert handled == [SendFailed(5)]
        assert len(logged) == 1
        await peers.close()

    asyncio.run(run())


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
