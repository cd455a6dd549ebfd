"""Node whose responses are scripted by a test: a real peer on a real socket.

It negotiates versions as Kafka's nodes do. Every other response is the test's, as a message of
Kafka's, or as bytes for invalid ones.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from types import TracebackType
from typing import Any, Final, Self

from raftlog.wire import (
    APIS,
    SASL_APIS,
    Api,
    ApiKey,
    Listener,
    ReceivedRequest,
    encode,
    encode_response_header,
    encode_versions_response,
    frame,
    receive_request,
)

BOTH: Final = Listener.CLIENTS | Listener.VOTERS
RECEIVED: Final = dict(APIS) | {
    key: Api(key=ApiKey(key), clients=versions) for key, versions in SASL_APIS.items()
}
Answer = Callable[[int, bytes], Any]
"""Version and body of a request -> response: a message, whole frames as bytes, None to hang up."""


class ScriptedNode:
    """Node on a loopback port. Use it in a ``with`` statement."""

    def __init__(
        self,
        answers: dict[ApiKey, Answer],
        *,
        listener: Listener = BOTH,
        apis: Mapping[int, Api] = APIS,
    ) -> None:
        self._answers = answers
        self._apis = apis
        self._listener = listener
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._socket.getsockname()[1]
        self.asked: list[ApiKey] = []
        self._open: set[socket.socket] = set()
        self._threads = [threading.Thread(target=self._accept, daemon=True)]

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self._threads[0].start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for one in (self._socket, *self._open):
            try:
                one.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue
        self._socket.close()
        for thread in self._threads:
            thread.join()

    def add_answers(self, answers: Mapping[ApiKey, Answer]) -> None:
        """Answer more requests, or some differently."""
        self._answers |= answers

    def disconnect(self) -> None:
        """Close the connections of all clients."""
        for one in self._open:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while True:
            try:
                asker, _ = self._socket.accept()
            except OSError:
                return
            self._open.add(asker)
            thread = threading.Thread(target=self._serve, args=(asker,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, asker: socket.socket) -> None:
        with suppress(OSError), asker, asker.makefile("rb") as requests:  # the client disconnects
            while head := requests.read(4):
                byte_count = int.from_bytes(head, "big")
                data = requests.read(byte_count)
                if len(data) < byte_count:  # a handshake of TLS
                    return
                parts = self._answer(data)
                if parts is None:
                    return
                asker.sendall(b"".join(parts))

    def _answer(self, data: bytes) -> Iterable[bytes] | None:
        received = receive_request(data, BOTH, RECEIVED)
        assert isinstance(received, ReceivedRequest)
        header = received.header
        key, version = ApiKey(header.api_key), header.api_version
        self.asked.append(key)
        answer = self._answers.get(key)
        if answer is not None:
            response = answer(version, data[received.body_start :])
            if response is None:
                return None
            if isinstance(response, bytes):
                return (response,)
            body = encode(response, version)
        elif key is ApiKey.API_VERSIONS:
            body = encode_versions_response(version, self._listener, apis=self._apis)
        else:
            return None
        return (frame(encode_response_header(header.correlation_id, key, version), body),)
