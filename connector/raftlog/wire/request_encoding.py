"""Encoder of the quorum's requests: ``raftlog.quorum.messages`` to bytes.

1. None is encoded as -1 or as the zero id.
2. A request whose meaning would change in a version raises ``UnsupportedFieldError``: a pre-vote
   needs version 2 of Vote, a response before the commit version 1 of AddRaftVoter, a voter's
   directory id version 1 of Vote and BeginQuorumEpoch. Other fields that a version lacks are
   omitted, as in Kafka.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from kio.schema.add_raft_voter.v1 import request as add_voter
from kio.schema.begin_quorum_epoch.v1 import request as begin_epoch
from kio.schema.end_quorum_epoch.v1 import request as end_epoch
from kio.schema.fetch.v18 import request as fetch
from kio.schema.fetch_snapshot.v1 import request as fetch_snapshot
from kio.schema.remove_raft_voter.v0 import request as remove_voter
from kio.schema.update_raft_voter.v0 import request as update_voter
from kio.schema.vote.v2 import request as vote

from raftlog.errors import UnsupportedFieldError
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
from raftlog.types import ZERO_UUID, ReplicaKey

from . import latest_schemas
from .api_versions import encode_versions_request
from .apis import ApiKey
from .encoding import encode
from .log_identity import (
    PARTITION,
    LogIdentity,
    directory_of,
    duration,
    int16,
    int32,
    int64,
    name,
    node,
    or_minus_one,
    port,
    uuid_or_none,
)

SOFTWARE: Final = "raftlog"
SOFTWARE_VERSION: Final = "unknown"
"""Kafka's value of an unknown software version."""
VOTER_KEY_FROM: Final = 1
"""First version of Vote and BeginQuorumEpoch with the voter's directory id."""
PRE_VOTE_FROM: Final = 2
ACK_WHEN_COMMITTED_FROM: Final = 1
_API_KEYS: Final[dict[type[Any], ApiKey]] = {
    VoteRequest: ApiKey.VOTE,
    BeginQuorumEpochRequest: ApiKey.BEGIN_QUORUM_EPOCH,
    EndQuorumEpochRequest: ApiKey.END_QUORUM_EPOCH,
    FetchRequest: ApiKey.FETCH,
    FetchSnapshotRequest: ApiKey.FETCH_SNAPSHOT,
    AddVoterRequest: ApiKey.ADD_RAFT_VOTER,
    RemoveVoterRequest: ApiKey.REMOVE_RAFT_VOTER,
    UpdateVoterRequest: ApiKey.UPDATE_RAFT_VOTER,
    VersionsRequest: ApiKey.API_VERSIONS,
}


def request_api_key(request: Request) -> ApiKey:
    """Return the API key of a request."""
    return _API_KEYS[type(request)]


def encode_request(request: Request, version: int, identity: LogIdentity) -> bytes:
    """Return the body of a request in this version of its API, without a header.

    Raises ``UnsupportedFieldError``.
    """
    if isinstance(request, VersionsRequest):
        return encode_versions_request(
            version, software=SOFTWARE, software_version=SOFTWARE_VERSION
        )
    return encode(_BUILDERS[type(request)](request, version, identity), version)


def _vote(request: VoteRequest, version: int, identity: LogIdentity) -> object:
    if request.is_pre_vote and version < PRE_VOTE_FROM:
        reason = "the peer would handle it as a vote request"
        raise _unsupported_field("VoteRequest", version, "pre_vote", reason)
    _check_voter_key("VoteRequest", version, request.voter)
    partition = vote.PartitionData(
        partition_index=int32(PARTITION),
        replica_epoch=int32(request.epoch),
        replica_id=node(request.candidate.node_id),
        replica_directory_id=directory_of(request.candidate),
        voter_directory_id=directory_of(request.voter),
        last_offset_epoch=int32(request.last_epoch),
        last_offset=int64(request.last_offset),
        pre_vote=request.is_pre_vote,
    )
    return vote.VoteRequest(
        cluster_id=identity.cluster_id,
        voter_id=node(None if request.voter is None else request.voter.node_id),
        topics=(vote.TopicData(topic_name=name(identity.topic), partitions=(partition,)),),
    )


def _check_voter_key(api: str, version: int, voter: ReplicaKey | None) -> None:
    """Raise if the request would lose the voter's directory id.

    Another replica with the same node id must not respond in place of that voter.
    """
    if version < VOTER_KEY_FROM and voter is not None and voter.directory_id != ZERO_UUID:
        reason = "a voter with another directory id would accept it"
        raise _unsupported_field(api, version, "voter_directory_id", reason)


def _begin_epoch(request: BeginQuorumEpochRequest, version: int, identity: LogIdentity) -> object:
    _check_voter_key("BeginQuorumEpochRequest", version, request.voter)
    partition = begin_epoch.PartitionData(
        partition_index=int32(PARTITION),
        voter_directory_id=directory_of(request.voter),
        leader_id=node(request.leader_id),
        leader_epoch=int32(request.epoch),
    )
    return begin_epoch.BeginQuorumEpochRequest(
        cluster_id=identity.cluster_id,
        voter_id=node(None if request.voter is None else request.voter.node_id),
        topics=(begin_epoch.TopicData(topic_name=name(identity.topic), partitions=(partition,)),),
        leader_endpoints=tuple(
            begin_epoch.LeaderEndpoint(name=one.name, host=one.host, port=port(one.port))
            for one in request.leader_endpoints
        ),
    )


def _end_epoch(request: EndQuorumEpochRequest, _: int, identity: LogIdentity) -> object:
    partition = latest_schemas.EndedPartition(
        partition_index=int32(PARTITION),
        leader_id=node(request.leader_id),
        leader_epoch=int32(request.epoch),
        preferred_successors=tuple(int32(one.node_id) for one in request.preferred_successors),
        preferred_candidates=tuple(
            end_epoch.ReplicaInfo(
                candidate_id=node(one.node_id), candidate_directory_id=directory_of(one)
            )
            for one in request.preferred_successors
        ),
    )
    return latest_schemas.EndQuorumEpochRequest(
        cluster_id=identity.cluster_id,
        topics=(
            latest_schemas.EndedTopic(topic_name=name(identity.topic), partitions=(partition,)),
        ),
        leader_endpoints=tuple(
            end_epoch.LeaderEndpoint(name=one.name, host=one.host, port=port(one.port))
            for one in request.leader_endpoints
        ),
    )


def _fetch(request: FetchRequest, _: int, identity: LogIdentity) -> object:
    partition = fetch.FetchPartition(
        partition=int32(PARTITION),
        current_leader_epoch=int32(request.epoch),
        fetch_offset=int64(request.fetch_offset),
        last_fetched_epoch=int32(request.last_fetched_epoch),
        partition_max_bytes=int32(0),
        replica_directory_id=directory_of(request.replica),
        high_watermark=int64(or_minus_one(request.high_watermark)),
    )
    topic_id = uuid_or_none(identity.topic_id)
    return latest_schemas.FetchRequest(
        cluster_id=identity.cluster_id,
        replica_id=node(request.replica.node_id),
        replica_state=fetch.ReplicaState(replica_id=node(request.replica.node_id)),
        max_wait=duration(request.max_wait_ms),
        min_bytes=int32(0),
        max_bytes=int32(request.max_bytes),
        topics=(latest_schemas.FetchTopic(topic_id=topic_id, partitions=(partition,)),),
        forgotten_topics_data=(),
    )


def _fetch_snapshot(request: FetchSnapshotRequest, _: int, identity: LogIdentity) -> object:
    partition = fetch_snapshot.PartitionSnapshot(
        partition=int32(PARTITION),
        current_leader_epoch=int32(request.epoch),
        snapshot_id=fetch_snapshot.SnapshotId(
            end_offset=int64(request.snapshot_id.end_offset), epoch=int32(request.snapshot_id.epoch)
        ),
        position=int64(request.position),
        replica_directory_id=directory_of(request.replica),
    )
    return fetch_snapshot.FetchSnapshotRequest(
        cluster_id=identity.cluster_id,
        replica_id=node(request.replica.node_id),
        max_bytes=int32(request.max_bytes),
        topics=(fetch_snapshot.TopicSnapshot(name=name(identity.topic), partitions=(partition,)),),
    )


def _add_voter(request: AddVoterRequest, version: int, identity: LogIdentity) -> object:
    if not request.ack_when_committed and version < ACK_WHEN_COMMITTED_FROM:
        raise _unsupported_field(
            "AddRaftVoterRequest",
            version,
            "ack_when_committed",
            "the response would wait for the commit",
        )
    return add_voter.AddRaftVoterRequest(
        cluster_id=identity.cluster_id,
        timeout=duration(request.timeout_ms),
        voter_id=int32(request.voter.key.node_id),
        voter_directory_id=directory_of(request.voter.key),
        listeners=tuple(
            add_voter.Listener(name=one.name, host=one.host, port=port(one.port))
            for one in request.voter.endpoints
        ),
        ack_when_committed=request.ack_when_committed,
    )


def _remove_voter(request: RemoveVoterRequest, _: int, identity: LogIdentity) -> object:
    return remove_voter.RemoveRaftVoterRequest(
        cluster_id=identity.cluster_id,
        voter_id=int32(request.voter.node_id),
        voter_directory_id=directory_of(request.voter),
    )


def _update_voter(request: UpdateVoterRequest, _: int, identity: LogIdentity) -> object:
    voter = request.voter
    return update_voter.UpdateRaftVoterRequest(
        cluster_id=identity.cluster_id,
        current_leader_epoch=int32(request.epoch),
        voter_id=int32(voter.key.node_id),
        voter_directory_id=directory_of(voter.key),
        listeners=tuple(
            update_voter.Listener(name=one.name, host=one.host, port=port(one.port))
            for one in voter.endpoints
        ),
        k_raft_version_feature=update_voter.KRaftVersionFeature(
            min_supported_version=int16(voter.kraft_version_min),
            max_supported_version=int16(voter.kraft_version_max),
        ),
    )


def _unsupported_field(api: str, version: int, field: str, reason: str) -> UnsupportedFieldError:
    return UnsupportedFieldError(api=api, version=version, field=field, reason=reason)


_BUILDERS: Final[dict[type[Any], Callable[[Any, int, LogIdentity], object]]] = {
    VoteRequest: _vote,
    BeginQuorumEpochRequest: _begin_epoch,
    EndQuorumEpochRequest: _end_epoch,
    FetchRequest: _fetch,
    FetchSnapshotRequest: _fetch_snapshot,
    AddVoterRequest: _add_voter,
    RemoveVoterRequest: _remove_voter,
    UpdateVoterRequest: _update_voter,
}
