"""Tables in memory as a reader sees them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from raftlog.client import open_path
from raftlog_state.image import MetadataImage
from raftlog_state.image.rows import Row
from raftlog_state.loader.metadata_loader import MetadataLoader
from raftlog_state.records import Redactor
from raftlog_state.tables.change_slices import SLICE_ROWS
from raftlog_state.tables.latest import living, overlay, rows_of_state, state_rows, without_reverted
from raftlog_state.tables.log_follower import FollowSettings, LogFollower
from raftlog_state.tables.progress import NOTHING, Progress, cluster_in, progress_of
from raftlog_state.tables.schema import CHANGES_TABLE, LOG_TABLE, ROW, STATE_TABLE, StoredTable
from raftlog_state.tables.stores.protocol import Condition, rows_where
from raftlog_state.tables.unmerged import UNMERGED_ROWS_MAX, StoredChanges, Tail
from raftlog_state.tables.writer import Writer
from tests.support.memory_store import Hook, MemoryStore, MemoryTables, no_hook
from tests.support.metadata_logs import MetadataLog
from tests.support.source_rows import source_rows

VOLATILE = ("incarnation", "committed_at", "cluster_id", "_incarnation")


CLUSTER = "cluster-a"
END = 120
"""End offset of the part of a real log that most tests write; a transaction is in it."""


def changes_schema_without(entity: str) -> pa.Schema:
    """Return the schema of ``changes`` of an earlier release, which did not have an entity."""
    kind = pa.struct([field for field in ROW if field.name != entity])
    schema = CHANGES_TABLE.schema
    for name in ("before", "after"):
        schema = schema.set(schema.get_field_index(name), pa.field(name, kind))
    return schema


class CrashError(Exception):
    """End of the process before or after a commit."""


@dataclass(frozen=True)
class View:
    """Published rows."""

    offset: int
    rows: list[Row]


def _only_cluster(tables: MemoryTables) -> str:
    store = MemoryStore(tables)
    return cluster_in(store, None) or CLUSTER


def _content(tables: MemoryTables, table: StoredTable, cluster_id: str) -> pa.Table:
    found = tables.contents.get(table.name, table.no_rows)
    return rows_where(tables.in_one_chunk(table.name, found), ("cluster_id", "=", cluster_id))


def _latest(tables: MemoryTables, cluster_id: str) -> tuple[Progress, pa.Table]:
    """Return the published end of a cluster, and its rows of ``state`` there."""
    state, changes = (_content(tables, table, cluster_id) for table in (STATE_TABLE, CHANGES_TABLE))
    base = progress_of(state) or Progress()
    tail = without_reverted(changes, base)
    is_later: Condition = ("visible_offset", ">", base.offset)
    is_end: Condition = ("visible_offset", "=", base.offset)
    is_fence: Condition = ("incarnation", ">", base.incarnation)
    tail = rows_where(tail, any_of=((is_later,), (is_end, is_fence)))
    rows = overlay(without_reverted(state, base), state_rows(tail))
    return progress_of(rows) or Progress(), rows


def read_view(tables: MemoryTables, cluster_id: str | None = None) -> View:
    """Return the rows of a cluster, or of the only one, that a reader sees."""
    progress, rows = _latest(tables, cluster_id or _only_cluster(tables))
    return View(progress.offset, rows_of_state(living(rows)))


def contents(tables: MemoryTables, cluster_id: str | None = None) -> list[tuple[str, str]]:
    """Return the published rows of a cluster, in an order that does not depend on commits.

    Progress rows, which depend on the batches, are left out.
    """
    cluster_id = cluster_id or _only_cluster(tables)
    progress, rows = _latest(tables, cluster_id)
    assert progress.offset != NOTHING
    log = without_reverted(_content(tables, LOG_TABLE, cluster_id), progress, offset="offset")
    changes = _content(tables, CHANGES_TABLE, cluster_id)
    assert changes.equals(without_reverted(changes, progress)), "truncations are complete"
    found: list[tuple[str, Any]] = [("log", row) for row in _plain(log)]
    found += [("changes", row) for row in _plain(changes) if row["op"] != "p"]
    found += [("state", row) for row in _plain(living(rows)) if row["entity"] != "progress"]
    return sorted((name, json.dumps(row, default=str, sort_keys=True)) for name, row in found)


class History:
    """Records of a log as rows of the source, and the image after each offset.

    The tables of a range that is written in one batch are written once.
    """

    def __init__(self, log: MetadataLog) -> None:
        self._written: dict[tuple[str, int], MemoryTables] = {}
        self._contents: dict[tuple[str, int], list[tuple[str, str]]] = {}
        self.rows = source_rows(log.records)
        self.images: dict[int, MetadataImage] = {}
        loader = MetadataLoader()
        for record in log.records[: END + 40]:
            loader.append([record])
            if loader.open_transaction_offset is None:
                self.images[record.offset] = loader.image

    def range(self, start_offset: int, end_offset: int) -> pa.Table:
        return self.rows.slice(start_offset, end_offset - start_offset)

    def written(self, end_offset: int, cluster_id: str = CLUSTER) -> MemoryTables:
        """Return new tables of the records before an offset, written in one batch."""
        found = self._written.get((cluster_id, end_offset))
        if found is None:
            found = self._written[cluster_id, end_offset] = MemoryTables()
            writer = writer_of(found, cluster_id=cluster_id)
            assert writer.apply(self.range(0, end_offset), cluster_id)
        return found.copy()

    def contents(self, end_offset: int, cluster_id: str = CLUSTER) -> list[tuple[str, str]]:
        """Return the contents of these tables."""
        key = (cluster_id, end_offset)
        if key not in self._contents:
            self._contents[key] = contents(self.written(end_offset, cluster_id))
        return self._contents[key]

    def check(self, view: View) -> None:
        """Compare what a reader sees with the replay up to that offset."""
        expected = self.images[view.offset].maps
        found: dict[Any, dict[Any, Any]] = {}
        for row in view.rows:
            found.setdefault(row.ENTITY, {})[row.key] = row
        assert found == {entity: dict(rows) for entity, rows in expected.items() if rows}


def writer_of(
    tables: MemoryTables,
    *,
    cluster_id: str | None = None,
    before_commit: Hook = no_hook,
    after_commit: Hook = no_hook,
    slice_rows: int = SLICE_ROWS,
    unmerged_rows_max: int = UNMERGED_ROWS_MAX,
) -> Writer:
    store = MemoryStore(tables, before_commit=before_commit, after_commit=after_commit)
    return Writer(
        store,
        cluster_id=cluster_id,
        clock_us=lambda: 1,
        slice_rows=slice_rows,
        unmerged_rows_max=unmerged_rows_max,
    )


def rows_in_memory(tails: Iterable[Tail]) -> int:
    """Return the number of unmerged rows that are not in the table ``changes`` only."""
    parts = (part for tail in tails for part in tail.parts)
    return sum(part.num_rows for part in parts if not isinstance(part, StoredChanges))


def follow_settings(*, writes_log: bool = True) -> FollowSettings:
    """Return settings of a run to the end of a log in files, secrets redacted."""
    return FollowSettings(redactor=Redactor(), writes_log=writes_log, is_once=True, holdback_ms=0)


def followed(log: Path) -> MemoryTables:
    """Return the tables of a log, written by one process in batches."""
    tables = MemoryTables()
    LogFollower(
        lambda: open_path(str(log)),
        MemoryStore(tables),
        follow_settings(),
        log_event=lambda event: None,
    ).run()
    return tables


def _plain(rows: pa.Table) -> list[dict[str, Any]]:
    kept = [name for name in rows.column_names if name not in VOLATILE]
    return list(rows.select(kept).to_pylist())
