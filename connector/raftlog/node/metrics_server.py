"""HTTP server of a node's metrics: ``GET`` and ``HEAD`` of ``/metrics``.

A connection serves one request, within five seconds. At most ``METRICS_CONNECTIONS_MAX``
connections are open: a new one closes the oldest.
"""

from __future__ import annotations

import asyncio
import contextlib
from http import HTTPStatus
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from raftlog.errors import NodeAddressError
from raftlog.limits import KIB

METRICS_CONNECTIONS_MAX: Final = 16
_TIMEOUT_S: Final = 5.0
_HEAD_BYTES_MAX: Final = 16 * KIB
_PATH: Final = "/metrics"
_TEXT: Final = "text/plain; charset=utf-8"


class MetricsServer:
    """HTTP server for the metrics of one collector, on the running event loop."""

    def __init__(self, collector: Collector, *, timeout_s: float = _TIMEOUT_S) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(collector)
        self._timeout_s = timeout_s
        self._server: asyncio.Server | None = None
        self._open: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        """Open connections, the oldest first."""

    async def start(self, host: str, port: int) -> None:
        """Bind and listen. Raises ``NodeAddressError``."""
        try:
            self._server = await asyncio.start_server(
                self._serve, host, port, limit=_HEAD_BYTES_MAX
            )
        except OSError as error:
            reason = error.strerror or str(error)
            raise NodeAddressError(host=host, port=port, reason=reason) from None

    async def close(self) -> None:
        """Close the socket and all connections."""
        if self._server is not None:
            self._server.close()
        for writer in self._open.values():
            writer.transport.abort()
        if self._open:
            await asyncio.wait(list(self._open))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None, "asyncio serves each connection in a task"
        if len(self._open) >= METRICS_CONNECTIONS_MAX:
            oldest = next(iter(self._open))
            self._open.pop(oldest).transport.abort()
        self._open[task] = writer
        try:
            with contextlib.suppress(
                TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, OSError
            ):
                async with asyncio.timeout(self._timeout_s):
                    writer.write(self._answer(await reader.readuntil(b"\r\n\r\n")))
                    writer.close()
                    await writer.wait_closed()
        finally:
            writer.transport.abort()
            self._open.pop(task, None)

    def _answer(self, head: bytes) -> bytes:
        request_line, *lines = head.decode("latin-1").split("\r\n")
        words = request_line.split(" ")
        if len(words) != 3 or not words[2].startswith("HTTP/1."):
            return _response(HTTPStatus.BAD_REQUEST, _TEXT, b"")
        method, path = words[0], words[1].partition("?")[0]
        if path != _PATH:
            return _response(HTTPStatus.NOT_FOUND, _TEXT, f"see {_PATH}\n".encode())
        if method not in ("GET", "HEAD"):
            return _response(HTTPStatus.METHOD_NOT_ALLOWED, _TEXT, b"")
        accepted = [line.partition(":")[2] for line in lines if line.lower().startswith("accept:")]
        encode, content_type = choose_encoder(",".join(accepted))
        body = encode(self._registry)
        return _response(HTTPStatus.OK, content_type, body, has_body=method == "GET")


def _response(
    status: HTTPStatus, content_type: str, body: bytes, *, has_body: bool = True
) -> bytes:
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: {content_type}\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode("latin-1") + (body if has_body else b"")
