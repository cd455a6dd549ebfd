"""Batch headers of a segment, and batch boundaries by offset."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from raftlog.errors import CorruptBatchError, LogNotFoundError
from raftlog.limits import BATCH_HEADER_BYTES, KIB, LOG_OVERHEAD_BYTES, MIB
from raftlog.log.format.epoch_cache import EpochCache
from raftlog.log.format.names import INDEX_SUFFIX, LOG_SUFFIX, TIME_INDEX_SUFFIX, offset_name
from raftlog.records.batch import RecordBatch, TornTail, read_batch
from raftlog.records.header import BATCH_HEADER, INT64_MAX, LENGTH_MIN, header_damage, length_error
from raftlog.storage.protocol import ReadableFile, Storage

from .indexer import NO_TIMESTAMP_MS, OFFSET_ENTRY, TIME_ENTRY

# --- Iterate over the batch headers of a segment without reading the records ----------------------
# For bytes that recovery or the writer has already checked: no CRC is computed. An implausible
# header raises ``CorruptBatchError`` nevertheless. No numpy: opening a segment reads only the few
# headers after its last index entry.

_HEADER_CHUNK_BYTES: Final = 32 * KIB


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
            chunk, chunk_position, at = file.read_at(position, _HEADER_CHUNK_BYTES), position, 0
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


# --- Look up batch boundaries in a segment, and read the batches between two of them --------------
# The offset index is a hint: a position from it is used only if a batch that ends with the entry's
# offset begins there. Otherwise the search starts at the beginning of the segment. For the writer's
# few look-ups: no numpy; readers use ``log.cursor``.

_CHUNK_BYTES: Final = 1 * MIB


def floor_boundary(
    storage: Storage, directory: str, base_offset: int, byte_count: int, offset: int
) -> tuple[int, int, BatchHeader | None]:
    """Return the last batch boundary of a segment that is <= ``offset``.

    Returns its position, its offset (that of the next batch), and the header of the batch before
    it, None if it does not exist or was not read. Raises ``CorruptBatchError``.
    """
    path = storage.join(directory, offset_name(base_offset, LOG_SUFFIX))
    with storage.open_file(path) as file:
        position = _floor_position(storage, directory, base_offset, file, byte_count, offset)
        before = None
        next_offset = base_offset if position == 0 else None
        for header in iter_headers(file, position, byte_count):
            check_base_offset(header.base_offset, next_offset, path, header.position)
            next_offset = header.last_offset + 1
            if header.last_offset >= offset:
                return header.position, header.base_offset, before
            before = header
    return byte_count, base_offset if before is None else before.last_offset + 1, before


def check_base_offset(
    base_offset: int, expected: int | None, path: str | None, position: int
) -> None:
    """Raise ``CorruptBatchError`` for a batch that does not begin at ``expected``.

    The CRC does not cover the base offset: damage to it is found only by the neighbouring batches,
    the segment's name and the index. ``expected`` None: unknown, no check.
    """
    if expected is not None and base_offset != expected:
        raise CorruptBatchError(
            reason=f"its base offset is {base_offset}, expected {expected}",
            path=path,
            position=position,
            offset=expected,
        )


def check_leader_epoch(
    leader_epoch: int, base_offset: int, epochs: EpochCache, path: str | None, position: int
) -> None:
    """Raise ``CorruptBatchError`` for a batch whose epoch is not that of its offset in ``epochs``.

    The CRC does not cover the leader epoch. Epochs are durable before their first batch is written.
    """
    expected = epochs.epoch_at(base_offset)
    if expected is not None and leader_epoch != expected:
        raise CorruptBatchError(
            reason=f"its leader epoch is {leader_epoch}, expected {expected}",
            path=path,
            position=position,
            offset=base_offset,
        )


def contiguous_bytes(
    data: bytes, offset: int, epochs: EpochCache, path: str, position: int
) -> bytes:
    """Return the longest prefix of ``data`` whose batches are contiguous and have their epochs.

    Raises ``CorruptBatchError`` if the first batch is not the one at ``offset``, or has another
    epoch.
    """
    at, next_offset = 0, offset
    while at + BATCH_HEADER_BYTES <= len(data):
        base_offset, length, leader_epoch, _, _, _, last_offset_delta, *_ = (
            BATCH_HEADER.unpack_from(data, at)
        )
        try:
            check_base_offset(base_offset, next_offset, path, position + at)
            check_leader_epoch(leader_epoch, base_offset, epochs, path, position + at)
        except CorruptBatchError:
            if not at:
                raise
            return data[:at]
        next_offset = base_offset + last_offset_delta + 1
        at += max(length, LENGTH_MIN) + LOG_OVERHEAD_BYTES
    return data


def largest_timestamp_ms(
    storage: Storage, directory: str, base_offset: int, byte_count: int
) -> int:
    """Return the max timestamp of a sealed segment's batches, for retention; -1 if none has one.

    The last entry of the time index is used if its batch has that timestamp and the last batch has
    no later one. Otherwise every header is read; for a damaged one the result is -1.
    """
    try:
        found = _closing_entry(storage, directory, base_offset)
        if found is not None:
            time_ms, offset = found
            named, last = (
                floor_boundary(storage, directory, base_offset, byte_count, end)[2]
                for end in (offset + 1, INT64_MAX)
            )
            if (
                named is not None
                and (named.last_offset, named.max_timestamp_ms) == (offset, time_ms)
                and last is not None
                and last.max_timestamp_ms <= time_ms
            ):
                return time_ms
        path = storage.join(directory, offset_name(base_offset, LOG_SUFFIX))
        with storage.open_file(path) as file:
            headers = iter_headers(file, 0, byte_count)
            return max((one.max_timestamp_ms for one in headers), default=NO_TIMESTAMP_MS)
    except (CorruptBatchError, LogNotFoundError):
        return NO_TIMESTAMP_MS


def _closing_entry(storage: Storage, directory: str, base_offset: int) -> tuple[int, int] | None:
    """Return timestamp and offset of the last time index entry; None if empty."""
    path = storage.join(directory, offset_name(base_offset, TIME_INDEX_SUFFIX))
    try:
        with storage.open_file(path) as file:
            byte_count = file.byte_count()
            if not byte_count or byte_count % TIME_ENTRY.size:
                return None
            data = file.read_at(byte_count - TIME_ENTRY.size, TIME_ENTRY.size)
    except LogNotFoundError:
        return None
    time_ms, delta = TIME_ENTRY.unpack(data)
    return time_ms, base_offset + delta


def read_batches(
    file: ReadableFile,
    position: int,
    end_position: int,
    next_offset: int | None = None,
    epochs: EpochCache | None = None,
) -> Iterator[RecordBatch]:
    """Yield the batches in [position, end_position), with CRC and base offset checked.

    ``next_offset`` is that of the first batch; None if unknown. ``epochs`` None: leader epochs are
    not checked. Raises ``CorruptBatchError``, also if the bytes end inside a batch.
    """
    while position < end_position:
        byte_count = min(_CHUNK_BYTES, end_position - position)
        header = header_at(file, position, end_position)
        chunk = file.read_at(position, max(byte_count, header.byte_count))
        at = 0
        while at < len(chunk):
            batch = read_batch(chunk, at, path=file.path, file_position=position)
            if isinstance(batch, TornTail):
                break
            check_base_offset(batch.base_offset, next_offset, file.path, position + at)
            if epochs is not None:
                check_leader_epoch(
                    batch.leader_epoch, batch.base_offset, epochs, file.path, position + at
                )
            next_offset = batch.next_offset
            yield batch
            at += batch.byte_count
        if at == 0:
            raise CorruptBatchError(
                reason=f"incomplete batch: the file ends before byte {end_position}",
                path=file.path,
                position=position,
            )
        position += at


def _floor_position(
    storage: Storage,
    directory: str,
    base_offset: int,
    log: ReadableFile,
    byte_count: int,
    offset: int,
) -> int:
    """Return the position of a batch that ends below ``offset``, by the index; else 0.

    If the search ends at zeros after the last entry, the result is 0: no entry points there.
    """
    try:
        with storage.open_file(
            storage.join(directory, offset_name(base_offset, INDEX_SUFFIX))
        ) as index:
            low, high = 0, index.byte_count() // OFFSET_ENTRY.size
            while low < high:
                middle = (low + high) // 2
                if base_offset + _entry(index, middle)[0] < offset:
                    low = middle + 1
                else:
                    high = middle
            if low == 0:
                return 0
            delta, position = _entry(index, low - 1)
    except LogNotFoundError:
        return 0
    if not 0 < position < byte_count:
        return 0
    try:
        header = header_at(log, position, byte_count)
    except CorruptBatchError:
        return 0
    return position if header.last_offset == base_offset + delta else 0


def _entry(index: ReadableFile, ordinal: int) -> tuple[int, int]:
    data = index.read_at(ordinal * OFFSET_ENTRY.size, OFFSET_ENTRY.size)
    delta, position = OFFSET_ENTRY.unpack(data)
    return delta, position
