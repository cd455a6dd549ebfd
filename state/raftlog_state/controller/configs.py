"""Changes of configs.

A value equal to the current one is not written, except for brokers, which then reload the files
that it names (KAFKA-14136). With ELR enabled, a change of min.insync.replicas clears the eligible
leader replicas, which were determined with the old value (KIP-966).

Source: Kafka 4.3 ``ConfigurationControlManager``, ``ControllerConfigurationValidator``,
``QuorumController.ConfigResourceExistenceChecker``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from raftlog_state.enums import CONFIG_RESOURCE_TYPES, enum_name
from raftlog_state.image import BrokerRow, ControllerRow
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
from .change_requests import DeleteConfig, SetConfig
from .config_values import invalid_value_reason, unknown_config_reason
from .controller_state import BROKER, CLIENT_METRICS, GROUP, TOPIC
from .dispatch import write
from .pending_state import PendingState

VALUE_LENGTH_MAX: Final = 2**15 - 1
MIN_ISR: Final = "min.insync.replicas"
CORDONED: Final = "cordoned.log.dirs"
MIN_LAG: Final = "min.compaction.lag.ms"
MAX_LAG: Final = "max.compaction.lag.ms"
_RESOURCE_TYPES: Final = {n: w for n, w in CONFIG_RESOURCE_TYPES.items() if w != "BROKER_LOGGER"}
"""Resource types with configs in the log; those of BROKER_LOGGER are in the broker's memory."""


@write.register
def set_config(change: SetConfig, state: PendingState) -> None:
    """Set a config."""
    _change_config(change, change.value, state)


@write.register
def delete_config(change: DeleteConfig, state: PendingState) -> None:
    """Delete a config, if it is set."""
    _change_config(change, None, state)


def write_topic_configs(topic: str, configs: Mapping[str, str], state: PendingState) -> None:
    """Write the configs of a new topic, sorted by name. Raises ``ApiException``."""
    for name in sorted(configs):
        what = f"config {name!r} of topic {topic!r}"
        _write_config(TOPIC, topic, name, configs[name], what, state)
    _clear_elr(TOPIC, topic, tuple(configs), state)


def _change_config(
    change: SetConfig | DeleteConfig, value: str | None, state: PendingState
) -> None:
    what = f"config {change.name!r} of {change.resource_type} {change.resource_name!r}"
    kind = enum_number(_RESOURCE_TYPES, change.resource_type, what)
    _check_resource(kind, change.resource_name, what, state)
    if _write_config(kind, change.resource_name, change.name, value, what, state):
        _clear_elr(kind, change.resource_name, (change.name,), state)


def _write_config(
    kind: int, resource: str, name: str, value: str | None, what: str, state: PendingState
) -> bool:
    before = state.current.config(kind, resource, name)
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
        reason = _invalid_broker_config_reason(resource, name, value, state)
    if reason is not None:
        raise ApiException(what, reason, "correct the config's name or value", INVALID_CONFIG)
    if before == value and (kind != BROKER or value is None):
        return False
    state.write(ConfigRecord(resource_type=kind, resource_name=resource, name=name, value=value))
    if kind == TOPIC and name in (MIN_LAG, MAX_LAG):
        _check_lags(resource, what, state)
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


def _check_lags(topic: str, what: str, state: PendingState) -> None:
    low, high = (state.current.config(TOPIC, topic, name) for name in (MIN_LAG, MAX_LAG))
    if low is not None and high is not None and int(low) > int(high):
        reason = f"conflict topic config setting {MIN_LAG} > {MAX_LAG}"
        raise ApiException(what, reason, "change the other config first", INVALID_CONFIG)


def _clear_elr(kind: int, resource: str, names: tuple[str, ...], state: PendingState) -> None:
    if MIN_ISR in names and state.current.versions.elr:
        state.write(ClearElrRecord(topic_name=resource if kind == TOPIC else ""))


def _check_resource(kind: int, name: str, what: str, state: PendingState) -> None:
    if kind == TOPIC and state.current.topic(name) is None:
        remedy = "create it first, or correct its name"
        reason = f"The topic '{name}' does not exist"
        raise ApiException(what, reason, remedy, UNKNOWN_TOPIC_OR_PARTITION)
    if kind == BROKER and name:
        if not name.isascii() or not name.isdigit():
            reason = "Unable to parse broker name as a base 10 number"
            raise ApiException(what, reason, "use the broker's id", INVALID_REQUEST)
        node = state.current.find(BrokerRow, int(name)) or state.current.find(
            ControllerRow, int(name)
        )
        if node is None:
            reason = f"No node with id {int(name)} found"
            remedy = "correct the id, or register the broker first"
            raise ApiException(what, reason, remedy, BROKER_ID_NOT_REGISTERED)
    if not name and kind not in (TOPIC, BROKER):
        word = enum_name(CONFIG_RESOURCE_TYPES, kind)
        reason = f"Default {word} resources are not allowed"
        raise ApiException(what, reason, "set resource_name", INVALID_REQUEST)
    assert kind in (TOPIC, BROKER, GROUP, CLIENT_METRICS)
