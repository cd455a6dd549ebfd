"""Metadata records of one type as Arrow columns, one for each declared field.

Types are derived from the declaration (``arrow_type``). A field is as ``serde`` decodes it and
``redaction`` shows it: a field that the record's version lacks, or a tagged field that is absent,
has its default. A uuid is Kafka's text, as in JSON and in the tables, so that ids are equal in all
three. Unknown tagged fields have no column.

The compiled core decodes plain records. Records that it returns undecoded, and all records without
the core, are decoded in Python, equal values once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from raftlog import compiled

from .declare import Array, MetadataRecord, Scalar, Struct
from .native_program import program, value_buffers
from .redaction import Redactor
from .schema import RECORD_TYPES
from .serde import NO_OP_VALUE, decode, peek

Bools = npt.NDArray[np.bool_]
Int32s = npt.NDArray[np.int32]

FRAME_BYTES: Final = 3
"""Size of a frame (frame version, API key, version) whose varints have one byte each."""

_FRAME_VERSION: Final = 1
_ONE_BYTE_MAX: Final = 0x7F
_NONE: Final = -1
_NUMBER_BYTES_MAX: Final = 8

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


@cache
def arrow_type(kind: Scalar | Array) -> pa.DataType:
    """Return the Arrow type of a declared field."""
    if isinstance(kind, Scalar):
        return _ARROW_TYPES[kind]
    element = kind.element
    inner = _ARROW_TYPES[element] if isinstance(element, Scalar) else struct_type(element)
    return pa.list_(pa.field("element", inner))


_STRUCT_TYPES: Final[dict[type[Struct], pa.StructType]] = {}


def struct_type(cls: type[Struct]) -> pa.StructType:
    """Return the Arrow type of a record type or struct: the fields of its latest version.

    All fields are nullable, as in all columns of the Spark source.
    """
    found = _STRUCT_TYPES.get(cls)
    if found is None:
        kinds = [(field.attribute, arrow_type(field.flat_kind)) for field in cls.fields_schema]
        found = _STRUCT_TYPES[cls] = pa.struct([pa.field(name, kind) for name, kind in kinds])
    return found


TYPED_COLUMNS: Final[Mapping[str, type[MetadataRecord]]] = {
    kind.schema.json_type.lower(): kind for kind in RECORD_TYPES if kind.fields_schema
}
"""Name of the column of a record type, such as ``topic_record``.

A type without fields has none: neither Parquet nor Delta stores an empty struct.
"""


@dataclass(frozen=True, slots=True, eq=False)
class TypedColumns:
    """Records of one type in a column of values, in order of their rows.

    ``fields`` has a row for each record, and no null.
    """

    rows: Int32s
    versions: Int32s
    fields: pa.StructArray


def typed_columns(
    values: pa.BinaryArray,
    kinds: Sequence[type[MetadataRecord]],
    redactor: Redactor,
    known_frames: tuple[Int32s, Int32s] | None = None,
) -> dict[type[MetadataRecord], TypedColumns]:
    """Return the records of each of ``kinds`` in a column of values, which may have nulls.

    Records of other types are not decoded. A record of an unknown version has no columns.

    Raises:
        MetadataParseError: a value has no valid frame, or a record of ``kinds`` is damaged.
    """
    api_keys, versions = known_frames or frames(values)
    rows = {kind: _rows_of(kind, api_keys, versions) for kind in kinds}
    by_core = _decoded_by_core(values, rows, redactor) if compiled.is_native else {}
    found = {}
    for kind, own in rows.items():
        fields = by_core.get(kind)
        if fields is None:
            fields = _decoded(values.take(pa.array(own)), kind, redactor)
        found[kind] = TypedColumns(own, versions[own], fields)
    return found


def spread_columns(
    values: pa.BinaryArray,
    kinds: Sequence[type[MetadataRecord]],
    redactor: Redactor,
    known_frames: tuple[Int32s, Int32s] | None = None,
) -> dict[type[MetadataRecord], pa.StructArray]:
    """Return a row for each of ``values`` in a column for each of ``kinds``, null for other types.

    The fields are those of ``typed_columns``, which raises the same errors.
    """
    api_keys, versions = known_frames or frames(values)
    rows = {kind: _rows_of(kind, api_keys, versions) for kind in kinds}
    by_core = _decoded_by_core(values, rows, redactor, spread=True) if compiled.is_native else {}
    found = {}
    for kind, own in rows.items():
        fields = by_core.get(kind)
        if fields is None:
            fields = _decoded(values.take(pa.array(own)), kind, redactor)
            fields = _spread(kind, fields, own, len(values))
        found[kind] = fields
    return found


def _spread(
    kind: type[MetadataRecord], fields: pa.StructArray, rows: Int32s, row_count: int
) -> pa.StructArray:
    """Return a column of ``row_count`` rows that is null except in ``rows``."""
    if not len(rows):
        return _nulls(_layout(kind), row_count)
    ordinals = np.zeros(row_count, np.int32)
    ordinals[rows] = np.arange(len(rows), dtype=np.int32)
    is_other = np.ones(row_count, np.bool_)
    is_other[rows] = False
    return fields.take(pa.array(ordinals, mask=is_other))


@dataclass(frozen=True, slots=True, eq=False)
class _Layout:
    """Arrow type of a column, and the layouts of its fields, or of the elements of its arrays.

    They are kept because pyarrow creates an object for each requested type, and hashes a type by
    its text.
    """

    kind: pa.DataType
    inner: tuple[_Layout, ...] = ()
    is_array: bool = False


_LAYOUTS: Final[dict[Scalar | Array | type[Struct], _Layout]] = {}


def _layout(kind: Scalar | Array | type[Struct]) -> _Layout:
    found = _LAYOUTS.get(kind)
    if found is None:
        found = _LAYOUTS[kind] = _new_layout(kind)
    return found


def _new_layout(kind: Scalar | Array | type[Struct]) -> _Layout:
    if isinstance(kind, Scalar):
        return _Layout(_ARROW_TYPES[kind])
    if isinstance(kind, Array):
        return _Layout(arrow_type(kind), (_layout(kind.element),), is_array=True)
    fields = tuple(_layout(field.flat_kind) for field in kind.fields_schema)
    return _Layout(struct_type(kind), fields)


def _nulls(layout: _Layout, count: int) -> pa.Array:
    """Return a column of nulls. All such columns share their memory, as most fields are null."""
    return _nulls_up_to(layout, 1 << max(count - 1, 0).bit_length()).slice(0, count)


@cache
def _nulls_up_to(layout: _Layout, count: int) -> pa.Array:
    element_count = 0 if layout.is_array else count
    children = [_nulls_up_to(inner, element_count) for inner in layout.inner]
    buffers = [_zeros(count)] * layout.kind.num_buffers
    return pa.Array.from_buffers(layout.kind, count, buffers, count, children=children)


@cache
def _zeros(count: int) -> pa.Buffer:
    """Return zeros for the bitmap, the offsets or the numbers of a column of ``count`` rows."""
    return pa.py_buffer(bytes(_NUMBER_BYTES_MAX * (count + 1)))


def _rows_of(kind: type[MetadataRecord], api_keys: Int32s, versions: Int32s) -> Int32s:
    schema = kind.schema
    is_known = (api_keys == schema.api_key) & (versions <= schema.latest_version)
    return np.flatnonzero(is_known).astype(np.int32)


def frames(values: pa.BinaryArray) -> tuple[Int32s, Int32s]:
    """Return API keys and versions of metadata records, both -1 for null.

    Only frames with varints of several bytes are parsed one by one.

    Raises:
        MetadataParseError: a value has no valid frame.
    """
    found = compiled.core.frames(*value_buffers(values)) if compiled.is_native else None
    if found is None:
        api_keys, versions = _plain_frames(values)
    else:
        api_keys, versions = (np.frombuffer(memoryview(one), np.int32) for one in found)
    is_other = api_keys == _NONE
    if not is_other.any():
        return api_keys, versions
    api_keys, versions = api_keys.copy(), versions.copy()
    is_other &= np.asarray(values.is_valid().to_numpy(zero_copy_only=False), dtype=np.bool_)
    for row in np.flatnonzero(is_other).tolist():
        api_keys[row], versions[row] = peek(values[row].as_py())
    return api_keys, versions


def no_ops(values: pa.BinaryArray, api_keys: Int32s) -> Bools:
    """Return which values are ``NO_OP_VALUE``; ``api_keys`` are those of their frames."""
    found: Bools = api_keys == NO_OP_VALUE[1]
    chosen = values.filter(pa.array(found)).dictionary_encode()
    is_no_op = np.array([one == NO_OP_VALUE for one in chosen.dictionary.to_pylist()], np.bool_)
    found[found] = is_no_op[chosen.indices.to_numpy()]
    return found


def _plain_frames(values: pa.BinaryArray) -> tuple[Int32s, Int32s]:
    """Return API keys and versions of frames whose varints have one byte, both -1 for others."""
    api_keys = np.full(len(values), _NONE, dtype=np.int32)
    versions = np.full(len(values), _NONE, dtype=np.int32)
    if not len(values):
        return api_keys, versions
    _, offsets_buffer, data_buffer = values.buffers()
    bounds = np.frombuffer(offsets_buffer, dtype=np.int32)[values.offset :][: len(values) + 1]
    data = np.frombuffer(data_buffer or b"", dtype=np.uint8)
    plain = np.flatnonzero(np.diff(bounds) >= FRAME_BYTES)
    begins = bounds[plain]
    keys, their_versions = data[begins + 1], data[begins + 2]
    short = (
        (data[begins] == _FRAME_VERSION)
        & (keys <= _ONE_BYTE_MAX)
        & (their_versions <= _ONE_BYTE_MAX)
    )
    rows = plain[short]
    api_keys[rows], versions[rows] = keys[short], their_versions[short]
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
        _column(field.flat_kind, [getattr(one, field.attribute) for one in structs])
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


# --- By the compiled core -------------------------------------------------------------------------

if TYPE_CHECKING:
    from raftlog._native import Block

    _Parts = Iterator[tuple[Block | None, Block | None, Block] | None]
    """Validity, ends and data of each column, each before its inner ones.

    None, without inner ones, if all rows of a column are null.
    """


def _decoded_by_core(
    values: pa.BinaryArray,
    rows: Mapping[type[MetadataRecord], Int32s],
    redactor: Redactor,
    *,
    spread: bool = False,
) -> dict[type[MetadataRecord], pa.StructArray]:
    """Return the fields of the records in each type's ``rows``; ``spread``: of all values.

    If the core returns all records of a type undecoded, the type is not in the result.
    """
    kinds = [kind for kind, own in rows.items() if len(own)]
    if not kinds:
        return {}
    wanted = [
        (rows[kind].view(np.uint8).data, kind.schema.api_key, kind.schema.latest_version)
        for kind in kinds
    ]
    found = program().columns(*value_buffers(values), wanted, redactor.reveal, spread)
    decoded = {}
    for kind, columns in zip(kinds, found or (), strict=bool(found)):
        if columns is not None:
            own = rows[kind]
            parts, valid, ordinals = columns
            given_back = np.frombuffer(memoryview(ordinals), np.int32)
            count = len(values) if spread else len(own) - len(given_back)
            fields = _structs_of(_layout(kind), count, iter(parts), valid)
            if len(given_back):
                in_python = _decoded(values.take(pa.array(own[given_back])), kind, redactor)
                if spread:
                    fields = _replaced(fields, in_python, own[given_back])
                else:
                    fields = _merged(fields, in_python, given_back)
            decoded[kind] = fields
    return decoded


def _merged(plain: pa.StructArray, others: pa.StructArray, rows: Int32s) -> pa.StructArray:
    """Return both in one array, in which ``others`` are at ``rows``."""
    is_plain = np.ones(len(plain) + len(others), np.bool_)
    is_plain[rows] = False
    ordinals = np.cumsum(is_plain) - 1
    ordinals[rows] = np.arange(len(plain), len(is_plain))
    return pa.concat_arrays([plain, others]).take(pa.array(ordinals))


def _replaced(fields: pa.StructArray, others: pa.StructArray, rows: Int32s) -> pa.StructArray:
    """Return ``fields`` with ``others`` instead of those at ``rows``."""
    ordinals = np.arange(len(fields))
    ordinals[rows] = np.arange(len(fields), len(fields) + len(others))
    return pa.concat_arrays([fields, others]).take(pa.array(ordinals))


def _structs_of(
    layout: _Layout, count: int, parts: _Parts, valid: Block | None = None
) -> pa.StructArray:
    children = [_column_of(field, count, parts) for field in layout.inner]
    return pa.Array.from_buffers(layout.kind, count, [_buffer(valid)], children=children)


def _column_of(layout: _Layout, count: int, parts: _Parts) -> pa.Array:
    part = next(parts)
    if part is None:
        return _nulls(layout, count)
    valid, ends, data = part
    buffers = [_buffer(valid), pa.py_buffer(data)]
    children = []
    if layout.is_array:
        assert ends is not None
        buffers[1] = pa.py_buffer(ends)
        element_count = memoryview(ends).cast("i")[-1]
        (element,) = layout.inner
        build = _structs_of if element.inner and not element.is_array else _column_of
        children.append(build(element, element_count, parts))
    elif ends is not None:
        buffers.insert(1, pa.py_buffer(ends))
    return pa.Array.from_buffers(layout.kind, count, buffers, children=children)


def _buffer(block: Block | None) -> pa.Buffer | None:
    return None if block is None else pa.py_buffer(block)
