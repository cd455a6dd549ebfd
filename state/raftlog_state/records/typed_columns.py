"""Metadata records of one type as Arrow columns, one for each declared field.

Types are derived from the declaration (``arrow_type``). A field is as ``serde`` decodes and
``redaction`` shows it: a field that the record's version lacks, and a tagged field that is absent,
has its default. A uuid is Kafka's text, as in JSON and in the tables, so that ids of all three are
equal. Unknown tagged fields have no column.

Equal values are decoded once: a log repeats its records.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from .declare import Array, MetadataRecord, Scalar, Struct
from .redaction import Redactor
from .serde import decode, peek

Int32s = npt.NDArray[np.int32]

FRAME_BYTES: Final = 3
"""Size of a frame (frame version, API key, version) whose varints have one byte each."""

_FRAME_VERSION: Final = 1
_ONE_BYTE_MAX: Final = 0x7F
_NONE: Final = -1

_ARROW_TYPES: Final = {
    Scalar.BOOL: pa.bool_(),
    Scalar.INT8: pa.int8(),
    Scalar.INT16: pa.int16(),
    Scalar.UINT16: pa.int32(),  # Spark has no unsigned numbers
    Scalar.INT32: pa.int32(),
    Scalar.INT64: pa.int64(),
    Scalar.FLOAT64: pa.float64(),
    Scalar.UUID: pa.string(),
    Scalar.STRING: pa.string(),
    Scalar.BYTES: pa.binary(),
}


def arrow_type(kind: Scalar | Array) -> pa.DataType:
    """Return the Arrow type of a declared field."""
    if isinstance(kind, Scalar):
        return _ARROW_TYPES[kind]
    element = kind.element
    inner = _ARROW_TYPES[element] if isinstance(element, Scalar) else struct_type(element)
    return pa.list_(pa.field("element", inner))


def struct_type(cls: type[Struct]) -> pa.StructType:
    """Return the Arrow type of a record type or struct: the fields of its latest version.

    All fields are nullable, as those of all columns of the Spark source.
    """
    fields = [pa.field(field.attribute, arrow_type(field.kind)) for field in cls.fields_schema]
    return pa.struct(fields)


@dataclass(frozen=True, slots=True, eq=False)
class TypedColumns:
    """Records of one type in a column of values, in order of their rows.

    ``fields`` has a row for each record, and no null.
    """

    rows: Int32s
    versions: Int32s
    fields: pa.StructArray

    def column(self, row_count: int) -> pa.StructArray:
        """Return a column of ``row_count`` rows: null where a row is of another type."""
        if not len(self.rows):
            return pa.nulls(row_count, self.fields.type)
        if len(self.rows) == row_count:
            return self.fields
        ordinals = np.zeros(row_count, np.int32)
        ordinals[self.rows] = np.arange(len(self.rows), dtype=np.int32)
        is_other = np.ones(row_count, np.bool_)
        is_other[self.rows] = False
        return self.fields.take(pa.array(ordinals, mask=is_other))


def typed_columns(
    values: pa.BinaryArray, kinds: Sequence[type[MetadataRecord]], redactor: Redactor
) -> dict[type[MetadataRecord], TypedColumns]:
    """Return the records of each of ``kinds`` in a column of values, which may have nulls.

    Records of other types are not decoded. A record of an unknown version has no columns.

    Raises:
        MetadataParseError: a value has no valid frame, or a record of ``kinds`` is damaged.
    """
    api_keys, versions = frames(values)
    found = {}
    for kind in kinds:
        schema = kind.schema
        is_kind = (api_keys == schema.api_key) & (versions <= schema.latest_version)
        rows: Int32s = np.flatnonzero(is_kind).astype(np.int32)
        fields = _decoded(values.take(pa.array(rows)), kind, redactor)
        found[kind] = TypedColumns(rows, versions[rows], fields)
    return found


def frames(values: pa.BinaryArray) -> tuple[Int32s, Int32s]:
    """Return API keys and versions of metadata records, both -1 for null.

    Read with numpy; only frames with varints of several bytes are parsed one by one.

    Raises:
        MetadataParseError: a value has no valid frame.
    """
    api_keys = np.full(len(values), _NONE, dtype=np.int32)
    versions = np.full(len(values), _NONE, dtype=np.int32)
    if not len(values):
        return api_keys, versions
    _, offsets_buffer, data_buffer = values.buffers()
    bounds = np.frombuffer(offsets_buffer, dtype=np.int32)[values.offset :][: len(values) + 1]
    data = np.frombuffer(data_buffer or b"", dtype=np.uint8)
    is_there = np.asarray(values.is_valid().to_numpy(zero_copy_only=False), dtype=np.bool_)
    plain = np.flatnonzero(is_there & (np.diff(bounds) >= FRAME_BYTES))
    begins = bounds[plain]
    keys, their_versions = data[begins + 1], data[begins + 2]
    short = (
        (data[begins] == _FRAME_VERSION)
        & (keys <= _ONE_BYTE_MAX)
        & (their_versions <= _ONE_BYTE_MAX)
    )
    rows = plain[short]
    api_keys[rows], versions[rows] = keys[short], their_versions[short]
    for row in np.flatnonzero(is_there & (api_keys == _NONE)).tolist():
        api_keys[row], versions[row] = peek(values[row].as_py())
    return api_keys, versions


# --- In Python ------------------------------------------------------------------------------------


def _decoded(
    values: pa.BinaryArray, kind: type[MetadataRecord], redactor: Redactor
) -> pa.StructArray:
    """Return the fields of ``values``, which are records of ``kind``."""
    encoded = values.dictionary_encode()
    distinct = encoded.dictionary.to_pylist()
    fields = _structs(kind, [redactor.redact(decode(value)).record for value in distinct])
    return fields if len(distinct) == len(values) else fields.take(encoded.indices)


def _structs(cls: type[Struct], structs: Sequence[Any]) -> pa.StructArray:
    children = [
        _column(field.kind, [getattr(one, field.attribute) for one in structs])
        for field in cls.fields_schema
    ]
    kind = struct_type(cls)
    return pa.Array.from_buffers(kind, len(structs), [None], children=children)


def _column(kind: Scalar | Array, values: list[Any]) -> pa.Array:
    if isinstance(kind, Scalar) or isinstance(kind.element, Scalar):
        return pa.array(values, arrow_type(kind))
    elements = _structs(kind.element, [one for value in values for one in value or ()])
    counts = [len(value or ()) for value in values]
    offsets = np.concatenate(([0], np.cumsum(counts))).astype(np.int32)
    is_null = np.array([*(value is None for value in values), False])
    bounds = pa.array(offsets, mask=is_null)
    return pa.ListArray.from_arrays(bounds, elements, type=arrow_type(kind))
