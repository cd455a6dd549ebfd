"""Arrow columns built from positions in a buffer, without a Python object per value.

A column of byte strings is an Arrow ``take`` from an array over the buffer: its even elements are
the strings, its odd elements the bytes between them. The keys of records, for example:

    buffer      --key0--value0--key1--value1--
    elements      [0 ][---1----][2 ]            keys = take(0, 2, ...)

Positions are below 2**31 (``limits.SCAN_BYTES_MAX``), since Arrow's offsets are 32-bit.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from raftlog.limits import KIB

from .columns import HEADERS_TYPE, Int64s
from .record_columns import Spans
from .varint_numpy import Bytes

_LONG_BYTES: Final = 64 * KIB
"""Mean length from which on the call per string costs little compared to copying its bytes."""


def number_column(numbers: npt.NDArray[np.integer], kind: pa.DataType) -> pa.Array:
    """Return an Arrow array over the memory of ``numbers``, whose width must match ``kind``."""
    return pa.Array.from_buffers(kind, len(numbers), [None, pa.py_buffer(numbers)])


def bytes_column(data: Bytes, spans: Spans) -> pa.BinaryArray:
    """Return the byte strings at ``spans`` (ascending), null where the byte count is -1."""
    count = len(spans.start)
    if count == 0:
        return pa.array([], pa.binary())
    is_null = spans.byte_count < 0
    if not is_null.any():
        return _take(data, spans.start, spans.byte_count)
    if is_null.all():
        return pa.nulls(count, pa.binary())
    taken = _take(data, spans.start, np.maximum(spans.byte_count, 0))
    valid = pa.py_buffer(np.packbits(~is_null, bitorder="little"))
    return pa.Array.from_buffers(pa.binary(), count, [valid, *taken.buffers()[1:]])


def _take(data: Bytes, start: Int64s, byte_count: Int64s) -> pa.BinaryArray:
    count = len(start)
    if int(byte_count.sum()) > count * _LONG_BYTES:
        return _copied(data, start, byte_count)
    offsets = np.empty(2 * count, np.int32)
    offsets[0::2] = start
    offsets[1::2] = start + byte_count
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    slots = pa.Array.from_buffers(pa.binary(), 2 * count - 1, buffers)
    return slots.take(number_column(np.arange(0, 2 * count, 2, dtype=np.int32), pa.int32()))


def _copied(data: Bytes, start: Int64s, byte_count: Int64s) -> pa.BinaryArray:
    """Copy long strings one by one: ``take`` would grow its buffer and hold them twice."""
    offsets = np.zeros(len(start) + 1, np.int32)
    np.cumsum(byte_count, out=offsets[1:])
    values = np.empty(int(offsets[-1]), np.uint8)
    for begin, end, at in zip(
        offsets[:-1].tolist(), offsets[1:].tolist(), start.tolist(), strict=True
    ):
        values[begin:end] = data[at : at + end - begin]
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(values)]
    return pa.Array.from_buffers(pa.binary(), len(start), buffers)


def headers_column(data: Bytes, count: Int64s, key: Spans, value: Spans) -> pa.ListArray:
    """Return the list of headers of each record; ``count`` is the header count per record."""
    offsets = np.zeros(len(count) + 1, np.int32)
    np.cumsum(count, out=offsets[1:])
    keys = _text(bytes_column(data, key))
    pairs = pa.StructArray.from_arrays([keys, bytes_column(data, value)], ["key", "value"])
    lists = pa.ListArray.from_arrays(number_column(offsets, pa.int32()), pairs)
    return lists.cast(HEADERS_TYPE)


def _text(column: pa.BinaryArray) -> pa.StringArray:
    try:
        return column.cast(pa.string())
    except pa.ArrowInvalid:  # invalid UTF-8 is replaced by U+FFFD, as in record.read_record
        texts = [data.decode("utf-8", "replace") for data in column.to_pylist()]
        return pa.array(texts, pa.string())
