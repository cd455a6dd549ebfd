"""Encoding of typed records (``msgpack`` and ``kraft``) from bytes, structs or JSON.

``InvalidValueError`` never contains the value. A ``kraft`` value must be a record that Kafka can
read: known type, known version, valid fields. Transaction markers are rejected: a write is atomic
without them, and a single marker would leave a transaction open for all readers. Redacted secrets
are rejected, because the mask would become the secret.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeAlias, cast

import msgpack
import pyarrow as pa

from raftlog import ValueKind
from raftlog.client.user_records import new_records
from raftlog.errors import (
    InvalidAppendError,
    InvalidRecordError,
    MetadataParseError,
    UnsupportedVersionError,
)
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

from .write_schema import RecordForm

if TYPE_CHECKING:
    from raftlog_state.record_versions import RecordVersions

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
