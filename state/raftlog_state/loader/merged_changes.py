"""Changes of a partition in a range of a log as one, for an image without the changes between.

Most records of a long log change partitions, each of them many times. A state after the range does
not need the rows between: the last value of each field, and the number of changes and of elections,
give the same row.

Rules of this file:

1. Changes of a partition are merged between two records that create, replace or remove partitions
   of its topic, and replace the last one of them. Where one sets replicas or directories, all of
   them remain records.
2. A range with a transaction, control records or ``ClearElrRecord`` is not merged, nor one whose
   offsets or leader epochs are not in order, or that contradicts the state: the loader replays it
   record by record, and raises its errors.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from raftlog_state.records import (
    AbortTransactionRecord,
    BeginTransactionRecord,
    ClearElrRecord,
    EndTransactionRecord,
    MetadataRecord,
    PartitionChangeRecord,
    PartitionRecord,
    Redactor,
    RemoveTopicRecord,
)
from raftlog_state.records.declare import Array
from raftlog_state.records.typed_columns import TypedColumns, frames, no_ops, typed_columns
from raftlog_state.replay.topics import (
    CHANGED_RECOVERY_STATES,
    LEADER_UNCHANGED,
    RECOVERY_UNCHANGED,
    MergedChange,
)

Bools = npt.NDArray[np.bool_]
Int64s = npt.NDArray[np.int64]

RECORDS_MIN: Final = 1_000
"""Fewer records are replayed one by one."""
_NOT_MERGED: Final = [
    kind.schema.api_key
    for kind in (
        BeginTransactionRecord,
        EndTransactionRecord,
        AbortTransactionRecord,
        ClearElrRecord,
    )
]
_OF_TOPICS: Final = (PartitionRecord, RemoveTopicRecord)
_REPLICAS: Final = ("replicas", "directories")
_LISTS: Final = [
    entry.attribute
    for entry in PartitionChangeRecord.fields_schema
    if isinstance(entry.kind, Array) and entry.attribute not in _REPLICAS
]


class MergedRange(NamedTuple):
    """What a range is replayed as: merged changes, by row, and the other rows that remain."""

    changes: dict[int, MergedChange]
    remaining: Int64s


def merge(values: pa.BinaryArray) -> MergedRange | None:
    """Merge the partition changes among metadata records; None if they are replayed one by one.

    Raises ``MetadataParseError`` if a value is damaged.
    """
    if len(values) < RECORDS_MIN or values.null_count:
        return None
    api_keys, _ = frames(values)
    if np.isin(api_keys, _NOT_MERGED).any():
        return None
    kinds: tuple[type[MetadataRecord], ...] = (PartitionChangeRecord, *_OF_TOPICS)
    typed = typed_columns(values, kinds, Redactor(reveal=True))
    rows, fields = typed[PartitionChangeRecord].rows, typed[PartitionChangeRecord].fields
    if not len(rows):
        return None
    order, starts = _grouped(typed, fields)
    is_plain = np.isin(fields.field("leader_recovery_state"), CHANGED_RECOVERY_STATES)
    for name in _REPLICAS:
        is_plain &= ~_is_set(fields.field(name))
    chosen = np.logical_and.reduceat(is_plain[order], starts)
    groups = _Groups(order, starts, fields)
    is_remaining = ~no_ops(values, api_keys)
    is_remaining[rows[order[groups.of_each(chosen)]]] = False
    at = rows[groups.last_ordinals(chosen)].tolist()
    changes = dict(zip(at, groups.merged(chosen), strict=True))
    return MergedRange(changes, np.flatnonzero(is_remaining))


def _grouped(
    typed: Mapping[type[MetadataRecord], TypedColumns], fields: pa.StructArray
) -> tuple[Int64s, Int64s]:
    """Return the ordinals of changes sorted by topic, by the other records of the topic that are
    before them, and by partition; and the first position of each such group."""
    parts = [typed[kind] for kind in (PartitionChangeRecord, *_OF_TOPICS)]
    ids = pa.concat_arrays([part.fields.field("topic_id") for part in parts]).dictionary_encode()
    codes = ids.indices.to_numpy().astype(np.int64)
    rows = np.concatenate([part.rows for part in parts]).astype(np.int64)
    places = codes * (rows.max() + 1) + rows
    count = len(parts[0].rows)
    others_before = np.searchsorted(np.sort(places[count:]), places[:count])
    keys = fields.field("partition_id").to_numpy(), others_before, codes[:count]
    order = np.lexsort(keys)
    is_first = np.ones(count, np.bool_)
    is_first[1:] = np.logical_or.reduce([np.diff(key[order]) != 0 for key in keys])
    return order, np.flatnonzero(is_first)


def _is_set(column: pa.Array) -> Bools:
    return np.asarray(column.is_valid().to_numpy(zero_copy_only=False), np.bool_)


class _Groups:
    """Groups of changes: ``order`` are their ordinals, ``starts`` the first position of each."""

    def __init__(self, order: Int64s, starts: Int64s, fields: pa.StructArray) -> None:
        self._order = order
        self._starts = starts
        self._counts = np.diff(starts, append=len(order))
        self._fields = fields

    def last_ordinals(self, chosen: Bools) -> Int64s:
        """Return the ordinal of the last change of each chosen group."""
        found: Int64s = self._order[(self._starts + self._counts - 1)[chosen]]
        return found

    def of_each(self, chosen: Bools) -> Bools:
        """Return a flag of each group for each of its changes."""
        return np.repeat(chosen, self._counts)

    def merged(self, chosen: Bools) -> list[MergedChange]:
        """Return the chosen groups, each as one change."""
        if not chosen.any():
            return []
        leaders = self._fields.field("leader").to_numpy()
        elects = leaders != LEADER_UNCHANGED
        elections = np.add.reduceat(elects[self._order].astype(np.int64), self._starts)
        recovery = self._fields.field("leader_recovery_state").to_numpy()
        columns = {
            "partition_id": self._firsts("partition_id", chosen),
            "topic_id": self._firsts("topic_id", chosen),
            "leader": self._last("leader", elects, chosen, LEADER_UNCHANGED),
            "leader_recovery_state": self._last(
                "leader_recovery_state", recovery != RECOVERY_UNCHANGED, chosen, RECOVERY_UNCHANGED
            ),
        }
        for name in _LISTS:
            is_set = _is_set(self._fields.field(name))
            if is_set.any():
                found = self._last(name, is_set, chosen, None)
                columns[name] = [one if one is None else tuple(one) for one in found]
        names = list(columns)
        records = (
            PartitionChangeRecord(**dict(zip(names, row, strict=True)))
            for row in zip(*columns.values(), strict=True)
        )
        counts = zip(self._counts[chosen].tolist(), elections[chosen].tolist(), strict=True)
        return [MergedChange(record, *of) for record, of in zip(records, counts, strict=True)]

    def _firsts(self, name: str, chosen: Bools) -> list[object]:
        ordinals = self._order[self._starts[chosen]]
        found: list[object] = self._fields.field(name).take(pa.array(ordinals)).to_pylist()
        return found

    def _last(self, name: str, is_set: Bools, chosen: Bools, unset: Any) -> list[Any]:
        """Return the last value that is set in each chosen group."""
        at = np.where(is_set[self._order], np.arange(len(self._order)), -1)
        last = np.maximum.reduceat(at, self._starts)[chosen]
        ordinals = self._order[np.maximum(last, 0)]
        column = self._fields.field(name).take(pa.array(ordinals, mask=last < 0))
        return [unset if n < 0 else one for n, one in zip(last, column.to_pylist(), strict=True)]
