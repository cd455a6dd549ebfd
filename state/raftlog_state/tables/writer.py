"""The writer: appends a range of the log to ``log`` and ``changes``, exactly once.

Invariants:

1. Check, replay, then write: rejected rows have no effect.
2. The append of ``changes`` is the publication: the changes of a range and its progress row are one
   commit. ``log`` is written before, so it has every published record.
3. Every append is conditional. Its transaction version is the end that the tables had before, so of
   two writers with the same end one commits; the other reads the tables again and retries.
4. The state in memory is a cache of the tables. After any error it is dropped and read again.
5. A truncation is one merge into ``state``, whose progress row has the next incarnation. Rows of
   ``log`` and ``changes`` after it with an earlier incarnation are not read, and are deleted before
   the next append.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from threading import RLock
from typing import Any, Final, TypeVar

import pyarrow as pa
import pyarrow.compute

from raftlog.errors import DivergedLogError, OffsetOutOfRangeError, WrongClusterError
from raftlog_state.errors import ConcurrentWriterError, OffsetGapError, TablesError
from raftlog_state.image import EpochRow, MetadataImage, TransactionRow
from raftlog_state.image.delta import RecordChanges
from raftlog_state.image.rows import Entity, Row
from raftlog_state.loader.metadata_loader import MetadataLoader

from .batch import CheckedBatch, check_batch, epoch_ranges
from .convert import MICROSECONDS, changes_table
from .latest import living_rows, overlay, rows_before, state_rows
from .logrows import log_rows, replay_rows
from .origins import RowOrigins
from .progress import (
    NOTHING,
    Progress,
    check_layout,
    oldest_offset,
    progress_of,
    quorum_of,
    row_counts_of,
)
from .schema import (
    CHANGES_TABLE,
    LOG_TABLE,
    PROGRESS,
    STATE_TABLE,
    STORED_TABLES,
    StoredTable,
)
from .stores.protocol import Condition, TableStore, Transaction

pc: Any = pyarrow.compute  # pyarrow makes its functions at import: no checker sees them

ATTEMPTS_MAX: Final = 3
"""How often a range is tried again after another writer was faster."""

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

    ``tail`` are the rows of ``changes`` after ``base_offset``, which ``state`` includes.
    """

    progress: Progress
    fold: MetadataLoader
    origins: RowOrigins
    base_offset: int
    tail: list[pa.Table]
    log_offset: int


class Writer:
    """Writes the tables of one place. Threads take turns."""

    def __init__(
        self,
        store: TableStore,
        *,
        after_step: Step = no_step,
        writes_log: bool = True,
        clock_us: Callable[[], int] = now_us,
    ) -> None:
        self._store = store
        self._step = after_step
        self._writes_log = writes_log
        self._clock_us = clock_us
        self._state: State | None = None
        self._lock = RLock()

    # --- public -----------------------------------------------------------------------------------

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
        """Rewrite the small files of ``log`` and ``changes``. Raises ``TablesError``."""
        with self._lock:
            for table in (LOG_TABLE, CHANGES_TABLE):
                if self._store.exists(table):
                    self._store.compact(table)
                    self._step(f"compact {table.name}")

    def vacuum(self) -> None:
        """Delete files that no version within the retention has. Raises ``TablesError``."""
        with self._lock:
            for table in STORED_TABLES.values():
                if self._store.exists(table):
                    self._store.vacuum(table)

    def expire(self, offset: int) -> int:
        """Delete the changes up to the end of an append, at or shortly before ``offset``.

        Returns:
            The first offset whose state can be read now.

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
            self._state = self._read_state()
        return self._state

    def _read_state(self) -> State:
        check_layout(self._store)
        if not self._store.exists(CHANGES_TABLE):
            self._store.prepare()
        base_rows = self._read(STATE_TABLE)
        base = progress_of(base_rows) or Progress()
        tail = self._tail_after(base)
        rows = overlay(base_rows, state_rows(tail))
        progress = progress_of(rows) or base
        found, origins = living_rows(rows)
        return State(
            progress=progress,
            fold=MetadataLoader(None if progress.offset == NOTHING else _image(found, progress)),
            origins=origins,
            base_offset=base.offset,
            tail=[tail],
            log_offset=self._log_end(progress),
        )

    def _read(
        self, table: StoredTable, *where: Condition, columns: tuple[str, ...] | None = None
    ) -> pa.Table:
        if self._store.exists(table):
            return self._store.read(table, where, columns)
        empty = table.schema.empty_table()
        return empty if columns is None else empty.select(list(columns))

    def _tail_after(self, base: Progress) -> pa.Table:
        """Return the changes after the progress of ``state``; complete a truncation to it."""
        tail = self._read(CHANGES_TABLE, ("visible_offset", ">", base.offset))
        is_valid = pc.greater_equal(tail["incarnation"], base.incarnation)
        if not pc.all(is_valid, min_count=0).as_py():
            self._delete_after(base)
            tail = tail.filter(is_valid)
        return tail

    def _log_end(self, progress: Progress) -> int:
        """Return the last offset in ``log``, which is not before that of ``changes``."""
        if not self._writes_log:
            return NOTHING
        at_end: Condition = ("offset", ">=", progress.offset)
        offsets = self._read(LOG_TABLE, at_end, columns=("offset",))["offset"]
        if len(offsets):
            return int(pc.max(offsets).as_py())
        if progress.offset != NOTHING:
            raise TablesError(
                place=self._store.place,
                reason=f"table log has not offset {progress.offset}, which table changes has",
                remedy="open them with log=False, or create new tables",
            )
        return NOTHING

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
        state = self._ready()
        progress = state.progress
        self._check_log(progress, table, cluster_id)
        batch = check_batch(table, next_offset=progress.next_offset, place=self._store.place)
        self._check_epochs(state, batch)
        if batch.is_empty:
            return False
        rows = log_rows(
            batch, cluster_id=progress.cluster_id or cluster_id, incarnation=progress.incarnation
        )
        changes = replay_rows(state.fold, rows)
        after = _progress_after(state, batch, rows)
        if self._writes_log:
            self._append_log(state, rows)
        self._append_changes(state, changes, after)
        return True

    def _append_log(self, state: State, rows: pa.Table) -> None:
        new = rows.filter(pc.greater(rows["offset"], state.log_offset))
        if new.num_rows:  # else a crash was between the two appends
            self._append(LOG_TABLE, new, state, next_offset=state.log_offset + 1)
            state.log_offset = pc.max(new["offset"]).as_py()

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
        before_origins, _ = state.origins.apply(changes)
        rows = pa.concat_tables(
            [changes_table(changes, before_origins, shared), after.changes_row(committed_at)]
        )
        self._append(CHANGES_TABLE, rows, state, next_offset=state.progress.next_offset)
        state.tail.append(rows)
        state.progress = after

    def _append(
        self, table: StoredTable, rows: pa.Table, state: State, *, next_offset: int
    ) -> None:
        incarnation = state.progress.incarnation
        transaction = Transaction(app_id=f"raftlog-{table.name}-{incarnation}", version=next_offset)
        self._store.append(table, rows, transaction)
        self._step(table.name)

    def _merge_state(self) -> None:
        state = self._ready()
        if state.base_offset == state.progress.offset:
            return
        self._store.merge(state_rows(pa.concat_tables(state.tail)))
        self._step(STATE_TABLE.name)
        state.base_offset, state.tail = state.progress.offset, []

    # --- checks -----------------------------------------------------------------------------------

    def _check_log(self, progress: Progress, table: pa.Table, cluster_id: str | None) -> None:
        known = progress.cluster_id
        if known is not None and cluster_id is not None and known != cluster_id:
            raise WrongClusterError(
                path=self._store.place, expected_cluster_id=known, cluster_id=cluster_id
            )
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
            remedy=f"nothing was written; call truncate_to({offset - 1}), with a lower offset if "
            "this error is raised again, and materialize from there",
        )

    # --- expiry -----------------------------------------------------------------------------------

    def _expire(self, offset: int) -> int:
        state = self._ready()
        appends = self._appends()
        oldest = self._check_range(state, appends, offset)
        floor = max((end for end, _ in appends if end <= offset), default=NOTHING)
        if floor <= oldest:
            return oldest
        if state.base_offset < floor:
            self._merge_state()
        self._store.delete(CHANGES_TABLE, (("visible_offset", "<=", floor),))
        self._step("expire")
        return floor

    def _appends(self) -> list[tuple[int, Mapping[str, Any]]]:
        """Return the ends of the appends that ``changes`` has, with their details."""
        where: Condition = ("entity", "=", PROGRESS)
        rows = self._read(CHANGES_TABLE, where, columns=("offset", "after"))
        details = (row[PROGRESS] for row in rows["after"].to_pylist())
        return list(zip(rows["offset"].to_pylist(), details, strict=True))

    def _check_range(
        self, state: State, appends: Sequence[tuple[int, Mapping[str, Any]]], offset: int
    ) -> int:
        """Return the first offset whose state can be read; raise if ``offset`` is out of range."""
        oldest = oldest_offset(state.progress, [details["from_offset"] for _, details in appends])
        if not oldest <= offset < state.progress.next_offset:
            raise OffsetOutOfRangeError(
                path=self._store.place,
                offset=offset,
                log_start_offset=oldest,
                log_end_offset=state.progress.next_offset,
            )
        return oldest

    # --- truncation -------------------------------------------------------------------------------

    def _truncate_to(self, offset: int) -> int:
        progress = self._ready().progress
        target = self._state_boundary(offset)
        if target == progress.offset:
            return target
        base_rows = self._read(STATE_TABLE)
        base = progress_of(base_rows) or Progress()
        changes = self._read(CHANGES_TABLE, ("visible_offset", ">", min(base.offset, target)))
        is_later = pc.greater(changes["visible_offset"], target)
        incarnation = progress.incarnation + 1
        earlier = state_rows(changes.filter(pc.invert(is_later)))
        rows = overlay(earlier, rows_before(changes.filter(is_later), target, incarnation))
        rows = rows.filter(pc.not_equal(rows["entity"], PROGRESS))
        there = overlay(base_rows, rows)
        found = _progress_at(there, target, progress, incarnation)
        self._store.merge(pa.concat_tables([rows, found.state_row()]))
        self._step("truncate")
        self._delete_after(found)
        self._state = None
        return target

    def _state_boundary(self, offset: int) -> int:
        """Return the last offset up to ``offset`` outside of transactions and gaps."""
        state = self._ready()
        appends = self._appends()
        self._check_range(state, appends, offset)
        found = offset
        for row in state.fold.image.map(Entity.TRANSACTION).values():
            assert isinstance(row, TransactionRow)
            if row.begin_offset <= found < row.end_offset - 1:
                found = row.begin_offset - 1
        for _, details in appends:
            first, last = details["gap_from"], details["gap_to"]
            if first is not None and first <= found < last:
                found = first - 1
        self._check_range(state, appends, found)
        return found

    def _delete_after(self, progress: Progress) -> None:
        """Delete what a truncation to ``progress`` reverted; ``changes`` last."""
        is_earlier: Condition = ("incarnation", "<", progress.incarnation)
        if self._store.exists(LOG_TABLE):
            self._store.delete(LOG_TABLE, (("offset", ">", progress.offset), is_earlier))
            self._step("truncate log")
        self._store.delete(CHANGES_TABLE, (("visible_offset", ">", progress.offset), is_earlier))
        self._step("truncate changes")


def _progress_after(state: State, batch: CheckedBatch, rows: pa.Table) -> Progress:
    """Return the progress after a batch, whose rows of ``log`` have been replayed."""
    before, image, snapshot_id = state.progress, state.fold.image, batch.snapshot_id
    assert image.offset == batch.last_offset, "a batch ends outside of transactions"
    first = batch.rows["offset"][0].as_py()
    last = {name: rows[name][-1].as_py() for name in ("cluster_id", "topic", "partition")}
    return Progress(
        **last,
        incarnation=before.incarnation,
        offset=batch.last_offset,
        leader_epoch=rows["leader_epoch"][-1].as_py(),
        log_time=rows["log_time"].cast(pa.int64())[-1].as_py(),
        from_offset=before.next_offset,
        oldest_offset=first if before.oldest_offset is None else before.oldest_offset,
        gap_from=None if snapshot_id is None else before.next_offset,
        gap_to=None if snapshot_id is None else snapshot_id.end_offset - 1,
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
    epochs = [row for row in found if isinstance(row, EpochRow) and row.start_offset is not None]
    starts = [(row.start_offset or 0, row.leader_epoch) for row in epochs]
    return Progress(
        cluster_id=newest.cluster_id,
        topic=newest.topic,
        partition=newest.partition,
        incarnation=incarnation,
        offset=offset,
        leader_epoch=max(starts)[1] if starts else newest.leader_epoch,
        log_time=last["_log_time"].cast(pa.int64())[0].as_py() if last.num_rows else None,
        from_offset=offset + 1,
        oldest_offset=newest.oldest_offset,
        metadata_version=image.metadata_version,
        row_counts=row_counts_of(image),
    )


def _image(rows: Sequence[Row], progress: Progress) -> MetadataImage:
    """Return the image of rows at the end of the tables."""
    time = progress.log_time
    return MetadataImage.from_rows(
        rows,
        offset=progress.offset,
        leader_epoch=progress.leader_epoch,
        timestamp_ms=-1 if time is None else time // MICROSECONDS,
        quorum=quorum_of(rows),
    )


def _epochs_of(state: State) -> list[EpochRange]:
    """Return the epochs of the tables whose first offset is known, and that of their end."""
    starts: list[tuple[int, int]] = []
    for row in state.fold.image.map(Entity.EPOCH).values():
        assert isinstance(row, EpochRow)
        if row.start_offset is not None:
            starts.append((row.start_offset, row.leader_epoch))
    last = state.progress.offset
    if not starts and last != NOTHING:
        return [(state.progress.leader_epoch, last, last)]
    ends = [*sorted(starts), (last + 1, NOTHING)]
    return [(epoch, first, after - 1) for (first, epoch), (after, _) in pairwise(ends)]
