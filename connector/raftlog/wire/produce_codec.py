"""Hand-written codec of Produce for nodes and clients, and outcomes of appends as text.

Every append of a client passes through this module, and the general ``codec`` takes twice as long.
``codec`` with kio's classes is the test oracle: values and bytes are equal in every served version.

1. Decoding applies the limits of ``codec.Cursor``: a request is malformed here if and only if it is
   malformed there.
2. A response has no append time, because a log keeps its producers' timestamps. It has no errors of
   single records either, because a batch is accepted or refused as a whole.
"""

from __future__ import annotations

import dataclasses
import json
import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, NamedTuple, get_type_hints

from raftlog import compiled, errors
from raftlog.errors import NotLeaderError, RaftlogError
from raftlog.limits import INT64_MAX, STRING_BYTES_MAX

from .fields import (
    NO_TAGS,
    TOPIC_IDS_FROM,
    Cursor,
    LeaderEndpoint,
    encode_count,
    encode_endpoints,
    encode_records,
    encode_tagged,
    encode_text,
    encode_topics,
    read_records,
    read_topics,
    skip_tagged,
)
from .log_identity import duration

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
    """Results of all topics in a response, and the throttle time."""

    results: list[ProduceResult]
    throttle_time: timedelta = timedelta(0)


def decode_produce_request(version: int, data: bytes, *, start: int = 0) -> ProduceRequest:
    """Decode the request whose body begins at ``start``; trailing bytes are ignored.

    Raises ``MalformedMessageError``.
    """
    is_flexible = version >= _FLEXIBLE_FROM
    if is_flexible and compiled.is_native:
        has_ids = version >= TOPIC_IDS_FROM
        plain = compiled.core.produce_request(data, start, has_ids, STRING_BYTES_MAX)
        if plain is not None:
            acks, timeout_ms, topic_id, name, partition, records = plain
            batches = [ProducedBatch(partition, records)]
            topics = [ProducedTopic(topic_id, name, batches)]
            return ProduceRequest(None, acks, timeout_ms, topics)
    cursor = Cursor(data, _REQUEST, version, start=start)
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

    Raises ``UnsupportedFieldError`` for a text that is too long or cannot be encoded.
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
    """Decode the results of all batches in the response whose body begins at ``start``.

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
    throttle_time = duration(throttle_time_ms) if throttle_time_ms else timedelta(0)
    return ProduceResponse(results, throttle_time)


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
    """Return the body of the response with the results of all batches of a request, in their order.

    ``endpoints`` are the leader's, if a result refers to it. Raises ``UnsupportedFieldError`` for a
    text that is too long or cannot be encoded.
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


# --- Outcome of an append as text in the error_message of a response ------------------------------
# The text is a sentence, a space, and the same facts as JSON without spaces: ``[RAFTLOG_NOT_LEADER]
# Append failed because ... {"current_epoch":5,"epoch":4}``. The word in brackets is the code of an
# error of ``raftlog.errors``, or ``RAFTLOG_APPENDED``.
#
# 1. Stock clients use Kafka's error code, which is retriable if and only if the append may be
#    retried. raftlog's client uses the text to distinguish errors that share a code.
# 2. A path is reduced to its last name, so that a client does not learn a node's directories.
# 3. Text in any other form is ignored, and Kafka's error code decides. Unknown facts, which a later
#    release may add, are ignored as well.

NOT_LEADER_OR_FOLLOWER: Final = 6
NOT_ENOUGH_REPLICAS: Final = 19
"""Retriable in every client; it means that nothing was appended."""
FENCED_LEADER_EPOCH: Final = 74
PRODUCER_FENCED: Final = 90
UNKNOWN_SERVER_ERROR: Final = -1
_CODES: Final[dict[type[RaftlogError], int]] = {
    errors.BufferAllocationError: NOT_ENOUGH_REPLICAS,
    errors.LogLockedError: NOT_ENOUGH_REPLICAS,
    errors.LogClosedError: NOT_LEADER_OR_FOLLOWER,
    errors.StaleCommitError: PRODUCER_FENCED,
    errors.ForeignCommitError: PRODUCER_FENCED,
}
_KINDS: Final[dict[str, type[RaftlogError]]] = {
    kind.code: kind
    for kind in (
        errors.AppendUnknownError,
        errors.BufferAllocationError,
        errors.DiskFullError,
        errors.ForeignCommitError,
        errors.FutureEpochError,
        errors.InvalidAppendError,
        errors.InvalidProducerEpochError,
        errors.InvalidTimestampError,
        errors.KeyChangedError,
        errors.LogClosedError,
        errors.LogLockedError,
        errors.LogReadOnlyError,
        errors.NotLeaderError,
        errors.OutOfOrderSequenceError,
        errors.RecordBatchTooLargeError,
        errors.StaleCommitError,
        errors.UnexpectedEndOffsetError,
    )
}
_APPENDED: Final = "RAFTLOG_APPENDED"


@dataclass(frozen=True, slots=True)
class Appended:
    """Facts of a successful append for which a Produce response has no fields.

    ``epoch`` is the records' epoch, ``last_offset`` the offset of the last record. If
    ``was_duplicate`` is set, both describe the earlier append or commit.
    """

    epoch: int
    was_duplicate: bool
    last_offset: int


def produce_error_code(error: RaftlogError) -> int:
    """Return Kafka's error code for an append that failed or whose outcome is unknown."""
    if isinstance(error, NotLeaderError) and error.epoch < error.current_epoch:
        return FENCED_LEADER_EPOCH  # this node is the leader, in a later epoch than the writer's
    code = _CODES.get(type(error), error.kafka_code)
    return UNKNOWN_SERVER_ERROR if code is None else code


def produce_error_message(error: RaftlogError) -> str:
    """Return the error_message text, which has no facts if the error does not concern an append."""
    facts = {field.name: getattr(error, field.name) for field in _fields(type(error))}
    if isinstance(facts.get("path"), str):
        facts["path"] = re.split(r"[/\\]", facts["path"].rstrip("/\\"))[-1]
        error = type(error)(**facts)
    return _with_facts(str(error), facts) if type(error) in _KINDS.values() else str(error)


def appended_message(appended: Appended) -> str:
    """Return the error_message text of a successful append."""
    is_known = appended.was_duplicate
    what, known = ("Already appended", "true") if is_known else ("Appended", "false")
    # On the hot path of every append: the JSON is formatted by hand.
    return (
        f'[{_APPENDED}] {what} {{"epoch":{appended.epoch},"last_offset":{appended.last_offset},'
        f'"was_duplicate":{known}}}'
    )


def _with_facts(sentence: str, facts: dict[str, Any]) -> str:
    plain = json.dumps(facts, separators=(",", ":"), sort_keys=True)
    encoded = plain.replace(" ", "\\u0020")  # spaces occur inside strings only
    room = STRING_BYTES_MAX - len(encoded) - 1
    shortened = sentence.encode(errors="replace")[: max(room, 0)].decode(errors="ignore")
    return f"{shortened} {encoded}" if room > 0 else sentence[:STRING_BYTES_MAX]


def parse_error_message(text: str | None) -> RaftlogError | None:
    """Return the error of a ``produce_error_message`` text; None for any other text."""
    found = _parsed(text)
    kind = None if found is None else _KINDS.get(found[0])
    if found is None or kind is None:
        return None
    values = found[1]
    facts: dict[str, Any] = {}
    hints = get_type_hints(kind)
    for field in _fields(kind):
        if field.name in values:
            if not _fits(values[field.name], hints[field.name]):
                return None
            facts[field.name] = values[field.name]
        elif field.default is dataclasses.MISSING:
            return None
    return kind(**facts)


def parse_appended_message(text: str | None) -> Appended | None:
    """Return the facts of an ``appended_message`` text; None for any other text."""
    match _parsed(text):
        case (
            code,
            {"epoch": epoch, "was_duplicate": bool(was_duplicate), "last_offset": last_offset},
        ) if code == _APPENDED and _fits(epoch, int) and _fits(last_offset, int):
            return Appended(epoch, was_duplicate, last_offset)
        case _:
            return None


def _parsed(text: str | None) -> tuple[str, dict[str, Any]] | None:
    """Return the code in brackets and the facts; None if the text has another form."""
    if text is None:
        return None
    head, _, facts = text.rpartition(" ")
    code = re.match(r"\[(RAFTLOG_[A-Z_]+)\]", head)
    if code is None:
        return None
    try:
        values = json.loads(facts)
    except (ValueError, RecursionError):
        return None
    return (code[1], values) if isinstance(values, dict) else None


def _fits(value: object, hint: Any) -> bool:
    """Return whether a fact has its field's type, and fits 64 bits if it is a number."""
    if not isinstance(value, hint):
        return False
    if isinstance(value, bool):
        return hint is bool
    return not isinstance(value, int) or abs(value) <= INT64_MAX


def _fields(kind: type[RaftlogError]) -> tuple[dataclasses.Field[Any], ...]:
    return dataclasses.fields(kind)
