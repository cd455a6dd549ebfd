"""Proxy in front of a node that can drop responses: the request arrives, its response does not.

It forwards bytes and examines only the API key of requests. Drops are requested beforehand and
counted.
"""

from __future__ import annotations

import socket
import threading
from types import TracebackType
from typing import Final, Self

_LENGTH_BYTES: Final = 4


class DroppingProxy:
    """Proxy on a loopback port, a context manager."""

    def __init__(self, port: int, node_port: int) -> None:
        self.port: Final = port
        self._node_port = node_port
        self._lock = threading.Lock()
        self._losing: dict[int, int] = {}
        self.lost_count = 0
        self.request_counts: dict[int, int] = {}
        self._listener = socket.create_server(("127.0.0.1", port))
        self._sockets: set[socket.socket] = set()
        self._threads = [threading.Thread(target=self._accept, daemon=True)]

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def drop_responses(self, api_key: int, count: int = 1) -> None:
        """Drop the responses, and close the connections, of the next requests of this kind."""
        with self._lock:
            self._losing[api_key] = count

    def __enter__(self) -> Self:
        self._threads[0].start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._lock:
            for one in self._sockets:
                _shut(one)
        for thread in list(self._threads):
            thread.join()

    def _accept(self) -> None:
        while True:
            try:
                asker, _ = self._listener.accept()
            except OSError:
                return
            try:
                node = socket.create_connection(("127.0.0.1", self._node_port))
            except OSError:
                asker.close()
                continue
            for one in (asker, node):
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            lost = threading.Event()
            with self._lock:
                self._sockets |= {asker, node}
            for target, sockets in ((self._ask, (asker, node)), (self._answer, (node, asker))):
                thread = threading.Thread(target=target, args=(*sockets, lost), daemon=True)
                self._threads.append(thread)
                thread.start()

    def _ask(self, asker: socket.socket, node: socket.socket, lost: threading.Event) -> None:
        """Forward requests, frame by frame."""
        while (frame := _frame(asker)) is not None:
            api_key = int.from_bytes(frame[_LENGTH_BYTES : _LENGTH_BYTES + 2], "big")
            with self._lock:
                self.request_counts[api_key] = self.request_counts.get(api_key, 0) + 1
                if self._losing.get(api_key, 0):
                    self._losing[api_key] -= 1
                    self.lost_count += 1
                    lost.set()
            try:
                node.sendall(frame)
            except OSError:
                break
        _shut(node)

    def _answer(self, node: socket.socket, asker: socket.socket, lost: threading.Event) -> None:
        """Forward responses until one is dropped."""
        while (frame := _frame(node)) is not None and not lost.is_set():
            try:
                asker.sendall(frame)
            except OSError:
                break
        _shut(asker)
        _shut(node)
        with self._lock:
            self._sockets -= {asker, node}
        asker.close()
        node.close()


def _frame(source: socket.socket) -> bytes | None:
    """Read the next frame with its length; None at the end of the stream."""
    head = _exactly(source, _LENGTH_BYTES)
    if head is None:
        return None
    body = _exactly(source, int.from_bytes(head, "big"))
    return None if body is None else head + body


def _exactly(source: socket.socket, byte_count: int) -> bytes | None:
    parts = bytearray()
    while len(parts) < byte_count:
        try:
            part = source.recv(byte_count - len(parts))
        except OSError:
            return None
        if not part:
            return None
        parts += part
    return bytes(parts)


def _shut(one: socket.socket) -> None:
    try:
        one.shutdown(socket.SHUT_RDWR)
    except OSError:
        return
