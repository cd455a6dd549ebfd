"""Which configs are secret: those of Kafka's type PASSWORD, and all whose name Kafka does not know.

Rules of this file:

1. The table beside this file (``config_types.tsv``: scope, name, type) holds what ``ConfigDef`` of
   Apache Kafka 4.3.1 and 3.9.2 says for topics, brokers, groups and client metrics; a type that
   was PASSWORD in either stays it.
2. A broker's config may carry a listener's prefix, ``listener.name.<listener>.``, and some a
   mechanism's behind it (Kafka: ``DynamicBrokerConfig.brokerConfigSynonyms``).
3. An unknown name is secret, since a plugin's config may hold anything (Kafka:
   ``KafkaConfigSchema.isSensitive``).
"""

from __future__ import annotations

import pkgutil
import re
from functools import cache, lru_cache
from typing import Final

_TABLE: Final = "config_types.tsv"
_SCOPES: Final = {2: "topic", 4: "broker", 16: "client-metrics", 32: "group"}
"""By the resource type of a config record. Others (8, a broker's loggers) have no table."""

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
    table = pkgutil.get_data("raftlog_state.records", _TABLE)  # from a zip, too
    assert table is not None, "the package was installed without its table"
    rows = (line.split("\t") for line in table.decode().splitlines()[1:])
    return {(scope, name): kafka_type for scope, name, kafka_type in rows}


def config_type(resource_type: int, name: str) -> str | None:
    """Kafka's type of a config (``INT``, ``PASSWORD``, ..); None: it knows no such name."""
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
    """Whether a config's value must not be shown."""
    return config_type(resource_type, name) in (None, "PASSWORD")
