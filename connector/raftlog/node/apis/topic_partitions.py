"""Handler of DescribeTopicPartitions: the topic, by pages (KIP-966).

Its one partition fits into any page, so there is never a next cursor. An empty list of topics means
all; topics that sort before the cursor are omitted. A principal without DESCRIBE gets no topics
(Kafka: ``DescribeTopicPartitionsRequestHandler``).
"""

from __future__ import annotations

from kio.schema.describe_topic_partitions.v0 import request as requests
from kio.schema.describe_topic_partitions.v0 import response as responses
from kio.schema.errors import ErrorCode
from kio.schema.types import TopicName

from raftlog.wire.log_identity import PARTITION, duration, int32, node

from .metadata import leader_of_partition, node_ids
from .metadata_cache import may_describe, operations
from .question import Question

_Q = Question[requests.DescribeTopicPartitionsRequest]


async def handle_describe_topic_partitions(
    question: _Q,
) -> responses.DescribeTopicPartitionsResponse:
    request, own = question.request, question.view.identity.topic
    is_allowed = may_describe(question.caller)
    names = sorted({topic.name for topic in request.topics})
    if not names and is_allowed:
        names = [TopicName(own)]
    cursor = request.cursor
    if cursor is not None:
        names = [name for name in names if name >= cursor.topic_name]
    return responses.DescribeTopicPartitionsResponse(
        throttle_time=duration(0),
        topics=tuple(_topic(question, name, is_allowed=is_allowed) for name in names),
    )


def _topic(
    question: _Q, name: TopicName, *, is_allowed: bool
) -> responses.DescribeTopicPartitionsResponseTopic:
    view = question.view
    error = view.name_error(name) if is_allowed else ErrorCode.topic_authorization_failed
    if error is not ErrorCode.none:
        return responses.DescribeTopicPartitionsResponseTopic(
            error_code=error,
            name=name,
            topic_id=None,
            partitions=(),
            topic_authorized_operations=int32(operations(question.caller, is_asked=False)),
        )
    leader_error, leader_id = leader_of_partition(view)
    partition = responses.DescribeTopicPartitionsResponsePartition(
        error_code=leader_error,
        partition_index=int32(PARTITION),
        leader_id=node(leader_id),
        leader_epoch=int32(view.core.epoch),
        replica_nodes=node_ids(view.core.voters.node_ids),
        isr_nodes=node_ids(view.in_sync()),
        eligible_leader_replicas=(),
        last_known_elr=(),
        offline_replicas=(),
    )
    return responses.DescribeTopicPartitionsResponseTopic(
        error_code=ErrorCode.none,
        name=name,
        topic_id=view.topic_uuid,
        partitions=(partition,),
        topic_authorized_operations=int32(operations(question.caller, is_asked=True)),
    )
