"""Reading of a segment file in chunks, and decoders that turn a chunk into batches.

Memory is bounded by the chunk size, or by one batch where a batch is larger. A batch whose length
reaches past the end of the file is torn and is not read. A decoder of headers skips the records of
large batches.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final, Protocol, TypeVar

import numpy as np

from raftlog.errors import CorruptBatchError
from raftlog.limits import BATCH_HEADER_BYTES, LOG_OVERHEAD_BYTES
from raftlog.records.batch import RecordBatch, read_batch
from raftlog.records.batch_columns import (
    HEADER_DTYPE,
    BatchColumns,
    BatchSpans,
    Column,
    HeaderScan,
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
from raftlog.records.header import BATCH_LENGTH, LENGTH_POSITION
from raftlog.records.scan import scan
from raftlog.storage.protocol import ReadableFile

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


class ChunkDecoder(Protocol[P]):
    """Decoder of a chunk of bytes into batches."""

    @property
    def chunk_bytes(self) -> int:
        """Bytes of one read, unless a batch is larger."""
        ...

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
        ...

    def decode_header(
        self,
        buffer: bytes,
        *,
        file_position: int,
        start_offset: int | None,
        end_offset: int | None,
    ) -> P | None:
        """Decode the first batch from its header alone; None if the whole batch is needed."""
        ...

    def first(self, chunk: P, count: int) -> P:
        """Return a chunk with only the first ``count`` batches of ``chunk``."""
        ...


@dataclass(frozen=True, slots=True)
class ColumnDecoder:
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

    def decode_header(
        self,
        buffer: bytes,
        *,
        file_position: int,
        start_offset: int | None,
        end_offset: int | None,
    ) -> None:
        return None

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
class HeaderDecoder:
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
                return _damaged(walk, ordinal, position, error, tuple(control))
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


def _damaged(
    walk: HeaderScan,
    ordinal: int,
    position: int,
    error: CorruptBatchError,
    control: tuple[tuple[int, RecordBatch], ...],
) -> HeaderChunk:
    return HeaderChunk(walk.batches[:ordinal], position, Stop.DAMAGED, error, control)


@dataclass(frozen=True, slots=True)
class BatchChunk:
    """Batches as objects, and their headers as columns."""

    batches: BatchColumns
    end_position: int
    stop: Stop
    error: CorruptBatchError | None
    objects: tuple[RecordBatch, ...]


@dataclass(frozen=True, slots=True)
class BatchDecoder:
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

    def decode_header(
        self,
        buffer: bytes,
        *,
        file_position: int,
        start_offset: int | None,
        end_offset: int | None,
    ) -> None:
        return None

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
