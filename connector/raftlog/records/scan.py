"""Scan of a buffer of record batches to columns, without a Python object per record.

Steps, each on all batches of the buffer:

    index_batches       lengths and magic     positions and headers of the batches
    first_bad_crc       CRCs
    damaged_headers     other header fields
    _batch_runs         decompression         bytes of all records
    parse_records       records               positions of keys, values and headers
    _record_columns                           Arrow columns

A corrupt batch ends the scan; the batches before it are returned, together with the error. The
result is the same as that of ``batch.read_batch`` for each batch, errors included.

Memory is bounded by the buffer, by ``SCAN_DECOMPRESSED_BYTES_MAX`` plus one batch, and by
``HEADERS_PER_BATCH_MAX``. At these limits the scan ends with ``Stop.FULL``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from raftlog.errors import CorruptBatchError
from raftlog.limits import (
    BATCH_HEADER_BYTES,
    DECOMPRESSED_BYTES_MAX,
    SCAN_BYTES_MAX,
    SCAN_DECOMPRESSED_BYTES_MAX,
)

from .batch import RecordBatch, read_batch
from .batch_columns import (
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
    damaged_headers,
    index_batches,
)
from .compression import Compression, decompress_onto
from .crc import first_bad_crc
from .header import COMPRESSION_BITS
from .record_columns import (
    BatchRuns,
    DamagedBatch,
    HeadersFull,
    RecordFields,
    RecordRuns,
    bytes_column,
    headers_column,
    number_column,
    parse_records,
)
from .varint import Buffer

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
) -> Scan:
    """Verify and decode the batches of ``buffer``.

    Records in [``start_offset``, ``end_offset``) are returned. Leading batches below
    ``start_offset`` are skipped without verification; the first batch whose base offset is >=
    ``end_offset`` ends the scan. ``file_position`` is the position of the buffer in the file
    ``path``.

    Corrupt bytes raise nothing: see ``Scan.stop`` and ``Scan.error``.
    """
    source = _Source(memoryview(buffer), path, file_position, decompressed_bytes_max)
    spans = clip(index_batches(source.view, path, file_position), start_offset, end_offset)
    spans = _up_to_limit(spans)
    bad_crc = first_bad_crc(source.view, spans)
    headers = spans.headers if bad_crc is None else spans.headers[:bad_crc]
    damaged = np.flatnonzero(damaged_headers(headers))
    bad = int(damaged[0]) if len(damaged) else bad_crc
    if bad is not None:
        spans = spans.cut(bad, Stop.DAMAGED, _error_at(source, spans, bad))
    spans, batch_runs = _batch_runs(source, spans)
    parsed = parse_records(batch_runs)
    if isinstance(parsed, HeadersFull):
        spans = spans.cut(parsed.ordinal, Stop.FULL)
        batch_runs = batch_runs.first(parsed.ordinal)
        parsed = parse_records(batch_runs)
    if isinstance(parsed, DamagedBatch):
        error = _error_at(source, spans, parsed.ordinal)
        spans = spans.cut(parsed.ordinal, Stop.DAMAGED, error)
        parsed = parse_records(batch_runs.first(parsed.ordinal))
    assert isinstance(parsed, RecordFields), "batches before the first corrupt one are valid"
    batches = batch_columns(spans, file_position)
    mask = _row_mask(batches, parsed, start_offset, end_offset)
    if mask is not None:
        parsed = parsed.filter(mask)
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


def _error_at(source: _Source, spans: BatchSpans, ordinal: int) -> CorruptBatchError:
    """Return the error that ``read_batch`` raises for a corrupt batch."""
    position = int(spans.position[ordinal])
    try:
        batch = read_batch(
            source.view, position, path=source.path, file_position=source.file_position
        )
        assert isinstance(batch, RecordBatch), "index_batches checked its length"
        for _ in batch.records(decompressed_bytes_max=source.decompressed_bytes_max):
            pass
    except CorruptBatchError as error:
        return error
    raise AssertionError("read_batch and scan must reject the same batches")


def _batch_runs(source: _Source, spans: BatchSpans) -> tuple[BatchSpans, BatchRuns]:
    """Return the decompressed records, of fewer batches if one is corrupt or a limit is reached."""
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
    """Return the batches that were decompressed, their records, and the end of each one's records.

    Stops after the batch that exceeds ``SCAN_DECOMPRESSED_BYTES_MAX`` in total.
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
            error = _error_at(source, spans, ordinal)
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
