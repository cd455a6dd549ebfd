"""Connections of a replica to the other nodes of its quorum: requests and responses.

1. At most one request to a node is in flight, and the core controls timeouts. A new request to a
   node means that the older one has timed out, so its connection is closed (Kafka:
   ``NetworkClient`` on a request timeout). A response is never matched to another request.
2. Every connection starts with ApiVersions. Malformed bytes close it.
3. A request on an open connection has no task: it is written immediately, and its response is
   handled where it is received. There is a task only to connect, or to wait before a repeated
   failure is reported.
4. Every request of the core ends with a response or a ``SendFailed`` event. A node's repeated
   failures are reported with an increasing delay, so that an unreachable node does not cause
   continuous connection attempts (Kafka: ``reconnect.backoff.ms``).
"""

from __future__ import annotations

import asyncio
import errno
import math
import re
import ssl
import time
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final, TypeAlias

from raftlog.quorum.effects import Send
from raftlog.quorum.events import Event, ResponseReceived, SendFailed
from raftlog.quorum.messages import FetchRequest, Response, VersionsRequest
from raftlog.quorum.voters import Endpoint
from raftlog.receiving import ReceivingProtocol
from raftlog.wire import (
    ApiKey,
    FrameDecoder,
    InFlightRequests,
    LogIdentity,
    ReplicaFetchCodec,
    RequestError,
    VersionRange,
    common_version,
    decode,
    decode_response,
    decode_versions_response,
    encode,
    encode_request,
    encode_versions_request,
    request_api_key,
)
from raftlog.wire.errors import NoCommonVersionError, UnsupportedFieldError, WireError

_NO_ADDRESS: Final = (ValueError, OverflowError)
"""Python's errors for an invalid host name or port."""
_PAUSE_S: Final = 0.05
_PAUSE_S_MAX: Final = 0.5
_ERRNO: Final = re.compile(r"\[Errno (\d+)\]")
_API_VERSIONS_VERSION: Final = 4
"""The first version of ApiVersions with the supported range of ``kraft.version``."""


_Found: TypeAlias = tuple[bytes, int] | Exception
"""Frame of a response and the position of its body, or the error in its place."""


def _is_connection_refused(error: Exception) -> bool:
    """Return whether all addresses of a host refused a connection.

    For a host name with several addresses, asyncio raises one ``OSError`` without an ``errno``; its
    text has those of all attempts.
    """
    if isinstance(error, ConnectionRefusedError):
        return True
    found = _ERRNO.findall(str(error)) if isinstance(error, OSError) else []
    return bool(found) and all(int(one) == errno.ECONNREFUSED for one in found)


class NetworkChannel:
    """Connections to other nodes, by node id. A connection is kept until it fails or the node's
    endpoint changes."""

    def __init__(
        self,
        identity: LogIdentity,
        *,
        client_id: str,
        software_version: str,
        handle: Callable[[Event], None],
        log_event: Callable[[int, str], None],
        tls: Callable[[int], ssl.SSLContext | None],
        frame_bytes_max: int,
    ) -> None:
        """``tls`` returns the TLS context for a node id; ``log_event`` logs errors of a node."""
        self._identity = identity
        self._fetches = ReplicaFetchCodec(identity)
        self._client_id = client_id
        self._software_version = software_version
        self._handle = handle
        self._log_event = log_event
        self._tls = tls
        self._frame_bytes_max = frame_bytes_max
        self.wall_s: Callable[[], float] = time.time
        """Clock for the validity of certificates, in seconds since 1970."""
        self._in_flight: dict[int, asyncio.Task[None] | Send] = {}
        """By node id: the request, or the task that connects for it or reports its failure."""
        self._connections: dict[int, _Connection] = {}
        self._failures: dict[int, int] = {}
        """Number of consecutive failures, by node id."""
        self._is_closed = False

    def send(self, outgoing: Send) -> None:
        """Send a request to a node. The resulting event never precedes the return of this call.

        After ``close`` nothing is sent, and there is no event.
        """
        if self._is_closed:
            return
        node_id = outgoing.node_id
        under_way = self._in_flight.pop(node_id, None)
        if under_way is not None:
            if isinstance(under_way, asyncio.Task):
                under_way.cancel()
            self._disconnect(node_id)
        connection = self._connections.get(node_id)
        if (
            connection is None
            or isinstance(outgoing.request, VersionsRequest)
            or not self._is_usable(connection, outgoing.endpoints)
        ):
            self._in_flight[node_id] = self._start(self._connect_and_request(outgoing))
            return
        try:
            self._request(outgoing, connection)
        except (NoCommonVersionError, UnsupportedFieldError):  # reported after this returns
            self._in_flight[node_id] = self._start(self._connect_and_request(outgoing))

    def _start(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        return asyncio.get_running_loop().create_task(work)

    async def ask(
        self,
        node_id: int,
        endpoints: tuple[Endpoint, ...],
        key: ApiKey,
        request: object,
        response_class: type[Any],
    ) -> Any:
        """Return a node's response to a request that the core does not send, on a new connection.

        Raises ``OSError``, ``EOFError`` and ``WireError``.
        """
        connection = await self._open(node_id, self._endpoint(endpoints))
        try:
            version = connection.version_of(key)
            data, start = await connection.exchange(key, version, encode(request, version))
            return decode(response_class, version, data, start=start)
        finally:
            connection.close()

    def disconnect(self) -> None:
        """Close all connections, so that nodes authenticate again. Requests in flight fail."""
        for connection in list(self._connections.values()):
            connection.lose(ConnectionError("the node authenticates again"))
        self._connections.clear()

    async def close(self) -> None:
        """Cancel requests in flight and close all connections."""
        self._is_closed = True
        in_flight, self._in_flight = self._in_flight, {}
        tasks = [one for one in in_flight.values() if isinstance(one, asyncio.Task)]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for node_id in list(self._connections):
            self._disconnect(node_id)

    async def _connect_and_request(self, outgoing: Send) -> None:
        try:
            connection = await self._connection(outgoing.node_id, outgoing.endpoints)
            if isinstance(outgoing.request, VersionsRequest):
                self._handle_response(outgoing, connection.versions_response)
            else:
                self._request(outgoing, connection)
        except (NoCommonVersionError, UnsupportedFieldError) as error:
            self._fail(outgoing, str(error), is_version_unsupported=True)
        except (OSError, EOFError, ssl.SSLError, WireError, *_NO_ADDRESS) as error:
            await self._fail_after_pause(outgoing, error)

    def _request(self, outgoing: Send, connection: _Connection) -> None:
        """Send a request on an open connection.

        Raises ``NoCommonVersionError`` and ``UnsupportedFieldError``; then nothing is sent.
        """
        request, fetches = outgoing.request, self._fetches
        key = request_api_key(request)
        version = connection.version_of(key)
        if isinstance(request, FetchRequest):
            body = fetches.encode_request(request, version)
        else:
            body = encode_request(request, version, self._identity)

        def complete(found: _Found) -> None:
            if self._in_flight.get(outgoing.node_id) is not outgoing:
                return  # a newer request has closed the connection
            try:
                if isinstance(found, Exception):
                    raise found
                data, start = found
                if key is ApiKey.FETCH:
                    response = fetches.decode_response(version, data, start)
                else:
                    response = decode_response(key, version, data, self._identity, start=start)
            except (OSError, EOFError, WireError) as error:
                failing = self._start(self._fail_after_pause(outgoing, error))
                self._in_flight[outgoing.node_id] = failing
            else:
                self._handle_response(outgoing, response)

        self._in_flight[outgoing.node_id] = outgoing
        connection.request(key, version, body, complete)

    def _handle_response(self, outgoing: Send, response: Response | RequestError) -> None:
        self._failures.pop(outgoing.node_id, None)
        if isinstance(response, RequestError):
            self._fail(outgoing, f"error code {response.error}: {response.reason}")
        else:
            self._end(outgoing, ResponseReceived(outgoing.correlation_id, response))

    async def _fail_after_pause(self, outgoing: Send, error: Exception) -> None:
        """Close the connection and report the failure, after a pause if it is repeated."""
        node_id = outgoing.node_id
        self._disconnect(node_id)
        failures = self._failures[node_id] = self._failures.get(node_id, 0) + 1
        if failures > 1:
            await asyncio.sleep(min(_PAUSE_S * 2 ** (failures - 2), _PAUSE_S_MAX))
        self._fail(
            outgoing, str(error) or type(error).__name__, is_refused=_is_connection_refused(error)
        )

    def _fail(
        self,
        outgoing: Send,
        reason: str,
        *,
        is_version_unsupported: bool = False,
        is_refused: bool = False,
    ) -> None:
        what = request_api_key(outgoing.request).name
        self._log_event(outgoing.node_id, f"{what} request failed: {reason}")
        failed = SendFailed(
            outgoing.correlation_id,
            is_version_unsupported=is_version_unsupported,
            is_refused=is_refused,
        )
        self._end(outgoing, failed)

    def _end(self, outgoing: Send, event: Event) -> None:
        """End a request before its event, because the core may send the next one to this node."""
        del self._in_flight[outgoing.node_id]
        self._handle(event)

    async def _connection(self, node_id: int, endpoints: tuple[Endpoint, ...]) -> _Connection:
        connection = self._connections.get(node_id)
        if connection is not None and self._is_usable(connection, endpoints):
            return connection
        self._disconnect(node_id)
        endpoint = self._endpoint(endpoints)
        connection = self._connections[node_id] = await self._open(node_id, endpoint)
        return connection

    def _is_usable(self, connection: _Connection, endpoints: tuple[Endpoint, ...]) -> bool:
        """Return whether a connection is open to the node's current endpoint."""
        if endpoints is not connection.compared_endpoints:
            if not endpoints or connection.endpoint != self._endpoint(endpoints):
                return False
            connection.compared_endpoints = endpoints
        return connection.is_open and not connection.has_expired(self.wall_s())

    def _endpoint(self, endpoints: tuple[Endpoint, ...]) -> Endpoint:
        name = self._identity.listener_name
        found = [one for one in endpoints if one.name == name] or list(endpoints)
        if not found:
            raise ConnectionError("no endpoint of the node is known")
        return found[0]

    async def _open(self, node_id: int, endpoint: Endpoint) -> _Connection:
        tls = self._tls(node_id)
        connection = _Connection(endpoint, self._client_id, self._frame_bytes_max)
        await asyncio.get_running_loop().create_connection(
            lambda: connection,
            endpoint.host,
            endpoint.port,
            ssl=tls,
            server_hostname=endpoint.host if tls is not None else None,
        )
        try:
            await connection.request_versions(self._software_version, self._identity)
            if self._tls(node_id) is not tls:
                raise ConnectionError("certificates were reloaded during the connection attempt")
        except BaseException:
            connection.close()
            raise
        return connection

    def _disconnect(self, node_id: int) -> None:
        connection = self._connections.pop(node_id, None)
        if connection is not None:
            connection.close()


class _Connection(ReceivingProtocol):
    """Connection to one node, with at most one request in flight."""

    def __init__(self, endpoint: Endpoint, client_id: str, frame_bytes_max: int) -> None:
        self.endpoint: Final = endpoint
        self.compared_endpoints: tuple[Endpoint, ...] | None = None
        """Endpoints of the node that were last found to include this connection's endpoint."""
        self._api_versions: Mapping[int, VersionRange] = {}
        self._version_of: Final[dict[ApiKey, int]] = {}
        self.versions_response: Response | RequestError
        self._decoder = FrameDecoder(frame_bytes_max, f"{endpoint.host}:{endpoint.port}")
        self._transport: asyncio.Transport | None = None
        self._expires_s = math.inf
        """End of the validity of the node's certificate."""
        self._in_flight: Final = InFlightRequests[Callable[[_Found], None]](client_id)
        """The callback of the request in flight."""

    # --- asyncio.BufferedProtocol -----------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        certificate = transport.get_extra_info("peercert")
        if certificate:
            self._expires_s = ssl.cert_time_to_seconds(certificate["notAfter"])

    def data_received(self, data: bytes) -> None:
        try:
            for one in self._decoder.feed(data):
                self._receive(one)
        except WireError as error:
            self.lose(error)

    def connection_lost(self, exc: Exception | None) -> None:
        self.lose(exc or EOFError("the peer closed the connection"))

    # --- requests ---------------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def has_expired(self, wall_s: float) -> bool:
        """Return whether the node's certificate has expired."""
        return wall_s > self._expires_s

    async def request_versions(self, software_version: str, identity: LogIdentity) -> None:
        """Request the API versions of the peer."""
        key, version = ApiKey.API_VERSIONS, _API_VERSIONS_VERSION
        body = encode_versions_request(
            version, software="raftlog", software_version=software_version
        )
        data, start = await self.exchange(key, version, body)
        self._api_versions = decode_versions_response(version, data, start=start).versions
        self.versions_response = decode_response(key, version, data, identity, start=start)

    def version_of(self, key: ApiKey) -> int:
        """Return the newest version of an API that both nodes support.

        Raises ``NoCommonVersionError``.
        """
        version = self._version_of.get(key)
        if version is None:
            version = self._version_of[key] = common_version(key, self._api_versions)
        return version

    async def exchange(self, key: ApiKey, version: int, body: bytes) -> tuple[bytes, int]:
        """Send a request; return the frame of its response and the position of the body.

        Raises ``OSError``, ``EOFError`` and ``WireError``.
        """
        done: asyncio.Future[tuple[bytes, int]] = asyncio.get_running_loop().create_future()

        def complete(found: _Found) -> None:
            if done.done():
                return  # cancelled
            if isinstance(found, Exception):
                done.set_exception(found)
            else:
                done.set_result(found)

        self.request(key, version, body, complete)
        return await done

    def request(
        self, key: ApiKey, version: int, body: bytes, complete: Callable[[_Found], None]
    ) -> None:
        """Send a request. ``complete`` is called later, unless the connection is closed first."""
        assert self._transport is not None, "it is connected"
        assert not self._in_flight, "one request in flight"
        if not self.is_open:
            error = EOFError("the peer closed the connection")
            asyncio.get_running_loop().call_soon(complete, error)
            return
        self._transport.write(self._in_flight.add(key, version, body, complete))

    def _receive(self, data: bytes) -> None:
        """Pass on a response. Raises ``WireError`` if it is not for the request in flight."""
        complete, start = self._in_flight.match(data)
        self._in_flight.complete()
        complete((data, start))

    def lose(self, error: Exception) -> None:
        """Close the connection; the request in flight fails."""
        requests = self._in_flight.clear()
        self.close()
        for complete in requests:
            complete(error)

    def close(self) -> None:
        """Close the connection, and drop the request in flight."""
        self._in_flight.clear()
        if self._transport is not None:
            self._transport.close()
