"""Declaration of metadata record types as frozen dataclasses with wire types.

Reader, writer and JSON are compiled from the declaration. Names are derived: ``broker_id`` is
``brokerId`` in JSON and ``BrokerId`` in Kafka's message files; ``TopicRecord`` is ``TOPIC_RECORD``
in the output of kafka-dump-log.

A field exists from version ``since`` on; tag and nullability are the same in all its versions, as
in every metadata record of Kafka.

Source: the message files of Kafka's ``metadata`` module; KIP-482 (flexible versions, tags).
"""

from __future__ import annotations

import dataclasses
import enum
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar, dataclass_transform

_S = TypeVar("_S", bound="Struct")
_R = TypeVar("_R", bound="MetadataRecord")


class Scalar(enum.Enum):
    """Kafka's simple types: in Python bool, int, float, str (uuid: base64) or bytes."""

    BOOL = "bool"
    INT8 = "int8"
    INT16 = "int16"
    UINT16 = "uint16"
    INT32 = "int32"
    INT64 = "int64"
    FLOAT64 = "float64"
    UUID = "uuid"
    STRING = "string"
    BYTES = "bytes"


@dataclass(frozen=True, slots=True)
class Array:
    """Array of simple values or of structs; a tuple in Python. Arrays do not nest."""

    element: Scalar | type[Struct]


BOOL = Scalar.BOOL
INT8 = Scalar.INT8
INT16 = Scalar.INT16
UINT16 = Scalar.UINT16
INT32 = Scalar.INT32
INT64 = Scalar.INT64
FLOAT64 = Scalar.FLOAT64
UUID = Scalar.UUID
STRING = Scalar.STRING
BYTES = Scalar.BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldSchema:
    """Declared field. ``attribute`` is its Python name, ``json_name`` Kafka's.

    ``shown`` is False if the value may be a secret.
    """

    attribute: str
    json_name: str
    kind: Scalar | Array
    default: Any
    since: int
    tag: int | None
    nullable: bool
    shown: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordSchema:
    """Schema of a record type. Both versions are inclusive; all versions are flexible."""

    api_key: int
    name: str
    lowest_version: int
    latest_version: int
    fields: tuple[FieldSchema, ...]

    @property
    def json_type(self) -> str:
        """``NO_OP_RECORD`` for ``NoOpRecord`` (Kafka: ``MetadataRecordType``)."""
        return re.sub(r"(?<!^)(?=[A-Z])", "_", self.name).upper()


@dataclass(frozen=True, slots=True)
class UnknownTag:
    """Tagged field that the schema lacks, as raw bytes (Kafka: ``RawTaggedField``)."""

    tag: int
    data: bytes = dataclasses.field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Struct:
    """Record, or struct in an array of one. Unknown tagged fields are kept and written again."""

    unknown_tags: tuple[UnknownTag, ...] = ()
    fields_schema: ClassVar[tuple[FieldSchema, ...]] = ()
    struct_arrays: ClassVar[tuple[str, ...]] = ()
    """Attributes that are arrays of structs, which have tagged fields of their own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataRecord(Struct):
    """Record of a known type."""

    schema: ClassVar[RecordSchema]


def field(
    kind: Scalar | Array,
    *,
    default: Any,
    since: int = 0,
    tag: int | None = None,
    nullable: bool = False,
    shown: bool = True,
) -> Any:
    """Declare a field: wire type, first version, tag, and Kafka's default.

    ``shown=False`` keeps the value out of ``repr``, since it may be a secret.
    """
    declared = {"kind": kind, "since": since, "tag": tag, "nullable": nullable}
    return dataclasses.field(default=default, repr=shown, metadata=declared)


def _json_name(attribute: str) -> str:
    """Return Kafka's JSON name of an attribute: ``end_points`` -> ``endPoints``."""
    head, *tail = attribute.split("_")
    return head + "".join(word.capitalize() for word in tail)


def _schemas(cls: type) -> tuple[FieldSchema, ...]:
    return tuple(
        FieldSchema(
            attribute=entry.name,
            json_name=_json_name(entry.name),
            default=entry.default,
            shown=entry.repr,
            **entry.metadata,
        )
        for entry in dataclasses.fields(cls)
        if entry.metadata
    )


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
def struct(cls: type[_S]) -> type[_S]:
    """Declare a struct: the element type of an array."""
    declared = dataclass(frozen=True, slots=True, kw_only=True)(cls)
    declared.fields_schema = _schemas(declared)
    declared.struct_arrays = tuple(
        entry.attribute
        for entry in declared.fields_schema
        if isinstance(entry.kind, Array) and not isinstance(entry.kind.element, Scalar)
    )
    return declared


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
def record(*, api_key: int, latest_version: int = 0) -> Callable[[type[_R]], type[_R]]:
    """Declare a record type; its lowest version is 0."""

    def declare(cls: type[_R]) -> type[_R]:
        declared = struct(cls)
        declared.schema = RecordSchema(
            api_key=api_key,
            name=declared.__name__,
            lowest_version=0,
            latest_version=latest_version,
            fields=declared.fields_schema,
        )
        return declared

    return declare
