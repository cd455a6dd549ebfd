"""One cluster's part of a write: the cached end of its tables, and the rows that a batch adds.

Rules of this file:

1. Pure: it takes rows of the source and returns rows of ``log`` and ``changes`` and the progress
   after them. The callers read and write tables.
2. Rows are checked before they are replayed. A replay that fails leaves a cache that must be
   dropped.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute

from raftlog.errors import DivergedLogError
from raftlog_state.errors import TablesError
from raftlog_state.image import EpochRow, MetadataImage, TransactionRow
from raftlog_state.image.delta import RecordChanges
from raftlog_state.image.rows import Entity, Row
from raftlog_state.internal.loader import InternalLoader
from raftlog_state.loader.metadata_loader import MetadataLoader
from raftlog_state.loader.payload import Decode
from raftlog_state.records.internal_logs import INTERNAL_LOGS

from .batch import CheckedBatch, check_batch, check_internal_batch, epoch_ranges
from .change_slices import ChangeSlices
from .convert import changes_table, milliseconds, sequence_numbers
from .logrows import log_rows, replay_rows, replay_whole_log
from .origins import Origin, RowOrigins
from .progress import (
    IS_NOT_PROGRESS,
    NOTHING,
    SOFTWARE,
    Progress,
    changes_progress,
    last_epoch,
    quorum_of,
    row_counts_of,
    wrong_cluster,
)
from .schema import CHANGES_TABLE, STATE_TABLE
from .stored_rows import (
    StoredGroups,
    StoredRows,
    StoredState,
    split_state,
    stored_others,
    stored_rows,
)
from .stores.protocol import Rows, RowSlices, filtered, rows_where
from .unmerged import ClusterChanges, Tail, Unmerged

pc: Any = pyarrow.compute  # pyarrow creates its functions at import, unseen by type checkers

_OF_CLUSTER: Final = ("cluster_id", "topic", "partition", "incarnation")
EpochRange = tuple[int, int, int]
"""Leader epoch, first and last offset."""
Versions = dict[str, int]
"""The version of the last transaction of each group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewRows:
    """Rows that a batch adds to a cluster's tables, and the progress after it.

    ``origins`` contains the origin of the row before each change.
    """

    log: pa.Table
    changes: list[RecordChanges]
    origins: list[Origin | None]
    after: Progress

    def slices(self, committed_at: int, slice_rows: int) -> ChangeSlices:
        """Return the rows of ``changes`` in slices."""
        shared = {name: getattr(self.after, name) for name in _OF_CLUSTER}
        return ChangeSlices(
            self.changes,
            self.origins,
            {**shared, "committed_at": committed_at},
            self.after.changes_row(committed_at),
            slice_rows,
        )


def changes_rows(
    news: Sequence[NewRows], committed_at: int, slice_rows: int
) -> tuple[Rows, list[ClusterChanges]]:
    """Return the rows of one append to ``changes``, and each cluster's rows.

    Clusters with more than ``slice_rows`` changes are in slices.
    """
    are_large = [len(new.origins) > slice_rows for new in news]
    small = [new for new, is_large in zip(news, are_large, strict=True) if not is_large]
    table, tables = _tables(small, committed_at) if small else (None, [])
    rest = iter(tables)
    by_cluster = [
        new.slices(committed_at, slice_rows) if is_large else next(rest)
        for new, is_large in zip(news, are_large, strict=True)
    ]
    large = [part.changes() for part in by_cluster if isinstance(part, ChangeSlices)]
    if not large:
        return table, by_cluster
    first = [] if table is None else [table]
    rows = RowSlices(
        cluster_ids=tuple(str(new.after.cluster_id) for new in news),
        schema=CHANGES_TABLE.schema,
        slices=lambda: chain(first, *(part.slices() for part in large)),
    )
    return rows, by_cluster


def _tables(news: Sequence[NewRows], committed_at: int) -> tuple[pa.Table, list[pa.Table]]:
    """Return the changes of clusters with their progress rows, and each cluster's.

    The clusters' rows are converted together: converting a few takes as long as converting a
    hundred.
    """
    changes = _changes(news, committed_at)
    progress = changes_progress([new.after for new in news], committed_at)
    changes = changes.cast(progress.schema)
    tables, start = [], 0
    for at, new in enumerate(news):
        parts = [changes.slice(start, len(new.origins)), progress.slice(at, 1)]
        tables.append(pa.concat_tables(parts))
        start += len(new.origins)
    return pa.concat_tables([changes, progress]), tables


def _changes(news: Sequence[NewRows], committed_at: int) -> pa.Table:
    """Return the changes of clusters, cluster by cluster."""
    changes = changes_table(
        [record for new in news for record in new.changes],
        [origin for new in news for origin in new.origins],
        {**dict.fromkeys(_OF_CLUSTER), "committed_at": committed_at},
    )
    cluster = pa.array(np.repeat(np.arange(len(news)), [len(new.origins) for new in news]))
    columns = {
        name: pa.array([getattr(new.after, name) for new in news], changes[name].type).take(cluster)
        for name in _OF_CLUSTER
    }
    records = ([record for record in new.changes for _ in record.changes] for new in news)
    columns["seq"] = pa.array(list(chain(*map(sequence_numbers, records))), pa.int32())
    for name, values in columns.items():
        changes = changes.set_column(changes.column_names.index(name), name, values)
    return changes


@dataclass(slots=True, kw_only=True)
class _Replay:
    """The state at the end of the tables, and the origins of its rows."""

    loader: MetadataLoader | InternalLoader
    origins: RowOrigins


@dataclass(slots=True, kw_only=True)
class ClusterCache:
    """The cache: the end of the tables, the cluster's state there, and what ``state`` lacks.

    ``stored`` contains the rows that were read, until new ones are replayed; ``decode`` decodes
    records. ``log_ahead`` identifies the records that ``log`` has after ``progress``. ``versions``
    are the groups' versions, which were read before everything else.
    """

    progress: Progress
    stored: StoredState
    decode: Decode
    unmerged: Unmerged
    log_ahead: pa.Table
    versions: Versions
    _replay: _Replay | None = None

    def published(self, rows: ClusterChanges, after: Progress) -> None:
        """Record an append to ``changes``."""
        self.unmerged.append(rows, after.offset)
        self.progress = after

    def begin_merge(self) -> Tail:
        """Return what ``state`` does not include, for a merge."""
        return self.unmerged.begin_merge(self.progress)

    def new_rows(self, table: pa.Table, columns: Sequence[str], place: str) -> NewRows | None:
        """Check and replay rows of the source; return None if the tables already have all of them.

        Raises:
            OffsetGapError, DivergedLogError, ReplayError: the rows do not continue the tables.
            TablesError: the rows are not those of a metadata log.
        """
        progress, batch = self.progress, self.checked(table, columns, place)
        if batch.is_empty:
            return None
        of_cluster: dict[str, Any] = {
            "cluster_id": progress.cluster_id,
            "incarnation": progress.incarnation,
        }
        rows = log_rows(batch.rows, **of_cluster)
        replay = self._begun(rows["topic"][0].as_py())
        if batch.earlier is None:
            changes = replay_rows(replay.loader, rows)
        else:
            assert isinstance(replay.loader, InternalLoader), "earlier rows are of internal logs"
            earlier = log_rows(batch.earlier, **of_cluster)
            changes = replay_whole_log(replay.loader, pa.concat_tables([earlier, rows]))
        after = _progress_after(progress, replay.loader.image, batch, rows)
        origins = replay.origins.apply(changes)
        return NewRows(log=rows, changes=changes, origins=origins, after=after)

    def _begun(self, topic: str) -> _Replay:
        """Return the replay, which reads all rows when it begins. ``topic`` is the log's topic."""
        if self._replay is None:
            rows = stored_rows(self.stored.parts())
            self.stored = StoredState.of(split_state(STATE_TABLE.no_rows))
            is_empty = self.progress.offset == NOTHING
            image = None if is_empty else image_of(rows, self.progress)
            loader: MetadataLoader | InternalLoader
            if topic in INTERNAL_LOGS:
                loader = InternalLoader(topic, image)
            else:
                loader = MetadataLoader(image, decode=self.decode)
            self._replay = _Replay(loader=loader, origins=RowOrigins(rows))
        return self._replay

    def _values(self, entity: Entity) -> Iterable[Row]:
        """Return the rows of an entity other than partitions."""
        if self._replay is not None:
            return self._replay.loader.image.map(entity).values()
        of_entity = rows_where(self.stored.others, ("entity", "=", str(entity)))
        return stored_others(of_entity).get(entity, {}).values()

    def checked(self, table: pa.Table, columns: Sequence[str], place: str) -> CheckedBatch:
        """Return the rows that continue the tables; check the rows that they already have.

        Raises:
            OffsetGapError, DivergedLogError: the rows do not continue the tables.
            TablesError: the rows are not those of a metadata log.
        """
        next_offset = self.progress.next_offset
        check = check_internal_batch if has_internal_records(table) else check_batch
        batch = check(table, columns, next_offset=next_offset, place=place)
        self._check_epochs(batch, place)
        return batch

    def _check_epochs(self, batch: CheckedBatch, place: str) -> None:
        """Check that known rows and the first new row continue the tables' leader epochs."""
        seen = [*epoch_ranges(batch.seen)]
        known = [] if self._are_at_end(seen) else self.epochs()
        for seen_epoch, seen_first, seen_last in seen:
            for epoch, first, last in known:
                at = max(first, seen_first)
                if seen_epoch != epoch and at <= min(last, seen_last):
                    raise _diverged(place, at, epoch, seen_epoch)
        if not batch.is_empty:
            epoch = batch.rows["leaderEpoch"][0].as_py()
            if epoch < self.progress.leader_epoch:
                offset = batch.rows["offset"][0].as_py()
                raise _diverged(place, offset, self.progress.leader_epoch, epoch)

    def _are_at_end(self, seen: Iterable[EpochRange]) -> bool:
        """Return whether ranges cover only the last record: a restart needs no other epochs."""
        progress = self.progress
        return all(
            epoch == progress.leader_epoch and first >= progress.offset for epoch, first, _ in seen
        )

    def epochs(self) -> list[EpochRange]:
        """Return the offsets whose leader epoch is known.

        Epochs in a gap have no start or no end.
        """
        progress, found = self.progress, []
        for row in self._values(Entity.EPOCH):
            assert isinstance(row, EpochRow)
            is_last = row.leader_epoch == progress.leader_epoch
            first = progress.offset if is_last and row.start_offset is None else row.start_offset
            if first is not None:
                last = first if row.end_offset is None else row.end_offset - 1
                found.append((row.leader_epoch, first, progress.offset if is_last else last))
        return sorted(found)

    def state_boundary(self, offset: int, place: str) -> int:
        """Return the last offset up to ``offset`` that is outside of transactions and gaps."""
        self.progress.check_readable(place, offset)
        found = offset
        for row in self._values(Entity.TRANSACTION):
            assert isinstance(row, TransactionRow)
            if row.begin_offset <= found < row.end_offset - 1:
                found = row.begin_offset - 1
        for first, last in self.progress.gaps:
            if first <= found < last:
                found = first - 1
        self.progress.check_readable(place, found)
        return found


def has_internal_records(table: pa.Table) -> bool:
    """Return whether rows of the source are of an internal log other than the metadata log."""
    if table.num_rows == 0 or "topic" not in table.column_names:
        return False
    return table["topic"][0].as_py() in INTERNAL_LOGS


def check_log(progress: Progress, table: pa.Table, cluster_id: str | None, place: str) -> None:
    """Raise ``WrongClusterError`` or ``TablesError`` if rows are not of the tables' log."""
    known = progress.log_cluster_id
    if known is not None and cluster_id is not None and known != cluster_id:
        raise wrong_cluster(place, known, cluster_id)
    if table.num_rows == 0 or progress.offset == NOTHING:
        return
    for name in ("topic", "partition"):
        expected = getattr(progress, name)
        found = table[name][0].as_py() if name in table.column_names else expected
        if found != expected:
            raise TablesError(
                place=place,
                reason=f"they contain {name} {expected}, the rows are from {name} {found}",
                remedy="use separate tables for each log",
            )


def _diverged(place: str, offset: int, expected_epoch: int, epoch: int) -> DivergedLogError:
    return DivergedLogError(
        path=place,
        offset=offset,
        expected_epoch=expected_epoch,
        epoch=epoch,
        remedy=f"nothing was written; call truncate_to({offset - 1}), or run `raftlog tables "
        f"truncate TABLES {offset - 1}`, with a lower offset if this error is raised again; "
        "then follow the log from there",
    )


def _progress_after(
    before: Progress, image: MetadataImage, batch: CheckedBatch, rows: pa.Table
) -> Progress:
    """Return the progress after a batch whose rows of ``log`` have been replayed."""
    gaps = before.gaps
    if batch.snapshot_id is not None:
        gaps = (*gaps, (before.next_offset, batch.snapshot_id.end_offset - 1))
    elif batch.earlier is not None:
        gaps = (*gaps, (before.next_offset, batch.last_offset))
    assert image.offset == batch.last_offset, "a batch ends outside of transactions"
    first = batch.rows["offset"][0].as_py()
    last = {name: rows[name][-1].as_py() for name in ("cluster_id", "topic", "partition")}
    return replace(
        before,
        **last,
        offset=batch.last_offset,
        leader_epoch=rows["leader_epoch"][-1].as_py(),
        log_time=rows["log_time"].cast(pa.int64())[-1].as_py(),
        from_offset=before.next_offset,
        first_offset=first if before.first_offset is None else before.first_offset,
        gaps=gaps,
        metadata_version=image.metadata_version,
        row_counts=row_counts_of(image, last["topic"]),
        software=SOFTWARE,
    )


def progress_at(rows: pa.Table, offset: int, newest: Progress, incarnation: int) -> Progress:
    """Return the progress of a truncation to an offset before the newest one.

    ``rows`` are the rows of ``state`` at that offset. The progress has the time of the last record
    that changed something.
    """
    image = image_of(stored_rows(split_state(rows)), newest)
    times = rows.select(["entity", "_visible_offset", "_offset", "_log_time"])
    timed = rows_where(filtered(times, pc.is_valid(times["_log_time"])), IS_NOT_PROGRESS)
    last = timed.sort_by([(name, "descending") for name in ("_visible_offset", "_offset")])
    epoch = last_epoch(image.map(Entity.EPOCH).values())
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
        row_counts=row_counts_of(image, newest.topic),
    )


def image_of(rows: Mapping[Entity, StoredRows], progress: Progress) -> MetadataImage:
    """Return the image of rows at the end of the tables."""
    epochs = rows.get(Entity.EPOCH)
    return MetadataImage.from_maps(
        rows,
        StoredGroups(rows),
        offset=progress.offset,
        leader_epoch=progress.leader_epoch,
        timestamp_ms=milliseconds(progress.log_time),
        quorum=quorum_of(() if epochs is None else epochs.values()),
    )
