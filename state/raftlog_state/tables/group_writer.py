"""``GroupWriter``: appends many clusters' rows to ``log`` and ``changes``, one append each.

Invariants, besides those of ``writer`` and ``cluster_rows``:

1. A group writes the clusters that it owns. It claims any other cluster before writing its first
   rows, which have been checked: it appends a fence in the owner's transaction, whose row names
   this group. A cluster without rows can be claimed without permission; others require
   ``take_over``.
2. After a conflict, the versions are read first, then the ends of all clusters. A cluster's cache
   is kept only if its end is the same. A cached state is therefore never older than the version
   with which it is appended.
3. A fence of the clusters reverts records that a crash kept out of ``changes``: the version of the
   append to ``log`` is used, and the next one belongs to a later incarnation.
4. Rejected rows of one cluster do not keep the other clusters' rows from being written.
5. Unmerged changes are kept for each cluster, but its state only while it is used: the least
   recently used states are dropped, and read again when rows of the cluster arrive.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, TypeVar

import pyarrow as pa

from raftlog.errors import DivergedLogError, RaftlogError
from raftlog_state.collection_pause import collection_paused
from raftlog_state.errors import ConcurrentWriterError, OffsetGapError, TablesError
from raftlog_state.loader.payload import Decode
from raftlog_state.records import decode
from raftlog_state.records.internal_logs import cluster_of

from .change_slices import SLICE_ROWS
from .cluster_cache import (
    ClusterCache,
    EpochRange,
    NewRows,
    Versions,
    changes_rows,
    check_log,
)
from .cluster_rows import ClusterRows, Step, group_transaction, no_step, now_us
from .incarnations import next_incarnation, owned
from .progress import NOTHING, Progress
from .schema import CHANGES_TABLE, LOG_TABLE
from .stores.protocol import TableStore
from .unmerged import GROUP_UNMERGED_ROWS_MAX, ClusterChanges, Tail, Unmerged, bound_memory
from .writer import ATTEMPTS_MAX, TablesWriter

CACHED_ROWS_MAX: Final = 2_000_000
"""Rows of the cached states of all clusters together; a single state may have more."""
CLUSTERS_READ_MAX: Final = 200
"""Clusters that are read together."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Applied:
    """Clusters whose rows were appended, and the error of each cluster whose rows were rejected."""

    appended: frozenset[str] = frozenset()
    failures: Mapping[str, RaftlogError] = field(default_factory=dict)


class GroupWriter(TablesWriter):
    """Writer of a group's clusters to the tables of one place. Threads take turns.

    An internal log of a cluster (``log_id_of``) is treated like a cluster.

    ``group`` is the group's name, which is the same in each run. Two processes with the same name
    write nothing twice, but they are slow, because each of them reads the tables again after the
    other's appends.
    """

    def __init__(
        self,
        store: TableStore,
        group: str,
        *,
        take_over: bool = False,
        after_step: Step = no_step,
        writes_log: bool = True,
        cached_rows_max: int = CACHED_ROWS_MAX,
        clock_us: Callable[[], int] = now_us,
        decode_value: Decode = decode,
        slice_rows: int = SLICE_ROWS,
        unmerged_rows_max: int = GROUP_UNMERGED_ROWS_MAX,
    ) -> None:
        """``take_over``: write clusters even if other writers have written them until now.

        ``decode_value`` decodes the values of metadata records. More than ``slice_rows`` changes of
        a cluster are written in slices. If ``state`` lacks more than ``unmerged_rows_max`` rows,
        the next merge reads some of them from ``changes``.
        """
        super().__init__(
            ClusterRows(
                store,
                after_step=after_step,
                writes_log=writes_log,
                clock_us=clock_us,
                decode_value=decode_value,
            )
        )
        self._group = group
        self._take_over = take_over
        self._cached_rows_max = cached_rows_max
        self._slice_rows = slice_rows
        self._unmerged_rows_max = unmerged_rows_max
        self._is_read = False
        self._versions: Versions = {}
        self._ends: dict[str, Progress] = {}
        self._caches: OrderedDict[str, ClusterCache] = OrderedDict()
        self._unmerged: dict[str, Unmerged] = {}

    # --- public -----------------------------------------------------------------------------------

    def progress(self, cluster_id: str) -> Progress:
        """Return the end of a cluster's tables."""

        def work() -> Progress:
            self._ready()
            return self._end(cluster_id)

        return self._again_if_late(work)

    def epochs(self, cluster_id: str) -> list[EpochRange]:
        """Return the leader epochs of a cluster whose first offset is known, in order."""

        def work() -> list[EpochRange]:
            self._ready()
            failures = self._load([cluster_id])
            if failures:
                raise failures[cluster_id]
            return self._caches[cluster_id].epochs()

        return self._again_if_late(work)

    def unmerged_row_count(self) -> int:
        """Return the number of known rows of ``changes`` that ``state`` does not include."""
        with self._lock:
            return sum(one.row_count for one in self._unmerged.values())

    def refresh(self) -> None:
        """Read the ends again at the next call; caches of unchanged clusters are kept."""
        with self._lock:
            self._is_read = False

    def forget(self) -> None:
        """Drop all caches, so that the tables are read again."""
        with self._lock:
            self._is_read = False
            self._caches.clear()
            self._unmerged.clear()

    def apply(
        self, batches: Mapping[str, pa.Table], ends: Mapping[str, int] | None = None
    ) -> Applied:
        """Append the new rows of clusters, by cluster id, to ``log`` and ``changes``.

        ``ends``: for each internal log, the end of its tables, exclusive, which its rows continue.
        If the tables were truncated since then, the rows are rejected: missing offsets in these
        logs are attributed to compaction and detect no gap.

        If rows of one cluster cause an error (``OffsetGapError``, ``DivergedLogError``,
        ``ReplayError``, ``ClusterOwnedError`` or another), the error is part of the result, and
        nothing of that cluster was written.

        Raises:
            TablesError: Delta failed.
            ConcurrentWriterError: another process with this group's name was faster every time.
        """
        return self._again_if_late(lambda: self._apply(batches, ends or {}))

    def merge_state(self) -> None:
        """Merge the later changes of the clusters that were written into ``state``.

        Changes of other clusters, which an earlier run left, are merged with their next rows.

        Raises:
            TablesError: Delta failed.
        """
        failed = self._again_if_late(self._try_merge)
        if failed is not None:
            raise failed

    def begin_merge(self) -> dict[str, Tail]:
        """Return what ``state`` lacks, for a merge by ``rows_on`` another store; see ``upkeep``."""
        return self._again_if_late(self._begin_merge)

    def end_merge(self, tails: Mapping[str, Tail], *, is_merged: bool = True) -> None:
        """Record the end of a merge. ``is_merged``: ``state`` includes its changes."""
        with self._lock:
            for name, tail in tails.items():
                kept = self._unmerged.get(name)
                if kept is not None:
                    kept.end_merge(tail, is_merged=is_merged)

    # --- the cache --------------------------------------------------------------------------------

    def _ready(self) -> None:
        """Read the versions and the ends unless they are known to be current."""
        if self._is_read:
            return
        found = self._rows.ends()
        self._versions.clear()  # the caches share it
        self._versions.update(found.versions)
        for name in [
            name for name in self._unmerged if self._ends.get(name) != found.progress.get(name)
        ]:
            self._caches.pop(name, None)
            self._unmerged.pop(name)
        self._ends = found.progress
        if not self._ends:
            self._rows.store.prepare()
        self._revert_log()
        self._is_read = True

    def _revert_log(self) -> None:
        """Delete records that a crash or a conflict kept out of ``changes``."""
        ahead = self._rows.clusters_ahead(
            end for end in self._ends.values() if end.group == self._group
        )
        if ahead:
            self._fence([(end, next_incarnation(end)) for end in ahead])
            self._rows.delete_reverted_log([self._ends[str(end.cluster_id)] for end in ahead])

    def _end(self, cluster_id: str) -> Progress:
        named = Progress(cluster_id=cluster_id, log_cluster_id=cluster_of(cluster_id))
        return self._ends.get(cluster_id, named)

    def _load(self, cluster_ids: Iterable[str]) -> dict[str, RaftlogError]:
        """Read clusters that are not cached. Return the errors of those that cannot be written."""
        failures: dict[str, RaftlogError] = {}
        missing = [name for name in cluster_ids if name not in self._caches]
        for name, found in self._rows.caches_of(missing, self._versions).items():
            if isinstance(found, RaftlogError):
                failures[name] = found
            else:
                self._caches[name] = found
                self._unmerged[name] = found.unmerged
                self._ends[name] = found.progress
        return failures

    def _published(self, cluster_id: str, rows: ClusterChanges, after: Progress) -> None:
        """Record rows of ``changes``; the state of the cluster may have been dropped."""
        self._ends[cluster_id] = after
        cache = self._caches.get(cluster_id)
        if cache is not None:
            cache.published(rows, after)
        elif cluster_id in self._unmerged:
            self._unmerged[cluster_id].append(rows, after.offset)

    def _drop_unused(self) -> None:
        """Drop the least recently used states until one is left or the rest is small enough."""
        sizes = {name: _row_count(cache.progress) for name, cache in self._caches.items()}
        row_count = sum(sizes.values())
        for name, size in list(sizes.items())[:-1]:
            if row_count <= self._cached_rows_max:
                return
            del self._caches[name]
            row_count -= size

    def _parts(self, cluster_ids: Iterable[str]) -> Iterator[list[str]]:
        """Yield the cached clusters, then groups of others that are read together."""
        cached = [name for name in cluster_ids if name in self._caches]
        if cached:
            yield cached
        part: list[str] = []
        row_count = 0
        for name in cluster_ids:
            if name not in cached:
                row_count += _row_count(self._end(name))
                if part and (row_count > self._cached_rows_max or len(part) == CLUSTERS_READ_MAX):
                    yield part
                    part, row_count = [], _row_count(self._end(name))
                part.append(name)
        if part:
            yield part

    def _again_if_late(self, work: Callable[[], T]) -> T:
        """Do ``work``; if another writer was faster, read the ends again and retry.

        Any other error drops all caches, because they may be ahead of the tables.
        """
        with self._lock:
            for attempt in range(1, ATTEMPTS_MAX + 1):
                try:
                    return work()
                except ConcurrentWriterError:
                    self._is_read = False
                    if attempt == ATTEMPTS_MAX:
                        self.forget()
                        raise
                except BaseException:
                    self.forget()
                    raise
        raise AssertionError("the loop returns or raises")

    # --- appends ----------------------------------------------------------------------------------

    @collection_paused()
    def _apply(self, batches: Mapping[str, pa.Table], ends: Mapping[str, int]) -> Applied:
        self._ready()
        failures: dict[str, RaftlogError] = {}
        news: dict[str, NewRows] = {}
        try:
            for part in self._parts(batches):
                failures |= self._load(part)
                failures |= self._claim(
                    [name for name in part if name not in failures and self._is_new(name, batches)]
                )
                for name in part:
                    if name not in failures:
                        try:
                            new = self._new_rows(name, batches[name], ends.get(name, 0))
                        except ConcurrentWriterError:
                            raise
                        except RaftlogError as error:
                            failures[name] = error
                        else:
                            if new is not None:
                                news[name] = new
                self._drop_unused()
            if news:
                self._append(news)
        except ConcurrentWriterError:
            for name in news:  # their replayed states are ahead of the tables
                self._caches.pop(name, None)
            raise
        return Applied(frozenset(news), failures)

    def _is_new(self, cluster_id: str, batches: Mapping[str, pa.Table]) -> bool:
        """Return whether there are new rows and no check before their replay rejects them.

        Otherwise the cluster is not taken over from an owner that could write it.
        """
        cache = self._caches[cluster_id]
        if cache.progress.group == self._group:
            return True
        try:
            batch = cache.checked(batches[cluster_id], self.source_columns, self.place)
        except RaftlogError:
            return False  # `_new_rows` reports it
        return not batch.is_empty

    def _new_rows(self, cluster_id: str, table: pa.Table, end: int) -> NewRows | None:
        """Check and replay rows that continue an end; the cache may predate a truncation."""
        cache = self._caches[cluster_id]
        self._caches.move_to_end(cluster_id)
        check_log(cache.progress, table, cluster_of(cluster_id), self.place)
        try:
            if cache.progress.next_offset < end:
                raise OffsetGapError(
                    expected_offset=cache.progress.next_offset,
                    offset=end,
                    remedy="the tables were truncated: read the log again from their end",
                )
            return cache.new_rows(table, self.source_columns, self.place)
        except (OffsetGapError, DivergedLogError):
            del self._caches[cluster_id]
            before = cache.progress
            failures = self._load([cluster_id])
            if failures:
                raise failures[cluster_id] from None
            if self._caches[cluster_id].progress == before:
                raise
            raise self._late(cluster_id) from None
        except RaftlogError:
            del self._caches[cluster_id]
            raise

    def _late(self, cluster_id: str) -> ConcurrentWriterError:
        return ConcurrentWriterError(
            place=self.place,
            reason=f"another process has changed cluster {cluster_id}",
            remedy="run this again",
        )

    def _append(self, news: Mapping[str, NewRows]) -> None:
        """Append rows of several clusters in one transaction of the group."""
        befores = [self._ends[name] for name in news]
        if self._rows.writes_log:
            log = pa.concat_tables([new.log for new in news.values()])
            self._rows.append_log(log, group_transaction(LOG_TABLE, self._group, self._versions))
            begun = [before for before in befores if before.is_start_of_incarnation]
            if begun:
                self._rows.fence_log(begun)
        transaction = group_transaction(CHANGES_TABLE, self._group, self._versions)
        ended = [
            replace(new, after=new.after.appended_by(self._group, transaction.version))
            for new in news.values()
        ]
        rows, changes = changes_rows(ended, self._rows.clock_us(), self._slice_rows)
        self._rows.append_changes(rows, transaction)
        self._versions[self._group] = transaction.version
        bound_memory(self._unmerged.values(), self._unmerged_rows_max)
        for name, new, part in zip(news, ended, changes, strict=True):
            self._published(name, part, new.after)

    def _try_merge(self) -> TablesError | None:
        """Merge; return an error that leaves the caches valid, because ``changes`` is unchanged."""
        tails, is_merged = self._begin_merge(), False
        try:
            self._rows.merge(tails)
            is_merged = True
        except ConcurrentWriterError:
            raise
        except TablesError as error:
            return error
        finally:
            self.end_merge(tails, is_merged=is_merged)
        return None

    def _begin_merge(self) -> dict[str, Tail]:
        """Return the tails that are not empty; forget those of clusters whose state was dropped."""
        self._ready()
        self._unmerged = {
            name: one
            for name, one in self._unmerged.items()
            if one.row_count or name in self._caches
        }
        return {
            name: one.begin_merge(self._ends[name])
            for name, one in self._unmerged.items()
            if one.row_count
        }

    # --- owners -----------------------------------------------------------------------------------

    def _claim(self, cluster_ids: Iterable[str]) -> dict[str, RaftlogError]:
        """Make this group the owner of clusters. Return the errors of those it may not own."""
        failures: dict[str, RaftlogError] = {}
        by_owner: dict[str | None, list[tuple[Progress, Progress]]] = {}
        for name in cluster_ids:
            end = self._caches[name].progress
            if end.group == self._group:
                continue
            if not self._take_over and (end.group is not None or end.offset != NOTHING):
                failures[name] = owned(self.place, end)
                continue
            after = replace(next_incarnation(end), group=self._group)
            by_owner.setdefault(end.group, []).append((end, after))
        for owner, fences in by_owner.items():
            if owner is not None or self._rows.store.has_many_transactions:
                self._fence(fences)
            else:
                for fence in fences:
                    self._fence([fence])
        return failures

    def _fence(self, fences: list[tuple[Progress, Progress]]) -> None:
        for after, row in self._rows.fence(fences, self._versions):
            self._published(str(after.cluster_id), row, after)


def _row_count(progress: Progress) -> int:
    return sum(progress.row_counts.values())
