"""Immutable mapping over a large base: a copy with changes shares the base."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


class LayeredMap(Mapping[K, V]):
    """Entries of ``base`` under changed ones; a changed value of None is a removed entry.

    ``base`` never changes. Entries have no particular order.
    """

    __slots__ = ("_base", "_changed", "_count")

    def __init__(self, base: Mapping[K, V]) -> None:
        self._base = base
        self._changed: dict[K, V | None] = {}
        self._count = len(base)

    def updated(self, changes: Mapping[K, V | None]) -> LayeredMap[K, V]:
        """Return a mapping with changes, in time linear in all changes of the base."""
        found = LayeredMap(self._base)
        found._changed = {**self._changed, **changes}
        for key, value in changes.items():
            if value is None and key not in self._base:
                del found._changed[key]  # else memory grows with all keys that ever were
        found._count = self._count + sum(
            (value is not None) - (key in self) for key, value in changes.items()
        )
        return found

    def __getitem__(self, key: K) -> V:
        if key in self._changed:
            value = self._changed[key]
            if value is None:
                raise KeyError(key)
            return value
        return self._base[key]

    def __iter__(self) -> Iterator[K]:
        for key in self._base:
            if key not in self._changed:
                yield key
        for key, value in self._changed.items():
            if value is not None:
                yield key

    def __len__(self) -> int:
        return self._count

    def __contains__(self, key: object) -> bool:
        if key in self._changed:
            return self._changed[key] is not None
        return key in self._base


def updated(entries: Mapping[K, V], changes: Mapping[K, V | None]) -> Mapping[K, V]:
    """Return entries with changes, of which None removes one; ``entries`` does not change."""
    if isinstance(entries, LayeredMap):
        return entries.updated(changes)
    found = dict(entries)
    for key, value in changes.items():
        if value is None:
            found.pop(key, None)
        else:
            found[key] = value
    return found
