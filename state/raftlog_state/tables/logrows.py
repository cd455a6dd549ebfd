"""Rows of ``log``: conversion from the source's rows, and replay.

Rules of this file:

1. Only rows of ``log`` are replayed, either before they are written or after they are read back, so
   the state cannot depend on which.
2. Rows of a snapshot have the same offset and are ordered by position.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute

from raftlog.errors import CorruptBatchError
from raftlog.records.control import ControlRecord, decode_control
from raftlog.types import SnapshotId
from raftlog_state.errors import ReplayError
from raftlog_state.image.delta import RecordChanges
from raftlog_state.internal.group_replay import InternalRecord
from raftlog_state.internal.loader import InternalLoader
from raftlog_state.loader.metadata_loader import LogRecord, MetadataLoader

from .batch import RECORD_JSON
from .convert import milliseconds
from .schema import LOG_TABLE

pc: Any = pyarrow.compute  # pyarrow creates its functions at import, unseen by type checkers

LOG_ARROW: Final = LOG_TABLE.schema

Payload = bytes | ControlRecord | None


def log_rows(rows: pa.Table, *, cluster_id: str | None, incarnation: int) -> pa.Table:
    """Return the rows of ``log`` for checked rows of the source."""
    count = rows.num_rows
    control = rows["controlType"]
    has_json = RECORD_JSON in rows.column_names
    columns = {
        "cluster_id": pa.array([cluster_id] * count, pa.string()),
        "topic": rows["topic"],
        "partition": rows["partition"],
        "offset": rows["offset"],
        "snapshot_position": rows["snapshotPosition"],
        "leader_epoch": rows["leaderEpoch"],
        "log_time": rows["timestamp"].cast(LOG_ARROW.field("log_time").type),
        "record_type": pc.coalesce(rows["recordType"], pc.utf8_upper(control)),
        "api_key": rows["apiKey"],
        "version": rows["recordVersion"],
        "is_control": pc.is_valid(control),
        "txn_begin_offset": rows["txnBegin"],
        "producer_id": rows["producerId"],
        "visible_offset": rows["visibleOffset"],
        "value_json": rows[RECORD_JSON] if has_json else pa.nulls(count, pa.string()),
        "key_raw": rows["key"],
        "value_raw": rows["value"],
        "incarnation": pa.array([incarnation] * count, pa.int32()),
    }
    return pa.table([columns[name] for name in LOG_ARROW.names], schema=LOG_ARROW)


def replay_rows(loader: MetadataLoader | InternalLoader, rows: pa.Table) -> list[RecordChanges]:
    """Replay ordered rows of ``log``; return their changes.

    Raises:
        ReplayError: a record contradicts the state, or its bytes are damaged.
        OffsetGapError: a row is not the next one.
    """
    if isinstance(loader, InternalLoader):
        return loader.append(*_internal_columns(rows), rows["record_type"].to_pylist())
    changes: list[RecordChanges] = []
    for part in _parts(rows):
        if part["snapshot_position"].null_count == 0:
            snapshot_id = SnapshotId(
                epoch=part["leader_epoch"][0].as_py(), end_offset=part["offset"][0].as_py() + 1
            )
            changes += loader.bootstrap(snapshot_id, _snapshot_records(part))
        else:
            offsets = part["offset"].to_pylist()
            epochs = part["leader_epoch"].to_pylist()
            changes += loader.append_columns(offsets, epochs, _times_ms(part), _payloads(part))
    return changes


def replay_whole_log(loader: InternalLoader, rows: pa.Table) -> list[RecordChanges]:
    """Replace the state with that of a whole internal log; return the differences.

    Raises:
        ReplayError: the bytes of a record are damaged.
    """
    return loader.bootstrap(*_internal_columns(rows))


def _parts(rows: pa.Table) -> Iterator[pa.Table]:
    """Yield runs of rows, each of one snapshot or of the log."""
    if rows.num_rows == 0:
        return
    of_snapshot = pc.is_valid(rows["snapshot_position"]).to_numpy()
    offset = rows["offset"].to_numpy()
    same = (of_snapshot[1:] == of_snapshot[:-1]) & (~of_snapshot[1:] | (np.diff(offset) == 0))
    starts = [0, *(np.flatnonzero(~same) + 1).tolist(), rows.num_rows]
    for start, end in pairwise(starts):
        yield rows.slice(start, end - start)


def _snapshot_records(part: pa.Table) -> Iterator[LogRecord]:
    rows = zip(
        part["snapshot_position"].to_pylist(),
        part["leader_epoch"].to_pylist(),
        _times_ms(part),
        _payloads(part),
        strict=True,
    )
    for position, epoch, timestamp_ms, payload in rows:
        yield LogRecord(position, epoch, timestamp_ms, payload)


def _times_ms(part: pa.Table) -> list[int]:
    return list(map(milliseconds, part["log_time"].cast(pa.int64()).to_pylist()))


def _internal_columns(rows: pa.Table) -> tuple[list[InternalRecord], list[int], list[int]]:
    """Return the records of an internal log, their leader epochs and their times."""
    names = ("offset", "key_raw", "value_raw", "producer_id", "is_control")
    columns = (rows[name].to_pylist() for name in names)
    records = list(map(InternalRecord._make, zip(*columns, strict=True)))
    return records, rows["leader_epoch"].to_pylist(), _times_ms(rows)


def _payloads(part: pa.Table) -> list[Payload]:
    payloads: list[Payload] = part["value_raw"].to_pylist()
    for row in np.flatnonzero(part["is_control"].to_numpy()).tolist():
        key, value = part["key_raw"][row].as_py(), part["value_raw"][row].as_py()
        try:
            payloads[row] = decode_control(key, value)
        except CorruptBatchError as error:
            raise ReplayError(
                offset=part["offset"][row].as_py(), record="a control record", reason=error.reason
            ) from None
    return payloads
