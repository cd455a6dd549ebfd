"""Unpublished changes: the last change of each key since the typed tables were written.

Intermediate changes of a key are in ``changes``, not in a typed table. The result is the same from
memory, in the process that replayed the records, and from ``changes``, after a restart.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from raftlog_state.fast_dataclass import fast_dataclass
from raftlog_state.image.delta import Op, RecordChanges
from raftlog_state.image.rows import Entity, Key, Row

from .convert import columns_of, plain_values, rows_of
from .history import OP, last_of_all
from .origins import Origin, RowOrigins
from .schema import ORIGIN_COLUMNS, STRING, TYPED_TABLES, TypedTable, arrow_schema, struct

pc: Any = pyarrow.compute  # pyarrow makes its functions at import: no checker sees them


def source_schema(table: TypedTable) -> StructType:
    """A table's columns, and ``_op``."""
    return struct({**table.columns, **ORIGIN_COLUMNS, OP: STRING})


@dataclass(frozen=True, slots=True)
class _Last:
    """Last change of a key: its row (the last one if deleted) and the record that changed it."""

    row: Row
    op: str
    origin: Origin


_last = fast_dataclass(_Last)


class Pending:
    """The last change of every key since the last publication. Owned by one thread."""

    def __init__(self) -> None:
        self._last: dict[Entity, dict[Key, _Last]] = {}

    @classmethod
    def read(cls, changes: DataFrame) -> Pending:
        """From rows of ``changes``."""
        return cls.of(last_of_all(changes).toArrow())

    @classmethod
    def of(cls, table: pa.Table) -> Pending:
        """From the last change of every key, as ``last_of_all`` returns them."""
        found = cls()
        if table.num_rows == 0:  # pyarrow 17 aborts at a field of a column without chunks
            return found
        for entity in Entity:
            is_of_entity = pc.equal(table["entity"], str(entity))
            structs = pc.struct_field(table["row"], [str(entity)]).filter(is_of_entity)
            if len(structs) == 0:  # pyarrow 17 raises for a table of a column without chunks
                continue
            rows = rows_of(entity, pa.Table.from_struct_array(structs))
            ops, *columns = (
                plain_values(table[name].filter(is_of_entity)) for name in (OP, *ORIGIN_COLUMNS)
            )
            origins = map(Origin, *columns)
            found._last[entity] = {
                row.key: _last(row, op, origin)
                for row, op, origin in zip(rows, ops, origins, strict=True)
            }
        return found

    def note(self, record_changes: Iterable[RecordChanges], origins: Iterable[Origin]) -> None:
        """Add changes, in order, with the origins that ``RowOrigins.apply`` returned for them."""
        changes = (change for record in record_changes for change in record.changes)
        for change, origin in zip(changes, origins, strict=True):
            row = change.before if change.after is None else change.after
            assert row is not None
            of_entity = self._last.setdefault(change.entity, {})
            of_entity[change.key] = _last(row, str(change.op), origin)

    def tables(self) -> tuple[TypedTable, ...]:
        """The tables whose rows changed."""
        return tuple(table for table in TYPED_TABLES if self._last.get(table.entity))

    def living(self) -> tuple[list[Row], RowOrigins]:
        """Return the rows of all tables that are not deleted, and their origins."""
        rows, origins = [], RowOrigins()
        for entity, of_entity in self._last.items():
            for key, last in of_entity.items():
                if last.op != Op.DELETE:
                    rows.append(last.row)
                    origins.set(entity, key, last.origin)
        return rows, origins

    def rows(self, table: TypedTable, *, with_deleted: bool) -> pa.Table:
        """Return the last changes of a table's rows, in ``source_schema``."""
        found = [
            last
            for last in self._last.get(table.entity, {}).values()
            if with_deleted or last.op != Op.DELETE
        ]
        columns = columns_of(table.entity, [last.row for last in found])
        columns[OP] = [last.op for last in found]
        for name in ORIGIN_COLUMNS:
            columns[name] = [getattr(last.origin, name[1:]) for last in found]
        return pa.Table.from_pydict(columns, schema=arrow_schema(source_schema(table)))
