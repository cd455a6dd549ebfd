"""Check of the records of one batch as its producer encoded them, without a decoded record.

The compiled core checks CRC and records in one pass. In Python a few records are read one by one,
many in columns. Both accept and refuse the same bytes, and return the same.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from raftlog import compiled
from raftlog.errors import CorruptBatchError
from raftlog.limits import (
    HEADERS_PER_BATCH_MAX,
    HEADERS_PER_RECORD_MAX,
    SCAN_BYTES_MAX,
    SCAN_DECOMPRESSED_BYTES_MAX,
)

from .batch import TornTail, contains_any, read_batch
from .compression import Compression, decompress

_COLUMNS_FROM: Final = 64
"""Number of records from which columns are faster than records one by one."""
_TIMESTAMP: Final = 2
"""Value of ``Column.TIMESTAMP``, whose module imports numpy."""
_LIMITS: Final = (
    SCAN_BYTES_MAX,
    SCAN_DECOMPRESSED_BYTES_MAX,
    HEADERS_PER_RECORD_MAX,
    HEADERS_PER_BATCH_MAX,
)


class RecordSummary(NamedTuple):
    """Smallest and largest timestamp of a batch's records, and whether they contain a text."""

    earliest_ms: int
    latest_ms: int
    has_text: bool


def summarize_records(
    data: bytes, text: bytes, *, decompressed_bytes_max: int
) -> RecordSummary | None:
    """Check the CRC and all records of ``data``, one batch with records and a base offset >= 0.

    None if anything is invalid or exceeds a limit: ``read_batch`` and ``RecordBatch.records`` raise
    the error. ``has_text``: whether the decompressed records contain ``text``, anywhere.
    """
    if compiled.is_native:
        return _summarize_native(data, text, decompressed_bytes_max)
    try:
        batch = read_batch(data)
        if isinstance(batch, TornTail) or batch.byte_count != len(data):
            return None
        if batch.record_count < _COLUMNS_FROM:
            records = batch.records(decompressed_bytes_max=decompressed_bytes_max)
            times_ms = [record.timestamp_ms for record in records]
        else:
            from .scan import Column, scan  # imports numpy and pyarrow

            found = scan(
                data,
                columns=Column.TIMESTAMP,
                decompressed_bytes_max=decompressed_bytes_max,
            )
            if found.error is not None or found.records.timestamp_ms is None:
                return None
            times_ms = found.records.timestamp_ms.to_pylist()
        if len(times_ms) != batch.record_count or not times_ms:
            return None
        return RecordSummary(min(times_ms), max(times_ms), contains_any(batch, (text,)))
    except CorruptBatchError:
        return None


def _summarize_native(
    data: bytes, text: bytes, decompressed_bytes_max: int
) -> RecordSummary | None:
    plain = data

    def expand(start: int, end: int, codec: int) -> bytes | None:
        nonlocal plain
        try:
            payload = memoryview(data)[start:end]
            plain = decompress(payload, Compression(codec), byte_count_max=decompressed_bytes_max)
        except CorruptBatchError:
            return None
        return plain

    found = compiled.core.scan(data, _TIMESTAMP, None, None, 0, _LIMITS, expand)
    if found is None:
        return None
    (_, end_position, batch_count, _), (record_count, _, _, _, times, _), _, _ = found
    if end_position != len(data) or batch_count != 1 or not record_count:
        return None
    times_ms = memoryview(times).cast("q")
    return RecordSummary(min(times_ms), max(times_ms), text in plain)
