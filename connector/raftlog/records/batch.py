"""Record batches (magic 2), read one at a time; ``builder`` encodes them.

A ``RecordBatch`` exists only if its CRC matched, so its records are never read unverified. Bytes
that end inside a batch, or that are zeros up to the end (a preallocated file), are a ``TornTail``
and not an error. Other bytes raise ``CorruptBatchError`` or ``UnsupportedMagicError``, with path,
position and offset.

Batches of any Kafka topic are accepted. KRaft's restrictions (no keys, no headers, one timestamp
per batch) are not checked here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Final

from crc32c import crc32c

from raftlog.errors import CorruptBatchError, HeaderLimitError
from raftlog.fast_dataclass import fast_init
from raftlog.limits import (
    BATCH_HEADER_BYTES,
    DECOMPRESSED_BYTES_MAX,
    HEADERS_PER_BATCH_MAX,
    INT32_MAX,
    LOG_OVERHEAD_BYTES,
    VARINT_BYTES_MAX,
    VARLONG_BYTES_MAX,
)

from .compression import Compression, decompress, iter_decompressed
from .fields import Buffer, MalformedVarintError, read_varint, read_varlong
from .header import (
    BATCH_HEADER,
    BATCH_LENGTH,
    BATCH_MAGIC,
    COMPRESSION_BITS,
    CONTROL_BIT,
    CRC_START,
    DELETE_HORIZON_BIT,
    LENGTH_MAX,
    LENGTH_MIN,
    LENGTH_POSITION,
    MAGIC_POSITION,
    RECORD_BYTES_MIN,
    TIMESTAMP_TYPE_BIT,
    TRANSACTIONAL_BIT,
    TimestampType,
    header_damage,
    length_error,
)
from .record import (
    Header,
    NewRecord,
    Record,
    StoredRecord,
    read_record,
    wrapped_int64,
)

__all__ = [
    "Compression",
    "Header",
    "NewRecord",
    "Record",
    "RecordBatch",
    "TimestampType",
    "TornTail",
    "iter_batches",
    "read_batch",
]
_COMPRESSIONS: Final = tuple(Compression)
_TIMESTAMP_TYPES: Final = tuple(TimestampType)
"""Types by number. Calling the enumeration to find one takes five times as long."""


@dataclass(frozen=True, slots=True)
class TornTail:
    """End of the data at ``position``, with ``byte_count`` bytes of an incomplete batch or zeros.

    A ``byte_count`` of 0 is a clean end.
    """

    position: int
    byte_count: int


@fast_init
@dataclass(frozen=True, slots=True, kw_only=True)
class RecordBatch:
    """Batch with a verified CRC, its records still encoded in ``payload``.

    ``position`` is the position of its first byte in the file. ``last_offset`` is inclusive.
    ``delete_horizon_ms`` is set if the base timestamp field contains a delete horizon (KIP-534).
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
        """Offset after the batch."""
        return self.last_offset + 1

    def records(self, *, decompressed_bytes_max: int = DECOMPRESSED_BYTES_MAX) -> Iterator[Record]:
        """Yield the records in order.

        Raises:
            CorruptBatchError: a record is corrupt, or bytes remain after the last one.
            DecompressionLimitError: the records exceed ``decompressed_bytes_max``.
            HeaderLimitError: a record or the batch has too many headers.
        """
        appended_ms = None
        if self.timestamp_type is TimestampType.LOG_APPEND_TIME:
            appended_ms = self.max_timestamp_ms
        for stored in self.stored_records(decompressed_bytes_max=decompressed_bytes_max):
            created_ms = wrapped_int64(self.base_timestamp_ms + stored.timestamp_delta)
            yield Record(
                self.base_offset + stored.offset_delta,
                created_ms if appended_ms is None else appended_ms,
                stored.key,
                stored.value,
                stored.headers,
            )

    def stored_records(
        self, *, decompressed_bytes_max: int = DECOMPRESSED_BYTES_MAX
    ) -> Iterator[StoredRecord]:
        """Yield the records with their deltas, in order. Raises what ``records`` raises."""
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
        compression=_COMPRESSIONS[attributes & COMPRESSION_BITS],
        timestamp_type=_TIMESTAMP_TYPES[bool(attributes & TIMESTAMP_TYPE_BIT)],
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
    left = len(buffer) - position
    length: int = 0
    if left >= LOG_OVERHEAD_BYTES:
        (length,) = BATCH_LENGTH.unpack_from(buffer, position + LENGTH_POSITION)
        has_magic = left > MAGIC_POSITION and buffer[position + MAGIC_POSITION] == BATCH_MAGIC
        if has_magic and LENGTH_MIN <= length <= LENGTH_MAX:
            return length + LOG_OVERHEAD_BYTES  # nearly every batch, without a call for errors
    error = length_error(buffer, position, path, file_position)
    if error is not None:
        raise error
    return length + LOG_OVERHEAD_BYTES if length else None


# --- Streaming reads of single fields of a batch's records ----------------------------------------
# Memory is bounded by the requested fields and one decompressed piece, no matter how large the
# batch is when decompressed, so a log can examine every batch that it has appended. Bytes after the
# last requested field are not decompressed. Each length is checked against the record's length.
# ``CorruptBatchError`` is raised without path, position and offset.

_BYTES_MAX: Final = INT32_MAX + VARINT_BYTES_MAX
"""Largest size of a record, including its length field."""


class ForwardReader:
    """Sequential reader of the decompressed records of one batch."""

    __slots__ = ("_at", "_base", "_buffer", "_pieces")

    def __init__(self, batch: RecordBatch) -> None:
        self._pieces = _pieces(batch)
        self._buffer = b""
        self._at = 0
        self._base = 0

    @property
    def position(self) -> int:
        """Position of the next field in the decompressed records."""
        return self._base + self._at

    def varint(self) -> int:
        self._load(VARINT_BYTES_MAX)
        try:
            number, self._at = read_varint(self._buffer, self._at)
        except MalformedVarintError as error:
            raise CorruptBatchError(reason=f"a varint is malformed: {error.reason}") from None
        return number

    def varlong(self) -> int:
        self._load(VARLONG_BYTES_MAX)
        try:
            number, self._at = read_varlong(self._buffer, self._at)
        except MalformedVarintError as error:
            raise CorruptBatchError(reason=f"a varint is malformed: {error.reason}") from None
        return number

    def take(self, byte_count: int) -> bytes:
        """Return the next bytes."""
        if not self._load(byte_count):
            raise CorruptBatchError(reason=f"its records end before {byte_count} bytes of a field")
        start, self._at = self._at, self._at + byte_count
        return self._buffer[start : self._at]

    def skip(self, byte_count: int) -> None:
        """Skip the next bytes without buffering them."""
        while byte_count > (left := len(self._buffer) - self._at):
            byte_count -= left
            self._at += left
            if not self._next_piece():
                raise CorruptBatchError(reason=f"its records end {byte_count} bytes too early")
        self._at += byte_count

    def _load(self, byte_count: int) -> bool:
        """Buffer ``byte_count`` bytes; return whether that many are left."""
        while len(self._buffer) - self._at < byte_count:
            if not self._next_piece():
                return False
        return True

    def _next_piece(self) -> bool:
        piece = next(self._pieces, None)
        if piece is None:
            return False
        self._base += self._at
        left = self._buffer[self._at :]
        self._buffer = left + piece if left else piece
        self._at = 0
        return True


def _pieces(batch: RecordBatch) -> Iterator[bytes]:
    if batch.compression is Compression.NONE:
        return iter((batch.payload,))
    return iter_decompressed(batch.payload, batch.compression, byte_count_max=_BYTES_MAX)


def _begin_record(reader: ForwardReader) -> tuple[int, int]:
    """Read a record up to its key; return the record's end position and offset delta."""
    byte_count = reader.varint()
    if byte_count < 1:
        raise CorruptBatchError(reason=f"invalid record length {byte_count}")
    end = reader.position + byte_count
    reader.skip(1)
    reader.varlong()
    return end, reader.varint()


def _field_byte_count(reader: ForwardReader, end: int) -> int:
    """Read the length of the next key or value, -1 for null."""
    byte_count = reader.varint()
    if byte_count < -1 or reader.position + byte_count > end:
        raise CorruptBatchError(reason=f"invalid field length {byte_count}")
    return byte_count


def first_record_headers(
    batch: RecordBatch, key: str, *, header_count_max: int, byte_count_max: int
) -> list[bytes | None]:
    """Return the values of the headers ``key`` among the first headers of the first record.

    At most ``header_count_max`` headers are read. A null value, or one of more than
    ``byte_count_max`` bytes, is returned as None. Raises ``CorruptBatchError``.
    """
    reader, wanted = ForwardReader(batch), key.encode()
    end, _ = _begin_record(reader)
    for _ in range(2):
        reader.skip(max(0, _field_byte_count(reader, end)))
    count = reader.varint()
    if not 0 <= 2 * count <= end - reader.position:
        raise CorruptBatchError(reason=f"invalid header count {count}")
    found: list[bytes | None] = []
    for _ in range(min(count, header_count_max)):
        key_bytes = _field_byte_count(reader, end)
        is_wanted = False
        if key_bytes == len(wanted):
            is_wanted = reader.take(key_bytes) == wanted
        else:
            reader.skip(max(0, key_bytes))
        value_bytes = _field_byte_count(reader, end)
        is_short = 0 <= value_bytes <= byte_count_max
        if is_wanted:
            found.append(reader.take(value_bytes) if is_short else None)
        if not (is_wanted and is_short):
            reader.skip(max(0, value_bytes))
    return found


def iter_value_starts(
    batch: RecordBatch, starts: tuple[bytes, ...], *, byte_count_max: int
) -> Iterator[tuple[int, bytes]]:
    """Yield offset delta and value of the records whose values start with one of ``starts``.

    Values are truncated to ``byte_count_max`` bytes. All ``starts`` must have the same length.
    Raises ``CorruptBatchError`` at the first corrupt record.
    """
    reader, start_bytes = ForwardReader(batch), len(starts[0])
    for _ in range(batch.record_count):
        end, delta = _begin_record(reader)
        reader.skip(max(0, _field_byte_count(reader, end)))
        value_bytes = _field_byte_count(reader, end)
        if value_bytes >= start_bytes:
            start = reader.take(start_bytes)
            if start in starts:
                yield delta, start + reader.take(min(value_bytes, byte_count_max) - start_bytes)
        if reader.position > end:
            raise CorruptBatchError(
                reason=f"its fields exceed the record length by {reader.position - end} bytes"
            )
        reader.skip(end - reader.position)


def contains_any(batch: RecordBatch, texts: tuple[bytes, ...]) -> bool:
    """Return whether the decompressed records contain one of ``texts``, all of the same length."""
    before = b""
    for piece in _pieces(batch):
        joined = before + piece if before else piece
        if any(text in joined for text in texts):
            return True
        before = joined[-(len(texts[0]) - 1) :]
    return False
