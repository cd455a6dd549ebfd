"""Handlers of OffsetCommit, OffsetFetch, OffsetDelete and DeleteGroups.

They serve the offsets of consumer groups, and named commits.

1. An offset commit is a control record in the log (``GroupOffsets``). It succeeds when the quorum
   has committed that record. A commit that changes nothing is not written, and succeeds when the
   earlier one is committed.
2. A group has no members, so a commit with a generation or member epoch is fenced, as in Kafka.
3. The offset of group ``raftlog.commit:NAME`` is the version of the last named commit of
   application id NAME. Its metadata is the query id, and its leader epoch is the epoch of the
   commit's batch. Only named commits change it: consumers cannot commit it.
4. Without a commit the offset is -1, and the metadata is "".
5. Reads are linearizable: the leader responds once the commit that it returns is committed and a
   majority has confirmed that it still leads. Clients decide from the response what to write or
   read next.
6. Only the owners of an application id, and principals with READ or ADMIN, may read its commits. To
   commit offsets requires READ of the group and the topic; to fetch them requires DESCRIBE.
7. A principal may create ``[access] groups_max`` groups; without a limit it could evict the groups
   of others. Above the limit a commit of a new group fails with POLICY_VIOLATION until groups are
   deleted.
8. A group is deleted by deleting its offset, which is also a control record. This requires DELETE
   of the group; OffsetDelete also requires READ of the topic. Groups have no members that could
   prevent it.

Kafka: ``OffsetMetadataManager``, ``KafkaApis.handleOffsetCommitRequest``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from kio.schema.delete_groups.v2.request import DeleteGroupsRequest
from kio.schema.delete_groups.v2.response import DeletableGroupResult, DeleteGroupsResponse
from kio.schema.errors import ErrorCode
from kio.schema.offset_commit.v10 import request as commit_requests
from kio.schema.offset_commit.v10 import response as commit_responses
from kio.schema.offset_delete.v0 import response as offset_deletions
from kio.schema.offset_delete.v0.request import OffsetDeleteRequest
from kio.schema.offset_fetch.v10 import response as responses
from kio.schema.types import TopicName

from raftlog.append import NOT_AWAITED, AppendRequest, Failed, RequestResult
from raftlog.errors import AppendUnknownError, DiskFullError
from raftlog.limits import (
    GROUP_ID_BYTES_MAX,
    GROUP_OFFSET_REWRITE_MS,
    OFFSET_METADATA_BYTES_MAX,
)
from raftlog.log.writing.group_offsets import reader_position
from raftlog.node.request import Request
from raftlog.records.control import OffsetCommit
from raftlog.types import Operation, Resource, ResourceType
from raftlog.wire import latest_schemas
from raftlog.wire.log_identity import (
    COMMIT_GROUP_PREFIX,
    PARTITION,
    duration,
    int32,
    int64,
    name,
    or_minus_one,
)

from .metadata_cache import MetadataCache

_GROUPS_FROM: Final = 8
_TOPIC_IDS_FROM: Final = 10
_GROUP_ERROR_FROM: Final = 2
_NOT_FOUND_FROM: Final = 9
CONFIRM_MS: Final = 5_000
"""Maximum wait until a commit is committed, or until a majority confirms that this node still leads
(Kafka: `offsets.commit.timeout.ms`)."""
_RESERVED_PREFIX: Final = "raftlog."
_DELETED: Final = -1
_CommitRequest = Request[latest_schemas.OffsetCommitRequest]
_Request = Request[latest_schemas.OffsetFetchRequest]


def group_resource(group: str) -> Resource:
    """Return a group, or the application id that it belongs to, as a resource of ACLs."""
    return Resource(ResourceType.GROUP, group.removeprefix(COMMIT_GROUP_PREFIX))


# --- OffsetCommit ---------------------------------------------------------------------------------


async def handle_offset_commit(
    cache: MetadataCache, request: _CommitRequest
) -> latest_schemas.OffsetCommitResponse:
    body, commits = request.body, dict[int, OffsetCommit]()
    group_error = _commit_group_error(cache, request)
    errors = []
    for topic in body.topics:
        for one in topic.partitions:
            error = group_error or _commit_error(cache, request, topic, one)
            errors.append(error)
            if error is ErrorCode.none:
                commits[len(errors) - 1] = OffsetCommit(
                    group=str(body.group_id),
                    offset=int(one.committed_offset),
                    leader_epoch=int(one.committed_leader_epoch),
                    metadata=one.committed_metadata or "",
                    commit_timestamp_ms=cache.raft_node.time_ms(),
                )
    if commits:
        outcome = await _commit(cache, list(commits.values())[-1], request.principal.name)
        errors = [outcome if at in commits else error for at, error in enumerate(errors)]
    found = iter(errors)
    return latest_schemas.OffsetCommitResponse(
        throttle_time=duration(0),
        topics=tuple(
            latest_schemas.CommittedTopicResult(
                topic_id=topic.topic_id,
                name=topic.name,
                partitions=tuple(
                    commit_responses.OffsetCommitResponsePartition(
                        partition_index=one.partition_index, error_code=next(found)
                    )
                    for one in topic.partitions
                ),
            )
            for topic in body.topics
        ),
    )


def _commit_group_error(cache: MetadataCache, request: _CommitRequest) -> ErrorCode:
    """Return the error that applies to all partitions of a commit, or ``none``."""
    body = request.body
    group = str(body.group_id)
    if not request.principal.may(Operation.READ, Resource(ResourceType.GROUP, group)):
        return ErrorCode.group_authorization_failed
    if len(group.encode()) > GROUP_ID_BYTES_MAX or group.startswith(_RESERVED_PREFIX):
        return ErrorCode.invalid_group_id
    if not cache.is_leader:
        return ErrorCode.not_coordinator
    offsets = cache.raft_node.replica.log.producer_state.group_offsets
    if body.generation_id_or_member_epoch < 0:
        limit, owner = request.principal.groups_max, request.principal.name
        is_new = offsets.commit_of(group) is None
        is_over = is_new and limit is not None and offsets.group_count(owner) >= limit
        return ErrorCode.policy_violation if is_over else ErrorCode.none
    if offsets.commit_of(group) is not None:
        return ErrorCode.unknown_member_id
    is_new = request.version >= _NOT_FOUND_FROM
    return ErrorCode.group_id_not_found if is_new else ErrorCode.illegal_generation


def _commit_error(
    cache: MetadataCache,
    request: _CommitRequest,
    topic: latest_schemas.CommittedTopic,
    one: commit_requests.OffsetCommitRequestPartition,
) -> ErrorCode:
    """Return the error of one partition of a commit, or ``none``."""
    if request.version >= _TOPIC_IDS_FROM:
        error, topic_name = cache.id_error(topic.topic_id, one.partition_index), cache.topic.name
    else:
        error, topic_name = cache.name_error(topic.name, one.partition_index), str(topic.name)
    if not request.principal.may(Operation.READ, Resource(ResourceType.TOPIC, topic_name)):
        is_hidden = error is ErrorCode.unknown_topic_id
        return error if is_hidden else ErrorCode.topic_authorization_failed
    if error is not ErrorCode.none:
        return error
    if len((one.committed_metadata or "").encode()) > OFFSET_METADATA_BYTES_MAX:
        return ErrorCode.offset_metadata_too_large
    return ErrorCode.none if one.committed_offset >= 0 else ErrorCode.invalid_request


async def _commit(cache: MetadataCache, commit: OffsetCommit, principal: str) -> ErrorCode:
    """Append a commit, unless it changes nothing; wait until it is committed.

    A group belongs to the ``principal`` that created it.
    """
    state = cache.raft_node.replica.log.producer_state
    last = state.group_offsets.commit_of(commit.group)
    commit = commit.owned_by(principal if last is None else last.owner)
    is_recent = (
        last is not None
        and 0 <= commit.commit_timestamp_ms - last.commit_timestamp_ms < GROUP_OFFSET_REWRITE_MS
    )
    is_unchanged = is_recent and state.group_offsets.is_current(
        commit, data_end_offset=state.data_end_offset, end_offset=state.end_offset
    )
    return _error_of(await _appended(cache, () if is_unchanged else (commit,)))


def _error_of(result: RequestResult) -> ErrorCode:
    """Return the error of an append of control records, or ``none``."""
    if not isinstance(result, Failed):
        return ErrorCode.none
    is_retriable_here = isinstance(result.error, AppendUnknownError | DiskFullError)
    return ErrorCode.coordinator_not_available if is_retriable_here else ErrorCode.not_coordinator


async def _appended(cache: MetadataCache, control: tuple[OffsetCommit, ...] = ()) -> RequestResult:
    """Append control records, if any; wait until they and the log before them are committed."""
    appended: asyncio.Future[RequestResult] = asyncio.get_running_loop().create_future()

    def complete(result: RequestResult) -> None:
        if not appended.done():
            appended.set_result(result)

    append = AppendRequest(
        records=(),
        control=control,
        epoch=cache.core.epoch,
        deadline_ms=cache.raft_node.now_ms() + CONFIRM_MS,
        future=NOT_AWAITED,
    )
    cache.raft_node.append(append, complete, timeout_ms=CONFIRM_MS)
    return await appended


async def confirm(cache: MetadataCache) -> ErrorCode:
    """Wait until the current log is committed and this node is confirmed as leader."""
    if not cache.is_leader:
        return ErrorCode.not_coordinator
    result = await _appended(cache)
    if not isinstance(result, Failed):
        return ErrorCode.none
    is_unknown = isinstance(result.error, AppendUnknownError)
    return ErrorCode.coordinator_load_in_progress if is_unknown else ErrorCode.not_coordinator


# --- OffsetDelete and DeleteGroups ----------------------------------------------------------------


async def handle_delete_groups(
    cache: MetadataCache, request: Request[DeleteGroupsRequest]
) -> DeleteGroupsResponse:
    groups = request.body.groups_names
    errors = {group: _deletion_error(cache, request, str(group)) for group in groups}
    deleted = [str(group) for group, error in errors.items() if error is ErrorCode.none]
    outcome = await _delete_groups(cache, deleted)
    return DeleteGroupsResponse(
        throttle_time=duration(0),
        results=tuple(
            DeletableGroupResult(group_id=group, error_code=error or outcome)
            for group, error in errors.items()
        ),
    )


async def handle_offset_delete(
    cache: MetadataCache, request: Request[OffsetDeleteRequest]
) -> offset_deletions.OffsetDeleteResponse:
    group = str(request.body.group_id)
    error = _deletion_error(cache, request, group)
    partitions = [
        (topic.name, one.partition_index)
        for topic in request.body.topics
        for one in topic.partitions
    ]
    errors = [(*one, _offset_deletion_error(cache, request, *one)) for one in partitions]
    if error is ErrorCode.none and any(one is ErrorCode.none for _, _, one in errors):
        error = await _delete_groups(cache, [group])
    topics: dict[TopicName, list[offset_deletions.OffsetDeleteResponsePartition]] = {}
    for topic_name, index, one in errors if error is ErrorCode.none else ():
        topics.setdefault(topic_name, []).append(
            offset_deletions.OffsetDeleteResponsePartition(partition_index=index, error_code=one)
        )
    return offset_deletions.OffsetDeleteResponse(
        throttle_time=duration(0),
        error_code=error,
        topics=tuple(
            offset_deletions.OffsetDeleteResponseTopic(name=topic_name, partitions=tuple(found))
            for topic_name, found in topics.items()
        ),
    )


def describe_group_deletion(request: Request[Any]) -> object | None:
    """Return the arguments for the audit log; None if none of the groups may be deleted."""
    body = request.body
    names = [body.group_id] if isinstance(body, OffsetDeleteRequest) else body.groups_names
    groups = [str(one) for one in names if _may_delete(request, str(one))]
    return {"groups": groups} if groups else None


def _may_delete(request: Request[Any], group: str) -> bool:
    return request.principal.may(Operation.DELETE, Resource(ResourceType.GROUP, group))


def _deletion_error(cache: MetadataCache, request: Request[Any], group: str) -> ErrorCode:
    """Return why a group cannot be deleted, or ``none``."""
    if not _may_delete(request, group):
        return ErrorCode.group_authorization_failed
    if not cache.is_leader:
        return ErrorCode.not_coordinator
    if group.startswith(_RESERVED_PREFIX):
        return ErrorCode.invalid_group_id
    offsets = cache.raft_node.replica.log.producer_state.group_offsets
    return ErrorCode.none if offsets.commit_of(group) else ErrorCode.group_id_not_found


def _offset_deletion_error(
    cache: MetadataCache, request: Request[Any], topic: TopicName, partition: int
) -> ErrorCode:
    if not request.principal.may(Operation.READ, Resource(ResourceType.TOPIC, str(topic))):
        return ErrorCode.topic_authorization_failed
    return cache.name_error(str(topic), partition)


async def _delete_groups(cache: MetadataCache, groups: Sequence[str]) -> ErrorCode:
    """Append the deletions of groups; wait until they are committed."""
    time_ms = cache.raft_node.time_ms()
    control = tuple(
        OffsetCommit(group=one, offset=_DELETED, commit_timestamp_ms=time_ms) for one in groups
    )
    return _error_of(await _appended(cache, control)) if control else ErrorCode.none


# --- OffsetFetch ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Committed:
    """Last commit of a group, as it is in a response."""

    offset: int = -1
    metadata: str = ""
    epoch: int = -1


async def handle_offset_fetch(
    cache: MetadataCache, request: _Request
) -> latest_schemas.OffsetFetchResponse:
    body = request.body
    groups = body.groups
    if request.version < _GROUPS_FROM:
        groups = (latest_schemas.OffsetFetchGroup(group_id=body.group_id, topics=body.topics),)
    commits = [_last_commit(cache, group.group_id) for group in groups]
    error = ErrorCode.group_authorization_failed
    if request.principal.possible_rights:
        error = await confirm(cache)
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


def _access_error(request: _Request, group: latest_schemas.OffsetFetchGroup) -> ErrorCode | None:
    principal, group_id = request.principal, str(group.group_id)
    if group_id.startswith(COMMIT_GROUP_PREFIX):
        is_allowed = principal.may_read_commit(group_id.removeprefix(COMMIT_GROUP_PREFIX))
    else:
        is_allowed = principal.may(Operation.DESCRIBE, group_resource(group_id))
    return None if is_allowed else ErrorCode.group_authorization_failed


def _last_commit(cache: MetadataCache, group_id: str) -> _Committed:
    log = cache.raft_node.replica.log
    if group_id.startswith(COMMIT_GROUP_PREFIX):
        last = log.producer_state.last_commit(group_id.removeprefix(COMMIT_GROUP_PREFIX))
        if last is None:
            return _Committed()
        epoch = or_minus_one(log.epochs.epoch_at(last.base_offset))
        return _Committed(last.name.version, last.name.query_id, epoch)
    state = log.producer_state
    commit = state.group_offsets.commit_of(group_id)
    if commit is None:
        return _Committed()
    offset = reader_position(
        commit.offset, data_end_offset=state.data_end_offset, end_offset=state.end_offset
    )
    epoch = commit.leader_epoch
    if offset != commit.offset:  # consumers validate an offset by the epoch of the record before it
        epoch = or_minus_one(log.epochs.epoch_at(offset - 1))
    return _Committed(offset, commit.metadata, epoch)


def _group(
    cache: MetadataCache,
    request: _Request,
    group: latest_schemas.OffsetFetchGroup,
    commit: _Committed,
    error: ErrorCode,
) -> latest_schemas.FetchedOffsetsGroup:
    """Return the result of a group. Before version 2 its error is in every partition."""
    has_place = request.version >= _GROUP_ERROR_FROM
    shown = ErrorCode.none if has_place else error
    is_consumers = not group.group_id.startswith(COMMIT_GROUP_PREFIX)
    if is_consumers and not request.principal.may(Operation.DESCRIBE, cache.topic):
        shown = error or ErrorCode.topic_authorization_failed
    if error is not ErrorCode.none or shown is not ErrorCode.none:
        commit = _Committed()
    topics = _topics(cache, request, group, commit, shown)
    if error is not ErrorCode.none and has_place:
        topics = ()
    return latest_schemas.FetchedOffsetsGroup(
        group_id=group.group_id, topics=topics, error_code=error
    )


def _topics(
    cache: MetadataCache,
    request: _Request,
    group: latest_schemas.OffsetFetchGroup,
    commit: _Committed,
    error: ErrorCode,
) -> tuple[latest_schemas.FetchedOffsetsTopic, ...]:
    identity = cache.identity
    if group.topics is None:  # all partitions with a commit
        if commit.offset < 0:
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
    commit: _Committed,
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
            partitions.append(_partition(index, _Committed(), missing if is_unknown_id else error))
    return latest_schemas.FetchedOffsetsTopic(
        topic_id=topic.topic_id, name=topic.name, partitions=tuple(partitions)
    )


def _partition(
    index: int, commit: _Committed, error: ErrorCode
) -> responses.OffsetFetchResponsePartitions:
    return responses.OffsetFetchResponsePartitions(
        partition_index=int32(index),
        committed_offset=int64(commit.offset),
        committed_leader_epoch=int32(commit.epoch),
        metadata=commit.metadata,
        error_code=error,
    )
