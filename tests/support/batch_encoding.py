"""Encoding of batches of every kind that Kafka has, also of those that raftlog does not write.

``raftlog.records.BatchBuilder`` writes batches without gaps, with create time and without a delete
horizon. Equal input, equal bytes (Kafka: ``MemoryRecordsBuilder``).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from raftlog.limits import BATCH_BYTES_MAX
from raftlog.records.batch import RecordBatch
from raftlog.records.builder import finish_batch
from raftlog.records.compression import Compression, compress
from raftlog.records.encoding import RecordsToEncode, encode_records
from raftlog.records.header import (
    CONTROL_BIT,
    DELETE_HORIZON_BIT,
    TIMESTAMP_TYPE_BIT,
    TRANSACTIONAL_BIT,
    TimestampType,
)
from raftlog.records.record import NewRecord, StoredRecord, record_bytes, wrapped_int64


@dataclass(frozen=True, slots=True, kw_only=True)
class NewRecordBatch:
    """Batch to be written, without base offset and leader epoch, which ``encode_batch`` adds.

    ``base_timestamp_ms`` is the base of the records' timestamp deltas (in KRaft the append time, of
    all records). ``max_timestamp_ms`` None means the largest timestamp of the records, or the base
    if there are none; with LOG_APPEND_TIME it is the timestamp of all records. ``offset_deltas``
    None means no gaps, as in a log that is not compacted. ``last_offset_delta`` None means the
    delta of the last record. A delete horizon replaces the base timestamp in the header (KIP-534).
    """

    records: tuple[NewRecord, ...]
    base_timestamp_ms: int
    offset_deltas: tuple[int, ...] | None = None
    max_timestamp_ms: int | None = None
    last_offset_delta: int | None = None
    compression: Compression = Compression.NONE
    timestamp_type: TimestampType = TimestampType.CREATE_TIME
    is_transactional: bool = False
    is_control: bool = False
    delete_horizon_ms: int | None = None
    producer_id: int = -1
    producer_epoch: int = -1
    base_sequence: int = -1


def encode_batch(
    batch: NewRecordBatch,
    *,
    base_offset: int,
    leader_epoch: int,
    byte_count_max: int = BATCH_BYTES_MAX,
) -> bytes:
    """Encode ``batch`` with the given base offset and leader epoch.

    Raises ``RecordBatchTooLargeError`` if it exceeds ``byte_count_max`` bytes, header included
    (Kafka: ``MAX_BATCH_SIZE_BYTES``), or if an offset delta exceeds 32 bits.
    """
    base_ms = batch.base_timestamp_ms
    if batch.delete_horizon_ms is not None:
        base_ms = batch.delete_horizon_ms
    deltas = batch.offset_deltas
    if deltas is None:
        payload = encode_records(batch.records, 0, base_ms)
    else:
        payload = b"".join(map(record_bytes, _stored_records(batch.records, deltas, base_ms)))
    last_delta, max_ms = batch.last_offset_delta, batch.max_timestamp_ms
    if last_delta is None:
        last_delta = deltas[-1] if deltas else max(0, len(batch.records) - 1)
    if max_ms is None:
        max_ms = RecordsToEncode(batch.records).max_timestamp_ms(batch.base_timestamp_ms)
    return finish_batch(
        compress(payload, batch.compression),
        base_offset=base_offset,
        leader_epoch=leader_epoch,
        byte_count_max=byte_count_max,
        compression=batch.compression,
        flags=_flags(batch),
        last_offset_delta=last_delta,
        base_timestamp_ms=base_ms,
        max_timestamp_ms=max_ms,
        producer=(batch.producer_id, batch.producer_epoch, batch.base_sequence),
        record_count=len(batch.records),
    )


def to_new_batch(batch: RecordBatch) -> NewRecordBatch:
    """Return the same batch to be written: ``encode_batch`` returns equal bytes.

    If it is compressed, the records are equal, the bytes may differ.
    """
    found = list(batch.stored_records())
    records = tuple(
        NewRecord(
            stored.key,
            stored.value,
            wrapped_int64(batch.base_timestamp_ms + stored.timestamp_delta),
            stored.headers,
        )
        for stored in found
    )
    return NewRecordBatch(
        records=records,
        offset_deltas=tuple(stored.offset_delta for stored in found),
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


def _stored_records(
    records: tuple[NewRecord, ...], deltas: tuple[int, ...], base_ms: int
) -> Iterator[StoredRecord]:
    for record, delta in zip(records, deltas, strict=True):
        time_ms = record.timestamp_ms
        time_delta = 0 if time_ms is None else wrapped_int64(time_ms - base_ms)
        yield StoredRecord(time_delta, delta, record.key, record.value, record.headers)


def _flags(batch: NewRecordBatch) -> int:
    return (
        (TIMESTAMP_TYPE_BIT if batch.timestamp_type else 0)
        | (TRANSACTIONAL_BIT if batch.is_transactional else 0)
        | (CONTROL_BIT if batch.is_control else 0)
        | (0 if batch.delete_horizon_ms is None else DELETE_HORIZON_BIT)
    )
