"""Records to be appended as bytes, which a producer has encoded or which are encoded here."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Final, NamedTuple, TypeAlias, overload

from raftlog import compiled
from raftlog.errors import CorruptBatchError
from raftlog.limits import (
    HEADERS_PER_BATCH_MAX,
    HEADERS_PER_RECORD_MAX,
    SCAN_BYTES_MAX,
    SCAN_DECOMPRESSED_BYTES_MAX,
)

from .batch import RecordBatch, TornTail, contains_any, read_batch
from .compression import Compression, compress, decompress
from .fields import unsigned_varint, varint, varint_byte_count
from .header import BATCH_MAGIC, RECORD_BYTES_MIN
from .record import (
    Header,
    NewRecord,
    StoredRecord,
    header_key,
    read_record,
    record_bytes,
    wrapped_int64,
)


class PackedRecords(Sequence[NewRecord]):
    """Sequence of encoded records, decoded on access.

    ``data`` can be used unchanged at the start of a batch's payload if the base timestamps are
    equal. The caller has validated that it consists of ``record_count`` complete records, with
    offset deltas from 0 without gaps and no negative timestamp.

    ``base_timestamp_ms`` None means that no record has a timestamp, so all get the batch's.
    ``max_timestamp_ms`` is the largest timestamp. ``is_named`` means that the first record has the
    header with the commit name. ``compressed`` is ``data`` with a codec, if already computed.
    """

    __slots__ = (
        "_count",
        "base_timestamp_ms",
        "compressed",
        "data",
        "header_count",
        "is_named",
        "max_timestamp_ms",
    )

    def __init__(
        self,
        data: bytes,
        record_count: int,
        *,
        base_timestamp_ms: int | None,
        max_timestamp_ms: int,
        header_count: int = 0,
        is_named: bool = False,
        compressed: tuple[Compression, bytes] | None = None,
    ) -> None:
        self.data: Final = data
        self.base_timestamp_ms: Final = base_timestamp_ms
        self.max_timestamp_ms: Final = max_timestamp_ms
        self.header_count: Final = header_count
        self.is_named: Final = is_named
        self.compressed: Final = compressed
        self._count: Final = record_count

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[NewRecord]:
        position = 0
        for _ in range(self._count):
            stored, position = read_record(self.data, position)
            yield self._record(stored)

    @overload
    def __getitem__(self, index: int) -> NewRecord: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[NewRecord]: ...
    def __getitem__(self, index: int | slice) -> NewRecord | Sequence[NewRecord]:
        if index == 0 and self._count:
            return self._record(read_record(self.data, 0)[0])
        return tuple(self)[index]

    def byte_count(self) -> int:
        """Return the memory used, in bytes."""
        return len(self.data) + (0 if self.compressed is None else len(self.compressed[1]))

    def with_first(self, first: NewRecord, *, is_named: bool = False) -> PackedRecords:
        """Return these records with key, value and headers of the first one replaced."""
        stored, after = read_record(self.data, 0)
        encoded = record_bytes(
            StoredRecord(stored.timestamp_delta, 0, first.key, first.value, first.headers)
        )
        return PackedRecords(
            encoded + self.data[after:],
            self._count,
            base_timestamp_ms=self.base_timestamp_ms,
            max_timestamp_ms=self.max_timestamp_ms,
            header_count=self.header_count + len(first.headers) - len(stored.headers),
            is_named=is_named,
        )

    def with_compressed(self, codec: Compression) -> PackedRecords:
        """Return these records with compressed data, so that a builder need not compress it."""
        return PackedRecords(
            self.data,
            self._count,
            base_timestamp_ms=self.base_timestamp_ms,
            max_timestamp_ms=self.max_timestamp_ms,
            header_count=self.header_count,
            is_named=self.is_named,
            compressed=(codec, compress(self.data, codec)),
        )

    def _record(self, stored: StoredRecord) -> NewRecord:
        time_ms = None
        if self.base_timestamp_ms is not None:
            time_ms = wrapped_int64(self.base_timestamp_ms + stored.timestamp_delta)
        return NewRecord(stored.key, stored.value, time_ms, stored.headers)


_HEAD: Final = struct.Struct(">q4siB")
"""Base offset, length, leader epoch and magic: the fields that the CRC does not cover."""


class SealedBatch(Sequence[NewRecord]):
    """Records of one batch as their producer encoded it, decoded on access.

    ``data`` is the batch, with valid CRC, records and timestamps. It is appended with these bytes.
    Only base offset and leader epoch, which the CRC does not cover, are replaced by the log's.
    ``is_named``: its first record names the commit as the log does.
    """

    __slots__ = ("_count", "_data", "is_named", "max_timestamp_ms")

    def __init__(
        self, data: bytes, record_count: int, max_timestamp_ms: int, *, is_named: bool = False
    ) -> None:
        self.max_timestamp_ms: Final = max_timestamp_ms
        self.is_named: Final = is_named
        self._data: Final = data
        self._count: Final = record_count

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[NewRecord]:
        batch = read_batch(self._data)
        assert isinstance(batch, RecordBatch), "a complete batch"
        for one in batch.records():
            yield NewRecord(one.key, one.value, one.timestamp_ms, one.headers)

    @overload
    def __getitem__(self, index: int) -> NewRecord: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[NewRecord]: ...
    def __getitem__(self, index: int | slice) -> NewRecord | Sequence[NewRecord]:
        return tuple(self)[index]

    def byte_count(self) -> int:
        """Return the size of the batch, which is the memory used."""
        return len(self._data)

    def stamped(self, *, base_offset: int, leader_epoch: int) -> bytes:
        """Return the batch with this base offset and leader epoch."""
        data = self._data
        head = _HEAD.pack(base_offset, data[8:12], leader_epoch, BATCH_MAGIC)
        return b"".join((head, memoryview(data)[_HEAD.size :]))


# --- Check of a batch as its producer encoded it, without a decoded record ------------------------
# The compiled core checks CRC and records in one pass. In Python, a few records are read one by one
# and many are read in columns. All of these accept and reject the same bytes, with equal results.

_CHECKED_COLUMNS_MIN: Final = 64
"""Number of records from which on columns are faster than records one by one."""
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

    Returns None if anything is invalid or exceeds a limit; ``read_batch`` and
    ``RecordBatch.records`` raise the error. ``has_text``: whether the decompressed records contain
    ``text`` anywhere.
    """
    if compiled.is_native:
        return _summarize_native(data, text, decompressed_bytes_max)
    try:
        batch = read_batch(data)
        if isinstance(batch, TornTail) or batch.byte_count != len(data):
            return None
        if batch.record_count < _CHECKED_COLUMNS_MIN:
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

    found = compiled.core.scan(data, _TIMESTAMP, (), None, None, 0, _LIMITS, expand)
    if found is None:
        return None
    (_, end_position, batch_count, _), (record_count, _, _, _, times, _), _, _ = found
    if end_position != len(data) or batch_count != 1 or not record_count:
        return None
    times_ms = memoryview(times).cast("q")
    return RecordSummary(min(times_ms), max(times_ms), text in plain)


# --- Encoding of many records ---------------------------------------------------------------------
# The bytes are those of ``record.record_bytes`` per record, with offset deltas that count up from
# ``first_delta``. Common cases are faster. Varints below ``_SMALL`` are in a table. Records that
# are only values of few different lengths (no key, headers or timestamp) are encoded by columns,
# with loops that run in C. The compiled core encodes all records of ``NATIVE_TYPES``. The bytes of
# ``PackedRecords`` are reused if possible.

RecordToAppend: TypeAlias = bytes | NewRecord
"""A value alone, or a record with key, timestamp or headers."""
NATIVE_TYPES: Final = (NewRecord, Header)
"""Types that the compiled core reads, in addition to bytes."""

_SMALL_BITS: Final = 13
_SMALL: Final = 1 << _SMALL_BITS
"""Varints of numbers below this are in a table. They have at most two bytes."""
_ONE_BYTE: Final = 1 << 6
"""Varints of numbers below this have one byte."""
_VALUE_FIELDS_BYTES: Final = 4
"""One byte each for attributes, timestamp delta, key length (null) and header count (0)."""
_ANY_SIZE: Final = 2**62
_COLUMNS_MIN: Final = 16
"""Records per distinct value length from which on encoding by columns is faster."""


class RecordsToEncode:
    """Records to be encoded, with facts that are computed once in a first pass."""

    __slots__ = ("_lengths", "_values", "records")

    def __init__(self, records: Sequence[RecordToAppend]) -> None:
        self.records: Final = records
        may_be_columns = len(records) >= _COLUMNS_MIN and not isinstance(records, PackedRecords)
        values = _plain_values(records) if may_be_columns else None
        self._values: Final = values
        self._lengths: Final = None if values is None else list(map(len, values))

    def min_byte_count(self) -> int:
        """Return a lower bound of the encoded size, to reject large records without encoding."""
        if self._lengths is not None:
            return sum(self._lengths) + RECORD_BYTES_MIN * len(self._lengths)
        if isinstance(self.records, PackedRecords):
            return RECORD_BYTES_MIN * len(self.records)
        return sum(map(_min_byte_count, self.records))

    def header_count(self) -> int:
        """Return the number of headers of all records."""
        if self._values is not None:
            return 0
        if isinstance(self.records, PackedRecords):
            return self.records.header_count
        return sum(len(record.headers) for record in self.records if isinstance(record, NewRecord))

    def compressed(self, data: bytes, codec: Compression) -> bytes | None:
        """Return ``data`` compressed with ``codec`` if the records already have it, else None."""
        packed = self.records
        if not isinstance(packed, PackedRecords) or data is not packed.data:
            return None
        found = packed.compressed
        return found[1] if found is not None and found[0] is codec else None

    def max_timestamp_ms(self, base_timestamp_ms: int) -> int:
        """Return the largest timestamp; a record without one has ``base_timestamp_ms``."""
        if self._values is not None:
            return base_timestamp_ms
        if isinstance(self.records, PackedRecords):
            is_timed = self.records.base_timestamp_ms is not None
            return self.records.max_timestamp_ms if is_timed else base_timestamp_ms
        times = {
            None if isinstance(record, bytes) else record.timestamp_ms for record in self.records
        }
        if not times or None in times:
            times.add(base_timestamp_ms)
        return max(time_ms for time_ms in times if time_ms is not None)

    def encode(self, first_delta: int, base_timestamp_ms: int) -> bytes:
        """Encode the records, with offset deltas from ``first_delta`` on."""
        values, lengths, packed = self._values, self._lengths, self.records
        if isinstance(packed, PackedRecords):
            if first_delta == 0 and packed.base_timestamp_ms in (None, base_timestamp_ms):
                return packed.data
            return encode_records(tuple(packed), first_delta, base_timestamp_ms)
        if compiled.is_native:
            found = compiled.core.encode_records(
                packed, NATIVE_TYPES, first_delta, base_timestamp_ms, _ANY_SIZE, _ANY_SIZE
            )
            if found is not None:
                return found[0]
        if values is not None and lengths is not None:
            kinds = set(lengths)
            if len(kinds) * _COLUMNS_MIN <= len(lengths):
                return _encode_columns(values, lengths, kinds, first_delta)
        small = _small_varints()
        plain = self.records if values is None else values
        return b"".join(
            [
                _encode_one(record, delta, base_timestamp_ms, small)
                for delta, record in enumerate(plain, first_delta)
            ]
        )


def encode_records(
    records: Sequence[RecordToAppend], first_delta: int, base_timestamp_ms: int
) -> bytes:
    """Encode the records, with offset deltas from ``first_delta`` on."""
    return RecordsToEncode(records).encode(first_delta, base_timestamp_ms)


def record_byte_counts(
    records: Sequence[RecordToAppend], first_delta: int, base_timestamp_ms: int
) -> list[int]:
    """Return the size of each record as ``encode_records`` encodes it."""
    return [
        _value_byte_count(len(record), delta)
        if isinstance(record, bytes)
        else _record_byte_count(record, delta, base_timestamp_ms)
        for delta, record in enumerate(records, first_delta)
    ]


def _plain_values(records: Sequence[RecordToAppend]) -> Sequence[bytes] | None:
    """Return the values if no record has a key, a timestamp, headers or a null value, else None."""
    kinds = set(map(type, records))
    if kinds == {bytes}:
        return records  # type: ignore[return-value]
    if kinds != {NewRecord}:
        return None
    values = [
        record.value
        for record in records
        if isinstance(record, NewRecord)
        and record.key is None
        and record.value is not None
        and record.timestamp_ms is None
        and not record.headers
    ]
    return values if len(values) == len(records) else None


def _min_byte_count(record: RecordToAppend) -> int:
    if isinstance(record, bytes):
        return RECORD_BYTES_MIN + len(record)
    in_headers = sum(len(header.value or b"") for header in record.headers)
    return RECORD_BYTES_MIN + len(record.key or b"") + len(record.value or b"") + in_headers


# --- record by record -----------------------------------------------------------------------------


def _encode_one(
    record: RecordToAppend, delta: int, base_ms: int, small: tuple[bytes, ...]
) -> bytes:
    """Encode one record, with varints from the table ``small`` where they are in it."""
    if isinstance(record, bytes):
        return _encode_fields(None, record, 0, delta, small)
    time_ms = record.timestamp_ms
    time_delta = 0 if time_ms is None else wrapped_int64(time_ms - base_ms)
    if record.headers:
        return record_bytes(
            StoredRecord(time_delta, delta, record.key, record.value, record.headers)
        )
    return _encode_fields(record.key, record.value, time_delta, delta, small)


def _encode_fields(
    key: bytes | None, value: bytes | None, time_delta: int, delta: int, small: tuple[bytes, ...]
) -> bytes:
    try:
        body = b"".join(
            (
                b"\0",
                b"\0" if time_delta == 0 else varint(time_delta),
                small[delta] if delta < _SMALL else varint(delta),
                b"\1" if key is None else small[len(key)],
                key or b"",
                b"\1" if value is None else small[len(value)],
                value or b"",
                b"\0",
            )
        )
        return small[len(body)] + body
    except IndexError:
        return record_bytes(StoredRecord(time_delta, delta, key, value, ()))


def _value_byte_count(byte_count: int, delta: int) -> int:
    body = _value_body_byte_count(byte_count, varint_byte_count(delta))
    return varint_byte_count(body) + body


def _record_byte_count(record: NewRecord, delta: int, base_ms: int) -> int:
    time_ms = record.timestamp_ms
    time_delta = 0 if time_ms is None else wrapped_int64(time_ms - base_ms)
    body = 1 + varint_byte_count(time_delta) + varint_byte_count(delta)
    body += _field_byte_count(record.key) + _field_byte_count(record.value)
    body += varint_byte_count(len(record.headers))
    for header in record.headers:
        body += _field_byte_count(header_key(header)) + _field_byte_count(header.value)
    return varint_byte_count(body) + body


def _field_byte_count(data: bytes | None) -> int:
    return 1 if data is None else varint_byte_count(len(data)) + len(data)


def _value_body_byte_count(byte_count: int, delta_byte_count: int) -> int:
    return _VALUE_FIELDS_BYTES + delta_byte_count + varint_byte_count(byte_count) + byte_count


# --- column by column -----------------------------------------------------------------------------


def _encode_columns(
    values: Sequence[bytes], lengths: list[int], kinds: set[int], first_delta: int
) -> bytes:
    """Encode values of few different lengths, in runs of offset deltas.

    The varints of a run's deltas have the same length and differ only in their first two bytes.
    """
    pieces: list[bytes] = []
    start = 0
    while start < len(values):
        delta = first_delta + start
        run_end = _ONE_BYTE if delta < _ONE_BYTE else (delta // _SMALL + 1) * _SMALL
        end = min(len(values), start + run_end - delta)
        pieces += _value_pieces(values[start:end], lengths[start:end], kinds, delta)
        start = end
    pieces[0] = pieces[0][1:]
    pieces.append(b"\0")
    return b"".join(pieces)


def _value_pieces(
    values: Sequence[bytes], lengths: list[int], kinds: set[int], delta: int
) -> list[bytes]:
    """Return four pieces per record, which depend on the length, the delta, the length, the value.

    piece 0: header count of the previous record (0), length, attributes, timestamp delta
    piece 1: offset delta, at most its first two bytes
    piece 2: rest of the offset delta (equal in the run), key length, value length
    piece 3: value
    """
    count = len(values)
    high = unsigned_varint(delta >> _SMALL_BITS) if delta >= _SMALL else b""
    table = _first_bytes() if high else _small_varints()
    low = delta % _SMALL
    delta_bytes = varint_byte_count(delta)
    before = {n: b"\0%b\0\0" % varint(_value_body_byte_count(n, delta_bytes)) for n in kinds}
    after = {n: b"%b\x01%b" % (high, varint(n)) for n in kinds}
    pieces = [b""] * (4 * count)
    if len(kinds) == 1:
        pieces[0::4] = [before[lengths[0]]] * count
        pieces[2::4] = [after[lengths[0]]] * count
    else:
        pieces[0::4] = map(before.__getitem__, lengths)
        pieces[2::4] = map(after.__getitem__, lengths)
    pieces[1::4] = table[low : low + count]
    pieces[3::4] = values
    return pieces


@cache
def _small_varints() -> tuple[bytes, ...]:
    return tuple(map(varint, range(_SMALL)))


@cache
def _first_bytes() -> tuple[bytes, ...]:
    """Return the first two bytes of varints of three bytes or more, by the number's low bits."""
    return tuple(bytes((number << 1 & 0x7F | 0x80, number >> 6 | 0x80)) for number in range(_SMALL))
