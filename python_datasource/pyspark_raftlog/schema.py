"""Columns of the source with their Spark and Arrow types, and projection to a user's schema.

The first columns have the names and types of Spark's Kafka source, followed by the leader epoch.
All columns are nullable, so that Arrow's nullability always equals Spark's. A user's schema with a
subset of the columns, in any order, is a projection: other columns are not decoded.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from raftlog.errors import OptionError

if TYPE_CHECKING:
    from .options import RaftlogOptions

_HEADERS_SPARK: Final = ArrayType(
    StructType([StructField("key", StringType()), StructField("value", BinaryType())])
)
_HEADERS_ARROW: Final = pa.list_(
    pa.field("element", pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
)

COLUMNS: Final[Mapping[str, tuple[DataType, pa.DataType]]] = {
    "key": (BinaryType(), pa.binary()),
    "value": (BinaryType(), pa.binary()),
    "topic": (StringType(), pa.string()),
    "partition": (IntegerType(), pa.int32()),
    "offset": (LongType(), pa.int64()),
    "timestamp": (TimestampType(), pa.timestamp("us", tz="UTC")),
    "timestampType": (IntegerType(), pa.int32()),
    "leaderEpoch": (IntegerType(), pa.int32()),
    "visibleOffset": (LongType(), pa.int64()),
    "recordType": (StringType(), pa.string()),
    "recordVersion": (IntegerType(), pa.int32()),
    "record": (StringType(), pa.string()),
    "snapshotPosition": (IntegerType(), pa.int32()),
    "headers": (_HEADERS_SPARK, _HEADERS_ARROW),
    "controlType": (StringType(), pa.string()),
}
"""Name to Spark type and the Arrow type that Spark requires for it."""


def available_columns(options: RaftlogOptions) -> tuple[str, ...]:
    """Return the columns that ``options`` enable, in order."""
    asked = {"headers": options.include_headers, "controlType": options.include_control_records}
    return tuple(name for name in COLUMNS if asked.get(name, True))


def source_schema(options: RaftlogOptions) -> StructType:
    """Return the schema of ``load()`` without a user's schema."""
    return StructType([StructField(name, COLUMNS[name][0]) for name in available_columns(options)])


def arrow_schema(columns: Sequence[str]) -> pa.Schema:
    """Return the schema of Arrow batches with these columns."""
    return pa.schema([pa.field(name, COLUMNS[name][1]) for name in columns])


def project(schema: StructType, options: RaftlogOptions) -> tuple[str, ...]:
    """Return the columns of a user's schema, in its order.

    Raises:
        OptionError: a column is unknown, requires an option that is not set, is duplicated, or has
            another type or ``NOT NULL``; or the schema is empty.
    """
    if not schema.fields:
        raise _refused("has no columns")
    offered = available_columns(options)
    names = [field.name for field in schema.fields]
    for field in schema.fields:
        if field.name not in offered:
            raise _refused(_why_not_offered(field.name))
        if names.count(field.name) > 1:
            raise _refused(f"has column {field.name} twice")
        wanted = COLUMNS[field.name][0]
        if field.dataType != wanted:
            raise _refused(f"column {field.name} must be {wanted.simpleString()}")
        if not field.nullable:
            raise _refused(f"column {field.name} must be nullable")
    return tuple(names)


def _why_not_offered(name: str) -> str:
    match name:
        case "headers":
            return "column headers requires option includeHeaders=true"
        case "controlType":
            return "column controlType requires option includeControlRecords=true"
        case _:
            near = difflib.get_close_matches(name, COLUMNS, n=1, cutoff=0.5)
            hint = f"did you mean {near[0]}?" if near else "columns are " + ", ".join(COLUMNS)
            return f"column {name} is unknown; {hint}"


def _refused(reason: str) -> OptionError:
    return OptionError(option="schema", reason=reason)
