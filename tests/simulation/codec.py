"""Messages of a simulated network as bytes, encoded and decoded as between real nodes.

Invariants:

1. The codec is the product's (``raftlog.wire``): frame, header and body, each message in the
   version that its two nodes have in common. What is kept between messages, by
   ``ReplicaFetchCodec``, changes neither bytes nor messages.
2. A message that cannot be expressed in that version fails as in ``NetworkChannel``. One that a
   node cannot decode, or refuses as not for its log, violates an invariant: all nodes are of one
   log.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from typing import Final

from raftlog.quorum.messages import (
    FetchRequest,
    FetchResponse,
    Request,
    Response,
    VersionsResponse,
)
from raftlog.wire import (
    APIS,
    ApiKey,
    FrameDecoder,
    Listener,
    LogIdentity,
    ReceivedRequest,
    ReplicaFetchCodec,
    RequestError,
    RequestHeader,
    VersionRange,
    common_version,
    decode_fetch_request,
    decode_request,
    decode_response,
    decode_response_header,
    decode_versions_response,
    encode_request,
    encode_request_header,
    encode_response,
    encode_response_header,
    encode_versions_response,
    frame,
    receive_request,
    request_api_key,
)
from raftlog.wire.errors import WireError

from .driven_node import LISTENER_NAME, TOPIC_ID
from .invariants import InvariantViolationError

IDENTITY: Final = LogIdentity(
    topic="orders",
    topic_id=TOPIC_ID,
    cluster_id="c2ltdWxhdGVkIGNsdXN0ZQ",
    listener_name=LISTENER_NAME,
)
_FETCHES: Final = ReplicaFetchCodec(IDENTITY)
FRAME_BYTES_MAX: Final = 100 * 1024 * 1024
_VERSIONS_VERSION: Final = APIS[ApiKey.API_VERSIONS].versions.last
_OLDER: Final = (
    ApiKey.FETCH,
    ApiKey.VOTE,
    ApiKey.BEGIN_QUORUM_EPOCH,
    ApiKey.END_QUORUM_EPOCH,
    ApiKey.FETCH_SNAPSHOT,
)
"""Kafka versions that a node without directory ids supports if it has older versions."""


@dataclass(frozen=True, slots=True)
class SentRequest:
    """Version and kind of a sent request: its response is encoded alike."""

    api_key: ApiKey
    version: int
    correlation_id: int


Offer = Mapping[int, VersionRange]


def offer(chance: Random | None) -> Offer:
    """Return the API versions of a listener for voters: the newest ones, or randomly older ones."""
    data = encode_versions_response(_VERSIONS_VERSION, Listener.VOTERS)
    versions = dict(decode_versions_response(_VERSIONS_VERSION, data).versions)
    for key in _OLDER if chance is not None else ():
        assert chance is not None
        first, last = versions[key].first, versions[key].last
        versions[key] = VersionRange(first, chance.randrange(first, last + 1))
    return versions


def encode_request_frame(
    request: Request, correlation_id: int, asking: Offer, asked: Offer
) -> tuple[bytes, SentRequest]:
    """Return the bytes of a request in the newest version that both nodes support.

    Raises ``NoCommonVersionError`` and ``UnsupportedFieldError``.
    """
    key = request_api_key(request)
    version = min(common_version(key, asked), asking[key].last)
    header = RequestHeader(
        api_key=key, api_version=version, correlation_id=correlation_id, client_id="simulated"
    )
    if isinstance(request, FetchRequest):
        body = _FETCHES.encode_request(request, version)
    else:
        body = encode_request(request, version, IDENTITY)
    return frame(encode_request_header(header), body), SentRequest(key, version, correlation_id)


def decode_request_frame(data: bytes) -> Request:
    """Return the decoded request. Raises ``InvariantViolationError``."""
    try:
        body = _body(data)
        received = receive_request(body, Listener.VOTERS)
        assert isinstance(received, ReceivedRequest), "its version was announced"
        header, start = received.header, received.body_start
        found: Request | RequestError | None
        if header.api_key == ApiKey.FETCH:
            found = _FETCHES.known_request(header.api_version, body, start)
            if found is None:
                decoded = decode_fetch_request(header.api_version, body, start=start)
                found = _FETCHES.decode_request(header.api_version, body, start, decoded)
        else:
            found = decode_request(header.api_key, header.api_version, body, IDENTITY, start=start)
    except WireError as error:
        raise InvariantViolationError(f"nodes of one log speak: {error}") from error
    if isinstance(found, RequestError):
        raise InvariantViolationError(f"nodes of one log speak: {found}")
    return found


def encode_response_frame(response: Response, asked: SentRequest) -> bytes:
    """Return the bytes of a response. Raises ``InvariantViolationError``."""
    key, version = asked.api_key, asked.version
    try:
        if isinstance(response, VersionsResponse):
            levels = VersionRange(response.kraft_version_min, response.kraft_version_max)
            body = encode_versions_response(version, Listener.VOTERS, kraft_versions=levels)
        elif isinstance(response, FetchResponse):
            body = b"".join(_FETCHES.encode_response(response, version))
        else:
            body = b"".join(encode_response(key, version, response, IDENTITY))
    except WireError as error:
        raise InvariantViolationError(f"nodes of one log speak: {error}") from error
    return frame(encode_response_header(asked.correlation_id, key, version), body)


def decode_response_frame(data: bytes, asked: SentRequest) -> Response:
    """Return the response as the requesting node decodes it. Raises ``InvariantViolationError``."""
    try:
        body = _body(data)
        correlation_id, start = decode_response_header(body, asked.api_key, asked.version)
        assert correlation_id == asked.correlation_id, "a response belongs to its request"
        if asked.api_key is ApiKey.FETCH:
            found = _FETCHES.decode_response(asked.version, body, start)
        else:
            found = decode_response(asked.api_key, asked.version, body, IDENTITY, start=start)
    except WireError as error:
        raise InvariantViolationError(f"nodes of one log speak: {error}") from error
    if isinstance(found, RequestError):
        raise InvariantViolationError(f"nodes of one log speak: {found}")
    return found


def _body(data: bytes) -> bytes:
    (found,) = FrameDecoder(FRAME_BYTES_MAX, "a simulated node").feed(data)
    return found
