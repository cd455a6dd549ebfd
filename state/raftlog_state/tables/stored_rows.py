"""Rows of state that stay in columns until they are used.

Rules of this file:

1. A row is converted when it is first read, together with its neighbors in the columns: converting
   rows one by one takes ten times as long.
2. Keys are found by their text in the tables. The index of an entity, and that of its groups, is
   built when it is first needed.
3. Nothing here changes after its creation except these caches.
4. Partitions are read separately from the other rows, without the structs of other entities, which
   take forty times the memory of a partition's own columns.
5. A restart without new records needs only the progress row. All other rows are read later.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, cached_property, partial
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute

from raftlog_state.image.delta import key_json
from raftlog_state.image.metadata_image import Group
from raftlog_state.image.rows import Entity, Key, Row

from .convert import plain_values, rows_of
from .latest import SPACE, living
from .progress import IS_PROGRESS, Progress, progress_rows_of
from .schema import CLUSTER_ID, ORIGIN_COLUMNS, PROGRESS, STATE_TABLE
from .stores.protocol import (
    AnyOf,
    Condition,
    Selected,
    TableStore,
    Where,
    columns_of_entity,
    filtered,
    mask_of,
    read_version,
)

pc: Any = pyarrow.compute  # pyarrow creates its functions at import, unseen by type checkers

BLOCK_ROWS: Final = 64
"""Rows that are converted together. One row takes 60 microseconds, a block of 64 takes 260."""

_GROUP_COLUMNS: Final[Mapping[Entity, tuple[str, ...]]] = {
    Entity.PARTITION: ("topic_id",),
    Entity.CONFIG: ("resource_type", "resource_name"),
    Entity.TOPIC: ("name",),
}
"""Columns with the parts of a row's group, as in ``group_of``."""


_PARTITION_COLUMNS: Final = (
    *("entity", "key", "is_deleted", *ORIGIN_COLUMNS, "_incarnation"),
    f"row.{Entity.PARTITION}",
)
_IS_OTHER: Final[Condition] = ("entity", "!=", str(Entity.PARTITION))
_IS_PARTITION: Final[Condition] = ("entity", "=", str(Entity.PARTITION))


class StateParts(NamedTuple):
    """Rows of ``state``: partitions, with the columns that they need, and all others."""

    others: pa.Table
    partitions: pa.Table


class StoredState:
    """Rows of a cluster in a version of ``state``, read when needed."""

    def __init__(
        self, read_others: Callable[[], pa.Table], read_partitions: Callable[[], pa.Table]
    ) -> None:
        self._read_others = read_others
        self._read_partitions = read_partitions

    @classmethod
    def of(cls, parts: StateParts) -> StoredState:
        """Return the state of rows that are in memory."""
        return cls(lambda: parts.others, lambda: parts.partitions)

    @cached_property
    def others(self) -> pa.Table:
        """All rows except those of partitions, read once."""
        return self._read_others()

    def parts(self) -> StateParts:
        """Read all rows."""
        return StateParts(self.others, self._read_partitions())


class StoredRows(Mapping[Key, Row]):
    """Rows of an entity by key, from columns of ``state``. Not thread-safe."""

    def __init__(self, entity: Entity, state: pa.Table) -> None:
        """``state`` has the columns ``key``, ``row`` and ``ORIGIN_COLUMNS``; each key once."""
        structs = pc.struct_field(state["row"], [str(entity)]).combine_chunks()
        self._entity = entity
        self._columns = pa.Table.from_struct_array(structs)
        self._keys = state["key"].combine_chunks()
        self._origins = [state[name].combine_chunks() for name in ORIGIN_COLUMNS]
        self._blocks: dict[int, list[Row]] = {}

    def __getitem__(self, key: Key) -> Row:
        return self._row(self._positions[key_json(key)])

    def __contains__(self, key: object) -> bool:
        return isinstance(key, tuple) and key_json(key) in self._positions

    def __iter__(self) -> Iterator[Key]:
        return map(_key, self._keys.to_pylist())

    def __len__(self) -> int:
        return len(self._keys)

    def origin(self, key: Key) -> tuple[Any, ...]:
        """Return the values of ``ORIGIN_COLUMNS`` of a row; times in microseconds."""
        position = self._positions[key_json(key)]
        return tuple(plain_values(column.slice(position, 1))[0] for column in self._origins)

    def group_names(self) -> Iterator[Group]:
        """Yield the groups of the rows, each once."""
        for name in self._groups[1]:
            first, *rest = name
            yield (self._entity, first, rest[0] if rest else "")

    def group(self, group: Group) -> tuple[Key, ...]:
        """Return the keys of a group's rows; empty if there is no such group."""
        order, ranges = self._groups
        name = group[1 : 1 + len(_GROUP_COLUMNS[self._entity])]
        keys = self._keys.take(pa.array(order[ranges.get(name, slice(0))]))
        return tuple(map(_key, keys.to_pylist()))

    def _row(self, position: int) -> Row:
        number, place = divmod(position, BLOCK_ROWS)
        block = self._blocks.get(number)
        if block is None:
            columns = self._columns.slice(number * BLOCK_ROWS, BLOCK_ROWS)
            block = self._blocks[number] = rows_of(self._entity, columns)
        return block[place]

    @cached_property
    def _positions(self) -> dict[str, int]:
        keys = self._keys.to_pylist()
        return dict(zip(keys, range(len(keys)), strict=True))

    @cached_property
    def _groups(self) -> tuple[npt.NDArray[np.int64], dict[tuple[Any, ...], slice]]:
        """Row positions in the order of groups, and each group's slice of them."""
        names = _GROUP_COLUMNS[self._entity]
        columns = [self._columns[name].combine_chunks() for name in names]
        texts = pc.binary_join_element_wise(
            *(column.cast(pa.string()) for column in columns), SPACE
        )
        codes = texts.dictionary_encode().indices.to_numpy(zero_copy_only=False)
        order = np.argsort(codes, kind="stable")
        starts = np.flatnonzero(np.diff(codes[order], prepend=-1))
        firsts = [column.take(pa.array(order[starts])).to_pylist() for column in columns]
        parts = map(slice, starts.tolist(), [*starts[1:].tolist(), len(order)])
        return order, dict(zip(zip(*firsts, strict=True), parts, strict=False))


class StoredGroups(Mapping[Group, tuple[Key, ...]]):
    """Keys of the rows of each group (see ``group_of``), from stored rows."""

    def __init__(self, rows: Mapping[Entity, StoredRows]) -> None:
        self._rows = {entity: rows[entity] for entity in _GROUP_COLUMNS if entity in rows}

    def __getitem__(self, group: Group) -> tuple[Key, ...]:
        rows = self._rows.get(group[0])
        keys = () if rows is None else rows.group(group)
        if not keys:
            raise KeyError(group)
        return keys

    def __iter__(self) -> Iterator[Group]:
        for rows in self._rows.values():
            yield from rows.group_names()

    def __len__(self) -> int:
        return sum(1 for _ in self)


def read_progress(store: TableStore, cluster_id: str | None) -> list[Progress]:
    """Return the progress of a cluster in the newest ``state``; None: of every cluster."""
    if not store.exists(STATE_TABLE):
        return []
    where: Where = (IS_PROGRESS,)
    if cluster_id is not None:
        where += ((CLUSTER_ID, "=", cluster_id),)
    columns = columns_of_entity(STATE_TABLE, PROGRESS)
    return progress_rows_of(store.read(STATE_TABLE, where, columns))


def read_state(store: TableStore, cluster_id: str | None) -> StoredState:
    """Return a cluster's rows in the version of ``state`` that is newest when they are needed."""
    nothing = split_state(STATE_TABLE.no_rows)
    of_cluster: Condition = (CLUSTER_ID, "=", str(cluster_id))

    @cache
    def version() -> int | None:
        exists = cluster_id is not None and store.exists(STATE_TABLE)
        return store.version(STATE_TABLE) if exists else None

    def others() -> pa.Table:
        if version() is None:
            return nothing.others
        return read_version(store, STATE_TABLE, version(), (of_cluster, _IS_OTHER))

    def partitions() -> pa.Table:
        if version() is None:
            return nothing.partitions
        where = (of_cluster, _IS_PARTITION)
        return read_version(store, STATE_TABLE, version(), where, _PARTITION_COLUMNS)

    return StoredState(others, partitions)


def read_states(store: TableStore, cluster_ids: Sequence[str]) -> dict[str, StateParts]:
    """Return the rows of each cluster in the newest version of ``state``, which is read once."""
    nothing = split_state(STATE_TABLE.no_rows)
    if not cluster_ids or not store.exists(STATE_TABLE):
        return dict.fromkeys(cluster_ids, nothing)
    version = store.version(STATE_TABLE)
    any_of: AnyOf = tuple(((CLUSTER_ID, "=", name),) for name in cluster_ids)
    columns = (CLUSTER_ID, *_PARTITION_COLUMNS)
    read = partial(read_version, store, STATE_TABLE, version, any_of=any_of)
    others, partitions = map(rows_by, (read((_IS_OTHER,)), read((_IS_PARTITION,), columns)))
    return {
        name: StateParts(
            others=others.get(name, nothing.others),
            partitions=partitions[name].drop_columns([CLUSTER_ID])
            if name in partitions
            else nothing.partitions,
        )
        for name in cluster_ids
    }


def rows_by(rows: pa.Table, column: str = CLUSTER_ID) -> dict[str, pa.Table]:
    """Return the rows by the values of a column, in their order."""
    names = pc.unique(rows[column])
    if len(names) > 1:
        rows = rows.take(pc.sort_indices(rows[column]))
    rows = rows.combine_chunks()
    ends = pc.run_end_encode(rows[column].combine_chunks())
    starts = [0, *ends.run_ends.to_pylist()]
    return {
        name: rows.slice(start, end - start)
        for name, start, end in zip(ends.values.to_pylist(), starts, starts[1:], strict=False)
    }


def split_state(state: pa.Table) -> StateParts:
    """Split rows of ``state`` as ``read_state`` does."""
    is_partition = mask_of(state, ("entity", "=", str(Entity.PARTITION)))
    selected = Selected.of(STATE_TABLE, _PARTITION_COLUMNS)
    columns = pa.table({one.name: one.column_of(state) for one in selected})
    return StateParts(
        others=filtered(state, pc.invert(is_partition)),
        partitions=filtered(columns, is_partition),
    )


def stored_rows(parts: StateParts) -> dict[Entity, StoredRows]:
    """Return the rows of ``state`` that are not deleted; no progress row."""
    partitions = StoredRows(Entity.PARTITION, living(parts.partitions))
    return {Entity.PARTITION: partitions, **stored_others(parts.others)}


def stored_others(others: pa.Table) -> dict[Entity, StoredRows]:
    """Return the rows of ``state`` that are not deleted; no partitions and no progress row."""
    of_entities = rows_by(living(others), "entity")
    return {
        entity: StoredRows(entity, of_entities[entity])
        for entity in Entity
        if entity in of_entities
    }


def _key(text: str) -> Key:
    return tuple(json.loads(text))
