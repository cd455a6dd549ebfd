"""The writer: appends a range of a cluster's log to ``log`` and ``changes``, exactly once.

Invariants:

1. Check, replay, then write: rejected rows have no effect.
2. The append to ``changes`` is the publication: a range's changes and its progress row are one
   commit. ``log`` is written first, so it contains every published record.
3. If two writers have the same end, one commits; the other reads the tables again and retries. A
   writer of an earlier incarnation commits nothing. ``cluster_rows`` describes the transactions.
4. The state in memory is a cache of the tables. After any error it is dropped and read again.
5. A truncation or an expiry begins an incarnation; see ``incarnations``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from threading import RLock
from typing import Any, Final, NoReturn, TypeVar

import pyarrow as pa
import pyarrow.compute

from raftlog.errors import DivergedLogError
from raftlog_state.collection_pause import collection_paused
from raftlog_state.errors import ConcurrentWriterError, OffsetGapError, TablesError
from raftlog_state.loader.payload import Decode
from raftlog_state.records import decode

from .batch import RECORD_JSON, SOURCE_COLUMNS
from .change_slices import SLICE_ROWS
from .cluster_cache import ClusterCache, EpochRange, changes_rows, check_log
from .cluster_rows import RECORD_IDENTITY, ClusterRows, Step, no_step, now_us, own_transaction
from .incarnations import expire, fence, merge, next_incarnation, owned, truncate_to
from .latest import living, without_reverted
from .loaded_range import LoadedRange
from .progress import NOTHING, Progress
from .schema import CHANGES_TABLE, LOG_TABLE, UNKNOWN_CLUSTER
from .stored_rows import StateParts, read_state
from .stores.protocol import TableStore, rows_where
from .unmerged import UNMERGED_ROWS_MAX, Tail, bound_memory

pc: Any = pyarrow.compute  # pyarrow creates its functions at import, unseen by type checkers

ATTEMPTS_MAX: Final = 3
"""How often a range is retried after another writer was faster."""

T = TypeVar("T")


class TablesWriter:
    """What writers of one cluster and of a group have in common. Threads take turns."""

    def __init__(self, rows: ClusterRows) -> None:
        self._rows = rows
        self._lock = RLock()

    @property
    def place(self) -> str:
        """Where the tables are."""
        return self._rows.place

    @property
    def source_columns(self) -> tuple[str, ...]:
        """The columns of the source that ``apply`` needs; the JSON for table ``log`` only."""
        has_json = self._rows.writes_log
        return tuple(name for name in SOURCE_COLUMNS if has_json or name != RECORD_JSON)

    def rows_on(self, store: TableStore) -> ClusterRows:
        """Return the rows of the tables in another store of the same place."""
        return self._rows.on(store)

    def compact(self) -> None:
        """Rewrite the small files of all tables. Raises ``TablesError``."""
        with self._lock:
            self._rows.compact()

    def small_file_count(self) -> int:
        """Return how many files a compaction of ``changes`` can save. Raises ``TablesError``."""
        with self._lock:
            return self._rows.small_file_count()

    def vacuum(self) -> None:
        """Delete files that belong to no version within the retention. Raises ``TablesError``."""
        with self._lock:
            self._rows.vacuum()


class Writer(TablesWriter):
    """Writes the rows of one cluster to the tables of one place. Threads take turns.

    ``cluster_id``: needed if the tables contain other clusters.
    """

    def __init__(
        self,
        store: TableStore,
        *,
        cluster_id: str | None = None,
        after_step: Step = no_step,
        writes_log: bool = True,
        take_over: bool = False,
        clock_us: Callable[[], int] = now_us,
        decode_value: Decode = decode,
        slice_rows: int = SLICE_ROWS,
        unmerged_rows_max: int = UNMERGED_ROWS_MAX,
    ) -> None:
        """``take_over``: write the cluster even if a group has written it until now.

        ``decode_value`` decodes the values of metadata records. A batch with more than
        ``slice_rows`` changes is written in slices. If ``state`` lacks more than
        ``unmerged_rows_max`` rows, the next merge reads some of them from ``changes``.
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
        self._store = store
        self._cluster_id = cluster_id
        self._take_over = take_over
        self._slice_rows = slice_rows
        self._unmerged_rows_max = unmerged_rows_max
        self._cache: ClusterCache | None = None

    # --- public -----------------------------------------------------------------------------------

    def progress(self) -> Progress:
        """Return the end of the tables; an unfinished truncation is completed first."""
        return self._again_if_late(lambda: self._ready().progress)

    def epochs(self) -> list[EpochRange]:
        """Return the leader epochs whose first offset is known, in order."""
        return self._again_if_late(lambda: self._ready().epochs())

    def unmerged_row_count(self) -> int:
        """Return the number of rows of ``changes`` that ``state`` does not include."""
        with self._lock:
            return self._ready().unmerged.row_count

    def forget(self) -> None:
        """Drop the cache, so that the tables are read again."""
        with self._lock:
            self._cache = None

    def apply(self, table: pa.Table, cluster_id: str | None) -> bool:
        """Append the new rows of the source to ``log`` and ``changes``.

        Returns:
            Whether there were new rows.

        Raises:
            OffsetGapError, DivergedLogError, WrongClusterError, ReplayError: nothing was written.
            ClusterOwnedError: a group writes the cluster.
            TablesError: the rows are not those of a metadata log, or Delta failed.
        """
        return self._again_if_late(lambda: self._apply(table, cluster_id))

    def begin_load(self, cluster_id: str | None) -> Progress:
        """Return the end of the tables, which ``state`` includes, for a load of later records.

        Raises:
            ClusterOwnedError: a group writes the cluster.
            TablesError: Delta failed.
        """

        def work() -> Progress:
            cache = self._ready_for(cluster_id)
            if cache.progress.offset == NOTHING:
                self._store.prepare()
            self._own(cache)
            self._merge_state()
            return cache.progress

        return self._again_if_late(work)

    def state_at(self, end: Progress) -> StateParts:
        """Return the rows of ``state``, which includes the end of the tables; no deleted ones.

        If the end of the tables changes meanwhile, the ``append_loaded`` that follows fails.
        """
        parts = read_state(self._store, end.cluster_id).parts()
        return StateParts(*(living(without_reverted(part, end)) for part in parts))

    def append_loaded(self, loaded: LoadedRange) -> None:
        """Append a load's rows to ``log`` and ``changes``, and merge its rows of ``state``.

        Rows that an interrupted call has committed are left out.

        Raises:
            ConcurrentWriterError: the tables end elsewhere, or were truncated.
            TablesError: Delta failed.
        """
        with self._lock:
            self._cache = None
            self._append_loaded(loaded)

    def merge_state(self) -> None:
        """Merge the later changes into ``state``. Raises ``TablesError``; readers see no change."""
        failed = self._again_if_late(self._try_merge)
        if failed is not None:
            raise failed

    def begin_merge(self) -> dict[str, Tail]:
        """Return what ``state`` lacks, for a merge by ``rows_on`` another store; see ``upkeep``."""
        with self._lock:
            cache = self._ready()
            return {str(cache.progress.cluster_id): cache.begin_merge()}

    def end_merge(self, tails: Mapping[str, Tail], *, is_merged: bool = True) -> None:
        """Record the end of a merge. ``is_merged``: ``state`` includes its changes."""
        with self._lock:
            for tail in tails.values():
                if self._cache is not None:
                    self._cache.unmerged.end_merge(tail, is_merged=is_merged)

    def maintain(self) -> None:
        """Merge the later changes into ``state``, compact and vacuum. Raises ``TablesError``."""
        self.merge_state()
        self.compact()
        self.vacuum()

    def expire(self, offset: int) -> int:
        """Delete the changes up to ``offset`` (inclusive), which becomes the first readable state.

        If a gap contains the offset, this is the state before the gap.

        Returns:
            The first offset whose state can be read.

        Raises:
            OffsetOutOfRangeError: the tables begin after the offset, or end before it.
        """
        return self._again_if_late(lambda: self._expire(offset))

    def truncate_to(self, offset: int) -> int:
        """Revert the tables to the state after ``offset`` (inclusive) or shortly before it.

        If a metadata transaction or a gap contains the offset, this is the state before it.

        Returns:
            The last offset in the tables, inclusive.

        Raises:
            OffsetOutOfRangeError: the tables begin after the offset, or end before it.
        """
        return self._again_if_late(lambda: self._truncate_to(offset))

    # --- the cache --------------------------------------------------------------------------------

    def _ready(self) -> ClusterCache:
        if self._cache is None:
            self._cache = self._read(self._cluster_id)
        return self._cache

    def _ready_for(self, cluster_id: str | None) -> ClusterCache:
        """Return the state for appends of a log, whose cluster id is None if it is unknown."""
        cache = self._ready()
        if cache.progress.cluster_id is None:  # nothing of it is published
            cache = self._cache = self._read(cluster_id or UNKNOWN_CLUSTER)
        cache.progress = replace(
            cache.progress, log_cluster_id=cache.progress.log_cluster_id or cluster_id
        )
        return cache

    def _read(self, cluster_id: str | None) -> ClusterCache:
        return self._rows.cache_of(cluster_id, self._cluster_id)

    def _again_if_late(self, work: Callable[[], T]) -> T:
        """Do ``work``; if another writer was faster, read the tables again and retry.

        Any error drops the cache, because it may be ahead of the tables.
        """
        with self._lock:
            for attempt in range(1, ATTEMPTS_MAX + 1):
                was_cached = self._cache is not None
                try:
                    return work()
                except ConcurrentWriterError:
                    self._cache = None
                    if attempt == ATTEMPTS_MAX:
                        raise
                except (OffsetGapError, DivergedLogError):
                    # The cache may be older than another writer's commit: read the tables again.
                    self._cache = None
                    if not was_cached:
                        raise
                except BaseException:
                    self._cache = None
                    raise
        raise AssertionError("the loop returns or raises")

    # --- work -------------------------------------------------------------------------------------

    @collection_paused()
    def _apply(self, table: pa.Table, cluster_id: str | None) -> bool:
        was_cached = self._cache is not None
        check_log(self._ready().progress, table, cluster_id, self.place)
        cache = self._ready_for(cluster_id)
        self._own(cache)
        progress = cache.progress
        new = cache.new_rows(table, self.source_columns, self.place)
        if new is None:
            if was_cached and progress.offset != NOTHING and not self._rows.ends_at(progress):
                raise self._late(progress)  # another process may have truncated these rows
            return False
        if progress.offset == NOTHING:
            self._store.prepare()
        if self._rows.writes_log:
            self._append_log(cache, new.log)
        rows, [changes] = changes_rows([new], self._rows.clock_us(), self._slice_rows)
        transaction = own_transaction(CHANGES_TABLE, progress, progress.next_offset)
        self._rows.append_changes(rows, transaction)
        bound_memory([cache.unmerged], self._unmerged_rows_max)
        cache.published(changes, new.after)
        return True

    def _append_loaded(self, loaded: LoadedRange) -> None:
        before, after = loaded.before, loaded.after
        if not self._rows.ends_at(after):
            if not self._rows.ends_at(before):
                remedy = "load the log again: the load continues at the end of the tables"
                raise self._late(after, remedy)
            if self._rows.writes_log:
                self._append_loaded_log(loaded)
            transaction = own_transaction(CHANGES_TABLE, before, before.next_offset)
            self._rows.append_changes(loaded.changes_rows(), transaction)
        self._rows.merge_rows(after, loaded.state_rows())

    def _append_loaded_log(self, loaded: LoadedRange) -> None:
        before = loaded.before
        ahead = self._rows.log_ahead(before)
        if not ahead.num_rows:
            transaction = own_transaction(LOG_TABLE, before, before.next_offset)
            self._rows.append_log(loaded.log_rows(), transaction)
        elif not _is_same(ahead, loaded.log_identities()):
            self._rows.fence([(before, next_incarnation(before))], {})
            raise self._log_reverted()
        if before.is_start_of_incarnation:
            self._rows.fence_log([before])

    def _own(self, cache: ClusterCache) -> None:
        """Take the cluster over from its group if this is allowed."""
        progress = cache.progress
        if progress.group is None:
            return
        if not self._take_over:
            raise owned(self.place, progress)
        fence(self._rows, cache, replace(next_incarnation(progress), group=None))
        cache.log_ahead = cache.log_ahead.slice(0, 0)

    def _append_log(self, cache: ClusterCache, rows: pa.Table) -> None:
        ahead = cache.log_ahead
        if ahead.num_rows:
            log_offset = pc.max(ahead["offset"]).as_py()
            known = rows_where(ahead, ("offset", "<=", rows["offset"][-1].as_py()))
            repeated = rows_where(rows, ("offset", "<=", log_offset))
            if not _is_same(known, repeated.select(RECORD_IDENTITY)):
                self._revert_log(cache)
            cache.log_ahead = ahead.slice(0, 0)
            if known.num_rows < ahead.num_rows:
                self._revert_log(cache)
            rows = rows_where(rows, ("offset", ">", log_offset))
        if rows.num_rows:
            transaction = own_transaction(LOG_TABLE, cache.progress, rows["offset"][0].as_py())
            self._rows.append_log(rows, transaction)
        if cache.progress.is_start_of_incarnation:
            self._rows.fence_log([cache.progress])

    def _revert_log(self, cache: ClusterCache) -> NoReturn:
        """Delete records that a crash kept out of ``changes``, as the source has others now."""
        fence(self._rows, cache, next_incarnation(cache.progress))
        self._rows.delete_reverted_log([cache.progress])
        raise self._log_reverted()

    def _late(self, end: Progress, remedy: str = "run this again") -> ConcurrentWriterError:
        return ConcurrentWriterError(
            place=self.place,
            reason=f"another process has changed cluster {end.cluster_id}",
            remedy=remedy,
        )

    def _log_reverted(self) -> ConcurrentWriterError:
        return ConcurrentWriterError(
            place=self._store.place,
            reason="table log had records that the source does not have",
            remedy="they were deleted: run this again",
        )

    def _merge_state(self) -> None:
        cache = self._ready()
        if cache.unmerged.row_count:
            merge(self._rows, cache)

    def _try_merge(self) -> TablesError | None:
        """Merge; return an error that leaves the cache valid, because ``changes`` is unchanged."""
        try:
            self._merge_state()
        except ConcurrentWriterError:
            raise
        except TablesError as error:
            return error
        return None

    def _expire(self, offset: int) -> int:
        self._cache = None
        found = expire(self._rows, self._ready(), offset)
        self._cache = None
        return found

    def _truncate_to(self, offset: int) -> int:
        self._cache = None
        found = truncate_to(self._rows, self._ready(), offset)
        self._cache = None
        return found


def _is_same(known: pa.Table, repeated: pa.Table) -> bool:
    order = [(name, "ascending") for name in ("offset", "snapshot_position")]
    first, second = (rows.sort_by(order).combine_chunks() for rows in (known, repeated))
    return bool(first.equals(second))
