"""JSON of metadata records by the compiled core: its program, compiled from the declarations.

The program is a table with a row for each field of each version of a record type. The core writes
records that are plain: of a known type and version, valid, of printable characters of ASCII or
Latin, and without a secret. It returns the rows of all others, which ``serde`` and ``redaction``
convert.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from raftlog import compiled

from .declare import Array, FieldSchema, MetadataRecord, Scalar, Struct
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
_WHOLE_NUMBERS: Final = (
    Scalar.BOOL,
    Scalar.INT8,
    Scalar.INT16,
    Scalar.UINT16,
    Scalar.INT32,
    Scalar.INT64,
)
TYPES_MAX: Final = 128
"""Api keys in a table of record types to write."""


@dataclass(frozen=True, slots=True)
class NativeJson:
    """Text of the plain records, its end after each row, and the rows to convert in Python."""

    text: memoryview
    ends: npt.NDArray[np.int32]
    rows: npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class LineStart:
    """Columns of the numbers that begin each line, without nulls."""

    offset: pa.Int64Array
    leader_epoch: pa.Int32Array
    timestamp_ms: pa.Int64Array


def write_json(
    values: pa.BinaryArray,
    given: npt.NDArray[np.bool_],
    *,
    reveal: bool,
    start: LineStart | None = None,
    takes: bytes | None = None,
    noop: bool = True,
) -> NativeJson | None:
    """Write the plain ones of ``values``; None if the core gives all of them back.

    Rows that ``given`` marks are for Python. With ``start`` each record is a whole line, as of
    ``raftlog cat``, else the text is the data of the record. ``takes`` has a byte for each api key
    that is not 0 if its records are written; ``noop`` is whether NoOp records are.
    """
    _, offsets, data = values.buffers()
    bounds = memoryview(offsets).cast("B")[
        4 * values.offset : 4 * (values.offset + len(values) + 1)
    ]
    first, last = (int(bound) for bound in np.frombuffer(bounds, np.int32)[[0, -1]])
    places = None
    if start is not None:
        columns = (start.offset, start.leader_epoch, start.timestamp_ms)
        places = tuple(map(_numbers, columns, (8, 4, 8)))
    written = _program().json(
        bounds,
        memoryview(data or b"").cast("B")[first:last],
        given.view(np.uint8).data,
        reveal,
        takes,
        noop,
        places,
    )
    if written is None:
        return None
    text, ends, rows = written
    return NativeJson(
        text=memoryview(text),
        ends=np.frombuffer(memoryview(ends), np.int32),
        rows=np.frombuffer(memoryview(rows), np.int32),
    )


def _numbers(column: pa.Array, width: int) -> memoryview:
    data = memoryview(column.buffers()[1]).cast("B")
    return data[width * column.offset : width * (column.offset + len(column))]


# --- Compilation ----------------------------------------------------------------------------------


class _UnsupportedKindError(Exception):
    """Record type with a kind of field that the core does not write."""


class _Tables:
    """Tables of the program while they are built."""

    def __init__(self) -> None:
        self.fields: list[int] = []
        self.structs: list[int] = []
        self.records: list[int] = []
        self.texts: list[bytes] = []

    def add_record(self, kind: type[MetadataRecord], version: int) -> None:
        """Add one version of a record type, unless the core does not write it."""
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
            self.field_row(field, version) for field in cls.fields_schema if field.since <= version
        ]
        self.structs += [len(self.fields) // 7, len(rows)]
        for row in rows:
            self.fields += row
        return len(self.structs) // 2 - 1

    def field_row(self, field: FieldSchema, version: int) -> list[int]:
        kind, element, default = field.kind, _NONE, 0
        if isinstance(kind, Array):
            default = _NONE if field.default is None else 0
            if isinstance(kind.element, Scalar):
                number = _ARRAY + _number_of(kind.element)
            else:
                number, element = _STRUCTS, self.add_struct(kind.element, version)
        else:
            number = _number_of(kind)
            if field.tag is not None:
                if kind not in _WHOLE_NUMBERS:
                    raise _UnsupportedKindError
                default = int(field.default)
        label = self.add_text(f'"{field.json_name}":')
        tag = _NONE if field.tag is None else field.tag
        return [label, number, element, tag, field.nullable, not field.shown, default]

    def add_text(self, text: str) -> int:
        self.texts.append(text.encode())
        return len(self.texts) - 1


def _number_of(kind: Scalar) -> int:
    number = _KINDS.get(kind)
    if number is None:
        raise _UnsupportedKindError
    return number


@cache
def _program() -> compiled.core.Program:
    tables = _Tables()
    for kind in RECORD_TYPES:
        for version in range(kind.schema.lowest_version, kind.schema.latest_version + 1):
            tables.add_record(kind, version)
    return compiled.core.Program(
        tables.fields, tables.structs, tables.records, tables.texts, public_configs()
    )
