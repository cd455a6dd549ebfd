"""Codec of Produce by hand, of nodes and clients: bytes to offsets, lengths and results, and back.

Every append of a client passes here, and the general ``codec`` takes twice as long. Its
messages, of kio's classes, are the oracle: equal values and bytes in every served version.

1. A request is decoded with the bounds of ``codec.Cursor``: it is malformed here if and only if it
   is malformed there.
2. A response has no append time, because a log keeps the times of its producers, and no errors of
   single records, because a batch is accepted or refused as a whole.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from datetime import timedelta
from typing import Final, NamedTuple

from .codec import Cursor, skip_tagged
from .log_identity import duration
from .topic_codec import (
    NO_TAGS,
    LeaderEndpoint,
    encode_count,
    encode_endpoints,
    encode_records,
    encode_tagged,
    encode_text,
    encode_topics,
    read_records,
    read_topics,
)

_FLEXIBLE_FROM: Final = 9
_LOG_START_FROM: Final = 5
_MESSAGES_FROM: Final = 8
_LEADER_FROM: Final = 10
_ACKS_AND_TIMEOUT: Final = struct.Struct(">hi")
_INT32: Final = struct.Struct(">i")
_RESULT: Final = struct.Struct(">ihqq")
_RESULT_WITH_START: Final = struct.Struct(">ihqqq")
_LEADER: Final = struct.Struct(">ii")
_NO_TIME: Final = -1
_NO_NODE: Final = -1
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


class ProduceResponse(NamedTuple):
    """Results in a response, of all of its topics, and the throttle time."""

    results: list[ProduceResult]
    throttle_time: timedelta = timedelta(0)


def decode_produce_request(version: int, data: bytes, *, start: int = 0) -> ProduceRequest:
    """Decode a request, whose body begins at ``start``; trailing bytes are ignored.

    Raises ``MalformedMessageError``.
    """
    cursor = Cursor(data, _REQUEST, version, start=start)
    is_flexible = version >= _FLEXIBLE_FROM
    transactional_id = cursor.string("transactional_id", is_compact=is_flexible, is_nullable=True)
    acks, timeout_ms = cursor.unpack(_ACKS_AND_TIMEOUT, "acks and timeout")
    found = read_topics(cursor, version, _batch, 6 if is_flexible else 5, is_flexible=is_flexible)
    topics = [ProducedTopic(*one) for one in found]
    if is_flexible:
        skip_tagged(cursor)
    return ProduceRequest(transactional_id, acks, timeout_ms, topics)


def _batch(cursor: Cursor, version: int) -> ProducedBatch:
    is_flexible = version >= _FLEXIBLE_FROM
    (partition,) = cursor.unpack(_INT32, "index")
    records = read_records(cursor, is_compact=is_flexible)
    if is_flexible:
        skip_tagged(cursor)
    return ProducedBatch(partition, records)


def encode_produce_request(version: int, request: ProduceRequest) -> bytes:
    """Return the body of a request.

    Raises ``UnsupportedFieldError`` for a text that is too long or not encodable.
    """
    is_flexible = version >= _FLEXIBLE_FROM
    transactional_id = request.transactional_id
    out = [
        encode_text(
            _REQUEST, version, "transactional_id", transactional_id, is_compact=is_flexible
        ),
        _ACKS_AND_TIMEOUT.pack(request.acks, request.timeout_ms),
    ]
    encode_topics(out, _REQUEST, version, request.topics, _encode_batch, is_flexible=is_flexible)
    if is_flexible:
        out.append(NO_TAGS)
    return b"".join(out)


def _encode_batch(out: list[bytes], batch: ProducedBatch, version: int) -> None:
    is_flexible = version >= _FLEXIBLE_FROM
    out.append(_INT32.pack(batch.partition))
    encode_records(out, batch.records, is_compact=is_flexible)
    if is_flexible:
        out.append(NO_TAGS)


def decode_produce_response(version: int, data: bytes, *, start: int = 0) -> ProduceResponse:
    """Decode the results of all batches in a response, whose body begins at ``start``.

    The leader, errors of single records and tagged fields are skipped. Raises
    ``MalformedMessageError``.
    """
    cursor = Cursor(data, _API, version, start=start)
    is_flexible = version >= _FLEXIBLE_FROM
    topics = read_topics(cursor, version, _decode_result, 14, is_flexible=is_flexible)
    results = [one for _, _, partitions in topics for one in partitions]
    (throttle_time_ms,) = cursor.unpack(_INT32, "throttle_time")
    if is_flexible:
        skip_tagged(cursor)
    cursor.finish()
    return ProduceResponse(results, duration(throttle_time_ms))


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
        if is_flexible:
            skip_tagged(cursor)
    return ProduceResult(partition, error, base_offset, log_start_offset, message)


def encode_produce_response(
    version: int,
    request: ProduceRequest,
    results: Sequence[ProduceResult],
    endpoints: Sequence[LeaderEndpoint] = (),
    *,
    throttle_time_ms: int = 0,
) -> bytes:
    """Return the body of the response with the results of all batches of a request, in its order.

    ``endpoints``: the leader's, if a result refers to it. Raises ``UnsupportedFieldError`` for a
    text that is too long or not encodable.
    """
    is_flexible = version >= _FLEXIBLE_FROM
    out: list[bytes] = []
    left = iter(results)

    def encode_next(out: list[bytes], _: ProducedBatch, version: int) -> None:
        _encode_result(out, next(left), version)

    encode_topics(out, _API, version, request.topics, encode_next, is_flexible=is_flexible)
    out.append(_INT32.pack(throttle_time_ms))
    if is_flexible:
        out.append(encode_endpoints(_API, version, endpoints if version >= _LEADER_FROM else ()))
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
        out.append(NO_TAGS)
    else:
        out.append(encode_tagged((0, _LEADER.pack(leader_id, leader_epoch) + NO_TAGS)))
