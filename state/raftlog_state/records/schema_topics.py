"""Record types of topics and partitions.

Reserved directory ids: MIGRATING (uuid 0,0), UNASSIGNED (0,1) and LOST (0,2).

Source: the message files of Kafka's ``metadata`` module, 4.3; KIP-858 (directories), KIP-966 (ELR).
"""

from __future__ import annotations

from raftlog.types import ZERO_UUID

from .declare import INT8, INT32, STRING, UUID, Array, MetadataRecord, field, record


@record(api_key=2)
class TopicRecord(MetadataRecord):
    """Creation of a topic."""

    name: str = field(STRING, default="")
    topic_id: str = field(UUID, default=ZERO_UUID)


@record(api_key=3, latest_version=2)
class PartitionRecord(MetadataRecord):
    """Whole state of a partition. ``leader`` -1: no leader. ELR lists None: empty."""

    partition_id: int = field(INT32, default=-1)
    topic_id: str = field(UUID, default=ZERO_UUID)
    replicas: tuple[int, ...] = field(Array(INT32), default=())
    isr: tuple[int, ...] = field(Array(INT32), default=())
    removing_replicas: tuple[int, ...] = field(Array(INT32), default=())
    adding_replicas: tuple[int, ...] = field(Array(INT32), default=())
    leader: int = field(INT32, default=-1)
    leader_recovery_state: int = field(INT8, tag=0, default=0)
    leader_epoch: int = field(INT32, default=-1)
    partition_epoch: int = field(INT32, default=-1)
    directories: tuple[str, ...] = field(Array(UUID), since=1, default=())
    eligible_leader_replicas: tuple[int, ...] | None = field(
        Array(INT32), since=2, tag=1, nullable=True, default=None
    )
    last_known_elr: tuple[int, ...] | None = field(
        Array(INT32), since=2, tag=2, nullable=True, default=None
    )


@record(api_key=5, latest_version=2)
class PartitionChangeRecord(MetadataRecord):
    """Partial update of a partition: None keeps a list, empty clears it; leader -2: no change."""

    partition_id: int = field(INT32, default=-1)
    topic_id: str = field(UUID, default=ZERO_UUID)
    isr: tuple[int, ...] | None = field(Array(INT32), tag=0, nullable=True, default=None)
    leader: int = field(INT32, tag=1, default=-2)
    replicas: tuple[int, ...] | None = field(Array(INT32), tag=2, nullable=True, default=None)
    removing_replicas: tuple[int, ...] | None = field(
        Array(INT32), tag=3, nullable=True, default=None
    )
    adding_replicas: tuple[int, ...] | None = field(
        Array(INT32), tag=4, nullable=True, default=None
    )
    leader_recovery_state: int = field(INT8, tag=5, default=-1)
    directories: tuple[str, ...] | None = field(
        Array(UUID), since=1, tag=8, nullable=True, default=None
    )
    eligible_leader_replicas: tuple[int, ...] | None = field(
        Array(INT32), since=2, tag=6, nullable=True, default=None
    )
    last_known_elr: tuple[int, ...] | None = field(
        Array(INT32), since=2, tag=7, nullable=True, default=None
    )


@record(api_key=9)
class RemoveTopicRecord(MetadataRecord):
    """Deletion of a topic with its partitions and configs."""

    topic_id: str = field(UUID, default=ZERO_UUID)


@record(api_key=28)
class ClearElrRecord(MetadataRecord):
    """Clearing of the ELR of one topic, or of all if ``topic_name`` is empty (KIP-966)."""

    topic_name: str = field(STRING, default="")
