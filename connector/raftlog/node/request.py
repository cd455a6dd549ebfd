"""Request of a connection, from its frame to its response."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Generic, Protocol, TypeVar, cast

from raftlog.append import InOrderGate
from raftlog.wire import RequestHeader
from raftlog.wire.errors import WireError

from .access import Principal
from .memory_pool import MemoryShare

Body = TypeVar("Body")
T = TypeVar("T")
INTERNAL_ERROR: Final = "internal error: the request has no response"


class QueuedAppend(Protocol):
    """Produce request that is not submitted yet."""

    def submit(self) -> bool:
        """Submit or refuse its batches; return False if one is read on the executor first, or if
        the request has failed."""


class CancellableFetch(Protocol):
    """Fetch request that is delayed."""

    def cancel(self) -> None:
        """Drop the request, whose connection is lost."""


@dataclass(frozen=True, slots=True, eq=False)
class Session:
    """Principal of a connection, and state that its requests share (Kafka: ``Session``).

    ``memory`` counts requests and responses, per principal. ``appends`` are the Produce requests of
    this connection that are not submitted yet, in their order: only the first one is read.
    ``append_gate`` keeps the order if appends fail on a full disk. ``fetches`` are the delayed
    Fetch requests.
    """

    principal: Principal
    memory: MemoryShare
    appends: deque[QueuedAppend] = field(default_factory=deque)
    append_gate: InOrderGate = field(default_factory=InOrderGate)
    fetches: dict[CancellableFetch, None] = field(default_factory=dict)

    def cancel(self) -> None:
        """Drop the requests that wait, at the end of the connection."""
        self.appends.clear()
        for fetch in list(self.fetches):
            fetch.cancel()


class RequestConnection(Protocol):
    """Connection of a request, as request handlers use it."""

    @property
    def where(self) -> str:
        """Address of the peer: ``host:port``."""

    @property
    def tasks(self) -> set[asyncio.Task[None]]:
        """Tasks that end with the connection."""

    def respond(self, request: Request[Any], body: bytes | Sequence[bytes] | None) -> None:
        """Send the response to a request, after those to older requests; None: no response."""

    def refuse(self, why: WireError | str) -> None:
        """Log why a request has no response, and close."""

    def finish(self) -> None:
        """Start no more requests, and close after the responses to those in flight."""


@dataclass(slots=True, eq=False)
class Request(Generic[Body]):
    """Received request, and its place in the order of the responses of its connection.

    Once there is a response, only the response is kept.
    """

    session: Session
    header: RequestHeader
    frame: bytes
    body_start: int
    connection: RequestConnection
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

    def respond(self, body: bytes | Sequence[bytes] | None) -> None:
        """Send the response with this body, whole or in parts, in its order; None for no response
        (Produce with acks 0)."""
        self.connection.respond(self, body)

    def attempt(self, work: Callable[[], T]) -> T | None:
        """Return the result of work for this request. After an error, which raises nothing into the
        caller, the connection ends instead of a response; return None. A bug is logged, too.

        Kafka: ``KafkaApis.handle``.
        """
        try:
            return work()
        except WireError as error:
            self.connection.refuse(error)
        except Exception as bug:  # noqa: BLE001 - of this request, not of others or the replica
            self.connection.refuse(INTERNAL_ERROR)
            context = {"message": INTERNAL_ERROR, "exception": bug}
            asyncio.get_running_loop().call_exception_handler(context)
        return None

    def complete(self, response: bytes | None) -> None:
        """Replace the request by the frame of its response."""
        self.response, self.is_answered = response, True
        self.frame, self.body = b"", cast("Body", None)
