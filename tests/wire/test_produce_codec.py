"""Produce by hand, and by the general codec with kio's classes: the same values and bytes."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import islice, product
from typing import Any, Final
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode
from kio.schema.produce.v13 import response as responses
from kio.schema.types import BrokerId, TopicName
from kio.static.primitive import i32, i64
from tests.support.both_implementations import in_each
from tests.support.hostile_bytes import mutations
from tests.support.wire_messages import random_message
from tests.support.wire_vectors import message_vectors

from raftlog.wire import (
    LeaderEndpoint,
    ProducedBatch,
    ProducedTopic,
    ProduceRequest,
    ProduceResponse,
    ProduceResult,
    decode,
    decode_produce_request,
    decode_produce_response,
    encode,
    encode_produce_request,
    encode_produce_response,
    latest_schemas,
)
from raftlog.wire.errors import MalformedMessageError, UnsupportedFieldError
from raftlog.wire.log_identity import duration, milliseconds

VERSIONS: Final = range(3, 14)
_NUMBERS: Final = (0, -1, 1, 2**31 - 1, -(2**31))
_TEXTS: Final = (None, "", "a", "ü" * 70, "x" * 200)


def same(message: Any, version: int) -> ProduceRequest:
    """Return a message of kio's class as that of the codec by hand."""
    topics = [
        ProducedTopic(
            (topic.topic_id or UUID(int=0)).bytes if version >= 13 else b"",
            topic.name,
            [ProducedBatch(one.index, one.records) for one in topic.partition_data],
        )
        for topic in message.topic_data
    ]
    timeout_ms = milliseconds(message.timeout)
    return ProduceRequest(message.transactional_id, message.acks, timeout_ms, topics)


@given(st.sampled_from(VERSIONS), st.integers(0, 2**64))
def test_requests_are_decoded_as_by_kios_classes(version: int, seed: int) -> None:
    message = random_message(latest_schemas.ProduceRequest, version, random.Random(seed))
    data = encode(message, version)
    expected = same(decode(latest_schemas.ProduceRequest, version, data), version)
    assert outcomes(version, data) == {str(expected)}
    assert outcomes(version, b"head" + data + b"tail", start=4) == {str(expected)}


def outcomes(version: int, data: bytes, start: int = 0) -> set[str]:
    """Return the request, or the error, of each implementation."""

    def outcome() -> str:
        try:
            return str(decode_produce_request(version, data, start=start))
        except MalformedMessageError as error:
            return str(error)

    return set(in_each(outcome))


@pytest.mark.parametrize("version", VERSIONS)
def test_bytes_are_malformed_exactly_if_they_are_for_kios_classes(version: int) -> None:
    rng = random.Random(version)
    refused = 0
    for _ in range(20):
        message = random_message(latest_schemas.ProduceRequest, version, rng)
        for data in islice(mutations(encode(message, version), rng), 60):
            try:
                oracle = decode(latest_schemas.ProduceRequest, version, data, may_trail=True)
            except MalformedMessageError:
                refused += 1
                (found,) = outcomes(version, data)
                assert not found.startswith("ProduceRequest(")
            else:
                assert outcomes(version, data) == {str(same(oracle, version))}
    assert refused


@pytest.mark.parametrize("version", [9, 12, 13])
def test_mutated_requests_of_one_batch_are_decoded_alike(version: int) -> None:
    rng = random.Random(version)
    refused = 0
    for name, records in product(("raftlog", "é" * 70, ""), (b"", b"r" * 9, bytes(300), None)):
        topic_id, name = (rng.randbytes(16), "") if version >= 13 else (b"", name)
        topics = [ProducedTopic(topic_id, name, [ProducedBatch(rng.choice(_NUMBERS), records)])]
        request = ProduceRequest(None, rng.choice((-1, 0, 1)), rng.choice(_NUMBERS), topics)
        data = encode_produce_request(version, request)
        assert outcomes(version, data) == {str(request)}
        for cut in range(len(data)):
            assert len(outcomes(version, data[:cut])) == 1, cut
        for mutated in islice(mutations(data, rng), 200):
            (found,) = outcomes(version, mutated)
            refused += not found.startswith("ProduceRequest(")
    assert 0 < refused < 2_400


def random_result(rng: random.Random, partition: int) -> ProduceResult:
    return ProduceResult(
        partition,
        int(rng.choice(list(ErrorCode))),
        rng.choice((-1, 0, 2**63 - 1)),
        rng.choice((-1, 0, 2**40)),
        rng.choice(_TEXTS),
        rng.choice((-1, 0, 7)),
        rng.choice(_NUMBERS),
    )


def as_kio(
    request: ProduceRequest, results: list[ProduceResult], endpoints: list[LeaderEndpoint]
) -> Any:
    """Return a response of kio's class."""
    left = iter(results)
    topics = []
    for topic in request.topics:
        partitions = []
        for _ in topic.batches:
            one = next(left)
            leader = responses.LeaderIdAndEpoch(
                leader_id=BrokerId(one.leader_id), leader_epoch=i32(one.leader_epoch)
            )
            partitions.append(
                responses.PartitionProduceResponse(
                    index=i32(one.partition),
                    error_code=ErrorCode(one.error),
                    base_offset=i64(one.base_offset),
                    log_append_time=None,
                    log_start_offset=i64(one.log_start_offset),
                    record_errors=(),
                    error_message=one.message,
                    current_leader=leader,
                )
            )
        topics.append(
            latest_schemas.ProducedTopic(
                topic_id=UUID(bytes=topic.topic_id) if topic.topic_id else None,
                name=TopicName(topic.name),
                partition_responses=tuple(partitions),
            )
        )
    found = tuple(
        responses.NodeEndpoint(node_id=BrokerId(one.node_id), host=one.host, port=i32(one.port))
        for one in endpoints
    )
    return latest_schemas.ProduceResponse(responses=tuple(topics), node_endpoints=found)


@given(st.sampled_from(VERSIONS), st.integers(0, 2**64))
def test_responses_have_the_bytes_of_kios_classes(version: int, seed: int) -> None:
    rng = random.Random(seed)
    message = random_message(latest_schemas.ProduceRequest, version, rng)
    request = decode_produce_request(version, encode(message, version))
    batches = [batch for topic in request.topics for batch in topic.batches]
    results = [random_result(rng, one.partition) for one in batches]
    endpoints = [LeaderEndpoint(at, f"node{at}.example", 9092) for at in range(rng.randrange(3))]
    throttle_ms = rng.choice((0, 1, 2**31 - 1))
    kio = replace(as_kio(request, results, endpoints), throttle_time=duration(throttle_ms))
    found = encode_produce_response(
        version, request, results, endpoints, throttle_time_ms=throttle_ms
    )
    assert found == encode(kio, version)


@given(st.sampled_from(VERSIONS), st.integers(0, 2**64))
def test_requests_have_the_bytes_of_kios_classes(version: int, seed: int) -> None:
    message = random_message(latest_schemas.ProduceRequest, version, random.Random(seed))
    assert encode_produce_request(version, same(message, version)) == encode(message, version)


@given(st.sampled_from(VERSIONS), st.integers(0, 2**64))
def test_responses_are_decoded_as_by_kios_classes(version: int, seed: int) -> None:
    message = random_message(latest_schemas.ProduceResponse, version, random.Random(seed))
    data = encode(message, version)
    oracle = decode(latest_schemas.ProduceResponse, version, data)
    results = [
        ProduceResult(
            one.index, one.error_code, one.base_offset, one.log_start_offset, one.error_message
        )
        for topic in oracle.responses
        for one in topic.partition_responses
    ]
    expected = ProduceResponse(results, oracle.throttle_time)
    assert decode_produce_response(version, data) == expected
    assert decode_produce_response(version, b"head" + data, start=4) == expected
    for malformed in (data + b"x", *(data[:length] for length in range(len(data)))):
        with pytest.raises(MalformedMessageError):
            decode_produce_response(version, malformed)


@pytest.mark.parametrize("version", VERSIONS)
def test_bytes_of_a_response_are_malformed_if_its_results_are(version: int) -> None:
    """Tagged fields are skipped, whatever they have."""
    rng = random.Random(version)
    refused = 0
    for _ in range(20):
        message = random_message(latest_schemas.ProduceResponse, version, rng)
        for data in islice(mutations(encode(message, version), rng), 60):
            try:
                oracle = decode(latest_schemas.ProduceResponse, version, data)
            except MalformedMessageError:
                refused += not _is_decoded(version, data)
                continue
            assert [
                (one.partition, one.base_offset, one.log_start_offset, one.message)
                for one in decode_produce_response(version, data).results
            ] == [
                (one.index, one.base_offset, one.log_start_offset, one.error_message)
                for topic in oracle.responses
                for one in topic.partition_responses
            ]
    assert refused


def _is_decoded(version: int, data: bytes) -> bool:
    try:
        decode_produce_response(version, data)
    except MalformedMessageError:
        return False
    return True


@pytest.mark.parametrize("vector", [one for one in message_vectors() if one.name == "Produce"])
def test_kafkas_requests_are_decoded(vector: Any) -> None:
    if vector.kind is latest_schemas.ProduceRequest:
        message = decode(vector.kind, vector.version, vector.data)
        assert decode_produce_request(vector.version, vector.data) == same(message, vector.version)


@pytest.mark.parametrize("text", ["x" * 40_000, "\ud800"])
def test_a_text_that_a_response_cannot_have_is_refused(text: str) -> None:
    request = ProduceRequest(None, 1, 1, [ProducedTopic(b"", "t", [ProducedBatch(0, b"")])])
    with pytest.raises(UnsupportedFieldError, match="error_message"):
        encode_produce_response(9, request, [ProduceResult(0, 1, message=text)])
