"""Entries of a manifest: what is copied to an object store, and the state of each copy (KIP-405).

An entry is a range of a segment, or a backup, which lists all files of a log at one point in time.
A sealed segment is one range, unless parts of it were copied while it was active:

    segment 0   | 0 ........ 39 | 40 .. 55 |       two ranges, from two backups
    segment 56  | 56 ............. 99 |            one range

Each range is a whole number of batches, so each of its objects is a valid segment, which
kafka-dump-log prints. Object names are derived from the entry, never read from the manifest.

Kafka: ``RemoteLogSegmentMetadata``, ``RemoteLogSegmentState``, ``LocalTieredStorage`` (names).
"""

from __future__ import annotations

import enum
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from raftlog.limits import BATCH_HEADER_BYTES, SEGMENT_BYTES_MAX
from raftlog.log.format.directory import LOG_SUFFIX, offset_name, parse_partition_name
from raftlog.log.format.epoch_cache import EpochEntry
from raftlog.types import TopicPartition

_ID: Final = re.compile(r"[A-Za-z0-9_-]{22}")
NO_NODE: Final = -1
"""Broker id of an entry that was not added by a node of a quorum."""
_CUSTOM_BYTES_MAX: Final = 1024


class RemoteLogSegmentState(enum.IntEnum):
    """State of an entry, with Kafka's numbers and transitions."""

    COPY_SEGMENT_STARTED = 0
    COPY_SEGMENT_FINISHED = 1
    DELETE_SEGMENT_STARTED = 2
    DELETE_SEGMENT_FINISHED = 3

    def may_become(self, state: RemoteLogSegmentState) -> bool:
        """Return whether an update may set ``state``."""
        if self is RemoteLogSegmentState.COPY_SEGMENT_STARTED:
            return state in (
                RemoteLogSegmentState.COPY_SEGMENT_FINISHED,
                RemoteLogSegmentState.DELETE_SEGMENT_STARTED,
            )
        return state == self + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteLogSegmentMetadata:
    """Entry of a manifest. Offsets are inclusive. ``custom_metadata`` is set when it is finished.

    ``leader_epochs``: the first offset of each epoch in the range.
    """

    segment_id: str
    topic_partition: TopicPartition
    topic_id: str
    first_offset: int
    last_offset: int
    broker_id: int
    max_timestamp_ms: int
    event_timestamp_ms: int
    leader_epochs: tuple[EpochEntry, ...]
    byte_count: int
    state: RemoteLogSegmentState
    custom_metadata: bytes | None = None

    @property
    def directory(self) -> str:
        """Name of the objects' directory."""
        return f"{self.topic_partition}-{self.topic_id}"

    def object_name(self, suffix: str = LOG_SUFFIX) -> str:
        """Return the name of the entry's object with this suffix."""
        return f"{self.directory}/{offset_name(self.first_offset, '')}-{self.segment_id}{suffix}"

    def damage(self) -> str | None:
        """Return what is wrong with the fields, which may have any values; None if nothing is."""
        for name, value in (("segment id", self.segment_id), ("topic id", self.topic_id)):
            if _ID.fullmatch(value) is None:
                return f"the {name} {value[:40]!r} is not a uuid in base64"
        if parse_partition_name(str(self.topic_partition)) != self.topic_partition:
            return f"{str(self.topic_partition)[:40]!r} is not a topic and a partition"
        if not 0 <= self.first_offset <= self.last_offset:
            return f"offsets {self.first_offset} to {self.last_offset} are invalid"
        if not 0 < self.byte_count <= SEGMENT_BYTES_MAX:
            return f"its size of {self.byte_count} bytes is out of range"
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteLogSegmentMetadataUpdate:
    """Change of an entry's state."""

    segment_id: str
    topic_partition: TopicPartition
    topic_id: str
    broker_id: int
    event_timestamp_ms: int
    state: RemoteLogSegmentState
    custom_metadata: bytes | None = None


ManifestEvent: TypeAlias = RemoteLogSegmentMetadata | RemoteLogSegmentMetadataUpdate


# --- Custom metadata, which restores and later backups verify -------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentRange:
    """Bytes of the segment ``base_offset`` from ``position`` on, as many as the entry has.

    The last batch begins at ``last_batch_position``. ``last_batch_crc32c`` is the CRC of its header
    with base offset, leader epoch and CRC. A log with this batch has the same batches before it
    (Raft's log matching property).
    """

    metadata: RemoteLogSegmentMetadata
    base_offset: int
    position: int
    crc32c: int
    last_batch_position: int
    last_batch_crc32c: int

    @property
    def end_position(self) -> int:
        return self.position + self.metadata.byte_count

    def custom_metadata(self) -> bytes:
        """Return this range as custom metadata."""
        return _encode(
            {
                "segment": self.base_offset,
                "position": self.position,
                "crc32c": self.crc32c,
                "lastBatch": self.last_batch_position,
                "lastBatchCrc32c": self.last_batch_crc32c,
            }
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class BackupEntry:
    """Backup. The entry's bytes are its inventory; ``ordinal`` increases with each backup."""

    metadata: RemoteLogSegmentMetadata
    ordinal: int
    crc32c: int

    def order(self) -> tuple[int, int, int, str]:
        """Return the sort key of backups; the last one is restored."""
        entry = self.metadata
        last_epoch = max((one.epoch for one in entry.leader_epochs), default=-1)
        return self.ordinal, last_epoch, entry.last_offset, entry.segment_id

    def custom_metadata(self) -> bytes:
        """Return this backup as custom metadata."""
        return _encode({"backup": self.ordinal, "crc32c": self.crc32c})


def parse_entry(metadata: RemoteLogSegmentMetadata) -> SegmentRange | BackupEntry | str:
    """Return the content of a finished entry, or what is wrong with its custom metadata."""
    data = metadata.custom_metadata or b""
    try:
        fields = json.loads(data) if len(data) <= _CUSTOM_BYTES_MAX else None
    except (ValueError, RecursionError):
        fields = None
    if not isinstance(fields, dict):
        return "its custom metadata is not that of raftlog"
    if not all(type(value) is int and value >= 0 for value in fields.values()):
        return "its custom metadata has a field that is not a number"
    return _parse_range(metadata, fields)


def _parse_range(
    metadata: RemoteLogSegmentMetadata, fields: Mapping[str, int]
) -> SegmentRange | BackupEntry | str:
    match fields:
        case {"backup": ordinal, "crc32c": crc32c}:
            return BackupEntry(metadata=metadata, ordinal=ordinal, crc32c=crc32c)
        case {
            "segment": base_offset,
            "position": position,
            "crc32c": crc32c,
            "lastBatch": last_batch,
            "lastBatchCrc32c": last_crc32c,
        }:
            found = SegmentRange(
                metadata=metadata,
                base_offset=base_offset,
                position=position,
                crc32c=crc32c,
                last_batch_position=last_batch,
                last_batch_crc32c=last_crc32c,
            )
            is_inside = position <= last_batch <= found.end_position - BATCH_HEADER_BYTES
            if not is_inside or found.end_position > SEGMENT_BYTES_MAX:
                return f"its bytes from position {position} on are out of range"
            if not base_offset <= metadata.first_offset:
                return f"it begins before the base offset {base_offset} of its segment"
            return found
    return "its custom metadata lacks a field"


def _encode(fields: Mapping[str, int]) -> bytes:
    return json.dumps(fields, separators=(",", ":")).encode("ascii")
