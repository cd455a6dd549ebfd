"""ApiVersions: the supported versions of a listener, and negotiation with a peer's."""

from __future__ import annotations

import pytest
from kio.schema.api_versions.v4 import response as response_v4
from tests.support.quorum_messages import IDENTITY
from tests.support.wire_vectors import message_vector

from raftlog.quorum.messages import VersionsRequest, VersionsResponse
from raftlog.wire import (
    ApiKey,
    Listener,
    RequestError,
    VersionRange,
    common_version,
    decode,
    decode_request,
    decode_response,
    decode_versions_request,
    decode_versions_response,
    encode_request,
    encode_unsupported_version_response,
    encode_versions_request,
    encode_versions_response,
)
from raftlog.wire.errors import MalformedMessageError


@pytest.mark.parametrize("version", range(5))
def test_a_request_round_trips(version: int) -> None:
    data = encode_versions_request(version, software="raftlog", software_version="1.2")
    request = decode_versions_request(version, data)
    assert request.client_software_name == ("raftlog" if version >= 3 else "")


def test_kafkas_request_is_encoded_alike() -> None:
    data = encode_versions_request(4, software="py", software_version="1")
    assert data == message_vector("ApiVersions", 4)


@pytest.mark.parametrize("version", range(5))
@pytest.mark.parametrize("listener", [*Listener, Listener.CLIENTS | Listener.VOTERS])
def test_a_response_has_the_apis_of_the_listener(version: int, listener: Listener) -> None:
    offered = decode_versions_response(version, encode_versions_response(version, listener))
    assert offered.error == 0
    assert (ApiKey.VOTE in offered.versions) == (Listener.VOTERS in listener)
    assert (ApiKey.PRODUCE in offered.versions) == (Listener.CLIENTS in listener)
    assert common_version(ApiKey.API_VERSIONS, offered.versions) == 4
    assert common_version(ApiKey.FETCH, offered.versions) == 18


def test_produce_is_announced_from_version_zero_as_by_kafka() -> None:
    data = encode_versions_response(4, Listener.CLIENTS)
    assert decode_versions_response(4, data).versions[ApiKey.PRODUCE] == VersionRange(0, 13)


@pytest.mark.parametrize(("version", "levels"), [(4, VersionRange(0, 1)), (3, VersionRange(0, 0))])
def test_a_voter_reports_its_supported_kraft_versions(version: int, levels: VersionRange) -> None:
    data = encode_versions_response(version, Listener.VOTERS)
    assert decode_versions_response(version, data).kraft_versions == levels
    names = [
        one.name
        for one in decode(response_v4.ApiVersionsResponse, version, data).supported_features
    ]
    assert names == (["kraft.version"] if version == 4 else [])


@pytest.mark.parametrize("version", range(5))
def test_the_versions_of_a_voter_are_requested_before_it_is_added(version: int) -> None:
    asked = encode_request(VersionsRequest(), version, IDENTITY)
    assert decode_request(ApiKey.API_VERSIONS, version, asked, IDENTITY) == VersionsRequest()
    data = encode_versions_response(version, Listener.VOTERS)
    response_v4 = decode_response(ApiKey.API_VERSIONS, version, data, IDENTITY)
    highest = 1 if version == 4 else 0
    assert response_v4 == VersionsResponse(kraft_version_min=0, kraft_version_max=highest)


def test_kraft_versions_from_one_on_are_sent_in_older_versions_too() -> None:
    data = encode_versions_response(3, Listener.VOTERS, kraft_versions=VersionRange(1, 2))
    assert decode_versions_response(3, data).kraft_versions == VersionRange(1, 2)


def test_a_voter_without_a_common_version_refuses() -> None:
    response_v4 = decode_response(
        ApiKey.API_VERSIONS, 4, encode_unsupported_version_response(), IDENTITY
    )
    assert isinstance(response_v4, RequestError)
    assert (response_v4.error, response_v4.is_top_level) == (35, True)


def test_an_invalid_range_of_kraft_versions_is_malformed() -> None:
    data = encode_versions_response(4, Listener.VOTERS, kraft_versions=VersionRange(3, 2))
    with pytest.raises(MalformedMessageError, match=r"kraft\.version are not a range"):
        decode_response(ApiKey.API_VERSIONS, 4, data, IDENTITY)


def test_the_finalized_kraft_version_is_sent_if_it_is_known() -> None:
    data = encode_versions_response(4, Listener.CLIENTS, kraft_version=1, features_epoch=77)
    assert decode_versions_response(4, data).kraft_version == 1
    assert decode(response_v4.ApiVersionsResponse, 4, data).finalized_features_epoch == 77
    unknown = encode_versions_response(4, Listener.CLIENTS)
    assert decode_versions_response(4, unknown).kraft_version is None


def test_a_request_in_an_unsupported_version_is_answered_in_version_zero() -> None:
    data = encode_unsupported_version_response()
    assert data == bytes.fromhex("0023 00000001 0012 0000 0004".replace(" ", ""))
    offered = decode_versions_response(4, data)
    assert offered.is_version_unsupported
    assert common_version(ApiKey.API_VERSIONS, offered.versions) == 4


@pytest.mark.parametrize("data", [b"", b"\x00", b"\x00\x23", b"\x00\x00\xff\xff"])
def test_a_truncated_response_is_malformed(data: bytes) -> None:
    with pytest.raises(MalformedMessageError):
        decode_versions_response(4, data)
