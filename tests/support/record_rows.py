"""The same bytes through both readers, as rows that can be compared.

``read_rows`` reads batch by batch and record by record; ``scan_rows`` takes the columns of one
scan. Both end at the first bytes that are not a complete, valid batch, and return what they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from raftlog.errors import CorruptBatchError
from raftlog.records.batch import TornTail, read_batch
from raftlog.records.scan import Column, Scan, Stop, scan

Row = tuple[Any, ...]
"""offset, timestamp, leader epoch, key, value, headers, is control"""


@dataclass(frozen=True)
class Rows:
    rows: list[Row]
    end_position: int
    stop: Stop
    error: str | None


def read_rows(data: bytes, **limits: int) -> Rows:
    rows: list[Row] = []
    position = 0
    while True:
        try:
            batch = read_batch(data, position)
            if isinstance(batch, TornTail):
                stop = Stop.TORN if batch.byte_count else Stop.END
                return Rows(rows, position, stop, None)
            rows += [
                (
                    record.offset,
                    record.timestamp_ms,
                    batch.leader_epoch,
                    record.key,
                    record.value,
                    tuple((header.key, header.value) for header in record.headers),
                    batch.is_control,
                )
                for record in list(batch.records(**limits))
            ]
        except CorruptBatchError as error:
            return Rows(rows, position, Stop.DAMAGED, str(error))
        position += batch.byte_count


def scan_rows(data: bytes, **arguments: Any) -> Rows:
    scanned = scan(data, columns=Column.ALL, **arguments)
    error = None if scanned.error is None else str(scanned.error)
    return Rows(rows_of(scanned), scanned.end_position, scanned.stop, error)


def rows_of(scanned: Scan) -> list[Row]:
    records = scanned.records
    for column in (records.offset, records.timestamp_ms, records.leader_epoch, records.headers):
        assert column is not None
        column.validate(full=True)
    columns = [
        listed(records.offset),
        listed(records.timestamp_ms),
        listed(records.leader_epoch),
        listed(records.key),
        listed(records.value),
        [tuple((one["key"], one["value"]) for one in row) for row in listed(records.headers)],
        records.is_control.tolist(),
    ]
    return list(zip(*columns, strict=True))


def listed(column: pa.Array | None) -> list[Any]:
    """Return the values of a column that was asked for."""
    assert column is not None
    values: list[Any] = column.to_pylist()
    return values
