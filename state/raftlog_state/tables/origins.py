"""Origin of each row of the state: the record that wrote it.

A change has the origin of the row before it, which closes that row's interval in ``changes``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from raftlog_state.image.delta import RecordChanges
from raftlog_state.image.rows import Entity, Key

from .convert import microseconds


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


@dataclass(slots=True)
class RowOrigins:
    """Origins of the rows of one state. Used by one thread at a time."""

    _origins: dict[Entity, dict[Key, Origin]] = field(
        default_factory=lambda: {entity: {} for entity in Entity}
    )

    def load(self, entity: Entity, keys: Iterable[Key], origins: Iterable[Origin]) -> None:
        """Set the origins of rows of an entity."""
        self._origins[entity].update(zip(keys, origins, strict=True))

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
            created = Origin(*written, record.offset)
            for change in record.changes:
                origins = self._origins[change.entity]
                before = None if change.before is None else origins[change.key]
                befores.append(before)
                if change.after is None:
                    origins.pop(change.key, None)
                elif before is None:
                    origins[change.key] = created
                else:
                    origins[change.key] = Origin(*written, before.created_offset)
        return befores
