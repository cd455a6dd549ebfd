"""Inventory of a backup: all files of a log's directory at one point in time, as JSON.

A segment is a list of ranges, which this backup or earlier ones have uploaded. Each other file is
an object of the backup that uploaded it. Files that are valid only for one process or one boot
(``published``, locks, ``.kafka_cleanshutdown``) are not included; nor is ``checksums``, which a
restore writes again.

A parsed inventory is valid: its names are names of a log's files, and its offsets ascend.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

from raftlog.limits import INT64_MAX, MIB, SMALL_FILE_BYTES_MAX
from raftlog.log.format.directory import (
    BOOTSTRAP_ID,
    CLEANER_CHECKPOINT_NAME,
    COMPACTED_CHECKPOINT_NAME,
    EPOCH_CHECKPOINT_NAME,
    INDEX_SUFFIXES,
    LOG_START_CHECKPOINT_NAME,
    META_PROPERTIES_NAME,
    OUT_OF_ELECTION_NAME,
    PARTITION_METADATA_NAME,
    PRODUCER_SNAPSHOT_SUFFIX,
    QUORUM_STATE_NAME,
    RAFTLOG_PROPERTIES_NAME,
    RECOVERY_POINT_CHECKPOINT_NAME,
    TOMBSTONE_CHECKPOINT_NAME,
    checkpoint_name,
    encode_epoch_checkpoint,
    encode_offset_checkpoint,
    parse_checkpoint_name,
    parse_epoch_checkpoint,
    parse_offset_name,
    parse_single_offset,
)
from raftlog.log.reading.reads import LogKind
from raftlog.types import SnapshotId, TopicPartition

INVENTORY_SUFFIX: Final = ".json"
INVENTORY_BYTES_MAX: Final = 64 * MIB

BOUNDED_NAMES: Final = (
    CLEANER_CHECKPOINT_NAME,
    COMPACTED_CHECKPOINT_NAME,
    RECOVERY_POINT_CHECKPOINT_NAME,
    TOMBSTONE_CHECKPOINT_NAME,
)
"""Files that contain one offset, which is at most the end of the log."""
SMALL_NAMES: Final = (
    *BOUNDED_NAMES,
    EPOCH_CHECKPOINT_NAME,
    LOG_START_CHECKPOINT_NAME,
    META_PROPERTIES_NAME,
    OUT_OF_ELECTION_NAME,
    PARTITION_METADATA_NAME,
    QUORUM_STATE_NAME,
    RAFTLOG_PROPERTIES_NAME,
)
"""Small files of a log. ``meta.properties`` belongs to its node."""

_STORED_IN: Final = re.compile(r"[0-9]{20}-[A-Za-z0-9_-]{22}")
_SEGMENT_ID: Final = re.compile(r"[A-Za-z0-9_-]{22}")


@dataclass(frozen=True, slots=True, kw_only=True)
class InventorySegment:
    """Segment with this base offset: its size, and the ids of its ranges by position."""

    base_offset: int
    byte_count: int
    ranges: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class InventoryFile:
    """File beside the segments. ``stored_in``: first offset and id of the backup that stores it."""

    name: str
    byte_count: int
    crc32c: int
    stored_in: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BackupInventory:
    """Files of a log up to ``end_offset`` (exclusive), the end of its valid, synced records."""

    topic_partition: TopicPartition
    topic_id: str
    cluster_id: str | None
    kind: LogKind
    log_start_offset: int
    end_offset: int
    segments: tuple[InventorySegment, ...]
    files: tuple[InventoryFile, ...]

    def snapshots(self) -> tuple[SnapshotId, ...]:
        """Return the ids of the snapshots in it, without the bootstrap checkpoint."""
        found = (parse_checkpoint_name(one.name) for one in self.files)
        return tuple(sorted(one for one in found if one is not None and one != BOOTSTRAP_ID))

    def encode(self) -> bytes:
        """Return the JSON."""
        fields = {
            "version": 1,
            "topic": self.topic_partition.topic,
            "partition": self.topic_partition.partition,
            "topicId": self.topic_id,
            "clusterId": self.cluster_id,
            "kind": self.kind.value,
            "logStartOffset": self.log_start_offset,
            "endOffset": self.end_offset,
            "segments": [
                {"baseOffset": one.base_offset, "bytes": one.byte_count, "ranges": one.ranges}
                for one in self.segments
            ],
            "files": [
                {"name": f.name, "bytes": f.byte_count, "crc32c": f.crc32c, "backup": f.stored_in}
                for f in self.files
            ],
        }
        return json.dumps(fields, separators=(",", ":")).encode("ascii")


class InvalidInventoryError(Exception):
    """JSON that is not an inventory. The caller adds where it was found."""


def parse_inventory(data: bytes) -> BackupInventory:
    """Parse and validate an inventory. Raises ``InvalidInventoryError``."""
    try:
        fields = json.loads(data)
    except (ValueError, RecursionError):
        raise InvalidInventoryError("it is not JSON") from None
    try:
        return _parse(fields)
    except (KeyError, TypeError, AttributeError):
        raise InvalidInventoryError("a field is missing or has another type") from None


def _parse(fields: Mapping[str, Any]) -> BackupInventory:
    if fields["version"] != 1:
        raise InvalidInventoryError(f"its version is {str(fields['version'])[:20]}, not 1")
    try:
        kind = LogKind(fields["kind"])
    except ValueError:
        raise InvalidInventoryError("it has an unknown kind of records") from None
    cluster_id = fields["clusterId"]
    inventory = BackupInventory(
        topic_partition=TopicPartition(_text(fields["topic"]), _number(fields["partition"])),
        topic_id=_text(fields["topicId"]),
        cluster_id=None if cluster_id is None else _text(cluster_id),
        kind=kind,
        log_start_offset=_number(fields["logStartOffset"]),
        end_offset=_number(fields["endOffset"]),
        segments=tuple(
            InventorySegment(
                base_offset=_number(one["baseOffset"]),
                byte_count=_number(one["bytes"]),
                ranges=tuple(_matched(_SEGMENT_ID, each) for each in one["ranges"]),
            )
            for one in fields["segments"]
        ),
        files=tuple(
            InventoryFile(
                name=_file_name(one["name"]),
                byte_count=_number(one["bytes"]),
                crc32c=_number(one["crc32c"]),
                stored_in=_matched(_STORED_IN, one["backup"]),
            )
            for one in fields["files"]
        ),
    )
    _check_order(inventory)
    return inventory


def _check_order(inventory: BackupInventory) -> None:
    bases = [one.base_offset for one in inventory.segments]
    if any(base >= next_base for base, next_base in pairwise(bases)):
        raise InvalidInventoryError("its segments do not ascend")
    if bases and not bases[-1] <= inventory.end_offset:
        raise InvalidInventoryError("it ends before its last segment")
    if inventory.log_start_offset > inventory.end_offset:
        raise InvalidInventoryError("it ends before its start")
    if any(f.name in SMALL_NAMES and f.byte_count > SMALL_FILE_BYTES_MAX for f in inventory.files):
        raise InvalidInventoryError(f"a small file has more than {SMALL_FILE_BYTES_MAX} bytes")
    names = [one.name for one in inventory.files]
    if len(set(names)) != len(names):
        raise InvalidInventoryError("it has a file twice")


def _number(value: object) -> int:
    if type(value) is not int or not 0 <= value <= INT64_MAX:
        raise TypeError
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


def _matched(pattern: re.Pattern[str], value: object) -> str:
    if not isinstance(value, str) or pattern.fullmatch(value) is None:
        raise TypeError
    return value


def _file_name(value: object) -> str:
    """Return the name of a log's file. All other names, including paths, are rejected."""
    name = _text(value)
    suffixes = (*INDEX_SUFFIXES, PRODUCER_SNAPSHOT_SUFFIX)
    is_indexed = any(parse_offset_name(name, suffix) is not None for suffix in suffixes)
    if name in SMALL_NAMES or is_indexed or parse_checkpoint_name(name) is not None:
        return name
    raise InvalidInventoryError(f"{name[:60]!r} is not the name of a file of a log")


def is_below(name: str, end_offset: int) -> bool:
    """Return whether a file, by its name, belongs to a log that ends at ``end_offset``."""
    snapshot_id = parse_checkpoint_name(name)
    if snapshot_id is not None:
        return snapshot_id.end_offset <= end_offset
    producers = parse_offset_name(name, PRODUCER_SNAPSHOT_SUFFIX)
    return producers is None or producers <= end_offset


def fit_to_end(name: str, data: bytes, end_offset: int, partition: TopicPartition) -> bytes:
    """Return a small file as it is in a log that ends at ``end_offset``.

    It may have been read after the end was. Raises ``CorruptFileError``.
    """
    if name == EPOCH_CHECKPOINT_NAME:
        epochs = parse_epoch_checkpoint(data, name)
        fitted = epochs.without_from(end_offset)
        return data if fitted is epochs else encode_epoch_checkpoint(fitted)
    if name in BOUNDED_NAMES and parse_single_offset(data, name) > end_offset:
        return encode_offset_checkpoint(partition, end_offset)
    return data


def bootstrap_name() -> str:
    """Return the name of the bootstrap checkpoint, which a listing's snapshots exclude."""
    return checkpoint_name(BOOTSTRAP_ID)
