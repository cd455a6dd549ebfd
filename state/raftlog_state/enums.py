"""Names of the enum values in Kafka's metadata records.

Sources: Kafka's ``ConfigResource.Type``, ``ResourceType``, ``PatternType``, ``AclOperation``,
``AclPermissionType``, ``ScramMechanism``, ``SecurityProtocol``, ``LeaderRecoveryState``,
``ZkMigrationState``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

CONFIG_RESOURCE_TYPES: Final[Mapping[int, str]] = {
    2: "TOPIC",
    4: "BROKER",
    8: "BROKER_LOGGER",
    16: "CLIENT_METRICS",
    32: "GROUP",
}
ACL_RESOURCE_TYPES: Final[Mapping[int, str]] = {
    2: "TOPIC",
    3: "GROUP",
    4: "CLUSTER",
    5: "TRANSACTIONAL_ID",
    6: "DELEGATION_TOKEN",
    7: "USER",
}
PATTERN_TYPES: Final[Mapping[int, str]] = {3: "LITERAL", 4: "PREFIXED"}
ACL_OPERATIONS: Final[Mapping[int, str]] = {
    2: "ALL",
    3: "READ",
    4: "WRITE",
    5: "CREATE",
    6: "DELETE",
    7: "ALTER",
    8: "DESCRIBE",
    9: "CLUSTER_ACTION",
    10: "DESCRIBE_CONFIGS",
    11: "ALTER_CONFIGS",
    12: "IDEMPOTENT_WRITE",
    13: "CREATE_TOKENS",
    14: "DESCRIBE_TOKENS",
    15: "TWO_PHASE_COMMIT",
}
ACL_PERMISSIONS: Final[Mapping[int, str]] = {2: "DENY", 3: "ALLOW"}
SCRAM_MECHANISMS: Final[Mapping[int, str]] = {1: "SCRAM-SHA-256", 2: "SCRAM-SHA-512"}
SECURITY_PROTOCOLS: Final[Mapping[int, str]] = {
    0: "PLAINTEXT",
    1: "SSL",
    2: "SASL_PLAINTEXT",
    3: "SASL_SSL",
}
LEADER_RECOVERY_STATES: Final[Mapping[int, str]] = {0: "RECOVERED", 1: "RECOVERING"}
ZK_MIGRATION_STATES: Final[Mapping[int, str]] = {
    0: "NONE",
    1: "PRE_MIGRATION",
    2: "MIGRATION",
    3: "POST_MIGRATION",
    4: "ZK_DECOMMISSION",
}


def enum_name(names: Mapping[int, str], number: int) -> str:
    """Return the name of an enum value, or its digits if a newer Kafka has added it."""
    return names.get(number, str(number))
