"""Encoding and decoding of ``__remote_log_metadata`` records, which are the events of a manifest.

Of the four record types, two are events of a segment; a record of another type is None. The message
definitions are those of Kafka's ``storage`` module. All are flexible messages in the envelope of
metadata records: frame version, api key and version as unsigned varints.

Kafka: ``RemoteLogMetadataSerde``, ``RemoteLogSegmentMetadataTransform``.
"""

from __future__ import annotations

import base64
import binascii
import struct
from typing import Final

from raftlog.log.format.epoch_cache import EpochEntry
from raftlog.records.fields import MalformedVarintError, read_unsigned_varint, unsigned_varint
from raftlog.types import TopicPartition

from .segment_metadata import (
    ManifestEvent,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
)

_FRAME_VERSION: Final = 1
_SEGMENT: Final = 0
_UPDATE: Final = 1
_VERSION: Final = 0
_NO_TAGS: Final = b"\x00"
_UUID_BYTES: Final = 16
_INT8: Final = struct.Struct(">b")
_INT32: Final = struct.Struct(">i")
_INT64: Final = struct.Struct(">q")
_EPOCH: Final = struct.Struct(">iq")


class InvalidRecordError(Exception):
    """Bytes that are not a record of ``__remote_log_metadata``. The caller adds where they are."""


# --- Encoding -------------------------------------------------------------------------------------


def encode_event(event: ManifestEvent) -> bytes:
    """Return the value of a record."""
    if isinstance(event, RemoteLogSegmentMetadataUpdate):
        return b"".join(
            (
                *_head(_UPDATE, event),
                _INT32.pack(event.broker_id),
                _INT64.pack(event.event_timestamp_ms),
                _nullable_bytes(event.custom_metadata),
                _INT8.pack(event.state),
                _NO_TAGS,
            )
        )
    epochs = (_EPOCH.pack(one.epoch, one.start_offset) + _NO_TAGS for one in event.leader_epochs)
    return b"".join(
        (
            *_head(_SEGMENT, event),
            _INT64.pack(event.first_offset),
            _INT64.pack(event.last_offset),
            _INT32.pack(event.broker_id),
            _INT64.pack(event.max_timestamp_ms),
            _INT64.pack(event.event_timestamp_ms),
            unsigned_varint(len(event.leader_epochs) + 1),
            *epochs,
            _INT32.pack(event.byte_count),
            _nullable_bytes(event.custom_metadata),
            _INT8.pack(event.state),
            _NO_TAGS,
        )
    )


def _head(api_key: int, event: ManifestEvent) -> tuple[bytes, ...]:
    """Return the envelope, and the id of the segment with its partition's id."""
    topic = event.topic_partition.topic.encode()
    return (
        bytes((_FRAME_VERSION, api_key, _VERSION)),
        unsigned_varint(len(topic) + 1),
        topic,
        _uuid(event.topic_id),
        _INT32.pack(event.topic_partition.partition),
        _NO_TAGS,
        _uuid(event.segment_id),
        _NO_TAGS,
    )


def _uuid(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "==")


def _nullable_bytes(data: bytes | None) -> bytes:
    return unsigned_varint(0) if data is None else unsigned_varint(len(data) + 1) + data


# --- Decoding -------------------------------------------------------------------------------------


def decode_event(value: bytes) -> ManifestEvent | None:
    """Return the event in a record's value; None for a record of another type or a later version.

    Raises ``InvalidRecordError``.
    """
    try:
        return _decode(_Reader(value))
    except (MalformedVarintError, struct.error, UnicodeDecodeError, ValueError) as error:
        reason = error.reason if isinstance(error, MalformedVarintError) else str(error)
        raise InvalidRecordError(f"a record cannot be decoded: {reason}") from None


def _decode(reader: _Reader) -> ManifestEvent | None:
    frame_version, api_key, version = (reader.varint() for _ in range(3))
    if frame_version != _FRAME_VERSION:
        raise ValueError(f"its frame version is {frame_version}, not {_FRAME_VERSION}")
    if api_key not in (_SEGMENT, _UPDATE) or version != _VERSION:
        return None
    topic = reader.text()
    topic_id = reader.uuid()
    topic_partition = TopicPartition(topic, reader.number(_INT32))
    reader.skip_tags()
    segment_id = reader.uuid()
    reader.skip_tags()
    if api_key == _UPDATE:
        update = RemoteLogSegmentMetadataUpdate(
            segment_id=segment_id,
            topic_partition=topic_partition,
            topic_id=topic_id,
            broker_id=reader.number(_INT32),
            event_timestamp_ms=reader.number(_INT64),
            custom_metadata=reader.nullable_bytes(),
            state=RemoteLogSegmentState(reader.number(_INT8)),
        )
        reader.finish()
        return update
    metadata = RemoteLogSegmentMetadata(
        segment_id=segment_id,
        topic_partition=topic_partition,
        topic_id=topic_id,
        first_offset=reader.number(_INT64),
        last_offset=reader.number(_INT64),
        broker_id=reader.number(_INT32),
        max_timestamp_ms=reader.number(_INT64),
        event_timestamp_ms=reader.number(_INT64),
        leader_epochs=reader.epochs(),
        byte_count=reader.number(_INT32),
        custom_metadata=reader.nullable_bytes(),
        state=RemoteLogSegmentState(reader.number(_INT8)),
    )
    reader.finish()
    return metadata


class _Reader:
    """Position in a record's value."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def varint(self) -> int:
        value, self._at = read_unsigned_varint(self._data, self._at)
        return value

    def number(self, kind: struct.Struct) -> int:
        (value,) = kind.unpack_from(self._data, self._at)
        self._at += kind.size
        return int(value)

    def take(self, byte_count: int) -> bytes:
        data = self._data[self._at : self._at + byte_count]
        if len(data) < byte_count:
            raise ValueError("it is truncated")
        self._at += byte_count
        return data

    def uuid(self) -> str:
        return binascii.b2a_base64(self.take(_UUID_BYTES), newline=False).decode().translate(_URL)

    def text(self) -> str:
        data = self.nullable_bytes()
        if data is None:
            raise ValueError("a name is null")
        return data.decode()

    def nullable_bytes(self) -> bytes | None:
        byte_count = self.varint()
        return self.take(byte_count - 1) if byte_count else None

    def epochs(self) -> tuple[EpochEntry, ...]:
        found = []
        for _ in range(max(self.varint(), 1) - 1):
            epoch, start_offset = _EPOCH.unpack(self.take(_EPOCH.size))
            self.skip_tags()
            found.append(EpochEntry(epoch=epoch, start_offset=start_offset))
        return tuple(found)

    def skip_tags(self) -> None:
        for _ in range(self.varint()):
            self.varint()
            self.take(self.varint())

    def finish(self) -> None:
        self.skip_tags()
        if self._at != len(self._data):
            raise ValueError(f"{len(self._data) - self._at} bytes follow it")


_URL: Final = {ord("+"): "-", ord("/"): "_", ord("="): None}
"""Kafka's form of uuids: base64 for URLs, without padding."""
