"""Immutable mapping over a large base: a copy with changes shares the base.

An image's mappings change with ``updated``. It copies small mappings. For large ones, it copies the
changes since their base, and the base itself once there are many changes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain, filterfalse
from typing import Final, TypeVar, overload

K = TypeVar("K")
V = TypeVar("V")
D = TypeVar("D")

LAYERED_MIN: Final = 10_000
"""Size from which a dict is shared as a base: copying a smaller one takes some 0.1 ms."""


class LayeredMap(Mapping[K, V]):
    """Entries of ``base`` overlaid with changed ones; a changed value of None removes the entry.

    ``base`` never changes. Entries have no particular order.
    """

    __slots__ = ("_base", "_changed", "_count")

    def __init__(self, base: Mapping[K, V]) -> None:
        self._base = base
        self._changed: dict[K, V | None] = {}
        self._count = len(base)

    def updated(self, changes: Mapping[K, V | None]) -> Mapping[K, V]:
        """Return a mapping with changes, in time linear in all changes of the base.

        The changes of a dict are limited to the root of twice its size; beyond that, the dict is
        copied. A change of one of n entries then takes the time of at most some sqrt(2n) entries on
        average, including copies.
        """
        found = LayeredMap(self._base)
        found._changed = {**self._changed, **changes}
        if isinstance(self._base, dict) and _are_many(found._changed, self._base):
            return _copied(self._base, found._changed)
        for key, value in changes.items():
            if value is None and key not in self._base:
                del found._changed[key]  # else memory grows with all keys that ever existed
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

    @overload
    def get(self, key: K, /) -> V | None: ...
    @overload
    def get(self, key: K, default: V | D, /) -> V | D: ...
    def get(self, key: K, default: V | D | None = None, /) -> V | D | None:
        """Return the value of a key, or ``default``, without the exception of ``Mapping``."""
        if key in self._changed:
            value = self._changed[key]
            return default if value is None else value
        return self._base.get(key, default)

    def __iter__(self) -> Iterator[K]:
        return chain(
            filterfalse(self._changed.__contains__, self._base),
            (key for key, value in self._changed.items() if value is not None),
        )

    def __len__(self) -> int:
        return self._count

    def __contains__(self, key: object) -> bool:
        if key in self._changed:
            return self._changed[key] is not None
        return key in self._base


def updated(entries: Mapping[K, V], changes: Mapping[K, V | None]) -> Mapping[K, V]:
    """Return entries with changes; a change of None removes one. ``entries`` does not change."""
    if isinstance(entries, LayeredMap):
        return entries.updated(changes)
    if len(entries) >= LAYERED_MIN and not _are_many(changes, entries):
        return LayeredMap(entries).updated(changes)
    return _copied(entries, changes)


def _are_many(changes: Mapping[K, V | None], entries: Mapping[K, V]) -> bool:
    return len(changes) ** 2 > 2 * len(entries)


def _copied(entries: Mapping[K, V], changes: Mapping[K, V | None]) -> dict[K, V]:
    found = dict(entries)
    for key, value in changes.items():
        if value is None:
            found.pop(key, None)
        else:
            found[key] = value
    return found
