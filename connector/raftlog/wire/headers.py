"""Headers of requests and responses, and their versions.

1. Header versions are those of kio's schemas (Kafka: ``ApiKeys.requestHeaderVersion``): a request
   of a flexible version has header version 2, any other version 1.
2. The client id is never compact. An ApiVersions response has header version 0 in every version,
   because the client does not know the supported versions yet (KIP-511).
3. ApiVersions in an unsupported version is not an error: its body is ignored, and the response has
   version 0 and error 35.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from kio import index as kio_index

from raftlog.errors import UnsupportedApiError, UnsupportedFieldError
from raftlog.limits import STRING_BYTES_MAX

from .apis import APIS, Api, ApiKey, Listener, served_api
from .decoding import Cursor, skip_tagged

_NUMBERS: Final = struct.Struct(">hhi")
_CORRELATION: Final = struct.Struct(">i")
_INT16: Final = struct.Struct(">h")
_NO_TAGS: Final = b"\x00"


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestHeader:
    """Request header; the response header has the same ``correlation_id``."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None = None


@dataclass(frozen=True, slots=True)
class ReceivedRequest:
    """Request of a served API and version; its body begins at ``body_start`` of the frame."""

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
    """Return the header version of a response of an API; ApiVersions in any version."""
    if api_key == ApiKey.API_VERSIONS:
        return 0
    return kio_index.load_response_schema(api_key, version).__header_schema__.__version__


def receive_request(frame: bytes, listener: Listener, apis: Mapping[int, Api] = APIS) -> Received:
    """Decode the header of a request that this listener serves.

    Raises ``MalformedMessageError`` for an invalid header and ``UnsupportedApiError`` for an API or
    version that is not served. The connection must be closed after either.
    """
    cursor = Cursor(frame, "RequestHeader", None)
    api_key, version, correlation_id = _NUMBERS.unpack(cursor.take(_NUMBERS.size, "the header"))
    try:
        served_api(api_key, version, listener, apis)
    except UnsupportedApiError:
        if api_key == ApiKey.API_VERSIONS:
            return UnknownApiVersions(correlation_id)
        raise
    header, body_start = decode_request_header(frame, request_header_version(api_key, version))
    return ReceivedRequest(header, body_start)


def decode_request_header(data: bytes, header_version: int) -> tuple[RequestHeader, int]:
    """Return the header, of version 1 or 2, and the position of the body."""
    cursor = Cursor(data, "RequestHeader", header_version)
    api_key, version, correlation_id = _NUMBERS.unpack(cursor.take(_NUMBERS.size, "the header"))
    client_id = _client_id(cursor)
    if header_version > 1:
        skip_tagged(cursor)
    header = RequestHeader(
        api_key=api_key, api_version=version, correlation_id=correlation_id, client_id=client_id
    )
    return header, cursor.position


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
    """Return the correlation id of a response of this API, and the position of its body."""
    header_version = response_header_version(api_key, version)
    cursor = Cursor(data, "ResponseHeader", header_version)
    (correlation_id,) = _CORRELATION.unpack(cursor.take(_CORRELATION.size, "the header"))
    if header_version > 0:
        skip_tagged(cursor)
    return correlation_id, cursor.position


def encode_response_header(correlation_id: int, api_key: int, version: int) -> bytes:
    out = _CORRELATION.pack(correlation_id)
    return out + _NO_TAGS if response_header_version(api_key, version) > 0 else out


def _client_id(cursor: Cursor) -> str | None:
    (byte_count,) = _INT16.unpack(cursor.take(_INT16.size, "client id"))
    if byte_count < 0:
        return None
    try:
        return cursor.take(byte_count, "client id").decode()
    except UnicodeDecodeError:
        cursor.fail("client id is not UTF-8")
