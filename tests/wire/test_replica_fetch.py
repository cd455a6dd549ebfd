"""Fetches between replicas, round after round: the same bytes and messages as by ``raft_codec``."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import islice
from typing import Final

import pytest
from tests.support.hostile_bytes import mutations

from raftlog.quorum.messages import ErrorCode, FetchRequest, FetchResponse, LeaderAndEpoch
from raftlog.quorum.voters import Endpoint
from raftlog.types import ZERO_UUID, OffsetAndEpoch, ReplicaKey, SnapshotId
from raftlog.wire import (
    ApiKey,
    LogIdentity,
    ReplicaFetchCodec,
    RequestError,
    decode_fetch_request,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
)
from raftlog.wire.errors import MalformedMessageError
from raftlog.wire.replica_fetch import PATTERNS_MAX, VERSION

IDENTITY: Final = LogIdentity(
    topic="orders", topic_id="AQIDBAUGBwgREhMUFRYXGA", cluster_id="c2ltdWxhdGVkIGNsdXN0ZQ"
)
OTHER: Final = LogIdentity(topic="orders", topic_id=ZERO_UUID, cluster_id="another")
REPLICAS: Final = (
    ReplicaKey(2, "AQIDBAUGBwgREhMUFRYXGA"),
    ReplicaKey(3, "AgIDBAUGBwgREhMUFRYXGA"),
    ReplicaKey(4),
)
LEADERS: Final = (
    LeaderAndEpoch(epoch=3, leader_id=1, leader_endpoints=(Endpoint("CONTROLLER", "a.b", 9093),)),
    LeaderAndEpoch(epoch=4, leader_id=2),
    LeaderAndEpoch(epoch=5),
)
HEAD: Final = b"a header"


def requests(rng: random.Random) -> FetchRequest:
    """Return a request that often differs from the one before in its offsets only."""
    return FetchRequest(
        replica=rng.choice(REPLICAS),
        epoch=rng.choice((3, 3, 3, 4)),
        fetch_offset=rng.randrange(2**40),
        last_fetched_epoch=rng.choice((3, 3, 3, 2)),
        max_bytes=rng.choice((1 << 20, 1 << 20, 100)),
        max_wait_ms=rng.choice((500, 500, 0)),
        high_watermark=rng.choice((None, 0, rng.randrange(2**40), 2**63 - 1)),
        log_start_offset=rng.choice((None, 0, rng.randrange(2**40))),
    )


def responses(rng: random.Random) -> FetchResponse:
    """Return a response, in most cases with records."""
    records = rng.randbytes(rng.choice((0, 1, 126, 127, 128, 300, 20_000)))
    kind = rng.randrange(10)
    return FetchResponse(
        leader_and_epoch=rng.choice((LEADERS[0], LEADERS[0], *LEADERS)),
        error=ErrorCode.FENCED_LEADER_EPOCH if kind == 0 else ErrorCode.NONE,
        high_watermark=rng.choice((None, 0, rng.randrange(2**40))),
        log_start_offset=rng.choice((None, 0, rng.randrange(2**40))),
        records=records if kind > 2 else b"",
        diverging=OffsetAndEpoch(epoch=2, offset=7) if kind == 1 else None,
        snapshot_id=SnapshotId(epoch=2, end_offset=9) if kind == 2 else None,
        compacted_offset=rng.choice((0, 0, 7)),
        tombstone_start_offset=rng.choice((0, 0, 6)),
        remote_store_id=rng.choice((0, 0, 5)),
    )


def decoded_request(
    codec: ReplicaFetchCodec, version: int, data: bytes, identity: LogIdentity = IDENTITY
) -> FetchRequest | RequestError | None:
    """Return a request as a node decodes it, None for one of a consumer."""
    found = codec.known_request(version, data, len(HEAD))
    if found is not None:
        return found
    decoded = decode_fetch_request(version, data, start=len(HEAD))
    if decoded.replica_id < 0:
        return None
    message = codec.decode_request(version, data, len(HEAD), decoded)
    assert isinstance(message, FetchRequest | RequestError)
    return message


@pytest.mark.parametrize("version", [17, 18])
@pytest.mark.parametrize("seed", range(20))
def test_requests_round_after_round_are_those_of_the_general_codec(version: int, seed: int) -> None:
    rng, known = random.Random(seed), 0
    sender, receiver = ReplicaFetchCodec(IDENTITY), ReplicaFetchCodec(IDENTITY)
    for _ in range(100):
        request = requests(rng)
        data = encode_request(request, version, IDENTITY)
        assert sender.encode_request(request, version) == data
        data = HEAD + data
        known += receiver.known_request(version, data, len(HEAD)) is not None
        expected = decode_request(ApiKey.FETCH, version, data, IDENTITY, start=len(HEAD))
        assert decoded_request(receiver, version, data) == expected
    assert bool(known) is (version == VERSION)


@pytest.mark.parametrize("version", [17, 18])
@pytest.mark.parametrize("seed", range(20))
def test_responses_round_after_round_are_those_of_the_general_codec(
    version: int, seed: int
) -> None:
    rng = random.Random(seed)
    sender, receiver = ReplicaFetchCodec(IDENTITY), ReplicaFetchCodec(IDENTITY)
    for _ in range(100):
        response = responses(rng)
        data = b"".join(encode_response(ApiKey.FETCH, version, response, IDENTITY))
        assert b"".join(sender.encode_response(response, version)) == data
        data = HEAD + data
        expected = decode_response(ApiKey.FETCH, version, data, IDENTITY, start=len(HEAD))
        assert receiver.decode_response(version, data, len(HEAD)) == expected


@pytest.mark.parametrize("seed", range(10))
def test_changed_bytes_of_requests_are_decoded_as_by_the_general_codec(seed: int) -> None:
    rng, codec = random.Random(seed), ReplicaFetchCodec(IDENTITY)
    refused = 0
    for _ in range(20):
        data = encode_request(requests(rng), VERSION, rng.choice((IDENTITY, IDENTITY, OTHER)))
        decoded_request(codec, VERSION, HEAD + data)  # a pattern, perhaps
        for changed in islice(mutations(data, rng), 60):
            try:
                whole = decode_fetch_request(VERSION, HEAD + changed, start=len(HEAD))
                expected = None
                if whole.replica_id >= 0:
                    expected = decode_request(
                        ApiKey.FETCH, VERSION, HEAD + changed, IDENTITY, start=len(HEAD)
                    )
            except MalformedMessageError:
                refused += 1
                with pytest.raises(MalformedMessageError):
                    decoded_request(codec, VERSION, HEAD + changed)
            else:
                assert decoded_request(codec, VERSION, HEAD + changed) == expected
    assert refused


@pytest.mark.parametrize("seed", range(10))
def test_changed_bytes_of_responses_are_decoded_as_by_the_general_codec(seed: int) -> None:
    rng, codec = random.Random(seed), ReplicaFetchCodec(IDENTITY)
    refused = 0
    for _ in range(20):
        response = responses(rng)
        data = HEAD + b"".join(encode_response(ApiKey.FETCH, VERSION, response, IDENTITY))
        codec.decode_response(VERSION, data, len(HEAD))  # a pattern, perhaps
        for changed in islice(mutations(data[len(HEAD) :], rng), 60):
            changed = HEAD + changed
            try:
                expected = decode_response(
                    ApiKey.FETCH, VERSION, changed, IDENTITY, start=len(HEAD)
                )
            except MalformedMessageError:
                refused += 1
                with pytest.raises(MalformedMessageError):
                    codec.decode_response(VERSION, changed, len(HEAD))
            else:
                assert codec.decode_response(VERSION, changed, len(HEAD)) == expected
    assert refused


def test_the_number_of_patterns_is_limited() -> None:
    codec, rng = ReplicaFetchCodec(IDENTITY), random.Random(1)
    for at in range(3 * PATTERNS_MAX):
        directory_id = f"{at:021d}A"
        request = FetchRequest(
            replica=ReplicaKey(at, directory_id),
            epoch=3,
            fetch_offset=rng.randrange(100),
            last_fetched_epoch=3,
            max_bytes=100,
            max_wait_ms=0,
            high_watermark=1,
            log_start_offset=0,
        )
        data = HEAD + encode_request(request, VERSION, IDENTITY)
        assert decoded_request(codec, VERSION, data) == request
        assert codec.known_request(VERSION, data, len(HEAD)) == request
    assert len(codec._received) <= PATTERNS_MAX


def test_a_fetch_that_names_another_rack_is_decoded_as_a_whole() -> None:
    codec = ReplicaFetchCodec(IDENTITY)
    request = FetchRequest(
        replica=REPLICAS[0],
        epoch=3,
        fetch_offset=7,
        last_fetched_epoch=3,
        max_bytes=100,
        max_wait_ms=0,
        high_watermark=1,
        log_start_offset=0,
    )
    for rack in ("", "a", "b", ""):
        data = HEAD + encode_request(request, VERSION, replace(IDENTITY, rack=rack))
        assert codec.known_request(VERSION, data, len(HEAD)) is None
        assert decode_fetch_request(VERSION, data, start=len(HEAD)).rack == rack
        assert decoded_request(codec, VERSION, data) == request
        assert codec.known_request(VERSION, data, len(HEAD)) == request
