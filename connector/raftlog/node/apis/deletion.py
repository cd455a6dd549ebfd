"""Handler of DeleteRecords (KIP-107): the leader and then all voters delete the oldest records.

1. Batches are deleted as a whole, so the log then starts at the batch that contains the requested
   offset. If compaction has emptied that batch, the log starts at its end; otherwise a voter, which
   compacts its own log, could start before the leader. The response contains the start as the low
   watermark. A log with remote storage starts at the offset itself, as in Kafka, because the leader
   does not read an object to find its batch. Offset -1 is the high watermark. If a partition is
   named several times, its last offset counts, as in Kafka.
2. The leader deletes first, durably; the other voters follow when they fetch. The response is sent
   when all of them have deleted the records, or with REQUEST_TIMED_OUT after the timeout. A voter
   that is down deletes its records when it is back. Kafka waits for the live replicas, but a quorum
   has no ISR.
3. The error is POLICY_VIOLATION for a log with a state machine, whose snapshots determine the log's
   start, and for a log with cleanup.policy=compact, as in Kafka.
"""

from __future__ import annotations

from typing import Any, Final

from kio.schema.delete_records.v2 import request as requests
from kio.schema.delete_records.v2 import response as responses
from kio.schema.errors import ErrorCode

from raftlog.errors import LogError
from raftlog.node.request import Request
from raftlog.types import Operation, Resource, ResourceType
from raftlog.wire.log_identity import duration, int64, milliseconds

from .metadata_cache import MetadataCache

_HIGH_WATERMARK: Final = -1
_UNKNOWN: Final = -1
_Request = Request[requests.DeleteRecordsRequest]


async def handle_delete_records(
    cache: MetadataCache, request: _Request
) -> responses.DeleteRecordsResponse:
    epoch = cache.core.epoch
    last = {
        (topic.name, one.partition_index): int(one.offset)
        for topic in request.body.topics
        for one in topic.partitions
    }
    deleted = [
        (name, partition, *_delete(cache, request, str(name), partition, offset))
        for (name, partition), offset in last.items()
    ]
    start = max((start for _, _, start, _ in deleted), default=_UNKNOWN)
    waiting = ErrorCode.none
    if start != _UNKNOWN:
        waiting = await _wait(cache, start, epoch, milliseconds(request.body.timeout))
    topics: dict[Any, list[responses.DeleteRecordsPartitionResult]] = {}
    for name, partition, low_watermark, error in deleted:
        result = responses.DeleteRecordsPartitionResult(
            partition_index=partition,
            low_watermark=int64(_UNKNOWN if waiting else low_watermark),
            error_code=error or waiting,
        )
        topics.setdefault(name, []).append(result)
    return responses.DeleteRecordsResponse(
        throttle_time=duration(0),
        topics=tuple(
            responses.DeleteRecordsTopicResult(name=name, partitions=tuple(results))
            for name, results in topics.items()
        ),
    )


def _may_delete(request: _Request, topic: str) -> bool:
    return request.principal.may(Operation.DELETE, Resource(ResourceType.TOPIC, topic))


def describe_deletion(request: _Request) -> object | None:
    """Return the arguments for the audit log; None if no topic's records may be deleted."""
    topics = request.body.topics
    if not any(_may_delete(request, str(topic.name)) for topic in topics):
        return None
    return [
        {"topic": str(topic.name), "partition": int(one.partition_index), "offset": int(one.offset)}
        for topic in topics
        for one in topic.partitions
    ]


def _delete(
    cache: MetadataCache, request: _Request, topic: str, partition: int, offset: int
) -> tuple[int, ErrorCode]:
    """Delete this leader's records; return the new start of the log, and the error."""
    error = cache.name_error(topic, partition)
    raft_node = cache.raft_node
    if not _may_delete(request, topic):
        error = ErrorCode.topic_authorization_failed
    elif error is ErrorCode.none:
        error = cache.leader_error(_UNKNOWN)
    if error is ErrorCode.none and raft_node.replica.deletion_refusal() is not None:
        error = ErrorCode.policy_violation
    elif error is ErrorCode.none and not cache.has_committed_in_epoch:
        error = ErrorCode.leader_not_available  # its high watermark is not known yet
    if error is not ErrorCode.none:
        return _UNKNOWN, error
    if offset == _HIGH_WATERMARK:
        offset = cache.high_watermark
    if not 0 <= offset <= cache.high_watermark:
        return _UNKNOWN, ErrorCode.offset_out_of_range
    try:
        start = raft_node.delete_records(offset)
    except LogError:
        return _UNKNOWN, ErrorCode.kafka_storage_error
    if start > cache.remote.start_offset:
        return _UNKNOWN, ErrorCode.kafka_storage_error
    return cache.remote.start_offset, ErrorCode.none


async def _wait(cache: MetadataCache, start: int, epoch: int, timeout_ms: int) -> ErrorCode:
    """Wait until no voter has records below ``start``."""

    def is_over() -> bool:
        return cache.leader_error(epoch) is not ErrorCode.none or cache.core.has_log_start(start)

    is_done = await cache.raft_node.wait_until(is_over, timeout_ms=timeout_ms)
    error = cache.leader_error(epoch)
    if error is not ErrorCode.none:
        return ErrorCode.not_leader_or_follower
    return ErrorCode.none if is_done else ErrorCode.request_timed_out
