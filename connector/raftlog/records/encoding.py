"""Many records to bytes at once.

Rules of this file:

1. The bytes are those of ``record_bytes``, record by record. What is usual is made faster: numbers
   below ``_SMALL`` come from a table, and values of few lengths (no key, no header, the time of
   their batch) are encoded column by column, so that every loop runs inside Python itself.
2. Deltas count from ``first_delta`` without a gap: the log gives offsets, not the caller.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Final, TypeAlias

from .header import RECORD_BYTES_MIN
from .record import NewRecord, StoredRecord, record_bytes, wrapped_int64
from .varint import varint, varint_byte_count

RecordToAppend: TypeAlias = bytes | NewRecord
"""A bare value, or a record with key, time or headers of its own."""

_SMALL: Final = 1 << 13
"""Below this, varints of lengths and of deltas come from a table; all have at most two bytes."""
_VALUE_FIELDS_BYTES: Final = 4
"""Of a record that is only a value: attributes, time delta, key length and header count."""
_DELTA_STEPS: Final = (1 << 6, 1 << 13, 1 << 20, 1 << 27, 1 << 34)
"""Where the varint of an offset delta becomes a byte longer."""
_LENGTHS_PER_RECORD_MAX: Final = 1 / 16
"""More different lengths than this, and a table of them costs more than it saves."""


def encode_records(
    records: Sequence[RecordToAppend], first_delta: int, base_timestamp_ms: int
) -> bytes:
    """The records' bytes, the first at ``first_delta``; times are stored against the base."""
    values = _plain_values(records)
    if values is not None and len(set(map(len, values))) <= _LENGTHS_PER_RECORD_MAX * len(values):
        return _encode_columns(values, first_delta)
    small = _small_varints()
    return b"".join(
        [
            _encode_one(record, delta, base_timestamp_ms, small)
            for delta, record in enumerate(records if values is None else values, first_delta)
        ]
    )


def record_byte_counts(
    records: Sequence[RecordToAppend], first_delta: int, base_timestamp_ms: int
) -> list[int]:
    """How many bytes each record takes in ``encode_records``."""
    small = _small_varints()
    return [
        _value_byte_count(len(record), delta)
        if isinstance(record, bytes)
        else len(_encode_one(record, delta, base_timestamp_ms, small))
        for delta, record in enumerate(records, first_delta)
    ]


def least_byte_count(records: Sequence[RecordToAppend]) -> int:
    """What the records take at least: what this refuses need not be encoded to be refused."""
    values = _plain_values(records)
    if values is not None:
        return sum(map(len, values)) + RECORD_BYTES_MIN * len(values)
    return sum(map(_least, records))


def max_timestamp_ms(records: Sequence[RecordToAppend], base_timestamp_ms: int) -> int:
    """The latest time of the records; those that have none have their batch's."""
    if _plain_values(records) is not None:
        return base_timestamp_ms
    times = (None if isinstance(record, bytes) else record.timestamp_ms for record in records)
    filled = (base_timestamp_ms if time_ms is None else time_ms for time_ms in times)
    return max(filled, default=base_timestamp_ms)


def _plain_values(records: Sequence[RecordToAppend]) -> Sequence[bytes] | None:
    """The values, if the records are nothing but values, else None."""
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


def _least(record: RecordToAppend) -> int:
    if isinstance(record, bytes):
        return RECORD_BYTES_MIN + len(record)
    in_headers = sum(len(header.key) + len(header.value or b"") for header in record.headers)
    return RECORD_BYTES_MIN + len(record.key or b"") + len(record.value or b"") + in_headers


def _encode_one(
    record: RecordToAppend, delta: int, base_ms: int, small: tuple[bytes, ...]
) -> bytes:
    """One record, by the table if all its numbers are in it."""
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


def _value_body_byte_count(byte_count: int, delta_byte_count: int) -> int:
    return _VALUE_FIELDS_BYTES + delta_byte_count + varint_byte_count(byte_count) + byte_count


def _encode_columns(values: Sequence[bytes], first_delta: int) -> bytes:
    """Values of few lengths: four pieces a record, of which two depend on its length alone."""
    pieces: list[bytes] = []
    start = 0
    while start < len(values):
        delta = first_delta + start
        step = next(step for step in _DELTA_STEPS if delta < step)
        end = min(len(values), start + step - delta)
        pieces += _value_pieces(values[start:end], delta)
        start = end
    pieces[0] = pieces[0][1:]
    pieces.append(b"\0")
    return b"".join(pieces)


def _value_pieces(values: Sequence[bytes], delta: int) -> list[bytes]:
    """The pieces of values whose deltas, from ``delta`` on, have varints of one length.

    Each record has in front of it the zero that ends the one before it (its count of headers).
    """
    count = len(values)
    lengths = list(map(len, values))
    kinds = set(lengths)
    delta_bytes = varint_byte_count(delta)
    before = {n: b"\0%b\0\0" % varint(_value_body_byte_count(n, delta_bytes)) for n in kinds}
    behind = {n: b"\x01" + varint(n) for n in kinds}
    pieces = [b""] * (4 * count)
    if len(kinds) == 1:
        pieces[0::4] = [before[lengths[0]]] * count
        pieces[2::4] = [behind[lengths[0]]] * count
    else:
        pieces[0::4] = map(before.__getitem__, lengths)
        pieces[2::4] = map(behind.__getitem__, lengths)
    small = _small_varints()
    from_table = small[delta : delta + count]
    pieces[1::4] = [*from_table, *map(varint, range(delta + len(from_table), delta + count))]
    pieces[3::4] = values
    return pieces


@cache
def _small_varints() -> tuple[bytes, ...]:
    return tuple(map(varint, range(_SMALL)))
