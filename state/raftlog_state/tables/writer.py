"""The writer: appends a range of a cluster's log to ``log`` and ``changes``, exactly once.

Invariants:

1. Check, replay, then write: rejected rows have no effect.
2. The append of ``changes`` is the publication: the changes of a range and its progress row are one
   commit. ``log`` is written before, so it has every published record.
3. Every append is conditional. Its transaction version is the incarnation and the end that the
   tables had before, so of two writers with the same end one commits; the other reads the tables
   again and retries. A writer of an earlier incarnation commits nothing.
4. The state in memory is a cache of the tables. After any error it is dropped and read again.
5. Only rows of its cluster are read and written. Writers of different clusters have different
   transactions, so each commits.
6. A truncation or an expiry begins an incarnation, whose first progress row in ``changes`` fences
   earlier writers. The first append to ``log`` fences them from that too.
7. A truncation is one merge into ``state``, whose progress row has one more incarnation. Rows after
   its offset of an earlier one are reverted: they are not read. Then that one is fenced too, and
   the reverted rows are deleted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from threading import RLock
from typing import Any, Final, NoReturn, TypeVar

import pyarrow as pa
import pyarrow.compute

from raftlog.errors import DivergedLogError
from raftlog_state.errors import ConcurrentWriterError, OffsetGapError, TablesError
from raftlog_state.image import EpochRow, MetadataImage, TransactionRow
from raftlog_state.image.delta import RecordChanges
from raftlog_state.image.rows import Entity, Row
from raftlog_state.loader.metadata_loader import MetadataLoader
from raftlog_state.loader.payload import Decode
from raftlog_state.records import decode

from .batch import RECORD_JSON, SOURCE_COLUMNS, CheckedBatch, check_batch, epoch_ranges
from .convert import changes_table, milliseconds
from .latest import living_rows, overlay, rows_before, state_rows, without_reverted
from .logrows import log_rows, replay_rows
from .origins import RowOrigins
from .progress import (
    NOTHING,
    SOFTWARE,
    Progress,
    check_layout,
    cluster_in,
    last_epoch,
    progress_of,
    quorum_of,
    row_counts_of,
    wrong_cluster,
)
from .schema import (
    CHANGES_TABLE,
    CLUSTER_ID,
    LOG_TABLE,
    PROGRESS,
    STATE_TABLE,
    STORED_TABLES,
    UNKNOWN_CLUSTER,
    StoredTable,
)
from .stores.protocol import COMPACT_BYTES, Condition, TableStore, Transaction

pc: Any = pyarrow.compute  # pyarrow makes its functions at import: no checker sees them

ATTEMPTS_MAX: Final = 3
"""How often a range is tried again after another writer was faster."""

RECORD_IDENTITY: Final = ("offset", "snapshot_position", "leader_epoch")
_OFFSET_BITS: Final = 44
"""A version of a transaction has 63 bits: the incarnation, then an offset."""

Step = Callable[[str], None]
EpochRange = tuple[int, int, int]
"""Leader epoch, first and last offset."""
T = TypeVar("T")


def no_step(_: str) -> None:
    """Do nothing after a step of a write: the default."""


def now_us() -> int:
    """Return the time in microseconds since 1970 UTC."""
    since = datetime.now(UTC) - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds


@dataclass(slots=True, kw_only=True)
class State:
    """The cache: the end of the tables, the cluster's state there, and what ``state`` lacks.

    ``tail`` are the rows of ``changes`` after ``base_offset``, which ``state`` includes;
    ``log_ahead`` are the records that ``log`` has after ``progress``, by ``RECORD_IDENTITY``.
    """

    progress: Progress
    fold: MetadataLoader
    origins: RowOrigins
    base_offset: int
    tail: list[pa.Table]
    log_ahead: pa.Table


class Writer:
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
        clock_us: Callable[[], int] = now_us,
        decode_value: Decode = decode,
    ) -> None:
        """``decode_value`` decodes the values of metadata records."""
        self._store = store
        self._cluster_id = cluster_id
        self._step = after_step
        self._writes_log = writes_log
        self._clock_us = clock_us
        self._decode = decode_value
        self._state: State | None = None
        self._lock = RLock()

    # --- public -----------------------------------------------------------------------------------

    @property
    def place(self) -> str:
        """Where the tables are."""
        return self._store.place

    @property
    def source_columns(self) -> tuple[str, ...]:
        """The columns of the source that ``apply`` needs."""
        return tuple(name for name in SOURCE_COLUMNS if self._writes_log or name != RECORD_JSON)

    def progress(self) -> Progress:
        """Return the end of the tables; an unfinished truncation is completed first."""
        with self._lock:
            return self._ready().progress

    def epochs(self) -> list[EpochRange]:
        """Return the leader epochs whose first offset is known, in order."""
        with self._lock:
            return _epochs_of(self._ready())

    def unmerged_row_count(self) -> int:
        """Return the number of rows of ``changes`` that ``state`` does not include."""
        with self._lock:
            return sum(part.num_rows for part in self._ready().tail)

    def forget(self) -> None:
        """Drop the cache: the tables are read again."""
        with self._lock:
            self._state = None

    def apply(self, table: pa.Table, cluster_id: str | None) -> bool:
        """Append the new rows of the source to ``log`` and ``changes``.

        Returns:
            Whether there were new rows.

        Raises:
            OffsetGapError, DivergedLogError, WrongClusterError, ReplayError: nothing was written.
            TablesError: the rows are not those of a metadata log, or Delta failed.
        """
        return self._again_if_late(lambda: self._apply(table, cluster_id))

    def merge_state(self) -> None:
        """Merge the later changes into ``state``. Raises ``TablesError``; readers see no change."""
        self._again_if_late(self._merge_state)

    def compact(self) -> None:
        """Rewrite the small files of all tables. Raises ``TablesError``."""
        with self._lock:
            for table in STORED_TABLES.values():
                if self._store.exists(table):
                    self._store.compact(table)
                    self._step(f"compact {table.name}")

    def small_file_count(self) -> int:
        """Return by how many files ``changes`` could be smaller. Raises ``TablesError``."""
        with self._lock:
            if not self._store.exists(CHANGES_TABLE):
                return 0
            size = self._store.size(CHANGES_TABLE)
            return max(0, size.file_count - 2 * -(-size.byte_count // COMPACT_BYTES))

    def vacuum(self) -> None:
        """Delete files that no version within the retention has. Raises ``TablesError``."""
        with self._lock:
            for table in STORED_TABLES.values():
                if self._store.exists(table):
                    self._store.vacuum(table)

    def maintain(self) -> None:
        """Merge the later changes into ``state``, compact and vacuum. Raises ``TablesError``."""
        self.merge_state()
        self.compact()
        self.vacuum()

    def expire(self, offset: int) -> int:
        """Delete the changes up to ``offset`` (inclusive), the first whose state can be read then.

        Returns:
            The first offset whose state can be read.

        Raises:
            OffsetOutOfRangeError: the tables begin after the offset, or end before it.
        """
        return self._again_if_late(lambda: self._expire(offset))

    def truncate_to(self, offset: int) -> int:
        """Revert the tables to the state after ``offset`` (inclusive) or shortly before it.

        The state before is that before a metadata transaction or a gap that contains the offset.

        Returns:
            The last offset in the tables, inclusive.

        Raises:
            OffsetOutOfRangeError: the tables begin after the offset, or end before it.
        """
        return self._again_if_late(lambda: self._truncate_to(offset))

    # --- the cache --------------------------------------------------------------------------------

    def _ready(self) -> State:
        if self._state is None:
            self._state = self._read_state(self._cluster_id)
        return self._state

    def _ready_for(self, cluster_id: str | None) -> State:
        """Return the state for appends of a log, whose cluster id is None if it is unknown."""
        state = self._ready()
        if state.progress.cluster_id is None:  # nothing of it is published
            state = self._state = self._read_state(cluster_id or UNKNOWN_CLUSTER)
        state.progress = replace(
            state.progress, log_cluster_id=state.progress.log_cluster_id or cluster_id
        )
        return state

    def _read_state(self, cluster_id: str | None) -> State:
        check_layout(self._store)
        cluster_id = cluster_in(self._store, cluster_id)
        base_rows = self._read(STATE_TABLE, cluster_id)
        named = Progress(cluster_id=cluster_id, log_cluster_id=self._cluster_id)
        base = progress_of(base_rows) or named
        tail = self._tail_after(base)
        rows = overlay(without_reverted(base_rows, base), state_rows(tail))
        progress = progress_of(rows) or base
        self._check_tail(base, tail)
        found, origins = living_rows(rows)
        return State(
            progress=progress,
            fold=MetadataLoader(
                None if progress.offset == NOTHING else _image(found, progress),
                decode=self._decode,
            ),
            origins=origins,
            base_offset=base.offset,
            tail=[tail],
            log_ahead=self._log_ahead(progress),
        )

    def _read(
        self,
        table: StoredTable,
        cluster_id: str | None,
        *where: Condition,
        columns: tuple[str, ...] | None = None,
    ) -> pa.Table:
        if cluster_id is not None and self._store.exists(table):
            return self._store.read(table, (_of_cluster(cluster_id), *where), columns)
        empty = table.schema.empty_table()
        return empty if columns is None else empty.select(list(columns))

    def _tail_after(self, base: Progress) -> pa.Table:
        """Return the changes after the progress of ``state``; complete a truncation to it."""
        from_base: Condition = ("visible_offset", ">=", base.offset)
        tail = self._read(CHANGES_TABLE, base.cluster_id, from_base)
        valid = without_reverted(tail, base)
        is_fenced = (pc.max(valid["incarnation"]).as_py() or 0) >= base.incarnation
        if base.truncated_to is not None and (valid.num_rows < tail.num_rows or not is_fenced):
            self._complete_truncation(base, is_fenced=is_fenced)
        is_later = pc.greater(valid["visible_offset"], base.offset)
        is_fence = pc.greater(valid["incarnation"], base.incarnation)
        return valid.filter(pc.or_(is_later, is_fence))

    def _check_tail(self, base: Progress, tail: pa.Table) -> None:
        """Check that the appends after the progress of ``state`` follow each other."""
        is_append = pc.equal(tail["entity"], PROGRESS)
        order = [(name, "ascending") for name in ("offset", "incarnation")]
        appends = tail.filter(is_append).sort_by(order).select(["offset", "after"])
        next_offset = base.next_offset
        for append in appends.to_pylist():
            if append["after"][PROGRESS]["from_offset"] != next_offset:
                raise TablesError(
                    place=self._store.place,
                    reason=f"table changes lacks the append from offset {next_offset} on",
                    remedy="create new tables at another location from the log",
                )
            next_offset = append["offset"] + 1

    def _log_ahead(self, progress: Progress) -> pa.Table:
        """Return the identities of the records in ``log`` that a crash kept from ``changes``.

        Before the first append of an incarnation there may be records of an earlier one: writers of
        that one are fenced from ``changes`` only.
        """
        if not self._writes_log:
            return LOG_TABLE.schema.empty_table().select(RECORD_IDENTITY)
        at_end: Condition = ("offset", ">=", progress.offset)
        columns = (*RECORD_IDENTITY, "incarnation")
        rows = self._read(LOG_TABLE, progress.cluster_id, at_end, columns=columns)
        if rows.num_rows == 0 and progress.offset != NOTHING:
            raise TablesError(
                place=self._store.place,
                reason=f"table log does not contain offset {progress.offset}, "
                "but table changes does",
                remedy="open them with log=False (`raftlog tables`: --no-log), or create new ones",
            )
        rows = rows.filter(pc.greater(rows["offset"], progress.offset))
        if progress.is_start_of_incarnation:
            rows = rows.filter(pc.greater_equal(rows["incarnation"], progress.incarnation))
        return rows.select(RECORD_IDENTITY)

    def _again_if_late(self, work: Callable[[], T]) -> T:
        """Do ``work``; if another writer was faster, read the tables again and retry.

        Any error drops the cache, which may be ahead of the tables.
        """
        with self._lock:
            for attempt in range(1, ATTEMPTS_MAX + 1):
                was_cached = self._state is not None
                try:
                    return work()
                except ConcurrentWriterError:
                    self._state = None
                    if attempt == ATTEMPTS_MAX:
                        raise
                except (OffsetGapError, DivergedLogError):
                    # The cache may be older than another writer's commit: read the tables again.
                    self._state = None
                    if not was_cached:
                        raise
                except BaseException:
                    self._state = None
                    raise
        raise AssertionError("the loop returns or raises")

    # --- appends ----------------------------------------------------------------------------------

    def _apply(self, table: pa.Table, cluster_id: str | None) -> bool:
        self._check_log(self._ready().progress, table, cluster_id)
        state = self._ready_for(cluster_id)
        progress = state.progress
        batch = check_batch(
            table,
            self.source_columns,
            next_offset=progress.next_offset,
            place=self._store.place,
        )
        self._check_epochs(state, batch)
        if batch.is_empty:
            return False
        rows = log_rows(batch, cluster_id=progress.cluster_id, incarnation=progress.incarnation)
        changes = replay_rows(state.fold, rows)
        after = _progress_after(state, batch, rows)
        if progress.offset == NOTHING:
            self._store.prepare()
        if self._writes_log:
            self._append_log(state, rows)
        self._append_changes(state, changes, after)
        return True

    def _append_log(self, state: State, rows: pa.Table) -> None:
        ahead = state.log_ahead
        if ahead.num_rows:
            log_offset = pc.max(ahead["offset"]).as_py()
            known = ahead.filter(pc.less_equal(ahead["offset"], rows["offset"][-1]))
            repeated = rows.filter(pc.less_equal(rows["offset"], log_offset))
            if not _is_same(known, repeated.select(RECORD_IDENTITY)):
                self._revert_log(state)
            state.log_ahead = ahead.slice(0, 0)
            if known.num_rows < ahead.num_rows:
                self._revert_log(state)
            rows = rows.filter(pc.greater(rows["offset"], log_offset))
        if rows.num_rows:
            self._append(LOG_TABLE, rows, state, next_offset=rows["offset"][0].as_py())
        if state.progress.is_start_of_incarnation:  # now earlier writers are fenced from log too
            self._delete_reverted(LOG_TABLE, "offset", state.progress)

    def _revert_log(self, state: State) -> NoReturn:
        """Delete records that a crash kept from ``changes``: the source has others now."""
        state = self._fence(state, self._next_incarnation(state.progress))
        self._delete_reverted(LOG_TABLE, "offset", state.progress)
        raise ConcurrentWriterError(
            place=self._store.place,
            reason="table log had records that the source does not have",
            remedy="they were deleted: run this again",
        )

    def _append_changes(
        self, state: State, changes: Sequence[RecordChanges], after: Progress
    ) -> None:
        committed_at = self._clock_us()
        shared = {
            "cluster_id": after.cluster_id,
            "topic": after.topic,
            "partition": after.partition,
            "incarnation": after.incarnation,
            "committed_at": committed_at,
        }
        rows = pa.concat_tables(
            [
                changes_table(changes, state.origins.apply(changes), shared),
                after.changes_row(committed_at),
            ]
        )
        self._append(CHANGES_TABLE, rows, state, next_offset=state.progress.next_offset)
        state.tail.append(rows)
        state.progress = after

    def _append(
        self, table: StoredTable, rows: pa.Table, state: State, *, next_offset: int
    ) -> None:
        transaction = _transaction(table, state.progress, next_offset)
        self._store.append(table, rows, transaction)
        self._step(table.name)

    def _merge_state(self) -> None:
        state = self._ready()
        if not any(part.num_rows for part in state.tail):
            return
        self._check_incarnation(state.progress)
        self._store.merge(state_rows(pa.concat_tables(state.tail)))
        self._step(STATE_TABLE.name)
        state.base_offset, state.tail = state.progress.offset, []

    def _check_incarnation(self, progress: Progress) -> None:
        """Raise ``ConcurrentWriterError`` if ``state`` is of a later incarnation.

        A process that reads the tables during a truncation, which is then interrupted, can append
        rows that readers do not see.
        """
        is_progress: Condition = ("entity", "=", PROGRESS)
        found = progress_of(self._read(STATE_TABLE, progress.cluster_id, is_progress))
        if found is not None and found.incarnation > progress.incarnation:
            raise ConcurrentWriterError(
                place=self._store.place,
                reason=f"another process has truncated the tables to offset {found.offset}",
                remedy="materialize the log again: the tables continue there",
            )

    # --- checks -----------------------------------------------------------------------------------

    def _check_log(self, progress: Progress, table: pa.Table, cluster_id: str | None) -> None:
        known = progress.log_cluster_id
        if known is not None and cluster_id is not None and known != cluster_id:
            raise wrong_cluster(self._store.place, known, cluster_id)
        if table.num_rows and progress.offset != NOTHING and "partition" in table.column_names:
            partition = table["partition"][0].as_py()
            if partition != progress.partition:
                raise TablesError(
                    place=self._store.place,
                    reason=f"they contain partition {progress.partition}, the rows are from "
                    f"partition {partition}",
                    remedy="use separate tables for each log",
                )

    def _check_epochs(self, state: State, batch: CheckedBatch) -> None:
        """Check that rows that the tables have, and the first new one, continue their epochs."""
        known = _epochs_of(state)
        for seen_epoch, seen_first, seen_last in epoch_ranges(batch.seen):
            for epoch, first, last in known:
                at = max(first, seen_first)
                if seen_epoch != epoch and at <= min(last, seen_last):
                    raise self._diverged(at, epoch, seen_epoch)
        if not batch.is_empty:
            epoch = batch.rows["leaderEpoch"][0].as_py()
            if epoch < state.progress.leader_epoch:
                offset = batch.rows["offset"][0].as_py()
                raise self._diverged(offset, state.progress.leader_epoch, epoch)

    def _diverged(self, offset: int, expected_epoch: int, epoch: int) -> DivergedLogError:
        return DivergedLogError(
            path=self._store.place,
            offset=offset,
            expected_epoch=expected_epoch,
            epoch=epoch,
            remedy=f"nothing was written; call truncate_to({offset - 1}), or run `raftlog tables "
            f"truncate TABLES {offset - 1}`, with a lower offset if this error is raised again; "
            "then follow the log from there",
        )

    # --- incarnations -----------------------------------------------------------------------------

    def _expire(self, offset: int) -> int:
        self._state = None
        state = self._ready()
        progress = state.progress
        progress.check_readable(self._store.place, offset)
        if offset <= progress.oldest_offset:
            self._delete_expired(progress)  # an earlier expiry may have been interrupted
            return progress.oldest_offset
        self._merge_state()
        is_expired: Condition = ("visible_offset", "<=", offset)
        expired = self._read(CHANGES_TABLE, progress.cluster_id, is_expired, columns=("log_time",))
        times = [progress.expired_time_us, pc.max(expired["log_time"]).cast(pa.int64()).as_py()]
        expired_time_us = max((time for time in times if time is not None), default=None)
        after = replace(
            self._next_incarnation(progress),
            expired_to=offset,
            expired_time_us=expired_time_us,
            gaps=tuple(gap for gap in progress.gaps if gap[1] > offset),
        )
        self._delete_expired(self._fence(state, after).progress)
        return offset

    def _truncate_to(self, offset: int) -> int:
        self._state = None
        state = self._ready()
        progress, target = state.progress, self._state_boundary(state, offset)
        if target == progress.offset:
            return target
        state = self._fence(state, self._next_incarnation(progress))
        progress = state.progress
        base_rows = without_reverted(self._read(STATE_TABLE, progress.cluster_id), progress)
        is_after: Condition = ("visible_offset", ">", min(state.base_offset, target))
        changes = self._read(CHANGES_TABLE, progress.cluster_id, is_after)
        changes = without_reverted(changes, progress)
        is_later = pc.greater(changes["visible_offset"], target)
        incarnation = progress.incarnation + 1
        rows = overlay(
            state_rows(changes.filter(pc.invert(is_later))),
            rows_before(changes.filter(is_later), target, incarnation),
        )
        rows = rows.filter(pc.not_equal(rows["entity"], PROGRESS))
        found = _progress_at(overlay(base_rows, rows), target, progress, incarnation)
        self._store.merge(pa.concat_tables([rows, found.state_row()]))
        self._step("truncate")
        self._complete_truncation(found)
        self._state = None
        return target

    def _state_boundary(self, state: State, offset: int) -> int:
        """Return the last offset up to ``offset`` outside of transactions and gaps."""
        state.progress.check_readable(self._store.place, offset)
        found = offset
        for row in state.fold.image.map(Entity.TRANSACTION).values():
            assert isinstance(row, TransactionRow)
            if row.begin_offset <= found < row.end_offset - 1:
                found = row.begin_offset - 1
        for first, last in state.progress.gaps:
            if first <= found < last:
                found = first - 1
        state.progress.check_readable(self._store.place, found)
        return found

    def _next_incarnation(self, progress: Progress) -> Progress:
        """Return the progress of the next incarnation, which begins at the end of this one."""
        return replace(
            progress,
            incarnation=progress.incarnation + 1,
            truncated_to=progress.offset,
            from_offset=progress.next_offset,
            software=SOFTWARE,
        )

    def _fence(self, state: State, after: Progress) -> State:
        """Begin an incarnation at the end of the tables; return the state, which is read again.

        The transaction is that of the next append, so of the two only one commits.

        Raises:
            ConcurrentWriterError: another writer has appended or begun an incarnation.
        """
        transaction = _transaction(CHANGES_TABLE, state.progress, state.progress.next_offset)
        self._store.append(CHANGES_TABLE, after.changes_row(self._clock_us()), transaction)
        self._step("fence")
        self._state = None
        found = self._ready()
        if found.progress != after:
            raise ConcurrentWriterError(
                place=self._store.place,
                reason="another process began to change them at the same time",
                remedy="run this again",
            )
        return found

    def _complete_truncation(self, progress: Progress, *, is_fenced: bool = False) -> None:
        """Fence writers of earlier incarnations, then delete what is reverted; ``changes`` last.

        ``progress`` is that of ``state``.
        """
        if not is_fenced:
            transaction = _transaction(CHANGES_TABLE, progress, progress.offset)
            self._store.append(CHANGES_TABLE, progress.changes_row(self._clock_us()), transaction)
            self._step("truncate fence")
        if self._store.exists(LOG_TABLE):
            self._delete_reverted(LOG_TABLE, "offset", progress)
        self._delete_reverted(CHANGES_TABLE, "visible_offset", progress)
        self._delete_expired(progress)

    def _delete_reverted(self, table: StoredTable, offset: str, progress: Progress) -> None:
        is_later: Condition = (offset, ">", progress.offset)
        self._store.delete(table, (*_of_earlier_incarnations(progress), is_later))
        self._step(f"truncate {table.name}")

    def _delete_expired(self, progress: Progress) -> None:
        if progress.expired_to is not None:
            is_expired: Condition = ("visible_offset", "<=", progress.expired_to)
            where = (*_of_earlier_incarnations(progress), is_expired)
            self._store.delete(CHANGES_TABLE, where)
            self._step("expire")


def _transaction(table: StoredTable, progress: Progress, next_offset: int) -> Transaction:
    """Return the transaction of an append; that of a later incarnation has a greater version."""
    return Transaction(
        app_id=f"raftlog-{table.name}-{progress.cluster_id}",
        version=(progress.incarnation << _OFFSET_BITS) + next_offset,
    )


def _of_cluster(cluster_id: str) -> Condition:
    return (CLUSTER_ID, "=", cluster_id)


def _of_earlier_incarnations(progress: Progress) -> tuple[Condition, ...]:
    """Return the conditions of the rows of a cluster's earlier incarnations."""
    assert progress.cluster_id is not None, "there are rows of the cluster"
    return (_of_cluster(progress.cluster_id), ("incarnation", "<", progress.incarnation))


def _is_same(known: pa.Table, repeated: pa.Table) -> bool:
    order = [(name, "ascending") for name in ("offset", "snapshot_position")]
    return bool(known.sort_by(order).to_pylist() == repeated.sort_by(order).to_pylist())


def _progress_after(state: State, batch: CheckedBatch, rows: pa.Table) -> Progress:
    """Return the progress after a batch, whose rows of ``log`` have been replayed."""
    before, image, snapshot_id = state.progress, state.fold.image, batch.snapshot_id
    gap = (before.next_offset, 0 if snapshot_id is None else snapshot_id.end_offset - 1)
    assert image.offset == batch.last_offset, "a batch ends outside of transactions"
    first = batch.rows["offset"][0].as_py()
    last = {name: rows[name][-1].as_py() for name in ("cluster_id", "topic", "partition")}
    return Progress(
        **last,
        log_cluster_id=before.log_cluster_id,
        incarnation=before.incarnation,
        offset=batch.last_offset,
        leader_epoch=rows["leader_epoch"][-1].as_py(),
        log_time=rows["log_time"].cast(pa.int64())[-1].as_py(),
        from_offset=before.next_offset,
        first_offset=first if before.first_offset is None else before.first_offset,
        expired_to=before.expired_to,
        expired_time_us=before.expired_time_us,
        truncated_to=before.truncated_to,
        gaps=before.gaps if snapshot_id is None else (*before.gaps, gap),
        metadata_version=image.metadata_version,
        row_counts=row_counts_of(image),
    )


def _progress_at(rows: pa.Table, offset: int, newest: Progress, incarnation: int) -> Progress:
    """Return the progress of a truncation: ``rows`` of ``state`` at an offset before the newest.

    Its time is that of the last record that changed something.
    """
    found, _ = living_rows(rows)
    image = _image(found, newest)
    timed = rows.filter(pc.is_valid(rows["_log_time"]))
    timed = timed.filter(pc.not_equal(timed["entity"], PROGRESS))
    last = timed.sort_by([(name, "descending") for name in ("_visible_offset", "_offset")])
    epoch = last_epoch(found)
    return replace(
        newest,
        incarnation=incarnation,
        offset=offset,
        leader_epoch=newest.leader_epoch if epoch is None else epoch.leader_epoch,
        log_time=last["_log_time"].cast(pa.int64())[0].as_py() if last.num_rows else None,
        from_offset=offset + 1,
        truncated_to=offset,
        software=SOFTWARE,
        gaps=tuple(gap for gap in newest.gaps if gap[1] <= offset),
        metadata_version=image.metadata_version,
        row_counts=row_counts_of(image),
    )


def _image(rows: Sequence[Row], progress: Progress) -> MetadataImage:
    """Return the image of rows at the end of the tables."""
    return MetadataImage.from_rows(
        rows,
        offset=progress.offset,
        leader_epoch=progress.leader_epoch,
        timestamp_ms=milliseconds(progress.log_time),
        quorum=quorum_of(rows),
    )


def _epochs_of(state: State) -> list[EpochRange]:
    """Return the offsets whose leader epoch is known. In a gap, epochs have no start or no end."""
    progress, found = state.progress, []
    for row in state.fold.image.map(Entity.EPOCH).values():
        assert isinstance(row, EpochRow)
        is_last = row.leader_epoch == progress.leader_epoch
        first = progress.offset if is_last and row.start_offset is None else row.start_offset
        if first is not None:
            last = first if row.end_offset is None else row.end_offset - 1
            found.append((row.leader_epoch, first, progress.offset if is_last else last))
    return sorted(found)
