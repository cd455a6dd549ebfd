"""Handler of OffsetForLeaderEpoch: end offset of an epoch in the leader's log (KIP-320).

Consumers use it to detect truncation. The response has the largest epoch that is not above the
requested one, and its end offset; -1 and -1 if the requested epoch is unknown (Kafka:
``LeaderEpochFileCache.endOffsetFor``).
"""

from __future__ import annotations

from kio.schema.errors import ErrorCode
from kio.schema.offset_for_leader_epoch.v4 import request as requests
from kio.schema.offset_for_leader_epoch.v4 import response as responses

from raftlog.wire.log_identity import duration, int32, int64

from .metadata_cache import may_describe
from .question import Question

_Q = Question[requests.OffsetForLeaderEpochRequest]


async def handle_offset_for_leader_epoch(question: _Q) -> responses.OffsetForLeaderEpochResponse:
    return responses.OffsetForLeaderEpochResponse(
        throttle_time=duration(0),
        topics=tuple(
            responses.OffsetForLeaderTopicResult(
                topic=topic.topic,
                partitions=tuple(
                    _end(question, topic, partition) for partition in topic.partitions
                ),
            )
            for topic in question.request.topics
        ),
    )


def _end(
    question: _Q, topic: requests.OffsetForLeaderTopic, partition: requests.OffsetForLeaderPartition
) -> responses.EpochEndOffset:
    view = question.view
    error = view.name_error(topic.topic, partition.partition)
    if not may_describe(question.caller):
        error = ErrorCode.topic_authorization_failed
    if error is ErrorCode.none:
        error = view.leader_error(partition.current_leader_epoch)
    if error is not ErrorCode.none:
        return responses.EpochEndOffset(error_code=error, partition=partition.partition)
    log = view.node.replica.log
    end = log.epochs.end_offset_for(partition.leader_epoch, log.end_offset)
    return responses.EpochEndOffset(
        error_code=ErrorCode.none,
        partition=partition.partition,
        leader_epoch=int32(-1 if end is None else end.epoch),
        end_offset=int64(-1 if end is None else end.offset),
    )
