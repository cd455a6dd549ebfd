"""Hand-written codec of Fetch: bytes to offsets and lengths, and back.

Every commit of a quorum and every read of a consumer passes through this module, and the general
``codec`` takes up to twice as long. ``codec`` with kio's classes is the test oracle: values and
bytes are equal in every served version.

1. Decoding applies the limits of ``codec.Cursor``: a message is malformed here if and only if it is
   malformed there. Bytes after a consumer's request are ignored.
2. A directory id is represented by its 16 bytes.
3. The encoder omits a field that the version lacks; the decoder sets it to its default.
4. A response is encoded as a list of parts, so that its records are copied only once, into the
   frame.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from .fields import (
    ID_BYTES,
    NO_TAGS,
    Cursor,
    LeaderEndpoint,
    Reader,
    encode_count,
    encode_endpoints,
    encode_records,
    encode_tagged,
    encode_text,
    encode_topics,
    error_of,
    read_records,
    read_tagged,
    read_topics,
    skip_tagged,
)
from .latest_schemas import COMPACTED_OFFSET_TAG, REMOTE_STORE_TAG, TOMBSTONE_START_TAG

_SESSIONS_FROM: Final = 7
_LOG_START_FROM: Final = 5
_EPOCHS_FROM: Final = 9
_RACKS_FROM: Final = 11
_FLEXIBLE_FROM: Final = 12
_REPLICA_STATE_FROM: Final = 15
_ENDPOINTS_FROM: Final = 16
_DIRECTORIES_FROM: Final = 17
_HIGH_WATERMARK_FROM: Final = 18
NO_ID: Final = bytes(ID_BYTES)
NO_HIGH_WATERMARK: Final = 2**63 - 1
"""The high watermark of a request that has none."""
NO_END: Final = (-1, -1)
"""Epoch and end offset, or leader id and epoch, of a response without them."""
_INT32: Final = struct.Struct(">i")
_INT64: Final = struct.Struct(">q")
_TWO_INT32: Final = struct.Struct(">ii")
_TWO_INT64: Final = struct.Struct(">qq")
_INT32_INT64: Final = struct.Struct(">iq")
_INT64_INT32: Final = struct.Struct(">qi")
_WAIT_AND_BYTES: Final = struct.Struct(">iii")
_ISOLATION: Final = struct.Struct(">b")
_PARTITION: Final = struct.Struct(">iiqiqi")
_RESPONSE_HEAD: Final = struct.Struct(">ihi")
_RESULT: Final = struct.Struct(">ihqqq")
_RESULT_WITHOUT_START: Final = struct.Struct(">ihqq")
_REQUEST: Final = "FetchRequest"
_RESPONSE: Final = "FetchResponse"


class FetchPartition(NamedTuple):
    """Partition of a request."""

    partition: int
    current_leader_epoch: int
    fetch_offset: int
    last_fetched_epoch: int
    max_bytes: int
    log_start_offset: int = -1
    directory_id: bytes = NO_ID
    high_watermark: int = NO_HIGH_WATERMARK


class FetchTopic(NamedTuple):
    """Topic of a request: its id, or its name."""

    topic_id: bytes
    name: str
    partitions: list[FetchPartition]


class FetchRequest(NamedTuple):
    """Kafka's Fetch request. ``replica_id`` is -1 for a consumer."""

    replica_id: int
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    isolation_level: int
    session_id: int
    session_epoch: int
    topics: list[FetchTopic]
    cluster_id: str | None = None
    replica_epoch: int = -1
    rack: str = ""
    """Rack of the consumer (KIP-392) or, from raftlog's nodes, of the replica."""


class FetchedPartition(NamedTuple):
    """Partition of a response.

    ``aborted`` lists producer ids and first offsets. ``diverging`` and ``snapshot`` are each an
    epoch and an end offset; ``leader`` is an id and an epoch. ``compacted_offset``,
    ``tombstone_start_offset`` and ``remote_store_id`` are tagged fields of raftlog's nodes. States
    below ``compacted_offset`` may lack keys, and the log below ``tombstone_start_offset`` may lack
    tombstones.
    """

    partition: int
    error: int = 0
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start_offset: int = -1
    aborted: tuple[tuple[int, int], ...] | None = ()
    preferred_replica: int = -1
    records: bytes | None = None
    diverging: tuple[int, int] = NO_END
    leader: tuple[int, int] = NO_END
    snapshot: tuple[int, int] = NO_END
    compacted_offset: int = 0
    tombstone_start_offset: int = 0
    remote_store_id: int = 0


class FetchedTopic(NamedTuple):
    """Topic of a response: its id, or its name."""

    topic_id: bytes
    name: str
    partitions: Sequence[FetchedPartition]


class FetchResponse(NamedTuple):
    """Kafka's Fetch response. Its ``endpoints`` have no racks."""

    topics: Sequence[FetchedTopic]
    error: int = 0
    session_id: int = 0
    endpoints: Sequence[LeaderEndpoint] = ()
    throttle_time_ms: int = 0


# --- Requests -------------------------------------------------------------------------------------


def _replica_state(cursor: Cursor) -> tuple[int, int]:
    (replica_id, epoch) = cursor.unpack(_INT32_INT64, "replica_state")
    skip_tagged(cursor)
    return replica_id, epoch


def _cluster_id(cursor: Cursor) -> str | None:
    return cursor.string("cluster_id", is_compact=True, is_nullable=True)


_CLUSTER: Final[Mapping[int, tuple[str, Reader]]] = {0: ("cluster_id", _cluster_id)}
_CLUSTER_AND_REPLICA: Final[Mapping[int, tuple[str, Reader]]] = {
    **_CLUSTER,
    1: ("replica_state", _replica_state),
}
_DIRECTORY: Final[Mapping[int, tuple[str, Reader]]] = {
    0: ("directory_id", lambda cursor: cursor.take(ID_BYTES, "replica_directory_id"))
}
_DIRECTORY_AND_END: Final[Mapping[int, tuple[str, Reader]]] = {
    **_DIRECTORY,
    1: ("high_watermark", lambda cursor: cursor.unpack(_INT64, "high_watermark")[0]),
}


def decode_fetch_request(version: int, data: bytes, *, start: int = 0) -> FetchRequest:
    """Decode the request whose body begins at ``start``. Raises ``MalformedMessageError``."""
    cursor = Cursor(data, _REQUEST, version, start=start)
    is_flexible, replica_id, replica_epoch = version >= _FLEXIBLE_FROM, -1, -1
    if version < _REPLICA_STATE_FROM:
        (replica_id,) = cursor.unpack(_INT32, "replica_id")
    max_wait_ms, min_bytes, max_bytes = cursor.unpack(_WAIT_AND_BYTES, "max_wait and bytes")
    (isolation_level,) = cursor.unpack(_ISOLATION, "isolation_level")
    session_id, session_epoch = 0, -1
    if version >= _SESSIONS_FROM:
        session_id, session_epoch = cursor.unpack(_TWO_INT32, "the session")
    found = read_topics(cursor, version, _requested_partition, 16, is_flexible=is_flexible)
    topics = [FetchTopic(*one) for one in found]
    if version >= _SESSIONS_FROM:
        for _ in read_topics(cursor, version, _forgotten, _INT32.size, is_flexible=is_flexible):
            pass
    rack = None
    if version >= _RACKS_FROM:
        rack = cursor.string("rack_id", is_compact=is_flexible)
    values: dict[str, Any] = {}
    if is_flexible:
        has_state = version >= _REPLICA_STATE_FROM
        read_tagged(cursor, _CLUSTER_AND_REPLICA if has_state else _CLUSTER, values)
        replica_id, replica_epoch = values.get("replica_state", (replica_id, -1))
    if replica_id >= 0:
        cursor.finish()
    return FetchRequest(
        replica_id,
        max_wait_ms,
        min_bytes,
        max_bytes,
        isolation_level,
        session_id,
        session_epoch,
        topics,
        values.get("cluster_id"),
        replica_epoch,
        rack or "",
    )


def _forgotten(cursor: Cursor, _: int) -> None:
    cursor.unpack(_INT32, "a partition")


def _requested_partition(cursor: Cursor, version: int) -> FetchPartition:
    if version < _FLEXIBLE_FROM:
        return _old_partition(cursor, version)
    index, epoch, offset, last_epoch, log_start_offset, max_bytes = cursor.unpack(
        _PARTITION, "a partition"
    )
    values: dict[str, Any] = {}
    if version >= _HIGH_WATERMARK_FROM:
        read_tagged(cursor, _DIRECTORY_AND_END, values)
    else:
        read_tagged(cursor, _DIRECTORY if version >= _DIRECTORIES_FROM else {}, values)
    return FetchPartition(index, epoch, offset, last_epoch, max_bytes, log_start_offset, **values)


def _old_partition(cursor: Cursor, version: int) -> FetchPartition:
    """Read a partition of a version without tagged fields and last epoch."""
    epoch, log_start_offset = -1, -1
    (index,) = cursor.unpack(_INT32, "partition")
    if version >= _EPOCHS_FROM:
        (epoch,) = cursor.unpack(_INT32, "current_leader_epoch")
    (offset,) = cursor.unpack(_INT64, "fetch_offset")
    if version >= _LOG_START_FROM:
        (log_start_offset,) = cursor.unpack(_INT64, "log_start_offset")
    (max_bytes,) = cursor.unpack(_INT32, "partition_max_bytes")
    return FetchPartition(index, epoch, offset, -1, max_bytes, log_start_offset)


def encode_fetch_request(version: int, request: FetchRequest) -> bytes:
    """Return the body of a request without forgotten topics.

    Raises ``UnsupportedFieldError`` for a name that is too long or cannot be encoded.
    """
    is_flexible = version >= _FLEXIBLE_FROM
    out = [] if version >= _REPLICA_STATE_FROM else [_INT32.pack(request.replica_id)]
    out.append(_WAIT_AND_BYTES.pack(request.max_wait_ms, request.min_bytes, request.max_bytes))
    out.append(_ISOLATION.pack(request.isolation_level))
    if version >= _SESSIONS_FROM:
        out.append(_TWO_INT32.pack(request.session_id, request.session_epoch))
    encode_topics(
        out, _REQUEST, version, request.topics, _encode_partition, is_flexible=is_flexible
    )
    if version >= _SESSIONS_FROM:
        out.append(encode_count(0, is_compact=is_flexible))  # forgotten topics
    if version >= _RACKS_FROM:
        rack = encode_text(_REQUEST, version, "rack_id", request.rack, is_compact=is_flexible)
        out.append(rack)
    if is_flexible:
        tags: list[tuple[int, bytes]] = []
        if request.cluster_id is not None:
            name = request.cluster_id
            tags.append((0, encode_text(_REQUEST, version, "cluster_id", name, is_compact=True)))
        state = request.replica_id, request.replica_epoch
        if version >= _REPLICA_STATE_FROM and state != NO_END:
            tags.append((1, _INT32_INT64.pack(*state) + NO_TAGS))
        out.append(encode_tagged(*tags))
    return b"".join(out)


def _encode_partition(out: list[bytes], one: FetchPartition, version: int) -> None:
    if version < _FLEXIBLE_FROM:
        out.append(_INT32.pack(one.partition))
        if version >= _EPOCHS_FROM:
            out.append(_INT32.pack(one.current_leader_epoch))
        out.append(_INT64.pack(one.fetch_offset))
        if version >= _LOG_START_FROM:
            out.append(_INT64.pack(one.log_start_offset))
        out.append(_INT32.pack(one.max_bytes))
        return
    index, epoch, offset, last_epoch, max_bytes, log_start_offset, directory_id, end = one
    out.append(_PARTITION.pack(index, epoch, offset, last_epoch, log_start_offset, max_bytes))
    tags: list[tuple[int, bytes]] = []
    if version >= _DIRECTORIES_FROM and directory_id != NO_ID:
        tags.append((0, directory_id))
    if version >= _HIGH_WATERMARK_FROM and end != NO_HIGH_WATERMARK:
        tags.append((1, _INT64.pack(end)))
    out.append(encode_tagged(*tags))


# --- Responses ------------------------------------------------------------------------------------


def encode_fetch_response(version: int, response: FetchResponse) -> list[bytes]:
    """Return the parts of a response's body; records are separate parts.

    Raises ``UnsupportedFieldError`` for a name that is too long or cannot be encoded.
    """
    is_flexible = version >= _FLEXIBLE_FROM
    if version >= _SESSIONS_FROM:
        head = response.throttle_time_ms, response.error, response.session_id
        out = [_RESPONSE_HEAD.pack(*head)]
    else:
        out = [_INT32.pack(response.throttle_time_ms)]
    encode_topics(out, _RESPONSE, version, response.topics, _encode_result, is_flexible=is_flexible)
    if is_flexible:
        endpoints = response.endpoints if version >= _ENDPOINTS_FROM else ()
        out.append(encode_endpoints(_RESPONSE, version, endpoints))
    return out


def _encode_result(out: list[bytes], one: FetchedPartition, version: int) -> None:
    is_flexible = version >= _FLEXIBLE_FROM
    head = one.partition, one.error, one.high_watermark, one.last_stable_offset
    if version >= _LOG_START_FROM:
        out.append(_RESULT.pack(*head, one.log_start_offset))
    else:
        out.append(_RESULT_WITHOUT_START.pack(*head))
    aborted = one.aborted
    out.append(encode_count(-1 if aborted is None else len(aborted), is_compact=is_flexible))
    for pair in aborted or ():
        out.append(_TWO_INT64.pack(*pair) + (NO_TAGS if is_flexible else b""))
    if version >= _RACKS_FROM:
        out.append(_INT32.pack(one.preferred_replica))
    encode_records(out, one.records, is_compact=is_flexible)
    if not is_flexible:
        return
    tags: list[tuple[int, bytes]] = []
    if one.diverging != NO_END:
        tags.append((0, _INT32_INT64.pack(*one.diverging) + NO_TAGS))
    if one.leader != NO_END:
        tags.append((1, _TWO_INT32.pack(*one.leader) + NO_TAGS))
    if one.snapshot != NO_END:
        epoch, end_offset = one.snapshot
        tags.append((2, _INT64_INT32.pack(end_offset, epoch) + NO_TAGS))
    if one.compacted_offset:
        tags.append((COMPACTED_OFFSET_TAG, _INT64.pack(one.compacted_offset)))
    if one.tombstone_start_offset:
        tags.append((TOMBSTONE_START_TAG, _INT64.pack(one.tombstone_start_offset)))
    if one.remote_store_id:
        tags.append((REMOTE_STORE_TAG, _INT64.pack(one.remote_store_id)))
    out.append(encode_tagged(*tags))


def _pair(layout: struct.Struct, name: str) -> Reader:
    """Return a reader of a structure of two numbers."""

    def read(cursor: Cursor) -> tuple[Any, ...]:
        found = cursor.unpack(layout, name)
        skip_tagged(cursor)
        return found

    return read


_EPOCH_END: Final = _pair(_INT32_INT64, "diverging_epoch")
_LEADER: Final = _pair(_TWO_INT32, "current_leader")
_SNAPSHOT: Final = _pair(_INT64_INT32, "snapshot_id")
_RESULT_TAGS: Final[Mapping[int, tuple[str, Reader]]] = {
    0: ("diverging", _EPOCH_END),
    1: ("leader", _LEADER),
    2: ("snapshot", lambda cursor: _SNAPSHOT(cursor)[::-1]),
    COMPACTED_OFFSET_TAG: (
        "compacted_offset",
        lambda cursor: cursor.unpack(_INT64, "compacted_offset")[0],
    ),
    TOMBSTONE_START_TAG: (
        "tombstone_start_offset",
        lambda cursor: cursor.unpack(_INT64, "tombstone_start_offset")[0],
    ),
    REMOTE_STORE_TAG: (
        "remote_store_id",
        lambda cursor: cursor.unpack(_INT64, "remote_store_id")[0],
    ),
}


def _endpoints(cursor: Cursor) -> list[LeaderEndpoint]:
    return [_endpoint(cursor) for _ in range(cursor.count("node_endpoints", 11, is_compact=True))]


def _endpoint(cursor: Cursor) -> LeaderEndpoint:
    (node_id,) = cursor.unpack(_INT32, "node_id")
    host = cursor.string("host", is_compact=True) or ""
    (port,) = cursor.unpack(_INT32, "port")
    cursor.string("rack", is_compact=True, is_nullable=True)
    skip_tagged(cursor)
    return LeaderEndpoint(node_id, host, port)


_ENDPOINT_TAGS: Final[Mapping[int, tuple[str, Reader]]] = {0: ("endpoints", _endpoints)}


def decode_fetch_response(version: int, data: bytes, *, start: int = 0) -> FetchResponse:
    """Decode the response whose body begins at ``start``. Raises ``MalformedMessageError``."""
    cursor = Cursor(data, _RESPONSE, version, start=start)
    is_flexible, error, session_id = version >= _FLEXIBLE_FROM, 0, 0
    if version >= _SESSIONS_FROM:
        throttle_time_ms, error, session_id = cursor.unpack(_RESPONSE_HEAD, "the head")
    else:
        (throttle_time_ms,) = cursor.unpack(_INT32, "throttle_time")
    found = read_topics(cursor, version, _fetched_partition, 20, is_flexible=is_flexible)
    topics = [FetchedTopic(*one) for one in found]
    values: dict[str, Any] = {}
    if is_flexible:
        read_tagged(cursor, _ENDPOINT_TAGS if version >= _ENDPOINTS_FROM else {}, values)
    cursor.finish()
    return FetchResponse(
        topics, error_of(error), session_id, throttle_time_ms=throttle_time_ms, **values
    )


def _fetched_partition(cursor: Cursor, version: int) -> FetchedPartition:
    is_flexible, log_start_offset, preferred = version >= _FLEXIBLE_FROM, -1, -1
    if version >= _LOG_START_FROM:
        index, error, end, stable_end, log_start_offset = cursor.unpack(_RESULT, "a partition")
    else:
        index, error, end, stable_end = cursor.unpack(_RESULT_WITHOUT_START, "a partition")
    aborted = _aborted(cursor, is_flexible=is_flexible)
    if version >= _RACKS_FROM:
        (preferred,) = cursor.unpack(_INT32, "preferred_read_replica")
    records = read_records(cursor, is_compact=is_flexible)
    values: dict[str, Any] = {}
    if is_flexible:
        read_tagged(cursor, _RESULT_TAGS, values)
    return FetchedPartition(
        index,
        error_of(error),
        end,
        stable_end,
        log_start_offset,
        aborted,
        preferred,
        records,
        **values,
    )


def _aborted(cursor: Cursor, *, is_flexible: bool) -> tuple[tuple[int, int], ...] | None:
    name = "aborted_transactions"
    count = cursor.count(name, 16, is_compact=is_flexible, is_nullable=True)
    found: list[tuple[int, int]] = []
    for _ in range(count):
        producer_id, first_offset = cursor.unpack(_TWO_INT64, name)
        found.append((producer_id, first_offset))
        if is_flexible:
            skip_tagged(cursor)
    return None if count < 0 else tuple(found)
