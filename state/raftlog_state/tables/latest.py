"""Latest rows: the last change of each key, and rows of ``state`` under later changes.

Rules of this file:

1. A change takes effect at its visible offset. Of several changes, the last one by (incarnation,
   visible offset, offset, seq) wins. Progress rows are rows of the entity ``progress``, which has
   one key.
2. ``changes`` alone and ``state`` with later changes give the same rows.
3. Rows are of one cluster, except in ``state_rows`` and ``overlay``.
4. The structs of rows may have one entity's field only, if all rows are of that entity.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute

from raftlog_state.image.column_types import BIGINT, STRING, STRINGS, TIMESTAMP, Columns
from raftlog_state.image.delta import Op, RecordChanges, RowChange
from raftlog_state.image.rows import Entity, Row

from .convert import milliseconds, plain_values, rows_of
from .progress import Progress
from .schema import (
    BY_ENTITY,
    CLUSTER_ID,
    ORIGIN_COLUMNS,
    ROW,
    STATE_TABLE,
    TypedTable,
)
from .stores.protocol import Condition, filtered, joined_runs, mask_of, rows_where

pc: Any = pyarrow.compute  # pyarrow creates its functions at import, unseen by type checkers

HISTORY_COLUMNS: Final[Columns] = {
    "valid_from": BIGINT,
    "valid_to": BIGINT,
    "written_time": TIMESTAMP,
    "replaced_time": TIMESTAMP,
}
"""Columns of ``row_history`` after those of the table."""
DIFFERENCE_COLUMNS: Final[Columns] = {
    "entity": STRING,
    "key": STRING,
    "op": STRING,
    "changed": STRINGS,
    "before": ROW,
    "after": ROW,
}

_ROW_AT: Final = STATE_TABLE.schema.get_field_index("row")
_ORDER: Final = ("incarnation", "visible_offset", "offset", "seq")
SPACE: Final = pa.scalar(" ")
"""A scalar, because pyarrow tries to import date packages in each call to infer a text's type."""


def state_rows(changes: pa.Table) -> pa.Table:
    """Return the last change of each key, in the schema of ``state``.

    A deleted row has its last values, and the offset at which it was deleted.
    """
    return state_rows_of(last_changes(changes))


def last_changes(changes: pa.Table) -> pa.Table:
    """Return the last change of each key, with the columns that there are."""
    return _taken(changes, _last_of_each_key(changes))


def positions_of(changes: pa.Table) -> pa.ChunkedArray:
    """Return a text for each change of a cluster that identifies it, even among reverted ones."""
    columns = [changes[name].cast(STRING) for name in ("entity", *_ORDER)]
    return pc.binary_join_element_wise(*columns, SPACE)


def state_rows_of(changes: pa.Table) -> pa.Table:
    """Return the rows of ``state`` after changes that have each key once."""
    row = _first_not_null(changes["after"], changes["before"])
    created = pc.struct_field(changes["before_origin"], ["created_offset"])
    columns = {
        "is_deleted": mask_of(changes, ("op", "=", "d")),
        "row": row,
        "_offset": changes["offset"],
        "_visible_offset": changes["visible_offset"],
        "_leader_epoch": changes["leader_epoch"],
        "_log_time": changes["log_time"],
        "_created_offset": pc.coalesce(created, changes["offset"]),
        "_incarnation": changes["incarnation"],
    }
    return _of_state(changes, columns)


def rows_before(later: pa.Table, offset: int, incarnation: int) -> pa.Table:
    """Return the rows before the ``later`` changes of their keys, in the schema of ``state``.

    ``offset`` is before all of these changes. A key that had no row then gets a deleted row.
    """
    first = _taken(later, _last_of_each_key(later, is_first=True))
    is_new = first["before"].is_null()
    count = first.num_rows
    columns: dict[str, Any] = {
        "is_deleted": is_new,
        "row": _first_not_null(first["before"], first["after"]),
        "_incarnation": pa.array([incarnation] * count, pa.int32()),
    }
    for name, kind in ORIGIN_COLUMNS.items():
        own = first["before_origin"].combine_chunks()
        fallback = offset if name.endswith("offset") else None
        column = pc.struct_field(own, [name[1:]])
        columns[name] = pc.if_else(is_new, pa.scalar(fallback, kind), column)
    columns["_leader_epoch"] = pc.coalesce(columns["_leader_epoch"], first["leader_epoch"])
    return _of_state(first, columns)


def _of_state(changes: pa.Table, columns: dict[str, Any]) -> pa.Table:
    """Return rows of ``state``: these columns, and those that it shares with ``changes``."""
    arrays = [columns[name] if name in columns else changes[name] for name in STATE_TABLE.columns]
    schema = STATE_TABLE.schema
    return pa.table(arrays, schema=schema.set(_ROW_AT, pa.field("row", columns["row"].type)))


def without_reverted(
    rows: pa.Table, progress: Progress, *, offset: str = "visible_offset"
) -> pa.Table:
    """Return rows without those that truncations reverted; ``offset`` is "offset" for ``log``."""
    if progress.truncated_to is None:
        return rows
    sign = "_" if "_incarnation" in rows.column_names else ""
    is_current: Condition = (f"{sign}incarnation", ">=", progress.incarnation)
    is_kept: Condition = (f"{sign}{offset}", "<=", progress.truncated_to)
    return rows_where(rows, any_of=((is_current,), (is_kept,)))


def overlay(state: pa.Table, later: pa.Table) -> pa.Table:
    """Return ``state`` with the rows of ``later``, which replace the rows with the same keys."""
    if later.num_rows == 0:
        return state
    kept = pc.invert(pc.is_in(_identity(state), value_set=_identity(later)))
    return pa.concat_tables([filtered(state, kept), later])


def living(state: pa.Table) -> pa.Table:
    """Return the rows that are not deleted."""
    is_deleted = state["is_deleted"]
    return filtered(state, pc.invert(is_deleted))


def rows_of_state(state: pa.Table) -> list[Row]:
    """Return the rows of the columns ``entity`` and ``row``; no progress row."""
    rows: list[Row] = []
    present = set(pc.unique(state["entity"]).to_pylist())
    for entity in Entity:
        if str(entity) not in present:
            continue
        of_entity = mask_of(state, ("entity", "=", str(entity)))
        # Other structs of the row are not copied: the state may have a million rows.
        structs = pc.struct_field(state["row"], [str(entity)]).filter(of_entity).combine_chunks()
        rows += rows_of(entity, pa.Table.from_struct_array(structs))
    return rows


def table_rows(table: TypedTable, state: pa.Table) -> pa.Table:
    """Return rows of a table that are not deleted, with origins. ``state`` has no others."""
    rows = living(state)
    columns = {**_fields(table, rows, "row"), **{name: rows[name] for name in ORIGIN_COLUMNS}}
    return _table_of(columns, {**table.columns, **ORIGIN_COLUMNS})


def row_history(table: TypedTable, rows: pa.Table, changes: pa.Table) -> pa.Table:
    """Return each version of each row: the ``rows``, and those that ``changes`` replaced."""
    began = pc.struct_field(changes["before_origin"], ["visible_offset"])
    of_table = mask_of(changes, ("entity", "=", str(table.entity)))
    is_closed = pc.and_(of_table, pc.greater(changes["visible_offset"], began))
    closed = filtered(changes, is_closed)
    types = {**table.columns, **HISTORY_COLUMNS}
    replaced = {
        **_fields(table, closed, "before"),
        "valid_from": pc.struct_field(closed["before_origin"], ["visible_offset"]),
        "valid_to": closed["visible_offset"],
        "written_time": pc.struct_field(closed["before_origin"], ["log_time"]),
        "replaced_time": closed["log_time"],
    }
    current = {
        **{name: rows[name] for name in table.columns},
        "valid_from": rows["_visible_offset"],
        "valid_to": pa.nulls(rows.num_rows, BIGINT),
        "written_time": rows["_log_time"],
        "replaced_time": pa.nulls(rows.num_rows, TIMESTAMP),
    }
    return pa.concat_tables([_table_of(replaced, types), _table_of(current, types)])


def changes_of_records(table: TypedTable, changes: pa.Table) -> Iterator[tuple[int, RecordChanges]]:
    """Yield the records of changes of a table's rows, each with one change and its ``seq``."""
    entity = table.entity
    befores, afters = (_rows_or_none(table, changes, side) for side in ("before", "after"))
    columns = (
        *("seq", "offset", "visible_offset", "leader_epoch", "log_time", "record_type"),
        *("key", "op"),
    )
    plain = (plain_values(changes[name]) for name in columns)
    for *of_record, key, op, before, after in zip(*plain, befores, afters, strict=True):
        seq, offset, visible_offset, leader_epoch, time_us, record_type = of_record
        change = RowChange(entity, tuple(json.loads(key)), Op(op), before, after)
        record = RecordChanges(
            offset, visible_offset, leader_epoch, milliseconds(time_us), record_type, (change,)
        )
        yield seq, record


def _rows_or_none(table: TypedTable, changes: pa.Table, side: str) -> Iterator[Row | None]:
    """Yield the rows of a struct of ``changes``, None where it is null."""
    is_given = pc.struct_field(changes[side], [str(table.entity)]).is_valid()
    given = filtered(changes, is_given)
    rows = iter(rows_of(table.entity, _table_of(_fields(table, given, side), table.columns)))
    for has_row in is_given.to_pylist():
        yield next(rows) if has_row else None


def difference(changes: pa.Table) -> pa.Table:
    """Return the rows that differ before and after ``changes``, one row for each key.

    Columns: ``DIFFERENCE_COLUMNS``; ``changed`` lists the columns that differ in an update.
    """
    last_positions = _last_of_each_key(changes)
    identities = _identity(changes).to_pylist()
    first = {
        identities[position]: position
        for position in _last_of_each_key(changes, is_first=True).to_pylist()
    }
    first_positions = [first[identities[position]] for position in last_positions.to_pylist()]
    found = changes.take(last_positions)
    before = changes["before"].take(pa.array(first_positions, pa.int64()))
    ops: list[str | None] = [None] * found.num_rows
    changed: list[list[str]] = [[] for _ in ops]
    after = found["after"]
    is_there = [side.is_valid().to_pylist() for side in (before, after)]
    for entity, positions in _positions_of_entities(found["entity"]).items():
        names = _differing(BY_ENTITY[entity], before.take(positions), after.take(positions))
        for position, differing in zip(positions.to_pylist(), names, strict=True):
            was, now = (side[position] for side in is_there)
            if was and now and differing:
                ops[position], changed[position] = "u", differing
            elif was != now:
                ops[position] = "d" if was else "c"
    columns = {
        "entity": found["entity"],
        "key": found["key"],
        "op": pa.array(ops, STRING),
        "changed": pa.array(changed, STRINGS),
        "before": before,
        "after": after,
    }
    differences = _table_of(columns, DIFFERENCE_COLUMNS)
    return differences.filter(pc.is_valid(differences["op"]))


def _differing(
    table: TypedTable, before: pa.ChunkedArray, after: pa.ChunkedArray
) -> list[list[str]]:
    """Return the columns that differ, for each pair of a table's rows."""
    differing: list[list[str]] = [[] for _ in range(len(before))]
    for name in table.columns:
        path = [str(table.entity), name]
        sides = (plain_values(pc.struct_field(side, path)) for side in (before, after))
        for names, old, new in zip(differing, *sides, strict=True):
            if repr(old) != repr(new):  # as text: NaN is equal to itself, 0.0 is not -0.0
                names.append(name)
    return differing


def _positions_of_entities(entities: pa.ChunkedArray) -> dict[Entity, pa.Array]:
    found: dict[Entity, list[int]] = {}
    for position, entity in enumerate(entities.to_pylist()):
        found.setdefault(Entity(entity), []).append(position)
    return {entity: pa.array(positions, pa.int64()) for entity, positions in found.items()}


def _fields(table: TypedTable, rows: pa.Table, side: str) -> dict[str, Any]:
    """Return the columns of a table from a struct of ``changes`` or ``state``."""
    entity = str(table.entity)
    return {name: pc.struct_field(rows[side], [entity, name]) for name in table.columns}


def _table_of(columns: Mapping[str, Any], types: Columns) -> pa.Table:
    return pa.table([columns[name] for name in types], schema=pa.schema(dict(types)))


def _last_of_each_key(changes: pa.Table, *, is_first: bool = False) -> pa.Array:
    """Return the positions of the last change of each key, or of the first one."""
    order = np.lexsort([changes[name].to_numpy() for name in reversed(_ORDER)])
    identities = _identity(changes).to_pylist()
    last = {identities[position]: position for position in order[:: -1 if is_first else 1].tolist()}
    return pa.array(sorted(last.values()), pa.int64())


def _taken(rows: pa.Table, positions: pa.Array) -> pa.Table:
    """Return the rows at increasing positions, in one chunk; all of them are not copied twice."""
    if len(positions) == rows.num_rows:
        return rows.combine_chunks()
    joined = joined_runs(rows, positions) if len(positions) else None
    return rows.take(positions).combine_chunks() if joined is None else joined


def _first_not_null(first: pa.ChunkedArray, second: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return the values of ``first``, or of ``second`` where they are null; of any type."""
    if first.null_count == 0:
        return first
    count = len(first)
    positions = np.arange(count) + np.where(first.is_null().to_numpy(), count, 0)
    return pa.chunked_array([*first.chunks, *second.chunks], first.type).take(pa.array(positions))


def _identity(rows: pa.Table) -> pa.ChunkedArray:
    """Return the entity, key and cluster of each row as one text.

    Partitions of one cluster (``StateParts``) have no cluster column.
    """
    names = [name for name in ("entity", "key", CLUSTER_ID) if name in rows.column_names]
    return pc.binary_join_element_wise(*(rows[name] for name in names), SPACE)
