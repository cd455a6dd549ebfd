"""Handler of ListOffsets: start, end, and offset of a timestamp.

Negative timestamps are special: -1 is the end of the readable records, -2 the start, -3 the record
with the largest timestamp, -4 the local start, -5 and -6 are offsets of tiered storage, which does
not exist here: offset -1 (Kafka: ``UnifiedLog.fetchOffsetByTimestamp``). A special timestamp that
the request's version does not define is UNSUPPORTED_VERSION.

Only the leader answers. Records beyond the readable end are not found. While a new leader has not
committed a record of its epoch, and so has no reliable high watermark, the error is
OFFSET_NOT_AVAILABLE (KIP-207).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kio.schema.errors import ErrorCode
from kio.schema.list_offsets.v11 import request as requests
from kio.schema.list_offsets.v11 import response as responses

from raftlog.errors import LogError
from raftlog.wire.log_identity import duration, int32, int64

from .metadata_cache import may_describe
from .question import Question

LATEST: Final = -1
EARLIEST: Final = -2
MAX_TIMESTAMP: Final = -3
EARLIEST_LOCAL: Final = -4
LATEST_TIERED: Final = -5
EARLIEST_PENDING_UPLOAD: Final = -6
_NAMED_FROM: Final = {
    LATEST: 1,
    EARLIEST: 1,
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL: 8,
    LATEST_TIERED: 9,
    EARLIEST_PENDING_UPLOAD: 11,
}
_READ_COMMITTED: Final = 1
_NOT_AVAILABLE_FROM: Final = 5


@dataclass(frozen=True, slots=True)
class _Found:
    offset: int = -1
    timestamp_ms: int = -1
    leader_epoch: int = -1
    error: ErrorCode = ErrorCode.none


_Q = Question[requests.ListOffsetsRequest]


async def handle_list_offsets(question: _Q) -> responses.ListOffsetsResponse:
    return responses.ListOffsetsResponse(
        throttle_time=duration(0),
        topics=tuple(
            responses.ListOffsetsTopicResponse(
                name=topic.name,
                partitions=tuple(
                    _build_response(partition, _find(question, topic, partition))
                    for partition in topic.partitions
                ),
            )
            for topic in question.request.topics
        ),
    )


def _build_response(
    partition: requests.ListOffsetsPartition, found: _Found
) -> responses.ListOffsetsPartitionResponse:
    return responses.ListOffsetsPartitionResponse(
        partition_index=partition.partition_index,
        error_code=found.error,
        timestamp=int64(found.timestamp_ms),
        offset=int64(found.offset),
        leader_epoch=int32(found.leader_epoch),
    )


def _find(
    question: _Q, topic: requests.ListOffsetsTopic, partition: requests.ListOffsetsPartition
) -> _Found:
    view, timestamp = question.view, partition.timestamp
    error = view.name_error(topic.name, partition.partition_index)
    if not may_describe(question.caller):
        error = ErrorCode.topic_authorization_failed
    elif error is ErrorCode.none and timestamp < 0:
        is_known = question.version >= _NAMED_FROM.get(timestamp, question.version + 1)
        error = ErrorCode.none if is_known else ErrorCode.unsupported_version
    if error is ErrorCode.none:
        error = view.leader_error(partition.current_leader_epoch)
    if error is not ErrorCode.none:
        return _Found(error=error)
    if timestamp in (EARLIEST, EARLIEST_LOCAL):
        return _start(question)
    if timestamp in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
        return _Found()
    end_offset = _end(question)
    if timestamp == LATEST:
        if not view.has_committed_in_epoch:
            return _not_available(question)
        return _Found(end_offset, leader_epoch=view.core.epoch)
    try:
        return _by_time(question, timestamp, end_offset)
    except LogError:
        return _Found(error=ErrorCode.kafka_storage_error)


def _start(question: _Q) -> _Found:
    log = question.view.node.replica.log
    epoch = log.epochs.epoch_at(log.log_start_offset)
    return _Found(log.log_start_offset, leader_epoch=-1 if epoch is None else epoch)


def _end(question: _Q) -> int:
    """Return the end of the records that the request may read, by its isolation level."""
    view = question.view
    if question.request.isolation_level != _READ_COMMITTED:
        return view.high_watermark
    return view.node.replica.log.producer_state.last_stable_offset(view.high_watermark)


def _by_time(question: _Q, timestamp: int, end_offset: int) -> _Found:
    view = question.view
    log = view.node.replica.log
    wanted_ms = timestamp
    if timestamp == MAX_TIMESTAMP:
        wanted_ms = log.max_timestamp_ms()
        if wanted_ms < 0:
            return _Found()
    record = log.record_for_timestamp(wanted_ms, end_offset=log.end_offset)
    if record is None:
        return _Found()
    if record.offset >= end_offset:
        return _Found() if view.has_committed_in_epoch else _not_available(question)
    epoch = log.epochs.epoch_at(record.offset)
    return _Found(record.offset, record.timestamp_ms, -1 if epoch is None else epoch)


def _not_available(question: _Q) -> _Found:
    if question.version < _NOT_AVAILABLE_FROM:
        return _Found(error=ErrorCode.leader_not_available)
    return _Found(error=ErrorCode.offset_not_available)
