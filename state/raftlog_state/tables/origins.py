"""Origin of each row of the state: the record that wrote it.

A change contains the origin of the row before it, which ends that row's interval in ``changes``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from raftlog_state.image.delta import RecordChanges
from raftlog_state.image.rows import Entity, Key

from .convert import microseconds
from .stored_rows import StoredRows

_NOTHING: Final[Mapping[Entity, StoredRows]] = MappingProxyType({})


class Origin(NamedTuple):
    """Record that wrote a row, as in the columns ``_offset``, ``_visible_offset``, and so on.

    ``log_time`` is in microseconds; ``created_offset`` is the offset of the record that created the
    row.
    """

    offset: int
    visible_offset: int
    leader_epoch: int
    log_time: int | None
    created_offset: int


class RowOrigins:
    """Origins of the rows of one state. Used by one thread at a time."""

    def __init__(self, stored: Mapping[Entity, StoredRows] = _NOTHING) -> None:
        """``stored`` are the rows before the first change."""
        self._stored = stored
        self._origins: dict[Entity, dict[Key, Origin]] = {entity: {} for entity in Entity}
        """Origins of changed rows."""

    def get(self, entity: Entity, key: Key) -> Origin:
        """Return the origin of a row."""
        found = self._origins[entity].get(key)
        return Origin(*self._stored[entity].origin(key)) if found is None else found

    def apply(self, record_changes: Iterable[RecordChanges]) -> list[Origin | None]:
        """Apply changes. Return the origin of the row before each row change, None without one."""
        befores: list[Origin | None] = []
        for record in record_changes:
            written = (
                record.offset,
                record.visible_offset,
                record.leader_epoch,
                microseconds(record.timestamp_ms),
            )
            for change in record.changes:
                origins = self._origins[change.entity]
                before = None if change.before is None else self.get(change.entity, change.key)
                befores.append(before)
                if change.after is None:
                    origins.pop(change.key, None)
                else:
                    created_offset = record.offset if before is None else before.created_offset
                    origins[change.key] = Origin(*written, created_offset)
        return befores
