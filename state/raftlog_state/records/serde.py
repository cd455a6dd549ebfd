"""Conversion of records without keys: value bytes <-> record <-> JSON.

A value is a frame version (1), an api key and a version as unsigned varints, followed by the fields
of the record (Kafka: ``AbstractApiMessageSerde``, ``MetadataRecordSerde``)::

    01 02 00 ...    frame version 1, api key 2 (TopicRecord), version 0, fields, tagged fields

Records of ``__remote_log_metadata`` have the same format with their own api keys (Kafka:
``RemoteLogMetadataSerde``). ``keyed_serde`` converts records with keys.

Readers and writers are compiled once for each type and version, on first use.

A record of unknown type or version is an ``UnknownRecord``, not an error, because Kafka may be
upgraded first. Its JSON is
``{"type":"UNKNOWN","version":3,"data":{"apiKey":42,"reason":..,"payload":base64}}``. ``reason`` is
informative and is not parsed; ``payload`` is left out if it was redacted.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from raftlog.records.fields import MalformedVarintError, read_unsigned_varint, unsigned_varint
from raftlog_state.errors import InvalidRecordError, MetadataParseError, UnsupportedVersionError

from .declare import Message, MetadataRecord
from .json_read import record_from_json
from .json_text import TextWriter, record_text_writer
from .reader import ValueReader, record_reader
from .scalars import bytes_json, bytes_of_base64
from .schema import RECORD_TYPES
from .schema_cluster import NoOpRecord
from .versions import check_version
from .writer import ValueWriter, record_writer


class UnknownReason(enum.Enum):
    """Reason why a record was not decoded: its api key or its version is unknown."""

    API_KEY = "api key"
    VERSION = "version"


@dataclass(frozen=True, slots=True, kw_only=True)
class UnknownRecord:
    """Record of unknown type or version.

    ``payload``: the bytes after the frame version, api key and version; empty if redacted (a real
    payload has at least a tag count).
    """

    api_key: int
    version: int
    reason: UnknownReason
    payload: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class DecodedRecord:
    """Record and its version on the wire."""

    version: int
    record: MetadataRecord | UnknownRecord


NO_OP_VALUE: Final = b"\x01\x14\x00\x00"
"""Value of a NoOpRecord: most records in the log of an idle cluster."""

UNKNOWN_TYPE: Final = "UNKNOWN"
"""JSON type of an ``UnknownRecord``."""

_FRAME_VERSION: Final = 1
_FRAME_NUMBER_MAX: Final = 32_767
_DATA: Final = '"data":'
_NO_OP: Final = DecodedRecord(0, NoOpRecord())


class FramedSerde:
    """Conversion of the records of one log, whose types are known by their api keys.

    Args:
        what: a record, for error messages.
        kinds: the known types.
    """

    def __init__(self, what: str, kinds: Iterable[type[MetadataRecord]]) -> None:
        self.what = what
        self.types = tuple(kinds)
        self._by_api_key = {kind.schema.api_key: kind for kind in self.types}
        self._by_json_type = {kind.schema.json_type: kind for kind in self._by_api_key.values()}
        # Compiled so far. Readers by a value's first three bytes: frame version, api key and
        # version take one byte each for all known record types.
        self._readers: dict[bytes, tuple[int, ValueReader]] = {}
        self._writers: dict[tuple[type, int], ValueWriter] = {}
        self._text_writers: dict[tuple[type, int], TextWriter] = {}

    def decode(self, value: bytes) -> DecodedRecord:
        """Decode the value of a record.

        Returns:
            The record and its version; an ``UnknownRecord`` for an unknown type or version.

        Raises:
            MetadataParseError: the frame is invalid, or a record of known type is damaged:
                truncated, followed by other bytes, or with an invalid length.
        """
        known = self._readers.get(value[:3])
        if known is None:
            return self._decode_first(value)
        version, read = known
        record, end = read(value, 3)
        if end != len(value):
            raise trailing(record, version, end, len(value) - end)
        return DecodedRecord(version, record)

    def _decode_first(self, value: bytes) -> DecodedRecord:
        """Decode a value whose reader is not compiled yet, and cache the reader."""
        api_key, version, position = self._read_frame(value)
        kind = self._by_api_key.get(api_key)
        if kind is None or version > kind.schema.latest_version:
            reason = UnknownReason.API_KEY if kind is None else UnknownReason.VERSION
            payload = value[position:]
            return DecodedRecord(
                version,
                UnknownRecord(api_key=api_key, version=version, reason=reason, payload=payload),
            )
        # The value's frame may be padded with zero bits.
        frame = bytes((_FRAME_VERSION, api_key, version))
        if frame not in self._readers:
            self._readers[frame] = version, record_reader(kind, version)
        record, end = self._readers[frame][1](value, position)
        if end != len(value):
            raise trailing(record, version, end, len(value) - end)
        return DecodedRecord(version, record)

    def peek(self, value: bytes) -> tuple[int, int]:
        """Return the api key and the version of a value, decoding only its frame.

        Raises:
            MetadataParseError: the frame is invalid.
        """
        api_key, version, _ = self._read_frame(value)
        return api_key, version

    def _read_frame(self, value: bytes) -> tuple[int, int, int]:
        """Return (api key, version, position of the first field)."""
        if len(value) >= 3 and value[0] == _FRAME_VERSION and value[1] < 0x80 and value[2] < 0x80:
            return value[1], value[2], 3
        frame_version, position = self._read_frame_number(value, 0, "frame version")
        if frame_version != _FRAME_VERSION:
            reason = f"unsupported frame version {frame_version}; Kafka writes 1"
            raise MetadataParseError(record=self.what, version=None, position=0, reason=reason)
        api_key, position = self._read_frame_number(value, position, "api key")
        version, position = self._read_frame_number(value, position, "version")
        return api_key, version, position

    def _read_frame_number(self, value: bytes, position: int, name: str) -> tuple[int, int]:
        try:
            number, after = read_unsigned_varint(value, position)
            if number <= _FRAME_NUMBER_MAX:
                return number, after
            reason = f"its {name} {number} is out of range"
        except MalformedVarintError as error:
            reason = f"its {name} is malformed: {error.reason}"
        raise MetadataParseError(record=self.what, version=None, position=position, reason=reason)

    def encode(
        self, record: DecodedRecord | MetadataRecord | UnknownRecord, version: int | None = None
    ) -> bytes:
        """Encode a record as value bytes.

        Args:
            record: a result of ``decode``, or a record alone.
            version: the version to write; default: that of the decoded record, else the latest.

        Raises:
            UnsupportedVersionError: the type has no such version, or the version lacks a field that
                is set.
            InvalidRecordError: a value does not fit into its field.
        """
        record, version = _record_and_version(record, version)
        write = self._writers.get((type(record), version))
        if write:
            return write(record)
        if isinstance(record, UnknownRecord):
            return self._frame(record.api_key, version) + record.payload
        check_version(type(record), version)
        head = self._frame(record.schema.api_key, version)
        write = self._writers[type(record), version] = record_writer(type(record), version, head)
        return write(record)

    def _frame(self, api_key: int, version: int) -> bytes:
        return b"\x01" + unsigned_varint(api_key) + unsigned_varint(version)

    def to_json_text(
        self, decoded: DecodedRecord | MetadataRecord | UnknownRecord, version: int | None = None
    ) -> str:
        """Return the JSON text of a record as kafka-dump-log prints it. Secrets are not redacted.

        Raises:
            UnsupportedVersionError: as ``encode``.
        """
        record, version = _record_and_version(decoded, version)
        write = self._text_writers.get((type(record), version))
        if write:
            return write(record)
        if isinstance(record, UnknownRecord):
            return _unknown_text(record, version)
        check_version(type(record), version)
        write = self._text_writers[type(record), version] = record_text_writer(
            type(record), version
        )
        return write(record)

    def data_json(self, decoded: DecodedRecord) -> str:
        """Return the ``data`` of ``to_json_text``: the fields."""
        text = self.to_json_text(decoded)
        return text[text.index(_DATA) + len(_DATA) : -1]

    @staticmethod
    def type_name(decoded: DecodedRecord) -> str:
        """Return the ``type`` of ``to_json_text``."""
        record = decoded.record
        return UNKNOWN_TYPE if isinstance(record, UnknownRecord) else record.schema.json_type

    def to_json(
        self, decoded: DecodedRecord | MetadataRecord | UnknownRecord, version: int | None = None
    ) -> dict[str, Any]:
        """Return ``to_json_text`` as a dict of ``type``, ``version`` and ``data``."""
        parsed: dict[str, Any] = json.loads(self.to_json_text(decoded, version))
        return parsed

    def from_json(self, parsed: Mapping[str, Any]) -> DecodedRecord:
        """Parse a result of ``to_json`` or output of kafka-dump-log; keys besides ``type``,
        ``version`` and ``data`` are ignored.

        Raises:
            InvalidRecordError: type, version or a field is missing, unknown or not of its type.
            UnsupportedVersionError: the type has no such version.
        """
        json_type, version = parsed.get("type"), parsed.get("version")
        if type(version) is not int or not 0 <= version <= _FRAME_NUMBER_MAX:
            raise self._invalid("version", "it is not a number from 0 to 32767")
        if json_type == UNKNOWN_TYPE:
            return DecodedRecord(version, self._unknown_from_json(version, parsed.get("data")))
        kind = self._by_json_type.get(json_type) if isinstance(json_type, str) else None
        if kind is None:
            raise self._invalid("type", "it is not a known record type")
        check_version(kind, version)
        return DecodedRecord(version, record_from_json(kind, version, parsed.get("data")))

    def _unknown_from_json(self, version: int, data: object) -> UnknownRecord:
        if not isinstance(data, Mapping):
            raise self._invalid("data", "it is not an object")
        api_key, payload = data.get("apiKey"), data.get("payload", "")
        if type(api_key) is not int or not 0 <= api_key <= _FRAME_NUMBER_MAX:
            raise self._invalid("data.apiKey", "it is not a number from 0 to 32767")
        raw = bytes_of_base64(payload) if isinstance(payload, str) else None
        if raw is None:
            raise self._invalid("data.payload", "it is not base64")
        is_known = api_key in self._by_api_key
        reason = UnknownReason.VERSION if is_known else UnknownReason.API_KEY
        return UnknownRecord(api_key=api_key, version=version, reason=reason, payload=raw)

    def _invalid(self, field: str, reason: str) -> InvalidRecordError:
        return InvalidRecordError(record=self.what, version=None, field=field, reason=reason)


def trailing(record: Message, version: int, position: int, byte_count: int) -> MetadataParseError:
    """Return the error for bytes after the last field of a record."""
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


def _unknown_text(record: UnknownRecord, version: int) -> str:
    payload = f',"payload":{bytes_json(record.payload)}' if record.payload else ""
    return (
        f'{{"type":"{UNKNOWN_TYPE}","version":{version},"data":{{"apiKey":{record.api_key},'
        f'"reason":"this {record.reason.value} is not known"{payload}}}}}'
    )


# --- Metadata records -----------------------------------------------------------------------------

_METADATA: Final = FramedSerde("a metadata record", RECORD_TYPES)

data_json: Final = _METADATA.data_json
encode: Final = _METADATA.encode
from_json: Final = _METADATA.from_json
peek: Final = _METADATA.peek
to_json: Final = _METADATA.to_json
to_json_text: Final = _METADATA.to_json_text


def decode(value: bytes) -> DecodedRecord:
    """Decode the value of a metadata record; as ``FramedSerde.decode``."""
    return _NO_OP if value == NO_OP_VALUE else _METADATA.decode(value)
