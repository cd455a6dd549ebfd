"""Builder of one record batch (Kafka: ``BatchBuilder``).

Encoding and adding are two steps, and only ``add`` changes the builder, so that an append can be
rejected in between. Records without a timestamp get the base timestamp of the batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from raftlog.errors import AppendError, InvalidAppendError, RecordBatchTooLargeError
from raftlog.limits import (
    BATCH_BYTES_MAX,
    BATCH_HEADER_BYTES,
    HEADERS_PER_BATCH_MAX,
    RAW_BATCH_BYTES_MAX,
    READ_BATCH_BYTES_MAX,
)

from .compression import Compression, compress
from .encoding import RecordsToEncode, RecordToAppend, record_byte_counts
from .header import CONTROL_BIT, TRANSACTIONAL_BIT
from .new_batch import finish_batch

_SIZED_AT_ONCE: Final = 1024
"""Records per step when the records that fit into a batch are counted."""


@dataclass(frozen=True, slots=True)
class ProducerStamp:
    """Producer id, producer epoch and base sequence of a batch; -1 each for no producer."""

    producer_id: int
    producer_epoch: int
    base_sequence: int
    is_transactional: bool = False


class EncodedRecords(NamedTuple):
    """Records encoded for one position in one batch."""

    data: bytes
    record_count: int
    max_timestamp_ms: int
    header_count: int = 0
    compressed: bytes | None = None
    """``data`` compressed with the builder's codec, if it is already known."""


NO_PRODUCER: Final = ProducerStamp(-1, -1, -1)


class BatchBuilder:
    """Batch that is being filled; its base offset and leader epoch are arguments of ``build``.

    ``byte_count_max`` limits the built batch, header included. ``raw_byte_count_max`` limits it
    before compression, below every reader's decompression limit. Records that do not shrink under
    the codec are stored uncompressed.
    """

    def __init__(
        self,
        *,
        base_timestamp_ms: int,
        byte_count_max: int = BATCH_BYTES_MAX,
        raw_byte_count_max: int = RAW_BATCH_BYTES_MAX,
        compression: Compression = Compression.NONE,
        producer: ProducerStamp = NO_PRODUCER,
        is_control: bool = False,
    ) -> None:
        # A batch has fewer records than bytes, so 32-bit offset deltas suffice.
        assert BATCH_HEADER_BYTES < byte_count_max <= READ_BATCH_BYTES_MAX
        self.base_timestamp_ms: Final = base_timestamp_ms
        self.byte_count_max: Final = byte_count_max
        self.raw_byte_count_max: Final = max(raw_byte_count_max, byte_count_max)
        self.compression: Final = compression
        self.producer: Final = producer
        self.is_control: Final = is_control
        self._parts: list[bytes] = []
        self._compressed: bytes | None = None
        self._byte_count = BATCH_HEADER_BYTES
        self._record_count = 0
        self._header_count = 0
        self._max_timestamp_ms = base_timestamp_ms

    @property
    def record_count(self) -> int:
        return self._record_count

    @property
    def byte_count(self) -> int:
        """Current size of the batch before compression, header included."""
        return self._byte_count

    @property
    def remaining_byte_count(self) -> int:
        """Bytes left for further records, before compression."""
        return self.byte_count_max - self._byte_count

    @property
    def _header_room(self) -> int:
        return HEADERS_PER_BATCH_MAX - self._header_count

    @property
    def max_timestamp_ms(self) -> int:
        return self._max_timestamp_ms

    def too_large(self, records: Sequence[RecordToAppend]) -> AppendError:
        """Return the error for records that do not fit: it names the size of a batch of these
        records alone, and the limit that it exceeds."""
        header_count = RecordsToEncode(records).header_count()
        if header_count > HEADERS_PER_BATCH_MAX:
            reason = f"{header_count} headers exceed the {HEADERS_PER_BATCH_MAX} of a batch"
            return InvalidAppendError(reason=reason)
        return self._size_error(records)

    def _size_error(self, records: Sequence[RecordToAppend]) -> RecordBatchTooLargeError:
        counts = record_byte_counts(records, self._record_count, self.base_timestamp_ms)
        byte_count = BATCH_HEADER_BYTES + sum(counts)
        limit = self.byte_count_max
        if self.compression is not Compression.NONE and byte_count > self.raw_byte_count_max:
            limit = self.raw_byte_count_max
        return RecordBatchTooLargeError(byte_count=byte_count, byte_count_max=limit)

    def encode(self, records: Sequence[RecordToAppend]) -> EncodedRecords | None:
        """Return the records encoded for the end of this batch, or None if they do not fit.

        The first records of a compressed batch fit if their compressed size fits. For later ones
        the uncompressed size counts, since the compressed size is known only at the end.
        """
        is_packed = self.compression is not Compression.NONE and not self._record_count
        room = self.remaining_byte_count
        raw_room = self.raw_byte_count_max - self._byte_count if is_packed else room
        to_encode = RecordsToEncode(records)
        header_count = to_encode.header_count()
        if to_encode.min_byte_count() > raw_room or header_count > self._header_room:
            return None
        data = to_encode.encode(self._record_count, self.base_timestamp_ms)
        if len(data) > raw_room:
            return None
        compressed = to_encode.compressed(data, self.compression) if is_packed else None
        if len(data) > room:
            compressed = compressed or compress(data, self.compression)
            if len(compressed) > room:
                return None
        latest_ms = to_encode.max_timestamp_ms(self.base_timestamp_ms)
        return EncodedRecords(data, len(records), latest_ms, header_count, compressed)

    def fitting_record_count(self, records: Sequence[RecordToAppend], start: int) -> int:
        """Return how many records of ``records[start:]`` fit uncompressed, in order."""
        room, header_room = self.remaining_byte_count, self._header_room
        at = start
        while at < len(records):
            part = records[at : at + _SIZED_AT_ONCE]
            delta = self._record_count + at - start
            counts = record_byte_counts(part, delta, self.base_timestamp_ms)
            for record, count in zip(part, counts, strict=True):
                room -= count
                header_room -= 0 if isinstance(record, bytes) else len(record.headers)
                if room < 0 or header_room < 0:
                    return at - start
                at += 1
        return at - start

    def add(self, encoded: EncodedRecords) -> None:
        """Add records that ``encode`` returned for the builder's current state."""
        latest_ms = encoded.max_timestamp_ms
        if self._parts:
            latest_ms = max(latest_ms, self._max_timestamp_ms)
        self._max_timestamp_ms = latest_ms
        self._compressed = None if self._parts else encoded.compressed
        self._parts.append(encoded.data)
        self._byte_count += len(encoded.data)
        self._record_count += encoded.record_count
        self._header_count += encoded.header_count

    def append(self, records: Sequence[RecordToAppend]) -> None:
        """Add all records or none.

        Raises ``RecordBatchTooLargeError``, or ``InvalidAppendError`` for too many headers.
        """
        encoded = self.encode(records)
        if encoded is None:
            raise self.too_large(records)
        self.add(encoded)

    def build(self, base_offset: int, leader_epoch: int) -> bytes:
        """Return the bytes of the batch. It must have at least one record."""
        assert self._record_count, "a batch has records"
        payload = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        codec = self.compression
        packed = self._compressed
        if packed is None:
            packed = compress(payload, codec)
        if len(packed) >= len(payload):
            codec, packed = Compression.NONE, payload
        producer = self.producer
        return finish_batch(
            packed,
            base_offset=base_offset,
            leader_epoch=leader_epoch,
            byte_count_max=self.byte_count_max,
            compression=codec,
            flags=(CONTROL_BIT if self.is_control else 0)
            | (TRANSACTIONAL_BIT if producer.is_transactional else 0),
            last_offset_delta=self._record_count - 1,
            base_timestamp_ms=self.base_timestamp_ms,
            max_timestamp_ms=self._max_timestamp_ms,
            producer=(producer.producer_id, producer.producer_epoch, producer.base_sequence),
            record_count=self._record_count,
        )
