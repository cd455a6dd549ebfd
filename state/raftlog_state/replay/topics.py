"""Replay of topics and partitions.

PartitionChangeRecords have no epochs: replay increments them.

Source: Kafka ``TopicsDelta``, ``TopicDelta``, ``PartitionRegistration``, ``DirectoryId``.
"""

from __future__ import annotations

import dataclasses
from typing import Final, TypeVar

from raftlog_state.delta import MetadataDelta
from raftlog_state.fast_dataclass import fast_dataclass
from raftlog_state.image import Entity, PartitionRow, TopicRow
from raftlog_state.records import (
    ClearElrRecord,
    PartitionChangeRecord,
    PartitionRecord,
    RemoveTopicRecord,
    TopicRecord,
)

from .dispatch import replay
from .position import Position, contradiction

T = TypeVar("T")

DIRECTORY_MIGRATING: Final = "AAAAAAAAAAAAAAAAAAAAAA"
"""Directory of a replica whose broker has not reported one (Kafka: ``DirectoryId.MIGRATING``)."""

LEADER_UNCHANGED: Final = -2
RECOVERY_UNCHANGED: Final = -1
CONFIG_OF_TOPIC: Final = 2

_partition_row = fast_dataclass(PartitionRow)


@replay.register
def topic(record: TopicRecord, delta: MetadataDelta, at: Position) -> None:
    """Create a topic without partitions. Neither its id nor its name may exist."""
    if delta.find(TopicRow, record.topic_id) is not None:
        raise contradiction(record, at, f"topic id {record.topic_id} already exists")
    if delta.group((Entity.TOPIC, record.name, "")):
        raise contradiction(record, at, f"topic {record.name!r} already exists")
    delta.put(TopicRow(topic_id=record.topic_id, name=record.name))


@replay.register
def remove_topic(record: RemoveTopicRecord, delta: MetadataDelta, at: Position) -> None:
    """Delete a topic with its partitions and all configs under its name."""
    row = delta.find(TopicRow, record.topic_id)
    if row is None:
        raise contradiction(record, at, f"there is no topic with id {record.topic_id}")
    for key in sorted(delta.group((Entity.PARTITION, record.topic_id, ""))):
        delta.delete(Entity.PARTITION, key)
    for key in sorted(delta.group((Entity.CONFIG, CONFIG_OF_TOPIC, row.name))):
        delta.delete(Entity.CONFIG, key)
    delta.delete(Entity.TOPIC, row.key)


@replay.register
def partition(record: PartitionRecord, delta: MetadataDelta, at: Position) -> None:
    """Create or replace a partition. Its topic must exist."""
    row = delta.find(TopicRow, record.topic_id)
    if row is None:
        raise contradiction(record, at, f"there is no topic with id {record.topic_id}")
    if record.leader_recovery_state not in (0, 1):
        raise contradiction(record, at, _unknown_recovery_state(record.leader_recovery_state))
    delta.put(
        _partition_row(
            topic_id=record.topic_id,
            partition_id=record.partition_id,
            topic_name=row.name,
            replicas=record.replicas,
            isr=record.isr,
            adding_replicas=record.adding_replicas,
            removing_replicas=record.removing_replicas,
            elr=record.eligible_leader_replicas or (),
            last_known_elr=record.last_known_elr or (),
            directories=_directories(record, record.directories, len(record.replicas), at),
            leader=record.leader,
            leader_epoch=record.leader_epoch,
            partition_epoch=record.partition_epoch,
            leader_recovery_state=record.leader_recovery_state,
        )
    )


@replay.register
def partition_change(record: PartitionChangeRecord, delta: MetadataDelta, at: Position) -> None:
    """Change some fields of a partition. None keeps a list, an empty one clears it.

    The partition epoch is always incremented, the leader epoch if ``leader`` is set, even to the
    current leader or to -1 (no leader); -2 is no change.
    """
    row = delta.find(PartitionRow, record.topic_id, record.partition_id)
    if row is None:
        what = f"topic id {record.topic_id} has no partition {record.partition_id}"
        raise contradiction(record, at, what)
    recovery = record.leader_recovery_state
    if recovery == RECOVERY_UNCHANGED:
        recovery = row.leader_recovery_state
    elif recovery not in (0, 1):
        raise contradiction(record, at, _unknown_recovery_state(recovery))
    leader, leader_epoch = row.leader, row.leader_epoch
    if record.leader != LEADER_UNCHANGED:
        leader, leader_epoch = record.leader, leader_epoch + 1
    replicas = _coalesce(record.replicas, row.replicas)
    directories = _coalesce(record.directories, row.directories)
    delta.replace(
        row,
        _partition_row(
            topic_id=row.topic_id,
            partition_id=row.partition_id,
            topic_name=row.topic_name,
            replicas=replicas,
            isr=_coalesce(record.isr, row.isr),
            adding_replicas=_coalesce(record.adding_replicas, row.adding_replicas),
            removing_replicas=_coalesce(record.removing_replicas, row.removing_replicas),
            elr=_coalesce(record.eligible_leader_replicas, row.elr),
            last_known_elr=_coalesce(record.last_known_elr, row.last_known_elr),
            directories=_directories(record, directories, len(replicas), at),
            leader=leader,
            leader_epoch=leader_epoch,
            partition_epoch=row.partition_epoch + 1,
            leader_recovery_state=recovery,
        ),
    )


@replay.register
def clear_elr(record: ClearElrRecord, delta: MetadataDelta, at: Position) -> None:
    """Clear the eligible leader replicas of one topic, or of all without a name (KIP-966).

    Only partitions that have some change: their partition epoch is incremented, not the leader
    epoch.
    """
    if record.topic_name:
        topics = delta.group((Entity.TOPIC, record.topic_name, ""))
        if not topics:
            raise contradiction(record, at, f"there is no topic {record.topic_name!r}")
        keys = list(delta.group((Entity.PARTITION, topics[-1][0], "")))
    else:
        keys = delta.keys(Entity.PARTITION)
    for key in sorted(keys):
        row = delta.find(PartitionRow, *key)
        if row is not None and (row.elr or row.last_known_elr):
            delta.replace(row, _without_elr(row))


def _without_elr(row: PartitionRow) -> PartitionRow:
    epoch = row.partition_epoch + 1
    return dataclasses.replace(row, elr=(), last_known_elr=(), partition_epoch=epoch)


def _coalesce(value: tuple[T, ...] | None, before: tuple[T, ...]) -> tuple[T, ...]:
    return before if value is None else value


def _directories(
    record: PartitionRecord | PartitionChangeRecord,
    directories: tuple[str, ...],
    replica_count: int,
    at: Position,
) -> tuple[str, ...]:
    """Return one directory for each replica: all MIGRATING if none is known."""
    if len(directories) == replica_count:
        return directories
    if all(directory == DIRECTORY_MIGRATING for directory in directories):
        return (DIRECTORY_MIGRATING,) * replica_count
    what = f"it has {len(directories)} directories for {replica_count} replicas"
    raise contradiction(record, at, what)


def _unknown_recovery_state(number: int) -> str:
    return f"unknown leader recovery state {number}; known are 0 (RECOVERED) and 1 (RECOVERING)"
