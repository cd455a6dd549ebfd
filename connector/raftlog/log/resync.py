"""Tell a torn tail from damage: does anything sound follow what cannot be read?

A batch says where the next one begins. So a length that lies hides all that follows, and looks like
a batch that its node was still writing. Only the bytes behind it can tell: nothing but the rest of
a torn batch, or zeros, follows a torn tail.

Rules of this file:

1. A candidate must be a whole batch whose CRC holds, with offsets that could follow.
2. The search is bounded by the file and holds a chunk of it in memory.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from raftlog.limits import BATCH_HEADER_BYTES, MIB, READ_BATCH_BYTES_MAX
from raftlog.records.header import BATCH_MAGIC, INT32_MAX, LENGTH_MIN, MAGIC_POSITION
from raftlog.records.walk import HEADER_DTYPE, Headers, damaged_headers
from raftlog.storage.protocol import ReadableFile

from .files import read_batch_at

_CHUNK_BYTES: Final = 1 * MIB
_ATTRIBUTES_MAX: Final = 0x7F
"""Kafka's readers look at seven bits and its writers set no other."""


def find_sound_batch(file: ReadableFile, position: int, next_offset: int) -> int | None:
    """The position of the first sound batch behind ``position``, or None.

    ``next_offset`` is the least offset that it may have.
    """
    at = position + 1
    while True:
        buffer = file.read_at(at, _CHUNK_BYTES + BATCH_HEADER_BYTES - 1)
        if len(buffer) < BATCH_HEADER_BYTES:
            return None
        for candidate in _candidates(buffer, next_offset):
            batch = read_batch_at(file, at + candidate)
            if batch is not None:
                return at + candidate
        at += _CHUNK_BYTES


def _candidates(buffer: bytes, next_offset: int) -> list[int]:
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
        & (base_offset >= next_offset)
        & (base_offset - next_offset <= INT32_MAX)
        & (headers["attributes"] >= 0)
        & (headers["attributes"] <= _ATTRIBUTES_MAX)
    )
    found: list[int] = positions[plausible].tolist()
    return found
