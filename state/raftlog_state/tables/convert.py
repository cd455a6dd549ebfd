"""Rows of the fold to columns of the tables and back.

Rules of this file:

1. What goes in comes out: ``row_of(entity, columns_of(row)) == row`` for every row, but for what a
   TIMESTAMP cannot hold (a token's time beyond the year 294 000 is cut there).
2. Values are what Arrow takes: lists, dictionaries for structs, pairs for maps, microseconds.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from operator import itemgetter
from typing import Any, Final

import pyarrow as pa

from raftlog_state.image.delta import RecordChanges, RowChange
from raftlog_state.image.row_schema import Kind, Parts, Special, row_schema
from raftlog_state.image.rows import ROW_TYPES, ConfigRow, Entity, Row
from raftlog_state.records import MASK
from raftlog_state.records.declare import Array

from .schema import BY_ENTITY, CHANGES_COLUMNS, arrow_schema, struct

MICROSECONDS: Final = 1_000
_LONG_MAX: Final = 2**63 - 1
_KEYED_HASH: Final = re.compile(r"hmac:[0-9a-f]{32}")
_CHANGES_ARROW: Final = arrow_schema(struct(CHANGES_COLUMNS))

Columns = dict[str, Any]


def microseconds(timestamp_ms: int) -> int:
    """Kafka's milliseconds as what a TIMESTAMP counts, cut to what it can hold."""
    return max(-_LONG_MAX, min(_LONG_MAX, timestamp_ms * MICROSECONDS))


def columns_of(row: Row) -> Columns:
    """A row's columns by name."""
    found = {name: convert(getattr(row, at)) for name, at, convert in _TABLE_STEPS[type(row)]}
    if isinstance(row, ConfigRow):
        found["redacted"] = row.value == MASK or _KEYED_HASH.fullmatch(row.value) is not None
    return found


def row_of(entity: Entity, columns: Mapping[str, Any]) -> Row:
    """The row that a table's columns are, as ``plain_rows`` gives them."""
    kind = ROW_TYPES[entity]
    return kind(**{at: convert(columns[name]) for name, at, convert in _ROW_STEPS[kind]})


def plain_rows(table: pa.Table) -> list[Columns]:
    """An Arrow table as dictionaries; a TIMESTAMP is its microseconds, for it may be in no year
    that Python knows."""
    plain = [pa.field(part.name, _without_time(part.type)) for part in table.schema]
    return list(table.cast(pa.schema(plain)).to_pylist())


def _without_time(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_timestamp(kind):
        return pa.int64()
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(part.name, _without_time(part.type)) for part in kind])
    return kind


def changes_table(record_changes: Iterable[RecordChanges], shared: Columns) -> pa.Table:
    """Return rows of ``changes``; ``shared`` has the columns that identify the log."""
    rows: list[Columns] = []
    seqs: dict[int, int] = {}
    for record in record_changes:
        for change in record.changes:
            seq = seqs.get(record.offset, 0)
            seqs[record.offset] = seq + 1
            rows.append(_change(record, change, seq) | shared)
    return pa.Table.from_pylist(rows, schema=_CHANGES_ARROW)


def _change(record: RecordChanges, change: RowChange, seq: int) -> Columns:
    return {
        "offset": record.offset,
        "seq": seq,
        "visible_offset": record.visible_offset,
        "leader_epoch": record.leader_epoch,
        "log_time": microseconds(record.timestamp_ms),
        "record_type": record.record_type,
        "entity": str(change.entity),
        "key": change.key_json,
        "op": str(change.op),
        "changed": list(change.changed),
        "before": None if change.before is None else {change.entity: columns_of(change.before)},
        "after": None if change.after is None else {change.entity: columns_of(change.after)},
    }


# --- conversions of a row's fields, derived from their declaration --------------------------------

_Step = tuple[str, str, Callable[[Any], Any]]
"""Column, attribute of the row, and the conversion of the one's value to the other's."""


def _table_steps(kind: type[Row]) -> tuple[_Step, ...]:
    declared = {entry.column: entry for entry in row_schema(kind)}
    return tuple(
        (name, declared[name].name, _to_column(declared[name].kind))
        if name in declared
        else (name, name, _same)
        for name in BY_ENTITY[kind.ENTITY].columns
        if name in declared or hasattr(kind, name)
    )


def _row_steps(kind: type) -> tuple[_Step, ...]:
    return tuple((entry.column, entry.name, _to_field(entry.kind)) for entry in row_schema(kind))


def _to_column(kind: Kind) -> Callable[[Any], Any]:
    if isinstance(kind, Parts):
        return _parts_to_column(kind)
    if isinstance(kind, Array):
        return lambda values: None if values is None else list(values)
    if kind is Special.TIMESTAMP_MS:
        return microseconds
    if kind is Special.TEXT_PAIRS:
        return list
    return str if isinstance(kind, type) else _same


def _to_field(kind: Kind) -> Callable[[Any], Any]:
    if isinstance(kind, Parts):
        return _parts_to_field(kind)
    if isinstance(kind, Array):
        return lambda values: None if values is None else tuple(values)
    if kind is Special.TIMESTAMP_MS:
        return lambda time: time // MICROSECONDS
    if kind is Special.TEXT_PAIRS:
        return lambda pairs: tuple(sorted(pairs, key=itemgetter(0)))
    return kind if isinstance(kind, type) else _same


def _parts_to_column(kind: Parts) -> Callable[[Any], Any]:
    steps = [(entry.column, entry.name, _to_column(entry.kind)) for entry in row_schema(kind.part)]
    key = steps[0][0]

    def convert(parts: Iterable[object]) -> list[Any]:
        found = [{name: of(getattr(one, at)) for name, at, of in steps} for one in parts]
        return [(columns.pop(key), columns) for columns in found] if kind.by_name else found

    return convert


def _parts_to_field(kind: Parts) -> Callable[[Any], Any]:
    steps = _row_steps(kind.part)
    key = steps[0][0]

    def convert(values: Iterable[Any]) -> tuple[Any, ...]:
        found = [{**of, key: name} for name, of in sorted(values)] if kind.by_name else values
        return tuple(kind.part(**{at: of(one[name]) for name, at, of in steps}) for one in found)

    return convert


def _same(value: Any) -> Any:
    return value


_TABLE_STEPS: Final = {kind: _table_steps(kind) for kind in ROW_TYPES.values()}
_ROW_STEPS: Final = {kind: _row_steps(kind) for kind in ROW_TYPES.values()}
