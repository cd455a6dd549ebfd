"""Position of a replayed record in the log, and the error if it cannot be replayed."""

from __future__ import annotations

from dataclasses import dataclass

from raftlog_state.errors import ReplayError
from raftlog_state.records import MetadataRecord


@dataclass(frozen=True, slots=True)
class Position:
    """Position of a record: its ``offset``, and the ``visible_offset`` at which it takes effect.

    The latter is the end marker of its transaction, or ``offset`` outside of transactions.
    """

    offset: int
    visible_offset: int
    leader_epoch: int
    timestamp_ms: int


def contradiction(record: MetadataRecord, at: Position, reason: str) -> ReplayError:
    """Return the error for a record that contradicts the state before it."""
    return ReplayError(offset=at.offset, record=record.schema.name, reason=reason)
