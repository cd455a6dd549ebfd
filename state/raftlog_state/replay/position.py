"""Where a record stands in the log, and how to say that it contradicts the state before it."""

from __future__ import annotations

from dataclasses import dataclass

from raftlog.errors import ReplayError
from raftlog_state.records import MetadataRecord


@dataclass(frozen=True, slots=True)
class Position:
    """``offset``: where it was written. ``visible_offset``: where it takes effect."""

    offset: int
    visible_offset: int
    leader_epoch: int
    timestamp_ms: int


def contradiction(record: MetadataRecord, at: Position, reason: str) -> ReplayError:
    """The error for a record that cannot follow what was replayed before it."""
    return ReplayError(offset=at.offset, record=record.schema.name, reason=reason)
