"""Types of Kafka's configs, and which configs are sensitive.

A config is sensitive if its type is PASSWORD, or if its name is unknown, because a plugin may
define it (Kafka: ``KafkaConfigSchema.isSensitive``).

``config_types.tsv`` (scope, name, type) contains the ``ConfigDef`` of Apache Kafka 4.4.0 and 3.9.2
for topics, brokers, groups and client metrics; a type that is PASSWORD in either is PASSWORD.

A broker config may have a listener prefix, ``listener.name.<listener>.``, and some a SASL mechanism
after it (Kafka: ``DynamicBrokerConfig.brokerConfigSynonyms``).
"""

from __future__ import annotations

import pkgutil
import re
from functools import cache, lru_cache
from typing import Final

_TABLE: Final = "config_types.tsv"
_SCOPES: Final = {2: "topic", 4: "broker", 16: "client-metrics", 32: "group"}
"""Scopes in the table by resource type. BROKER_LOGGER (8) is not in the table."""

_LISTENER_CONFIG: Final = re.compile(r"listener\.name\.[^.]*\.(.*)")
_MECHANISM_CONFIGS: Final = (
    "sasl.jaas.config",
    "sasl.login.callback.handler.class",
    "sasl.login.class",
    "sasl.server.callback.handler.class",
    "connections.max.reauth.ms",
)


@cache
def _types() -> dict[tuple[str, str], str]:
    table = pkgutil.get_data("raftlog_state.records", _TABLE)  # works in a zip file, too
    assert table is not None, "the installed package lacks its table"
    rows = (line.split("\t") for line in table.decode().splitlines()[1:])
    return {(scope, name): kafka_type for scope, name, kafka_type in rows}


def config_type(resource_type: int, name: str) -> str | None:
    """Return the type of a config (``INT``, ``PASSWORD``, ...), or None for an unknown name."""
    scope = _SCOPES.get(resource_type)
    if scope is None:
        return None
    exact = _types().get((scope, name))
    if exact is not None or scope != "broker":
        return exact
    match = _LISTENER_CONFIG.fullmatch(name)
    return None if match is None else _types().get((scope, _without_mechanism(match[1])))


def _without_mechanism(name: str) -> str:
    return next((config for config in _MECHANISM_CONFIGS if name.endswith(config)), name)


@lru_cache(4096)
def is_secret_config(resource_type: int, name: str) -> bool:
    """Return whether a config's value must be redacted."""
    return config_type(resource_type, name) in (None, "PASSWORD")


def public_config_names() -> list[tuple[int, str]]:
    """Return resource type and name of the configs in the table that are not sensitive.

    Names with a listener prefix are not included.
    """
    return [
        (resource_type, name)
        for (scope, name), kafka_type in _types().items()
        for resource_type, scope_of_type in _SCOPES.items()
        if scope == scope_of_type and kafka_type != "PASSWORD"
    ]
