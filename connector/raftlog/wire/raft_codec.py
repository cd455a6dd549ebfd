"""Codec of the quorum's messages: ``raftlog.quorum.messages`` to bytes, and back.

The tables ``_REQUESTS`` and ``_RESPONSES`` map the attributes of the quorum's messages to fields of
Kafka's messages. Encoders and decoders are derived from them (see ``raft_fields``), except those of
Fetch, which are in ``fetch_codec``.

1. A request is checked in Kafka's order (``KafkaRaftClient``): cluster id, topic, partition, then
   values that are invalid in any state of the replica. The quorum core checks the rest. A failed
   check is a ``RequestError``, which is sent as a response, and not an exception. A missing cluster
   id is accepted; a different one is not.
2. A response with a top-level error, or with an error that ``raftlog.quorum.messages.ErrorCode``
   lacks, is decoded as a ``RequestError``. A response for another log, or with inconsistent values,
   is malformed.
3. Every response that has fields for the epoch and the leader sets them, even an error response.
   Responses to AddRaftVoter and RemoveRaftVoter have no such fields; they are decoded as epoch 0
   without a leader, which the quorum ignores.
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias

from kio.schema.add_raft_voter.v1 import request as add_voter
from kio.schema.add_raft_voter.v1 import response as add_voter_response
from kio.schema.begin_quorum_epoch.v1 import request as begin_epoch
from kio.schema.begin_quorum_epoch.v1 import response as begin_epoch_response
from kio.schema.end_quorum_epoch.v1 import response as end_epoch_response
from kio.schema.errors import ErrorCode as WireCode
from kio.schema.fetch_snapshot.v1 import request as fetch_snapshot
from kio.schema.fetch_snapshot.v1 import response as fetch_snapshot_response
from kio.schema.remove_raft_voter.v0 import request as remove_voter
from kio.schema.remove_raft_voter.v0 import response as remove_voter_response
from kio.schema.update_raft_voter.v0 import request as update_voter
from kio.schema.update_raft_voter.v0 import response as update_voter_response
from kio.schema.vote.v2 import request as vote
from kio.schema.vote.v2 import response as vote_response

from raftlog.quorum import messages
from raftlog.quorum.voters import Voter, endpoints_problem
from raftlog.types import ZERO_UUID, OffsetAndEpoch, ReplicaKey, SnapshotId

from . import latest_schemas
from .api_versions import (
    NodeApiVersions,
    decode_versions_request,
    decode_versions_response,
    encode_versions_request,
)
from .apis import ApiKey
from .codec import decode_fields
from .fetch_codec import (
    NO_END,
    FetchedPartition,
    FetchedTopic,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    decode_fetch_request,
    decode_fetch_response,
    encode_fetch_request,
    encode_fetch_response,
)
from .log_identity import (
    PARTITION,
    LogIdentity,
    RequestError,
    id_text,
    or_minus_one,
    uuid_bytes,
)
from .raft_fields import (
    CANDIDATES,
    CODES,
    ENDPOINTS,
    ERROR,
    KEY,
    LEADER,
    LEADER_AT,
    MILLISECONDS,
    NO_LEADER,
    NODE_IDS,
    OPTIONAL_KEY,
    SNAPSHOT_ID,
    VOTER,
    VOTER_AND_LEVELS,
    Fields,
    Message,
    PartitionFields,
    ResponseContext,
    leader_from_wire,
    leader_to_wire,
    only_partition,
)

DecodedRequest: TypeAlias = messages.Request | RequestError
DecodedResponse: TypeAlias = messages.Response | RequestError
SOFTWARE: Final = "raftlog"
SOFTWARE_VERSION: Final = "unknown"
"""Kafka's value for an unknown software version."""
_FETCH_ENDPOINTS_FROM: Final = 17
"""First version of Fetch in which KRaft sets the leader's endpoint."""


# --- Table of the messages ------------------------------------------------------------------------


def _key_problem(key: ReplicaKey) -> str | None:
    """Return why a key cannot be a voter's key in the log (Kafka: ``KafkaRaftClient``)."""
    if key.node_id < 0:
        return "the voter's node id is negative"
    return "the voter's directory id is missing" if key.directory_id == ZERO_UUID else None


def _voter_problem(voter: Voter, identity: LogIdentity) -> str | None:
    """Return why a voter cannot be in the log; other voters must be able to connect to it."""
    problem = _key_problem(voter.key) or endpoints_problem(voter.endpoints)
    if problem is None and all(one.name != identity.listener_name for one in voter.endpoints):
        return f"the endpoint of the voters' listener {identity.listener_name} is missing"
    return problem


def _update_problem(request: messages.UpdateVoterRequest, identity: LogIdentity) -> str | None:
    lowest, highest = request.voter.kraft_version_min, request.voter.kraft_version_max
    if min(request.epoch, lowest) < 0 or lowest > highest:
        return "invalid epoch or range of kraft.version"
    return _voter_problem(request.voter, identity)


def _end_problem(request: messages.EndQuorumEpochRequest, _: LogIdentity) -> str | None:
    if any(key.node_id < 0 for key in request.preferred_successors):
        return _INVALID_VALUE
    return endpoints_problem(request.leader_endpoints)


def _snapshot_problem(response: messages.FetchSnapshotResponse, _: LogIdentity) -> str | None:
    found = response.snapshot_id
    numbers = (found.epoch, found.end_offset, response.byte_count, response.position)
    if response.error is messages.ErrorCode.NONE and min(numbers) < 0:
        return "negative epoch, offset, size or position of a snapshot"
    return None


def _invalid_request(*names: str) -> dict[str, WireCode]:
    return dict.fromkeys(names, WireCode.invalid_request)


_BY_NAME: Final = PartitionFields("topics", "topic_name", "partition_index")
_INVALID_VALUE: Final = "invalid offset, epoch, id or time"
_ERROR_IN_RESPONSE: Final = "error in the response"
_NOT_ONE_PARTITION: Final = "the response is not about exactly one partition"
_ANOTHER_LOG: Final = "the response is about another log"
_OTHER_VOTER: Final = "a voter with another directory id would accept it"
_LEADER: Final = (LEADER, ".leader_id", ".leader_epoch", "node_endpoints")
_CURRENT_LEADER: Final = (
    ".current_leader.leader_id",
    ".current_leader.leader_epoch",
    "node_endpoints",
)
_VOTER_CHANGE: Final[dict[str, Fields]] = {
    "error": (ERROR, "error_code"),
    "reason": "error_message",
    "leader_and_epoch": (NO_LEADER,),
}
_REQUESTS: Final = {
    ApiKey.VOTE: Message(
        messages.VoteRequest,
        vote.VoteRequest,
        _BY_NAME,
        {
            "epoch": ".replica_epoch",
            "candidate": (KEY, ".replica_id", ".replica_directory_id"),
            "voter": (OPTIONAL_KEY, "voter_id", ".voter_directory_id"),
            "last_offset": ".last_offset",
            "last_epoch": ".last_offset_epoch",
            "is_pre_vote": ".pre_vote",
        },
        must_keep={
            ".pre_vote": "the peer would handle it as a vote request",
            ".voter_directory_id": _OTHER_VOTER,
        },
        not_negative=_invalid_request("last_offset", "last_epoch", "epoch", "candidate.node_id"),
    ),
    ApiKey.BEGIN_QUORUM_EPOCH: Message(
        messages.BeginQuorumEpochRequest,
        begin_epoch.BeginQuorumEpochRequest,
        _BY_NAME,
        {
            "epoch": ".leader_epoch",
            "leader_id": ".leader_id",
            "voter": (OPTIONAL_KEY, "voter_id", ".voter_directory_id"),
            "leader_endpoints": (ENDPOINTS, "leader_endpoints"),
        },
        must_keep={".voter_directory_id": _OTHER_VOTER},
        not_negative=_invalid_request("epoch", "leader_id"),
        problem=lambda request, _: endpoints_problem(request.leader_endpoints),
    ),
    ApiKey.END_QUORUM_EPOCH: Message(
        messages.EndQuorumEpochRequest,
        latest_schemas.EndQuorumEpochRequest,
        _BY_NAME,
        {
            "epoch": ".leader_epoch",
            "leader_id": ".leader_id",
            "preferred_successors": {
                0: (NODE_IDS, ".preferred_successors"),
                1: (CANDIDATES, ".preferred_candidates"),
            },
            "leader_endpoints": (ENDPOINTS, "leader_endpoints"),
        },
        not_negative=_invalid_request("epoch", "leader_id"),
        problem=_end_problem,
    ),
    ApiKey.FETCH_SNAPSHOT: Message(
        messages.FetchSnapshotRequest,
        fetch_snapshot.FetchSnapshotRequest,
        PartitionFields("topics", "name", "partition"),
        {
            "replica": (KEY, "replica_id", ".replica_directory_id"),
            "epoch": ".current_leader_epoch",
            "snapshot_id": (SNAPSHOT_ID, ".snapshot_id"),
            "position": ".position",
            "max_bytes": "max_bytes",
        },
        not_negative=_invalid_request("epoch", "max_bytes")
        | {
            "snapshot_id.epoch": WireCode.snapshot_not_found,
            "snapshot_id.end_offset": WireCode.snapshot_not_found,
            "position": WireCode.position_out_of_range,
        },
    ),
    ApiKey.ADD_RAFT_VOTER: Message(
        messages.AddVoterRequest,
        add_voter.AddRaftVoterRequest,
        None,
        {
            "voter": (VOTER, "voter_id", "voter_directory_id", "listeners"),
            "timeout_ms": (MILLISECONDS, "timeout"),
            "ack_when_committed": "ack_when_committed",
        },
        must_keep={"ack_when_committed": "the response would wait for the commit"},
        problem=lambda request, identity: _voter_problem(request.voter, identity),
    ),
    ApiKey.REMOVE_RAFT_VOTER: Message(
        messages.RemoveVoterRequest,
        remove_voter.RemoveRaftVoterRequest,
        None,
        {"voter": (KEY, "voter_id", "voter_directory_id")},
        problem=lambda request, _: _key_problem(request.voter),
    ),
    ApiKey.UPDATE_RAFT_VOTER: Message(
        messages.UpdateVoterRequest,
        update_voter.UpdateRaftVoterRequest,
        None,
        {
            "epoch": "current_leader_epoch",
            "voter": (
                VOTER_AND_LEVELS,
                "voter_id",
                "voter_directory_id",
                "listeners",
                "k_raft_version_feature.min_supported_version",
                "k_raft_version_feature.max_supported_version",
            ),
        },
        problem=_update_problem,
    ),
}
_RESPONSES: Final = {
    ApiKey.VOTE: Message(
        messages.VoteResponse,
        vote_response.VoteResponse,
        _BY_NAME,
        {
            "error": (ERROR, ".error_code"),
            "leader_and_epoch": _LEADER,
            "is_granted": ".vote_granted",
        },
    ),
    ApiKey.BEGIN_QUORUM_EPOCH: Message(
        messages.BeginQuorumEpochResponse,
        begin_epoch_response.BeginQuorumEpochResponse,
        _BY_NAME,
        {"error": (ERROR, ".error_code"), "leader_and_epoch": _LEADER},
    ),
    ApiKey.END_QUORUM_EPOCH: Message(
        messages.EndQuorumEpochResponse,
        end_epoch_response.EndQuorumEpochResponse,
        _BY_NAME,
        {"error": (ERROR, ".error_code"), "leader_and_epoch": _LEADER},
    ),
    ApiKey.FETCH_SNAPSHOT: Message(
        messages.FetchSnapshotResponse,
        fetch_snapshot_response.FetchSnapshotResponse,
        PartitionFields("topics", "name", "index"),
        {
            "error": (ERROR, ".error_code"),
            "snapshot_id": (SNAPSHOT_ID, ".snapshot_id"),
            "byte_count": ".size",
            "position": ".position",
            "data": ".unaligned_records",
            "leader_and_epoch": (LEADER, *_CURRENT_LEADER),
        },
        problem=_snapshot_problem,
    ),
    ApiKey.ADD_RAFT_VOTER: Message(
        messages.VoterChangeResponse, add_voter_response.AddRaftVoterResponse, None, _VOTER_CHANGE
    ),
    ApiKey.REMOVE_RAFT_VOTER: Message(
        messages.VoterChangeResponse,
        remove_voter_response.RemoveRaftVoterResponse,
        None,
        _VOTER_CHANGE,
    ),
    ApiKey.UPDATE_RAFT_VOTER: Message(
        messages.VoterChangeResponse,
        update_voter_response.UpdateRaftVoterResponse,
        None,
        {
            "error": (ERROR, "error_code"),
            "leader_and_epoch": (
                LEADER_AT,
                "current_leader.leader_id",
                "current_leader.leader_epoch",
                "current_leader.host",
                "current_leader.port",
            ),
        },
    ),
}
_API_KEYS: Final = {message.kind: key for key, message in _REQUESTS.items()} | {
    messages.FetchRequest: ApiKey.FETCH,
    messages.VersionsRequest: ApiKey.API_VERSIONS,
}
QUORUM_APIS: Final = frozenset((*_REQUESTS, ApiKey.FETCH))
"""APIs of requests between replicas."""


# --- Requests -------------------------------------------------------------------------------------


def request_api_key(request: messages.Request) -> ApiKey:
    """Return the API key of a request."""
    return _API_KEYS[type(request)]


def encode_request(request: messages.Request, version: int, identity: LogIdentity) -> bytes:
    """Return the body of a request in this version of its API, without a header.

    Raises ``UnsupportedFieldError``.
    """
    if isinstance(request, messages.VersionsRequest):
        return encode_versions_request(
            version, software=SOFTWARE, software_version=SOFTWARE_VERSION
        )
    if isinstance(request, messages.FetchRequest):
        return encode_fetch_request(version, _fetch_to_wire(request, identity))
    return _REQUESTS[request_api_key(request)].layout(version).encode(request, identity)


def decode_request(
    api_key: int,
    version: int,
    data: bytes,
    identity: LogIdentity,
    *,
    start: int = 0,
    decoded: FetchRequest | None = None,
) -> DecodedRequest:
    """Decode the body that begins at ``start``, or use ``decoded`` if it is given, and check it.

    The API must be ApiVersions or in ``QUORUM_APIS``. Invalid bytes raise
    ``MalformedMessageError``, and nothing else is raised.
    """
    key = ApiKey(api_key)
    if key is ApiKey.API_VERSIONS:
        decode_versions_request(version, data, start=start)
        return messages.VersionsRequest()
    if key is ApiKey.FETCH:
        fetch = decode_fetch_request(version, data, start=start) if decoded is None else decoded
        return _fetch_request(fetch, identity)
    message = _REQUESTS[key]
    request = decode_fields(message.schema, version, data, start=start)
    if request.cluster_id not in (None, identity.cluster_id):
        return _other_cluster(key)
    partition = _requested_partition(key, message.partition, request, identity)
    if isinstance(partition, RequestError):
        return partition
    layout = message.layout(version)
    found: messages.Request = layout.read(request, partition, None)
    error = layout.negative_error(found)
    problem = message.problem(found, identity) if error is None else _INVALID_VALUE
    if problem is None:
        return found
    return RequestError(
        api_key=key,
        error=WireCode.invalid_request if error is None else error,
        reason=problem,
        is_top_level=partition is None,
    )


def _other_cluster(key: ApiKey) -> RequestError:
    return RequestError(
        api_key=key,
        error=WireCode.inconsistent_cluster_id,
        reason="the request has the cluster id of another cluster",
    )


def _other_log(key: ApiKey) -> RequestError:
    return RequestError(
        api_key=key,
        error=WireCode.invalid_request,
        reason="the request is not for exactly this log",
    )


def _requested_partition(
    key: ApiKey, fields: PartitionFields | None, request: Any, identity: LogIdentity
) -> Any:
    """Return the request's partition, if its API has one; an error if it is not this log's."""
    if fields is None:
        return None
    found = fields.find(request)
    if found is not None and found[:2] == fields.expected(identity):
        return found[2]
    if found is None or key is not ApiKey.FETCH_SNAPSHOT:
        return _other_log(key)
    return RequestError(
        api_key=key,
        error=WireCode.unknown_topic_or_partition,
        reason="unknown topic or partition",
        is_top_level=False,
        topic=found[0],
        partition=found[1],
    )


# --- Fetch ----------------------------------------------------------------------------------------


def _fetch_to_wire(request: messages.FetchRequest, identity: LogIdentity) -> FetchRequest:
    """Return Kafka's request for this log."""
    partition = FetchPartition(
        PARTITION,
        request.epoch,
        request.fetch_offset,
        request.last_fetched_epoch,
        max_bytes=0,
        log_start_offset=or_minus_one(request.log_start_offset),
        directory_id=uuid_bytes(request.replica.directory_id),
        high_watermark=or_minus_one(request.high_watermark),
    )
    return FetchRequest(
        request.replica.node_id,
        request.max_wait_ms,
        min_bytes=0,
        max_bytes=request.max_bytes,
        isolation_level=0,
        session_id=0,
        session_epoch=-1,
        topics=[FetchTopic(uuid_bytes(identity.topic_id), identity.topic, [partition])],
        cluster_id=identity.cluster_id,
        rack=identity.rack,
    )


def _is_log(topic: FetchTopic | FetchedTopic, index: int, identity: LogIdentity) -> bool:
    """Return whether a topic, which has an id or a name, and a partition are the log's."""
    if topic.topic_id:
        return topic.topic_id == uuid_bytes(identity.topic_id) and index == PARTITION
    return topic.name == identity.topic and index == PARTITION


def _fetch_request(fetch: FetchRequest, identity: LogIdentity) -> DecodedRequest:
    """Return the request of a replica, or why it is refused."""
    if fetch.cluster_id not in (None, identity.cluster_id):
        return _other_cluster(ApiKey.FETCH)
    found = only_partition(fetch.topics)
    if found is None or not _is_log(found[0], found[1].partition, identity):
        return _other_log(ApiKey.FETCH)
    one: FetchPartition = found[1]
    epoch, offset, last_epoch = one.current_leader_epoch, one.fetch_offset, one.last_fetched_epoch
    if min(fetch.max_wait_ms, fetch.max_bytes, epoch, offset, last_epoch) < 0:
        return RequestError(
            api_key=ApiKey.FETCH,
            error=WireCode.invalid_request,
            reason=_INVALID_VALUE,
            is_top_level=False,
        )
    return messages.FetchRequest(
        replica=ReplicaKey(fetch.replica_id, id_text(one.directory_id)),
        epoch=epoch,
        fetch_offset=offset,
        last_fetched_epoch=last_epoch,
        max_bytes=fetch.max_bytes,
        max_wait_ms=fetch.max_wait_ms,
        high_watermark=None if one.high_watermark < 0 else one.high_watermark,
        log_start_offset=None if one.log_start_offset < 0 else one.log_start_offset,
    )


def _fetch_response_to_wire(
    response: messages.FetchResponse, version: int, identity: LogIdentity
) -> FetchResponse:
    """Return Kafka's response for this log. Records are null in a response with an error, a
    diverging epoch or a snapshot id (Kafka: ``RaftUtil``)."""
    leader_id, epoch, endpoints = leader_to_wire(response.leader_and_epoch, identity)
    diverging, snapshot = response.diverging, response.snapshot_id
    partition = FetchedPartition(
        PARTITION,
        response.error,
        or_minus_one(response.high_watermark),
        log_start_offset=or_minus_one(response.log_start_offset),
        records=None if response.error or diverging or snapshot else response.records,
        diverging=NO_END if diverging is None else (diverging.epoch, diverging.offset),
        leader=(leader_id, epoch),
        snapshot=NO_END if snapshot is None else (snapshot.epoch, snapshot.end_offset),
        compacted_offset=response.compacted_offset,
        tombstone_start_offset=response.tombstone_start_offset,
        remote_store_id=response.remote_store_id,
    )
    topic = FetchedTopic(uuid_bytes(identity.topic_id), identity.topic, [partition])
    return FetchResponse([topic], endpoints=endpoints if version >= _FETCH_ENDPOINTS_FROM else ())


def _fetch_response(response: FetchResponse, context: ResponseContext) -> DecodedResponse:
    """Return the response of a leader, or its error."""
    if response.error:
        return context.request_error(response.error, _ERROR_IN_RESPONSE, is_top_level=True)
    found = only_partition(response.topics)
    if found is None:
        context.fail(_NOT_ONE_PARTITION)
    if not _is_log(found[0], found[1].partition, context.identity):
        context.fail(_ANOTHER_LOG)
    one: FetchedPartition = found[1]
    if one.error not in CODES:
        return context.request_error(one.error, _ERROR_IN_RESPONSE, is_top_level=False)
    diverging, snapshot = _end_or_none(one.diverging, context), _end_or_none(one.snapshot, context)
    return messages.FetchResponse(
        leader_and_epoch=leader_from_wire(context, *one.leader, response.endpoints),
        error=CODES[one.error],
        high_watermark=None if one.high_watermark < 0 else one.high_watermark,
        log_start_offset=None if one.log_start_offset < 0 else one.log_start_offset,
        records=one.records or b"",
        compacted_offset=max(one.compacted_offset, 0),
        tombstone_start_offset=max(one.tombstone_start_offset, 0),
        remote_store_id=max(one.remote_store_id, 0),
        diverging=diverging,
        snapshot_id=None
        if snapshot is None
        else SnapshotId(epoch=snapshot.epoch, end_offset=snapshot.offset),
    )


def _end_or_none(end: tuple[int, int], context: ResponseContext) -> OffsetAndEpoch | None:
    """Return epoch and end offset; None if both are unset."""
    epoch, end_offset = end
    if epoch < 0 and end_offset < 0:
        return None
    if epoch < 0 or end_offset < 0:
        context.fail("epoch without end offset, or end offset without epoch")
    return OffsetAndEpoch(epoch=epoch, offset=end_offset)


# --- Responses ------------------------------------------------------------------------------------


def encode_response(
    api_key: int, version: int, response: messages.Response, identity: LogIdentity
) -> list[bytes]:
    """Return the parts of a response's body, without a header; records are a separate part.

    The response is to a request of this API and version. For ApiVersions use
    ``encode_versions_response``, whose result depends on the listener.
    """
    assert not isinstance(response, messages.VersionsResponse), "use encode_versions_response"
    if isinstance(response, messages.FetchResponse):
        found = _fetch_response_to_wire(response, version, identity)
        return encode_fetch_response(version, found)
    return [_RESPONSES[ApiKey(api_key)].layout(version).encode(response, identity)]


def encode_error_response(
    request_error: RequestError,
    version: int,
    leader_and_epoch: messages.LeaderAndEpoch,
    identity: LogIdentity,
) -> bytes:
    """Return the body of the error response to a request that was not passed to the replica."""
    key, error = request_error.api_key, WireCode(request_error.error)
    if key is ApiKey.FETCH:
        found = FetchResponse([], error)
        if not request_error.is_top_level:
            response = messages.FetchResponse(
                leader_and_epoch=leader_and_epoch, error=CODES[int(error)]
            )
            found = _fetch_response_to_wire(response, version, identity)
        return b"".join(encode_fetch_response(version, found))
    message = _RESPONSES[key]
    layout = message.layout(version)
    if request_error.is_top_level:
        return layout.encode_top_level_error(error, request_error.reason)
    assert message.partition is not None, f"{key.name} has only top-level errors"
    facts: dict[str, Any] = {"leader_and_epoch": leader_and_epoch, "error": error}
    if key is not ApiKey.FETCH_SNAPSHOT:
        return layout.encode(message.kind(**facts), identity)
    return layout.encode(
        message.kind(**facts, snapshot_id=SnapshotId(epoch=0, end_offset=0)),
        identity,
        request_error.topic,
        request_error.partition,
    )


def decode_response(
    api_key: int, version: int, data: bytes, identity: LogIdentity, *, start: int = 0
) -> DecodedResponse:
    """Decode the body, at ``start``, of the response to a request of this API and version.

    The API must be ApiVersions or in ``QUORUM_APIS``. Invalid bytes raise
    ``MalformedMessageError``, and nothing else is raised.
    """
    key = ApiKey(api_key)
    context = ResponseContext(key, version, identity, len(data))
    if key is ApiKey.API_VERSIONS:
        return _versions(decode_versions_response(version, data, start=start), context)
    if key is ApiKey.FETCH:
        return _fetch_response(decode_fetch_response(version, data, start=start), context)
    message = _RESPONSES[key]
    response = decode_fields(message.schema, version, data, start=start)
    code: WireCode = response.error_code
    partition = None
    if message.partition is not None:
        if code is not WireCode.none:
            return context.request_error(code, _ERROR_IN_RESPONSE, is_top_level=True)
        partition = _answered_partition(message.partition, response, context)
        code = partition.error_code
    if code not in CODES:
        reason = getattr(response, "error_message", None) or _ERROR_IN_RESPONSE
        return context.request_error(code, reason, is_top_level=partition is None)
    found: messages.Response = message.layout(version).read(response, partition, context)
    problem = message.problem(found, identity)
    return found if problem is None else context.fail(problem)


def _answered_partition(fields: PartitionFields, response: Any, context: ResponseContext) -> Any:
    """Return the response's partition, which must be this log's."""
    found = fields.find(response)
    if found is None:
        context.fail(_NOT_ONE_PARTITION)
    if found[:2] != fields.expected(context.identity):
        context.fail(_ANOTHER_LOG)
    return found[2]


def _versions(node_versions: NodeApiVersions, context: ResponseContext) -> DecodedResponse:
    if node_versions.error:
        return context.request_error(node_versions.error, _ERROR_IN_RESPONSE, is_top_level=True)
    levels = node_versions.kraft_versions
    if not 0 <= levels.first <= levels.last:
        context.fail("the levels of kraft.version are not a range")
    return messages.VersionsResponse(kraft_version_min=levels.first, kraft_version_max=levels.last)
