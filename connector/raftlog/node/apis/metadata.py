"""Handlers of Metadata and DescribeTopicPartitions: nodes, topic and leader.

An empty list of topics means all topics in version 0; null does from version 1 on. From version 10
on, a topic without a name is identified by its topic id. A principal without DESCRIBE gets no
topics, and an authorization error for the topics that it names; the nodes' endpoints are not
restricted, as in Kafka. A controller's log is an internal topic, which clients may not write. In
Kafka no client sees it, but here consumers read it. The error is LISTENER_NOT_FOUND if the leader
has no listener for clients, and LEADER_NOT_AVAILABLE if there is no leader.

DescribeTopicPartitions is paginated (KIP-966), but the single partition fits into any page, so
there is never a next cursor. An empty list of topics means all topics; topics that sort before the
cursor are omitted (Kafka: ``DescribeTopicPartitionsRequestHandler``).
"""

from __future__ import annotations

import re
from typing import Final

from kio.schema.describe_topic_partitions.v0 import request as topic_requests
from kio.schema.describe_topic_partitions.v0 import response as topic_responses
from kio.schema.errors import ErrorCode
from kio.schema.metadata.v13 import request as requests
from kio.schema.metadata.v13 import response as responses
from kio.schema.types import BrokerId, TopicName

from raftlog.node.request import Request
from raftlog.types import Operation, Resource, ResourceType
from raftlog.wire import latest_schemas
from raftlog.wire.log_identity import PARTITION, duration, int32, node

from .metadata_cache import MetadataCache, operations

_NAME: Final = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_NAME_NULLABLE_FROM: Final = 12


_MetadataRequest = Request[latest_schemas.MetadataRequest]


async def handle_metadata(
    cache: MetadataCache, request: _MetadataRequest
) -> latest_schemas.MetadataResponse:
    body = request.body
    leader = cache.leader()
    return latest_schemas.MetadataResponse(
        throttle_time=duration(0),
        brokers=tuple(
            responses.MetadataResponseBroker(
                node_id=node(one.node_id),
                host=one.host,
                port=int32(one.port),
                rack=cache.rack_of(one.node_id),
            )
            for one in cache.brokers()
        ),
        cluster_id=cache.identity.cluster_id,
        controller_id=node(None if leader is None else leader.node_id),
        topics=_topics(cache, request),
        error_code=ErrorCode.none,
        cluster_authorized_operations=int32(
            operations(request.principal, is_requested=body.include_cluster_authorized_operations)
        ),
    )


def _topics(
    cache: MetadataCache, request: _MetadataRequest
) -> tuple[responses.MetadataResponseTopic, ...]:
    body = request.body
    if body.topics is None or (request.version == 0 and not body.topics):
        is_allowed = request.principal.may(Operation.DESCRIBE, cache.topic)
        return (_found(cache, request),) if is_allowed else ()
    return tuple(_topic(cache, request, topic) for topic in body.topics)


def _topic(
    cache: MetadataCache,
    request: _MetadataRequest,
    topic: requests.MetadataRequestTopic,
) -> responses.MetadataResponseTopic:
    resource = cache.topic if topic.name is None else Resource(ResourceType.TOPIC, topic.name)
    is_allowed = request.principal.may(Operation.DESCRIBE, resource)
    if topic.name is not None and topic.topic_id is None:
        error = cache.name_error(topic.name)
        if not _NAME.fullmatch(topic.name) or topic.name in (".", ".."):
            error = ErrorCode.invalid_topic_exception
        elif not is_allowed:
            error = ErrorCode.topic_authorization_failed
    else:
        error = cache.id_error(topic.topic_id)
        if not is_allowed:  # does not reveal whether the topic exists
            error = ErrorCode.unknown_topic_id
    if error is ErrorCode.none:
        return _found(cache, request)
    name = topic.name if topic.topic_id is None else None
    if name is None and request.version < _NAME_NULLABLE_FROM:
        name = TopicName("")
    return responses.MetadataResponseTopic(
        error_code=error, name=name, topic_id=topic.topic_id, is_internal=False, partitions=()
    )


def _found(cache: MetadataCache, request: _MetadataRequest) -> responses.MetadataResponseTopic:
    body = request.body
    error, leader_id = leader_of_partition(cache)
    return responses.MetadataResponseTopic(
        error_code=ErrorCode.none,
        name=TopicName(cache.identity.topic),
        topic_id=cache.topic_uuid,
        is_internal=cache.is_read_only,
        partitions=(
            responses.MetadataResponsePartition(
                error_code=error,
                partition_index=int32(PARTITION),
                leader_id=node(leader_id),
                leader_epoch=int32(cache.core.epoch),
                replica_nodes=node_ids(cache.core.voters.node_ids),
                isr_nodes=node_ids(cache.in_sync()),
                offline_replicas=(),
            ),
        ),
        topic_authorized_operations=int32(
            cache.topic_operations(
                request.principal, is_requested=body.include_topic_authorized_operations
            )
        ),
    )


def leader_of_partition(cache: MetadataCache) -> tuple[ErrorCode, int | None]:
    """Return the partition's leader for clients, or why there is no leader."""
    if cache.leader_id() is None:
        return ErrorCode.leader_not_available, None
    leader = cache.leader()
    if leader is None:
        return ErrorCode.listener_not_found, None
    return ErrorCode.none, leader.node_id


def node_ids(found: tuple[int, ...]) -> tuple[BrokerId, ...]:
    return tuple(node(one) for one in found)


# --- DescribeTopicPartitions ----------------------------------------------------------------------


async def handle_describe_topic_partitions(
    cache: MetadataCache, request: Request[topic_requests.DescribeTopicPartitionsRequest]
) -> topic_responses.DescribeTopicPartitionsResponse:
    body, own = request.body, cache.identity.topic
    may = request.principal.may
    names = sorted({topic.name for topic in body.topics})
    if not names and may(Operation.DESCRIBE, cache.topic):
        names = [TopicName(own)]
    cursor = body.cursor
    if cursor is not None:
        names = [name for name in names if name >= cursor.topic_name]
    return topic_responses.DescribeTopicPartitionsResponse(
        throttle_time=duration(0),
        topics=tuple(
            _described_topic(
                cache,
                request,
                name,
                is_allowed=may(Operation.DESCRIBE, Resource(ResourceType.TOPIC, name)),
            )
            for name in names
        ),
    )


def _described_topic(
    cache: MetadataCache,
    request: Request[topic_requests.DescribeTopicPartitionsRequest],
    name: TopicName,
    *,
    is_allowed: bool,
) -> topic_responses.DescribeTopicPartitionsResponseTopic:
    error = cache.name_error(name) if is_allowed else ErrorCode.topic_authorization_failed
    if error is not ErrorCode.none:
        return topic_responses.DescribeTopicPartitionsResponseTopic(
            error_code=error,
            name=name,
            topic_id=None,
            partitions=(),
            topic_authorized_operations=int32(operations(request.principal, is_requested=False)),
        )
    leader_error, leader_id = leader_of_partition(cache)
    partition = topic_responses.DescribeTopicPartitionsResponsePartition(
        error_code=leader_error,
        partition_index=int32(PARTITION),
        leader_id=node(leader_id),
        leader_epoch=int32(cache.core.epoch),
        replica_nodes=node_ids(cache.core.voters.node_ids),
        isr_nodes=node_ids(cache.in_sync()),
        eligible_leader_replicas=(),
        last_known_elr=(),
        offline_replicas=(),
    )
    return topic_responses.DescribeTopicPartitionsResponseTopic(
        error_code=ErrorCode.none,
        name=name,
        topic_id=cache.topic_uuid,
        partitions=(partition,),
        is_internal=cache.is_read_only,
        topic_authorized_operations=int32(
            cache.topic_operations(request.principal, is_requested=True)
        ),
    )
