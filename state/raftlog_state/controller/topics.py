"""Creation and deletion of topics, and increases of their partition counts.

The configs of a new topic are written between the topic and its partitions. Partitions start at
epochs 0, with the first active replica as leader. Replicas on inactive brokers are not in the ISR.

Without a partition count or a replication factor, a topic gets 1 and 1 (Kafka: ``num.partitions``,
``default.replication.factor``, which are not in the log).

Source: Kafka ``ReplicationControlManager`` (createTopics, createPartitions, deleteTopics),
``Topic``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from raftlog.types import CLUSTER_METADATA_TOPIC
from raftlog_state.image import BrokerRow, PartitionRow, TopicRow
from raftlog_state.image.record_versions import partition_record
from raftlog_state.image.rows import DIRECTORY_MIGRATING
from raftlog_state.records import RemoveTopicRecord, TopicRecord

from .api_exception import (
    INVALID_PARTITIONS,
    INVALID_REPLICA_ASSIGNMENT,
    INVALID_REPLICATION_FACTOR,
    INVALID_REQUEST,
    INVALID_TOPIC,
    POLICY_VIOLATION,
    TOPIC_ALREADY_EXISTS,
    UNKNOWN_TOPIC_ID,
    UNKNOWN_TOPIC_OR_PARTITION,
    ApiException,
    check_uuid,
)
from .change_requests import AddPartitions, Assignment, CreateTopic, DeleteTopic
from .configs import write_topic_configs
from .pending_state import PendingState, unregistered_brokers, write_in_steps
from .placement import place_partitions

NAME_LENGTH_MAX: Final = 249
REPLICATION_FACTOR_MAX: Final = 2**15 - 1
PARTITIONS_PER_REQUEST_MAX: Final = 10_000
"""Kafka: ``MAX_PARTITIONS_PER_BATCH``."""

DIRECTORY_UNASSIGNED: Final = "AAAAAAAAAAAAAAAAAAAAAQ"
"""Directory of a replica whose broker has several and chooses one itself.

Kafka: ``DirectoryId.UNASSIGNED``.
"""

_NAME: Final = re.compile(r"[a-zA-Z0-9._-]+")


@write_in_steps.register
def create_topic(change: CreateTopic, state: PendingState) -> Iterator[None]:
    """Create a topic with its configs and partitions."""
    what = f"topic {change.topic!r}"
    _check_new_name(change.topic, what, state)
    topic_id = _new_topic_id(change.topic_id, what, state)
    state.write(TopicRecord(name=change.topic, topic_id=topic_id))
    write_topic_configs(change.topic, change.configs, state)
    if change.assignment is not None:
        if change.partitions is not None or change.replication_factor is not None:
            reason = (
                "A manual partition assignment was specified, but partitions or "
                "replication_factor was set, too"
            )
            raise ApiException(what, reason, "set either the assignment or the numbers")
        replicas = validate_assignment(change.assignment, what, state, replication_factor=None)
        if not change.assignment:
            reason = "The manual partition assignment is empty"
            raise ApiException(what, reason, "assign at least one partition", INVALID_PARTITIONS)
    else:
        replicas = _place_replicas(change, what, state)
    yield from _write_partitions(change.topic, topic_id, 0, replicas, state)


@write_in_steps.register
def delete_topic(change: DeleteTopic, state: PendingState) -> Iterator[None]:
    """Delete a topic; replay of the record deletes its partitions and configs."""
    row = topic_of(change.topic, state)
    if change.topic_id is not None and change.topic_id != row.topic_id:
        raise ApiException(
            f"topic {change.topic!r}",
            f"its topic id is {row.topic_id}, not {change.topic_id}",
            "correct topic_id, or leave it out",
            UNKNOWN_TOPIC_ID,
        )
    yield from state.write_in_steps(RemoveTopicRecord(topic_id=row.topic_id))


@write_in_steps.register
def add_partitions(change: AddPartitions, state: PendingState) -> Iterator[None]:
    """Add partitions with the replication factor of the topic's first partition."""
    what = f"topic {change.topic!r}"
    row = topic_of(change.topic, state)
    existing = state.current.partition_keys(row.topic_id)
    added = change.partitions - len(existing)
    if added <= 0:
        reason = (
            f"The topic {change.topic} currently has {len(existing)} partition(s); "
            f"{change.partitions} would not be an increase"
            if added
            else f"Topic already has {len(existing)} partition(s)"
        )
        raise ApiException(what, reason, "set the new total number", INVALID_PARTITIONS)
    _check_partition_count(added, what)
    if not existing:
        reason = f"Invalid state: topic {change.topic} appears to have no partitions"
        raise ApiException(what, reason, "delete and create the topic", INVALID_PARTITIONS)
    first = state.current.find(PartitionRow, *min(existing))
    assert first is not None, "it has a key"
    factor = len(first.replicas)
    if change.assignment is not None:
        if len(change.assignment) != added:
            reason = (
                f"Attempted to add {added} additional partition(s), but "
                f"{len(change.assignment)} assignment(s) were specified"
            )
            remedy = "assign each new partition"
            raise ApiException(what, reason, remedy, INVALID_REPLICA_ASSIGNMENT)
        replicas = validate_assignment(change.assignment, what, state, replication_factor=factor)
    else:
        replicas = place_partitions(state, what, added, factor)
    yield from _write_partitions(change.topic, row.topic_id, len(existing), replicas, state)


def check_new_partitions(counts: Iterable[int]) -> None:
    """Raise ``ApiException`` if a request creates topics with too many partitions in total."""
    total = sum(max(0, _number_or(count, 1)) for count in counts)
    _check_partition_count(total, "the topics")


# --- shared with partitions and brokers -----------------------------------------------------------


def topic_of(name: str, state: PendingState) -> TopicRow:
    """Return the topic of a name. Raises ``ApiException``."""
    row = state.current.topic(name)
    if row is None:
        reason = f"The topic '{name}' does not exist"
        remedy = "create it first, or correct its name"
        raise ApiException(f"topic {name!r}", reason, remedy, UNKNOWN_TOPIC_OR_PARTITION)
    return row


def validate_assignment(
    assignment: Assignment, what: str, state: PendingState, *, replication_factor: int | None
) -> Iterator[tuple[int, ...]]:
    """Validate a manual assignment, and return it. Raises ``ApiException``.

    ``replication_factor``: required of each assignment; None: the first one's.
    """
    for number, ids in enumerate(assignment):
        reason = None
        unknown = unregistered_brokers(ids, state)
        if not ids:
            reason = "includes an empty replica list"
        elif unknown:
            reason = f"includes broker {unknown[0]}, but no such broker is registered"
        elif len(set(ids)) != len(ids):
            reason = "includes a broker more than once"
        elif replication_factor is not None and len(ids) != replication_factor:
            reason = (
                f"includes a partition with {len(ids)} replica(s), but this is not consistent with "
                f"previous partitions, which have {replication_factor} replica(s)"
            )
        if reason is not None:
            reason = f"The manual partition assignment {reason}"
            remedy = f"correct assignment {number}"
            raise ApiException(what, reason, remedy, INVALID_REPLICA_ASSIGNMENT)
        replication_factor = len(ids)
    return iter(assignment)


def default_directory(broker_id: int, state: PendingState) -> str:
    """Return the directory of a broker's new replica (Kafka: ``defaultDir``)."""
    row = state.current.find(BrokerRow, broker_id)
    if row is None:
        return DIRECTORY_UNASSIGNED
    if not row.log_dirs:
        return DIRECTORY_MIGRATING
    return row.log_dirs[0] if len(row.log_dirs) == 1 else DIRECTORY_UNASSIGNED


# --- helpers --------------------------------------------------------------------------------------


def invalid_topic_name_reason(name: str) -> str | None:
    """Return why a topic name is invalid, or None (Kafka: ``Topic.validate``)."""
    if not name:
        return "Topic name is invalid: the empty string is not allowed"
    if name in (".", ".."):
        return f"Topic name is invalid: '{name}' is not allowed"
    if len(name) > NAME_LENGTH_MAX:
        return (
            "Topic name is invalid: the length of the name is longer than the max allowed length "
            f"{NAME_LENGTH_MAX}"
        )
    if _NAME.fullmatch(name) is None:
        return (
            f"Topic name is invalid: '{name}' contains one or more characters other than ASCII "
            "alphanumerics, '.', '_' and '-'"
        )
    return None


def _check_new_name(name: str, what: str, state: PendingState) -> None:
    reason = invalid_topic_name_reason(name)
    if name == CLUSTER_METADATA_TOPIC:
        reason = f"Creation of internal topic {CLUSTER_METADATA_TOPIC} is prohibited"
    if reason is not None:
        raise ApiException(what, reason, "choose another name", INVALID_TOPIC)
    if state.current.topic(name) is not None:
        reason = f"Topic '{name}' already exists"
        remedy = "leave the row out, or delete the topic first"
        raise ApiException(what, reason, remedy, TOPIC_ALREADY_EXISTS)
    colliding = state.current.colliding_topics(name) if "." in name or "_" in name else None
    if colliding:
        reason = f"Topic '{name}' collides with existing topic: {colliding[0]}"
        raise ApiException(what, reason, "do not mix '.' and '_' in names", INVALID_TOPIC)


def _new_topic_id(wanted: str | None, what: str, state: PendingState) -> str:
    if wanted is None:
        return state.random_uuid()
    check_uuid(wanted, what)
    if state.current.find(TopicRow, wanted) is not None:
        raise ApiException(
            what, f"topic id {wanted} already exists", "leave topic_id out", INVALID_REQUEST
        )
    return wanted


def _place_replicas(
    change: CreateTopic, what: str, state: PendingState
) -> Iterator[tuple[int, ...]]:
    count = _number_or(change.partitions, 1)
    factor = _number_or(change.replication_factor, 1)
    if count < 1:
        reason = f"Number of partitions was set to an invalid non-positive value: {count}"
        raise ApiException(what, reason, "set at least 1", INVALID_PARTITIONS)
    _check_partition_count(count, what)
    if not 1 <= factor <= REPLICATION_FACTOR_MAX:
        reason = (
            f"Replication factor must be larger than 0 and at most {REPLICATION_FACTOR_MAX}, or -1 "
            f"to use the default value, not {factor}"
        )
        raise ApiException(what, reason, "set at least 1", INVALID_REPLICATION_FACTOR)
    return place_partitions(state, what, count, factor)


def _number_or(number: int | None, default: int) -> int:
    """Return a number of a change, or the default for None and -1."""
    return default if number is None or number == -1 else number


def _check_partition_count(count: int, what: str) -> None:
    if count > PARTITIONS_PER_REQUEST_MAX:
        reason = (
            f"Excessively large number of partitions per request: {count}, at most "
            f"{PARTITIONS_PER_REQUEST_MAX} are allowed"
        )
        raise ApiException(what, reason, "create them in several requests", POLICY_VIOLATION)


def _write_partitions(
    topic: str,
    topic_id: str,
    first: int,
    replicas: Iterable[Sequence[int]],
    state: PendingState,
) -> Iterator[None]:
    for number, ids in enumerate(replicas, start=first):
        _write_partition(topic, topic_id, number, ids, state)
        yield from state.pause()


def _write_partition(
    topic: str, topic_id: str, number: int, replicas: Sequence[int], state: PendingState
) -> None:
    isr = tuple(one for one in replicas if state.current.is_active(one))
    if not isr:
        raise ApiException(
            f"topic {topic!r} partition {number}",
            f"All brokers {list(replicas)} specified in the manual partition assignment for "
            f"partition {number} are fenced or in controlled shutdown",
            "unfence one, or assign other brokers",
            INVALID_REPLICA_ASSIGNMENT,
        )
    row = PartitionRow(
        topic_id=topic_id,
        partition_id=number,
        topic_name=topic,
        replicas=tuple(replicas),
        isr=isr,
        directories=tuple(default_directory(one, state) for one in replicas),
        leader=isr[0],
        leader_epoch=0,
        partition_epoch=0,
    )
    state.write(partition_record(row, state.current.versions))
