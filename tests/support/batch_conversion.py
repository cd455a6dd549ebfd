"""Conversion of a batch that was read to one to be written."""

from __future__ import annotations

from raftlog.limits import DECOMPRESSED_BYTES_MAX
from raftlog.records import NewRecord, NewRecordBatch, RecordBatch
from raftlog.records.record import wrapped_int64


def to_new_batch(batch: RecordBatch) -> NewRecordBatch:
    """Return the same batch to be written: ``encode_batch`` returns equal bytes.

    If it is compressed, the records are equal, the bytes may differ.
    """
    records = tuple(
        NewRecord(
            stored.key,
            stored.value,
            wrapped_int64(batch.base_timestamp_ms + stored.timestamp_delta),
            stored.headers,
            stored.offset_delta,
        )
        for stored in batch._stored(DECOMPRESSED_BYTES_MAX)
    )
    return NewRecordBatch(
        records=records,
        base_timestamp_ms=batch.base_timestamp_ms,
        max_timestamp_ms=batch.max_timestamp_ms,
        last_offset_delta=batch.last_offset - batch.base_offset,
        compression=batch.compression,
        timestamp_type=batch.timestamp_type,
        is_transactional=batch.is_transactional,
        is_control=batch.is_control,
        delete_horizon_ms=batch.delete_horizon_ms,
        producer_id=batch.producer_id,
        producer_epoch=batch.producer_epoch,
        base_sequence=batch.base_sequence,
    )
