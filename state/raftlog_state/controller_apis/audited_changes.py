"""Requests that change metadata, as written to a node's audit log: without secrets.

Only fields that are known to be public are kept. Values of configs, salts, keys and tokens are not.
"""

from __future__ import annotations

from typing import Final

from raftlog.wire import ApiKey

_CHANGES: Final = frozenset(
    (
        ApiKey.CREATE_TOPICS,
        ApiKey.DELETE_TOPICS,
        ApiKey.CREATE_PARTITIONS,
        ApiKey.ALTER_CONFIGS,
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        ApiKey.CREATE_ACLS,
        ApiKey.DELETE_ACLS,
        ApiKey.ALTER_CLIENT_QUOTAS,
        ApiKey.ALTER_USER_SCRAM_CREDENTIALS,
        ApiKey.CREATE_DELEGATION_TOKEN,
        ApiKey.RENEW_DELEGATION_TOKEN,
        ApiKey.EXPIRE_DELEGATION_TOKEN,
        ApiKey.UPDATE_FEATURES,
        ApiKey.ALTER_PARTITION_REASSIGNMENTS,
        ApiKey.ELECT_LEADERS,
        ApiKey.UNREGISTER_BROKER,
    )
)
"""APIs of admin clients that change metadata."""

_GROUPS: Final = frozenset(
    (
        *("topics", "resources", "configs", "creations", "filters", "entries", "entity", "ops"),
        *("deletions", "upsertions", "renewers", "feature_updates", "topic_partitions"),
        *("partitions", "partition_assignments", "topic_names", "partition_indexes", "replicas"),
    )
)
"""Fields that contain parts."""
_PUBLIC: Final = frozenset(
    (
        *("name", "topic_id", "topic", "feature", "max_version_level", "upgrade_type", "broker_id"),
        *("num_partitions", "replication_factor", "count", "partition_index", "validate_only"),
        *("resource_type", "resource_name", "resource_pattern_type", "resource_type_filter"),
        *("resource_name_filter", "pattern_type_filter", "principal", "host", "operation"),
        *("permission_type", "principal_filter", "host_filter", "config_operation", "mechanism"),
        *("entity_type", "entity_name", "key", "remove", "iterations", "principal_type"),
        *("principal_name", "owner_principal_type", "owner_principal_name", "max_lifetime"),
        *("election_type", "permission_type_filter"),
    )
)
_PARTS_MAX: Final = 100


def describe_change(api_key: int, body: object) -> object | None:
    """Return the public arguments of a request that changes metadata, None for another request."""
    return _public(body) if api_key in _CHANGES else None


def _public(value: object) -> object:
    if isinstance(value, tuple):
        parts: list[object] = [_public(one) for one in value[:_PARTS_MAX]]
        return parts if len(value) <= _PARTS_MAX else [*parts, f"{len(value)} in all"]
    names = getattr(value, "__dataclass_fields__", None)
    if names is None:
        return value if isinstance(value, str | int) else str(value)
    return {
        name: _public(getattr(value, name)) for name in names if name in _GROUPS or name in _PUBLIC
    }
