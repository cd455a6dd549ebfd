"""Check the CRCs of many batches.

Rules of this file:

1. A call of ``crc32c`` costs more than the bytes of a small batch. So small batches are checked
   together, by one call over a copy of their bytes: see ``_all_match``. If that fails, each is
   checked alone to find the first that is damaged.
2. One damaged batch is found for certain (as far as its own CRC finds it). Several in one window
   would have to cancel each other out: a chance of 2**-32, that at which any damaged batch passes
   its CRC.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
from crc32c import crc32c

from raftlog.limits import MIB

from .batch_index import BatchSpans
from .columns import Int64s
from .header import CRC_START

_WINDOW_BYTES: Final = 1 * MIB
"""What is copied at once: it should stay in a processor's cache."""
_TOGETHER_BYTES_MAX: Final = 2048
"""Batches longer than this on average are checked one by one: the call costs less than the copy."""
_ALL_ONES: Final = 0xFFFF_FFFF


def first_bad_crc(view: memoryview, spans: BatchSpans) -> int | None:
    """The ordinal of the first batch whose CRC does not hold, or None."""
    position = spans.position
    end = spans.batch_end
    stored = spans.headers["crc"].astype(np.uint32)
    first = 0
    while first < len(position):
        limit = position[first] + _WINDOW_BYTES
        after = max(first + 1, int(np.searchsorted(end, limit, side="right")))
        window = slice(first, after)
        byte_count = int(end[after - 1] - position[first])
        if byte_count > _TOGETHER_BYTES_MAX * (after - first) or not _all_match(
            view, position[window], int(end[after - 1]), stored[window]
        ):
            bad = np.flatnonzero(_crcs(view, position[window], end[window]) != stored[window])
            if len(bad):
                return first + int(bad[0])
        first = after
    return None


def _crcs(view: memoryview, position: Int64s, end: Int64s) -> npt.NDArray[np.uint32]:
    """The CRC of each batch by a call of its own."""
    pieces = map(slice, (position + CRC_START).tolist(), end.tolist())
    return np.fromiter(map(crc32c, map(view.__getitem__, pieces)), np.uint32, len(position))


def _all_match(
    view: memoryview, position: Int64s, end_position: int, stored: npt.NDArray[np.uint32]
) -> bool:
    """Whether the CRCs of batches that lie one behind the other hold, all of them.

    With a register that begins at zero, a CRC is the remainder of a division of polynomials, so
    bytes followed by their own remainder divide without one, and so does a row of such pieces with
    zeros between. CRC-32C begins with ones and ends inverted: flipping a piece's first four bytes
    and its CRC makes it such a piece. The copy holds, in place of each batch's first 21 bytes,
    the CRC of the batch before it and zeros.
    """
    start = int(position[0])
    copy = np.frombuffer(view[start:end_position], np.uint8).copy()
    seam = CRC_START + 4
    everywhere = np.ndarray((len(copy) - seam + 1,), f"V{seam}", copy, strides=(1,))
    at = position - start
    seams = everywhere[at].view(np.uint8).reshape(-1, seam)
    seams[:, :CRC_START] = 0
    seams[:, CRC_START:] ^= 0xFF
    # The remainder's lowest byte comes first; stored CRCs are big-endian numbers.
    remainders = (stored ^ np.uint32(_ALL_ONES)).astype("<u4").view(np.uint8).reshape(-1, 4)
    seams[1:, :4] = remainders[:-1]
    everywhere[at] = seams.view(everywhere.dtype).ravel()
    register = crc32c(copy.data, _ALL_ONES)
    return crc32c(remainders[-1].tobytes(), register) == _ALL_ONES
