"""Fetch by hand, and by the general codec with kio's classes: the same values and bytes."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import islice
from typing import Any, Final
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.hostile_bytes import mutations
from tests.support.wire_messages import random_message
from tests.support.wire_vectors import message_vectors

from raftlog.wire import LeaderEndpoint, decode, encode, latest_schemas
from raftlog.wire.errors import MalformedMessageError, UnsupportedFieldError
from raftlog.wire.fetch_codec import (
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
from raftlog.wire.log_identity import milliseconds

VERSIONS: Final = range(4, 19)
REQUEST: Final = latest_schemas.FetchRequest
RESPONSE: Final = latest_schemas.FetchResponse


def id_bytes(value: UUID | None) -> bytes:
    return (value or UUID(int=0)).bytes


def topic_id(topic: Any, version: int) -> bytes:
    return id_bytes(topic.topic_id) if version >= 13 else b""


def same_request(message: Any, version: int) -> FetchRequest:
    """Return a message of kio's class as that of the codec by hand."""
    state = message.replica_state
    topics = [
        FetchTopic(
            topic_id(topic, version),
            topic.topic,
            [
                FetchPartition(
                    one.partition,
                    one.current_leader_epoch,
                    one.fetch_offset,
                    one.last_fetched_epoch,
                    one.partition_max_bytes,
                    one.log_start_offset,
                    id_bytes(one.replica_directory_id),
                    one.high_watermark,
                )
                for one in topic.partitions
            ],
        )
        for topic in message.topics
    ]
    return FetchRequest(
        state.replica_id if version >= 15 else message.replica_id,
        milliseconds(message.max_wait),
        message.min_bytes,
        message.max_bytes,
        message.isolation_level,
        message.session_id,
        message.session_epoch,
        topics,
        message.cluster_id,
        state.replica_epoch if version >= 15 else -1,
        message.rack_id,
    )


def same_response(message: Any, version: int) -> FetchResponse:
    """Return a message of kio's class as that of the codec by hand."""
    topics = [
        FetchedTopic(
            topic_id(topic, version),
            topic.topic,
            [
                FetchedPartition(
                    one.partition_index,
                    int(one.error_code),
                    one.high_watermark,
                    one.last_stable_offset,
                    one.log_start_offset,
                    None
                    if one.aborted_transactions is None
                    else tuple(
                        (pair.producer_id, pair.first_offset) for pair in one.aborted_transactions
                    ),
                    one.preferred_read_replica,
                    one.records,
                    (one.diverging_epoch.epoch, one.diverging_epoch.end_offset),
                    (one.current_leader.leader_id, one.current_leader.leader_epoch),
                    (one.snapshot_id.epoch, one.snapshot_id.end_offset),
                    one.compacted_offset,
                    one.tombstone_start_offset,
                    one.remote_store_id,
                )
                for one in topic.partitions
            ],
        )
        for topic in message.responses
    ]
    endpoints = [LeaderEndpoint(one.node_id, one.host, one.port) for one in message.node_endpoints]
    throttle_ms = milliseconds(message.throttle_time)
    return FetchResponse(
        topics, int(message.error_code), message.session_id, endpoints or (), throttle_ms
    )


def is_same(found: FetchResponse, expected: FetchResponse) -> bool:
    return found._replace(endpoints=tuple(found.endpoints)) == expected._replace(
        endpoints=tuple(expected.endpoints)
    )


@given(st.sampled_from(VERSIONS), st.integers(0, 2**64))
def test_requests_are_decoded_and_encoded_as_by_kios_classes(version: int, seed: int) -> None:
    message = random_message(REQUEST, version, random.Random(seed))
    data = encode(message, version)
    request = decode_fetch_request(version, b"head" + data, start=4)
    assert request == same_request(decode(REQUEST, version, data), version)
    plain = replace(message, forgotten_topics_data=())
    assert encode_fetch_request(version, request) == encode(plain, version)


@given(st.sampled_from(VERSIONS), st.integers(0, 2**64))
def test_responses_are_decoded_and_encoded_as_by_kios_classes(version: int, seed: int) -> None:
    message = random_message(RESPONSE, version, random.Random(seed))
    data = encode(message, version)
    response = decode_fetch_response(version, b"head" + data, start=4)
    assert is_same(response, same_response(decode(RESPONSE, version, data), version))
    endpoints = tuple(replace(one, rack=None) for one in message.node_endpoints)
    plain = replace(message, node_endpoints=endpoints)
    assert b"".join(encode_fetch_response(version, response)) == encode(plain, version)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("kind", [REQUEST, RESPONSE], ids=["request", "response"])
def test_bytes_are_malformed_exactly_if_they_are_for_kios_classes(kind: Any, version: int) -> None:
    rng = random.Random(version)
    refused = 0
    for _ in range(20):
        message = random_message(kind, version, rng)
        for data in islice(mutations(encode(message, version), rng), 60):
            try:
                oracle = decode(kind, version, data, may_trail=kind is REQUEST)
            except MalformedMessageError:
                refused += 1
                with pytest.raises(MalformedMessageError):
                    _decoded(kind, version, data)
                continue
            if kind is RESPONSE:
                found = _decoded(kind, version, data)
                assert is_same(found, same_response(oracle, version))
                continue
            expected = same_request(oracle, version)
            try:
                assert _decoded(kind, version, data) == expected
            except MalformedMessageError:  # trailing bytes of a replica
                refused += 1
                assert expected.replica_id >= 0
                with pytest.raises(MalformedMessageError):
                    decode(kind, version, data)
    assert refused


def _decoded(kind: Any, version: int, data: bytes) -> Any:
    is_request = kind is REQUEST
    return (decode_fetch_request if is_request else decode_fetch_response)(version, data)


@pytest.mark.parametrize("version", VERSIONS)
def test_bytes_after_the_request_of_a_consumer_are_ignored(version: int) -> None:
    request = FetchRequest(-1, 500, 1, 1 << 20, 1, 0, -1, [])
    data = encode_fetch_request(version, request)
    assert decode_fetch_request(version, data + b"tail") == request
    of_replica = encode_fetch_request(version, request._replace(replica_id=3))
    with pytest.raises(MalformedMessageError, match="4 bytes remain"):
        decode_fetch_request(version, of_replica + b"tail")


@pytest.mark.parametrize(
    "vector",
    [one for one in message_vectors() if one.kind.__name__ in ("FetchRequest", "FetchResponse")],
    ids=lambda one: f"{one.name} {one.version}",
)
def test_kafkas_messages_are_decoded(vector: Any) -> None:
    if vector.kind.__name__ == "FetchRequest":
        message = decode(REQUEST, vector.version, vector.data)
        found = decode_fetch_request(vector.version, vector.data)
        assert found == same_request(message, vector.version)
        return
    response = decode_fetch_response(vector.version, vector.data)
    expected = same_response(decode(RESPONSE, vector.version, vector.data), vector.version)
    assert is_same(response, expected)
    assert b"".join(encode_fetch_response(vector.version, response)) == vector.data


@pytest.mark.parametrize("text", ["x" * 40_000, "\ud800"])
def test_a_text_that_a_message_cannot_have_is_refused(text: str) -> None:
    with pytest.raises(UnsupportedFieldError, match="topic"):
        encode_fetch_response(12, FetchResponse([FetchedTopic(b"", text, [])]))
    with pytest.raises(UnsupportedFieldError, match="cluster_id"):
        encode_fetch_request(18, FetchRequest(3, 0, 0, 0, 0, 0, -1, [], text))
