"""Connections of a replica to the other nodes of its quorum: requests and responses.

1. A node has at most one request in flight, and the core controls timeouts: a new request to a node
   means that the older one has timed out, so its connection is closed (Kafka: ``NetworkClient`` on
   a request timeout). A response is never matched to another request.
2. Every connection starts with ApiVersions. Malformed bytes close it.
3. Every request of the core ends with a response or a ``SendFailed`` event. Repeated failures of a
   node are reported with an increasing delay, so that an unreachable node does not cause continuous
   connection attempts (Kafka: ``reconnect.backoff.ms``).
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from raftlog.errors import NoCommonVersionError, UnsupportedFieldError, WireError
from raftlog.quorum.effects import Send
from raftlog.quorum.events import Event, ResponseReceived, SendFailed
from raftlog.quorum.messages import Response, VersionsRequest
from raftlog.quorum.voters import Endpoint
from raftlog.wire import (
    ApiKey,
    FrameDecoder,
    LogIdentity,
    RequestError,
    RequestHeader,
    VersionRange,
    common_version,
    decode,
    decode_response,
    decode_response_header,
    decode_versions_response,
    encode,
    encode_request,
    encode_request_header,
    encode_versions_request,
    frame,
    request_api_key,
)

_READ_BYTES: Final = 256 * 1024
_NO_ADDRESS: Final = (ValueError, OverflowError)
"""Errors of Python for an invalid host name or port."""
_PAUSE_S: Final = 0.05
_PAUSE_S_MAX: Final = 0.5
_API_VERSIONS_VERSION: Final = 4
"""The first version of ApiVersions with the supported range of ``kraft.version``."""


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
        self._client_id = client_id
        self._software_version = software_version
        self._handle = handle
        self._log_event = log_event
        self._tls = tls
        self._frame_bytes_max = frame_bytes_max
        self.wall_s: Callable[[], float] = time.time
        """Clock of the validity of certificates, in seconds since 1970."""
        self._in_flight: dict[int, asyncio.Task[None]] = {}
        self._connections: dict[int, _Connection] = {}
        self._failures: dict[int, int] = {}
        """Number of consecutive failures, by node id."""

    def send(self, outgoing: Send) -> None:
        """Send a request to a node. The resulting event follows, never before this returns."""
        node_id = outgoing.node_id
        under_way = self._in_flight.pop(node_id, None)
        if under_way is not None and not under_way.done():
            under_way.cancel()
            self._disconnect(node_id)
        self._in_flight[node_id] = asyncio.get_running_loop().create_task(self._send(outgoing))

    async def ask(
        self,
        node_id: int,
        endpoints: tuple[Endpoint, ...],
        key: ApiKey,
        request: object,
        response_class: type[Any],
    ) -> Any:
        """Return a node's response to a request that is not of the core, on a new connection.

        Raises ``OSError``, ``EOFError`` and ``WireError``.
        """
        connection = await self._open(node_id, self._endpoint(endpoints))
        try:
            version = common_version(key, connection.api_versions)
            data, start = await connection.exchange(key, version, encode(request, version))
            return decode(response_class, version, data, start=start)
        finally:
            connection.close()

    def disconnect(self) -> None:
        """Close all connections, so that nodes authenticate again. Requests in flight fail."""
        for node_id in list(self._connections):
            self._disconnect(node_id)

    async def close(self) -> None:
        """Cancel requests in flight and close all connections."""
        for task in self._in_flight.values():
            task.cancel()
        await asyncio.gather(*self._in_flight.values(), return_exceptions=True)
        self.disconnect()

    async def _send(self, outgoing: Send) -> None:
        try:
            response = await self._exchange(outgoing)
        except (NoCommonVersionError, UnsupportedFieldError) as error:
            self._fail(outgoing, str(error), is_version_unsupported=True)
        except (OSError, EOFError, ssl.SSLError, WireError, *_NO_ADDRESS) as error:
            self._disconnect(outgoing.node_id)
            failures = self._failures[outgoing.node_id] = (
                self._failures.get(outgoing.node_id, 0) + 1
            )
            if failures > 1:
                await asyncio.sleep(min(_PAUSE_S * 2 ** (failures - 2), _PAUSE_S_MAX))
            self._fail(outgoing, str(error) or type(error).__name__)
        else:
            self._failures.pop(outgoing.node_id, None)
            if isinstance(response, RequestError):
                self._fail(outgoing, f"error code {response.error}: {response.reason}")
            else:
                self._end(outgoing, ResponseReceived(outgoing.correlation_id, response))

    def _fail(self, outgoing: Send, reason: str, *, is_version_unsupported: bool = False) -> None:
        what = request_api_key(outgoing.request).name
        self._log_event(outgoing.node_id, f"{what} request failed: {reason}")
        failed = SendFailed(outgoing.correlation_id, is_version_unsupported=is_version_unsupported)
        self._end(outgoing, failed)

    def _end(self, outgoing: Send, event: Event) -> None:
        """End a request before its event, because the core may send the next one to this node."""
        del self._in_flight[outgoing.node_id]
        self._handle(event)

    async def _exchange(self, outgoing: Send) -> Response | RequestError:
        connection = await self._connection(outgoing.node_id, outgoing.endpoints)
        if isinstance(outgoing.request, VersionsRequest):
            return connection.versions_response
        key = request_api_key(outgoing.request)
        version = common_version(key, connection.api_versions)
        body = encode_request(outgoing.request, version, self._identity)
        data, start = await connection.exchange(key, version, body)
        return decode_response(key, version, data, self._identity, start=start)

    async def _connection(self, node_id: int, endpoints: tuple[Endpoint, ...]) -> _Connection:
        endpoint = self._endpoint(endpoints)
        connection = self._connections.get(node_id)
        is_same = connection is not None and connection.endpoint == endpoint
        if connection is not None and is_same and not connection.has_expired(self.wall_s()):
            return connection
        self._disconnect(node_id)
        connection = self._connections[node_id] = await self._open(node_id, endpoint)
        return connection

    def _endpoint(self, endpoints: tuple[Endpoint, ...]) -> Endpoint:
        name = self._identity.listener_name
        found = [one for one in endpoints if one.name == name] or list(endpoints)
        if not found:
            raise ConnectionError("no endpoint of the node is known")
        return found[0]

    async def _open(self, node_id: int, endpoint: Endpoint) -> _Connection:
        tls = self._tls(node_id)
        reader, writer = await asyncio.open_connection(
            endpoint.host,
            endpoint.port,
            ssl=tls,
            server_hostname=endpoint.host if tls is not None else None,
        )
        connection = _Connection(endpoint, reader, writer, self._client_id, self._frame_bytes_max)
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


class _Connection:
    """Connection to one node, with at most one request in flight."""

    def __init__(
        self,
        endpoint: Endpoint,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        client_id: str,
        frame_bytes_max: int,
    ) -> None:
        self.endpoint: Final = endpoint
        self.api_versions: Mapping[int, VersionRange] = {}
        self.versions_response: Response | RequestError
        self._reader = reader
        self._writer = writer
        self._client_id = client_id
        self._decoder = FrameDecoder(frame_bytes_max, f"{endpoint.host}:{endpoint.port}")
        self._frames: list[bytes] = []
        self._last_id = 0

    def has_expired(self, wall_s: float) -> bool:
        """Return whether the node's certificate is not valid any more."""
        certificate = self._writer.get_extra_info("peercert")
        return bool(certificate) and wall_s > ssl.cert_time_to_seconds(certificate["notAfter"])

    async def request_versions(self, software_version: str, identity: LogIdentity) -> None:
        """Request the API versions of the peer."""
        key, version = ApiKey.API_VERSIONS, _API_VERSIONS_VERSION
        body = encode_versions_request(
            version, software="raftlog", software_version=software_version
        )
        data, start = await self.exchange(key, version, body)
        self.api_versions = decode_versions_response(version, data, start=start).versions
        self.versions_response = decode_response(key, version, data, identity, start=start)

    async def exchange(self, key: ApiKey, version: int, body: bytes) -> tuple[bytes, int]:
        """Send a request; return the frame of its response and the position of the body.

        Raises ``OSError``, ``EOFError`` and ``WireError``.
        """
        self._last_id += 1
        header = RequestHeader(
            api_key=key,
            api_version=version,
            correlation_id=self._last_id,
            client_id=self._client_id,
        )
        self._writer.write(frame(encode_request_header(header), body))
        await self._writer.drain()
        data = await self._next_frame()
        correlation_id, start = decode_response_header(data, key, version)
        if correlation_id != self._last_id:
            raise ConnectionError(
                f"the response has correlation id {correlation_id}, expected {self._last_id}"
            )
        return data, start

    async def _next_frame(self) -> bytes:
        while not self._frames:
            data = await self._reader.read(_READ_BYTES)
            if not data:
                raise EOFError("the peer closed the connection")
            self._frames += self._decoder.feed(data)
        return self._frames.pop(0)

    def close(self) -> None:
        self._writer.close()
