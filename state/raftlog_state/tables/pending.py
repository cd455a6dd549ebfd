"""Unpublished changes: the last change of each key since the typed tables were written.

Intermediate changes of a key are in ``changes``, not in a typed table. The result is the same from
memory, in the process that replayed the records, and from ``changes``, after a restart.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from raftlog_state.image.delta import Op, RecordChanges
from raftlog_state.image.rows import Entity, Key, Row

from .asof import OP, last_of_all
from .convert import Columns, columns_of, microseconds, plain_rows, row_of
from .schema import ORIGIN_COLUMNS, STRING, TYPED_TABLES, TypedTable, arrow_schema, struct

_ORIGIN: Final = tuple(ORIGIN_COLUMNS)


def source_schema(table: TypedTable) -> StructType:
    """A table's columns, and ``_op``."""
    return struct({**table.columns, **ORIGIN_COLUMNS, OP: STRING})


@dataclass(frozen=True, slots=True)
class _Last:
    """Last change of a key: its row (the last one if deleted) and the record that changed it.

    ``created_offset`` is None if the row is older than these changes.
    """

    row: Row
    op: str
    offset: int
    visible_offset: int
    leader_epoch: int
    log_time: int | None
    created_offset: int | None


class Pending:
    """The last change of every key since the last publication. Owned by one thread."""

    def __init__(self) -> None:
        self._last: dict[Entity, dict[Key, _Last]] = {}

    @classmethod
    def read(cls, changes: DataFrame) -> Pending:
        """From rows of ``changes``."""
        found = cls()
        for columns in plain_rows(last_of_all(changes).toArrow()):
            entity = Entity(columns["entity"])
            row = row_of(entity, columns["row"][entity])
            found._last.setdefault(entity, {})[row.key] = _Last(
                row,
                columns[OP],
                *(columns[name] for name in _ORIGIN),
            )
        return found

    def note(self, record_changes: Iterable[RecordChanges]) -> None:
        """Add changes, in order."""
        for record in record_changes:
            for change in record.changes:
                row = change.before if change.after is None else change.after
                assert row is not None
                of_entity = self._last.setdefault(change.entity, {})
                before = of_entity.get(change.key)
                created = None if before is None else before.created_offset
                if change.before is None:
                    created = record.offset
                of_entity[change.key] = _Last(
                    row,
                    str(change.op),
                    record.offset,
                    record.visible_offset,
                    record.leader_epoch,
                    microseconds(record.timestamp_ms),
                    created,
                )

    def tables(self) -> tuple[TypedTable, ...]:
        """The tables whose rows changed."""
        return tuple(table for table in TYPED_TABLES if self._last.get(table.entity))

    def living(self) -> list[Row]:
        """Return the rows of all tables that are not deleted."""
        return [
            last.row
            for of_entity in self._last.values()
            for last in of_entity.values()
            if last.op != Op.DELETE
        ]

    def rows(self, table: TypedTable, *, with_deleted: bool) -> pa.Table:
        """Return the last changes of a table's rows, in ``source_schema``."""
        found: list[Columns] = []
        for last in self._last.get(table.entity, {}).values():
            if with_deleted or last.op != Op.DELETE:
                found.append(columns_of(last.row) | _origin_of(last))
        return pa.Table.from_pylist(found, schema=arrow_schema(source_schema(table)))


def _origin_of(last: _Last) -> Columns:
    return {
        "_offset": last.offset,
        "_visible_offset": last.visible_offset,
        "_leader_epoch": last.leader_epoch,
        "_log_time": last.log_time,
        "_created_offset": last.created_offset,
        OP: last.op,
    }
