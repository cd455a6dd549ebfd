"""Encoding and decoding of one record of a batch.

Layout (Kafka: ``DefaultRecord``). All numbers except the attributes are zigzag varints:

    length of the rest
    attributes (one byte, 0)
    timestamp delta (64-bit)
    offset delta
    key length, key            a length of -1 is null
    value length, value
    header count
    per header: key length, key, value length, value

A record must fill its length exactly. Errors have no path, position or offset; the batch adds them.
A ``repr`` has the sizes of keys and values, not their bytes, which may be secret.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, Final

from raftlog.errors import CorruptBatchError, HeaderLimitError
from raftlog.fast_dataclass import fast_dataclass
from raftlog.limits import HEADERS_PER_RECORD_MAX

from .fields import MalformedVarintError, read_varint, read_varlong, varint


def _describe(record: Any) -> str:
    """Return the ``repr`` of a record or header, with sizes for fields that are not shown."""
    parts = []
    for one in fields(record):
        value = getattr(record, one.name)
        if value != one.default:
            is_hidden = not one.repr and value is not None
            parts.append(f"{one.name}={f'<{len(value)} bytes>' if is_hidden else repr(value)}")
    return f"{type(record).__name__}({', '.join(parts)})"


@dataclass(frozen=True, slots=True)
class Header:
    """Header of a record. Keys may repeat.

    If the stored key is not valid UTF-8, ``raw_key`` has its bytes, and ``key`` has U+FFFD in place
    of invalid bytes, as in Kafka. ``raw_key`` is written back unchanged.
    """

    key: str
    value: bytes | None = field(repr=False)
    raw_key: bytes | None = field(default=None, repr=False)

    __repr__ = _describe


@dataclass(frozen=True, slots=True)
class Record:
    """Record that was read, with its absolute offset and timestamp."""

    offset: int
    timestamp_ms: int
    key: bytes | None = field(repr=False)
    value: bytes | None = field(repr=False)
    headers: tuple[Header, ...] = ()

    __repr__ = _describe


@dataclass(frozen=True, slots=True)
class NewRecord:
    """Record to be written; the log assigns its offset.

    ``timestamp_ms`` None means the base timestamp of the batch.
    """

    key: bytes | None = field(repr=False)
    value: bytes | None = field(repr=False)
    timestamp_ms: int | None = None
    headers: tuple[Header, ...] = ()

    __repr__ = _describe


new_record: Final = fast_dataclass(NewRecord)
"""Constructor of ``NewRecord`` for creating many of them."""


@dataclass(frozen=True, slots=True)
class StoredRecord:
    """Record as it is stored, with deltas relative to its batch."""

    timestamp_delta: int
    offset_delta: int
    key: bytes | None = field(repr=False)
    value: bytes | None = field(repr=False)
    headers: tuple[Header, ...]


def read_record(data: bytes, position: int) -> tuple[StoredRecord, int]:
    """Read the record at ``position``; return it and the position after it.

    Raises:
        CorruptBatchError: the bytes are not a valid record.
        HeaderLimitError: it has too many headers; none of them was decoded.
    """
    try:
        byte_count, position = read_varint(data, position)
        end = position + byte_count
        if byte_count < 1 or end > len(data):
            raise CorruptBatchError(
                reason=f"invalid record length {byte_count}, {len(data) - position} bytes are left"
            )
        timestamp_delta, position = read_varlong(data, position + 1)
        offset_delta, position = read_varint(data, position)
        key, position = _read_bytes(data, position, end, "key")
        value, position = _read_bytes(data, position, end, "value")
        headers, position = _read_headers(data, position, end)
    except MalformedVarintError as error:
        raise CorruptBatchError(reason=f"malformed varint: {error.reason}") from None
    if position != end:
        raise CorruptBatchError(
            reason=f"record length {byte_count}, but its fields have "
            f"{byte_count + position - end} bytes"
        )
    return StoredRecord(timestamp_delta, offset_delta, key, value, headers), end


def _read_bytes(data: bytes, position: int, end: int, what: str) -> tuple[bytes | None, int]:
    byte_count, position = read_varint(data, position)
    if byte_count == -1:
        return None, position
    after = position + byte_count
    if byte_count < 0 or after > end:
        raise CorruptBatchError(reason=f"invalid {what} length {byte_count}")
    return data[position:after], after


def _read_headers(data: bytes, position: int, end: int) -> tuple[tuple[Header, ...], int]:
    count, position = read_varint(data, position)
    if count == 0:
        return (), position
    if not 0 < 2 * count <= end - position:  # a header has at least two length bytes
        raise CorruptBatchError(reason=f"invalid header count {count}")
    if count > HEADERS_PER_RECORD_MAX:
        raise HeaderLimitError(
            reason=f"it has {count} headers, at most {HEADERS_PER_RECORD_MAX} are allowed",
            header_count_max=HEADERS_PER_RECORD_MAX,
        )
    headers = []
    for _ in range(count):
        key, position = _read_bytes(data, position, end, "header key")
        value, position = _read_bytes(data, position, end, "header value")
        if key is None:
            raise CorruptBatchError(reason="null header key")
        headers.append(_header(key, value))
    return tuple(headers), position


def _header(key: bytes, value: bytes | None) -> Header:
    try:
        return Header(key.decode(), value)
    except UnicodeDecodeError:
        return Header(key.decode("utf-8", "replace"), value, key)


def header_key(header: Header) -> bytes:
    """Return the stored bytes of the header's key."""
    return header.key.encode() if header.raw_key is None else header.raw_key


def record_bytes(record: StoredRecord) -> bytes:
    """Encode a record, including its length."""
    parts = [b"\0", varint(record.timestamp_delta), varint(record.offset_delta)]
    _add_bytes(parts, record.key)
    _add_bytes(parts, record.value)
    parts.append(varint(len(record.headers)))
    for header in record.headers:
        _add_bytes(parts, header_key(header))
        _add_bytes(parts, header.value)
    body = b"".join(parts)
    return varint(len(body)) + body


def _add_bytes(parts: list[bytes], data: bytes | None) -> None:
    if data is None:
        parts.append(b"\x01")
    else:
        parts += (varint(len(data)), data)


def wrapped_int64(value: int) -> int:
    """Wrap ``value`` like Java's long, since a timestamp delta may overflow."""
    return (value + 2**63) % 2**64 - 2**63
