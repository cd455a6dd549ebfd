"""Runs of contiguous records, and the split of long runs into shorter ones.

``record_columns`` follows all runs together, one record of each run per step, so its speed depends
on the number of runs. A few large batches are few long runs; they are split every 32 records:

    records of a batch      r0 ... r31  r32 ... r63  r64 ... r95  r96 ... r99
    runs                    |-- 32 --|  |-- 32 --|   |-- 32 --|   |--- 4 ---|

The start of record 32 is found by a search for the bytes that KRaft writes (records without key,
all with the batch's timestamp, contiguous offsets; Kafka: ``BatchBuilder``):

    record 31        record 32
    ... headers: 00  length: ..  attributes: 00  timestamp delta: 00  offset delta: 40  key: 01 ...
                                |-------------------- searched ---------------------------|

A value may contain the same bytes, so a split is a guess. The caller verifies it: following 32
records must end exactly at the start of the next run. Otherwise the unsplit runs are followed.
Batches of any other form are not split.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from .columns import Int64s
from .varint import varint
from .varint_numpy import Bytes

_RUN_RECORDS: Final = 32
_LONG_RUN_RECORDS: Final = 3 * _RUN_RECORDS
_MANY_RUNS: Final = 96
"""With this many long runs or more, splitting saves no time."""


@dataclass(frozen=True, slots=True)
class RecordRuns:
    """Start and end position of each run in ``data``, and its number of records."""

    data: Bytes
    start: Int64s
    end: Int64s
    record_count: Int64s

    def __getitem__(self, rows: Int64s) -> RecordRuns:
        return RecordRuns(self.data, self.start[rows], self.end[rows], self.record_count[rows])


@dataclass(frozen=True, slots=True)
class BatchRuns:
    """One run per batch, contiguous in ``data`` and in order of the batches."""

    runs: RecordRuns
    last_offset_delta: Int64s

    @property
    def data(self) -> Bytes:
        return self.runs.data

    @property
    def record_count(self) -> Int64s:
        return self.runs.record_count

    def first(self, count: int) -> BatchRuns:
        """Return the runs of the first ``count`` batches."""
        return BatchRuns(self.runs[np.arange(count)], self.last_offset_delta[:count])


def split_long_runs(batch_runs: BatchRuns) -> RecordRuns | None:
    """Return the same records in more, shorter runs, or None if no run is split."""
    runs = batch_runs.runs
    counts = runs.record_count
    long = np.flatnonzero(
        (counts >= _LONG_RUN_RECORDS) & (batch_runs.last_offset_delta == counts - 1)
    )
    if not 0 < len(long) < _MANY_RUNS:
        return None
    end, record_count = runs.end.copy(), counts.copy()
    more: list[Int64s] = []
    for row in long.tolist():
        start, count = int(runs.start[row]), int(counts[row])
        splits = _find_splits(runs.data[start : int(end[row])].tobytes(), count)
        if not splits:
            continue
        parts = np.empty((3, len(splits)), np.int64)
        parts[0] = splits
        parts[0] += start
        parts[1, :-1] = parts[0, 1:]
        parts[1, -1] = end[row]
        parts[2, :-1] = _RUN_RECORDS
        parts[2, -1] = count - len(splits) * _RUN_RECORDS
        end[row], record_count[row] = parts[0, 0], _RUN_RECORDS
        more.append(parts)
    if not more:
        return None
    starts, ends, counts_of_more = np.concatenate(more, axis=1)
    return RecordRuns(
        runs.data,
        np.concatenate([runs.start, starts]),
        np.concatenate([end, ends]),
        np.concatenate([record_count, counts_of_more]),
    )


def _find_splits(data: bytes, record_count: int) -> list[int]:
    """Return the probable positions of records 32, 64, ..., up to the first one not found."""
    splits: list[int] = []
    at = 0
    run_bytes = _RUN_RECORDS * len(data) // record_count
    for delta in range(_RUN_RECORDS, record_count, _RUN_RECORDS):
        # attributes 0, timestamp delta 0, offset delta, key length -1
        pattern = b"\0\0" + varint(delta) + b"\x01"
        found = data.find(pattern, at + run_bytes * 3 // 4, at + run_bytes * 2)
        if found < 0:
            found = data.find(pattern, at + 2, at + run_bytes * 4)
        if found < 0:
            break
        # The record's length precedes the pattern, in one byte or, with a continuation bit, two.
        at = found - 2 if data[found - 2] >= 0x80 else found - 1
        splits.append(at)
    return splits
