"""Request of a connection, from its frame to its response."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import coroutine
from typing import Any, Final, Generic, Protocol, TypeVar, cast

from raftlog.append import InOrderGate
from raftlog.wire import RequestHeader
from raftlog.wire.errors import WireError

from .access import Principal
from .memory_pool import MemoryShare

Body = TypeVar("Body")
T = TypeVar("T")
_NO_BODY: Final[Any] = None
INTERNAL_ERROR: Final = "internal error: the request has no response"


class QueuedAppend(Protocol):
    """Produce request that is not submitted yet."""

    def submit(self) -> bool:
        """Submit or refuse its batches; return False if the executor must read one first, or if the
        request has failed."""


class CancellableFetch(Protocol):
    """Delayed Fetch request."""

    def cancel(self) -> None:
        """Drop the request, because its connection is lost."""


@dataclass(frozen=True, slots=True, eq=False)
class Session:
    """Principal of a connection, and state that its requests share (Kafka: ``Session``).

    ``memory`` counts requests and responses, per principal. ``appends`` are this connection's
    Produce requests that are not submitted yet, in order; only the first one is read.
    ``append_gate`` keeps the order if appends fail on a full disk. ``fetches`` are the delayed
    Fetch requests.
    """

    principal: Principal
    memory: MemoryShare
    appends: deque[QueuedAppend] = field(default_factory=deque)
    append_gate: InOrderGate = field(default_factory=InOrderGate)
    fetches: dict[CancellableFetch, None] = field(default_factory=dict)

    def cancel(self) -> None:
        """Drop the waiting requests at the end of the connection."""
        self.appends.clear()
        for fetch in list(self.fetches):
            fetch.cancel()


class RequestConnection(Protocol):
    """Connection of a request, as used by request handlers."""

    @property
    def where(self) -> str:
        """Address of the peer: ``host:port``."""

    @property
    def tasks(self) -> set[asyncio.Task[None]]:
        """Tasks that end with the connection."""

    @property
    def time_s(self) -> Callable[[], float]:
        """Time of its event loop in seconds; safe to call in other threads."""

    def respond(self, request: Request[Any], body: bytes | Sequence[bytes] | None) -> None:
        """Send the response to a request, after the responses to older ones; None: no response."""

    def refuse(self, why: WireError | str) -> None:
        """Log why a request has no response, and close."""

    def finish(self) -> None:
        """Start no more requests, and close after the responses to requests in flight."""

    def mute(self) -> bool:
        """Start and read no more requests until ``unmute``; return False if it is lost."""

    def unmute(self) -> None:
        """Start requests again."""


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
    body: Body = _NO_BODY
    """Decoded body; None until it is decoded."""
    closes_connection: bool = False
    """Set to close the connection after the response. Whatever the response, a client that may send
    a request to any node repeats it on its open connection. When the connection is closed, it tries
    another node (Kafka: ``NetworkClient.leastLoadedNode``)."""
    response: bytes | None = None
    """Frame of the response; None also if there is no response."""
    is_answered: bool = False
    _busy_s: float = 0.0
    """Time that the node has worked on it since the time was last taken."""
    _working_since_s: float | None = None

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
        """Send the response with this body, as a whole or in parts, in its order; None for no
        response (Produce with acks=0)."""
        self.connection.respond(self, body)

    def attempt(self, work: Callable[[], T]) -> T | None:
        """Return the result of work for this request. After an error, which is not raised, end the
        connection instead of sending a response, and return None. A bug is also logged.

        Kafka: ``KafkaApis.handle``.
        """
        is_outermost = self.begin_work()
        try:
            return work()
        except WireError as error:
            self.connection.refuse(error)
        except Exception as bug:  # noqa: BLE001 - affects this request, not others or the replica
            self.connection.refuse(INTERNAL_ERROR)
            context = {"message": INTERNAL_ERROR, "exception": bug}
            asyncio.get_running_loop().call_exception_handler(context)
        finally:
            if is_outermost:
                self.end_work()
        return None

    # --- request time -----------------------------------------------------------------------------

    def begin_work(self, now_s: float | None = None) -> bool:
        """Begin to count the time of work on it, from ``now_s`` if that is known; return False if
        it is already being counted."""
        if self._working_since_s is not None:
            return False
        self._working_since_s = self.connection.time_s() if now_s is None else now_s
        return True

    def end_work(self) -> None:
        """Count the time since ``begin_work``."""
        if self._working_since_s is not None:
            self._busy_s += self.connection.time_s() - self._working_since_s
            self._working_since_s = None

    def timed(self, work: Callable[[], T]) -> Callable[[], T]:
        """Return work for another thread, whose time is counted. There is only one at a time."""
        time_s = self.connection.time_s

        def run() -> T:
            start_s = time_s()
            try:
                return work()
            finally:
                self._busy_s += time_s() - start_s

        return run

    @coroutine
    def in_steps(self, work: Coroutine[Any, None, T]) -> Generator[Any, None, T]:
        """Await work; count the time of its steps, but not the time in which it waits."""
        step: Callable[[], Any] = partial(work.send, None)
        while True:
            self.begin_work()
            try:
                awaited = step()
            except StopIteration as done:
                return cast("T", done.value)
            finally:
                self.end_work()
            try:
                yield awaited
            except BaseException as error:  # noqa: BLE001 - raised where the work waits
                step = partial(work.throw, error)
            else:
                step = partial(work.send, None)

    def take_busy_s(self) -> float:
        """Return the time of work until now, which is not counted again."""
        if self._working_since_s is not None:
            self.end_work()
            self.begin_work()
        taken, self._busy_s = self._busy_s, 0.0
        return taken

    # --- the end ----------------------------------------------------------------------------------

    def complete(self, response: bytes | None) -> None:
        """Replace the request with the frame of its response."""
        self.response, self.is_answered = response, True
        self.frame, self.body = b"", _NO_BODY
