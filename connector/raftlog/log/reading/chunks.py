"""Reading of a log in chunks: decoders of a chunk, chunks of one file, a cursor across segments.

Memory is bounded by the chunk size, or by one batch where a batch is larger. A batch whose length
reaches past the end of the file is torn and is not read. A decoder of headers skips the records of
large batches.
"""

from __future__ import annotations

import abc
from collections.abc import Generator, Iterator
from dataclasses import dataclass, replace
from typing import Final, Generic, Protocol, TypeVar

import numpy as np

from raftlog.errors import CorruptBatchError, DataLossError, LogGapError, SegmentDeletedError
from raftlog.limits import BATCH_HEADER_BYTES, LOG_OVERHEAD_BYTES
from raftlog.log.segment import find_header, read_batch_at
from raftlog.records.batch import RecordBatch, read_batch
from raftlog.records.batch_columns import (
    HEADER_DTYPE,
    BatchColumns,
    BatchSpans,
    Column,
    RecordColumns,
    Scan,
    Stop,
    batch_columns,
    clip,
    damaged_headers,
    index_batches,
    scan_headers,
)
from raftlog.records.crc import first_bad_crc
from raftlog.records.header import (
    BATCH_LENGTH,
    LENGTH_POSITION,
)
from raftlog.records.scan import scan
from raftlog.storage.protocol import ReadableFile

from .files import LogFiles
from .valid_batch import find_valid_batch

HEADER_CHUNK_BYTES: Final = 128 * 1024
"""Chunk size where only headers are read; the records of larger batches are skipped."""


class Chunk(Protocol):
    """Whole batches of a chunk; position and reason of its end (``Scan``, ``HeaderScan``)."""

    @property
    def batches(self) -> BatchColumns: ...
    @property
    def end_position(self) -> int: ...
    @property
    def stop(self) -> Stop: ...
    @property
    def error(self) -> CorruptBatchError | None: ...


P = TypeVar("P", bound=Chunk)


class ChunkDecoder(abc.ABC, Generic[P]):
    """Decoder of a chunk of bytes into batches.

    ``chunk_bytes`` is the size of one read, unless a batch is larger.
    """

    __slots__ = ()
    chunk_bytes: int

    @abc.abstractmethod
    def decode(
        self,
        buffer: bytes,
        *,
        path: str,
        file_position: int,
        start_offset: int | None,
        end_offset: int | None,
    ) -> P:
        """Decode the batches of ``buffer`` that overlap [start_offset, end_offset).

        ``file_position`` is the position of ``buffer`` in the file; ``end_position`` of the result
        is relative to the buffer.
        """

    @abc.abstractmethod
    def first(self, chunk: P, count: int) -> P:
        """Return a chunk with only the first ``count`` batches of ``chunk``."""

    def decode_header(
        self,
        buffer: bytes,
        *,
        file_position: int,
        start_offset: int | None,
        end_offset: int | None,
    ) -> P | None:
        """Decode the first batch from its header alone; None if the whole batch is needed."""
        return None


@dataclass(frozen=True, slots=True)
class ColumnDecoder(ChunkDecoder[Scan]):
    """Decoder of records into columns; CRCs are checked.

    ``decompressed_bytes_max`` limits the records of one compressed batch. With ``whole_batches``
    the last batch keeps its records after the end of the range, so that a caller may continue after
    that batch.
    """

    columns: Column
    chunk_bytes: int
    decompressed_bytes_max: int
    whole_batches: bool = False

    def decode(
        self,
        buffer: bytes,
        *,
        path: str,
        file_position: int,
        start_offset: int | None,
        end_offset: int | None,
    ) -> Scan:
        def scanned(end_offset: int | None) -> Scan:
            return scan(
                buffer,
                columns=self.columns,
                start_offset=start_offset,
                end_offset=end_offset,
                path=path,
                file_position=file_position,
                decompressed_bytes_max=self.decompressed_bytes_max,
            )

        found = scanned(end_offset)
        if not self.whole_batches or end_offset is None or not len(found.batches):
            return found
        next_offset = int(found.batches.next_offset[-1])
        return found if next_offset <= end_offset else scanned(next_offset)

    def first(self, chunk: Scan, count: int) -> Scan:
        records = chunk.records
        kept = int(np.searchsorted(records.batch_ordinal, count))
        return replace(
            chunk,
            batches=chunk.batches[:count],
            records=RecordColumns(
                batch_ordinal=records.batch_ordinal[:kept],
                is_control=records.is_control[:kept],
                offset=None if records.offset is None else records.offset[:kept],
                timestamp_ms=None if records.timestamp_ms is None else records.timestamp_ms[:kept],
                leader_epoch=None if records.leader_epoch is None else records.leader_epoch[:kept],
                key=None if records.key is None else records.key[:kept],
                value=None if records.value is None else records.value[:kept],
                headers=None if records.headers is None else records.headers[:kept],
            ),
        )


@dataclass(frozen=True, slots=True)
class HeaderChunk:
    """Headers of batches, and the control batches among them by ordinal."""

    batches: BatchColumns
    end_position: int
    stop: Stop
    error: CorruptBatchError | None
    control: tuple[tuple[int, RecordBatch], ...] = ()


@dataclass(frozen=True, slots=True)
class HeaderDecoder(ChunkDecoder[HeaderChunk]):
    """Decoder of headers alone.

    CRCs are checked for control batches and for the last batch of each chunk, so that the last
    batch of a log counts only if it is valid. With ``check_all`` every CRC is checked.
    """

    chunk_bytes: int = HEADER_CHUNK_BYTES
    check_all: bool = False

    def decode(
        self,
        buffer: bytes,
        *,
        path: str,
        file_position: int,
        start_offset: int | None,
        end_offset: int | None,
    ) -> HeaderChunk:
        walk = scan_headers(
            buffer,
            path=path,
            file_position=file_position,
            start_offset=start_offset,
            end_offset=end_offset,
        )
        checked = set(np.flatnonzero(walk.batches.is_control).tolist())
        if len(walk.batches) and walk.stop is not Stop.END_OFFSET:
            checked.add(len(walk.batches) - 1)
        if self.check_all:
            view = memoryview(buffer)
            located = clip(index_batches(view, path, file_position), start_offset, end_offset)
            bad = first_bad_crc(view, located)
            if bad is not None and bad < len(walk.batches):
                checked.add(bad)
        control: list[tuple[int, RecordBatch]] = []
        for ordinal in sorted(checked):
            position = int(walk.batches.position[ordinal]) - file_position
            try:
                batch = read_batch(buffer, position, path=path, file_position=file_position)
            except CorruptBatchError as error:
                whole = walk.batches[:ordinal]
                return HeaderChunk(whole, position, Stop.DAMAGED, error, tuple(control))
            assert isinstance(batch, RecordBatch), "scan_headers returns whole batches"
            if batch.is_control:
                control.append((ordinal, batch))
        return HeaderChunk(walk.batches, walk.end_position, walk.stop, walk.error, tuple(control))

    def decode_header(
        self,
        buffer: bytes,
        *,
        file_position: int,
        start_offset: int | None,
        end_offset: int | None,
    ) -> HeaderChunk | None:
        headers = np.frombuffer(buffer[:BATCH_HEADER_BYTES], HEADER_DTYPE)
        if self.check_all or damaged_headers(headers)[0]:
            return None
        end_position = int(headers["length"][0]) + LOG_OVERHEAD_BYTES
        located = BatchSpans(np.zeros(1, np.int64), headers, end_position, Stop.END, None)
        located = clip(located, start_offset, end_offset)
        batches = batch_columns(located, file_position)
        if batches.is_control.any():
            return None
        return HeaderChunk(batches, located.end_position, located.stop, None)

    def first(self, chunk: HeaderChunk, count: int) -> HeaderChunk:
        control = tuple((at, batch) for at, batch in chunk.control if at < count)
        return replace(chunk, batches=chunk.batches[:count], control=control)


@dataclass(frozen=True, slots=True)
class BatchChunk:
    """Batches as objects, and their headers as columns."""

    batches: BatchColumns
    end_position: int
    stop: Stop
    error: CorruptBatchError | None
    objects: tuple[RecordBatch, ...]


@dataclass(frozen=True, slots=True)
class BatchDecoder(ChunkDecoder[BatchChunk]):
    """Decoder of batches into one object each; for tools, where speed does not matter."""

    chunk_bytes: int

    def decode(
        self,
        buffer: bytes,
        *,
        path: str,
        file_position: int,
        start_offset: int | None,
        end_offset: int | None,
    ) -> BatchChunk:
        walk = scan_headers(
            buffer,
            path=path,
            file_position=file_position,
            start_offset=start_offset,
            end_offset=end_offset,
        )
        objects: list[RecordBatch] = []
        for at in walk.batches.position.tolist():
            position = at - file_position
            try:
                batch = read_batch(buffer, position, path=path, file_position=file_position)
            except CorruptBatchError as error:
                whole = walk.batches[: len(objects)]
                return BatchChunk(whole, position, Stop.DAMAGED, error, tuple(objects))
            assert isinstance(batch, RecordBatch), "scan_headers returns whole batches"
            objects.append(batch)
        return BatchChunk(walk.batches, walk.end_position, walk.stop, walk.error, tuple(objects))

    def first(self, chunk: BatchChunk, count: int) -> BatchChunk:
        return replace(chunk, batches=chunk.batches[:count], objects=chunk.objects[:count])


def read_chunks(
    file: ReadableFile,
    position: int,
    decoder: ChunkDecoder[P],
    *,
    start_offset: int | None,
    end_offset: int | None,
) -> Iterator[tuple[int, P]]:
    """Read a file from ``position``, which must be the start of a batch, in chunks.

    Yields each chunk with the position after its last batch. Reading ends at the end of the file,
    at damage or at ``end_offset``; ``stop`` of the last chunk is the reason. END and TORN mean the
    current end of the file. ``start_offset`` is applied until the first batch that reaches it.
    """
    wanted = decoder.chunk_bytes
    while True:
        buffer = file.read_at(position, wanted)
        at_end = len(buffer) < wanted
        chunk = decoder.decode(
            buffer,
            path=file.path,
            file_position=position,
            start_offset=start_offset,
            end_offset=end_offset,
        )
        if chunk.stop is Stop.TORN and chunk.end_position == 0 and not at_end:
            byte_count = _first_batch_bytes(buffer)
            left = file.byte_count() - position
            if byte_count is None or byte_count > left:
                yield position, chunk
                return
            jumped = None
            if byte_count < left:  # the last batch of a file is decoded whole: its CRC decides
                jumped = decoder.decode_header(
                    buffer,
                    file_position=position,
                    start_offset=start_offset,
                    end_offset=end_offset,
                )
            if jumped is None:
                wanted = byte_count
                continue
            chunk = jumped
        position += chunk.end_position
        wanted = decoder.chunk_bytes
        if len(chunk.batches):
            start_offset = None
        yield position, chunk
        if chunk.stop in (Stop.DAMAGED, Stop.END_OFFSET):
            return
        if at_end and chunk.stop is not Stop.FULL:
            return


def _first_batch_bytes(buffer: bytes) -> int | None:
    """Return the size of the buffer's first batch by its length field; None if that is zero."""
    (length,) = BATCH_LENGTH.unpack_from(buffer, LENGTH_POSITION)
    return length + LOG_OVERHEAD_BYTES if length else None


# --- Cursor that reads a log across segments, which may roll or be deleted while they are read ----
# At a batch that cannot be read, the kind of segment and the bytes after it decide:
#
#   sealed     | batch | batch | cut off    |                 CorruptBatchError
#   active     | batch | batch | cut off    | end of file     end of the log, a torn tail
#   active     | batch | batch | 0 0 0 0 0  | end of file     end of the log, preallocated zeros
#   active     | batch | batch | unreadable | valid batch |   CorruptBatchError
#
# Invariants:
#
# 1. Batches before damage are returned; the error is raised after them.
# 2. Offsets never decrease, and have no gaps in a metadata log. The base offset is outside the CRC,
#    so this check also detects a flipped bit in it.
# 3. A sealed segment ends with a whole batch. The active one may end in a torn batch or in zeros,
#    unless a valid batch follows (``find_valid_batch``).
# 4. A segment that was deleted is looked up again; offsets that the log no longer holds raise
#    ``DataLossError``.

_ZEROS_BYTES: Final = 4096
"""That many zeros after a batch are preallocated space: no search for a valid batch follows."""
_ATTEMPTS_MAX: Final = 5
"""Attempts to find a deleted segment again before ``SegmentDeletedError`` is raised."""


@dataclass(frozen=True, slots=True)
class LogTail:
    """Bytes after the last valid batch of the active segment.

    ``byte_count`` is 0 at a clean end. ``error`` is set if the bytes are neither a batch that was
    cut off nor zeros: the last batch is damaged, or the file is not a log.
    """

    path: str
    position: int
    byte_count: int
    error: CorruptBatchError | None = None


class LogCursor:
    """Position in a log from which reading continues. Not thread-safe.

    ``next_offset`` is the offset after the last batch that was read; ``tail`` is set after the end
    of the log was reached.
    """

    def __init__(self, files: LogFiles, offset: int, *, contiguous: bool) -> None:
        self._files = files
        self._contiguous = contiguous
        self._started = False
        self._position: int | None = None
        self._failed_position: int | None = None
        self.next_offset = offset
        self.tail: LogTail | None = None
        self.segment = self._segment_at(offset)

    @property
    def position(self) -> int | None:
        """Position in ``segment`` at which reading continues; None if it is not known yet."""
        return self._position

    def read(self, decoder: ChunkDecoder[P], end_offset: int | None = None) -> Iterator[P]:
        """Read chunks up to ``end_offset``, or up to the end of the log if it is None.

        Each error is raised after the last valid chunk.

        Raises:
            CorruptBatchError: a batch before the end of the range is damaged.
            LogGapError: a batch has another base offset than expected.
            DataLossError: the offset was deleted, or the log ends before ``end_offset``.
            SegmentDeletedError: a segment was deleted, ``_ATTEMPTS_MAX`` times in a row.
            LogAccessError: a file cannot be read.
        """
        attempts = 0
        while end_offset is None or self.next_offset < end_offset:
            following = self._files.segment_after(self.segment)
            try:
                with self._files.open(self._files.segment_path(self.segment)) as file:
                    stop, error = yield from self._read_segment(file, decoder, end_offset)
                    if stop is not Stop.END_OFFSET and _is_past(self.next_offset, end_offset):
                        return
                    if error is not None and (following is not None or end_offset is not None):
                        raise error
                    if stop is Stop.END_OFFSET:
                        assert end_offset is not None, "Stop.END_OFFSET needs an end offset"
                        self._check_end(file, end_offset)
                        return
                    if following is not None:
                        self._leave(file, following)
                        attempts = 0
                        continue
                    self._files.refresh()
                    if self._files.segment_after(self.segment) is not None:
                        continue  # the segment rolled: read what was appended before that
                    if self._is_end_of_log(file, error, end_offset):
                        return
            except SegmentDeletedError:
                attempts += 1
                if attempts > _ATTEMPTS_MAX:
                    raise
                self._files.refresh()
                self.segment = self._segment_at(self.next_offset)
                self._position = None

    def _segment_at(self, offset: int) -> int:
        segment = self._files.segment_at(offset)
        if segment is None:
            start = min(self._files.listing.segments, default=None)
            now = "the log has no segment" if start is None else f"the log begins at {start}"
            raise DataLossError(
                path=self._files.path,
                condition="OFFSETS_DELETED",
                reason=f"offset {offset} was deleted: {now}",
                remedy="start at a snapshot or at the first offset on disk",
            )
        return segment

    def _read_segment(
        self, file: ReadableFile, decoder: ChunkDecoder[P], end_offset: int | None
    ) -> Generator[P, None, tuple[Stop, CorruptBatchError | None]]:
        """Read the current segment; return why reading ended, and the damage if that is why."""
        start_offset = None
        if self._position is None:  # the index entry may be for an earlier batch
            self._position = self._files.find(file, self.segment, self.next_offset)
            start_offset = self.next_offset
        stop, error = Stop.END, None
        for position, chunk in read_chunks(
            file, self._position, decoder, start_offset=start_offset, end_offset=end_offset
        ):
            if _is_past(self.next_offset, end_offset):
                return Stop.END_OFFSET, None  # damage after the range does not matter
            batches = chunk.batches
            count, gap = self._in_order(batches, file.path)
            if count:
                self._started = True
                self.next_offset = int(batches.last_offset[count - 1]) + 1
                batch_end = int(batches.position[count - 1]) + int(batches.byte_count[count - 1])
                self._files.remember_position(self.next_offset, self.segment, batch_end)
                self._position = position if gap is None else batch_end
                yield chunk if gap is None else decoder.first(chunk, count)
            if gap is not None:
                if count and _is_past(self.next_offset, end_offset):
                    return Stop.END_OFFSET, None
                raise gap
            self._position = position
            stop, error = chunk.stop, chunk.error
        return stop, error

    def _in_order(self, batches: BatchColumns, path: str) -> tuple[int, LogGapError | None]:
        """Return the number of leading batches in order, and the error of the next one."""
        if not len(batches):
            return 0, None
        base_offset = batches.base_offset
        expected = np.empty_like(base_offset)
        expected[1:] = batches.last_offset[:-1] + 1
        expected[0] = self.next_offset
        wrong = base_offset != expected if self._contiguous else base_offset < expected
        if not self._started:  # the first batch may begin before the requested offset
            wrong[0] = self._contiguous and base_offset[0] > expected[0]
        if not wrong.any():
            return len(batches), None
        at = int(np.argmax(wrong))
        return at, LogGapError(
            path=path,
            position=int(batches.position[at]),
            expected_offset=int(expected[at]),
            offset=int(base_offset[at]),
        )

    def _check_end(self, file: ReadableFile, end_offset: int) -> None:
        """Check the base offset of the batch that ended the range.

        A flipped bit in it would end the range before records that belong to it. Not checked if the
        whole range was read: the batch after it may be the torn one of a crashed writer.
        """
        if self.next_offset >= end_offset:
            return
        position = self._position or 0
        first = find_header(file, position)
        if first is None:
            return
        if self._contiguous:
            raise LogGapError(
                path=file.path,
                position=position,
                expected_offset=self.next_offset,
                offset=first.base_offset,
            )
        following = self._files.segment_after(self.segment)
        second = find_header(file, first.end_position)
        bound = following if second is None else second.base_offset
        if bound is not None and bound <= first.last_offset:
            raise LogGapError(
                path=file.path,
                position=first.end_position,
                expected_offset=first.last_offset + 1,
                offset=bound,
            )

    def _leave(self, file: ReadableFile, following: int) -> None:
        """Move from a sealed segment to the next one."""
        position = self._position or 0
        head = file.read_at(position, BATCH_HEADER_BYTES)
        if any(head):
            raise CorruptBatchError(
                reason="the segment ends inside this batch, and another segment follows",
                path=file.path,
                position=position,
                offset=self.next_offset,
            )
        is_wrong = (
            following != self.next_offset if self._contiguous else (following < self.next_offset)
        )
        if is_wrong:
            raise LogGapError(
                path=self._files.segment_path(following),
                position=0,
                expected_offset=self.next_offset,
                offset=following,
            )
        self.next_offset = following
        self.segment = following
        self._position = 0

    def _is_end_of_log(
        self, file: ReadableFile, error: CorruptBatchError | None, end_offset: int | None
    ) -> bool:
        """Return whether the active segment ends here, and set ``tail``.

        False if the node appended in the meantime: reading continues.
        """
        position = self._position or 0
        byte_count = file.byte_count() - position
        head = file.read_at(position, _ZEROS_BYTES)
        if any(head):
            valid_position = find_valid_batch(file, position, self.next_offset)
            # Read after the search, during which the node may have completed the batch. A whole
            # batch that fails to decode a second time has damaged contents.
            if read_batch_at(file, position) is not None:
                if error is not None and self._failed_position == position:
                    raise error
                self._failed_position = position
                return False
            if valid_position is not None:
                raise error or CorruptBatchError(
                    reason=f"its length is wrong: a valid batch begins at byte {valid_position}",
                    path=file.path,
                    position=position,
                    offset=self.next_offset,
                )
        if end_offset is not None:
            raise DataLossError(
                path=self._files.path,
                condition="LOG_TRUNCATED",
                reason=f"the log now ends at offset {self.next_offset}, below the end "
                f"{end_offset} of the read",
                remedy="the log was truncated or replaced by another copy: plan the read again",
            )
        self.tail = LogTail(file.path, position, max(byte_count, 0), error)
        return True


def _is_past(next_offset: int, end_offset: int | None) -> bool:
    return end_offset is not None and next_offset >= end_offset
