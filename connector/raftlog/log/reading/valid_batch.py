"""Search for a valid batch after an unreadable one: was the log torn or damaged there?

A batch's length is outside its CRC. A batch with a wrong length hides all batches after it, and
looks like a batch that a crash cut off. The bytes after its header decide: in a torn tail there
is only the rest of the torn batch, or zeros; otherwise a valid batch follows.

    position   0    100               190  280  400
    torn       | b1 | b2: 900 bytes by its length |     find_valid_batch(file, 100, ...): None
    damaged    | b1 | b2: 900 bytes   | b3 | b4   |     190: b2's length is wrong, it has 90 bytes

The rest of a torn batch may itself contain valid batches: a client may send a batch as the value
of a record. So a candidate inside the length of the unreadable batch counts only if that batch
ends there, which its CRC shows: it covers the bytes from its attributes to its end.

    damaged    | b2 ............ | b3 ...      crc32c(b2 up to b3) == crc of b2: b3 counts
    torn       | b2 ... value [ b3 ] ...       crc32c(b2 up to b3) != crc of b2: b3 is payload

Invariants:

1. A candidate has a plausible header and is whole, its CRC holds, and its base offset is not
   below the expected one.
2. The work is linear in the bytes searched, although clients choose payloads in which every few
   bytes may look like the header of a batch of any size. The CRC of a candidate is computed from
   the CRCs of two prefixes of the file (``range_crcs``), so that one sweep reads each byte once
   for all of its candidates; each sweep covers twice as many chunks as the one before.
3. No batch of a segment begins after ``SEGMENT_BYTES_MAX``: the rest of a longer file is not
   searched.
4. Memory is bounded by one chunk and by ``_CANDIDATES_MAX`` candidates plus those of one chunk.
"""

from __future__ import annotations

from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
from crc32c import crc32c

from raftlog.limits import (
    BATCH_HEADER_BYTES,
    LOG_OVERHEAD_BYTES,
    MIB,
    READ_BATCH_BYTES_MAX,
    SEGMENT_BYTES_MAX,
)
from raftlog.log.segment import read_batch_at
from raftlog.records.batch_columns import (
    HEADER_DTYPE,
    Bools,
    Headers,
    Int64s,
    damaged_headers,
)
from raftlog.records.crc import UInt32s, range_crcs
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

_CHUNK_BYTES: Final = 1 * MIB
_CANDIDATES_MAX: Final = 1 << 18
_ATTRIBUTES_MAX: Final = 0x7F
"""Kafka reads seven bits of the attributes and sets no others."""
_CANDIDATE: Final = np.dtype(
    [("start", np.int64), ("end", np.int64), ("crc", np.uint32)], align=True
)
Candidates: TypeAlias = npt.NDArray[np.void]
"""Plausible headers: start and end positions of their batches, and the CRCs in them."""


def find_valid_batch(file: ReadableFile, position: int, next_offset: int | None) -> int | None:
    """Return the position of the first valid batch after the one at ``position``, or None.

    ``next_offset`` is the least base offset that it may have; None for any.
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
            candidates = _candidates(buffer, at, file.byte_count(), next_offset)
            found.append(candidates[unreadable.may_end_at(candidates["start"])])
            at += _CHUNK_BYTES
        for start in _valid_positions(file, np.concatenate(found)):
            if read_batch_at(file, start) is not None:
                return start
        chunk_count *= 2
    return None


def _valid_positions(file: ReadableFile, candidates: Candidates) -> list[int]:
    """Return the start positions of candidates whose CRC holds, ascending, in one sweep."""
    if not len(candidates):
        return []
    begins, ends = candidates["start"] + CRC_START, candidates["end"]
    positions, ordinals = np.unique(np.concatenate((begins, ends)), return_inverse=True)
    prefixes = _PrefixCrcs(file, int(positions[0])).crcs(positions)[ordinals]
    crcs = range_crcs(prefixes[: len(begins)], prefixes[len(begins) :], ends - begins)
    valid: list[int] = candidates["start"][crcs == candidates["crc"]].tolist()
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
) -> Candidates:
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
    candidates = np.empty(len(starts), _CANDIDATE)
    candidates["start"], candidates["end"] = starts, starts + byte_counts
    candidates["crc"] = headers["crc"]
    return candidates[plausible]
