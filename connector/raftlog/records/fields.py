"""Fields of Kafka's flexible messages, as far as control records use them.

Fixed-width numbers are big-endian. Lengths and counts are unsigned varints of the value plus 1; 0
means null, which no field of a control record may be (Kafka: ``MessageDataGenerator``). Every
structure ends with its tagged fields. Control records define none, so unknown ones are kept and
written back.

The reader raises ``CorruptBatchError`` without path, position and offset.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from raftlog.errors import CorruptBatchError, MalformedVarintError
from raftlog.limits import STRING_BYTES_MAX

from .varint import read_unsigned_varint, unsigned_varint

T = TypeVar("T")


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
