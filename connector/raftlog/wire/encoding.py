"""Encoder of requests and responses: kio's classes to bytes of a given version.

1. A message is of kio's newest class or of one of ``latest_schemas``. A field that its class lacks
   takes the default of Kafka's schema, if there is one.
2. A tagged field is written if its bytes differ from those of its default, tags ascending
   (KIP-482).
3. A value that a field cannot have raises ``UnsupportedFieldError``. A field that the version lacks
   is omitted; the caller must make sure that the message still means the same.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import groupby
from operator import attrgetter
from typing import Any, Final

from raftlog.errors import UnsupportedFieldError
from raftlog.limits import STRING_BYTES_MAX
from raftlog.records.varint import unsigned_varint

from .schema import SIZED, FieldPlan, StructPlan, message_plan

Writer = Callable[[list[bytes], Any], None]
_WRITERS: Final[dict[tuple[type[Any], int], Writer]] = {}
_MISSING: Final = object()
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)
_ZERO_UUID: Final = bytes(16)


class _UnwritableError(Exception):
    """A field cannot have its value; ``encode`` adds the message and version."""

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(reason)
        self.field = field
        self.reason = reason


def encode(message: Any, version: int, schema: type[Any] | None = None) -> bytes:
    """Return the bytes of a request or response body, without its header.

    ``message`` is of kio's newest class, or of one of ``latest_schemas``; or ``schema`` is, and
    ``message`` any object with its fields. Raises ``UnsupportedFieldError``.
    """
    kind = type(message) if schema is None else schema
    out: list[bytes] = []
    try:
        _writer(kind, version)(out, message)
    except _UnwritableError as error:
        raise UnsupportedFieldError(
            api=kind.__name__, version=version, field=error.field, reason=error.reason
        ) from None
    return b"".join(out)


def _writer(kind: type[Any], version: int) -> Writer:
    writer = _WRITERS.get((kind, version))
    if writer is None:
        writer = _WRITERS[kind, version] = _struct_writer(message_plan(kind, version))
    return writer


def _attribute_writers(plan: StructPlan) -> list[Writer]:
    """Return the writers of untagged fields, one for each run of fixed-width fields."""
    writers: list[Writer] = []
    for is_plain, group in groupby(plan.fields, key=_is_plain):
        fields = list(group)
        singles = [_attribute_writer(field, plan) for field in fields]
        writers += [_run_writer(fields, singles)] if is_plain and len(fields) > 1 else singles
    return writers


def _is_plain(field: FieldPlan) -> bool:
    return not field.is_array and field.kind in _LAYOUTS and field.kind not in _CONVERSIONS


def _run_writer(fields: list[FieldPlan], singles: list[Writer]) -> Writer:
    pack = struct.Struct(">" + "".join(_LAYOUTS[field.kind][1:] for field in fields)).pack
    find = attrgetter(*(field.name for field in fields))

    def write(out: list[bytes], value: Any) -> None:
        try:
            out.append(pack(*find(value)))
        except (AttributeError, struct.error):  # write one by one, for defaults and exact errors
            for writer in singles:
                writer(out, value)

    return write


def _struct_writer(plan: StructPlan) -> Writer:
    writers = _attribute_writers(plan)
    tagged = tuple(_tagged_writer(field, plan) for field in plan.tagged)

    def write(out: list[bytes], value: Any) -> None:
        for writer in writers:
            writer(out, value)
        if plan.is_flexible:
            parts = [part for writer in tagged if (part := writer(value))]
            out.append(unsigned_varint(len(parts)))
            out += parts

    return write


def _attribute_writer(field: FieldPlan, parent: StructPlan) -> Writer:
    name, writer = field.name, _field_writer(field, parent)
    default = field.default if field.has_default else _MISSING

    def write(out: list[bytes], value: Any) -> None:
        found = getattr(value, name, default)
        if found is _MISSING:
            raise _UnwritableError(name, "the message class lacks it, and it has no default")
        writer(out, found)

    return write


def _tagged_writer(field: FieldPlan, parent: StructPlan) -> Callable[[Any], bytes]:
    name, tag, writer = field.name, unsigned_varint(field.tag or 0), _field_writer(field, parent)
    default = field.default

    def plain(value: Any) -> bytes:
        parts: list[bytes] = []
        writer(parts, value)
        return b"".join(parts)

    # A field that is null by default is written only if it is not null: its writer takes no null.
    default_data = None if default is None and not field.is_nullable else plain(default)

    def write(value: Any) -> bytes:
        found = getattr(value, name, default)
        if found is default:
            return b""
        data = plain(found)
        return b"" if data == default_data else tag + unsigned_varint(len(data)) + data

    return write


def _field_writer(field: FieldPlan, parent: StructPlan) -> Writer:
    if field.is_array:
        return _array_writer(field, parent.is_flexible)
    if field.struct is not None:
        writer = _struct_writer(field.struct)
        return _nullable_struct(writer) if field.is_nullable and field.tag is None else writer
    if field.kind in SIZED:
        return _sized_writer(field, parent.is_flexible, is_nullable=field.is_nullable)
    return _fixed_writer(field.kind, field.name)


def _array_writer(field: FieldPlan, is_compact: bool) -> Writer:
    name, is_nullable = field.name, field.is_nullable
    if field.struct is not None:
        element = _struct_writer(field.struct)
    elif field.kind == "string":
        element = _sized_writer(field, is_compact, is_nullable=False)
    else:
        element = _fixed_writer(field.kind, name)
    length = _length_bytes(4, is_compact)

    def write(out: list[bytes], values: Any) -> None:
        if values is None:
            out.append(_null(name, is_nullable, length))
            return
        out.append(length(len(values)))
        for value in values:
            element(out, value)

    return write


def _sized_writer(field: FieldPlan, is_compact: bool, *, is_nullable: bool) -> Writer:
    name, is_text = field.name, field.kind == "string"
    length = _length_bytes(2 if is_text else 4, is_compact)

    def write(out: list[bytes], value: Any) -> None:
        if value is None:
            out.append(_null(name, is_nullable, length))
            return
        try:
            data = value.encode() if is_text else value
        except UnicodeEncodeError:
            raise _UnwritableError(name, "the string cannot be encoded as UTF-8") from None
        if is_text and len(data) > STRING_BYTES_MAX:
            raise _UnwritableError(
                name,
                f"the string has {len(data)} bytes, but at most {STRING_BYTES_MAX} are allowed",
            )
        out.append(length(len(data)))
        out.append(data)

    return write


def _null(name: str, is_nullable: bool, length: Callable[[int], bytes]) -> bytes:
    if not is_nullable:
        raise _UnwritableError(name, "must not be null")
    return length(-1)


def _length_bytes(width: int, is_compact: bool) -> Callable[[int], bytes]:
    """Return an encoder of lengths, as varint of length + 1 or with a fixed width; -1 is null."""
    if is_compact:
        return lambda count: unsigned_varint(count + 1)
    return lambda count: count.to_bytes(width, "big", signed=True)


def _nullable_struct(writer: Writer) -> Writer:
    def write(out: list[bytes], value: Any) -> None:
        if value is None:
            out.append(b"\xff")
            return
        out.append(b"\x01")
        writer(out, value)

    return write


def _fixed_writer(kind: str, name: str) -> Writer:
    if kind == "uuid":
        return lambda out, value: out.append(_ZERO_UUID if value is None else value.bytes)
    pack = struct.Struct(_LAYOUTS[kind]).pack
    convert = _CONVERSIONS.get(kind, _same)

    def write(out: list[bytes], value: Any) -> None:
        try:
            out.append(pack(convert(value)))
        except struct.error:
            raise _UnwritableError(name, f"the value is not a valid {kind}") from None

    return write


_LAYOUTS: Final = {
    "bool": ">?",
    "int8": ">b",
    "int16": ">h",
    "error_code": ">h",
    "uint16": ">H",
    "int32": ">i",
    "timedelta_i32": ">i",
    "int64": ">q",
    "datetime_i64": ">q",
    "float64": ">d",
}


def _same(value: Any) -> Any:
    return value


_CONVERSIONS: Final[dict[str, Callable[[Any], Any]]] = {
    "timedelta_i32": lambda value: value // _MILLISECOND,
    "datetime_i64": lambda value: -1 if value is None else (value - _EPOCH) // _MILLISECOND,
}
