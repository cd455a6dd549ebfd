"""Tell a torn tail from damage: does anything sound follow what cannot be read?

A batch says where the next one begins. So a length that lies hides all that follows, and looks like
a batch that its node was still writing. Only the bytes behind it can tell: nothing but the rest of
a torn batch, or zeros, follows a torn tail. That rest may hold whole batches itself, as the payload
of its records; the CRC of the batch tells them from those that a lying length hides.

Rules of this file:

1. A candidate must be a whole batch whose CRC holds, with offsets that could follow.
2. One that lies inside the length that the unreadable batch claims counts only if that batch proves
   to end there: its CRC, which does not cover its length, holds up to it.
3. Clients choose what batches hold, so every few bytes may look like a header that claims all that
   follows. The work stays linear: CRCs of candidates come from CRCs of prefixes (``crc_ranges``),
   and a sweep covers twice as many chunks as the one before.
4. No batch of a segment begins after ``SEGMENT_BYTES_MAX``: a longer file is not searched there.
5. Memory is bounded by a chunk and ``_CANDIDATES_MAX`` candidates, and those of one chunk more.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from crc32c import crc32c

from raftlog.limits import (
    BATCH_HEADER_BYTES,
    LOG_OVERHEAD_BYTES,
    MIB,
    READ_BATCH_BYTES_MAX,
    SEGMENT_BYTES_MAX,
)
from raftlog.records.batch_index import HEADER_DTYPE, Headers, damaged_headers
from raftlog.records.columns import Bools, Int64s
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

from .files import read_batch_at

_CHUNK_BYTES: Final = 1 * MIB
_CANDIDATES_MAX: Final = 1 << 18
_ATTRIBUTES_MAX: Final = 0x7F
"""Kafka's readers look at seven bits and its writers set no other."""


def find_valid_batch(file: ReadableFile, position: int, next_offset: int | None) -> int | None:
    """The position of the first sound batch behind the one at ``position``, or None.

    ``next_offset`` is the least offset that it may have; None if nobody knows.
    """
    unreadable = _Unreadable(file, position)
    at, chunk_count, is_end = position + 1, 1, False
    while not is_end:
        found: list[_Candidates] = []
        for _ in range(chunk_count):
            buffer = file.read_at(at, _CHUNK_BYTES + BATCH_HEADER_BYTES - 1)
            is_end = len(buffer) < BATCH_HEADER_BYTES or at >= SEGMENT_BYTES_MAX
            if is_end or sum(map(len, found)) >= _CANDIDATES_MAX:
                break
            candidates = _candidates(buffer, at, file.byte_count(), next_offset)
            found.append(candidates.chosen(unreadable.may_end_at(candidates.starts)))
            at += _CHUNK_BYTES
        for start in _valid_positions(file, _joined(found)):
            if read_batch_at(file, start) is not None:
                return start
        chunk_count *= 2
    return None


@dataclass(frozen=True, slots=True)
class _Candidates:
    """Plausible headers: where their batches begin and end in the file, and the CRCs they name."""

    starts: Int64s
    ends: Int64s
    crcs: UInt32s

    def __len__(self) -> int:
        return len(self.starts)

    def chosen(self, which: Bools) -> _Candidates:
        return _Candidates(self.starts[which], self.ends[which], self.crcs[which])


def _joined(found: list[_Candidates]) -> _Candidates:
    return _Candidates(
        np.concatenate([one.starts for one in found] or [np.zeros(0, np.int64)]),
        np.concatenate([one.ends for one in found] or [np.zeros(0, np.int64)]),
        np.concatenate([one.crcs for one in found] or [np.zeros(0, np.uint32)]),
    )


def _valid_positions(file: ReadableFile, candidates: _Candidates) -> list[int]:
    """Where the candidates begin whose CRC holds, ascending: one sweep over their bytes."""
    if not len(candidates):
        return []
    begins = candidates.starts + CRC_START
    positions = np.unique(np.concatenate((begins, candidates.ends)))
    prefixes = _Prefixes(file, int(positions[0])).crcs(positions)
    begin_crcs = prefixes[np.searchsorted(positions, begins)]
    end_crcs = prefixes[np.searchsorted(positions, candidates.ends)]
    crcs = range_crcs(begin_crcs, end_crcs, candidates.ends - begins)
    valid: list[int] = candidates.starts[crcs == candidates.crcs].tolist()
    return valid


class _Prefixes:
    """The CRCs of a file's bytes from ``position`` up to later positions, each byte read once."""

    def __init__(self, file: ReadableFile, position: int) -> None:
        self._file = file
        self._at = self._window_position = position
        self._window = memoryview(b"")
        self._crc = 0

    def crcs(self, positions: Int64s) -> UInt32s:
        """The CRCs up to positions that ascend, from call to call too."""
        return np.fromiter(map(self._up_to, positions.tolist()), np.uint32, len(positions))

    def _up_to(self, position: int) -> int:
        while self._at < position:
            if self._at == self._window_position + len(self._window):
                self._window_position = self._at
                self._window = memoryview(self._file.read_at(self._at, _CHUNK_BYTES))
                if not self._window:
                    break  # the file was cut meanwhile: then nothing up to here is sound
            start = self._at - self._window_position
            part = self._window[start : position - self._window_position]
            self._crc = crc32c(part, self._crc)
            self._at += len(part)
        return self._crc


class _Unreadable:
    """The batch that could not be read: where it claims to end, and where its CRC says it does."""

    def __init__(self, file: ReadableFile, position: int) -> None:
        self._claimed_end = position
        self._prefixes = _Prefixes(file, position + CRC_START)
        self._min_end = position + CRC_START
        self._crc = 0
        head = file.read_at(position, BATCH_HEADER_BYTES)
        if len(head) == BATCH_HEADER_BYTES:
            _, length, _, magic, self._crc, *_ = BATCH_HEADER.unpack(head)
            if magic == BATCH_MAGIC and LENGTH_MIN <= length <= LENGTH_MAX:
                self._claimed_end = position + LOG_OVERHEAD_BYTES + length

    def may_end_at(self, starts: Int64s) -> Bools:
        """Which of the positions, that ascend from call to call, can be where it ends: all after
        the end that it claims, and before that those up to which its CRC holds."""
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
    """The plausible headers in ``buffer``, which is at ``position``, of batches that are whole in
    a file of so many bytes."""
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
    return _Candidates(starts, starts + byte_counts, crcs).chosen(plausible)
