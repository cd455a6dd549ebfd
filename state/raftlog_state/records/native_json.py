"""JSON of metadata records by the compiled core.

The core writes plain records: valid records of a known type and version that contain only printable
ASCII or Latin characters and no secret. It returns the rows of all others, which ``serde`` and
``redaction`` convert.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from .native_program import program, value_buffers

TYPES_MAX: Final = 128
"""Api keys in a table of record types to write."""


@dataclass(frozen=True, slots=True)
class NativeJson:
    """Text of the plain records, its end after each row, and the rows to convert in Python."""

    text: memoryview
    ends: npt.NDArray[np.int32]
    rows: npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class LineStart:
    """Columns of the numbers that begin each line, without nulls."""

    offset: pa.Int64Array
    leader_epoch: pa.Int32Array
    timestamp_ms: pa.Int64Array


def write_json(
    values: pa.BinaryArray,
    given: npt.NDArray[np.bool_],
    *,
    reveal: bool,
    start: LineStart | None = None,
    takes: bytes | None = None,
    noop: bool = True,
) -> NativeJson | None:
    """Write the plain records of ``values``; None if the core returns all of them.

    Rows that ``given`` marks are left to Python. With ``start``, each record is a whole line, as in
    ``raftlog cat``; otherwise the text is the record's data. ``takes`` has a byte for each api key,
    which is not 0 if its records are written. ``noop``: whether NoOp records are written.
    """
    places = None
    if start is not None:
        columns = (start.offset, start.leader_epoch, start.timestamp_ms)
        places = tuple(map(_numbers, columns, (8, 4, 8)))
    written = program().json(
        *value_buffers(values),
        given.view(np.uint8).data,
        reveal,
        takes,
        noop,
        places,
    )
    if written is None:
        return None
    text, ends, rows = written
    return NativeJson(
        text=memoryview(text),
        ends=np.frombuffer(memoryview(ends), np.int32),
        rows=np.frombuffer(memoryview(rows), np.int32),
    )


def _numbers(column: pa.Array, width: int) -> memoryview:
    data = memoryview(column.buffers()[1]).cast("B")
    return data[width * column.offset : width * (column.offset + len(column))]
