"""Tell a torn tail from damage: does anything sound follow what cannot be read?

A batch says where the next one begins. So a length that lies hides all that follows, and looks like
a batch that its node was still writing. Only the bytes behind it can tell: nothing but the rest of
a torn batch, or zeros, follows a torn tail. That rest may hold whole batches itself, as the payload
of its records; the CRC of the batch tells them from those that a lying length hides.

Rules of this file:

1. A candidate must be a whole batch whose CRC holds, with offsets that could follow.
2. One that lies inside the length that the unreadable batch claims counts only if that batch proves
   to end there: its CRC, which does not cover its length, holds up to it.
3. The search is bounded by the file and holds a chunk of it in memory.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from crc32c import crc32c

from raftlog.limits import BATCH_HEADER_BYTES, LOG_OVERHEAD_BYTES, MIB, READ_BATCH_BYTES_MAX
from raftlog.records.header import (
    BATCH_HEADER,
    BATCH_MAGIC,
    CRC_START,
    INT32_MAX,
    LENGTH_MAX,
    LENGTH_MIN,
    MAGIC_POSITION,
)
from raftlog.records.walk import HEADER_DTYPE, Headers, damaged_headers
from raftlog.storage.protocol import ReadableFile

from .files import read_batch_at

_CHUNK_BYTES: Final = 1 * MIB
_ATTRIBUTES_MAX: Final = 0x7F
"""Kafka's readers look at seven bits and its writers set no other."""


def find_sound_batch(file: ReadableFile, position: int, next_offset: int | None) -> int | None:
    """The position of the first sound batch behind the one at ``position``, or None.

    ``next_offset`` is the least offset that it may have; None if nobody knows.
    """
    unreadable = _Unreadable(file, position)
    at = position + 1
    while True:
        buffer = file.read_at(at, _CHUNK_BYTES + BATCH_HEADER_BYTES - 1)
        if len(buffer) < BATCH_HEADER_BYTES:
            return None
        for candidate in _candidates(buffer, next_offset):
            if read_batch_at(file, at + candidate) is None:
                continue
            if at + candidate >= unreadable.claimed_end or unreadable.ends_at(at + candidate):
                return at + candidate
        at += _CHUNK_BYTES


class _Unreadable:
    """The batch that could not be read: where it claims to end, and where its CRC says it does."""

    def __init__(self, file: ReadableFile, position: int) -> None:
        self.claimed_end = position
        self._file = file
        self._summed_end = position + CRC_START
        self._sum = 0
        self._crc: int | None = None
        head = file.read_at(position, BATCH_HEADER_BYTES)
        if len(head) == BATCH_HEADER_BYTES:
            _, length, _, magic, self._crc, *_ = BATCH_HEADER.unpack(head)
            if magic == BATCH_MAGIC and LENGTH_MIN <= length <= LENGTH_MAX:
                self.claimed_end = position + LOG_OVERHEAD_BYTES + length

    def ends_at(self, position: int) -> bool:
        """Whether its CRC holds up to ``position``; positions ascend from call to call."""
        while self._summed_end < position:
            wanted = min(position - self._summed_end, _CHUNK_BYTES)
            part = self._file.read_at(self._summed_end, wanted)
            self._sum = crc32c(part, self._sum)
            self._summed_end += wanted
        return self._summed_end == position and self._sum == self._crc


def _candidates(buffer: bytes, next_offset: int | None) -> list[int]:
    """Where in ``buffer`` a plausible header begins."""
    count = len(buffer) - BATCH_HEADER_BYTES + 1
    data = np.frombuffer(buffer, np.uint8)
    positions = np.flatnonzero(data[MAGIC_POSITION : MAGIC_POSITION + count] == BATCH_MAGIC)
    if not len(positions):
        return []
    everywhere: Headers = np.ndarray((count,), f"V{BATCH_HEADER_BYTES}", buffer, strides=(1,))
    headers = everywhere[positions].view(HEADER_DTYPE)
    base_offset = headers["base_offset"]
    plausible = (
        ~damaged_headers(headers)
        & (headers["length"] >= LENGTH_MIN)
        & (headers["length"] <= READ_BATCH_BYTES_MAX)
        & (headers["attributes"] >= 0)
        & (headers["attributes"] <= _ATTRIBUTES_MAX)
    )
    if next_offset is not None:
        plausible &= (base_offset >= next_offset) & (base_offset - next_offset <= INT32_MAX)
    found: list[int] = positions[plausible].tolist()
    return found
