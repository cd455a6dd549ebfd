"""Changes over an immutable image, recorded as whole rows before and after (Kafka: MetadataDelta).

A record that names a row changes it, even to equal values. Deleting a row that does not exist is
not a change. ``apply()`` copies only the maps that changed, and only the changes of large maps.

Invariant, asserted by ``apply()``: an image has as many rows as the one before, plus the created
rows, minus the deleted ones.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from itertools import compress
from operator import attrgetter, ne
from typing import Any, Final, TypeVar, cast

from raftlog.fast_dataclass import fast_dataclass
from raftlog.printable import compact_json
from raftlog_state.steps import complete, for_each_in_steps

from .layered_map import updated
from .metadata_image import Group, Groups, MetadataImage, Quorum, RowMaps, group_of, next_digest_sum
from .row_schema import row_schema
from .rows import ROW_TYPES, STATE_ENTITIES, Entity, Key, Row

R = TypeVar("R", bound=Row)


class Op(StrEnum):
    """Operation on a row, in Debezium's letters."""

    CREATE = "c"
    UPDATE = "u"
    DELETE = "d"
    READ = "r"
    """The row was loaded from a snapshot."""


@dataclass(frozen=True, slots=True)
class RowChange:
    """One row before and after: ``before`` is None if it was created, ``after`` if deleted."""

    entity: Entity
    key: Key
    op: Op
    before: Row | None
    after: Row | None

    @property
    def changed(self) -> tuple[str, ...]:
        """Names of the columns that differ; empty if ``before`` or ``after`` is None."""
        before, after = self.before, self.after
        if before is None or after is None:
            return ()
        names, values = _FIELDS[self.entity]
        return tuple(compress(names, map(ne, values(before), values(after))))

    @property
    def key_json(self) -> str:
        """The key as compact JSON, an array: ``["topic id",0]``."""
        return key_json(self.key)


@dataclass(frozen=True, slots=True)
class RecordChanges:
    """Row changes of one record.

    ``offset`` is the record's own, ``visible_offset`` that of the end marker of its metadata
    transaction (its own without one). Rows of a snapshot have the offset of the last record that
    the snapshot contains, and ``ordinal`` is the record's index in the snapshot (0 first).
    """

    offset: int
    visible_offset: int
    leader_epoch: int
    timestamp_ms: int
    record_type: str
    changes: tuple[RowChange, ...]
    ordinal: int | None = None


def _fields_of(entity: Entity) -> tuple[tuple[str, ...], Callable[[Row], tuple[Any, ...]]]:
    """Return the names of a row's fields, and the function that returns their values."""
    names = tuple(entry.name for entry in row_schema(ROW_TYPES[entity]))
    if len(names) == 1:
        (name,) = names
        return names, lambda row: (getattr(row, name),)
    return names, attrgetter(*names)


KEYS_CACHED_MAX: Final = 65_536
"""Number of cached key texts: most changes concern rows that have changed before."""
_FIELDS: Final = {entity: _fields_of(entity) for entity in Entity}
_change = fast_dataclass(RowChange)
_NOT_WRITTEN: Final = object()
_WRITTEN_PER_STEP: Final = 20_000
"""Rows and groups of an image that are created in one step, which takes some 10 ms."""


def key_json(key: Sequence[int | str]) -> str:
    """Return a row's key as compact JSON, an array: ``["topic id",0]``."""
    return _key_json(tuple(key))


@lru_cache(KEYS_CACHED_MAX)
def _key_json(key: Key) -> str:
    return compact_json(key)


def _no_writes() -> dict[Entity, dict[Key, Row | None]]:
    return {entity: {} for entity in Entity}


@dataclass(slots=True)
class MetadataDelta:
    """Image with uncommitted writes over it. Not thread-safe."""

    image: MetadataImage
    _written: dict[Entity, dict[Key, Row | None]] = field(default_factory=_no_writes)
    _groups: dict[Group, dict[Key, None]] = field(default_factory=dict)
    _changes: list[RowChange] = field(default_factory=list)
    _added_count: int = 0
    """Rows created minus rows deleted."""

    def get(self, entity: Entity, key: Key) -> Row | None:
        """Return the current row, or None."""
        row = self._written[entity].get(key, _NOT_WRITTEN)
        return self.image.get(entity, key) if row is _NOT_WRITTEN else cast("Row | None", row)

    def find(self, kind: type[R], *key: int | str) -> R | None:
        """Return the current row by its type, or None: ``delta.find(BrokerRow, 1)``."""
        return cast("R | None", self.get(kind.ENTITY, key))

    def group(self, group: Group) -> tuple[Key, ...]:
        """Return the current keys of a group's rows (see ``image.group_of``)."""
        keys = self._groups.get(group)
        return self.image.group(group) if keys is None else tuple(keys)

    def keys(self, entity: Entity) -> list[Key]:
        """Return all current keys of an entity, in time linear in their number."""
        found = dict.fromkeys(self.image.map(entity))
        for key, row in self._written[entity].items():
            if row is None:
                found.pop(key, None)
            else:
                found[key] = None
        return list(found)

    def put(self, row: Row) -> None:
        """Create or replace a row."""
        entity, key = row.ENTITY, row.key
        before = self.get(entity, key)
        op = Op.CREATE if before is None else Op.UPDATE
        self._write(_change(entity, key, op, before, row))

    def replace(self, before: R, after: R) -> None:
        """Replace the current row ``before`` by another with the same key."""
        entity = before.ENTITY
        key = before.key
        self._changes.append(_change(entity, key, Op.UPDATE, before, after))
        self._written[entity][key] = after

    def delete(self, entity: Entity, key: Key) -> bool:
        """Delete a row; return False if there was none."""
        before = self.get(entity, key)
        if before is None:
            return False
        self._write(_change(entity, key, Op.DELETE, before, None))
        return True

    def take_changes(self) -> tuple[RowChange, ...]:
        """Return the changes since the last call, in order, and clear them."""
        taken = tuple(self._changes)
        self._changes.clear()
        return taken

    @property
    def untaken_count(self) -> int:
        """Number of changes since the last call of ``take_changes``."""
        return len(self._changes)

    def undo(self, changes: Iterable[RowChange]) -> None:
        """Revert changes, given newest first, without recording them."""
        for change in changes:
            self._set(change.entity, change.key, change.after, change.before)
        self._changes.clear()

    def is_empty(self) -> bool:
        """Return whether nothing was written."""
        return not any(self._written.values())

    def apply(
        self, *, offset: int, leader_epoch: int, timestamp_ms: int, quorum: Quorum | None = None
    ) -> MetadataImage:
        """Return the next image, at ``offset`` (inclusive); ``self.image`` does not change."""
        return complete(
            self.apply_in_steps(
                offset=offset, leader_epoch=leader_epoch, timestamp_ms=timestamp_ms, quorum=quorum
            )
        )

    def apply_in_steps(
        self, *, offset: int, leader_epoch: int, timestamp_ms: int, quorum: Quorum | None = None
    ) -> Generator[None, None, MetadataImage]:
        """Return the next image, as ``apply``, in steps; nothing is written between them."""
        image = self.image
        quorum = image.quorum if quorum is None else quorum
        if self.is_empty():
            return image.at(
                offset=offset, leader_epoch=leader_epoch, timestamp_ms=timestamp_ms, quorum=quorum
            )
        maps = yield from self._next_maps()
        groups = yield from self._next_groups()
        return MetadataImage(
            offset=offset,
            leader_epoch=leader_epoch,
            timestamp_ms=timestamp_ms,
            quorum=quorum,
            maps=maps,
            _groups=groups,
            _digest_sum=self._next_digest_sum(),
        )

    def _write(self, change: RowChange) -> None:
        self._changes.append(change)
        self._set(change.entity, change.key, change.before, change.after)

    def _set(self, entity: Entity, key: Key, before: Row | None, after: Row | None) -> None:
        if after is None and self.image.get(entity, key) is None:
            self._written[entity].pop(key, None)  # else memory grows with all rows that ever were
        else:
            self._written[entity][key] = after
        if before is None and after is not None:
            self._added_count += 1
            group = group_of(after)
            if group is not None:
                self._writable_group(group)[key] = None
        elif before is not None and after is None:
            self._added_count -= 1
            group = group_of(before)
            if group is not None:
                keys = self._writable_group(group)
                keys.pop(key, None)
                if not keys and not self.image.group(group):
                    del self._groups[group]

    def _writable_group(self, group: Group) -> dict[Key, None]:
        keys = self._groups.get(group)
        if keys is None:
            keys = self._groups[group] = dict.fromkeys(self.image.group(group))
        return keys

    def _next_maps(self) -> Generator[None, None, RowMaps]:
        maps = dict(self.image.maps)
        added_count = 0
        for entity, written in self._written.items():
            if not written:
                continue
            before = maps.get(entity, {})
            # without rows before, none is deleted
            maps[entity] = (
                updated(before, written) if before else cast("dict[Key, Row]", dict(written))
            )
            added_count += len(maps[entity]) - len(before)
            if len(written) >= _WRITTEN_PER_STEP:
                yield
        assert added_count == self._added_count, (
            f"the image has {added_count} rows more, expected {self._added_count}"
        )
        return maps

    def _next_groups(self) -> Generator[None, None, Groups]:
        if not self._groups:
            return self.image.groups()
        written: dict[Group, tuple[Key, ...] | None] = {}

        def add(element: tuple[Group, dict[Key, None]]) -> None:
            written[element[0]] = tuple(element[1]) or None

        yield from for_each_in_steps(self._groups.items(), add, _WRITTEN_PER_STEP)
        before = self.image.groups()
        # without groups before, none is deleted
        return updated(before, written) if before else cast("Groups", written)

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
