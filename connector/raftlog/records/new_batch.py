"""Encoding of record batches (Kafka: ``MemoryRecordsBuilder``). Equal input gives equal bytes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from crc32c import crc32c

from raftlog.errors import RecordBatchTooLargeError
from raftlog.limits import BATCH_BYTES_MAX, BATCH_HEADER_BYTES, LOG_OVERHEAD_BYTES

from .compression import Compression, compress
from .encoding import RecordsToEncode, encode_records
from .header import (
    BATCH_HEADER,
    BATCH_MAGIC,
    CONTROL_BIT,
    CRC_START,
    DELETE_HORIZON_BIT,
    INT32_MAX,
    TIMESTAMP_TYPE_BIT,
    TRANSACTIONAL_BIT,
    TimestampType,
)
from .record import NewRecord, StoredRecord, record_bytes, wrapped_int64


@dataclass(frozen=True, slots=True, kw_only=True)
class NewRecordBatch:
    """Batch to be written, without base offset and leader epoch, which ``encode_batch`` adds.

    ``base_timestamp_ms`` is the base of the records' timestamp deltas (in KRaft the append time, of
    all records). ``max_timestamp_ms`` None means the largest timestamp of the records, or the base
    if there are none; with LOG_APPEND_TIME it is the timestamp of all records.
    ``last_offset_delta`` None means the delta of the last record. A delete horizon replaces the
    base timestamp in the header (KIP-534).
    """

    records: tuple[NewRecord, ...]
    base_timestamp_ms: int
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
    payload, count, last_delta = _encode(batch, base_ms)
    max_ms = batch.max_timestamp_ms
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
        record_count=count,
    )


def finish_batch(
    payload: bytes,
    *,
    base_offset: int,
    leader_epoch: int,
    byte_count_max: int,
    compression: Compression,
    flags: int,
    last_offset_delta: int,
    base_timestamp_ms: int,
    max_timestamp_ms: int,
    producer: tuple[int, int, int],
    record_count: int,
) -> bytes:
    """Prepend the header, with length and CRC, to encoded and compressed records.

    ``flags`` are the attributes without the compression bits; ``producer`` is producer id, producer
    epoch and base sequence. Raises ``RecordBatchTooLargeError``.
    """
    if last_offset_delta > INT32_MAX:
        raise RecordBatchTooLargeError(byte_count=last_offset_delta, byte_count_max=INT32_MAX)
    byte_count = BATCH_HEADER_BYTES + len(payload)
    if byte_count > byte_count_max:
        raise RecordBatchTooLargeError(byte_count=byte_count, byte_count_max=byte_count_max)
    header = BATCH_HEADER.pack(
        base_offset,
        byte_count - LOG_OVERHEAD_BYTES,
        leader_epoch,
        BATCH_MAGIC,
        0,
        compression | flags,
        last_offset_delta,
        base_timestamp_ms,
        max_timestamp_ms,
        *producer,
        record_count,
    )
    crc = crc32c(payload, crc32c(header[CRC_START:]))
    return b"".join((header[: CRC_START - 4], crc.to_bytes(4, "big"), header[CRC_START:], payload))


def _encode(batch: NewRecordBatch, base_ms: int) -> tuple[bytes, int, int]:
    """Return the encoded records, their number, and the last offset delta."""
    records = batch.records
    if all(record.offset_delta is None for record in records):
        payload = encode_records(records, 0, base_ms)
        last_delta = max(0, len(records) - 1)
    else:
        stored = list(_stored_records(records, base_ms))
        payload = b"".join(map(record_bytes, stored))
        last_delta = stored[-1].offset_delta
    if batch.last_offset_delta is not None:
        last_delta = batch.last_offset_delta
    return payload, len(records), last_delta


def _stored_records(records: tuple[NewRecord, ...], base_ms: int) -> Iterator[StoredRecord]:
    next_delta = 0
    for record in records:
        delta = next_delta if record.offset_delta is None else record.offset_delta
        assert delta >= next_delta, "offsets of a batch ascend"
        time_delta = (
            0 if record.timestamp_ms is None else wrapped_int64(record.timestamp_ms - base_ms)
        )
        yield StoredRecord(time_delta, delta, record.key, record.value, record.headers)
        next_delta = delta + 1


def _flags(batch: NewRecordBatch) -> int:
    return (
        (TIMESTAMP_TYPE_BIT if batch.timestamp_type else 0)
        | (TRANSACTIONAL_BIT if batch.is_transactional else 0)
        | (CONTROL_BIT if batch.is_control else 0)
        | (0 if batch.delete_horizon_ms is None else DELETE_HORIZON_BIT)
    )
