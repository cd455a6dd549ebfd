"""Encoder of the quorum's responses and errors: ``raftlog.quorum.messages`` to bytes.

1. Epoch and leader are set in every response that has the fields, error responses included. The
   leader's endpoint is set from the version on that has it (Fetch: from 17, as KRaft does).
2. Records of a fetch response are null with an error, a diverging epoch or a snapshot id, and empty
   if there are no records yet (Kafka: ``RaftUtil``).
3. The port is an int32 in responses to Fetch and UpdateRaftVoter, and a uint16 elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from kio.schema.add_raft_voter.v1.response import AddRaftVoterResponse
from kio.schema.begin_quorum_epoch.v1 import response as begin_epoch_response
from kio.schema.end_quorum_epoch.v1 import response as end_epoch_response
from kio.schema.errors import ErrorCode
from kio.schema.fetch.v18 import response as fetch_response
from kio.schema.fetch_snapshot.v1 import response as fetch_snapshot_response
from kio.schema.remove_raft_voter.v0.response import RemoveRaftVoterResponse
from kio.schema.update_raft_voter.v0 import response as update_voter_response
from kio.schema.vote.v2 import response as vote_response

from raftlog.quorum.messages import (
    BeginQuorumEpochResponse,
    EndQuorumEpochResponse,
    FetchResponse,
    FetchSnapshotResponse,
    LeaderAndEpoch,
    Response,
    VersionsResponse,
    VoterChangeResponse,
    VoteResponse,
)
from raftlog.types import SnapshotId

from .apis import ApiKey
from .encoding import encode
from .log_identity import (
    PARTITION,
    LogIdentity,
    RequestError,
    data_bytes,
    duration,
    int32,
    int64,
    leader_endpoint,
    name,
    node,
    or_minus_one,
    port,
    uuid_or_none,
)

_FETCH_ENDPOINTS_FROM: Final = 17
_NO_THROTTLE: Final = duration(0)


def encode_response(api_key: int, version: int, response: Response, identity: LogIdentity) -> bytes:
    """Return the body of the response to a request of this API and version, without a header.

    For ApiVersions see ``encode_versions_response``, which depends on the listener.
    """
    assert not isinstance(response, VersionsResponse), "use encode_versions_response"
    error = ErrorCode(int(response.error))
    return encode(_BUILDERS[ApiKey(api_key)](response, error, version, identity), version)


def encode_error_response(
    request_error: RequestError,
    version: int,
    leader_and_epoch: LeaderAndEpoch,
    identity: LogIdentity,
) -> bytes:
    """Return the body of the error response to a request that did not reach the replica."""
    error = ErrorCode(request_error.error)
    if request_error.is_top_level:
        return encode(_TOP_LEVEL[request_error.api_key](error, request_error.reason), version)
    response: Response
    match request_error.api_key:
        case ApiKey.VOTE:
            response = VoteResponse(leader_and_epoch=leader_and_epoch)
        case ApiKey.BEGIN_QUORUM_EPOCH:
            response = BeginQuorumEpochResponse(leader_and_epoch=leader_and_epoch)
        case ApiKey.END_QUORUM_EPOCH:
            response = EndQuorumEpochResponse(leader_and_epoch=leader_and_epoch)
        case ApiKey.FETCH:
            response = FetchResponse(leader_and_epoch=leader_and_epoch)
        case ApiKey.FETCH_SNAPSHOT:
            response = FetchSnapshotResponse(
                leader_and_epoch=leader_and_epoch, snapshot_id=SnapshotId(0, 0)
            )
            message = _fetch_snapshot(
                response, error, version, identity, request_error.topic, request_error.partition
            )
            return encode(message, version)
        case key:
            raise AssertionError(f"{key.name} has only top-level errors")
    return encode(_BUILDERS[request_error.api_key](response, error, version, identity), version)


def _vote(response: VoteResponse, error: ErrorCode, _: int, identity: LogIdentity) -> object:
    partition = vote_response.PartitionData(
        partition_index=int32(PARTITION),
        error_code=error,
        leader_id=node(response.leader_and_epoch.leader_id),
        leader_epoch=int32(response.leader_and_epoch.epoch),
        vote_granted=response.is_granted,
    )
    return vote_response.VoteResponse(
        error_code=ErrorCode.none,
        topics=(vote_response.TopicData(topic_name=name(identity.topic), partitions=(partition,)),),
        node_endpoints=_endpoints(vote_response.NodeEndpoint, response.leader_and_epoch, identity),
    )


def _begin_epoch(
    response: BeginQuorumEpochResponse, error: ErrorCode, _: int, identity: LogIdentity
) -> object:
    partition = begin_epoch_response.PartitionData(
        partition_index=int32(PARTITION),
        error_code=error,
        leader_id=node(response.leader_and_epoch.leader_id),
        leader_epoch=int32(response.leader_and_epoch.epoch),
    )
    return begin_epoch_response.BeginQuorumEpochResponse(
        error_code=ErrorCode.none,
        topics=(
            begin_epoch_response.TopicData(
                topic_name=name(identity.topic), partitions=(partition,)
            ),
        ),
        node_endpoints=_endpoints(
            begin_epoch_response.NodeEndpoint, response.leader_and_epoch, identity
        ),
    )


def _end_epoch(
    response: EndQuorumEpochResponse, error: ErrorCode, _: int, identity: LogIdentity
) -> object:
    partition = end_epoch_response.PartitionData(
        partition_index=int32(PARTITION),
        error_code=error,
        leader_id=node(response.leader_and_epoch.leader_id),
        leader_epoch=int32(response.leader_and_epoch.epoch),
    )
    return end_epoch_response.EndQuorumEpochResponse(
        error_code=ErrorCode.none,
        topics=(
            end_epoch_response.TopicData(topic_name=name(identity.topic), partitions=(partition,)),
        ),
        node_endpoints=_endpoints(
            end_epoch_response.NodeEndpoint, response.leader_and_epoch, identity
        ),
    )


def _fetch(
    response: FetchResponse, error: ErrorCode, version: int, identity: LogIdentity
) -> object:
    leader_and_epoch, diverging, snapshot_id = (
        response.leader_and_epoch,
        response.diverging,
        response.snapshot_id,
    )
    has_records = error is ErrorCode.none and diverging is None and snapshot_id is None
    partition = fetch_response.PartitionData(
        partition_index=int32(PARTITION),
        error_code=error,
        high_watermark=int64(or_minus_one(response.high_watermark)),
        log_start_offset=int64(or_minus_one(response.log_start_offset)),
        diverging_epoch=fetch_response.EpochEndOffset()
        if diverging is None
        else fetch_response.EpochEndOffset(
            epoch=int32(diverging.epoch), end_offset=int64(diverging.offset)
        ),
        current_leader=fetch_response.LeaderIdAndEpoch(
            leader_id=node(leader_and_epoch.leader_id), leader_epoch=int32(leader_and_epoch.epoch)
        ),
        snapshot_id=fetch_response.SnapshotId()
        if snapshot_id is None
        else fetch_response.SnapshotId(
            end_offset=int64(snapshot_id.end_offset), epoch=int32(snapshot_id.epoch)
        ),
        aborted_transactions=(),
        records=data_bytes(response.records) if has_records else None,
    )
    topic = fetch_response.FetchableTopicResponse(
        topic_id=uuid_or_none(identity.topic_id), partitions=(partition,)
    )
    has_endpoints = version >= _FETCH_ENDPOINTS_FROM
    return fetch_response.FetchResponse(
        throttle_time=_NO_THROTTLE,
        error_code=ErrorCode.none,
        responses=(topic,),
        node_endpoints=_endpoints(fetch_response.NodeEndpoint, leader_and_epoch, identity)
        if has_endpoints
        else (),
    )


def _fetch_snapshot(
    response: FetchSnapshotResponse,
    error: ErrorCode,
    _: int,
    identity: LogIdentity,
    topic: str | None = None,
    partition: int = PARTITION,
) -> object:
    snapshot = fetch_snapshot_response.PartitionSnapshot(
        index=int32(partition),
        error_code=error,
        snapshot_id=fetch_snapshot_response.SnapshotId(
            end_offset=int64(response.snapshot_id.end_offset),
            epoch=int32(response.snapshot_id.epoch),
        ),
        current_leader=fetch_snapshot_response.LeaderIdAndEpoch(
            leader_id=node(response.leader_and_epoch.leader_id),
            leader_epoch=int32(response.leader_and_epoch.epoch),
        ),
        size=int64(response.byte_count),
        position=int64(response.position),
        unaligned_records=data_bytes(response.data),
    )
    topic_name = name(identity.topic if topic is None else topic)
    return fetch_snapshot_response.FetchSnapshotResponse(
        throttle_time=_NO_THROTTLE,
        error_code=ErrorCode.none,
        topics=(fetch_snapshot_response.TopicSnapshot(name=topic_name, partitions=(snapshot,)),),
        node_endpoints=_endpoints(
            fetch_snapshot_response.NodeEndpoint, response.leader_and_epoch, identity
        ),
    )


def _add_voter(response: VoterChangeResponse, error: ErrorCode, _: int, __: LogIdentity) -> object:
    return AddRaftVoterResponse(
        throttle_time=_NO_THROTTLE, error_code=error, error_message=response.reason
    )


def _remove_voter(
    response: VoterChangeResponse, error: ErrorCode, _: int, __: LogIdentity
) -> object:
    return RemoveRaftVoterResponse(
        throttle_time=_NO_THROTTLE, error_code=error, error_message=response.reason
    )


def _update_voter(
    response: VoterChangeResponse, error: ErrorCode, _: int, identity: LogIdentity
) -> object:
    leader_and_epoch, endpoint = (
        response.leader_and_epoch,
        leader_endpoint(response.leader_and_epoch, identity),
    )
    return update_voter_response.UpdateRaftVoterResponse(
        throttle_time=_NO_THROTTLE,
        error_code=error,
        current_leader=update_voter_response.CurrentLeader(
            leader_id=node(leader_and_epoch.leader_id),
            leader_epoch=int32(leader_and_epoch.epoch),
            host="" if endpoint is None else endpoint.host,
            port=int32(0 if endpoint is None else endpoint.port),
        ),
    )


def _endpoints(
    kind: type[Any], leader_and_epoch: LeaderAndEpoch, identity: LogIdentity
) -> tuple[Any, ...]:
    endpoint = leader_endpoint(leader_and_epoch, identity)
    if endpoint is None:
        return ()
    return (
        kind(
            node_id=node(leader_and_epoch.leader_id), host=endpoint.host, port=port(endpoint.port)
        ),
    )


_NO_LEADER: Final = update_voter_response.CurrentLeader(host="", port=int32(0))
_BUILDERS: Final[dict[ApiKey, Callable[..., object]]] = {
    ApiKey.VOTE: _vote,
    ApiKey.BEGIN_QUORUM_EPOCH: _begin_epoch,
    ApiKey.END_QUORUM_EPOCH: _end_epoch,
    ApiKey.FETCH: _fetch,
    ApiKey.FETCH_SNAPSHOT: _fetch_snapshot,
    ApiKey.ADD_RAFT_VOTER: _add_voter,
    ApiKey.REMOVE_RAFT_VOTER: _remove_voter,
    ApiKey.UPDATE_RAFT_VOTER: _update_voter,
}
_TOP_LEVEL: Final[dict[ApiKey, Callable[[ErrorCode, str], object]]] = {
    ApiKey.VOTE: lambda error, _: vote_response.VoteResponse(error_code=error, topics=()),
    ApiKey.BEGIN_QUORUM_EPOCH: lambda error, _: begin_epoch_response.BeginQuorumEpochResponse(
        error_code=error, topics=()
    ),
    ApiKey.END_QUORUM_EPOCH: lambda error, _: end_epoch_response.EndQuorumEpochResponse(
        error_code=error, topics=()
    ),
    ApiKey.FETCH: lambda error, _: fetch_response.FetchResponse(
        throttle_time=_NO_THROTTLE, error_code=error, responses=()
    ),
    ApiKey.FETCH_SNAPSHOT: lambda error, _: fetch_snapshot_response.FetchSnapshotResponse(
        throttle_time=_NO_THROTTLE, error_code=error, topics=()
    ),
    ApiKey.ADD_RAFT_VOTER: lambda error, reason: AddRaftVoterResponse(
        throttle_time=_NO_THROTTLE, error_code=error, error_message=reason
    ),
    ApiKey.REMOVE_RAFT_VOTER: lambda error, reason: RemoveRaftVoterResponse(
        throttle_time=_NO_THROTTLE, error_code=error, error_message=reason
    ),
    ApiKey.UPDATE_RAFT_VOTER: lambda error, _: update_voter_response.UpdateRaftVoterResponse(
        throttle_time=_NO_THROTTLE, error_code=error, current_leader=_NO_LEADER
    ),
}
