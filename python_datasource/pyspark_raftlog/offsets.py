"""Offsets in a stream's checkpoint: their JSON, version 1.

``{"v": 1, "offset": end, "epoch": e, "from": start, "cluster": id}``, followed, if they apply, by
``"snapshot": "<end>-<epoch>"``, ``"initial": true``, ``"lost": true``.

Invariants:

1. Spark compares the JSON text: the order of keys is fixed, and a stream without new records
   returns the start offset unchanged.
2. An end offset contains the start of its own batch. Spark does not store the initial offset, and
   requests it again after a restart, when it may be another one: using it would lose records.
3. Later versions may add keys, but not reorder them. A later version is rejected.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final

from raftlog.types import SnapshotId
from raftlog_state.source_rows.data_loss import DataLoss

from .errors import data_loss

VERSION: Final = 1
FROM_SPARK: Final = -1
"""Start of a batch that is unknown here, and passed to ``partitions`` by Spark."""

_SNAPSHOT_ID: Final = re.compile(r"(\d{1,19})-(\d{1,10})", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOffset:
    """End of a micro-batch.

    The batch is ``[start_offset, offset)``, after the rows of ``snapshot``, if any. ``epoch`` is
    the leader epoch of the record before ``offset``, or -1. ``initial``: the start of a stream,
    before any row, including those of ``snapshot``. ``lost``: the batch does not begin at the end
    of its predecessor, because records were lost and ``failOnDataLoss`` was false.
    """

    offset: int
    epoch: int
    start_offset: int
    cluster_id: str | None
    snapshot: SnapshotId | None = None
    initial: bool = False
    lost: bool = False

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
        return written

    @classmethod
    def from_json(cls, written: object, *, path: str) -> StreamOffset:
        """Parse an offset of a checkpoint; ``path`` of the log is for the error.

        Raises:
            DataLossError: CHECKPOINT_MISMATCH: not an offset of this source, or of a later version.
        """
        if not isinstance(written, dict):
            raise _mismatch(path, "an offset in the checkpoint is not a JSON object")
        version = _whole(written.get("v"))
        if version is None or version < 1:
            raise _mismatch(path, "an offset in the checkpoint was not written by this source")
        if version > VERSION:
            raise _mismatch(
                path,
                f"the checkpoint was written by a later version of this source (offset version "
                f"{version}, supported is {VERSION})",
            )
        offset, epoch = _whole(written.get("offset")), _whole(written.get("epoch"))
        start_offset, cluster = _whole(written.get("from")), written.get("cluster")
        if (
            offset is None
            or epoch is None
            or start_offset is None
            or not isinstance(cluster, str | None)
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
        )


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
