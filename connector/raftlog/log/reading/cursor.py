"""Cursor that reads a log across segments, which may roll or be deleted while they are read.

At a batch that cannot be read, the kind of segment and the bytes after it decide:

  sealed     | batch | batch | cut off    |                 CorruptBatchError
  active     | batch | batch | cut off    | end of file     end of the log, a torn tail
  active     | batch | batch | 0 0 0 0 0  | end of file     end of the log, preallocated zeros
  active     | batch | batch | unreadable | valid batch |   CorruptBatchError

Invariants:

1. Batches before damage are returned; the error is raised after them.
2. Offsets never decrease, and have no gaps in a metadata log. The base offset is outside the CRC,
   so this check also detects a flipped bit in it.
3. A sealed segment ends with a whole batch. The active one may end in a torn batch or in zeros,
   unless a valid batch follows (``find_valid_batch``).
4. A segment that was deleted is looked up again; offsets that the log no longer holds raise
   ``DataLossError``.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
from crc32c import crc32c

from raftlog.errors import CorruptBatchError, DataLossError, LogGapError, SegmentDeletedError
from raftlog.limits import (
    BATCH_HEADER_BYTES,
    LOG_OVERHEAD_BYTES,
    MIB,
    READ_BATCH_BYTES_MAX,
    SEGMENT_BYTES_MAX,
)
from raftlog.log.segment import find_header, read_batch_at
from raftlog.records.batch_columns import (
    HEADER_DTYPE,
    BatchColumns,
    Bools,
    Headers,
    Int64s,
    Stop,
    damaged_headers,
)
from raftlog.records.crc_ranges import UInt32s, range_crcs
from raftlog.records.header import (
    BATCH_HEADER,
    BATCH_MAGIC,
    CRC_START,
    INT32_MAX,
    LENGTH_MAX,
    LENGTH_MIN,
    MAGIC_POSITION,
)
from raftlog.storage.protocol import ReadableFile

from .chunks import ChunkDecoder, P, read_chunks
from .files import LogFiles

# --- Search for a valid batch after an unreadable one: was the log torn or damaged there? ---------
# A batch's length is outside its CRC. A batch with a wrong length hides all batches after it, and
# looks like a batch that a crash cut off. The bytes after its header decide: in a torn tail there
# is only the rest of the torn batch, or zeros; otherwise a valid batch follows.
#
#     position   0    100               190  280  400
#     torn       | b1 | b2: 900 bytes by its length |     find_valid_batch(file, 100, ...): None
#     damaged    | b1 | b2: 900 bytes   | b3 | b4   |     190: b2's length is wrong, it has 90 bytes
#
# The rest of a torn batch may itself contain valid batches: a client may send a batch as the value
# of a record. So a candidate inside the length of the unreadable batch counts only if that batch
# ends there, which its CRC shows: it covers the bytes from its attributes to its end.
#
#     damaged    | b2 ............ | b3 ...      crc32c(b2 up to b3) == crc of b2: b3 counts
#     torn       | b2 ... value [ b3 ] ...       crc32c(b2 up to b3) != crc of b2: b3 is payload
#
# Invariants:
#
# 1. A candidate has a plausible header and is whole, its CRC holds, and its base offset is not
#    below the expected one.
# 2. The work is linear in the bytes searched, although clients choose payloads in which every few
#    bytes may look like the header of a batch of any size. The CRC of a candidate is computed from
#    the CRCs of two prefixes of the file (``crc_ranges``), so that one sweep reads each byte once
#    for all of its candidates; each sweep covers twice as many chunks as the one before.
# 3. No batch of a segment begins after ``SEGMENT_BYTES_MAX``: the rest of a longer file is not
#    searched.
# 4. Memory is bounded by one chunk and by ``_CANDIDATES_MAX`` candidates plus those of one chunk.

_CHUNK_BYTES: Final = 1 * MIB
_CANDIDATES_MAX: Final = 1 << 18
_ATTRIBUTES_MAX: Final = 0x7F
"""Kafka reads seven bits of the attributes and sets no others."""


def find_valid_batch(file: ReadableFile, position: int, next_offset: int | None) -> int | None:
    """Return the position of the first valid batch after the one at ``position``, or None.

    ``next_offset`` is the least base offset that it may have; None for any.
    """
    unreadable = _UnreadableBatch(file, position)
    at, chunk_count, is_end = position + 1, 1, False
    while not is_end:
        found: list[_Candidates] = []
        for _ in range(chunk_count):
            buffer = file.read_at(at, _CHUNK_BYTES + BATCH_HEADER_BYTES - 1)
            is_end = len(buffer) < BATCH_HEADER_BYTES or at >= SEGMENT_BYTES_MAX
            if is_end or sum(map(len, found)) >= _CANDIDATES_MAX:
                break
            candidates = _candidates(buffer, at, file.byte_count(), next_offset)
            found.append(candidates.where(unreadable.may_end_at(candidates.starts)))
            at += _CHUNK_BYTES
        for start in _valid_positions(file, _concatenate(found)):
            if read_batch_at(file, start) is not None:
                return start
        chunk_count *= 2
    return None


@dataclass(frozen=True, slots=True)
class _Candidates:
    """Plausible headers: start and end positions of their batches, and the CRCs in them."""

    starts: Int64s
    ends: Int64s
    crcs: UInt32s

    def __len__(self) -> int:
        return len(self.starts)

    def where(self, which: Bools) -> _Candidates:
        return _Candidates(self.starts[which], self.ends[which], self.crcs[which])


def _concatenate(found: list[_Candidates]) -> _Candidates:
    return _Candidates(
        np.concatenate([one.starts for one in found] or [np.zeros(0, np.int64)]),
        np.concatenate([one.ends for one in found] or [np.zeros(0, np.int64)]),
        np.concatenate([one.crcs for one in found] or [np.zeros(0, np.uint32)]),
    )


def _valid_positions(file: ReadableFile, candidates: _Candidates) -> list[int]:
    """Return the start positions of candidates whose CRC holds, ascending, in one sweep."""
    if not len(candidates):
        return []
    begins = candidates.starts + CRC_START
    positions = np.unique(np.concatenate((begins, candidates.ends)))
    prefixes = _PrefixCrcs(file, int(positions[0])).crcs(positions)
    begin_crcs = prefixes[np.searchsorted(positions, begins)]
    end_crcs = prefixes[np.searchsorted(positions, candidates.ends)]
    crcs = range_crcs(begin_crcs, end_crcs, candidates.ends - begins)
    valid: list[int] = candidates.starts[crcs == candidates.crcs].tolist()
    return valid


class _PrefixCrcs:
    """CRCs of a file's bytes from ``position`` up to later positions; each byte is read once."""

    def __init__(self, file: ReadableFile, position: int) -> None:
        self._file = file
        self._at = self._window_position = position
        self._window = memoryview(b"")
        self._crc = 0

    def crcs(self, positions: Int64s) -> UInt32s:
        """Return the CRCs up to ``positions``, which ascend within a call and from call to call."""
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
    """Batch that cannot be read: its end by its length, and by its CRC."""

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

        ``starts`` ascend from call to call. All after the end by the batch's length are allowed;
        before that, those up to which its CRC holds.
        """
        allowed: Bools = starts >= self._claimed_end
        inside = starts[~allowed]
        if len(inside):
            allowed[~allowed] = (self._prefixes.crcs(inside) == self._crc) & (
                inside >= self._min_end
            )
        return allowed


def _candidates(
    buffer: bytes, position: int, file_bytes: int, next_offset: int | None
) -> _Candidates:
    """Return the plausible headers in ``buffer``, which is at ``position`` of the file.

    Only batches that end within ``file_bytes``, the size of the file.
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
    crcs = headers["crc"].astype(np.uint32)
    return _Candidates(starts, starts + byte_counts, crcs).where(plausible)


# --- Cursor ---------------------------------------------------------------------------------------

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
