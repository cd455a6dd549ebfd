"""What it means that records of a stream are gone: a fixed list of conditions, and their remedies.

The names are stable: they stand in the error's text as ``[RAFTLOG_DATA_LOSS.<condition>]``, and a
text is all that is left of an error once it has passed Spark.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final

from raftlog.errors import DataLossError


class DataLoss(enum.StrEnum):
    """Why records that were to be read cannot be read."""

    OFFSETS_DELETED = "OFFSETS_DELETED"
    """The log now begins behind the wanted offset: its node deleted old segments."""

    LOG_TRUNCATED = "LOG_TRUNCATED"
    """The log ends before an offset that was already read: its tail was cut, or this is a copy."""

    WRONG_CLUSTER = "WRONG_CLUSTER"
    """The path now holds the log of another cluster."""

    DIVERGED_EPOCH = "DIVERGED_EPOCH"
    """The last record read has another leader epoch now: that part of the log was rewritten."""

    SNAPSHOT_DELETED = "SNAPSHOT_DELETED"
    """The checkpoint file whose rows are to be read again has been deleted."""

    CHECKPOINT_MISMATCH = "CHECKPOINT_MISMATCH"
    """The stream's checkpoint is not one that this source wrote for this stream."""


_NEW_CHECKPOINT: Final = "start a new query with a new checkpointLocation"

_REMEDIES: Final[Mapping[DataLoss, str]] = {
    DataLoss.OFFSETS_DELETED: "read another node's copy, or accept the loss with "
    "failOnDataLoss=false, which goes on at the newest checkpoint or at the log's start",
    DataLoss.LOG_TRUNCATED: "give the path of a newer copy; with failOnDataLoss=false the stream "
    "waits until the log has grown past its place again",
    DataLoss.WRONG_CLUSTER: f"correct the path, or {_NEW_CHECKPOINT}",
    DataLoss.DIVERGED_EPOCH: "what was read behind that point was never committed; accept it with "
    "failOnDataLoss=false, which goes on where the histories part, and mend what was written",
    DataLoss.SNAPSHOT_DELETED: f"{_NEW_CHECKPOINT}, or accept the loss with failOnDataLoss=false, "
    "which goes on at the newest checkpoint",
    DataLoss.CHECKPOINT_MISMATCH: _NEW_CHECKPOINT,
}


def data_loss(condition: DataLoss, *, path: str, reason: str) -> DataLossError:
    """The error for ``condition``, with its remedy."""
    return DataLossError(
        path=path, condition=condition.value, reason=reason, remedy=_REMEDIES[condition]
    )
