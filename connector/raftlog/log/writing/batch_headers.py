"""Iterate over the batch headers of a segment without reading the records.

For bytes that recovery or the writer has already checked: no CRC is computed. An implausible header
raises ``CorruptBatchError`` nevertheless. No numpy: opening a segment reads only the few headers
after its last index entry.
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
    """Position and header fields of one batch. Offsets are inclusive."""

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
    """Read the header of the batch at ``position``. Raises ``CorruptBatchError``."""
    return _header(file.read_at(position, BATCH_HEADER_BYTES), 0, file, position, end_position)


def iter_headers(file: ReadableFile, position: int, end_position: int) -> Iterator[BatchHeader]:
    """Yield the headers of all batches in [position, end_position), both batch boundaries.

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
        raise CorruptBatchError(
            reason="its header is incomplete", path=file.path, position=position
        )
    fields = BATCH_HEADER.unpack(head)
    base_offset, length, leader_epoch, _, _, attributes, last_offset_delta, _, max_ms = fields[:9]
    reason = header_damage(base_offset, attributes, last_offset_delta, fields[-1])
    byte_count = length + LOG_OVERHEAD_BYTES
    if reason is None and (length <= 0 or position + byte_count > end_position):
        reason = f"its {byte_count} bytes exceed the end of the segment at byte {end_position}"
    if reason is not None:
        raise CorruptBatchError(
            reason=reason, path=file.path, position=position, offset=base_offset
        )
    return BatchHeader(
        position, byte_count, base_offset, base_offset + last_offset_delta, leader_epoch, max_ms
    )
