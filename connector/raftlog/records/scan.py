"""Scan of a buffer of record batches to columns, without a Python object per record.

The steps, each of which handles all batches of the buffer:

    index_batches       lengths and magic     positions and headers of the batches
    first_bad_crc       CRCs
    damaged_headers     other header fields
    _batch_runs         decompression         bytes of all records
    parse_records       records               positions of keys, values and headers
    _record_columns                           Arrow columns

The compiled core does the same steps batch by batch (``_scan_native``).

A corrupt batch ends the scan, which returns the batches before it together with the error. The
result, including errors, is the same as that of ``batch.read_batch`` for each batch.

Memory is bounded by the buffer, by ``SCAN_DECOMPRESSED_BYTES_MAX`` plus one batch, and by
``HEADERS_PER_BATCH_MAX``. At these limits the scan ends with ``Stop.FULL``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from raftlog import compiled
from raftlog.errors import CorruptBatchError
from raftlog.limits import (
    BATCH_HEADER_BYTES,
    DECOMPRESSED_BYTES_MAX,
    HEADERS_PER_BATCH_MAX,
    HEADERS_PER_RECORD_MAX,
    SCAN_BYTES_MAX,
    SCAN_DECOMPRESSED_BYTES_MAX,
)

from .batch import RecordBatch, read_batch
from .batch_columns import (
    NATIVE_STOPS,
    BatchColumns,
    BatchSpans,
    Bools,
    Bytes,
    Column,
    Int64s,
    RecordColumns,
    Scan,
    Stop,
    batch_columns,
    clip,
    end_of_walk,
    first_invalid,
    index_batches,
    native_batches,
)
from .compression import Compression, decompress, decompress_onto
from .fields import Buffer
from .header import COMPRESSION_BITS
from .record_columns import (
    BatchRuns,
    DamagedBatch,
    HeadersFull,
    RecordFields,
    RecordRuns,
    bytes_column,
    headers_column,
    lists_column,
    number_column,
    parse_records,
)

__all__ = [
    "BatchColumns",
    "Column",
    "RecordColumns",
    "Scan",
    "Stop",
    "scan",
]


@dataclass(frozen=True, slots=True)
class _Source:
    """Buffer to scan, and its location for errors."""

    view: memoryview
    path: str | None
    file_position: int
    decompressed_bytes_max: int


def scan(
    buffer: Buffer,
    *,
    columns: Column = Column.ALL_BUT_HEADERS,
    start_offset: int | None = None,
    end_offset: int | None = None,
    path: str | None = None,
    file_position: int = 0,
    decompressed_bytes_max: int = DECOMPRESSED_BYTES_MAX,
    value_prefixes: tuple[bytes, ...] = (),
) -> Scan:
    """Verify and decode the batches of ``buffer``.

    Records in [``start_offset``, ``end_offset``) are returned. With ``value_prefixes``, only
    records of control batches and records whose value begins with a prefix are. Leading batches
    below ``start_offset`` are skipped without verification. The first batch whose base offset is >=
    ``end_offset`` ends the scan. ``file_position`` is the position of the buffer in the file
    ``path``.

    Corrupt bytes raise nothing: see ``Scan.stop`` and ``Scan.error``.
    """
    source = _Source(memoryview(buffer), path, file_position, decompressed_bytes_max)
    if compiled.is_native:
        found = _scan_native(source, buffer, columns, start_offset, end_offset, value_prefixes)
        if found is not None:
            return found
    spans = clip(index_batches(source.view, path, file_position), start_offset, end_offset)
    spans = _up_to_limit(spans)
    bad = first_invalid(source.view, spans)
    if bad is not None:
        spans = spans.cut(bad, Stop.DAMAGED, _error_at(source, int(spans.position[bad])))
    spans, batch_runs = _batch_runs(source, spans)
    parsed = parse_records(batch_runs)
    if isinstance(parsed, HeadersFull):
        spans = spans.cut(parsed.ordinal, Stop.FULL)
        batch_runs = batch_runs.first(parsed.ordinal)
        parsed = parse_records(batch_runs)
    if isinstance(parsed, DamagedBatch):
        error = _error_at(source, int(spans.position[parsed.ordinal]))
        spans = spans.cut(parsed.ordinal, Stop.DAMAGED, error)
        parsed = parse_records(batch_runs.first(parsed.ordinal))
    assert isinstance(parsed, RecordFields), "batches before the first corrupt one are valid"
    batches = batch_columns(spans, file_position)
    mask = _row_mask(batches, parsed, start_offset, end_offset)
    if mask is not None:
        parsed = parsed.filter(mask)
    if value_prefixes:
        parsed = parsed.filter(_prefix_mask(batches, batch_runs.data, parsed, value_prefixes))
    return Scan(
        batches=batches,
        records=_record_columns(batches, batch_runs.data, parsed, columns),
        end_position=spans.end_position,
        stop=spans.stop,
        error=spans.error,
    )


def _up_to_limit(spans: BatchSpans) -> BatchSpans:
    """Return at most ``SCAN_BYTES_MAX`` bytes of batches, but at least one batch."""
    position = spans.position
    if len(position) and spans.end_position - int(position[0]) > SCAN_BYTES_MAX:
        fitting = np.searchsorted(spans.batch_end - position[0], SCAN_BYTES_MAX, side="right")
        count = max(1, int(fitting))
        if count < len(position):
            return spans.cut(count, Stop.FULL)
    return spans


def _error_at(source: _Source, position: int) -> CorruptBatchError:
    """Return the error that ``read_batch`` raises for a corrupt batch."""
    error = _find_error(source, position)
    assert error is not None, "read_batch and scan must reject the same batches"
    return error


def _find_error(source: _Source, position: int) -> CorruptBatchError | None:
    try:
        batch = read_batch(
            source.view, position, path=source.path, file_position=source.file_position
        )
        assert isinstance(batch, RecordBatch), "the walk of the batches checked its length"
        for _ in batch.records(decompressed_bytes_max=source.decompressed_bytes_max):
            pass
    except CorruptBatchError as error:
        return error
    return None


def _batch_runs(source: _Source, spans: BatchSpans) -> tuple[BatchSpans, BatchRuns]:
    """Return the decompressed records; of fewer batches if one is corrupt or a limit is reached."""
    if not len(spans.position):
        data = np.empty(0, np.uint8)
        start = end = spans.position
    elif not (spans.headers["attributes"] & COMPRESSION_BITS).any():
        first = int(spans.position[0])
        data = np.frombuffer(source.view[first : int(spans.batch_end[-1])], np.uint8)
        start = spans.position + (BATCH_HEADER_BYTES - first)
        end = spans.batch_end - first
    else:
        spans, plain, ends = _decompress(source, spans)
        data = np.frombuffer(plain, np.uint8)
        end = np.array(ends, np.int64)
        start = end - np.diff(end, prepend=0)
    record_count = spans.headers["record_count"].astype(np.int64)
    runs = RecordRuns(data, start, end, record_count)
    return spans, BatchRuns(runs, spans.headers["last_offset_delta"].astype(np.int64))


def _decompress(source: _Source, spans: BatchSpans) -> tuple[BatchSpans, bytearray, list[int]]:
    """Return the batches that were decompressed, their records, and where each one's records end.

    Stops after the batch with which the total exceeds ``SCAN_DECOMPRESSED_BYTES_MAX``.
    """
    plain = bytearray()
    ends: list[int] = []
    expanded = 0
    starts = (spans.position + BATCH_HEADER_BYTES).tolist()
    codecs = (spans.headers["attributes"] & COMPRESSION_BITS).tolist()
    for ordinal, end in enumerate(spans.batch_end.tolist()):
        payload = source.view[starts[ordinal] : end]
        codec = Compression(codecs[ordinal])
        if codec is Compression.NONE:
            plain += payload
            ends.append(len(plain))
            continue
        start, limit = len(plain), source.decompressed_bytes_max
        try:
            decompress_onto(plain, payload, codec, byte_count_max=limit)
        except CorruptBatchError:
            error = _error_at(source, int(spans.position[ordinal]))
            return spans.cut(ordinal, Stop.DAMAGED, error), plain, ends
        ends.append(len(plain))
        expanded += len(plain) - start
        if expanded > SCAN_DECOMPRESSED_BYTES_MAX and ordinal + 1 < len(starts):
            return spans.cut(ordinal + 1, Stop.FULL), plain, ends
    return spans, plain, ends


def _row_mask(
    batches: BatchColumns, parsed: RecordFields, start_offset: int | None, end_offset: int | None
) -> Bools | None:
    """Return which records are in [``start_offset``, ``end_offset``); None means all of them."""
    if not len(batches):
        return None
    cut_front = start_offset is not None and bool((batches.base_offset < start_offset).any())
    cut_back = end_offset is not None and bool((batches.last_offset >= end_offset).any())
    if not cut_front and not cut_back:
        return None
    offset = batches.base_offset[parsed.batch_ordinal] + parsed.offset_delta
    mask = np.ones(len(offset), np.bool_)
    if start_offset is not None:
        mask &= offset >= start_offset
    if end_offset is not None:
        mask &= offset < end_offset
    return mask


def _prefix_mask(
    batches: BatchColumns, data: Bytes, parsed: RecordFields, prefixes: tuple[bytes, ...]
) -> Bools:
    """Return which records are of control batches, or have a value with one of ``prefixes``."""
    mask: Bools = batches.is_control[parsed.batch_ordinal].copy()
    start, byte_count = parsed.value.start, parsed.value.byte_count
    for prefix in prefixes:
        rows = np.flatnonzero(byte_count >= len(prefix))
        for at, byte in enumerate(prefix):
            rows = rows[data[start[rows] + at] == byte]
        mask[rows] = True
    return mask


def _record_columns(
    batches: BatchColumns, data: Bytes, parsed: RecordFields, columns: Column
) -> RecordColumns:
    """Build the requested columns."""
    ordinal = parsed.batch_ordinal
    offset = timestamp_ms = leader_epoch = key = value = headers = None
    if Column.OFFSET in columns:
        offset = number_column(batches.base_offset[ordinal] + parsed.offset_delta, pa.int64())
    if Column.TIMESTAMP in columns:
        timestamp_ms = number_column(_timestamps_ms(batches, parsed), pa.int64())
    if Column.LEADER_EPOCH in columns:
        leader_epoch = number_column(batches.leader_epoch[ordinal], pa.int32())
    if Column.KEY in columns:
        key = bytes_column(data, parsed.key)
    if Column.VALUE in columns:
        value = bytes_column(data, parsed.value)
    if Column.HEADERS in columns:
        headers = headers_column(data, parsed.header_count, parsed.header_key, parsed.header_value)
    return RecordColumns(
        batch_ordinal=ordinal,
        is_control=batches.is_control[ordinal],
        offset=offset,
        timestamp_ms=timestamp_ms,
        leader_epoch=leader_epoch,
        key=key,
        value=value,
        headers=headers,
    )


def _timestamps_ms(batches: BatchColumns, parsed: RecordFields) -> Int64s:
    """Return each record's timestamp: its own, or the batch's for LOG_APPEND_TIME."""
    ordinal = parsed.batch_ordinal
    created_ms = batches.base_timestamp_ms[ordinal] + parsed.timestamp_delta
    appended = batches.is_log_append_time
    if not appended.any():
        return created_ms
    return np.where(appended[ordinal], batches.max_timestamp_ms[ordinal], created_ms)


# --- Scan by the compiled core --------------------------------------------------------------------
# The core returns buffers of columns, and where the scan ends. Compressed batches are decompressed
# here, and this module determines the error of a corrupt batch.


def _scan_native(
    source: _Source,
    buffer: Buffer,
    columns: Column,
    start_offset: int | None,
    end_offset: int | None,
    value_prefixes: tuple[bytes, ...],
) -> Scan | None:
    """Scan in the compiled core; None if the core cannot handle the scan."""

    def expand(start: int, end: int, codec: int) -> bytes | None:
        limit = source.decompressed_bytes_max
        try:
            payload = source.view[start:end]
            return decompress(payload, Compression(codec), byte_count_max=limit)
        except CorruptBatchError:
            return None

    data = buffer if type(buffer) is bytes else bytes(buffer)
    limits = (
        SCAN_BYTES_MAX,
        SCAN_DECOMPRESSED_BYTES_MAX,
        HEADERS_PER_RECORD_MAX,
        HEADERS_PER_BATCH_MAX,
    )
    try:
        found = compiled.core.scan(
            data,
            columns.value,
            value_prefixes,
            start_offset,
            end_offset,
            source.file_position,
            limits,
            expand,
        )
    except OverflowError:  # a bound that does not fit into 64 bits
        return None
    if found is None:
        return None
    walked, numbers, strings, headers = found
    end_position = walked[1]
    stop, error = end_of_walk(
        source.view, end_position, NATIVE_STOPS[walked[0]], source.path, source.file_position
    )
    if stop is Stop.DAMAGED and error is None:
        error = _find_error(source, end_position)
        if error is None:
            return None
    return Scan(
        batches=native_batches(walked),
        records=_native_columns(columns, numbers, strings, headers),
        end_position=end_position,
        stop=stop,
        error=error,
    )


def _native_columns(
    columns: Column,
    numbers: compiled.core.Numbers,
    strings: tuple[compiled.core.Strings, compiled.core.Strings],
    headers: tuple[compiled.core.Block, compiled.core.Strings, compiled.core.Strings],
) -> RecordColumns:
    count, ordinal, is_control, offset, timestamp_ms, leader_epoch = numbers
    key, value = strings
    has = columns.value
    return RecordColumns(
        batch_ordinal=np.frombuffer(memoryview(ordinal), np.int32),
        is_control=np.frombuffer(memoryview(is_control), np.bool_),
        offset=_native_numbers(offset, count, pa.int64()) if has & _OFFSET else None,
        timestamp_ms=_native_numbers(timestamp_ms, count, pa.int64()) if has & _TIME else None,
        leader_epoch=_native_numbers(leader_epoch, count, pa.int32()) if has & _EPOCH else None,
        key=_native_strings(key, count) if has & _KEY else None,
        value=_native_strings(value, count) if has & _VALUE else None,
        headers=_native_headers(*headers, count) if has & _HEADERS else None,
    )


_OFFSET, _TIME, _EPOCH, _KEY, _VALUE, _HEADERS = (column.value for column in Column)
# Operators of a Flag take longer than decoding a column of a small scan.


def _native_numbers(block: compiled.core.Block, count: int, kind: pa.DataType) -> pa.Array:
    return pa.Array.from_buffers(kind, count, [None, pa.py_buffer(block)])


def _native_strings(column: compiled.core.Strings, count: int) -> pa.BinaryArray:
    if column is None:
        return pa.nulls(count, pa.binary())
    valid, offsets, data = column
    buffers = [
        None if valid is None else pa.py_buffer(valid),
        pa.py_buffer(offsets),
        pa.py_buffer(data),
    ]
    return pa.Array.from_buffers(pa.binary(), count, buffers)


def _native_headers(
    offsets: compiled.core.Block,
    keys: compiled.core.Strings,
    values: compiled.core.Strings,
    count: int,
) -> pa.ListArray:
    positions = np.frombuffer(memoryview(offsets), np.int32)
    header_count = int(positions[-1])
    return lists_column(
        positions, _native_strings(keys, header_count), _native_strings(values, header_count)
    )
