"""Codec of a follower's fetches and their responses, which hardly change from round to round.

Only offsets and records differ. The bytes around them are encoded and decoded once, by
``raft_codec``, and afterwards copied or compared:

1. Results are the same as those of ``raft_codec`` for the same message or bytes. A message that
   differs in anything else is encoded and decoded by ``raft_codec``.
2. The positions of offsets are known only in bytes that ``fetch_codec`` would encode. So a message
   that it can decode, but would encode differently, is never a pattern for later ones.
3. There are at most ``PATTERNS_MAX`` patterns of requests, one for each directory id.

This applies only to the newest version of Fetch, which all nodes of this release support.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from raftlog.quorum import messages
from raftlog.quorum.messages import ErrorCode, LeaderAndEpoch
from raftlog.records.fields import MalformedVarintError, read_unsigned_varint, unsigned_varint

from .apis import ApiKey
from .fetch_codec import (
    NO_HIGH_WATERMARK,
    FetchRequest,
    decode_fetch_response,
    encode_fetch_request,
    encode_fetch_response,
)
from .log_identity import LogIdentity, RequestError, or_minus_one
from .raft_codec import (
    DecodedRequest,
    DecodedResponse,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
)

VERSION: Final = 18
PATTERNS_MAX: Final = 64
_REQUEST_START: Final = ">47sqiqi21sq"
"""Up to the fetch offset; fetch offset, last epoch, log start offset, maximum bytes; up to the high
watermark, with the directory id; high watermark."""
_REQUEST_START_BYTES: Final = struct.calcsize(_REQUEST_START)
_DIRECTORY: Final = slice(71, 92)
_RESPONSE_START: Final = struct.Struct(">34sqqq5s")
"""Up to the high watermark; high watermark, last stable offset, log start offset; up to the length
of the records."""
_NO_OFFSET: Final = -1


class _RequestPattern(NamedTuple):
    """Request of which ``fetch_offset``, ``high_watermark`` and ``log_start_offset`` vary."""

    request: messages.FetchRequest
    layout: struct.Struct
    head: bytes
    directory: bytes
    tail: bytes


class _ResponsePattern(NamedTuple):
    """Bytes of a response around its offsets and records."""

    leader_and_epoch: LeaderAndEpoch
    compacted_offset: int
    tombstone_start_offset: int
    remote_store_id: int
    head: bytes
    middle: bytes
    tail: bytes


class ReplicaFetchCodec:
    """Codec of the fetches of one log that one node sends and receives."""

    def __init__(self, identity: LogIdentity) -> None:
        self._identity: Final = identity
        self._sent: _RequestPattern | None = None
        self._received: Final[dict[bytes, _RequestPattern]] = {}
        """Patterns by the bytes that contain the directory id."""
        self._response_sent: _ResponsePattern | None = None
        self._response_received: _ResponsePattern | None = None

    # --- requests ---------------------------------------------------------------------------------

    def encode_request(self, request: messages.FetchRequest, version: int) -> bytes:
        """Return the body of a request, like ``raft_codec.encode_request``."""
        found = self._sent
        if version == VERSION and found is not None:
            like = found.request
            if (
                request.replica is like.replica
                and request.epoch == like.epoch
                and request.last_fetched_epoch == like.last_fetched_epoch
                and request.max_bytes == like.max_bytes
                and request.max_wait_ms == like.max_wait_ms
                and request.high_watermark != NO_HIGH_WATERMARK
            ):
                return found.layout.pack(
                    found.head,
                    request.fetch_offset,
                    request.last_fetched_epoch,
                    or_minus_one(request.log_start_offset),
                    0,
                    found.directory,
                    or_minus_one(request.high_watermark),
                    found.tail,
                )
        data = encode_request(request, version, self._identity)
        if version == VERSION:
            self._sent = _request_pattern(request, data, 0)
        return data

    def known_request(self, version: int, data: bytes, start: int) -> messages.FetchRequest | None:
        """Return the request in the body at ``start``; None if it must be decoded as a whole."""
        if version != VERSION:
            return None
        found = self._received.get(data[start + _DIRECTORY.start : start + _DIRECTORY.stop])
        if found is None or len(data) - start != found.layout.size:
            return None
        head, offset, last_epoch, log_start, max_bytes, _, high_watermark, tail = (
            found.layout.unpack_from(data, start)
        )
        like = found.request
        if (
            head != found.head
            or tail != found.tail
            or last_epoch != like.last_fetched_epoch
            or max_bytes
            or offset < 0
        ):
            return None
        return messages.FetchRequest(
            replica=like.replica,
            epoch=like.epoch,
            fetch_offset=offset,
            last_fetched_epoch=last_epoch,
            max_bytes=like.max_bytes,
            max_wait_ms=like.max_wait_ms,
            high_watermark=None if high_watermark < 0 else high_watermark,
            log_start_offset=None if log_start < 0 else log_start,
        )

    def decode_request(
        self, version: int, data: bytes, start: int, decoded: FetchRequest
    ) -> DecodedRequest:
        """Return the request of ``decoded``, the message in the body at ``start``, like
        ``raft_codec.decode_request``."""
        message = decode_request(
            ApiKey.FETCH, version, data, self._identity, start=start, decoded=decoded
        )
        is_pattern = version == VERSION and not isinstance(message, RequestError)
        if is_pattern and encode_fetch_request(version, decoded) == data[start:]:
            assert isinstance(message, messages.FetchRequest)
            found = _request_pattern(message, data, start)
            if found is not None:
                if len(self._received) >= PATTERNS_MAX:
                    self._received.clear()
                self._received[found.directory] = found
        return message

    # --- responses --------------------------------------------------------------------------------

    def encode_response(self, response: messages.FetchResponse, version: int) -> list[bytes]:
        """Return the parts of a response's body, like ``raft_codec.encode_response``."""
        found, records = self._response_sent, response.records
        if not _is_plain(response) or version != VERSION:
            return encode_response(ApiKey.FETCH, version, response, self._identity)
        if (
            found is None
            or response.leader_and_epoch is not found.leader_and_epoch
            or response.compacted_offset != found.compacted_offset
            or response.tombstone_start_offset != found.tombstone_start_offset
            or response.remote_store_id != found.remote_store_id
        ):
            parts = encode_response(ApiKey.FETCH, version, response, self._identity)
            data = b"".join(parts)
            self._response_sent = _response_pattern(response, data, 0)
            return parts
        high_watermark, log_start = response.high_watermark, response.log_start_offset
        start = _RESPONSE_START.pack(
            found.head,
            or_minus_one(high_watermark),
            _NO_OFFSET,
            or_minus_one(log_start),
            found.middle,
        )
        return [start + unsigned_varint(len(records) + 1), records, found.tail]

    def decode_response(self, version: int, data: bytes, start: int) -> DecodedResponse:
        """Return the response in the body at ``start``, like ``raft_codec.decode_response``."""
        found = self._response_received
        if found is not None and version == VERSION:
            known = _known_response(found, data, start)
            if known is not None:
                return known
        response = decode_response(ApiKey.FETCH, version, data, self._identity, start=start)
        if (
            version == VERSION
            and isinstance(response, messages.FetchResponse)
            and _is_plain(response)
        ):
            decoded = decode_fetch_response(version, data, start=start)
            if b"".join(encode_fetch_response(version, decoded)) == data[start:]:
                self._response_received = _response_pattern(response, data, start)
        return response


def _request_pattern(
    request: messages.FetchRequest, data: bytes, start: int
) -> _RequestPattern | None:
    """Return a pattern from the bytes of a request; None if they contain no high watermark or no
    directory id."""
    tail_bytes = len(data) - start - _REQUEST_START_BYTES
    if tail_bytes < 0:
        return None
    layout = struct.Struct(f"{_REQUEST_START}{tail_bytes}s")
    head, _, _, _, max_bytes, directory, _, tail = layout.unpack_from(data, start)
    if max_bytes or directory[:3] != b"\x02\x00\x10" or directory[-2:] != b"\x01\x08":
        return None
    return _RequestPattern(request, layout, head, directory, tail)


def _is_plain(response: messages.FetchResponse) -> bool:
    """Return whether a response has no error, diverging epoch or snapshot, only records."""
    return (
        response.error is ErrorCode.NONE
        and response.diverging is None
        and response.snapshot_id is None
    )


def _response_pattern(
    response: messages.FetchResponse, data: bytes, start: int
) -> _ResponsePattern | None:
    """Return a pattern from the bytes of a plain response."""
    head, _, last_stable_offset, _, middle = _RESPONSE_START.unpack_from(data, start)
    length, after = read_unsigned_varint(data, start + _RESPONSE_START.size)
    if last_stable_offset != _NO_OFFSET or not length:
        return None
    tail = data[after + length - 1 :]
    return _ResponsePattern(
        response.leader_and_epoch,
        response.compacted_offset,
        response.tombstone_start_offset,
        response.remote_store_id,
        head,
        middle,
        tail,
    )


def _known_response(
    found: _ResponsePattern, data: bytes, start: int
) -> messages.FetchResponse | None:
    """Return the response if its bytes match a pattern; otherwise None."""
    position = start + _RESPONSE_START.size
    if len(data) <= position:
        return None
    head, high_watermark, last_stable_offset, log_start, middle = _RESPONSE_START.unpack_from(
        data, start
    )
    length = data[position]
    if length < 0x80:
        after = position + 1
    else:
        try:
            length, after = read_unsigned_varint(data, position)
        except MalformedVarintError:
            return None
    end = after + length - 1
    if (
        not length
        or head != found.head
        or last_stable_offset != _NO_OFFSET
        or middle != found.middle
        or data[end:] != found.tail
    ):
        return None
    return messages.FetchResponse(
        leader_and_epoch=found.leader_and_epoch,
        high_watermark=None if high_watermark < 0 else high_watermark,
        log_start_offset=None if log_start < 0 else log_start,
        records=data[after:end],
        compacted_offset=found.compacted_offset,
        tombstone_start_offset=found.tombstone_start_offset,
        remote_store_id=found.remote_store_id,
    )
