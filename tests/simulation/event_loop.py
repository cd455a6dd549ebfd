"""Event loops and connections on virtual time, for the parts of the product that use asyncio.

Invariants:

1. A loop belongs to one process. Its callbacks are events of the world: they end with the process,
   and wait while it is paused, as ``later`` decides.
2. A connection delivers bytes in order and once, as TCP does. A lost segment is sent again, at
   growing intervals; after the last one the connection is lost.
3. A process that is killed resets its connections; one whose machine loses power does not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator
from typing import TYPE_CHECKING, Any, Final, TypeVar, TypeVarTuple

from raftlog.receiving import ReceivingProtocol

from .world import Network, World

Ts = TypeVarTuple("Ts")
T = TypeVar("T")

SEGMENT_RETRIES_US: Final = (200_000, 400_000, 800_000, 1_600_000, 3_200_000, 3_200_000)
CONNECT_RETRY_US: Final = 1_000_000

Later = Callable[[int, Callable[[], None]], None]
"""Schedules an action of a process, after a delay in microseconds."""
Accept = Callable[["SimulatedTransport"], "tuple[SimulatedLoop, ReceivingProtocol] | None"]
"""Returns the loop and the protocol of an accepted connection, None while nothing listens."""


if TYPE_CHECKING:
    _Loop = asyncio.BaseEventLoop  # for a type checker every method of the other is abstract
else:
    _Loop = asyncio.AbstractEventLoop


class Peers:
    """Connections between processes, and the listeners that accept them."""

    def __init__(self, world: World, network: Network) -> None:
        self.world: Final = world
        self.network: Final = network
        self.listeners: Final[dict[int, Accept]] = {}
        """By the id of the node."""
        self._open: Final[dict[SimulatedTransport, None]] = {}

    def add(self, transport: SimulatedTransport) -> None:
        """Register an open end of a connection."""
        self._open[transport] = None

    def discard(self, transport: SimulatedTransport) -> None:
        """Remove an end of a connection that is closed."""
        self._open.pop(transport, None)

    def ends_at(self, here: int) -> list[SimulatedTransport]:
        """Return the open ends of a process, in the order in which they were opened."""
        return [one for one in self._open if one.here == here]


class SimulatedLoop(_Loop):
    """Event loop of one process, on the virtual time of its world."""

    def __init__(self, peers: Peers, here: int, later: Later) -> None:
        """``here`` is the id of the process on the network."""
        self._peers = peers
        self._here = here
        self._later = later
        self._ready: list[asyncio.Handle] = []
        self._tasks: dict[asyncio.Task[Any], None] = {}

    def time(self) -> float:
        return self._peers.world.now_us / 1e6

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return False

    # --- callbacks --------------------------------------------------------------------------------

    def call_soon(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Any = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        if len(self._ready) == 1:
            self._later(0, self._run_ready)
        return handle

    def call_soon_threadsafe(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Any = None
    ) -> asyncio.Handle:
        return self.call_soon(callback, *args, context=context)

    def call_later(
        self, delay: float, callback: Callable[[*Ts], object], *args: *Ts, context: Any = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[[*Ts], object], *args: *Ts, context: Any = None
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        delay_us = -int((self.time() - when) * 1e6 // 1)  # rounded up: never before ``when``
        self._later(max(delay_us, 0), lambda: self._run(handle))
        return handle

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Do nothing: a cancelled handle is skipped when it is due."""

    def _run_ready(self) -> None:
        ready, self._ready = self._ready, []
        for handle in ready:
            self._run(handle)

    def _run(self, handle: asyncio.Handle) -> None:
        if not handle.cancelled():
            self.run_in(handle._run)

    def run_in(self, call: Callable[[], T]) -> T:
        """Call a function as a callback of this loop does."""
        before = asyncio._get_running_loop()
        asyncio._set_running_loop(self)
        try:
            return call()
        finally:
            asyncio._set_running_loop(before)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Fail the run for an exception in a callback. Tasks of killed processes are ignored."""
        error = context.get("exception")
        if "handle" in context and error is not None:
            raise error

    # --- futures ----------------------------------------------------------------------------------

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(
        self,
        coro: Generator[Any, None, T] | Coroutine[Any, Any, T],
        *,
        name: Any = None,
        context: Any = None,
    ) -> asyncio.Task[T]:
        task = asyncio.Task(coro, loop=self, name=name, context=context)
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)
        return task

    def cancel_tasks(self) -> None:
        """Cancel all tasks, and run what they do then, without an event of the world."""
        for task in list(self._tasks):
            task.cancel()
        while self._ready:
            self._run_ready()

    def run_in_executor(
        self, executor: object, func: Callable[[*Ts], T], *args: *Ts
    ) -> asyncio.Future[T]:
        """Run the function in a later iteration: the simulation has one thread."""
        done: asyncio.Future[T] = self.create_future()

        def run() -> None:
            if done.cancelled():
                return
            try:
                done.set_result(func(*args))
            except Exception as error:  # noqa: BLE001
                done.set_exception(error)

        self.call_soon(run)
        return done

    # --- connections ------------------------------------------------------------------------------

    async def create_connection(  # type: ignore[override]
        self, protocol_factory: Callable[[], ReceivingProtocol], host: str, port: int, **_: object
    ) -> tuple[asyncio.Transport, ReceivingProtocol]:
        """Connect to the node whose id is ``port``."""
        protocol = protocol_factory()
        transport = SimulatedTransport(self._peers, self._here, port)
        connected: asyncio.Future[None] = self.create_future()
        self._dial(transport, protocol, connected)
        await connected
        return transport, protocol

    def _dial(
        self,
        transport: SimulatedTransport,
        protocol: ReceivingProtocol,
        connected: asyncio.Future[None],
    ) -> None:
        """Send the first segment, again at intervals until the connection is accepted."""

        def accepted() -> None:
            if not connected.done():
                transport.begin(self, protocol)
                connected.set_result(None)

        def arrived() -> None:
            remote = SimulatedTransport(peers, transport.there, transport.here)
            found = peers.listeners[transport.there](remote)
            if found is None or connected.done():
                return
            remote.peer, transport.peer = transport, remote
            remote.begin(*found)
            peers.network.send(remote.here, remote.there, accepted)

        def again() -> None:
            if not connected.done():
                self._dial(transport, protocol, connected)

        peers = self._peers
        peers.network.send(transport.here, transport.there, arrived)
        self._later(CONNECT_RETRY_US, again)


class SimulatedTransport(asyncio.Transport):
    """One end of a connection between two processes."""

    def __init__(self, peers: Peers, here: int, there: int) -> None:
        super().__init__()
        self.here: Final = here
        self.there: Final = there
        self.peer: SimulatedTransport | None = None
        self._peers = peers
        self._loop: SimulatedLoop | None = None
        self._protocol: ReceivingProtocol | None = None
        self._unsent = bytearray()
        self._segment: bytes | None = None
        """Bytes that are sent, and have not arrived."""
        self._number = 0
        """Number of the last segment."""
        self._unread: list[bytes] = []
        self._is_paused = False
        self._is_closing = False
        self._is_lost = False
        self._is_silent = False

    def begin(self, loop: SimulatedLoop, protocol: ReceivingProtocol) -> None:
        """Connect the protocol."""
        self._loop, self._protocol = loop, protocol
        self._peers.add(self)
        loop.call_soon(protocol.connection_made, self)

    # --- asyncio.Transport ------------------------------------------------------------------------

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Do nothing: writers are never paused."""

    def get_write_buffer_size(self) -> int:
        return len(self._unsent) + len(self._segment or b"")

    def is_closing(self) -> bool:
        return self._is_closing

    def pause_reading(self) -> None:
        self._is_paused = True

    def resume_reading(self) -> None:
        self._is_paused = False
        unread, self._unread = self._unread, []
        for data in unread:
            self._receive(data)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not self._is_closing:
            self._unsent += data
            self._send_next()

    def close(self) -> None:
        """Close after the bytes written so far have arrived."""
        if not self._is_closing:
            self._is_closing = True
            if self._segment is None:
                self._end(None, "is closed")

    def abort(self) -> None:
        self._is_closing = True
        self._end(None, "is reset")

    # --- segments ---------------------------------------------------------------------------------

    def _send_next(self) -> None:
        if self._segment is None and self._unsent:
            self._segment = bytes(self._unsent)
            self._unsent.clear()
            self._number += 1
            self._transmit(self._number, 0)

    def _transmit(self, number: int, attempt: int) -> None:
        """Send the segment of a number, unless it has arrived."""
        segment, peer = self._segment, self.peer
        if segment is None or peer is None or number != self._number or self._is_lost:
            return
        if attempt == len(SEGMENT_RETRIES_US):
            self._end(TimeoutError("connection timed out"), "is lost")
            return

        def arrived() -> None:
            if number == self._number and self._segment is not None and not peer._is_silent:
                self._delivered(peer, segment)

        self._peers.network.send(self.here, self.there, arrived)
        self._peers.world.after(
            SEGMENT_RETRIES_US[attempt], lambda: self._transmit(number, attempt + 1)
        )

    def _delivered(self, peer: SimulatedTransport, segment: bytes) -> None:
        if peer._is_lost:
            reset = ConnectionResetError("connection reset by peer")
            self._peers.network.send(self.there, self.here, lambda: self.lose(reset))
            return
        self._segment = None
        peer._receive(segment)
        self._send_next()
        if self._is_closing and self._segment is None:
            self._end(None, "is closed")

    def _receive(self, data: bytes) -> None:
        assert self._loop is not None, "it is open"
        assert self._protocol is not None, "it is open"
        if self._is_paused:
            self._unread.append(data)
        else:
            self._loop.call_soon(self._protocol.data_received, data)

    # --- the end ----------------------------------------------------------------------------------

    def _end(self, error: Exception | None, words: str) -> None:
        """Close this end, and the other one when it learns of it."""
        peer = self.peer
        if self._is_lost or peer is None:
            return
        self.lose(error)
        self._peers.world.note(f"connection {self.here} -> {self.there} {words}")
        self._peers.network.send(self.here, self.there, lambda: peer.lose(None))

    def lose(self, error: Exception | None) -> None:
        """Close this end. The other one learns of it when it sends."""
        if self._is_lost:
            return
        self._is_lost = self._is_closing = True
        self._segment = None
        self._peers.discard(self)
        if self._loop is not None and self._protocol is not None:
            self._loop.call_soon(self._protocol.connection_lost, error)

    def die(self, *, is_silent: bool) -> None:
        """End with the process of this end. ``is_silent``: its machine has no power."""
        self._is_silent = is_silent
        if is_silent:
            self.lose(None)
        else:
            self._end(None, "is reset")
