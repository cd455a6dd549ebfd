"""Rows of the source, ordered and validated before anything is written.

Rules of this file:

1. Contiguity is checked by count, including control records and aborted records. A gap, a
   duplicate, a decreasing leader epoch or an incomplete snapshot is an error and is never skipped.
2. Rows that the tables already have are removed. Rows from the start of an open transaction on are
   removed, too; the source returns them again.
3. Pure: Arrow in, Arrow out. The tables' end is an argument.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute

from raftlog.records.control import ControlType
from raftlog.types import CLUSTER_METADATA_TOPIC, SnapshotId
from raftlog_state.errors import MetadataParseError, OffsetGapError, ReplayError, TablesError
from raftlog_state.loader.image_reader import METADATA_LOG_REMEDY
from raftlog_state.records import (
    AbortTransactionRecord,
    BeginTransactionRecord,
    EndTransactionRecord,
    peek,
)
from raftlog_state.records.typed_columns import frames

from .stores.protocol import filtered

pc: Any = pyarrow.compute  # pyarrow creates its functions at import, unseen by type checkers

Int64s = npt.NDArray[np.int64]

SOURCE_COLUMNS: Final = (
    "key",
    "value",
    "topic",
    "partition",
    "offset",
    "timestamp",
    "leaderEpoch",
    "visibleOffset",
    "recordType",
    "recordVersion",
    "record",
    "snapshotPosition",
    "controlType",
    "producerId",
)
"""Columns read from the source; ``RECORD_JSON`` only for table ``log``."""
RECORD_JSON: Final = "record"

_BEGIN: Final = BeginTransactionRecord.schema.api_key
_ENDS: Final = (EndTransactionRecord.schema.api_key, AbortTransactionRecord.schema.api_key)
_NO_KEY: Final = -1
_HEADER: Final = ControlType.SNAPSHOT_HEADER.name.lower()
_FOOTER: Final = ControlType.SNAPSHOT_FOOTER.name.lower()


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedBatch:
    """New rows of a batch: first those of a snapshot, if any, then records of the log.

    ``records`` continues from ``next_offset`` (or from the snapshot's end) without a gap. ``seen``
    contains rows that the tables already have, to be compared with them. For a whole internal log,
    ``earlier`` contains the rows before ``records``; both are replayed into a new state. All have
    the source's columns, in order, plus ``apiKey`` and ``txnBegin``.
    """

    snapshot_id: SnapshotId | None
    snapshot: pa.Table
    records: pa.Table
    seen: pa.Table
    earlier: pa.Table | None = None

    @property
    def rows(self) -> pa.Table:
        """All new rows, in order."""
        return pa.concat_tables([self.snapshot, self.records])

    @property
    def is_empty(self) -> bool:
        """Whether there are no new rows."""
        return bool(self.snapshot.num_rows == self.records.num_rows == 0)

    @property
    def last_offset(self) -> int:
        """The last new offset, inclusive."""
        last = self.records if self.records.num_rows else self.snapshot
        return int(last["offset"][-1].as_py())


def check_batch(
    table: pa.Table, columns: Sequence[str] = SOURCE_COLUMNS, *, next_offset: int, place: str
) -> CheckedBatch:
    """Sort a batch of the source and cut it to the rows that are new from ``next_offset`` on.

    Args:
        table: the source's rows in any order, with at least ``columns``.
        next_offset: one past the last offset in the tables; 0 if they are empty.
        place: the tables, for errors.

    Raises:
        OffsetGapError: the rows begin after ``next_offset``, or offsets are missing or duplicated.
        ReplayError: the leader epoch decreases in the batch.
        TablesError: a column is missing, the topic is not the metadata log's, or a snapshot's rows
            are incomplete.
    """
    _check_columns(table, columns, place)
    table = _in_order(table.select(list(columns)))
    table = table.append_column("apiKey", _api_keys(table))
    of_snapshot = pc.is_valid(table["snapshotPosition"])
    snapshot, records = filtered(table, of_snapshot), filtered(table, pc.invert(of_snapshot))
    snapshot, snapshot_id = _new_snapshot(snapshot, next_offset, place)
    if snapshot_id is not None:
        next_offset = snapshot_id.end_offset
    offset = _int64s(records["offset"])
    _check_steps(offset)
    is_new = pa.chunked_array([offset >= next_offset])
    seen, records = filtered(records, pc.invert(is_new)), filtered(records, is_new)
    if records.num_rows and records["offset"][0].as_py() != next_offset:
        raise OffsetGapError(
            expected_offset=next_offset,
            offset=records["offset"][0].as_py(),
            remedy=_gap_remedy(next_offset),
        )
    _check_epochs(records)
    records = _with_transactions(records)
    nulls = pa.nulls(snapshot.num_rows, pa.int64())
    return CheckedBatch(
        snapshot_id=snapshot_id,
        snapshot=snapshot.append_column("txnBegin", nulls),
        records=records,
        seen=seen,
    )


def check_internal_batch(
    table: pa.Table, columns: Sequence[str] = SOURCE_COLUMNS, *, next_offset: int, place: str
) -> CheckedBatch:
    """Sort a batch of an internal log's partition and cut it to the new rows.

    Offsets may be missing because these logs are compacted or their start has moved. Rows with
    positions (``with_positions``) are those of a whole log. Other arguments and errors are as for
    ``check_batch``.
    """
    _check_has_columns(table, columns, place)
    table = _in_order(table.select(list(columns)))
    table = table.append_column("apiKey", pa.nulls(table.num_rows, pa.int32()))
    table = table.append_column("txnBegin", pa.nulls(table.num_rows, pa.int64()))
    offset = _int64s(table["offset"])
    if np.any(np.diff(offset) <= 0):
        at = int(np.flatnonzero(np.diff(offset) <= 0)[0])
        raise OffsetGapError(
            expected_offset=int(offset[at]) + 1,
            offset=int(offset[at + 1]),
            remedy="duplicate offset: read the range again",
        )
    is_new = pa.chunked_array([offset >= next_offset])
    seen, records = filtered(table, pc.invert(is_new)), filtered(table, is_new)
    _check_epochs(records)
    nothing = table.slice(0, 0)
    if table.num_rows == 0 or table["snapshotPosition"].null_count:
        return CheckedBatch(snapshot_id=None, snapshot=nothing, records=records, seen=seen)
    # The leader epochs of rows that the tables have seen are known only where no record was
    # missing.
    return CheckedBatch(
        snapshot_id=None,
        snapshot=nothing,
        records=_without_positions(records),
        seen=nothing,
        earlier=seen,
    )


def with_positions(table: pa.Table) -> pa.Table:
    """Mark ordered rows as a whole internal log, whose state replaces the tables' state."""
    positions = pa.array(np.arange(table.num_rows), pa.int32())
    return _with_positions(table, positions)


def _without_positions(table: pa.Table) -> pa.Table:
    return _with_positions(table, pa.nulls(table.num_rows, pa.int32()))


def _with_positions(table: pa.Table, positions: pa.Array) -> pa.Table:
    at = table.column_names.index("snapshotPosition")
    return table.set_column(at, table.schema.field(at), positions)


def epoch_ranges(table: pa.Table) -> Iterator[tuple[int, int, int]]:
    """Yield each leader epoch of ordered rows with its first and last offset."""
    epoch, offset = _int64s(table["leaderEpoch"]), _int64s(table["offset"])
    if len(epoch) == 0:
        return
    starts = np.flatnonzero(np.diff(epoch, prepend=epoch[0] - 1))
    for start, end in zip(starts, [*starts[1:], len(epoch)], strict=True):
        yield int(epoch[start]), int(offset[start]), int(offset[end - 1])


def _check_has_columns(table: pa.Table, columns: Sequence[str], place: str) -> None:
    missing = [name for name in columns if name not in table.column_names]
    if missing:
        raise TablesError(
            place=place,
            reason=f"the rows have no columns {', '.join(missing)}",
            remedy='read them with format("raftlog"), includeControlRecords=true, '
            "includeAbortedRecords=true and all columns",
        )


def _check_columns(table: pa.Table, columns: Sequence[str], place: str) -> None:
    _check_has_columns(table, columns, place)
    others = set(pc.unique(table["topic"]).to_pylist()) - {CLUSTER_METADATA_TOPIC}
    # A raftlog quorum may store metadata records in a topic with another name.
    is_metadata = pc.or_(pc.is_valid(table["recordType"]), pc.is_valid(table["controlType"]))
    if others and not pc.all(is_metadata).as_py():
        raise TablesError(
            place=place,
            reason=f"topic {sorted(map(str, others))[0]} is not a cluster's metadata log",
            remedy=METADATA_LOG_REMEDY,
        )


def _in_order(table: pa.Table) -> pa.Table:
    """Return rows sorted by offset, or a snapshot's rows sorted by position.

    Rows already in that order are not copied: a snapshot may have a million rows with JSON.
    """
    if table.num_rows == 0:
        return table
    offsets, positions = table["offset"], table["snapshotPosition"].cast(pa.int64())
    last = np.iinfo(np.int64).max
    steps = np.diff(_int64s(offsets)), np.diff(_int64s(pc.fill_null(positions, last)))
    if np.all((steps[0] > 0) | ((steps[0] == 0) & (steps[1] >= 0))):
        return table
    return table.sort_by([("offset", "ascending"), ("snapshotPosition", "ascending")])


def _new_snapshot(
    rows: pa.Table, next_offset: int, place: str
) -> tuple[pa.Table, SnapshotId | None]:
    """Return the rows of a snapshot that ends after the tables, and its id; else no rows."""
    if rows.num_rows == 0:
        return rows, None
    first, last = rows["offset"][0].as_py(), rows["offset"][-1].as_py()
    position = _int64s(rows["snapshotPosition"])
    control = rows["controlType"]
    whole = (
        first == last
        and np.array_equal(position, np.arange(len(position)))
        and control[0].as_py() == _HEADER
        and control[-1].as_py() == _FOOTER
    )
    if not whole:
        raise TablesError(
            place=place,
            reason=f"the rows of the snapshot with end offset {last + 1} are incomplete",
            remedy="read the whole snapshot, with its control records, in one batch",
        )
    if last < next_offset:
        return rows.slice(0, 0), None
    return rows, SnapshotId(epoch=rows["leaderEpoch"][0].as_py(), end_offset=last + 1)


def _check_steps(offset: Int64s) -> None:
    wrong = np.flatnonzero(np.diff(offset) != 1)
    if len(wrong):
        before, after = int(offset[wrong[0]]), int(offset[wrong[0] + 1])
        what = "duplicate offset" if after == before else "offsets are missing"
        raise OffsetGapError(
            expected_offset=before + 1,
            offset=after,
            remedy=f"{what}: read the range again, with control and aborted records",
        )


def _gap_remedy(next_offset: int) -> str:
    if next_offset == 0:
        return "the first records of the log were deleted: load a snapshot first (bootstrap)"
    return "append the records from that offset on, or load a newer snapshot (bootstrap)"


def _check_epochs(records: pa.Table) -> None:
    epoch = _int64s(records["leaderEpoch"])
    falls = np.flatnonzero(np.diff(epoch) < 0)
    if len(falls):
        at = int(falls[0]) + 1
        raise ReplayError(
            offset=records["offset"][at].as_py(),
            record="a record",
            reason=f"leader epoch {epoch[at]} after leader epoch {epoch[at - 1]}: it must not "
            "decrease",
        )


def _with_transactions(records: pa.Table) -> pa.Table:
    """Add ``txnBegin``, and remove the records from the start of an open transaction on."""
    offsets, keys = _int64s(records["offset"]), _int64s(pc.fill_null(records["apiKey"], _NO_KEY))
    begins = np.zeros(len(keys), np.int64)
    is_outside = np.ones(len(keys), np.bool_)
    begin_row: int | None = None
    for row in np.flatnonzero(np.isin(keys, (_BEGIN, *_ENDS))).tolist():
        if keys[row] == _BEGIN:
            begin_row = row if begin_row is None else begin_row
        elif begin_row is not None:
            begins[begin_row : row + 1] = offsets[begin_row]
            is_outside[begin_row : row + 1] = False
            begin_row = None
    records = records.append_column("txnBegin", pa.array(begins, mask=is_outside))
    return records if begin_row is None else records.slice(0, begin_row)


def _api_keys(table: pa.Table) -> pa.ChunkedArray:
    """Return each metadata record's api key, null for other records and values without a frame."""
    is_record = pc.is_null(table["controlType"])
    values = table["value"].cast(pa.binary())  # a session may use large types
    values = pc.if_else(is_record, values, pa.scalar(None, pa.binary()))
    return pa.chunked_array(map(_keys_of, values.chunks), pa.int32())


def _keys_of(values: pa.BinaryArray) -> pa.Array:
    try:
        keys, _ = frames(values)
    except MetadataParseError:
        found = [None if value is None else _api_key(value) for value in values.to_pylist()]
        return pa.array(found, pa.int32())
    return pa.array(keys, mask=keys == _NO_KEY)


def _api_key(value: bytes) -> int | None:
    try:
        return peek(value)[0]
    except MetadataParseError:
        return None


def _int64s(column: Any) -> Int64s:
    return np.asarray(column.to_numpy(), dtype=np.int64)
