"""The writer: appends a range of the log to ``log`` and ``changes``, exactly once.

Invariants:

1. Check, replay, then write: rejected rows have no effect.
2. Every append is conditional. Its ``txnVersion`` is the end that the table had before, so of two
   writers with the same end one commits and Delta skips the other, regardless of the ends of their
   ranges; the skipped writer detects it in the history, reads the tables again and retries.
3. The state in memory is a cache of the tables. After any error it is dropped and read again.
4. A crash between the two appends is recovered from ``log`` alone, without the source.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from threading import RLock
from typing import Any, Final, TypeVar

import pyarrow as pa
import pyarrow.compute
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

from raftlog.errors import DivergedLogError, WrongClusterError
from raftlog_state.errors import ConcurrentWriterError, OffsetGapError, TablesError
from raftlog_state.image.delta import RecordChanges
from raftlog_state.loader.metadata_loader import MetadataLoader

from .batch import CheckedBatch, check_batch, epoch_ranges
from .convert import changes_table
from .logrows import FOLD_COLUMNS, log_rows, replay_rows
from .manifest import Manifest
from .origins import RowOrigins
from .progress import NOTHING, Progress, read_progress, read_state
from .publish import Publisher, truncation_of
from .schema import CHANGES, GROWING_TABLES, LOG
from .store import Commit, DeltaStore, one_file
from .truncation import finish_truncation

pc: Any = pyarrow.compute  # pyarrow makes its functions at import: no checker sees them

ATTEMPTS_MAX: Final = 3
"""How often a range is tried again after another writer was faster."""

Step = Callable[[str], None]
T = TypeVar("T")


def no_step(_: str) -> None:
    """Do nothing after a step of a write: the default."""


@dataclass(slots=True, kw_only=True)
class State:
    """The cache: how far the tables are, and the cluster's state there."""

    progress: Progress
    fold: MetadataLoader
    origins: RowOrigins


class Writer:
    """Writes the tables of one place. Threads take turns."""

    def __init__(self, store: DeltaStore, *, after_step: Step) -> None:
        self._store = store
        self._step = after_step
        self._publisher = Publisher(store, after_step=after_step)
        self._state: State | None = None
        self._lock = RLock()

    def progress(self) -> Progress:
        """How far the tables are; what a crash left half done is finished first."""
        with self._lock:
            return self._ready().progress

    def _ready(self) -> State:
        if self._state is None:
            progress = read_progress(self._store)
            if progress.is_truncating and progress.manifest is not None:
                finish_truncation(self._store, progress.manifest, self._step)
                progress = read_progress(self._store)
            if progress.log_offset == NOTHING:
                self._store.prepare()
            fold, origins = read_state(self._store, progress)
            state = State(progress=progress, fold=fold, origins=origins)
            self._fold_rest_of_log(state)
            self._state = state
        return self._state

    @contextmanager
    def in_session(self, spark: SparkSession) -> Iterator[None]:
        """Let what this thread writes inside the block be written by another session."""
        with self._lock:
            own_store, own_publisher = self._store, self._publisher
            self._store = own_store.in_session(spark)
            self._publisher = Publisher(self._store, after_step=self._step)
            try:
                yield
            finally:
                self._store, self._publisher = own_store, own_publisher

    def forget(self) -> None:
        """Drop the cache: the tables are read again."""
        with self._lock:
            self._state = None

    def publish(self, *, look_again: bool = False) -> Manifest | None:
        """Update the typed tables to the end of ``log``; return None if it is empty.

        ``look_again``: first check whether another writer has appended. Raises ``TablesError``;
        readers then see the previous publication.
        """
        with self._lock:
            if look_again and self._state is not None:
                known = self._state.progress.log_version
                if known is None or self._store.version(LOG) != known:
                    self._state = None
            return self._again_if_late(self._publish)

    def apply(self, table: pa.Table, cluster_id: str | None) -> bool:
        """Append the new rows of the source to ``log`` and ``changes``.

        Returns:
            Whether there were new rows.

        Raises:
            OffsetGapError, DivergedLogError, WrongClusterError, ReplayError: nothing was written.
            TablesError: the rows are not those of a metadata log, or Delta failed.
        """
        return self._again_if_late(lambda: self._apply(table, cluster_id))

    def truncate_to(self, target: Manifest, incarnation: int) -> None:
        """Restore a publication: its manifest row again, then every table."""
        with self._lock:
            self._state = None
            row = truncation_of(target, incarnation=incarnation)
            # First row of its incarnation; the txnVersion of the next publication is 1 or more.
            self._publisher.write(row, txn_version=0)
            finish_truncation(self._store, row, self._step)

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

    def _publish(self) -> Manifest | None:
        state = self._ready()
        if state.progress.log_offset == NOTHING:
            return None
        return self._publisher.publish(state.progress, state.fold.image)

    def _apply(self, table: pa.Table, cluster_id: str | None) -> bool:
        state = self._ready()
        progress = state.progress
        self._check_place(progress, table, cluster_id)
        batch = check_batch(table, next_offset=progress.log_offset + 1, place=self._store.place)
        self._check_seen(progress, batch)
        if batch.is_empty:
            return False
        self._check_epoch_at_boundary(progress, batch)
        if progress.cluster_id is None:
            progress.cluster_id = cluster_id
        rows = log_rows(batch, cluster_id=progress.cluster_id, incarnation=progress.incarnation)
        changes = replay_rows(state.fold, rows)
        self._append_log(progress, batch, rows)
        self._append_changes(state, changes)
        return True

    # --- checks -----------------------------------------------------------------------------------

    def _check_place(self, progress: Progress, table: pa.Table, cluster_id: str | None) -> None:
        known = progress.cluster_id
        if known is not None and cluster_id is not None and known != cluster_id:
            raise WrongClusterError(
                path=self._store.place, expected_cluster_id=known, cluster_id=cluster_id
            )
        if table.num_rows and progress.log_offset != NOTHING and "partition" in table.column_names:
            partition = table["partition"][0].as_py()
            if partition != progress.partition:
                raise TablesError(
                    place=self._store.place,
                    reason=f"they contain partition {progress.partition}, the rows are from "
                    f"partition {partition}",
                    remedy="use separate tables for each log",
                )

    def _check_seen(self, progress: Progress, batch: CheckedBatch) -> None:
        """Check that rows that are already in the tables have the same epoch there."""
        seen = list(epoch_ranges(batch.seen))
        if not seen:
            return
        for epoch, first, last in self._known_epochs(progress, seen[0][1], seen[-1][2]):
            for seen_epoch, seen_first, seen_last in seen:
                at = max(first, seen_first)
                if seen_epoch != epoch and at <= min(last, seen_last):
                    raise self._diverged(at, epoch, seen_epoch)

    def _known_epochs(
        self, progress: Progress, first: int, last: int
    ) -> list[tuple[int, int, int]]:
        if first == last == progress.log_offset:
            return [(progress.log_epoch, last, last)]
        offset = sf.col("offset")
        rows = (
            self._store.read(LOG, progress.log_version)
            .where((offset >= first) & (offset <= last))
            .groupBy("leader_epoch")
            .agg(sf.min("offset").alias("first"), sf.max("offset").alias("last"))
            .collect()
        )
        return sorted((row["leader_epoch"], row["first"], row["last"]) for row in rows)

    def _check_epoch_at_boundary(self, progress: Progress, batch: CheckedBatch) -> None:
        rows = batch.rows
        epoch, offset = rows["leaderEpoch"][0].as_py(), rows["offset"][0].as_py()
        if epoch < progress.log_epoch:
            raise self._diverged(offset, progress.log_epoch, epoch)

    def _diverged(self, offset: int, expected_epoch: int, epoch: int) -> DivergedLogError:
        return DivergedLogError(
            path=self._store.place,
            offset=offset,
            expected_epoch=expected_epoch,
            epoch=epoch,
            remedy=f"nothing was written; call truncate_to({offset - 1}), with a lower offset if "
            "this error is raised again, and materialize from there",
        )

    # --- writes -----------------------------------------------------------------------------------

    def _fold_rest_of_log(self, state: State) -> None:
        """Fold records that are in ``log`` and not yet in ``changes``."""
        progress = state.progress
        if progress.folded_offset >= progress.log_offset:
            return
        rows = (
            self._store.read(LOG, progress.log_version)
            .where(sf.col("offset") > progress.folded_offset)
            .select(*FOLD_COLUMNS)
            .toArrow()
            .sort_by([("offset", "ascending"), ("snapshot_position", "ascending")])
        )
        self._append_changes(state, replay_rows(state.fold, rows))

    def _append_log(self, progress: Progress, batch: CheckedBatch, rows: pa.Table) -> None:
        first, last = progress.log_offset + 1, batch.last_offset
        times = rows["log_time"].cast(pa.int64())
        commit_info = {
            "from": first,
            "to": last,
            "epoch": rows["leader_epoch"][-1].as_py(),
            "time": times[-1].as_py(),
            "cluster": progress.cluster_id,
            "topic": rows["topic"][-1].as_py(),
            "partition": rows["partition"][-1].as_py(),
        }
        commit = self._append(LOG, rows, progress, txn_version=first, written=commit_info)
        if batch.snapshot_id is not None:
            progress.gaps.append((first, batch.snapshot_id.end_offset - 1))
        progress.log_version = commit.version
        progress.see_log_end(commit_info)
        progress.saw_time(pc.max(times).as_py())

    def _append_changes(self, state: State, changes: list[RecordChanges]) -> None:
        progress = state.progress
        last = state.fold.image.offset
        if changes:
            shared = {
                "cluster_id": progress.cluster_id,
                "topic": progress.topic,
                "partition": progress.partition,
                "incarnation": progress.incarnation,
                "_writer_epoch": 0,
            }
            before_origins, origins = state.origins.apply(changes)
            rows = changes_table(changes, before_origins, shared)
            first = progress.changes_to + 1
            written = {"from": first, "to": last}
            commit = self._append(CHANGES, rows, progress, txn_version=first, written=written)
            progress.changes_version = commit.version
            progress.changes_to = last
            progress.pending.note(changes, origins)
        progress.folded_offset = last

    def _append(
        self,
        name: str,
        rows: pa.Table,
        progress: Progress,
        *,
        txn_version: int,
        written: Mapping[str, Any],
    ) -> Commit:
        incarnation = progress.incarnation
        user_metadata = {**written, "incarnation": incarnation, "id": uuid.uuid4().hex}
        self._store.append(
            GROWING_TABLES[name],
            one_file(self._store.frame(rows, GROWING_TABLES[name].schema), rows),
            app_id=progress.app_id(name),
            txn_version=txn_version,
            written=user_metadata,
        )
        commit = self._landed(name, user_metadata)
        self._step(name)
        return commit

    def _landed(self, name: str, user_metadata: Mapping[str, Any]) -> Commit:
        for limit in (1, 20):
            for commit in self._store.history(name, limit):
                if commit.written is not None and commit.written.get("id") == user_metadata["id"]:
                    return commit
        raise ConcurrentWriterError(
            place=self._store.place,
            reason=f"another writer has appended to table {name} first",
            remedy="run one writer at a time; its write is complete, so run this one again",
        )
