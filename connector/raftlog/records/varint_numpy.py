"""Varints read by the thousand, with numpy.

Rules of this file:

1. ``at`` may point behind the end of the data, where the last byte is read again and again. So
   whoever calls checks where a record's last field ends.
2. ``bad`` is set for a varint of too many bytes or bits, which ``varint.read_varint`` refuses.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from raftlog.limits import VARINT_BYTES_MAX, VARLONG_BYTES_MAX

from .columns import Bools, Int64s

Bytes = npt.NDArray[np.uint8]


def read_varints(data: Bytes, at: Int64s, bad: Bools) -> tuple[Int64s, Int64s]:
    """Zigzag 32-bit varints at the positions ``at``. Returns values and the positions behind them.

    Sets ``bad`` where one is malformed.
    """
    raw, after = _read(data, at, bad, VARINT_BYTES_MAX, 0x0F)
    return (raw >> 1) ^ -(raw & 1), after


def read_varlongs(data: Bytes, at: Int64s, bad: Bools) -> tuple[Int64s, Int64s]:
    """Zigzag 64-bit varints, as ``read_varints``."""
    raw, after = _read(data, at, bad, VARLONG_BYTES_MAX, 0x01)
    half = (raw.view(np.uint64) >> np.uint64(1)).view(np.int64)
    return half ^ -(raw & 1), after


def _read(
    data: Bytes, at: Int64s, bad: Bools, byte_count_max: int, last_byte_max: int
) -> tuple[Int64s, Int64s]:
    byte = data.take(at, mode="clip")
    after = at + 1
    more = byte >> 7  # 1 where the varint goes on, else 0
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
