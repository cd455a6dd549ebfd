"""Topics come, grow and go.

Rules of this file:

1. A new topic's configs stand between it and its partitions. Partitions begin at epochs 0, led by
   the first replica whose broker is active; replicas on brokers that are not are out of sync.
2. Without partition count or replication factor a topic gets 1 and 1 (Kafka: ``num.partitions``,
   ``default.replication.factor``, whose values no log holds).

Source: Kafka ``ReplicationControlManager`` (createTopics, createPartitions, deleteTopics),
``Topic``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from raftlog.types import CLUSTER_METADATA_TOPIC
from raftlog_state.image import BrokerRow, PartitionRow, TopicRow
from raftlog_state.record_versions import partition_record
from raftlog_state.records import RemoveTopicRecord, TopicRecord
from raftlog_state.replay.topics import DIRECTORY_MIGRATING

from .api_exception import (
    INVALID_PARTITIONS,
    INVALID_REPLICA_ASSIGNMENT,
    INVALID_REPLICATION_FACTOR,
    INVALID_REQUEST,
    INVALID_TOPIC,
    TOPIC_ALREADY_EXISTS,
    UNKNOWN_TOPIC_ID,
    UNKNOWN_TOPIC_OR_PARTITION,
    ApiException,
    check_uuid,
)
from .change_requests import AddPartitions, Assignment, CreateTopic, DeleteTopic
from .configs import write_topic_configs
from .dispatch import write
from .pending_state import PendingState, unregistered_brokers
from .placement import place_partitions

NAME_LENGTH_MAX: Final = 249
REPLICATION_FACTOR_MAX: Final = 2**15 - 1
PARTITIONS_PER_CHANGE_MAX: Final = 10_000
"""Kafka: ``MAX_PARTITIONS_PER_BATCH``."""

DIRECTORY_UNASSIGNED: Final = "AAAAAAAAAAAAAAAAAAAAAQ"
"""The directory of a replica whose broker has several and shall choose (uuid 0,1)."""

_NAME: Final = re.compile(r"[a-zA-Z0-9._-]+")


@write.register
def create_topic(change: CreateTopic, state: PendingState) -> None:
    """A topic, its configs and its partitions."""
    what = f"topic {change.topic!r}"
    _check_new_name(change.topic, what, state)
    topic_id = _new_topic_id(change.topic_id, what, state)
    state.write(TopicRecord(name=change.topic, topic_id=topic_id))
    state.add_topic_name(change.topic)
    write_topic_configs(change.topic, change.configs, state)
    if change.assignment is not None:
        if change.partitions is not None or change.replication_factor is not None:
            reason = "an assignment is given beside a number of partitions or replicas"
            raise ApiException(what, reason, "give one or the other")
        replicas = validate_assignment(change.assignment, what, state, replication_factor=None)
    else:
        replicas = _place_replicas(change, what, state)
    if not replicas:
        raise ApiException(what, "it has no partition", "give at least one", INVALID_PARTITIONS)
    for number, ids in enumerate(replicas):
        _write_partition(change.topic, topic_id, number, ids, state)


@write.register
def delete_topic(change: DeleteTopic, state: PendingState) -> None:
    """A topic goes; whoever replays it takes partitions and configs away too."""
    row = topic_of(change.topic, state)
    if change.topic_id is not None and change.topic_id != row.topic_id:
        raise ApiException(
            f"topic {change.topic!r}",
            f"its id is {row.topic_id}, so it is another one than was meant",
            "look at it again",
            UNKNOWN_TOPIC_ID,
        )
    state.write(RemoveTopicRecord(topic_id=row.topic_id))


@write.register
def add_partitions(change: AddPartitions, state: PendingState) -> None:
    """A topic gets more partitions, as many replicas each as its first one has."""
    what = f"topic {change.topic!r}"
    row = topic_of(change.topic, state)
    there = state.partitions(row.topic_id)
    added = change.partitions - len(there)
    if added <= 0:
        reason = f"it has {len(there)} partitions, and {change.partitions} would be no increase"
        raise ApiException(what, reason, "give the number that it shall have", INVALID_PARTITIONS)
    _check_partition_count(added, what)
    if not there:
        raise ApiException(
            what, "it has no partition to be like", "create it again", INVALID_PARTITIONS
        )
    factor = len(there[0].replicas)
    if change.assignment is not None:
        if len(change.assignment) != added:
            reason = f"{added} partitions are added, and {len(change.assignment)} are assigned"
            raise ApiException(what, reason, "assign each new one", INVALID_REPLICA_ASSIGNMENT)
        replicas = validate_assignment(change.assignment, what, state, replication_factor=factor)
    else:
        replicas = place_partitions(state, what, added, factor)
    for number, ids in enumerate(replicas, start=len(there)):
        _write_partition(change.topic, row.topic_id, number, ids, state)


# --- what partitions and brokers need, too --------------------------------------------------------


def topic_of(name: str, state: PendingState) -> TopicRow:
    """The topic of this name. Raises ``ApiException``."""
    row = state.topic(name)
    if row is None:
        remedy = "create it first, or correct its name"
        raise ApiException(
            f"topic {name!r}", "it does not exist", remedy, kafka_code=UNKNOWN_TOPIC_OR_PARTITION
        )
    return row


def validate_assignment(
    assignment: Assignment, what: str, state: PendingState, *, replication_factor: int | None
) -> list[tuple[int, ...]]:
    """An assignment in which every broker is registered. Raises ``ApiException``."""
    for number, ids in enumerate(assignment):
        reason = None
        unknown = unregistered_brokers(ids, state)
        if not ids:
            reason = f"assignment {number} is empty"
        elif unknown:
            reason = f"assignment {number} names broker {unknown[0]}, which is not registered"
        elif len(set(ids)) != len(ids):
            reason = f"assignment {number} names a broker more than once"
        elif replication_factor is not None and len(ids) != replication_factor:
            reason = (
                f"assignment {number} has {len(ids)} replicas, others have {replication_factor}"
            )
        if reason is not None:
            raise ApiException(what, reason, "correct the assignment", INVALID_REPLICA_ASSIGNMENT)
        replication_factor = len(ids)
    return list(assignment)


def default_directory(broker_id: int, state: PendingState) -> str:
    """Where a broker puts a new replica (Kafka: ``ClusterControlManager.defaultDir``)."""
    row = state.find(BrokerRow, broker_id)
    if row is None:
        return DIRECTORY_UNASSIGNED
    if not row.log_dirs:
        return DIRECTORY_MIGRATING
    return row.log_dirs[0] if len(row.log_dirs) == 1 else DIRECTORY_UNASSIGNED


# --- inside ---------------------------------------------------------------------------------------


def invalid_topic_name_reason(name: str) -> str | None:
    """Why no topic may have this name (Kafka: ``Topic.validate``)."""
    if not name:
        return "its name is empty"
    if name in (".", ".."):
        return "its name would be a directory's"
    if len(name) > NAME_LENGTH_MAX:
        return f"its name is longer than {NAME_LENGTH_MAX} letters"
    if _NAME.fullmatch(name) is None:
        return "its name holds more than ASCII letters, digits, '.', '_' and '-'"
    return None


def _check_new_name(name: str, what: str, state: PendingState) -> None:
    reason = invalid_topic_name_reason(name)
    if name == CLUSTER_METADATA_TOPIC:
        reason = "this is the name of the metadata log itself"
    if reason is not None:
        raise ApiException(what, reason, "choose another name", INVALID_TOPIC)
    if state.topic(name) is not None:
        remedy = "leave the row out, or delete the topic first"
        raise ApiException(what, "it exists already", remedy, TOPIC_ALREADY_EXISTS)
    alike = state.colliding_topics(name) if "." in name or "_" in name else None
    if alike:
        reason = f"its metrics could not be told from those of {min(alike)!r}"
        raise ApiException(what, reason, "do not mix '.' and '_' in names", INVALID_TOPIC)


def _new_topic_id(wanted: str | None, what: str, state: PendingState) -> str:
    if wanted is None:
        return state.random_uuid()
    check_uuid(wanted, what)
    if state.find(TopicRow, wanted) is not None:
        raise ApiException(
            what, f"its id {wanted} is another topic's", "leave it out", INVALID_REQUEST
        )
    return wanted


def _place_replicas(change: CreateTopic, what: str, state: PendingState) -> list[tuple[int, ...]]:
    count = 1 if change.partitions in (None, -1) else change.partitions
    factor = 1 if change.replication_factor in (None, -1) else change.replication_factor
    assert count is not None
    assert factor is not None
    if count < 1:
        raise ApiException(
            what, f"{count} is no number of partitions", "give one", INVALID_PARTITIONS
        )
    _check_partition_count(count, what)
    if not 1 <= factor <= REPLICATION_FACTOR_MAX:
        reason = f"{factor} is no replication factor"
        raise ApiException(what, reason, "give at least 1", INVALID_REPLICATION_FACTOR)
    return place_partitions(state, what, count, factor)


def _check_partition_count(count: int, what: str) -> None:
    if count > PARTITIONS_PER_CHANGE_MAX:
        reason = f"{count} partitions at once are more than {PARTITIONS_PER_CHANGE_MAX}"
        raise ApiException(what, reason, "add them in several changes", INVALID_PARTITIONS)


def _write_partition(
    topic: str, topic_id: str, number: int, replicas: Sequence[int], state: PendingState
) -> None:
    isr = tuple(one for one in replicas if state.is_active(one))
    if not isr:
        raise ApiException(
            f"topic {topic!r} partition {number}",
            f"all of its brokers {list(replicas)} are fenced or shutting down",
            "unfence one, or choose others",
            INVALID_REPLICA_ASSIGNMENT,
        )
    row = PartitionRow(
        topic_id=topic_id,
        partition_id=number,
        topic_name=topic,
        replicas=tuple(replicas),
        isr=isr,
        adding_replicas=(),
        removing_replicas=(),
        elr=(),
        last_known_elr=(),
        directories=tuple(default_directory(one, state) for one in replicas),
        leader=isr[0],
        leader_epoch=0,
        partition_epoch=0,
        leader_recovery_state=0,
    )
    state.write(partition_record(row, state.versions))
