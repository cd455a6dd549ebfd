"""One segment of a log: its batches, the entries of its indexes, look-ups, and checks of both.

This module is for bytes that recovery or the writer has already checked. It does not import numpy,
because opening a segment for writing reads only the few headers after its last index entry. Readers
decode whole columns (``reading.chunks``); recovery checks every CRC (``recovery.recover_segment``).

The offset index is only a hint. A position from it is used only if the batch at that position ends
with the entry's offset. Otherwise the search starts at the beginning of the segment:

    position   0        4200      8500         a look-up of offset 30
    batches    | 0..19  | 20..39  | 40..59 |   index: last offset 39 at 4200, 59 at 8500
    start      ^ no entry has a last offset below 30: walk from 0 to the batch 20..39

Kafka: ``LogSegment``.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Self

from raftlog.errors import (
    CorruptBatchError,
    CorruptFileError,
    CorruptSnapshotError,
    LogNotFoundError,
)
from raftlog.limits import (
    BATCH_HEADER_BYTES,
    INT64_MAX,
    KIB,
    LOG_OVERHEAD_BYTES,
    MIB,
    READ_BATCH_BYTES_MAX,
)
from raftlog.log.format.directory import INDEX_SUFFIX, LOG_SUFFIX, TIME_INDEX_SUFFIX, offset_name
from raftlog.log.format.epoch_cache import EpochCache
from raftlog.records.batch import RecordBatch, TornTail, read_batch
from raftlog.records.builder import empty_batch
from raftlog.records.control import (
    ControlRecord,
    SnapshotFooter,
    SnapshotHeader,
    decode_control,
)
from raftlog.records.header import (
    BATCH_HEADER,
    BATCH_MAGIC,
    MAGIC_POSITION,
    header_damage,
    length_error,
)
from raftlog.storage.protocol import ReadableFile, Storage

_HEADER_CHUNK_BYTES: Final = 32 * KIB
_CHUNK_BYTES: Final = 1 * MIB

# --- Entries of a segment's indexes ---------------------------------------------------------------
# No index has a checksum, and any of them may be missing or wrong. Therefore an offset entry is
# checked against the batch at its position, and readers find transactions in the log itself
# (``reading.transactions``). ``reading.chunks`` parses whole offset and time indexes.
#
# Kafka: ``OffsetIndex``, ``TimeIndex``, ``TransactionIndex`` and ``AbortedTxn``.

OFFSET_ENTRY: Final = struct.Struct(">ii")  # last offset - base offset, position of the batch
TIME_ENTRY: Final = struct.Struct(">qi")  # greatest timestamp (ms), its last offset - base offset
NO_TIMESTAMP_MS: Final = -1

_ABORTED_ENTRY: Final = struct.Struct(
    ">"
    "h"  # version: 0
    "q"  # producer_id
    "q"  # first_offset
    "q"  # last_offset: that of the abort marker
    "q"  # last_stable_offset at the time of writing
)
assert (OFFSET_ENTRY.size, TIME_ENTRY.size, _ABORTED_ENTRY.size) == (8, 12, 34)


@dataclass(frozen=True, slots=True, kw_only=True)
class AbortedTransaction:
    """Aborted transaction of ``producer_id``, from first to last offset (both inclusive)."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


def parse_txn_index(data: bytes, path: str) -> tuple[AbortedTransaction, ...]:
    """Parse a ``.txnindex`` (Kafka: ``TransactionIndex.sanityCheck``).

    Raises ``CorruptFileError`` unless it consists of whole entries in ascending order.
    """
    found: list[AbortedTransaction] = []
    for position in range(0, len(data), _ABORTED_ENTRY.size):
        if position + _ABORTED_ENTRY.size > len(data):
            raise CorruptFileError(path=path, position=position, reason="its last entry is torn")
        version, producer_id, first, last, stable = _ABORTED_ENTRY.unpack_from(data, position)
        if version < 0 or not 0 <= first <= last:
            raise CorruptFileError(
                path=path,
                position=position,
                reason=f"version {version}, offsets {first} to {last} are invalid",
            )
        if found and found[-1].last_offset >= last:
            raise CorruptFileError(
                path=path, position=position, reason=f"offset {last} follows a greater one"
            )
        found.append(
            AbortedTransaction(
                producer_id=producer_id,
                first_offset=first,
                last_offset=last,
                last_stable_offset=stable,
            )
        )
    return tuple(found)


def encode_aborted(aborted: AbortedTransaction) -> bytes:
    """Encode one entry of a ``.txnindex``, which has 34 bytes (Kafka: ``AbortedTxn``)."""
    return _ABORTED_ENTRY.pack(
        0,
        aborted.producer_id,
        aborted.first_offset,
        aborted.last_offset,
        aborted.last_stable_offset,
    )


# --- Headers and batches at known positions -------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
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
    """Yield the headers of all batches in [position, end_position).

    Both positions must be batch boundaries. Raises ``CorruptBatchError``.
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
    header = _batch_header(fields, position)
    reason = header_damage(header.base_offset, fields[5], fields[6], fields[-1])
    is_empty = header.byte_count <= LOG_OVERHEAD_BYTES
    if reason is None and (is_empty or header.end_position > end_position):
        reason = (
            f"its {header.byte_count} bytes exceed the end of the segment at byte {end_position}"
        )
    if reason is not None:
        raise CorruptBatchError(
            reason=reason, path=file.path, position=position, offset=header.base_offset
        )
    return header


def _batch_header(fields: tuple[int, ...], position: int) -> BatchHeader:
    """Return the header with these fields of ``BATCH_HEADER``, which are not checked."""
    base_offset, length, leader_epoch, _, _, _, last_offset_delta, _, max_timestamp_ms = fields[:9]
    return BatchHeader(
        position=position,
        byte_count=length + LOG_OVERHEAD_BYTES,
        base_offset=base_offset,
        last_offset=base_offset + last_offset_delta,
        leader_epoch=leader_epoch,
        max_timestamp_ms=max_timestamp_ms,
    )


def find_header(file: ReadableFile, position: int) -> BatchHeader | None:
    """Return the header at ``position``, or None if its magic or length is not that of a batch.

    The other fields may be damaged, and the file may end inside the batch.
    """
    head = file.read_at(position, BATCH_HEADER_BYTES)
    if len(head) < BATCH_HEADER_BYTES:
        return None
    header = _batch_header(BATCH_HEADER.unpack(head), position)
    is_batch = head[MAGIC_POSITION] == BATCH_MAGIC and header.byte_count >= BATCH_HEADER_BYTES
    return header if is_batch else None


def read_batch_at(file: ReadableFile, position: int) -> RecordBatch | None:
    """Return the batch that begins at ``position`` of a file; None if it is not valid."""
    header = find_header(file, position)
    if header is None or header.byte_count > READ_BATCH_BYTES_MAX:
        return None
    if header.end_position > file.byte_count():
        return None
    try:
        data = file.read_at(position, header.byte_count)
        batch = read_batch(data, path=file.path, file_position=position)
    except CorruptBatchError:
        return None
    return batch if isinstance(batch, RecordBatch) else None


def read_snapshot_head(file: ReadableFile) -> tuple[SnapshotHeader, tuple[ControlRecord, ...]]:
    """Return the SnapshotHeader of a snapshot file and the other records of its first batch.

    Raises ``CorruptSnapshotError``.
    """
    batch = read_batch_at(file, 0)
    reason = "it does not begin with a valid control batch"
    if batch is not None and batch.is_control:
        records = control_records(batch)
        if records and isinstance(records[0], SnapshotHeader):
            return records[0], records[1:]
        reason = "it does not begin with a SnapshotHeader record"
    raise CorruptSnapshotError(path=file.path, position=0, reason=reason)


def ends_with_footer(batch: RecordBatch) -> bool:
    """Return whether a batch is the last one of a complete snapshot."""
    records = control_records(batch) if batch.is_control else ()
    return bool(records) and isinstance(records[-1], SnapshotFooter)


def control_records(batch: RecordBatch) -> tuple[ControlRecord, ...]:
    """Return the records of a control batch; empty if they cannot be parsed."""
    try:
        return tuple(decode_control(record.key, record.value) for record in batch.records())
    except CorruptBatchError:
        return ()


def check_base_offset(
    base_offset: int, expected: int | None, *, path: str | None, position: int
) -> None:
    """Raise ``CorruptBatchError`` for a batch that does not begin at ``expected``.

    The CRC does not cover the base offset, so damage to it is found only by comparing it with the
    neighboring batches, the segment's name and the index. Nothing is checked if ``expected`` is
    None.
    """
    if expected is not None and base_offset != expected:
        raise CorruptBatchError(
            reason=f"its base offset is {base_offset}, expected {expected}",
            path=path,
            position=position,
            offset=expected,
        )


def check_leader_epoch(
    leader_epoch: int, epochs: EpochCache, *, base_offset: int, path: str | None, position: int
) -> None:
    """Raise ``CorruptBatchError`` for a batch whose epoch differs from that of ``epochs``.

    The CRC does not cover the leader epoch. The comparison detects damage to it, because the start
    of an epoch is durable in ``leader-epoch-checkpoint`` before the epoch's first batch is written.
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
    data: bytes, epochs: EpochCache, *, offset: int, path: str, position: int
) -> bytes:
    """Return the longest prefix of ``data`` whose batches are contiguous and have the right epochs.

    Raises ``CorruptBatchError`` if the first batch does not begin at ``offset`` or has the wrong
    epoch.
    """
    at, next_offset = 0, offset
    while at + BATCH_HEADER_BYTES <= len(data):
        header = _batch_header(BATCH_HEADER.unpack_from(data, at), position + at)
        try:
            check_base_offset(header.base_offset, next_offset, path=path, position=header.position)
            check_leader_epoch(
                header.leader_epoch,
                epochs,
                base_offset=header.base_offset,
                path=path,
                position=header.position,
            )
        except CorruptBatchError:
            if not at:
                raise
            return data[:at]
        next_offset = header.last_offset + 1
        at += max(header.byte_count, BATCH_HEADER_BYTES)
    return data


@dataclass(slots=True, kw_only=True)
class BatchCursor:
    """Bytes of consecutive batches, and the index up to which they have been read.

    ``data`` was read at ``position`` of the file. The next batch begins at index ``at`` of ``data``
    and has the base offset ``next_offset``, or None if that is unknown. The last batch may be
    incomplete.
    """

    data: bytes
    next_offset: int | None
    epochs: EpochCache | None = None
    path: str | None = None
    position: int = 0
    at: int = 0

    def next_batch(self) -> RecordBatch | None:
        """Return the next batch, with CRC, base offset and leader epoch checked; None at the end.

        Raises ``CorruptBatchError``.
        """
        if self.at >= len(self.data):
            return None
        batch = read_batch(self.data, self.at, path=self.path, file_position=self.position)
        if isinstance(batch, TornTail):
            return None
        check_base_offset(
            batch.base_offset, self.next_offset, path=self.path, position=batch.position
        )
        if self.epochs is not None:
            check_leader_epoch(
                batch.leader_epoch,
                self.epochs,
                base_offset=batch.base_offset,
                path=self.path,
                position=batch.position,
            )
        self.next_offset = batch.next_offset
        self.at += batch.byte_count
        return batch


def batch_cursors(
    file: ReadableFile,
    position: int,
    end_position: int,
    *,
    next_offset: int | None = None,
    epochs: EpochCache | None = None,
) -> Iterator[BatchCursor]:
    """Yield the batches in [position, end_position) in chunks of 1 MiB, or of one larger batch.

    Read each cursor to its end before you request the next one. ``next_offset`` is the base offset
    of the first batch, or None if that is unknown. If ``epochs`` is None, leader epochs are not
    checked. Raises ``CorruptBatchError``, including if the bytes end inside a batch.
    """
    while position < end_position:
        byte_count = min(_CHUNK_BYTES, end_position - position)
        header = header_at(file, position, end_position)
        cursor = BatchCursor(
            data=file.read_at(position, max(byte_count, header.byte_count)),
            next_offset=next_offset,
            epochs=epochs,
            path=file.path,
            position=position,
        )
        yield cursor
        if cursor.at == 0:
            raise CorruptBatchError(
                reason=f"incomplete batch: the file ends before byte {end_position}",
                path=file.path,
                position=position,
            )
        position += cursor.at
        next_offset = cursor.next_offset


def read_batches(
    file: ReadableFile,
    position: int,
    end_position: int,
    *,
    next_offset: int | None = None,
    epochs: EpochCache | None = None,
) -> Iterator[RecordBatch]:
    """Yield the batches in [position, end_position), with CRC and base offset checked.

    The arguments and errors are the same as for ``batch_cursors``.
    """
    for cursor in batch_cursors(
        file, position, end_position, next_offset=next_offset, epochs=epochs
    ):
        while (batch := cursor.next_batch()) is not None:
            yield batch


# --- Segment --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentMetadata:
    """Offsets, size and time of a segment on disk. ``end_offset`` is exclusive.

    ``max_timestamp_ms`` is the greatest timestamp of its batches. It is -1 if no batch has a
    timestamp, and None if it was not read.
    """

    base_offset: int
    end_offset: int
    byte_count: int
    max_timestamp_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Boundary:
    """A batch boundary: its position, and the offset of the next batch.

    ``before`` is the header of the preceding batch, or None if that does not exist or was not read.
    """

    position: int
    offset: int
    before: BatchHeader | None = None


@dataclass(frozen=True, slots=True)
class Segment:
    """The files of a segment, whose first ``byte_count`` bytes are valid batches."""

    storage: Storage
    directory: str
    base_offset: int
    byte_count: int

    @classmethod
    def of_file(cls, storage: Storage, directory: str, base_offset: int) -> Self:
        """Return a segment up to the end of its file. Raises ``LogNotFoundError``."""
        with storage.open_file(
            storage.join(directory, offset_name(base_offset, LOG_SUFFIX))
        ) as log:
            return cls(storage, directory, base_offset, log.byte_count())

    def path(self, suffix: str = LOG_SUFFIX) -> str:
        """Return the path of the segment's file with this suffix."""
        return self.storage.join(self.directory, offset_name(self.base_offset, suffix))

    def floor(self, offset: int) -> Boundary:
        """Return the last batch boundary that is <= ``offset``. Raises ``CorruptBatchError``."""
        with self.storage.open_file(self.path()) as log:
            return self._floor(log, offset)

    def batches(self, offset: int, epochs: EpochCache | None = None) -> Iterator[RecordBatch]:
        """Yield the batches from the one with ``offset`` on, checked as by ``read_batches``."""
        for cursor in self.cursors(offset, epochs):
            while (batch := cursor.next_batch()) is not None:
                yield batch

    def cursors(self, offset: int, epochs: EpochCache | None = None) -> Iterator[BatchCursor]:
        """Yield the batches from the one with ``offset`` on as bytes, as by ``batch_cursors``."""
        with self.storage.open_file(self.path()) as log:
            start = self._floor(log, offset)
            yield from batch_cursors(
                log, start.position, self.byte_count, next_offset=start.offset, epochs=epochs
            )

    def batches_after_index(self, epochs: EpochCache) -> Iterator[RecordBatch]:
        """Yield the batches from that of the last valid offset index entry on, or all batches.

        They are checked as by ``read_batches``.
        """
        with self.storage.open_file(self.path()) as log:
            entry, position = self._last_entry(INDEX_SUFFIX, OFFSET_ENTRY.size), 0
            if entry:
                delta, indexed = OFFSET_ENTRY.unpack(entry)
                position = indexed if self.is_entry_valid(log, delta, indexed) else 0
            next_offset = None if position else self.base_offset
            yield from read_batches(
                log, position, self.byte_count, next_offset=next_offset, epochs=epochs
            )

    def read_bytes(self, offset: int, byte_count_max: int, epochs: EpochCache) -> bytes:
        """Return batches from ``offset`` on, which must be a batch boundary.

        The result has at least one whole batch and otherwise at most ``byte_count_max`` bytes; the
        last batch may be incomplete. It is b"" at the end of the segment, and if no batch begins at
        ``offset``. The exception is an offset inside an empty batch, into which a compaction joined
        batches that it dropped. A replica that has not compacted its log may end there, so it gets
        the part of the empty batch from ``offset`` on.
        """
        with self.storage.open_file(self.path()) as log:
            start = self._floor(log, offset)
            if start.position >= self.byte_count:
                return b""
            if start.offset != offset:
                return self._rest_of_empty(log, position=start.position, offset=offset)
            first = header_at(log, start.position, self.byte_count)
            left = self.byte_count - start.position
            data = log.read_at(start.position, min(max(byte_count_max, first.byte_count), left))
            return contiguous_bytes(
                data, epochs, offset=offset, path=log.path, position=start.position
            )

    def read_max_timestamp_ms(self) -> int:
        """Return the greatest timestamp of the batches, for retention; -1 if no batch has one.

        The last time index entry is used if its batch has that timestamp and the segment's last
        batch has no later one. Otherwise every header is read; if one is damaged, the result is -1.
        """
        try:
            with self.storage.open_file(self.path()) as log:
                found = self._closing_time_ms(log)
                if found is not None:
                    return found
                headers = iter_headers(log, 0, self.byte_count)
                return max((one.max_timestamp_ms for one in headers), default=NO_TIMESTAMP_MS)
        except (CorruptBatchError, LogNotFoundError):
            return NO_TIMESTAMP_MS

    def has_valid_indexes(self, end_offset: int, *, interval_bytes: int) -> bool:
        """Return whether both indexes have whole entries, the last one valid, and one if it is due.

        Kafka: ``LogSegment.sanityCheck``, ``OffsetIndex.sanityCheck``, ``TimeIndex.sanityCheck``.
        """
        try:
            with self.storage.open_file(self.path()) as log:
                entry = self._last_entry(INDEX_SUFFIX, OFFSET_ENTRY.size)
                if entry is None:
                    return False
                if entry:
                    if not self.is_entry_valid(log, *OFFSET_ENTRY.unpack(entry)):
                        return False
                elif self._has_entry_due(log, interval_bytes):
                    return False
                entry = self._last_entry(TIME_INDEX_SUFFIX, TIME_ENTRY.size)
                if entry is None:
                    return False
                if entry:
                    time_ms, delta = TIME_ENTRY.unpack(entry)
                    return bool(time_ms >= 0 and 0 <= delta < end_offset - self.base_offset)
                has_time = self.byte_count and header_at(log, 0, self.byte_count)
                return not has_time or has_time.max_timestamp_ms < 0
        except (LogNotFoundError, CorruptBatchError):
            return False

    # --- look-ups ---------------------------------------------------------------------------------

    def _rest_of_empty(self, log: ReadableFile, *, position: int, offset: int) -> bytes:
        left = self.byte_count - position
        batch = read_batch(log.read_at(position, min(BATCH_HEADER_BYTES, left)), 0)
        is_joined = (
            isinstance(batch, RecordBatch)
            and not batch.is_control
            and batch.producer_id < 0
            and batch.base_offset < offset <= batch.last_offset
        )
        if not is_joined or isinstance(batch, TornTail):
            return b""
        return empty_batch(
            base_offset=offset,
            last_offset=batch.last_offset,
            leader_epoch=batch.leader_epoch,
            max_timestamp_ms=batch.max_timestamp_ms,
        )

    def _floor(self, log: ReadableFile, offset: int) -> Boundary:
        position = self._indexed_position(log, offset)
        before = None
        next_offset = self.base_offset if position == 0 else None
        for header in iter_headers(log, position, self.byte_count):
            check_base_offset(
                header.base_offset, next_offset, path=log.path, position=header.position
            )
            next_offset = header.last_offset + 1
            if header.last_offset >= offset:
                return Boundary(position=header.position, offset=header.base_offset, before=before)
            before = header
        end_offset = self.base_offset if before is None else before.last_offset + 1
        return Boundary(position=self.byte_count, offset=end_offset, before=before)

    def _indexed_position(self, log: ReadableFile, offset: int) -> int:
        """Return the position of a batch that ends below ``offset``, from the index; 0 without one.

        If the binary search ends in the zeros after the last entry, the result is 0 too, because no
        entry has position 0.
        """
        try:
            with self.storage.open_file(self.path(INDEX_SUFFIX)) as index:
                low, high = 0, index.byte_count() // OFFSET_ENTRY.size
                while low < high:
                    middle = (low + high) // 2
                    if self.base_offset + _offset_entry(index, middle)[0] < offset:
                        low = middle + 1
                    else:
                        high = middle
                if low == 0:
                    return 0
                delta, position = _offset_entry(index, low - 1)
        except LogNotFoundError:
            return 0
        return position if self.is_entry_valid(log, delta, position) else 0

    def is_entry_valid(self, log: ReadableFile, delta: int, position: int) -> bool:
        """Return whether the batch that an offset index entry describes is at its position."""
        if not 0 < position < self.byte_count:
            return False
        try:
            header = header_at(log, position, self.byte_count)
        except CorruptBatchError:
            return False
        return header.last_offset == self.base_offset + delta

    def _closing_time_ms(self, log: ReadableFile) -> int | None:
        """Return the time of the last time index entry if it is the segment's greatest, or None."""
        entry = self._last_entry(TIME_INDEX_SUFFIX, TIME_ENTRY.size)
        if not entry:
            return None
        time_ms, delta = TIME_ENTRY.unpack(entry)
        last_offset = self.base_offset + delta
        named = self._floor(log, last_offset + 1).before
        last = self._floor(log, INT64_MAX).before
        if named is None or last is None:
            return None
        is_named = (named.last_offset, named.max_timestamp_ms) == (last_offset, time_ms)
        return time_ms if is_named and last.max_timestamp_ms <= time_ms else None

    def _last_entry(self, suffix: str, entry_bytes: int) -> bytes | None:
        """Return an index's last entry; b"" if it is empty; None if missing or of invalid size."""
        try:
            with self.storage.open_file(self.path(suffix)) as index:
                byte_count = index.byte_count()
                if byte_count % entry_bytes:
                    return None
                return index.read_at(max(0, byte_count - entry_bytes), entry_bytes)
        except LogNotFoundError:
            return None

    def _has_entry_due(self, log: ReadableFile, interval_bytes: int) -> bool:
        """Return whether any batch should have an offset index entry."""
        return any(one.position > interval_bytes for one in iter_headers(log, 0, self.byte_count))


def _offset_entry(index: ReadableFile, ordinal: int) -> tuple[int, int]:
    data = index.read_at(ordinal * OFFSET_ENTRY.size, OFFSET_ENTRY.size)
    delta, position = OFFSET_ENTRY.unpack(data)
    return delta, position
