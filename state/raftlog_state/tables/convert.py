"""Conversion of state rows to columns of the tables and back.

Rules of this file:

1. ``rows_of(entity, columns_of(entity, rows)) == rows``, except for times that a TIMESTAMP cannot
   hold (a token's time after the year 294 000 is clamped).
2. Rows are converted column by column: one dictionary per row takes three to five times as long.
3. The conversions derive from the declaration of the rows (``image.row_schema``).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import accumulate, chain
from operator import attrgetter, itemgetter
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa

from raftlog.fast_dataclass import positional_constructor
from raftlog_state.image.column_types import column_type
from raftlog_state.image.delta import RecordChanges, RowChange
from raftlog_state.image.row_schema import ColumnSchema, Kind, Parts, Special, row_schema
from raftlog_state.image.rows import ROW_TYPES, ConfigRow, Entity, Row
from raftlog_state.records import is_redacted
from raftlog_state.records.declare import Array

from .schema import BY_ENTITY, CHANGES_TABLE, PROGRESS, ROW

US_PER_MS: Final = 1_000
LONG_MAX: Final = 2**63 - 1
_CHANGES_ARROW: Final = CHANGES_TABLE.schema
_ORIGIN_FIELDS: Final = list(_CHANGES_ARROW.field("before_origin").type)

ToArray: TypeAlias = Callable[[Sequence[Any]], pa.Array]
"""Conversion of values, or of the rows or parts that contain them, to a column."""
ToValues: TypeAlias = Callable[[pa.ChunkedArray], Iterable[Any]]
"""Conversion of a column to a field's values."""


def microseconds(timestamp_ms: int) -> int:
    """Return Kafka's milliseconds as the value of a TIMESTAMP, clamped to what it can hold."""
    time_us = timestamp_ms * US_PER_MS
    if -LONG_MAX <= time_us <= LONG_MAX:
        return time_us
    return LONG_MAX if time_us > 0 else -LONG_MAX


def _optional_microseconds(timestamp_ms: int | None) -> int | None:
    return None if timestamp_ms is None else microseconds(timestamp_ms)


def milliseconds(time_us: int | None) -> int:
    """Return a time in microseconds as Kafka's timestamp, -1 without one."""
    return -1 if time_us is None else time_us // US_PER_MS


def columns_of(entity: Entity, rows: Sequence[Row]) -> dict[str, pa.Array]:
    """Return the columns of an entity's rows by name, in the order of its table."""
    return {name: to_array(rows) for name, to_array in _TO_COLUMNS[entity].items()}


def rows_of(entity: Entity, table: pa.Table) -> list[Row]:
    """Return the rows of a table's columns; columns that are not fields of the rows are ignored."""
    fields = (to_values(table[name]) for name, to_values in _TO_ROWS[entity])
    return list(map(_CONSTRUCTORS[entity], *fields))


def plain_values(column: pa.ChunkedArray) -> list[Any]:
    """Return a column's values; times are in microseconds, as Python may not support their year."""
    is_time = pa.types.is_timestamp(column.type)
    return list((column.cast(pa.int64()) if is_time else column).to_pylist())


def changes_table(
    record_changes: Sequence[RecordChanges],
    before_origins: Sequence[Sequence[Any] | None],
    shared: Mapping[str, Any],
) -> pa.Table:
    """Return rows of ``changes``.

    ``before_origins`` contains the origin of the row before each change, in the order of
    ``BEFORE_ORIGIN``; ``shared`` contains the columns that identify the log.
    """
    changes = [change for record in record_changes for change in record.changes]
    records = [record for record in record_changes for _ in record.changes]
    return rows_of_changes(records, changes, sequence_numbers(records), before_origins, shared)


def sequence_numbers(records: Iterable[RecordChanges]) -> list[int]:
    """Return each change's ``seq``: its number among the changes of its record's offset.

    Changes of one offset are adjacent.
    """
    offsets = np.fromiter((record.offset for record in records), np.int64)
    starts = np.flatnonzero(np.diff(offsets, prepend=-1))
    lengths = np.diff(starts, append=len(offsets))
    return list((np.arange(len(offsets)) - np.repeat(starts, lengths)).tolist())


def rows_of_changes(
    records: Sequence[RecordChanges],
    changes: Sequence[RowChange],
    seqs: Sequence[int],
    before_origins: Sequence[Sequence[Any] | None],
    shared: Mapping[str, Any],
) -> pa.Table:
    """Return rows of ``changes`` for changes with their records; see ``changes_table``."""
    before, after = _before_and_after(changes)
    columns = {
        **{name: [value] * len(changes) for name, value in shared.items()},
        "offset": [record.offset for record in records],
        "seq": seqs,
        "visible_offset": [record.visible_offset for record in records],
        "leader_epoch": [record.leader_epoch for record in records],
        "log_time": [microseconds(record.timestamp_ms) for record in records],
        "record_type": [record.record_type for record in records],
        "entity": [change.entity for change in changes],
        "key": [change.key_json for change in changes],
        "op": [change.op for change in changes],
        "changed": [_changed_columns(change) for change in changes],
        "before": before,
        "after": after,
        "before_origin": _origin_array(before_origins),
    }
    return pa.Table.from_pydict(columns, schema=_CHANGES_ARROW)


def _changed_columns(change: RowChange) -> list[str]:
    names = _COLUMN_NAMES[change.entity]
    return [names[field] for field in change.changed]


def _origin_array(origins: Sequence[Sequence[Any] | None]) -> pa.StructArray:
    nothing = (None,) * len(_ORIGIN_FIELDS)
    rows = [origin or nothing for origin in origins]
    arrays = [
        pa.array([row[position] for row in rows], field.type)
        for position, field in enumerate(_ORIGIN_FIELDS)
    ]
    mask = pa.array([origin is None for origin in origins], pa.bool_())
    return pa.StructArray.from_arrays(arrays, fields=_ORIGIN_FIELDS, mask=mask)


def _before_and_after(changes: Sequence[RowChange]) -> tuple[pa.StructArray, pa.StructArray]:
    """Return the columns ``before`` and ``after``: a field per entity, null except its own.

    Most rows are the ``after`` of one change and the ``before`` of a later one. Each row is
    therefore converted once, into an array of its entity's rows, and taken from there by position::

        op  before  after    partitions    before.partition    after.partition
        c           a        0: a          null                take 0
        u   a       b        1: b          take 0              take 1
        d   b                              take 1              null
    """
    rows: dict[Entity, list[Row]] = defaultdict(list)
    positions: dict[int, int] = {}  # by id(): hashing a row takes as long as converting it
    for change in changes:
        for row in (change.before, change.after):
            if row is not None and id(row) not in positions:
                of_entity = rows[change.entity]
                positions[id(row)] = len(of_entity)
                of_entity.append(row)
    structs = {entity: _struct_array(entity, of_entity) for entity, of_entity in rows.items()}
    entities = np.array([_ORDINALS[change.entity] for change in changes], np.int8)

    def side(row_ids: list[int]) -> pa.StructArray:
        at = np.array([positions.get(row_id, -1) for row_id in row_ids], np.int64)
        is_null = at < 0
        columns = [
            structs[entity].take(pa.array(at, mask=is_null | (entities != ordinal)))
            if entity in structs
            else pa.nulls(len(at), _STRUCTS[entity])
            for entity, ordinal in _ORDINALS.items()
        ]
        columns.append(pa.nulls(len(at), ROW.field(PROGRESS).type))
        return pa.StructArray.from_arrays(columns, fields=list(ROW), mask=pa.array(is_null))

    return (
        side([id(change.before) for change in changes]),
        side([id(change.after) for change in changes]),
    )


def _struct_array(entity: Entity, rows: Sequence[Row]) -> pa.StructArray:
    columns = list(columns_of(entity, rows).values())
    return pa.StructArray.from_arrays(columns, fields=list(_STRUCTS[entity]))


# --- conversions of the declared fields -----------------------------------------------------------


def _to_columns(entity: Entity) -> dict[str, ToArray]:
    kind = ROW_TYPES[entity]
    declared = {entry.column: entry for entry in row_schema(kind)}
    found = {}
    for name, column in BY_ENTITY[entity].columns.items():
        if name in declared:
            found[name] = _to_column(
                attrgetter(declared[name].name), _to_array(declared[name].kind)
            )
        else:
            get = _has_redacted_value if name == "redacted" else attrgetter(name)
            found[name] = _to_column(get, partial(pa.array, type=column))
    return found


def _has_redacted_value(row: ConfigRow) -> bool:
    return is_redacted(row.value)


def _to_column(get: Callable[[Any], Any], to_array: ToArray) -> ToArray:
    return lambda rows: to_array(list(map(get, rows)))


def _to_array(kind: Kind) -> ToArray:
    if isinstance(kind, Parts):
        return _parts_to_array(kind)
    column = partial(pa.array, type=column_type(kind))
    if kind is Special.TIMESTAMP_MS:
        return _to_column(_optional_microseconds, column)
    return column


def _parts_to_array(kind: Parts) -> ToArray:
    arrow = column_type(kind)
    columns = [
        _to_column(attrgetter(entry.name), _to_array(entry.kind)) for entry in row_schema(kind.part)
    ]

    def to_array(values: Sequence[tuple[Any, ...]]) -> pa.Array:
        offsets = pa.array([0, *accumulate(map(len, values))], pa.int32())
        parts = list(chain.from_iterable(values))
        first, *others = (column(parts) for column in columns)
        if kind.by_name:
            items = pa.StructArray.from_arrays(others, fields=list(arrow.item_type))
            return pa.MapArray.from_arrays(offsets, first, items, type=arrow)
        structs = pa.StructArray.from_arrays([first, *others], fields=list(arrow.value_type))
        return pa.ListArray.from_arrays(offsets, structs, type=arrow)

    return to_array


def _to_values(entry: ColumnSchema) -> ToValues:
    """Return the conversion of a column to a field's values."""
    convert = _to_field(entry.kind)
    return lambda column: map(convert, plain_values(column))


def _to_field(kind: Kind) -> Callable[[Any], Any]:
    """Return the conversion of a value of a column to that of the field."""
    if isinstance(kind, Parts):
        return _to_parts(kind)
    if isinstance(kind, Array):
        return lambda values: None if values is None else tuple(values)
    if kind is Special.TIMESTAMP_MS:
        return lambda time: None if time is None else time // US_PER_MS
    if kind is Special.TEXT_PAIRS:
        return lambda pairs: tuple(sorted(pairs, key=itemgetter(0)))
    return kind if isinstance(kind, type) else _same


def _to_parts(kind: Parts) -> Callable[[Any], Any]:
    steps = [(entry.column, _to_field(entry.kind)) for entry in row_schema(kind.part)]
    key = steps[0][0]

    def convert(values: Iterable[Any]) -> tuple[Any, ...]:
        found = [{**of, key: name} for name, of in sorted(values)] if kind.by_name else values
        return tuple(kind.part(*(of(one[name]) for name, of in steps)) for one in found)

    return convert


def _same(value: Any) -> Any:
    return value


_ORDINALS: Final = {entity: ordinal for ordinal, entity in enumerate(BY_ENTITY)}
_STRUCTS: Final = {entity: pa.struct(table.columns) for entity, table in BY_ENTITY.items()}
_CONSTRUCTORS: Final = {
    entity: positional_constructor(kind, [entry.name for entry in row_schema(kind)])
    for entity, kind in ROW_TYPES.items()
}
_COLUMN_NAMES: Final = {
    entity: {entry.name: entry.column for entry in row_schema(kind)}
    for entity, kind in ROW_TYPES.items()
}
_TO_COLUMNS: Final = {entity: _to_columns(entity) for entity in Entity}
_TO_ROWS: Final = {
    entity: [(entry.column, _to_values(entry)) for entry in row_schema(kind)]
    for entity, kind in ROW_TYPES.items()
}
