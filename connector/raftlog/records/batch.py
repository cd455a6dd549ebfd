"""Reading of record batches (magic 2), one at a time. Writing is in ``new_batch``.

A ``RecordBatch`` exists only if its CRC matched, so its records are never read unverified. Bytes
that end inside a batch, or that are zeros up to the end (a preallocated file), are a ``TornTail``,
not an error. Other bytes raise ``CorruptBatchError`` or ``UnsupportedMagicError``, with path,
position and offset.

Batches of any Kafka topic are accepted: KRaft's restrictions (no keys, no headers, one timestamp
per batch) are not checked here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from crc32c import crc32c

from raftlog.errors import CorruptBatchError, HeaderLimitError
from raftlog.limits import (
    BATCH_HEADER_BYTES,
    DECOMPRESSED_BYTES_MAX,
    HEADERS_PER_BATCH_MAX,
    LOG_OVERHEAD_BYTES,
)

from .compression import Compression, decompress
from .header import (
    BATCH_HEADER,
    BATCH_LENGTH,
    COMPRESSION_BITS,
    CONTROL_BIT,
    CRC_START,
    DELETE_HORIZON_BIT,
    LENGTH_POSITION,
    RECORD_BYTES_MIN,
    TIMESTAMP_TYPE_BIT,
    TRANSACTIONAL_BIT,
    TimestampType,
    header_damage,
    length_error,
)
from .new_batch import NewRecordBatch, encode_batch
from .record import Header, NewRecord, Record, StoredRecord, read_record, wrapped_int64
from .varint import Buffer

__all__ = [
    "BATCH_HEADER",
    "Compression",
    "Header",
    "NewRecord",
    "NewRecordBatch",
    "Record",
    "RecordBatch",
    "TimestampType",
    "TornTail",
    "encode_batch",
    "iter_batches",
    "read_batch",
]


@dataclass(frozen=True, slots=True)
class TornTail:
    """End of the data at ``position``, with ``byte_count`` bytes of an incomplete batch or zeros.

    0 bytes are a clean end.
    """

    position: int
    byte_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordBatch:
    """Batch with a verified CRC, its records still encoded in ``payload``.

    ``position`` is the position of its first byte in the file. ``last_offset`` is inclusive.
    ``delete_horizon_ms`` is set if the base timestamp field holds a delete horizon (KIP-534).
    """

    base_offset: int
    last_offset: int
    leader_epoch: int
    compression: Compression
    timestamp_type: TimestampType
    is_transactional: bool
    is_control: bool
    delete_horizon_ms: int | None
    base_timestamp_ms: int
    max_timestamp_ms: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int
    crc: int
    byte_count: int
    position: int
    path: str | None = None
    payload: bytes = field(repr=False)

    @property
    def next_offset(self) -> int:
        """The offset after the batch."""
        return self.last_offset + 1

    def records(self, *, decompressed_bytes_max: int = DECOMPRESSED_BYTES_MAX) -> Iterator[Record]:
        """Yield the records in order.

        Raises:
            CorruptBatchError: a record is corrupt, or bytes are left after the last one.
            DecompressionLimitError: the records exceed ``decompressed_bytes_max``.
            HeaderLimitError: a record or the batch has too many headers.
        """
        appended_ms = None
        if self.timestamp_type is TimestampType.LOG_APPEND_TIME:
            appended_ms = self.max_timestamp_ms
        for stored in self._stored(decompressed_bytes_max):
            created_ms = wrapped_int64(self.base_timestamp_ms + stored.timestamp_delta)
            yield Record(
                self.base_offset + stored.offset_delta,
                created_ms if appended_ms is None else appended_ms,
                stored.key,
                stored.value,
                stored.headers,
            )

    def _stored(self, decompressed_bytes_max: int) -> Iterator[StoredRecord]:
        try:
            data = decompress(self.payload, self.compression, byte_count_max=decompressed_bytes_max)
        except CorruptBatchError as error:
            raise self._locate_error(error) from None
        if self.record_count * RECORD_BYTES_MIN > len(data):
            raise self._corrupt(
                f"record count {self.record_count} does not fit into {len(data)} bytes of records"
            )
        position = 0
        previous_delta = -1
        last_delta = self.last_offset - self.base_offset
        header_count = 0
        for ordinal in range(self.record_count):
            try:
                stored, position = read_record(data, position)
                header_count += len(stored.headers)
                _check_header_count(header_count)
            except CorruptBatchError as error:
                error.reason = f"record {ordinal + 1} of {self.record_count}: {error.reason}"
                raise self._locate_error(error) from None
            if not previous_delta < stored.offset_delta <= last_delta:
                raise self._corrupt(
                    f"record {ordinal + 1} of {self.record_count} has offset delta "
                    f"{stored.offset_delta}, expected one from {previous_delta + 1} to {last_delta}"
                )
            previous_delta = stored.offset_delta
            yield stored
        if position != len(data):
            raise self._corrupt(
                f"{len(data) - position} bytes are left after its {self.record_count} records"
            )

    def _corrupt(self, reason: str) -> CorruptBatchError:
        return CorruptBatchError(
            reason=reason, path=self.path, position=self.position, offset=self.base_offset
        )

    def _locate_error(self, error: CorruptBatchError) -> CorruptBatchError:
        return replace(error, path=self.path, position=self.position, offset=self.base_offset)


def _check_header_count(header_count: int) -> None:
    if header_count > HEADERS_PER_BATCH_MAX:
        raise HeaderLimitError(
            reason=f"the batch has more than {HEADERS_PER_BATCH_MAX} headers",
            header_count_max=HEADERS_PER_BATCH_MAX,
        )


def read_batch(
    buffer: Buffer, position: int = 0, *, path: str | None = None, file_position: int = 0
) -> RecordBatch | TornTail:
    """Read the batch that starts at ``position`` of ``buffer`` and check its CRC.

    ``file_position`` is the position of ``buffer`` in the file ``path``; positions in the result
    and in errors are positions in the file.

    Raises:
        CorruptBatchError: the bytes are not a valid batch.
        UnsupportedMagicError: the batch has magic 0 or 1.
    """
    at = position + file_position
    left = len(buffer) - position
    byte_count = _batch_byte_count(buffer, position, path, file_position)
    if byte_count is None or byte_count > left:
        return TornTail(at, left)
    view = memoryview(buffer)[position : position + byte_count]
    header = BATCH_HEADER.unpack_from(view)
    base_offset, _, leader_epoch, _, crc, attributes, last_offset_delta, base_timestamp_ms = header[
        :8
    ]
    max_timestamp_ms, producer_id, producer_epoch, base_sequence, record_count = header[8:]
    actual = crc32c(view[CRC_START:])
    reason = None
    if actual != crc:
        reason = f"CRC mismatch (stored crc = {crc}, computed crc = {actual})"
    else:
        reason = header_damage(base_offset, attributes, last_offset_delta, record_count)
    if reason is not None:
        raise CorruptBatchError(reason=reason, path=path, position=at, offset=base_offset)
    has_horizon = bool(attributes & DELETE_HORIZON_BIT)
    return RecordBatch(
        base_offset=base_offset,
        last_offset=base_offset + last_offset_delta,
        leader_epoch=leader_epoch,
        compression=Compression(attributes & COMPRESSION_BITS),
        timestamp_type=TimestampType(bool(attributes & TIMESTAMP_TYPE_BIT)),
        is_transactional=bool(attributes & TRANSACTIONAL_BIT),
        is_control=bool(attributes & CONTROL_BIT),
        delete_horizon_ms=base_timestamp_ms if has_horizon else None,
        base_timestamp_ms=base_timestamp_ms,
        max_timestamp_ms=max_timestamp_ms,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        record_count=record_count,
        crc=crc,
        byte_count=byte_count,
        position=at,
        path=path,
        payload=bytes(view[BATCH_HEADER_BYTES:]),
    )


def iter_batches(
    buffer: Buffer, position: int = 0, *, path: str | None = None, file_position: int = 0
) -> Iterator[RecordBatch]:
    """Yield the batches from ``position`` up to the end of the data or a torn tail.

    ``read_batch`` at the last batch's end (``position + byte_count``) returns the ``TornTail``.
    Raises ``CorruptBatchError`` after the last valid batch.
    """
    while True:
        batch = read_batch(buffer, position, path=path, file_position=file_position)
        if isinstance(batch, TornTail):
            return
        yield batch
        position += batch.byte_count


def _batch_byte_count(
    buffer: Buffer, position: int, path: str | None, file_position: int
) -> int | None:
    """Return the size of the batch, or None if its length field is incomplete or all is zero."""
    error = length_error(buffer, position, path, file_position)
    if error is not None:
        raise error
    if len(buffer) - position < LOG_OVERHEAD_BYTES:
        return None
    (length,) = BATCH_LENGTH.unpack_from(buffer, position + LENGTH_POSITION)
    return length + LOG_OVERHEAD_BYTES if length else None
