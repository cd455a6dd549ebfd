"""The offsets that Spark keeps in a stream's checkpoint: their JSON, version 1.

Rules of this file:

1. Spark compares the JSON text, so the keys have one order, and a stream that has nothing new gives
   back the very object it was given.
2. An end says where its own batch began. Spark does not keep the initial offset and asks for it
   again after a restart; whoever trusted that answer would lose records.
3. Keys may be added by later versions, never moved; a version above ours is refused.

The JSON: ``{"v": 1, "offset": end, "epoch": e, "from": start, "cluster": id}``, and behind it, only
where they say something, ``"snapshot": "<end>-<epoch>"``, ``"initial": true``, ``"lost": true``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final

from raftlog.types import SnapshotId

from .data_loss import DataLoss, data_loss

VERSION: Final = 1
FROM_SPARK: Final = -1
"""Stands for the start of a batch where only Spark knows it."""

_SNAPSHOT_ID: Final = re.compile(r"(\d{1,19})-(\d{1,10})", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOffset:
    """Where a micro-batch ends.

    Invariants:

    1. ``offset`` is exclusive; ``epoch`` is the leader epoch of the record before it, -1 if none.
    2. ``start_offset`` is where this batch began; the batch is ``[start_offset, offset)``.
    3. ``snapshot`` names the checkpoint whose rows come first in this batch.
    4. ``initial`` marks the place where a stream begins, before any row; its ``snapshot`` is then
       the checkpoint that is still to come.
    5. ``lost`` says that the batch begins elsewhere than its predecessor ended, because records
       were gone and ``failOnDataLoss`` was false.
    """

    offset: int
    epoch: int
    start_offset: int
    cluster_id: str | None
    snapshot: SnapshotId | None = None
    initial: bool = False
    lost: bool = False

    def to_json(self) -> dict[str, Any]:
        """The dictionary that Spark writes down, keys in their fixed order."""
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
        return written

    @classmethod
    def from_json(cls, written: object, *, path: str) -> StreamOffset:
        """Read what a checkpoint holds; ``path`` is the log's, for the error.

        Raises:
            DataLossError: CHECKPOINT_MISMATCH if this is not an offset of this source, or one of
                a later version.
        """
        if not isinstance(written, dict):
            raise _mismatch(path, "an offset in the checkpoint is not a JSON object")
        version = _whole(written.get("v"))
        if version is None or version < 1:
            raise _mismatch(path, "an offset in the checkpoint is not one of this source")
        if version > VERSION:
            raise _mismatch(
                path,
                f"the checkpoint was written by a later version of this source (offsets of "
                f"version {version}, this one knows {VERSION})",
            )
        offset, epoch = _whole(written.get("offset")), _whole(written.get("epoch"))
        start_offset, cluster = _whole(written.get("from")), written.get("cluster")
        if (
            offset is None
            or epoch is None
            or start_offset is None
            or not isinstance(cluster, str | None)
        ):
            raise _mismatch(path, "an offset in the checkpoint lacks a number or its cluster")
        return cls(
            offset=offset,
            epoch=epoch,
            start_offset=start_offset,
            cluster_id=cluster,
            snapshot=_snapshot_id(written.get("snapshot"), path),
            initial=written.get("initial") is True,
            lost=written.get("lost") is True,
        )


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _snapshot_id(written: object, path: str) -> SnapshotId | None:
    if written is None:
        return None
    match = _SNAPSHOT_ID.fullmatch(written) if isinstance(written, str) else None
    if match is None:
        raise _mismatch(path, "the name of a checkpoint file in the stream's offsets is damaged")
    return SnapshotId(end_offset=int(match[1]), epoch=int(match[2]))


def _mismatch(path: str, reason: str) -> Exception:
    return data_loss(DataLoss.CHECKPOINT_MISMATCH, path=path, reason=reason)
