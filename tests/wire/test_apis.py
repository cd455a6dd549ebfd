"""The table of served requests compared with kio, and negotiation of versions."""

from __future__ import annotations

import pytest
from kio import index as kio_index

from raftlog.wire.apis import (
    APIS,
    CONTROLLER_APIS,
    SASL_APIS,
    Api,
    ApiKey,
    Listener,
    VersionRange,
    common_version,
    served_api,
)
from raftlog.wire.errors import NoCommonVersionError

ALL = {**APIS, **CONTROLLER_APIS}


@pytest.mark.parametrize("api", ALL.values(), ids=lambda api: api.key.name)
def test_the_table_agrees_with_kio(api: Api) -> None:
    name = kio_index.api_key_map[api.key]
    assert name.upper() == api.key.name
    for version in range(api.versions.first, api.versions.last + 1):
        for load in (kio_index.load_request_schema, kio_index.load_response_schema):
            assert load(api.key, version).__version__ == version


def test_every_request_is_in_the_table_and_served_on_a_listener() -> None:
    assert set(ALL) | set(SASL_APIS) == set(ApiKey)
    assert set(ALL).isdisjoint(SASL_APIS)
    assert not set(APIS) & set(CONTROLLER_APIS)
    for api in ALL.values():
        assert api.clients is not None or api.voters is not None


def test_requests_of_the_quorum_are_for_voters_only() -> None:
    for key in (ApiKey.VOTE, ApiKey.FETCH_SNAPSHOT, ApiKey.UPDATE_RAFT_VOTER):
        assert APIS[key].on(Listener.CLIENTS) is None
        assert APIS[key].on(Listener.VOTERS) is not None


def test_a_listener_for_both_serves_the_requests_of_each() -> None:
    both = Listener.CLIENTS | Listener.VOTERS
    assert served_api(ApiKey.FETCH, 4, both).on(both) == VersionRange(4, 18)
    assert served_api(ApiKey.VOTE, 0, both).key == ApiKey.VOTE
    assert str(both) == "clients and voters"


@pytest.mark.parametrize(
    ("theirs", "version"),
    [(VersionRange(0, 99), 2), (VersionRange(0, 1), 1), (VersionRange(2, 2), 2)],
)
def test_the_highest_common_version_is_used(theirs: VersionRange, version: int) -> None:
    assert common_version(ApiKey.VOTE, {ApiKey.VOTE: theirs}) == version


@pytest.mark.parametrize(("version_max", "version"), [(None, 10), (10, 10), (9, 9), (99, 10)])
def test_a_request_may_limit_the_version(version_max: int | None, version: int) -> None:
    theirs: dict[int, VersionRange] = {ApiKey.OFFSET_FETCH: VersionRange(1, 12)}
    assert common_version(ApiKey.OFFSET_FETCH, theirs, version_max) == version


def test_a_limit_below_the_versions_of_a_node_is_no_common_version() -> None:
    with pytest.raises(NoCommonVersionError) as caught:
        common_version(ApiKey.OFFSET_FETCH, {ApiKey.OFFSET_FETCH: VersionRange(10, 12)}, 9)
    assert (caught.value.supported, caught.value.peer_supported) == ((1, 9), (10, 12))


@pytest.mark.parametrize("theirs", [None, VersionRange(3, 9), VersionRange(-5, -1)])
def test_a_missing_common_version_is_reported_with_both_ranges(theirs: VersionRange | None) -> None:
    with pytest.raises(NoCommonVersionError) as caught:
        common_version(ApiKey.VOTE, {} if theirs is None else {ApiKey.VOTE: theirs})
    assert caught.value.supported == (0, 2)
    assert caught.value.peer_supported == (None if theirs is None else (theirs.first, theirs.last))
    assert "VOTE" in str(caught.value)
