"""Responses of replicas <-> Kafka's responses, including errors."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode as WireCode
from kio.schema.fetch.v18 import response as fetched
from kio.schema.vote.v2.response import VoteResponse as WireVoteResponse
from tests.support.quorum_messages import (
    IDENTITY,
    PartitionResponse,
    errors,
    leaders,
    partition_responses,
    standings,
    voter_changes,
)
from tests.support.wire_vectors import message_vector

from raftlog.quorum.messages import (
    BeginQuorumEpochResponse,
    EndQuorumEpochResponse,
    ErrorCode,
    FetchResponse,
    FetchSnapshotResponse,
    LeaderAndEpoch,
    VersionsResponse,
    VoterChangeResponse,
    VoteResponse,
)
from raftlog.quorum.voters import Endpoint
from raftlog.types import CLUSTER_METADATA_TOPIC, CLUSTER_METADATA_TOPIC_ID, SnapshotId
from raftlog.wire import (
    APIS,
    QUORUM_APIS,
    ApiKey,
    Listener,
    LogIdentity,
    RequestError,
    decode,
    decode_response,
    encode,
    encode_error_response,
    encode_response,
)
from raftlog.wire.errors import MalformedMessageError

METADATA = LogIdentity(
    topic=CLUSTER_METADATA_TOPIC, topic_id=CLUSTER_METADATA_TOPIC_ID, cluster_id="abc"
)
LEADER = LeaderAndEpoch(
    epoch=4, leader_id=2, leader_endpoints=(Endpoint("VOTERS", "b.example", 9093),)
)
KEYS: dict[type[Any], ApiKey] = {
    VoteResponse: ApiKey.VOTE,
    BeginQuorumEpochResponse: ApiKey.BEGIN_QUORUM_EPOCH,
    EndQuorumEpochResponse: ApiKey.END_QUORUM_EPOCH,
    FetchResponse: ApiKey.FETCH,
    FetchSnapshotResponse: ApiKey.FETCH_SNAPSHOT,
}
VERSIONS = [
    (key, version)
    for key in sorted(QUORUM_APIS)
    if (served := APIS[key].on(Listener.VOTERS)) is not None
    for version in range(served.first, served.last + 1)
]


@given(partition_responses)
def test_a_response_round_trips(response: PartitionResponse) -> None:
    key = KEYS[type(response)]
    version = APIS[key].versions.last
    data = b"".join(encode_response(key, version, response, IDENTITY))
    assert decode_response(key, version, data, IDENTITY) == response


@given(partition_responses, st.data())
def test_an_old_version_omits_the_endpoints_of_a_leader(
    response: PartitionResponse, data: st.DataObject
) -> None:
    key = KEYS[type(response)]
    served = APIS[key].on(Listener.VOTERS)
    assert served is not None
    version = data.draw(st.integers(served.first, served.last - 1))
    body = b"".join(encode_response(key, version, response, IDENTITY))
    decoded = decode_response(key, version, body, IDENTITY)
    assert not isinstance(decoded, RequestError)
    if not (key is ApiKey.FETCH and version >= 17) and not (key is ApiKey.VOTE and version == 1):
        response = replace(
            response, leader_and_epoch=replace(response.leader_and_epoch, leader_endpoints=())
        )
    assert decoded == response


@given(voter_changes, st.sampled_from([ApiKey.ADD_RAFT_VOTER, ApiKey.REMOVE_RAFT_VOTER]))
def test_a_response_about_a_voter_has_a_reason_and_no_leader(
    response: VoterChangeResponse, key: ApiKey
) -> None:
    data = b"".join(encode_response(key, 0, response, IDENTITY))
    assert decode_response(key, 0, data, IDENTITY) == replace(
        response, leader_and_epoch=LeaderAndEpoch(epoch=0)
    )


@given(voter_changes)
def test_a_response_to_an_update_has_a_leader_and_no_reason(response: VoterChangeResponse) -> None:
    data = b"".join(encode_response(ApiKey.UPDATE_RAFT_VOTER, 0, response, IDENTITY))
    decoded = decode_response(ApiKey.UPDATE_RAFT_VOTER, 0, data, IDENTITY)
    assert decoded == replace(response, reason=None)


@pytest.mark.parametrize("name", ["FetchResponse fenced", "FetchResponse snapshot"])
def test_kafkas_responses_round_trip(name: str) -> None:
    data = message_vector(name, 17)
    response = decode_response(ApiKey.FETCH, 17, data, METADATA)
    assert not isinstance(response, RequestError)
    assert b"".join(encode_response(ApiKey.FETCH, 17, response, METADATA)) == data


def test_the_content_of_kafkas_responses_is_decoded() -> None:
    data = message_vector("FetchResponse fenced", 17)
    assert decode_response(ApiKey.FETCH, 17, data, METADATA) == FetchResponse(
        leader_and_epoch=LeaderAndEpoch(epoch=9, leader_id=3),
        error=ErrorCode.FENCED_LEADER_EPOCH,
        log_start_offset=0,
    )
    data = message_vector("FetchResponse snapshot", 17)
    assert decode_response(ApiKey.FETCH, 17, data, METADATA) == FetchResponse(
        leader_and_epoch=LeaderAndEpoch(epoch=9, leader_id=3),
        high_watermark=200,
        log_start_offset=100,
        snapshot_id=SnapshotId(epoch=8, end_offset=150),
    )


@pytest.mark.parametrize(("key", "version"), VERSIONS)
def test_the_refusal_of_a_whole_request_has_a_response(key: ApiKey, version: int) -> None:
    refusal = RequestError(api_key=key, error=WireCode.inconsistent_cluster_id, reason="why")
    data = encode_error_response(refusal, version, LEADER, IDENTITY)
    decoded = decode_response(key, version, data, IDENTITY)
    assert isinstance(decoded, RequestError)
    assert (decoded.error, decoded.is_top_level) == (104, True)


@given(st.sampled_from([one for one in VERSIONS if one[0] in KEYS.values()]), errors, standings)
def test_the_refusal_of_a_partition_names_the_leader(
    message: tuple[ApiKey, int], error: ErrorCode, leader_and_epoch: LeaderAndEpoch
) -> None:
    key, version = message
    refusal = RequestError(api_key=key, error=error, reason="why", is_top_level=False)
    decoded = decode_response(
        key, version, encode_error_response(refusal, version, leader_and_epoch, IDENTITY), IDENTITY
    )
    assert not isinstance(decoded, RequestError | VersionsResponse)
    assert decoded.error is error
    assert decoded.leader_and_epoch.leader_id == leader_and_epoch.leader_id
    assert decoded.leader_and_epoch.epoch == leader_and_epoch.epoch


def test_an_unknown_partition_is_answered_by_its_name() -> None:
    refusal = RequestError(
        api_key=ApiKey.FETCH_SNAPSHOT,
        error=WireCode.unknown_topic_or_partition,
        reason="why",
        is_top_level=False,
        topic="other",
        partition=7,
    )
    data = encode_error_response(refusal, 1, LEADER, IDENTITY)
    with pytest.raises(MalformedMessageError, match="about another log"):
        decode_response(ApiKey.FETCH_SNAPSHOT, 1, data, IDENTITY)
    assert b"other" in data


@given(leaders)
def test_a_leaders_endpoint_is_that_of_the_requested_listener(
    leader_and_epoch: LeaderAndEpoch,
) -> None:
    others = (Endpoint("CLIENTS", "elsewhere", 1), *leader_and_epoch.leader_endpoints)
    response = VoteResponse(leader_and_epoch=replace(leader_and_epoch, leader_endpoints=others))
    data = b"".join(encode_response(ApiKey.VOTE, 2, response, IDENTITY))
    assert b"elsewhere" not in data
    decoded = decode_response(ApiKey.VOTE, 2, data, IDENTITY)
    assert isinstance(decoded, VoteResponse)
    assert decoded.leader_and_epoch == leader_and_epoch


def test_an_error_unknown_to_replicas_is_a_request_error() -> None:
    response = VoteResponse(leader_and_epoch=LEADER)
    message = decode(
        WireVoteResponse, 2, b"".join(encode_response(ApiKey.VOTE, 2, response, IDENTITY))
    )
    (topic,) = message.topics
    (partition,) = topic.partitions
    denied = replace(partition, error_code=WireCode.cluster_authorization_failed)
    changed = replace(message, topics=(replace(topic, partitions=(denied,)),))
    decoded = decode_response(ApiKey.VOTE, 2, encode(changed, 2), IDENTITY)
    assert isinstance(decoded, RequestError)
    assert (decoded.error, decoded.is_top_level) == (31, False)


def _fetched(**changes: Any) -> bytes:
    response = FetchResponse(leader_and_epoch=LEADER, records=b"abc")
    data = b"".join(encode_response(ApiKey.FETCH, 18, response, IDENTITY))
    message = decode(fetched.FetchResponse, 18, data)
    (topic,) = message.responses
    (partition,) = topic.partitions
    topics = (replace(topic, partitions=(replace(partition, **changes),)),)
    return encode(replace(message, responses=topics), 18)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"partition_index": 1}, "another log"),
        ({"diverging_epoch": fetched.EpochEndOffset(epoch=3)}, "epoch without end offset"),  # type: ignore[arg-type]
        ({"snapshot_id": fetched.SnapshotId(end_offset=3)}, "end offset without epoch"),  # type: ignore[arg-type]
    ],
)
def test_a_contradictory_response_is_malformed(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(MalformedMessageError, match=words):
        decode_response(ApiKey.FETCH, 18, _fetched(**changes), IDENTITY)


def test_an_invalid_port_is_malformed() -> None:
    data = b"".join(
        encode_response(ApiKey.FETCH, 18, FetchResponse(leader_and_epoch=LEADER), IDENTITY)
    )
    message = decode(fetched.FetchResponse, 18, data)
    (endpoint,) = message.node_endpoints
    wrong = replace(
        message,
        node_endpoints=(replace(endpoint, port=70_000),),  # type: ignore[arg-type]
    )
    with pytest.raises(MalformedMessageError, match="port is out of range"):
        decode_response(ApiKey.FETCH, 18, encode(wrong, 18), IDENTITY)
