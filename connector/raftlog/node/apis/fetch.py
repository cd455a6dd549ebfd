"""Handler of Fetch for consumers: committed batches, with a wait for ``min_bytes``.

1. A consumer reads below the high watermark, with read_committed below the last stable offset. The
   response has whole batches from the one that contains the fetch offset: at least one, whatever
   its size, then as many as fit (KIP-74).
2. A fetch waits up to ``max_wait`` for ``min_bytes``. While it waits bytes are only counted; they
   are read once memory is available for the response; without memory for ``ROOM_WAIT_MS`` the
   response has no records. Errors and leader changes end the wait immediately.
3. There are no fetch sessions: a request for one gets session id 0, and a request within one gets
   FETCH_SESSION_ID_NOT_FOUND (KIP-227).
4. If a partition is repeated, its last occurrence counts (Kafka's request is a map). A waiting
   fetch is checked only when the high watermark passes the records it has counted; beyond
   ``WAITING_FETCHES_MAX`` fetches of a principal, only at its timeout.

Kafka: ``ReplicaManager.fetchMessages``, ``Partition.readRecords``; KIP-320, 595 and 951.
"""

from __future__ import annotations

import asyncio
import struct
from dataclasses import dataclass
from typing import Final

from kio.schema.errors import ErrorCode
from kio.schema.fetch.v18 import request as requests
from kio.schema.fetch.v18 import response as responses

from raftlog.errors import LogError
from raftlog.limits import (
    BATCH_BYTES_MAX,
    BATCH_HEADER_BYTES,
    LOG_OVERHEAD_BYTES,
    WAITING_FETCHES_MAX,
)
from raftlog.node.access import Rights
from raftlog.types import OffsetAndEpoch
from raftlog.wire import latest_schemas
from raftlog.wire.log_identity import data_bytes, duration, int32, int64, milliseconds, node

from .metadata_cache import MetadataCache
from .question import Question

_TOPIC_IDS_FROM: Final = 13
_LEADER_FROM: Final = 12
_ENDPOINTS_FROM: Final = 16
_READ_COMMITTED: Final = 1
_FIRST_EPOCHS: Final = (0, -1)
"""Session epochs for a new session, and for no session."""
_WITH_LEADER: Final = (ErrorCode.not_leader_or_follower, ErrorCode.fenced_leader_epoch)
_BASE_AND_LENGTH: Final = struct.Struct(">qi")
_LAST_DELTA: Final = struct.Struct(">i")
_LAST_DELTA_POSITION: Final = struct.calcsize(">qiibih")
ANSWER_BYTES_MAX: Final = BATCH_BYTES_MAX
"""Maximum bytes of records in a response, unless its first batch is larger."""


_OFFSET_MAX: Final = 2**63
WAIT_MS_MAX: Final = 60_000
"""Upper bound of ``max_wait``: after it a consumer gets an empty response."""
ROOM_WAIT_MS: Final = 1_000


@dataclass(slots=True, kw_only=True)
class _Part:
    """Partition of a request, with the state at the last check."""

    topic: latest_schemas.FetchTopic
    asked: requests.FetchPartition
    error: ErrorCode = ErrorCode.none
    diverging: OffsetAndEpoch | None = None
    records: bytes = b""
    end_offset: int = -1
    """End of the readable records."""
    counted_byte_count: int = 0
    counted_offset: int
    """Readable bytes counted so far, and the offset up to which they were counted."""

    @property
    def is_final(self) -> bool:
        """Return whether waiting for records cannot change the response."""
        return self.error is not ErrorCode.none or self.diverging is not None


async def handle_fetch(
    question: Question[latest_schemas.FetchRequest],
) -> latest_schemas.FetchResponse:
    request = question.request
    if request.session_epoch not in _FIRST_EPOCHS:
        return _response((), ErrorCode.fetch_session_id_not_found)
    parts = _parts(request)
    if not _look(question, parts):
        await _wait(question, parts)
    has_room = any(part.is_final for part in parts) or await _has_room(question)
    _look_at_all(question, parts)
    if has_room:
        _read(question, parts, request.max_bytes)
    return _build_response(question, parts)


def _parts(request: latest_schemas.FetchRequest) -> list[_Part]:
    """Return the requested partitions, each once."""
    found: dict[tuple[object, ...], _Part] = {}
    for topic in request.topics:
        for one in topic.partitions:
            found[(topic.topic_id, topic.topic, one.partition)] = _Part(
                topic=topic, asked=one, counted_offset=one.fetch_offset
            )
    return list(found.values())


async def _wait(question: Question[latest_schemas.FetchRequest], parts: list[_Part]) -> None:
    """Wait until the response is due, or ``max_wait`` is over."""
    view, principal = question.view, question.caller.name
    is_one_too_many = view.waiting_fetches[principal] >= WAITING_FETCHES_MAX

    def after() -> int:
        if is_one_too_many:
            return _OFFSET_MAX
        return min(part.counted_offset for part in parts)

    view.waiting_fetches[principal] += 1
    try:
        await view.node.wait_until(
            lambda: _look(question, parts),
            timeout_ms=min(milliseconds(question.request.max_wait), WAIT_MS_MAX),
            after=after,
        )
    finally:
        view.waiting_fetches[principal] -= 1
        if not view.waiting_fetches[principal]:
            del view.waiting_fetches[principal]


async def _has_room(question: Question[latest_schemas.FetchRequest]) -> bool:
    """Wait for memory for the records; return whether there is some."""
    try:
        async with asyncio.timeout(ROOM_WAIT_MS / 1000):
            await question.origin.budget.room()
    except TimeoutError:
        return False
    return True


# --- checking -------------------------------------------------------------------------------------


def _look(question: Question[latest_schemas.FetchRequest], parts: list[_Part]) -> bool:
    """Update all partitions; return whether the response is due."""
    min_bytes = question.request.min_bytes
    if not parts or min_bytes <= 0:
        _look_at_all(question, parts)
        return True
    before = [(part.end_offset, part.is_final) for part in parts]
    _look_at_all(question, parts)
    if any(part.is_final for part in parts):
        return True
    if before == [(part.end_offset, part.is_final) for part in parts]:
        return False
    if min_bytes == 1:
        return any(part.asked.fetch_offset < part.end_offset for part in parts)
    is_cut = [_count(question, part) for part in parts]
    return any(is_cut) or sum(part.counted_byte_count for part in parts) >= min_bytes


def _count(question: Question[latest_schemas.FetchRequest], part: _Part) -> bool:
    """Count bytes that became readable; return whether a response cannot hold all of them."""
    if part.counted_offset >= part.end_offset:
        return False
    request = question.request
    limit = min(ANSWER_BYTES_MAX, request.max_bytes, part.asked.partition_max_bytes)
    left = max(min(request.min_bytes, limit) - part.counted_byte_count, 0)
    try:
        data, part.counted_offset = _batches(
            question.view, part.counted_offset, part.end_offset, left
        )
    except LogError:
        return True  # _read reports the error
    part.counted_byte_count += len(data)
    return bool(data) and part.counted_offset < part.end_offset


def _look_at_all(question: Question[latest_schemas.FetchRequest], parts: list[_Part]) -> None:
    view = question.view
    for part in parts:
        part.error = _error(question, part)
        part.diverging = None
        if part.error is not ErrorCode.none:
            continue
        if part.asked.last_fetched_epoch >= 0:
            part.diverging, part.error = _divergence(view, part.asked)
        part.end_offset = _readable_end(view, question.request.isolation_level)


def _error(question: Question[latest_schemas.FetchRequest], part: _Part) -> ErrorCode:
    view, partition = question.view, part.asked
    if Rights.READ not in question.caller.rights:
        return ErrorCode.topic_authorization_failed
    if question.version >= _TOPIC_IDS_FROM:
        error = view.id_error(part.topic.topic_id, partition.partition)
    else:
        error = view.name_error(part.topic.topic, partition.partition)
    if error is ErrorCode.none:
        error = view.leader_error(partition.current_leader_epoch)
    if error is not ErrorCode.none:
        return error
    log = view.node.replica.log
    if partition.fetch_offset < log.log_start_offset or partition.fetch_offset > log.end_offset:
        return ErrorCode.offset_out_of_range
    return ErrorCode.none


def _divergence(
    view: MetadataCache, partition: requests.FetchPartition
) -> tuple[OffsetAndEpoch | None, ErrorCode]:
    """Return where the consumer's records diverge from this log, if they do."""
    log = view.node.replica.log
    end = log.epochs.end_offset_for(partition.last_fetched_epoch, log.end_offset)
    if end is None:
        return None, ErrorCode.offset_out_of_range
    if end.epoch < partition.last_fetched_epoch or end.offset < partition.fetch_offset:
        return end, ErrorCode.none
    return None, ErrorCode.none


def _readable_end(view: MetadataCache, isolation_level: int) -> int:
    if isolation_level != _READ_COMMITTED:
        return view.high_watermark
    return view.node.replica.log.producer_state.last_stable_offset(view.high_watermark)


# --- reading --------------------------------------------------------------------------------------


def _read(
    question: Question[latest_schemas.FetchRequest], parts: list[_Part], max_bytes: int
) -> None:
    """Read as many bytes as fit; at least one batch of the first partition that has records."""
    left = min(max(max_bytes, 0), ANSWER_BYTES_MAX)
    is_first = True
    for part in parts:
        part.records = b""
        if part.is_final or part.asked.fetch_offset >= part.end_offset:
            continue
        byte_count_max = min(left, max(part.asked.partition_max_bytes, 0))
        try:
            data, _ = _batches(
                question.view, part.asked.fetch_offset, part.end_offset, byte_count_max
            )
        except LogError:  # damaged log or failed disk: another node has the records too
            part.error = ErrorCode.kafka_storage_error
            continue
        if not is_first and len(data) > byte_count_max:
            continue
        part.records = data
        left -= min(len(data), left)
        is_first = False


def _batches(
    view: MetadataCache, offset: int, end_offset: int, byte_count_max: int
) -> tuple[bytes, int]:
    """Return whole batches below ``end_offset``, from the one that contains ``offset``, and the
    offset after them. An invalid batch length is damage: only the batches before it are returned.
    """
    log = view.node.replica.log
    data = log.read_bytes(offset, byte_count_max)
    if not data:
        data = log.read_bytes(log.base_offset_at(offset), byte_count_max)
    position, next_offset = 0, offset
    while position + _BASE_AND_LENGTH.size <= len(data):
        base_offset, length = _BASE_AND_LENGTH.unpack_from(data, position)
        after = position + length + LOG_OVERHEAD_BYTES
        is_batch = length >= BATCH_HEADER_BYTES - LOG_OVERHEAD_BYTES
        if not is_batch or base_offset >= end_offset or after > len(data):
            break
        (last_delta,) = _LAST_DELTA.unpack_from(data, position + _LAST_DELTA_POSITION)
        position, next_offset = after, base_offset + last_delta + 1
    return data[:position], next_offset


# --- response -------------------------------------------------------------------------------------


def _build_response(
    question: Question[latest_schemas.FetchRequest], parts: list[_Part]
) -> latest_schemas.FetchResponse:
    view = question.view
    topics: dict[tuple[object, ...], list[_Part]] = {}
    for part in parts:
        topics.setdefault((part.topic.topic_id, part.topic.topic), []).append(part)
    response = _response(
        tuple(
            latest_schemas.FetchedTopic(
                topic_id=of_topic[0].topic.topic_id,
                topic=of_topic[0].topic.topic,
                partitions=tuple(_partition(question, part) for part in of_topic),
            )
            for of_topic in topics.values()
        )
    )
    leader = view.leader()
    sends_elsewhere = any(part.error in _WITH_LEADER for part in parts)
    if leader is None or not sends_elsewhere or question.version < _ENDPOINTS_FROM:
        return response
    endpoint = responses.NodeEndpoint(
        node_id=node(leader.node_id), host=leader.host, port=int32(leader.port)
    )
    return latest_schemas.FetchResponse(
        throttle_time=response.throttle_time,
        error_code=response.error_code,
        responses=response.responses,
        node_endpoints=(endpoint,),
    )


def _partition(
    question: Question[latest_schemas.FetchRequest], part: _Part
) -> responses.PartitionData:
    view, is_known = question.view, part.error is ErrorCode.none
    is_committed = question.request.isolation_level == _READ_COMMITTED
    leader, diverging = responses.LeaderIdAndEpoch(), responses.EpochEndOffset()
    if part.error in _WITH_LEADER and question.version >= _LEADER_FROM:
        leader = responses.LeaderIdAndEpoch(
            leader_id=node(view.leader_id()), leader_epoch=int32(view.core.epoch)
        )
    if part.diverging is not None:
        diverging = responses.EpochEndOffset(
            epoch=int32(part.diverging.epoch), end_offset=int64(part.diverging.offset)
        )
    log = view.node.replica.log
    stable = log.producer_state.last_stable_offset(view.high_watermark) if is_known else -1
    return responses.PartitionData(
        partition_index=part.asked.partition,
        error_code=part.error,
        high_watermark=int64(view.high_watermark if is_known else -1),
        last_stable_offset=int64(stable),
        log_start_offset=int64(log.log_start_offset if is_known else -1),
        diverging_epoch=diverging,
        current_leader=leader,
        aborted_transactions=() if is_committed and is_known else None,
        records=data_bytes(part.records),
    )


def _response(
    topics: tuple[latest_schemas.FetchedTopic, ...], error: ErrorCode = ErrorCode.none
) -> latest_schemas.FetchResponse:
    return latest_schemas.FetchResponse(
        throttle_time=duration(0), error_code=error, responses=topics
    )
