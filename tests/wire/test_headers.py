"""Headers of requests and responses, in the version of each message."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.wire_vectors import header_vectors

from raftlog.limits import MIB
from raftlog.records.fields import unsigned_varint
from raftlog.wire.apis import APIS, ApiKey, Listener
from raftlog.wire.errors import (
    MalformedMessageError,
    UnsupportedApiError,
    UnsupportedFieldError,
    WireError,
)
from raftlog.wire.frame import (
    LENGTH_BYTES,
    InFlightRequests,
    ReceivedRequest,
    RequestHeader,
    RequestReceiver,
    UnknownApiVersions,
    decode_response_header,
    encode_request_header,
    encode_response_header,
    receive_request,
)

BOTH = Listener.CLIENTS | Listener.VOTERS


@pytest.mark.parametrize(("version", "data"), header_vectors())
def test_kafkas_headers_round_trip(version: int, data: bytes) -> None:
    header = RequestHeader(api_key=1, api_version=17, correlation_id=7, client_id="py")
    assert encode_request_header(header, version) == data
    header = header._replace(api_version=17 if version == 2 else 11)
    data = data[:2] + header.api_version.to_bytes(2, "big") + data[4:]
    assert receive_request(data + b"body", BOTH) == ReceivedRequest(header, len(data))


@given(
    st.sampled_from([(ApiKey.FETCH, 11), (ApiKey.FETCH, 12), (ApiKey.API_VERSIONS, 0)]),
    st.integers(-(2**31), 2**31 - 1),
    st.none() | st.text(max_size=20),
)
def test_a_header_round_trips(
    api: tuple[ApiKey, int], correlation_id: int, client_id: str | None
) -> None:
    header = RequestHeader(*api, correlation_id, client_id)
    data = encode_request_header(header)
    assert receive_request(data + b"body", BOTH) == ReceivedRequest(header, len(data))


@pytest.mark.parametrize(
    ("key", "version", "request_bytes", "response_bytes"),
    [
        (ApiKey.FETCH, 11, 10, 4),
        (ApiKey.FETCH, 12, 11, 5),
        (ApiKey.VOTE, 0, 11, 5),
        (ApiKey.BEGIN_QUORUM_EPOCH, 0, 10, 4),
        (ApiKey.API_VERSIONS, 2, 10, 4),
        (ApiKey.API_VERSIONS, 4, 11, 4),
    ],
)
def test_a_message_has_the_header_version_of_kafka(
    key: ApiKey, version: int, request_bytes: int, response_bytes: int
) -> None:
    header = RequestHeader(api_key=key, api_version=version, correlation_id=5)
    data = encode_request_header(header)
    assert len(data) == request_bytes
    assert receive_request(data + b"xy", BOTH) == ReceivedRequest(header, request_bytes)
    answer = encode_response_header(5, key, version)
    assert len(answer) == response_bytes
    assert decode_response_header(answer + b"xy", key, version) == (5, response_bytes)


def test_unknown_tags_of_a_header_are_skipped() -> None:
    data = encode_request_header(RequestHeader(api_key=1, api_version=17, correlation_id=7))
    tagged = data[:-1] + b"\x02\x05\x01x\x07\x00"
    found = receive_request(tagged + b"body", BOTH)
    assert isinstance(found, ReceivedRequest)
    assert found.body_start == len(tagged)


@pytest.mark.parametrize("version", [5, 32767, -1])
def test_an_unsupported_version_of_api_versions_is_a_distinct_error(version: int) -> None:
    data = b"\x00\x12" + version.to_bytes(2, "big", signed=True) + b"\x00\x00\x00\x09" + b"\xff" * 9
    assert receive_request(data, Listener.VOTERS) == UnknownApiVersions(9)


@pytest.mark.parametrize(
    ("key", "version", "listener"),
    [
        (ApiKey.PRODUCE, 9, Listener.VOTERS),
        (ApiKey.PRODUCE, 0, Listener.CLIENTS),
        (ApiKey.FETCH, 12, Listener.VOTERS),
        (ApiKey.VOTE, 2, Listener.CLIENTS),
        (ApiKey.VOTE, 3, Listener.VOTERS),
        (11, 5, BOTH),
        (-1, 0, BOTH),
    ],
)
def test_requests_that_a_listener_does_not_serve_are_refused(
    key: int, version: int, listener: Listener
) -> None:
    data = key.to_bytes(2, "big", signed=True) + version.to_bytes(2, "big") + bytes(8)
    with pytest.raises(UnsupportedApiError) as caught:
        receive_request(data, listener)
    assert (caught.value.api_key, caught.value.version) == (key, version)
    assert str(listener) in str(caught.value)


@pytest.mark.parametrize(
    "data",
    [b"", b"\x00\x01\x00\x11\x00\x00\x00", b"\x00\x01\x00\x11\x00\x00\x00\x07\x00\x05py"],
)
def test_a_truncated_header_is_malformed(data: bytes) -> None:
    with pytest.raises(MalformedMessageError):
        receive_request(data, BOTH)


def test_a_client_id_is_text_of_bounded_length() -> None:
    with pytest.raises(MalformedMessageError, match="not UTF-8"):
        receive_request(b"\x00\x01\x00\x11\x00\x00\x00\x07\x00\x01\xff\x00", BOTH)
    long = RequestHeader(api_key=1, api_version=17, correlation_id=7, client_id="x" * 32768)
    with pytest.raises(UnsupportedFieldError):
        encode_request_header(long)


def response(key: ApiKey, version: int, correlation_id: int) -> bytes:
    return encode_response_header(correlation_id, key, version) + b"body"


def test_responses_have_the_order_of_the_requests_in_flight() -> None:
    in_flight = InFlightRequests[str]("test")
    asked = [(ApiKey.API_VERSIONS, 4), (ApiKey.FETCH, 17), (ApiKey.PRODUCE, 3)]
    numbers = []
    for key, version in asked:
        sent = in_flight.add(key, version, b"body", key.name)
        received = receive_request(sent[LENGTH_BYTES:], BOTH)
        assert isinstance(received, ReceivedRequest)
        assert received.header[:2] == (key, version)
        numbers.append(received.header.correlation_id)
    for (key, version), number in zip(asked, numbers, strict=True):
        data = response(key, version, number)
        for _ in range(2):  # it stays in flight until it is completed
            name, start = in_flight.match(data)
            assert (name, data[start:]) == (key.name, b"body")
        in_flight.complete()
    assert not in_flight


def test_a_response_that_is_not_of_the_oldest_request_is_malformed() -> None:
    in_flight = InFlightRequests[str]("test")
    with pytest.raises(MalformedMessageError, match="no request is in flight"):
        in_flight.match(response(ApiKey.FETCH, 17, 0))
    for name in ("first", "second"):
        in_flight.add(ApiKey.FETCH, 17, b"", name)
    for number in (1, 2, -1):
        with pytest.raises(MalformedMessageError, match=f"correlation id {number}, expected 0"):
            in_flight.match(response(ApiKey.FETCH, 17, number))
    with pytest.raises(MalformedMessageError):
        in_flight.match(b"\x00\x00\x00")
    assert in_flight.clear() == ["first", "second"]
    assert not in_flight


def test_a_receiver_decodes_each_header_as_a_single_one() -> None:
    rng, receiver = random.Random(1), RequestReceiver(APIS)
    headers = [
        RequestHeader(api_key, version, 0, client_id)
        for api_key, version in ((ApiKey.FETCH, 11), (ApiKey.FETCH, 18), (ApiKey.PRODUCE, 11))
        for client_id in (None, "", "a client", "another")
    ]
    for _ in range(500):
        header = rng.choice(headers[:2] if rng.random() < 0.5 else headers)
        header = header._replace(correlation_id=rng.randrange(-(2**31), 2**31))
        data = encode_request_header(header) + b"body"
        if rng.random() < 0.3:
            at = rng.randrange(len(data))
            data = data[:at] + rng.randbytes(1) + data[at + 1 :]
        data = data[: rng.randrange(len(data))] if rng.random() < 0.1 else data
        try:
            expected = receive_request(data, BOTH)
        except WireError as error:
            with pytest.raises(type(error)):
                receiver.receive(data, BOTH)
        else:
            assert receiver.receive(data, BOTH) == expected


def test_a_receiver_keeps_no_large_header() -> None:
    receiver, header = RequestReceiver(APIS), RequestHeader(ApiKey.API_VERSIONS, 4, 7, "a client")
    field = b"\x09" + unsigned_varint(MIB) + bytes(MIB)  # an unknown tagged field
    large = encode_request_header(header)[:-1] + b"\x01" + field
    for _ in range(2):
        assert receiver.receive(large + b"body", BOTH) == receive_request(large, BOTH)
    kept = sum(len(value) for value in vars(receiver).values() if isinstance(value, bytes))
    assert kept < MIB // 100, "the memory of a connection does not count it"


@given(
    st.lists(
        st.tuples(
            st.sampled_from([(ApiKey.FETCH, 11), (ApiKey.FETCH, 18), (ApiKey.API_VERSIONS, 0)]),
            st.binary(max_size=9),
        )
    ),
    st.text(max_size=20),
)
def test_a_request_in_flight_has_the_header_of_its_version(
    sent: list[tuple[tuple[ApiKey, int], bytes]], client_id: str
) -> None:
    in_flight = InFlightRequests[None](client_id)
    for ordinal, ((key, version), body) in enumerate(sent):
        header = RequestHeader(key, version, ordinal, client_id)
        expected = encode_request_header(header) + body
        found = in_flight.add(key, version, body, None)
        assert found == len(expected).to_bytes(LENGTH_BYTES, "big") + expected
