"""Versions of the tables that a reader sees together.

Rules of this file:

1. ``state`` is pinned before ``changes``, and ``changes`` before ``log``, so a table that is pinned
   later lacks nothing that an earlier one includes.
2. A truncation changes ``state`` before ``changes``. If one happens in between, the versions are
   pinned again.
3. Tables that are copies of different times are refused: rows would be missing, or be those of a
   later offset.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from .progress import NOTHING, Progress, check_layout, check_same_time, cluster_in
from .schema import CHANGES_TABLE, STATE_TABLE, StoredTable
from .stores.protocol import TableStore


class PinnedVersions(NamedTuple):
    """Pinned versions, and a cluster's newest progress in ``state`` (``base``) and ``changes``.

    A version is None if the table does not exist.
    """

    cluster_id: str
    base: Progress | None
    appended: Progress | None
    state_version: int | None
    changes_version: int
    log_version: int | None

    @property
    def progress(self) -> Progress:
        """The end of the cluster's tables."""
        found = [progress for progress in (self.base, self.appended) if progress is not None]
        return max(found, key=_order, default=Progress())

    @property
    def base_offset(self) -> int:
        """The last offset whose changes ``state`` includes; -1 without any."""
        return NOTHING if self.base is None else self.base.offset

    @property
    def is_consistent(self) -> bool:
        """Whether ``changes`` continues ``state``, with no truncation between the versions."""
        if self.appended is None:
            return self.base is None
        base = self.base or Progress()
        return self.appended.incarnation == base.incarnation and self.appended.offset >= base.offset


def pin_newest(
    store: TableStore,
    cluster_id: str | None,
    pin_others: Callable[[str, int | None], PinnedVersions],
) -> PinnedVersions | None:
    """Return versions that belong together; None before the first publication.

    They are those of a cluster, or of the only one. ``pin_others`` pins ``changes`` and ``log``
    after the version of ``state`` that it receives.

    Raises:
        TablesError: an earlier release created the tables; they contain several clusters, and
            ``cluster_id`` is None; or they are copies of different times.
    """
    check_layout(store)
    cluster_id = cluster_in(store, cluster_id)
    if cluster_id is None or not store.exists(CHANGES_TABLE):
        return None
    version = newest_version(store, STATE_TABLE)
    while True:
        pinned = pin_others(cluster_id, version)
        if pinned.is_consistent:
            break
        before, version = version, newest_version(store, STATE_TABLE)
        if version == before:
            break
    has_end = pinned.appended is not None
    check_same_time(store.place, pinned.base or Progress(), pinned.progress, has_end=has_end)
    return None if pinned.progress.offset == NOTHING else pinned


def newest_version(store: TableStore, table: StoredTable) -> int | None:
    """Return the newest version of a table, None without it."""
    return store.version(table) if store.exists(table) else None


def _order(progress: Progress) -> tuple[int, int]:
    return progress.incarnation, progress.offset
