"""Bytes of one segment as columns: batches in chunks, index entries, a valid batch after damage.

Memory is bounded by the chunk size, or by one batch if that is larger. A batch whose length extends
past the end of the file is torn and is not read. A decoder of headers skips the records of large
batches.
"""

from __future__ import annotations

import abc
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Final, Generic, NamedTuple, Protocol, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
from crc32c import crc32c

from raftlog.errors import (
    CorruptBatchError,
)
from raftlog.limits import (
    BATCH_HEADER_BYTES,
    INT32_MAX,
    LOG_OVERHEAD_BYTES,
    MIB,
    READ_BATCH_BYTES_MAX,
    SEGMENT_BYTES_MAX,
)
from raftlog.log.format.epoch_cache import EpochCache
from raftlog.log.segment import OFFSET_ENTRY, TIME_ENTRY, read_batch_at
from raftlog.records.batch import RecordBatch, read_batch
from raftlog.records.batch_columns import (
    HEADER_DTYPE,
    BatchColumns,
    BatchSpans,
    Bools,
    Column,
    Headers,
    HeaderScan,
    Int64s,
    RecordColumns,
    Scan,
    Stop,
    UInt32s,
    batch_columns,
    clip,
    damaged_headers,
    scan_headers,
)
from raftlog.records.header import (
    BATCH_HEADER,
    BATCH_LENGTH,
    BATCH_MAGIC,
    CRC_START,
    LENGTH_MAX,
    LENGTH_MIN,
    LENGTH_POSITION,
    MAGIC_POSITION,
)
from raftlog.storage.protocol import ReadableFile

HEADER_CHUNK_BYTES: Final = 128 * 1024
"""Chunk size if only headers are read. The records of larger batches are skipped."""


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


class ChunkBytes(NamedTuple):
    """Bytes at ``position`` of a file, and the range [start_offset, end_offset) to decode of them.

    ``path`` is the file's path. A bound of None excludes no batch.
    """

    data: bytes
    path: str
    position: int
    start_offset: int | None
    end_offset: int | None

    def batch_at(self, position: int) -> RecordBatch:
        """Return the whole batch at a position of the file. Raises ``CorruptBatchError``."""
        at = position - self.position
        batch = read_batch(self.data, at, path=self.path, file_position=self.position)
        assert isinstance(batch, RecordBatch), "scan_headers returns whole batches"
        return batch

    def headers(self) -> HeaderScan:
        """Return the headers of the batches that overlap the range."""
        return scan_headers(
            self.data,
            path=self.path,
            file_position=self.position,
            start_offset=self.start_offset,
            end_offset=self.end_offset,
        )


class ChunkDecoder(abc.ABC, Generic[P]):
    """Decoder of a chunk of bytes into batches.

    ``chunk_bytes`` is the size of one read, unless a batch is larger.
    """

    __slots__ = ()
    chunk_bytes: int

    @abc.abstractmethod
    def decode(self, source: ChunkBytes) -> P:
        """Decode the batches of ``source`` that overlap its range.

        ``end_position`` of the result is relative to ``source.position``.
        """

    @abc.abstractmethod
    def first(self, chunk: P, count: int) -> P:
        """Return a chunk with only the first ``count`` batches of ``chunk``."""

    def decode_header(self, source: ChunkBytes) -> P | None:
        """Decode the first batch from its header alone; None if the whole batch is needed."""
        return None


@dataclass(frozen=True, slots=True)
class ColumnDecoder(ChunkDecoder[Scan]):
    """Decoder of records into columns; CRCs are checked.

    ``decompressed_bytes_max`` limits the records of one compressed batch. With ``whole_batches``,
    the last batch keeps its records after the end of the range, so that a caller may continue after
    that batch. ``value_prefixes`` are passed to ``scan``.
    """

    columns: Column
    chunk_bytes: int
    decompressed_bytes_max: int
    whole_batches: bool = False
    value_prefixes: tuple[bytes, ...] = ()

    def decode(self, source: ChunkBytes) -> Scan:
        from raftlog.records.scan import scan  # imports pyarrow

        def scanned(end_offset: int | None) -> Scan:
            return scan(
                source.data,
                columns=self.columns,
                start_offset=source.start_offset,
                end_offset=end_offset,
                path=source.path,
                file_position=source.position,
                decompressed_bytes_max=self.decompressed_bytes_max,
                value_prefixes=self.value_prefixes,
            )

        end_offset = source.end_offset
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
    """Headers of batches, and the control batches among them, by ordinal."""

    batches: BatchColumns
    end_position: int
    stop: Stop
    error: CorruptBatchError | None
    control: tuple[tuple[int, RecordBatch], ...] = ()


@dataclass(frozen=True, slots=True)
class HeaderDecoder(ChunkDecoder[HeaderChunk]):
    """Decoder of headers alone.

    CRCs are checked for control batches, if these are requested, and for the last batch of each
    chunk, so that a log's last batch counts only if it is valid. With ``check_all`` every CRC is
    checked.
    """

    chunk_bytes: int = HEADER_CHUNK_BYTES
    check_all: bool = False
    with_control: bool = True

    def decode(self, source: ChunkBytes) -> HeaderChunk:
        walk = source.headers()
        checked: set[int] = set()
        if self.with_control:
            checked.update(np.flatnonzero(walk.batches.is_control).tolist())
        if self.check_all:
            start, end = source.start_offset, source.end_offset
            valid = scan_headers(source.data, start_offset=start, end_offset=end, crcs=True)
            if len(valid.batches) < len(walk.batches):
                checked.add(len(valid.batches))
        elif len(walk.batches) and walk.stop is not Stop.END_OFFSET:
            checked.add(len(walk.batches) - 1)
        control: list[tuple[int, RecordBatch]] = []
        for ordinal in sorted(checked):
            position = int(walk.batches.position[ordinal])
            try:
                batch = source.batch_at(position)
            except CorruptBatchError as error:
                whole, at = walk.batches[:ordinal], position - source.position
                return HeaderChunk(whole, at, Stop.DAMAGED, error, tuple(control))
            if batch.is_control and self.with_control:
                control.append((ordinal, batch))
        return HeaderChunk(walk.batches, walk.end_position, walk.stop, walk.error, tuple(control))

    def decode_header(self, source: ChunkBytes) -> HeaderChunk | None:
        headers = np.frombuffer(source.data[:BATCH_HEADER_BYTES], HEADER_DTYPE)
        if self.check_all or damaged_headers(headers)[0]:
            return None
        end_position = int(headers["length"][0]) + LOG_OVERHEAD_BYTES
        located = BatchSpans(np.zeros(1, np.int64), headers, end_position, Stop.END, None)
        located = clip(located, source.start_offset, source.end_offset)
        batches = batch_columns(located, source.position)
        if self.with_control and batches.is_control.any():
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
    """Decoder of batches into one object each, for tools in which speed does not matter."""

    chunk_bytes: int

    def decode(self, source: ChunkBytes) -> BatchChunk:
        walk = source.headers()
        objects: list[RecordBatch] = []
        for at in walk.batches.position.tolist():
            try:
                objects.append(source.batch_at(at))
            except CorruptBatchError as error:
                whole, end = walk.batches[: len(objects)], at - source.position
                return BatchChunk(whole, end, Stop.DAMAGED, error, tuple(objects))
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
    """Read a file in chunks from ``position`` on, which must be the start of a batch.

    Yields each chunk with the position after its last batch. Reading ends at the end of the file,
    at damage or at ``end_offset``; ``stop`` of the last chunk is the reason. END and TORN refer to
    the current end of the file. ``start_offset`` is applied until a batch reaches it.
    """
    wanted = decoder.chunk_bytes
    while True:
        buffer = file.read_at(position, wanted)
        at_end = len(buffer) < wanted
        source = ChunkBytes(
            buffer, file.path, position=position, start_offset=start_offset, end_offset=end_offset
        )
        chunk = decoder.decode(source)
        if chunk.stop is Stop.TORN and chunk.end_position == 0 and not at_end:
            byte_count = _first_batch_bytes(buffer)
            left = file.byte_count() - position
            if byte_count is None or byte_count > left:
                yield position, chunk
                return
            jumped = None
            if byte_count < left:  # the file's last batch is decoded whole, as its CRC decides
                jumped = decoder.decode_header(source)
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


def epoch_mismatches(batches: BatchColumns, epochs: EpochCache) -> tuple[Bools, Bools]:
    """Return which batches have another epoch than ``epochs``, and for which batches it is known.

    A batch's CRC does not cover its epoch; ``epochs`` is a trusted checkpoint.
    """
    starts = np.array([entry.start_offset for entry in epochs.entries], np.int64)
    numbers = np.array([entry.epoch for entry in epochs.entries], np.int64)
    if not len(starts):
        none = np.zeros(len(batches), np.bool_)
        return none, none
    first = np.searchsorted(starts, batches.base_offset, side="right") - 1
    last = np.searchsorted(starts, batches.last_offset, side="right") - 1
    known: Bools = first >= 0
    wrong: Bools = known & ((numbers[first] != batches.leader_epoch) | (first != last))
    return wrong, known


# --- Sparse offset index of a segment (Kafka: ``OffsetIndex``) ------------------------------------
# Entry: int32 last offset of a batch minus the base offset, int32 position at which that batch
# begins. There is no entry for position 0. The file has no checksum, and a running node's file
# consists of a few entries followed by zeros, 10 MiB in total. Therefore entries are read up to the
# first that does not ascend, and callers check that a batch begins at an entry's position.

OFFSET_ENTRY_BYTES: Final = OFFSET_ENTRY.size
_OFFSET_ENTRY: Final = np.dtype([("offset_delta", ">i4"), ("position", ">i4")])
_READ_ENTRIES: Final = 8192


@dataclass(frozen=True, slots=True)
class OffsetIndex:
    """Last offsets of batches, and the positions at which they begin. Both ascend strictly."""

    last_offsets: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    positions: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))

    def __len__(self) -> int:
        return len(self.positions)

    def entry_before(self, offset: int) -> int | None:
        """Return the ordinal of the last entry whose last offset is <= ``offset``, or None."""
        ordinal = int(np.searchsorted(self.last_offsets, offset, side="right")) - 1
        return None if ordinal < 0 else ordinal


def parse_offset_index(data: bytes, base_offset: int) -> OffsetIndex:
    """Parse an ``.index`` up to the first entry that does not ascend."""
    entries = np.frombuffer(data, _OFFSET_ENTRY, count=len(data) // OFFSET_ENTRY_BYTES)
    deltas = entries["offset_delta"].astype(np.int64)
    positions = entries["position"].astype(np.int64)
    kept = ascending_count((deltas, 0), (positions, 0))
    return OffsetIndex(deltas[:kept] + base_offset, positions[:kept])


def ascending_count(*columns: tuple[npt.NDArray[np.int64], int]) -> int:
    """Return how many leading elements ascend strictly in every column, from above its bound."""
    valid = np.ones(len(columns[0][0]), np.bool_)
    for column, above in columns:
        valid[1:] &= column[1:] > column[:-1]
        valid[:1] &= column[:1] > above
    return len(valid) if valid.all() else int(np.argmin(valid))


def read_entries(file: ReadableFile, entry_bytes: int) -> bytes:
    """Read an index up to its zeros."""
    parts = []
    position = 0
    step = _READ_ENTRIES * entry_bytes
    while part := file.read_at(position, step):
        parts.append(part)
        position += len(part)
        if len(part) < step or not any(part[-entry_bytes:]):
            break
    return b"".join(parts)


# --- Sparse time index of a segment (Kafka: ``TimeIndex``) ----------------------------------------
# Entry: int64 greatest timestamp so far in the segment, int32 last offset of the batch that has it,
# minus the base offset. Both ascend strictly. As with the offset index, entries are read up to the
# first that does not ascend, and callers check them.

TIME_ENTRY_BYTES: Final = TIME_ENTRY.size
_TIME_ENTRY: Final = np.dtype([("timestamp_ms", ">i8"), ("offset_delta", ">i4")])


@dataclass(frozen=True, slots=True)
class TimeIndex:
    """Timestamps and last offsets. Both ascend strictly."""

    timestamps_ms: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    last_offsets: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))

    def __len__(self) -> int:
        return len(self.timestamps_ms)

    def entry_before(self, timestamp_ms: int) -> int | None:
        """Return the ordinal of the last entry with a timestamp < ``timestamp_ms``, or None."""
        ordinal = int(np.searchsorted(self.timestamps_ms, timestamp_ms, side="left")) - 1
        return None if ordinal < 0 else ordinal


def parse_time_index(data: bytes, base_offset: int) -> TimeIndex:
    """Parse a ``.timeindex`` up to the first entry that does not ascend.

    The first entry may have offset delta 0 (if the first batch has one record). An entry with zeros
    in both fields is the end.
    """
    entries = np.frombuffer(data, _TIME_ENTRY, count=len(data) // TIME_ENTRY_BYTES)
    timestamps_ms = entries["timestamp_ms"].astype(np.int64)
    deltas = entries["offset_delta"].astype(np.int64)
    kept = ascending_count((timestamps_ms, 0), (deltas, -1))
    return TimeIndex(timestamps_ms[:kept], deltas[:kept] + base_offset)


# --- Search for a valid batch after an unreadable one: was the log torn or damaged there? ---------
# A batch's CRC does not cover its length. A batch with a wrong length hides all batches after it,
# and looks like a batch that a crash cut off. The bytes after its header distinguish the cases: a
# torn tail has only the rest of the torn batch, or zeros; otherwise a valid batch follows.
#
#     position   0    100               190  280  400
#     torn       | b1 | b2: 900 bytes by its length |     find_valid_batch(file, 100, ...): None
#     damaged    | b1 | b2: 900 bytes   | b3 | b4   |     190: b2's length is wrong, it has 90 bytes
#
# The rest of a torn batch may itself contain valid batches, because a client may send a batch as
# the value of a record. Therefore a candidate within the length of the unreadable batch counts only
# if that batch ends where the candidate begins. Its CRC shows this: it covers the bytes from the
# attributes to the end of the batch.
#
#     damaged    | b2 ............ | b3 ...      crc32c(b2 up to b3) == crc of b2: b3 counts
#     torn       | b2 ... value [ b3 ] ...       crc32c(b2 up to b3) != crc of b2: b3 is payload
#
# Invariants:
#
# 1. A candidate has a plausible header, is whole, has a matching CRC, and has a base offset not
#    below the expected one.
# 2. The work is linear in the bytes searched, although clients choose payloads in which every few
#    bytes may look like the header of a batch of any size. The CRC of a candidate is computed from
#    the CRCs of two prefixes of the file (``range_crcs``), so that one sweep reads each byte once
#    for all of its candidates. Each sweep covers twice as many chunks as the one before.
# 3. No batch of a segment begins after ``SEGMENT_BYTES_MAX``, so the rest of a longer file is not
#    searched.
# 4. Memory is bounded by one chunk and by ``_CANDIDATES_MAX`` candidates plus those of one chunk.

_CHUNK_BYTES: Final = 1 * MIB
_CANDIDATES_MAX: Final = 1 << 18
_ATTRIBUTES_MAX: Final = 0x7F
"""Kafka reads seven bits of the attributes and sets no others."""
_CANDIDATE: Final = np.dtype(
    [("start", np.int64), ("end", np.int64), ("crc", np.uint32)], align=True
)
Candidates: TypeAlias = npt.NDArray[np.void]
"""Plausible headers: start and end positions of their batches, and the CRCs that they contain."""


def find_valid_batch(file: ReadableFile, position: int, *, next_offset: int | None) -> int | None:
    """Return the position of the first valid batch after the one at ``position``, or None.

    ``next_offset`` is the least base offset that it may have, or None for any.
    """
    unreadable = _UnreadableBatch(file, position)
    at, chunk_count, is_end = position + 1, 1, False
    while not is_end:
        found = [np.zeros(0, _CANDIDATE)]
        for _ in range(chunk_count):
            buffer = file.read_at(at, _CHUNK_BYTES + BATCH_HEADER_BYTES - 1)
            is_end = len(buffer) < BATCH_HEADER_BYTES or at >= SEGMENT_BYTES_MAX
            if is_end or sum(map(len, found)) >= _CANDIDATES_MAX:
                break
            candidates = _candidates(buffer, at, file.byte_count(), next_offset=next_offset)
            found.append(candidates[unreadable.may_end_at(candidates["start"])])
            at += _CHUNK_BYTES
        for start in _valid_positions(file, np.concatenate(found)):
            if read_batch_at(file, start) is not None:
                return start
        chunk_count *= 2
    return None


def _valid_positions(file: ReadableFile, candidates: Candidates) -> list[int]:
    """Return the start positions of candidates with a matching CRC, ascending, in one sweep."""
    if not len(candidates):
        return []
    begins, ends = candidates["start"] + CRC_START, candidates["end"]
    positions, ordinals = np.unique(np.concatenate((begins, ends)), return_inverse=True)
    prefixes = _PrefixCrcs(file, int(positions[0])).crcs(positions)[ordinals]
    crcs = range_crcs(prefixes[: len(begins)], prefixes[len(begins) :], ends - begins)
    valid: list[int] = candidates["start"][crcs == candidates["crc"]].tolist()
    return valid


class _PrefixCrcs:
    """CRCs of a file's bytes from ``position`` to later positions. Each byte is read once."""

    def __init__(self, file: ReadableFile, position: int) -> None:
        self._file = file
        self._at = self._window_position = position
        self._window = memoryview(b"")
        self._crc = 0

    def crcs(self, positions: Int64s) -> UInt32s:
        """Return the CRCs up to ``positions``, which ascend within a call and between calls."""
        return np.fromiter(map(self._up_to, positions.tolist()), np.uint32, len(positions))

    def _up_to(self, position: int) -> int:
        while self._at < position:
            if self._at == self._window_position + len(self._window):
                self._window_position = self._at
                self._window = memoryview(self._file.read_at(self._at, _CHUNK_BYTES))
                if not self._window:
                    break  # the file was truncated: no candidate up to here is valid
            start = self._at - self._window_position
            part = self._window[start : position - self._window_position]
            self._crc = crc32c(part, self._crc)
            self._at += len(part)
        return self._crc


class _UnreadableBatch:
    """Batch that cannot be read, and where it may end: according to its length, and to its CRC."""

    def __init__(self, file: ReadableFile, position: int) -> None:
        self._claimed_end = position
        self._prefixes = _PrefixCrcs(file, position + CRC_START)
        self._min_end = position + CRC_START
        self._crc = 0
        head = file.read_at(position, BATCH_HEADER_BYTES)
        if len(head) == BATCH_HEADER_BYTES:
            _, length, _, magic, self._crc, *_ = BATCH_HEADER.unpack(head)
            if magic == BATCH_MAGIC and LENGTH_MIN <= length <= LENGTH_MAX:
                self._claimed_end = position + LOG_OVERHEAD_BYTES + length

    def may_end_at(self, starts: Int64s) -> Bools:
        """Return which of ``starts`` may be the end of this batch, or are after it.

        ``starts`` ascend from call to call. All positions after the end by the batch's length are
        allowed. Before that end, only positions up to which the batch's CRC matches are.
        """
        allowed: Bools = starts >= self._claimed_end
        inside = starts[~allowed]
        if len(inside):
            allowed[~allowed] = (self._prefixes.crcs(inside) == self._crc) & (
                inside >= self._min_end
            )
        return allowed


def _candidates(
    buffer: bytes, position: int, file_bytes: int, *, next_offset: int | None
) -> Candidates:
    """Return the plausible headers in ``buffer``, which is at ``position`` of the file.

    Only batches that end within ``file_bytes``, the size of the file, are included.
    """
    count = len(buffer) - BATCH_HEADER_BYTES + 1
    data = np.frombuffer(buffer, np.uint8)
    positions = np.flatnonzero(data[MAGIC_POSITION : MAGIC_POSITION + count] == BATCH_MAGIC)
    everywhere: Headers = np.ndarray((count,), f"V{BATCH_HEADER_BYTES}", buffer, strides=(1,))
    headers = everywhere[positions].view(HEADER_DTYPE)
    base_offset = headers["base_offset"]
    starts = (positions + position).astype(np.int64)
    byte_counts = headers["length"].astype(np.int64) + LOG_OVERHEAD_BYTES
    plausible = (
        ~damaged_headers(headers)
        & (headers["length"] >= LENGTH_MIN)
        & (byte_counts <= READ_BATCH_BYTES_MAX)
        & (starts + byte_counts <= file_bytes)
        & (headers["attributes"] >= 0)
        & (headers["attributes"] <= _ATTRIBUTES_MAX)
    )
    if next_offset is not None:
        plausible &= (base_offset >= next_offset) & (base_offset - next_offset <= INT32_MAX)
    candidates = np.empty(len(starts), _CANDIDATE)
    candidates["start"], candidates["end"] = starts, starts + byte_counts
    candidates["crc"] = headers["crc"]
    return candidates[plausible]


# --- CRCs of overlapping ranges, from the CRCs of prefixes, so that the bytes are read once -------
# For a prefix ``A`` and a range ``B`` after it, ``crc(AB) = shift(crc(A), len(B)) ^ crc(B)``, so
# ``crc(B)`` follows from the CRCs of two prefixes. ``shift`` is linear over GF(2): the operator for
# ``2 ** k`` bytes is the square of the one for ``2 ** (k - 1)`` bytes (zlib: ``crc32_combine``).

_POLYNOMIAL: Final = 0x82F6_3B78
"""Polynomial of CRC-32C, bits reversed."""
_ZEROS_PER_BYTE: Final = 3
"""log2 of the bits per byte."""


def range_crcs(start_crcs: UInt32s, end_crcs: UInt32s, byte_counts: Int64s) -> UInt32s:
    """Return the CRCs of ranges from the CRCs of the prefixes up to their starts and their ends.

    ``byte_counts`` are the lengths of the ranges.
    """
    return end_crcs ^ _shifted(start_crcs, byte_counts)


def _shifted(crcs: UInt32s, byte_counts: Int64s) -> UInt32s:
    """Return the contribution of ``crcs`` to the CRCs of prefixes longer by ``byte_counts``."""
    result = crcs.copy()
    for power in range(int(byte_counts.max(initial=0)).bit_length()):
        chosen = np.flatnonzero(byte_counts >> power & 1)
        tables, values = _tables(power), result[chosen]
        result[chosen] = (
            tables[0][values & 0xFF]
            ^ tables[1][values >> 8 & 0xFF]
            ^ tables[2][values >> 16 & 0xFF]
            ^ tables[3][values >> 24]
        )
    return result


@cache
def _tables(power: int) -> UInt32s:
    """Return the operator for ``2 ** power`` zero bytes, as one table per byte of a CRC."""
    columns = _columns(power + _ZEROS_PER_BYTE)
    tables = np.zeros((4, 256), np.uint32)
    for bit, column in enumerate(columns):
        table = tables[bit // 8]
        table[np.arange(256) >> bit % 8 & 1 == 1] ^= np.uint32(column)
    return tables


@cache
def _columns(power: int) -> tuple[int, ...]:
    """Return the operator for ``2 ** power`` zero bits: the image of each bit of a CRC."""
    if power == 0:
        return (_POLYNOMIAL, *(1 << bit for bit in range(31)))
    half = _columns(power - 1)
    return tuple(_applied(half, column) for column in half)


def _applied(columns: tuple[int, ...], value: int) -> int:
    result = 0
    for bit, column in enumerate(columns):
        if value >> bit & 1:
            result ^= column
    return result
