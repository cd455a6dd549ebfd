"""Handler of DescribeConfigs: configuration of the topic and of this node.

The topic has the settings in ``raftlog.properties`` under Kafka's names, and ``raftlog.values`` for
the kind of values. All are read-only, and none is sensitive. A node has only ``node.id``, and does
not describe other nodes (Kafka: ``ConfigHelper``).
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final

from kio.schema.describe_configs.v4 import request as requests
from kio.schema.describe_configs.v4 import response as responses
from kio.schema.errors import ErrorCode

from raftlog.log.writing.properties import LogConfig
from raftlog.node.access import Principal
from raftlog.node.request import Request
from raftlog.types import Operation
from raftlog.wire.log_identity import duration, int8

from .metadata_cache import MetadataCache

VALUES_NAME: Final = "raftlog.values"


class _Resource(enum.IntEnum):
    """The supported values of Kafka's ``ConfigResource.Type``."""

    TOPIC = 2
    BROKER = 4


class _Source(enum.IntEnum):
    """Kafka's ``ConfigSource``."""

    DYNAMIC_TOPIC_CONFIG = 1
    STATIC_BROKER_CONFIG = 4
    DEFAULT_CONFIG = 5


class _Type(enum.IntEnum):
    """Kafka's ``ConfigType``."""

    STRING = 2
    INT = 3
    LONG = 5
    LIST = 7


@dataclass(frozen=True, slots=True)
class _Setting:
    name: str
    value: str
    kind: _Type
    source: _Source
    documentation: str


_Request = Request[requests.DescribeConfigsRequest]


async def handle_describe_configs(
    cache: MetadataCache, request: _Request
) -> responses.DescribeConfigsResponse:
    return responses.DescribeConfigsResponse(
        throttle_time=duration(0),
        results=tuple(_result(cache, request, resource) for resource in request.body.resources),
    )


def _result(
    cache: MetadataCache, request: _Request, resource: requests.DescribeConfigsResource
) -> responses.DescribeConfigsResult:
    error, text = _error(cache, request.principal, resource)
    settings: tuple[_Setting, ...] = ()
    if error is ErrorCode.none:
        settings = _settings(cache, resource)
    keys = resource.configuration_keys
    return responses.DescribeConfigsResult(
        error_code=error,
        error_message=text,
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
        configs=tuple(
            _build_response(request.body, one)
            for one in settings
            if keys is None or one.name in keys
        ),
    )


def _error(
    cache: MetadataCache, principal: Principal, resource: requests.DescribeConfigsResource
) -> tuple[ErrorCode, str | None]:
    match resource.resource_type:
        case _Resource.TOPIC if not principal.may(Operation.DESCRIBE_CONFIGS, cache.topic):
            return ErrorCode.topic_authorization_failed, None
        case _Resource.TOPIC:
            return cache.name_error(resource.resource_name), None
        case _Resource.BROKER if not principal.may(Operation.DESCRIBE_CONFIGS):
            return ErrorCode.cluster_authorization_failed, None
        case _Resource.BROKER if resource.resource_name in ("", str(cache.core.node_id)):
            return ErrorCode.none, None
        case _Resource.BROKER:
            node_id = cache.core.node_id
            return ErrorCode.invalid_request, f"this node describes node {node_id} only"
        case kind:
            return ErrorCode.invalid_request, f"unsupported resource type {kind}"


def _settings(
    cache: MetadataCache, resource: requests.DescribeConfigsResource
) -> tuple[_Setting, ...]:
    if int(resource.resource_type) == _Resource.TOPIC:
        return topic_settings(cache.raft_node.replica.log.config)
    if not resource.resource_name:  # cluster-wide defaults: there are none
        return ()
    node_id = str(cache.core.node_id)
    source = _Source.STATIC_BROKER_CONFIG
    return (_Setting("node.id", node_id, _Type.INT, source, "The node id of this node."),)


def topic_settings(config: LogConfig) -> tuple[_Setting, ...]:
    """Return the settings of the log. ``-1`` means no limit."""
    default, codec = LogConfig(), config.compression.name.lower()

    def setting(name: str, value: int | None, usual: int | None, words: str) -> _Setting:
        source = _Source.DEFAULT_CONFIG if value == usual else _Source.DYNAMIC_TOPIC_CONFIG
        kind = _Type.INT if name in _INTS else _Type.LONG
        return _Setting(name, str(-1 if value is None else value), kind, source, words)

    fixed, configured = _Source.DEFAULT_CONFIG, _Source.DYNAMIC_TOPIC_CONFIG
    return (
        _Setting(
            "cleanup.policy",
            config.cleanup_policy.value,
            _Type.LIST,
            fixed if config.cleanup_policy is default.cleanup_policy else configured,
            "Whether segments beyond the retention limits are deleted, and the log is compacted.",
        ),
        _Setting(
            "compression.type",
            "uncompressed" if codec == "none" else codec,
            _Type.STRING,
            configured,
            "Compression codec of stored batches, independent of the producer's codec.",
        ),
        setting(
            "max.message.bytes",
            config.batch_bytes_max,
            default.batch_bytes_max,
            "Maximum size of a stored record batch, including its header, in bytes.",
        ),
        _Setting(
            "message.timestamp.type",
            "CreateTime",
            _Type.STRING,
            fixed,
            "Timestamps are set by the producer.",
        ),
        _Setting(
            VALUES_NAME,
            config.values.value,
            _Type.STRING,
            configured,
            "Kind of the record values: bytes, msgpack or kraft.",
        ),
        setting(
            "retention.bytes",
            config.retention_bytes,
            default.retention_bytes,
            "Size of the log above which the oldest segments are deleted, in bytes.",
        ),
        setting(
            "retention.ms",
            config.retention_ms,
            default.retention_ms,
            "Age at which a segment is deleted, in milliseconds.",
        ),
        setting(
            "segment.bytes",
            config.segment_bytes,
            default.segment_bytes,
            "Maximum size of a segment, in bytes.",
        ),
        setting(
            "segment.ms",
            config.segment_ms,
            default.segment_ms,
            "Maximum time span of the records of a segment, in milliseconds.",
        ),
    )


_INTS: Final = ("max.message.bytes", "segment.bytes")


def _build_response(
    body: requests.DescribeConfigsRequest, setting: _Setting
) -> responses.DescribeConfigsResourceResult:
    synonyms: tuple[responses.DescribeConfigsSynonym, ...] = ()
    if body.include_synonyms:
        synonyms = (
            responses.DescribeConfigsSynonym(
                name=setting.name, value=setting.value, source=int8(setting.source)
            ),
        )
    return responses.DescribeConfigsResourceResult(
        name=setting.name,
        value=setting.value,
        read_only=True,
        config_source=int8(setting.source),
        is_sensitive=False,
        synonyms=synonyms,
        config_type=int8(setting.kind),
        documentation=setting.documentation if body.include_documentation else None,
    )
