"""Schemas from their DDL text without a Spark session, which Spark's own parser needs."""

from __future__ import annotations

import re

from pyspark.sql import types
from pyspark.sql.types import ArrayType, DataType, DecimalType, MapType, StructField, StructType

_TOKEN = re.compile(r"[<>,:()]|\w+")
_SCALARS = {
    "binary": types.BinaryType(),
    "string": types.StringType(),
    "boolean": types.BooleanType(),
    "tinyint": types.ByteType(),
    "smallint": types.ShortType(),
    "int": types.IntegerType(),
    "bigint": types.LongType(),
    "float": types.FloatType(),
    "double": types.DoubleType(),
    "date": types.DateType(),
    "timestamp": types.TimestampType(),
    "timestamp_ntz": types.TimestampNTZType(),
    "void": types.NullType(),
}


def schema_of(text: str) -> StructType:
    """Parse ``name type, name type`` with the types that these tests use."""
    tokens = _TOKEN.findall(text)
    fields = []
    while tokens:
        name = tokens.pop(0)
        fields.append(StructField(name, _type(tokens)))
        if tokens:
            assert tokens.pop(0) == ","
    return StructType(fields)


def _type(tokens: list[str]) -> DataType:
    match tokens.pop(0):
        case "array":
            return ArrayType(_inside(tokens)[0])
        case "map":
            key, value = _inside(tokens)
            return MapType(key, value)
        case "decimal":
            precision, scale = int(tokens[1]), int(tokens[3])
            del tokens[:5]
            return DecimalType(precision, scale)
        case "struct":
            assert tokens.pop(0) == "<"
            fields = []
            while True:
                name = tokens.pop(0)
                assert tokens.pop(0) == ":"
                fields.append(StructField(name, _type(tokens)))
                if tokens.pop(0) == ">":
                    return StructType(fields)
        case name:
            return _SCALARS[name]


def _inside(tokens: list[str]) -> list[DataType]:
    found = []
    while tokens.pop(0) in "<,":
        found.append(_type(tokens))
        if tokens[0] == ">":
            tokens.pop(0)
            break
    return found
