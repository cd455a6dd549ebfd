"""Declaration of the records of Kafka's internal logs as frozen dataclasses with wire types.

Reader, writer and JSON are compiled from the declaration. Names are derived: ``broker_id`` is
``brokerId`` in JSON and ``BrokerId`` in Kafka's message files; ``TopicRecord`` is ``TOPIC_RECORD``
in the output of kafka-dump-log.

A field exists in the versions from ``since`` to ``until``; tag and nullability are the same in all
of them, as in every internal record of Kafka. Metadata records are flexible in all versions; keys
of the coordinators' records are flexible in none.

Source: the message files of Kafka's modules ``metadata``, ``group-coordinator``, ``storage``,
``transaction-coordinator`` and ``share-coordinator``; KIP-482 (flexible versions, tags).
"""

from __future__ import annotations

import dataclasses
import enum
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Final, TypeVar, dataclass_transform

_S = TypeVar("_S", bound="Struct")
_R = TypeVar("_R", bound="Message")


class Scalar(enum.Enum):
    """Kafka's simple types, in Python bool, int, float, str (uuid: base64) or bytes."""

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


VERSION_MAX: Final = 2**15 - 1
"""Versions are int16."""

NEVER: Final = VERSION_MAX + 1
"""Version that no record has: the first flexible one of a record without flexible versions."""


@dataclass(frozen=True, slots=True)
class Array:
    """Array of simple values or of structs; a tuple in Python. Arrays do not nest."""

    element: Scalar | type[Struct]


@dataclass(frozen=True, slots=True)
class Nested:
    """One struct; None if it is nullable and null."""

    struct: type[Struct]


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

    ``shown`` is False if the value may be a secret. ``of_client``: the value is data that a client
    sends about itself, which only full redaction hides.
    """

    attribute: str
    json_name: str
    kind: Scalar | Array | Nested
    default: Any
    since: int
    until: int
    tag: int | None
    nullable: bool
    shown: bool
    of_client: bool

    @property
    def flat_kind(self) -> Scalar | Array:
        """The type of a metadata record's field, which has no nested struct."""
        assert not isinstance(self.kind, Nested), f"{self.attribute} is a struct"
        return self.kind

    def is_in(self, version: int) -> bool:
        """Return whether a version of the record has the field."""
        return self.since <= version <= self.until


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordSchema:
    """Schema of a record type. All versions are inclusive.

    ``flexible_since`` is the first version with compact lengths and tagged fields.
    """

    api_key: int
    name: str
    lowest_version: int
    latest_version: int
    flexible_since: int
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
    """Record, or struct inside one. Unknown tagged fields are kept and written again."""

    unknown_tags: tuple[UnknownTag, ...] = ()
    fields_schema: ClassVar[tuple[FieldSchema, ...]] = ()
    struct_fields: ClassVar[tuple[str, ...]] = ()
    """Attributes that are structs or arrays of structs, which have their own tagged fields."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Message(Struct):
    """Struct that is encoded on its own and has versions: a record, its key or its value."""

    schema: ClassVar[RecordSchema]


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataRecord(Message):
    """Record of a known type whose value has a frame: api key and version."""


def field(
    kind: Scalar | Array | Nested,
    *,
    default: Any,
    since: int = 0,
    until: int = VERSION_MAX,
    tag: int | None = None,
    nullable: bool = False,
    shown: bool = True,
    of_client: bool = False,
) -> Any:
    """Declare a field: wire type, first and last version, tag, and Kafka's default.

    ``shown=False`` keeps the value out of ``repr``, because it may be a secret.
    """
    declared = {"kind": kind, "since": since, "until": until, "tag": tag, "nullable": nullable}
    declared["of_client"] = of_client
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
    """Declare a struct: the type of a field, or of an array's elements."""
    declared = dataclass(frozen=True, slots=True, kw_only=True)(cls)
    declared.fields_schema = _schemas(declared)
    declared.struct_fields = tuple(
        entry.attribute
        for entry in declared.fields_schema
        if isinstance(entry.kind, Nested)
        or (isinstance(entry.kind, Array) and not isinstance(entry.kind.element, Scalar))
    )
    return declared


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
def record(
    *, api_key: int, latest_version: int = 0, flexible_since: int = 0
) -> Callable[[type[_R]], type[_R]]:
    """Declare a record type, or its key or value; its lowest version is 0."""

    def declare(cls: type[_R]) -> type[_R]:
        declared = struct(cls)
        declared.schema = RecordSchema(
            api_key=api_key,
            name=declared.__name__,
            lowest_version=0,
            latest_version=latest_version,
            flexible_since=flexible_since,
            fields=declared.fields_schema,
        )
        return declared

    return declare


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
def key(*, api_key: int) -> Callable[[type[_R]], type[_R]]:
    """Declare the key of a coordinator's record. It has one version, without tagged fields."""
    return record(api_key=api_key, flexible_since=NEVER)
