"""Records as users give them, validated for the kind of log and converted.

A record is its value (bytes), a pair (key, value), or an object with ``value`` and optionally
``key``, ``headers`` and ``timestamp_ms``. A single record may be given instead of a list.

A ``msgpack`` log takes ``[type, version, fields]`` as a value, or its encoding. A ``kraft`` log
takes framed values (frame version 1, api key, version, fields) and, as KRaft does, no keys, headers
or timestamps (Kafka: ``AbstractApiMessageSerde``, ``RecordsIterator``). Header names that begin
with ``raftlog.`` and transaction names in the form of a commit's are reserved.

Errors name a record by its index, and never contain its bytes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, NoReturn, Protocol, TypeAlias, cast, runtime_checkable

import msgpack

from raftlog.errors import InvalidAppendError, MalformedVarintError
from raftlog.limits import HEADERS_PER_RECORD_MAX
from raftlog.log.reading.transactions import FRAME_VERSION, Marker, marker_of, transaction_name
from raftlog.log.writing.batch_metadata import ValueKind, parse_commit_transaction_name
from raftlog.records.encoding import RecordToAppend
from raftlog.records.record import Header, NewRecord
from raftlog.records.varint import read_unsigned_varint

HEADER_PREFIX: Final = "raftlog."
USER_HEADERS_MAX: Final = HEADERS_PER_RECORD_MAX - 2
"""Headers of one record. Two more are reserved: a commit's name, and the query it replaces."""
_TIMESTAMP_MAX: Final = 2**63 - 1
_MSGPACK_FIELD_COUNT: Final = 3

BytesLike: TypeAlias = bytes | bytearray | memoryview


@runtime_checkable
class RecordLike(Protocol):
    """Object with a value: a ``Record`` that was read, a ``NewRecord``, a consumer's record.

    ``key``, ``headers`` and ``timestamp_ms`` are used if present.
    """

    @property
    def value(self) -> Any: ...


UserRecord: TypeAlias = BytesLike | tuple[Any, ...] | list[Any] | RecordLike
"""One record in any accepted form."""


def new_records(
    records: UserRecord | Iterable[UserRecord], values: ValueKind, *, first_ordinal: int = 0
) -> tuple[RecordToAppend, ...]:
    """Validate records for a log with values of this kind, and return them in its form.

    A record without key, headers and timestamp is returned as its value. Indexes in errors count
    from ``first_ordinal``.

    Raises ``InvalidAppendError``.
    """
    if isinstance(records, BytesLike | RecordLike):
        return (_new_record(records, values, 0),)
    if isinstance(records, str | dict) or not isinstance(records, Iterable):
        _refuse(None, f"records must be a list, not {type(records).__name__}")
    if values is ValueKind.BYTES:
        return tuple(
            [
                record if type(record) is bytes else _new_record(record, values, ordinal)
                for ordinal, record in enumerate(records, first_ordinal)
            ]
        )
    return tuple(
        [
            _new_record(record, values, ordinal)
            for ordinal, record in enumerate(records, first_ordinal)
        ]
    )


def _new_record(record: object, values: ValueKind, ordinal: int) -> RecordToAppend:
    key, value, timestamp_ms = None, record, None
    headers: tuple[Header, ...] = ()
    if isinstance(record, BytesLike):  # first: the check of a protocol is ten times slower
        pass
    elif isinstance(record, NewRecord) or isinstance(record, RecordLike):  # noqa: SIM101
        key, value = getattr(record, "key", None), record.value
        headers = _headers(getattr(record, "headers", ()) or (), ordinal)
        timestamp_ms = _timestamp(getattr(record, "timestamp_ms", None), ordinal)
    elif isinstance(record, tuple) and len(record) == 2:
        key, value = record
    key = _bytes_or_none(key, "key", ordinal)
    value = _value(value, values, ordinal)
    if key is None and not headers and timestamp_ms is None and value is not None:
        return value
    if values is ValueKind.KRAFT:
        _refuse(ordinal, "a record of a kraft log has no key, headers or timestamp")
    return NewRecord(key, value, timestamp_ms, headers)


def _value(value: object, values: ValueKind, ordinal: int) -> bytes | None:
    match values:
        case ValueKind.BYTES:
            return _bytes_or_none(value, "value", ordinal)
        case ValueKind.MSGPACK:
            return _msgpack_value(value, ordinal)
        case ValueKind.KRAFT:
            return _kraft_value(value, ordinal)


def _bytes_or_none(data: object, what: str, ordinal: int) -> bytes | None:
    if data is None or isinstance(data, bytes):
        return data
    if isinstance(data, bytearray | memoryview):
        return bytes(data)
    hint = "; encode it" if isinstance(data, str) else ""
    _refuse(ordinal, f"its {what} is {type(data).__name__}, not bytes{hint}")


# --- msgpack --------------------------------------------------------------------------------------


def _msgpack_value(value: object, ordinal: int) -> bytes:
    if isinstance(value, BytesLike):
        encoded = bytes(value)
        try:
            value = msgpack.unpackb(encoded, strict_map_key=False)
        except (ValueError, msgpack.exceptions.UnpackException):
            _refuse(ordinal, "its value is not MessagePack")
        except TypeError:
            _refuse(ordinal, "a map in its value has a key that is an array or a map")
        _check_msgpack(value, ordinal)
        return encoded
    _check_msgpack(value, ordinal)
    try:
        packed = cast("bytes", msgpack.packb(value))
    except (TypeError, ValueError, OverflowError, UnicodeEncodeError):
        _refuse(ordinal, "its fields contain a value that MessagePack cannot encode")
    return packed


def _check_msgpack(value: object, ordinal: int) -> None:
    """Raise unless the value is ``[type, version, fields]``."""
    if not isinstance(value, list | tuple) or len(value) != _MSGPACK_FIELD_COUNT:
        _refuse(ordinal, "a value of a msgpack log must be [type, version, fields]")
    kind, version, _ = value
    if not (_is_number(kind) or (isinstance(kind, str) and kind)):
        _refuse(ordinal, "its type must be a non-negative integer or a non-empty string")
    if not _is_number(version):
        _refuse(ordinal, "its version must be a non-negative integer")


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


# --- kraft ----------------------------------------------------------------------------------------


def _kraft_value(value: object, ordinal: int) -> bytes:
    data = _bytes_or_none(value, "value", ordinal)
    if not data:
        _refuse(ordinal, "a record of a kraft log must have a value")
    try:
        frame_version, position = read_unsigned_varint(data, 0)
        _, position = read_unsigned_varint(data, position)
        read_unsigned_varint(data, position)
    except MalformedVarintError:
        _refuse(ordinal, "its value does not begin with a frame version, an api key and a version")
    if frame_version != FRAME_VERSION:
        _refuse(ordinal, f"its frame version is {frame_version}, not {FRAME_VERSION}")
    if marker_of(data) is Marker.BEGIN and parse_commit_transaction_name(transaction_name(data)):
        _refuse(
            ordinal, "it begins a transaction with the name of a commit; pass commit=... instead"
        )
    return data


# --- headers and timestamps -----------------------------------------------------------------------


def _headers(headers: Any, ordinal: int) -> tuple[Header, ...]:
    """Validate headers, given as ``Header`` objects, as pairs or as a mapping."""
    pairs = headers.items() if isinstance(headers, dict) else headers
    checked: list[Header] = []
    for header in pairs:
        if not isinstance(header, Header):
            try:
                name, value = header
            except (TypeError, ValueError):
                _refuse(ordinal, "a header must be a (name, value) pair")
            header = Header(name, _bytes_or_none(value, "header's value", ordinal))
        if not _is_text(header.key):
            _refuse(ordinal, "a header name must be valid Unicode text")
        if len(checked) == USER_HEADERS_MAX:
            _refuse(ordinal, f"it has more than {USER_HEADERS_MAX} headers")
        if header.key.startswith(HEADER_PREFIX):
            _refuse(ordinal, f"its header {header.key!r} begins with {HEADER_PREFIX!r}: reserved")
        checked.append(header)
    return tuple(checked)


def _is_text(name: object) -> bool:
    try:
        return isinstance(name, str) and name.encode() is not None
    except UnicodeEncodeError:  # a lone surrogate
        return False


def _timestamp(timestamp_ms: object, ordinal: int) -> int | None:
    if timestamp_ms is None:
        return None
    if not isinstance(timestamp_ms, int) or not 0 <= timestamp_ms <= _TIMESTAMP_MAX:
        _refuse(ordinal, "its timestamp_ms must be a non-negative int (ms since 1970)")
    return int(timestamp_ms)


def _refuse(ordinal: int | None, reason: str) -> NoReturn:
    where = "" if ordinal is None else f"the record at index {ordinal} is invalid: "
    raise InvalidAppendError(reason=f"{where}{reason}")
