"""Value types used by all layers, with Kafka's names.

Ranges are half-open: ``start_offset`` is inclusive, ``end_offset`` exclusive. Inclusive pairs are
named ``first`` and ``last``.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final, NamedTuple, NewType, TypeAlias

CLUSTER_METADATA_TOPIC: Final = "__cluster_metadata"
CONSUMER_OFFSETS_TOPIC: Final = "__consumer_offsets"
TRANSACTION_STATE_TOPIC: Final = "__transaction_state"
SHARE_GROUP_STATE_TOPIC: Final = "__share_group_state"
REMOTE_LOG_METADATA_TOPIC: Final = "__remote_log_metadata"
INTERNAL_TOPICS: Final = frozenset(
    {
        CONSUMER_OFFSETS_TOPIC,
        TRANSACTION_STATE_TOPIC,
        SHARE_GROUP_STATE_TOPIC,
        REMOTE_LOG_METADATA_TOPIC,
    }
)
"""Internal topics other than the metadata log whose records have a known format."""
CLUSTER_METADATA_TOPIC_ID: Final = "AAAAAAAAAAAAAAAAAAAAAQ"
"""The fixed topic id of the metadata log (Kafka: ``Uuid.METADATA_TOPIC_ID``)."""
ZERO_UUID: Final = "AAAAAAAAAAAAAAAAAAAAAA"
"""Base64 of sixteen zero bytes: no id, or unknown (Kafka: ``Uuid.ZERO_UUID``)."""
SASL_PLAIN: Final = "PLAIN"
SASL_OAUTHBEARER: Final = "OAUTHBEARER"
SCRAM_HASHES: Final = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
SASL_MECHANISMS: Final = (SASL_PLAIN, *SCRAM_HASHES, SASL_OAUTHBEARER)


NodeId = NewType("NodeId", int)
"""Id of a node beside an epoch: mypy rejects another number in its place."""
Position = NewType("Position", int)
"""Position in a file in bytes, beside an offset."""


class Operation(enum.IntEnum):
    """Operation that an ACL allows or denies (Kafka: ``AclOperation``)."""

    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class ResourceType(enum.IntEnum):
    """Type of a resource of ACLs (Kafka: ``ResourceType``)."""

    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class Resource(NamedTuple):
    """Resource that a request uses."""

    kind: ResourceType
    name: str


CLUSTER: Final = Resource(ResourceType.CLUSTER, "kafka-cluster")
"""The only resource of its type (Kafka: ``Resource.CLUSTER``)."""


@dataclass(frozen=True, slots=True, order=True, kw_only=True)
class OffsetAndEpoch:
    """An offset and its leader epoch. Ordered by epoch, then by offset, as in Kafka."""

    epoch: int
    offset: int


@dataclass(frozen=True, slots=True, order=True, kw_only=True)
class SnapshotId:
    """Id of a snapshot: the state of all records below ``end_offset`` (exclusive).

    ``epoch`` is the leader epoch of the last of these records. Ordered by epoch, then by offset
    (Kafka: ``OffsetAndEpoch``). ``str()`` is the start of the snapshot's file name.
    """

    epoch: int
    end_offset: int

    def __str__(self) -> str:
        return f"{self.end_offset:020d}-{self.epoch:010d}"


@dataclass(frozen=True, slots=True)
class TopicPartition:
    """A partition of a topic. ``str()`` is the name of the log's directory."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


@dataclass(frozen=True, slots=True)
class ReplicaKey:
    """Id of a replica: node id and, since KIP-853, directory id (``ZERO_UUID`` if unknown)."""

    node_id: int
    directory_id: str = ZERO_UUID

    def matches(self, replica: ReplicaKey) -> bool:
        """Return whether ``replica`` is the replica that this key names.

        A key without a directory id names every directory of its node. The opposite does not hold:
        a replica without a directory id is not the one that a key with a directory id names.
        Kafka: ``VoterSet.VoterNode.isVoter``, ``UnattachedState.canGrantVote``.
        """
        return self.node_id == replica.node_id and self.directory_id in (
            ZERO_UUID,
            replica.directory_id,
        )


@dataclass(frozen=True, slots=True)
class Valid:
    """The follower's log matches the leader's up to the fetch offset."""


@dataclass(frozen=True, slots=True)
class Diverging:
    """The follower's log diverges: it must truncate to ``end`` before it fetches again.

    In the leader's log ``end.epoch`` is the largest epoch <= the follower's last epoch, and
    ``end.offset`` is its end offset (exclusive).
    """

    end: OffsetAndEpoch


@dataclass(frozen=True, slots=True)
class SnapshotNeeded:
    """The records at the fetch offset are deleted: the follower must fetch this snapshot."""

    snapshot_id: SnapshotId


ValidOffsetAndEpoch: TypeAlias = Valid | Diverging | SnapshotNeeded
"""Result of the leader's validation of a fetch offset and epoch (Kafka:
``ValidOffsetAndEpoch``)."""
