"""Row changes as JSON data and as text, such as ``leader 1 -> 2, isr [1,2] -> [2]``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Final

from raftlog.printable import compact_json

from .delta import Op, RowChange
from .differences import NO_COLUMNS
from .rows import ROW_TYPES, ConfigRow, Entity, PartitionRow, Row, column_json, row_json

_NAMES_OF_ROWS: Final = frozenset(
    {"name", "topic_name", "partition_id", "broker_id", "controller_id", "principal", "user"}
)
"""Columns that a row's name already contains, or that the name of an enum value repeats."""
_ALWAYS_CHANGED: Final = "partition_epoch"
_UNCOMPARED: Final[Mapping[Entity, frozenset[str]]] = {
    entity: frozenset(column.name for column in fields(kind) if not column.compare)
    for entity, kind in ROW_TYPES.items()
}


def compared_json(row: Row) -> dict[str, object]:
    """Return a row as JSON data, without columns that are not in snapshots."""
    kept = row_json(row)
    for name in _UNCOMPARED[row.ENTITY]:
        del kept[name]
    return kept


def change_json(change: RowChange, ignored: frozenset[str] = NO_COLUMNS) -> dict[str, Any]:
    """Return one difference as JSON data, without ``ignored`` columns of a changed row."""
    line: dict[str, Any] = {"entity": change.entity, "key": list(change.key)}
    row = change.after or change.before
    if isinstance(row, PartitionRow):
        line["topic_name"] = row.topic_name
    line["op"] = change.op
    if change.before is not None and change.after is not None:
        assert change.op in (Op.UPDATE, Op.READ), "a row in both states"
        line["changed"] = {
            name: {
                "before": column_json(change.before, name),
                "after": column_json(change.after, name),
            }
            for name in change.changed
            if name not in ignored and name not in _UNCOMPARED[change.entity]
        }
    elif change.after is not None:
        line["after"] = compared_json(change.after)
    elif change.before is not None:
        line["before"] = compared_json(change.before)
    return line


def what_changed(change: RowChange, ignored: frozenset[str] = NO_COLUMNS) -> str:
    """Return what changed in a row, before and after, without ``ignored`` columns."""
    found = change_json(change, ignored)
    if change.entity is Entity.CONFIG:
        return _change_of_config(change)
    if change.op is Op.DELETE:
        return "deleted"
    if "after" in found:
        verb = "in the snapshot" if change.op is Op.READ else "created"
        values = (f"{name} {_text(value)}" for name, value in _shown(found["after"]))
        return f"{verb}: {', '.join(values)}"
    changed = dict(found["changed"])
    if len(changed) > 1:
        changed.pop(_ALWAYS_CHANGED, None)
    if not changed:
        return "written again, no visible change"
    return ", ".join(
        f"{name} {_text(values['before'])} -> {_text(values['after'])}"
        for name, values in changed.items()
    )


def _change_of_config(change: RowChange) -> str:
    before, after = (
        row.value if isinstance(row, ConfigRow) else "(not set)"
        for row in (change.before, change.after)
    )
    return f"in the snapshot: {after}" if change.op is Op.READ else f"{before} -> {after}"


def _shown(row: dict[str, Any]) -> list[tuple[str, Any]]:
    return [
        (name, value)
        for name, value in row.items()
        if name not in _NAMES_OF_ROWS and f"{name}_name" not in row and value not in (None, "", [])
    ]


def _text(value: object) -> str:
    return value if isinstance(value, str) else compact_json(value)
