"""ApiVersions both ways: what a listener serves, and what a peer says that it serves.

Rules of this file:

1. A feature whose lowest level is 0 is named from version 4 on: older clients refuse an answer
   that holds one (KAFKA-17011).
2. Before a voter is added its leader asks it for the levels of ``kraft.version`` that it knows. One
   that says nothing of it knows level 0 alone (KIP-853).
3. A peer that does not speak the version of the question answers in version 0 with code 35, and
   says which versions it speaks: ask again in one of those.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from kio.schema.api_versions.v4 import response as api_versions_response
from kio.schema.api_versions.v4.request import ApiVersionsRequest
from kio.schema.errors import ErrorCode

from .apis import APIS, ApiKey, Listener, VersionRange
from .decoding import decode
from .encoding import encode
from .log_identity import duration, int16, int64

KRAFT_VERSION: Final = "kraft.version"
KRAFT_VERSIONS: Final = VersionRange(0, 1)
"""The levels of ``kraft.version`` that this software knows."""
_LEVEL_ZERO: Final = VersionRange(0, 0)
_ZERO_LEVELS_FROM: Final = 4
_NO_THROTTLE: Final = duration(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeApiVersions:
    """What a peer says. ``error`` is Kafka's code; ``kraft_versions`` are the levels of
    ``kraft.version`` that it knows, ``kraft_version`` the one that holds there, if it says."""

    versions: Mapping[int, VersionRange] = field(default_factory=dict)
    kraft_versions: VersionRange = _LEVEL_ZERO
    kraft_version: int | None = None
    error: int = 0

    @property
    def is_version_unsupported(self) -> bool:
        """Whether the question must be asked again, in a version of ``versions``."""
        return self.error == ErrorCode.unsupported_version


def encode_versions_request(version: int, *, software: str, software_version: str) -> bytes:
    """The question, to a voter to be as to anybody."""
    request = ApiVersionsRequest(
        client_software_name=software, client_software_version=software_version
    )
    return encode(request, version)


def encode_versions_response(
    version: int,
    listener: Listener,
    *,
    kraft_versions: VersionRange = KRAFT_VERSIONS,
    kraft_version: int | None = None,
    features_epoch: int | None = None,
) -> bytes:
    """What this listener serves, and which levels of ``kraft.version`` this node knows.

    ``kraft_version`` is the level that holds, as of ``features_epoch`` (an offset of the log); None
    if it is not known yet.
    """
    served = (
        (api, versions) for api in APIS.values() if (versions := api.on(listener)) is not None
    )
    keys = tuple(
        api_versions_response.ApiVersion(
            api_key=int16(api.key),
            min_version=int16(
                versions.first if api.announced_first is None else api.announced_first
            ),
            max_version=int16(versions.last),
        )
        for api, versions in served
    )
    supported = api_versions_response.SupportedFeatureKey(
        name=KRAFT_VERSION,
        min_version=int16(kraft_versions.first),
        max_version=int16(kraft_versions.last),
    )
    response = api_versions_response.ApiVersionsResponse(
        error_code=ErrorCode.none,
        api_keys=keys,
        throttle_time=_NO_THROTTLE,
        supported_features=(supported,)
        if kraft_versions.first or version >= _ZERO_LEVELS_FROM
        else (),
        finalized_features_epoch=int64(-1 if features_epoch is None else features_epoch),
        finalized_features=() if not kraft_version else (_finalized(kraft_version),),
    )
    return encode(response, version)


def encode_unsupported_version_response() -> bytes:
    """The answer, in version 0, to ApiVersions in a version that we do not speak (KIP-511)."""
    versions = APIS[ApiKey.API_VERSIONS].versions
    key = api_versions_response.ApiVersion(
        api_key=int16(ApiKey.API_VERSIONS),
        min_version=int16(versions.first),
        max_version=int16(versions.last),
    )
    response = api_versions_response.ApiVersionsResponse(
        error_code=ErrorCode.unsupported_version, api_keys=(key,), throttle_time=_NO_THROTTLE
    )
    return encode(response, 0)


def decode_versions_request(version: int, data: bytes, *, start: int = 0) -> ApiVersionsRequest:
    """Who asks. Raises ``MalformedMessageError``."""
    return decode(ApiVersionsRequest, version, data, start=start)


def decode_versions_response(version: int, data: bytes, *, start: int = 0) -> NodeApiVersions:
    """What a peer serves, by a body that begins at ``start``. Raises ``MalformedMessageError``."""
    code = int.from_bytes(data[start : start + 2], "big", signed=True)
    is_refused = code == ErrorCode.unsupported_version
    response = decode(
        api_versions_response.ApiVersionsResponse, 0 if is_refused else version, data, start=start
    )
    supported = {
        one.name: VersionRange(one.min_version, one.max_version)
        for one in response.supported_features
    }
    finalized = {one.name: one.max_version_level for one in response.finalized_features}
    return NodeApiVersions(
        versions={
            one.api_key: VersionRange(one.min_version, one.max_version) for one in response.api_keys
        },
        kraft_versions=supported.get(KRAFT_VERSION, _LEVEL_ZERO),
        kraft_version=finalized.get(KRAFT_VERSION),
        error=response.error_code,
    )


def _finalized(level: int) -> api_versions_response.FinalizedFeatureKey:
    return api_versions_response.FinalizedFeatureKey(
        name=KRAFT_VERSION, max_version_level=int16(level), min_version_level=int16(level)
    )
