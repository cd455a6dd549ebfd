"""Encoding of records: a writer for each type and version, compiled from the declaration.

Tagged fields at their default are not written. Known and unknown tags together are in ascending
order. Fields that the version lacks must be at their default (see ``versions``). Errors contain the
field, never the value.

Source: Kafka ``MessageDataGenerator``, KIP-482.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from operator import attrgetter
from typing import Any

from raftlog.limits import STRING_BYTES_MAX
from raftlog.records.fields import unsigned_varint

from .declare import Array, FieldSchema, Message, Nested, Scalar, Struct
from .reader import FORMATS, TAG_MAX
from .scalars import uuid_bytes
from .versions import FieldPath, absence_check

ValueWriter = Callable[[Any], bytes]


def record_writer(kind: type[Message], version: int, head: bytes) -> ValueWriter:
    """Compile the writer of a value: ``head``, the frame, and the fields.

    The writer raises ``UnsupportedVersionError`` for a field that the version lacks and that is not
    at its default, ``InvalidRecordError`` for a value that does not fit its field's type.
    """
    is_flexible = version >= kind.schema.flexible_since
    write_struct = _struct_writer(kind, FieldPath(kind.schema.name, version), is_flexible)

    def write(record: Message) -> bytes:
        return head + write_struct(record)

    return write


def _struct_writer(cls: type[Struct], path: FieldPath, is_flexible: bool) -> ValueWriter:
    present = [field for field in cls.fields_schema if field.is_in(path.version)]
    plain = [
        (
            attrgetter(field.attribute),
            _value_writer(field, path.within(field.json_name), is_flexible),
        )
        for field in present
        if field.tag is None
    ]
    tagged = [
        (field.tag, attrgetter(field.attribute), field.default, _value_writer(field, within, True))
        for field in sorted(present, key=lambda field: field.tag or 0)
        if field.tag is not None and (within := path.within(field.json_name))
    ]
    known_tags = {field.tag for field in cls.fields_schema if field.tag is not None}
    check_absent = absence_check(cls, path.record, path.version)

    def write(record: Struct) -> bytes:
        if check_absent:
            check_absent(record)
        parts = [write_value(get(record)) for get, write_value in plain]
        if not is_flexible:
            if record.unknown_tags:
                raise path.within("unknownTaggedFields").invalid("the version has no tagged fields")
            return b"".join(parts)
        tags = [
            (tag, write_value(value))
            for tag, get, default, write_value in tagged
            if (value := get(record)) != default
        ]
        if record.unknown_tags:
            tags = _with_unknown(tags, record, known_tags, path)
        parts.append(unsigned_varint(len(tags)))
        for tag, data in tags:
            parts += (unsigned_varint(tag), unsigned_varint(len(data)), data)
        return b"".join(parts)

    return write


def _with_unknown(
    tags: list[tuple[int, bytes]], record: Struct, known_tags: set[int], path: FieldPath
) -> list[tuple[int, bytes]]:
    unknown = {one.tag: one.data for one in record.unknown_tags}
    if len(unknown) != len(record.unknown_tags) or unknown.keys() & known_tags:
        raise path.within("unknownTaggedFields").invalid("a tag occurs twice or is a known tag")
    if not all(0 <= tag <= TAG_MAX for tag in unknown):
        raise path.within("unknownTaggedFields").invalid("a tag is out of range")
    return sorted([*tags, *unknown.items()])


def _value_writer(field: FieldSchema, path: FieldPath, is_flexible: bool) -> ValueWriter:
    if isinstance(field.kind, Array):
        return _array_writer(field.kind, field.nullable, path, is_flexible)
    if isinstance(field.kind, Nested):
        return _nested_writer(field, field.kind.struct, path, is_flexible)
    return _scalar_writer(field.kind, field.nullable, path, is_flexible)


def _nested_writer(
    field: FieldSchema, cls: type[Struct], path: FieldPath, is_flexible: bool
) -> ValueWriter:
    write_struct = _struct_writer(cls, path, is_flexible)
    null = b"\xff" if field.tag is None else b"\x00"

    def write(value: Struct | None) -> bytes:
        if value is None:
            return _null(field.nullable, path, null)
        return b"\x01" + write_struct(value) if field.nullable else write_struct(value)

    return write


def _scalar_writer(kind: Scalar, nullable: bool, path: FieldPath, is_flexible: bool) -> ValueWriter:
    if kind is Scalar.STRING:
        return _text_writer(nullable, path, is_flexible)
    if kind is Scalar.BYTES:
        return _bytes_writer(nullable, path, is_flexible)
    if kind is Scalar.UUID:
        return _uuid_writer(path)
    pack = struct.Struct(">" + FORMATS[kind]).pack

    def write(value: Any) -> bytes:
        try:
            return pack(value)
        except struct.error:
            pass
        raise path.invalid(f"it does not fit into {kind.value}")

    return write


def _uuid_writer(path: FieldPath) -> ValueWriter:
    def write(value: str) -> bytes:
        data = uuid_bytes(value)
        if data is None:
            raise path.invalid("it is not a uuid of 22 base64url characters")
        return data

    return write


def _text_writer(nullable: bool, path: FieldPath, is_flexible: bool) -> ValueWriter:
    length = _length(is_flexible, "h")

    def write(value: str | None) -> bytes:
        if value is None:
            return _null(nullable, path, length(-1))
        try:
            data = value.encode()
        except UnicodeEncodeError:
            data = None
        if data is None:
            raise path.invalid("it cannot be encoded as UTF-8")
        if len(data) > STRING_BYTES_MAX:
            raise path.invalid(f"it is longer than {STRING_BYTES_MAX} bytes of UTF-8")
        return length(len(data)) + data

    return write


def _bytes_writer(nullable: bool, path: FieldPath, is_flexible: bool) -> ValueWriter:
    length = _length(is_flexible, "i")

    def write(value: bytes | None) -> bytes:
        if value is None:
            return _null(nullable, path, length(-1))
        return length(len(value)) + value

    return write


def _array_writer(kind: Array, nullable: bool, path: FieldPath, is_flexible: bool) -> ValueWriter:
    if kind.element is Scalar.INT32:
        return _int32s_writer(nullable, path, is_flexible)
    if isinstance(kind.element, Scalar):
        write_element = _scalar_writer(kind.element, False, path, is_flexible)
    else:
        write_element = _struct_writer(kind.element, path, is_flexible)
    length = _length(is_flexible, "i")

    def write(value: tuple[Any, ...] | None) -> bytes:
        if value is None:
            return _null(nullable, path, length(-1))
        return length(len(value)) + b"".join(map(write_element, value))

    return write


def _int32s_writer(nullable: bool, path: FieldPath, is_flexible: bool) -> ValueWriter:
    """Return a writer of an int32 array, the most common kind, with one ``struct`` call."""
    length = _length(is_flexible, "i")

    def write(value: tuple[int, ...] | None) -> bytes:
        if value is None:
            return _null(nullable, path, length(-1))
        try:
            return length(len(value)) + struct.pack(f">{len(value)}i", *value)
        except struct.error:
            pass
        raise path.invalid("an element does not fit into int32")

    return write


def _length(is_flexible: bool, fixed: str) -> Callable[[int], bytes]:
    """Return the writer of a length or count: compact, or of ``fixed`` width; -1 is null."""
    if is_flexible:
        return lambda count: unsigned_varint(count + 1)
    return struct.Struct(">" + fixed).pack


def _null(nullable: bool, path: FieldPath, null: bytes) -> bytes:
    if not nullable:
        raise path.invalid("it is None and not nullable")
    return null
