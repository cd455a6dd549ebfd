"""Decoder of the quorum's responses: bytes to ``raftlog.quorum.messages`` or ``RequestError``.

1. A top-level error, or an error that ``raftlog.quorum.messages.ErrorCode`` lacks, is a
   ``RequestError``. A response for another log, or with inconsistent values, is malformed.
2. Responses to AddRaftVoter and RemoveRaftVoter have no epoch and leader; they are decoded as epoch
   0 without a leader, which the quorum ignores. Leader endpoints in responses have no listener
   name; they are decoded with that of the voters' listener.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NoReturn, TypeAlias

from kio.schema.add_raft_voter.v1.response import AddRaftVoterResponse
from kio.schema.begin_quorum_epoch.v1 import response as begin_epoch_response
from kio.schema.end_quorum_epoch.v1 import response as end_epoch_response
from kio.schema.errors import ErrorCode as WireCode
from kio.schema.fetch.v18 import response as fetch_response
from kio.schema.fetch_snapshot.v1 import response as fetch_snapshot_response
from kio.schema.remove_raft_voter.v0.response import RemoveRaftVoterResponse
from kio.schema.update_raft_voter.v0 import response as update_voter_response
from kio.schema.vote.v2 import response as vote_response

from raftlog.errors import MalformedMessageError
from raftlog.quorum.messages import (
    BeginQuorumEpochResponse,
    EndQuorumEpochResponse,
    ErrorCode,
    FetchResponse,
    FetchSnapshotResponse,
    LeaderAndEpoch,
    Response,
    VersionsResponse,
    VoterChangeResponse,
    VoteResponse,
)
from raftlog.quorum.voters import Endpoint, is_host
from raftlog.types import OffsetAndEpoch, SnapshotId

from .api_versions import NodeApiVersions, decode_versions_response
from .apis import ApiKey
from .decoding import decode
from .log_identity import (
    PARTITION,
    PORT_MAX,
    LogIdentity,
    RequestError,
    none_below_zero,
    uuid_text,
)

DecodedResponse: TypeAlias = Response | RequestError
_CODES: Final = {int(one): one for one in ErrorCode}


@dataclass(frozen=True, slots=True)
class _ResponseContext:
    """API, version and log of the response that is decoded; ``end`` is its size in bytes."""

    api_key: ApiKey
    version: int
    identity: LogIdentity
    end: int

    def fail(self, reason: str) -> NoReturn:
        raise MalformedMessageError(
            api=f"{self.api_key.name} response",
            version=self.version,
            position=self.end,
            reason=reason,
        )

    def request_error(
        self, code: int, reason: str = "error in the response", *, is_top_level: bool = False
    ) -> RequestError:
        return RequestError(
            api_key=self.api_key, error=code, reason=reason, is_top_level=is_top_level
        )

    def only(self, topics: Sequence[Any], topic: str, index: str) -> Any:
        """Return the only partition of a response, which must be this log's.

        ``topic`` and ``index`` are the names of the fields with topic and partition.
        """
        if len(topics) != 1 or len(topics[0].partitions) != 1:
            self.fail("the response is not about exactly one partition")
        actual = getattr(topics[0], topic)
        expected = self.identity.topic
        if topic == "topic_id":
            actual, expected = uuid_text(actual), self.identity.topic_id
        partition = topics[0].partitions[0]
        if actual != expected or getattr(partition, index) != PARTITION:
            self.fail("the response is about another log")
        return partition

    def leader_and_epoch(
        self, leader_id: int, epoch: int, endpoints: Sequence[Any]
    ) -> LeaderAndEpoch:
        leader = none_below_zero(leader_id)
        found = next((one for one in endpoints if one.node_id == leader), None)
        return LeaderAndEpoch(
            epoch=max(epoch, 0),
            leader_id=leader,
            leader_endpoints=() if found is None else self.endpoints(found.host, found.port),
        )

    def endpoints(self, host: str, port: int) -> tuple[Endpoint, ...]:
        """Return a leader's endpoint; empty if the host is empty."""
        if not host:
            return ()
        if not 0 <= port <= PORT_MAX:
            self.fail("the leader's port is out of range")
        if not is_host(host):
            self.fail("the leader's host is not a host name or an IP address")
        return (Endpoint(self.identity.listener_name, host, port),)


def decode_response(
    api_key: int, version: int, data: bytes, identity: LogIdentity, *, start: int = 0
) -> DecodedResponse:
    """Decode the body, at ``start``, of the response to a request of this API and version.

    The API must be in ``QUORUM_APIS`` or ApiVersions. Raises ``MalformedMessageError`` for invalid
    bytes, and nothing else.
    """
    key = ApiKey(api_key)
    context = _ResponseContext(key, version, identity, len(data))
    if key is ApiKey.API_VERSIONS:
        return _versions(decode_versions_response(version, data, start=start), context)
    target, reader = _READERS[key]
    response = decode(target, version, data, start=start)
    code: WireCode = response.error_code
    if code is not WireCode.none and key not in _WITHOUT_PARTITIONS:
        return context.request_error(code, is_top_level=True)
    decoded: DecodedResponse = reader(response, context)
    return decoded


def _vote(response: vote_response.VoteResponse, context: _ResponseContext) -> DecodedResponse:
    partition: vote_response.PartitionData = context.only(
        response.topics, "topic_name", "partition_index"
    )
    error = _CODES.get(partition.error_code)
    if error is None:
        return context.request_error(partition.error_code)
    return VoteResponse(
        leader_and_epoch=context.leader_and_epoch(
            partition.leader_id, partition.leader_epoch, response.node_endpoints
        ),
        is_granted=partition.vote_granted,
        error=error,
    )


def _begin_epoch(
    response: begin_epoch_response.BeginQuorumEpochResponse, context: _ResponseContext
) -> DecodedResponse:
    partition: begin_epoch_response.PartitionData = context.only(
        response.topics, "topic_name", "partition_index"
    )
    error = _CODES.get(partition.error_code)
    if error is None:
        return context.request_error(partition.error_code)
    leader_and_epoch = context.leader_and_epoch(
        partition.leader_id, partition.leader_epoch, response.node_endpoints
    )
    return BeginQuorumEpochResponse(leader_and_epoch=leader_and_epoch, error=error)


def _end_epoch(
    response: end_epoch_response.EndQuorumEpochResponse, context: _ResponseContext
) -> DecodedResponse:
    partition: end_epoch_response.PartitionData = context.only(
        response.topics, "topic_name", "partition_index"
    )
    error = _CODES.get(partition.error_code)
    if error is None:
        return context.request_error(partition.error_code)
    leader_and_epoch = context.leader_and_epoch(
        partition.leader_id, partition.leader_epoch, response.node_endpoints
    )
    return EndQuorumEpochResponse(leader_and_epoch=leader_and_epoch, error=error)


def _fetch(response: fetch_response.FetchResponse, context: _ResponseContext) -> DecodedResponse:
    partition: fetch_response.PartitionData = context.only(
        response.responses, "topic_id", "partition_index"
    )
    error = _CODES.get(partition.error_code)
    if error is None:
        return context.request_error(partition.error_code)
    leader = partition.current_leader
    diverging = _pair(context, partition.diverging_epoch)
    snapshot = _pair(context, partition.snapshot_id)
    return FetchResponse(
        leader_and_epoch=context.leader_and_epoch(
            leader.leader_id, leader.leader_epoch, response.node_endpoints
        ),
        error=error,
        high_watermark=none_below_zero(partition.high_watermark),
        log_start_offset=none_below_zero(partition.log_start_offset),
        records=partition.records or b"",
        diverging=None if diverging is None else OffsetAndEpoch(*diverging),
        snapshot_id=None if snapshot is None else SnapshotId(*snapshot),
    )


def _pair(context: _ResponseContext, pair: Any) -> tuple[int, int] | None:
    """Return epoch and end offset; None if both are unset."""
    epoch, end_offset = pair.epoch, pair.end_offset
    if epoch < 0 and end_offset < 0:
        return None
    if epoch < 0 or end_offset < 0:
        context.fail("epoch without end offset, or end offset without epoch")
    return epoch, end_offset


def _fetch_snapshot(
    response: fetch_snapshot_response.FetchSnapshotResponse, context: _ResponseContext
) -> DecodedResponse:
    partition: fetch_snapshot_response.PartitionSnapshot = context.only(
        response.topics, "name", "index"
    )
    error = _CODES.get(partition.error_code)
    if error is None:
        return context.request_error(partition.error_code)
    snapshot_id = SnapshotId(partition.snapshot_id.epoch, partition.snapshot_id.end_offset)
    numbers = (snapshot_id.epoch, snapshot_id.end_offset, partition.size, partition.position)
    if error is ErrorCode.NONE and min(numbers) < 0:
        context.fail("negative epoch, offset, size or position of a snapshot")
    leader = partition.current_leader
    return FetchSnapshotResponse(
        leader_and_epoch=context.leader_and_epoch(
            leader.leader_id, leader.leader_epoch, response.node_endpoints
        ),
        snapshot_id=snapshot_id,
        error=error,
        byte_count=partition.size,
        position=partition.position,
        data=partition.unaligned_records,
    )


def _change_voter(
    response: AddRaftVoterResponse | RemoveRaftVoterResponse, context: _ResponseContext
) -> DecodedResponse:
    error = _CODES.get(response.error_code)
    if error is None:
        reason = response.error_message or "error in the response"
        return context.request_error(response.error_code, reason, is_top_level=True)
    return VoterChangeResponse(
        leader_and_epoch=LeaderAndEpoch(epoch=0), error=error, reason=response.error_message
    )


def _update_voter(
    response: update_voter_response.UpdateRaftVoterResponse, context: _ResponseContext
) -> DecodedResponse:
    error = _CODES.get(response.error_code)
    if error is None:
        return context.request_error(response.error_code, is_top_level=True)
    leader = response.current_leader
    leader_id = none_below_zero(leader.leader_id)
    leader_and_epoch = LeaderAndEpoch(
        epoch=max(leader.leader_epoch, 0),
        leader_id=leader_id,
        leader_endpoints=() if leader_id is None else context.endpoints(leader.host, leader.port),
    )
    return VoterChangeResponse(leader_and_epoch=leader_and_epoch, error=error)


def _versions(node_versions: NodeApiVersions, context: _ResponseContext) -> DecodedResponse:
    if node_versions.error:
        return context.request_error(node_versions.error, is_top_level=True)
    levels = node_versions.kraft_versions
    if not 0 <= levels.first <= levels.last:
        context.fail("the levels of kraft.version are not a range")
    return VersionsResponse(kraft_version_min=levels.first, kraft_version_max=levels.last)


_WITHOUT_PARTITIONS: Final = (
    ApiKey.ADD_RAFT_VOTER,
    ApiKey.REMOVE_RAFT_VOTER,
    ApiKey.UPDATE_RAFT_VOTER,
)
_READERS: Final[
    dict[ApiKey, tuple[type[Any], Callable[[Any, _ResponseContext], DecodedResponse]]]
] = {
    ApiKey.VOTE: (vote_response.VoteResponse, _vote),
    ApiKey.BEGIN_QUORUM_EPOCH: (begin_epoch_response.BeginQuorumEpochResponse, _begin_epoch),
    ApiKey.END_QUORUM_EPOCH: (end_epoch_response.EndQuorumEpochResponse, _end_epoch),
    ApiKey.FETCH: (fetch_response.FetchResponse, _fetch),
    ApiKey.FETCH_SNAPSHOT: (fetch_snapshot_response.FetchSnapshotResponse, _fetch_snapshot),
    ApiKey.ADD_RAFT_VOTER: (AddRaftVoterResponse, _change_voter),
    ApiKey.REMOVE_RAFT_VOTER: (RemoveRaftVoterResponse, _change_voter),
    ApiKey.UPDATE_RAFT_VOTER: (update_voter_response.UpdateRaftVoterResponse, _update_voter),
}
