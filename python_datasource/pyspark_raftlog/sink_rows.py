"""Rows of a DataFrame as records: columns checked on the driver, values encoded on executors."""

from __future__ import annotations

import base64
import enum
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeAlias, cast

import msgpack
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
    TimestampType,
)

from pyspark_raftlog.errors import InvalidRowError, WriteSchemaError
from pyspark_raftlog.schema import COLUMNS
from raftlog import ValueKind
from raftlog.append import HEADER_PREFIX, new_records
from raftlog.errors import InvalidAppendError
from raftlog.printable import did_you_mean
from raftlog.records.encoding import RecordToAppend
from raftlog.records.header import RECORD_BYTES_MIN
from raftlog.records.record import Header, NewRecord, new_record
from raftlog_state.errors import InvalidRecordError, MetadataParseError, UnsupportedVersionError
from raftlog_state.records import (
    RECORD_TYPES,
    AbortTransactionRecord,
    BeginTransactionRecord,
    DecodedRecord,
    EndTransactionRecord,
    FieldSchema,
    MetadataRecord,
    Redactor,
    UnknownRecord,
    decode,
    encode,
    from_json,
)
from raftlog_state.records.declare import Array, Scalar

if TYPE_CHECKING:
    from pyspark.sql.types import StructField

    from raftlog_state.image.record_versions import RecordVersions


# --- Check of a DataFrame's columns, on the driver, before any task runs --------------------------
# A record's value is in the column ``value`` or, in a log of typed records, in ``recordType``,
# ``recordVersion`` and ``record``, the names of the source's columns. Other columns are errors, not
# ignored: a column ``offset``, for instance, would have no effect. ``nullable`` is not checked,
# since Spark marks almost every column as nullable; nulls are checked row by row (``write_rows``),
# except for columns of type VOID.


class RecordForm(enum.Enum):
    """Source of a record's value: the column ``value``, or ``record`` as JSON or struct."""

    VALUE = "value"
    JSON = "json"
    STRUCT = "struct"


@dataclass(frozen=True, slots=True)
class InputColumns:
    """Columns of a DataFrame, in its order, and the form of its values."""

    names: tuple[str, ...]
    form: RecordForm


_INTEGERS: Final = (ByteType, ShortType, IntegerType, LongType)
_MSGPACK_SCALARS: Final = (
    *_INTEGERS,
    BooleanType,
    FloatType,
    DoubleType,
    StringType,
    BinaryType,
)
_KRAFT_SCALARS: Final = (*_INTEGERS, BooleanType, DoubleType, StringType, BinaryType)

_VALUE: Final = ("value",)
_TYPED: Final = ("recordType", "recordVersion", "record")
_BESIDE: Final = ("key", "headers", "timestamp")
_OFFERED: Final[Mapping[ValueKind, tuple[str, ...]]] = {
    ValueKind.BYTES: _VALUE + _BESIDE,
    ValueKind.MSGPACK: _VALUE + _TYPED + _BESIDE,
    ValueKind.KRAFT: _VALUE + _TYPED,
}


def input_columns(schema: StructType, values: ValueKind) -> InputColumns:
    """Check the columns of ``schema`` for a log with this kind of values.

    Raises ``WriteSchemaError``: a column is unknown, missing, duplicated, not supported by such a
    log, or has the wrong type.
    """
    names = tuple(field.name for field in schema.fields)
    for field in schema.fields:
        if field.name not in _OFFERED[values]:
            raise WriteSchemaError(column=field.name, reason=_why_not(field.name, values))
        if names.count(field.name) > 1:
            raise WriteSchemaError(column=field.name, reason="is duplicated")
    typed = [name for name in _TYPED if name in names]
    if "value" in names and typed:
        raise WriteSchemaError(
            column=typed[0],
            reason=f"cannot be combined with value; use value or {', '.join(_TYPED)}",
        )
    if not typed and "value" not in names:
        raise WriteSchemaError(column="value", reason=_missing_value(values))
    for name in typed and _needed(values):
        if name not in names:
            raise WriteSchemaError(
                column=name, reason=f"is missing; required with {', '.join(typed)}"
            )
    for field in schema.fields:
        _check_type(field, values)
    return InputColumns(names, _form(schema) if typed else RecordForm.VALUE)


def _needed(values: ValueKind) -> tuple[str, ...]:
    """Return the required columns of typed records.

    In a kraft log, the metadata.version determines the record versions.
    """
    return ("recordType", "record") if values is ValueKind.KRAFT else _TYPED


def _form(schema: StructType) -> RecordForm:
    record = schema["record"].dataType
    return RecordForm.STRUCT if isinstance(record, StructType) else RecordForm.JSON


def _missing_value(values: ValueKind) -> str:
    if values is ValueKind.BYTES:
        return "is missing"
    return f"is missing; add it, or {', '.join(_needed(values))}"


def _why_not(name: str, values: ValueKind) -> str:
    if name in _OFFERED[ValueKind.MSGPACK]:
        if name in _BESIDE:
            return (
                "is not supported by kraft logs: metadata records have no key, headers or "
                "timestamp; drop the column"
            )
        return "is not supported by bytes logs: encode the record into the column value"
    offered = _OFFERED[values]
    hint = did_you_mean(name, offered) or (
        f"columns of a {values.value} log are " + ", ".join(offered)
    )
    if name in COLUMNS:
        hint += "; declare those of a view for INSERT INTO, as v (value BINARY) USING raftlog"
    return f"is not a column of records; {hint}"


def _check_type(field: StructField, values: ValueKind) -> None:
    """Raise ``WriteSchemaError`` if the column has the wrong type."""
    kind = field.dataType
    match field.name:
        case "value" if values is ValueKind.BYTES:
            wanted, fits = "binary or string", isinstance(kind, BinaryType | StringType)
        case "value":
            wanted, fits = "binary", isinstance(kind, BinaryType)
        case "key":
            wanted, fits = "binary or string", isinstance(kind, BinaryType | StringType)
        case "timestamp":
            wanted, fits = "timestamp", isinstance(kind, TimestampType)
        case "headers":
            wanted = "array<struct<key:string,value:binary>>"
            fits = _is_headers(kind)
        case "recordType" if values is ValueKind.MSGPACK:
            wanted = "string or an integer"
            fits = isinstance(kind, (StringType, *_INTEGERS))
        case "recordType":
            wanted, fits = "string", isinstance(kind, StringType)
        case "recordVersion":
            wanted, fits = "an integer", isinstance(kind, _INTEGERS)
        case _:
            _check_record(kind, values)
            return
    if not fits:
        raise _wrong_type(field.name, wanted, kind)


def _is_headers(kind: DataType) -> bool:
    if not isinstance(kind, ArrayType) or not isinstance(kind.elementType, StructType):
        return False
    found = [(field.name, type(field.dataType)) for field in kind.elementType.fields]
    return found == [("key", StringType), ("value", BinaryType)]


def _check_record(kind: DataType, values: ValueKind) -> None:
    if isinstance(kind, StringType):
        return
    if not isinstance(kind, StructType):
        raise _wrong_type("record", "struct, or string with JSON", kind)
    scalars = _MSGPACK_SCALARS if values is ValueKind.MSGPACK else _KRAFT_SCALARS
    _check_inside("record", kind, scalars, with_maps=values is ValueKind.MSGPACK)


def _check_inside(
    path: str, kind: DataType, scalars: tuple[type[DataType], ...], *, with_maps: bool
) -> None:
    if isinstance(kind, StructType):
        for field in kind.fields:
            _check_inside(f"{path}.{field.name}", field.dataType, scalars, with_maps=with_maps)
    elif isinstance(kind, ArrayType):
        _check_inside(f"{path}[]", kind.elementType, scalars, with_maps=with_maps)
    elif isinstance(kind, MapType) and with_maps:
        if not isinstance(kind.keyType, StringType):
            raise _wrong_type(f"{path} (its keys)", "string", kind.keyType)
        _check_inside(f"{path}{{}}", kind.valueType, scalars, with_maps=with_maps)
    elif not isinstance(kind, scalars):
        wanted = "one of " + ", ".join(scalar.typeName() for scalar in scalars)
        raise _wrong_type(path, wanted, kind)


def _wrong_type(column: str, wanted: str, kind: DataType) -> WriteSchemaError:
    return WriteSchemaError(
        column=column, reason=f"must be {wanted}, but is {kind.simpleString()}; cast it"
    )


# --- Encoding of typed records (``msgpack`` and ``kraft``) from bytes, structs or JSON ------------
# ``InvalidValueError`` never contains the value. A ``kraft`` value must be a record that Kafka can
# read: known type, known version, valid fields. Transaction markers are rejected: a write is atomic
# without them, and a single marker would leave a transaction open for all readers. Redacted secrets
# are rejected, because the mask would become the secret.

Plain: TypeAlias = Callable[[Any], Any]
"""Conversion of an Arrow cell to a value that JSON or MessagePack can encode."""

_KINDS: Final[Mapping[str, type[MetadataRecord]]] = {
    kind.schema.json_type: kind for kind in RECORD_TYPES
}
_MARKERS: Final = (BeginTransactionRecord, EndTransactionRecord, AbortTransactionRecord)
_MASKING: Final = Redactor()
_NO_VERSION_REASON: Final = (
    "is null; set it, or drop the column to use the versions of the log's metadata.version"
)
_MARKER_REASON: Final = "is a transaction marker; remove such rows, a write is atomic without them"


class InvalidValueError(Exception):
    """A value is invalid, because of ``column``."""

    def __init__(self, column: str, reason: str) -> None:
        super().__init__(reason)
        self.column = column
        self.reason = reason


# --- values as bytes ------------------------------------------------------------------------------


def check_msgpack(value: bytes | None) -> None:
    """Raise ``InvalidValueError`` unless the bytes are ``[type, version, fields]``."""
    try:
        new_records([value], ValueKind.MSGPACK)
    except InvalidAppendError as error:
        raise InvalidValueError("value", error.reason.partition(": ")[2] or error.reason) from None


def check_kraft(value: bytes | None) -> None:
    """Raise ``InvalidValueError`` unless the bytes are a metadata record of a known type."""
    if value is None:
        raise InvalidValueError("value", "is null, which kraft logs do not support")
    try:
        decoded = decode(value)
    except MetadataParseError as error:
        raise InvalidValueError("value", f"is not a metadata record: {error.message()}") from None
    record = decoded.record
    if isinstance(record, UnknownRecord):
        what = f"type {record.api_key}, version {record.version}"
        raise InvalidValueError("value", f"is a metadata record of {what}, which is unknown")
    if isinstance(record, _MARKERS):
        raise InvalidValueError("value", _MARKER_REASON)
    _refuse_masks("value", decoded)


def _refuse_masks(column: str, decoded: DecodedRecord) -> None:
    hidden = _MASKING.redact(decoded)
    if hidden is not decoded and hidden == decoded:
        raise InvalidValueError(
            column, "contains a redacted secret; read the source with redact=false"
        )


# --- values as type, version and fields -----------------------------------------------------------


def msgpack_value(kind: str | int | None, version: int | None, fields: Any) -> bytes:
    """Encode ``[type, version, fields]``."""
    if kind is None or kind == "" or (isinstance(kind, int) and kind < 0):
        raise InvalidValueError("recordType", "is neither a name nor a number >= 0")
    if version is None or version < 0:
        raise InvalidValueError("recordVersion", "is not a number >= 0")
    try:
        return cast("bytes", msgpack.packb([kind, version, fields]))
    except (TypeError, ValueError, OverflowError, UnicodeEncodeError):
        reason = "contains a value that MessagePack cannot encode"
        raise InvalidValueError("record", reason) from None


def kraft_value(
    kind: str | None,
    version: int | None,
    fields: Any,
    form: RecordForm,
    versions: RecordVersions | None,
) -> bytes:
    """Encode a metadata record. ``versions`` is used if ``version`` is None."""
    record_type = _KINDS.get(kind or "")
    if record_type is None:
        raise InvalidValueError(
            "recordType", "is not a type of metadata records, e.g. TOPIC_RECORD"
        )
    if issubclass(record_type, _MARKERS):
        raise InvalidValueError("recordType", _MARKER_REASON)
    if version is None:
        if versions is None:
            raise InvalidValueError("recordVersion", _NO_VERSION_REASON)
        version = versions.of(record_type)
    if form is RecordForm.STRUCT:
        fields = _without_absent(record_type.schema.fields, fields)
    try:
        decoded = from_json({"type": kind, "version": version, "data": fields})
        _refuse_masks("record", decoded)
        return encode(decoded)
    except UnsupportedVersionError as error:
        raise InvalidValueError("recordVersion", error.message()) from None
    except InvalidRecordError as error:
        column = "recordVersion" if error.field == "version" else "record"
        raise InvalidValueError(column, error.message()) from None


def parse_json(text: str) -> Any:
    """Parse JSON, without Python's extensions NaN and Infinity."""
    try:
        return json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        raise InvalidValueError("record", "is not JSON") from None


def _no_constant(_name: str) -> NoReturn:
    raise ValueError


def _without_absent(fields: tuple[FieldSchema, ...], data: Mapping[str, Any]) -> dict[str, Any]:
    """Remove nulls of fields that are not nullable in Kafka's schema: they mean "not set"."""
    by_name = {field.json_name: field for field in fields}
    kept: dict[str, Any] = {}
    for name, value in data.items():
        field = by_name.get(name)
        if value is None and (field is None or not field.nullable):
            continue
        if field is not None and isinstance(field.kind, Array) and isinstance(value, list):
            element = field.kind.element
            if not isinstance(element, Scalar):
                inner = element.fields_schema
                value = [
                    _without_absent(inner, one) if isinstance(one, dict) else one for one in value
                ]
        kept[name] = value
    return kept


# --- Arrow cells ----------------------------------------------------------------------------------


def plain_of(kind: pa.DataType, values: ValueKind) -> Plain | None:
    """Return the conversion of cells of this type to plain values, None if none is needed.

    Maps become objects. Bytes become base64 in Kafka's JSON, and stay bytes in MessagePack.
    """
    if pa.types.is_map(kind):
        return _plain_map(plain_of(kind.item_type, values))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        inner = plain_of(kind.value_type, values)
        return None if inner is None else _plain_list(inner)
    if pa.types.is_struct(kind):
        found = {field.name: plain_of(field.type, values) for field in kind}
        some = {name: plain for name, plain in found.items() if plain is not None}
        return _plain_struct(some) if some else None
    is_bytes = pa.types.is_binary(kind) or pa.types.is_large_binary(kind)
    return _base64 if is_bytes and values is ValueKind.KRAFT else None


def _base64(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()


def _plain_map(inner: Plain | None) -> Plain:
    def plain(pairs: list[tuple[str, Any]] | None) -> dict[str, Any] | None:
        if pairs is None:
            return None
        return {name: inner(value) if inner else value for name, value in pairs}

    return plain


def _plain_list(inner: Plain) -> Plain:
    def plain(values: list[Any] | None) -> list[Any] | None:
        return None if values is None else [inner(value) for value in values]

    return plain


def _plain_struct(inner: Mapping[str, Plain]) -> Plain:
    def plain(fields: dict[str, Any] | None) -> dict[str, Any] | None:
        if fields is None:
            return None
        return fields | {name: convert(fields[name]) for name, convert in inner.items()}

    return plain


# --- Conversion of rows to records: checked and encoded on executors, assembled on the driver -----
# An executor sends the columns of ``MESSAGE_COLUMNS`` that the DataFrame has, with encoded values,
# and only after all of its rows have been checked. An invalid row raises ``InvalidRowError``, which
# contains its position, never its values. Values of type bytes are converted without a Python
# object for each row.

_HEADER: Final = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
MESSAGE_COLUMNS: Final = {
    "key": pa.binary(),
    "value": pa.binary(),
    "headers": pa.list_(pa.field("element", _HEADER)),
    "timestamp": pa.timestamp("ms", "UTC"),
}
"""Columns that executors send, with their types."""

_HEADER_BYTES_MIN: Final = 2
"""Minimum size of a header: two varint lengths."""


def message_schema(columns: InputColumns) -> pa.Schema:
    """Return the schema that executors send for a DataFrame with these columns."""
    names = [name for name in MESSAGE_COLUMNS if name == "value" or name in columns.names]
    return pa.schema([pa.field(name, MESSAGE_COLUMNS[name]) for name in names])


class RowConverter:
    """Converter of the rows of one task, batch by batch."""

    def __init__(
        self,
        columns: InputColumns,
        values: ValueKind,
        partition: int,
        versions: RecordVersions | None = None,
    ) -> None:
        self._columns = columns
        self._values = values
        self._partition = partition
        self._versions = versions
        self._schema = message_schema(columns)
        self.row_count = 0

    def convert(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Convert rows to columns of ``MESSAGE_COLUMNS``. Raises ``InvalidRowError``."""
        arrays = {
            "value": self._values_of(rows),
            "key": self._column(rows, "key"),
            "headers": self._headers(rows),
            "timestamp": self._timestamps(rows),
        }
        converted = pa.RecordBatch.from_arrays(
            [arrays[field.name] for field in self._schema], schema=self._schema
        )
        self.row_count += rows.num_rows
        return converted

    def _column(self, rows: pa.RecordBatch, name: str) -> pa.Array | None:
        return (
            rows.column(name).cast(MESSAGE_COLUMNS[name]) if name in self._columns.names else None
        )

    def _values_of(self, rows: pa.RecordBatch) -> pa.Array:
        if self._columns.form is not RecordForm.VALUE:
            return self._typed_values(rows)
        values = rows.column("value").cast(MESSAGE_COLUMNS["value"])
        match self._values:
            case ValueKind.MSGPACK:
                self._check_each(values, check_msgpack)
            case ValueKind.KRAFT:
                self._check_each(values, check_kraft)
            case ValueKind.BYTES:
                pass
        return values

    def _check_each(self, values: pa.Array, check: Callable[[bytes | None], None]) -> None:
        for at, value in enumerate(values.to_pylist()):
            try:
                check(value)
            except InvalidValueError as invalid:
                raise self._row_error(at, invalid.column, invalid.reason) from None

    def _typed_values(self, rows: pa.RecordBatch) -> pa.Array:
        types = rows.column("recordType").to_pylist()
        versions: Sequence[int | None] = [None] * len(types)
        if "recordVersion" in self._columns.names:
            versions = rows.column("recordVersion").to_pylist()
        records = rows.column("record")
        plain = plain_of(records.type, self._values)
        encoded = []
        for at, (kind, version, record) in enumerate(
            zip(types, versions, records.to_pylist(), strict=True)
        ):
            try:
                if record is None:
                    raise InvalidValueError("record", "is null")
                if self._columns.form is RecordForm.JSON:
                    fields = parse_json(record)
                else:
                    fields = plain(record) if plain else record
                encoded.append(self._typed_value(kind, version, fields))
            except InvalidValueError as invalid:
                raise self._row_error(at, invalid.column, invalid.reason) from None
        return pa.array(encoded, MESSAGE_COLUMNS["value"])

    def _typed_value(self, kind: Any, version: int | None, fields: Any) -> bytes:
        if self._values is ValueKind.MSGPACK:
            return msgpack_value(kind, version, fields)
        return kraft_value(kind, version, fields, self._columns.form, self._versions)

    def _headers(self, rows: pa.RecordBatch) -> pa.Array | None:
        headers = self._column(rows, "headers")
        if headers is None:
            return None
        names = pc.call_function("struct_field", [headers.flatten()], pc.StructFieldOptions([0]))
        prefix = pc.MatchSubstringOptions(HEADER_PREFIX)
        reserved = pc.call_function("starts_with", [names], prefix)
        if names.null_count or pc.call_function("any", [reserved]).as_py():
            self._raise_invalid_header(headers)
        return headers

    def _raise_invalid_header(self, headers: pa.Array) -> None:
        for at, row in enumerate(headers.to_pylist()):
            for header in row or ():
                if header is None or header["key"] is None:
                    raise self._row_error(at, "headers", "has a header without a key")
                if header["key"].startswith(HEADER_PREFIX):
                    reason = f"has a header with the reserved prefix {HEADER_PREFIX!r}"
                    raise self._row_error(at, "headers", reason)
        raise AssertionError("an invalid header was found")

    def _timestamps(self, rows: pa.RecordBatch) -> pa.Array | None:
        if "timestamp" not in self._columns.names:
            return None
        times = rows.column("timestamp").cast(MESSAGE_COLUMNS["timestamp"], safe=False)
        for at in _first_negative(times.view(pa.int64())):
            raise self._row_error(at, "timestamp", "is before 1970")
        return times

    def _row_error(self, at: int, column: str, reason: str) -> InvalidRowError:
        return InvalidRowError(
            column=column, partition=self._partition, row=self.row_count + at, reason=reason
        )


def _first_negative(numbers: pa.Array) -> list[int]:
    """Return a list with the index of the first negative number, or an empty list."""
    which = pc.call_function("less", [numbers, pa.scalar(0, pa.int64())])
    found: list[int] = pc.call_function("indices_nonzero", [which]).slice(0, 1).to_pylist()
    return found


def min_byte_count(rows: pa.RecordBatch) -> int:
    """Return the minimum size of the records in an uncompressed batch."""
    byte_count: int = rows.num_rows * RECORD_BYTES_MIN
    parts = [rows.column(name) for name in ("key", "value") if name in rows.schema.names]
    if "headers" in rows.schema.names:
        headers = rows.column("headers").flatten()
        byte_count += len(headers) * _HEADER_BYTES_MIN
        parts += [headers.field("key").cast(pa.binary()), headers.field("value")]
    for part in parts:
        lengths = pc.call_function("binary_length", [part])
        byte_count += pc.call_function("sum", [lengths]).as_py() or 0
    return byte_count


def has_null_headers(rows: pa.Table) -> bool:
    """Return whether rows of ``MESSAGE_COLUMNS`` have a header that is null, or has a null key."""
    if "headers" not in rows.schema.names:
        return False
    headers = pc.call_function("list_flatten", [rows.column("headers")])
    return any(one.null_count or one.field("key").null_count for one in headers.chunks)


def records_of(rows: pa.Table) -> list[RecordToAppend]:
    """Convert columns of ``MESSAGE_COLUMNS`` to records, in order."""
    return [record for batch in rows.to_batches() for record in _records_of(batch)]


def _records_of(rows: pa.RecordBatch) -> Iterator[RecordToAppend]:
    names = rows.schema.names
    values = rows.column("value").to_pylist()
    if names == ["value"] and None not in values:
        yield from values
        return
    nothing: list[Any] = [None] * rows.num_rows
    keys = rows.column("key").to_pylist() if "key" in names else nothing
    if names == ["key", "value"] and None not in keys:
        yield from map(new_record, keys, values)
        return
    headers = rows.column("headers").to_pylist() if "headers" in names else nothing
    times = nothing
    if "timestamp" in names:
        times = rows.column("timestamp").view(pa.int64()).to_pylist()
    for key, value, given, time_ms in zip(keys, values, headers, times, strict=True):
        record_headers = tuple([Header(one["key"], one["value"]) for one in given or ()])
        if key is None and time_ms is None and not record_headers and value is not None:
            yield value
        else:
            yield NewRecord(key, value, time_ms, record_headers)
