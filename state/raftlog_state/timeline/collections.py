"""``TimelineDict``, ``TimelineSet`` and ``TimelineValue``: state with snapshots.

Each one is read and written like the collection after which it is named. ``at(epoch)`` reads it as
of any snapshot of its registry. Values must not be changed in place.

You may write to a collection while iterating over it: the iteration yields the elements from its
start, except those removed before it reaches them. A view of a snapshot never changes. After the
snapshot is deleted, its views raise ``SnapshotEpochError``.

Source: Kafka ``TimelineHashMap``, ``TimelineHashSet``, ``TimelineObject``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, MutableMapping, MutableSet, Set
from typing import Any, Generic, TypeVar

from .registry import ABSENT, Snapshot, SnapshotRegistry, SnapshottableTable

K = TypeVar("K")
V = TypeVar("V")
T = TypeVar("T")


class TimelineDict(MutableMapping[K, V]):
    """A dictionary with snapshots."""

    __slots__ = ("_current", "_registry", "_table")

    def __init__(self, registry: SnapshotRegistry) -> None:
        self._registry = registry
        self._table: SnapshottableTable[K] = SnapshottableTable(registry)
        self._current: dict[K, V] = self._table.current

    def __repr__(self) -> str:
        return f"TimelineDict({self._current!r})"

    def __getitem__(self, key: K) -> V:
        return self._current[key]

    def __setitem__(self, key: K, value: V) -> None:
        self._table.put(key, value)

    def __delitem__(self, key: K) -> None:
        self._table.remove(key)

    def __iter__(self) -> Iterator[K]:
        return self._table.keys()

    def __len__(self) -> int:
        return len(self._current)

    def __contains__(self, key: object) -> bool:
        return key in self._current

    def load(self, elements: Mapping[K, V]) -> None:
        """Insert or replace elements; faster than ``update`` before the first snapshot."""
        self._table.load(elements)

    def popitem(self) -> tuple[K, V]:
        """Remove and return an element. Raises ``KeyError`` if it is empty."""
        return _taken(self._current, self._table)

    def clear(self) -> None:
        """Remove all elements."""
        for key in list(self._current):
            self._table.remove(key)

    def at(self, epoch: int) -> Mapping[K, V]:
        """Return a view of the state at a snapshot. Raises ``SnapshotEpochError`` without it."""
        return _DictView(self._table, self._registry.snapshot(epoch))

    def copy_at(self, epoch: int) -> dict[K, V]:
        """Return a copy of the state at a snapshot, which outlives it.

        Raises ``SnapshotEpochError`` without the snapshot.
        """
        return self._table.copy_at(self._registry.snapshot(epoch))


class TimelineSet(MutableSet[T]):
    """A set with snapshots. Operators return sets without snapshots."""

    __slots__ = ("_registry", "_table")

    def __init__(self, registry: SnapshotRegistry) -> None:
        self._registry = registry
        self._table: SnapshottableTable[T] = SnapshottableTable(registry)

    def __repr__(self) -> str:
        return f"TimelineSet({list(self._table.current)!r})"

    def __contains__(self, element: object) -> bool:
        return element in self._table.current

    def __iter__(self) -> Iterator[T]:
        return self._table.keys()

    def __len__(self) -> int:
        return len(self._table.current)

    def add(self, value: T) -> None:
        """Insert an element."""
        if value not in self._table.current:
            self._table.put(value, None)

    def load(self, elements: Iterable[T]) -> None:
        """Insert elements; faster than ``|=`` before the first snapshot."""
        self._table.load(dict.fromkeys(elements))

    def discard(self, value: T) -> None:
        """Remove an element if it exists."""
        if value in self._table.current:
            self._table.remove(value)

    def pop(self) -> T:
        """Remove and return an element. Raises ``KeyError`` if it is empty."""
        return _taken(self._table.current, self._table)[0]

    def clear(self) -> None:
        """Remove all elements."""
        for element in list(self._table.current):
            self._table.remove(element)

    def at(self, epoch: int) -> Set[T]:
        """Return a view of the state at a snapshot. Raises ``SnapshotEpochError`` without it."""
        return _SetView(self._table, self._registry.snapshot(epoch))

    @classmethod
    def _from_iterable(cls, it: Iterable[Any]) -> Any:
        return set(it)


class TimelineValue(Generic[T]):
    """A value with snapshots."""

    __slots__ = ("_default", "_registry", "_table")

    def __init__(self, registry: SnapshotRegistry, value: T) -> None:
        """``value``: the first value, which earlier snapshots have, too."""
        self._registry = registry
        self._default = value
        self._table: SnapshottableTable[None] = SnapshottableTable(registry)

    def __repr__(self) -> str:
        return f"TimelineValue({self.value!r})"

    @property
    def value(self) -> T:
        """The current value."""
        found: T = self._table.current.get(None, self._default)
        return found

    @value.setter
    def value(self, value: T) -> None:
        self._table.put(None, value)

    def at(self, epoch: int) -> T:
        """Return the value at a snapshot. Raises ``SnapshotEpochError`` without it."""
        found = self._table.value_at(None, self._registry.snapshot(epoch))
        value: T = self._default if found is ABSENT else found
        return value


class _DictView(Mapping[K, V]):
    """A dictionary as it was at a snapshot."""

    __slots__ = ("_snapshot", "_table")

    def __init__(self, table: SnapshottableTable[K], snapshot: Snapshot) -> None:
        self._table = table
        self._snapshot = snapshot

    def __repr__(self) -> str:
        return f"TimelineDict({dict(self)!r}).at({self._snapshot.epoch})"

    def __getitem__(self, key: K) -> V:
        found = self._table.value_at(key, self._snapshot)
        if found is ABSENT:
            raise KeyError(key)
        value: V = found
        return value

    def __iter__(self) -> Iterator[K]:
        return self._table.keys_at(self._snapshot)

    def __len__(self) -> int:
        return self._table.size_at(self._snapshot)


class _SetView(Set[T]):
    """A set as it was at a snapshot."""

    __slots__ = ("_snapshot", "_table")

    def __init__(self, table: SnapshottableTable[T], snapshot: Snapshot) -> None:
        self._table = table
        self._snapshot = snapshot

    def __repr__(self) -> str:
        return f"TimelineSet({list(self)!r}).at({self._snapshot.epoch})"

    def __contains__(self, element: object) -> bool:
        return self._table.value_at(element, self._snapshot) is not ABSENT  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[T]:
        return self._table.keys_at(self._snapshot)

    def __len__(self) -> int:
        return self._table.size_at(self._snapshot)

    @classmethod
    def _from_iterable(cls, it: Iterable[Any]) -> Any:
        return set(it)


def _taken(current: dict[K, Any], table: SnapshottableTable[K]) -> tuple[K, Any]:
    if not current:
        raise KeyError("the collection is empty")
    key, value = next(reversed(current.items()))
    table.remove(key)
    return key, value
