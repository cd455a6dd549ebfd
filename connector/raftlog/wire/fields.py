"""Fields of requests and responses, as they are read and written.

``codec`` derives the readers and writers of most messages from schemas. The codecs of Produce, of
Fetch and of headers, which every append and read uses, name one field after the other.

Invariants of the decoder, which raises ``MalformedMessageError``:

1. No length is trusted. Before anything is allocated, a string, array or tagged field must fit into
   the remaining bytes; for an array, its elements' minimum size counts. The number of array
   elements and tags in a message is limited, because an element of three bytes becomes an object of
   hundreds of bytes.
2. The decoder accepts only what Kafka's encoders produce: varints have at most five bytes, tags
   ascend, and tagged fields have exactly their stated length. An unknown error code becomes
   ``unknown_server_error`` (Kafka: ``Errors.forCode``). An unknown tag is skipped.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, NoReturn, TypeAlias, TypeVar

from kio.schema.errors import ErrorCode

from raftlog.limits import STRING_BYTES_MAX, WIRE_ELEMENTS_MAX
from raftlog.records.fields import MalformedVarintError, read_unsigned_varint, unsigned_varint

from .errors import MalformedMessageError, UnsupportedFieldError

T = TypeVar("T")
_ERRORS: Final = {int(one): one for one in ErrorCode}
ID_BYTES: Final = 16
NO_TAGS: Final = b"\x00"
TOPIC_IDS_FROM: Final = 13
_INT32: Final = struct.Struct(">i")
_NO_RACK: Final = b"\x00"


# --- Decoding -------------------------------------------------------------------------------------


class Cursor:
    """Read position in the bytes of one message, with the limits of what may be read."""

    __slots__ = ("_api", "_version", "data", "elements_left", "end", "position")

    def __init__(
        self,
        data: bytes,
        api: str,
        version: int | None,
        *,
        start: int = 0,
        elements_max: int = WIRE_ELEMENTS_MAX,
    ) -> None:
        self.data = data
        self.position = start
        self.end = len(data)
        self.elements_left = elements_max
        self._api = api
        self._version = version

    def fail(self, reason: str) -> NoReturn:
        raise MalformedMessageError(
            api=self._api, version=self._version, position=self.position, reason=reason
        ) from None

    def take(self, byte_count: int, name: str) -> bytes:
        after = self.position + byte_count
        if after > self.end:
            self.fail(
                f"{name} has length {byte_count}, but {self.end - self.position} bytes remain"
            )
        taken = self.data[self.position : after]
        self.position = after
        return taken

    def unsigned(self, name: str) -> int:
        """Read an unsigned varint."""
        position = self.position
        if position < self.end and (value := self.data[position]) < 0x80:
            self.position = position + 1
            return value
        try:
            value, after = read_unsigned_varint(self.data, self.position)
        except MalformedVarintError as error:
            self.fail(f"{name}: malformed varint: {error.reason}")
        if after > self.end:
            self.fail(f"{name}: varint extends past the end of its field")
        self.position = after
        return value

    def unpack(self, layout: struct.Struct, name: str) -> tuple[Any, ...]:
        """Read fields of fixed width."""
        position = self.position
        after = position + layout.size
        if after > self.end:
            self.fail(f"{name} takes {layout.size} bytes, but {self.end - position} remain")
        self.position = after
        return layout.unpack_from(self.data, position)

    def length(self, name: str, width: int, *, is_compact: bool) -> int:
        """Read the length of a string or array; negative for null."""
        if is_compact:
            return self.unsigned(name) - 1
        return int.from_bytes(self.take(width, name), "big", signed=True)

    def count(
        self, name: str, byte_count_min: int, *, is_compact: bool, is_nullable: bool = False
    ) -> int:
        """Read the size of an array with elements of ``byte_count_min`` bytes or more; -1: null."""
        count = self.length(name, 4, is_compact=is_compact)
        if count < 0:
            return -1 if is_nullable else self.fail(f"{name} must not be null")
        if count * byte_count_min > self.end - self.position:
            self.fail(f"{name} has {count} elements, but {self.end - self.position} bytes remain")
        self.spend(count, name)
        return count

    def string(self, name: str, *, is_compact: bool, is_nullable: bool = False) -> str | None:
        byte_count = self.length(name, 2, is_compact=is_compact)
        if byte_count < 0:
            return None if is_nullable else self.fail(f"{name} must not be null")
        if byte_count > STRING_BYTES_MAX:
            self.fail(f"{name} has length {byte_count}, but at most {STRING_BYTES_MAX} is allowed")
        try:
            return self.take(byte_count, name).decode()
        except UnicodeDecodeError:
            self.fail(f"{name} is not UTF-8")

    def finish(self) -> None:
        """Check that no bytes remain."""
        if self.position != self.end:
            self.fail(f"{self.end - self.position} bytes remain after the message")

    def spend(self, count: int, name: str) -> None:
        """Count array elements and tags towards the message's limit."""
        if count > self.elements_left:
            self.fail(f"{name} has {count} elements, but {self.elements_left} more are allowed")
        self.elements_left -= count


Reader: TypeAlias = Callable[[Cursor], Any]


def read_tagged(
    cursor: Cursor, tagged: Mapping[int, tuple[str, Reader]], values: dict[str, Any]
) -> None:
    """Read tagged fields into ``values``; ``tagged`` maps tags to names and readers."""
    count = cursor.unsigned("tagged fields")
    if count == 0:
        return
    cursor.spend(count, "tagged fields")
    last_tag = -1
    for _ in range(count):
        tag = cursor.unsigned("a tag")
        if tag <= last_tag:
            cursor.fail(f"tag {tag} follows tag {last_tag}: tags must ascend")
        last_tag = tag
        byte_count = cursor.unsigned("the length of a tagged field")
        known = tagged.get(tag)
        if known is None:
            _skip(cursor, byte_count)
            continue
        name, reader = known
        values[name] = _read_bounded(cursor, reader, byte_count, name)


def _read_bounded(cursor: Cursor, reader: Reader, byte_count: int, name: str) -> Any:
    """Read a tagged field, which must take exactly ``byte_count`` bytes."""
    outer, inner = cursor.end, cursor.position + byte_count
    if inner > outer:
        cursor.fail(f"{name} has length {byte_count}, but {outer - cursor.position} bytes remain")
    cursor.end = inner
    value = reader(cursor)
    if cursor.position != inner:
        cursor.fail(f"{name}: {inner - cursor.position} of its {byte_count} bytes are unread")
    cursor.end = outer
    return value


def skip_tagged(cursor: Cursor) -> None:
    """Skip the tagged fields of a structure that defines none."""
    if cursor.position < cursor.end and not cursor.data[cursor.position]:
        cursor.position += 1
        return
    read_tagged(cursor, {}, {})


def _skip(cursor: Cursor, byte_count: int) -> None:
    if byte_count > cursor.end - cursor.position:
        cursor.fail(
            f"an unknown tagged field has length {byte_count}, but "
            f"{cursor.end - cursor.position} bytes remain"
        )
    cursor.position += byte_count


def error_of(code: int) -> ErrorCode:
    """Return the error with this code; ``unknown_server_error`` for an unknown code.

    Kafka: ``Errors.forCode``.
    """
    return _ERRORS.get(code, ErrorCode.unknown_server_error)


# --- Encoding -------------------------------------------------------------------------------------


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


# --- Topics, records and endpoints of Produce and Fetch -------------------------------------------
# In both APIs a topic is identified by its name up to version 12, and by the 16 bytes of its id
# from version 13 on.


class LeaderEndpoint(NamedTuple):
    """Node to which a response refers (KIP-951)."""

    node_id: int
    host: str
    port: int


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


def encode_endpoints(api: str, version: int, endpoints: Sequence[LeaderEndpoint]) -> bytes:
    """Return the tagged field with the endpoints, without racks, if there are any."""
    if not endpoints:
        return NO_TAGS
    parts = [unsigned_varint(len(endpoints) + 1)]
    for node_id, host, port in endpoints:
        text = encode_text(api, version, "host", host, is_compact=True)
        parts += (_INT32.pack(node_id), text, _INT32.pack(port), _NO_RACK, NO_TAGS)
    return encode_tagged((0, b"".join(parts)))
