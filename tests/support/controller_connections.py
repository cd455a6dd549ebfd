"""Connections to several controllers, of which any may be killed."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any, Self

from raftlog.wire import ApiKey, decode, encode

from .request_builder import newest, request, response_class
from .served_node import RawConnection


class ControllerConnections:
    """Connections of one client, opened when they are used, and again after an error."""

    def __init__(self, response_s: float) -> None:
        """``response_s`` is the timeout of a response, with that of its connection."""
        self._response_s = response_s
        self._by_port: dict[int, RawConnection] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for port in list(self._by_port):
            self._close(port)

    def _close(self, port: int) -> None:
        connection = self._by_port.pop(port, None)
        if connection is not None:
            connection.writer.close()

    async def ask(self, port: int, key: ApiKey, **values: Any) -> Any:
        """Return the response of the controller at a port; None without one."""
        version = newest(key)
        with contextlib.suppress(OSError, TimeoutError, AssertionError):
            async with asyncio.timeout(self._response_s):
                if port not in self._by_port:
                    opened = await asyncio.open_connection("127.0.0.1", port)
                    self._by_port[port] = RawConnection(*opened)
                connection = self._by_port[port]
                connection.ask(key, version, encode(request(key, **values), version))
                _, body = await connection.answer(key, version)
            # As many entries as were written: more than a request may have.
            return decode(response_class(key), version, body, elements_max=len(body))
        self._close(port)
        return None
