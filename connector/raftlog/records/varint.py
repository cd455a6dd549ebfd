"""Variable-length integers of Kafka's records and flexible messages (Kafka: ``ByteUtils``).

Varints are little-endian base 128 with continuation bit 0x80. Records use zigzag varints
(``read_varint``, ``read_varlong``), flexible messages unsigned ones (``read_unsigned_varint``).

Readers return the value and the position after it. They raise ``MalformedVarintError`` if the data
ends inside the varint, if a 32-bit varint has more than 5 bytes or a 64-bit one more than 10, or if
the value has more bits than its type.
"""

from __future__ import annotations

from raftlog.errors import LogError
from raftlog.limits import VARINT_BYTES_MAX, VARLONG_BYTES_MAX

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
