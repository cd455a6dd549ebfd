"""Walk over the headers of a segment's batches without reading what lies under them.

Rules of this file:

1. For bytes that a recovery or the writer itself has vouched for: no CRC is computed. A header that
   cannot be is ``CorruptBatchError`` all the same, so that nothing is ever guessed.
2. No numpy, no record: what opening a segment costs is the few headers behind its last index entry.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from raftlog.errors import CorruptBatchError
from raftlog.limits import BATCH_HEADER_BYTES, KIB, LOG_OVERHEAD_BYTES
from raftlog.records.header import BATCH_HEADER, header_damage, length_error
from raftlog.storage.protocol import ReadableFile

_CHUNK_BYTES: Final = 32 * KIB


@dataclass(frozen=True, slots=True)
class BatchHeader:
    """Where a batch lies and what its header says. Offsets are inclusive."""

    position: int
    byte_count: int
    base_offset: int
    last_offset: int
    leader_epoch: int
    max_timestamp_ms: int

    @property
    def end_position(self) -> int:
        return self.position + self.byte_count


def header_at(file: ReadableFile, position: int, end_position: int) -> BatchHeader:
    """The header of the batch at ``position``. Raises ``CorruptBatchError``."""
    return _header(file.read_at(position, BATCH_HEADER_BYTES), 0, file, position, end_position)


def iter_headers(file: ReadableFile, position: int, end_position: int) -> Iterator[BatchHeader]:
    """The headers of all batches in [position, end_position), which ends behind a batch.

    Raises ``CorruptBatchError``.
    """
    chunk, chunk_position = b"", position
    while position < end_position:
        at = position - chunk_position
        if at + BATCH_HEADER_BYTES > len(chunk):
            chunk, chunk_position, at = file.read_at(position, _CHUNK_BYTES), position, 0
        header = _header(chunk, at, file, position, end_position)
        yield header
        position = header.end_position


def _header(
    chunk: bytes, at: int, file: ReadableFile, position: int, end_position: int
) -> BatchHeader:
    head = chunk[at : at + BATCH_HEADER_BYTES]
    error = length_error(head, 0, file.path, position)
    if error is not None:
        raise error
    if len(head) < BATCH_HEADER_BYTES:
        raise CorruptBatchError(reason="its header is not whole", path=file.path, position=position)
    fields = BATCH_HEADER.unpack(head)
    base_offset, length, leader_epoch, _, _, attributes, last_offset_delta, _, max_ms = fields[:9]
    reason = header_damage(base_offset, attributes, last_offset_delta, fields[-1])
    byte_count = length + LOG_OVERHEAD_BYTES
    if reason is None and (length <= 0 or position + byte_count > end_position):
        reason = f"its {byte_count} bytes reach behind the end of the log at {end_position}"
    if reason is not None:
        raise CorruptBatchError(
            reason=reason, path=file.path, position=position, offset=base_offset
        )
    return BatchHeader(
        position, byte_count, base_offset, base_offset + last_offset_delta, leader_epoch, max_ms
    )
