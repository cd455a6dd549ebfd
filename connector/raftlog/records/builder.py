"""Builder of record batches (Kafka: ``BatchBuilder``), and batches of the appends of an epoch.

In the builder, encoding and adding are two steps, and only ``add`` changes it, so that an append
can be rejected in between. Records without a timestamp get the base timestamp of the batch. Equal
input produces equal bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from crc32c import crc32c

from raftlog import compiled
from raftlog.errors import (
    AppendError,
    FutureEpochError,
    InvalidAppendError,
    InvalidTimestampError,
    NotLeaderError,
    RecordBatchTooLargeError,
    UnexpectedEndOffsetError,
)
from raftlog.fast_dataclass import fast_init
from raftlog.limits import (
    BATCH_BYTES_MAX,
    BATCH_HEADER_BYTES,
    HEADERS_PER_BATCH_MAX,
    INT32_MAX,
    LOG_OVERHEAD_BYTES,
    RAW_BATCH_BYTES_MAX,
    READ_BATCH_BYTES_MAX,
    TIMESTAMP_AFTER_MS_MAX,
)

from .compression import Compression, compress
from .encoding import (
    NATIVE_TYPES,
    PackedRecords,
    RecordsToEncode,
    RecordToAppend,
    SealedBatch,
    record_byte_counts,
)
from .header import BATCH_HEADER, BATCH_MAGIC, CONTROL_BIT, CRC_START, TRANSACTIONAL_BIT


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

    ``flags`` are the attributes without the compression bits. ``producer`` is producer id, producer
    epoch and base sequence. Raises ``RecordBatchTooLargeError``.
    """
    if last_offset_delta > INT32_MAX:
        raise RecordBatchTooLargeError(byte_count=last_offset_delta, byte_count_max=INT32_MAX)
    byte_count = BATCH_HEADER_BYTES + len(payload)
    if byte_count > byte_count_max:
        raise RecordBatchTooLargeError(byte_count=byte_count, byte_count_max=byte_count_max)
    if compiled.is_native and type(payload) is bytes:
        try:
            sealed = compiled.core.seal_batch(
                payload,
                base_offset,
                leader_epoch,
                compression | flags,
                last_offset_delta,
                base_timestamp_ms,
                max_timestamp_ms,
                *producer,
                record_count,
            )
        except OverflowError:  # a number that does not fit into its field; struct names the field
            sealed = None
        if sealed is not None:
            return sealed
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


# --- Builder --------------------------------------------------------------------------------------

_SIZED_AT_ONCE: Final = 1024
"""Records per step when counting the records that fit into a batch."""


@fast_init
@dataclass(frozen=True, slots=True)
class ProducerStamp:
    """Producer id, producer epoch and base sequence of a batch; each is -1 without a producer."""

    producer_id: int
    producer_epoch: int
    base_sequence: int
    is_transactional: bool = False


SEQUENCES: Final = 2**31
"""Number of sequences: they run from 0 to 2^31 - 1 and wrap to 0."""


def incremented(sequence: int, count: int) -> int:
    """Add ``count`` to a sequence (Kafka: ``DefaultRecordBatch.incrementSequence``)."""
    return (sequence + count) % SEQUENCES


def decremented(sequence: int, count: int) -> int:
    """Subtract ``count`` from a sequence."""
    return (sequence - count) % SEQUENCES


class EncodedPart(NamedTuple):
    """Records encoded for one position in a builder's batch."""

    builder: BatchBuilder
    data: bytes
    record_count: int
    max_timestamp_ms: int
    header_count: int
    compressed: bytes | None
    """``data`` compressed with the builder's codec, if that is already known."""


NO_PRODUCER: Final = ProducerStamp(-1, -1, -1)


class EncodedBatch(NamedTuple):
    """Bytes of a batch that this process has built, and the fields of its header.

    The log appends them without parsing the bytes again. It is a tuple because one is built for
    each append of a few records.
    """

    data: bytes
    base_offset: int
    leader_epoch: int
    max_timestamp_ms: int
    record_count: int
    producer: ProducerStamp
    is_control: bool

    def __repr__(self) -> str:
        return (
            f"EncodedBatch(base_offset={self.base_offset}, leader_epoch={self.leader_epoch}, "
            f"max_timestamp_ms={self.max_timestamp_ms}, record_count={self.record_count}, "
            f"producer={self.producer}, is_control={self.is_control})"
        )

    @property
    def last_offset(self) -> int:
        """Offset of the last record (inclusive)."""
        return self.base_offset + self.record_count - 1


class BatchBuilder:
    """Batch that is being filled. Its base offset and leader epoch are arguments of ``build``.

    ``byte_count_max`` limits the built batch, including its header. ``RAW_BATCH_BYTES_MAX`` limits
    it before compression, below every reader's decompression limit. Records that the codec does not
    shrink are stored uncompressed.
    """

    def __init__(
        self,
        *,
        base_timestamp_ms: int,
        byte_count_max: int = BATCH_BYTES_MAX,
        compression: Compression = Compression.NONE,
        producer: ProducerStamp = NO_PRODUCER,
        is_control: bool = False,
    ) -> None:
        # A batch has fewer records than bytes, so 32-bit offset deltas suffice.
        assert BATCH_HEADER_BYTES < byte_count_max <= READ_BATCH_BYTES_MAX
        self.base_timestamp_ms: Final = base_timestamp_ms
        self.byte_count_max: Final = byte_count_max
        self.raw_byte_count_max: Final = max(RAW_BATCH_BYTES_MAX, byte_count_max)
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
        """Current size of the batch before compression, including its header."""
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
        """Return the error for records that do not fit. It has the size of a batch of these records
        alone, and the limit that this exceeds."""
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

    def encode(self, records: Sequence[RecordToAppend]) -> EncodedPart | None:
        """Return the records encoded for the end of this batch, or None if they do not fit.

        The first records of a compressed batch fit if their compressed size fits. For later records
        the uncompressed size counts, since the compressed size is known only at the end.
        """
        is_packed = self.compression is not Compression.NONE and not self._record_count
        room = self.remaining_byte_count
        raw_room = self.raw_byte_count_max - self._byte_count if is_packed else room
        found, compressed = None, None
        if compiled.is_native:  # records that fit uncompressed
            found = compiled.core.encode_records(
                records,
                NATIVE_TYPES,
                self._record_count,
                self.base_timestamp_ms,
                raw_room,
                self._header_room,
            )
        if found is not None:
            data, latest_ms, header_count = found
        else:
            to_encode = RecordsToEncode(records)
            header_count = to_encode.header_count()
            if to_encode.min_byte_count() > raw_room or header_count > self._header_room:
                return None
            data = to_encode.encode(self._record_count, self.base_timestamp_ms)
            if len(data) > raw_room:
                return None
            compressed = to_encode.compressed(data, self.compression) if is_packed else None
            latest_ms = to_encode.max_timestamp_ms(self.base_timestamp_ms)
        if len(data) > room:
            compressed = compressed or compress(data, self.compression)
            if len(compressed) > room:
                return None
        return EncodedPart(self, data, len(records), latest_ms, header_count, compressed)

    def fitting_record_count(self, records: Sequence[RecordToAppend], start: int) -> int:
        """Return how many records of ``records[start:]`` fit uncompressed, in order."""
        room, header_room = self.remaining_byte_count, self._header_room
        if compiled.is_native:
            count_before, base_ms = self._record_count, self.base_timestamp_ms
            found = compiled.core.fitting_record_count(
                records, start, NATIVE_TYPES, count_before, base_ms, room, header_room
            )
            if found is not None:
                return found
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

    def add(self, encoded: EncodedPart) -> None:
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

    def build(self, base_offset: int, leader_epoch: int) -> EncodedBatch:
        """Encode the batch, which must have at least one record."""
        assert self._record_count, "a batch has records"
        payload = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        codec, packed = self.compression, self._compressed
        if packed is None and codec is not Compression.NONE:
            packed = compress(payload, codec)
        if packed is None or len(packed) >= len(payload):
            codec, packed = Compression.NONE, payload
        producer = self.producer
        data = finish_batch(
            packed,
            base_offset=base_offset,
            leader_epoch=leader_epoch,
            byte_count_max=self.byte_count_max,
            compression=codec,
            flags=_flags(producer, self.is_control),
            last_offset_delta=self._record_count - 1,
            base_timestamp_ms=self.base_timestamp_ms,
            max_timestamp_ms=self._max_timestamp_ms,
            producer=(producer.producer_id, producer.producer_epoch, producer.base_sequence),
            record_count=self._record_count,
        )
        return EncodedBatch(
            data,
            base_offset=base_offset,
            leader_epoch=leader_epoch,
            max_timestamp_ms=self._max_timestamp_ms,
            record_count=self._record_count,
            producer=producer,
            is_control=self.is_control,
        )


def empty_batch(
    *, base_offset: int, last_offset: int, leader_epoch: int, max_timestamp_ms: int
) -> bytes:
    """Return a batch without records that has these offsets, both inclusive."""
    return finish_batch(
        b"",
        base_offset=base_offset,
        leader_epoch=leader_epoch,
        byte_count_max=BATCH_HEADER_BYTES,
        compression=Compression.NONE,
        flags=0,
        last_offset_delta=last_offset - base_offset,
        base_timestamp_ms=max_timestamp_ms,
        max_timestamp_ms=max_timestamp_ms,
        producer=(
            NO_PRODUCER.producer_id,
            NO_PRODUCER.producer_epoch,
            NO_PRODUCER.base_sequence,
        ),
        record_count=0,
    )


def build_batch(
    records: Sequence[RecordToAppend],
    *,
    base_offset: int,
    leader_epoch: int,
    base_timestamp_ms: int,
    byte_count_max: int = BATCH_BYTES_MAX,
    compression: Compression = Compression.NONE,
    producer: ProducerStamp = NO_PRODUCER,
    is_control: bool = False,
) -> EncodedBatch:
    """Build a batch of all these records, which ``BatchBuilder`` does in several steps.

    Raises ``RecordBatchTooLargeError``, or ``InvalidAppendError`` for too many headers.
    """
    if compiled.is_native and compression is Compression.NONE:
        try:
            built = compiled.core.build_batch(
                records,
                NATIVE_TYPES,
                byte_count_max,
                HEADERS_PER_BATCH_MAX,
                base_offset,
                leader_epoch,
                _flags(producer, is_control),
                base_timestamp_ms,
                producer.producer_id,
                producer.producer_epoch,
                producer.base_sequence,
            )
        except OverflowError:  # a number that does not fit into its field; struct names the field
            built = None
        if built is not None:
            data, max_timestamp_ms = built
            return EncodedBatch(
                data,
                base_offset=base_offset,
                leader_epoch=leader_epoch,
                max_timestamp_ms=max_timestamp_ms,
                record_count=len(records),
                producer=producer,
                is_control=is_control,
            )
    builder = BatchBuilder(
        base_timestamp_ms=base_timestamp_ms,
        byte_count_max=byte_count_max,
        compression=compression,
        producer=producer,
        is_control=is_control,
    )
    builder.append(records)
    return builder.build(base_offset, leader_epoch)


def _flags(producer: ProducerStamp, is_control: bool) -> int:
    """Return the attributes of a batch without the compression bits."""
    transactional = TRANSACTIONAL_BIT if producer.is_transactional else 0
    return transactional | CONTROL_BIT if is_control else transactional


# --- Accumulator of the records of one leader epoch: checks, offsets, batches ---------------------
# Like Kafka's ``BatchAccumulator``, but without a lock of its own: the caller's lock makes the
# check of required offsets and the assignment of offsets one step. Time is an argument.
#
# The checks have Kafka's order: epoch, required offsets, size. A rejected append changes neither
# offsets nor batches.


class BatchAccumulator:
    """Batches of the appends of one leader epoch, in offset order. Not thread-safe.

    Offsets are contiguous from ``next_offset`` on. ``byte_count_max`` is the size of the largest
    batch, including its header.
    """

    def __init__(
        self,
        *,
        epoch: int,
        next_offset: int,
        byte_count_max: int = BATCH_BYTES_MAX,
        compression: Compression = Compression.NONE,
    ) -> None:
        self._epoch = epoch
        self._next_offset = next_offset
        self._byte_count_max: Final = byte_count_max
        self._compression: Final = compression
        self._current_batch: BatchBuilder | None = None
        self._completed: list[EncodedBatch] = []

    # --- state ------------------------------------------------------------------------------------

    @property
    def epoch(self) -> int:
        """The only leader epoch whose appends are accepted."""
        return self._epoch

    @property
    def next_offset(self) -> int:
        """Offset of the next record."""
        return self._next_offset

    # --- appending --------------------------------------------------------------------------------

    def append(self, epoch: int, records: Sequence[RecordToAppend], *, now_ms: int) -> int:
        """Append records in order, in as many batches as needed (KAFKA-12258).

        After a failed write some of the batches may be written and others not. Returns the offset
        of the last record.

        Raises:
            NotLeaderError: ``epoch`` is stale.
            FutureEpochError: ``epoch`` is larger than the current one.
            InvalidAppendError: there are no records.
            RecordBatchTooLargeError: one record alone exceeds a batch; no record is appended.
            InvalidTimestampError: a timestamp is too far ahead of ``now_ms``.
        """
        self._check(epoch, len(records))
        current = self._current_batch or self._new_builder(now_ms)
        parts = self._encode_whole(current, records, now_ms) or self._split(
            current, records, now_ms
        )
        self._add(parts, now_ms)
        return self._next_offset - 1

    def append_atomic(
        self,
        epoch: int,
        records: Sequence[RecordToAppend],
        *,
        now_ms: int,
        required_end_offset: int | None = None,
        required_base_offset: int | None = None,
        standalone: bool = False,
        producer: ProducerStamp | None = None,
    ) -> int:
        """Append all records in one batch, or none. Returns the offset of the last record.

        ``required_base_offset`` is the offset required for the first record, and
        ``required_end_offset`` that for the last one (Kafka: ``requiredBaseOffset``). Begin and end
        markers of a transaction count as records. With a required offset ``records`` may be empty;
        then only the offsets are checked, and the last assigned offset is returned.

        The batch has no records of other appends if ``standalone`` is set, an offset is required, a
        producer is given, or the records are ``PackedRecords``. A ``SealedBatch`` keeps its bytes.

        Raises:
            UnexpectedEndOffsetError: a required offset does not match the next offset.
            RecordBatchTooLargeError: the records exceed one batch.
            AppendError: as ``append``.
        """
        has_required_offset = required_end_offset is not None or required_base_offset is not None
        count = len(records)
        self._check(epoch, count, may_be_empty=has_required_offset)
        if has_required_offset:
            self._check_required_offsets(count, required_end_offset, required_base_offset)
        if not count:
            return self._next_offset - 1
        if isinstance(records, SealedBatch):
            self._append_sealed(records, now_ms, producer or NO_PRODUCER)
            return self._next_offset - 1
        is_packed = isinstance(records, PackedRecords)
        if standalone or has_required_offset or producer is not None or is_packed:
            base_ms = records.base_timestamp_ms if isinstance(records, PackedRecords) else None
            base_ms = now_ms if base_ms is None else base_ms
            self._append_standalone(records, base_ms, producer or NO_PRODUCER, now_ms)
            return self._next_offset - 1
        current = self._current_batch or self._new_builder(now_ms)
        parts = self._encode_whole(current, records, now_ms)
        if parts is None:
            raise self._too_large(records, now_ms)
        self._add(parts, now_ms)
        return self._next_offset - 1

    # --- draining ---------------------------------------------------------------------------------

    def drain(self) -> list[EncodedBatch]:
        """Remove and return all batches, in offset order."""
        self._complete()
        drained, self._completed = self._completed, []
        return drained

    # --- batching ---------------------------------------------------------------------------------

    def _check(self, epoch: int, count: int, *, may_be_empty: bool = False) -> None:
        if epoch < self._epoch:
            raise NotLeaderError(epoch=epoch, current_epoch=self._epoch)
        if epoch > self._epoch:
            raise FutureEpochError(epoch=epoch, current_epoch=self._epoch)
        if not count and not may_be_empty:
            raise InvalidAppendError(reason="there are no records")

    def _check_required_offsets(
        self, count: int, required_end_offset: int | None, required_base_offset: int | None
    ) -> None:
        is_end_right = required_end_offset in (None, self._next_offset + count - 1)
        is_base_right = required_base_offset in (None, self._next_offset)
        if not (is_end_right and is_base_right):
            raise UnexpectedEndOffsetError(
                required_end_offset=None if is_end_right else required_end_offset,
                required_base_offset=None if is_base_right else required_base_offset,
                record_count=count,
                log_end_offset=self._next_offset,
            )

    def _new_builder(self, now_ms: int) -> BatchBuilder:
        return BatchBuilder(
            base_timestamp_ms=now_ms,
            byte_count_max=self._byte_count_max,
            compression=self._compression,
        )

    def _encode_whole(
        self, current: BatchBuilder, records: Sequence[RecordToAppend], now_ms: int
    ) -> list[EncodedPart] | None:
        """Encode all records for the current batch, or else for a new one; None if too large."""
        encoded = current.encode(records)
        if encoded is None and current.record_count:
            current = self._new_builder(now_ms)
            encoded = current.encode(records)
        return None if encoded is None else [encoded]

    def _split(
        self, builder: BatchBuilder, records: Sequence[RecordToAppend], now_ms: int
    ) -> list[EncodedPart]:
        """Encode the records for as many batches as needed, filling each one."""
        parts: list[EncodedPart] = []
        start = 0
        while start < len(records):
            count = builder.fitting_record_count(records, start)
            if count:
                encoded = builder.encode(records[start : start + count])
                assert encoded is not None, "fitting_record_count measured these records"
                parts.append(encoded)
                start += count
            elif not builder.record_count:
                raise self._too_large(records[start : start + 1], now_ms)
            builder = self._new_builder(now_ms)
        return parts

    def _too_large(self, records: Sequence[RecordToAppend], now_ms: int) -> AppendError:
        return self._new_builder(now_ms).too_large(records)

    def _append_standalone(
        self,
        records: Sequence[RecordToAppend],
        base_timestamp_ms: int,
        producer: ProducerStamp,
        now_ms: int,
    ) -> None:
        """Complete a batch of these records, after the current one."""
        batch = build_batch(
            records,
            base_offset=self._next_offset,
            leader_epoch=self._epoch,
            base_timestamp_ms=base_timestamp_ms,
            byte_count_max=self._byte_count_max,
            compression=self._compression,
            producer=producer,
        )
        _check_timestamp(batch.max_timestamp_ms, now_ms)
        self._complete()
        self._completed.append(batch)
        self._next_offset += batch.record_count

    def _append_sealed(self, batch: SealedBatch, now_ms: int, producer: ProducerStamp) -> None:
        """Add a producer's batch with its bytes, after the batch that is being filled."""
        byte_count, latest_ms = batch.byte_count(), batch.max_timestamp_ms
        if byte_count > self._byte_count_max:
            raise RecordBatchTooLargeError(
                byte_count=byte_count, byte_count_max=self._byte_count_max
            )
        _check_timestamp(latest_ms, now_ms)
        self._complete()
        offset, epoch, count = self._next_offset, self._epoch, len(batch)
        data = batch.stamped(base_offset=offset, leader_epoch=epoch)
        self._completed.append(
            EncodedBatch(
                data,
                base_offset=offset,
                leader_epoch=epoch,
                max_timestamp_ms=latest_ms,
                record_count=count,
                producer=producer,
                is_control=False,
            )
        )
        self._next_offset += count

    def _add(self, parts: list[EncodedPart], now_ms: int) -> None:
        """Add encoded records and advance the next offset, after all checks."""
        _check_timestamp(max(part.max_timestamp_ms for part in parts), now_ms)
        for part in parts:
            if self._current_batch is not part.builder:
                self._complete()
                self._current_batch = part.builder
            part.builder.add(part)
            self._next_offset += part.record_count

    def _complete(self) -> None:
        builder, self._current_batch = self._current_batch, None
        if builder is not None:
            base_offset = self._next_offset - builder.record_count
            self._completed.append(builder.build(base_offset, self._epoch))


def _check_timestamp(latest_ms: int, now_ms: int) -> None:
    if latest_ms > now_ms + TIMESTAMP_AFTER_MS_MAX:
        raise InvalidTimestampError(
            timestamp_ms=latest_ms, now_ms=now_ms, after_ms_max=TIMESTAMP_AFTER_MS_MAX
        )
