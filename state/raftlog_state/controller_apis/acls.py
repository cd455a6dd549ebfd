"""CreateAcls, DeleteAcls and DescribeAcls.

ACLs that match filters are searched in steps. DeleteAcls removes the ACLs found in one write,
except those that another request has removed meanwhile.

Source: Kafka ``AclApis``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

from kio.schema.create_acls.v3 import request as create_requests
from kio.schema.create_acls.v3 import response as create_responses
from kio.schema.delete_acls.v3 import request as delete_requests
from kio.schema.delete_acls.v3 import response as delete_responses
from kio.schema.describe_acls.v3 import request as describe_requests
from kio.schema.describe_acls.v3 import response as describe_responses
from kio.schema.errors import ErrorCode

from raftlog.types import Operation
from raftlog.wire.log_identity import duration, int8
from raftlog_state.controller import ApiException
from raftlog_state.controller.acls import (
    AclBinding,
    AclFilter,
    AclSearch,
    Matches,
    create_acls,
    remove_found_acls,
)
from raftlog_state.controller.active import RECORDS_PER_OPERATION_MAX
from raftlog_state.image import AclRow, Entity

from .hosted_controller import HostedController
from .requests import ControllerRequest, code_and_message, map_in_steps

_Create: TypeAlias = ControllerRequest[create_requests.CreateAclsRequest]
_Delete: TypeAlias = ControllerRequest[delete_requests.DeleteAclsRequest]
_Describe: TypeAlias = ControllerRequest[describe_requests.DescribeAclsRequest]
_UNAUTHORIZED = ErrorCode.cluster_authorization_failed


async def handle_create_acls(
    controller: HostedController, request: _Create
) -> create_responses.CreateAclsResponse:
    if not request.principal.may(Operation.ALTER):
        return refuse_create_acls(request, _UNAUTHORIZED, None)
    bindings = [
        AclBinding(
            resource_type=int(one.resource_type),
            resource_name=one.resource_name,
            pattern_type=int(one.resource_pattern_type),
            principal=one.principal,
            host=one.host,
            operation=int(one.operation),
            permission=int(one.permission_type),
        )
        for one in request.body.creations
    ]
    refusals = await controller.write_in_steps(
        "createAcls", lambda state: create_acls(bindings, state)
    )
    return _created(map(code_and_message, refusals))


def refuse_create_acls(
    request: _Create, code: ErrorCode, message: str | None
) -> create_responses.CreateAclsResponse:
    return _created((code, message) for _ in request.body.creations)


def _created(
    results: Iterable[tuple[ErrorCode, str | None]],
) -> create_responses.CreateAclsResponse:
    return create_responses.CreateAclsResponse(
        throttle_time=duration(0),
        results=tuple(
            create_responses.AclCreationResult(error_code=code, error_message=message)
            for code, message in results
        ),
    )


async def handle_delete_acls(
    controller: HostedController, request: _Delete
) -> delete_responses.DeleteAclsResponse:
    if not request.principal.may(Operation.ALTER):
        return refuse_delete_acls(request, _UNAUTHORIZED, None)
    filters = await map_in_steps(_filter, request.body.filters)
    await controller.check_active("deleteAcls")
    found = await _search(controller, "deleteAcls", filters, count_max=RECORDS_PER_OPERATION_MAX)
    removed = await controller.write_in_steps(
        "deleteAcls", lambda state: remove_found_acls(found, state)
    )
    return delete_responses.DeleteAclsResponse(
        throttle_time=duration(0),
        filter_results=tuple(
            _filter_result(*code_and_message(one), ())
            if isinstance(one, Exception)
            else _filter_result(ErrorCode.none, None, one)
            for one in removed
        ),
    )


def refuse_delete_acls(
    request: _Delete, code: ErrorCode, message: str | None
) -> delete_responses.DeleteAclsResponse:
    return delete_responses.DeleteAclsResponse(
        throttle_time=duration(0),
        filter_results=tuple(_filter_result(code, message, ()) for _ in request.body.filters),
    )


def _filter_result(
    code: ErrorCode, message: str | None, rows: Iterable[AclRow]
) -> delete_responses.DeleteAclsFilterResult:
    return delete_responses.DeleteAclsFilterResult(
        error_code=code,
        error_message=message,
        matching_acls=tuple(
            delete_responses.DeleteAclsMatchingAcl(
                error_code=ErrorCode.none,
                error_message=None,
                resource_type=int8(row.resource_type),
                resource_name=row.resource_name,
                pattern_type=int8(row.pattern_type),
                principal=row.principal,
                host=row.host,
                operation=int8(row.operation),
                permission_type=int8(row.permission),
            )
            for row in rows
        ),
    )


async def handle_describe_acls(
    controller: HostedController, request: _Describe
) -> describe_responses.DescribeAclsResponse:
    if not request.principal.may(Operation.DESCRIBE):
        return refuse_describe_acls(request, _UNAUTHORIZED, None)
    (rows,) = await _search(controller, "describeAcls", [_filter(request.body)])
    if isinstance(rows, ApiException):
        raise rows
    patterns: dict[tuple[int, str, int], list[AclRow]] = {}

    def add(row: AclRow) -> None:
        pattern = (row.resource_type, row.resource_name, row.pattern_type)
        patterns.setdefault(pattern, []).append(row)

    await map_in_steps(add, rows)
    resources = await map_in_steps(_described, sorted(patterns.items()))
    return describe_responses.DescribeAclsResponse(
        throttle_time=duration(0),
        error_code=ErrorCode.none,
        error_message=None,
        resources=tuple(resources),
    )


def refuse_describe_acls(
    request: _Describe, code: ErrorCode, message: str | None
) -> describe_responses.DescribeAclsResponse:
    return describe_responses.DescribeAclsResponse(
        throttle_time=duration(0), error_code=code, error_message=message, resources=()
    )


def _described(
    found: tuple[tuple[int, str, int], Sequence[AclRow]],
) -> describe_responses.DescribeAclsResource:
    (resource_type, resource_name, pattern_type), rows = found
    return describe_responses.DescribeAclsResource(
        resource_type=int8(resource_type),
        resource_name=resource_name,
        pattern_type=int8(pattern_type),
        acls=tuple(
            describe_responses.AclDescription(
                principal=row.principal,
                host=row.host,
                operation=int8(row.operation),
                permission_type=int8(row.permission),
            )
            for row in rows
        ),
    )


async def _search(
    controller: HostedController,
    name: str,
    filters: Sequence[AclFilter],
    *,
    count_max: int | None = None,
) -> Matches:
    """Return the ACLs that match each filter. Raises ``ApiException``."""
    keys = await controller.read(name, lambda state: state.keys(Entity.ACL))
    search = AclSearch(filters, count_max=count_max)
    await controller.read_in_steps(name, search.steps(keys))
    return search.found


def _filter(
    one: delete_requests.DeleteAclsFilter | describe_requests.DescribeAclsRequest,
) -> AclFilter:
    return AclFilter(
        resource_type=int(one.resource_type_filter),
        resource_name=one.resource_name_filter,
        pattern_type=int(one.pattern_type_filter),
        principal=one.principal_filter,
        host=one.host_filter,
        operation=int(one.operation),
        permission=int(one.permission_type),
    )
