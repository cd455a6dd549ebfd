"""Requests of replicas <-> Kafka's requests, and refusals before a replica gets them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode
from tests.support.quorum_messages import IDENTITY, keys, requests, set_keys, voters
from tests.support.wire_vectors import message_vector

from raftlog.limits import VOTER_ENDPOINTS_MAX
from raftlog.node.addresses import parse_address
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
from raftlog.quorum.voters import Endpoint, Voter
from raftlog.types import CLUSTER_METADATA_TOPIC, CLUSTER_METADATA_TOPIC_ID, ReplicaKey, SnapshotId
from raftlog.wire import (
    APIS,
    ApiKey,
    Listener,
    LogIdentity,
    RequestError,
    decode_request,
    encode_request,
    request_api_key,
)
from raftlog.wire.errors import UnsupportedFieldError

METADATA = LogIdentity(
    topic=CLUSTER_METADATA_TOPIC, topic_id=CLUSTER_METADATA_TOPIC_ID, cluster_id="abc"
)
KEY = ReplicaKey(1, "AQIDBAUGBwgREhMUFRYXGA")
ENDPOINT = Endpoint("VOTERS", "a.example", 9093)
VOTER = Voter(key=KEY, endpoints=(ENDPOINT,))
EVER = 2**63 - 1


def on_the_wire(request: Request, version: int) -> Any:
    key = request_api_key(request)
    return decode_request(key, version, encode_request(request, version, IDENTITY), IDENTITY)


def newest(request: Request) -> int:
    return APIS[request_api_key(request)].versions.last


@given(requests)
def test_a_request_round_trips(request: Request) -> None:
    assert on_the_wire(request, newest(request)) == request


def is_expressible(request: Request, version: int) -> bool:
    """Return whether a version can express this request."""
    match request:
        case VoteRequest() if version < 2 and request.is_pre_vote:
            return False
        case VoteRequest() | BeginQuorumEpochRequest():
            voter = request.voter
            return version >= 1 or voter is None or voter == ReplicaKey(voter.node_id)
        case AddVoterRequest():
            return version >= 1 or request.ack_when_committed
        case _:
            return True


def in_version(request: Request, version: int) -> Request:
    """Return the part of a request that an old version can express."""
    match request:
        case VoteRequest() if version == 0:
            return replace(request, candidate=ReplicaKey(request.candidate.node_id), voter=None)
        case BeginQuorumEpochRequest() if version == 0:
            return replace(request, voter=None, leader_endpoints=())
        case EndQuorumEpochRequest() if version == 0:
            ids = tuple(ReplicaKey(key.node_id) for key in request.preferred_successors)
            return replace(request, preferred_successors=ids, leader_endpoints=())
        case FetchRequest() if version < 17:
            replica = ReplicaKey(request.replica.node_id)
            return replace(request, replica=replica, high_watermark=EVER)
        case FetchRequest() if version < 18:
            return replace(request, high_watermark=EVER)
        case FetchSnapshotRequest() if version == 0:
            return replace(request, replica=ReplicaKey(request.replica.node_id))
        case _:
            return request


@given(requests, st.data())
def test_an_old_version_sends_the_fields_it_has(request: Request, data: st.DataObject) -> None:
    served = APIS[request_api_key(request)].on(Listener.VOTERS)
    assert served is not None
    version = data.draw(st.integers(served.first, served.last))
    if is_expressible(request, version):
        assert on_the_wire(request, version) == in_version(request, version)
    else:
        with pytest.raises(UnsupportedFieldError):
            on_the_wire(request, version)


def test_kafkas_fetch_of_a_follower_is_decoded() -> None:
    data = message_vector("Fetch replica 1001", 17)
    request = decode_request(ApiKey.FETCH, 17, data, METADATA)
    assert request == FetchRequest(
        replica=ReplicaKey(1001),
        epoch=5,
        fetch_offset=100,
        last_fetched_epoch=4,
        max_bytes=1024 * 1024,
        max_wait_ms=500,
        high_watermark=EVER,
    )
    assert encode_request(request, 17, METADATA) == data


@pytest.mark.parametrize(
    ("api_key", "name", "version"),
    [
        (ApiKey.FETCH, "Fetch", 18),
        (ApiKey.FETCH_SNAPSHOT, "FetchSnapshot", 1),
        (ApiKey.VOTE, "Vote", 2),
    ],
)
def test_kafkas_requests_round_trip(api_key: ApiKey, name: str, version: int) -> None:
    data = message_vector(name, version)
    request = decode_request(api_key, version, data, METADATA)
    assert not isinstance(request, RequestError)
    assert encode_request(request, version, METADATA) == data


def test_an_unknown_high_watermark_is_distinguished_from_an_omitted_one() -> None:
    request = FetchRequest(
        replica=KEY, epoch=1, fetch_offset=0, last_fetched_epoch=0, max_bytes=1, max_wait_ms=0
    )
    assert on_the_wire(request, 18).high_watermark is None
    assert on_the_wire(request, 17).high_watermark == EVER


@given(requests.filter(lambda one: not isinstance(one, VersionsRequest)))
def test_a_request_for_another_cluster_is_refused_as_a_whole(request: Request) -> None:
    version = newest(request)
    elsewhere = replace(IDENTITY, cluster_id="other")
    data = encode_request(request, version, elsewhere)
    refusal = decode_request(request_api_key(request), version, data, IDENTITY)
    assert isinstance(refusal, RequestError)
    assert (refusal.error, refusal.is_top_level) == (ErrorCode.inconsistent_cluster_id, True)


def test_a_request_without_a_cluster_is_for_any() -> None:
    data = message_vector("Fetch discover", 17)
    elsewhere = replace(METADATA, cluster_id="other")
    assert isinstance(decode_request(ApiKey.FETCH, 17, data, elsewhere), FetchRequest)


VOTE = VoteRequest(epoch=3, candidate=KEY, voter=KEY, last_offset=9, last_epoch=2)
BEGIN = BeginQuorumEpochRequest(epoch=3, leader_id=1, voter=None)
END = EndQuorumEpochRequest(epoch=3, leader_id=1, preferred_successors=(KEY,))
FETCH = FetchRequest(
    replica=KEY, epoch=3, fetch_offset=9, last_fetched_epoch=2, max_bytes=1, max_wait_ms=1
)
SNAPSHOT = FetchSnapshotRequest(
    replica=KEY, epoch=3, snapshot_id=SnapshotId(epoch=2, end_offset=9), position=0, max_bytes=1
)


@pytest.mark.parametrize("request_", [VOTE, BEGIN, END, FETCH], ids=lambda one: type(one).__name__)
def test_a_request_for_another_log_is_refused_as_a_whole(request_: Request) -> None:
    elsewhere = replace(IDENTITY, topic="other", topic_id="AAAAAAAAAAAAAAAAAAAAAQ")
    data = encode_request(request_, newest(request_), elsewhere)
    refusal = decode_request(request_api_key(request_), newest(request_), data, IDENTITY)
    assert isinstance(refusal, RequestError)
    assert (refusal.error, refusal.is_top_level) == (ErrorCode.invalid_request, True)


def test_a_snapshot_of_another_log_is_an_unknown_partition() -> None:
    data = encode_request(SNAPSHOT, 1, replace(IDENTITY, topic="other"))
    refusal = decode_request(ApiKey.FETCH_SNAPSHOT, 1, data, IDENTITY)
    assert isinstance(refusal, RequestError)
    assert refusal.error == ErrorCode.unknown_topic_or_partition
    assert (refusal.topic, refusal.partition, refusal.is_top_level) == ("other", 0, False)


@pytest.mark.parametrize(
    ("request_", "error", "is_top_level"),
    [
        (replace(VOTE, last_offset=-1), 42, False),
        (replace(VOTE, last_epoch=-1), 42, False),
        (replace(VOTE, epoch=-1), 42, False),
        (replace(VOTE, candidate=ReplicaKey(-1)), 42, False),
        (replace(BEGIN, epoch=-1), 42, False),
        (replace(BEGIN, leader_id=-1), 42, False),
        (replace(END, epoch=-1), 42, False),
        (replace(END, leader_id=-1), 42, False),
        (replace(END, preferred_successors=(ReplicaKey(-1),)), 42, False),
        (replace(FETCH, fetch_offset=-1), 42, False),
        (replace(FETCH, last_fetched_epoch=-1), 42, False),
        (replace(FETCH, epoch=-1), 42, False),
        (replace(FETCH, max_wait_ms=-1), 42, False),
        (replace(FETCH, max_bytes=-1), 42, False),
        (replace(SNAPSHOT, max_bytes=-1), 42, False),
        (replace(SNAPSHOT, epoch=-1), 42, False),
        (replace(SNAPSHOT, position=-1), 99, False),
        (replace(SNAPSHOT, snapshot_id=SnapshotId(epoch=-1, end_offset=9)), 98, False),
        (replace(SNAPSHOT, snapshot_id=SnapshotId(epoch=2, end_offset=-1)), 98, False),
        (RemoveVoterRequest(voter=ReplicaKey(-1, KEY.directory_id)), 42, True),
        (RemoveVoterRequest(voter=ReplicaKey(1)), 42, True),
        (UpdateVoterRequest(epoch=-1, voter=VOTER), 42, True),
        (UpdateVoterRequest(epoch=1, voter=replace(VOTER, kraft_version_min=2)), 42, True),
    ],
)
def test_invalid_numbers_are_refused(request_: Request, error: int, is_top_level: bool) -> None:
    refusal = on_the_wire(request_, newest(request_))
    assert isinstance(refusal, RequestError)
    assert (refusal.error, refusal.is_top_level) == (error, is_top_level)


CLIENTS = Endpoint("CLIENTS", "a.example", 9092)
ESCAPES = "evil.example\x1b]0;pwned\x07"
MANY = tuple(Endpoint(f"L{at}", "a.example", 1) for at in range(VOTER_ENDPOINTS_MAX + 1))
INVALID_ENDPOINTS = (
    (replace(ENDPOINT, host=ESCAPES),),
    (replace(ENDPOINT, host=""),),
    (replace(ENDPOINT, host="a b"),),
    (replace(ENDPOINT, host="a.example\n"),),
    (replace(ENDPOINT, host="[::1]"),),
    (replace(ENDPOINT, host="fe80::1%\x1b"),),
    (replace(ENDPOINT, host="a" * 256),),
    (replace(ENDPOINT, port=0),),
    (ENDPOINT, replace(CLIENTS, name="")),
    (ENDPOINT, replace(CLIENTS, name="\x1b")),
    (ENDPOINT, replace(CLIENTS, name="C" * 65)),
    (ENDPOINT, replace(ENDPOINT, port=1)),
    (ENDPOINT, *MANY),
)
INVALID_VOTERS = (
    Voter(key=ReplicaKey(-1, KEY.directory_id), endpoints=(ENDPOINT,)),
    Voter(key=ReplicaKey(1), endpoints=(ENDPOINT,)),
    Voter(key=KEY),
    Voter(key=KEY, endpoints=(CLIENTS,)),
    *(Voter(key=KEY, endpoints=found) for found in INVALID_ENDPOINTS),
)


@pytest.mark.parametrize("voter", INVALID_VOTERS)
def test_a_voter_with_an_invalid_id_or_endpoint_is_refused(voter: Voter) -> None:
    """Kafka: KafkaRaftClient.handleAddVoterRequest and handleUpdateVoterRequest."""
    changes = (
        AddVoterRequest(voter=voter, timeout_ms=1),
        UpdateVoterRequest(epoch=1, voter=voter),
    )
    for request in changes:
        refusal = on_the_wire(request, newest(request))
        assert isinstance(refusal, RequestError)
        assert (refusal.error, refusal.is_top_level) == (42, True)
        assert refusal.reason.isprintable()


@pytest.mark.parametrize("endpoints", INVALID_ENDPOINTS)
def test_invalid_endpoints_of_a_leader_are_refused(endpoints: tuple[Endpoint, ...]) -> None:
    for request in (
        replace(BEGIN, leader_endpoints=endpoints),
        replace(END, leader_endpoints=endpoints),
    ):
        refusal = on_the_wire(request, newest(request))
        assert isinstance(refusal, RequestError)
        assert (refusal.error, refusal.is_top_level) == (42, False)


@pytest.mark.parametrize(
    "address",
    ["log-1:9093", "my_node.example.:9093", "10.0.0.1:9093", "[::1]:1", "[fe80::1%eth0]:1"],
)
def test_peers_accept_every_address_that_a_nodes_file_may_have(address: str) -> None:
    endpoint = Endpoint("VOTERS", *parse_address(address))
    begin = replace(BEGIN, leader_endpoints=(endpoint,))
    assert on_the_wire(begin, newest(begin)) == begin
    update = UpdateVoterRequest(epoch=1, voter=Voter(key=KEY, endpoints=(endpoint,)))
    assert on_the_wire(update, newest(update)) == update


@pytest.mark.parametrize(
    "host", ["[fe80::1%\x1b]", "[fe80::1%]", "[10.0.0.1]", "[a.example]", "[]"]
)
def test_a_nodes_file_has_no_host_that_peers_refuse(host: str) -> None:
    with pytest.raises(ValueError, match="the host is not an IPv6 address"):
        parse_address(f"{host}:9093")


@given(keys)
def test_a_pre_vote_needs_version_two(candidate: ReplicaKey) -> None:
    request = replace(VOTE, candidate=candidate, is_pre_vote=True)
    with pytest.raises(UnsupportedFieldError) as caught:
        encode_request(request, 1, IDENTITY)
    assert (caught.value.field, caught.value.kafka_code) == ("pre_vote", 35)


@given(set_keys)
def test_a_voter_with_a_directory_id_needs_version_one(voter: ReplicaKey) -> None:
    for request in (replace(VOTE, voter=voter), replace(BEGIN, voter=voter)):
        with pytest.raises(UnsupportedFieldError, match="another directory id") as caught:
            encode_request(request, 0, IDENTITY)
        assert caught.value.field == "voter_directory_id"


@given(voters)
def test_an_early_acknowledgement_needs_version_one(voter: Voter) -> None:
    request = AddVoterRequest(voter=voter, timeout_ms=1, ack_when_committed=False)
    with pytest.raises(UnsupportedFieldError):
        encode_request(request, 0, IDENTITY)


def test_an_invalid_value_of_a_field_is_a_local_error() -> None:
    wrong = replace(BEGIN, leader_endpoints=(Endpoint("VOTERS", "h", 70_000),))
    with pytest.raises(UnsupportedFieldError) as caught:
        encode_request(wrong, 1, IDENTITY)
    assert caught.value.field == "port"
