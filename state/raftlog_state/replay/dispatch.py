"""Replay of one record: the position and the state that it is replayed at and into.

The functions dispatch to the replay function of the record's type. The replay of a record that may
change many rows has steps.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Protocol, TypeVar

from raftlog_state.errors import ReplayError
from raftlog_state.image import Entity, Group, Key, Row
from raftlog_state.records import MetadataRecord
from raftlog_state.steps import Steps

R = TypeVar("R", bound=Row)


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


class Rows(Protocol):
    """Rows by entity and key, to read."""

    def find(self, kind: type[R], *key: int | str) -> R | None:
        """Return the current row by its type, or None."""
        ...

    def group(self, group: Group) -> tuple[Key, ...]:
        """Return the current keys of a group's rows (see ``image.group_of``)."""
        ...

    def keys(self, entity: Entity) -> list[Key]:
        """Return all current keys of an entity, in time linear in their number."""
        ...


class ReplayState(Rows, Protocol):
    """Rows by entity and key.

    ``MetadataDelta`` writes over an image, and records each change. ``ControllerState`` is the one
    state of a controller, and reverts to earlier offsets.
    """

    def put(self, row: Row) -> None:
        """Create or replace a row."""
        ...

    def replace(self, before: R, after: R) -> None:
        """Replace the current row ``before`` by another with the same key."""
        ...

    def delete(self, entity: Entity, key: Key) -> bool:
        """Delete a row; return False if there was none."""
        ...


@functools.singledispatch
def replay(record: MetadataRecord, state: ReplayState, at: Position) -> None:
    """Apply a record to ``state``.

    Raises ``ReplayError``, without writing, if the record contradicts the state before it: an
    unknown topic, partition or broker, or another broker epoch.

    Source: Kafka ``MetadataDelta.replay``, with the controller's stricter checks where the broker's
    code would hide a contradiction.
    """
    raise contradiction(record, at, "it is a transaction marker, which changes no row by itself")


@functools.singledispatch
def replay_in_steps(record: MetadataRecord, state: ReplayState, at: Position) -> Steps:
    """Apply a record as ``replay`` does, or return the steps that do so, before the first one runs.

    Only the first step raises ``ReplayError``.
    """
    replay(record, state, at)
    return None
