"""Tables in memory as a reader sees them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from raftlog_state.image.rows import Row
from raftlog_state.tables.latest import living_rows, overlay, state_rows, without_reverted
from raftlog_state.tables.progress import NOTHING, Progress, progress_of
from raftlog_state.tables.schema import CHANGES_TABLE, LOG_TABLE, STATE_TABLE, StoredTable
from tests.support.memory_store import MemoryTables

VOLATILE = ("incarnation", "committed_at", "cluster_id", "_incarnation")


class CrashError(Exception):
    """End of the process before or after a commit."""


@dataclass(frozen=True)
class View:
    """Published rows."""

    offset: int
    rows: list[Row]


def _content(tables: MemoryTables, table: StoredTable) -> pa.Table:
    return tables.contents.get(table.name, table.schema.empty_table())


def _latest(tables: MemoryTables) -> tuple[Progress, pa.Table]:
    """Return the published end, and the rows of ``state`` there."""
    state, changes = _content(tables, STATE_TABLE), _content(tables, CHANGES_TABLE)
    base = progress_of(state) or Progress()
    tail = without_reverted(changes, base)
    tail = tail.filter(pc.greater(tail["visible_offset"], base.offset))
    rows = overlay(without_reverted(state, base), state_rows(tail))
    return progress_of(rows) or Progress(), rows


def read_view(tables: MemoryTables) -> View:
    """Return the rows that a reader sees."""
    progress, rows = _latest(tables)
    return View(progress.offset, living_rows(rows)[0])


def contents(tables: MemoryTables) -> list[tuple[str, str]]:
    """Return the published rows of all tables, in an order that does not depend on commits.

    Progress rows, which depend on the batches, are left out.
    """
    progress, rows = _latest(tables)
    assert progress.offset != NOTHING
    log = _content(tables, LOG_TABLE)
    changes = _content(tables, CHANGES_TABLE)
    assert changes.equals(without_reverted(changes, progress)), "truncations are complete"
    found: list[tuple[str, Any]] = [("log", row) for row in _plain(log)]
    found += [("changes", row) for row in _plain(changes) if row["op"] != "p"]
    living = rows.filter(pc.invert(rows["is_deleted"]))
    found += [("state", row) for row in _plain(living) if row["entity"] != "progress"]
    return sorted((name, json.dumps(row, default=str, sort_keys=True)) for name, row in found)


def _plain(rows: pa.Table) -> list[dict[str, Any]]:
    kept = [name for name in rows.column_names if name not in VOLATILE]
    return list(rows.select(kept).to_pylist())
