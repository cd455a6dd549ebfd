"""AlterPartition, AlterPartitionReassignments, ListPartitionReassignments and ElectLeaders.

Source: Kafka ``ControllerApis``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from itertools import chain
from typing import Final, TypeAlias, TypeVar

from kio.schema.alter_partition.v3 import response as isr_responses
from kio.schema.alter_partition_reassignments.v1 import request as reassign_requests
from kio.schema.alter_partition_reassignments.v1 import response as reassign_responses
from kio.schema.elect_leaders.v2 import request as election_requests
from kio.schema.elect_leaders.v2 import response as election_responses
from kio.schema.errors import ErrorCode
from kio.schema.list_partition_reassignments.v0 import request as list_requests
from kio.schema.list_partition_reassignments.v0 import response as list_responses

from raftlog.types import Operation
from raftlog.wire import latest_schemas
from raftlog.wire.log_identity import duration, int8, int32, name, node, uuid_text
from raftlog_state.controller import ApiException, ControllerState
from raftlog_state.controller.controller_state import is_reassigning
from raftlog_state.controller.partition_change import Election
from raftlog_state.controller.partitions import AlterPartition, alter_partition, elect_leaders
from raftlog_state.controller.reassignments import (
    Reassignment,
    alter_partition_reassignments,
    list_partition_reassignments,
)
from raftlog_state.image import PartitionRow

from .hosted_controller import ROWS_PER_STEP, HostedController
from .requests import ControllerRequest, code_and_message, map_in_steps, timeout_ms

T = TypeVar("T")

_AlterPartition: TypeAlias = ControllerRequest[latest_schemas.AlterPartitionRequest]
_Reassign: TypeAlias = ControllerRequest[reassign_requests.AlterPartitionReassignmentsRequest]
_List: TypeAlias = ControllerRequest[list_requests.ListPartitionReassignmentsRequest]
_Elect: TypeAlias = ControllerRequest[election_requests.ElectLeadersRequest]
_UNAUTHORIZED = ErrorCode.cluster_authorization_failed

EPOCHS_FROM: Final = 3
"""First version of AlterPartition with the epochs of the brokers in the ISR."""
ANY_EPOCH: Final = -1
_ELECTIONS: Final = {0: Election.PREFERRED, 1: Election.UNCLEAN}


# --- AlterPartition -------------------------------------------------------------------------------


async def handle_alter_partition(
    controller: HostedController, request: _AlterPartition
) -> isr_responses.AlterPartitionResponse:
    body = request.body
    broker_id, epoch = int(body.broker_id), int(body.broker_epoch)
    if not request.principal.may_act_as(broker_id):
        return refuse_alter_partition(request, _UNAUTHORIZED, None)
    changes = [
        AlterPartition(
            topic_id=uuid_text(topic.topic_id),
            partition=int(one.partition_index),
            leader_epoch=int(one.leader_epoch),
            partition_epoch=int(one.partition_epoch),
            isr=_isr(one, request.version),
            leader_recovery_state=int(one.leader_recovery_state),
        )
        for topic in body.topics
        for one in topic.partitions
    ]
    found = await controller.write_in_steps(
        "alterPartition", lambda state: alter_partition(broker_id, epoch, changes, state)
    )
    rows = iter(found)
    return isr_responses.AlterPartitionResponse(
        throttle_time=duration(0),
        error_code=ErrorCode.none,
        topics=tuple(
            isr_responses.TopicData(
                topic_id=topic.topic_id,
                partitions=tuple(
                    _altered(int(one.partition_index), next(rows)) for one in topic.partitions
                ),
            )
            for topic in body.topics
        ),
    )


def refuse_alter_partition(
    request: _AlterPartition, code: ErrorCode, message: str | None
) -> isr_responses.AlterPartitionResponse:
    return isr_responses.AlterPartitionResponse(
        throttle_time=duration(0), error_code=code, topics=()
    )


def _isr(one: latest_schemas.AlteredPartition, version: int) -> tuple[tuple[int, int], ...]:
    if version < EPOCHS_FROM:
        return tuple((int(broker_id), ANY_EPOCH) for broker_id in one.new_isr)
    return tuple((int(at.broker_id), int(at.broker_epoch)) for at in one.new_isr_with_epochs)


def _altered(number: int, found: PartitionRow | ApiException) -> isr_responses.PartitionData:
    if isinstance(found, ApiException):
        return isr_responses.PartitionData(
            partition_index=int32(number),
            error_code=code_and_message(found)[0],
            leader_id=node(0),
            leader_epoch=int32(0),
            partition_epoch=int32(0),
        )
    return isr_responses.PartitionData(
        partition_index=int32(number),
        error_code=ErrorCode.none,
        leader_id=node(found.leader),
        leader_epoch=int32(found.leader_epoch),
        isr=tuple(map(node, found.isr)),
        leader_recovery_state=int8(found.leader_recovery_state),
        partition_epoch=int32(found.partition_epoch),
    )


# --- reassignments --------------------------------------------------------------------------------


async def handle_alter_partition_reassignments(
    controller: HostedController, request: _Reassign
) -> reassign_responses.AlterPartitionReassignmentsResponse:
    body = request.body
    if not request.principal.may(Operation.ALTER):
        return refuse_alter_partition_reassignments(request, _UNAUTHORIZED, None)
    wanted = [
        Reassignment(
            topic.name,
            int(one.partition_index),
            None if one.replicas is None else tuple(map(int, one.replicas)),
        )
        for topic in body.topics
        for one in topic.partitions
    ]
    refused = await controller.write_in_steps(
        "alterPartitionReassignments",
        lambda state: alter_partition_reassignments(
            wanted, state, allow_replication_factor_change=body.allow_replication_factor_change
        ),
        timeout_ms=timeout_ms(body.timeout),
    )
    results = iter([code_and_message(one) for one in refused])
    return reassign_responses.AlterPartitionReassignmentsResponse(
        throttle_time=duration(0),
        allow_replication_factor_change=body.allow_replication_factor_change,
        error_code=ErrorCode.none,
        error_message=None,
        responses=tuple(
            reassign_responses.ReassignableTopicResponse(
                name=topic.name,
                partitions=tuple(
                    _reassigned(int(one.partition_index), *next(results))
                    for one in topic.partitions
                ),
            )
            for topic in body.topics
        ),
    )


def refuse_alter_partition_reassignments(
    request: _Reassign, code: ErrorCode, message: str | None
) -> reassign_responses.AlterPartitionReassignmentsResponse:
    return reassign_responses.AlterPartitionReassignmentsResponse(
        throttle_time=duration(0), error_code=code, error_message=message, responses=()
    )


def _reassigned(
    number: int, code: ErrorCode, message: str | None
) -> reassign_responses.ReassignablePartitionResponse:
    return reassign_responses.ReassignablePartitionResponse(
        partition_index=int32(number), error_code=code, error_message=message
    )


async def handle_list_partition_reassignments(
    controller: HostedController, request: _List
) -> list_responses.ListPartitionReassignmentsResponse:
    if not request.principal.may(Operation.DESCRIBE):
        return refuse_list_partition_reassignments(request, _UNAUTHORIZED, None)
    topics, event = request.body.topics, "listPartitionReassignments"
    if topics is None:
        rows = await controller.rows_in_steps(
            event, PartitionRow, is_reassigning, among=ControllerState.reassigning_keys
        )
    else:
        wanted = [(one.name, int(at)) for one in topics for at in one.partition_indexes]
        steps = (
            partial(list_partition_reassignments, wanted[start : start + ROWS_PER_STEP])
            for start in range(0, len(wanted), ROWS_PER_STEP)
        )
        rows = list(chain.from_iterable(await controller.read_in_steps(event, steps)))
    partitions = await map_in_steps(lambda row: (row.topic_name, _ongoing(row)), rows)
    return list_responses.ListPartitionReassignmentsResponse(
        throttle_time=duration(0),
        error_code=ErrorCode.none,
        error_message=None,
        topics=tuple(await map_in_steps(_ongoing_topic, list(_by_topic(partitions)))),
    )


def refuse_list_partition_reassignments(
    request: _List, code: ErrorCode, message: str | None
) -> list_responses.ListPartitionReassignmentsResponse:
    return list_responses.ListPartitionReassignmentsResponse(
        throttle_time=duration(0), error_code=code, error_message=message, topics=()
    )


def _ongoing_topic(
    found: tuple[str, list[list_responses.OngoingPartitionReassignment]],
) -> list_responses.OngoingTopicReassignment:
    topic, partitions = found
    return list_responses.OngoingTopicReassignment(name=name(topic), partitions=tuple(partitions))


def _ongoing(row: PartitionRow) -> list_responses.OngoingPartitionReassignment:
    return list_responses.OngoingPartitionReassignment(
        partition_index=int32(row.partition_id),
        replicas=tuple(map(node, row.replicas)),
        adding_replicas=tuple(map(node, row.adding_replicas)),
        removing_replicas=tuple(map(node, row.removing_replicas)),
    )


# --- ElectLeaders ---------------------------------------------------------------------------------


async def handle_elect_leaders(
    controller: HostedController, request: _Elect
) -> election_responses.ElectLeadersResponse:
    body = request.body
    if not request.principal.may(Operation.ALTER):
        return refuse_elect_leaders(request, _UNAUTHORIZED, None)
    election = _ELECTIONS.get(int(body.election_type))
    if election is None:
        return refuse_elect_leaders(request, ErrorCode.invalid_request, None)
    wanted = None
    if body.topic_partitions is not None:
        wanted = [(one.topic, int(at)) for one in body.topic_partitions for at in one.partitions]
    refused = await controller.write_in_steps(
        "electLeaders",
        lambda state: elect_leaders(election, wanted, state),
        timeout_ms=timeout_ms(body.timeout),
    )
    results = (
        (topic, _elected(number, *code_and_message(error)))
        for (topic, number), error in refused.items()
    )
    return election_responses.ElectLeadersResponse(
        throttle_time=duration(0),
        error_code=ErrorCode.none,
        replica_election_results=tuple(
            election_responses.ReplicaElectionResult(topic=name(topic), partition_result=tuple(of))
            for topic, of in _by_topic(results)
        ),
    )


def refuse_elect_leaders(
    request: _Elect, code: ErrorCode, message: str | None
) -> election_responses.ElectLeadersResponse:
    return election_responses.ElectLeadersResponse(
        throttle_time=duration(0), error_code=code, replica_election_results=()
    )


def _elected(
    number: int, code: ErrorCode, message: str | None
) -> election_responses.PartitionResult:
    return election_responses.PartitionResult(
        partition_id=int32(number), error_code=code, error_message=message
    )


def _by_topic(found: Iterable[tuple[str, T]]) -> Iterator[tuple[str, list[T]]]:
    """Yield the topics with their elements, in the order in which they occur first."""
    topics: dict[str, list[T]] = {}
    for topic, one in found:
        topics.setdefault(topic, []).append(one)
    yield from topics.items()
