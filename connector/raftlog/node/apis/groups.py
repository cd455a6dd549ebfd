"""Handlers of FindCoordinator, DescribeGroups and ListGroups.

1. The leader is the coordinator of every group. A group has committed offsets and no members. A
   group with a committed offset is in state Empty, as it is in Kafka if its consumers assign their
   own partitions.
2. There are neither group memberships nor transactions: JoinGroup and related APIs are not served,
   and a request for a transaction coordinator gets an error that clients do not retry.
3. Clients ask every node for the groups that it coordinates; a node that does not lead has none.
"""

from __future__ import annotations

import enum
from typing import Final, cast

from kio.schema.describe_groups.v6.request import DescribeGroupsRequest
from kio.schema.describe_groups.v6.response import DescribedGroup, DescribeGroupsResponse
from kio.schema.errors import ErrorCode
from kio.schema.find_coordinator.v6 import response as found_coordinator
from kio.schema.list_groups.v5.request import ListGroupsRequest
from kio.schema.list_groups.v5.response import ListedGroup, ListGroupsResponse
from kio.schema.types import GroupId

from raftlog.node.access import Principal
from raftlog.node.request import Request
from raftlog.types import Operation
from raftlog.wire import latest_schemas
from raftlog.wire.log_identity import duration, int32, node

from .group_offsets import confirm, group_resource
from .metadata_cache import NOT_REQUESTED, MetadataCache, operations

_KEYS_FROM: Final = 4
_NOT_FOUND_FROM: Final = 6
_EMPTY: Final = "Empty"
_DEAD: Final = "Dead"
_CLASSIC: Final = "classic"
NO_TRANSACTIONS: Final = (
    "transactions are not supported: remove transactional.id from the configuration"
)


class _Kind(enum.IntEnum):
    """Kafka's ``CoordinatorType``."""

    GROUP = 0
    TRANSACTION = 1


# --- FindCoordinator ------------------------------------------------------------------------------


async def handle_find_coordinator(
    cache: MetadataCache, request: Request[latest_schemas.FindCoordinatorRequest]
) -> latest_schemas.FindCoordinatorResponse:
    body = request.body
    has_keys = request.version >= _KEYS_FROM
    keys = body.coordinator_keys if has_keys else (body.key,)
    found = tuple(_coordinator(cache, request, key) for key in keys)
    if has_keys:
        return latest_schemas.FindCoordinatorResponse(throttle_time=duration(0), coordinators=found)
    (only,) = found
    return latest_schemas.FindCoordinatorResponse(
        throttle_time=duration(0),
        coordinators=(),
        error_code=only.error_code,
        error_message=only.error_message,
        node_id=only.node_id,
        host=only.host,
        port=only.port,
    )


def _coordinator(
    cache: MetadataCache, request: Request[latest_schemas.FindCoordinatorRequest], key: str
) -> found_coordinator.Coordinator:
    leader = cache.leader()
    error, text = ErrorCode.none, None
    match request.body.key_type:
        case _Kind.GROUP if not request.principal.may(Operation.DESCRIBE, group_resource(key)):
            error = ErrorCode.group_authorization_failed
        case _Kind.GROUP if leader is None:
            error, text = ErrorCode.coordinator_not_available, "no leader is known"
        case _Kind.GROUP:
            pass
        case _Kind.TRANSACTION:
            # Java's producer shows the message of an unexpected error code. librdkafka, which uses
            # lower versions, repeats the request until its timeout and shows no message, except for
            # this error code.
            is_java = request.version >= _KEYS_FROM
            denied = ErrorCode.transactional_id_authorization_failed
            error, text = ErrorCode.unsupported_version if is_java else denied, NO_TRANSACTIONS
        case _:
            error, text = ErrorCode.invalid_request, "only groups have a coordinator"
    if error is not ErrorCode.none or leader is None:
        return found_coordinator.Coordinator(
            key=key,
            node_id=node(None),
            host="",
            port=int32(-1),
            error_code=error,
            error_message=text,
        )
    return found_coordinator.Coordinator(
        key=key,
        node_id=node(leader.node_id),
        host=leader.host,
        port=int32(leader.port),
        error_code=error,
        error_message=None,
    )


# --- DescribeGroups and ListGroups ----------------------------------------------------------------


async def handle_describe_groups(
    cache: MetadataCache, request: Request[DescribeGroupsRequest]
) -> DescribeGroupsResponse:
    known = frozenset(_groups(cache))
    error = await confirm(cache)
    return DescribeGroupsResponse(
        throttle_time=duration(0),
        groups=tuple(
            _described(request, group, error, is_known=str(group) in known)
            for group in request.body.groups
        ),
    )


def _described(
    request: Request[DescribeGroupsRequest], group: GroupId, error: ErrorCode, *, is_known: bool
) -> DescribedGroup:
    resource, state, message, allowed = group_resource(group), "", None, NOT_REQUESTED
    if not request.principal.may(Operation.DESCRIBE, resource):
        error = ErrorCode.group_authorization_failed
    elif error is ErrorCode.none:
        is_requested = request.body.include_authorized_operations
        allowed = operations(request.principal, is_requested=is_requested, resource=resource)
        state = _EMPTY if is_known else _DEAD
        if not is_known and request.version >= _NOT_FOUND_FROM:
            error = ErrorCode.group_id_not_found
            message = f"Group {group} not found."
    return DescribedGroup(
        error_code=error,
        error_message=message,
        group_id=group,
        group_state=state,
        protocol_type="",
        protocol_data="",
        members=(),
        authorized_operations=int32(allowed),
    )


async def handle_list_groups(
    cache: MetadataCache, request: Request[ListGroupsRequest]
) -> ListGroupsResponse:
    body, groups = request.body, _groups(cache)
    error = await confirm(cache) if cache.is_leader else ErrorCode.none
    is_shown = _has(body.states_filter, _EMPTY) and _has(body.types_filter, _CLASSIC)
    if not request.principal.possible_rights:
        error = ErrorCode.cluster_authorization_failed
    if error is not ErrorCode.none or not is_shown or not cache.is_leader:
        groups = ()
    return ListGroupsResponse(
        throttle_time=duration(0),
        error_code=error,
        groups=tuple(
            ListedGroup(
                group_id=cast("GroupId", group),
                protocol_type="",
                group_state=_EMPTY,
                group_type=_CLASSIC,
            )
            for group in groups
            if _may_list(request.principal, group)
        ),
    )


def _has(names: tuple[str, ...], name: str) -> bool:
    return not names or name.lower() in [one.lower() for one in names]


def _may_list(principal: Principal, group: str) -> bool:
    return principal.may(Operation.DESCRIBE) or principal.may(
        Operation.DESCRIBE, group_resource(group)
    )


def _groups(cache: MetadataCache) -> tuple[str, ...]:
    """Return the groups with a committed offset."""
    offsets = cache.raft_node.replica.log.producer_state.group_offsets
    return tuple(one.commit.group for one in offsets.values())
