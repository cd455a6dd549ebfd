"""``ClusterRows``: clusters' rows in the stored tables, and the transactions of their appends.

Rules of this file:

1. Every append is conditional on its transaction, so if two writers have read the same rows, one
   commits. The version of a cluster's transaction is the incarnation and the end before the append.
   The version of a group's transaction follows the one in the newest progress rows.
2. The owner of a cluster is in its newest progress row: a group, or null for a writer of this
   cluster alone. Appends of the cluster use the owner's transactions. A take-over uses one
   transaction of the former owner in each table: for its fence in ``changes``, and for the new
   owner's first append to ``log``.
3. Each append in a group's transaction has a progress row with the transaction's version, and later
   progress rows of the cluster keep it. The last version is therefore known while there are
   progress rows. Versions are read before rows, so that an append in between is detected and not
   overlooked.
4. A fence is a progress row with a new incarnation at the end of the tables. Its transaction is
   that of the owner's next append, so only one of the two commits. One append may fence several
   clusters of one group, or of no group if the store supports many transactions.
5. Only rows of the named clusters are read and written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from operator import attrgetter
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute

from raftlog_state.errors import ConcurrentWriterError, TablesError
from raftlog_state.loader.payload import Decode
from raftlog_state.records.internal_logs import cluster_of

from .change_slices import ChangeSlices
from .cluster_cache import ClusterCache, Versions
from .latest import overlay, state_rows, without_reverted
from .progress import (
    IS_PROGRESS,
    NOTHING,
    Progress,
    changes_progress,
    check_layout,
    check_same_time,
    cluster_in,
    progress_of,
    progress_rows_of,
)
from .schema import (
    CHANGES_TABLE,
    CLUSTER_ID,
    LOG_TABLE,
    PROGRESS,
    STATE_TABLE,
    STORED_TABLES,
    StoredTable,
)
from .stored_rows import StoredState, read_progress, read_state, read_states
from .stores.compaction import COMPACT_BYTES
from .stores.protocol import (
    AnyOf,
    Condition,
    Rows,
    TableStore,
    Transaction,
    Where,
    columns_of_entity,
    rows_where,
)
from .tails import TailFold, TailRange, read_tails, state_of_tails
from .unmerged import StoredChanges, Tail, Unmerged, UnmergedPart

pc: Any = pyarrow.compute  # pyarrow creates its functions at import, unseen by type checkers

RECORD_IDENTITY: Final = ("offset", "snapshot_position", "leader_epoch")
_OFFSET_BITS: Final = 44
"""The 63 bits of a transaction's version are the incarnation, then an offset."""

_IN_BOTH: Final = (CLUSTER_ID, "topic", "partition", "entity")
_IN_STATE: Final = {
    "after": "row",
    "visible_offset": "_visible_offset",
    "leader_epoch": "_leader_epoch",
    "log_time": "_log_time",
    "incarnation": "_incarnation",
}
"""Columns of a progress row of ``changes``, and the names of those that differ in ``state``."""
_PROGRESS_COLUMNS: Final = (
    *_IN_BOTH,
    *(f"{name}.{PROGRESS}" if name == "after" else name for name in _IN_STATE),
)

Step = Callable[[str], None]


def no_step(_: str) -> None:
    """Do nothing after a step of a write: the default."""


def now_us() -> int:
    """Return the time in microseconds since 1970 UTC."""
    since = datetime.now(UTC) - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds


@dataclass(frozen=True, slots=True)
class Ends:
    """Newest progress of each cluster, and the version of each group's last transaction."""

    progress: dict[str, Progress]
    versions: Versions


class ClusterRows:
    """Reads, appends, merges and deletes rows of clusters. ``decode_value`` decodes records."""

    def __init__(
        self,
        store: TableStore,
        *,
        after_step: Step,
        writes_log: bool,
        clock_us: Callable[[], int],
        decode_value: Decode,
    ) -> None:
        self.store = store
        self.step = after_step
        self.writes_log = writes_log
        self.clock_us = clock_us
        self._decode = decode_value

    def on(self, store: TableStore) -> ClusterRows:
        """Return the same rows through another store of the same place, for another thread."""
        return ClusterRows(
            store,
            after_step=no_step,
            writes_log=self.writes_log,
            clock_us=self.clock_us,
            decode_value=self._decode,
        )

    @property
    def place(self) -> str:
        """Where the tables are."""
        return self.store.place

    # --- reads ------------------------------------------------------------------------------------

    def cache_of(self, cluster_id: str | None, log_cluster_id: str | None) -> ClusterCache:
        """Read a cluster; None: the only one. An unfinished truncation is completed first.

        ``log_cluster_id`` is the log's cluster id, for tables without rows.
        """
        check_layout(self.store)
        bases = read_progress(self.store, cluster_id)
        known = bases[0].cluster_id if bases else None
        cluster_id = cluster_in(self.store, cluster_id, known)
        named = Progress(cluster_id=cluster_id, log_cluster_id=log_cluster_id)
        cache = self._cache(*self._rows_of(named, bases), None)
        if cache.progress.group is not None:
            versions = self.ends().versions
            bases = read_progress(self.store, cluster_id)
            cache = self._cache(*self._rows_of(named, bases), versions)
        cache.log_ahead = self.log_ahead(cache.progress)
        return cache

    def caches_of(
        self, cluster_ids: Sequence[str], versions: Versions
    ) -> dict[str, ClusterCache | TablesError]:
        """Read several clusters together, without their records that are ahead in ``log``.

        ``versions`` were read before; the caches share them. The result for a cluster whose rows
        are incomplete is an error.
        """
        states = read_states(self.store, cluster_ids)
        names = [Progress(cluster_id=name, log_cluster_id=cluster_of(name)) for name in cluster_ids]
        bases = [progress_of(states[str(named.cluster_id)].others) or named for named in names]
        folds = self._folds(bases)
        found: dict[str, ClusterCache | TablesError] = {}
        for name, fold in zip(cluster_ids, folds, strict=True):
            try:
                found[name] = self._cache(StoredState.of(states[name]), fold, versions)
            except ConcurrentWriterError:
                raise
            except TablesError as error:
                found[name] = error
        caches = [cache for cache in found.values() if isinstance(cache, ClusterCache)]
        return found | self._log_errors([cache.progress for cache in caches])

    def ends(self, cluster_id: str | None = None) -> Ends:
        """Return the progress of all clusters, or of one, and the last versions of its groups.

        Only progress rows are read: those of ``state``, and the later ones of ``changes``.
        """
        check_layout(self.store)
        rows = read_progress(self.store, cluster_id)
        bases = {progress.cluster_id: progress for progress in rows}
        newest = dict(bases)
        if self.store.exists(CHANGES_TABLE):
            where: Where = (IS_PROGRESS,)
            any_of: AnyOf = tuple(map(_from, rows))
            if cluster_id is not None:
                where += (_of_cluster(cluster_id),)
            elif rows:
                any_of += (((CLUSTER_ID, "not in", tuple(map(str, bases))),),)
            found = self.store.read(CHANGES_TABLE, where, _PROGRESS_COLUMNS, any_of=any_of)
            for progress in progress_rows_of(with_state_columns(found)):
                rows.append(progress)
                base = bases.get(progress.cluster_id)
                if base is None or _is_valid(progress, base):
                    last = newest.setdefault(progress.cluster_id, progress)
                    if (progress.incarnation, progress.offset) > (last.incarnation, last.offset):
                        newest[progress.cluster_id] = progress
        versions: Versions = {}
        for progress in rows:
            for group, version in progress.group_versions.items():
                versions[group] = max(version, versions.get(group, version))
        return Ends({name: end for name, end in newest.items() if name is not None}, versions)

    def _cache(self, state: StoredState, tail: TailFold, versions: Versions | None) -> ClusterCache:
        """Return the cache of a cluster's rows; ``versions`` is None if they have not been read."""
        base, progress = tail.base, tail.progress
        self._complete_truncation(tail, versions)
        self._check_appends(tail)
        return ClusterCache(
            progress=progress,
            stored=self._overlaid(state, tail),
            decode=self._decode,
            unmerged=Unmerged(tail.unmerged, base_offset=base.offset, end_offset=progress.offset),
            log_ahead=LOG_TABLE.no_rows.select(RECORD_IDENTITY),
            versions={} if versions is None else versions,
        )

    def _overlaid(self, state: StoredState, tail: TailFold) -> StoredState:
        """Return the rows of ``state`` with the changes after them; they are read when needed.

        If another process merges into ``state`` before that, the cluster is read again, as after
        that process's commit.
        """
        base, later = tail.base, tail.later

        def read_others() -> pa.Table:
            found = state.others
            newest = progress_of(found)
            if newest is not None and newest != base:
                raise self._state_changed(base)
            return overlay(without_reverted(found, base), later.others)

        def read_partitions() -> pa.Table:
            return overlay(without_reverted(state.parts().partitions, base), later.partitions)

        return StoredState(read_others, read_partitions)

    def _check_appends(self, tail: TailFold) -> None:
        """Raise an error if an append is missing: another process may have truncated the tables."""
        base = tail.base
        try:
            check_same_time(self.place, base, tail.progress, has_end=tail.has_end)
            if tail.missing_offset is None:
                return
            raise TablesError(
                place=self.place,
                reason=f"table changes lacks the append from offset {tail.missing_offset} on",
                remedy="create new tables at another location from the log",
            )
        except TablesError:
            found = read_progress(self.store, base.cluster_id)
            if any(newest != base for newest in found):
                raise self._state_changed(base) from None
            raise

    def _state_changed(self, base: Progress) -> ConcurrentWriterError:
        return ConcurrentWriterError(
            place=self.place,
            reason=f"another process changed state, which had offset {base.offset}, meanwhile",
            remedy="run this again",
        )

    def read(
        self,
        table: StoredTable,
        cluster_id: str | None,
        *where: Condition,
        columns: tuple[str, ...] | None = None,
    ) -> pa.Table:
        """Return rows of a cluster, none if the table does not exist."""
        if cluster_id is not None and self.store.exists(table):
            return self.store.read(table, (_of_cluster(cluster_id), *where), columns)
        empty = table.no_rows
        return empty if columns is None else empty.select(list(columns))

    def _rows_of(self, named: Progress, bases: Iterable[Progress]) -> tuple[StoredState, TailFold]:
        """Return a cluster's rows in ``state``, and the changes after their progress.

        If ``state`` has no progress, all rows are in the changes.
        """
        of_cluster = [base for base in bases if base.cluster_id == named.cluster_id]
        [tail] = self._folds(of_cluster or [named])
        return read_state(self.store, named.cluster_id if of_cluster else None), tail

    def _folds(self, bases: Sequence[Progress]) -> list[TailFold]:
        """Return the folded changes of clusters that ``state`` does not include."""
        folds = {base.cluster_id: TailFold(base) for base in bases}
        ranges = [
            TailRange(base.cluster_id, base.offset, None, has_fences=True)
            for base in bases
            if base.cluster_id is not None
        ]
        for is_only, window in read_tails(self.store, ranges):
            for name, rows in window.items():
                folds[name].add(rows, is_only=is_only)
        return [*folds.values()]

    def _complete_truncation(self, tail: TailFold, versions: Versions | None) -> None:
        """Complete a truncation to the progress of ``state`` if it was interrupted."""
        base = tail.base
        are_versions_known = base.group is None or versions is not None
        if base.truncated_to is not None and not tail.is_complete and are_versions_known:
            self.complete_truncation(
                base, {} if versions is None else versions, is_fenced=tail.is_fenced
            )

    def log_ahead(self, progress: Progress) -> pa.Table:
        """Return the identities of the records in ``log`` that a crash kept out of ``changes``.

        Records of an earlier incarnation are not counted: its writers are fenced from ``changes``,
        but from ``log`` only by the first append of this incarnation.
        """
        columns = (*RECORD_IDENTITY, "incarnation")
        if not self.writes_log:
            return LOG_TABLE.no_rows.select(RECORD_IDENTITY)
        at_end: Condition = ("offset", ">=", progress.offset)
        rows = self.read(LOG_TABLE, progress.cluster_id, at_end, columns=columns)
        if rows.num_rows == 0 and progress.offset != NOTHING:
            self._check_incarnations([progress])  # a truncation has deleted its end meanwhile
            raise self._log_lacks(progress)
        is_later: Condition = ("offset", ">", progress.offset)
        is_current: Condition = ("incarnation", ">=", progress.incarnation)
        return rows_where(rows, is_later, is_current).select(RECORD_IDENTITY)

    def _log_errors(self, ends: Iterable[Progress]) -> dict[str, TablesError]:
        """Return errors of the clusters whose last records are missing in ``log``."""
        ends = [end for end in ends if end.offset != NOTHING]
        if not self.writes_log or not ends:
            return {}
        names: set[str] = set()
        if self.store.exists(LOG_TABLE):
            any_of = tuple((_of_cluster(str(end.cluster_id)), _is_at(end)) for end in ends)
            found = self.store.read(LOG_TABLE, columns=(CLUSTER_ID,), any_of=any_of)
            names = set(pc.unique(found[CLUSTER_ID]).to_pylist())
        lacking = [end for end in ends if end.cluster_id not in names]
        if lacking:
            self._check_incarnations(lacking)
        return {str(end.cluster_id): self._log_lacks(end) for end in lacking}

    def _log_lacks(self, progress: Progress) -> TablesError:
        return TablesError(
            place=self.place,
            reason=f"table log does not contain offset {progress.offset}, but table changes does",
            remedy="open them with log=False (`raftlog tables`: --no-log), or create new ones",
        )

    def clusters_ahead(self, ends: Iterable[Progress]) -> list[Progress]:
        """Return the clusters with records in ``log`` that a crash kept out of ``changes``."""
        ends = list(ends)
        if not self.writes_log or not ends or not self.store.exists(LOG_TABLE):
            return []
        found = self.store.read(LOG_TABLE, columns=(CLUSTER_ID,), any_of=tuple(map(_ahead, ends)))
        names = set(pc.unique(found[CLUSTER_ID]).to_pylist())
        return [end for end in ends if end.cluster_id in names]

    # --- appends ----------------------------------------------------------------------------------

    def append_log(self, rows: Rows, transaction: Transaction) -> None:
        """Append rows to ``log``."""
        self.store.append(LOG_TABLE, rows, transaction)
        self.step(LOG_TABLE.name)

    def append_changes(self, rows: Rows, transaction: Transaction) -> None:
        """Append rows to ``changes``, which publishes them."""
        self.store.append(CHANGES_TABLE, rows, transaction)
        self.step(CHANGES_TABLE.name)

    def merge(self, tails: Mapping[str, Tail]) -> None:
        """Merge the unmerged changes of clusters, with their progress, into ``state``.

        This is one commit, and further ones for clusters whose changes are in slices or must be
        read.
        """
        if all(tail.is_empty for tail in tails.values()):
            return
        self._check_incarnations([tail.end for tail in tails.values()])
        for rows in self._state_of(tails):
            self.store.merge(rows)
            self.step(STATE_TABLE.name)

    def _state_of(self, tails: Mapping[str, Tail]) -> Iterator[Rows]:
        """Yield the rows of ``state`` for the clusters' unmerged changes, one merge at a time.

        A merge contains each key once, so the changes before and after slices are separate merges.
        After a restart, the first changes of many clusters may have to be read; this is done
        together.
        """
        yield from self._stored_state(
            {name: tail for name, tail in tails.items() if isinstance(_first(tail), StoredChanges)}
        )
        small: list[pa.Table] = []
        for name, tail in tails.items():
            tables: list[pa.Table] = []
            for part in tail.parts:
                if isinstance(part, pa.Table):
                    tables.append(part)
                    continue
                yield from _state_of_tables(tables)
                tables = []
                if isinstance(part, ChangeSlices):
                    yield part.state()
                elif part is not _first(tail):
                    yield from self._stored_state({name: Tail(tail.end, (part,))})
            small += tables
        yield from _state_of_tables(small)

    def _stored_state(self, tails: Mapping[str, Tail]) -> Iterator[Rows]:
        """Yield the rows of ``state`` for the first parts of tails, which are in ``changes``."""
        ranges = [
            TailRange(name, part.after_offset, part.last_offset, has_fences=True)
            for name, tail in tails.items()
            if isinstance(part := _first(tail), StoredChanges)
        ]
        ends = {name: tail.end for name, tail in tails.items()}
        yield from state_of_tails(self.store, ranges, ends)

    def merge_rows(self, end: Progress, rows: Rows) -> None:
        """Merge rows of a cluster, with their progress, into ``state``."""
        self._check_incarnations([end])
        self.store.merge(rows)
        self.step(STATE_TABLE.name)

    def ends_at(self, end: Progress) -> bool:
        """Return whether ``end`` is the newest append of its cluster."""
        found = self.ends(end.cluster_id).progress.get(str(end.cluster_id), Progress())
        return (found.incarnation, found.offset) == (end.incarnation, end.offset)

    def _check_incarnations(self, ends: Sequence[Progress]) -> None:
        """Raise ``ConcurrentWriterError`` if ``state`` has a later incarnation.

        If a process reads the tables during a truncation that is then interrupted, it can append
        rows that readers do not see.
        """
        if not self.store.exists(STATE_TABLE):
            return
        any_of = tuple((_of_cluster(str(end.cluster_id)),) for end in ends)
        columns = columns_of_entity(STATE_TABLE, PROGRESS)
        rows = self.store.read(STATE_TABLE, (IS_PROGRESS,), columns, any_of=any_of)
        found = {progress.cluster_id: progress for progress in progress_rows_of(rows)}
        for end in ends:
            merged = found.get(end.cluster_id, end)
            if merged.incarnation > end.incarnation:
                raise ConcurrentWriterError(
                    place=self.place,
                    reason=f"another process has truncated the tables to offset {merged.offset}",
                    remedy="materialize the log again: the tables continue there",
                )

    # --- upkeep -----------------------------------------------------------------------------------

    def compact(self) -> None:
        """Rewrite the small files of all tables. Raises ``TablesError``."""
        for table in STORED_TABLES.values():
            if self.store.exists(table):
                self.store.compact(table)
                self.step(f"compact {table.name}")

    def small_file_count(self) -> int:
        """Return how many files a compaction of ``changes`` can save. Raises ``TablesError``."""
        if not self.store.exists(CHANGES_TABLE):
            return 0
        size = self.store.size(CHANGES_TABLE)
        return max(0, size.file_count - 2 * -(-size.byte_count // COMPACT_BYTES))

    def vacuum(self) -> None:
        """Delete files that belong to no version within the retention. Raises ``TablesError``."""
        for table in STORED_TABLES.values():
            if self.store.exists(table):
                self.store.vacuum(table)

    def checkpoint(self) -> None:
        """Write checkpoints of the tables whose newest one is old. Raises ``TablesError``."""
        for table in STORED_TABLES.values():
            if self.store.exists(table):
                self.store.checkpoint(table)

    # --- incarnations -----------------------------------------------------------------------------

    def fence(
        self, fences: Sequence[tuple[Progress, Progress]], versions: Versions
    ) -> list[tuple[Progress, pa.Table]]:
        """Begin incarnations of clusters at the ends of their tables, in one append.

        Args:
            fences: each cluster's progress and the one that follows it. The clusters have one
                owner: a group, or none. Without a group there is only one cluster, unless the store
                supports many transactions.
            versions: the groups' versions; the owner's is increased.

        Returns:
            The new progress of each cluster, and its row in ``changes``.

        Raises:
            ConcurrentWriterError: another writer has appended or begun an incarnation.
        """
        # After an incarnation began, a late writer of an earlier one cannot append to ``changes``
        # any more, but it may have appended to ``log``.
        self.delete_reverted_log([before for before, _ in fences])
        befores, ends = ([fence[side] for fence in fences] for side in range(2))
        owner = befores[0].group
        if owner is None:
            transactions = [own_transaction(CHANGES_TABLE, end, end.next_offset) for end in befores]
        else:
            transactions = [group_transaction(CHANGES_TABLE, owner, versions)]
            ends = [after.appended_by(owner, transactions[0].version) for after in ends]
        rows = changes_progress(ends, self.clock_us())
        self.store.append(CHANGES_TABLE, rows, *transactions)
        if owner is not None:
            versions[owner] = transactions[0].version
        self.step("fence")
        return [(after, rows.slice(at, 1)) for at, after in enumerate(ends)]

    def complete_truncation(
        self, progress: Progress, versions: Versions, *, is_fenced: bool = False
    ) -> None:
        """Fence writers of earlier incarnations, then delete reverted rows; ``changes`` last.

        ``progress`` is the progress of ``state``.
        """
        if not is_fenced:
            transaction = own_transaction(CHANGES_TABLE, progress, progress.offset)
            if progress.group is not None:
                transaction = group_transaction(CHANGES_TABLE, progress.group, versions)
                progress = progress.appended_by(progress.group, transaction.version)
            self.store.append(CHANGES_TABLE, progress.changes_row(self.clock_us()), transaction)
            if progress.group is not None:
                versions[progress.group] = transaction.version
            self.step("truncate fence")
        self.delete_reverted_log([progress])
        self._delete(CHANGES_TABLE, "visible_offset", [progress])
        self.delete_expired(progress)

    def fence_log(self, ends: Sequence[Progress]) -> None:
        """Fence writers of clusters' earlier incarnations from ``log``, and delete their rows.

        Call this after the first append of these incarnations to ``log`` and before their first
        append to ``changes``: an owner's transactions end at the fence in ``changes`` that ended
        its ownership.
        """
        fences = {
            group_transaction_of(LOG_TABLE, group, version)
            for end in ends
            for group, version in end.group_versions.items()
            if group != end.group
        }
        fences |= {own_transaction(LOG_TABLE, end, 0) for end in ends if end.group is not None}
        self.store.fence(LOG_TABLE, sorted(fences, key=attrgetter("app_id", "version")))
        self.step("log fence")
        self.delete_reverted_log(ends)

    def delete_reverted_log(self, ends: Sequence[Progress]) -> None:
        """Delete the records of clusters' earlier incarnations after the present one's start."""
        if self.store.exists(LOG_TABLE):
            self._delete(LOG_TABLE, "offset", ends)

    def _delete(self, table: StoredTable, offset: str, ends: Sequence[Progress]) -> None:
        any_of = tuple(
            (*_of_earlier_incarnations(end), (offset, ">", end.truncated_to))
            for end in ends
            if end.truncated_to is not None
        )
        if any_of:
            self.store.delete(table, (), any_of=any_of)
            self.step(f"truncate {table.name}")

    def delete_expired(self, progress: Progress) -> None:
        """Delete the expired changes. A fence has replaced the progress among them."""
        if progress.expired_to is not None:
            is_expired: Condition = ("visible_offset", "<=", progress.expired_to)
            where = (*_of_earlier_incarnations(progress), is_expired)
            self.store.delete(CHANGES_TABLE, where)
            self.step("expire")


def own_transaction(table: StoredTable, progress: Progress, next_offset: int) -> Transaction:
    """Return the transaction of a cluster's append. A later incarnation has a greater version."""
    return Transaction(
        app_id=f"raftlog-{table.name}-{progress.cluster_id}",
        version=(progress.incarnation << _OFFSET_BITS) + next_offset,
    )


def group_transaction(table: StoredTable, group: str, versions: Versions) -> Transaction:
    """Return the transaction of a group's next append."""
    return group_transaction_of(table, group, versions.get(group, 0) + 1)


def group_transaction_of(table: StoredTable, group: str, version: int) -> Transaction:
    """Return the transaction of a group's append of this version."""
    return Transaction(app_id=f"raftlog-group-{table.name}-{group}", version=version)


def _first(tail: Tail) -> UnmergedPart | None:
    return tail.parts[0] if tail.parts else None


def _state_of_tables(tables: Sequence[pa.Table]) -> Iterator[pa.Table]:
    parts = [table for table in tables if table.num_rows]
    if parts:
        yield state_rows(pa.concat_tables(parts))


def with_state_columns(changes: pa.Table) -> pa.Table:
    """Return progress rows of ``changes`` with the columns of ``state``."""
    found = changes.select([*_IN_BOTH, *_IN_STATE])
    return found.rename_columns([*_IN_BOTH, *_IN_STATE.values()])


def _is_valid(progress: Progress, base: Progress) -> bool:
    """Return whether an append is not reverted by the truncation in ``state``."""
    if base.truncated_to is None or progress.incarnation >= base.incarnation:
        return True
    return progress.offset <= base.truncated_to


def _from(base: Progress) -> Where:
    """Return the conditions of a cluster's changes from its progress in ``state`` on."""
    return (_of_cluster(str(base.cluster_id)), ("visible_offset", ">=", base.offset))


def _ahead(end: Progress) -> Where:
    """Return the conditions of a cluster's records that are ahead of its end."""
    is_later: Condition = ("offset", ">", end.offset)
    return (_of_cluster(str(end.cluster_id)), is_later, ("incarnation", ">=", end.incarnation))


def _is_at(end: Progress) -> Condition:
    """Return the condition of the last records before an end."""
    return ("offset", "=", end.offset)


def _of_cluster(cluster_id: str) -> Condition:
    return (CLUSTER_ID, "=", cluster_id)


def _of_earlier_incarnations(progress: Progress) -> tuple[Condition, ...]:
    """Return the conditions of the rows of a cluster's earlier incarnations."""
    assert progress.cluster_id is not None, "there are rows of the cluster"
    return (_of_cluster(progress.cluster_id), ("incarnation", "<", progress.incarnation))
