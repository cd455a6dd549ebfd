"""Detection of files that are not segments at all: text, an archive, another program's log.

Damage rarely affects two fields, so one impossible field means a damaged segment. A file is foreign
only if at least two of base offset, length and magic of its first bytes are impossible in every
message format, and no valid batch follows. Kafka: ``Records`` (base offset, length),
``DefaultRecordBatch`` and ``LegacyRecord`` (magic).
"""

from __future__ import annotations

import struct
from typing import Final

from raftlog.errors import NotALogError
from raftlog.records.header import BATCH_MAGIC, INT32_MAX, LENGTH_MAX, MAGIC_POSITION
from raftlog.storage.protocol import ReadableFile

from .resync import find_valid_batch

_PREFIX: Final = struct.Struct(
    ">"
    "q"  # base_offset
    "i"  # length
    "i"  # leader_epoch; before magic 2 a CRC
    "b"  # magic
)
assert _PREFIX.size == MAGIC_POSITION + 1
_LEGACY_LENGTH_MIN: Final = 14
_OFFSET_LIKELY_MAX: Final = 2**48
"""More records than any log has; eight characters of text are a far larger number."""
_SHOWN_BYTES: Final = 24


def check_segment_format(file: ReadableFile, base_offset: int | None) -> None:
    """Raise ``NotALogError`` if ``file`` is not a segment, damaged or not.

    ``base_offset`` is that in the file's name, or None if the name has none.
    """
    head = file.read_at(0, _PREFIX.size)
    if not _is_foreign(head, base_offset):
        return
    if find_valid_batch(file, 0, base_offset) is None:
        shown = ascii(file.read_at(0, _SHOWN_BYTES))[1:]
        raise NotALogError(
            path=file.path, reason=f"it begins with {shown}, and no record batch follows"
        )


def _is_foreign(head: bytes, base_offset: int | None) -> bool:
    first_offset, length, _, magic = _PREFIX.unpack(head.ljust(_PREFIX.size, b"\0"))
    if base_offset is None:
        is_offset_possible = 0 <= first_offset <= _OFFSET_LIKELY_MAX
    else:
        is_offset_possible = 0 <= first_offset - base_offset <= INT32_MAX
    if len(head) < _PREFIX.size or not any(head):  # a torn batch, or preallocated zeros
        return any(head) and not is_offset_possible
    is_length_possible = _LEGACY_LENGTH_MIN <= length <= LENGTH_MAX
    is_magic_possible = 0 <= magic <= BATCH_MAGIC
    return [is_offset_possible, is_length_possible, is_magic_possible].count(True) <= 1
