"""Handler of Metadata: nodes, topic and leader.

In version 0 an empty list of topics means all, from version 1 on null does. From version 10 on a
topic without a name is identified by its topic id. A principal without DESCRIBE gets no topics, and
an authorization error for the topics that it names; the endpoints of the nodes are not restricted,
as in Kafka. A leader without a listener for clients is LISTENER_NOT_FOUND, no leader is
LEADER_NOT_AVAILABLE.
"""

from __future__ import annotations

import re
from typing import Final

from kio.schema.errors import ErrorCode
from kio.schema.metadata.v13 import request as requests
from kio.schema.metadata.v13 import response as responses
from kio.schema.types import BrokerId, TopicName

from raftlog.wire import latest_schemas
from raftlog.wire.log_identity import PARTITION, duration, int32, node

from .metadata_cache import MetadataCache, may_describe, operations
from .question import Question

_NAME: Final = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_NAME_NULLABLE_FROM: Final = 12


async def handle_metadata(
    question: Question[latest_schemas.MetadataRequest],
) -> latest_schemas.MetadataResponse:
    view, request = question.view, question.request
    leader = view.leader()
    return latest_schemas.MetadataResponse(
        throttle_time=duration(0),
        brokers=tuple(
            responses.MetadataResponseBroker(
                node_id=node(one.node_id), host=one.host, port=int32(one.port), rack=None
            )
            for one in view.brokers()
        ),
        cluster_id=view.identity.cluster_id,
        controller_id=node(None if leader is None else leader.node_id),
        topics=_topics(question),
        error_code=ErrorCode.none,
        cluster_authorized_operations=int32(
            operations(question.caller, is_asked=request.include_cluster_authorized_operations)
        ),
    )


def _topics(
    question: Question[latest_schemas.MetadataRequest],
) -> tuple[responses.MetadataResponseTopic, ...]:
    request, is_allowed = question.request, may_describe(question.caller)
    if request.topics is None or (question.version == 0 and not request.topics):
        return (_found(question),) if is_allowed else ()
    return tuple(_topic(question, topic, is_allowed) for topic in request.topics)


def _topic(
    question: Question[latest_schemas.MetadataRequest],
    topic: requests.MetadataRequestTopic,
    is_allowed: bool,
) -> responses.MetadataResponseTopic:
    view = question.view
    if topic.name is not None and topic.topic_id is None:
        error = view.name_error(topic.name)
        if not _NAME.fullmatch(topic.name) or topic.name in (".", ".."):
            error = ErrorCode.invalid_topic_exception
        elif not is_allowed:
            error = ErrorCode.topic_authorization_failed
    else:
        error = view.id_error(topic.topic_id)
        if not is_allowed:  # does not reveal whether the topic exists
            error = ErrorCode.unknown_topic_id
    if error is ErrorCode.none:
        return _found(question)
    name = topic.name if topic.topic_id is None else None
    if name is None and question.version < _NAME_NULLABLE_FROM:
        name = TopicName("")
    return responses.MetadataResponseTopic(
        error_code=error, name=name, topic_id=topic.topic_id, is_internal=False, partitions=()
    )


def _found(question: Question[latest_schemas.MetadataRequest]) -> responses.MetadataResponseTopic:
    view, request = question.view, question.request
    error, leader_id = leader_of_partition(view)
    return responses.MetadataResponseTopic(
        error_code=ErrorCode.none,
        name=TopicName(view.identity.topic),
        topic_id=view.topic_uuid,
        is_internal=False,
        partitions=(
            responses.MetadataResponsePartition(
                error_code=error,
                partition_index=int32(PARTITION),
                leader_id=node(leader_id),
                leader_epoch=int32(view.core.epoch),
                replica_nodes=node_ids(view.core.voters.node_ids),
                isr_nodes=node_ids(view.in_sync()),
                offline_replicas=(),
            ),
        ),
        topic_authorized_operations=int32(
            operations(question.caller, is_asked=request.include_topic_authorized_operations)
        ),
    )


def leader_of_partition(view: MetadataCache) -> tuple[ErrorCode, int | None]:
    """Return the partition's leader for clients, or why there is no leader."""
    if view.leader_id() is None:
        return ErrorCode.leader_not_available, None
    leader = view.leader()
    if leader is None:
        return ErrorCode.listener_not_found, None
    return ErrorCode.none, leader.node_id


def node_ids(found: tuple[int, ...]) -> tuple[BrokerId, ...]:
    return tuple(node(one) for one in found)
