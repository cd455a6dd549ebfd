"""Find and parse the records of many batches at once, with numpy.

Records lie behind each other and only its length says where the next one begins: a run that
cannot be computed at once. But the runs of different batches can be followed in lockstep, the
first record of every batch, then the second, ... A few long ones left at the end are followed one
by one.

Rules of this file:

1. Nothing is believed: every record must fill its length exactly, and the records of a batch its
   bytes. The answer to anything else is the ordinal of the first batch that is damaged; what is
   wrong with it is for the reader of single batches to say.
2. Work and memory are linear in the bytes, whatever they hold.
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
"""Below this many runs a step of numpy costs more than following each in Python."""


@dataclass(frozen=True, slots=True)
class Spans:
    """Where byte strings lie in the data, one behind the other. A ``byte_count`` of -1 is null."""

    start: Int64s
    byte_count: Int64s

    def __getitem__(self, which: Bools) -> Spans:
        return Spans(self.start[which], self.byte_count[which])


@dataclass(frozen=True, slots=True)
class RecordFields:
    """Every record, in order. ``header_keys`` and ``header_values``: every header, in order."""

    batch_ordinal: Int32s
    timestamp_delta: Int64s
    offset_delta: Int64s
    key: Spans
    value: Spans
    header_count: Int64s
    header_key: Spans
    header_value: Spans

    def filter(self, mask: Bools) -> RecordFields:
        """The records that are marked in ``mask``, and their headers."""
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
    """The first batch whose records are not what its header says."""

    ordinal: int


@dataclass(frozen=True, slots=True)
class HeadersFull:
    """The batches before ``ordinal`` have as many headers as are decoded together."""

    ordinal: int


def parse_records(batch_runs: BatchRuns) -> RecordFields | DamagedBatch | HeadersFull:
    """Parse every record of ``batch_runs``, or say which batch is the first that is damaged.

    A batch with more headers than are decoded counts as one that is damaged.
    """
    overfull = (
        batch_runs.record_count * RECORD_BYTES_MIN > batch_runs.runs.end - batch_runs.runs.start
    )
    if overfull.any():  # before memory is given to records that cannot be there
        return _first_damaged(batch_runs, overfull)
    start, damaged = _record_starts(batch_runs)
    if damaged.any():
        return _first_damaged(batch_runs, damaged)
    return _parse_fields(batch_runs, start)


def _first_damaged(batch_runs: BatchRuns, damaged: Bools) -> DamagedBatch | HeadersFull:
    """The first of the batches marked ``damaged``, unless one before it is found to be."""
    ordinal = int(np.flatnonzero(damaged)[0])
    before = parse_records(batch_runs.first(ordinal))
    return DamagedBatch(ordinal) if isinstance(before, RecordFields) else before


def _length_table() -> Int64s:
    """From a record's first two bytes to its whole length, if a varint of two bytes can tell it.

    0 where it cannot: a run that meets one stands still, and is followed in Python from there.
    """
    word = np.arange(2**16, dtype=np.uint32)  # little-endian: the first byte is the low one
    first, second = word & 0xFF, word >> 8
    one = np.where(first & 0x81, 0, (first >> 1) + 1)
    raw = (first & 0x7F) | (second << 7)
    two = np.where((raw & 1) | (second >> 7), 0, (raw >> 1) + 2)
    return np.where(first < 0x80, one, two).astype(np.int64)


_LENGTHS: Final = _length_table()


def _record_starts(batch_runs: BatchRuns) -> tuple[Int64s, Bools]:
    """Where each record begins, in order, and which batches do not end where their last one ends.

    The positions mean nothing if a batch is damaged.
    """
    runs = batch_runs.runs
    undamaged = np.zeros(len(runs.start), np.bool_)
    if len(undamaged) and runs.record_count.min() == runs.record_count.max() == 1:
        return runs.start, undamaged  # their fields tell where they end
    split = split_long_runs(batch_runs)
    if split is not None:
        start, damaged = _follow_runs(split)
        if not damaged.any():
            return start, undamaged
    return _follow_runs(runs)


def _follow_runs(runs: RecordRuns) -> tuple[Int64s, Bools]:
    """Where each record begins, in order, and which runs do not end where their last one ends."""
    counts = runs.record_count
    rows = np.argsort(-counts, kind="stable")
    at, rounds, found = _follow_in_lockstep(runs[rows])
    unfinished = counts[rows] > rounds
    misaligned = at != runs.end[rows]
    misaligned[unfinished] = _is_stuck(runs.data, at[unfinished])
    followed = np.full(len(rows), rounds)
    if misaligned.any():  # long records, or damage: these runs are followed alone from their start
        rows = np.concatenate([rows[~misaligned], rows[misaligned]])
        together = len(rows) - int(misaligned.sum())
        at, rounds, found = _follow_in_lockstep(runs[rows[:together]])
        at = np.concatenate([at, runs.start[rows[together:]]])
        followed = np.where(np.arange(len(rows)) < together, rounds, 0)
    rest: list[int] = []
    for row in np.flatnonzero(counts[rows] > followed).tolist():
        left = int(counts[rows[row]] - followed[row])
        end = int(runs.end[rows[row]])
        at[row] = _follow_run(runs.data.data, int(at[row]), end, left, rest)
    damaged = np.empty(len(counts), np.bool_)
    damaged[rows] = at != runs.end[rows]
    start = np.concatenate([*found, np.array(rest, np.int64)])
    start.sort()  # as the records lie, which is by batch
    return start, damaged


def _follow_in_lockstep(runs: RecordRuns) -> tuple[Int64s, int, list[Int64s]]:
    """Follow the runs, those with most records first, while many of them go on.

    Returns where each run is, after how many rounds, and where the records met begin.
    """
    at = runs.start.copy()
    counts = runs.record_count.tolist()
    words = _words(runs.data)
    last = len(words) - 1
    found: list[Int64s] = []
    rounds = 0
    live = len(counts)
    while True:
        while live and counts[live - 1] <= rounds:
            live -= 1
        if live < _LIVE_MIN:
            return at, rounds, found
        here = np.minimum(at[:live], last)
        found.append(here)
        at[:live] += _LENGTHS.take(words[here])
        rounds += 1


def _words(data: Bytes) -> npt.NDArray[np.uint16]:
    """Every two neighbouring bytes as a little-endian number: a view, nothing is copied."""
    return np.ndarray((max(0, len(data) - 1),), "<u2", data.data, strides=(1,))


def _is_stuck(data: Bytes, at: Int64s) -> Bools:
    words = _words(data)
    stuck: Bools = _LENGTHS.take(words[np.minimum(at, len(words) - 1)]) == 0
    return stuck


def _follow_run(view: memoryview, at: int, end: int, count: int, found: list[int]) -> int:
    """Follow one run for ``count`` records. Returns where it ends, or -1 if it breaks."""
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
    """Parse the records that begin at ``start``."""
    data, counts = batch_runs.data, batch_runs.record_count
    ordinal = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
    end = _record_ends(batch_runs, start)
    bad = np.zeros(len(start), np.bool_)
    byte_count, at = read_varints(data, start, bad)
    bad |= (byte_count < 1) | (at + byte_count != end)
    timestamp_delta, at = read_varlongs(data, at + 1, bad)  # behind the attributes, a byte
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
    """Where the batches have too many headers together; a batch that has them alone is damaged."""
    first_bad = int(ordinal[np.flatnonzero(bad)[0]]) if bad.any() else int(ordinal[-1]) + 1
    by_batch = np.bincount(ordinal, header_count)[:first_bad].astype(np.int64)
    over = np.flatnonzero(np.cumsum(by_batch) > HEADERS_PER_BATCH_MAX)
    if not len(over):
        return DamagedBatch(first_bad)
    return DamagedBatch(0) if over[0] == 0 else HeadersFull(int(over[0]))


def _record_ends(batch_runs: BatchRuns, start: Int64s) -> Int64s:
    """Where the next record begins, or the batch ends."""
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
    """Which records do not lie behind the one before them and within their batch's offsets."""
    counts = batch_runs.record_count
    first = np.cumsum(counts) - counts
    place = np.arange(len(offset_delta)) - first[ordinal]
    if np.array_equal(place, offset_delta):  # no gaps: headers allow no more records than offsets
        return np.zeros(len(offset_delta), np.bool_)
    before = np.full(len(offset_delta), -1, np.int64)
    before[1:] = offset_delta[:-1]
    before[place == 0] = -1
    bad: Bools = (offset_delta <= before) | (offset_delta > batch_runs.last_offset_delta[ordinal])
    return bad


def _parse_headers(
    data: Bytes, at: Int64s, header_count: Int64s, bad: Bools
) -> tuple[Spans, Spans]:
    """Parse the headers of the records that have any, and move ``at`` behind them."""
    rows = np.flatnonzero(header_count)
    counts = header_count[rows]
    rows = rows[np.argsort(-counts, kind="stable")]
    slot = (np.cumsum(header_count) - header_count)[rows]
    total = int(counts.sum())
    key, value = (Spans(np.zeros(total, np.int64), np.zeros(total, np.int64)) for _ in range(2))
    descending = header_count[rows].tolist()
    live = len(rows)
    rounds = 0
    while True:
        while live and descending[live - 1] <= rounds:
            live -= 1
        if live < _LIVE_MIN:
            break
        live_rows, place = rows[:live], slot[:live] + rounds
        live_bad = np.zeros(live, np.bool_)
        one, after = _read_spans(data, at[live_rows], live_bad)
        live_bad |= one.byte_count < 0
        key.start[place], key.byte_count[place] = one.start, one.byte_count
        one, after = _read_spans(data, after, live_bad)
        value.start[place], value.byte_count[place] = one.start, one.byte_count
        at[live_rows] = after
        bad[live_rows] |= live_bad
        rounds += 1
    for row, first, count in zip(rows[:live], slot[:live], descending, strict=False):
        after_last = _parse_headers_of_one(
            data.data, int(at[row]), first + rounds, count - rounds, key, value
        )
        if after_last is None:
            bad[row] = True
        else:
            at[row] = after_last
    return key, value


def _parse_headers_of_one(
    view: memoryview, at: int, place: int, count: int, key: Spans, value: Spans
) -> int | None:
    """Parse ``count`` headers at ``at``. Returns the position behind them, or None."""
    try:
        for ordinal in range(place, place + count):
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
