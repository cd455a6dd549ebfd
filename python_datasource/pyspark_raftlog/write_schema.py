"""Which columns become which part of a record: checked on the driver, before a task runs.

Rules of this file:

1. A record's value comes from the column ``value``, or, in a log of typed records, from
   ``recordType``, ``recordVersion`` and ``record``: the names that the source gives them.
2. A column that no record has is refused by name, never dropped: whoever writes ``offset`` back
   believes that the log would take it.
3. ``nullable`` says nothing here, since Spark calls nearly every column nullable. Nulls themselves
   are refused row by row (``write_rows``); a column of nulls only (VOID) is refused here.
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
    """Where a record's value comes from."""

    VALUE = "value"
    JSON = "json"
    STRUCT = "struct"


@dataclass(frozen=True, slots=True)
class InputColumns:
    """The columns of a frame, in its order, and how they make a value."""

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
    """How rows of ``schema`` become records of a log whose values are ``values``.

    Raises ``WriteSchemaError``: a column is unknown, missing, named twice, has no place in such a
    log, or has a type that cannot become what it should.
    """
    names = tuple(field.name for field in schema.fields)
    for field in schema.fields:
        if field.name not in _OFFERED[values]:
            raise WriteSchemaError(column=field.name, reason=_why_not(field.name, values))
        if names.count(field.name) > 1:
            raise WriteSchemaError(column=field.name, reason="is there twice")
    typed = [name for name in _TYPED if name in names]
    if "value" in names and typed:
        raise WriteSchemaError(
            column=typed[0], reason="a record's value is given as value, or by its type: not both"
        )
    if not typed and "value" not in names:
        raise WriteSchemaError(column="value", reason=_missing_value(values))
    for name in typed and _needed(values):
        if name not in names:
            raise WriteSchemaError(column=name, reason=f"is missing beside {', '.join(typed)}")
    for field in schema.fields:
        _check_type(field, values)
    return InputColumns(names, _form(schema) if typed else RecordForm.VALUE)


def _needed(values: ValueKind) -> tuple[str, ...]:
    """A kraft log's metadata.version says itself which versions are written."""
    return ("recordType", "record") if values is ValueKind.KRAFT else _TYPED


def _form(schema: StructType) -> RecordForm:
    record = schema["record"].dataType
    return RecordForm.STRUCT if isinstance(record, StructType) else RecordForm.JSON


def _missing_value(values: ValueKind) -> str:
    if values is ValueKind.BYTES:
        return "is missing; it is what the log keeps"
    return f"is missing; give it, or {', '.join(_needed(values))}"


def _why_not(name: str, values: ValueKind) -> str:
    if name in _OFFERED[ValueKind.MSGPACK]:
        if name in _BESIDE:
            return (
                "a kraft log takes no key, no header and no time of a record's own: Kafka's "
                "readers do not accept them; leave it out"
            )
        return "this log's values are bytes: encode the record into the column value"
    near = difflib.get_close_matches(name, _OFFERED[values], n=1, cutoff=0.6)
    hint = (
        f"did you mean {near[0]}?"
        if near
        else f"a {values.value} log takes " + ", ".join(_OFFERED[values])
    )
    return f"records have no such part; {hint}"


def _check_type(field: StructField, values: ValueKind) -> None:
    """Raise unless the column can become its part of a record."""
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
            wanted = "string or a whole number"
            fits = isinstance(kind, (StringType, *_INTEGERS))
        case "recordType":
            wanted, fits = "string", isinstance(kind, StringType)
        case "recordVersion":
            wanted, fits = "a whole number", isinstance(kind, _INTEGERS)
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
        raise _wrong_type("record", "struct, or string for JSON", kind)
    scalars = _MSGPACK_SCALARS if values is ValueKind.MSGPACK else _KRAFT_SCALARS
    _check_inside("record", kind, scalars, with_maps=values is ValueKind.MSGPACK)


def _check_inside(
    place: str, kind: DataType, scalars: tuple[type[DataType], ...], *, with_maps: bool
) -> None:
    if isinstance(kind, StructType):
        for field in kind.fields:
            _check_inside(f"{place}.{field.name}", field.dataType, scalars, with_maps=with_maps)
    elif isinstance(kind, ArrayType):
        _check_inside(f"{place}[]", kind.elementType, scalars, with_maps=with_maps)
    elif isinstance(kind, MapType) and with_maps:
        if not isinstance(kind.keyType, StringType):
            raise _wrong_type(f"{place} (its keys)", "string", kind.keyType)
        _check_inside(f"{place}{{}}", kind.valueType, scalars, with_maps=with_maps)
    elif not isinstance(kind, scalars):
        wanted = "one of " + ", ".join(scalar.typeName() for scalar in scalars)
        raise _wrong_type(place, wanted, kind)


def _wrong_type(column: str, wanted: str, kind: DataType) -> WriteSchemaError:
    return WriteSchemaError(
        column=column, reason=f"must be {wanted}, and is {kind.simpleString()}; cast it"
    )
