"""Latest rows: the last change of each key, and rows of ``state`` under later ones.

Rules of this file:

1. A change counts from its visible offset on; the last one by (incarnation, visible offset, offset,
   seq) wins. Progress rows are rows of the entity ``progress``, with one key.
2. ``changes`` alone and ``state`` with later changes give the same rows.
3. Rows are of one cluster.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute

from raftlog_state.image.rows import Entity, Row

from .convert import plain_values, rows_of
from .origins import Origin, RowOrigins
from .progress import Progress
from .schema import ORIGIN_COLUMNS, STATE_TABLE

pc: Any = pyarrow.compute  # pyarrow makes its functions at import: no checker sees them

_ORDER: Final = ("incarnation", "visible_offset", "offset", "seq")


def state_rows(changes: pa.Table) -> pa.Table:
    """Return the last change of each key, in the schema of ``state``.

    A deleted row has its last values, and the offset at which it was deleted.
    """
    changes = changes.take(_last_of_each_key(changes)).combine_chunks()
    row = _first_not_null(changes["after"], changes["before"])
    created = pc.struct_field(changes["before_origin"], ["created_offset"])
    columns = {
        "is_deleted": pc.equal(changes["op"], "d"),
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
    """Return the rows before ``later`` changes of their keys, in the schema of ``state``.

    ``offset`` is before all of these changes. A key without a row then is a deleted row.
    """
    first = later.take(_last_of_each_key(later, is_first=True)).combine_chunks()
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
    return pa.table(arrays, schema=STATE_TABLE.schema)


def without_reverted(rows: pa.Table, progress: Progress) -> pa.Table:
    """Return rows of ``state`` or ``changes`` without those that truncations reverted."""
    if progress.truncated_to is None:
        return rows
    sign = "_" if "_incarnation" in rows.column_names else ""
    is_current = pc.greater_equal(rows[f"{sign}incarnation"], progress.incarnation)
    is_kept = pc.less_equal(rows[f"{sign}visible_offset"], progress.truncated_to)
    return rows.filter(pc.or_(is_current, is_kept))


def overlay(state: pa.Table, later: pa.Table) -> pa.Table:
    """Return ``state`` with the rows of ``later``, which replace those with their keys."""
    if later.num_rows == 0:
        return state
    kept = pc.invert(pc.is_in(_identity(state), value_set=_identity(later)))
    return pa.concat_tables([state.filter(kept), later])


def living_rows(state: pa.Table) -> tuple[list[Row], RowOrigins]:
    """Return the rows that are not deleted, and their origins; no progress row."""
    return rows_of_state(state.filter(pc.invert(state["is_deleted"])))


def rows_of_state(state: pa.Table) -> tuple[list[Row], RowOrigins]:
    """Return rows and their origins from ``entity``, ``row`` and origin columns; no progress."""
    rows: list[Row] = []
    origins = RowOrigins()
    state = state.combine_chunks()
    for entity in Entity:
        of_entity = state.filter(pc.equal(state["entity"], str(entity)))
        if of_entity.num_rows == 0:  # pyarrow 17 raises for a table of a column without chunks
            continue
        structs = pc.struct_field(of_entity["row"], [str(entity)]).combine_chunks()
        found = rows_of(entity, pa.Table.from_struct_array(structs))
        columns = (plain_values(of_entity[name]) for name in ORIGIN_COLUMNS)
        for row, origin in zip(found, map(Origin, *columns), strict=True):
            origins.set(entity, row.key, origin)
        rows += found
    return rows, origins


def _last_of_each_key(changes: pa.Table, *, is_first: bool = False) -> pa.Array:
    """Return the positions of the last change of each key, or of the first one."""
    order = np.lexsort([changes[name].to_numpy() for name in reversed(_ORDER)])
    identities = _identity(changes).to_pylist()
    last = {identities[position]: position for position in order[:: -1 if is_first else 1].tolist()}
    return pa.array(sorted(last.values()), pa.int64())


def _first_not_null(first: pa.ChunkedArray, second: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return the values of ``first``, or of ``second`` where they are null; of any type."""
    count = len(first)
    positions = np.arange(count) + np.where(first.is_null().to_numpy(), count, 0)
    return pa.chunked_array([*first.chunks, *second.chunks], first.type).take(pa.array(positions))


def _identity(rows: pa.Table) -> pa.ChunkedArray:
    """Return the entity and the key of each row of one cluster, as one text."""
    return pc.binary_join_element_wise(rows["entity"], rows["key"], " ")
