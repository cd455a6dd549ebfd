"""Request of a connection, from its frame to its response."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar, cast

from raftlog.append import InOrderGate
from raftlog.wire import RequestHeader

from .access import Principal
from .memory_pool import MemoryShare

Body = TypeVar("Body")


@dataclass(frozen=True, slots=True, eq=False)
class Session:
    """Principal of a connection, and state that its requests share (Kafka: ``Session``).

    ``memory`` counts requests and responses, per principal. ``append_lock`` is held while an append
    of this connection is decoded and submitted, so that appends keep their order. ``append_gate``
    keeps the order if appends fail on a full disk.
    """

    principal: Principal
    memory: MemoryShare
    append_lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    append_gate: InOrderGate = field(default_factory=InOrderGate)


@dataclass(slots=True, eq=False)
class Request(Generic[Body]):
    """Received request, and its place in the order of the responses of its connection.

    ``on_response`` is called by ``respond``. Once there is a response, only the response is kept.
    """

    session: Session
    header: RequestHeader
    frame: bytes
    body_start: int
    on_response: Callable[[Request[Any], bytes | None], None]
    body: Body = cast("Body", None)  # noqa: RUF009
    """Decoded body; None until it is decoded."""
    closes_connection: bool = False
    """Set to close the connection after the response. A client that may send a request to any node
    repeats it on its open connection, whatever the response; after the connection is closed it
    tries another node (Kafka: ``NetworkClient.leastLoadedNode``)."""
    response: bytes | None = None
    """Frame of the response; None also if there is no response."""
    is_answered: bool = False

    @property
    def version(self) -> int:
        return self.header.api_version

    @property
    def principal(self) -> Principal:
        return self.session.principal

    @property
    def byte_count(self) -> int:
        """Return the memory of the frame, or of the response once there is one."""
        return len(self.frame if self.response is None else self.response)

    def respond(self, body: bytes | None) -> None:
        """Send the response with this body, in its order; None for no response (Produce with acks
        0)."""
        self.on_response(self, body)

    def complete(self, response: bytes | None) -> None:
        """Replace the request by the frame of its response."""
        self.response, self.is_answered = response, True
        self.frame, self.body = b"", cast("Body", None)
