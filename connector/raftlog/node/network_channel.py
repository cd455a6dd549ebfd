"""Connections to the other nodes of a quorum: what the replica asks them, and what they answer.

Rules of this file:

1. A node is asked one thing at a time, and the core knows when it has waited long enough: what it
   asks while an older question waits means that it gave the older one up, so the connection is
   closed (Kafka: ``NetworkClient`` on a request's timeout). No answer is taken for another's.
2. What a peer speaks is asked first, on every connection. Bytes that make no sense close it.
3. Every question ends: with an answer, or as a failure that the core hears of. One after the other
   is told later and later: a peer that cannot be reached costs no handshakes all the time (Kafka:
   ``reconnect.backoff.ms``).
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Mapping
from typing import Final

from raftlog.errors import NoCommonVersionError, UnsupportedFieldError, WireError
from raftlog.quorum.effects import Send
from raftlog.quorum.events import Event, ResponseReceived, SendFailed
from raftlog.quorum.messages import Response, VersionsRequest
from raftlog.quorum.voters import Endpoint
from raftlog.wire import (
    APIS,
    ApiKey,
    FrameDecoder,
    LogIdentity,
    RequestError,
    RequestHeader,
    VersionRange,
    common_version,
    decode_response,
    decode_response_header,
    decode_versions_response,
    encode_request,
    encode_request_header,
    encode_versions_request,
    frame,
    request_api_key,
)

_READ_BYTES: Final = 256 * 1024
_NO_ADDRESS: Final = (ValueError, OverflowError)
"""What Python says of a host that is no name, and of a port that is none."""
_PAUSE_S: Final = 0.05
_PAUSE_S_MAX: Final = 0.5
_API_VERSIONS_VERSION: Final = 4
"""Of ApiVersions: the first that tells which levels of ``kraft.version`` a node knows."""


class NetworkChannel:
    """The other nodes, by id. A node's connection lasts until it fails or moves."""

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
        """``tls`` gives what proves the node of an id, ``log_event`` takes what went wrong with a
        node, for people."""
        self._identity = identity
        self._client_id = client_id
        self._software_version = software_version
        self._handle = handle
        self._log_event = log_event
        self._tls = tls
        self._frame_bytes_max = frame_bytes_max
        self._in_flight: dict[int, asyncio.Task[None]] = {}
        self._connections: dict[int, _Connection] = {}
        self._failures: dict[int, int] = {}
        """Of each node: how often in a row it could not be asked."""

    def send(self, asked: Send) -> None:
        """Ask a node; the core is told what came of it, never before this returns."""
        node_id = asked.node_id
        under_way = self._in_flight.pop(node_id, None)
        if under_way is not None and not under_way.done():
            under_way.cancel()
            self._disconnect(node_id)
        self._in_flight[node_id] = asyncio.get_running_loop().create_task(self._ask(asked))

    def disconnect(self) -> None:
        """Connect anew: every node has to prove itself again. What is under way fails."""
        for node_id in list(self._connections):
            self._disconnect(node_id)

    async def close(self) -> None:
        """Ask nothing more."""
        for task in self._in_flight.values():
            task.cancel()
        await asyncio.gather(*self._in_flight.values(), return_exceptions=True)
        self.disconnect()

    async def _ask(self, asked: Send) -> None:
        try:
            response = await self._answer(asked)
        except (NoCommonVersionError, UnsupportedFieldError) as error:
            self._fail(asked, str(error), is_version_unsupported=True)
        except (OSError, EOFError, ssl.SSLError, WireError, *_NO_ADDRESS) as error:
            self._disconnect(asked.node_id)
            failures = self._failures[asked.node_id] = self._failures.get(asked.node_id, 0) + 1
            if failures > 1:
                await asyncio.sleep(min(_PAUSE_S * 2 ** (failures - 2), _PAUSE_S_MAX))
            self._fail(asked, str(error) or type(error).__name__)
        else:
            self._failures.pop(asked.node_id, None)
            if isinstance(response, RequestError):
                self._fail(asked, f"refused with code {response.error}: {response.reason}")
            else:
                self._end(asked, ResponseReceived(asked.correlation_id, response))

    def _fail(self, asked: Send, reason: str, *, is_version_unsupported: bool = False) -> None:
        what = request_api_key(asked.request).name
        self._log_event(asked.node_id, f"asked in vain for {what}: {reason}")
        failed = SendFailed(asked.correlation_id, is_version_unsupported=is_version_unsupported)
        self._end(asked, failed)

    def _end(self, asked: Send, event: Event) -> None:
        """Tell the core, which may ask the same node on: this question is under way no more."""
        del self._in_flight[asked.node_id]
        self._handle(event)

    async def _answer(self, asked: Send) -> Response | RequestError:
        connection = await self._connection(asked.node_id, asked.endpoints)
        if isinstance(asked.request, VersionsRequest):
            return connection.answered_versions
        key = request_api_key(asked.request)
        version = common_version(key, connection.offered)
        body = encode_request(asked.request, version, self._identity)
        data, start = await connection.ask(key, version, body)
        return decode_response(key, version, data, self._identity, start=start)

    async def _connection(self, node_id: int, endpoints: tuple[Endpoint, ...]) -> _Connection:
        name = self._identity.listener_name
        found = [one for one in endpoints if one.name == name] or list(endpoints)
        if not found:
            raise ConnectionError("nobody knows where it listens")
        endpoint = found[0]
        connection = self._connections.get(node_id)
        if connection is not None and connection.endpoint == endpoint:
            return connection
        self._disconnect(node_id)
        tls = self._tls(node_id)
        reader, writer = await asyncio.open_connection(
            endpoint.host,
            endpoint.port,
            ssl=tls,
            server_hostname=endpoint.host if tls is not None else None,
        )
        connection = _Connection(endpoint, reader, writer, self._client_id, self._frame_bytes_max)
        try:
            await connection.ask_versions(self._software_version, self._identity)
            if self._tls(node_id) is not tls:
                raise ConnectionError("meanwhile something else proves who it is")
        except BaseException:
            connection.close()
            raise
        self._connections[node_id] = connection
        return connection

    def _disconnect(self, node_id: int) -> None:
        connection = self._connections.pop(node_id, None)
        if connection is not None:
            connection.close()


class _Connection:
    """One connection, asked one thing at a time."""

    def __init__(
        self,
        endpoint: Endpoint,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        client_id: str,
        frame_bytes_max: int,
    ) -> None:
        self.endpoint: Final = endpoint
        self.offered: Mapping[int, VersionRange] = {}
        self.answered_versions: Response | RequestError
        self._reader = reader
        self._writer = writer
        self._client_id = client_id
        self._splitter = FrameDecoder(frame_bytes_max, f"{endpoint.host}:{endpoint.port}")
        self._frames: list[bytes] = []
        self._last_id = 0

    async def ask_versions(self, software_version: str, identity: LogIdentity) -> None:
        """Find out what the peer speaks."""
        key, version = ApiKey.API_VERSIONS, _API_VERSIONS_VERSION
        body = encode_versions_request(
            version, software="raftlog", software_version=software_version
        )
        data, start = await self.ask(key, version, body)
        self.offered = decode_versions_response(version, data, start=start).versions
        self.answered_versions = decode_response(key, version, data, identity, start=start)

    async def ask(self, key: ApiKey, version: int, body: bytes) -> tuple[bytes, int]:
        """The answer's frame, and where its body begins. Raises ``OSError``, ``EOFError`` and
        ``WireError``."""
        self._last_id += 1
        header = RequestHeader(
            api_key=APIS[key].key,
            api_version=version,
            correlation_id=self._last_id,
            client_id=self._client_id,
        )
        self._writer.write(frame(encode_request_header(header), body))
        await self._writer.drain()
        data = await self._next_frame()
        correlation_id, start = decode_response_header(data, key, version)
        if correlation_id != self._last_id:
            raise ConnectionError(f"it answered {correlation_id}, asked was {self._last_id}")
        return data, start

    async def _next_frame(self) -> bytes:
        while not self._frames:
            data = await self._reader.read(_READ_BYTES)
            if not data:
                raise EOFError("it closed the connection")
            self._frames += self._splitter.feed(data)
        return self._frames.pop(0)

    def close(self) -> None:
        self._writer.close()
