"""The numbers that Kafka's metadata records hold, as the words that people know.

Rules of this file:

1. A number that Kafka may add later is not an error: it is shown as its own digits.
2. Sources: Kafka's ``ConfigResource.Type``, ``ResourceType``, ``PatternType``, ``AclOperation``,
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
    """The word for a number, or the number itself where Kafka has grown a new one."""
    return names.get(number, str(number))
