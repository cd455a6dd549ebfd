"""Handlers of FindCoordinator and OffsetFetch, which read the last named commit of an application.

1. A group id is an application id. Its committed offset is the version of its last commit, the
   metadata the query id, the leader epoch the epoch of the commit's batch; -1 and "" if the log has
   no commit of it.
2. The read is linearizable: the leader results after the commit that it returns is committed in the
   quorum, and a majority has confirmed that it still leads. Clients decide by it what to write
   next.
3. Only the owners of an application id, and principals with READ or ADMIN, may read its commits.
4. There are neither group memberships nor transactions: a request for their coordinators gets an
   error that clients do not retry.
"""

from __future__ import annotations

import asyncio
import enum
from dataclasses import dataclass
from typing import Final

from kio.schema.errors import ErrorCode
from kio.schema.find_coordinator.v6 import response as found_coordinator
from kio.schema.offset_fetch.v10 import response as responses

from raftlog.append import NOT_AWAITED, AppendRequest, Failed, RequestResult
from raftlog.errors import AppendUnknownError
from raftlog.node.request import Request
from raftlog.types import Operation, Resource, ResourceType
from raftlog.wire import latest_schemas
from raftlog.wire.log_identity import PARTITION, duration, int32, int64, name, node

from .metadata_cache import MetadataCache

_KEYS_FROM: Final = 4
_GROUPS_FROM: Final = 8
_TOPIC_IDS_FROM: Final = 10
_GROUP_ERROR_FROM: Final = 2
CONFIRM_MS: Final = 5_000
"""Maximum wait for the confirmation that this node is still the leader."""
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
        case _Kind.GROUP if not request.principal.may(
            Operation.DESCRIBE, Resource(ResourceType.GROUP, key)
        ):
            error = ErrorCode.group_authorization_failed
        case _Kind.GROUP if leader is None:
            error, text = ErrorCode.coordinator_not_available, "no leader is known"
        case _Kind.GROUP:
            pass
        case _Kind.TRANSACTION:
            # Java's producer shows the message of an unexpected error code. librdkafka, which uses
            # versions below these, repeats the request until its timeout and shows no message,
            # except for this error code.
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


# --- OffsetFetch ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Commit:
    version: int = -1
    query_id: str = ""
    epoch: int = -1


_Request = Request[latest_schemas.OffsetFetchRequest]


async def handle_offset_fetch(
    cache: MetadataCache, request: _Request
) -> latest_schemas.OffsetFetchResponse:
    body = request.body
    groups = body.groups
    if request.version < _GROUPS_FROM:
        groups = (latest_schemas.OffsetFetchGroup(group_id=body.group_id, topics=body.topics),)
    commits = [_last_commit(cache, group.group_id) for group in groups]
    error = await _confirmed(cache, request)
    results = tuple(
        _group(cache, request, group, commit, _access_error(request, group) or error)
        for group, commit in zip(groups, commits, strict=True)
    )
    if request.version >= _GROUPS_FROM:
        return latest_schemas.OffsetFetchResponse(throttle_time=duration(0), groups=results)
    (only,) = results
    return latest_schemas.OffsetFetchResponse(
        throttle_time=duration(0), groups=(), topics=only.topics, error_code=only.error_code
    )


async def _confirmed(cache: MetadataCache, request: _Request) -> ErrorCode:
    """Wait until the present log is committed, and this node is confirmed as leader."""
    if not request.principal.possible_rights:
        return ErrorCode.group_authorization_failed
    if not cache.is_leader:
        return ErrorCode.not_coordinator
    confirmed: asyncio.Future[RequestResult] = asyncio.get_running_loop().create_future()

    def complete(result: RequestResult) -> None:
        if not confirmed.done():
            confirmed.set_result(result)

    deadline_ms = cache.raft_node.now_ms() + CONFIRM_MS
    check = AppendRequest(
        records=(), epoch=cache.core.epoch, deadline_ms=deadline_ms, future=NOT_AWAITED
    )
    cache.raft_node.append(check, complete, timeout_ms=CONFIRM_MS)
    result = await confirmed
    if not isinstance(result, Failed):
        return ErrorCode.none
    is_unknown = isinstance(result.error, AppendUnknownError)
    return ErrorCode.coordinator_load_in_progress if is_unknown else ErrorCode.not_coordinator


def _access_error(request: _Request, group: latest_schemas.OffsetFetchGroup) -> ErrorCode | None:
    if request.principal.may_read_commit(group.group_id):
        return None
    return ErrorCode.group_authorization_failed


def _last_commit(cache: MetadataCache, application_id: str) -> _Commit:
    log = cache.raft_node.replica.log
    last = log.producer_state.last_commit(application_id)
    if last is None:
        return _Commit()
    epoch = log.epochs.epoch_at(last.base_offset)
    return _Commit(last.name.version, last.name.query_id, -1 if epoch is None else epoch)


def _group(
    cache: MetadataCache,
    request: _Request,
    group: latest_schemas.OffsetFetchGroup,
    commit: _Commit,
    error: ErrorCode,
) -> latest_schemas.FetchedOffsetsGroup:
    """Return the result of a group. Before version 2 its error is in every partition."""
    has_place = request.version >= _GROUP_ERROR_FROM
    topics = _topics(cache, request, group, commit, ErrorCode.none if has_place else error)
    if error is not ErrorCode.none and has_place:
        topics = ()
    return latest_schemas.FetchedOffsetsGroup(
        group_id=group.group_id, topics=topics, error_code=error
    )


def _topics(
    cache: MetadataCache,
    request: _Request,
    group: latest_schemas.OffsetFetchGroup,
    commit: _Commit,
    error: ErrorCode,
) -> tuple[latest_schemas.FetchedOffsetsTopic, ...]:
    identity = cache.identity
    if group.topics is None:  # all partitions with a commit
        if commit.version < 0:
            return ()
        return (
            latest_schemas.FetchedOffsetsTopic(
                topic_id=cache.topic_uuid,
                name=name(identity.topic),
                partitions=(_partition(PARTITION, commit, error),),
            ),
        )
    return tuple(_topic(cache, request, topic, commit, error) for topic in group.topics)


def _topic(
    cache: MetadataCache,
    request: _Request,
    topic: latest_schemas.OffsetFetchTopic,
    commit: _Commit,
    error: ErrorCode,
) -> latest_schemas.FetchedOffsetsTopic:
    partitions = []
    for index in topic.partition_indexes:
        if request.version >= _TOPIC_IDS_FROM:
            missing = cache.id_error(topic.topic_id, index)
        else:
            missing = cache.name_error(topic.name, index)
        if missing is ErrorCode.none:
            partitions.append(_partition(index, commit, error))
        else:  # another topic or partition has no commits
            is_unknown_id = missing is ErrorCode.unknown_topic_id
            partitions.append(_partition(index, _Commit(), missing if is_unknown_id else error))
    return latest_schemas.FetchedOffsetsTopic(
        topic_id=topic.topic_id, name=topic.name, partitions=tuple(partitions)
    )


def _partition(
    index: int, commit: _Commit, error: ErrorCode
) -> responses.OffsetFetchResponsePartitions:
    return responses.OffsetFetchResponsePartitions(
        partition_index=int32(index),
        committed_offset=int64(commit.version),
        committed_leader_epoch=int32(commit.epoch),
        metadata=commit.query_id,
        error_code=error,
    )
