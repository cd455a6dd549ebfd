"""Rows of consumer offsets, groups, transactions and share partitions, as the commands print them.

A row is a dict in column order; timestamps are in ms. A field that the record's version lacks is
None.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from raftlog_state.image.row_schema import row_schema
from raftlog_state.image.rows import (
    INTERNAL_ENTITIES,
    ConsumerOffsetRow,
    GroupMemberRow,
    GroupRow,
    InternalRow,
    PendingOffsetRow,
    ProducerTransactionRow,
    SharePartitionRow,
    row_json,
)

from .loader import InternalState

Row: TypeAlias = dict[str, Any]


@dataclass(frozen=True, slots=True)
class RowKind:
    """Kind of rows: the topic that they are derived from, and their columns.

    ``rows`` returns the rows of all partitions' states, by key.
    """

    topic: str
    columns: tuple[str, ...]
    rows: Callable[[Iterable[InternalState]], list[Row]]


def columns_of(kind: type[InternalRow]) -> tuple[str, ...]:
    """Return the names of a row's fields."""
    return tuple(entry.name for entry in row_schema(kind))


def _topic_of(kind: type[InternalRow]) -> str:
    """Return the topic that is replayed into rows of a type."""
    return next(topic for topic, kinds in INTERNAL_ENTITIES.items() if kind.ENTITY in kinds)


def _kind(kind: type[InternalRow]) -> RowKind:
    """Return the rows of a type."""

    def rows(partitions: Iterable[InternalState]) -> list[Row]:
        found = [row for state in partitions for row in state.rows(kind)]
        return [row_json(row) for row in sorted(found, key=lambda row: row.key)]

    return RowKind(_topic_of(kind), columns_of(kind), rows)


_GROUP_COLUMNS: Final = tuple(name for name in columns_of(GroupRow) if name != "member_count")


def _groups(partitions: Iterable[InternalState]) -> list[Row]:
    """Return the groups of all protocols, by name, each with its members."""
    found = []
    for state in partitions:
        members: dict[str, list[Row]] = {}
        for member in state.rows(GroupMemberRow):
            members.setdefault(member.group, []).append(_nested(member))
        for group in state.rows(GroupRow):
            columns = row_json(group)
            row: Row = {name: columns[name] for name in _GROUP_COLUMNS}
            found.append(row | {"members": members.get(group.group, [])})
    return sorted(found, key=lambda row: str(row["group"]))


def _nested(member: GroupMemberRow) -> Row:
    """Return a member without its group; partitions have only the name that they use."""
    row: Row = row_json(member)
    del row["group"]
    row["assignment"] = [
        {name: value for name, value in part.items() if value is not None}
        for part in row["assignment"]
    ]
    return row


ROW_KINDS: Final[Mapping[str, RowKind]] = {
    "consumer_offsets": _kind(ConsumerOffsetRow),
    "pending_offsets": _kind(PendingOffsetRow),
    "groups": RowKind(_topic_of(GroupRow), (*_GROUP_COLUMNS, "members"), _groups),
    "group_members": _kind(GroupMemberRow),
    "transactions": _kind(ProducerTransactionRow),
    "share_partitions": _kind(SharePartitionRow),
}
"""By name."""
