"""Changes over an image: what replay writes into, and what tables and people see.

Rules of this file:

1. A delta reads through to its image and never touches it.
2. Every write is a change with the whole row before and after; a record that names a row changes
   it, even to the same values; deleting what is not there is no change.
3. ``apply()`` copies only the maps that changed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Final, TypeVar, cast

from .fast_dataclass import fast_dataclass
from .image import (
    STATE_ENTITIES,
    Entity,
    Group,
    Groups,
    Key,
    MetadataImage,
    Quorum,
    Row,
    RowMaps,
    group_of,
    next_digest_sum,
)

R = TypeVar("R", bound=Row)


class Op(StrEnum):
    """What happened to a row, in Debezium's letters."""

    CREATE = "c"
    UPDATE = "u"
    DELETE = "d"
    READ = "r"
    """The row stood in a checkpoint that was loaded."""


@dataclass(frozen=True, slots=True)
class RowChange:
    """One row, before and after: ``before`` None if it was not there, ``after`` if it is gone."""

    entity: Entity
    key: Key
    op: Op
    before: Row | None
    after: Row | None

    @property
    def changed(self) -> tuple[str, ...]:
        """The columns that differ between before and after; none where one of them is None."""
        before, after = self.before, self.after
        if before is None or after is None:
            return ()
        names = (f.name for f in fields(after))
        return tuple(name for name in names if getattr(before, name) != getattr(after, name))

    @property
    def key_json(self) -> str:
        """The key as compact JSON, an array: ``["topic id",0]``."""
        return json.dumps(self.key, separators=(",", ":"), ensure_ascii=False)


@dataclass(frozen=True, slots=True)
class RecordChanges:
    """What one record did to the state.

    ``offset`` is where the record was written, ``visible_offset`` where it took effect: the end
    marker of its metadata transaction, else its own. Rows of a checkpoint have the offset of the
    last record that it contains, and ``ordinal`` is their place among its records (0 first).
    """

    offset: int
    visible_offset: int
    leader_epoch: int
    timestamp_ms: int
    record_type: str
    changes: tuple[RowChange, ...]
    ordinal: int | None = None


_change = fast_dataclass(RowChange)
_NOT_WRITTEN: Final = object()


def _no_writes() -> dict[Entity, dict[Key, Row | None]]:
    return {entity: {} for entity in Entity}


@dataclass(slots=True)
class MetadataDelta:
    """State being written: an image and what was put over it. Owned by one thread."""

    image: MetadataImage
    _written: dict[Entity, dict[Key, Row | None]] = field(default_factory=_no_writes)
    _groups: dict[Group, dict[Key, None]] = field(default_factory=dict)
    _changes: list[RowChange] = field(default_factory=list)

    def get(self, entity: Entity, key: Key) -> Row | None:
        """The row as it is now, or None."""
        row = self._written[entity].get(key, _NOT_WRITTEN)
        return self.image.get(entity, key) if row is _NOT_WRITTEN else cast("Row | None", row)

    def find(self, kind: type[R], *key: int | str) -> R | None:
        """The row as it is now, by its type: ``delta.find(BrokerRow, 1)``."""
        return cast("R | None", self.get(kind.ENTITY, key))

    def group(self, group: Group) -> tuple[Key, ...]:
        """The keys of the rows of a group as they are now (see ``image.group_of``)."""
        keys = self._groups.get(group)
        return self.image.group(group) if keys is None else tuple(keys)

    def keys(self, entity: Entity) -> list[Key]:
        """All keys of an entity as they are now: costs as much as the entity is large."""
        found = dict.fromkeys(self.image.map(entity))
        for key, row in self._written[entity].items():
            if row is None:
                found.pop(key, None)
            else:
                found[key] = None
        return list(found)

    def put(self, row: Row) -> None:
        """Make or replace a row."""
        entity, key = row.ENTITY, row.key
        before = self.get(entity, key)
        op = Op.CREATE if before is None else Op.UPDATE
        self._write(_change(entity, key, op, before, row))

    def replace(self, before: R, after: R) -> None:
        """Replace a row that was just found by another with the same key."""
        entity = before.ENTITY
        key = before.key
        self._changes.append(_change(entity, key, Op.UPDATE, before, after))
        self._written[entity][key] = after

    def delete(self, entity: Entity, key: Key) -> bool:
        """Remove a row; False if there was none."""
        before = self.get(entity, key)
        if before is None:
            return False
        self._write(_change(entity, key, Op.DELETE, before, None))
        return True

    def take_changes(self) -> tuple[RowChange, ...]:
        """The changes since the last call, in order."""
        taken = tuple(self._changes)
        self._changes.clear()
        return taken

    def undo(self, changes: Iterable[RowChange]) -> None:
        """Take back changes, given newest first; nothing is recorded."""
        for change in changes:
            self._set(change.entity, change.key, change.after, change.before)
        self._changes.clear()

    def is_empty(self) -> bool:
        """Whether nothing was ever written."""
        return not any(self._written.values())

    def apply(
        self, *, offset: int, leader_epoch: int, timestamp_ms: int, quorum: Quorum | None = None
    ) -> MetadataImage:
        """The next image, at ``offset`` (inclusive). The old one stays as it is."""
        image = self.image
        quorum = image.quorum if quorum is None else quorum
        if self.is_empty():
            return image.at(
                offset=offset, leader_epoch=leader_epoch, timestamp_ms=timestamp_ms, quorum=quorum
            )
        return MetadataImage(
            offset=offset,
            leader_epoch=leader_epoch,
            timestamp_ms=timestamp_ms,
            quorum=quorum,
            maps=self._next_maps(),
            _groups=self._next_groups(),
            _digest_sum=self._next_digest_sum(),
        )

    def _write(self, change: RowChange) -> None:
        self._changes.append(change)
        self._set(change.entity, change.key, change.before, change.after)

    def _set(self, entity: Entity, key: Key, before: Row | None, after: Row | None) -> None:
        self._written[entity][key] = after
        if before is None and after is not None:
            group = group_of(after)
            if group is not None:
                self._writable_group(group)[key] = None
        elif before is not None and after is None:
            group = group_of(before)
            if group is not None:
                self._writable_group(group).pop(key, None)

    def _writable_group(self, group: Group) -> dict[Key, None]:
        keys = self._groups.get(group)
        if keys is None:
            keys = self._groups[group] = dict.fromkeys(self.image.group(group))
        return keys

    def _next_maps(self) -> RowMaps:
        maps = dict(self.image.maps)
        for entity, written in self._written.items():
            if not written:
                continue
            rows = dict(maps.get(entity, {}))
            for key, row in written.items():
                if row is None:
                    rows.pop(key, None)
                else:
                    rows[key] = row
            maps[entity] = rows
        return maps

    def _next_groups(self) -> Groups:
        if not self._groups:
            return self.image.groups()
        groups = dict(self.image.groups())
        for group, keys in self._groups.items():
            if keys:
                groups[group] = tuple(keys)
            else:
                groups.pop(group, None)
        return groups

    def _next_digest_sum(self) -> int | None:
        known = self.image.known_digest_sum
        if known is None:
            return None
        removed: list[Row] = []
        added: list[Row] = []
        for entity in STATE_ENTITIES:
            for key, row in self._written[entity].items():
                before = self.image.get(entity, key)
                if before is not None:
                    removed.append(before)
                if row is not None:
                    added.append(row)
        return next_digest_sum(known, removed, added)


def diff(before: MetadataImage, after: MetadataImage) -> list[RowChange]:
    """The rows of state that differ, by entity and key; rows in both and equal are left out."""
    return list(_differences(before, after))


def _differences(before: MetadataImage, after: MetadataImage) -> Iterator[RowChange]:
    for entity in STATE_ENTITIES:
        old, new = before.map(entity), after.map(entity)
        for key in sorted(old.keys() | new.keys()):
            was, now = old.get(key), new.get(key)
            if was == now:
                continue
            op = Op.CREATE if was is None else Op.DELETE if now is None else Op.UPDATE
            yield RowChange(entity, key, op, was, now)
