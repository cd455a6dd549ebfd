"""Effective records of topics, partitions and configs, as columns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute

from raftlog_state.records import (
    AbortTransactionRecord,
    BeginTransactionRecord,
    ClearElrRecord,
    ConfigRecord,
    EndTransactionRecord,
    MetadataRecord,
    PartitionChangeRecord,
    PartitionRecord,
    Redactor,
)
from raftlog_state.records.merged_records import MergedRecords, merged_records
from raftlog_state.records.typed_columns import frames, typed_columns

from .coded_columns import Bools, Int32s, Int64s, require
from .row_versions import TOPIC_RECORDS, TypedRecords
from .topics import CONFIG_OF_TOPIC, RECOVERY_STATES

MARKERS: Final = (BeginTransactionRecord, EndTransactionRecord, AbortTransactionRecord)
MARKER_KEYS: Final = tuple(kind.schema.api_key for kind in MARKERS)
_BEGIN, _END, _ABORT = MARKER_KEYS
_ANY_NUMBER: Final = (-(2**31), 2**31 - 1)
_BOUNDS: Final = {"leader_recovery_state": (min(RECOVERY_STATES), max(RECOVERY_STATES))}
MERGED_FIELDS: Final = {
    name: _BOUNDS.get(name, _ANY_NUMBER)
    for name in sorted(
        (field.attribute for field in PartitionChangeRecord.fields_schema if field.tag is not None),
        key="leader".__ne__,  # first, because its changes are counted
    )
    if name not in ("replicas", "directories")
}
"""Fields of a change that contradict no state, whatever their values, and bounds of their numbers.

Replicas and their directories may contradict it: after each change, there must be as many of one as
of the other.
"""


class TopicRecords(NamedTuple):
    """Records of a range that belong to topics; ``by_type`` contains the effective ones.

    The other columns have a row for each record of the range.
    """

    by_type: Mapping[type[MetadataRecord], TypedRecords]
    is_of_topics: Bools
    api_keys: Int32s
    visible_offsets: Int64s


def topic_records(
    values: pa.BinaryArray, offsets: Int64s, redactor: Redactor, *, is_merged: bool = False
) -> TopicRecords:
    """Return the records that belong to topics among a range's records, which may have nulls.

    ``is_merged``: PartitionChangeRecords of a partition may be merged, because the caller reads
    only the state after the range.

    Raises:
        NotPlainError: a transaction is not complete, or its markers have no counterparts.
        MetadataParseError: a value is damaged.
    """
    found = frames(values)
    api_keys, _ = found
    is_applied, visible_offsets = _transactions(api_keys, offsets)
    merged = _merged_changes(values, *found) if is_merged else None
    kinds: tuple[type[MetadataRecord], ...] = (*TOPIC_RECORDS, *MARKERS)
    if merged is not None:
        kinds = tuple(kind for kind in kinds if kind is not PartitionChangeRecord)
    typed = typed_columns(values, kinds, redactor, found)
    is_marker = np.isin(api_keys, MARKER_KEYS)
    require(is_plain=sum(len(typed[kind].rows) for kind in MARKERS) == np.count_nonzero(is_marker))
    is_of_topics = np.zeros(len(values), np.bool_)
    by_type: dict[type[MetadataRecord], TypedRecords] = {}
    for kind in TOPIC_RECORDS:
        if kind not in typed:
            assert merged is not None, "all others have columns"
            is_of_topics |= _are_of(kind, *found)
            changes = typed_columns(merged.values, (kind,), redactor)[kind]
            rows = merged.first_rows.astype(np.int64)
            by_type[kind] = TypedRecords(rows, changes.fields, merged)
            continue
        rows, fields = typed[kind].rows.astype(np.int64), typed[kind].fields
        is_kept = is_applied[rows]
        if kind is ConfigRecord:
            is_of_topic = fields.field("resource_type").to_numpy() == CONFIG_OF_TOPIC
            is_of_topics[rows[is_of_topic]] = True
            is_kept &= is_of_topic
        else:
            is_of_topics[rows] = True
        if not is_kept.all():
            rows, fields = rows[is_kept], fields.filter(pa.array(is_kept))
        by_type[kind] = TypedRecords(rows, fields)
    return TopicRecords(by_type, is_of_topics, api_keys, visible_offsets)


def _merged_changes(
    values: pa.BinaryArray, api_keys: Int32s, versions: Int32s
) -> MergedRecords | None:
    """Merge the changes of each partition. None if they are replayed as they are.

    A PartitionRecord, which has the same key, ends the merge of its partition's changes. Changes
    are not merged if there are a ClearElrRecord, which has no key, or transaction markers, because
    it is not known here which of the records between them take effect.
    """
    if np.isin(api_keys, (ClearElrRecord.schema.api_key, *MARKER_KEYS)).any():
        return None
    of_partitions = _are_of(PartitionChangeRecord, api_keys, versions)
    of_partitions |= _are_of(PartitionRecord, api_keys, versions)
    rows = np.flatnonzero(of_partitions).astype(np.int32)
    return merged_records(values, rows, PartitionChangeRecord, MERGED_FIELDS)


def _are_of(kind: type[MetadataRecord], api_keys: Int32s, versions: Int32s) -> Bools:
    schema = kind.schema
    found: Bools = (api_keys == schema.api_key) & (versions <= schema.latest_version)
    return found


def _transactions(api_keys: Int32s, offsets: Int64s) -> tuple[Bools, Int64s]:
    """Return which records take effect, and at which offset; markers do not.

    Raises:
        NotPlainError: a transaction is not completed, or its markers have no counterparts.
    """
    rows = np.flatnonzero(np.isin(api_keys, MARKER_KEYS))
    is_applied = np.ones(len(offsets), dtype=np.bool_)
    if not len(rows):
        return is_applied, offsets
    begins, ends = rows[::2], rows[1::2]
    require(is_plain=len(begins) == len(ends))
    require(is_plain=np.all(api_keys[begins] == _BEGIN) and np.all(api_keys[ends] != _BEGIN))
    at = np.arange(len(offsets))
    which = np.searchsorted(begins, at, side="right") - 1
    ends = ends[np.maximum(which, 0)]
    is_inside = (which >= 0) & (at <= ends)
    is_applied = ~is_inside | (api_keys[ends] == _END)
    is_applied[rows] = False
    return is_applied, np.where(is_inside, offsets[ends], offsets)
