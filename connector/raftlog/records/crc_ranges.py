"""CRCs of many overlapping byte ranges, computed from CRCs of prefixes: the bytes are read once.

For a prefix ``A`` and a range ``B`` after it, ``crc(AB) = shift(crc(A), len(B)) ^ crc(B)``, so
``crc(B)`` follows from the CRCs of two prefixes. ``shift`` is linear over GF(2): the operator for
``2 ** k`` bytes is the square of the one for ``2 ** (k - 1)`` bytes (zlib: ``crc32_combine``).
"""

from __future__ import annotations

from functools import cache
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from .batch_columns import Int64s

UInt32s: TypeAlias = npt.NDArray[np.uint32]
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
