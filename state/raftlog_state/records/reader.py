"""Value bytes -> record: one reader for each type and version, compiled from its declaration.

Rules of this file:

1. Bytes are damage until proved otherwise: each length and count is compared with the bytes that
   are left before anything is made of it, and only ``MetadataParseError`` comes out.
2. Stricter than Kafka where Kafka ignores a lie: tags must ascend, a tagged field must fill the
   bytes that its tag claims, and text must be UTF-8.
3. Neighbouring fields of fixed width are read with one ``struct`` call; a reader is plain closures.

Source: Kafka ``MessageDataGenerator``, KIP-482.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from raftlog.errors import MalformedVarintError, MetadataParseError
from raftlog.limits import STRING_BYTES_MAX
from raftlog.records.varint import read_unsigned_varint

from .declare import Array, FieldSchema, MetadataRecord, Scalar, Struct, UnknownTag
from .scalars import UUID_BYTES, uuid_text

ValueReader = Callable[[bytes, int], tuple[Any, int]]
"""(value bytes, position) -> (what was read, position behind it)."""

_Step = Callable[[bytes, int, dict[str, Any]], int]
"""(value bytes, position, fields so far) -> position behind the step."""

FORMATS: Final = {
    Scalar.BOOL: "?",
    Scalar.INT8: "b",
    Scalar.INT16: "h",
    Scalar.UINT16: "H",
    Scalar.INT32: "i",
    Scalar.INT64: "q",
    Scalar.FLOAT64: "d",
    Scalar.UUID: "16s",
}
"""Types of fixed width, as ``struct`` names them, big endian."""


@dataclass(frozen=True, slots=True)
class _Place:
    """Which record and version a reader is for: what its errors say."""

    record: str
    version: int

    def damage(self, position: int, reason: str) -> MetadataParseError:
        return MetadataParseError(
            record=self.record, version=self.version, position=position, reason=reason
        )


def record_reader(kind: type[MetadataRecord], version: int) -> ValueReader:
    """Compile the reader of what follows a value's frame, api key and version.

    Raises (the reader): ``MetadataParseError`` for bytes that are not such a record.
    """
    return _struct_reader(kind, _Place(kind.schema.name, version), "")


def _struct_reader(cls: type[Struct], place: _Place, prefix: str) -> ValueReader:
    present = [field for field in cls.fields_schema if field.since <= place.version]
    steps = _steps([field for field in present if field.tag is None], place, prefix)
    read_tags = _tags_reader(cls, place, prefix)
    tags_label = f"{prefix}tagged fields"

    def read(buffer: bytes, position: int) -> tuple[Struct, int]:
        values: dict[str, Any] = {}
        label = ""
        try:
            for label, step in steps:  # noqa: B007 - it says where reading stopped
                position = step(buffer, position, values)
            label = tags_label
            if buffer[position]:
                position = read_tags(buffer, position, values)
            else:
                position += 1
        except (IndexError, struct.error):
            reason = "the bytes end inside it"
        except MalformedVarintError as error:
            reason = f"a length is malformed: {error.reason}"
        else:
            return cls(**values), position
        raise place.damage(position, f"{label}: {reason}")

    return read


def _steps(fields: list[FieldSchema], place: _Place, prefix: str) -> tuple[tuple[str, _Step], ...]:
    """One step for each field, neighbours of fixed width taken together."""
    steps: list[tuple[str, _Step]] = []
    run: list[FieldSchema] = []
    for field in fields:
        if isinstance(field.kind, Scalar) and field.kind in FORMATS:
            run.append(field)
            continue
        if run:
            steps.append(_fixed_step(run, prefix))
            run = []
        label = prefix + field.json_name
        steps.append((label, _store(field.attribute, _value_reader(field, place, label))))
    if run:
        steps.append(_fixed_step(run, prefix))
    return tuple(steps)


def _fixed_step(run: list[FieldSchema], prefix: str) -> tuple[str, _Step]:
    layout = struct.Struct(">" + "".join(FORMATS[field.kind] for field in run))  # type: ignore[index]
    unpack_from, byte_count = layout.unpack_from, layout.size
    names = tuple(field.attribute for field in run)
    uuid_names = tuple(field.attribute for field in run if field.kind is Scalar.UUID)
    label = " to ".join(dict.fromkeys(prefix + run[at].json_name for at in (0, -1)))

    def step(buffer: bytes, position: int, values: dict[str, Any]) -> int:
        values.update(zip(names, unpack_from(buffer, position), strict=True))
        for name in uuid_names:
            values[name] = uuid_text(values[name])
        return position + byte_count

    return label, step


def _store(name: str, read: ValueReader) -> _Step:
    def step(buffer: bytes, position: int, values: dict[str, Any]) -> int:
        values[name], position = read(buffer, position)
        return position

    return step


def _tags_reader(cls: type[Struct], place: _Place, prefix: str) -> _Step:
    """Read a tag section: known fields by tag, unknown ones as they are."""
    known: dict[int, tuple[str, str, ValueReader]] = {}
    invalid: dict[int, str] = {}
    for field in cls.fields_schema:
        if field.tag is not None:
            label = prefix + field.json_name
            if field.since <= place.version:
                known[field.tag] = field.attribute, label, _value_reader(field, place, label)
            else:
                invalid[field.tag] = label

    def read(buffer: bytes, position: int, values: dict[str, Any]) -> int:
        unknown: list[UnknownTag] = []
        previous = -1
        count, position = read_unsigned_varint(buffer, position)
        for _ in range(count):
            start = position
            tag, position = read_unsigned_varint(buffer, position)
            byte_count, position = read_unsigned_varint(buffer, position)
            end = position + byte_count
            if tag <= previous:
                raise place.damage(start, f"{prefix}tag {tag} comes after tag {previous}")
            if end > len(buffer):
                raise place.damage(start, f"{prefix}tag {tag} claims {byte_count} bytes")
            previous = tag
            if tag in known:
                name, label, read_value = known[tag]
                values[name], position = read_value(buffer, position)
                if position != end:
                    raise place.damage(start, f"{label}: its tag claims {byte_count} bytes")
            elif tag in invalid:
                raise place.damage(start, f"{invalid[tag]}: not valid in this version")
            else:
                unknown.append(UnknownTag(tag, buffer[position:end]))
                position = end
        if unknown:
            values["unknown_tags"] = tuple(unknown)
        return position

    return read


def _value_reader(field: FieldSchema, place: _Place, label: str) -> ValueReader:
    if isinstance(field.kind, Array):
        return _array_reader(field.kind, field.nullable, place, label)
    return _scalar_reader(field.kind, field.nullable, place, label)


def _scalar_reader(kind: Scalar, nullable: bool, place: _Place, label: str) -> ValueReader:
    if kind is Scalar.STRING:
        return _text_reader(nullable, place, label)
    if kind is Scalar.BYTES:
        return _bytes_reader(nullable, place, label)
    assert kind is not Scalar.UUID, "no tagged field is a single uuid"
    layout = struct.Struct(">" + FORMATS[kind])
    unpack_from, byte_count = layout.unpack_from, layout.size

    def read(buffer: bytes, position: int) -> tuple[Any, int]:
        return unpack_from(buffer, position)[0], position + byte_count

    return read


def _length_reader(
    nullable: bool, count_max: int, what: str, place: _Place, label: str
) -> Callable[[bytes, int], tuple[int, int]]:
    """Read the length or count in front of a value: -1 for null, else at most what is left."""

    def read(buffer: bytes, position: int) -> tuple[int, int]:
        start = position
        count = buffer[position] - 1
        if count < 0x7F:
            position += 1
        else:
            count, position = read_unsigned_varint(buffer, position)
            count -= 1
        if count > len(buffer) - position:
            reason = f"it claims {count} {what} and {len(buffer) - position} bytes are left"
        elif count > count_max:
            reason = f"it claims {count} {what}; at most {count_max} are allowed"
        elif count < 0 and not nullable:
            reason = "it is null and may not be"
        else:
            return count, position
        raise place.damage(start, f"{label}: {reason}")

    return read


def _text_reader(nullable: bool, place: _Place, label: str) -> ValueReader:
    read_length = _length_reader(nullable, STRING_BYTES_MAX, "bytes", place, label)

    def read(buffer: bytes, position: int) -> tuple[str | None, int]:
        byte_count, position = read_length(buffer, position)
        if byte_count < 0:
            return None, position
        end = position + byte_count
        try:
            return buffer[position:end].decode(), end
        except UnicodeDecodeError as error:
            position += error.start
        raise place.damage(position, f"{label}: it is not UTF-8")

    return read


def _bytes_reader(nullable: bool, place: _Place, label: str) -> ValueReader:
    read_length = _length_reader(nullable, 2**31 - 1, "bytes", place, label)

    def read(buffer: bytes, position: int) -> tuple[bytes | None, int]:
        byte_count, position = read_length(buffer, position)
        if byte_count < 0:
            return None, position
        end = position + byte_count
        return buffer[position:end], end

    return read


@lru_cache(256)
def _int32s(count: int) -> struct.Struct:
    return struct.Struct(f">{count}i")


def _array_reader(kind: Array, nullable: bool, place: _Place, label: str) -> ValueReader:
    read_length = _length_reader(nullable, 2**31 - 1, "elements", place, label)
    read_elements: Callable[[bytes, int, int], tuple[tuple[Any, ...], int]]
    if kind.element is Scalar.INT32:
        read_elements = _read_int32s
    elif kind.element is Scalar.UUID:
        read_elements = _read_uuids
    elif isinstance(kind.element, Scalar):
        read_elements = _each(_scalar_reader(kind.element, False, place, label + "[]"))
    else:
        read_elements = _each(_struct_reader(kind.element, place, label + "[]."))

    def read(buffer: bytes, position: int) -> tuple[tuple[Any, ...] | None, int]:
        count, position = read_length(buffer, position)
        if count < 0:
            return None, position
        return read_elements(buffer, position, count)

    return read


def _read_int32s(buffer: bytes, position: int, count: int) -> tuple[tuple[int, ...], int]:
    return _int32s(count).unpack_from(buffer, position), position + 4 * count


def _read_uuids(buffer: bytes, position: int, count: int) -> tuple[tuple[str, ...], int]:
    end = position + UUID_BYTES * count
    if end > len(buffer):
        raise IndexError
    starts = range(position, end, UUID_BYTES)
    return tuple([uuid_text(buffer[start : start + UUID_BYTES]) for start in starts]), end


def _each(read: ValueReader) -> Callable[[bytes, int, int], tuple[tuple[Any, ...], int]]:
    def read_elements(buffer: bytes, position: int, count: int) -> tuple[tuple[Any, ...], int]:
        elements = []
        for _ in range(count):
            element, position = read(buffer, position)
            elements.append(element)
        return tuple(elements), position

    return read_elements
