"""``SnapshotRegistry``: in-memory snapshots of the collections of one state, by epoch.

A snapshot is created in constant time and stores nothing at first. Its delta receives the former
value of each element that is written before the next snapshot, so memory grows with the number of
changes:

    snapshot 10           a=1
    put a=2, put b=7      delta of 10: a was 1, b was absent
    snapshot 20
    delete a              delta of 20: a was 2

The value at an epoch is the one in the first delta, from its snapshot on, that contains the
element, or otherwise the current one. At 10, ``a`` is 1. At 20, ``a`` is 2 and ``b``, which no
later delta contains, is 7.

Invariants:

1. The epochs of a registry's snapshots increase along the chain.
2. A delta contains each element once, with its value at the snapshot, and the size at the snapshot.
3. Collections write only to the newest snapshot's delta. An older delta changes when the snapshot
   after it is deleted: it receives that delta's elements that it lacks.

Not thread-safe. Epochs are any increasing integers, such as offsets.

Source: Kafka ``SnapshotRegistry``, ``Snapshot``, ``SnapshottableHashTable``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar
from weakref import WeakSet

from raftlog_state.errors import SnapshotEpochError

K = TypeVar("K")

ABSENT: Final = object()
"""The value of an element that a collection does not contain."""


@dataclass(slots=True)
class Delta(Generic[K]):
    """Elements of one table written after a snapshot, with their values at the snapshot."""

    size: int
    values: dict[K, Any] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class Snapshot:
    """The state at an epoch. ``previous`` and ``next`` are the adjacent snapshots.

    ``deltas`` is keyed by table. A deleted snapshot is no longer ``is_live`` and is not read.
    """

    epoch: int
    previous: Snapshot | None = None
    next: Snapshot | None = None
    deltas: dict[SnapshottableTable[Any], Delta[Any]] = field(default_factory=dict)
    is_live: bool = True


class SnapshotRegistry:
    """Snapshots of the collections that were created with this registry."""

    def __init__(self) -> None:
        self._snapshots: dict[int, Snapshot] = {}
        self._newest: Snapshot | None = None
        self._tables: WeakSet[SnapshottableTable[Any]] = WeakSet()

    @property
    def newest(self) -> Snapshot | None:
        """The snapshot with the greatest epoch, or None."""
        return self._newest

    @property
    def epochs(self) -> tuple[int, ...]:
        """The epochs of all snapshots, in order."""
        return tuple(self._snapshots)

    def has_snapshot(self, epoch: int) -> bool:
        """Return whether there is a snapshot at an epoch."""
        return epoch in self._snapshots

    def snapshot(self, epoch: int) -> Snapshot:
        """Return the snapshot at an epoch. Raises ``SnapshotEpochError`` without it."""
        found = self._snapshots.get(epoch)
        if found is None:
            raise SnapshotEpochError(epoch=epoch, epochs=self.epochs, reason="does not exist")
        return found

    def get_or_create_snapshot(self, epoch: int) -> Snapshot:
        """Return the snapshot at an epoch; create it if the epoch is later than all others.

        Raises:
            SnapshotEpochError: there is a later snapshot, and none at the epoch.
        """
        found = self._snapshots.get(epoch)
        if found is not None:
            return found
        newest = self._newest
        if newest is not None and epoch < newest.epoch:
            reason = "cannot be created before a later one"
            raise SnapshotEpochError(epoch=epoch, epochs=self.epochs, reason=reason)
        created = Snapshot(epoch, previous=newest)
        if newest is not None:
            newest.next = created
        self._snapshots[epoch] = self._newest = created
        return created

    def revert_to_snapshot(self, epoch: int) -> None:
        """Restore the state at a snapshot, which is kept; delete the later ones.

        Takes time in proportion to what was written since. Raises ``SnapshotEpochError``.
        """
        target = self.snapshot(epoch)
        reverted = self._newest
        while reverted is not None:
            for table, delta in reverted.deltas.items():
                table.restore(delta)
            if reverted is target:
                break
            previous = reverted.previous
            self._unlink(reverted)
            reverted = previous
        target.deltas = {}

    def delete_snapshot(self, epoch: int) -> None:
        """Delete one snapshot; the others stay readable. Raises ``SnapshotEpochError``."""
        deleted = self.snapshot(epoch)
        before = deleted.previous
        if before is not None:
            for table, delta in deleted.deltas.items():
                older = before.deltas.setdefault(table, delta)
                if older is not delta:
                    for key, value in delta.values.items():
                        older.values.setdefault(key, value)
        self._unlink(deleted)

    def delete_snapshots_up_to(self, epoch: int) -> None:
        """Delete the snapshots before an epoch, exclusive."""
        for oldest in self.epochs:
            if oldest >= epoch:
                return
            self.delete_snapshot(oldest)

    def reset(self) -> None:
        """Delete all snapshots, and all elements of all collections."""
        for epoch in reversed(self.epochs):
            self._unlink(self._snapshots[epoch])
        for table in self._tables:
            table.current.clear()

    def add(self, table: SnapshottableTable[Any]) -> None:
        """Add a new table. It is held by a weak reference."""
        self._tables.add(table)

    def _unlink(self, snapshot: Snapshot) -> None:
        if snapshot.previous is not None:
            snapshot.previous.next = snapshot.next
        if snapshot.next is None:
            self._newest = snapshot.previous
        else:
            snapshot.next.previous = snapshot.previous
        del self._snapshots[snapshot.epoch]
        for table in snapshot.deltas:
            table.forget(snapshot)
        snapshot.deltas = {}
        snapshot.previous = snapshot.next = None  # views of it do not keep the others
        snapshot.is_live = False


class SnapshottableTable(Generic[K]):
    """Elements by key, at present and at each snapshot: the basis of timeline collections.

    ``current`` is always the same dictionary. It is read directly, and written only by ``put`` and
    ``remove``.
    """

    __slots__ = ("__weakref__", "_delta", "_newest", "_registry", "current")

    def __init__(self, registry: SnapshotRegistry) -> None:
        self.current: dict[K, Any] = {}
        self._registry = registry
        self._newest: Snapshot | None = None
        self._delta: Delta[K] | None = None
        """Delta of ``_newest``, while that is the registry's newest snapshot."""
        registry.add(self)

    def put(self, key: K, value: object) -> None:
        """Insert or replace an element."""
        self._keep(key)
        self.current[key] = value

    def load(self, elements: Mapping[K, Any]) -> None:
        """Insert or replace elements, at the speed of a dictionary while there is no snapshot."""
        if self._registry.newest is None:
            self.current.update(elements)
        else:
            for key, value in elements.items():
                self.put(key, value)

    def remove(self, key: K) -> None:
        """Delete an element. Raises ``KeyError`` without it."""
        if key not in self.current:
            raise KeyError(key)
        self._keep(key)
        del self.current[key]

    def value_at(self, key: K, snapshot: Snapshot) -> Any:
        """Return the value of a key at a snapshot, or ``ABSENT``. Raises ``SnapshotEpochError``."""
        for delta in self._deltas_from(snapshot):
            found = delta.values.get(key, self)
            if found is not self:
                return found
        return self.current.get(key, ABSENT)

    def size_at(self, snapshot: Snapshot) -> int:
        """Return the number of elements at a snapshot. Raises ``SnapshotEpochError``."""
        for delta in self._deltas_from(snapshot):
            return delta.size
        return len(self.current)

    def keys(self) -> Iterator[K]:
        """Yield the current keys, except those removed before they are reached.

        Elements may be written meanwhile. New keys are not returned.
        """
        for key in list(self.current):
            if key in self.current:
                yield key

    def keys_at(self, snapshot: Snapshot) -> Iterator[K]:
        """Yield the keys at a snapshot, each once, regardless of writes meanwhile.

        Raises:
            SnapshotEpochError: the snapshot is deleted before the last key.
        """
        seen = set(self.current)
        for key in list(self.current):
            if self.value_at(key, snapshot) is not ABSENT:
                yield key
        removed = {key: None for delta in self._deltas_from(snapshot) for key in delta.values}
        for key in removed:
            if key not in seen and self.value_at(key, snapshot) is not ABSENT:
                yield key

    def copy_at(self, snapshot: Snapshot) -> dict[K, Any]:
        """Return a copy of the elements at a snapshot. Raises ``SnapshotEpochError``."""
        copied = dict(self.current)
        for delta in reversed(list(self._deltas_from(snapshot))):
            _restore(copied, delta)
        return copied

    def restore(self, delta: Delta[K]) -> None:
        """Restore the values of a snapshot. For ``SnapshotRegistry``."""
        _restore(self.current, delta)
        self._newest = self._delta = None

    def forget(self, snapshot: Snapshot) -> None:
        """Drop the reference to a deleted snapshot's delta. For ``SnapshotRegistry``."""
        if self._newest is snapshot:
            self._newest = self._delta = None

    def _keep(self, key: K) -> None:
        """Add the value of a key to the delta of the newest snapshot, unless it has one."""
        newest = self._registry.newest
        if newest is None:
            return
        delta = self._delta if newest is self._newest else newest.deltas.get(self)
        if delta is None:
            delta = newest.deltas[self] = Delta(len(self.current))
        self._newest, self._delta = newest, delta
        if key not in delta.values:
            delta.values[key] = self.current.get(key, ABSENT)

    def _deltas_from(self, snapshot: Snapshot) -> Iterator[Delta[K]]:
        """Yield the table's deltas from a snapshot on."""
        if not snapshot.is_live:
            raise SnapshotEpochError(
                epoch=snapshot.epoch, epochs=self._registry.epochs, reason="was deleted"
            )
        following: Snapshot | None = snapshot
        while following is not None:
            delta = following.deltas.get(self)
            if delta is not None:
                yield delta
            following = following.next


def _restore(elements: dict[K, Any], delta: Delta[K]) -> None:
    for key, value in delta.values.items():
        if value is ABSENT:
            elements.pop(key, None)
        else:
            elements[key] = value
