"""One connection to one node: questions go out in order, answers come back in that order.

Rules of this file:

1. A connection that fails fails everything that was asked on it: ``ConnectionLostError`` says
   nothing of what the node did. One on which an answer is late is closed, for those behind it are
   late, too.
2. Versions are agreed on when the connection is made (KIP-35, KIP-511).
3. Bytes of a peer are bounded by ``FrameDecoder``, and read by ``raftlog.wire``'s decoders only.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar, cast

import raftlog
from raftlog.errors import AccessDeniedError, NoCommonVersionError, WireError
from raftlog.limits import WIRE_FRAME_BYTES_MAX
from raftlog.wire import (
    ApiKey,
    FrameDecoder,
    NodeApiVersions,
    RequestHeader,
    VersionRange,
    common_version,
    decode,
    decode_response_header,
    decode_versions_response,
    encode,
    encode_request_header,
    encode_versions_request,
    frame,
)

from .addresses import Address

T = TypeVar("T")
CLIENT_ID: Final = "raftlog"
INITIAL_API_VERSIONS_VERSION: Final = 4
_NO_ADDRESS: Final = (ValueError, OverflowError)
"""What Python says of a host that is no name, and of a port that is none: nodes tell both."""
_CORRELATION_MAX: Final = 2**31


class ConnectionLostError(Exception):
    """The connection ended. What was asked may have been done, or not."""


@dataclass(frozen=True, slots=True)
class Reply:
    """A frame that answers a question of this version; its body begins at ``body_start``."""

    version: int
    frame: bytes
    body_start: int

    def decoded(self, target: type[T]) -> T:
        """Raises ``MalformedMessageError``."""
        return decode(target, self.version, self.frame, start=self.body_start)


@dataclass(frozen=True, slots=True)
class _InFlightRequest:
    api_key: int
    version: int
    reply: asyncio.Future[Reply]


class Connection(asyncio.Protocol):
    """A connection, as its loop has it. ``Connection.open`` makes it."""

    def __init__(self, address: Address) -> None:
        self.address: Final = address
        self.versions: Mapping[int, VersionRange] = {}
        self._transport: asyncio.Transport | None = None
        self._splitter = FrameDecoder(WIRE_FRAME_BYTES_MAX, str(address))
        self._in_flight: dict[int, _InFlightRequest] = {}
        self._next_correlation_id = 0
        self._lost: str | None = None

    @classmethod
    async def open(
        cls, address: Address, context: ssl.SSLContext | None, *, timeout_s: float
    ) -> Connection:
        """Connect and agree on versions.

        Raises ``ConnectionLostError``, and ``AccessDeniedError`` if one side does not believe the
        other's certificate.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + timeout_s
        try:
            async with asyncio.timeout_at(until):
                _, protocol = await loop.create_connection(
                    lambda: cls(address), address.host, address.port, ssl=context
                )
        except TimeoutError:
            raise ConnectionLostError(f"{address} did not answer in time") from None
        except ssl.SSLCertVerificationError as error:
            raise AccessDeniedError(path=str(address), reason=error.verify_message) from None
        except (OSError, EOFError, *_NO_ADDRESS) as error:
            raise ConnectionLostError(f"{address}: {_error_text(error)}") from None
        connection = protocol
        try:
            await connection._negotiate_versions(max(until - loop.time(), 0))
        except ConnectionLostError as error:
            connection.close("no versions were agreed on")
            if context is None:
                raise
            hint = "perhaps it wants a certificate, or one that another CA signed"
            raise ConnectionLostError(f"{error}, before it answered anything: {hint}") from None
        except BaseException:
            connection.close("no versions were agreed on")
            raise
        return connection

    async def _negotiate_versions(self, timeout_s: float) -> None:
        version, offered = INITIAL_API_VERSIONS_VERSION, NodeApiVersions()
        for _ in range(2):
            body = encode_versions_request(
                version, software="raftlog", software_version=raftlog.__version__
            )
            reply = await self.wait(self._send(ApiKey.API_VERSIONS, version, body), timeout_s)
            offered = decode_versions_response(reply.version, reply.frame, start=reply.body_start)
            if not offered.is_version_unsupported:
                break
            version = (
                min(offered.versions[ApiKey.API_VERSIONS].last, version)
                if (ApiKey.API_VERSIONS in offered.versions)
                else 0
            )
        if offered.error:
            raise ConnectionLostError(f"{self.address} answers ApiVersions with {offered.error}")
        self.versions = offered.versions

    @property
    def is_open(self) -> bool:
        return self._lost is None and self._transport is not None

    def serves(self, api_key: ApiKey) -> bool:
        """Whether the node serves a request in a version that we speak."""
        try:
            common_version(api_key, self.versions)
        except NoCommonVersionError:
            return False
        return True

    def send(self, api_key: ApiKey, message: Any) -> asyncio.Future[Reply]:
        """Ask something, now; the answer comes as the future's result.

        Raises ``ConnectionLostError``, ``NoCommonVersionError``, ``UnsupportedFieldError``.
        """
        version = common_version(api_key, self.versions)
        return self._send(api_key, version, encode(message, version))

    async def request(
        self, api_key: ApiKey, message: Any, target: type[T], *, timeout_s: float
    ) -> T:
        """Ask, and wait for the answer. Raises as ``send``, and what a bad answer raises."""
        reply = await self.wait(self.send(api_key, message), timeout_s)
        try:
            return reply.decoded(target)
        except WireError:
            self.close("its answer could not be read")
            raise

    async def wait(self, reply: asyncio.Future[Reply], timeout_s: float) -> Reply:
        """Wait for an answer; the connection is closed if it does not come in time."""
        done, _ = await asyncio.wait((reply,), timeout=timeout_s)
        if not done:
            self.close(f"it did not answer within {timeout_s:.1f} s")
        return await reply

    def close(self, reason: str) -> None:
        """Close at once; whoever waits is told."""
        self._fail(reason)
        if self._transport is not None:
            self._transport.abort()

    # --- what the loop calls ----------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        try:
            for one in self._splitter.feed(data):
                self._receive(one)
        except WireError as error:
            self.close(error.message())

    def connection_lost(self, exc: Exception | None) -> None:
        if isinstance(exc, ssl.SSLError):  # the peer did not like our certificate
            denied = AccessDeniedError(
                path=str(self.address), reason=f"TLS: {exc.reason or type(exc).__name__}"
            )
            self._fail_all(denied)
        self._fail("it closed the connection" if exc is None else _error_text(exc))

    # --- inside -----------------------------------------------------------------------------------

    def _send(self, api_key: ApiKey, version: int, body: bytes) -> asyncio.Future[Reply]:
        if self._lost is not None or self._transport is None:
            raise ConnectionLostError(f"{self.address}: {self._lost or 'it is not connected'}")
        number = self._next_correlation_id
        self._next_correlation_id = (number + 1) % _CORRELATION_MAX
        header = RequestHeader(
            api_key=api_key, api_version=version, correlation_id=number, client_id=CLIENT_ID
        )
        reply: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._in_flight[number] = _InFlightRequest(api_key, version, reply)
        self._transport.write(frame(encode_request_header(header), body))
        return reply

    def _receive(self, data: bytes) -> None:
        number = int.from_bytes(data[:4], "big", signed=True)
        asked = self._in_flight.pop(number, None)
        if asked is None:
            self.close("it answers what was not asked")
            return
        _, body_start = decode_response_header(data, asked.api_key, asked.version)
        if not asked.reply.done():
            asked.reply.set_result(Reply(asked.version, data, body_start))

    def _fail(self, reason: str) -> None:
        if self._lost is None:
            self._lost = reason
        self._fail_all(ConnectionLostError(f"{self.address}: {self._lost}"))

    def _fail_all(self, error: Exception) -> None:
        asked, self._in_flight = self._in_flight, {}
        for one in asked.values():
            if not one.reply.done():
                one.reply.set_exception(error)
                one.reply.exception()  # nobody has to look at it


def _error_text(error: BaseException) -> str:
    words = getattr(error, "strerror", None) or str(error)
    return words or type(error).__name__
