"""Conditions of data loss, and their remedies.

The names are stable: the error's text contains ``[RAFTLOG_DATA_LOSS.<condition>]``, and Spark keeps
only the text of an error.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final

from raftlog.errors import DataLossError


class DataLoss(enum.StrEnum):
    """Reason why records cannot be read."""

    OFFSETS_DELETED = "OFFSETS_DELETED"
    """The log start offset is greater than the requested offset: segments were deleted."""

    LOG_TRUNCATED = "LOG_TRUNCATED"
    """The log ends before an offset that was already read: it was truncated, or is an old copy."""

    WRONG_CLUSTER = "WRONG_CLUSTER"
    """The path now contains the log of another cluster."""

    DIVERGED_EPOCH = "DIVERGED_EPOCH"
    """The last record read now has another leader epoch: the log was truncated and rewritten."""

    SNAPSHOT_DELETED = "SNAPSHOT_DELETED"
    """The snapshot whose rows are to be read again was deleted."""

    CHECKPOINT_MISMATCH = "CHECKPOINT_MISMATCH"
    """The checkpoint of the stream was not written by this source for this stream."""


_NEW_CHECKPOINT: Final = "start a new query with a new checkpointLocation"

_REMEDIES: Final[Mapping[DataLoss, str]] = {
    DataLoss.OFFSETS_DELETED: "read another node's replica, or accept the loss with "
    "failOnDataLoss=false, which resumes at the newest snapshot or at the log start offset",
    DataLoss.LOG_TRUNCATED: "read a more recent replica; with failOnDataLoss=false the stream "
    "waits until the log end offset has reached its offset again",
    DataLoss.WRONG_CLUSTER: f"correct the path, or {_NEW_CHECKPOINT}",
    DataLoss.DIVERGED_EPOCH: "records read after that offset were never committed; set "
    "failOnDataLoss=false to resume there, and correct the output of the stream",
    DataLoss.SNAPSHOT_DELETED: f"{_NEW_CHECKPOINT}, or accept the loss with failOnDataLoss=false, "
    "which resumes at the newest snapshot",
    DataLoss.CHECKPOINT_MISMATCH: _NEW_CHECKPOINT,
}


def data_loss(condition: DataLoss, *, path: str, reason: str) -> DataLossError:
    """Return the error for ``condition``, with its remedy."""
    return DataLossError(
        path=path, condition=condition.value, reason=reason, remedy=_REMEDIES[condition]
    )
