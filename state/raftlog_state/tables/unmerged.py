"""``Unmerged``: the changes of a cluster that ``state`` does not include, and their merges.

Rules of this file:

1. Parts are in memory, or are ``StoredChanges`` that a merge reads from ``changes``. Memory is
   therefore bounded while merges fail.
2. One merge runs at a time. Its parts stay the same until it ends; later parts are combined.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import takewhile
from typing import Final, NamedTuple, TypeAlias

import pyarrow as pa

from .change_slices import ChangeSlices
from .progress import Progress

UNMERGED_ROWS_MAX: Final = 100_000
"""Rows of a cluster in memory, except those of a merge and of the last append; 2.2 KB each."""
GROUP_UNMERGED_ROWS_MAX: Final = 600_000
"""The same limit for all clusters of a group together."""
SMALL_PARTS_MAX: Final = 32
"""Adjacent parts with fewer than ``SMALL_ROWS`` rows; the columns of each take half a megabyte."""
SMALL_ROWS: Final = 1_000


@dataclass(frozen=True, slots=True)
class StoredChanges:
    """Changes after an offset up to another (inclusive) that are in ``changes`` only."""

    after_offset: int
    last_offset: int
    num_rows: int


ClusterChanges: TypeAlias = pa.Table | ChangeSlices
"""Rows of ``changes`` of one or more appends of a cluster, with their progress rows."""
UnmergedPart: TypeAlias = ClusterChanges | StoredChanges


class Tail(NamedTuple):
    """End of a cluster's tables, and the changes up to it that ``state`` did not include."""

    end: Progress
    parts: tuple[UnmergedPart, ...]

    @property
    def is_empty(self) -> bool:
        """Whether there are no changes."""
        return not any(part.num_rows for part in self.parts)


class Unmerged:
    """Changes of a cluster after ``base_offset``; ``state`` includes all changes up to it."""

    def __init__(self, changes: UnmergedPart, *, base_offset: int, end_offset: int) -> None:
        self.base_offset = base_offset
        self._end_offset = end_offset
        self._parts: list[UnmergedPart] = [changes]
        self._merging_count = 0
        self._merging_offset = base_offset

    @property
    def row_count(self) -> int:
        """Number of the rows."""
        return sum(part.num_rows for part in self._parts)

    @property
    def memory_row_count(self) -> int:
        """Number of rows in memory that do not belong to a merge."""
        later = self._parts[self._merging_count :]
        return sum(part.num_rows for part in later if not isinstance(part, StoredChanges))

    def append(self, rows: ClusterChanges, end_offset: int) -> None:
        """Add the rows of an append that ends at an offset (inclusive)."""
        self._parts.append(rows)
        self._end_offset = end_offset
        later = reversed(self._parts[self._merging_count :])
        small = [*takewhile(_is_small, later)][::-1]
        if len(small) == SMALL_PARTS_MAX:
            self._parts[-len(small) :] = [pa.concat_tables(small).combine_chunks()]

    def leave_in_table(self) -> None:
        """Remove the rows from memory, except those of a merge."""
        if self.memory_row_count:
            count = self._merging_count
            later = self._parts[count:]
            after_offset = self._merging_offset if count else self.base_offset
            row_count = sum(part.num_rows for part in later)
            stored = StoredChanges(after_offset, self._end_offset, row_count)
            self._parts[count:] = [stored]

    def begin_merge(self, end: Progress) -> Tail:
        """Return the changes up to the tables' end for a merge. An earlier merge has ended."""
        self._merging_count, self._merging_offset = len(self._parts), end.offset
        return Tail(end, tuple(self._parts))

    def end_merge(self, tail: Tail, *, is_merged: bool) -> None:
        """Record the end of a merge. ``is_merged``: ``state`` includes its changes.

        This has no effect if the tables were read again meanwhile, because its parts are then
        others. Without parts this cannot be detected, but then nothing was merged.
        """
        count = len(tail.parts)
        begun = self._parts[:count]
        if not count or len(begun) < count or any(map(operator.is_not, begun, tail.parts)):
            return
        self._merging_count = 0
        if is_merged:
            del self._parts[:count]
            self.base_offset = tail.end.offset


def bound_memory(unmerged: Iterable[Unmerged], row_count_max: int) -> None:
    """Leave rows in the table if clusters have more in memory, so that half as many remain."""
    largest_first = sorted(unmerged, key=lambda one: one.memory_row_count, reverse=True)
    row_count = sum(one.memory_row_count for one in largest_first)
    if row_count <= row_count_max:
        return
    for one in largest_first:
        if row_count <= row_count_max // 2:
            return
        row_count -= one.memory_row_count
        one.leave_in_table()


def _is_small(part: UnmergedPart) -> bool:
    return isinstance(part, pa.Table) and part.num_rows < SMALL_ROWS
