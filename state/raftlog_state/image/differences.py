"""Differences between two states: of one log at two offsets, or of two clusters.

Rows of one log are compared by key. Rows of two clusters are compared by name: topics and
partitions match if their names are equal, ACLs if their contents are equal. The keys of all other
rows are names, such as a broker's id.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Final

from .delta import Op, RowChange
from .metadata_image import MetadataImage
from .rows import STATE_ENTITIES, AclRow, Entity, Key, PartitionRow, Row, TopicRow, acl_content

IGNORABLE: Final[Mapping[str, frozenset[str]]] = {
    "ids": frozenset(
        {
            *("topic_id", "acl_id", "incarnation_id"),
            *("directories", "log_dirs", "cordoned_log_dirs", "next_producer_id"),
        }
    ),
    "epochs": frozenset({"broker_epoch", "leader_epoch", "partition_epoch"}),
    "leaders": frozenset(
        {
            *("leader", "isr", "elr", "last_known_elr", "leader_recovery_state"),
            *("fenced", "in_controlled_shutdown"),
        }
    ),
}
"""By group, columns that differ between any two clusters, or that elections or brokers decide."""
NO_COLUMNS: Final[frozenset[str]] = frozenset()


def diff(
    before: MetadataImage,
    after: MetadataImage,
    *,
    by_name: bool = False,
    ignored: frozenset[str] = NO_COLUMNS,
) -> list[RowChange]:
    """Return the changes from one state to another, sorted by entity and key.

    With ``by_name``, keys contain names. Rows that differ only in ``ignored`` columns are equal.
    """
    return [
        change
        for entity in STATE_ENTITIES
        for change in differences(before, after, entity, by_name=by_name, ignored=ignored)
    ]


def differences(
    before: MetadataImage,
    after: MetadataImage,
    entity: Entity,
    *,
    by_name: bool = False,
    ignored: frozenset[str] = NO_COLUMNS,
) -> Iterator[RowChange]:
    """Yield the changes of one entity's rows, as ``diff`` does."""
    old, new = (_by_name(one, entity) if by_name else one.map(entity) for one in (before, after))
    for key in sorted(old.keys() | new.keys()):
        was, now = old.get(key), new.get(key)
        if was == now:
            continue
        op = Op.CREATE if was is None else Op.DELETE if now is None else Op.UPDATE
        change = RowChange(entity, key, op, was, now)
        if op is not Op.UPDATE or not ignored.issuperset(_compared(change)):
            yield change


def _compared(change: RowChange) -> set[str]:
    """Return the columns that differ, except those that are not in snapshots."""
    assert change.after is not None, "a row of both states"
    kept = {field.name for field in fields(change.after) if field.compare}
    return kept.intersection(change.changed)


def _by_name(image: MetadataImage, entity: Entity) -> Mapping[Key, Row]:
    # If several ACLs have equal content, the first one is compared.
    return {_name_key(row): row for row in reversed(list(image.rows(entity)))}


def _name_key(row: Row) -> Key:
    match row:
        case TopicRow():
            return (row.name,)
        case PartitionRow():
            return row.topic_name, row.partition_id
        case AclRow():
            return acl_content(row)
    return row.key
