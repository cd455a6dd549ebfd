"""Offsets in a stream's checkpoint: their JSON, version 1 for one log and 2 for several.

Version 1: ``{"v": 1, "offset": end, "epoch": e, "from": start, "cluster": id}``, followed, if they
apply, by ``"snapshot": "<end>-<epoch>"``, ``"initial": true``, ``"lost": true``, ``"topic": id``.

Version 2: ``{"v": 2, "logs": {<cluster id>: <offset of version 1>}}``, sorted by cluster id. For a
pattern of partitions, the keys are their names, such as ``__consumer_offsets-12``. A log without
rows in a batch keeps its previous offset, and so does a log that is no longer read. A stream of
several clusters can continue a version 1 that has a cluster id, as that log's offset.

Invariants:

1. Spark compares the JSON text: the order of keys is fixed, and a stream without new records
   returns the start offset unchanged.
2. An end offset contains the start of its own batch. Spark does not store the initial offset. It
   requests it again after a restart, when it may differ, so using it would lose records.
3. Later versions may add keys, but not reorder them. A later version is rejected.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from raftlog.types import SnapshotId
from raftlog_state.source_rows.data_loss import DataLoss

from .errors import data_loss

VERSION: Final = 1
SOURCES_VERSION: Final = 2
FROM_SPARK: Final = -1
"""Start of a batch that is unknown here; Spark passes it to ``partitions``."""

_SNAPSHOT_ID: Final = re.compile(r"(\d{1,19})-(\d{1,10})", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOffset:
    """End of a micro-batch.

    The batch is ``[start_offset, offset)``, after the rows of ``snapshot``, if any. ``epoch`` is
    the leader epoch of the record before ``offset``, or -1. ``initial``: the start of a stream,
    before any row, including those of ``snapshot``. ``lost``: the batch does not begin at the end
    of its predecessor, because records were lost and ``failOnDataLoss`` was false. ``topic_id`` is
    None if it is unknown, or that of all logs of cluster metadata.
    """

    offset: int
    epoch: int
    start_offset: int
    cluster_id: str | None
    snapshot: SnapshotId | None = None
    initial: bool = False
    lost: bool = False
    topic_id: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the dictionary that Spark stores, with keys in their fixed order."""
        written: dict[str, Any] = {
            "v": VERSION,
            "offset": self.offset,
            "epoch": self.epoch,
            "from": self.start_offset,
            "cluster": self.cluster_id,
        }
        if self.snapshot is not None:
            written["snapshot"] = f"{self.snapshot.end_offset}-{self.snapshot.epoch}"
        if self.initial:
            written["initial"] = True
        if self.lost:
            written["lost"] = True
        if self.topic_id is not None:
            written["topic"] = self.topic_id
        return written

    @classmethod
    def from_json(cls, written: object, *, path: str) -> StreamOffset:
        """Parse an offset of a checkpoint. ``path``: the log's path, for the error.

        Raises:
            DataLossError: CHECKPOINT_MISMATCH: not an offset of this source, or of a later version.
        """
        if not isinstance(written, dict):
            raise _mismatch(path, "an offset in the checkpoint is not a JSON object")
        version = _version(written, path)
        if version == SOURCES_VERSION:
            raise _mismatch(path, "the checkpoint is that of a stream with the option sources")
        offset, epoch = _whole(written.get("offset")), _whole(written.get("epoch"))
        start_offset, cluster = _whole(written.get("from")), written.get("cluster")
        topic_id = written.get("topic")
        if (
            offset is None
            or epoch is None
            or start_offset is None
            or not isinstance(cluster, str | None)
            or not isinstance(topic_id, str | None)
        ):
            raise _mismatch(path, "an offset in the checkpoint has missing or invalid fields")
        return cls(
            offset=offset,
            epoch=epoch,
            start_offset=start_offset,
            cluster_id=cluster,
            snapshot=_snapshot_id(written.get("snapshot"), path),
            initial=written.get("initial") is True,
            lost=written.get("lost") is True,
            topic_id=topic_id,
        )


KnownOffsets: TypeAlias = dict[str, tuple[object, StreamOffset]]
"""Offsets by cluster id, with the JSON that was parsed."""


@dataclass(frozen=True, slots=True)
class SourcesOffset:
    """End of a micro-batch of several logs: the end in each log, by cluster id."""

    logs: Mapping[str, StreamOffset]

    def to_json(self) -> dict[str, Any]:
        """Return the dictionary that Spark stores, with keys in their fixed order."""
        logs = {cluster_id: self.logs[cluster_id].to_json() for cluster_id in sorted(self.logs)}
        return {"v": SOURCES_VERSION, "logs": logs}

    @classmethod
    def from_json(cls, written: object, known: KnownOffsets, *, path: str) -> SourcesOffset:
        """Parse an offset of a checkpoint; ``path`` is for the error.

        ``known`` contains the parts that were parsed last, since only a few of many logs change
        between two batches.

        Raises:
            DataLossError: CHECKPOINT_MISMATCH: not an offset of this source, or of a later version,
                or of one log without a cluster id.
        """
        if not isinstance(written, dict):
            raise _mismatch(path, "an offset in the checkpoint is not a JSON object")
        if _version(written, path) == VERSION:
            single = StreamOffset.from_json(written, path=path)
            if single.cluster_id is None:
                reason = "the checkpoint is that of a stream of one log without a cluster id"
                raise _mismatch(path, reason)
            return cls({single.cluster_id: single})
        logs = written.get("logs")
        if not isinstance(logs, dict):
            raise _mismatch(path, "an offset in the checkpoint has missing or invalid fields")
        for cluster_id, part in logs.items():
            if cluster_id not in known or known[cluster_id][0] != part:
                known[cluster_id] = part, StreamOffset.from_json(part, path=path)
        return cls({cluster_id: known[cluster_id][1] for cluster_id in logs})

    def batches_after(self, before: SourcesOffset) -> Mapping[str, StreamOffset]:
        """Return the ends of the logs that have rows between ``before`` and this offset."""
        return {
            cluster_id: end
            for cluster_id, end in self.logs.items()
            if not end.initial and end != before.logs.get(cluster_id)
        }


def _version(written: dict[str, Any], path: str) -> int:
    version = _whole(written.get("v"))
    if version is None or version < 1:
        raise _mismatch(path, "an offset in the checkpoint was not written by this source")
    if version > SOURCES_VERSION:
        raise _mismatch(
            path,
            f"the checkpoint was written by a later version of this source (offset version "
            f"{version}, supported is {SOURCES_VERSION})",
        )
    return version


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _snapshot_id(written: object, path: str) -> SnapshotId | None:
    if written is None:
        return None
    match = _SNAPSHOT_ID.fullmatch(written) if isinstance(written, str) else None
    if match is None:
        raise _mismatch(path, "an offset in the checkpoint has an invalid snapshot id")
    return SnapshotId(end_offset=int(match[1]), epoch=int(match[2]))


def _mismatch(path: str, reason: str) -> Exception:
    return data_loss(DataLoss.CHECKPOINT_MISMATCH, path=path, reason=reason)
