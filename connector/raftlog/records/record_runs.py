"""Runs of records of many batches, and how long ones are split so that they are parsed faster.

Rules of this file:

1. Splitting is a guess that the chain of lengths proves or refutes: a piece holds that many records
   and ends where the next one begins, or the guess was wrong and the batch is followed whole.
2. The guess is made for what KRaft writes: records without key, all at the batch's own time, with
   offsets that count up (Kafka: ``BatchBuilder``). Other batches are left whole.
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
"""So many long runs go well together as they are."""


@dataclass(frozen=True, slots=True)
class RecordRuns:
    """Where rows of records begin and end in ``data``, and how many each holds."""

    data: Bytes
    start: Int64s
    end: Int64s
    record_count: Int64s

    def __getitem__(self, rows: Int64s) -> RecordRuns:
        return RecordRuns(self.data, self.start[rows], self.end[rows], self.record_count[rows])


@dataclass(frozen=True, slots=True)
class BatchRuns:
    """The records of batches, one batch behind the other: a run for each."""

    runs: RecordRuns
    last_offset_delta: Int64s

    @property
    def data(self) -> Bytes:
        return self.runs.data

    @property
    def record_count(self) -> Int64s:
        return self.runs.record_count

    def first(self, count: int) -> BatchRuns:
        """The runs of the first ``count`` batches."""
        return BatchRuns(self.runs[np.arange(count)], self.last_offset_delta[:count])


def split_long_runs(batch_runs: BatchRuns) -> RecordRuns | None:
    """The same records in more and shorter runs, or None if there is nothing to split."""
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
        cuts = _cuts(runs.data[start : int(end[row])].tobytes(), count)
        if not cuts:
            continue
        parts = np.empty((3, len(cuts)), np.int64)
        parts[0] = cuts
        parts[0] += start
        parts[1, :-1] = parts[0, 1:]
        parts[1, -1] = end[row]
        parts[2, :-1] = _RUN_RECORDS
        parts[2, -1] = count - len(cuts) * _RUN_RECORDS
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


def _cuts(data: bytes, record_count: int) -> list[int]:
    """Where every 32nd record probably begins, as far as it is seen."""
    cuts: list[int] = []
    at = 0
    usual = _RUN_RECORDS * len(data) // record_count
    for delta in range(_RUN_RECORDS, record_count, _RUN_RECORDS):
        # attributes 0, timestamp delta 0, this offset delta, no key
        looks = b"\0\0" + varint(delta) + b"\x01"
        found = data.find(looks, at + usual * 3 // 4, at + usual * 2)
        if found < 0:
            found = data.find(looks, at + 2, at + usual * 4)
        if found < 0:
            break
        # Before it lies the record's length, and before that the last record's header count, 0.
        at = found - 2 if data[found - 2] >= 0x80 else found - 1
        cuts.append(at)
    return cuts
