"""Handlers by API.

If an error concerns a whole request, for example because the node is not the active controller, the
response repeats this error in every part.

Source: Kafka ``AbstractRequest.getErrorResponse``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from kio.schema.allocate_producer_ids.v0.request import AllocateProducerIdsRequest
from kio.schema.alter_client_quotas.v1.request import AlterClientQuotasRequest
from kio.schema.alter_configs.v2.request import AlterConfigsRequest
from kio.schema.alter_partition_reassignments.v1.request import AlterPartitionReassignmentsRequest
from kio.schema.alter_user_scram_credentials.v0.request import AlterUserScramCredentialsRequest
from kio.schema.assign_replicas_to_dirs.v0.request import AssignReplicasToDirsRequest
from kio.schema.broker_heartbeat.v2.request import BrokerHeartbeatRequest
from kio.schema.broker_registration.v4.request import BrokerRegistrationRequest
from kio.schema.controller_registration.v0.request import ControllerRegistrationRequest
from kio.schema.create_acls.v3.request import CreateAclsRequest
from kio.schema.create_delegation_token.v3.request import CreateDelegationTokenRequest
from kio.schema.create_partitions.v3.request import CreatePartitionsRequest
from kio.schema.create_topics.v7.request import CreateTopicsRequest
from kio.schema.delete_acls.v3.request import DeleteAclsRequest
from kio.schema.describe_acls.v3.request import DescribeAclsRequest
from kio.schema.describe_client_quotas.v1.request import DescribeClientQuotasRequest
from kio.schema.describe_configs.v4.request import DescribeConfigsRequest
from kio.schema.describe_delegation_token.v3.request import DescribeDelegationTokenRequest
from kio.schema.describe_user_scram_credentials.v0.request import (
    DescribeUserScramCredentialsRequest,
)
from kio.schema.elect_leaders.v2.request import ElectLeadersRequest
from kio.schema.envelope.v0.request import EnvelopeRequest
from kio.schema.errors import ErrorCode
from kio.schema.expire_delegation_token.v2.request import ExpireDelegationTokenRequest
from kio.schema.incremental_alter_configs.v1.request import IncrementalAlterConfigsRequest
from kio.schema.list_partition_reassignments.v0.request import ListPartitionReassignmentsRequest
from kio.schema.renew_delegation_token.v2.request import RenewDelegationTokenRequest
from kio.schema.unregister_broker.v0.request import UnregisterBrokerRequest

from raftlog.errors import RaftlogError
from raftlog.wire import ApiKey, latest_schemas
from raftlog_state.controller import ApiException
from raftlog_state.errors import NotControllerError

from . import acls, brokers, configs, features, partitions, quotas, scram, tokens, topics
from .envelope import handle_envelope, refuse_envelope
from .hosted_controller import HostedController
from .requests import ControllerRequest, code_and_message


@dataclass(frozen=True, slots=True)
class Handler:
    """Handler of one API.

    ``request_class`` is the class of its requests, in the newest version. ``refuse`` returns the
    response with an error of the whole request. ``is_large``: encoding a response may take long.
    """

    request_class: type[Any]
    handle: Callable[[HostedController, ControllerRequest[Any]], Awaitable[object]]
    refuse: Callable[[ControllerRequest[Any], ErrorCode, str | None], object]
    is_large: bool = False

    async def respond(
        self,
        controller: HostedController,
        request: ControllerRequest[Any],
        forward: Callable[[], Awaitable[bytes]] | None = None,
    ) -> object:
        """Return the response to a request, or its bytes.

        ``forward`` returns the bytes of the active controller's response. It is called if this
        controller is a standby.
        """
        try:
            try:
                return await self.handle(controller, request)
            except NotControllerError:
                if forward is None:
                    raise
                return await forward()
        except (ApiException, RaftlogError) as error:
            return self.refuse(request, *code_and_message(error))


async def _handle_envelope(
    controller: HostedController, request: ControllerRequest[EnvelopeRequest]
) -> object:
    return await handle_envelope(controller, request, HANDLERS)


HANDLERS: Final[Mapping[ApiKey, Handler]] = {
    ApiKey.CREATE_TOPICS: Handler(
        CreateTopicsRequest, topics.handle_create_topics, topics.refuse_create_topics
    ),
    ApiKey.DELETE_TOPICS: Handler(
        latest_schemas.DeleteTopicsRequest,
        topics.handle_delete_topics,
        topics.refuse_delete_topics,
    ),
    ApiKey.CREATE_PARTITIONS: Handler(
        CreatePartitionsRequest, topics.handle_create_partitions, topics.refuse_create_partitions
    ),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: Handler(
        IncrementalAlterConfigsRequest,
        configs.handle_incremental_alter_configs,
        configs.refuse_incremental_alter_configs,
    ),
    ApiKey.ALTER_CONFIGS: Handler(
        AlterConfigsRequest, configs.handle_alter_configs, configs.refuse_alter_configs
    ),
    ApiKey.DESCRIBE_CONFIGS: Handler(
        DescribeConfigsRequest,
        configs.handle_describe_configs,
        configs.refuse_describe_configs,
        is_large=True,
    ),
    ApiKey.CREATE_ACLS: Handler(
        CreateAclsRequest, acls.handle_create_acls, acls.refuse_create_acls
    ),
    ApiKey.DELETE_ACLS: Handler(
        DeleteAclsRequest, acls.handle_delete_acls, acls.refuse_delete_acls, is_large=True
    ),
    ApiKey.DESCRIBE_ACLS: Handler(
        DescribeAclsRequest, acls.handle_describe_acls, acls.refuse_describe_acls, is_large=True
    ),
    ApiKey.ALTER_CLIENT_QUOTAS: Handler(
        AlterClientQuotasRequest,
        quotas.handle_alter_client_quotas,
        quotas.refuse_alter_client_quotas,
    ),
    ApiKey.DESCRIBE_CLIENT_QUOTAS: Handler(
        DescribeClientQuotasRequest,
        quotas.handle_describe_client_quotas,
        quotas.refuse_describe_client_quotas,
        is_large=True,
    ),
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: Handler(
        AlterUserScramCredentialsRequest,
        scram.handle_alter_user_scram_credentials,
        scram.refuse_alter_user_scram_credentials,
    ),
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: Handler(
        DescribeUserScramCredentialsRequest,
        scram.handle_describe_user_scram_credentials,
        scram.refuse_describe_user_scram_credentials,
        is_large=True,
    ),
    ApiKey.CREATE_DELEGATION_TOKEN: Handler(
        CreateDelegationTokenRequest,
        tokens.handle_create_delegation_token,
        tokens.refuse_create_delegation_token,
    ),
    ApiKey.RENEW_DELEGATION_TOKEN: Handler(
        RenewDelegationTokenRequest,
        tokens.handle_renew_delegation_token,
        tokens.refuse_renew_delegation_token,
    ),
    ApiKey.EXPIRE_DELEGATION_TOKEN: Handler(
        ExpireDelegationTokenRequest,
        tokens.handle_expire_delegation_token,
        tokens.refuse_expire_delegation_token,
    ),
    ApiKey.DESCRIBE_DELEGATION_TOKEN: Handler(
        DescribeDelegationTokenRequest,
        tokens.handle_describe_delegation_token,
        tokens.refuse_describe_delegation_token,
        is_large=True,
    ),
    ApiKey.UPDATE_FEATURES: Handler(
        latest_schemas.UpdateFeaturesRequest,
        features.handle_update_features,
        features.refuse_update_features,
    ),
    ApiKey.ALTER_PARTITION: Handler(
        latest_schemas.AlterPartitionRequest,
        partitions.handle_alter_partition,
        partitions.refuse_alter_partition,
    ),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: Handler(
        AlterPartitionReassignmentsRequest,
        partitions.handle_alter_partition_reassignments,
        partitions.refuse_alter_partition_reassignments,
    ),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: Handler(
        ListPartitionReassignmentsRequest,
        partitions.handle_list_partition_reassignments,
        partitions.refuse_list_partition_reassignments,
        is_large=True,
    ),
    ApiKey.ELECT_LEADERS: Handler(
        ElectLeadersRequest, partitions.handle_elect_leaders, partitions.refuse_elect_leaders
    ),
    ApiKey.BROKER_REGISTRATION: Handler(
        BrokerRegistrationRequest,
        brokers.handle_broker_registration,
        brokers.refuse_broker_registration,
    ),
    ApiKey.BROKER_HEARTBEAT: Handler(
        BrokerHeartbeatRequest, brokers.handle_broker_heartbeat, brokers.refuse_broker_heartbeat
    ),
    ApiKey.UNREGISTER_BROKER: Handler(
        UnregisterBrokerRequest,
        brokers.handle_unregister_broker,
        brokers.refuse_unregister_broker,
    ),
    ApiKey.ALLOCATE_PRODUCER_IDS: Handler(
        AllocateProducerIdsRequest,
        brokers.handle_allocate_producer_ids,
        brokers.refuse_allocate_producer_ids,
    ),
    ApiKey.CONTROLLER_REGISTRATION: Handler(
        ControllerRegistrationRequest,
        brokers.handle_controller_registration,
        brokers.refuse_controller_registration,
    ),
    ApiKey.ASSIGN_REPLICAS_TO_DIRS: Handler(
        AssignReplicasToDirsRequest,
        brokers.handle_assign_replicas_to_dirs,
        brokers.refuse_assign_replicas_to_dirs,
    ),
    ApiKey.ENVELOPE: Handler(EnvelopeRequest, _handle_envelope, refuse_envelope),
}
"""All handlers of a controller."""
