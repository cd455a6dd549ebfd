"""Position of a replayed record in the log, and the error of a record that cannot be replayed."""

from __future__ import annotations

from dataclasses import dataclass

from raftlog_state.errors import ReplayError
from raftlog_state.records import MetadataRecord


@dataclass(frozen=True, slots=True)
class Position:
    """Position of a record: its ``offset``, and the ``visible_offset`` at which it takes effect
    (the end marker of its transaction, else ``offset``)."""

    offset: int
    visible_offset: int
    leader_epoch: int
    timestamp_ms: int


def contradiction(record: MetadataRecord, at: Position, reason: str) -> ReplayError:
    """Return the error for a record that contradicts the state before it."""
    return ReplayError(offset=at.offset, record=record.schema.name, reason=reason)
