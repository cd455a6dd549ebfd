"""Conversion of metadata records: value bytes <-> record <-> JSON.

A value is frame version (1), api key and version as unsigned varints, then the fields of the record
(Kafka: ``AbstractApiMessageSerde``, ``MetadataRecordSerde``)::

    01 02 00 ...    frame version 1, api key 2 (TopicRecord), version 0, fields, tagged fields

Readers and writers are compiled once for each type and version, on first use.

A record of unknown type or version is an ``UnknownRecord``, not an error, since Kafka may be
upgraded first. Its JSON is
``{"type":"UNKNOWN","version":3,"data":{"apiKey":42,"reason":..,"payload":base64}}``; ``reason`` is
informative and is not parsed, ``payload`` is left out if it was redacted.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

from raftlog.errors import MalformedVarintError
from raftlog.records.varint import read_unsigned_varint, unsigned_varint
from raftlog_state.errors import InvalidRecordError, MetadataParseError, UnsupportedVersionError

from .declare import MetadataRecord
from .decoded import DecodedRecord, UnknownReason, UnknownRecord
from .json_read import record_from_json
from .json_text import TextWriter, record_text_writer
from .reader import ValueReader, record_reader
from .scalars import bytes_json, bytes_of_base64
from .schema import BY_API_KEY, BY_JSON_TYPE
from .schema_cluster import NoOpRecord
from .versions import check_version
from .writer import ValueWriter, record_writer

NO_OP_VALUE: Final = b"\x01\x14\x00\x00"
"""Value of a NoOpRecord: most records in the log of an idle cluster."""

UNKNOWN_TYPE: Final = "UNKNOWN"
"""JSON type of an ``UnknownRecord``."""

_FRAME_VERSION: Final = 1
_FRAME_NUMBER_MAX: Final = 32_767
_FRAME: Final = "a metadata record"
_NO_OP: Final = DecodedRecord(0, NoOpRecord())

_W = TypeVar("_W")

# Compiled so far. Readers by a value's first three bytes: frame version, api key and version take
# one byte each for all known record types.
_readers: dict[bytes, tuple[int, ValueReader]] = {}
_writers: dict[tuple[type, int], ValueWriter] = {}
_text_writers: dict[tuple[type, int], TextWriter] = {}


def decode(value: bytes) -> DecodedRecord:
    """Decode the value of a metadata record.

    Returns:
        The record and its version; an ``UnknownRecord`` for an unknown type or version.

    Raises:
        MetadataParseError: the frame is invalid, or a record of known type is damaged: truncated,
            followed by other bytes, or with an invalid length.
    """
    if value == NO_OP_VALUE:
        return _NO_OP
    known = _readers.get(value[:3])
    if known is None:
        return _decode_first(value)
    version, read = known
    record, end = read(value, 3)
    if end != len(value):
        raise _trailing(record, version, end, len(value) - end)
    return DecodedRecord(version, record)


def peek(value: bytes) -> tuple[int, int]:
    """Return the api key and the version of a value, decoding only its frame.

    Raises:
        MetadataParseError: the frame is invalid.
    """
    api_key, version, _ = _read_frame(value)
    return api_key, version


def encode(
    record: DecodedRecord | MetadataRecord | UnknownRecord, version: int | None = None
) -> bytes:
    """Encode a record as value bytes.

    Args:
        record: a result of ``decode``, or a record alone.
        version: the version to write; default: that of the decoded record, else the latest.

    Raises:
        UnsupportedVersionError: the type has no such version, or the version lacks a field that is
            set.
        InvalidRecordError: a value does not fit into its field.
    """
    record, version = _record_and_version(record, version)
    write = _writers.get((type(record), version))
    if write:
        return write(record)
    if isinstance(record, UnknownRecord):
        head = b"\x01" + unsigned_varint(record.api_key) + unsigned_varint(version)
        return head + record.payload
    write = _writers[type(record), version] = _compile(record_writer, type(record), version)
    return write(record)


def to_json_text(
    decoded: DecodedRecord | MetadataRecord | UnknownRecord, version: int | None = None
) -> str:
    """Return the JSON text of a record as kafka-dump-log prints it. Secrets are not redacted.

    Raises:
        UnsupportedVersionError: as ``encode``.
    """
    record, version = _record_and_version(decoded, version)
    write = _text_writers.get((type(record), version))
    if write:
        return write(record)
    if isinstance(record, UnknownRecord):
        return _unknown_text(record, version)
    write = _text_writers[type(record), version] = _compile(
        record_text_writer, type(record), version
    )
    return write(record)


def to_json(
    decoded: DecodedRecord | MetadataRecord | UnknownRecord, version: int | None = None
) -> dict[str, Any]:
    """Return ``to_json_text`` as a dict of ``type``, ``version`` and ``data``."""
    parsed: dict[str, Any] = json.loads(to_json_text(decoded, version))
    return parsed


def from_json(parsed: Mapping[str, Any]) -> DecodedRecord:
    """Parse a result of ``to_json`` or output of kafka-dump-log; keys besides ``type``,
    ``version`` and ``data`` are ignored.

    Raises:
        InvalidRecordError: type, version or a field is missing, unknown or not of its type.
        UnsupportedVersionError: the type has no such version.
    """
    json_type, version = parsed.get("type"), parsed.get("version")
    if type(version) is not int or not 0 <= version <= _FRAME_NUMBER_MAX:
        raise _invalid("version", "it is not a number from 0 to 32767")
    if json_type == UNKNOWN_TYPE:
        return DecodedRecord(version, _unknown_from_json(version, parsed.get("data")))
    kind = BY_JSON_TYPE.get(json_type) if isinstance(json_type, str) else None
    if kind is None:
        raise _invalid("type", "it is not a known record type")
    check_version(kind, version)
    return DecodedRecord(version, record_from_json(kind, version, parsed.get("data")))


def _decode_first(value: bytes) -> DecodedRecord:
    """Decode a value whose reader is not compiled yet, and cache the reader."""
    api_key, version, position = _read_frame(value)
    kind = BY_API_KEY.get(api_key)
    if kind is None or version > kind.schema.latest_version:
        reason = UnknownReason.API_KEY if kind is None else UnknownReason.VERSION
        payload = value[position:]
        return DecodedRecord(
            version,
            UnknownRecord(api_key=api_key, version=version, reason=reason, payload=payload),
        )
    frame = bytes((_FRAME_VERSION, api_key, version))  # the value's may be padded with zero bits
    if frame not in _readers:
        _readers[frame] = version, record_reader(kind, version)
    record, end = _readers[frame][1](value, position)
    if end != len(value):
        raise _trailing(record, version, end, len(value) - end)
    return DecodedRecord(version, record)


def _read_frame(value: bytes) -> tuple[int, int, int]:
    """Returns (api key, version, position of the first field)."""
    if len(value) >= 3 and value[0] == _FRAME_VERSION and value[1] < 0x80 and value[2] < 0x80:
        return value[1], value[2], 3
    frame_version, position = _read_frame_number(value, 0, "frame version")
    if frame_version != _FRAME_VERSION:
        reason = f"unsupported frame version {frame_version}; Kafka writes 1"
        raise MetadataParseError(record=_FRAME, version=None, position=0, reason=reason)
    api_key, position = _read_frame_number(value, position, "api key")
    version, position = _read_frame_number(value, position, "version")
    return api_key, version, position


def _read_frame_number(value: bytes, position: int, name: str) -> tuple[int, int]:
    try:
        number, after = read_unsigned_varint(value, position)
        if number <= _FRAME_NUMBER_MAX:
            return number, after
        reason = f"its {name} {number} is out of range"
    except MalformedVarintError as error:
        reason = f"its {name} is malformed: {error.reason}"
    raise MetadataParseError(record=_FRAME, version=None, position=position, reason=reason)


def _trailing(
    record: MetadataRecord, version: int, position: int, byte_count: int
) -> MetadataParseError:
    reason = f"{byte_count} trailing bytes after the record"
    name = record.schema.name
    return MetadataParseError(record=name, version=version, position=position, reason=reason)


def _record_and_version(
    record: DecodedRecord | MetadataRecord | UnknownRecord, version: int | None
) -> tuple[MetadataRecord | UnknownRecord, int]:
    if isinstance(record, DecodedRecord):
        version = record.version if version is None else version
        record = record.record
    if isinstance(record, UnknownRecord):
        if version not in (None, record.version):
            name = f"record type {record.api_key}"
            reason = f"its type is unknown; it can be written in version {record.version} only"
            raise UnsupportedVersionError(record=name, version=version or 0, reason=reason)
        return record, record.version
    return record, record.schema.latest_version if version is None else version


def _compile(
    compile_for: Callable[[type[MetadataRecord], int], _W], kind: type[MetadataRecord], version: int
) -> _W:
    check_version(kind, version)
    return compile_for(kind, version)


def _unknown_text(record: UnknownRecord, version: int) -> str:
    payload = f',"payload":{bytes_json(record.payload)}' if record.payload else ""
    return (
        f'{{"type":"{UNKNOWN_TYPE}","version":{version},"data":{{"apiKey":{record.api_key},'
        f'"reason":"this {record.reason.value} is not known"{payload}}}}}'
    )


def _unknown_from_json(version: int, data: object) -> UnknownRecord:
    if not isinstance(data, Mapping):
        raise _invalid("data", "it is not an object")
    api_key, payload = data.get("apiKey"), data.get("payload", "")
    if type(api_key) is not int or not 0 <= api_key <= _FRAME_NUMBER_MAX:
        raise _invalid("data.apiKey", "it is not a number from 0 to 32767")
    raw = bytes_of_base64(payload) if isinstance(payload, str) else None
    if raw is None:
        raise _invalid("data.payload", "it is not base64")
    reason = UnknownReason.VERSION if api_key in BY_API_KEY else UnknownReason.API_KEY
    return UnknownRecord(api_key=api_key, version=version, reason=reason, payload=raw)


def _invalid(field: str, reason: str) -> InvalidRecordError:
    return InvalidRecordError(record=_FRAME, version=None, field=field, reason=reason)
