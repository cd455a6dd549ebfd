"""Column types of state rows in the tables, derived from the rows' declaration.

Integers have 32 or 64 bits, never fewer, because Spark supports no others.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import pyarrow as pa

from raftlog_state.records.declare import Array, Scalar

from .row_schema import Kind, Parts, Special, row_schema
from .rows import Row

BOOLEAN: Final = pa.bool_()
INT: Final = pa.int32()
BIGINT: Final = pa.int64()
DOUBLE: Final = pa.float64()
STRING: Final = pa.string()
BINARY: Final = pa.binary()
TIMESTAMP: Final = pa.timestamp("us", tz="UTC")
STRINGS: Final = pa.list_(STRING)

Columns = Mapping[str, pa.DataType]

_SCALARS: Final[Mapping[Scalar | Special, pa.DataType]] = {
    Scalar.BOOL: BOOLEAN,
    Scalar.INT8: INT,
    Scalar.INT16: INT,
    Scalar.UINT16: INT,
    Scalar.INT32: INT,
    Scalar.INT64: BIGINT,
    Scalar.FLOAT64: DOUBLE,
    Scalar.UUID: STRING,
    Scalar.STRING: STRING,
    Scalar.BYTES: BINARY,
    Special.TIMESTAMP_MS: TIMESTAMP,
    Special.TEXT_PAIRS: pa.map_(STRING, STRING),
}


def column_type(kind: Kind) -> pa.DataType:
    """Return the type of a row's field."""
    if isinstance(kind, Array):
        assert isinstance(kind.element, Scalar), "an array of structs is declared with its parts"
        return pa.list_(column_type(kind.element))
    if isinstance(kind, Parts):
        part = part_type(kind.part)
        if not kind.by_name:
            return pa.list_(part)
        return pa.map_(part[0].type, pa.struct(list(part)[1:]))
    return STRING if isinstance(kind, type) else _SCALARS[kind]


def part_type(part: type) -> pa.StructType:
    """Return the type of a part of a row."""
    return pa.struct({entry.column: column_type(entry.kind) for entry in row_schema(part)})


def row_columns(kind: type[Row]) -> dict[str, pa.DataType]:
    """Return the columns of a row's fields; the name of a code follows it."""
    columns: dict[str, pa.DataType] = {}
    for entry in row_schema(kind):
        columns[entry.column] = column_type(entry.kind)
        if entry.has_enum_name:
            columns[f"{entry.column}_name"] = STRING
    return columns
