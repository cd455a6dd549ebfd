"""Frames of Kafka's protocol, the headers of requests and responses, and requests in flight.

A frame is a four-byte length, followed by that many bytes. Invariants:

1. A length is checked as soon as its four bytes are received, before later bytes are buffered. The
   caller may change the limit during the connection (after authentication).
2. At most four bytes more than the limit are buffered.
3. An error is final: the position in the stream is lost, and every later call raises the error
   again.
"""

from __future__ import annotations

import functools
import struct
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Generic, NamedTuple, TypeAlias, TypeVar

from kio import index as kio_index

from raftlog.limits import STRING_BYTES_MAX

from .apis import APIS, Api, ApiKey, Listener, served_api
from .errors import (
    FrameLengthError,
    MalformedMessageError,
    UnsupportedApiError,
    UnsupportedFieldError,
)
from .fields import Cursor, skip_tagged

T = TypeVar("T")
LENGTH_BYTES: Final = 4
_HEADER_BYTES_KEPT_MAX: Final = 1024
"""Headers that are larger, as they can have tagged fields up to the size of a frame, are not kept
for comparison, because they are not counted in the connection's memory."""
_LENGTH_MAX: Final = 2**31 - 1
_TLS_CONTENT: Final = (0x15, 0x16)  # alert, handshake
_HTTP_STARTS: Final = (b"GET ", b"POST", b"PUT ", b"HEAD", b"HTTP", b"OPTI", b"CONN", b"PRI ")


class FrameDecoder:
    """Splits a stream of bytes into frames.

    ``byte_count_max`` limits the size of a frame without its length; ``where`` names the peer in
    errors.
    """

    def __init__(self, byte_count_max: int, where: str) -> None:
        self.byte_count_max = byte_count_max
        self._where = where
        self._buffer = bytearray()
        self.expected_byte_count = 0
        """Size of the incomplete frame, including its length; 0 if there is no such frame."""
        self._is_first = True
        self._error: FrameLengthError | None = None

    @property
    def buffered_byte_count(self) -> int:
        """Number of buffered bytes of an incomplete frame."""
        return len(self._buffer)

    def feed(self, data: bytes | bytearray | memoryview) -> list[bytes]:
        """Return the frames that these bytes complete, in order, without their lengths.

        Raises ``FrameLengthError`` for a length that is negative or above the limit, even if
        complete frames precede it in ``data``: they are lost with the connection.
        """
        if self._error is not None:
            raise self._error
        frames: list[bytes] = []
        position = 0
        if not self._buffer and type(data) is bytes:
            byte_count = int.from_bytes(data[:LENGTH_BYTES], "big")
            if byte_count == len(data) - LENGTH_BYTES and byte_count <= self.byte_count_max:
                self._is_first = False
                return [data[LENGTH_BYTES:]]  # the usual case: exactly one frame
            position = self._take_whole(data, frames)
            if position == len(data):
                return frames
        with memoryview(data) as fed:
            while position < len(fed):
                position = self._take(fed, position, frames)
        return frames

    def _take_whole(self, data: bytes, frames: list[bytes]) -> int:
        """Take the frames that are whole in these bytes; return the position after them."""
        position, available, byte_count_max = 0, len(data), self.byte_count_max
        while (start := position + LENGTH_BYTES) <= available:
            byte_count = int.from_bytes(data[position:start], "big", signed=True)
            end = start + byte_count
            if not 0 <= byte_count <= byte_count_max or end > available:
                break
            frames.append(data[start:end])
            position = end
        if frames:
            self._is_first = False
        return position

    def _take(self, fed: memoryview, position: int, frames: list[bytes]) -> int:
        """Take the bytes that the current frame lacks; return the position after them."""
        buffered = len(self._buffer)
        first = bytes(self._buffer[:LENGTH_BYTES])
        first += bytes(fed[position : position + LENGTH_BYTES - len(first)])
        wanted = self._frame_byte_count(first)
        taken = fed[position : position + wanted - buffered]
        if len(first) == LENGTH_BYTES and buffered + len(taken) == wanted:
            frames.append(self._complete(taken))
            self._is_first = False
            self.expected_byte_count = 0
        else:
            self._buffer += taken
            self.expected_byte_count = wanted
        return position + len(taken)

    def _complete(self, taken: memoryview) -> bytes:
        """Return the frame that these bytes complete; a frame in one piece is copied once."""
        if not self._buffer:
            return bytes(taken[LENGTH_BYTES:])
        self._buffer += taken
        with memoryview(self._buffer) as whole:
            data = bytes(whole[LENGTH_BYTES:])
        self._buffer = bytearray()
        return data

    def _frame_byte_count(self, first: bytes) -> int:
        """Return the size of the frame including its length; 4 until the length is complete."""
        if len(first) < LENGTH_BYTES:
            return LENGTH_BYTES
        byte_count = int.from_bytes(first, "big", signed=True)
        if not 0 <= byte_count <= self.byte_count_max:
            self._error = FrameLengthError(
                where=self._where,
                byte_count=byte_count,
                byte_count_max=self.byte_count_max,
                hint=_hint(first) if self._is_first else None,
            )
            self._buffer = bytearray()
            raise self._error
        return LENGTH_BYTES + byte_count


def frame(*parts: bytes) -> bytes:
    """Return a frame with these parts."""
    byte_count = sum(map(len, parts))
    assert byte_count <= _LENGTH_MAX, "messages are limited to far less"
    return b"".join((byte_count.to_bytes(LENGTH_BYTES, "big"), *parts))


def _hint(first: bytes) -> str | None:
    """Return a remedy if the first four bytes of a stream belong to another protocol (KIP-498)."""
    if first[0] in _TLS_CONTENT and first[1] == 3:
        return "the bytes look like TLS: enable TLS on both sides or on neither"
    if first in _HTTP_STARTS:
        return "the bytes look like HTTP: this port serves Kafka's protocol, check the port"
    return None


# --- Headers of requests and responses, and their versions ----------------------------------------
# 1. Header versions are those in kio's schemas (Kafka: ``ApiKeys.requestHeaderVersion``): a request
#    of a flexible version has header version 2, and any other request has header version 1.
# 2. The client id is never compact. An ApiVersions response has header version 0 in every version,
#    because the client does not know the supported versions yet (KIP-511).
# 3. ApiVersions in an unsupported version is not an error: its body is ignored, and the response
#    has version 0 and error 35.

_NUMBERS: Final = struct.Struct(">hhi")
_CORRELATION: Final = struct.Struct(">i")
_INT16: Final = struct.Struct(">h")
_NO_TAGS: Final = b"\x00"


class RequestHeader(NamedTuple):
    """Request header; the response header has the same ``correlation_id``."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None = None


class ReceivedRequest(NamedTuple):
    """Request of a served API and version; its body begins at ``body_start`` in the frame."""

    header: RequestHeader
    body_start: int


@dataclass(frozen=True, slots=True)
class UnknownApiVersions:
    """ApiVersions request of an unsupported version; the response has version 0 and error 35."""

    correlation_id: int


Received: TypeAlias = ReceivedRequest | UnknownApiVersions


@functools.cache
def request_header_version(api_key: int, version: int) -> int:
    """Return the header version of a request of an API."""
    return kio_index.load_request_schema(api_key, version).__header_schema__.__version__


@functools.cache
def response_header_version(api_key: int, version: int) -> int:
    """Return the header version of an API's response; of ApiVersions, in any version."""
    if api_key == ApiKey.API_VERSIONS:
        return 0
    return kio_index.load_response_schema(api_key, version).__header_schema__.__version__


def receive_request(frame: bytes, listener: Listener, apis: Mapping[int, Api] = APIS) -> Received:
    """Decode the header of a request that this listener serves.

    Raises ``MalformedMessageError`` for an invalid header and ``UnsupportedApiError`` for an API or
    version that is not served. The connection must be closed after either.
    """
    cursor = Cursor(frame, "RequestHeader", None)
    api_key, version, correlation_id = cursor.unpack(_NUMBERS, "the header")
    try:
        served_api(api_key, version, listener, apis)
    except UnsupportedApiError:
        if api_key == ApiKey.API_VERSIONS:
            return UnknownApiVersions(correlation_id)
        raise
    (byte_count,) = cursor.unpack(_INT16, "client id")
    try:
        client_id = None if byte_count < 0 else cursor.take(byte_count, "client id").decode()
    except UnicodeDecodeError:
        cursor.fail("client id is not UTF-8")
    if request_header_version(api_key, version) > 1:
        skip_tagged(cursor)
    header = RequestHeader(api_key, version, correlation_id, client_id)
    return ReceivedRequest(header, cursor.position)


class RequestReceiver:
    """Decoder of the request headers of one connection.

    Most headers differ from the previous one only in the correlation id, so the rest is compared
    instead of decoded.
    """

    def __init__(self, apis: Mapping[int, Api]) -> None:
        self._apis = apis
        self._before: RequestHeader | None = None
        self._api = self._client = b""

    def receive(self, frame: bytes, listener: Listener) -> Received:
        """Decode a header, like ``receive_request``. ``listener`` is the same in every call."""
        before = self._before
        if before is not None and frame.startswith(self._api):
            start = _NUMBERS.size
            if frame.startswith(self._client, start):
                (correlation_id,) = _CORRELATION.unpack_from(frame, len(self._api))
                header = RequestHeader(
                    before.api_key, before.api_version, correlation_id, before.client_id
                )
                return ReceivedRequest(header, start + len(self._client))
        received = receive_request(frame, listener, self._apis)
        if isinstance(received, ReceivedRequest) and received.body_start <= _HEADER_BYTES_KEPT_MAX:
            self._before, body_start = received
            self._api = frame[: _NUMBERS.size - _CORRELATION.size]
            self._client = frame[_NUMBERS.size : body_start]
        return received


def encode_request_header(header: RequestHeader, header_version: int | None = None) -> bytes:
    """Return the bytes of a header, by default in the header version of its request."""
    if header_version is None:
        header_version = request_header_version(header.api_key, header.api_version)
    client_id = None if header.client_id is None else header.client_id.encode()
    if client_id is not None and len(client_id) > STRING_BYTES_MAX:
        raise UnsupportedFieldError(
            api="RequestHeader",
            version=header_version,
            field="client_id",
            reason=f"the client id has {len(client_id)} bytes, but at most "
            f"{STRING_BYTES_MAX} are allowed",
        )
    out = _NUMBERS.pack(header.api_key, header.api_version, header.correlation_id)
    out += _INT16.pack(-1 if client_id is None else len(client_id)) + (client_id or b"")
    return out + _NO_TAGS if header_version > 1 else out


def decode_response_header(data: bytes, api_key: int, version: int) -> tuple[int, int]:
    """Return the correlation id of this API's response, and the position of its body."""
    header_version = response_header_version(api_key, version)
    if header_version == 1 and len(data) > _CORRELATION.size and not data[_CORRELATION.size]:
        return _CORRELATION.unpack_from(data)[0], _CORRELATION.size + 1  # no tagged fields
    cursor = Cursor(data, "ResponseHeader", header_version)
    (correlation_id,) = _CORRELATION.unpack(cursor.take(_CORRELATION.size, "the header"))
    if header_version > 0:
        skip_tagged(cursor)
    return correlation_id, cursor.position


def encode_response_header(correlation_id: int, api_key: int, version: int) -> bytes:
    out = _CORRELATION.pack(correlation_id)
    return out + _NO_TAGS if response_header_version(api_key, version) > 0 else out


# --- Requests without a response ------------------------------------------------------------------

_CORRELATION_MAX: Final = 2**31


class InFlightRequests(Generic[T]):
    """Requests of one connection that have no response yet; a node responds in request order.

    Kafka: ``InFlightRequests``, ``NetworkClient.parseResponse``.
    """

    def __init__(self, client_id: str) -> None:
        self._client_id: Final = client_id
        self._requests: Final[deque[tuple[RequestHeader, T]]] = deque()
        self._next_id = 0
        self._header_ends: Final[dict[tuple[int, int], bytes]] = {}
        """By API and version: the bytes that follow the numbers of a request header."""

    def __len__(self) -> int:
        return len(self._requests)

    def add(self, api_key: int, version: int, body: bytes, request: T) -> bytes:
        """Return the frame of a request. ``request`` is the object that ``match`` returns."""
        header = RequestHeader(api_key, version, self._next_id, self._client_id)
        end = self._header_ends.get((api_key, version))
        if end is None:
            end = encode_request_header(header)[_NUMBERS.size :]
            self._header_ends[api_key, version] = end
        numbers = _NUMBERS.pack(api_key, version, self._next_id)
        self._next_id = (self._next_id + 1) % _CORRELATION_MAX
        self._requests.append((header, request))
        return frame(numbers, end, body)

    def match(self, data: bytes) -> tuple[T, int]:
        """Return the request of a response, and the position of the body of the response.

        The request stays in flight until ``complete`` is called. Raises ``MalformedMessageError``
        if the response does not belong to the oldest request.
        """
        reason = "no request is in flight"
        if self._requests:
            header, request = self._requests[0]
            found, start = decode_response_header(data, header.api_key, header.api_version)
            if found == header.correlation_id:
                return request, start
            reason = f"correlation id {found}, expected {header.correlation_id}"
        raise MalformedMessageError(api="ResponseHeader", version=None, position=0, reason=reason)

    def complete(self) -> None:
        """Remove the oldest request."""
        self._requests.popleft()

    def clear(self) -> list[T]:
        """Remove all requests, and return them."""
        requests = [request for _, request in self._requests]
        self._requests.clear()
        return requests
