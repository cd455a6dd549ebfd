"""The names of a log's files, both ways (Kafka: ``LogFileUtils``, ``Snapshots``).

Rules of this file:

1. A name that is not exactly Kafka's is not a file of the log: ``.deleted``, ``.part``,
   ``.cleaned`` and whatever else lies in the directory is left out, never an error.
2. The snapshot id (0, 0) is the bootstrap checkpoint: local, uncommitted, not a snapshot (KIP-853).
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
"""Ours, not Kafka's: why the replica of this directory does not vote."""
META_PROPERTIES_NAME: Final = "meta.properties"
RAFTLOG_PROPERTIES_NAME: Final = "raftlog.properties"
"""Ours, not Kafka's: what an embedded log is. A directory without it is never written."""

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
    """The name of a segment's file: 20 digits and its suffix."""
    return f"{base_offset:020d}{suffix}"


def checkpoint_name(snapshot_id: SnapshotId) -> str:
    """The name of a snapshot's file: end offset (exclusive), then epoch."""
    return f"{snapshot_id}{CHECKPOINT_SUFFIX}"


def parse_offset_name(name: str, suffix: str) -> int | None:
    """The base offset in the name of a segment's file with this suffix, else None."""
    match = _BASE_OFFSET.fullmatch(name)
    if match is None or match[2] != suffix or int(match[1]) > _INT64_MAX:
        return None
    return int(match[1])


def parse_checkpoint_name(name: str) -> SnapshotId | None:
    """The id in a checkpoint's name (the bootstrap's (0, 0) too), else None."""
    match = _CHECKPOINT.fullmatch(name)
    if match is None or int(match[1]) > _INT64_MAX or int(match[2]) > _INT32_MAX:
        return None
    return SnapshotId(epoch=int(match[2]), end_offset=int(match[1]))


def parse_partition_name(name: str) -> TopicPartition | None:
    """The topic and partition that a directory is named after, else None.

    One that is being deleted, moved between disks or belongs to nobody has a unique id and that
    word behind the name (Kafka: ``LocalLog.logDirNameWithSuffix``, which cuts long topics short).
    """
    match = _PARTITION.fullmatch(name)
    if match is None or int(match["partition"]) > _INT32_MAX:
        return None
    return TopicPartition(match["topic"], int(match["partition"]))


@dataclass(frozen=True, slots=True)
class Listing:
    """What one look into a log's directory found; ascending, without what is being deleted.

    ``is_embedded``: it is an embedded log of ours, whose writers say how far it may be read.
    ``swapped``: segments that are there under their ``.swap`` name only. The cleaner of an ordinary
    partition gives a whole new segment that name while it takes the old ones away.
    """

    segments: tuple[int, ...] = ()
    snapshots: tuple[SnapshotId, ...] = ()
    producer_snapshots: tuple[int, ...] = ()
    swapped: frozenset[int] = frozenset()
    is_embedded: bool = False


def read_listing(names: list[str]) -> Listing:
    """Sort the names of a directory into what they are."""
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
