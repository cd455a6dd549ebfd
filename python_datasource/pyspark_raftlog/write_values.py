"""Typed records as the values of a log: ``msgpack`` and ``kraft``, from a struct or from JSON.

Rules of this file:

1. Every function gives the bytes of one value or raises ``InvalidValueError`` with a reason,
   which never shows the value.
2. A ``kraft`` value is a record that Kafka's own readers take: of a known type, in a known version,
   with fields that fit. Transaction markers are refused: a write is one transaction as it is, and a
   lone marker would leave one open for everybody. So are secrets that a reader masked: a mask would
   become the secret.
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
"""What Arrow gives for a cell, made into what JSON or MessagePack takes."""

_KINDS: Final[Mapping[str, type[MetadataRecord]]] = {
    kind.schema.json_type: kind for kind in RECORD_TYPES
}
_MARKERS: Final = (BeginTransactionRecord, EndTransactionRecord, AbortTransactionRecord)
_MASKING: Final = Redactor()
_NO_VERSION_REASON: Final = (
    "is null; name it, or leave the column out: then metadata.version says it for all rows"
)
_MARKER_REASON: Final = "is a transaction's marker; leave such rows out, a write is atomic as it is"


class InvalidValueError(Exception):
    """A value cannot be made. ``column`` is where the reason lies."""

    def __init__(self, column: str, reason: str) -> None:
        super().__init__(reason)
        self.column = column
        self.reason = reason


# --- values that are given as bytes ---------------------------------------------------------------


def check_msgpack(value: bytes | None) -> None:
    """Raise ``InvalidValueError`` unless the bytes are ``[type, version, fields]``."""
    try:
        new_records([value], ValueKind.MSGPACK)
    except InvalidAppendError as error:
        raise InvalidValueError("value", error.reason.partition(": ")[2] or error.reason) from None


def check_kraft(value: bytes | None) -> None:
    """Raise ``InvalidValueError`` unless the bytes are a metadata record that is known."""
    if value is None:
        raise InvalidValueError("value", "is null, and a kraft log takes no record without a value")
    try:
        decoded = decode(value)
    except MetadataParseError as error:
        raise InvalidValueError("value", f"is no metadata record: {error.message()}") from None
    record = decoded.record
    if isinstance(record, UnknownRecord):
        what = f"type {record.api_key}, version {record.version}"
        raise InvalidValueError("value", f"is a metadata record of {what}, which is not known here")
    if isinstance(record, _MARKERS):
        raise InvalidValueError("value", _MARKER_REASON)
    _refuse_masks("value", decoded)


def _refuse_masks(column: str, decoded: DecodedRecord) -> None:
    hidden = _MASKING.redact(decoded)
    if hidden is not decoded and hidden == decoded:
        raise InvalidValueError(
            column, "is a secret that was masked when it was read; read it with redact=false"
        )


# --- values that are given as type, version and fields --------------------------------------------


def msgpack_value(kind: str | int | None, version: int | None, fields: Any) -> bytes:
    """``[type, version, fields]``."""
    if kind is None or kind == "" or (isinstance(kind, int) and kind < 0):
        raise InvalidValueError("recordType", "is neither a name nor a number of 0 or more")
    if version is None or version < 0:
        raise InvalidValueError("recordVersion", "is not a number of 0 or more")
    try:
        return cast("bytes", msgpack.packb([kind, version, fields]))
    except (TypeError, ValueError, OverflowError, UnicodeEncodeError):
        reason = "holds something that MessagePack has no form for"
        raise InvalidValueError("record", reason) from None


def kraft_value(
    kind: str | None,
    version: int | None,
    fields: Any,
    form: RecordForm,
    versions: RecordVersions | None,
) -> bytes:
    """A metadata record. ``versions`` says which version it is if the frame does not."""
    record_type = _KINDS.get(kind or "")
    if record_type is None:
        raise InvalidValueError(
            "recordType", "is no name of a metadata record, such as TOPIC_RECORD"
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
    """Read JSON; numbers that JSON has not (NaN) are refused."""
    try:
        return json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        raise InvalidValueError("record", "is not JSON") from None


def _no_constant(_name: str) -> NoReturn:
    raise ValueError


def _without_absent(fields: tuple[FieldSchema, ...], data: Mapping[str, Any]) -> dict[str, Any]:
    """A struct without the nulls that stand for "not given": where Kafka's type has no null."""
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


# --- cells of Arrow -------------------------------------------------------------------------------


def plain_of(kind: pa.DataType, values: ValueKind) -> Plain | None:
    """How cells of this type become plain values; None if they are that already.

    Maps are objects. Bytes are base64 in Kafka's JSON, and themselves in MessagePack.
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
        return fields | {name: make(fields[name]) for name, make in inner.items()}

    return plain
