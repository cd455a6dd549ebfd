"""CRCs of many ranges of bytes that overlap, from the CRCs of prefixes: the bytes are read once.

Rules of this file:

1. For a prefix ``A`` and a range ``B`` after it, ``crc(AB) = shift(crc(A), len(B)) ^ crc(B)``, so
   ``crc(B)`` follows from the CRCs of two prefixes. ``shift`` is linear over GF(2): the operator of
   ``2 ** k`` bytes is the square of that of half as many (zlib: ``crc32_combine``).
"""

from __future__ import annotations

from functools import cache
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from .columns import Int64s

UInt32s: TypeAlias = npt.NDArray[np.uint32]
_POLYNOMIAL: Final = 0x82F6_3B78
"""CRC-32C, its bits reversed."""
_ZEROS_PER_BYTE: Final = 3
"""A byte is ``2 ** 3`` bits."""


def range_crcs(start_crcs: UInt32s, end_crcs: UInt32s, byte_counts: Int64s) -> UInt32s:
    """The CRCs of ranges, by those of the prefixes that end at their starts and at their ends.

    ``byte_counts`` are the lengths of the ranges.
    """
    return end_crcs ^ _shifted(start_crcs, byte_counts)


def _shifted(crcs: UInt32s, byte_counts: Int64s) -> UInt32s:
    """What CRCs contribute to those of prefixes that are longer by so many bytes."""
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
    """The operator of ``2 ** power`` bytes, as one table for each byte of a CRC."""
    columns = _columns(power + _ZEROS_PER_BYTE)
    tables = np.zeros((4, 256), np.uint32)
    for bit, column in enumerate(columns):
        table = tables[bit // 8]
        table[np.arange(256) >> bit % 8 & 1 == 1] ^= np.uint32(column)
    return tables


@cache
def _columns(power: int) -> tuple[int, ...]:
    """The operator of ``2 ** power`` zero bits: what each bit of a CRC becomes."""
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
