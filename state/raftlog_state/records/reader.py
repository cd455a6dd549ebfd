"""Decoding of records: a reader for each type and version, compiled from the declaration.

A reader is a list of steps: closures that append to a row. Adjacent fields of fixed width are one
step with one ``struct`` call::

    bytes   broker_id incarnation_id epoch | end_points | features | ... | tag count, tagged fields
    step    fixed width                    | array      | array    | ... | tags
    row     plain fields in order, tagged and absent fields at their defaults, unknown tags

Versions before a record's first flexible one have lengths of 16 or 32 bits and no tagged fields; a
length of -1 is null.

Every length and count is compared with the number of bytes left before it is used, and the only
error of a reader is ``MetadataParseError``. Readers are stricter than Kafka: tags must ascend, a
tagged field must have the size of its tag, and strings must be UTF-8.

Source: Kafka ``MessageDataGenerator``, KIP-482.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from raftlog.fast_dataclass import positional_constructor
from raftlog.limits import STRING_BYTES_MAX
from raftlog.records.fields import MalformedVarintError, read_unsigned_varint
from raftlog_state.errors import MetadataParseError

from .declare import Array, FieldSchema, Message, Nested, Scalar, Struct, UnknownTag
from .scalars import UUID_BYTES, uuid_text

ValueReader = Callable[[bytes, int], tuple[Any, int]]
"""(value bytes, position) -> (the value, position after it)."""

_Step = Callable[[bytes, int, list[Any]], int]
"""(value bytes, position, row) -> position after the step; appends the values to the row."""

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
"""``struct`` formats of the types of fixed width, big endian."""

TAG_MAX: Final = 2**31 - 2
"""Tags are int32 in Kafka, whose writer uses the largest one as the end of the list."""


@dataclass(frozen=True, slots=True)
class _RecordContext:
    """Record type and version of a reader, and whether the version is flexible."""

    record: str
    version: int
    is_flexible: bool

    def damage(self, position: int, reason: str) -> MetadataParseError:
        return MetadataParseError(
            record=self.record, version=self.version, position=position, reason=reason
        )


def record_reader(kind: type[Message], version: int) -> ValueReader:
    """Compile the reader of the bytes after the frame: api key, version or both.

    The reader raises ``MetadataParseError`` if the bytes are not such a record.
    """
    is_flexible = version >= kind.schema.flexible_since
    return _struct_reader(kind, _RecordContext(kind.schema.name, version, is_flexible), "")


def _struct_reader(cls: type[Struct], context: _RecordContext, prefix: str) -> ValueReader:
    present = [field for field in cls.fields_schema if field.is_in(context.version)]
    plain = [field for field in present if field.tag is None]
    others = [field for field in cls.fields_schema if field not in plain]
    steps = _steps(plain, context, prefix)
    # A row: plain fields, the other fields at their defaults, unknown tags.
    order = (*(field.attribute for field in plain + others), "unknown_tags")
    build = positional_constructor(cls, order)
    defaults = (*(field.default for field in others), ())
    read_tags = _tags_reader(cls, order, context, prefix)
    tags_label = f"{prefix}tagged fields"
    is_flexible = context.is_flexible

    def read(buffer: bytes, position: int) -> tuple[Struct, int]:
        row: list[Any] = []
        label = ""
        try:
            for label, step in steps:  # noqa: B007 - the label is for errors, after the loop
                position = step(buffer, position, row)
            label = tags_label
            row += defaults
            if is_flexible:
                if buffer[position]:
                    position = read_tags(buffer, position, row)
                else:
                    position += 1
        except (IndexError, struct.error):
            reason = "the record is truncated"
        except MalformedVarintError as error:
            reason = f"malformed length: {error.reason}"
        else:
            return build(*row), position
        raise context.damage(position, f"{label}: {reason}")

    return read


def _steps(
    fields: list[FieldSchema], context: _RecordContext, prefix: str
) -> tuple[tuple[str, _Step], ...]:
    """Return a step for each field, one for adjacent fields of fixed width."""
    steps: list[tuple[str, _Step]] = []
    run: list[FieldSchema] = []
    for at, field in enumerate(fields):
        if isinstance(field.kind, Scalar) and field.kind in FORMATS:
            run.append(field)
            continue
        if run:
            steps.append(_fixed_step(run, at - len(run), prefix))
            run = []
        label = prefix + field.json_name
        read = _value_reader(field, context, label)
        is_short_text = field.kind is Scalar.STRING and context.is_flexible
        steps.append((label, (_text_step if is_short_text else _step)(read)))
    if run:
        steps.append(_fixed_step(run, len(fields) - len(run), prefix))
    return tuple(steps)


def _fixed_step(run: list[FieldSchema], first: int, prefix: str) -> tuple[str, _Step]:
    """Return a step for fields of fixed width, the first at index ``first`` of the row."""
    layout = struct.Struct(">" + "".join(FORMATS[field.kind] for field in run))  # type: ignore[index]
    unpack_from, byte_count = layout.unpack_from, layout.size
    uuids = tuple(first + at for at, field in enumerate(run) if field.kind is Scalar.UUID)
    label = " to ".join(dict.fromkeys(prefix + run[at].json_name for at in (0, -1)))

    def step(buffer: bytes, position: int, row: list[Any]) -> int:
        row += unpack_from(buffer, position)
        for at in uuids:
            row[at] = uuid_text(row[at])
        return position + byte_count

    return label, step


def _step(read: ValueReader) -> _Step:
    def step(buffer: bytes, position: int, row: list[Any]) -> int:
        value, position = read(buffer, position)
        row.append(value)
        return position

    return step


def _text_step(read: ValueReader) -> _Step:
    """Return a step for a string, with a fast path for one-byte lengths and otherwise ``read``."""

    def step(buffer: bytes, position: int, row: list[Any]) -> int:
        length = buffer[position]
        end = position + length
        if 0 < length < 0x80 and end <= len(buffer):
            try:
                row.append(buffer[position + 1 : end].decode())
                return end
            except UnicodeDecodeError:
                pass
        value, position = read(buffer, position)
        row.append(value)
        return position

    return step


def _tags_reader(
    cls: type[Struct], order: tuple[str, ...], context: _RecordContext, prefix: str
) -> _Step:
    """Return a step for tagged fields: known ones at their row index, unknown ones last."""
    known: dict[int, tuple[int, str, ValueReader]] = {}
    invalid: dict[int, str] = {}
    for field in cls.fields_schema:
        if field.tag is not None:
            label = prefix + field.json_name
            if field.is_in(context.version):
                at = order.index(field.attribute)
                known[field.tag] = at, label, _value_reader(field, context, label)
            else:
                invalid[field.tag] = label

    def read(buffer: bytes, position: int, row: list[Any]) -> int:
        unknown: list[UnknownTag] = []
        previous = -1
        count = buffer[position]
        if count < 0x80:
            position += 1
        else:
            count, position = read_unsigned_varint(buffer, position)
        for _ in range(count):
            start = position
            tag, byte_count = buffer[position], buffer[position + 1]
            if tag < 0x80 and byte_count < 0x80:
                position += 2
            else:
                tag, position = read_unsigned_varint(buffer, position)
                byte_count, position = read_unsigned_varint(buffer, position)
            end = position + byte_count
            if tag > TAG_MAX:
                raise context.damage(start, f"{prefix}tag {tag} is out of range")
            if tag <= previous:
                raise context.damage(start, f"{prefix}tag {tag} follows tag {previous}")
            if end > len(buffer):
                claim = f"has size {byte_count}, but only {len(buffer) - position} bytes are left"
                raise context.damage(start, f"{prefix}tag {tag} {claim}")
            previous = tag
            if tag in known:
                at, label, read_value = known[tag]
                row[at], position = read_value(buffer, position)
                if position != end:
                    raise context.damage(start, f"{label}: its size is not {byte_count}")
            elif tag in invalid:
                raise context.damage(start, f"{invalid[tag]}: not valid in this version")
            else:
                unknown.append(UnknownTag(tag, buffer[position:end]))
                position = end
        if unknown:
            row[-1] = tuple(unknown)
        return position

    return read


def _value_reader(field: FieldSchema, context: _RecordContext, label: str) -> ValueReader:
    if isinstance(field.kind, Array):
        return _array_reader(field.kind, field.nullable, context, label)
    if isinstance(field.kind, Nested):
        return _nested_reader(field, field.kind.struct, context, label)
    return _scalar_reader(field.kind, field.nullable, context, label)


def _scalar_reader(
    kind: Scalar, nullable: bool, context: _RecordContext, label: str
) -> ValueReader:
    if kind is Scalar.STRING:
        return _text_reader(nullable, context, label)
    if kind is Scalar.BYTES:
        return _bytes_reader(nullable, context, label)
    layout = struct.Struct(">" + FORMATS[kind])
    if kind is Scalar.UUID:
        return _read_uuid
    unpack_from, byte_count = layout.unpack_from, layout.size

    def read(buffer: bytes, position: int) -> tuple[Any, int]:
        return unpack_from(buffer, position)[0], position + byte_count

    return read


def _read_uuid(buffer: bytes, position: int) -> tuple[str, int]:
    (uuid,), position = _read_uuids(buffer, position, 1)
    return uuid, position


def _nested_reader(
    field: FieldSchema, cls: type[Struct], context: _RecordContext, label: str
) -> ValueReader:
    """Return a reader of a single struct.

    If it is nullable, its first byte is 1, or 0 or -1 for null. This byte is a varint in a tagged
    field, and otherwise an int8.
    """
    read_struct = _struct_reader(cls, context, label + ".")
    if not field.nullable:
        return read_struct

    def read(buffer: bytes, position: int) -> tuple[Struct | None, int]:
        if 0 < buffer[position] < 0x80:
            return read_struct(buffer, position + 1)
        return None, position + 1

    return read


def _read_compact(buffer: bytes, position: int) -> tuple[int, int]:
    count = buffer[position] - 1
    if count < 0x7F:
        return count, position + 1
    count, position = read_unsigned_varint(buffer, position)
    return count - 1, position


def _read_int16(buffer: bytes, position: int) -> tuple[int, int]:
    return _INT16(buffer, position)[0], position + 2


def _read_int32(buffer: bytes, position: int) -> tuple[int, int]:
    return _INT32(buffer, position)[0], position + 4


_INT16: Final = struct.Struct(">h").unpack_from
_INT32: Final = struct.Struct(">i").unpack_from


def _length_reader(
    nullable: bool, count_max: int, what: str, context: _RecordContext, label: str
) -> Callable[[bytes, int], tuple[int, int]]:
    """Return a reader of a value's length or count: -1 for null, else at most the bytes left."""
    read_count = _read_compact
    if not context.is_flexible:
        read_count = _read_int16 if count_max == STRING_BYTES_MAX else _read_int32

    def read(buffer: bytes, position: int) -> tuple[int, int]:
        start = position
        count, position = read_count(buffer, position)
        if count > len(buffer) - position:
            reason = f"it has {count} {what}, but only {len(buffer) - position} bytes are left"
        elif count > count_max:
            reason = f"it has {count} {what}; at most {count_max} are allowed"
        elif count < 0 and not nullable:
            reason = "it is null and not nullable"
        else:
            return count, position
        raise context.damage(start, f"{label}: {reason}")

    return read


def _text_reader(nullable: bool, context: _RecordContext, label: str) -> ValueReader:
    read_length = _length_reader(nullable, STRING_BYTES_MAX, "bytes", context, label)

    def read(buffer: bytes, position: int) -> tuple[str | None, int]:
        byte_count, position = read_length(buffer, position)
        if byte_count < 0:
            return None, position
        end = position + byte_count
        try:
            return buffer[position:end].decode(), end
        except UnicodeDecodeError as error:
            position += error.start
        raise context.damage(position, f"{label}: it is not UTF-8")

    return read


def _bytes_reader(nullable: bool, context: _RecordContext, label: str) -> ValueReader:
    read_length = _length_reader(nullable, 2**31 - 1, "bytes", context, label)

    def read(buffer: bytes, position: int) -> tuple[bytes | None, int]:
        byte_count, position = read_length(buffer, position)
        if byte_count < 0:
            return None, position
        end = position + byte_count
        return buffer[position:end], end

    return read


def _array_reader(kind: Array, nullable: bool, context: _RecordContext, label: str) -> ValueReader:
    read_length = _length_reader(nullable, 2**31 - 1, "elements", context, label)
    read_elements: Callable[[bytes, int, int], tuple[tuple[Any, ...], int]]
    is_flexible = context.is_flexible
    if kind.element is Scalar.INT32:
        return _int32s_reader(read_length, is_flexible)
    if kind.element is Scalar.UUID:
        read_elements = _read_uuids
    elif isinstance(kind.element, Scalar):
        read_elements = _each(_scalar_reader(kind.element, False, context, label + "[]"))
    else:
        read_elements = _each(_struct_reader(kind.element, context, label + "[]."))

    def read(buffer: bytes, position: int) -> tuple[tuple[Any, ...] | None, int]:
        length = buffer[position]
        if is_flexible and 0 < length < 0x80 and length + position <= len(buffer):
            return read_elements(buffer, position + 1, length - 1)
        count, position = read_length(buffer, position)
        if count < 0:
            return None, position
        return read_elements(buffer, position, count)

    return read


_FEW_INT32S: Final = tuple(struct.Struct(f">{count}i").unpack_from for count in range(0x7F))


def _int32s_reader(
    read_length: Callable[[bytes, int], tuple[int, int]], is_flexible: bool
) -> ValueReader:
    """Return a reader of an int32 array. These are the most common arrays: node ids, mostly few."""

    def read(buffer: bytes, position: int) -> tuple[tuple[int, ...] | None, int]:
        length = buffer[position]
        if is_flexible and 0 < length < 0x80:
            return _FEW_INT32S[length - 1](buffer, position + 1), position + 4 * length - 3
        count, position = read_length(buffer, position)
        if count < 0:
            return None, position
        return struct.unpack_from(f">{count}i", buffer, position), position + 4 * count

    return read


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
