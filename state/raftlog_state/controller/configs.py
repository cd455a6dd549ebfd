"""Changes of configs.

A request changes several configs of several resources. If one config is refused, none of its
resource's is changed. A value equal to the current one is not written, except for brokers, which
then reload the files that it names (KAFKA-14136). If ELR is enabled, a change of
min.insync.replicas clears the eligible leader replicas, because they were determined with the old
value (KIP-966).

Source: Kafka 4.3 ``ConfigurationControlManager``, ``ControllerConfigurationValidator``,
``QuorumController.ConfigResourceExistenceChecker``.
"""

from __future__ import annotations

import enum
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, NamedTuple

from raftlog_state.enums import CONFIG_RESOURCE_TYPES, enum_name
from raftlog_state.image import BrokerRow, ConfigRow, ControllerRow, Entity
from raftlog_state.image.record_versions import LEVEL_CORDONED
from raftlog_state.records import ClearElrRecord, ConfigRecord

from .api_exception import (
    BROKER_ID_NOT_REGISTERED,
    INVALID_CONFIG,
    INVALID_REQUEST,
    UNKNOWN_TOPIC_OR_PARTITION,
    ApiException,
    enum_number,
)
from .change_requests import AppendConfig, DeleteConfig, SetConfig, SubtractConfig
from .config_values import (
    invalid_value_reason,
    list_default,
    list_parts,
    parse_integer,
    unknown_config_reason,
)
from .controller_state import BROKER, CLIENT_METRICS, GROUP, TOPIC, ControllerState
from .pending_state import PendingState, write_in_steps

VALUE_LENGTH_MAX: Final = 2**15 - 1
MIN_ISR: Final = "min.insync.replicas"
CORDONED: Final = "cordoned.log.dirs"
MIN_LAG: Final = "min.compaction.lag.ms"
MAX_LAG: Final = "max.compaction.lag.ms"
_RESOURCE_TYPES: Final = {n: w for n, w in CONFIG_RESOURCE_TYPES.items() if w != "BROKER_LOGGER"}
"""Resource types with configs in the log. Those of BROKER_LOGGER are in the broker's memory."""


class ConfigOperation(enum.IntEnum):
    """Operation on one config (Kafka: ``AlterConfigOp.OpType``)."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class ConfigResource(NamedTuple):
    """Resource with configs; ``resource_type`` is the id of Kafka's ``ConfigResource.Type``."""

    resource_type: int
    name: str


@dataclass(frozen=True, slots=True)
class AlterConfig:
    """Operation on a config of a resource. The value may be a secret and is not in ``repr``."""

    name: str
    operation: ConfigOperation
    value: str | None = field(default=None, repr=False)


def incremental_alter_configs(
    changes: Mapping[ConfigResource, Sequence[AlterConfig]],
    state: PendingState,
    *,
    is_forwarded: bool = False,
) -> Generator[None, None, dict[ConfigResource, ApiException | None]]:
    """Change configs; return the refusal of each resource, None for a changed one.

    ``is_forwarded``: by a broker, which has validated the log directories to be cordoned.
    """
    refused = yield from state.attempt_each(
        partial(_alter, resource, operations, state, is_forwarded=is_forwarded)
        for resource, operations in changes.items()
    )
    return dict(zip(changes, refused, strict=True))


def legacy_alter_configs(
    configs: Mapping[ConfigResource, Mapping[str, str | None]],
    state: PendingState,
    *,
    is_forwarded: bool = False,
) -> Generator[None, None, dict[ConfigResource, ApiException | None]]:
    """Replace all configs of resources (Kafka: AlterConfigs); return each resource's refusal."""
    changes: dict[ConfigResource, list[AlterConfig]] = {}
    for resource, values in configs.items():
        current = resource_configs(resource, state.current)
        deletions = [
            AlterConfig(name, ConfigOperation.DELETE) for name in current if name not in values
        ]
        changes[resource] = [
            AlterConfig(name, ConfigOperation.SET, value) for name, value in values.items()
        ] + deletions
        yield from state.pause()
    return (yield from incremental_alter_configs(changes, state, is_forwarded=is_forwarded))


def resource_configs(resource: ConfigResource, state: ControllerState) -> dict[str, str]:
    """Return the configs of a resource that are set, sorted by name."""
    keys = sorted(state.group((Entity.CONFIG, resource.resource_type, resource.name)))
    rows = (state.find(ConfigRow, *key) for key in keys)
    return {row.name: row.value for row in rows if row is not None}


@write_in_steps.register
def set_config(change: SetConfig, state: PendingState) -> None:
    """Set a config."""
    _change_config(change, ConfigOperation.SET, change.value, state)


@write_in_steps.register
def delete_config(change: DeleteConfig, state: PendingState) -> None:
    """Delete a config, if it is set."""
    _change_config(change, ConfigOperation.DELETE, None, state)


@write_in_steps.register
def append_config(change: AppendConfig, state: PendingState) -> None:
    """Append elements to a config of type LIST, except those that it has."""
    _change_config(change, ConfigOperation.APPEND, change.value, state)


@write_in_steps.register
def subtract_config(change: SubtractConfig, state: PendingState) -> None:
    """Remove elements from a config of type LIST."""
    _change_config(change, ConfigOperation.SUBTRACT, change.value, state)


def write_topic_configs(topic: str, configs: Mapping[str, str], state: PendingState) -> None:
    """Write the configs of a new topic, sorted by name. Raises ``ApiException``."""
    operations = [AlterConfig(name, ConfigOperation.SET, configs[name]) for name in sorted(configs)]
    _alter(ConfigResource(TOPIC, topic), operations, state, is_new=True)


def _change_config(
    change: SetConfig | DeleteConfig | AppendConfig | SubtractConfig,
    operation: ConfigOperation,
    value: str | None,
    state: PendingState,
) -> None:
    what = f"config {change.name!r} of {change.resource_type} {change.resource_name!r}"
    kind = enum_number(_RESOURCE_TYPES, change.resource_type, what)
    _alter(
        ConfigResource(kind, change.resource_name),
        (AlterConfig(change.name, operation, value),),
        state,
    )


def _alter(
    resource: ConfigResource,
    operations: Iterable[AlterConfig],
    state: PendingState,
    *,
    is_new: bool = False,
    is_forwarded: bool = True,
) -> None:
    """Write the records of all operations on a resource. Raises ``ApiException``.

    ``is_new``: the resource's record is written in the same operation.
    """
    _check_resource_name(resource, _describe(resource))
    written: list[str] = []
    for operation in operations:
        what = f"config {operation.name!r} of {_describe(resource)}"
        value = _new_value(resource, operation, what, state)
        if (resource.resource_type, operation.name) == (BROKER, CORDONED) and not is_forwarded:
            _check_cordoned(resource, value, what, state)
        if _write_config(resource, operation.name, value, what, state):
            written.append(operation.name)
    if resource.resource_type == TOPIC and {MIN_LAG, MAX_LAG} & set(written):
        _check_lags(resource.name, _describe(resource), state)
    if not is_new:
        _check_resource_exists(resource, _describe(resource), state)
    if MIN_ISR in written and state.current.versions.elr:
        topic = resource.name if resource.resource_type == TOPIC else ""
        state.write(ClearElrRecord(topic_name=topic))


def _new_value(
    resource: ConfigResource, operation: AlterConfig, what: str, state: PendingState
) -> str | None:
    """Return the value after an operation, None to delete it."""
    kind = operation.operation
    if kind is ConfigOperation.DELETE:
        return None
    if operation.value is None:
        reason = f"Null value not supported for : {operation.name}"
        raise ApiException(what, reason, "set a value, or delete the config", INVALID_REQUEST)
    if kind is ConfigOperation.SET:
        return operation.value
    default = list_default(resource.resource_type, operation.name)
    if default is None:
        reason = f"Can't {kind.name} to key {operation.name} because its type is not LIST"
        raise ApiException(what, reason, "set the whole value", INVALID_CONFIG)
    current = state.current.config(*resource, operation.name)
    parts = [part for part in (default if current is None else current).split(",") if part]
    for part in operation.value.split(","):
        if kind is ConfigOperation.SUBTRACT and part in parts:
            parts.remove(part)
        elif kind is ConfigOperation.APPEND and part not in parts:
            parts.append(part)
    return ",".join(parts)


def _write_config(
    resource: ConfigResource, name: str, value: str | None, what: str, state: PendingState
) -> bool:
    """Write the record of a config; return False if it does not change."""
    kind = resource.resource_type
    before = state.current.config(*resource, name)
    reason = None
    if value is not None:
        reason = unknown_config_reason(kind, name, state.current.level) or invalid_value_reason(
            kind, name, value
        )
        if reason is None and len(value) > VALUE_LENGTH_MAX:
            reason = (
                "The configuration value cannot be added because it exceeds the maximum value "
                f"size of {VALUE_LENGTH_MAX} bytes"
            )
    if kind == BROKER and reason is None:
        reason = _invalid_broker_config_reason(resource.name, name, value, state)
    if reason is not None:
        raise ApiException(what, reason, "correct the config's name or value", INVALID_CONFIG)
    if before == value and kind != BROKER:
        return False
    state.write(
        ConfigRecord(resource_type=kind, resource_name=resource.name, name=name, value=value)
    )
    return True


def _invalid_broker_config_reason(
    resource: str, name: str, value: str | None, state: PendingState
) -> str | None:
    if name == MIN_ISR and state.current.versions.elr:
        if resource:
            return f"Broker-level {MIN_ISR} cannot be altered while ELR is enabled"
        if value is None:
            return f"Cluster-level {MIN_ISR} cannot be removed while ELR is enabled"
    if name == CORDONED and state.current.level < LEVEL_CORDONED:
        return f"it requires metadata.version {LEVEL_CORDONED} or higher, not {state.current.level}"
    return None


def _check_cordoned(
    resource: ConfigResource, value: str | None, what: str, state: PendingState
) -> None:
    """Refuse to cordon more directories: the controller does not know a broker's directories."""
    current = state.current.config(*resource, CORDONED)
    added = set(list_parts(value)) - set(list_parts(current))
    if added and state.current.level >= LEVEL_CORDONED:
        reason = (
            f"When updating {CORDONED} via controllers, the new value must be a subset of the "
            "current configuration value"
        )
        raise ApiException(what, reason, "send the change to a broker", INVALID_CONFIG)


def _check_lags(topic: str, what: str, state: PendingState) -> None:
    low, high = (
        parse_integer((state.current.config(TOPIC, topic, name) or "").strip(), 64)
        for name in (MIN_LAG, MAX_LAG)
    )
    if low is not None and high is not None and low > high:
        reason = f"conflict topic config setting {MIN_LAG} > {MAX_LAG}"
        raise ApiException(what, reason, "change the other config first", INVALID_CONFIG)


def _describe(resource: ConfigResource) -> str:
    return f"{enum_name(CONFIG_RESOURCE_TYPES, resource.resource_type)} {resource.name!r}"


def _check_resource_name(resource: ConfigResource, what: str) -> None:
    kind, name = resource
    if kind == BROKER and name:
        broker_id = parse_integer(name, 32)
        if broker_id is None:
            reason = "Unable to parse broker name as a base 10 number"
            raise ApiException(what, reason, "use the broker's id", INVALID_REQUEST)
        if broker_id < 0:
            reason = "Invalid negative broker ID"
            raise ApiException(what, reason, "use the broker's id", INVALID_REQUEST)
    if not name and kind != BROKER:
        word = enum_name(CONFIG_RESOURCE_TYPES, kind).lower()
        reason = f"Default {word} resources are not allowed"
        raise ApiException(what, reason, "set resource_name", INVALID_REQUEST)
    if kind not in (TOPIC, BROKER, GROUP, CLIENT_METRICS):
        reason = f"Unknown resource type {enum_name(CONFIG_RESOURCE_TYPES, kind)}"
        raise ApiException(what, reason, "correct resource_type", INVALID_REQUEST)


def _check_resource_exists(resource: ConfigResource, what: str, state: PendingState) -> None:
    kind, name = resource
    if kind == TOPIC and state.current.topic(name) is None:
        remedy = "create it first, or correct its name"
        reason = f"The topic '{name}' does not exist"
        raise ApiException(what, reason, remedy, UNKNOWN_TOPIC_OR_PARTITION)
    node_id = parse_integer(name, 32) if kind == BROKER else None
    if node_id is not None:
        node = state.current.find(BrokerRow, node_id) or state.current.find(ControllerRow, node_id)
        if node is None:
            reason = f"No node with id {node_id} found"
            remedy = "correct the id, or register the broker first"
            raise ApiException(what, reason, remedy, BROKER_ID_NOT_REGISTERED)
