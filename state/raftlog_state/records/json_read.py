"""Parsing of records from JSON as kafka-dump-log prints it.

The parser is stricter than Kafka's: an unknown name is an error, because a misspelled field would
silently get its default. Fields without a tag are required. Errors contain the field, never the
value.

Source: Kafka ``JsonConverterGenerator``, ``MessageUtil``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeVar

from .declare import Array, FieldSchema, Message, Nested, Scalar, UnknownTag
from .json_text import UNKNOWN_TAGS_JSON
from .scalars import bytes_of_base64, uuid_bytes
from .versions import FieldPath

INT_RANGES: Final = {
    Scalar.INT8: range(-(2**7), 2**7),
    Scalar.INT16: range(-(2**15), 2**15),
    Scalar.UINT16: range(2**16),
    Scalar.INT32: range(-(2**31), 2**31),
    Scalar.INT64: range(-(2**63), 2**63),
}
_M = TypeVar("_M", bound=Message)
_NOT_NUMBERS: Final = ("NaN", "Infinity", "-Infinity")


def record_from_json(kind: type[_M], version: int, data: object) -> _M:
    """Build a record from the ``data`` of its JSON.

    Raises:
        InvalidRecordError: a name is unknown or missing, or a value is not of its field's type.
    """
    record: _M = _struct(kind, data, FieldPath(kind.schema.name, version))
    return record


def _struct(cls: type[Any], data: object, path: FieldPath) -> Any:
    if not isinstance(data, Mapping):
        raise path.invalid("it is not an object")
    present = {field.json_name: field for field in cls.fields_schema if field.is_in(path.version)}
    values: dict[str, Any] = {}
    for name, value in data.items():
        if name in present:
            field = present[name]
            values[field.attribute] = _value(field, value, path.within(name))
        elif name == UNKNOWN_TAGS_JSON:
            values["unknown_tags"] = _unknown_tags(value, path.within(name))
        else:
            raise path.within(str(name)).invalid("this version has no such field")
    for name, field in present.items():
        if field.tag is None and field.attribute not in values:
            raise path.within(name).invalid("the field is required and missing")
    return cls(**values)


def _unknown_tags(value: object, path: FieldPath) -> tuple[UnknownTag, ...]:
    if not isinstance(value, list):
        raise path.invalid("it is not an array")
    tags = []
    for entry in value:
        if not isinstance(entry, Mapping) or entry.keys() != {"tag", "data"}:
            raise path.invalid("an element is not an object of tag and data")
        tag = _scalar(Scalar.INT32, entry["tag"], path.within("tag"))
        tags.append(UnknownTag(tag, _scalar(Scalar.BYTES, entry["data"], path.within("data"))))
    return tuple(tags)


def _value(field: FieldSchema, value: object, path: FieldPath) -> Any:
    if value is None:
        if field.nullable:
            return None
        raise path.invalid("it is null and not nullable")
    if isinstance(field.kind, Scalar):
        return _scalar(field.kind, value, path)
    if isinstance(field.kind, Nested):
        return _struct(field.kind.struct, value, path)
    if not isinstance(value, list):
        raise path.invalid("it is not an array")
    return tuple([_element(field.kind, entry, path) for entry in value])


def _element(kind: Array, value: object, path: FieldPath) -> Any:
    if isinstance(kind.element, Scalar):
        return _scalar(kind.element, value, path)
    return _struct(kind.element, value, path)


def _scalar(kind: Scalar, value: object, path: FieldPath) -> Any:
    if kind in INT_RANGES:
        if type(value) is int and value in INT_RANGES[kind]:
            return value
    elif kind is Scalar.BOOL:
        if isinstance(value, bool):
            return value
    elif kind is Scalar.FLOAT64:
        if type(value) is float or (type(value) is int and abs(value) < 2**63):
            return float(value)
        if value in _NOT_NUMBERS:
            return float(str(value))
    elif isinstance(value, str):
        if kind is Scalar.STRING:
            return value
        if kind is Scalar.UUID and uuid_bytes(value) is not None:
            return value
        if kind is Scalar.BYTES and (data := bytes_of_base64(value)) is not None:
            return data
    raise path.invalid(f"it is not a value of type {kind.value}")
