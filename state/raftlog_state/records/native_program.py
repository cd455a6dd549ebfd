"""Program of the compiled core: the declarations of metadata records as a table.

The table has a row for each field of each version of a record type, so a new field or type changes
nothing in the core.
"""

from __future__ import annotations

from functools import cache
from typing import Final

import pyarrow as pa

from raftlog import compiled

from .declare import FieldSchema, MetadataRecord, Nested, Scalar, Struct
from .redaction import CONFIG_GUARD, public_configs
from .schema import RECORD_TYPES

_KINDS: Final = {
    Scalar.BOOL: 0,
    Scalar.INT8: 1,
    Scalar.INT16: 2,
    Scalar.UINT16: 3,
    Scalar.INT32: 4,
    Scalar.INT64: 5,
    Scalar.FLOAT64: 6,
    Scalar.UUID: 7,
    Scalar.STRING: 8,
}
_ARRAY: Final = 16
_STRUCTS: Final = 32
_NONE: Final = -1
_FIELD_NUMBERS: Final = 8
"""Numbers of a field in the table."""

_WHOLE_NUMBERS: Final = (
    Scalar.BOOL,
    Scalar.INT8,
    Scalar.INT16,
    Scalar.UINT16,
    Scalar.INT32,
    Scalar.INT64,
)


@cache
def program() -> compiled.core.Program:
    """Return the program, compiled on the first call."""
    tables = _Tables()
    for kind in RECORD_TYPES:
        for version in range(kind.schema.lowest_version, kind.schema.latest_version + 1):
            tables.add_record(kind, version)
    return compiled.core.Program(
        tables.fields, tables.structs, tables.records, tables.texts, public_configs()
    )


def value_buffers(values: pa.BinaryArray) -> tuple[memoryview, memoryview]:
    """Return the offsets of a column of values, and the bytes from the first one on."""
    _, offsets, data = values.buffers()
    bounds = memoryview(offsets).cast("B")[
        4 * values.offset : 4 * (values.offset + len(values) + 1)
    ]
    first, last = bounds[:4].cast("i")[0], bounds[-4:].cast("i")[0]
    return bounds, memoryview(data or b"").cast("B")[first:last]


class _UnsupportedKindError(Exception):
    """Record type with a field that the core does not decode."""


class _Tables:
    """Tables of the program while they are built."""

    def __init__(self) -> None:
        self.fields: list[int] = []
        self.structs: list[int] = []
        self.records: list[int] = []
        self.texts: list[bytes] = []

    def add_record(self, kind: type[MetadataRecord], version: int) -> None:
        """Add one version of a record type, unless the core does not decode it."""
        try:
            body = self.add_struct(kind, version)
        except _UnsupportedKindError:
            return
        schema = kind.schema
        head = f'{{"type":"{schema.json_type}","version":{version},"data":'
        present = [field.attribute for field in kind.fields_schema if field.since <= version]
        guard = [_NONE, _NONE]
        if kind is CONFIG_GUARD.record:
            guard = [present.index(CONFIG_GUARD.resource_type), present.index(CONFIG_GUARD.name)]
        self.records += [schema.api_key, version, self.add_text(head), body, *guard]

    def add_struct(self, cls: type[Struct], version: int) -> int:
        """Add the fields of a struct in one version; return its index."""
        rows = [
            self.field_row(field, version, place)
            for place, field in enumerate(cls.fields_schema)
            if field.since <= version
        ]
        self.structs += [len(self.fields) // _FIELD_NUMBERS, len(rows)]
        for row in rows:
            self.fields += row
        return len(self.structs) // 2 - 1

    def field_row(self, field: FieldSchema, version: int, place: int) -> list[int]:
        kind, element = field.kind, _NONE
        if isinstance(kind, Nested):
            raise _UnsupportedKindError
        if isinstance(kind, Scalar):
            number = _number_of(kind)
        elif isinstance(kind.element, Scalar):
            number = _ARRAY + _number_of(kind.element)
        else:
            number, element = _STRUCTS, self.add_struct(kind.element, version)
        default = _default_of(field)
        label = self.add_text(f'"{field.json_name}":')
        tag = _NONE if field.tag is None else field.tag
        return [label, number, element, tag, field.nullable, not field.shown, default, place]

    def add_text(self, text: str) -> int:
        self.texts.append(text.encode())
        return len(self.texts) - 1


def _number_of(kind: Scalar) -> int:
    number = _KINDS.get(kind)
    if number is None:
        raise _UnsupportedKindError
    return number


def _default_of(field: FieldSchema) -> int:
    """Return a number, or -1 for null and 0 for an empty string or array."""
    if field.kind in _WHOLE_NUMBERS:
        return int(field.default)
    can_be_absent = field.tag is not None or field.since > 0
    if can_be_absent and (field.default or field.kind in (Scalar.FLOAT64, Scalar.UUID)):
        raise _UnsupportedKindError
    return _NONE if field.default is None else 0
