"""Rows of consumer offsets, groups, transactions and share partitions, from their logs.

A row is a dict in the order of its columns; timestamps are in ms. A field that the record's version
lacks is None.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from raftlog.client import LatestByKey
from raftlog.errors import CorruptBatchError
from raftlog_state.errors import MetadataParseError
from raftlog_state.image.row_schema import row_schema
from raftlog_state.image.rows import (
    ConsumerOffsetRow,
    InternalRow,
    PendingOffsetRow,
    ProducerTransactionRow,
    SharePartitionRow,
    row_json,
)
from raftlog_state.records import Message, Redactor, Struct, UnknownRecord
from raftlog_state.records.consumer_protocol import PROTOCOL_TYPE, parse_protocol
from raftlog_state.records.internal_logs import (
    CONSUMER_OFFSETS,
    GROUP_RECORDS,
    SHARE_GROUP_STATE,
    TRANSACTION_STATE,
)
from raftlog_state.records.keyed_serde import KeyedRecord, KeyedSerde
from raftlog_state.records.schema_groups import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMetadataValue,
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    GroupMetadataKey,
    GroupMetadataValue,
    LegacyOffsetCommitKey,
    MemberMetadata,
    OffsetCommitKey,
    ShareGroupCurrentMemberAssignmentKey,
    ShareGroupCurrentMemberAssignmentValue,
    ShareGroupMemberMetadataKey,
    ShareGroupMemberMetadataValue,
    ShareGroupMetadataKey,
    ShareGroupMetadataValue,
    ShareGroupTargetAssignmentMetadataKey,
    ShareGroupTargetAssignmentMetadataValue,
)
from raftlog_state.records.schema_streams import (
    StreamsGroupCurrentMemberAssignmentKey,
    StreamsGroupCurrentMemberAssignmentValue,
    StreamsGroupMemberMetadataKey,
    StreamsGroupMemberMetadataValue,
    StreamsGroupMetadataKey,
    StreamsGroupMetadataValue,
    StreamsGroupTargetAssignmentMetadataKey,
    StreamsGroupTargetAssignmentMetadataValue,
)

from .loader import InternalState

Row: TypeAlias = dict[str, Any]

_MEMBER_STABLE: Final = 0
"""Kafka: ``MemberState.STABLE``."""


def _decoded(
    serde: KeyedSerde, partitions: Iterable[LatestByKey], redactor: Redactor
) -> Iterator[tuple[Message, Message]]:
    """Yield key and value of the latest records of known types.

    Raises ``CorruptBatchError`` if one of them is damaged.
    """
    for latest in partitions:
        for key, one in latest.records():
            try:
                record: KeyedRecord = redactor.redact_keyed(serde.decode(key, one.value))
            except MetadataParseError as error:
                raise CorruptBatchError(
                    reason=error.message(), path=latest.path, offset=one.offset
                ) from None
            known, value = record.key, record.value
            if not isinstance(known, UnknownRecord) and isinstance(value, Message):
                yield known, value


# --- Groups ---------------------------------------------------------------------------------------


class _Group:
    """Records of one group that is not classic."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.epoch = 0
        self.target_epoch: int | None = None
        self.members: dict[str, Struct] = {}
        self.assignments: dict[str, Struct] = {}

    def row(self, group_id: str) -> Row:
        return {
            "group": group_id,
            "type": self.kind,
            "protocol_type": "share" if self.kind == "share" else self._protocol_type(),
            "state": self._state(),
            "epoch": self.epoch,
            "assignment_epoch": self.target_epoch,
            "protocol": None,
            "leader": None,
            "members": [
                self._member(member_id, self.members[member_id])
                for member_id in sorted(self.members)
            ],
        }

    def _protocol_type(self) -> str:
        return "streams" if self.kind == "streams" else PROTOCOL_TYPE

    def _state(self) -> str | None:
        """Return the state as the coordinator derives it (``maybeUpdateGroupState``).

        That of a streams group with members also depends on the topics of the cluster.
        """
        if not self.members:
            return "Empty"
        if self.kind == "share":
            return "Stable"
        if self.kind == "streams":
            return None
        if self.epoch > (self.target_epoch or 0):
            return "Assigning"
        for member_id in self.members:
            current = self.assignments.get(member_id)
            if (
                not isinstance(current, ConsumerGroupCurrentMemberAssignmentValue)
                or current.state != _MEMBER_STABLE
                or current.member_epoch != self.target_epoch
            ):
                return "Reconciling"
        return "Stable"

    def _member(self, member_id: str, member: Struct) -> Row:
        current = self.assignments.get(member_id)
        partitions: list[Row] = []
        match current:
            case (
                ConsumerGroupCurrentMemberAssignmentValue()
                | ShareGroupCurrentMemberAssignmentValue()
            ):
                partitions = [
                    {"topic_id": one.topic_id, "partitions": sorted(one.partitions)}
                    for one in current.assigned_partitions
                ]
            case StreamsGroupCurrentMemberAssignmentValue():
                partitions = [
                    {"subtopology_id": one.subtopology_id, "partitions": sorted(one.partitions)}
                    for one in current.active_tasks
                ]
        return {
            "member_id": member_id,
            "instance_id": getattr(member, "instance_id", None),
            "client_id": getattr(member, "client_id", ""),
            "client_host": getattr(member, "client_host", ""),
            "rack_id": getattr(member, "rack_id", None),
            "epoch": getattr(current, "member_epoch", None),
            "topics": sorted(getattr(member, "subscribed_topic_names", ())),
            "topic_regex": getattr(member, "subscribed_topic_regex", None) or None,
            "assignment": partitions,
        }


def groups(partitions: Iterable[LatestByKey], redactor: Redactor) -> list[Row]:
    """Return the groups of all protocols, by name, with their members.

    A group that only has committed offsets is an empty classic group without a protocol type, as in
    Kafka.
    """
    classic: dict[str, Row] = {}
    modern: dict[str, _Group] = {}
    committing: set[str] = set()

    def group(kind: str, group_id: str) -> _Group:
        return modern.setdefault(group_id, _Group(kind))

    for key, value in _decoded(GROUP_RECORDS, partitions, redactor):
        match key, value:
            case (OffsetCommitKey() | LegacyOffsetCommitKey(), _):
                committing.add(key.group)
            case GroupMetadataKey(), GroupMetadataValue():
                classic[key.group] = _classic_row(key.group, value)
            case ConsumerGroupMetadataKey(), ConsumerGroupMetadataValue():
                group("consumer", key.group_id).epoch = value.epoch
            case ShareGroupMetadataKey(), ShareGroupMetadataValue():
                group("share", key.group_id).epoch = value.epoch
            case StreamsGroupMetadataKey(), StreamsGroupMetadataValue():
                group("streams", key.group_id).epoch = value.epoch
            case (
                ConsumerGroupTargetAssignmentMetadataKey(),
                ConsumerGroupTargetAssignmentMetadataValue(),
            ):
                group("consumer", key.group_id).target_epoch = value.assignment_epoch
            case (
                ShareGroupTargetAssignmentMetadataKey(),
                ShareGroupTargetAssignmentMetadataValue(),
            ):
                group("share", key.group_id).target_epoch = value.assignment_epoch
            case (
                StreamsGroupTargetAssignmentMetadataKey(),
                StreamsGroupTargetAssignmentMetadataValue(),
            ):
                group("streams", key.group_id).target_epoch = value.assignment_epoch
            case ConsumerGroupMemberMetadataKey(), ConsumerGroupMemberMetadataValue():
                group("consumer", key.group_id).members[key.member_id] = value
            case ShareGroupMemberMetadataKey(), ShareGroupMemberMetadataValue():
                group("share", key.group_id).members[key.member_id] = value
            case StreamsGroupMemberMetadataKey(), StreamsGroupMemberMetadataValue():
                group("streams", key.group_id).members[key.member_id] = value
            case (
                ConsumerGroupCurrentMemberAssignmentKey(),
                ConsumerGroupCurrentMemberAssignmentValue(),
            ):
                group("consumer", key.group_id).assignments[key.member_id] = value
            case (
                ShareGroupCurrentMemberAssignmentKey(),
                ShareGroupCurrentMemberAssignmentValue(),
            ):
                group("share", key.group_id).assignments[key.member_id] = value
            case (
                StreamsGroupCurrentMemberAssignmentKey(),
                StreamsGroupCurrentMemberAssignmentValue(),
            ):
                group("streams", key.group_id).assignments[key.member_id] = value
    found = {group_id: one.row(group_id) for group_id, one in modern.items()} | classic
    for group_id in committing - found.keys():
        found[group_id] = _classic_row(group_id, GroupMetadataValue(protocol=None, leader=None))
    return [found[group_id] for group_id in sorted(found)]


def _classic_row(group_id: str, value: GroupMetadataValue) -> Row:
    """Return the row of a classic group: its record is written when it is stable or empty."""
    return {
        "group": group_id,
        "type": "classic",
        "protocol_type": value.protocol_type,
        "state": "Stable" if value.members else "Empty",
        "epoch": value.generation,
        "assignment_epoch": None,
        "protocol": value.protocol,
        "leader": value.leader,
        "members": [
            _classic_member(member, value.protocol_type == PROTOCOL_TYPE)
            for member in sorted(value.members, key=lambda member: member.member_id)
        ],
    }


def _classic_member(member: MemberMetadata, is_consumer: bool) -> Row:
    subscription = parse_protocol("subscription", member.subscription) if is_consumer else None
    assignment = parse_protocol("assignment", member.assignment) if is_consumer else None
    topics: list[str] = []
    rack_id = None
    if subscription is not None and isinstance(subscription[1], ConsumerProtocolSubscription):
        topics, rack_id = sorted(subscription[1].topics), subscription[1].rack_id
    partitions: list[Row] = []
    if assignment is not None and isinstance(assignment[1], ConsumerProtocolAssignment):
        partitions = [
            {"topic": one.topic, "partitions": sorted(one.partitions)}
            for one in assignment[1].assigned_partitions
        ]
    return {
        "member_id": member.member_id,
        "instance_id": member.group_instance_id,
        "client_id": member.client_id,
        "client_host": member.client_host,
        "rack_id": rack_id,
        "epoch": None,
        "topics": topics,
        "topic_regex": None,
        "assignment": partitions,
    }


# --- Kinds ----------------------------------------------------------------------------------------


Replay: TypeAlias = LatestByKey | InternalState
"""State of one partition of an internal log."""


@dataclass(frozen=True, slots=True)
class RowKind:
    """Kind of rows: the topic that they result from, their columns and their replay.

    ``replay`` returns the state of a partition before its first record, by its path; ``rows`` those
    of the states of all partitions, by key.
    """

    topic: str
    columns: tuple[str, ...]
    rows: Callable[[Iterable[Any], Redactor], list[Row]]
    replay: Callable[[str, Redactor], Replay]


def columns_of(kind: type[InternalRow]) -> tuple[str, ...]:
    """Return the names of a row's fields."""
    return tuple(entry.name for entry in row_schema(kind))


def _kind(topic: str, kind: type[InternalRow]) -> RowKind:
    """Return the rows of a type that a topic is replayed into."""

    def rows(partitions: Iterable[InternalState], _: Redactor) -> list[Row]:
        found = [row for state in partitions for row in state.rows(kind)]
        return [row_json(row) for row in sorted(found, key=lambda row: row.key)]

    return RowKind(topic, columns_of(kind), rows, lambda _, hide: InternalState(topic, hide))


ROW_KINDS: Final[Mapping[str, RowKind]] = {
    "consumer_offsets": _kind(CONSUMER_OFFSETS, ConsumerOffsetRow),
    "pending_offsets": _kind(CONSUMER_OFFSETS, PendingOffsetRow),
    "groups": RowKind(
        CONSUMER_OFFSETS,
        (*_classic_row("", GroupMetadataValue()),),
        groups,
        lambda path, _: LatestByKey(path),
    ),
    "transactions": _kind(TRANSACTION_STATE, ProducerTransactionRow),
    "share_partitions": _kind(SHARE_GROUP_STATE, SharePartitionRow),
}
"""By name."""
