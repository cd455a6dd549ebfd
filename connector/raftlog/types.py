"""Small values that every layer speaks of. Kafka's words, one meaning each.

Ranges are half-open: a ``start_offset`` is inside, an ``end_offset`` is not. Inclusive pairs say
``first`` and ``last``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeAlias

CLUSTER_METADATA_TOPIC: Final = "__cluster_metadata"
CLUSTER_METADATA_TOPIC_ID: Final = "AAAAAAAAAAAAAAAAAAAAAQ"
"""The one topic whose id is fixed (Kafka: ``Uuid.METADATA_TOPIC_ID``)."""
ZERO_UUID: Final = "AAAAAAAAAAAAAAAAAAAAAA"
"""Kafka's base64 text of sixteen zero bytes: "no directory", "not known"."""


@dataclass(frozen=True, slots=True, order=True)
class OffsetAndEpoch:
    """A place in a log's history. Ordered as Kafka orders it: by epoch, then by offset."""

    epoch: int
    offset: int


@dataclass(frozen=True, slots=True, order=True)
class SnapshotId:
    """The state of all records below ``end_offset`` (exclusive); ``epoch`` is that of the last.

    Ordered by epoch first, then offset (Kafka: ``OffsetAndEpoch``).
    """

    epoch: int
    end_offset: int

    def __str__(self) -> str:
        return f"{self.end_offset:020d}-{self.epoch:010d}"


@dataclass(frozen=True, slots=True)
class TopicPartition:
    """Which log: ``str()`` is the name of its directory."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


@dataclass(frozen=True, slots=True)
class ReplicaKey:
    """A voter: node id and, since KIP-853, the id of its metadata directory (or ``ZERO_UUID``)."""

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
    """A follower's log agrees with its leader's up to where it wants to go on."""


@dataclass(frozen=True, slots=True)
class Diverging:
    """It does not: in the leader's log ``end.epoch`` is the newest not above the follower's, and
    ends (exclusive) at ``end.offset``."""

    end: OffsetAndEpoch


@dataclass(frozen=True, slots=True)
class SnapshotNeeded:
    """The records that a follower needs are gone: it must take this snapshot."""

    snapshot_id: SnapshotId


ValidOffsetAndEpoch: TypeAlias = Valid | Diverging | SnapshotNeeded
"""What a leader answers a follower about its place in the log."""
