"""The columns of the source: Spark's types, Arrow's types, and what a user schema may ask for.

Rules of this file:

1. The first eight columns are those of Spark's Kafka source, with its names and types, and the
   leader epoch. Every column is nullable, so Arrow's flags can never disagree with Spark's.
2. A user schema that names a subset of the columns, in any order, is a projection. Spark hands it
   over as it is, and columns that are not in it are never decoded.
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
"""Name to Spark's type and the Arrow type that Spark insists on."""


def available_columns(options: RaftlogOptions) -> tuple[str, ...]:
    """The columns that ``options`` give, in their order."""
    asked = {"headers": options.include_headers, "controlType": options.include_control_records}
    return tuple(name for name in COLUMNS if asked.get(name, True))


def source_schema(options: RaftlogOptions) -> StructType:
    """What ``load()`` without a schema returns."""
    return StructType([StructField(name, COLUMNS[name][0]) for name in available_columns(options)])


def arrow_schema(columns: Sequence[str]) -> pa.Schema:
    """The schema that every Arrow batch of these columns has."""
    return pa.schema([pa.field(name, COLUMNS[name][1]) for name in columns])


def project(schema: StructType, options: RaftlogOptions) -> tuple[str, ...]:
    """The columns that a schema asks for, in its order.

    Raises:
        OptionError: a column is unknown, needs an option that is not set, is named twice, or has
            another type or ``NOT NULL``; or the schema is empty.
    """
    if not schema.fields:
        raise _refused("names no column")
    offered = available_columns(options)
    names = [field.name for field in schema.fields]
    for field in schema.fields:
        if field.name not in offered:
            raise _refused(_why_not_offered(field.name))
        if names.count(field.name) > 1:
            raise _refused(f"names column {field.name} twice")
        wanted = COLUMNS[field.name][0]
        if field.dataType != wanted:
            raise _refused(f"column {field.name} must be {wanted.simpleString()}")
        if not field.nullable:
            raise _refused(f"column {field.name} must be nullable")
    return tuple(names)


def _why_not_offered(name: str) -> str:
    match name:
        case "headers":
            return "column headers needs option includeHeaders=true"
        case "controlType":
            return "column controlType needs option includeControlRecords=true"
        case _:
            near = difflib.get_close_matches(name, COLUMNS, n=1, cutoff=0.5)
            hint = f"did you mean {near[0]}?" if near else "known are " + ", ".join(COLUMNS)
            return f"column {name} is unknown; {hint}"


def _refused(reason: str) -> OptionError:
    return OptionError(option="schema", reason=reason)
