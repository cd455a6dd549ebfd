"""Rows of columns, gathered by codes of distinct values, with the compiled core or Arrow's take.

``DistinctValues`` contains the values of a column of text or lists, ``StructRows`` the columns of a
struct, as 32-bit numbers: values, or codes of values.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from raftlog import compiled

from .coded_columns import NULL, Bools, Coded, Column, Int32s, Int64s

_NUMBER_BYTES: Final = 4


class DistinctValues:
    """Values of a column, from which rows are gathered by their codes."""

    def __init__(self, values: pa.Array) -> None:
        self._values = values
        kind = values.type
        self._elements: DistinctValues | None = None
        self._native = None
        if not compiled.is_native or values.null_count or values.offset or not len(values):
            return
        if pa.types.is_string(kind):
            self._native = _native_values(values, values.buffers()[2], 1)
        elif pa.types.is_list(kind) and not values.values.null_count and not values.values.offset:
            if pa.types.is_int32(kind.value_type):
                numbers = values.values.buffers()[1]
            elif pa.types.is_string(kind.value_type):
                self._elements = DistinctValues(values.values)
                numbers = pa.py_buffer(np.arange(len(values.values), dtype=np.int32))
            else:
                return
            self._native = _native_values(values, numbers, _NUMBER_BYTES)

    def gather(self, codes: Int32s) -> pa.Array:
        """Return the value of each code, null for ``NULL``."""
        kind, count = self._values.type, len(codes)
        if pa.types.is_list(kind) and not len(self._values.values):
            buffers = [_bitmap(codes != NULL), pa.py_buffer(np.zeros(count + 1, np.int32))]
            return pa.Array.from_buffers(kind, count, buffers, children=[self._values.values])
        found = None if self._native is None else self._native.gather(_bytes(codes))
        if found is None:
            return self._values.take(pa.array(codes, mask=codes == NULL))
        valid, *buffers = (None if one is None else pa.py_buffer(one) for one in found)
        if not pa.types.is_list(kind):
            return pa.Array.from_buffers(kind, count, [valid, *buffers])
        ends, numbers = buffers
        elements = np.frombuffer(numbers, np.int32)
        inner = (
            pa.Array.from_buffers(kind.value_type, len(elements), [None, numbers])
            if self._elements is None
            else self._elements.gather(elements)
        )
        return pa.Array.from_buffers(kind, count, [valid, ends], children=[inner])


def _native_values(values: pa.Array, data: pa.Buffer | None, element_bytes: int) -> Any:
    ends = memoryview(values.buffers()[1]).cast("B")
    own = ends[: (len(values) + 1) * _NUMBER_BYTES]  # a slice's buffers contain other values, too
    return compiled.core.distinct_values(own, memoryview(data or b"").cast("B"), element_bytes)


def _bytes(codes: Int32s) -> memoryview:
    return np.ascontiguousarray(codes).view(np.uint8).data


class StructRows:
    """Columns of a struct, with a row for each version.

    The numbers of a row are adjacent. Versions are gathered in an order other than that of their
    rows, and this way one line of the processor's cache contains all numbers of a row.
    """

    def __init__(self, kind: pa.StructType, columns: Sequence[Column]) -> None:
        """``columns`` are the fields' columns, which may have other types than the fields."""
        self._kind = kind
        self._values: list[DistinctValues | None] = []
        numbers: list[Any] = []
        for field, column in zip(kind, columns, strict=True):
            if isinstance(column, Coded):
                values, codes = column
                values = values if values.type == field.type else values.cast(field.type)
                self._values.append(DistinctValues(values))
                numbers.append(codes)
            else:
                self._values.append(None)
                numbers.append(column.to_numpy())
        self._null_row = len(numbers[0])
        self._numbers = np.empty((self._null_row + 1, len(numbers)), np.int32)
        for ordinal, column in enumerate(numbers):
            self._numbers[:-1, ordinal] = column
        self._numbers[-1] = NULL

    def gather(self, rows: Int64s, is_null: Bools) -> pa.StructArray:
        """Return rows; where ``is_null`` is true, a row is null regardless of its number."""
        count = len(rows)
        if is_null.all():
            return pa.nulls(count, self._kind)
        bitmap = _bitmap(~is_null)
        chosen = self._numbers.take(np.where(is_null, self._null_row, rows), axis=0).T.copy()
        children = []
        for field, values, own in zip(self._kind, self._values, chosen, strict=True):
            if values is None:
                column = pa.Array.from_buffers(pa.int32(), count, [bitmap, pa.py_buffer(own)])
                column = column if column.type == field.type else column.cast(field.type)
            else:
                column = values.gather(own)
            children.append(column)
        return pa.Array.from_buffers(self._kind, count, [bitmap], children=children)


def _bitmap(flags: Bools) -> pa.Buffer | None:
    return None if flags.all() else pa.py_buffer(np.packbits(flags, bitorder="little"))
