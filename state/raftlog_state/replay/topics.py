"""Replay of topics and partitions.

PartitionChangeRecords have no epochs: replay increments them.

Source: Kafka ``TopicsDelta``, ``TopicDelta``, ``PartitionRegistration``, ``DirectoryId``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Generator
from functools import partial
from typing import Final

from raftlog_state.image import Entity, Key, PartitionRow, TopicRow
from raftlog_state.image.row_schema import row_reader, row_updater
from raftlog_state.image.rows import DIRECTORY_MIGRATING
from raftlog_state.records import (
    ClearElrRecord,
    PartitionChangeRecord,
    PartitionRecord,
    RemoveTopicRecord,
    TopicRecord,
)
from raftlog_state.steps import complete, for_each_in_steps, sorted_in_steps

from .dispatch import Position, ReplayState, contradiction, replay, replay_in_steps

LEADER_UNCHANGED: Final = -2
RECOVERY_UNCHANGED: Final = -1
RECOVERY_STATES: Final = (0, 1)
CHANGED_RECOVERY_STATES: Final = (RECOVERY_UNCHANGED, *RECOVERY_STATES)
CONFIG_OF_TOPIC: Final = 2

_topic_row = row_reader(TopicRow, TopicRecord)
_partition_row: Final[Callable[[PartitionRecord, str, tuple[str, ...]], PartitionRow]] = row_reader(
    PartitionRow, PartitionRecord, "topic_name", "directories"
)
_changed_partition: Final[
    Callable[[PartitionRow, PartitionChangeRecord, int, int], PartitionRow]
] = row_updater(PartitionRow, PartitionChangeRecord, "leader_epoch", "partition_epoch")


@replay.register
def topic(record: TopicRecord, state: ReplayState, at: Position) -> None:
    """Create a topic without partitions. Neither its id nor its name may exist."""
    if state.find(TopicRow, record.topic_id) is not None:
        raise contradiction(record, at, f"topic id {record.topic_id} already exists")
    if state.group((Entity.TOPIC, record.name, "")):
        raise contradiction(record, at, f"topic {record.name!r} already exists")
    state.put(_topic_row(record))


@replay_in_steps.register
def remove_topic(
    record: RemoveTopicRecord, state: ReplayState, at: Position
) -> Generator[None, None, None]:
    """Delete a topic with its partitions and all configs under its name."""
    row = state.find(TopicRow, record.topic_id)
    if row is None:
        raise contradiction(record, at, f"there is no topic with id {record.topic_id}")
    keys = yield from sorted_in_steps(state.group((Entity.PARTITION, record.topic_id, "")))
    yield from for_each_in_steps(keys, partial(state.delete, Entity.PARTITION))
    for key in sorted(state.group((Entity.CONFIG, CONFIG_OF_TOPIC, row.name))):
        state.delete(Entity.CONFIG, key)
    state.delete(Entity.TOPIC, row.key)


@replay.register
def partition(record: PartitionRecord, state: ReplayState, at: Position) -> None:
    """Create or replace a partition. Its topic must exist."""
    row = state.find(TopicRow, record.topic_id)
    if row is None:
        raise contradiction(record, at, f"there is no topic with id {record.topic_id}")
    if record.leader_recovery_state not in RECOVERY_STATES:
        raise contradiction(record, at, _unknown_recovery_state(record.leader_recovery_state))
    directories = _directories(record, record.directories, len(record.replicas), at)
    state.put(_partition_row(record, row.name, directories))


@replay.register
def partition_change(record: PartitionChangeRecord, state: ReplayState, at: Position) -> None:
    """Change some fields of a partition. None keeps a list, an empty one clears it.

    The partition epoch is always incremented, the leader epoch if ``leader`` is set, even to the
    current leader or to -1 (no leader); -2 is no change.
    """
    row = state.find(PartitionRow, record.topic_id, record.partition_id)
    if row is None:
        what = f"topic id {record.topic_id} has no partition {record.partition_id}"
        raise contradiction(record, at, what)
    if record.leader_recovery_state not in CHANGED_RECOVERY_STATES:
        raise contradiction(record, at, _unknown_recovery_state(record.leader_recovery_state))
    leader_epoch = row.leader_epoch + (record.leader != LEADER_UNCHANGED)
    after = _changed_partition(row, record, leader_epoch, row.partition_epoch + 1)
    if len(after.directories) != len(after.replicas):
        directories = _directories(record, after.directories, len(after.replicas), at)
        after = dataclasses.replace(after, directories=directories)
    state.replace(row, after)


@replay_in_steps.register
def clear_elr(
    record: ClearElrRecord, state: ReplayState, at: Position
) -> Generator[None, None, None]:
    """Clear the eligible leader replicas of one topic, or of all without a name (KIP-966).

    Only partitions that have some change: their partition epoch is incremented, not the leader
    epoch.
    """
    if record.topic_name:
        topics = state.group((Entity.TOPIC, record.topic_name, ""))
        if not topics:
            raise contradiction(record, at, f"there is no topic {record.topic_name!r}")
        keys = list(state.group((Entity.PARTITION, topics[-1][0], "")))
    else:
        keys = state.keys(Entity.PARTITION)

    def clear(key: Key) -> None:
        row = state.find(PartitionRow, *key)
        assert row is not None, "the keys are those of rows"
        after = row.without_elr()
        if after is not row:
            epoch = row.partition_epoch + 1
            state.replace(row, dataclasses.replace(after, partition_epoch=epoch))

    yield from for_each_in_steps((yield from sorted_in_steps(keys)), clear)


@replay.register
def _(record: RemoveTopicRecord, state: ReplayState, at: Position) -> None:
    complete(remove_topic(record, state, at))


@replay.register
def _(record: ClearElrRecord, state: ReplayState, at: Position) -> None:
    complete(clear_elr(record, state, at))


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
