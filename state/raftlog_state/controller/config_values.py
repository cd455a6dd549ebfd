"""Validation of config names and values, as by Kafka's ``ControllerConfigurationValidator``.

``config_limits.tsv`` (scope, name, valid) contains the text of the validators in Kafka 4.4.0's
``ConfigDef`` for topics, groups and client metrics; types are in ``records.config_types``. A name
that occurs only in the types was removed in Kafka 4.

For broker configs, only the type is validated, and only for known names, because plugins may define
others. No message contains a value.
"""

from __future__ import annotations

import pkgutil
import re
from collections.abc import Callable
from functools import cache
from typing import Final

from raftlog_state.records import config_type

_TABLE: Final = "config_limits.tsv"
_SCOPES: Final = {"topic": 2, "client-metrics": 16, "group": 32}
_BROKER: Final = 4
_LIST_DEFAULTS: Final = {
    (2, "cleanup.policy"): "delete",
    (_BROKER, "group.consumer.assignors"): "uniform,range",
    (_BROKER, "group.coordinator.rebalance.protocols"): "classic,consumer,streams",
    (_BROKER, "group.share.assignors"): "simple",
    (_BROKER, "listeners"): "PLAINTEXT://:9092",
    (_BROKER, "group.streams.assignors"): "sticky",
    (_BROKER, "log.cleanup.policy"): "delete",
    (_BROKER, "log.dir"): "/tmp/kafka-logs",
    (_BROKER, "metric.reporters"): "org.apache.kafka.common.metrics.JmxReporter",
    (_BROKER, "sasl.enabled.mechanisms"): "GSSAPI",
    (_BROKER, "sasl.kerberos.principal.to.local.rules"): "DEFAULT",
    (_BROKER, "ssl.enabled.protocols"): "TLSv1.2,TLSv1.3",
}
"""Defaults in Kafka 4.4.0 of the configs of type LIST that have one."""

LEVEL_KAFKA_4: Final = 22
"""4.0-IV0: the cluster has no Kafka 3 nodes."""

_INTEGER: Final = re.compile(r"[+-]?[0-9]+", re.ASCII)
_LONG_DIGITS_MAX: Final = 19
_DECIMAL: Final = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?", re.ASCII)
_INTEGER_BITS: Final = {"SHORT": 16, "INT": 32, "LONG": 64}
_COMMA: Final = re.compile(r"\s*,\s*")
_RANGE: Final = re.compile(r"\[([^,\]]+),\.\.\.(?:,([^\]]+))?\](?: or (.+))?")
_THROTTLED: Final = "[partitionId]:[brokerId]"
_REPLICAS: Final = re.compile(r"(?:[0-9]+:[0-9]+)?", re.ASCII)
_DURATION: Final = "by_duration:"
_ISO_DURATION: Final = re.compile(
    r"P(?=.)(?:[0-9]+D)?(?:T(?=.)(?:[0-9]+H)?(?:[0-9]+M)?(?:[0-9]+(?:\.[0-9]{1,9})?S)?)?", re.I
)
_MATCH_NAMES: Final = frozenset(
    {
        "client_instance_id",
        "client_id",
        "client_software_name",
        "client_software_version",
        "client_source_address",
        "client_source_port",
    }
)
"""Names in the match patterns of a client metrics subscription (``ClientMetricsConfigs``)."""


def unknown_config_reason(resource_type: int, name: str, level: int) -> str | None:
    """Return why a config does not exist at a level of metadata.version, or None if it exists."""
    if resource_type == _BROKER:
        return None if name else "the config name is empty"
    if (resource_type, name) in _limits():
        return None
    if config_type(resource_type, name) is None:
        return f"Unknown config name: {name}"
    return f"Unknown config name: {name} (removed in Kafka 4.0)" if level >= LEVEL_KAFKA_4 else None


def invalid_value_reason(resource_type: int, name: str, value: str) -> str | None:
    """Return why a value is invalid, or None if it is valid."""
    kind = config_type(resource_type, name)
    text = value.strip()
    reason = None if kind is None else _invalid_type_reason(kind, text)
    if reason is not None or resource_type == _BROKER:
        return reason
    if (resource_type, name) == (_SCOPES["client-metrics"], "match"):
        return _invalid_patterns_reason(text)
    check = _limits().get((resource_type, name))
    return None if check is None else check(text)


def parse_integer(text: str, bits: int) -> int | None:
    """Return a decimal number that fits into ``bits`` bits, at most 64; None for any other text.

    The text may have more digits than ``int`` converts, as in Kafka.
    """
    if _INTEGER.fullmatch(text) is None:
        return None
    digits = text.lstrip("+-").lstrip("0")
    if len(digits) > _LONG_DIGITS_MAX:
        return None
    number = int(digits or "0") * (-1 if text.startswith("-") else 1)
    return number if -(1 << bits - 1) <= number < 1 << bits - 1 else None


def list_default(resource_type: int, name: str) -> str | None:
    """Return the default of a config of type LIST, "" if it has none; None for other types.

    As in Kafka's ``KafkaConfigSchema``, only topics and brokers have configs of type LIST.
    """
    if resource_type not in (_SCOPES["topic"], _BROKER):
        return None
    if config_type(resource_type, name) != "LIST" or name.startswith("zookeeper."):
        return None
    return _LIST_DEFAULTS.get((resource_type, name), "")


def list_parts(value: str | None) -> list[str]:
    """Return the elements of a value of type LIST."""
    text = "" if value is None else value.strip()
    return _COMMA.split(text) if text else []


# --- types ----------------------------------------------------------------------------------------


def _invalid_type_reason(kind: str, text: str) -> str | None:
    """Source: Kafka ``ConfigDef.parseType``."""
    if kind == "BOOLEAN" and text.lower() not in ("true", "false"):
        return "Expected value to be either true or false"
    if kind == "DOUBLE" and _DECIMAL.fullmatch(text) is None:
        return "Not a number of type DOUBLE"
    bits = _INTEGER_BITS.get(kind)
    if bits is not None:
        if _INTEGER.fullmatch(text) is None:
            return f"Not a number of type {kind}"
        if parse_integer(text, bits) is None:
            return f"Not a number of type {kind}: it does not fit into {bits} bits"
    return None


# --- limits ---------------------------------------------------------------------------------------

Check = Callable[[str], "str | None"]


@cache
def _limits() -> dict[tuple[int, str], Check | None]:
    table = pkgutil.get_data("raftlog_state.controller", _TABLE)  # works in a zip file, too
    assert table is not None, "the installed package lacks its table"
    rows = (line.split("\t") for line in table.decode().splitlines()[1:])
    return {
        (_SCOPES[scope], name): _parse_validator(valid, config_type(_SCOPES[scope], name) or "")
        for scope, name, valid in rows
    }


def _parse_validator(valid: str, kind: str) -> Check | None:
    """Return the check for a validator's text, such as ``[1,...]`` or ``[compact, delete]``."""
    limits = _RANGE.fullmatch(valid)
    if limits is not None:
        low, high, other = limits.groups()
        return _in_range(float(low), float(high or "inf"), other, valid)
    if valid.startswith(_THROTTLED):
        return _throttled
    if valid:
        return _one_of(tuple(valid.strip("[]").split(", ")), kind, valid)
    return _no_empty_part if kind == "LIST" else None


def _in_range(low: float, high: float, other: str | None, valid: str) -> Check:
    def check(text: str) -> str | None:
        if low <= float(text) <= high or text == other:
            return None
        return f"Value must be in {valid}"

    return check


def _one_of(choices: tuple[str, ...], kind: str, valid: str) -> Check:
    durations = [one for one in choices if one.startswith(_DURATION)]

    def is_valid(text: str) -> bool:
        if durations and text.lower().startswith(_DURATION):
            return _ISO_DURATION.fullmatch(text[len(_DURATION) :]) is not None
        return text in choices and text not in durations

    def check(text: str) -> str | None:
        parts = list_parts(text) if kind == "LIST" else [text]
        return None if all(map(is_valid, parts)) else f"Value must be one of: {valid}"

    return check


def _no_empty_part(text: str) -> str | None:
    return None if all(list_parts(text)) else "Value must be a list without empty elements"


def _throttled(text: str) -> str | None:
    """Source: Kafka ``ThrottledReplicaListValidator``."""
    parts = [part.strip() for part in text.split(",")]
    if "".join(parts) == "*" or all(_REPLICAS.fullmatch(part) for part in parts):
        return None
    return (
        "Value must be the literal '*' or a list of replicas in the following format: "
        "[partitionId]:[brokerId],[partitionId]:[brokerId],..."
    )


def _invalid_patterns_reason(text: str) -> str | None:
    """Source: Kafka ``ClientMetricsConfigs.parseMatchingPatterns``; patterns are not compiled."""
    for pattern in list_parts(text):
        name, _, expression = pattern.partition("=")
        if name.strip() not in _MATCH_NAMES or not expression or "=" in expression:
            return "Illegal client matching pattern; expected a list of name=expression"
    return None
