"""Rows of ``changes``, built row by row: what the tables' columns are compared with.

Only the tables' Arrow types and the rows' fields are used here, not the declaration of the rows.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any

import pyarrow as pa

from raftlog_state.image.delta import RecordChanges, RowChange
from raftlog_state.image.rows import ConfigRow, Row
from raftlog_state.tables.origins import Origin
from raftlog_state.tables.schema import BY_ENTITY, CHANGES_TABLE

LONG_MAX = 2**63 - 1
CHANGES_ARROW = CHANGES_TABLE.schema
ROWS_ARROW = {entity: pa.struct(table.columns) for entity, table in BY_ENTITY.items()}


def microseconds(timestamp_ms: int) -> int:
    return max(-LONG_MAX, min(LONG_MAX, 1_000 * timestamp_ms))


def plain(value: Any, kind: pa.DataType) -> Any:
    """Return a field's value as Arrow takes it: lists, pairs of maps, dictionaries of structs."""
    if value is None:
        return None
    if pa.types.is_timestamp(kind):
        return microseconds(value)
    if pa.types.is_list(kind):
        return [plain(item, kind.value_type) for item in value]
    if pa.types.is_struct(kind):
        return {part.name: plain(attribute(value, part), part.type) for part in kind}
    if pa.types.is_map(kind):
        is_pair = pa.types.is_string(kind.item_type)
        return [item if is_pair else (item.name, plain(item, kind.item_type)) for item in value]
    return value


def attribute(value: Any, column: pa.Field) -> Any:
    """Return the value of a column of a row or part."""
    if column.name == "redacted" and isinstance(value, ConfigRow):
        return bool(re.fullmatch(r"\[redacted\]|hmac:([0-9a-f]{8}:)?[0-9a-f]{32}", value.value))
    is_time = pa.types.is_timestamp(column.type)
    return getattr(value, f"{column.name}_ms" if is_time else column.name)


def plain_row(row: Row) -> dict[str, Any]:
    """Return all columns of a row in the table of its entity."""
    return dict(plain(row, ROWS_ARROW[row.ENTITY]))


def changed(change: RowChange) -> list[str]:
    if change.before is None or change.after is None:
        return []
    before, after = change.before, change.after
    names = [field.name for field in fields(after)]
    differing = [name for name in names if getattr(before, name) != getattr(after, name)]
    columns = {field.name for field in ROWS_ARROW[change.entity]}
    return [name if name in columns else name.removesuffix("_ms") for name in differing]


def row_wise_changes(
    record_changes: Iterable[RecordChanges],
    before_origins: Iterable[Origin | None],
    shared: Mapping[str, Any],
) -> pa.Table:
    """Return rows of ``changes``, each of them built as a dictionary."""
    origins = iter(before_origins)
    rows: list[dict[str, Any]] = []
    count_at: Counter[int] = Counter()
    for record in record_changes:
        for change in record.changes:
            before, after = change.before, change.after
            origin = next(origins)
            columns = {
                **shared,
                "offset": record.offset,
                "seq": count_at[record.offset],
                "visible_offset": record.visible_offset,
                "leader_epoch": record.leader_epoch,
                "log_time": microseconds(record.timestamp_ms),
                "record_type": record.record_type,
                "entity": str(change.entity),
                "key": json.dumps(change.key, separators=(",", ":"), ensure_ascii=False),
                "op": str(change.op),
                "changed": changed(change),
                "before": None if before is None else {change.entity: plain_row(before)},
                "after": None if after is None else {change.entity: plain_row(after)},
                "before_origin": None if origin is None else origin._asdict(),
            }
            rows.append(columns)
            count_at[record.offset] += 1
    return pa.Table.from_pylist(rows, schema=CHANGES_ARROW)
