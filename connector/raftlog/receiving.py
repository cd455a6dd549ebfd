"""Base class of the connections of clients and nodes: one buffer for all that a thread receives.

For a ``Protocol`` asyncio calls ``recv(256 KiB)``, and ``SSLObject.read`` with as much: each call
maps an object of that size and shrinks it to what was received, which takes several times as long
as the read itself. So all connections of a thread read into one buffer.
"""

from __future__ import annotations

import asyncio
import threading
from abc import ABC, abstractmethod
from typing import Final

from raftlog.limits import KIB

RECEIVE_BYTES_MAX: Final = 64 * KIB
"""Maximum bytes of one read; the event loop handles other connections before the next one."""


class _ReceiveBuffer(threading.local):
    """Buffer of one thread, whose event loop reads for one connection at a time."""

    def __init__(self) -> None:
        self.view: Final = memoryview(bytearray(RECEIVE_BYTES_MAX))


_BUFFER: Final = _ReceiveBuffer()


class ReceivingProtocol(asyncio.BufferedProtocol, ABC):
    """Protocol whose ``data_received`` is called with a copy of what was read into the buffer.

    A copy, because ``data_received`` may close a TLS connection, which reads once more.
    """

    def get_buffer(self, sizehint: int) -> memoryview:
        return _BUFFER.view

    def buffer_updated(self, nbytes: int) -> None:
        self.data_received(bytes(_BUFFER.view[:nbytes]))

    @abstractmethod
    def data_received(self, data: bytes) -> None:
        """Handle received bytes."""
