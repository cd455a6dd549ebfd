"""A file's batches, a piece at a time: what a piece is, and how each kind of reading makes one.

Rules of this file:

1. Memory is bounded by the chunk, or by one batch where that is larger.
2. A batch whose length reaches beyond the file is torn: it is never asked for.
3. A reading of headers alone jumps over the records of large batches.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final, Protocol, TypeVar

import numpy as np

from raftlog.errors import CorruptBatchError
from raftlog.limits import BATCH_HEADER_BYTES, LOG_OVERHEAD_BYTES
from raftlog.records.batch import RecordBatch, read_batch
from raftlog.records.batch_index import (
    HEADER_DTYPE,
    BatchSpans,
    batch_columns,
    clip,
    damaged_headers,
    index_batches,
    scan_headers,
)
from raftlog.records.columns import BatchColumns, Column, HeaderScan, RecordColumns, Scan, Stop
from raftlog.records.crc import first_bad_crc
from raftlog.records.header import BATCH_LENGTH, LENGTH_POSITION
from raftlog.records.scan import scan
from raftlog.storage.protocol import ReadableFile

HEADER_CHUNK_BYTES: Final = 128 * 1024
"""How much is read at once where only headers are wanted: larger batches are jumped over."""


class Chunk(Protocol):
    """Whole batches of a chunk, and where and why they end (``Scan``, ``HeaderScan``, ...)."""

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
    """One way to make pieces of a chunk."""

    @property
    def chunk_bytes(self) -> int:
        """How much is read at once, if no batch is larger."""
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
        """The batches of ``buffer`` that overlap the range; ``end_position`` is the buffer's."""
        ...

    def decode_header(
        self,
        buffer: bytes,
        *,
        file_position: int,
        start_offset: int | None,
        end_offset: int | None,
    ) -> P | None:
        """The first batch of ``buffer`` by its header alone, or None if it must be read whole."""
        ...

    def first(self, chunk: P, count: int) -> P:
        """The first ``count`` batches of a piece."""
        ...


@dataclass(frozen=True, slots=True)
class ColumnDecoder:
    """Records as columns: CRCs checked, everything decoded that was asked for.

    ``decompressed_bytes_max`` is the limit of each compressed batch.
    With ``whole_batches`` the records of the last batch are not cut at the range's end: a caller
    that goes on after that batch misses none.
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
    """Headers, and of the control batches among them (by their place) the batches themselves."""

    batches: BatchColumns
    end_position: int
    stop: Stop
    error: CorruptBatchError | None
    control: tuple[tuple[int, RecordBatch], ...] = ()


@dataclass(frozen=True, slots=True)
class HeaderDecoder:
    """Headers alone.

    CRCs are checked of control batches, and of the last batch of each chunk: so the last batch of
    a log is sound when it is believed to be there. With ``check_all`` those of all batches.
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
            assert isinstance(batch, RecordBatch), "the walk saw that it is whole"
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
    """Batches as objects, beside their headers as columns."""

    batches: BatchColumns
    end_position: int
    stop: Stop
    error: CorruptBatchError | None
    objects: tuple[RecordBatch, ...]


@dataclass(frozen=True, slots=True)
class BatchDecoder:
    """One object a batch: for tools, not for speed."""

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
            assert isinstance(batch, RecordBatch), "the walk saw that it is whole"
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
    """Read a file from ``position`` (where a batch begins) to its end, its damage or the range's.

    Gives each piece with the position behind its last batch. The last piece tells why no more
    follow: END and TORN mean the end of the file as it is now. ``start_offset`` is looked at until
    the first batch is found that reaches it.
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
            if byte_count < left:  # whether a file's last batch is sound must be seen
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
    """How many bytes the batch at the buffer's beginning claims, or None for zeros."""
    (length,) = BATCH_LENGTH.unpack_from(buffer, LENGTH_POSITION)
    return length + LOG_OVERHEAD_BYTES if length else None
