"""Records of many batches, parsed with numpy into columns.

The start of a record is known only from the length of the record before it, so the records of one
batch (a *run*) cannot be located in parallel. But runs of different batches are independent, so
they are followed together, one record of each run per step. Runs are sorted by record count,
descending, so that the runs with records left are always a prefix:

    data        |a0 |a1     |a2 |b0   |b1   |c0 |        runs: a (3 records), b (2), c (1)
    position    0   4       12  16    22    28  32

    step         0    1    2
    at[a]        0    4   12  ->  16 = end of a
    at[b]       16   22       ->  28 = end of b
    at[c]       28            ->  32 = end of c
    live         3    2    1

Each step adds the lengths of all live runs' records, which are looked up by their first two bytes
(``_LENGTHS``). The sorted positions of all steps are the starts of all records. Then all fields are
parsed by column: the lengths of all records, all timestamp deltas, all offset deltas, and so on.

Some runs are followed one by one in Python: the last few long runs (fewer than ``_LIVE_MIN`` live
ones), and runs with a record length of three bytes or more.

A record must fill its length exactly, and the records of a batch must fill its bytes. Otherwise the
result is the ordinal of the first corrupt batch, and ``batch.read_batch`` finds the reason. Run
time and memory are linear in the number of bytes, whatever they contain.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from raftlog.limits import HEADERS_PER_BATCH_MAX, HEADERS_PER_RECORD_MAX, KIB

from .batch_columns import Bools, Bytes, Int32s, Int64s, read_varints, read_varlongs
from .fields import MalformedVarintError, read_varint, varint
from .header import RECORD_BYTES_MIN

HEADERS_TYPE: Final = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))

# --- Runs of contiguous records, and the split of long runs into shorter ones ---------------------
# All runs are followed together, one record of each run per step, so the speed depends on the
# number of runs. A few large batches would be few long runs, so they are split every 32 records:
#
#     records of a batch      r0 ... r31  r32 ... r63  r64 ... r95  r96 ... r99
#     runs                    |-- 32 --|  |-- 32 --|   |-- 32 --|   |--- 4 ---|
#
# The start of record 32 is found by a search for the bytes that KRaft writes (records without key,
# all with the batch's timestamp, contiguous offsets; Kafka: ``BatchBuilder``):
#
#    record 31        record 32
#    ... headers: 00  length: ..  attributes: 00  timestamp delta: 00  offset delta: 40  key: 01 ...
#                                |-------------------- searched ---------------------------|
#
# A value may contain the same bytes, so a split is a guess that the caller verifies: following 32
# records must end exactly at the start of the next run. Otherwise the unsplit runs are followed.
# Batches of any other form are not split.


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
    """One run per batch, contiguous in ``data`` and in the order of the batches."""

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


# --- Parsing of records ---------------------------------------------------------------------------

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
    """Fields of all records, in order, with ``header_key`` and ``header_value`` of all headers."""

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
    """Ordinal of the first batch with which the headers of one scan exceed their limit."""

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
    """Return the size of a record, including its length field, by its first two bytes.

    0 if the length field has more than two bytes or is negative. The run then does not advance and
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

    As with runs of records, one header of each record is parsed per step, and the headers of the
    last few records one by one.
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


# --- Arrow columns built from positions in a buffer, without a Python object per value ------------
# A column of byte strings is an Arrow ``take`` from an array over the buffer, whose even elements
# are the strings and whose odd elements are the bytes between them. For example, record keys:
#
#     buffer      --key0--value0--key1--value1--
#     elements      [0 ][---1----][2 ]            keys = take(0, 2, ...)
#
# Positions are below 2**31 (``limits.SCAN_BYTES_MAX``), because Arrow's offsets are 32-bit.

_LONG_BYTES: Final = 64 * KIB
"""Mean length from which on a call per string costs little compared to copying its bytes."""


def number_column(numbers: npt.NDArray[np.integer], kind: pa.DataType) -> pa.Array:
    """Return an Arrow array over the memory of ``numbers``, whose width must match ``kind``."""
    return pa.Array.from_buffers(kind, len(numbers), [None, pa.py_buffer(numbers)])


def bytes_column(data: Bytes, spans: Spans) -> pa.BinaryArray:
    """Return the byte strings at ``spans`` (ascending), null where the byte count is -1."""
    count = len(spans.start)
    if count == 0:
        return pa.array([], pa.binary())
    is_null = spans.byte_count < 0
    if not is_null.any():
        return _take(data, spans.start, spans.byte_count)
    if is_null.all():
        return pa.nulls(count, pa.binary())
    taken = _take(data, spans.start, np.maximum(spans.byte_count, 0))
    valid = pa.py_buffer(np.packbits(~is_null, bitorder="little"))
    return pa.Array.from_buffers(pa.binary(), count, [valid, *taken.buffers()[1:]])


def _take(data: Bytes, start: Int64s, byte_count: Int64s) -> pa.BinaryArray:
    count = len(start)
    if int(byte_count.sum()) > count * _LONG_BYTES:
        return _copied(data, start, byte_count)
    offsets = np.empty(2 * count, np.int32)
    offsets[0::2] = start
    offsets[1::2] = start + byte_count
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    slots = pa.Array.from_buffers(pa.binary(), 2 * count - 1, buffers)
    return slots.take(number_column(np.arange(0, 2 * count, 2, dtype=np.int32), pa.int32()))


def _copied(data: Bytes, start: Int64s, byte_count: Int64s) -> pa.BinaryArray:
    """Copy long strings one by one. ``take`` would grow its buffer and need twice the memory."""
    offsets = np.zeros(len(start) + 1, np.int32)
    np.cumsum(byte_count, out=offsets[1:])
    values = np.empty(int(offsets[-1]), np.uint8)
    for begin, end, at in zip(
        offsets[:-1].tolist(), offsets[1:].tolist(), start.tolist(), strict=True
    ):
        values[begin:end] = data[at : at + end - begin]
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(values)]
    return pa.Array.from_buffers(pa.binary(), len(start), buffers)


def headers_column(data: Bytes, count: Int64s, key: Spans, value: Spans) -> pa.ListArray:
    """Return the list of headers of each record; ``count`` is the header count per record."""
    offsets = np.zeros(len(count) + 1, np.int32)
    np.cumsum(count, out=offsets[1:])
    return lists_column(offsets, bytes_column(data, key), bytes_column(data, value))


def lists_column(offsets: Int32s, key: pa.BinaryArray, value: pa.BinaryArray) -> pa.ListArray:
    """Return the list of headers of each record, from its offset to the next one."""
    pairs = pa.StructArray.from_arrays([_text(key), value], ["key", "value"])
    lists = pa.ListArray.from_arrays(number_column(offsets, pa.int32()), pairs)
    return lists.cast(HEADERS_TYPE)


def _text(column: pa.BinaryArray) -> pa.StringArray:
    try:
        return column.cast(pa.string())
    except pa.ArrowInvalid:  # invalid UTF-8 is replaced by U+FFFD, as in record.read_record
        texts = [data.decode("utf-8", "replace") for data in column.to_pylist()]
        return pa.array(texts, pa.string())
