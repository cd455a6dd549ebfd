"""Decoder of the quorum's requests: bytes to ``raftlog.quorum.messages`` or ``RequestError``.

1. The checks are in Kafka's order (``KafkaRaftClient``): cluster id, topic, partition, then values
   that are invalid in any state of the replica. A failed check is a ``RequestError``, which has a
   response, and not an exception. The quorum core checks the rest.
2. A missing cluster id is accepted, a different one is not.
3. -1 and the zero id are decoded as None where a replica is optional. A fetch without a high
   watermark (before version 18) has the schema's default 2^63-1, so it waits for records only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

from kio.schema.add_raft_voter.v1.request import AddRaftVoterRequest
from kio.schema.begin_quorum_epoch.v1 import request as begin_epoch
from kio.schema.errors import ErrorCode
from kio.schema.fetch_snapshot.v1 import request as fetch_snapshot
from kio.schema.remove_raft_voter.v0.request import RemoveRaftVoterRequest
from kio.schema.update_raft_voter.v0.request import UpdateRaftVoterRequest
from kio.schema.vote.v2 import request as vote

from raftlog.quorum.messages import (
    AddVoterRequest,
    BeginQuorumEpochRequest,
    EndQuorumEpochRequest,
    FetchRequest,
    FetchSnapshotRequest,
    RemoveVoterRequest,
    Request,
    UpdateVoterRequest,
    VersionsRequest,
    VoteRequest,
)
from raftlog.quorum.voters import Endpoint, Voter, endpoints_problem
from raftlog.types import ZERO_UUID, ReplicaKey, SnapshotId

from . import latest_schemas
from .api_versions import decode_versions_request
from .apis import ApiKey
from .decoding import decode
from .log_identity import (
    PARTITION,
    LogIdentity,
    RequestError,
    milliseconds,
    none_below_zero,
    replica_key,
    replica_key_or_none,
    uuid_text,
)

DecodedRequest: TypeAlias = Request | RequestError
_REPLICA_STATE_FROM: Final = 15


def decode_request(
    api_key: int,
    version: int,
    data: bytes,
    identity: LogIdentity,
    *,
    start: int = 0,
    decoded: latest_schemas.FetchRequest | None = None,
) -> DecodedRequest:
    """Decode and check the body that begins at ``start``, or use ``decoded`` if it is given.

    The API must be in ``QUORUM_APIS`` or ApiVersions. Raises ``MalformedMessageError`` for invalid
    bytes, and nothing else.
    """
    key = ApiKey(api_key)
    if key is ApiKey.API_VERSIONS:
        decode_versions_request(version, data, start=start)
        return VersionsRequest()
    target, reader = _READERS[key]
    request: Any = decode(target, version, data, start=start) if decoded is None else decoded
    if request.cluster_id not in (None, identity.cluster_id):
        return RequestError(
            api_key=key,
            error=ErrorCode.inconsistent_cluster_id,
            reason="the request has the cluster id of another cluster",
        )
    checked: DecodedRequest = reader(request, version, identity)
    return checked


# --- elections ------------------------------------------------------------------------------------


def _vote(request: vote.VoteRequest, _: int, identity: LogIdentity) -> DecodedRequest:
    if not _is_this_log(request.topics, identity):
        return _other_log(ApiKey.VOTE)
    (partition,) = request.topics[0].partitions
    numbers = (partition.last_offset, partition.last_offset_epoch, partition.replica_epoch)
    if min(numbers) < 0 or partition.replica_id < 0:
        return _invalid_value(ApiKey.VOTE)
    return VoteRequest(
        epoch=partition.replica_epoch,
        candidate=replica_key(partition.replica_id, partition.replica_directory_id),
        voter=replica_key_or_none(request.voter_id, partition.voter_directory_id),
        last_offset=partition.last_offset,
        last_epoch=partition.last_offset_epoch,
        is_pre_vote=partition.pre_vote,
    )


def _begin_epoch(
    request: begin_epoch.BeginQuorumEpochRequest, _: int, identity: LogIdentity
) -> DecodedRequest:
    if not _is_this_log(request.topics, identity):
        return _other_log(ApiKey.BEGIN_QUORUM_EPOCH)
    (partition,) = request.topics[0].partitions
    endpoints = _endpoints(request.leader_endpoints)
    if min(partition.leader_epoch, partition.leader_id) < 0:
        return _invalid_value(ApiKey.BEGIN_QUORUM_EPOCH)
    if (problem := endpoints_problem(endpoints)) is not None:
        return _invalid(ApiKey.BEGIN_QUORUM_EPOCH, problem, is_top_level=False)
    return BeginQuorumEpochRequest(
        epoch=partition.leader_epoch,
        leader_id=partition.leader_id,
        voter=replica_key_or_none(request.voter_id, partition.voter_directory_id),
        leader_endpoints=endpoints,
    )


def _end_epoch(
    request: latest_schemas.EndQuorumEpochRequest, version: int, identity: LogIdentity
) -> DecodedRequest:
    if not _is_this_log(request.topics, identity):
        return _other_log(ApiKey.END_QUORUM_EPOCH)
    (partition,) = request.topics[0].partitions
    if version > 0:
        preferred_successors = tuple(
            replica_key(one.candidate_id, one.candidate_directory_id)
            for one in partition.preferred_candidates
        )
    else:
        preferred_successors = tuple(
            replica_key(one, None) for one in partition.preferred_successors
        )
    ids = (partition.leader_id, *(one.node_id for one in preferred_successors))
    endpoints = _endpoints(request.leader_endpoints)
    if min(partition.leader_epoch, *ids) < 0:
        return _invalid_value(ApiKey.END_QUORUM_EPOCH)
    if (problem := endpoints_problem(endpoints)) is not None:
        return _invalid(ApiKey.END_QUORUM_EPOCH, problem, is_top_level=False)
    return EndQuorumEpochRequest(
        epoch=partition.leader_epoch,
        leader_id=partition.leader_id,
        preferred_successors=preferred_successors,
        leader_endpoints=endpoints,
    )


# --- replication ----------------------------------------------------------------------------------


def fetching_replica_id(request: latest_schemas.FetchRequest, version: int) -> int:
    """Return the replica id of a fetch; -1 for a consumer."""
    has_state = version >= _REPLICA_STATE_FROM
    return request.replica_state.replica_id if has_state else request.replica_id


def _fetch(
    request: latest_schemas.FetchRequest, version: int, identity: LogIdentity
) -> DecodedRequest:
    topics = request.topics
    if len(topics) != 1 or uuid_text(topics[0].topic_id) != identity.topic_id:
        return _other_log(ApiKey.FETCH)
    partitions = topics[0].partitions
    if len(partitions) != 1 or partitions[0].partition != PARTITION:
        return _other_log(ApiKey.FETCH)
    (partition,) = partitions
    max_wait_ms = milliseconds(request.max_wait)
    epochs = (partition.last_fetched_epoch, partition.current_leader_epoch)
    if min(max_wait_ms, partition.fetch_offset, request.max_bytes, *epochs) < 0:
        return _invalid_value(ApiKey.FETCH)
    return FetchRequest(
        replica=replica_key(fetching_replica_id(request, version), partition.replica_directory_id),
        epoch=partition.current_leader_epoch,
        fetch_offset=partition.fetch_offset,
        last_fetched_epoch=partition.last_fetched_epoch,
        max_bytes=request.max_bytes,
        max_wait_ms=max_wait_ms,
        high_watermark=none_below_zero(partition.high_watermark),
    )


def _fetch_snapshot(
    request: fetch_snapshot.FetchSnapshotRequest, _: int, identity: LogIdentity
) -> DecodedRequest:
    topics = request.topics
    if len(topics) != 1 or len(topics[0].partitions) != 1:
        return _other_log(ApiKey.FETCH_SNAPSHOT)
    (partition,) = topics[0].partitions
    if topics[0].name != identity.topic or partition.partition != PARTITION:
        return RequestError(
            api_key=ApiKey.FETCH_SNAPSHOT,
            error=ErrorCode.unknown_topic_or_partition,
            reason="unknown topic or partition",
            is_top_level=False,
            topic=topics[0].name,
            partition=partition.partition,
        )
    snapshot_id = SnapshotId(partition.snapshot_id.epoch, partition.snapshot_id.end_offset)
    if min(partition.current_leader_epoch, request.max_bytes) < 0:
        return _invalid_value(ApiKey.FETCH_SNAPSHOT)
    if min(snapshot_id.epoch, snapshot_id.end_offset) < 0:
        return _invalid_value(ApiKey.FETCH_SNAPSHOT, ErrorCode.snapshot_not_found)
    if partition.position < 0:
        return _invalid_value(ApiKey.FETCH_SNAPSHOT, ErrorCode.position_out_of_range)
    return FetchSnapshotRequest(
        replica=replica_key(request.replica_id, partition.replica_directory_id),
        epoch=partition.current_leader_epoch,
        snapshot_id=snapshot_id,
        position=partition.position,
        max_bytes=request.max_bytes,
    )


# --- voters ---------------------------------------------------------------------------------------


def _add_voter(request: AddRaftVoterRequest, _: int, identity: LogIdentity) -> DecodedRequest:
    voter = Voter(
        key=replica_key(request.voter_id, request.voter_directory_id),
        endpoints=_endpoints(request.listeners),
    )
    if (problem := _voter_problem(voter, identity)) is not None:
        return _invalid(ApiKey.ADD_RAFT_VOTER, problem)
    return AddVoterRequest(
        voter=voter,
        timeout_ms=milliseconds(request.timeout),
        ack_when_committed=request.ack_when_committed,
    )


def _remove_voter(request: RemoveRaftVoterRequest, _: int, __: LogIdentity) -> DecodedRequest:
    key = replica_key(request.voter_id, request.voter_directory_id)
    if (problem := _key_problem(key)) is not None:
        return _invalid(ApiKey.REMOVE_RAFT_VOTER, problem)
    return RemoveVoterRequest(voter=key)


def _update_voter(request: UpdateRaftVoterRequest, _: int, identity: LogIdentity) -> DecodedRequest:
    versions = request.k_raft_version_feature
    lowest, highest = versions.min_supported_version, versions.max_supported_version
    voter = Voter(
        key=replica_key(request.voter_id, request.voter_directory_id),
        endpoints=_endpoints(request.listeners),
        kraft_version_min=lowest,
        kraft_version_max=highest,
    )
    if min(request.current_leader_epoch, lowest) < 0 or lowest > highest:
        return _invalid(ApiKey.UPDATE_RAFT_VOTER, "invalid epoch or range of kraft.version")
    if (problem := _voter_problem(voter, identity)) is not None:
        return _invalid(ApiKey.UPDATE_RAFT_VOTER, problem)
    return UpdateVoterRequest(epoch=request.current_leader_epoch, voter=voter)


def _key_problem(key: ReplicaKey) -> str | None:
    """Return why a key cannot be that of a voter in the log (Kafka: ``KafkaRaftClient``)."""
    if key.node_id < 0:
        return "the voter's node id is negative"
    return "the voter's directory id is missing" if key.directory_id == ZERO_UUID else None


def _voter_problem(voter: Voter, identity: LogIdentity) -> str | None:
    """Return why a voter cannot be in the log: the others must be able to connect to it."""
    problem = _key_problem(voter.key) or endpoints_problem(voter.endpoints)
    if problem is None and all(one.name != identity.listener_name for one in voter.endpoints):
        return f"the endpoint of the voters' listener {identity.listener_name} is missing"
    return problem


# --- helpers --------------------------------------------------------------------------------------


def _is_this_log(topics: Sequence[Any], identity: LogIdentity) -> bool:
    """Return whether the topics are exactly this log's topic and partition."""
    return (
        len(topics) == 1
        and topics[0].topic_name == identity.topic
        and len(topics[0].partitions) == 1
        and topics[0].partitions[0].partition_index == PARTITION
    )


def _other_log(key: ApiKey) -> RequestError:
    return RequestError(
        api_key=key,
        error=ErrorCode.invalid_request,
        reason="the request is not for exactly this log",
    )


def _invalid_value(key: ApiKey, error: ErrorCode = ErrorCode.invalid_request) -> RequestError:
    reason = "invalid offset, epoch, id or time"
    return RequestError(api_key=key, error=error, reason=reason, is_top_level=False)


def _invalid(key: ApiKey, reason: str, *, is_top_level: bool = True) -> RequestError:
    error = ErrorCode.invalid_request
    return RequestError(api_key=key, error=error, reason=reason, is_top_level=is_top_level)


def _endpoints(listeners: Sequence[Any]) -> tuple[Endpoint, ...]:
    return tuple(Endpoint(one.name, one.host, one.port) for one in listeners)


_READERS: Final[
    dict[ApiKey, tuple[type[Any], Callable[[Any, int, LogIdentity], DecodedRequest]]]
] = {
    ApiKey.VOTE: (vote.VoteRequest, _vote),
    ApiKey.BEGIN_QUORUM_EPOCH: (begin_epoch.BeginQuorumEpochRequest, _begin_epoch),
    ApiKey.END_QUORUM_EPOCH: (latest_schemas.EndQuorumEpochRequest, _end_epoch),
    ApiKey.FETCH: (latest_schemas.FetchRequest, _fetch),
    ApiKey.FETCH_SNAPSHOT: (fetch_snapshot.FetchSnapshotRequest, _fetch_snapshot),
    ApiKey.ADD_RAFT_VOTER: (AddRaftVoterRequest, _add_voter),
    ApiKey.REMOVE_RAFT_VOTER: (RemoveRaftVoterRequest, _remove_voter),
    ApiKey.UPDATE_RAFT_VOTER: (UpdateRaftVoterRequest, _update_voter),
}
QUORUM_APIS: Final = frozenset(_READERS)
"""APIs of the requests between replicas."""
