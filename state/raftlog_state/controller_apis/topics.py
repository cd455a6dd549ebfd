"""CreateTopics, DeleteTopics and CreatePartitions.

The topics of a request succeed or fail individually; those that succeed are committed together.

Source: Kafka ``ControllerApis`` (createTopics, deleteTopics, createPartitions).
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Generator, Iterable, Sequence
from typing import Final

from kio.schema.create_partitions.v3 import request as partition_requests
from kio.schema.create_partitions.v3 import response as partition_responses
from kio.schema.create_topics.v7 import request as create_requests
from kio.schema.create_topics.v7 import response as create_responses
from kio.schema.delete_topics.v6 import response as delete_responses
from kio.schema.errors import ErrorCode
from kio.schema.types import TopicName

from raftlog.types import CLUSTER_METADATA_TOPIC, Operation, Resource, ResourceType
from raftlog.wire import latest_schemas
from raftlog.wire.log_identity import duration, int8, int16, int32, name, uuid_or_none, uuid_text
from raftlog_state.controller import (
    AddPartitions,
    ApiException,
    CreateTopic,
    DeleteTopic,
    PendingState,
    write_change_in_steps,
)
from raftlog_state.controller.api_exception import (
    INVALID_REQUEST,
    UNKNOWN_TOPIC_ID,
    UNKNOWN_TOPIC_OR_PARTITION,
)
from raftlog_state.controller.configs import ConfigResource
from raftlog_state.controller.controller_state import TOPIC
from raftlog_state.controller.topics import check_new_partitions
from raftlog_state.image import PartitionRow, TopicRow
from raftlog_state.records import is_secret_config

from .configs import effective_configs
from .hosted_controller import HostedController
from .requests import ControllerRequest, Principal, code_and_message, timeout_ms, unauthorized

IDS_FROM: Final = 6
"""First version of DeleteTopics with topic ids."""

_CreateResult = create_responses.CreatableTopicResult
_DeleteResult = delete_responses.DeletableTopicResult


# --- CreateTopics ---------------------------------------------------------------------------------


async def handle_create_topics(
    controller: HostedController,
    request: ControllerRequest[create_requests.CreateTopicsRequest],
) -> create_responses.CreateTopicsResponse:
    body, may = request.body, request.principal.may
    may_create_all = may(Operation.CREATE)
    counts = Counter(topic.name for topic in body.topics)
    topics = {topic.name: topic for topic in body.topics}
    refused: list[_CreateResult] = []
    for topic_name, count in counts.items():
        if count > 1:
            code, reason = ErrorCode.invalid_request, "Duplicate topic name."
        elif topic_name == CLUSTER_METADATA_TOPIC:
            code = ErrorCode.invalid_topic_exception
            reason = f"Creation of internal topic {CLUSTER_METADATA_TOPIC} is prohibited."
        elif not (may_create_all or may(Operation.CREATE, _topic_resource(topic_name))):
            code, reason = ErrorCode.topic_authorization_failed, ""
        else:
            continue
        del topics[topic_name]
        refused.append(_create_refused(topic_name, code, reason or None))

    def operation(state: PendingState) -> Generator[None, None, list[_CreateResult]]:
        check_new_partitions(
            len(topic.assignments) or int(topic.num_partitions) for topic in topics.values()
        )
        results = []
        for topic in topics.values():
            shows_configs = may(Operation.DESCRIBE_CONFIGS, _topic_resource(topic.name))
            results.append((yield from _create(topic, state, shows_configs=shows_configs)))
            yield from state.pause()
        return results

    created: list[_CreateResult] = []
    if topics:
        created = await controller.write_in_steps(
            "createTopics",
            operation,
            timeout_ms=timeout_ms(body.timeout),
            validate_only=body.validate_only,
        )
    return create_responses.CreateTopicsResponse(
        throttle_time=duration(0), topics=(*refused, *created)
    )


def _create(
    topic: create_requests.CreatableTopic, state: PendingState, *, shows_configs: bool
) -> Generator[None, None, _CreateResult]:
    try:
        yield from write_change_in_steps(_create_change(topic), state)
    except ApiException as refused:
        return _create_refused(topic.name, *code_and_message(refused))
    row = state.current.topic(topic.name)
    assert row is not None, "it was created"
    if not shows_configs:
        return _CreateResult(
            name=topic.name,
            topic_id=uuid_or_none(row.topic_id),
            error_code=ErrorCode.none,
            error_message=None,
            topic_config_error_code=int16(ErrorCode.topic_authorization_failed),
            configs=(),
        )
    keys = state.current.partition_keys(row.topic_id)
    first = state.current.find(PartitionRow, *keys[0])
    assert first is not None, "it was created"
    return _CreateResult(
        name=topic.name,
        topic_id=uuid_or_none(row.topic_id),
        error_code=ErrorCode.none,
        error_message=None,
        num_partitions=int32(len(keys)),
        replication_factor=int16(len(first.replicas)),
        configs=tuple(
            create_responses.CreatableTopicConfigs(
                name=config.name,
                value=config.value,
                read_only=False,
                config_source=int8(config.source),
                is_sensitive=is_secret_config(TOPIC, config.name),
            )
            for config in effective_configs(ConfigResource(TOPIC, topic.name), state.current)
        ),
    )


def _create_change(topic: create_requests.CreatableTopic) -> CreateTopic:
    what = f"topic {topic.name!r}"
    configs: dict[str, str] = {}
    for config in topic.configs:
        if config.value is None:
            reason = f"Null value not supported for topic configs: {config.name}"
            raise ApiException(what, reason, "set a value", ErrorCode.invalid_config)
        configs[config.name] = config.value
    if not topic.assignments:
        return CreateTopic(
            topic=topic.name,
            partitions=topic.num_partitions,
            replication_factor=topic.replication_factor,
            configs=configs,
        )
    assigned = {int(one.partition_index): one.broker_ids for one in topic.assignments}
    for field, value in (
        ("replication factor", topic.replication_factor),
        ("numPartitions", topic.num_partitions),
    ):
        if value != -1:
            reason = f"A manual partition assignment was specified, but {field} was not set to -1."
            raise ApiException(what, reason, "set it to -1", INVALID_REQUEST)
    is_repeated = len(assigned) != len(topic.assignments)
    if is_repeated or set(assigned) != set(range(len(assigned))):
        reason = (
            "Found multiple manual partition assignments for the same partition"
            if is_repeated
            else "Manual partition assignment indices must be consecutive, beginning at 0"
        )
        remedy = "assign each partition from 0 on once"
        raise ApiException(what, reason, remedy, ErrorCode.invalid_replica_assignment)
    assignment = tuple(tuple(map(int, assigned[at])) for at in range(len(assigned)))
    return CreateTopic(topic=topic.name, assignment=assignment, configs=configs)


def refuse_create_topics(
    request: ControllerRequest[create_requests.CreateTopicsRequest],
    code: ErrorCode,
    message: str | None,
) -> create_responses.CreateTopicsResponse:
    names = dict.fromkeys(topic.name for topic in request.body.topics)
    return create_responses.CreateTopicsResponse(
        throttle_time=duration(0),
        topics=tuple(_create_refused(one, code, message) for one in names),
    )


def _create_refused(topic: TopicName, code: ErrorCode, message: str | None) -> _CreateResult:
    return _CreateResult(
        name=topic,
        topic_id=None,
        error_code=code,
        error_message=message,
        configs=(),
    )


# --- DeleteTopics ---------------------------------------------------------------------------------


async def handle_delete_topics(
    controller: HostedController,
    request: ControllerRequest[latest_schemas.DeleteTopicsRequest],
) -> delete_responses.DeleteTopicsResponse:
    wanted = _topics_to_delete(request)
    may = request.principal.may
    if all(
        one is not None
        and not (may(Operation.DELETE) or may(Operation.DELETE, _topic_resource(one)))
        for one, _ in wanted
    ):
        return refuse_delete_topics(request, ErrorCode.topic_authorization_failed, None)
    responses = await controller.write_in_steps(
        "deleteTopics",
        lambda state: _delete_all(wanted, state, request.principal),
        timeout_ms=timeout_ms(request.body.timeout),
    )
    return delete_responses.DeleteTopicsResponse(
        throttle_time=duration(0), responses=tuple(responses)
    )


def refuse_delete_topics(
    request: ControllerRequest[latest_schemas.DeleteTopicsRequest],
    code: ErrorCode,
    message: str | None,
) -> delete_responses.DeleteTopicsResponse:
    return delete_responses.DeleteTopicsResponse(
        throttle_time=duration(0),
        responses=tuple(
            _delete_result(topic, topic_id, code, message)
            for topic, topic_id in dict.fromkeys(_topics_to_delete(request))
        ),
    )


def _topics_to_delete(
    request: ControllerRequest[latest_schemas.DeleteTopicsRequest],
) -> list[tuple[TopicName | None, uuid.UUID | None]]:
    """Return the names and ids of the topics."""
    if request.version < IDS_FROM:
        return [(one, None) for one in request.body.topic_names]
    return [(topic.name, topic.topic_id) for topic in request.body.topics]


def _delete_all(
    wanted: Sequence[tuple[TopicName | None, uuid.UUID | None]],
    state: PendingState,
    principal: Principal,
) -> Generator[None, None, list[_DeleteResult]]:
    """Delete topics by name or id; a topic that is named twice is not deleted.

    If the principal may not describe a topic, its name is not revealed, nor whether a topic with a
    name exists.
    """
    counts, may = Counter(wanted), principal.may
    may_delete_all = may(Operation.DELETE)
    found: list[tuple[TopicName | None, uuid.UUID | None, TopicRow | ApiException]] = []
    for topic, topic_id in counts:
        at: TopicRow | ApiException | None
        if topic is None and topic_id is None:
            at = _refusal(INVALID_REQUEST, "Neither topic name nor id were specified.")
        elif topic is not None and topic_id is not None:
            at = _refusal(INVALID_REQUEST, "You may not specify both topic name and topic id.")
        elif counts[topic, topic_id] > 1:
            what = "name" if topic_id is None else "id"
            at = _refusal(INVALID_REQUEST, f"Duplicate topic {what}.")
        elif topic is not None:
            at = state.current.topic(topic)
            if not (may_delete_all or may(Operation.DELETE, _topic_resource(topic))):
                at = unauthorized(ErrorCode.topic_authorization_failed)
            elif at is None:
                reason = "This server does not host this topic-partition."
                at = _refusal(UNKNOWN_TOPIC_OR_PARTITION, reason)
        else:
            at = state.current.find(TopicRow, uuid_text(topic_id))
            if at is None:
                at = _refusal(UNKNOWN_TOPIC_ID, "This server does not host this topic ID.")
            elif not (may_delete_all or may(Operation.DELETE, _topic_resource(at.name))):
                if may(Operation.DESCRIBE, _topic_resource(at.name)):
                    topic = name(at.name)
                at = unauthorized(ErrorCode.topic_authorization_failed)
        found.append((topic, topic_id, at))
    by_id = Counter(at.topic_id for _, _, at in found if isinstance(at, TopicRow))
    results = []
    for topic, topic_id, at in found:
        if isinstance(at, TopicRow) and by_id[at.topic_id] > 1:
            reason = "The provided topic name maps to an ID that was already supplied."
            at = _refusal(INVALID_REQUEST, reason)
        if isinstance(at, ApiException):
            results.append(_delete_result(topic, topic_id, *code_and_message(at)))
            continue
        yield from write_change_in_steps(DeleteTopic(topic=at.name, topic_id=at.topic_id), state)
        results.append(
            _delete_result(name(at.name), uuid_or_none(at.topic_id), ErrorCode.none, None)
        )
        yield from state.pause()
    return results


def _delete_result(
    topic: TopicName | None, topic_id: uuid.UUID | None, code: ErrorCode, message: str | None
) -> _DeleteResult:
    return _DeleteResult(name=topic, topic_id=topic_id, error_code=code, error_message=message)


def _topic_resource(topic: str) -> Resource:
    return Resource(ResourceType.TOPIC, topic)


def _refusal(code: int, reason: str) -> ApiException:
    return ApiException("the topic", reason, "correct the request", code)


# --- CreatePartitions -----------------------------------------------------------------------------


async def handle_create_partitions(
    controller: HostedController,
    request: ControllerRequest[partition_requests.CreatePartitionsRequest],
) -> partition_responses.CreatePartitionsResponse:
    body, may = request.body, request.principal.may
    counts = Counter(topic.name for topic in body.topics)
    denied = {one for one in counts if not may(Operation.ALTER, _topic_resource(one))}
    if len(denied) == len(counts):
        return refuse_create_partitions(request, ErrorCode.topic_authorization_failed, None)

    def operation(
        state: PendingState,
    ) -> Generator[None, None, dict[TopicName, ApiException | None]]:
        found: dict[TopicName, ApiException | None] = {}
        for topic in body.topics:
            if counts[topic.name] > 1:
                found[topic.name] = _refusal(INVALID_REQUEST, "Duplicate topic name.")
                continue
            if topic.name in denied:
                found[topic.name] = unauthorized(ErrorCode.topic_authorization_failed)
                continue
            try:
                yield from write_change_in_steps(_partitions_change(topic), state)
                found[topic.name] = None
            except ApiException as refused:
                found[topic.name] = refused
            yield from state.pause()
        return found

    refused = await controller.write_in_steps(
        "createPartitions",
        operation,
        timeout_ms=timeout_ms(body.timeout),
        validate_only=body.validate_only,
    )
    return _partitions_response(
        (topic, *code_and_message(error)) for topic, error in refused.items()
    )


def refuse_create_partitions(
    request: ControllerRequest[partition_requests.CreatePartitionsRequest],
    code: ErrorCode,
    message: str | None,
) -> partition_responses.CreatePartitionsResponse:
    names = dict.fromkeys(topic.name for topic in request.body.topics)
    return _partitions_response((one, code, message) for one in names)


def _partitions_change(topic: partition_requests.CreatePartitionsTopic) -> AddPartitions:
    assignment = None
    if topic.assignments is not None:
        assignment = tuple(tuple(map(int, one.broker_ids)) for one in topic.assignments)
    return AddPartitions(topic=topic.name, partitions=int(topic.count), assignment=assignment)


def _partitions_response(
    results: Iterable[tuple[TopicName, ErrorCode, str | None]],
) -> partition_responses.CreatePartitionsResponse:
    return partition_responses.CreatePartitionsResponse(
        throttle_time=duration(0),
        results=tuple(
            partition_responses.CreatePartitionsTopicResult(
                name=topic, error_code=code, error_message=message
            )
            for topic, code, message in results
        ),
    )
