"""Conditions of data loss. Their names are stable."""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import TypeAlias


class DataLoss(enum.StrEnum):
    """Reason why records cannot be read."""

    OFFSETS_DELETED = "OFFSETS_DELETED"
    """The log start offset is greater than the requested offset: segments were deleted."""

    LOG_TRUNCATED = "LOG_TRUNCATED"
    """The log ends before an offset that was already read: it was truncated, or is an old copy."""

    WRONG_CLUSTER = "WRONG_CLUSTER"
    """The path now contains the log of another cluster."""

    INCONSISTENT_TOPIC_ID = "INCONSISTENT_TOPIC_ID"
    """The log has another topic id: it was deleted and created again."""

    DIVERGED_EPOCH = "DIVERGED_EPOCH"
    """The last record read now has another leader epoch: the log was truncated and rewritten."""

    SNAPSHOT_DELETED = "SNAPSHOT_DELETED"
    """The snapshot whose rows are to be read again was deleted."""

    LOG_MISSING = "LOG_MISSING"
    """The log of planned records was deleted, or is not one of the stream's sources any more."""

    CHECKPOINT_MISMATCH = "CHECKPOINT_MISMATCH"
    """The checkpoint of the stream was not written by this source for this stream."""


OnLoss: TypeAlias = Callable[[DataLoss, str], None]
"""Handler of lost records: condition and reason. It raises, or returns to continue."""
