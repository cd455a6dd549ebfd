"""Vectorized reading of varints with numpy.

``at`` are the positions of the varints. Positions beyond the end of ``data`` read its last byte
repeatedly, so the caller must check the end position of a record's last field. ``bad`` is set for
each varint that ``varint.read_varint`` or ``read_varlong`` rejects for its length or value.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from raftlog.limits import VARINT_BYTES_MAX, VARLONG_BYTES_MAX

from .columns import Bools, Int64s

Bytes = npt.NDArray[np.uint8]


def read_varints(data: Bytes, at: Int64s, bad: Bools) -> tuple[Int64s, Int64s]:
    """Read zigzag 32-bit varints; return the values and the positions after them."""
    raw, after = _read(data, at, bad, VARINT_BYTES_MAX, 0x0F)
    return (raw >> 1) ^ -(raw & 1), after


def read_varlongs(data: Bytes, at: Int64s, bad: Bools) -> tuple[Int64s, Int64s]:
    """Read zigzag 64-bit varints; return the values and the positions after them."""
    raw, after = _read(data, at, bad, VARLONG_BYTES_MAX, 0x01)
    half = (raw.view(np.uint64) >> np.uint64(1)).view(np.int64)
    return half ^ -(raw & 1), after


def _read(
    data: Bytes, at: Int64s, bad: Bools, byte_count_max: int, last_byte_max: int
) -> tuple[Int64s, Int64s]:
    byte = data.take(at, mode="clip")
    after = at + 1
    more = byte >> 7  # the continuation bit: 1 or 0
    if not more.any():
        return byte.astype(np.int64), after
    raw = (byte & 0x7F).astype(np.int64)
    for ordinal in range(1, byte_count_max):
        byte = data.take(after, mode="clip") * more
        if ordinal == byte_count_max - 1:
            bad |= byte > last_byte_max
        raw |= (byte & 0x7F).astype(np.int64) << (7 * ordinal)
        after += more
        more = byte >> 7
        if not more.any():
            break
    return raw, after
