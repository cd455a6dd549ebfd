"""The header of a magic-2 record batch: its layout, declared once, and what it may not say.

Rules of this file:

1. Offset, length, epoch and magic lie outside the CRC. Length and magic are looked at first, since
   they say where the CRC's bytes are (``length_error``); the rest is believed only after the CRC
   held, and even then must make sense (``header_damage``).
2. Kafka: ``DefaultRecordBatch``, ``ByteBufferLogInputStream``.
"""

from __future__ import annotations

import enum
import struct
from typing import Final

from raftlog.errors import CorruptBatchError, UnsupportedMagicError
from raftlog.limits import BATCH_HEADER_BYTES, LOG_OVERHEAD_BYTES, READ_BATCH_BYTES_MAX

from .compression import Compression
from .varint import Buffer

BATCH_HEADER: Final = struct.Struct(
    ">"
    "q"  # base_offset
    "i"  # batch_length: bytes after this field
    "i"  # leader_epoch: outside the CRC, the leader stamps it
    "b"  # magic: 2
    "I"  # crc: CRC-32C of everything below
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
"""Seven fields of a byte each: how many records a stream of bytes can hold at most."""
INT32_MAX: Final = 2**31 - 1
INT64_MAX: Final = 2**63 - 1

COMPRESSION_BITS: Final = 0x07
TIMESTAMP_TYPE_BIT: Final = 0x08
TRANSACTIONAL_BIT: Final = 0x10
CONTROL_BIT: Final = 0x20
DELETE_HORIZON_BIT: Final = 0x40

LENGTH_POSITION: Final = struct.calcsize(">q")
BATCH_LENGTH: Final = struct.Struct(">i")

assert (BATCH_HEADER.size, CRC_START, MAGIC_POSITION) == (BATCH_HEADER_BYTES, 21, 16)


class TimestampType(enum.IntEnum):
    """Whose clock a record's time is: its producer's or the log's (Kafka: ``TimestampType``)."""

    CREATE_TIME = 0
    LOG_APPEND_TIME = 1


def header_damage(
    base_offset: int, attributes: int, last_offset_delta: int, record_count: int
) -> str | None:
    """What is impossible in a header whose CRC held, or None."""
    if base_offset < 0 or base_offset > INT64_MAX - INT32_MAX:
        return f"its base offset is {base_offset}"
    if attributes & COMPRESSION_BITS > Compression.ZSTD:
        return f"its compression is {attributes & COMPRESSION_BITS}, which no codec has"
    if last_offset_delta < 0 or record_count < 0 or record_count > last_offset_delta + 1:
        return f"it claims {record_count} records up to offset delta {last_offset_delta}"
    return None


def length_error(
    buffer: Buffer, position: int, path: str | None, file_position: int
) -> CorruptBatchError | None:
    """Why the bytes at ``position`` cannot begin a batch, as far as they are there, or None.

    Looks at length and magic only, which no CRC covers. Zeros to the end are no error.
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
            reason=f"it is in the format of Kafka before 0.11 (magic {magic})",
            path=path,
            position=at,
            offset=base_offset,
            magic=magic,
        )
    reason = None
    is_foreign = magic > BATCH_MAGIC  # then it has no offset, and its bytes are not to be shown
    if is_foreign and not LENGTH_MIN <= length <= LENGTH_MAX:
        reason = "its bytes are not those of a record batch: neither length nor magic is"
    elif not LENGTH_MIN <= length <= LENGTH_MAX:
        reason = f"its length is {length}"
    elif magic != BATCH_MAGIC:
        reason = f"its magic is {magic}"
    if reason is None:
        return None
    offset = None if is_foreign else base_offset
    return CorruptBatchError(reason=reason, path=path, position=at, offset=offset)


def is_zero(buffer: Buffer, position: int) -> bool:
    """Whether nothing but zeros follows: what a preallocated file holds behind its end."""
    rest = memoryview(buffer)[position:]
    zeros = bytes(4096)
    return all(rest[at : at + 4096] == zeros[: len(rest) - at] for at in range(0, len(rest), 4096))
