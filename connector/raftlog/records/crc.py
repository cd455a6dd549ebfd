"""CRCs of many byte ranges: those of batches, verified, and those of any overlapping ranges.

``scan_valid_headers`` returns the headers of valid batches: the walk of recovery and checks.
"""

from __future__ import annotations

from functools import cache
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
from crc32c import crc32c

from raftlog import compiled
from raftlog.errors import CorruptBatchError
from raftlog.limits import MIB

from .batch import read_batch
from .batch_columns import (
    BatchSpans,
    HeaderScan,
    Int64s,
    Stop,
    batch_columns,
    clip,
    damaged_headers,
    end_of_walk,
    index_batches,
    walk_native,
)
from .header import CRC_START
from .varint import Buffer

UInt32s: TypeAlias = npt.NDArray[np.uint32]

# --- Verification of the CRCs of batches ----------------------------------------------------------
# A call of ``crc32c`` costs more than the bytes of a small batch, so small batches are checked in
# windows, by one call over a modified copy of their bytes (``_all_match``). If that fails, each
# batch is checked alone to find the first corrupt one.
#
# One corrupt batch is detected as reliably as by its own CRC. Several in one window must cancel
# each other out to be missed: probability 2**-32, as for any corrupt batch to match its CRC.

_WINDOW_BYTES: Final = 1 * MIB
"""Bytes per copy: they should fit into a CPU cache."""
_TOGETHER_BYTES_MAX: Final = 2048
"""Mean batch size above which batches are checked one by one: a call costs less than the copy."""
_ALL_ONES: Final = 0xFFFF_FFFF


def scan_valid_headers(
    buffer: Buffer,
    *,
    path: str | None = None,
    file_position: int = 0,
    start_offset: int | None = None,
    end_offset: int | None = None,
) -> HeaderScan:
    """Return the headers of the batches in ``buffer`` up to the first one that is not valid.

    As ``batch_columns.scan_headers``, but the CRC of each batch in the range is verified, and the
    error is that of ``batch.read_batch``. Batches before ``start_offset`` are not checked.
    """
    view = memoryview(buffer)
    walked = None
    if compiled.is_native:
        walked = walk_native(
            buffer,
            file_position=file_position,
            start_offset=start_offset,
            end_offset=end_offset,
            crcs=True,
        )
    if walked is not None:
        batches, end_position, stop = walked
        stop, error = end_of_walk(view, end_position, stop, path, file_position)
    else:
        located = clip(index_batches(view, path, file_position), start_offset, end_offset)
        bad = first_invalid(view, located)
        if bad is not None:
            located = located.cut(bad, Stop.DAMAGED)
        batches = batch_columns(located, file_position)
        end_position, stop, error = located.end_position, located.stop, located.error
    if stop is Stop.DAMAGED and error is None:
        error = _batch_error(view, end_position, path, file_position)
    return HeaderScan(batches=batches, end_position=end_position, stop=stop, error=error)


def _batch_error(
    view: memoryview, position: int, path: str | None, file_position: int
) -> CorruptBatchError:
    try:
        read_batch(view, position, path=path, file_position=file_position)
    except CorruptBatchError as error:
        return error
    raise AssertionError("read_batch must reject what the columnar walk rejects")


def first_invalid(view: memoryview, spans: BatchSpans) -> int | None:
    """Return the ordinal of the first batch with a wrong CRC or invalid fields, or None."""
    bad_crc = first_bad_crc(view, spans)
    headers = spans.headers if bad_crc is None else spans.headers[:bad_crc]
    damaged = np.flatnonzero(damaged_headers(headers))
    return int(damaged[0]) if len(damaged) else bad_crc


def first_bad_crc(view: memoryview, spans: BatchSpans) -> int | None:
    """Return the ordinal of the first batch whose CRC does not match, or None."""
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


def _crcs(view: memoryview, position: Int64s, end: Int64s) -> UInt32s:
    """Compute the CRC of each batch alone."""
    pieces = map(slice, (position + CRC_START).tolist(), end.tolist())
    return np.fromiter(map(crc32c, map(view.__getitem__, pieces)), np.uint32, len(position))


def _all_match(view: memoryview, position: Int64s, end_position: int, stored: UInt32s) -> bool:
    """Return whether the CRCs of all batches, contiguous in the buffer, match.

    With an initial register of zero, a CRC is the remainder of a polynomial division. Bytes
    followed by their own remainder have remainder zero, and so have several such pieces in a row,
    with zeros in between. CRC-32C starts with a register of ones and inverts its result; inverting
    the first four bytes and the CRC of a batch converts it to such a piece:

        batch n    [21 bytes, the last 4 are its CRC     ][body                         ]
        copy       [inverted CRC of batch n-1][17 zeros  ][body, first 4 bytes inverted ]

    The CRC of the last batch is appended; the remainder of the whole copy must be zero.
    """
    start = int(position[0])
    copy = np.frombuffer(view[start:end_position], np.uint8).copy()
    seam = CRC_START + 4
    everywhere = np.ndarray((len(copy) - seam + 1,), f"V{seam}", copy, strides=(1,))
    at = position - start
    seams = everywhere[at].view(np.uint8).reshape(-1, seam)
    seams[:, :CRC_START] = 0
    seams[:, CRC_START:] ^= 0xFF
    # A remainder's lowest byte is first, a CRC in the header is big-endian.
    remainders = (stored ^ np.uint32(_ALL_ONES)).astype("<u4").view(np.uint8).reshape(-1, 4)
    seams[1:, :4] = remainders[:-1]
    everywhere[at] = seams.view(everywhere.dtype).ravel()
    register = crc32c(copy.data, _ALL_ONES)
    return crc32c(remainders[-1].tobytes(), register) == _ALL_ONES


# --- CRCs of overlapping ranges, from those of prefixes: the bytes are read once ------------------
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
