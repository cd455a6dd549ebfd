"""HTTP server of a node's metrics, with any clients."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable, Iterator

import pytest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from raftlog.node.errors import NodeAddressError
from raftlog.node.metrics import METRICS_CONNECTIONS_MAX, MetricsServer
from tests.support.quorum_processes import free_ports

LONG_S = 600.0


class OneMetric(Collector):
    """Source of one constant metric."""

    def collect(self) -> Iterator[Metric]:
        yield GaugeMetricFamily("raftlog_answer", "The answer.", value=42)


Connect = Callable[[], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]


def with_server(
    check: Callable[[Connect], Awaitable[None]],
    timeout_s: float = LONG_S,
    problems: tuple[str, ...] = (),
) -> None:
    (port,) = free_ports(1)

    async def run() -> None:
        server = MetricsServer(OneMetric(), lambda: problems, timeout_s=timeout_s)
        await server.start("127.0.0.1", port)
        try:
            async with asyncio.timeout(60):
                await check(lambda: asyncio.open_connection("127.0.0.1", port))
        finally:
            await server.close()

    asyncio.run(run())


async def answer(connect: Connect, request: bytes) -> tuple[str, str, str]:
    """Return status, head and body of the response to one request."""
    reader, writer = await connect()
    writer.write(request)
    head, _, body = (await reader.read()).decode().partition("\r\n\r\n")
    writer.close()
    return head[:12], head, body


def request(method: str, path: str, *headers: str) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost", *headers]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def test_metrics_are_sent_in_the_requested_format() -> None:
    async def check(connect: Connect) -> None:
        status, head, body = await answer(connect, request("GET", "/metrics?a=b"))
        assert status == "HTTP/1.1 200"
        assert "raftlog_answer 42.0\n" in body
        assert f"Content-Length: {len(body)}\r\n" in head
        assert "text/plain" in head
        accept = "Accept: application/openmetrics-text; version=1.0.0"
        _, head, body = await answer(connect, request("GET", "/metrics", accept))
        assert "application/openmetrics-text" in head
        assert body.endswith("# EOF\n")
        _, head, body = await answer(connect, request("HEAD", "/metrics"))
        assert body == ""
        assert "Content-Length: 0" not in head

    with_server(check)


def test_a_node_is_healthy_while_it_is_not_ready() -> None:
    async def check_ready(connect: Connect) -> None:
        for path in ("/health", "/ready"):
            status, _, body = await answer(connect, request("GET", path))
            assert (status, body) == ("HTTP/1.1 200", "ok\n")

    async def check_not_ready(connect: Connect) -> None:
        status, _, body = await answer(connect, request("GET", "/health"))
        assert (status, body) == ("HTTP/1.1 200", "ok\n")
        status, _, body = await answer(connect, request("GET", "/ready"))
        assert (status, body) == ("HTTP/1.1 503", "no leader\nno space\n")
        status, _, body = await answer(connect, request("HEAD", "/ready"))
        assert (status, body) == ("HTTP/1.1 503", "")

    with_server(check_ready)
    with_server(check_not_ready, problems=("no leader", "no space"))


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (request("GET", "/"), "404"),
        (request("GET", "/metrics/"), "404"),
        (request("GET", "/../metrics"), "404"),
        (request("POST", "/metrics"), "405"),
        (request("POST", "/ready"), "405"),
        (request("GET", "/readyz"), "404"),
        (b"\0\0\0\x10 what is this\r\n\r\n", "400"),
        (b"GET /metrics\r\n\r\n", "400"),
    ],
)
def test_other_requests_are_refused(data: bytes, status: str) -> None:
    async def check(connect: Connect) -> None:
        assert (await answer(connect, data))[0] == f"HTTP/1.1 {status}"

    with_server(check)


def test_a_request_without_an_end_is_dropped() -> None:
    async def check(connect: Connect) -> None:
        reader, writer = await connect()
        writer.write(b"GET /metrics HTTP/1.1\r\n" + b"A: b\r\n" * 10_000)
        with contextlib.suppress(ConnectionError):
            assert await reader.read() == b""
        writer.close()

    with_server(check)


def test_idle_connections_use_no_threads_and_are_closed_for_new_ones() -> None:
    async def check(connect: Connect) -> None:
        threads = threading.active_count()
        idle = [await connect() for _ in range(METRICS_CONNECTIONS_MAX + 3)]
        for reader, _ in idle[:3]:
            assert await reader.read() == b"", "the oldest are closed"
        assert (await answer(connect, request("GET", "/metrics")))[0] == "HTTP/1.1 200"
        assert threading.active_count() == threads
        for _, writer in idle:
            writer.close()

    with_server(check)


def test_a_connection_has_a_bounded_lifetime() -> None:
    async def check(connect: Connect) -> None:
        reader, writer = await connect()
        writer.write(b"GET /metrics HTTP/1.1\r\n")
        assert await reader.read() == b""
        writer.close()

    with_server(check, timeout_s=0.05)


def test_a_port_in_use_is_reported() -> None:
    (port,) = free_ports(1)

    async def run() -> None:
        first, second = (MetricsServer(OneMetric(), tuple) for _ in range(2))
        await first.start("127.0.0.1", port)
        with pytest.raises(NodeAddressError, match=str(port)):
            await second.start("127.0.0.1", port)
        await second.close()
        await first.close()

    asyncio.run(run())
