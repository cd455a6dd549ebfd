"""Requests of brokers (registration, heartbeats, producer ids, log directories) and of controllers.

They require a node's rights, for the id in the request. UnregisterBroker is an admin request.

Source: Kafka ``ControllerApis``.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeAlias, cast

from kio.schema.allocate_producer_ids.v0 import request as producer_requests
from kio.schema.allocate_producer_ids.v0 import response as producer_responses
from kio.schema.assign_replicas_to_dirs.v0 import request as directory_requests
from kio.schema.assign_replicas_to_dirs.v0 import response as directory_responses
from kio.schema.broker_heartbeat.v2 import request as heartbeat_requests
from kio.schema.broker_heartbeat.v2 import response as heartbeat_responses
from kio.schema.broker_registration.v4 import request as broker_requests
from kio.schema.broker_registration.v4 import response as broker_responses
from kio.schema.controller_registration.v0 import request as controller_requests
from kio.schema.controller_registration.v0 import response as controller_responses
from kio.schema.errors import ErrorCode
from kio.schema.types import ProducerId
from kio.schema.unregister_broker.v0 import request as unregister_requests
from kio.schema.unregister_broker.v0 import response as unregister_responses

from raftlog.types import Operation
from raftlog.wire.log_identity import duration, int32, int64, uuid_text
from raftlog_state.controller import PendingState
from raftlog_state.controller.broker_control import BrokerHeartbeatReply
from raftlog_state.controller.brokers import BrokerRegistration, register_controller
from raftlog_state.controller.directories import DirectoryAssignment, assign_replicas_to_dirs
from raftlog_state.controller.heartbeats import BrokerHeartbeat
from raftlog_state.controller.producer_ids import allocate_producer_ids
from raftlog_state.records import (
    BrokerEndpoint,
    ControllerEndpoint,
    ControllerFeature,
    RegisterControllerRecord,
)

from .hosted_controller import HostedController
from .requests import ControllerRequest, code_and_message

_Register: TypeAlias = ControllerRequest[broker_requests.BrokerRegistrationRequest]
_Heartbeat: TypeAlias = ControllerRequest[heartbeat_requests.BrokerHeartbeatRequest]
_Unregister: TypeAlias = ControllerRequest[unregister_requests.UnregisterBrokerRequest]
_ProducerIds: TypeAlias = ControllerRequest[producer_requests.AllocateProducerIdsRequest]
_Controller: TypeAlias = ControllerRequest[controller_requests.ControllerRegistrationRequest]
_Directories: TypeAlias = ControllerRequest[directory_requests.AssignReplicasToDirsRequest]
_UNAUTHORIZED = ErrorCode.cluster_authorization_failed


# --- registration and heartbeats ------------------------------------------------------------------


async def handle_broker_registration(
    controller: HostedController, request: _Register
) -> broker_responses.BrokerRegistrationResponse:
    body = request.body
    if not request.principal.may_act_as(int(body.broker_id)):
        return refuse_broker_registration(request, _UNAUTHORIZED, None)
    registration = BrokerRegistration(
        broker_id=int(body.broker_id),
        incarnation_id=uuid_text(body.incarnation_id),
        endpoints=tuple(
            BrokerEndpoint(
                name=one.name,
                host=one.host,
                port=int(one.port),
                security_protocol=int(one.security_protocol),
            )
            for one in body.listeners
        ),
        features={
            one.name: (int(one.min_supported_version), int(one.max_supported_version))
            for one in body.features
        },
        rack=body.rack,
        log_dirs=tuple(map(uuid_text, body.log_dirs)),
        previous_broker_epoch=int(body.previous_broker_epoch),
    )

    def operation(state: PendingState) -> Generator[None, None, int]:
        return controller.brokers.register(
            registration,
            state,
            cluster_id=body.cluster_id,
            now_us=controller.now_us(),
            is_migrating_zk_broker=body.is_migrating_zk_broker,
            kraft_version=controller.controller.kraft_version,
        )

    epoch = await controller.write_in_steps("registerBroker", operation, is_atomic=False)
    return broker_responses.BrokerRegistrationResponse(
        throttle_time=duration(0), error_code=ErrorCode.none, broker_epoch=int64(epoch)
    )


def refuse_broker_registration(
    request: _Register, code: ErrorCode, message: str | None
) -> broker_responses.BrokerRegistrationResponse:
    return broker_responses.BrokerRegistrationResponse(throttle_time=duration(0), error_code=code)


async def handle_broker_heartbeat(
    controller: HostedController, request: _Heartbeat
) -> heartbeat_responses.BrokerHeartbeatResponse:
    body = request.body
    if not request.principal.may_act_as(int(body.broker_id)):
        return refuse_broker_heartbeat(request, _UNAUTHORIZED, None)
    cordoned = body.cordoned_log_dirs
    heartbeat = BrokerHeartbeat(
        broker_id=int(body.broker_id),
        broker_epoch=int(body.broker_epoch),
        current_metadata_offset=int(body.current_metadata_offset),
        want_fence=body.want_fence,
        want_shut_down=body.want_shut_down,
        offline_log_dirs=tuple(map(uuid_text, body.offline_log_dirs)),
        cordoned_log_dirs=None if cordoned is None else tuple(map(uuid_text, cordoned)),
    )

    def operation(state: PendingState) -> Generator[None, None, BrokerHeartbeatReply]:
        return controller.brokers.heartbeat(heartbeat, state, now_us=controller.now_us())

    reply = await controller.write_in_steps(
        "processBrokerHeartbeat",
        operation,
        timeout_ms=controller.session_timeout_ms // 2,
        is_atomic=False,
    )
    return heartbeat_responses.BrokerHeartbeatResponse(
        throttle_time=duration(0),
        error_code=ErrorCode.none,
        is_caught_up=reply.is_caught_up,
        is_fenced=reply.is_fenced,
        should_shut_down=reply.should_shut_down,
    )


def refuse_broker_heartbeat(
    request: _Heartbeat, code: ErrorCode, message: str | None
) -> heartbeat_responses.BrokerHeartbeatResponse:
    return heartbeat_responses.BrokerHeartbeatResponse(
        throttle_time=duration(0), error_code=code, should_shut_down=False
    )


async def handle_unregister_broker(
    controller: HostedController, request: _Unregister
) -> unregister_responses.UnregisterBrokerResponse:
    if not request.principal.may(Operation.ALTER):
        return refuse_unregister_broker(request, _UNAUTHORIZED, None)
    broker_id = int(request.body.broker_id)

    def operation(state: PendingState) -> Generator[None, None, None]:
        yield from controller.brokers.unregister(broker_id, state, now_us=controller.now_us())

    await controller.write_in_steps("unregisterBroker", operation, is_atomic=False)
    return refuse_unregister_broker(request, ErrorCode.none, None)


def refuse_unregister_broker(
    request: _Unregister, code: ErrorCode, message: str | None
) -> unregister_responses.UnregisterBrokerResponse:
    return unregister_responses.UnregisterBrokerResponse(
        throttle_time=duration(0), error_code=code, error_message=message
    )


# --- producer ids ---------------------------------------------------------------------------------


async def handle_allocate_producer_ids(
    controller: HostedController, request: _ProducerIds
) -> producer_responses.AllocateProducerIdsResponse:
    broker_id, epoch = int(request.body.broker_id), int(request.body.broker_epoch)
    if not request.principal.may_act_as(broker_id):
        return refuse_allocate_producer_ids(request, _UNAUTHORIZED, None)
    block = await controller.write(
        "allocateProducerIds", lambda state: allocate_producer_ids(broker_id, epoch, state)
    )
    return producer_responses.AllocateProducerIdsResponse(
        throttle_time=duration(0),
        error_code=ErrorCode.none,
        producer_id_start=cast("ProducerId", block.start),
        producer_id_len=int32(len(block)),
    )


def refuse_allocate_producer_ids(
    request: _ProducerIds, code: ErrorCode, message: str | None
) -> producer_responses.AllocateProducerIdsResponse:
    return producer_responses.AllocateProducerIdsResponse(
        throttle_time=duration(0),
        error_code=code,
        producer_id_start=cast("ProducerId", 0),
        producer_id_len=int32(0),
    )


# --- controllers ----------------------------------------------------------------------------------


async def handle_controller_registration(
    controller: HostedController, request: _Controller
) -> controller_responses.ControllerRegistrationResponse:
    body = request.body
    if not request.principal.may_act_as(int(body.controller_id)):
        return refuse_controller_registration(request, _UNAUTHORIZED, None)
    record = RegisterControllerRecord(
        controller_id=int(body.controller_id),
        incarnation_id=uuid_text(body.incarnation_id),
        zk_migration_ready=body.zk_migration_ready,
        end_points=tuple(
            ControllerEndpoint(
                name=one.name,
                host=one.host,
                port=int(one.port),
                security_protocol=int(one.security_protocol),
            )
            for one in body.listeners
        ),
        features=tuple(
            ControllerFeature(
                name=one.name,
                min_supported_version=int(one.min_supported_version),
                max_supported_version=int(one.max_supported_version),
            )
            for one in body.features
        ),
    )
    await controller.write("registerController", lambda state: register_controller(record, state))
    return refuse_controller_registration(request, ErrorCode.none, None)


def refuse_controller_registration(
    request: _Controller, code: ErrorCode, message: str | None
) -> controller_responses.ControllerRegistrationResponse:
    return controller_responses.ControllerRegistrationResponse(
        throttle_time=duration(0), error_code=code, error_message=message
    )


# --- log directories ------------------------------------------------------------------------------


async def handle_assign_replicas_to_dirs(
    controller: HostedController, request: _Directories
) -> directory_responses.AssignReplicasToDirsResponse:
    body = request.body
    broker_id, epoch = int(body.broker_id), int(body.broker_epoch)
    if not request.principal.may_act_as(broker_id):
        return refuse_assign_replicas_to_dirs(request, _UNAUTHORIZED, None)
    assignments = [
        DirectoryAssignment(
            uuid_text(directory.id_), uuid_text(topic.topic_id), int(partition.partition_index)
        )
        for directory in body.directories
        for topic in directory.topics
        for partition in topic.partitions
    ]
    refused = await controller.write_in_steps(
        "assignReplicasToDirs",
        lambda state: assign_replicas_to_dirs(broker_id, epoch, assignments, state),
    )
    codes = iter([code_and_message(one)[0] for one in refused])
    return directory_responses.AssignReplicasToDirsResponse(
        throttle_time=duration(0),
        error_code=ErrorCode.none,
        directories=tuple(
            directory_responses.DirectoryData(
                id_=directory.id_,
                topics=tuple(
                    directory_responses.TopicData(
                        topic_id=topic.topic_id,
                        partitions=tuple(
                            directory_responses.PartitionData(
                                partition_index=partition.partition_index, error_code=next(codes)
                            )
                            for partition in topic.partitions
                        ),
                    )
                    for topic in directory.topics
                ),
            )
            for directory in body.directories
        ),
    )


def refuse_assign_replicas_to_dirs(
    request: _Directories, code: ErrorCode, message: str | None
) -> directory_responses.AssignReplicasToDirsResponse:
    return directory_responses.AssignReplicasToDirsResponse(
        throttle_time=duration(0), error_code=code, directories=()
    )
