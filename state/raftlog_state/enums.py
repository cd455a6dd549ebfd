"""Names of the enum values in records of Kafka's metadata log and other internal logs.

Sources: Kafka's ``ConfigResource.Type``, ``ResourceType``, ``PatternType``, ``AclOperation``,
``AclPermissionType``, ``ScramMechanism``, ``SecurityProtocol``, ``LeaderRecoveryState``,
``ZkMigrationState``, ``TransactionState``, ``MemberState``, ``RecordState``,
``RemoteLogSegmentState``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from raftlog.types import Operation, ResourceType

CONFIG_RESOURCE_TYPES: Final[Mapping[int, str]] = {
    2: "TOPIC",
    4: "BROKER",
    8: "BROKER_LOGGER",
    16: "CLIENT_METRICS",
    32: "GROUP",
}
ACL_RESOURCE_TYPES: Final[Mapping[int, str]] = {one.value: one.name for one in ResourceType}
PATTERN_TYPES: Final[Mapping[int, str]] = {3: "LITERAL", 4: "PREFIXED"}
ACL_OPERATIONS: Final[Mapping[int, str]] = {one.value: one.name for one in Operation}
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
TRANSACTION_STATES: Final[Mapping[int, str]] = {
    0: "Empty",
    1: "Ongoing",
    2: "PrepareCommit",
    3: "PrepareAbort",
    4: "CompleteCommit",
    5: "CompleteAbort",
    6: "Dead",
    7: "PrepareEpochFence",
}
MEMBER_STATES: Final[Mapping[int, str]] = {
    0: "Stable",
    1: "UnrevokedPartitions",
    2: "UnreleasedPartitions",
    127: "Unknown",
}
# Kafka's streams.MemberState counts from 1, modern.MemberState from 0.
STREAMS_MEMBER_STATES: Final[Mapping[int, str]] = {
    1: "Stable",
    2: "UnrevokedTasks",
    3: "UnreleasedTasks",
    127: "Unknown",
}
DELIVERY_STATES: Final[Mapping[int, str]] = {
    0: "Available",
    1: "Acquired",
    2: "Acknowledged",
    3: "Archiving",
    4: "Archived",
}
REMOTE_SEGMENT_STATES: Final[Mapping[int, str]] = {
    0: "CopySegmentStarted",
    1: "CopySegmentFinished",
    2: "DeleteSegmentStarted",
    3: "DeleteSegmentFinished",
}


def enum_name(names: Mapping[int, str], number: int) -> str:
    """Return the name of an enum value, or its digits if a newer Kafka has added it."""
    return names.get(number, str(number))
