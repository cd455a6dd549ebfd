"""DescribeConfigs: how the log is kept, by Kafka's names and one of ours.

Rules of this file:

1. The topic's settings are those of ``raftlog.properties``; ``raftlog.values`` says what values are
   (Kafka's tools print it like any other). Nothing here can be altered by a client, and nothing is
   secret.
2. A node has its id to tell, and only of itself (Kafka: ``ConfigHelper``).
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
from raftlog.wire.log_identity import duration, int8

from .metadata_cache import MetadataCache, may_describe
from .question import Question

VALUES_NAME: Final = "raftlog.values"


class _Resource(enum.IntEnum):
    """Kafka's ``ConfigResource.Type``, as far as there are such here."""

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


_Q = Question[requests.DescribeConfigsRequest]


async def handle_describe_configs(question: _Q) -> responses.DescribeConfigsResponse:
    return responses.DescribeConfigsResponse(
        throttle_time=duration(0),
        results=tuple(_result(question, resource) for resource in question.request.resources),
    )


def _result(
    question: _Q, resource: requests.DescribeConfigsResource
) -> responses.DescribeConfigsResult:
    error, text = _error(question.view, question.caller, resource)
    settings: tuple[_Setting, ...] = ()
    if error is ErrorCode.none:
        settings = _settings(question.view, resource)
    keys = resource.configuration_keys
    return responses.DescribeConfigsResult(
        error_code=error,
        error_message=text,
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
        configs=tuple(
            _build_response(question.request, one)
            for one in settings
            if keys is None or one.name in keys
        ),
    )


def _error(
    view: MetadataCache, caller: Principal, resource: requests.DescribeConfigsResource
) -> tuple[ErrorCode, str | None]:
    match resource.resource_type:
        case _Resource.TOPIC if not may_describe(caller):
            return ErrorCode.topic_authorization_failed, None
        case _Resource.TOPIC:
            return view.name_error(resource.resource_name), None
        case _Resource.BROKER if not may_describe(caller):
            return ErrorCode.cluster_authorization_failed, None
        case _Resource.BROKER if resource.resource_name in ("", str(view.core.node_id)):
            return ErrorCode.none, None
        case _Resource.BROKER:
            node_id = view.core.node_id
            return ErrorCode.invalid_request, f"this is node {node_id}; ask each node of itself"
        case kind:
            return ErrorCode.invalid_request, f"there are no resources of type {kind}"


def _settings(
    view: MetadataCache, resource: requests.DescribeConfigsResource
) -> tuple[_Setting, ...]:
    if int(resource.resource_type) == _Resource.TOPIC:
        return topic_settings(view.node.replica.log.config)
    if not resource.resource_name:  # what holds for all nodes: nothing is set for them
        return ()
    node_id = str(view.core.node_id)
    source = _Source.STATIC_BROKER_CONFIG
    return (_Setting("node.id", node_id, _Type.INT, source, "The id of this node."),)


def topic_settings(config: LogConfig) -> tuple[_Setting, ...]:
    """The settings of the log. ``-1``: without limit."""
    default, codec = LogConfig(), config.compression.name.lower()

    def setting(name: str, value: int | None, usual: int | None, words: str) -> _Setting:
        source = _Source.DEFAULT_CONFIG if value == usual else _Source.DYNAMIC_TOPIC_CONFIG
        kind = _Type.INT if name in _INTS else _Type.LONG
        return _Setting(name, str(-1 if value is None else value), kind, source, words)

    fixed, made = _Source.DEFAULT_CONFIG, _Source.DYNAMIC_TOPIC_CONFIG
    return (
        _Setting("cleanup.policy", "delete", _Type.LIST, fixed, "Old segments are deleted."),
        _Setting(
            "compression.type",
            "uncompressed" if codec == "none" else codec,
            _Type.STRING,
            made,
            "How batches are stored, whatever the producer's codec.",
        ),
        setting(
            "max.message.bytes",
            config.batch_bytes_max,
            default.batch_bytes_max,
            "What one batch may hold, as it is stored and with its header.",
        ),
        _Setting(
            "message.timestamp.type",
            "CreateTime",
            _Type.STRING,
            fixed,
            "A record keeps its producer's time.",
        ),
        _Setting(
            VALUES_NAME,
            config.values.value,
            _Type.STRING,
            made,
            "What values are: bytes, msgpack or kraft.",
        ),
        setting(
            "retention.bytes",
            config.retention_bytes,
            default.retention_bytes,
            "How large the log may grow before old segments go.",
        ),
        setting(
            "retention.ms",
            config.retention_ms,
            default.retention_ms,
            "How old a segment may grow before it goes.",
        ),
        setting(
            "segment.bytes",
            config.segment_bytes,
            default.segment_bytes,
            "How large a segment may grow.",
        ),
        setting(
            "segment.ms",
            config.segment_ms,
            default.segment_ms,
            "How much log time a segment may span.",
        ),
    )


_INTS: Final = ("max.message.bytes", "segment.bytes")


def _build_response(
    request: requests.DescribeConfigsRequest, setting: _Setting
) -> responses.DescribeConfigsResourceResult:
    synonyms: tuple[responses.DescribeConfigsSynonym, ...] = ()
    if request.include_synonyms:
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
        documentation=setting.documentation if request.include_documentation else None,
    )
