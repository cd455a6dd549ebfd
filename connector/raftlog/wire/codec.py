"""Codec of requests and responses: bytes of a given version to kio's classes, and back.

The readers of a message version are built once and cached. They read with a ``Cursor``, within the
limits that ``fields`` describes. Trailing bytes are an error unless the caller allows them.

Invariants of the encoder:

1. A message is an instance of kio's newest class or of a class in ``latest_schemas``. A field that
   its class lacks takes the default in Kafka's schema, if there is one.
2. Tagged fields are written in ascending order of their tags, and only if their bytes differ from
   their default's (KIP-482).
3. A value that a field cannot have raises ``UnsupportedFieldError``. A field that the version lacks
   is omitted; the caller must ensure that the message still means the same.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import groupby
from operator import attrgetter
from types import SimpleNamespace
from typing import Any, Final, TypeVar

from raftlog.limits import STRING_BYTES_MAX, WIRE_ELEMENTS_MAX
from raftlog.records.fields import unsigned_varint

from .errors import UnsupportedFieldError
from .fields import Cursor, Reader, error_of, read_tagged
from .schema import SIZED, FieldPlan, StructPlan, message_plan, with_target

T = TypeVar("T")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)
_LAYOUTS: Final = {
    "bool": ">?",
    "int8": ">b",
    "int16": ">h",
    "error_code": ">h",
    "uint16": ">H",
    "int32": ">i",
    "timedelta_i32": ">i",
    "timedelta_i64": ">q",
    "int64": ">q",
    "datetime_i64": ">q",
    "float64": ">d",
    "uuid": ">16s",
}
"""Layouts of the fixed-width types."""


_READERS: Final[dict[tuple[type[Any], int], Reader]] = {}
_FIELD_READERS: Final[dict[tuple[type[Any], int], Reader]] = {}


def decode(
    target: type[T],
    version: int,
    data: bytes,
    *,
    start: int = 0,
    elements_max: int = WIRE_ELEMENTS_MAX,
    may_trail: bool = False,
) -> T:
    """Decode a message of this version to ``target``, kio's newest class or a latest schema.

    The body begins at ``start``, the end of the header. Trailing bytes are an error unless
    ``may_trail``. Raises ``MalformedMessageError``.
    """
    cursor = Cursor(data, target.__name__, version, start=start, elements_max=elements_max)
    value: T = _reader(target, version)(cursor)
    if not may_trail:
        cursor.finish()
    return value


def decode_fields(schema: type[Any], version: int, data: bytes, *, start: int = 0) -> Any:
    """Decode a message as nested namespaces with the fields of ``schema``, faster than ``decode``.

    This is for messages that are converted to another class. Raises ``MalformedMessageError``.
    """
    reader = _FIELD_READERS.get((schema, version))
    if reader is None:
        plan = with_target(message_plan(schema, version), SimpleNamespace)
        reader = _FIELD_READERS[schema, version] = _struct_reader(plan)
    cursor = Cursor(data, schema.__name__, version, start=start)
    value = reader(cursor)
    cursor.finish()
    return value


def _reader(target: type[Any], version: int) -> Reader:
    reader = _READERS.get((target, version))
    if reader is None:
        reader = _READERS[target, version] = _struct_reader(message_plan(target, version))
    return reader


def _struct_reader(plan: StructPlan) -> Reader:
    target = plan.target
    readers = tuple((field.name, _field_reader(field, plan)) for field in plan.fields)
    dropped = tuple(one.name for one in (*plan.fields, *plan.tagged) if not one.is_kept)
    tagged = {field.tag or 0: (field.name, _field_reader(field, plan)) for field in plan.tagged}
    defaults = plan.absent | {field.name: field.default for field in plan.tagged if field.is_kept}

    def read(cursor: Cursor) -> Any:
        values = defaults.copy()
        for name, reader in readers:
            values[name] = reader(cursor)
        if plan.is_flexible:
            read_tagged(cursor, tagged, values)
        for name in dropped:
            values.pop(name, None)
        return target(**values)

    return read


def _field_reader(field: FieldPlan, parent: StructPlan) -> Reader:
    if field.is_array:
        return _array_reader(field, parent)
    if field.struct is not None:
        reader = _struct_reader(field.struct)
        return _nullable_reader(reader) if field.is_nullable and field.tag is None else reader
    if field.kind in SIZED:
        return _sized_reader(field, parent.is_flexible)
    return _fixed_reader(field.kind, field.name)


def _array_reader(field: FieldPlan, parent: StructPlan) -> Reader:
    name, is_nullable = field.name, field.is_nullable
    if field.struct is not None:
        element, byte_count_min = _struct_reader(field.struct), field.struct.byte_count_min
    elif field.kind == "string":
        element, byte_count_min = _string_reader(name, parent.is_flexible, is_nullable=False), 1
    else:
        element = _fixed_reader(field.kind, name)
        byte_count_min = struct.calcsize(_LAYOUTS[field.kind])
    is_compact = parent.is_flexible

    def read(cursor: Cursor) -> tuple[Any, ...] | None:
        count = cursor.count(name, byte_count_min, is_compact=is_compact, is_nullable=is_nullable)
        return None if count < 0 else tuple([element(cursor) for _ in range(count)])

    return read


def _sized_reader(field: FieldPlan, is_compact: bool) -> Reader:
    name, is_nullable = field.name, field.is_nullable
    if field.kind == "string":
        return _string_reader(name, is_compact, is_nullable=is_nullable)

    def read(cursor: Cursor) -> bytes | None:
        byte_count = cursor.length(name, 4, is_compact=is_compact)
        if byte_count < 0:
            return None if is_nullable else cursor.fail(f"{name} must not be null")
        return cursor.take(byte_count, name)

    return read


def _string_reader(name: str, is_compact: bool, *, is_nullable: bool) -> Reader:
    return lambda cursor: cursor.string(name, is_compact=is_compact, is_nullable=is_nullable)


def _nullable_reader(reader: Reader) -> Reader:
    """Return a reader of a nullable structure, whose first byte is negative for null (KIP-893)."""

    def read(cursor: Cursor) -> Any:
        is_null = cursor.take(1, "a structure")[0] >= 0x80
        return None if is_null else reader(cursor)

    return read


def _fixed_reader(kind: str, name: str) -> Reader:
    layout = struct.Struct(_LAYOUTS[kind])
    unpack_from, byte_count = layout.unpack_from, layout.size
    convert = _FROM_LAYOUT.get(kind)

    def read(cursor: Cursor) -> Any:
        position = cursor.position
        after = position + byte_count
        if after > cursor.end:
            cursor.fail(f"{name} takes {byte_count} bytes, but {cursor.end - position} remain")
        cursor.position = after
        value = unpack_from(cursor.data, position)[0]
        return value if convert is None else convert(value, cursor)

    return read


def _duration(milliseconds: int, cursor: Cursor) -> timedelta:
    try:
        return milliseconds * _MILLISECOND
    except OverflowError:
        cursor.fail(f"duration {milliseconds} ms is out of range")


def _time(milliseconds: int, cursor: Cursor) -> datetime | None:
    if milliseconds == -1:
        return None
    try:
        return _EPOCH + milliseconds * _MILLISECOND
    except OverflowError:
        cursor.fail(f"timestamp {milliseconds} ms is out of range")


_FROM_LAYOUT: Final[dict[str, Callable[[Any, Cursor], Any]]] = {
    "error_code": lambda value, _: error_of(value),
    "timedelta_i32": lambda value, _: value * _MILLISECOND,
    "timedelta_i64": _duration,
    "datetime_i64": _time,
    "uuid": lambda value, _: uuid.UUID(bytes=value) if any(value) else None,
}


# --- Encoder --------------------------------------------------------------------------------------

Writer = Callable[[list[bytes], Any], None]
_WRITERS: Final[dict[tuple[type[Any], int], Writer]] = {}
_MISSING: Final = object()
_ZERO_UUID: Final = bytes(16)


class _UnwritableError(Exception):
    """A field cannot have its value; ``encode`` adds the message and version."""

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(reason)
        self.field = field
        self.reason = reason


def encode(message: Any, version: int, schema: type[Any] | None = None) -> bytes:
    """Return the bytes of a request or response body, without its header.

    ``message`` is an instance of kio's newest class or of a class in ``latest_schemas``. If
    ``schema`` is given, it is that class, and ``message`` may be any object with its fields. Raises
    ``UnsupportedFieldError``.
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
    return not field.is_array and field.kind in _LAYOUTS and field.kind not in _TO_LAYOUT


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

    # A field that is null by default is written only if it is not null, so its writer accepts no
    # null.
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
        return _nullable_writer(writer) if field.is_nullable and field.tag is None else writer
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
    """Return an encoder of lengths, as a varint of length + 1 or in a fixed width; -1 is null."""
    if is_compact:
        return lambda count: unsigned_varint(count + 1)
    return lambda count: count.to_bytes(width, "big", signed=True)


def _nullable_writer(writer: Writer) -> Writer:
    def write(out: list[bytes], value: Any) -> None:
        if value is None:
            out.append(b"\xff")
            return
        out.append(b"\x01")
        writer(out, value)

    return write


def _fixed_writer(kind: str, name: str) -> Writer:
    pack = struct.Struct(_LAYOUTS[kind]).pack
    convert = _TO_LAYOUT.get(kind, _same)

    def write(out: list[bytes], value: Any) -> None:
        try:
            out.append(pack(convert(value)))
        except struct.error:
            raise _UnwritableError(name, f"the value is not a valid {kind}") from None

    return write


def _same(value: Any) -> Any:
    return value


_TO_LAYOUT: Final[dict[str, Callable[[Any], Any]]] = {
    "timedelta_i32": lambda value: value // _MILLISECOND,
    "timedelta_i64": lambda value: value // _MILLISECOND,
    "datetime_i64": lambda value: -1 if value is None else (value - _EPOCH) // _MILLISECOND,
    "uuid": lambda value: _ZERO_UUID if value is None else value.bytes,
}
