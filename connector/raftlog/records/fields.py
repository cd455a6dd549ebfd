"""Variable-length integers of Kafka's records, and the fields of its flexible messages.

Varints are little-endian base 128 with continuation bit 0x80 (Kafka: ``ByteUtils``). Records use
zigzag varints (``read_varint``, ``read_varlong``), flexible messages unsigned ones
(``read_unsigned_varint``).

These functions return the value and the position after it. They raise ``MalformedVarintError`` if
the data ends inside the varint, if a 32-bit varint has more than 5 bytes or a 64-bit one more than
10, or if the value has more bits than its type.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from raftlog.errors import CorruptBatchError, LogError
from raftlog.limits import STRING_BYTES_MAX, VARINT_BYTES_MAX, VARLONG_BYTES_MAX

T = TypeVar("T")
Buffer = bytes | bytearray | memoryview


class MalformedVarintError(LogError, code="RAFTLOG_MALFORMED_VARINT"):
    """Bytes that are not a varint. Decoders convert it into the error of their own format."""

    position: int
    reason: str

    def message(self) -> str:
        return f"malformed varint at byte {self.position}: {self.reason}"


def _read(buffer: Buffer, position: int, byte_count_max: int, bit_count: int) -> tuple[int, int]:
    value = 0
    shift = 0
    end = min(len(buffer), position + byte_count_max)
    for at in range(position, end):
        byte = buffer[at]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value >> bit_count:
                raise MalformedVarintError(
                    position=position, reason=f"value has more than {bit_count} bits"
                )
            return value, at + 1
        shift += 7
    if end - position == byte_count_max:
        raise MalformedVarintError(
            position=position, reason=f"it is longer than {byte_count_max} bytes"
        )
    raise MalformedVarintError(position=position, reason="unexpected end of data")


def read_unsigned_varint(buffer: Buffer, position: int) -> tuple[int, int]:
    """Read an unsigned 32-bit varint; return the value and the position after it."""
    if 0 <= position < len(buffer) and buffer[position] < 0x80:
        return buffer[position], position + 1
    return _read(buffer, position, VARINT_BYTES_MAX, 32)


def read_varint(buffer: Buffer, position: int) -> tuple[int, int]:
    """Read a zigzag 32-bit varint; return the value and the position after it."""
    return _short(buffer, position) or _zigzag(*_read(buffer, position, VARINT_BYTES_MAX, 32))


def read_varlong(buffer: Buffer, position: int) -> tuple[int, int]:
    """Read a zigzag 64-bit varint; return the value and the position after it."""
    return _short(buffer, position) or _zigzag(*_read(buffer, position, VARLONG_BYTES_MAX, 64))


def _short(buffer: Buffer, position: int) -> tuple[int, int] | None:
    """Read a zigzag varint of one or two bytes, as nearly all are; None for any other."""
    left = len(buffer) - position
    if left > 1 and position >= 0:
        first = buffer[position]
        if first < 0x80:
            return (first >> 1) ^ -(first & 1), position + 1
        second = buffer[position + 1]
        if second < 0x80:
            return ((first & 0x7F | second << 7) >> 1) ^ -(first & 1), position + 2
    return None


def _zigzag(raw: int, after: int) -> tuple[int, int]:
    return (raw >> 1) ^ -(raw & 1), after


def unsigned_varint(value: int) -> bytes:
    """Encode ``value``, which must not be negative, as an unsigned varint."""
    assert value >= 0, "an unsigned varint is never negative"
    if value < 0x80:
        return _ONE_BYTE[value]
    if value < 0x4000:
        return bytes((value & 0x7F | 0x80, value >> 7))
    if value < 0x20_0000:
        return bytes((value & 0x7F | 0x80, value >> 7 & 0x7F | 0x80, value >> 14))
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def varint(value: int) -> bytes:
    """Encode a signed 32-bit or 64-bit ``value`` as a zigzag varint (both have the same bytes)."""
    return unsigned_varint(value << 1 if value >= 0 else (-value << 1) - 1)


def varint_byte_count(value: int) -> int:
    """Return the number of bytes of ``varint(value)``."""
    raw = value << 1 if value >= 0 else (-value << 1) - 1
    return (raw.bit_length() + 6) // 7 or 1


_ONE_BYTE = tuple(bytes([value]) for value in range(0x80))


# --- Fields of flexible messages: those of control records and of producer snapshots --------------
# Fixed-width numbers are big-endian. Lengths and counts are unsigned varints of the value plus 1; 0
# means null, which these messages do not allow (Kafka: ``MessageDataGenerator``). Every structure
# ends with its tagged fields. Unknown ones are kept and written back.
#
# The reader raises ``CorruptBatchError`` without path, position and offset.


@dataclass(frozen=True, slots=True)
class TaggedField:
    """Tagged field that this version of the format does not define."""

    tag: int
    data: bytes


class FieldReader:
    """Sequential reader of the fields of a message."""

    __slots__ = ("_data", "_position")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0

    def int16(self) -> int:
        return self._number(">h", 2)

    def uint16(self) -> int:
        return self._number(">H", 2)

    def int32(self) -> int:
        return self._number(">i", 4)

    def int64(self) -> int:
        return self._number(">q", 8)

    def uuid(self) -> str:
        """Read a UUID as Kafka's text: URL-safe base64 without padding, 22 characters."""
        return base64.urlsafe_b64encode(self._take(16)).rstrip(b"=").decode()

    def string(self) -> str:
        byte_count = self._unsigned() - 1
        if not 0 <= byte_count <= STRING_BYTES_MAX:
            raise CorruptBatchError(reason=f"invalid string length {byte_count}")
        return self._take(byte_count).decode("utf-8", "replace")

    def array(self, element: Callable[[FieldReader], T]) -> tuple[T, ...]:
        count = self._unsigned() - 1
        if not 0 <= count <= len(self._data) - self._position:
            raise CorruptBatchError(reason=f"invalid array length {count}")
        return tuple(element(self) for _ in range(count))

    def tagged_fields(self) -> tuple[TaggedField, ...]:
        count = self._unsigned()
        if count > len(self._data) - self._position:
            raise CorruptBatchError(reason=f"invalid number of tagged fields {count}")
        return tuple(
            TaggedField(self._unsigned(), self._take(self._unsigned())) for _ in range(count)
        )

    def rest(self) -> bytes:
        return self._take(len(self._data) - self._position)

    def _number(self, layout: str, byte_count: int) -> int:
        number: int = struct.unpack(layout, self._take(byte_count))[0]
        return number

    def _unsigned(self) -> int:
        try:
            value, self._position = read_unsigned_varint(self._data, self._position)
        except MalformedVarintError as error:
            raise CorruptBatchError(reason=f"malformed varint: {error.reason}") from None
        return value

    def _take(self, byte_count: int) -> bytes:
        end = self._position + byte_count
        if end > len(self._data):
            raise CorruptBatchError(
                reason=f"field of {byte_count} bytes, but only "
                f"{len(self._data) - self._position} bytes are left"
            )
        taken = self._data[self._position : end]
        self._position = end
        return taken


def uuid_bytes(text: str) -> bytes:
    """Return the 16 bytes of a UUID in Kafka's text form (22 characters)."""
    data = base64.urlsafe_b64decode(text + "==")
    assert len(data) == 16, "a UUID has 16 bytes"
    return data


def string_bytes(text: str) -> bytes:
    data = text.encode()
    return unsigned_varint(len(data) + 1) + data


def array_bytes(elements: tuple[bytes, ...]) -> bytes:
    return unsigned_varint(len(elements) + 1) + b"".join(elements)


def tagged_bytes(tagged: tuple[TaggedField, ...]) -> bytes:
    out = [unsigned_varint(len(tagged))]
    for field in tagged:
        out += (unsigned_varint(field.tag), unsigned_varint(len(field.data)), field.data)
    return b"".join(out)
