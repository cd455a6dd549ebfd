"""Handlers by API.

An error of a whole request, such as that of a node that is not the active controller, is a response
in which every part has this error.

Source: Kafka ``AbstractRequest.getErrorResponse``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from kio.schema.alter_client_quotas.v1.request import AlterClientQuotasRequest
from kio.schema.alter_configs.v2.request import AlterConfigsRequest
from kio.schema.alter_user_scram_credentials.v0.request import AlterUserScramCredentialsRequest
from kio.schema.create_acls.v3.request import CreateAclsRequest
from kio.schema.create_partitions.v3.request import CreatePartitionsRequest
from kio.schema.create_topics.v7.request import CreateTopicsRequest
from kio.schema.delete_acls.v3.request import DeleteAclsRequest
from kio.schema.describe_acls.v3.request import DescribeAclsRequest
from kio.schema.describe_client_quotas.v1.request import DescribeClientQuotasRequest
from kio.schema.describe_configs.v4.request import DescribeConfigsRequest
from kio.schema.describe_user_scram_credentials.v0.request import (
    DescribeUserScramCredentialsRequest,
)
from kio.schema.errors import ErrorCode
from kio.schema.incremental_alter_configs.v1.request import IncrementalAlterConfigsRequest

from raftlog.errors import RaftlogError
from raftlog.wire import ApiKey, latest_schemas
from raftlog_state.controller import ApiException

from . import acls, configs, features, quotas, scram, topics
from .hosted_controller import HostedController
from .requests import ControllerRequest, code_and_message


@dataclass(frozen=True, slots=True)
class Handler:
    """Handler of one API.

    ``request_class``: of its requests, in the newest version. ``refuse`` returns the response with
    an error of the whole request.
    """

    request_class: type[Any]
    handle: Callable[[HostedController, ControllerRequest[Any]], Awaitable[object]]
    refuse: Callable[[ControllerRequest[Any], ErrorCode, str | None], object]

    async def respond(
        self, controller: HostedController, request: ControllerRequest[Any]
    ) -> object:
        """Return the response to a request."""
        try:
            return await self.handle(controller, request)
        except (ApiException, RaftlogError) as error:
            return self.refuse(request, *code_and_message(error))


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
        DescribeConfigsRequest, configs.handle_describe_configs, configs.refuse_describe_configs
    ),
    ApiKey.CREATE_ACLS: Handler(
        CreateAclsRequest, acls.handle_create_acls, acls.refuse_create_acls
    ),
    ApiKey.DELETE_ACLS: Handler(
        DeleteAclsRequest, acls.handle_delete_acls, acls.refuse_delete_acls
    ),
    ApiKey.DESCRIBE_ACLS: Handler(
        DescribeAclsRequest, acls.handle_describe_acls, acls.refuse_describe_acls
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
    ),
    ApiKey.UPDATE_FEATURES: Handler(
        latest_schemas.UpdateFeaturesRequest,
        features.handle_update_features,
        features.refuse_update_features,
    ),
}
