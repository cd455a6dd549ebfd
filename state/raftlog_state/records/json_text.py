"""JSON text of a record as kafka-dump-log prints it: a writer compiled for each type and version.

Fields are in the order of their declaration; tagged fields at their default are left out. Enums are
numbers, uuids and bytes are base64. ``unknownTaggedFields``, which Kafka's JSON lacks, is appended
if the record has some: ``[{"tag": 9, "data": base64}]``.

Source: Kafka ``JsonConverterGenerator``, ``MetadataJsonConverters``, Jackson's ``JsonNode``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any, Final

from .declare import FieldSchema, Message, MetadataRecord, Nested, Scalar, Struct, UnknownTag
from .scalars import bytes_json, double_json, string_json
from .versions import absence_check

UNKNOWN_TAGS_JSON: Final = "unknownTaggedFields"

TextWriter = Callable[[Any], str]

NO_SPECIAL: Final[Mapping[str, TextWriter]] = {}


def _bool_json(value: bool) -> str:
    return "true" if value else "false"


def _uuid_json(value: str) -> str:
    return f'"{value}"'


_SCALARS: Final[dict[Scalar, TextWriter]] = {
    Scalar.BOOL: _bool_json,
    Scalar.INT8: str,
    Scalar.INT16: str,
    Scalar.UINT16: str,
    Scalar.INT32: str,
    Scalar.INT64: str,
    Scalar.FLOAT64: double_json,
    Scalar.UUID: _uuid_json,
    Scalar.STRING: string_json,
    Scalar.BYTES: bytes_json,
}


def record_text_writer(kind: type[MetadataRecord], version: int) -> TextWriter:
    """Compile the writer of ``{"type":..,"version":..,"data":{..}}``, without white space.

    The writer raises ``UnsupportedVersionError`` for a field that the version lacks and that is
    not at its default.
    """
    head = f'{{"type":"{kind.schema.json_type}","version":{version},"data":'
    write_data = data_text_writer(kind, version)

    def write(record: MetadataRecord) -> str:
        return head + write_data(record) + "}"

    return write


def data_text_writer(
    kind: type[Message], version: int, special: Mapping[str, TextWriter] = NO_SPECIAL
) -> TextWriter:
    """Compile the writer of the fields alone; as ``record_text_writer``.

    ``special`` has writers for attributes, in the record or in its structs, that are not written by
    their type.
    """
    return _struct_writer(kind, kind.schema.name, version, special)


def _struct_writer(
    cls: type[Struct], record_name: str, version: int, special: Mapping[str, TextWriter]
) -> TextWriter:
    present = [field for field in cls.fields_schema if field.is_in(version)]
    # One getter for all fields; with the unknown tags it returns a tuple even for a single field.
    get_all = attrgetter(*[field.attribute for field in present], "unknown_tags")
    plan = [
        (
            f'"{field.json_name}":',
            field.tag is not None,
            field.default,
            special.get(field.attribute) or _value_writer(field, record_name, version, special),
        )
        for field in present
    ]
    check_absent = absence_check(cls, record_name, version)

    def write(record: Struct) -> str:
        if check_absent:
            check_absent(record)
        parts = []
        if plan:
            parts = [
                name + write_value(value)
                for value, (name, tagged, default, write_value) in zip(
                    get_all(record), plan, strict=False
                )
                if not tagged or value != default
            ]
        if record.unknown_tags:
            parts.append(_unknown_tags_json(record.unknown_tags))
        return "{" + ",".join(parts) + "}"

    return write


def _unknown_tags_json(unknown_tags: tuple[UnknownTag, ...]) -> str:
    tags = [f'{{"tag":{one.tag},"data":{bytes_json(one.data)}}}' for one in unknown_tags]
    return f'"{UNKNOWN_TAGS_JSON}":[{",".join(tags)}]'


def _value_writer(
    field: FieldSchema, record_name: str, version: int, special: Mapping[str, TextWriter]
) -> TextWriter:
    kind = field.kind
    if isinstance(kind, Scalar):
        write = _SCALARS[kind]
    elif isinstance(kind, Nested):
        write = _struct_writer(kind.struct, record_name, version, special)
    elif isinstance(kind.element, Scalar):
        write = _array_writer(_SCALARS[kind.element])
    else:
        write = _array_writer(_struct_writer(kind.element, record_name, version, special))
    return _or_null(write) if field.nullable else write


def _array_writer(write_element: TextWriter) -> TextWriter:
    def write(elements: tuple[Any, ...]) -> str:
        return "[" + ",".join(map(write_element, elements)) + "]"

    return write


def _or_null(write: TextWriter) -> TextWriter:
    return lambda value: "null" if value is None else write(value)
