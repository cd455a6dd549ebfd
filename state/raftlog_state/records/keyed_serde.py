"""Conversion of the records of Kafka's coordinators: key and value bytes <-> record -> JSON.

A key is the int16 number of the record's type, followed by its fields. A value is an int16 version,
followed by that version's fields. A record without a value, a tombstone, deletes its key (Kafka:
``CoordinatorRecordSerde``)::

    00 01 ...    key of type 1 (OffsetCommit)        00 04 ...    value of version 4

For a record of unknown type or version, key, value or both are an ``UnknownRecord``. This is not an
error, because Kafka may be upgraded first.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from raftlog_state.errors import InvalidRecordError, MetadataParseError

from .consumer_protocol import PROTOCOL_FIELDS, PROTOCOL_TYPE, protocol_json
from .declare import Message
from .json_text import TextWriter, data_text_writer
from .reader import ValueReader, record_reader
from .scalars import bytes_json
from .schema_groups import GroupMetadataValue
from .serde import UNKNOWN_TYPE, UnknownReason, UnknownRecord, trailing
from .versions import check_version
from .writer import ValueWriter, record_writer

_INT16: Final = struct.Struct(">h")
_HEAD_BYTES: Final = 2


@dataclass(frozen=True, slots=True)
class RecordType:
    """Type of a coordinator's records: its key and its value."""

    key: type[Message]
    value: type[Message]

    @property
    def api_key(self) -> int:
        """Number at the start of a key (Kafka: ``CoordinatorRecordType.id``)."""
        return self.key.schema.api_key

    @property
    def name(self) -> str:
        """``OFFSET_COMMIT`` (Kafka: ``CoordinatorRecordType``)."""
        return self.key.schema.json_type.removesuffix("_KEY")


@dataclass(frozen=True, slots=True)
class KeyedRecord:
    """Record of a coordinator. ``value`` is None for a tombstone.

    ``version`` is the value's version. It is None for a tombstone, and for a value of an unknown
    type that is too short to have one.
    """

    key: Message | UnknownRecord
    value: Message | UnknownRecord | None
    version: int | None


class KeyedSerde:
    """Conversion of the records of one coordinator.

    Args:
        what: a record, for error messages.
        types: the known types.
    """

    def __init__(self, what: str, types: Iterable[RecordType]) -> None:
        self.what = what
        self.types = tuple(types)
        self._by_api_key = {kind.api_key: kind for kind in self.types}
        self._names = {kind.key: kind.name for kind in self.types}
        assert len(self._by_api_key) == len(self.types)
        assert all(kind.value.schema.api_key == kind.api_key for kind in self.types)
        # Compiled so far, by the first two bytes, and by class and version.
        self._key_readers: dict[bytes, ValueReader] = {}
        self._value_readers: dict[tuple[int, bytes], ValueReader] = {}
        self._writers: dict[tuple[type, int], ValueWriter] = {}
        self._text_writers: dict[tuple[type, int], TextWriter] = {}

    def peek(self, key: bytes | None) -> int:
        """Return the number of a record's type. Raises ``MetadataParseError`` if it has none."""
        if key is None or len(key) < _HEAD_BYTES:
            reason = "it has no key" if key is None else "its key has no type"
            raise MetadataParseError(record=self.what, version=None, position=0, reason=reason)
        number: int = _INT16.unpack_from(key)[0]
        return number

    def decode(self, key: bytes | None, value: bytes | None) -> KeyedRecord:
        """Decode key and value of a record.

        Raises:
            MetadataParseError: the key is missing, or key or value of a known type and version are
                damaged: truncated, followed by other bytes, or with an invalid length.
        """
        api_key = self.peek(key)
        assert key is not None, "peek raised"
        decoded_key = self._decode_key(api_key, key)
        if value is None:
            return KeyedRecord(decoded_key, None, None)
        read = self._value_readers.get((api_key, value[:_HEAD_BYTES]))
        if read is None:
            read = self._value_reader(api_key, value)
        version = None
        if len(value) >= _HEAD_BYTES:
            version = _INT16.unpack_from(value)[0]
        if read is None:
            is_known = api_key in self._by_api_key
            return KeyedRecord(
                decoded_key,
                UnknownRecord(
                    api_key=api_key,
                    version=version or 0,
                    reason=UnknownReason.VERSION if is_known else UnknownReason.API_KEY,
                    payload=value if version is None else value[_HEAD_BYTES:],
                ),
                version,
            )
        decoded, end = read(value, _HEAD_BYTES)
        if end != len(value):
            raise trailing(decoded, version or 0, end, len(value) - end)
        return KeyedRecord(decoded_key, decoded, version)

    def _decode_key(self, api_key: int, key: bytes) -> Message | UnknownRecord:
        read = self._key_readers.get(key[:_HEAD_BYTES])
        if read is None:
            kind = self._by_api_key.get(api_key)
            if kind is None:
                payload = key[_HEAD_BYTES:]
                return UnknownRecord(
                    api_key=api_key, version=0, reason=UnknownReason.API_KEY, payload=payload
                )
            read = self._key_readers[key[:_HEAD_BYTES]] = record_reader(kind.key, 0)
        decoded: Message
        decoded, end = read(key, _HEAD_BYTES)
        if end != len(key):
            raise trailing(decoded, 0, end, len(key) - end)
        return decoded

    def _value_reader(self, api_key: int, value: bytes) -> ValueReader | None:
        """Compile the reader of a value; None if its type or its version is unknown."""
        kind = self._by_api_key.get(api_key)
        if kind is None:
            return None
        if len(value) < _HEAD_BYTES:
            name = kind.value.schema.name
            reason = "it has no version"
            raise MetadataParseError(record=name, version=None, position=0, reason=reason)
        version = _INT16.unpack_from(value)[0]
        if not 0 <= version <= kind.value.schema.latest_version:
            return None
        read = self._value_readers[api_key, value[:_HEAD_BYTES]] = record_reader(
            kind.value, version
        )
        return read

    def encode(self, record: KeyedRecord) -> tuple[bytes, bytes | None]:
        """Encode a record as key and value bytes; a value without a version uses the latest one.

        Raises:
            UnsupportedVersionError: the type has no such version, or the version lacks a field that
                is set.
            InvalidRecordError: a value does not fit into its field, or key and value are of
                different types.
        """
        key, value, version = record.key, record.value, record.version
        if isinstance(key, UnknownRecord):
            key_bytes = _INT16.pack(key.api_key) + key.payload
        else:
            key_bytes = self._writer(type(key), 0, key.schema.api_key)(key)
        if value is None:
            return key_bytes, None
        if isinstance(value, UnknownRecord):
            head = b"" if version is None else _INT16.pack(version)
            return key_bytes, head + value.payload
        if isinstance(key, UnknownRecord) or key.schema.api_key != value.schema.api_key:
            reason = "its key is of another type"
            raise InvalidRecordError(
                record=value.schema.name, version=version, field="", reason=reason
            )
        version = value.schema.latest_version if version is None else version
        return key_bytes, self._writer(type(value), version, version)(value)

    def _writer(self, kind: type[Message], version: int, head: int) -> ValueWriter:
        write = self._writers.get((kind, version))
        if write is None:
            check_version(kind, version)
            write = self._writers[kind, version] = record_writer(kind, version, _INT16.pack(head))
        return write

    def type_name(self, record: KeyedRecord) -> str:
        """Return Kafka's name of the record's type, ``UNKNOWN`` for an unknown one.

        A known type with a value of unknown version is unknown, too, as in metadata logs.
        """
        if isinstance(record.key, UnknownRecord) or isinstance(record.value, UnknownRecord):
            return UNKNOWN_TYPE
        return self._names[type(record.key)]

    def key_json(self, record: KeyedRecord) -> str:
        """Return the fields of the key as kafka-dump-log prints them."""
        if isinstance(record.key, UnknownRecord):
            return _unknown_json(record.key)
        return self._text_writer(type(record.key), 0)(record.key)

    def value_json(self, record: KeyedRecord) -> str | None:
        """Return the fields of the value as kafka-dump-log prints them; None for a tombstone."""
        value, version = record.value, record.version
        if value is None:
            return None
        if isinstance(value, UnknownRecord):
            return _unknown_json(value)
        version = value.schema.latest_version if version is None else version
        if is_consumer_group(value):
            return _consumers_text_writer(version)(value)
        return self._text_writer(type(value), version)(value)

    def _text_writer(self, kind: type[Message], version: int) -> TextWriter:
        write = self._text_writers.get((kind, version))
        if write is None:
            check_version(kind, version)
            write = self._text_writers[kind, version] = data_text_writer(kind, version)
        return write


def is_consumer_group(value: Message) -> bool:
    """Return whether a value is a classic group of consumers: its subscriptions can be parsed."""
    return isinstance(value, GroupMetadataValue) and value.protocol_type == PROTOCOL_TYPE


_consumers_text_writers: Final[dict[int, TextWriter]] = {}


def _consumers_text_writer(version: int) -> TextWriter:
    """Return the writer of a group of consumers, with parsed subscriptions and assignments."""
    write = _consumers_text_writers.get(version)
    if write is None:
        check_version(GroupMetadataValue, version)
        parsed = {name: protocol_json(name) for name in PROTOCOL_FIELDS}
        write = _consumers_text_writers[version] = data_text_writer(
            GroupMetadataValue, version, parsed
        )
    return write


def _unknown_json(record: UnknownRecord) -> str:
    payload = f',"payload":{bytes_json(record.payload)}' if record.payload else ""
    return f'{{"reason":"this {record.reason.value} is not known"{payload}}}'
