"""One record inside a batch, both ways.

Layout (Kafka: ``DefaultRecord``): length of what follows, attributes (always 0), timestamp delta,
offset delta, key length and key, value length and value, header count, and for each header key
length, key, value length, value. Every number but the attributes is a zigzag varint; a length of
-1 is null.

Rules of this file:

1. A record fills its length exactly. Anything else is ``CorruptBatchError`` without a place, which
   the batch adds. The number of headers is checked before one is decoded (``HeaderLimitError``).
2. Header keys are UTF-8; damaged letters are replaced where they are read, as Kafka replaces them,
   and written again as they were.
3. Keys and values stay out of every ``repr``: they may be secret.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from raftlog.errors import CorruptBatchError, HeaderLimitError, MalformedVarintError
from raftlog.limits import HEADERS_PER_RECORD_MAX

from .varint import read_varint, read_varlong, varint


@dataclass(frozen=True, slots=True)
class Header:
    """A record's header. Keys may repeat.

    ``raw_key``: the key as it is stored, if it is not UTF-8; ``key`` has U+FFFD in its place.
    """

    key: str
    value: bytes | None = field(repr=False)
    raw_key: bytes | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Record:
    """A record that was read, with its own offset and time."""

    offset: int
    timestamp_ms: int
    key: bytes | None = field(repr=False)
    value: bytes | None = field(repr=False)
    headers: tuple[Header, ...] = ()


@dataclass(frozen=True, slots=True)
class NewRecord:
    """A record to be written: the log gives it its offset.

    ``timestamp_ms`` None means the batch's. ``offset_delta`` None means one more than the record
    before it; only a log that was compacted skips offsets inside a batch.
    """

    key: bytes | None = field(repr=False)
    value: bytes | None = field(repr=False)
    timestamp_ms: int | None = None
    headers: tuple[Header, ...] = ()
    offset_delta: int | None = None


@dataclass(frozen=True, slots=True)
class StoredRecord:
    """A record as it lies there: deltas against its batch."""

    timestamp_delta: int
    offset_delta: int
    key: bytes | None = field(repr=False)
    value: bytes | None = field(repr=False)
    headers: tuple[Header, ...]


def read_record(data: bytes, position: int) -> tuple[StoredRecord, int]:
    """Read the record at ``position``. Returns it and the position behind it.

    Raises ``CorruptBatchError`` without a place.
    """
    try:
        byte_count, position = read_varint(data, position)
        end = position + byte_count
        if byte_count < 1 or end > len(data):
            raise CorruptBatchError(
                reason=f"its length is {byte_count} and {len(data) - position} bytes are left"
            )
        timestamp_delta, position = read_varlong(data, position + 1)
        offset_delta, position = read_varint(data, position)
        key, position = _read_bytes(data, position, end, "key")
        value, position = _read_bytes(data, position, end, "value")
        headers, position = _read_headers(data, position, end)
    except MalformedVarintError as error:
        raise CorruptBatchError(reason=f"a varint is malformed: {error.reason}") from None
    if position != end:
        raise CorruptBatchError(
            reason=f"its length is {byte_count} and its fields take {byte_count + position - end}"
        )
    return StoredRecord(timestamp_delta, offset_delta, key, value, headers), end


def _read_bytes(data: bytes, position: int, end: int, what: str) -> tuple[bytes | None, int]:
    byte_count, position = read_varint(data, position)
    if byte_count == -1:
        return None, position
    after = position + byte_count
    if byte_count < 0 or after > end:
        raise CorruptBatchError(reason=f"its {what} claims {byte_count} bytes")
    return data[position:after], after


def _read_headers(data: bytes, position: int, end: int) -> tuple[tuple[Header, ...], int]:
    count, position = read_varint(data, position)
    if count == 0:
        return (), position
    if not 0 < 2 * count <= end - position:  # a header has two lengths of a byte at least
        raise CorruptBatchError(reason=f"it claims {count} headers")
    if count > HEADERS_PER_RECORD_MAX:
        raise HeaderLimitError(
            reason=f"it has {count} headers, and {HEADERS_PER_RECORD_MAX} are allowed",
            header_count_max=HEADERS_PER_RECORD_MAX,
        )
    headers = []
    for _ in range(count):
        key, position = _read_bytes(data, position, end, "header key")
        value, position = _read_bytes(data, position, end, "header value")
        if key is None:
            raise CorruptBatchError(reason="a header has no key")
        headers.append(_header(key, value))
    return tuple(headers), position


def _header(key: bytes, value: bytes | None) -> Header:
    try:
        return Header(key.decode(), value)
    except UnicodeDecodeError:
        return Header(key.decode("utf-8", "replace"), value, key)


def header_key(header: Header) -> bytes:
    """Return the key as it is stored."""
    return header.key.encode() if header.raw_key is None else header.raw_key


def record_bytes(record: StoredRecord) -> bytes:
    """The record with its length in front."""
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
    """Wrap as Java's long does: a time's delta may reach across the whole range."""
    return (value + 2**63) % 2**64 - 2**63
