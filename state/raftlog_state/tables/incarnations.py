"""Expiry and truncation of a cluster's tables: changes that begin an incarnation.

Rules of this file:

1. Both begin with a fence: its progress row in ``changes`` keeps earlier writers from appending
   there. The first append to ``log`` fences them from ``log``, too.
2. A truncation is one merge into ``state``, whose progress row has the incarnation after the
   fence's. Rows of earlier incarnations after the truncation's offset are reverted, so they are not
   read. The fence's incarnation is then fenced, too, and the reverted rows are deleted.
3. The owner of a cluster stays the same; a group that is running reads the cluster again.
4. An interrupted expiry or truncation either has begun or has not. If it has,
   ``ClusterRows.cache_of`` completes a truncation, and a repeated call completes an expiry.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.compute

from raftlog_state.errors import ClusterOwnedError

from .cluster_cache import ClusterCache, progress_at
from .cluster_rows import ClusterRows
from .latest import overlay, rows_before, state_rows, without_reverted
from .progress import IS_NOT_PROGRESS, SOFTWARE, Progress
from .schema import CHANGES_TABLE, STATE_TABLE
from .stores.protocol import Condition, filtered, mask_of, rows_where
from .tails import TailRange, read_tails

pc: Any = pyarrow.compute  # pyarrow creates its functions at import, unseen by type checkers


def next_incarnation(progress: Progress) -> Progress:
    """Return the progress of the next incarnation, which begins at the end of this one."""
    return replace(
        progress,
        incarnation=progress.incarnation + 1,
        truncated_to=progress.offset,
        from_offset=progress.next_offset,
        software=SOFTWARE,
    )


def owned(place: str, progress: Progress) -> ClusterOwnedError:
    """Return the error of a write to a cluster that another writer owns."""
    group = progress.group
    return ClusterOwnedError(
        place=place,
        cluster_id=str(progress.cluster_id),
        owner=group,
        reason=f"cluster {progress.cluster_id} is written "
        + ("by a writer of this cluster alone" if group is None else f"by group {group}"),
        remedy="stop that writer, then take the cluster over with take_over=True (`raftlog tables "
        "follow`: --take-over)",
    )


def merge(rows: ClusterRows, cache: ClusterCache) -> None:
    """Merge the tail of a cluster into ``state``."""
    tail, is_merged = cache.begin_merge(), False
    try:
        rows.merge({str(cache.progress.cluster_id): tail})
        is_merged = True
    finally:
        cache.unmerged.end_merge(tail, is_merged=is_merged)


def fence(rows: ClusterRows, cache: ClusterCache, after: Progress) -> Progress:
    """Begin an incarnation of a cluster and return its progress.

    Raises:
        As ``ClusterRows.fence``.
    """
    [(progress, row)] = rows.fence([(cache.progress, after)], cache.versions)
    cache.published(row, progress)
    return progress


def expire(rows: ClusterRows, cache: ClusterCache, offset: int) -> int:
    """Delete the changes up to an offset; return the first offset whose state can be read."""
    progress = cache.progress
    progress.check_readable(rows.place, offset)
    # No state in a gap can be read, and no change took effect there.
    gaps = (first for first, last in progress.gaps if first <= offset < last)
    offset = next(gaps, offset + 1) - 1
    if offset <= progress.oldest_offset:
        rows.delete_expired(progress)  # an earlier expiry may have been interrupted
        return progress.oldest_offset
    merge(rows, cache)
    is_expired: Condition = ("visible_offset", "<=", offset)
    expired = rows.read(CHANGES_TABLE, progress.cluster_id, is_expired, columns=("log_time",))
    times = [progress.expired_time_us, pc.max(expired["log_time"]).cast(pa.int64()).as_py()]
    expired_time_us = max((time for time in times if time is not None), default=None)
    after = replace(
        next_incarnation(progress),
        expired_to=offset,
        expired_time_us=expired_time_us,
        gaps=tuple(gap for gap in progress.gaps if gap[1] > offset),
    )
    rows.delete_expired(fence(rows, cache, after))
    return offset


def truncate_to(rows: ClusterRows, cache: ClusterCache, offset: int) -> int:
    """Revert the tables to an offset or shortly before it; return their last offset."""
    target = cache.state_boundary(offset, rows.place)
    if target == cache.progress.offset:
        return target
    progress = fence(rows, cache, next_incarnation(cache.progress))
    base_rows = without_reverted(rows.read(STATE_TABLE, progress.cluster_id), progress)
    incarnation = progress.incarnation + 1
    later = _changed_rows(rows, progress, min(cache.unmerged.base_offset, target), target)
    found = progress_at(overlay(base_rows, later), target, progress, incarnation)
    rows.store.merge(pa.concat_tables([later, found.state_row()]))
    rows.step("truncate")
    rows.complete_truncation(found, cache.versions)
    return target


def _changed_rows(rows: ClusterRows, end: Progress, after_offset: int, target: int) -> pa.Table:
    """Return the rows, as of ``target``, of the keys that change after an offset; no progress rows.

    Their incarnation is the one after ``end``, the fence. Changes are read in windows.
    """
    last = first = STATE_TABLE.no_rows
    tail = TailRange(str(end.cluster_id), after_offset, None, has_fences=False)
    for _, window in read_tails(rows.store, [tail]):
        for found in window.values():
            changes = without_reverted(found, end)
            is_later = mask_of(changes, ("visible_offset", ">", target))
            last = overlay(last, state_rows(filtered(changes, pc.invert(is_later))))
            before = rows_before(filtered(changes, is_later), target, end.incarnation + 1)
            first = overlay(before, first)
    return rows_where(overlay(last, first), IS_NOT_PROGRESS)
