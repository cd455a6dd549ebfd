"""Names of a log's files (Kafka: ``LogFileUtils``, ``Snapshots``).

Only names in exactly Kafka's form are files of the log; ``.deleted``, ``.part``, ``.cleaned`` and
all other names are ignored. Snapshot id (0, 0) is the bootstrap checkpoint, which is local and
uncommitted, and not a snapshot (KIP-853).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from raftlog.types import SnapshotId, TopicPartition

LOG_SUFFIX: Final = ".log"
INDEX_SUFFIX: Final = ".index"
TIME_INDEX_SUFFIX: Final = ".timeindex"
TXN_INDEX_SUFFIX: Final = ".txnindex"
PRODUCER_SNAPSHOT_SUFFIX: Final = ".snapshot"
CHECKPOINT_SUFFIX: Final = ".checkpoint"
DELETED_SUFFIX: Final = ".deleted"
SWAP_SUFFIX: Final = ".swap"

EPOCH_CHECKPOINT_NAME: Final = "leader-epoch-checkpoint"
PARTITION_METADATA_NAME: Final = "partition.metadata"
QUORUM_STATE_NAME: Final = "quorum-state"
OUT_OF_ELECTION_NAME: Final = "withdrawn"
"""raftlog's, not Kafka's: the reason why the replica of this directory does not vote."""
META_PROPERTIES_NAME: Final = "meta.properties"
RAFTLOG_PROPERTIES_NAME: Final = "raftlog.properties"
"""raftlog's, not Kafka's: properties of an embedded log. Directories without it are not written."""

BOOTSTRAP_ID: Final = SnapshotId(0, 0)

# Kafka writes offsets with 20 digits and epochs with 10; int64 has 19 and int32 has 10.
_BASE_OFFSET = re.compile(r"([0-9]{20})(\.log|\.index|\.timeindex|\.txnindex|\.snapshot)")
_CHECKPOINT = re.compile(r"([0-9]{20})-([0-9]{10})\.checkpoint")
_PARTITION = re.compile(
    r"(?P<topic>[A-Za-z0-9._-]{1,249})-(?P<partition>[0-9]{1,10})"
    r"(\.[A-Za-z0-9]+-(delete|future|stray))?"
)

_INT64_MAX: Final = 2**63 - 1
_INT32_MAX: Final = 2**31 - 1


def offset_name(base_offset: int, suffix: str) -> str:
    """Return the name of a segment's file: the base offset with 20 digits, and the suffix."""
    return f"{base_offset:020d}{suffix}"


def checkpoint_name(snapshot_id: SnapshotId) -> str:
    """Return the name of a snapshot file: end offset (exclusive), then epoch."""
    return f"{snapshot_id}{CHECKPOINT_SUFFIX}"


def parse_offset_name(name: str, suffix: str) -> int | None:
    """Return the base offset in the name of a segment's file with this suffix, else None."""
    match = _BASE_OFFSET.fullmatch(name)
    if match is None or match[2] != suffix or int(match[1]) > _INT64_MAX:
        return None
    return int(match[1])


def parse_checkpoint_name(name: str) -> SnapshotId | None:
    """Return the id in a snapshot file's name, (0, 0) included, else None."""
    match = _CHECKPOINT.fullmatch(name)
    if match is None or int(match[1]) > _INT64_MAX or int(match[2]) > _INT32_MAX:
        return None
    return SnapshotId(epoch=int(match[2]), end_offset=int(match[1]))


def parse_partition_name(name: str) -> TopicPartition | None:
    """Return the topic and partition in a directory's name, else None.

    A directory that is being deleted, moved to another disk or stray has a unique id and that word
    after the name (Kafka: ``LocalLog.logDirNameWithSuffix``, which truncates long topics).
    """
    match = _PARTITION.fullmatch(name)
    if match is None or int(match["partition"]) > _INT32_MAX:
        return None
    return TopicPartition(match["topic"], int(match["partition"]))


@dataclass(frozen=True, slots=True)
class Listing:
    """Files of a log by one directory listing, ascending, without those being deleted.

    ``is_embedded``: an embedded log, whose writers publish its end. ``swapped``: segments that
    exist only under their ``.swap`` name, which the cleaner of an ordinary partition gives to a
    complete new segment while it deletes the old ones.
    """

    segments: tuple[int, ...] = ()
    snapshots: tuple[SnapshotId, ...] = ()
    producer_snapshots: tuple[int, ...] = ()
    swapped: frozenset[int] = frozenset()
    is_embedded: bool = False


def read_listing(names: list[str]) -> Listing:
    """Build a listing from the names in a directory."""
    offsets: dict[str, list[int]] = {LOG_SUFFIX: [], PRODUCER_SNAPSHOT_SUFFIX: []}
    snapshots = []
    swapping = set()
    for name in names:
        if name.endswith(LOG_SUFFIX + SWAP_SUFFIX):
            swapping.add(parse_offset_name(name.removesuffix(SWAP_SUFFIX), LOG_SUFFIX))
        snapshot_id = parse_checkpoint_name(name)
        if snapshot_id is not None and snapshot_id != BOOTSTRAP_ID:
            snapshots.append(snapshot_id)
        for suffix, found in offsets.items():
            base_offset = parse_offset_name(name, suffix)
            if base_offset is not None:
                found.append(base_offset)
    swapped = frozenset(
        base_offset
        for base_offset in swapping
        if base_offset is not None and base_offset not in offsets[LOG_SUFFIX]
    )
    return Listing(
        segments=tuple(sorted({*offsets[LOG_SUFFIX], *swapped})),
        snapshots=tuple(sorted(snapshots)),
        producer_snapshots=tuple(sorted(offsets[PRODUCER_SNAPSHOT_SUFFIX])),
        swapped=swapped,
        is_embedded=RAFTLOG_PROPERTIES_NAME in names,
    )
