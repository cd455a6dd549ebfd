"""Tails: the changes of clusters that ``state`` does not include, read in windows.

Rules of this file:

1. A window has whole appends: a change and the progress row that publishes it are in one window.
2. A window has a bounded number of offsets, or one append of one cluster. Windows of a cluster
   follow each other.
3. What is kept of the windows of a cluster is the last change of each of its keys.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute

from .latest import overlay, state_rows, without_reverted
from .progress import IS_PROGRESS, Progress, progress_of
from .schema import CHANGES_TABLE, CLUSTER_ID, PROGRESS, STATE_TABLE
from .stored_rows import StateParts, rows_by, split_state
from .stores.protocol import AnyOf, Condition, TableStore, rows_where
from .unmerged import StoredChanges, UnmergedPart

pc: Any = pyarrow.compute  # pyarrow makes its functions at import: no checker sees them

OFFSETS_READ: Final = 50_000
"""Offsets of a window, if no append has more."""
_APPENDS: Final = (CLUSTER_ID, "visible_offset")


class TailRange(NamedTuple):
    """Changes of a cluster from after an offset to another (inclusive; None: to the last one).

    ``has_fences``: also the progress rows at ``after_offset``. Fences may be at the end of
    ``state``, where all rows of a snapshot may be, too.
    """

    cluster_id: str
    after_offset: int
    last_offset: int | None
    has_fences: bool

    @property
    def any_of(self) -> AnyOf:
        """The conditions of the changes."""
        of_cluster: Condition = (CLUSTER_ID, "=", self.cluster_id)
        end: tuple[Condition, ...] = ()
        if self.last_offset is not None:
            end = (("visible_offset", "<=", self.last_offset),)
        later = (of_cluster, ("visible_offset", ">", self.after_offset), *end)
        if not self.has_fences:
            return (later,)
        return (later, (of_cluster, ("visible_offset", "=", self.after_offset), IS_PROGRESS))


Window = list[TailRange]
"""Parts of the tails of clusters that are read together."""


def windows_of(
    tails: Mapping[str, tuple[int, npt.NDArray[np.int64]]], offset_count_max: int
) -> Iterator[Window]:
    """Yield the windows of tails: by cluster, the offset before it, and those of its appends.

    An offset of an append is that of its last record. One that is not after the offset before is of
    a fence.
    """
    window: Window = []
    room = offset_count_max
    for cluster_id, (before, offsets) in tails.items():
        after, rest = before, np.unique(offsets[offsets > before])
        if not len(rest) and len(offsets):
            window.append(TailRange(cluster_id, before, before, has_fences=True))
        while len(rest):
            count = int(np.searchsorted(rest, after + room, side="right"))
            if not count and window:
                yield window
                window, room = [], offset_count_max
                continue
            count = max(1, count)
            last = int(rest[count - 1])
            window.append(TailRange(cluster_id, after, last, has_fences=after == before))
            room -= last - after
            after, rest = last, rest[count:]
    if window:
        yield window


def read_tails(
    store: TableStore, ranges: Sequence[TailRange]
) -> Iterator[tuple[bool, dict[str, pa.Table]]]:
    """Yield the changes of parts of tails by cluster, a window at a time.

    Each window is with whether it is the only one. All are of one version of the table.
    """
    if not ranges or not store.exists(CHANGES_TABLE):
        return
    windows = _windows(store, ranges, None)
    if len(windows) == 1:
        yield True, _read(store, ranges, None)
    elif windows:
        version = store.version(CHANGES_TABLE)
        for window in _windows(store, ranges, version):
            yield False, _read(store, window, version)


def _windows(store: TableStore, ranges: Sequence[TailRange], version: int | None) -> list[Window]:
    any_of = _any_of(ranges)
    appends = store.read(CHANGES_TABLE, (IS_PROGRESS,), _APPENDS, any_of=any_of, version=version)
    offsets = rows_by(appends)
    tails = {
        one.cluster_id: (one.after_offset, offsets[one.cluster_id]["visible_offset"].to_numpy())
        for one in ranges
        if one.cluster_id in offsets
    }
    return [*windows_of(tails, OFFSETS_READ)]


def _read(
    store: TableStore, ranges: Sequence[TailRange], version: int | None
) -> dict[str, pa.Table]:
    return rows_by(store.read(CHANGES_TABLE, any_of=_any_of(ranges), version=version))


def _any_of(ranges: Sequence[TailRange]) -> AnyOf:
    return tuple(where for one in ranges for where in one.any_of)


class TailFold:
    """What the tail of a cluster adds to its rows of ``state``, and what is unmerged of it."""

    def __init__(self, base: Progress) -> None:
        """``base`` is the progress of ``state``."""
        self.base = base
        self.progress = base
        self.later = split_state(STATE_TABLE.no_rows)
        """The last change of each key, as rows of ``state``."""
        self.unmerged: UnmergedPart = CHANGES_TABLE.no_rows
        self.missing_offset: int | None = None
        """First offset of an append that is missing between others."""
        self._row_count = 0
        self._has_reverted = False
        self._incarnation = 0
        self._next_offset = base.next_offset

    @property
    def is_fenced(self) -> bool:
        """Whether the incarnation of ``state``, or a later one, has an append."""
        return self._incarnation >= self.base.incarnation

    @property
    def is_complete(self) -> bool:
        """Whether the truncation that ``state`` has is complete in ``changes``."""
        return self.is_fenced and not self._has_reverted

    def add(self, rows: pa.Table, *, is_only: bool) -> None:
        """Add the rows of the next window, which stay in memory if it is the only one."""
        base, valid = self.base, without_reverted(rows, self.base)
        self._has_reverted |= valid.num_rows < rows.num_rows
        self._incarnation = max(self._incarnation, pc.max(valid["incarnation"]).as_py() or 0)
        is_later: Condition = ("visible_offset", ">", base.offset)
        is_fence: Condition = ("incarnation", ">", base.incarnation)
        tail = rows_where(valid, any_of=((is_later,), (is_fence,)))
        self._check_order(tail)
        changed = state_rows(tail)
        self.progress = progress_of(changed) or self.progress
        parts = zip(self.later, split_state(changed), strict=True)
        self.later = StateParts(*(overlay(old, new) for old, new in parts))
        self._row_count += tail.num_rows
        self.unmerged = tail
        if not is_only:
            self.unmerged = StoredChanges(base.offset, self.progress.offset, self._row_count)

    def _check_order(self, tail: pa.Table) -> None:
        """Find the first append that does not follow the one before it."""
        order = [(name, "ascending") for name in ("offset", "incarnation")]
        columns = tail.select(["offset", "incarnation", "entity", "after"])
        appends = rows_where(columns, IS_PROGRESS).sort_by(order)
        for append in appends.to_pylist():
            follows = append["after"][PROGRESS]["from_offset"] == self._next_offset
            if not follows and self.missing_offset is None:
                self.missing_offset = self._next_offset
            self._next_offset = append["offset"] + 1
