"""Codec of the parts that Produce and Fetch share.

These are topics with their partitions, records, strings, tagged fields and the leader's endpoint.
In both APIs a topic is identified by its name up to version 12, and by the 16 bytes of its id from
version 13 on.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple, TypeVar

from raftlog.limits import STRING_BYTES_MAX
from raftlog.records.fields import unsigned_varint

from .codec import Cursor, skip_tagged
from .errors import UnsupportedFieldError

T = TypeVar("T")
ID_BYTES: Final = 16
NO_TAGS: Final = b"\x00"
TOPIC_IDS_FROM: Final = 13
_INT32: Final = struct.Struct(">i")
_NO_RACK: Final = b"\x00"


class LeaderEndpoint(NamedTuple):
    """Node to which a response refers (KIP-951)."""

    node_id: int
    host: str
    port: int


# --- Decoding -------------------------------------------------------------------------------------


def read_topics(
    cursor: Cursor,
    version: int,
    read_partition: Callable[[Cursor, int], T],
    partition_bytes_min: int,
    *,
    is_flexible: bool,
) -> Iterator[tuple[bytes, str, list[T]]]:
    """Yield each topic's id, name and partitions; either the id or the name is empty."""
    has_ids = version >= TOPIC_IDS_FROM
    topic_bytes_min = (ID_BYTES if has_ids else 1) + 1 + is_flexible
    for _ in range(cursor.count("topics", topic_bytes_min, is_compact=is_flexible)):
        topic_id, name = b"", ""
        if has_ids:
            topic_id = cursor.take(ID_BYTES, "topic_id")
        else:
            name = cursor.string("topic", is_compact=is_flexible) or ""
        count = cursor.count("partitions", partition_bytes_min, is_compact=is_flexible)
        partitions = [read_partition(cursor, version) for _ in range(count)]
        if is_flexible:
            skip_tagged(cursor)
        yield topic_id, name, partitions


def read_records(cursor: Cursor, *, is_compact: bool) -> bytes | None:
    byte_count = cursor.length("records", _INT32.size, is_compact=is_compact)
    return None if byte_count < 0 else cursor.take(byte_count, "records")


# --- Encoding -------------------------------------------------------------------------------------


def encode_topics(
    out: list[bytes],
    api: str,
    version: int,
    topics: Sequence[tuple[bytes, str, Sequence[T]]],
    encode_partition: Callable[[list[bytes], T, int], None],
    *,
    is_flexible: bool,
) -> None:
    """Append topics: their ids, names and partitions.

    Raises ``UnsupportedFieldError`` for a name that is too long or cannot be encoded.
    """
    out.append(encode_count(len(topics), is_compact=is_flexible))
    for topic_id, name, partitions in topics:
        if version >= TOPIC_IDS_FROM:
            out.append(topic_id)
        else:
            out.append(encode_text(api, version, "topic", name, is_compact=is_flexible))
        out.append(encode_count(len(partitions), is_compact=is_flexible))
        for one in partitions:
            encode_partition(out, one, version)
        if is_flexible:
            out.append(NO_TAGS)


def encode_records(out: list[bytes], records: bytes | None, *, is_compact: bool) -> None:
    """Append records as a separate part; their length is encoded like an array's."""
    out.append(encode_count(-1 if records is None else len(records), is_compact=is_compact))
    if records:
        out.append(records)


def encode_count(count: int, *, is_compact: bool) -> bytes:
    """Return the encoded number of elements of an array; -1 for null."""
    return unsigned_varint(count + 1) if is_compact else _INT32.pack(count)


def encode_text(api: str, version: int, field: str, text: str | None, *, is_compact: bool) -> bytes:
    """Return an encoded string. Raises ``UnsupportedFieldError`` if that is not possible."""
    if text is None:
        return b"\x00" if is_compact else b"\xff\xff"
    try:
        data = text.encode()
    except UnicodeEncodeError:
        data, reason = b"", "the string cannot be encoded as UTF-8"
    else:
        reason = f"the string has {len(data)} bytes, but at most {STRING_BYTES_MAX} are allowed"
        if len(data) <= STRING_BYTES_MAX:
            length = unsigned_varint(len(data) + 1) if is_compact else len(data).to_bytes(2, "big")
            return length + data
    raise UnsupportedFieldError(api=api, version=version, field=field, reason=reason)


def encode_tagged(*fields: tuple[int, bytes]) -> bytes:
    """Return encoded tagged fields: fewer than 128, with ascending tags below 128."""
    if not fields:
        return NO_TAGS
    parts = [bytes((len(fields),))]
    for tag, data in fields:
        parts += (bytes((tag,)), unsigned_varint(len(data)), data)
    return b"".join(parts)


def encode_endpoints(api: str, version: int, endpoints: Sequence[LeaderEndpoint]) -> bytes:
    """Return the tagged field with the endpoints, without racks, if there are any."""
    if not endpoints:
        return NO_TAGS
    parts = [unsigned_varint(len(endpoints) + 1)]
    for node_id, host, port in endpoints:
        text = encode_text(api, version, "host", host, is_compact=True)
        parts += (_INT32.pack(node_id), text, _INT32.pack(port), _NO_RACK, NO_TAGS)
    return encode_tagged((0, b"".join(parts)))
