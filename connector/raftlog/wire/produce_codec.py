"""Codec of Produce by hand, of nodes and clients: bytes to offsets, lengths and results, and back.

Every append of a client passes here, and the general ``codec`` takes twice as long. Its
messages, of kio's classes, are the oracle: equal values and bytes in every served version.

1. A request is decoded with the bounds of ``codec.Cursor``: it is malformed here if and only if it
   is malformed there.
2. A topic id is its 16 bytes. A topic has the name until version 12, and the id from version 13 on.
3. A response has no append time, because a log keeps the times of its producers, and no errors of
   single records, because a batch is accepted or refused as a whole.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

from raftlog.errors import UnsupportedFieldError
from raftlog.limits import STRING_BYTES_MAX
from raftlog.records.varint import unsigned_varint

from .codec import Cursor, skip_tagged

_FLEXIBLE_FROM: Final = 9
_TOPIC_IDS_FROM: Final = 13
_LOG_START_FROM: Final = 5
_MESSAGES_FROM: Final = 8
_LEADER_FROM: Final = 10
_ID_BYTES: Final = 16
_ACKS_AND_TIMEOUT: Final = struct.Struct(">hi")
_INT32: Final = struct.Struct(">i")
_RESULT: Final = struct.Struct(">ihqq")
_RESULT_WITH_START: Final = struct.Struct(">ihqqq")
_LEADER: Final = struct.Struct(">ii")
_ENDPOINT_ID: Final = struct.Struct(">Bi")
_NO_TIME: Final = -1
_NO_NODE: Final = -1
_NO_TAGS: Final = b"\x00"
_API: Final = "ProduceResponse"
_REQUEST: Final = "ProduceRequest"


class ProducedBatch(NamedTuple):
    """Partition of a request, with its records."""

    partition: int
    records: bytes | None


class ProducedTopic(NamedTuple):
    """Topic of a request: its id, or its name."""

    topic_id: bytes
    name: str
    batches: list[ProducedBatch]


class ProduceRequest(NamedTuple):
    """Kafka's Produce request."""

    transactional_id: str | None
    acks: int
    timeout_ms: int
    topics: list[ProducedTopic]


class ProduceResult(NamedTuple):
    """Partition of a response."""

    partition: int
    error: int
    base_offset: int = -1
    log_start_offset: int = -1
    message: str | None = None
    leader_id: int = _NO_NODE
    leader_epoch: int = -1


class LeaderEndpoint(NamedTuple):
    """Node to which a response refers (KIP-951)."""

    node_id: int
    host: str
    port: int


def decode_produce_request(version: int, data: bytes, *, start: int = 0) -> ProduceRequest:
    """Decode a request, whose body begins at ``start``; trailing bytes are ignored.

    Raises ``MalformedMessageError``.
    """
    cursor = Cursor(data, _REQUEST, version, start=start)
    is_flexible, has_ids = version >= _FLEXIBLE_FROM, version >= _TOPIC_IDS_FROM
    transactional_id = cursor.string("transactional_id", is_compact=is_flexible, is_nullable=True)
    acks, timeout_ms = cursor.unpack(_ACKS_AND_TIMEOUT, "acks and timeout")
    topics: list[ProducedTopic] = []
    topic_bytes_min = (_ID_BYTES if has_ids else 1) + 2 if is_flexible else 2
    batch_bytes_min = 6 if is_flexible else 5
    for _ in range(cursor.count("topic_data", topic_bytes_min, is_compact=is_flexible)):
        if has_ids:
            topic_id, name = cursor.take(_ID_BYTES, "topic_id"), ""
        else:
            topic_id, name = b"", cursor.string("name", is_compact=is_flexible) or ""
        batches: list[ProducedBatch] = []
        for _ in range(cursor.count("partition_data", batch_bytes_min, is_compact=is_flexible)):
            (partition,) = cursor.unpack(_INT32, "index")
            length = cursor.length("records", 4, is_compact=is_flexible)
            records = None if length < 0 else cursor.take(length, "records")
            if is_flexible:
                skip_tagged(cursor)
            batches.append(ProducedBatch(partition, records))
        if is_flexible:
            skip_tagged(cursor)
        topics.append(ProducedTopic(topic_id, name, batches))
    if is_flexible:
        skip_tagged(cursor)
    return ProduceRequest(transactional_id, acks, timeout_ms, topics)


def encode_produce_request(version: int, request: ProduceRequest) -> bytes:
    """Return the body of a request.

    Raises ``UnsupportedFieldError`` for a text that is too long or not encodable.
    """
    is_flexible, has_ids = version >= _FLEXIBLE_FROM, version >= _TOPIC_IDS_FROM
    end = _NO_TAGS if is_flexible else b""
    transactional_id = request.transactional_id
    out = [
        encode_text(
            _REQUEST, version, "transactional_id", transactional_id, is_compact=is_flexible
        ),
        _ACKS_AND_TIMEOUT.pack(request.acks, request.timeout_ms),
        encode_count(len(request.topics), is_compact=is_flexible),
    ]
    for topic in request.topics:
        if has_ids:
            out.append(topic.topic_id)
        else:
            out.append(encode_text(_REQUEST, version, "name", topic.name, is_compact=is_flexible))
        out.append(encode_count(len(topic.batches), is_compact=is_flexible))
        for partition, records in topic.batches:
            length = -1 if records is None else len(records)  # encoded as that of an array is
            out += (_INT32.pack(partition), encode_count(length, is_compact=is_flexible))
            out += (records or b"", end)
        out.append(end)
    out.append(end)
    return b"".join(out)


def decode_produce_response(version: int, data: bytes, *, start: int = 0) -> list[ProduceResult]:
    """Decode the results of all batches in a response, whose body begins at ``start``.

    The leader, errors of single records and tagged fields are skipped. Raises
    ``MalformedMessageError``.
    """
    cursor = Cursor(data, _API, version, start=start)
    is_flexible = version >= _FLEXIBLE_FROM
    results: list[ProduceResult] = []
    for _ in range(cursor.count("responses", 2, is_compact=is_flexible)):
        if version >= _TOPIC_IDS_FROM:
            cursor.take(_ID_BYTES, "topic_id")
        else:
            cursor.string("name", is_compact=is_flexible)
        for _ in range(cursor.count("partition_responses", 14, is_compact=is_flexible)):
            results.append(_decode_result(cursor, version))
            if is_flexible:
                skip_tagged(cursor)
        if is_flexible:
            skip_tagged(cursor)
    cursor.unpack(_INT32, "throttle_time")
    if is_flexible:
        skip_tagged(cursor)
    if cursor.position != cursor.end:
        cursor.fail(f"{cursor.end - cursor.position} bytes follow the message")
    return results


def _decode_result(cursor: Cursor, version: int) -> ProduceResult:
    if version < _LOG_START_FROM:
        partition, error, base_offset, _ = cursor.unpack(_RESULT, "partition_response")
        return ProduceResult(partition, error, base_offset)
    fields = cursor.unpack(_RESULT_WITH_START, "partition_response")
    partition, error, base_offset, _, log_start_offset = fields
    message = None
    if version >= _MESSAGES_FROM:
        is_flexible = version >= _FLEXIBLE_FROM
        for _ in range(cursor.count("record_errors", 5, is_compact=is_flexible)):
            cursor.unpack(_INT32, "batch_index")
            cursor.string("batch_index_error_message", is_compact=is_flexible, is_nullable=True)
            if is_flexible:
                skip_tagged(cursor)
        message = cursor.string("error_message", is_compact=is_flexible, is_nullable=True)
    return ProduceResult(partition, error, base_offset, log_start_offset, message)


def encode_produce_response(
    version: int,
    request: ProduceRequest,
    results: Sequence[ProduceResult],
    endpoint: LeaderEndpoint | None = None,
) -> bytes:
    """Return the body of the response with the results of all batches of a request, in its order.

    ``endpoint``: the leader's, if a result refers to it. Raises ``UnsupportedFieldError`` for a
    text that is too long or not encodable.
    """
    is_flexible = version >= _FLEXIBLE_FROM
    out = [encode_count(len(request.topics), is_compact=is_flexible)]
    left = iter(results)
    for topic in request.topics:
        if version >= _TOPIC_IDS_FROM:
            out.append(topic.topic_id)
        else:
            out.append(encode_text(_API, version, "name", topic.name, is_compact=is_flexible))
        out.append(encode_count(len(topic.batches), is_compact=is_flexible))
        for _ in topic.batches:
            _encode_result(out, next(left), version)
        if is_flexible:
            out.append(_NO_TAGS)
    out.append(_INT32.pack(0))  # throttle time
    if is_flexible:
        if endpoint is None or version < _LEADER_FROM:
            out.append(_NO_TAGS)
        else:
            out.append(endpoint_tags(_API, version, endpoint))
    return b"".join(out)


def _encode_result(out: list[bytes], result: ProduceResult, version: int) -> None:
    partition, error, base_offset, log_start_offset, message, leader_id, leader_epoch = result
    if version < _LOG_START_FROM:
        out.append(_RESULT.pack(partition, error, base_offset, _NO_TIME))
        return
    out.append(_RESULT_WITH_START.pack(partition, error, base_offset, _NO_TIME, log_start_offset))
    if version < _MESSAGES_FROM:
        return
    is_flexible = version >= _FLEXIBLE_FROM
    out.append(encode_count(0, is_compact=is_flexible))  # errors of records
    out.append(encode_text(_API, version, "error_message", message, is_compact=is_flexible))
    if not is_flexible:
        return
    if version < _LEADER_FROM or (leader_id == _NO_NODE and leader_epoch == -1):
        out.append(_NO_TAGS)
    else:
        out.append(encode_tag(_LEADER.pack(leader_id, leader_epoch) + _NO_TAGS))


def endpoint_tags(api: str, version: int, endpoint: LeaderEndpoint) -> bytes:
    """Return tagged fields with the leader's endpoint, which has no rack."""
    host = encode_text(api, version, "host", endpoint.host, is_compact=True)
    parts = _ENDPOINT_ID.pack(2, endpoint.node_id), host, _INT32.pack(endpoint.port), b"\x00\x00"
    return encode_tag(b"".join(parts))


def encode_tag(data: bytes) -> bytes:
    """Return tagged fields that have this field with tag 0 only."""
    return b"\x01\x00" + unsigned_varint(len(data)) + data


def encode_count(count: int, *, is_compact: bool) -> bytes:
    """Return the number of elements of an array."""
    return unsigned_varint(count + 1) if is_compact else _INT32.pack(count)


def encode_text(api: str, version: int, field: str, text: str | None, *, is_compact: bool) -> bytes:
    """Return a string. Raises ``UnsupportedFieldError`` if it is too long or not encodable."""
    if text is None:
        return b"\x00" if is_compact else b"\xff\xff"
    try:
        data = text.encode()
    except UnicodeEncodeError:
        data, reason = b"", "the string cannot be encoded as UTF-8"
    else:
        reason = f"the string has {len(data)} bytes, but at most {STRING_BYTES_MAX} are allowed"
        if len(data) <= STRING_BYTES_MAX:
            length = unsigned_varint(len(data) + 1) if is_compact else len(data).to_bytes(2, "big")
            return length + data
    raise UnsupportedFieldError(api=api, version=version, field=field, reason=reason)
