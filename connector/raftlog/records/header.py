"""Layout and validation of the header of a magic-2 record batch (Kafka: ``DefaultRecordBatch``).

The CRC does not cover base offset, length, leader epoch and magic. Length and magic are checked
first, since they determine where the CRC and its bytes are (``length_error``; Kafka:
``ByteBufferLogInputStream``). The other fields are checked after the CRC (``header_damage``).
"""

from __future__ import annotations

import enum
import struct
from typing import Final

from raftlog.errors import CorruptBatchError, UnsupportedMagicError
from raftlog.limits import (
    BATCH_HEADER_BYTES,
    INT32_MAX,
    INT64_MAX,
    LOG_OVERHEAD_BYTES,
    READ_BATCH_BYTES_MAX,
)

from .compression import Compression
from .fields import Buffer

BATCH_HEADER: Final = struct.Struct(
    ">"
    "q"  # base_offset
    "i"  # batch_length: bytes after this field
    "i"  # leader_epoch: not covered by the CRC, set by the leader
    "b"  # magic: 2
    "I"  # crc: CRC-32C of all bytes after this field
    "h"  # attributes
    "i"  # last_offset_delta
    "q"  # base_timestamp_ms, or the delete horizon
    "q"  # max_timestamp_ms
    "q"  # producer_id
    "h"  # producer_epoch
    "i"  # base_sequence
    "i"  # record_count
)
CRC_START: Final = struct.calcsize(">qiibI")
MAGIC_POSITION: Final = struct.calcsize(">qii")
BATCH_MAGIC: Final = 2
LENGTH_MIN: Final = BATCH_HEADER_BYTES - LOG_OVERHEAD_BYTES
LENGTH_MAX: Final = READ_BATCH_BYTES_MAX - LOG_OVERHEAD_BYTES
RECORD_BYTES_MIN: Final = 7
"""Smallest record: seven fields of one byte each."""

COMPRESSION_BITS: Final = 0x07
TIMESTAMP_TYPE_BIT: Final = 0x08
TRANSACTIONAL_BIT: Final = 0x10
CONTROL_BIT: Final = 0x20
DELETE_HORIZON_BIT: Final = 0x40

LENGTH_POSITION: Final = struct.calcsize(">q")
BATCH_LENGTH: Final = struct.Struct(">i")

assert (BATCH_HEADER.size, CRC_START, MAGIC_POSITION) == (BATCH_HEADER_BYTES, 21, 16)


class TimestampType(enum.IntEnum):
    """Origin of a record's timestamp: its producer or the log (Kafka: ``TimestampType``)."""

    CREATE_TIME = 0
    LOG_APPEND_TIME = 1


def header_damage(
    base_offset: int, attributes: int, last_offset_delta: int, record_count: int
) -> str | None:
    """Return why a header with a matching CRC is invalid, or None."""
    if base_offset < 0 or base_offset > INT64_MAX - INT32_MAX:
        return f"invalid base offset {base_offset}"
    if attributes & COMPRESSION_BITS > Compression.ZSTD:
        return f"unknown compression codec {attributes & COMPRESSION_BITS}"
    if last_offset_delta < 0 or record_count < 0 or record_count > last_offset_delta + 1:
        return f"invalid record count {record_count} with last offset delta {last_offset_delta}"
    return None


def length_error(
    buffer: Buffer, position: int, path: str | None, file_position: int
) -> CorruptBatchError | None:
    """Return why the bytes at ``position`` are not the start of a batch, or None.

    Only length and magic are checked, as far as the buffer has them. Zeros up to the end of the
    buffer are not an error.
    """
    left = len(buffer) - position
    if left < LOG_OVERHEAD_BYTES:
        return None
    (base_offset,) = struct.unpack_from(">q", buffer, position)
    (length,) = BATCH_LENGTH.unpack_from(buffer, position + LENGTH_POSITION)
    magic = buffer[position + MAGIC_POSITION] if left > MAGIC_POSITION else BATCH_MAGIC
    if length == 0 and is_zero(buffer, position):
        return None
    at = position + file_position
    if magic < BATCH_MAGIC and 14 <= length <= LENGTH_MAX:
        return UnsupportedMagicError(
            reason=f"message format of Kafka before 0.11 (magic {magic}) is not supported",
            path=path,
            position=at,
            offset=base_offset,
            magic=magic,
        )
    reason = None
    is_foreign = magic > BATCH_MAGIC  # not Kafka's bytes: the error must not show an offset
    if is_foreign and not LENGTH_MIN <= length <= LENGTH_MAX:
        reason = "not a record batch, both length and magic are invalid"
    elif not LENGTH_MIN <= length <= LENGTH_MAX:
        reason = f"invalid batch length {length}"
    elif magic != BATCH_MAGIC:
        reason = f"unknown magic {magic}"
    if reason is None:
        return None
    offset = None if is_foreign else base_offset
    return CorruptBatchError(reason=reason, path=path, position=at, offset=offset)


def is_zero(buffer: Buffer, position: int) -> bool:
    """Return whether all bytes from ``position`` on are zero, as at the end of a preallocated
    file."""
    rest = memoryview(buffer)[position:]
    zeros = bytes(4096)
    return all(rest[at : at + 4096] == zeros[: len(rest) - at] for at in range(0, len(rest), 4096))
