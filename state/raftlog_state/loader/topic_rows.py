"""Rows of topics, partitions and configs after a range of a log, and their changes, by columns.

Most records of a long log change partitions, and each partition changes many times. A state after
the range does not need the rows in between, nor a Python object for each record.

Rules of this file:

1. The rows are those that ``replay`` writes record by record, or there are none: records that
   contradict the state, or that are not plain, are left to the loader.
2. Of the rows before the range, only those that the records name, and those that are deleted with a
   topic, are converted to columns.
3. ``TopicColumns`` keeps all rows as columns between ranges, and converts them to objects after the
   last one. A range of a few megabytes names most rows of a cluster, and converting them to columns
   and back takes longer than replaying it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby, repeat
from operator import attrgetter, itemgetter
from typing import Any, Final, NamedTuple, Self

import numpy as np
import pyarrow as pa

from raftlog.fast_dataclass import positional_constructor
from raftlog_state.image import ROW_TYPES, ConfigRow, Entity, Key, PartitionRow, Row, TopicRow
from raftlog_state.image.column_types import column_type
from raftlog_state.image.delta import Op, RecordChanges, RowChange
from raftlog_state.image.entity_names import RowFilter
from raftlog_state.image.row_schema import ColumnSchema, row_schema
from raftlog_state.records import (
    ClearElrRecord,
    ConfigRecord,
    MetadataRecord,
    PartitionChangeRecord,
    PartitionRecord,
    Redactor,
    RemoveTopicRecord,
    TopicRecord,
)
from raftlog_state.records.typed_columns import no_ops
from raftlog_state.replay.coded_columns import (
    Bools,
    Coded,
    Column,
    Int64s,
    NotPlainError,
    coded,
    coded_lists,
    numbers,
    require,
)
from raftlog_state.replay.dispatch import Rows
from raftlog_state.replay.distinct_values import DistinctValues
from raftlog_state.replay.row_versions import (
    TOPIC_RECORDS,
    Given,
    StoredColumns,
    TypedRecords,
    Versions,
    is_first,
    versions_of,
)
from raftlog_state.replay.topic_records import MARKER_KEYS, TopicRecords, topic_records
from raftlog_state.replay.topics import CONFIG_OF_TOPIC

_CONSTRUCTORS: Final[Mapping[Entity, Callable[..., Row]]] = {
    entity: positional_constructor(kind, [entry.name for entry in row_schema(kind)])
    for entity, kind in ROW_TYPES.items()
}
_KEY_COLUMNS: Final[Mapping[Entity, tuple[str, ...]]] = {
    Entity.TOPIC: ("topic_id",),
    Entity.PARTITION: ("topic_id", "partition_id"),
    Entity.CONFIG: ("resource_type", "resource_name", "name"),
}
"""Columns of the keys of rows, in the order of ``Row.key``."""
_WITH_TOPIC_ID: Final = (TopicRecord, PartitionRecord, PartitionChangeRecord, RemoveTopicRecord)


SLICE_CHANGES: Final = 10_000
"""Changes that are converted to objects together."""
_RECORD_TYPES: Final = {kind.schema.api_key: kind.schema.json_type for kind in TOPIC_RECORDS}


class TopicRows(NamedTuple):
    """Rows of topics that a range has written, and keys of rows to be deleted before that.

    If a topic is created again, it may have another name, so its former row is among the deleted
    ones. ``others`` contains the numbers of the records that do not belong to topics, without
    NoOps.
    """

    written: list[Row]
    deleted: list[tuple[Entity, Key]]
    others: Int64s
    changes: TopicChanges


class TopicChanges(NamedTuple):
    """Changes of topics' rows in a range, as versions of the rows."""

    found: TopicRecords
    versions: Sequence[Versions]

    def records(
        self,
        offsets: Int64s,
        leader_epochs: Int64s,
        timestamps_ms: Int64s,
        filters: Sequence[RowFilter] | None,
    ) -> Iterator[RecordChanges]:
        """Yield the records' changes of rows that match any of ``filters``; None: of all rows.

        They are in the order in which they take effect, as from a loader. The columns have a value
        for each record of the range.
        """
        chosen = [np.flatnonzero(~of.is_stored & _matching(of, filters)) for of in self.versions]
        entities = np.repeat(np.arange(len(chosen)), [len(which) for which in chosen])
        numbers = np.concatenate(chosen)
        rows = np.concatenate(
            [of.positions[which] for of, which in zip(self.versions, chosen, strict=True)]
        )
        visible_offsets = self.found.visible_offsets
        order = np.lexsort((rows, visible_offsets[rows]))  # stable: else by entity, then by key
        changes = self._changes(rows[order], entities[order], numbers[order])
        for row, of_record in groupby(changes, key=itemgetter(0)):
            yield RecordChanges(
                offset=int(offsets[row]),
                visible_offset=int(visible_offsets[row]),
                leader_epoch=int(leader_epochs[row]),
                timestamp_ms=int(timestamps_ms[row]),
                record_type=_RECORD_TYPES[int(self.found.api_keys[row])],
                changes=tuple(change for _, change in of_record),
            )

    def _changes(
        self, rows: Int64s, entities: Int64s, numbers: Int64s
    ) -> Iterator[tuple[int, RowChange]]:
        """Yield each change with the row of its record."""
        for start in range(0, len(rows), SLICE_CHANGES):
            part = slice(start, start + SLICE_CHANGES)
            own = entities[part]
            changes = [
                _row_changes(versions, numbers[part][own == ordinal])
                for ordinal, versions in enumerate(self.versions)
            ]
            for row, ordinal in zip(rows[part].tolist(), own.tolist(), strict=True):
                yield row, next(changes[ordinal])


def _matching(versions: Versions, filters: Sequence[RowFilter] | None) -> Bools:
    """Return which versions match any of the filters; None: all of them."""
    found = np.full(len(versions.keys), filters is None)
    for one in filters or ():
        if one.entity is versions.entity:
            of_filter = np.ones(len(found), np.bool_)
            for name, value in one.values:
                of_filter &= _equal(versions.columns[name], value)
            found |= of_filter
    return found


def _equal(column: Column, value: str | int) -> Bools:
    if isinstance(column, Coded):  # in Python: Arrow has no text of bytes that are not UTF-8
        is_equal = [one == value for one in column.values.to_pylist()]
        of_codes: Bools = np.array([*is_equal, False])[column.codes]  # the last one is for NULL
        return of_codes
    found: Bools = column.to_numpy() == value
    return found


def _row_changes(versions: Versions, which: Int64s) -> Iterator[RowChange]:
    """Yield the changes from the previous versions to these ones."""
    is_deleted, has_before = versions.is_deleted[which], versions.has_before[which]
    used = np.unique(np.concatenate([which[~is_deleted], which[has_before] - 1]))
    rows = _rows(versions, used)
    columns = (
        is_deleted,
        has_before,
        np.searchsorted(used, which - 1),
        np.searchsorted(used, which),
    )
    for deletes, updates, before, after in zip(*(one.tolist() for one in columns), strict=True):
        row_before = rows[before] if updates else None
        row_after = None if deletes else rows[after]
        row = row_after or row_before
        assert row is not None, "only a row that is there is deleted"
        op = Op.DELETE if deletes else Op.UPDATE if updates else Op.CREATE
        yield RowChange(versions.entity, row.key, op, row_before, row_after)


def replay_topics(
    before: Rows, values: pa.BinaryArray, offsets: Int64s, redactor: Redactor
) -> TopicRows:
    """Return the rows of topics after a range's records; ``before`` contains the earlier rows.

    Raises:
        NotPlainError: the loader is needed.
        MetadataParseError: a value is damaged.
    """
    found = topic_records(values, offsets, redactor)
    topics, partitions, configs = _touched(before, found.by_type)
    stored = {
        Entity.TOPIC: _stored(TopicRow, topics),
        Entity.PARTITION: _stored(PartitionRow, partitions),
        Entity.CONFIG: _stored(ConfigRow, configs),
    }
    given = Given(row_count=len(values), records=found.by_type, stored=stored)
    written: list[Row] = []
    deleted: list[tuple[Entity, Key]] = []
    all_versions = versions_of(given)
    for versions in all_versions:
        first, last = _bounds(versions)
        is_deleted = versions.is_deleted[last]
        written += _rows(versions, last[~is_deleted & ~versions.is_stored[last]])
        is_deleted = np.logical_or.reduceat(versions.is_deleted, first)
        deleted += _keys(versions, first[is_deleted & versions.is_stored[first]])
    is_other = ~found.is_of_topics & ~no_ops(values, found.api_keys)
    changes = TopicChanges(found, all_versions)
    return TopicRows(written, deleted, np.flatnonzero(is_other), changes)


def _touched(
    before: Rows, records: Mapping[type[MetadataRecord], TypedRecords]
) -> tuple[list[TopicRow], list[PartitionRow], list[ConfigRow]]:
    """Return the earlier rows that a range's records change, delete or must not repeat."""

    def distinct(kind: type[MetadataRecord], name: str) -> Iterable[str]:
        found: list[str] = records[kind].column(name).unique().to_pylist()
        return found

    ids = {one for kind in _WITH_TOPIC_ID for one in distinct(kind, "topic_id")}
    created_names = distinct(TopicRecord, "name")
    cleared_names = distinct(ClearElrRecord, "topic_name")
    for name in (*created_names, *cleared_names):
        ids.update(str(key[0]) for key in before.group((Entity.TOPIC, name, "")))
    topics = {one: row for one in ids if (row := before.find(TopicRow, one)) is not None}

    removed = [topics[one] for one in distinct(RemoveTopicRecord, "topic_id") if one in topics]
    whole = {row.topic_id for row in removed}
    for name in cleared_names:
        whole.update(str(key[0]) for key in before.group((Entity.TOPIC, name, "")))
    partition_keys = set(_partition_keys(records, topics.keys() - whole))
    for topic_id in whole:
        partition_keys.update(before.group((Entity.PARTITION, topic_id, "")))

    config_keys = set(_config_keys(records[ConfigRecord]))
    for name in (*created_names, *(row.name for row in removed)):
        config_keys.update(before.group((Entity.CONFIG, CONFIG_OF_TOPIC, name)))
    partitions = (before.find(PartitionRow, *key) for key in partition_keys)
    configs = (before.find(ConfigRow, *key) for key in config_keys)
    return (
        list(topics.values()),
        [row for row in partitions if row is not None],
        [row for row in configs if row is not None],
    )


def _partition_keys(
    records: Mapping[type[MetadataRecord], TypedRecords], topic_ids: Iterable[str]
) -> Iterator[Key]:
    """Yield the keys of the partitions of these topics that records create or change."""
    parts = [records[PartitionRecord], records[PartitionChangeRecord]]
    ids, numbers = (
        pa.concat_arrays([part.column(name) for part in parts])
        for name in ("topic_id", "partition_id")
    )
    encoded = ids.dictionary_encode()
    names = encoded.dictionary.to_pylist()
    wanted = set(topic_ids)
    is_wanted = np.array([name in wanted for name in names], np.bool_)
    codes = encoded.indices.to_numpy().astype(np.int64)
    places = codes[is_wanted[codes]] << 32 | numbers.to_numpy()[is_wanted[codes]]
    for place in np.unique(places).tolist():
        yield names[place >> 32], place & 0xFFFF_FFFF


def _config_keys(configs: TypedRecords) -> Iterator[Key]:
    resources, names = (configs.column(name).to_pylist() for name in ("resource_name", "name"))
    for resource, name in zip(resources, names, strict=True):
        yield CONFIG_OF_TOPIC, resource, name


def _stored(kind: type[Row], rows: Sequence[Row]) -> StoredColumns:
    """Return the columns of rows that are fields of their records."""
    entries = [entry for entry in row_schema(kind) if entry.record_field is not None]
    return StoredColumns(_table(entries, rows), np.arange(len(rows)))


def _table(entries: Sequence[ColumnSchema], rows: Sequence[Row]) -> pa.Table:
    values = map(attrgetter(*(entry.name for entry in entries)), rows)
    columns = list(zip(*values, strict=True)) or [()] * len(entries)
    arrays = {
        entry.column: _encoded(column, column_type(entry.kind))
        for entry, column in zip(entries, columns, strict=True)
    }
    return pa.table(arrays)


def _encoded(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Return a column; each distinct value, most often a tuple, is converted once.

    Raises:
        NotPlainError: an epoch of a row is greater than a record's epoch can be.
    """
    codes: dict[Any, int] = {}
    rows = [codes.setdefault(value, len(codes)) for value in values]
    try:
        distinct = pa.array(list(codes), kind)
    except pa.ArrowInvalid:
        raise NotPlainError from None
    return distinct.take(pa.array(rows, pa.int64()))


def _bounds(versions: Versions) -> tuple[Int64s, Int64s]:
    """Return the numbers of the first and last version of each key."""
    first = np.flatnonzero(is_first(versions.keys))
    return first, np.append(first[1:], len(versions.keys))[: len(first)] - 1


def _rows(versions: Versions, which: Int64s) -> list[Row]:
    fields = (
        _values(versions.columns[entry.column], which)
        for entry in row_schema(ROW_TYPES[versions.entity])
    )
    return list(map(_CONSTRUCTORS[versions.entity], *fields))


def _keys(versions: Versions, which: Int64s) -> Iterator[tuple[Entity, Key]]:
    """Yield entity and key of these versions."""
    names = _KEY_COLUMNS[versions.entity]
    keys = zip(*(_values(versions.columns[name], which) for name in names), strict=True)
    return zip(repeat(versions.entity), keys)


def _values(column: Column, which: Int64s) -> list[Any]:
    """Return the values of a field at these rows; each distinct value is converted once."""
    if not isinstance(column, Coded):
        found: list[Any] = column.take(pa.array(which)).to_pylist()
        return found
    used, codes = np.unique(column.codes[which], return_inverse=True)
    values = column.values.take(pa.array(used)).to_pylist()
    if pa.types.is_list(column.values.type):
        values = list(map(tuple, values))
    return [values[code] for code in codes.tolist()]


# --- Rows between ranges --------------------------------------------------------------------------


class TopicColumns(NamedTuple):
    """All rows of topics, partitions and configs after a range, as columns.

    ``keys`` contains the keys of the rows before the first range, in the state to which the rows
    are written; a topic's key has its name.
    """

    rows: Mapping[Entity, StoredColumns]
    keys: Mapping[tuple[Entity, Key], str | None]

    @classmethod
    def empty(cls) -> Self:
        """Return the columns of the state before the first record of a log."""
        return cls(
            {kind: _numbered(_table(row_schema(ROW_TYPES[kind]), ())) for kind in _KEY_COLUMNS}, {}
        )

    @classmethod
    def of(cls, before: Rows, row_count_max: int | None) -> Self | None:
        """Return the columns of all rows of a state; None if there are too many.

        Raises:
            NotPlainError: an epoch of a row is greater than a record's epoch can be.
        """
        keys = {entity: before.keys(entity) for entity in _KEY_COLUMNS}
        if row_count_max is not None and sum(map(len, keys.values())) > row_count_max:
            return None
        keys[Entity.CONFIG] = [key for key in keys[Entity.CONFIG] if key[0] == CONFIG_OF_TOPIC]
        rows: dict[Entity, StoredColumns] = {}
        names: dict[tuple[Entity, Key], str | None] = {}
        for entity, own in keys.items():
            kind = ROW_TYPES[entity]
            found = [row for key in own if (row := before.find(kind, *key)) is not None]
            rows[entity] = _numbered(_table(row_schema(kind), found))
            for row in found:
                names[entity, row.key] = row.name if isinstance(row, TopicRow) else None
        return cls(rows, names)

    def after(
        self, values: pa.BinaryArray, offsets: Int64s, redactor: Redactor
    ) -> tuple[TopicColumns, Int64s]:
        """Return the rows after the records of a range, and the numbers of records of no topic.

        NoOps have no number. Raises the errors of ``replay_topics``.
        """
        found = topic_records(values, offsets, redactor, is_merged=True)
        return self._after(found, values)

    def after_snapshot(
        self, values: pa.BinaryArray, offsets: Int64s, redactor: Redactor
    ) -> tuple[TopicColumns, Int64s]:
        """Return rows and numbers like ``after``, for a snapshot's records, which delete no rows.

        Raises the errors of ``replay_topics``.
        """
        found = topic_records(values, offsets, redactor)
        configs = found.by_type[ConfigRecord]
        require(is_plain=not np.isin(found.api_keys, MARKER_KEYS).any())
        require(is_plain=not len(found.by_type[RemoveTopicRecord].rows))
        require(is_plain=not configs.column("value").null_count)
        return self._after(found, values)

    def _after(self, found: TopicRecords, values: pa.BinaryArray) -> tuple[TopicColumns, Int64s]:
        given = Given(row_count=len(values), records=found.by_type, stored=self.rows)
        rows = {of.entity: self._last(of, len(values)) for of in versions_of(given)}
        is_other = ~found.is_of_topics & ~no_ops(values, found.api_keys)
        return TopicColumns(rows, self.keys), np.flatnonzero(is_other)

    def _last(self, versions: Versions, row_count: int) -> StoredColumns:
        """Return the last version of each key that is not deleted, and the rows that have none."""
        stored = self.rows[versions.entity].columns
        is_kept = np.ones(stored.num_rows, np.bool_)
        is_kept[versions.sources[versions.is_stored] - row_count] = False
        _, last = _bounds(versions)
        last = last[~versions.is_deleted[last]]
        columns = {
            field.name: _gathered(versions.columns[field.name], last) for field in stored.schema
        }
        tables = [pa.table(columns, stored.schema)]
        if is_kept.any():
            tables.append(stored.filter(pa.array(is_kept)))
        return _numbered(pa.concat_tables(tables).combine_chunks())

    def has_rows_of(self, other: TopicColumns) -> bool:
        """Return whether both have the same rows, in any order."""
        return all(
            _are_equal(entity, stored.columns, other.rows[entity].columns)
            for entity, stored in self.rows.items()
        )

    def written(self) -> list[Row]:
        """Return all rows."""
        return [row for entity, stored in self.rows.items() for row in _objects(entity, stored)]

    def deleted(self) -> list[tuple[Entity, Key]]:
        """Return keys of rows to delete first: those without a row, and of renamed topics."""
        if not self.keys:
            return []
        kept: dict[tuple[Entity, Key], str | None] = {}
        for entity, stored in self.rows.items():
            columns = [stored.columns[name].to_pylist() for name in _KEY_COLUMNS[entity]]
            keys = zip(repeat(entity), zip(*columns, strict=True))
            kept |= dict.fromkeys(keys)
        for topic_id, name in zip(
            *(self.rows[Entity.TOPIC].columns[name].to_pylist() for name in ("topic_id", "name")),
            strict=True,
        ):
            kept[Entity.TOPIC, (topic_id,)] = name
        return [key for key, name in self.keys.items() if key not in kept or kept[key] != name]


def _numbered(table: pa.Table) -> StoredColumns:
    return StoredColumns(table, np.arange(table.num_rows))


def _are_equal(entity: Entity, rows: pa.Table, others: pa.Table) -> bool:
    """Return whether two tables have the same rows, in any order; keys are unique in each."""
    count = rows.num_rows
    if count != others.num_rows:
        return False
    keys = []
    for name in _KEY_COLUMNS[entity]:
        columns = rows.column(name), others.column(name)
        is_text = pa.types.is_string(columns[0].type)
        keys.append(coded(*columns).codes if is_text else numbers(*columns))
    orders = np.lexsort([key[:count] for key in keys]), np.lexsort([key[count:] for key in keys])
    if not all(np.array_equal(key[orders[0]], key[count:][orders[1]]) for key in keys):
        return False
    before, after = (
        table.take(pa.array(order)) for table, order in zip((rows, others), orders, strict=True)
    )
    found: bool = before.equals(after)
    return found


def _gathered(column: Column, which: Int64s) -> pa.Array:
    if isinstance(column, Coded):
        return DistinctValues(column.values).gather(column.codes[which].astype(np.int32))
    return column.take(pa.array(which))


def _objects(entity: Entity, stored: StoredColumns) -> Iterator[Row]:
    fields = (
        _values(_coded(stored.columns[entry.column]), stored.numbers)
        for entry in row_schema(ROW_TYPES[entity])
    )
    return map(_CONSTRUCTORS[entity], *fields)


def _coded(column: pa.ChunkedArray) -> Column:
    if pa.types.is_list(column.type):
        return coded_lists(column.type, [column]).lists
    return coded(column) if pa.types.is_string(column.type) else column.combine_chunks()
