"""ApiVersions requests and responses: the APIs and features that a node supports.

1. A feature with minimum level 0 is sent only from version 4 on, because older clients reject a
   response that contains one (KAFKA-17011).
2. Before a leader adds a voter, it requests the range of ``kraft.version`` that the voter supports.
   A node that does not return the feature supports only level 0 (KIP-853).
3. A node that does not support the request's version responds in version 0 with error 35 and its
   supported versions. The client repeats the request in one of those (KIP-511).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

from kio.schema.api_versions.v4 import response as api_versions_response
from kio.schema.api_versions.v4.request import ApiVersionsRequest
from kio.schema.errors import ErrorCode

from .apis import APIS, Api, ApiKey, Listener, VersionRange
from .codec import decode, encode
from .log_identity import duration, int16, int64

KRAFT_VERSION: Final = "kraft.version"
KRAFT_VERSIONS: Final = VersionRange(0, 1)
"""Supported levels of ``kraft.version``."""
_LEVEL_ZERO: Final = VersionRange(0, 0)
_ZERO_LEVELS_FROM: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeApiVersions:
    """APIs and features that a node supports. ``error`` is Kafka's error code.

    ``kraft_versions`` is the supported range of ``kraft.version``. ``kraft_version`` is the
    finalized level; None if the node does not return it.
    """

    versions: Mapping[int, VersionRange] = field(default_factory=dict)
    kraft_versions: VersionRange = _LEVEL_ZERO
    kraft_version: int | None = None
    error: int = 0
    throttle_time: timedelta = timedelta(0)

    @property
    def is_version_unsupported(self) -> bool:
        """Whether the request must be repeated in a version of ``versions``."""
        return self.error == ErrorCode.unsupported_version


@dataclass(frozen=True, slots=True, kw_only=True)
class Features:
    """Supported and finalized levels of a cluster's features, except kraft.version."""

    supported: Mapping[str, VersionRange] = field(default_factory=dict)
    finalized: Mapping[str, int] = field(default_factory=dict)


NO_FEATURES: Final = Features()


def encode_versions_request(version: int, *, software: str, software_version: str) -> bytes:
    """Return the body of an ApiVersions request."""
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
    apis: Mapping[int, Api] = APIS,
    features: Features = NO_FEATURES,
    throttle_time_ms: int = 0,
) -> bytes:
    """Return the body of an ApiVersions response, with the ``apis`` of ``listener``.

    ``kraft_version`` is the finalized level as of ``features_epoch`` (an offset of the log); None
    while it is unknown. ``features`` are the other features.
    """
    served = (
        (api, versions) for api in apis.values() if (versions := api.on(listener)) is not None
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
    supported = {**features.supported, KRAFT_VERSION: kraft_versions}
    finalized = dict(features.finalized)
    if kraft_version:
        finalized[KRAFT_VERSION] = kraft_version
    response = api_versions_response.ApiVersionsResponse(
        error_code=ErrorCode.none,
        api_keys=keys,
        throttle_time=duration(throttle_time_ms),
        supported_features=tuple(
            api_versions_response.SupportedFeatureKey(
                name=name, min_version=int16(levels.first), max_version=int16(levels.last)
            )
            for name, levels in sorted(supported.items())
            if levels.first or version >= _ZERO_LEVELS_FROM
        ),
        finalized_features_epoch=int64(-1 if features_epoch is None else features_epoch),
        finalized_features=tuple(
            api_versions_response.FinalizedFeatureKey(
                name=name, max_version_level=int16(level), min_version_level=int16(level)
            )
            for name, level in sorted(finalized.items())
        ),
    )
    return encode(response, version)


def encode_unsupported_version_response() -> bytes:
    """Return the version 0 response to an ApiVersions request of an unsupported version."""
    versions = APIS[ApiKey.API_VERSIONS].versions
    key = api_versions_response.ApiVersion(
        api_key=int16(ApiKey.API_VERSIONS),
        min_version=int16(versions.first),
        max_version=int16(versions.last),
    )
    response = api_versions_response.ApiVersionsResponse(
        error_code=ErrorCode.unsupported_version, api_keys=(key,), throttle_time=duration(0)
    )
    return encode(response, 0)


def decode_versions_request(version: int, data: bytes, *, start: int = 0) -> ApiVersionsRequest:
    """Decode the body that begins at ``start``. Raises ``MalformedMessageError``."""
    return decode(ApiVersionsRequest, version, data, start=start)


def decode_versions_response(version: int, data: bytes, *, start: int = 0) -> NodeApiVersions:
    """Decode the body that begins at ``start``. Raises ``MalformedMessageError``."""
    code = int.from_bytes(data[start : start + 2], "big", signed=True)
    is_refused = code == ErrorCode.unsupported_version
    response = decode(
        api_versions_response.ApiVersionsResponse, 0 if is_refused else version, data, start=start
    )
    supported = {
        feature.name: VersionRange(feature.min_version, feature.max_version)
        for feature in response.supported_features
    }
    finalized = {feature.name: feature.max_version_level for feature in response.finalized_features}
    return NodeApiVersions(
        versions={
            api.api_key: VersionRange(api.min_version, api.max_version) for api in response.api_keys
        },
        kraft_versions=supported.get(KRAFT_VERSION, _LEVEL_ZERO),
        kraft_version=finalized.get(KRAFT_VERSION),
        error=response.error_code,
        throttle_time=response.throttle_time,
    )
