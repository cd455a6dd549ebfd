"""Parsing of the records of many batches with numpy.

The start of a record is known only from the length of the record before it, so the records of one
batch (a *run*) cannot be located in parallel. Runs of different batches are independent: they are
followed together, one record of each run per step. Runs are sorted by record count, descending, so
that those with records left are always a prefix:

    data        |a0 |a1     |a2 |b0   |b1   |c0 |        runs: a (3 records), b (2), c (1)
    position    0   4       12  16    22    28  32

    step         0    1    2
    at[a]        0    4   12  ->  16 = end of a
    at[b]       16   22       ->  28 = end of b
    at[c]       28            ->  32 = end of c
    live         3    2    1

Each step adds the lengths of all live runs' records, looked up by their first two bytes
(``_LENGTHS``). The positions of all steps, sorted, are the starts of all records. Then all fields
are parsed by column: the lengths of all records, all timestamp deltas, all offset deltas, and so
on.

Runs that the steps do not follow to their end are followed one by one in Python: the last few long
runs (fewer than ``_LIVE_MIN`` live ones), and runs with a record length of three bytes or more.

A record must fill its length exactly, and the records of a batch its bytes. Otherwise the result is
the ordinal of the first corrupt batch; ``batch.read_batch`` finds the reason. Work and memory are
linear in the number of bytes, whatever they contain.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from raftlog.errors import MalformedVarintError
from raftlog.limits import HEADERS_PER_BATCH_MAX, HEADERS_PER_RECORD_MAX

from .columns import Bools, Int32s, Int64s
from .header import RECORD_BYTES_MIN
from .record_runs import BatchRuns, RecordRuns, split_long_runs
from .varint import read_varint
from .varint_numpy import Bytes, read_varints, read_varlongs

_LIVE_MIN: Final = 24
"""Number of runs below which following each one in Python is faster than a step of numpy."""


@dataclass(frozen=True, slots=True)
class Spans:
    """Positions and lengths of byte strings, ascending. A ``byte_count`` of -1 is null."""

    start: Int64s
    byte_count: Int64s

    def __getitem__(self, which: Bools) -> Spans:
        return Spans(self.start[which], self.byte_count[which])


@dataclass(frozen=True, slots=True)
class RecordFields:
    """Fields of all records, in order; ``header_key`` and ``header_value`` of all their headers."""

    batch_ordinal: Int32s
    timestamp_delta: Int64s
    offset_delta: Int64s
    key: Spans
    value: Spans
    header_count: Int64s
    header_key: Spans
    header_value: Spans

    def filter(self, mask: Bools) -> RecordFields:
        """Return the records where ``mask`` is true, and their headers."""
        header_mask = np.repeat(mask, self.header_count)
        return RecordFields(
            self.batch_ordinal[mask],
            self.timestamp_delta[mask],
            self.offset_delta[mask],
            self.key[mask],
            self.value[mask],
            self.header_count[mask],
            self.header_key[header_mask],
            self.header_value[header_mask],
        )


@dataclass(frozen=True, slots=True)
class DamagedBatch:
    """Ordinal of the first batch whose records are corrupt or have too many headers."""

    ordinal: int


@dataclass(frozen=True, slots=True)
class HeadersFull:
    """Ordinal of the batch that exceeds the header limit of one scan; those before it do not."""

    ordinal: int


def parse_records(batch_runs: BatchRuns) -> RecordFields | DamagedBatch | HeadersFull:
    """Parse all records of ``batch_runs``, or return the first corrupt batch.

    A batch that alone exceeds a header limit counts as corrupt.
    """
    overfull = (
        batch_runs.record_count * RECORD_BYTES_MIN > batch_runs.runs.end - batch_runs.runs.start
    )
    if overfull.any():  # checked before memory is allocated by record count
        return _first_damaged(batch_runs, overfull)
    start, damaged = _record_starts(batch_runs)
    if damaged.any():
        return _first_damaged(batch_runs, damaged)
    return _parse_fields(batch_runs, start)


def _first_damaged(batch_runs: BatchRuns, damaged: Bools) -> DamagedBatch | HeadersFull:
    """Return the first batch marked ``damaged``, or an earlier one that does not parse."""
    ordinal = int(np.flatnonzero(damaged)[0])
    before = parse_records(batch_runs.first(ordinal))
    return DamagedBatch(ordinal) if isinstance(before, RecordFields) else before


def _length_table() -> Int64s:
    """Return the size of a record, its length field included, by its first two bytes.

    0 if the length field has more than two bytes or is negative: the run does not advance then, and
    is followed in Python.
    """
    word = np.arange(2**16, dtype=np.uint32)  # little-endian: the first byte is the low one
    first, second = word & 0xFF, word >> 8
    one_byte = np.where(first & 0x81, 0, (first >> 1) + 1)
    raw = (first & 0x7F) | (second << 7)
    two_bytes = np.where((raw & 1) | (second >> 7), 0, (raw >> 1) + 2)
    return np.where(first < 0x80, one_byte, two_bytes).astype(np.int64)


_LENGTHS: Final = _length_table()


def _record_starts(batch_runs: BatchRuns) -> tuple[Int64s, Bools]:
    """Return the start of each record, in order, and which batches are corrupt.

    The starts are meaningless if a batch is corrupt.
    """
    runs = batch_runs.runs
    undamaged = np.zeros(len(runs.start), np.bool_)
    if len(undamaged) and runs.record_count.min() == runs.record_count.max() == 1:
        return runs.start, undamaged  # _parse_fields checks their ends
    split = split_long_runs(batch_runs)
    if split is not None:
        start, damaged = _follow_runs(split)
        if not damaged.any():
            return start, undamaged
    return _follow_runs(runs)


def _follow_runs(runs: RecordRuns) -> tuple[Int64s, Bools]:
    """Return the start of each record, in order, and which runs end at a wrong position."""
    counts = runs.record_count
    rows = np.argsort(-counts, kind="stable")
    at, steps, found = _follow_together(runs[rows])
    unfinished = counts[rows] > steps
    misaligned = at != runs.end[rows]
    misaligned[unfinished] = _is_stuck(runs.data, at[unfinished])
    followed = np.full(len(rows), steps)
    if misaligned.any():  # long records or corruption: follow these runs one by one from the start
        rows = np.concatenate([rows[~misaligned], rows[misaligned]])
        together = len(rows) - int(misaligned.sum())
        at, steps, found = _follow_together(runs[rows[:together]])
        at = np.concatenate([at, runs.start[rows[together:]]])
        followed = np.where(np.arange(len(rows)) < together, steps, 0)
    rest: list[int] = []
    for row in np.flatnonzero(counts[rows] > followed).tolist():
        left = int(counts[rows[row]] - followed[row])
        end = int(runs.end[rows[row]])
        at[row] = _follow_run(runs.data.data, int(at[row]), end, left, rest)
    damaged = np.empty(len(counts), np.bool_)
    damaged[rows] = at != runs.end[rows]
    start = np.concatenate([*found, np.array(rest, np.int64)])
    start.sort()  # runs are in batch order, so positions ascend with the records
    return start, damaged


def _follow_together(runs: RecordRuns) -> tuple[Int64s, int, list[Int64s]]:
    """Follow runs, sorted by record count descending, until fewer than ``_LIVE_MIN`` are live.

    Returns the position of each run, the number of steps, and the starts of records per step.
    """
    at = runs.start.copy()
    counts = runs.record_count.tolist()
    words = _words(runs.data)
    last = len(words) - 1
    found: list[Int64s] = []
    steps = 0
    live = len(counts)
    while True:
        while live and counts[live - 1] <= steps:
            live -= 1
        if live < _LIVE_MIN:
            return at, steps, found
        here = np.minimum(at[:live], last)
        found.append(here)
        at[:live] += _LENGTHS.take(words[here])
        steps += 1


def _words(data: Bytes) -> npt.NDArray[np.uint16]:
    """Return a view of each two adjacent bytes as a little-endian number, without a copy."""
    return np.ndarray((max(0, len(data) - 1),), "<u2", data.data, strides=(1,))


def _is_stuck(data: Bytes, at: Int64s) -> Bools:
    words = _words(data)
    stuck: Bools = _LENGTHS.take(words[np.minimum(at, len(words) - 1)]) == 0
    return stuck


def _follow_run(view: memoryview, at: int, end: int, count: int, found: list[int]) -> int:
    """Follow one run for ``count`` records; return its end position, or -1 if it is corrupt."""
    add = found.append
    last = end - RECORD_BYTES_MIN
    for _ in range(count):
        if at > last:
            return -1
        add(at)
        byte = view[at]
        if byte < 0x80:
            raw = byte
            at += 1
        elif view[at + 1] < 0x80:
            raw = byte & 0x7F | view[at + 1] << 7
            at += 2
        else:
            try:
                byte_count, at = read_varint(view, at)
            except MalformedVarintError:
                return -1
            raw = 2 * byte_count if byte_count >= 0 else 1
        if raw & 1:
            return -1
        at += raw >> 1
    return at


def _parse_fields(
    batch_runs: BatchRuns, start: Int64s
) -> RecordFields | DamagedBatch | HeadersFull:
    """Parse the fields of the records that start at ``start``, column by column."""
    data, counts = batch_runs.data, batch_runs.record_count
    ordinal = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
    end = _record_ends(batch_runs, start)
    bad = np.zeros(len(start), np.bool_)
    byte_count, at = read_varints(data, start, bad)
    bad |= (byte_count < 1) | (at + byte_count != end)
    timestamp_delta, at = read_varlongs(data, at + 1, bad)  # skips the attributes byte
    offset_delta, at = read_varints(data, at, bad)
    key, at = _read_spans(data, at, bad)
    value, at = _read_spans(data, at, bad)
    header_count, at = read_varints(data, at, bad)
    header_key = header_value = Spans(at[:0], at[:0])
    if header_count.any():
        bad |= (header_count < 0) | (2 * header_count > end - at)
        bad |= header_count > HEADERS_PER_RECORD_MAX
        header_count = np.where(bad, 0, header_count)
        if header_count.sum() > HEADERS_PER_BATCH_MAX:
            full = _first_full(ordinal, header_count, bad)
            if isinstance(full, HeadersFull):
                return full
            bad |= ordinal >= full.ordinal
            header_count = np.where(bad, 0, header_count)
        header_key, header_value = _parse_headers(data, at, header_count, bad)
    bad |= at != end
    bad |= _bad_offsets(batch_runs, ordinal, offset_delta)
    if bad.any():
        return DamagedBatch(int(ordinal[np.flatnonzero(bad)[0]]))
    return RecordFields(
        ordinal,
        timestamp_delta,
        offset_delta,
        key,
        value,
        header_count,
        header_key,
        header_value,
    )


def _first_full(ordinal: Int32s, header_count: Int64s, bad: Bools) -> DamagedBatch | HeadersFull:
    """Return the first batch that exceeds the header limit of a scan, in total or alone."""
    first_bad = int(ordinal[np.flatnonzero(bad)[0]]) if bad.any() else int(ordinal[-1]) + 1
    by_batch = np.bincount(ordinal, header_count)[:first_bad].astype(np.int64)
    over = np.flatnonzero(np.cumsum(by_batch) > HEADERS_PER_BATCH_MAX)
    if not len(over):
        return DamagedBatch(first_bad)
    return DamagedBatch(0) if over[0] == 0 else HeadersFull(int(over[0]))


def _record_ends(batch_runs: BatchRuns, start: Int64s) -> Int64s:
    """Return the end of each record: the start of the next one, or the end of the batch."""
    end = np.empty(len(start), np.int64)
    end[:-1] = start[1:]
    filled = batch_runs.record_count > 0
    end[np.cumsum(batch_runs.record_count)[filled] - 1] = batch_runs.runs.end[filled]
    return end


def _read_spans(data: Bytes, at: Int64s, bad: Bools) -> tuple[Spans, Int64s]:
    byte_count, start = read_varints(data, at, bad)
    bad |= byte_count < -1
    return Spans(start, byte_count), start + np.maximum(byte_count, 0)


def _bad_offsets(batch_runs: BatchRuns, ordinal: Int32s, offset_delta: Int64s) -> Bools:
    """Return which records' offset deltas do not ascend, or exceed the batch's last delta."""
    counts = batch_runs.record_count
    first = np.cumsum(counts) - counts
    index = np.arange(len(offset_delta)) - first[ordinal]  # of the record in its batch
    if np.array_equal(index, offset_delta):  # no gaps; header_damage checked the record count
        return np.zeros(len(offset_delta), np.bool_)
    before = np.full(len(offset_delta), -1, np.int64)
    before[1:] = offset_delta[:-1]
    before[index == 0] = -1
    bad: Bools = (offset_delta <= before) | (offset_delta > batch_runs.last_offset_delta[ordinal])
    return bad


def _parse_headers(
    data: Bytes, at: Int64s, header_count: Int64s, bad: Bools
) -> tuple[Spans, Spans]:
    """Parse the headers of all records and advance ``at`` after them.

    As with runs of records: one header of each record per step, the last few records one by one.
    """
    rows = np.flatnonzero(header_count)
    counts = header_count[rows]
    rows = rows[np.argsort(-counts, kind="stable")]
    slot = (np.cumsum(header_count) - header_count)[rows]
    total = int(counts.sum())
    key, value = (Spans(np.zeros(total, np.int64), np.zeros(total, np.int64)) for _ in range(2))
    descending = header_count[rows].tolist()
    live = len(rows)
    steps = 0
    while True:
        while live and descending[live - 1] <= steps:
            live -= 1
        if live < _LIVE_MIN:
            break
        live_rows, index = rows[:live], slot[:live] + steps
        live_bad = np.zeros(live, np.bool_)
        spans, after = _read_spans(data, at[live_rows], live_bad)
        live_bad |= spans.byte_count < 0
        key.start[index], key.byte_count[index] = spans.start, spans.byte_count
        spans, after = _read_spans(data, after, live_bad)
        value.start[index], value.byte_count[index] = spans.start, spans.byte_count
        at[live_rows] = after
        bad[live_rows] |= live_bad
        steps += 1
    for row, first, count in zip(rows[:live], slot[:live], descending, strict=False):
        after_last = _parse_headers_of_record(
            data.data, int(at[row]), first + steps, count - steps, key, value
        )
        if after_last is None:
            bad[row] = True
        else:
            at[row] = after_last
    return key, value


def _parse_headers_of_record(
    view: memoryview, at: int, first: int, count: int, key: Spans, value: Spans
) -> int | None:
    """Parse ``count`` headers at ``at`` to the indexes from ``first`` on.

    Returns the position after them, or None if they are corrupt.
    """
    try:
        for ordinal in range(first, first + count):
            key_bytes, at = read_varint(view, at)
            key.start[ordinal], key.byte_count[ordinal] = at, key_bytes
            if key_bytes < 0:
                return None
            value_bytes, at = read_varint(view, at + key_bytes)
            value.start[ordinal], value.byte_count[ordinal] = at, value_bytes
            if value_bytes < -1:
                return None
            at += max(value_bytes, 0)
    except MalformedVarintError:
        return None
    return at
