"""``replay_columns``: changes of topics, partitions and configs, without one object per record.

Rules of this file:

1. The changes equal those of a ``MetadataLoader``, or there are none: records that contradict the
   state, or that are not plain, are left to a loader. This is decided before the first change.
2. Plain records are records of the types in ``row_versions``, in transactions that end in the
   range.
3. Memory holds the records and the rows that they change, as columns. Changes are converted to rows
   of the tables in slices.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute

from raftlog_state.errors import MetadataParseError
from raftlog_state.image.delta import Op
from raftlog_state.image.rows import Entity, table_of
from raftlog_state.records import Redactor
from raftlog_state.replay.coded_columns import Bools, Int32s, Int64s, NotPlainError, require
from raftlog_state.replay.distinct_values import DistinctValues, StructRows
from raftlog_state.replay.row_versions import (
    TOPIC_RECORDS,
    Given,
    StoredColumns,
    Versions,
    last_set,
    sorted_order,
    versions_of,
)
from raftlog_state.replay.topic_records import (
    MARKER_KEYS,
    MARKERS,
    TopicRecords,
    topic_records,
)

from .convert import LONG_MAX, US_PER_MS
from .latest import living
from .schema import BEFORE_ORIGIN, CHANGES_TABLE, ORIGIN_COLUMNS, ROW, of_entities
from .stored_rows import StateParts
from .stores.protocol import rows_where

pc: Any = pyarrow.compute  # pyarrow creates its functions at import, unseen by type checkers

TOPIC_ENTITIES: Final = (Entity.TOPIC, Entity.PARTITION, Entity.CONFIG)
TOPIC_TABLES: Final = tuple(map(table_of, TOPIC_ENTITIES))
CHANGES_SCHEMA: Final = of_entities(CHANGES_TABLE.schema, TOPIC_ENTITIES)
"""Columns of ``changes`` for these entities."""
_ROW: Final = CHANGES_SCHEMA.field("after").type
_OPS: Final = (Op.CREATE, Op.UPDATE, Op.DELETE)
_NONE: Final = -1
_NO_TIME: Final = -(2**63)
"""Number for a null time; no other time is as low (``convert.microseconds``)."""


class RecordColumns(NamedTuple):
    """Records of a range that change a bucket's rows, and transaction markers."""

    offsets: Int64s
    leader_epochs: Int64s
    times_ms: Int64s
    values: pa.BinaryArray


def replay_columns(
    state: StateParts, records: RecordColumns, redactor: Redactor
) -> ColumnarChanges | None:
    """Return the changes of records; None if a loader must replay them.

    ``state``: the bucket's rows before the records.
    """
    try:
        found = topic_records(records.values, records.offsets, redactor)
        is_marker = np.isin(found.api_keys, MARKER_KEYS)
        require(is_plain=np.all(found.is_of_topics | is_marker))
        stored, origins = _stored(state)
        versions = versions_of(
            Given(row_count=len(records.offsets), records=found.by_type, stored=stored)
        )
    except (NotPlainError, MetadataParseError):
        return None
    return ColumnarChanges(records, found, stored, origins, versions)


def _stored(state: StateParts) -> tuple[dict[Entity, StoredColumns], pa.Table]:
    """Return the columns of each entity's rows, and all their origins in the same order."""
    others, partitions = map(living, state)
    tables = [
        partitions if entity is Entity.PARTITION else rows_where(others, ("entity", "=", entity))
        for entity in TOPIC_ENTITIES
    ]
    found, count = {}, 0
    for entity, table in zip(TOPIC_ENTITIES, tables, strict=True):
        structs = pc.struct_field(table["row"], [str(entity)]).combine_chunks()
        numbers = np.arange(count, count + table.num_rows)
        found[entity] = StoredColumns(pa.Table.from_struct_array(structs), numbers)
        count += table.num_rows
    return found, pa.concat_tables([table.select(list(ORIGIN_COLUMNS)) for table in tables])


class ColumnarChanges:
    """Changes of a range in their order, as numbers of row versions.

    ``last`` contains the position of each key's last change; ``row_counts`` contains the tables'
    row counts at the end of the range.
    """

    def __init__(
        self,
        records: RecordColumns,
        found: TopicRecords,
        stored: Mapping[Entity, StoredColumns],
        origins: pa.Table,
        versions: Sequence[Versions],
    ) -> None:
        self._ops = DistinctValues(pa.array(map(str, _OPS)))
        self._entities = DistinctValues(pa.array([str(of.entity) for of in versions]))
        self._rows = {str(of.entity): _rows_of(of) for of in versions}
        self._origins = _origins(records, found.visible_offsets, origins)
        self._starts = np.cumsum([0, *(len(of.keys) for of in versions)])
        key_texts = [of.key_texts() for of in versions]
        key_starts = np.cumsum([0, *map(len, key_texts)])
        pairs = list(zip(versions, key_starts, strict=False))
        self._key_texts = DistinctValues(pa.concat_arrays(key_texts))
        self._keys = np.concatenate([of.keys + start for of, start in pairs])
        self._sources = np.concatenate([of.sources for of in versions])
        self._is_deleted = np.concatenate([of.is_deleted for of in versions])
        self._has_before = np.concatenate([of.has_before for of in versions])
        positions = np.concatenate([of.positions for of in versions])
        self._created = self._created_offsets()
        which = np.flatnonzero(positions >= 0)
        self._changes = which[sorted_order(positions[which], self._keys[which])]
        self._positions = positions[self._changes]
        starts = np.flatnonzero(np.diff(self._positions, prepend=_NONE))
        counts = np.diff(starts, append=len(self._positions))
        self._seqs = np.arange(len(self._positions)) - np.repeat(starts, counts)
        is_last = np.append(self._keys[1:] != self._keys[:-1], True)[: len(self._keys)]
        self.last = np.flatnonzero(is_last[self._changes])
        self._record_types, self._type_codes = _record_types(found.api_keys)
        is_update = self._has_before & ~self._is_deleted
        self._changed, self._changed_codes = _changed_names(versions, is_update)
        self.row_counts = self._row_counts(versions, stored)

    def __len__(self) -> int:
        return len(self._changes)

    def rows(self, which: Int64s, shared: Mapping[str, Any]) -> pa.Table:
        """Return the rows of ``changes`` at these positions in the order of the changes.

        Their structs have the fields of ``CHANGES_SCHEMA``; ``shared`` has the columns that
        identify the log.
        """
        versions, positions = self._changes[which], self._positions[which]
        count = len(which)
        has_before, is_deleted = self._has_before[versions], self._is_deleted[versions]
        ops = np.where(is_deleted, 2, np.where(has_before, 1, 0))
        entities = np.searchsorted(self._starts, versions, side="right") - 1
        written = self._origins_of(versions)
        columns = {
            **{name: _repeated(name, value, count) for name, value in shared.items()},
            "offset": written["_offset"],
            "seq": self._seqs[which],
            "visible_offset": written["_visible_offset"],
            "leader_epoch": written["_leader_epoch"],
            "log_time": written["_log_time"],
            "record_type": self._record_types.gather(self._type_codes[positions]),
            "entity": self._entities.gather(entities.astype(np.int32)),
            "key": self._key_texts.gather(self._keys[versions].astype(np.int32)),
            "op": self._ops.gather(ops.astype(np.int32)),
            "changed": self._changed.gather(self._changed_codes[versions]),
            "before": self._side(versions - 1, ~has_before, entities),
            "after": self._side(versions, is_deleted, entities),
            "before_origin": self._before_origins(versions, has_before),
        }
        arrays = [_as(columns[field.name], field.type) for field in CHANGES_SCHEMA]
        return pa.table(arrays, schema=CHANGES_SCHEMA)

    def _created_offsets(self) -> Int64s:
        """Return the offset at which the row of each version was created."""
        sources = self._sources[last_set(~self._has_before)]
        created: Int64s = self._origins["_created_offset"][sources]
        return created

    def _row_counts(
        self, versions: Sequence[Versions], stored: Mapping[Entity, StoredColumns]
    ) -> dict[str, int]:
        entities = np.searchsorted(self._starts, self._changes, side="right") - 1
        steps = np.where(self._has_before[self._changes], 0, 1)
        steps = np.where(self._is_deleted[self._changes], -1, steps)
        return {
            table_of(of.entity): len(stored[of.entity].numbers)
            + int(steps[entities == number].sum())
            for number, of in enumerate(versions)
        }

    def _side(self, versions: Int64s, is_null: Bools, entities: Int64s) -> pa.StructArray:
        """Return the column ``before`` or ``after``: a field per entity, null except its own."""
        structs = {
            name: rows.gather(versions - self._starts[number], is_null | (entities != number))
            for number, (name, rows) in enumerate(self._rows.items())
        }
        columns = [structs[field.name] for field in _ROW]
        return pa.StructArray.from_arrays(columns, fields=list(_ROW), mask=pa.array(is_null))

    def _before_origins(self, versions: Int64s, has_before: Bools) -> pa.StructArray:
        before = np.where(has_before, versions - 1, 0)
        columns = self._origins_of(before) | {"_created_offset": pa.array(self._created[before])}
        arrays, fields = list(columns.values()), list(BEFORE_ORIGIN)
        return pa.StructArray.from_arrays(arrays, fields=fields, mask=pa.array(~has_before))

    def _origins_of(self, versions: Int64s) -> dict[str, pa.Array]:
        sources = self._sources[versions]
        found = {name: pa.array(column[sources]) for name, column in self._origins.items()}
        times = self._origins["_log_time"][sources]
        found["_log_time"] = pa.array(times, mask=times == _NO_TIME)
        return {name: found[name].cast(kind) for name, kind in ORIGIN_COLUMNS.items()}


def _origins(
    records: RecordColumns, visible_offsets: Int64s, stored: pa.Table
) -> dict[str, Int64s]:
    """Return the origins that the records write to rows, then the origins of stored rows."""
    written = {
        "_offset": records.offsets,
        "_visible_offset": visible_offsets,
        "_leader_epoch": records.leader_epochs,
        "_log_time": _microseconds(records.times_ms),
        "_created_offset": records.offsets,
    }
    if not stored.num_rows:
        return written
    before = {
        name: stored[name].cast(pa.int64()).fill_null(_NO_TIME).to_numpy() for name in written
    }
    return {name: np.concatenate([written[name], before[name]]) for name in written}


def _microseconds(times_ms: Int64s) -> Int64s:
    """Convert times as ``convert.microseconds`` does."""
    limit = LONG_MAX // US_PER_MS
    found = times_ms * US_PER_MS
    found[times_ms > limit], found[times_ms < -limit] = LONG_MAX, -LONG_MAX
    return found


def _record_types(api_keys: Int32s) -> tuple[DistinctValues, Int32s]:
    """Return Kafka's names of record types, and each record's code."""
    names = {kind.schema.api_key: kind.schema.json_type for kind in (*TOPIC_RECORDS, *MARKERS)}
    codes = np.zeros(max(names) + 1, dtype=np.int32)
    codes[list(names)] = np.arange(len(names))
    return DistinctValues(pa.array(names.values())), codes[api_keys]


def _changed_names(versions: Sequence[Versions], is_update: Bools) -> tuple[DistinctValues, Int32s]:
    """Return lists of names of changed columns, and each version's code.

    Versions that are not updates have an empty list.
    """
    names: list[str] = []
    found = []
    for of in versions:
        bits = np.zeros(len(of.keys), dtype=np.int64)
        for name, differs in of.changed.items():
            bits |= differs.astype(np.int64) << len(names)
            names.append(name)
        found.append(bits)
    sets = np.where(is_update, np.concatenate(found), 0)
    is_used = np.zeros(1 << len(names), dtype=np.bool_)
    is_used[sets] = True
    lists = [
        [name for bit, name in enumerate(names) if one >> bit & 1]
        for one in np.flatnonzero(is_used).tolist()
    ]
    kind = CHANGES_SCHEMA.field("changed").type
    codes = np.cumsum(is_used, dtype=np.int32) - 1
    return DistinctValues(pa.array(lists, kind)), codes[sets]


def _rows_of(of: Versions) -> StructRows:
    kind = ROW.field(str(of.entity)).type
    return StructRows(kind, [of.columns[field.name] for field in kind])


def _repeated(name: str, value: Any, count: int) -> pa.Array:
    return pa.repeat(pa.scalar(value, CHANGES_SCHEMA.field(name).type), count)


def _as(column: Any, kind: pa.DataType) -> Any:
    column = column if isinstance(column, pa.Array | pa.ChunkedArray) else pa.array(column)
    return column if column.type == kind else column.cast(kind)
