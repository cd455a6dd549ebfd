"""OffsetForLeaderEpoch: where an epoch ends in the leader's log (KIP-320).

A consumer asks it to find out whether what it has read was cut.

Rules of this file:

1. The answer names the newest epoch that is not above the one asked for, and where it ends; -1 and
   -1 for an epoch that nothing can be said of (Kafka: ``LeaderEpochFileCache.endOffsetFor``).
"""

from __future__ import annotations

from kio.schema.errors import ErrorCode
from kio.schema.offset_for_leader_epoch.v4 import request as asked
from kio.schema.offset_for_leader_epoch.v4 import response as told

from raftlog.wire.log_identity import duration, int32, int64

from .cluster_view import may_describe
from .question import Question

_Q = Question[asked.OffsetForLeaderEpochRequest]


async def answer_offset_for_leader_epoch(question: _Q) -> told.OffsetForLeaderEpochResponse:
    return told.OffsetForLeaderEpochResponse(
        throttle_time=duration(0),
        topics=tuple(
            told.OffsetForLeaderTopicResult(
                topic=topic.topic,
                partitions=tuple(
                    _end(question, topic, partition) for partition in topic.partitions
                ),
            )
            for topic in question.request.topics
        ),
    )


def _end(
    question: _Q, topic: asked.OffsetForLeaderTopic, partition: asked.OffsetForLeaderPartition
) -> told.EpochEndOffset:
    view = question.view
    error = view.name_error(topic.topic, partition.partition)
    if not may_describe(question.caller):
        error = ErrorCode.topic_authorization_failed
    if error is ErrorCode.none:
        error = view.leader_error(partition.current_leader_epoch)
    if error is not ErrorCode.none:
        return told.EpochEndOffset(error_code=error, partition=partition.partition)
    log = view.node.replica.log
    end = log.epochs.end_offset_for(partition.leader_epoch, log.end_offset)
    return told.EpochEndOffset(
        error_code=ErrorCode.none,
        partition=partition.partition,
        leader_epoch=int32(-1 if end is None else end.epoch),
        end_offset=int64(-1 if end is None else end.offset),
    )
