"""Connections to nodes, and the thread that serves them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import ssl
import threading
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar, cast

from kio.schema.sasl_authenticate.v2.response import SaslAuthenticateResponse
from kio.schema.sasl_handshake.v1.response import SaslHandshakeResponse

import raftlog
from raftlog.client.errors import CallbackError
from raftlog.errors import (
    AccessDeniedError,
    LogClosedError,
    RaftlogError,
    SaslAuthenticationError,
    SecurityProtocolError,
    UnsupportedSaslMechanismError,
)
from raftlog.limits import WIRE_FRAME_BYTES_MAX
from raftlog.receiving import ReceivingProtocol
from raftlog.wire import (
    SASL_APIS,
    ApiKey,
    FrameDecoder,
    InFlightRequests,
    NodeApiVersions,
    VersionRange,
    common_version,
    decode,
    decode_versions_response,
    encode,
    encode_versions_request,
    sasl,
)
from raftlog.wire.errors import NoCommonVersionError, WireError

from .login import SaslLogin, TokenEndpointError, TokenFunctionError
from .nodes import Address
from .security import MECHANISM, PROTOCOL
from .tls import SslFactory, context_of

_LOGGER: Final = logging.getLogger("raftlog")

# --- Network thread of a client, and calls to it from other threads -------------------------------
# Connections are used only on this thread's event loop. It is a daemon thread, which does not exist
# in a forked child.

T = TypeVar("T")
_FINAL_ITERATIONS: Final = 3


class NetworkThread:
    """Thread with an event loop, which runs from the first call until ``stop``. Thread-safe."""

    def __init__(self, path: str, on_end: Callable[[], None]) -> None:
        """``path`` names the quorum; ``on_end`` runs on the loop and closes what is open."""
        self._path = path
        self._on_end = on_end
        # Reentrant, because a handle that is garbage-collected while the lock is held calls
        # ``call``.
        self._lock = threading.RLock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._is_stopped = False
        self._process_id = os.getpid()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop and wait for its result. An interrupt cancels it.

        Raises like ``start`` and ``check_may_wait``.
        """
        try:
            self.check_may_wait()
        except CallbackError:
            work.close()
            raise
        return self.wait_for(self.start(work))

    def wait_for(self, future: Future[T]) -> T:
        """Return the result of what was started. An interrupt cancels it.

        Raises ``LogClosedError`` if it was cancelled, as ``stop`` does, like ``check_may_wait`` if
        it is not done, and what the user's ``oauth_token`` raised.
        """
        if not future.done():
            self.check_may_wait()
        try:
            return future.result()
        except CancelledError:
            raise self._closed() from None
        except TokenFunctionError as failed:
            error = failed.error
        except BaseException:  # such as Ctrl-C: the result is not used
            future.cancel()
            raise
        raise error  # here its own cause and context are kept

    def check_may_wait(self) -> None:
        """Raise ``CallbackError`` on this thread, which would wait for itself."""
        if self.is_this_thread:
            raise CallbackError(path=self._path)

    def start(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Start a coroutine on the loop. Raises ``LogClosedError`` after ``stop``."""
        with self._lock:
            try:
                loop = self._running_loop()
            except BaseException:
                work.close()
                raise
            return asyncio.run_coroutine_threadsafe(work, loop)

    def call(self, function: Callable[[], object]) -> None:
        """Call a function on the loop without waiting for it. Raises like ``start``."""
        with self._lock:
            self._running_loop().call_soon_threadsafe(function)

    def stop(self) -> None:
        """Cancel all tasks and end the thread. It may be called twice."""
        if self.is_forked:
            return
        with self._lock:
            was_stopped, self._is_stopped = self._is_stopped, True
            loop, thread = self._loop, self._thread
        if loop is None or thread is None or not thread.is_alive():
            return
        if not was_stopped:  # a second stop would interrupt the thread's cleanup
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(loop.stop)
        if thread is not threading.current_thread():
            thread.join()

    @property
    def is_forked(self) -> bool:
        """Whether this is a forked child, in which the thread does not run."""
        return os.getpid() != self._process_id

    @property
    def is_this_thread(self) -> bool:
        return self._thread is threading.current_thread()

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        """Return the loop, started if necessary. The lock must be held until the loop is used."""
        if self._is_stopped:
            raise self._closed()
        if self._loop is None:
            loop = asyncio.new_event_loop()
            thread = threading.Thread(
                target=_serve,
                args=(loop, self._on_end),
                name=f"raftlog client of {self._path}",
                daemon=True,
            )
            try:
                thread.start()
            except BaseException:  # the process has too many threads
                loop.close()
                raise
            self._loop, self._thread = loop, thread
        return self._loop

    def _closed(self) -> LogClosedError:
        return LogClosedError(path=self._path, reason="close() was called")


def _serve(loop: asyncio.AbstractEventLoop, on_end: Callable[[], None]) -> None:
    """Run a loop until it is stopped, then cancel its tasks and close it."""
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
    finally:
        tasks = asyncio.all_tasks(loop)
        for task in tasks:
            task.cancel()
        if tasks:
            loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        on_end()
        for _ in range(_FINAL_ITERATIONS):  # for the callbacks of closed connections
            loop.run_until_complete(asyncio.sleep(0))
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.run_until_complete(loop.shutdown_default_executor())  # used by host lookups
        loop.close()


# --- Connection of a client to one node. Responses are in the order of the requests ---------------
# Invariants:
#
# 1. When a connection fails, all requests in flight fail with ``ConnectionLostError``; the node may
#    or may not have executed them. A late response closes the connection, because the responses
#    after it are late too.
# 2. API versions are negotiated when the connection is opened (KIP-35, KIP-511).
# 3. ``FrameDecoder`` limits the bytes from a peer, and only ``raftlog.wire``'s decoders parse them.
# 4. During the throttle time in a response (KIP-219) the node reads nothing from this connection,
#    but it is not lost: callers send nothing until that time is over, and requests that were
#    already sent wait longer.
# 5. With SASL no other request is sent before authentication is complete, nor during
#    reauthentication on the same connection (KIP-368), which begins before the session expires.

CLIENT_ID: Final = "raftlog"
INITIAL_API_VERSIONS_VERSION: Final = 4
_NO_ADDRESS: Final = (ValueError, OverflowError)
"""Python's errors for an invalid host name or port, which nodes may report."""
_HANDSHAKE_ERRORS: Final = (ssl.SSLError, ConnectionResetError, EOFError)
"""Errors of a TLS handshake that the other side aborted."""
_CLOSED: Final = "connection closed by the node"
REAUTHENTICATION_TIMEOUT_S: Final = 5.0
REAUTHENTICATE_AFTER: Final = 0.85
"""Fraction of a session's lifetime after which the next request waits for reauthentication (Kafka:
``ReauthenticationInfo``)."""


class ConnectionLostError(Exception):
    """The connection ended. Requests in flight may or may not have been executed."""


class ThrottledError(ConnectionLostError):
    """No response in time from a node that throttles this client. The connection is still open."""


class UnansweredError(ConnectionLostError):
    """The node closed a new connection before any response, as if it had another protocol."""


@dataclass(frozen=True, slots=True)
class _InFlightRequest:
    """Request without a response. ``decode`` takes the version, the frame and the body's start."""

    version: int
    decode: Callable[..., Any]
    response: asyncio.Future[Any]


class Connection(ReceivingProtocol):
    """Connection on one event loop, created by ``Connection.open``."""

    def __init__(self, address: Address, login: SaslLogin | None = None) -> None:
        self.address: Final = address
        self._login = login
        self._reauthenticate_at_s = math.inf
        self._held: list[tuple[ApiKey, int, bytes, _InFlightRequest]] | None = None
        """API, version, body and request of requests that are sent when reauthentication is
        complete; None at other times."""
        self._reauthenticating: asyncio.Task[None] | None = None
        self._response_count = 0
        self._has_timed_out = False
        self.versions: Mapping[int, VersionRange] = {}
        self._version_of: dict[tuple[ApiKey, int | None], int] = {}
        self._transport: asyncio.Transport | None = None
        self._decoder = FrameDecoder(WIRE_FRAME_BYTES_MAX, str(address))
        self._in_flight: Final[InFlightRequests[_InFlightRequest]] = InFlightRequests(CLIENT_ID)
        self._lost: str | None = None
        self._throttled_until_s = -math.inf
        """Loop time until which the node reads nothing, according to a response."""

    @classmethod
    async def open(
        cls,
        address: Address,
        context: ssl.SSLContext | None,
        login: SaslLogin | None,
        *,
        timeout_s: float,
    ) -> Connection:
        """Connect, negotiate API versions, and authenticate with SASL if there is a ``login``.

        Raises ``ConnectionLostError``, ``AccessDeniedError`` if one side rejects the other's
        certificate or the credentials, ``SecurityProtocolError``, ``OptionError`` and
        ``TokenFunctionError``.
        """
        until = asyncio.get_running_loop().time() + timeout_s
        connection = await cls._connected(address, context, login, until)
        try:
            if login is not None:
                await connection._authenticate(login, until)
        except BaseException:
            connection.close("authentication failed")
            raise
        return connection

    @classmethod
    async def _connected(
        cls,
        address: Address,
        context: ssl.SSLContext | None,
        login: SaslLogin | None,
        until: float,
    ) -> Connection:
        """Connect and negotiate API versions."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout_at(until):
                _, connection = await loop.create_connection(
                    lambda: cls(address, login), address.host, address.port, ssl=context
                )
        except TimeoutError:
            raise ConnectionLostError(f"{address}: connection timed out") from None
        except ssl.SSLCertVerificationError as error:
            raise AccessDeniedError(path=str(address), reason=error.verify_message) from None
        except (OSError, EOFError, *_NO_ADDRESS) as error:
            is_handshake = context is not None and isinstance(error, _HANDSHAKE_ERRORS)
            kind = UnansweredError if is_handshake else ConnectionLostError
            raise kind(f"{address}: {_error_text(error)}") from None
        try:
            await connection._negotiate_versions(max(until - loop.time(), 0))
        except ConnectionLostError as error:
            is_closed = connection._response_count == 0 and not connection._has_timed_out
            connection.close("API versions were not negotiated")
            if context is None:
                raise (UnansweredError if is_closed else ConnectionLostError)(str(error)) from None
            hint = "it may require a client certificate, or one of another CA"
            raise ConnectionLostError(f"{error}, before any response: {hint}") from None
        except BaseException:
            connection.close("API versions were not negotiated")
            raise
        return connection

    async def _negotiate_versions(self, timeout_s: float) -> None:
        version, offered = INITIAL_API_VERSIONS_VERSION, NodeApiVersions()
        for _ in range(2):
            body = encode_versions_request(
                version, software="raftlog", software_version=raftlog.__version__
            )
            offered = await self.wait(
                self._send(ApiKey.API_VERSIONS, version, body, decode_versions_response), timeout_s
            )
            if not offered.is_version_unsupported:
                break
            version = (
                min(offered.versions[ApiKey.API_VERSIONS].last, version)
                if (ApiKey.API_VERSIONS in offered.versions)
                else 0
            )
        if offered.error:
            raise ConnectionLostError(f"{self.address}: ApiVersions failed, error {offered.error}")
        self.versions = offered.versions

    # --- SASL -------------------------------------------------------------------------------------

    async def _authenticate(self, login: SaslLogin, until: float) -> None:
        """Authenticate, for the first time or again. Raises like ``open``."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout_at(until):
                client = await asyncio.to_thread(login.begin)
        except TimeoutError:
            raise ConnectionLostError(f"{self.address}: no credentials in time") from None
        except TokenEndpointError as error:
            raise ConnectionLostError(f"{self.address}: no token: {error}") from None
        try:
            message: Any = client.receive_handshake(
                await self._handshake(client.handshake(), until)
            )
            while message is not None:
                began_s = loop.time()
                response = await self._request_sasl(
                    ApiKey.SASL_AUTHENTICATE, message, SaslAuthenticateResponse, until
                )
                message = await asyncio.to_thread(client.receive, response)  # SCRAM's key: 50 ms
        except sasl.SaslRefusedError as refused:
            raise await self._sasl_error(login, refused) from None
        except sasl.SaslExchangeError as error:
            remedy = "check that the address is that of a node of the cluster"
            raise SaslAuthenticationError(
                path=str(self.address), reason=f"{login.mechanism}: {error}", remedy=remedy
            ) from None
        lifetime_s = client.session_lifetime_ms / 1000
        is_limited = lifetime_s > 0
        self._reauthenticate_at_s = (
            began_s + REAUTHENTICATE_AFTER * lifetime_s if is_limited else math.inf
        )

    async def _handshake(self, message: Any, until: float) -> Any:
        if not all(self.serves(ApiKey(key)) for key in SASL_APIS):
            raise self._no_sasl()
        return await self._request_sasl(
            ApiKey.SASL_HANDSHAKE, message, SaslHandshakeResponse, until
        )

    async def _request_sasl(self, key: ApiKey, message: Any, target: type[T], until: float) -> T:
        left_s = until - asyncio.get_running_loop().time()
        return await self.request(key, message, target, timeout_s=max(left_s, 0))

    async def _sasl_error(
        self, login: SaslLogin, refused: sasl.SaslRefusedError
    ) -> AccessDeniedError:
        path = str(self.address)
        if refused.error == sasl.ILLEGAL_STATE:
            return self._no_sasl()
        if refused.error == sasl.UNSUPPORTED_MECHANISM:
            offered = ", ".join(refused.mechanisms) or "none"
            return UnsupportedSaslMechanismError(
                path=path,
                reason=f"the listener does not offer {login.mechanism}; it offers {offered}",
                remedy=f"set {MECHANISM} to one of these",
            )
        reason = f"{login.mechanism}: {refused} (Kafka's error {refused.error})"
        remedy = await asyncio.to_thread(login.discard_refused)
        return SaslAuthenticationError(path=path, reason=reason, remedy=remedy)

    def _no_sasl(self) -> SecurityProtocolError:
        return SecurityProtocolError(
            path=str(self.address),
            reason="the listener has no SASL",
            remedy=f"set {PROTOCOL} to PLAINTEXT or SSL, or use the address of a listener with "
            "SASL",
        )

    async def _reauthenticate(self, login: SaslLogin) -> None:
        """Authenticate again, then send the requests that were held; close on failure."""
        until = asyncio.get_running_loop().time() + REAUTHENTICATION_TIMEOUT_S
        try:
            await self._authenticate(login, until)
        except (ConnectionLostError, RaftlogError, TokenFunctionError) as error:
            self.close(f"the session could not be renewed: {error}")
            return
        except Exception as error:  # noqa: BLE001 - a bug; the requests that were held must end
            self.close(f"the session could not be renewed: {type(error).__name__}")
            return
        held, self._held = self._held or [], None
        if held and self._transport is not None:
            self._transport.writelines([self._in_flight.add(*one) for one in held])

    @property
    def is_refused_without_sasl(self) -> bool:
        """Whether the node closed the connection at the first request, as if it required SASL."""
        return self._lost is not None and self._login is None and self._response_count == 1

    # --- requests ---------------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        return self._lost is None and self._transport is not None

    @property
    def throttle_left_s(self) -> float:
        """Return for how long the node reads nothing because this client exceeds a quota; 0 if it
        reads or the connection is lost."""
        left_s = self._throttled_until_s - asyncio.get_running_loop().time()
        return max(left_s, 0.0) if self.is_open else 0.0

    def serves(self, api_key: ApiKey) -> bool:
        """Return whether the node supports a request in one of this client's versions."""
        with contextlib.suppress(NoCommonVersionError):
            self._version(api_key, None)
        return (api_key, None) in self._version_of

    def send(
        self, api_key: ApiKey, message: Any, target: type[T], *, version_max: int | None = None
    ) -> asyncio.Future[T]:
        """Send a request, and return a future with the decoded response.

        ``version_max`` is the newest version to use; None: any that both sides support.

        Raises ``ConnectionLostError``, ``NoCommonVersionError``, ``UnsupportedFieldError``; the
        future raises ``ConnectionLostError``, ``AccessDeniedError`` and ``MalformedMessageError``.
        """
        return self.send_encoded(
            api_key, partial(encode, message), partial(decode, target), version_max=version_max
        )

    def send_encoded(
        self,
        api_key: ApiKey,
        encode_body: Callable[[int], bytes],
        decode_body: Callable[..., T],
        *,
        version_max: int | None = None,
    ) -> asyncio.Future[T]:
        """Send a request, like ``send``, whose body ``encode_body`` returns for a version."""
        version = self._version(api_key, version_max)
        return self._send(api_key, version, encode_body(version), decode_body)

    def _version(self, api_key: ApiKey, version_max: int | None) -> int:
        """Return the version of a request. Raises ``NoCommonVersionError``."""
        version = self._version_of.get((api_key, version_max))
        if version is None:
            version = common_version(api_key, self.versions, version_max)
            self._version_of[api_key, version_max] = version
        return version

    async def request(
        self,
        api_key: ApiKey,
        message: Any,
        target: type[T],
        *,
        timeout_s: float,
        version_max: int | None = None,
    ) -> T:
        """Send a request and wait for the response. Raises like ``send``, and ``WireError``."""
        response = self.send(api_key, message, target, version_max=version_max)
        try:
            return await self.wait(response, timeout_s)
        except WireError:
            self.close("its response could not be decoded")
            raise

    async def wait(self, response: asyncio.Future[T], timeout_s: float) -> T:
        """Wait for a response; a timeout closes the connection.

        If the node was throttling this client for the whole time, it raises ``ThrottledError``
        instead.
        """
        done, _ = await asyncio.wait((response,), timeout=timeout_s)
        if not done:
            if self._time_left_s(timeout_s) > 0:
                raise ThrottledError(f"{self.address}: no response, it throttles this client")
            self._has_timed_out = True
            self.close(f"no response within {timeout_s:.1f} s")
        return await response

    def close_without(self, response: asyncio.Future[Any], timeout_s: float) -> None:
        """Close the connection unless there is a response in time; throttle time does not count."""
        loop = asyncio.get_running_loop()
        timer: asyncio.TimerHandle

        def check() -> None:
            nonlocal timer
            left_s = self._time_left_s(timeout_s)
            if left_s > 0:
                timer = loop.call_later(left_s, check)
            else:
                self.close("no response in time")

        timer = loop.call_later(timeout_s, check)
        response.add_done_callback(lambda _: timer.cancel())

    def _time_left_s(self, timeout_s: float) -> float:
        """Return what is left of a timeout that starts at the end of the throttle time."""
        return self._throttled_until_s + timeout_s - asyncio.get_running_loop().time()

    def close(self, reason: str) -> None:
        """Close immediately. Requests in flight fail."""
        self._fail(reason)
        if self._transport is not None:
            self._transport.abort()

    # --- asyncio.BufferedProtocol -----------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        try:
            for one in self._decoder.feed(data):
                self._receive(one)
        except WireError as error:
            self.close(error.message())

    def connection_lost(self, exc: Exception | None) -> None:
        if isinstance(exc, ssl.SSLError):  # the peer rejected this client's certificate
            denied = AccessDeniedError(
                path=str(self.address), reason=f"TLS: {exc.reason or type(exc).__name__}"
            )
            self._fail_all(denied)
        self._fail(_CLOSED if exc is None else _error_text(exc))

    # --- inside -----------------------------------------------------------------------------------

    def _send(
        self, api_key: ApiKey, version: int, body: bytes, decode: Callable[..., T]
    ) -> asyncio.Future[T]:
        if self._lost is not None or self._transport is None:
            raise ConnectionLostError(f"{self.address}: {self._lost or 'not connected'}")
        response: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        request = _InFlightRequest(version, decode, response)
        held = None if api_key in SASL_APIS else self._hold()
        if held is None:
            self._transport.write(self._in_flight.add(api_key, version, body, request))
        else:
            held.append((api_key, version, body, request))
        return response

    def _hold(self) -> list[tuple[ApiKey, int, bytes, _InFlightRequest]] | None:
        """Return the held requests, after starting reauthentication if it is due; None if requests
        are sent."""
        if self._held is None and self._login is not None:
            loop = asyncio.get_running_loop()
            if loop.time() >= self._reauthenticate_at_s:
                self._held = []
                self._reauthenticating = loop.create_task(self._reauthenticate(self._login))
        return self._held

    def _receive(self, data: bytes) -> None:
        self._response_count += 1
        # The request is in flight until it has a result, so that any other error fails it too.
        request, body_start = self._in_flight.match(data)
        if not request.response.done():
            try:
                result = request.decode(request.version, data, start=body_start)
            except WireError as error:
                _fail_response(request.response, error)
            else:
                self._note_throttle_time(result)
                request.response.set_result(result)
        self._in_flight.complete()

    def _note_throttle_time(self, response: object) -> None:
        throttle_time = getattr(response, "throttle_time", None)
        if throttle_time:
            until_s = asyncio.get_running_loop().time() + throttle_time.total_seconds()
            self._throttled_until_s = max(self._throttled_until_s, until_s)

    def _fail(self, reason: str) -> None:
        if self._lost is None:
            self._lost = reason
        self._fail_all(ConnectionLostError(f"{self.address}: {self._lost}"))

    def _fail_all(self, error: Exception) -> None:
        held, self._held = self._held or [], None
        for request in (*self._in_flight.clear(), *(one[-1] for one in held)):
            if not request.response.done():
                _fail_response(request.response, error)


class Connections:
    """Open connections of a client by address, on one event loop."""

    def __init__(
        self, tls: SslFactory | None, login: SaslLogin | None, *, timeout_s: float
    ) -> None:
        """``timeout_s`` limits the time to open one."""
        self._tls = tls
        self._login = login
        self._timeout_s = timeout_s
        self._opened: dict[Address, Connection] = {}
        self._opening: dict[Address, asyncio.Task[Connection]] = {}

    async def get(self, address: Address) -> Connection:
        """Return an open connection to an address. Opening continues if this call is cancelled.

        Raises like ``Connection.open``.
        """
        known = self._opened.get(address)
        if known is not None and known.is_open:
            return known
        opening = self._opening.get(address)
        if opening is None:
            opening = asyncio.ensure_future(self._open(address))
            self._opening[address] = opening
            opening.add_done_callback(lambda done: done.cancelled() or done.exception())
        return await asyncio.shield(opening)

    def opened(self) -> list[Connection]:
        """Return the connection that was last opened to each address."""
        return list(self._opened.values())

    async def check_protocol(
        self, address: Address, connection: Connection | None, error: ConnectionLostError
    ) -> None:
        """Raise ``SecurityProtocolError`` if a connection was lost because the listener has another
        security protocol. The connection is None if it was not opened."""
        if isinstance(error, UnansweredError):
            await check_tls(address, context_of(self._tls), timeout_s=self._timeout_s)
        if connection is not None and connection.is_refused_without_sasl:
            await check_sasl(address, context_of(self._tls), timeout_s=self._timeout_s)

    def close(self) -> None:
        """Close all connections."""
        for connection in self._opened.values():
            connection.close("close() was called")
        self._opened.clear()

    async def _open(self, address: Address) -> Connection:
        try:
            connection = await Connection.open(
                address, context_of(self._tls), self._login, timeout_s=self._timeout_s
            )
            self._opened[address] = connection
            return connection
        finally:
            del self._opening[address]


def _fail_response(response: asyncio.Future[Any], error: Exception) -> None:
    response.set_exception(error)
    response.exception()  # retrieved, or asyncio logs it


def _error_text(error: BaseException) -> str:
    if isinstance(error, ConnectionRefusedError):  # asyncio: "Connect call failed (...)"
        return "connection refused"
    if isinstance(error, ConnectionResetError):  # closed before it has read all bytes
        return _CLOSED
    text = getattr(error, "strerror", None) or str(error)
    return text or type(error).__name__


# --- Listeners with another security protocol -----------------------------------------------------
# A node closes the connection of a client with another protocol without giving a reason. A second
# connection, on which no credentials are sent, determines the listener's protocol.


async def check_tls(address: Address, context: ssl.SSLContext | None, *, timeout_s: float) -> None:
    """Raise ``SecurityProtocolError`` if only one of the listener and the client uses TLS. The
    listener has closed a connection before any response."""
    until = asyncio.get_running_loop().time() + timeout_s
    try:
        if context is None:
            unverified = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            unverified.check_hostname, unverified.verify_mode = False, ssl.CERT_NONE
            async with asyncio.timeout_at(until):
                transport, _ = await asyncio.get_running_loop().create_connection(
                    asyncio.Protocol, address.host, address.port, ssl=unverified
                )
            is_tls = transport.get_extra_info("ssl_object") is not None
            transport.abort()
            if not is_tls:
                return
            reason, protocols = "the listener requires TLS", "SSL or SASL_SSL, and ssl.ca.location"
        else:
            connection = await Connection._connected(address, None, None, until)
            connection.close("the protocol is known")
            reason, protocols = "the listener has no TLS", "PLAINTEXT or SASL_PLAINTEXT"
    except (ConnectionLostError, AccessDeniedError, OSError, EOFError, *_NO_ADDRESS):
        return
    remedy = f"set {PROTOCOL} to {protocols}, or use the address of another listener"
    raise SecurityProtocolError(path=str(address), reason=reason, remedy=remedy)


async def check_sasl(address: Address, context: ssl.SSLContext | None, *, timeout_s: float) -> None:
    """Raise ``SecurityProtocolError`` if a listener to which no credentials were sent requires
    SASL: then it offers its mechanisms to a client that names none."""
    until = asyncio.get_running_loop().time() + timeout_s
    client = sasl.SaslClient("", sasl.plain_exchange("", ""))
    try:
        connection = await Connection._connected(address, context, None, until)
        try:
            client.receive_handshake(await connection._handshake(client.handshake(), until))
        finally:
            connection.close("the protocol is known")
    except sasl.SaslRefusedError as refused:
        if refused.error != sasl.UNSUPPORTED_MECHANISM:
            return
        offered = ", ".join(refused.mechanisms) or "no mechanism"
    except (ConnectionLostError, AccessDeniedError, WireError):
        return
    else:
        return
    protocol = "SASL_PLAINTEXT" if context is None else "SASL_SSL"
    raise SecurityProtocolError(
        path=str(address),
        reason=f"the listener requires SASL; it offers {offered}",
        remedy=f"set {PROTOCOL}={protocol}, {MECHANISM} and the credentials",
    )
