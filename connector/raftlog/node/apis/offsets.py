"""Handlers of ListOffsets and OffsetForLeaderEpoch.

ListOffsets returns the start, the end, and the offset of a timestamp. Negative timestamps are
special: -1 is the end of the readable records, -2 the start, -3 the record with the largest
timestamp, -4 the local start, -5 the last offset in remote storage and -6 the first one that is not
there. The last two return -1 without remote storage (Kafka: ``UnifiedLog.fetchOffsetByTimestamp``).
A special timestamp that the request's version does not define gets UNSUPPORTED_VERSION.

Only the leader serves ListOffsets. Records beyond the readable end are not found. Until a new
leader has committed a record of its epoch, its high watermark is not reliable, and the error is
OFFSET_NOT_AVAILABLE (KIP-207).

OffsetForLeaderEpoch returns the end offset of an epoch in the leader's log, from which consumers
detect truncation (KIP-320). The response contains the largest epoch that is not above the requested
one, and its end offset; both are -1 if the requested epoch is unknown (Kafka:
``LeaderEpochFileCache.endOffsetFor``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kio.schema.errors import ErrorCode
from kio.schema.list_offsets.v11 import request as requests
from kio.schema.list_offsets.v11 import response as responses
from kio.schema.offset_for_leader_epoch.v4 import request as epoch_requests
from kio.schema.offset_for_leader_epoch.v4 import response as epoch_responses

from raftlog.errors import RaftlogError
from raftlog.node.request import Request
from raftlog.types import Operation, Resource, ResourceType
from raftlog.wire.log_identity import duration, int32, int64

from .metadata_cache import MetadataCache

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
_NOT_AVAILABLE_FROM: Final = 5


@dataclass(frozen=True, slots=True)
class _Found:
    offset: int = -1
    timestamp_ms: int = -1
    leader_epoch: int = -1
    error: ErrorCode = ErrorCode.none


_Request = Request[requests.ListOffsetsRequest]


async def handle_list_offsets(
    cache: MetadataCache, request: _Request
) -> responses.ListOffsetsResponse:
    topics = []
    for topic in request.body.topics:
        partitions = [
            _build_response(partition, await _find(cache, request, topic, partition))
            for partition in topic.partitions
        ]
        topics.append(
            responses.ListOffsetsTopicResponse(name=topic.name, partitions=tuple(partitions))
        )
    return responses.ListOffsetsResponse(throttle_time=duration(0), topics=tuple(topics))


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


async def _find(
    cache: MetadataCache,
    request: _Request,
    topic: requests.ListOffsetsTopic,
    partition: requests.ListOffsetsPartition,
) -> _Found:
    """Return the offset of a time or of a special timestamp (such as ``LATEST``), up to where the
    client may read."""
    timestamp = partition.timestamp
    error = cache.name_error(topic.name, partition.partition_index)
    if not request.principal.may(Operation.DESCRIBE, Resource(ResourceType.TOPIC, topic.name)):
        error = ErrorCode.topic_authorization_failed
    elif error is ErrorCode.none and timestamp < 0:
        is_known = request.version >= _NAMED_FROM.get(timestamp, request.version + 1)
        error = ErrorCode.none if is_known else ErrorCode.unsupported_version
    if error is ErrorCode.none:
        error = cache.leader_error(partition.current_leader_epoch)
    if error is not ErrorCode.none:
        return _Found(error=error)
    log = cache.raft_node.replica.log
    if timestamp == EARLIEST:
        return _at(cache, cache.remote.start_offset)
    if timestamp == EARLIEST_LOCAL:
        return _at(cache, log.log_start_offset)
    if timestamp in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
        copied_end_offset = cache.remote.copied_end_offset
        if copied_end_offset < 0 or (timestamp == LATEST_TIERED and not copied_end_offset):
            return _Found()
        if timestamp == LATEST_TIERED:
            return _at(cache, copied_end_offset - 1)
        return _at(cache, max(copied_end_offset, cache.remote.start_offset))
    end_offset = cache.readable_end(request.body.isolation_level)
    if timestamp == LATEST:
        if not cache.has_committed_in_epoch:
            return _not_available(request)
        return _Found(end_offset, leader_epoch=cache.core.epoch)
    try:
        return await _by_time(cache, request, timestamp, end_offset)
    except RaftlogError as failure:  # or the store cannot be opened
        return _Found(error=cache.read_error(failure))


def _at(cache: MetadataCache, offset: int) -> _Found:
    epoch = cache.raft_node.replica.log.epochs.epoch_at(offset)
    return _Found(offset, leader_epoch=-1 if epoch is None else epoch)


async def _by_time(
    cache: MetadataCache, request: _Request, timestamp: int, end_offset: int
) -> _Found:
    log, remote = cache.raft_node.replica.log, cache.remote
    wanted_ms = timestamp
    if timestamp == MAX_TIMESTAMP:
        wanted_ms = max(log.max_timestamp_ms(), remote.max_timestamp_ms)
        if wanted_ms < 0:
            return _Found()
    record = None
    start_offset, local_start = remote.start_offset, log.log_start_offset
    if start_offset < local_start:
        record = await remote.read(
            lambda reader: reader.record_for_timestamp(
                wanted_ms, start_offset=start_offset, end_offset=local_start
            )
        )
    if record is None:
        record = log.record_for_timestamp(
            wanted_ms, start_offset=start_offset, end_offset=log.end_offset
        )
    if record is None:
        return _Found()
    if record.offset >= end_offset:
        return _Found() if cache.has_committed_in_epoch else _not_available(request)
    epoch = log.epochs.epoch_at(record.offset)
    return _Found(record.offset, record.timestamp_ms, -1 if epoch is None else epoch)


def _not_available(request: _Request) -> _Found:
    if request.version < _NOT_AVAILABLE_FROM:
        return _Found(error=ErrorCode.leader_not_available)
    return _Found(error=ErrorCode.offset_not_available)


# --- OffsetForLeaderEpoch -------------------------------------------------------------------------


async def handle_offset_for_leader_epoch(
    cache: MetadataCache, request: Request[epoch_requests.OffsetForLeaderEpochRequest]
) -> epoch_responses.OffsetForLeaderEpochResponse:
    return epoch_responses.OffsetForLeaderEpochResponse(
        throttle_time=duration(0),
        topics=tuple(
            epoch_responses.OffsetForLeaderTopicResult(
                topic=topic.topic,
                partitions=tuple(
                    _epoch_end(cache, request, topic, partition) for partition in topic.partitions
                ),
            )
            for topic in request.body.topics
        ),
    )


def _epoch_end(
    cache: MetadataCache,
    request: Request[epoch_requests.OffsetForLeaderEpochRequest],
    topic: epoch_requests.OffsetForLeaderTopic,
    partition: epoch_requests.OffsetForLeaderPartition,
) -> epoch_responses.EpochEndOffset:
    """Return the end offset of the last epoch that is not later than the requested one."""
    error = cache.name_error(topic.topic, partition.partition)
    if not request.principal.may(Operation.DESCRIBE, Resource(ResourceType.TOPIC, topic.topic)):
        error = ErrorCode.topic_authorization_failed
    if error is ErrorCode.none:
        error = cache.leader_error(partition.current_leader_epoch)
    if error is not ErrorCode.none:
        return epoch_responses.EpochEndOffset(error_code=error, partition=partition.partition)
    log = cache.raft_node.replica.log
    end = log.epochs.end_offset_for(partition.leader_epoch, log.end_offset)
    return epoch_responses.EpochEndOffset(
        error_code=ErrorCode.none,
        partition=partition.partition,
        leader_epoch=int32(-1 if end is None else end.epoch),
        end_offset=int64(-1 if end is None else end.offset),
    )
