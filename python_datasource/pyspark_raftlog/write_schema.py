"""Check of a DataFrame's columns, on the driver, before any task runs.

A record's value is in the column ``value`` or, in a log of typed records, in ``recordType``,
``recordVersion`` and ``record``, the names of the source's columns. Other columns are errors, not
ignored: a column ``offset``, for instance, would have no effect. ``nullable`` is not checked, since
Spark marks almost every column as nullable; nulls are checked row by row (``write_rows``), except
for columns of type VOID.
"""

from __future__ import annotations

import difflib
import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
    TimestampType,
)

from raftlog import ValueKind
from raftlog.errors import WriteSchemaError

if TYPE_CHECKING:
    from pyspark.sql.types import StructField


class RecordForm(enum.Enum):
    """Source of a record's value: the column ``value``, or ``record`` as JSON or struct."""

    VALUE = "value"
    JSON = "json"
    STRUCT = "struct"


@dataclass(frozen=True, slots=True)
class InputColumns:
    """Columns of a DataFrame, in its order, and the form of its values."""

    names: tuple[str, ...]
    form: RecordForm


_INTEGERS: Final = (ByteType, ShortType, IntegerType, LongType)
_MSGPACK_SCALARS: Final = (
    *_INTEGERS,
    BooleanType,
    FloatType,
    DoubleType,
    StringType,
    BinaryType,
)
_KRAFT_SCALARS: Final = (*_INTEGERS, BooleanType, DoubleType, StringType, BinaryType)

_VALUE: Final = ("value",)
_TYPED: Final = ("recordType", "recordVersion", "record")
_BESIDE: Final = ("key", "headers", "timestamp")
_OFFERED: Final[Mapping[ValueKind, tuple[str, ...]]] = {
    ValueKind.BYTES: _VALUE + _BESIDE,
    ValueKind.MSGPACK: _VALUE + _TYPED + _BESIDE,
    ValueKind.KRAFT: _VALUE + _TYPED,
}


def input_columns(schema: StructType, values: ValueKind) -> InputColumns:
    """Check the columns of ``schema`` for a log with this kind of values.

    Raises ``WriteSchemaError``: a column is unknown, missing, duplicated, not supported by such a
    log, or has the wrong type.
    """
    names = tuple(field.name for field in schema.fields)
    for field in schema.fields:
        if field.name not in _OFFERED[values]:
            raise WriteSchemaError(column=field.name, reason=_why_not(field.name, values))
        if names.count(field.name) > 1:
            raise WriteSchemaError(column=field.name, reason="is duplicated")
    typed = [name for name in _TYPED if name in names]
    if "value" in names and typed:
        raise WriteSchemaError(
            column=typed[0],
            reason=f"cannot be combined with value; use value or {', '.join(_TYPED)}",
        )
    if not typed and "value" not in names:
        raise WriteSchemaError(column="value", reason=_missing_value(values))
    for name in typed and _needed(values):
        if name not in names:
            raise WriteSchemaError(
                column=name, reason=f"is missing; required with {', '.join(typed)}"
            )
    for field in schema.fields:
        _check_type(field, values)
    return InputColumns(names, _form(schema) if typed else RecordForm.VALUE)


def _needed(values: ValueKind) -> tuple[str, ...]:
    """Return the required columns of typed records; a kraft log's metadata.version implies
    versions."""
    return ("recordType", "record") if values is ValueKind.KRAFT else _TYPED


def _form(schema: StructType) -> RecordForm:
    record = schema["record"].dataType
    return RecordForm.STRUCT if isinstance(record, StructType) else RecordForm.JSON


def _missing_value(values: ValueKind) -> str:
    if values is ValueKind.BYTES:
        return "is missing"
    return f"is missing; add it, or {', '.join(_needed(values))}"


def _why_not(name: str, values: ValueKind) -> str:
    if name in _OFFERED[ValueKind.MSGPACK]:
        if name in _BESIDE:
            return (
                "is not supported by kraft logs: metadata records have no key, headers or "
                "timestamp; drop the column"
            )
        return "is not supported by bytes logs: encode the record into the column value"
    near = difflib.get_close_matches(name, _OFFERED[values], n=1, cutoff=0.6)
    hint = (
        f"did you mean {near[0]}?"
        if near
        else f"columns of a {values.value} log are " + ", ".join(_OFFERED[values])
    )
    return f"is not a column of records; {hint}"


def _check_type(field: StructField, values: ValueKind) -> None:
    """Raise ``WriteSchemaError`` if the column has the wrong type."""
    kind = field.dataType
    match field.name:
        case "value" if values is ValueKind.BYTES:
            wanted, fits = "binary or string", isinstance(kind, BinaryType | StringType)
        case "value":
            wanted, fits = "binary", isinstance(kind, BinaryType)
        case "key":
            wanted, fits = "binary or string", isinstance(kind, BinaryType | StringType)
        case "timestamp":
            wanted, fits = "timestamp", isinstance(kind, TimestampType)
        case "headers":
            wanted = "array<struct<key:string,value:binary>>"
            fits = _is_headers(kind)
        case "recordType" if values is ValueKind.MSGPACK:
            wanted = "string or an integer"
            fits = isinstance(kind, (StringType, *_INTEGERS))
        case "recordType":
            wanted, fits = "string", isinstance(kind, StringType)
        case "recordVersion":
            wanted, fits = "an integer", isinstance(kind, _INTEGERS)
        case _:
            _check_record(kind, values)
            return
    if not fits:
        raise _wrong_type(field.name, wanted, kind)


def _is_headers(kind: DataType) -> bool:
    if not isinstance(kind, ArrayType) or not isinstance(kind.elementType, StructType):
        return False
    found = [(field.name, type(field.dataType)) for field in kind.elementType.fields]
    return found == [("key", StringType), ("value", BinaryType)]


def _check_record(kind: DataType, values: ValueKind) -> None:
    if isinstance(kind, StringType):
        return
    if not isinstance(kind, StructType):
        raise _wrong_type("record", "struct, or string with JSON", kind)
    scalars = _MSGPACK_SCALARS if values is ValueKind.MSGPACK else _KRAFT_SCALARS
    _check_inside("record", kind, scalars, with_maps=values is ValueKind.MSGPACK)


def _check_inside(
    path: str, kind: DataType, scalars: tuple[type[DataType], ...], *, with_maps: bool
) -> None:
    if isinstance(kind, StructType):
        for field in kind.fields:
            _check_inside(f"{path}.{field.name}", field.dataType, scalars, with_maps=with_maps)
    elif isinstance(kind, ArrayType):
        _check_inside(f"{path}[]", kind.elementType, scalars, with_maps=with_maps)
    elif isinstance(kind, MapType) and with_maps:
        if not isinstance(kind.keyType, StringType):
            raise _wrong_type(f"{path} (its keys)", "string", kind.keyType)
        _check_inside(f"{path}{{}}", kind.valueType, scalars, with_maps=with_maps)
    elif not isinstance(kind, scalars):
        wanted = "one of " + ", ".join(scalar.typeName() for scalar in scalars)
        raise _wrong_type(path, wanted, kind)


def _wrong_type(column: str, wanted: str, kind: DataType) -> WriteSchemaError:
    return WriteSchemaError(
        column=column, reason=f"must be {wanted}, but is {kind.simpleString()}; cast it"
    )
