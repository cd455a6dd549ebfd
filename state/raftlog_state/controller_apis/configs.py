"""IncrementalAlterConfigs, AlterConfigs and DescribeConfigs.

``topic_configs.tsv`` (name, default, synonym) contains the topic configs of Kafka 4.3.1 with their
defaults, and the broker config that sets a cluster's default.

A node describes its own configs and the cluster's defaults. Kafka describes other nodes from their
own files; here they are described only from the log. Secret values are null, as in Kafka.

Resources are described in steps, each at the state of its own time, as in Kafka. Their number is
limited, because a topic takes 5 kB of the response.

Source: Kafka ``ControllerApis``, ``ConfigAdminManager``, ``ConfigHelper``,
``ServerTopicConfigSynonyms``.
"""

from __future__ import annotations

import enum
import pkgutil
from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import chain
from typing import Any, Final, NamedTuple, TypeAlias

from kio.schema.alter_configs.v2 import request as legacy_requests
from kio.schema.alter_configs.v2 import response as legacy_responses
from kio.schema.describe_configs.v4 import request as describe_requests
from kio.schema.describe_configs.v4 import response as describe_responses
from kio.schema.errors import ErrorCode
from kio.schema.incremental_alter_configs.v1 import request as alter_requests
from kio.schema.incremental_alter_configs.v1 import response as alter_responses

from raftlog.types import CLUSTER, CLUSTER_METADATA_TOPIC, Operation, Resource, ResourceType
from raftlog.wire.log_identity import duration, int8
from raftlog_state.controller import ApiException, ControllerState, PendingState
from raftlog_state.controller.configs import (
    AlterConfig,
    ConfigOperation,
    ConfigResource,
    incremental_alter_configs,
    legacy_alter_configs,
    resource_configs,
)
from raftlog_state.controller.controller_state import BROKER, CLIENT_METRICS, GROUP, TOPIC
from raftlog_state.records import config_type, is_secret_config

from .envelope import ForwardedRequest
from .hosted_controller import HostedController
from .requests import (
    ControllerRequest,
    Principal,
    code_and_message,
    unauthorized,
)

_Alter: TypeAlias = ControllerRequest[alter_requests.IncrementalAlterConfigsRequest]
_LegacyAlter: TypeAlias = ControllerRequest[legacy_requests.AlterConfigsRequest]
_Describe: TypeAlias = ControllerRequest[describe_requests.DescribeConfigsRequest]
_Refusals: TypeAlias = dict[ConfigResource, ApiException | None]

_LOG: Final = ConfigResource(TOPIC, CLUSTER_METADATA_TOPIC)
DESCRIBED_MAX: Final = 10_000
"""Maximum number of resources that one request can describe."""
DESCRIBED_PER_STEP: Final = 200
"""Resources described between other events, which takes some 30 ms."""
_TYPES: Final = {
    "BOOLEAN": 1,
    "STRING": 2,
    "INT": 3,
    "SHORT": 4,
    "LONG": 5,
    "DOUBLE": 6,
    "LIST": 7,
    "CLASS": 8,
    "PASSWORD": 9,
}
"""Kafka's ``DescribeConfigsResponse.ConfigType``."""


class ConfigSource(enum.IntEnum):
    """Kafka's ``DescribeConfigsResponse.ConfigSource``."""

    TOPIC_CONFIG = 1
    DYNAMIC_BROKER_CONFIG = 2
    DYNAMIC_DEFAULT_BROKER_CONFIG = 3
    DEFAULT_CONFIG = 5
    CLIENT_METRICS_CONFIG = 7
    GROUP_CONFIG = 8


# --- IncrementalAlterConfigs and AlterConfigs -----------------------------------------------------


async def handle_incremental_alter_configs(
    controller: HostedController, request: _Alter
) -> alter_responses.IncrementalAlterConfigsResponse:
    body = request.body
    refused = _refused_before(body.resources, request.principal)
    changes: dict[ConfigResource, list[AlterConfig]] = {}
    for one in body.resources:
        resource = _resource(one)
        if resource not in refused:
            try:
                changes[resource] = [_operation(config) for config in one.configs]
            except ApiException as error:
                refused[resource] = error

    def operation(state: PendingState) -> Generator[None, None, _Refusals]:
        return incremental_alter_configs(changes, state, is_forwarded=_is_from_broker(request))

    refused |= await controller.write_in_steps(
        "incrementalAlterConfigs", operation, validate_only=body.validate_only
    )
    return alter_responses.IncrementalAlterConfigsResponse(
        throttle_time=duration(0),
        responses=tuple(
            _altered(resource, *code_and_message(refused[resource]))
            for resource in dict.fromkeys(map(_resource, body.resources))
        ),
    )


def refuse_incremental_alter_configs(
    request: _Alter, code: ErrorCode, message: str | None
) -> alter_responses.IncrementalAlterConfigsResponse:
    return alter_responses.IncrementalAlterConfigsResponse(
        throttle_time=duration(0),
        responses=tuple(
            _altered(one, code, message)
            for one in dict.fromkeys(map(_resource, request.body.resources))
        ),
    )


async def handle_alter_configs(
    controller: HostedController, request: _LegacyAlter
) -> legacy_responses.AlterConfigsResponse:
    body = request.body
    refused = _refused_before(body.resources, request.principal)
    configs = {
        resource: {config.name: config.value for config in one.configs}
        for one in body.resources
        if (resource := _resource(one)) not in refused
    }

    def operation(state: PendingState) -> Generator[None, None, _Refusals]:
        return legacy_alter_configs(configs, state, is_forwarded=_is_from_broker(request))

    refused |= await controller.write_in_steps(
        "legacyAlterConfigs", operation, validate_only=body.validate_only
    )
    return legacy_responses.AlterConfigsResponse(
        throttle_time=duration(0),
        responses=tuple(
            _legacy_altered(resource, *code_and_message(refused[resource]))
            for resource in dict.fromkeys(map(_resource, body.resources))
        ),
    )


def refuse_alter_configs(
    request: _LegacyAlter, code: ErrorCode, message: str | None
) -> legacy_responses.AlterConfigsResponse:
    return legacy_responses.AlterConfigsResponse(
        throttle_time=duration(0),
        responses=tuple(
            _legacy_altered(one, code, message)
            for one in dict.fromkeys(map(_resource, request.body.resources))
        ),
    )


def _is_from_broker(request: ControllerRequest[Any]) -> bool:
    return isinstance(request, ForwardedRequest) and request.is_from_broker


def _resource(one: Any) -> ConfigResource:
    return ConfigResource(int(one.resource_type), one.resource_name)


def _refused_before(resources: Iterable[Any], principal: Principal) -> _Refusals:
    """Return the refusals that do not depend on the state."""
    refused: _Refusals = {}
    for one in map(_resource, resources):
        if not principal.may(Operation.ALTER_CONFIGS, _acl_resource(one)):
            refused[one] = unauthorized(_UNAUTHORIZED.get(one.resource_type))
    return refused | _repeated(resources)


def _acl_resource(one: ConfigResource) -> Resource:
    """Return the resource whose ACLs apply to configs (Kafka: ``ControllerApis``)."""
    if one.resource_type == TOPIC:
        return Resource(ResourceType.TOPIC, one.name)
    return Resource(ResourceType.GROUP, one.name) if one.resource_type == GROUP else CLUSTER


def _repeated(resources: Iterable[Any]) -> _Refusals:
    """Return the refusals of resources that a request contains several times."""
    reason, remedy = "Each resource must appear at most once.", "name each resource once"
    return {
        resource: ApiException("the request", reason, remedy)
        for resource, count in Counter(map(_resource, resources)).items()
        if count > 1
    }


_UNAUTHORIZED: Final[Mapping[int, ErrorCode]] = {
    TOPIC: ErrorCode.topic_authorization_failed,
    GROUP: ErrorCode.group_authorization_failed,
}


def _operation(config: alter_requests.AlterableConfig) -> AlterConfig:
    number = int(config.config_operation)
    try:
        operation = ConfigOperation(number)
    except ValueError:
        reason = f"Unknown config operation {number}"
        remedy = "use SET, DELETE, APPEND or SUBTRACT"
        raise ApiException(f"config {config.name!r}", reason, remedy) from None
    return AlterConfig(config.name, operation, config.value)


def _altered(
    resource: ConfigResource, code: ErrorCode, message: str | None
) -> alter_responses.AlterConfigsResourceResponse:
    return alter_responses.AlterConfigsResourceResponse(
        error_code=code,
        error_message=message,
        resource_type=int8(resource.resource_type),
        resource_name=resource.name,
    )


def _legacy_altered(
    resource: ConfigResource, code: ErrorCode, message: str | None
) -> legacy_responses.AlterConfigsResourceResponse:
    return legacy_responses.AlterConfigsResourceResponse(
        error_code=code,
        error_message=message,
        resource_type=int8(resource.resource_type),
        resource_name=resource.name,
    )


# --- DescribeConfigs ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """Effective config; ``synonyms``: it, and the values that are effective without it."""

    name: str
    value: str | None
    source: ConfigSource
    synonyms: tuple[tuple[str, str | None, ConfigSource], ...]


class TopicConfig(NamedTuple):
    """Topic config: its default, and the broker config that sets the cluster's default."""

    default: str
    synonym: str


async def handle_describe_configs(
    controller: HostedController, request: _Describe
) -> describe_responses.DescribeConfigsResponse:
    body, principal = request.body, request.principal
    if len(body.resources) > DESCRIBED_MAX:
        reason = (
            f"The request describes {len(body.resources)} resources, but at most {DESCRIBED_MAX} "
            "are described at a time: divide it."
        )
        raise ApiException("the request", reason, "divide it", ErrorCode.policy_violation)
    repeated = _repeated(body.resources)
    resources = {_resource(one): one for one in body.resources}

    def describe(
        resource: ConfigResource,
        one: describe_requests.DescribeConfigsResource,
        state: ControllerState,
    ) -> describe_responses.DescribeConfigsResult:
        if resource in repeated:
            return _result(one, *code_and_message(repeated[resource]), ())
        if resource == _LOG:
            return _described_log(one, principal, controller.log_configs())
        return _described(one, body, principal, state)

    def step(
        some: Sequence[tuple[ConfigResource, describe_requests.DescribeConfigsResource]],
        state: ControllerState,
    ) -> list[describe_responses.DescribeConfigsResult]:
        return [describe(resource, one, state) for resource, one in some]

    all_resources = list(resources.items())
    steps = [
        partial(step, all_resources[start : start + DESCRIBED_PER_STEP])
        for start in range(0, len(all_resources), DESCRIBED_PER_STEP)
    ]
    found = await controller.read_in_steps("describeConfigs", steps)
    return describe_responses.DescribeConfigsResponse(
        throttle_time=duration(0), results=tuple(chain.from_iterable(found))
    )


def refuse_describe_configs(
    request: _Describe, code: ErrorCode, message: str | None
) -> describe_responses.DescribeConfigsResponse:
    return describe_responses.DescribeConfigsResponse(
        throttle_time=duration(0),
        results=tuple(_result(one, code, message, ()) for one in request.body.resources),
    )


def _described_log(
    one: describe_requests.DescribeConfigsResource,
    principal: Principal,
    settings: Mapping[str, str],
) -> describe_responses.DescribeConfigsResult:
    """Describe the log itself, whose topic is not in the metadata."""
    if not principal.may(Operation.DESCRIBE_CONFIGS, _acl_resource(_LOG)):
        return _result(one, *code_and_message(unauthorized(_UNAUTHORIZED[TOPIC])), ())
    names = one.configuration_keys
    return _result(
        one,
        ErrorCode.none,
        None,
        tuple(
            describe_responses.DescribeConfigsResourceResult(
                name=name,
                value=value,
                read_only=True,
                config_source=int8(ConfigSource.TOPIC_CONFIG),
                is_sensitive=False,
                synonyms=(),
                documentation=None,
            )
            for name, value in settings.items()
            if names is None or name in names
        ),
    )


def _described(
    one: describe_requests.DescribeConfigsResource,
    body: describe_requests.DescribeConfigsRequest,
    principal: Principal,
    state: ControllerState,
) -> describe_responses.DescribeConfigsResult:
    try:
        resource = _resource(one)
        if not principal.may(Operation.DESCRIBE_CONFIGS, _acl_resource(resource)):
            raise unauthorized(_UNAUTHORIZED.get(resource.resource_type))
        entries = list(effective_configs(resource, state))
    except ApiException as error:
        return _result(one, *code_and_message(error), ())
    names = None if one.configuration_keys is None else set(one.configuration_keys)
    return _result(
        one,
        ErrorCode.none,
        None,
        tuple(
            _config(int(one.resource_type), entry, has_synonyms=body.include_synonyms)
            for entry in entries
            if names is None or entry.name in names
        ),
    )


def effective_configs(resource: ConfigResource, state: ControllerState) -> Iterator[ConfigEntry]:
    """Yield a resource's configs sorted by name; for a topic, including defaults.

    Raises ``ApiException``.
    """
    kind, name = resource
    what = f"the configs of {name!r}"
    if kind == TOPIC:
        if state.topic(name) is None:
            code = ErrorCode.unknown_topic_or_partition
            reason = "This server does not host this topic-partition."
            raise ApiException(what, reason, "correct the name", code)
        yield from _topic_entries(resource, state)
        return
    if kind == BROKER:
        source = ConfigSource.DYNAMIC_BROKER_CONFIG
        if not name:
            source = ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG
        elif not (name.isascii() and name.isdigit()):
            reason = f"Broker id must be an integer, but it is: {name}"
            raise ApiException(what, reason, "use the broker's id")
    elif kind in (CLIENT_METRICS, GROUP):
        is_group = kind == GROUP
        source = ConfigSource.GROUP_CONFIG if is_group else ConfigSource.CLIENT_METRICS_CONFIG
        if not name:
            reason = (
                f"{'Group' if is_group else 'Client metrics subscription'} name must not be empty"
            )
            raise ApiException(what, reason, "name the resource")
    else:
        raise ApiException(what, f"Unsupported resource type: {kind}", "correct the type")
    for key, value in resource_configs(resource, state).items():
        shown = None if is_secret_config(kind, key) else value
        yield ConfigEntry(key, shown, source, ((key, shown, source),))


def _topic_entries(resource: ConfigResource, state: ControllerState) -> Iterator[ConfigEntry]:
    own = resource_configs(resource, state)
    defaults = resource_configs(ConfigResource(BROKER, ""), state)
    for key in sorted(topic_config_table().keys() | own.keys()):
        config = topic_config_table().get(key)
        found: list[tuple[str, str | None, ConfigSource]] = []
        if key in own:
            shown = None if is_secret_config(TOPIC, key) else own[key]
            found.append((key, shown, ConfigSource.TOPIC_CONFIG))
        if config is not None and config.synonym in defaults:
            value = defaults[config.synonym]
            source = ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG
            found.append((config.synonym, value, source))
        if config is not None:
            found.append((config.synonym or key, config.default, ConfigSource.DEFAULT_CONFIG))
        yield ConfigEntry(key, found[0][1], found[0][2], tuple(found))


@cache
def topic_config_table() -> Mapping[str, TopicConfig]:
    """Return the configs of topics in Kafka 4.3.1, by name."""
    table = pkgutil.get_data("raftlog_state.controller_apis", "topic_configs.tsv")
    assert table is not None, "the installed package lacks its table"
    rows = (line.split("\t") for line in table.decode().splitlines()[1:])
    return {name: TopicConfig(default, synonym) for name, default, synonym in rows}


def _result(
    one: describe_requests.DescribeConfigsResource,
    code: ErrorCode,
    message: str | None,
    configs: tuple[describe_responses.DescribeConfigsResourceResult, ...],
) -> describe_responses.DescribeConfigsResult:
    return describe_responses.DescribeConfigsResult(
        error_code=code,
        error_message=message,
        resource_type=one.resource_type,
        resource_name=one.resource_name,
        configs=configs,
    )


def _config(
    resource_type: int, entry: ConfigEntry, *, has_synonyms: bool
) -> describe_responses.DescribeConfigsResourceResult:
    synonyms = entry.synonyms if has_synonyms else ()
    return describe_responses.DescribeConfigsResourceResult(
        name=entry.name,
        value=entry.value,
        read_only=False,
        config_source=int8(entry.source),
        is_sensitive=is_secret_config(resource_type, entry.name),
        synonyms=tuple(
            describe_responses.DescribeConfigsSynonym(name=name, value=value, source=int8(source))
            for name, value, source in synonyms
        ),
        config_type=int8(_TYPES.get(config_type(resource_type, entry.name) or "", 0)),
        documentation=None,
    )
