"""Permanent views of a schema, for SQL: typed tables and their history, as of the query.

Rules of this file:

1. A view reads the newest ``state`` and ``changes``. Delta pins both once for each query, so a join
   of views sees one state of each cluster. For another offset, use ``ClusterTables.at``.
2. Its rows are those of each cluster's ``ClusterView``: the last change of a key replaces its row
   of ``state``.
3. Creating all views takes seconds, so the view ``clusters`` has a digest of all of them as a
   property. While the digest is the same and no view is missing, none is created. ``clusters`` is
   created first without the digest and last with it, so an interrupted creation is repeated,
   whichever release continues.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from raftlog_state.errors import TablesError

from .comments import HISTORY_COMMENTS, TABLE_COMMENTS, column_comments
from .schema import (
    CHANGES,
    CHANGES_TABLE,
    CLUSTER_ID,
    METADATA_TABLES,
    ORIGIN_COLUMNS,
    PROGRESS,
    STATE_TABLE,
    TYPED_TABLES,
    TypedTable,
)
from .stores.spark import SparkStore, for_each, quoted

_LOGGER: Final = logging.getLogger("raftlog_state")

CLUSTERS: Final = "clusters"
"""The view of the clusters and their ends."""

DIGEST: Final = "raftlog.views"
"""Name of the property with the digest of all views."""

_ORIGIN: Final[Mapping[str, str]] = {
    **{name: name[1:] for name in ORIGIN_COLUMNS},
    "_created_offset": "coalesce(before_origin.created_offset, offset)",
}
"""The origin columns of the row after a change."""


def rows_sql(table: TypedTable, *, state: str, changes: str) -> str:
    """Return the query of a typed table; ``state`` and ``changes`` are names of these tables."""
    columns = [*table.columns, *ORIGIN_COLUMNS]
    cluster = _cluster_sql(table)
    after = [f"after.{table.entity}.{quoted(name)} AS {quoted(name)}" for name in table.columns]
    origin = [f"{value} AS {name}" for name, value in _ORIGIN.items()]
    last = _list("op AS _op", *after, *origin)
    of_state = [f"row.{table.entity}.{quoted(name)} AS {quoted(name)}" for name in table.columns]
    return f"""WITH base AS ({_base_sql(state)}),
tail AS (
  SELECT cluster_id, key, max_by(struct({last}), struct(visible_offset, offset, seq)) AS last
  FROM {changes} LEFT JOIN base USING (cluster_id)
  WHERE entity = '{table.entity}' AND {_IS_LATER}
  GROUP BY cluster_id, key
)
SELECT {cluster}, {_list(*of_state, *ORIGIN_COLUMNS)}
FROM {state} JOIN base USING (cluster_id) LEFT ANTI JOIN tail USING (cluster_id, key)
WHERE entity = '{table.entity}' AND NOT is_deleted
  AND (_incarnation >= base_incarnation OR _visible_offset <= truncated_to)
UNION ALL
SELECT {cluster}, {_list(*(f"last.{quoted(name)}" for name in columns))}
FROM tail
WHERE last._op <> 'd'"""


def history_sql(table: TypedTable, *, state: str, changes: str, rows: str) -> str:
    """Return the query of a table's history; see ``ClusterView.history``. ``rows`` is its view."""
    before = [f"before.{table.entity}.{quoted(name)} AS {quoted(name)}" for name in table.columns]
    names = [quoted(name) for name in table.columns]
    return f"""WITH base AS ({_base_sql(state)})
SELECT {_cluster_sql(table)}, {_list(*before)},
  before_origin.visible_offset AS valid_from, visible_offset AS valid_to,
  before_origin.log_time AS written_time, log_time AS replaced_time
FROM {changes} LEFT JOIN base USING (cluster_id)
WHERE entity = '{table.entity}' AND visible_offset > before_origin.visible_offset
  AND {_IS_NOT_REVERTED}
UNION ALL
SELECT cluster_id, {_list(*names)},
  _visible_offset, CAST(NULL AS BIGINT), _log_time, CAST(NULL AS TIMESTAMP)
FROM {rows}"""


def clusters_sql(*, state: str | None, changes: str) -> str:
    """Return the query of the clusters and their ends; ``state``: None without that table."""
    end = ("offset", "leader_epoch", "log_time", "incarnation")
    of_progress = ("metadata_version", "row_counts", "software")
    ends = f"""SELECT cluster_id, {_list(*end)}, after.{PROGRESS} AS progress
  FROM {changes} WHERE entity = '{PROGRESS}'"""
    if state is not None:
        ends += f"""
  UNION ALL
  SELECT cluster_id, {_list(*(f"_{name}" for name in end))}, row.{PROGRESS} AS progress
  FROM {state} WHERE entity = '{PROGRESS}'"""
    newest = _list(*(f"newest.{name}" for name in end))
    newest += ", " + _list(*(f"newest.progress.{name}" for name in of_progress))
    return f"""SELECT cluster_id, {newest}
FROM (
  SELECT cluster_id,
    max_by(struct({_list(*end, "progress")}), struct(incarnation, offset)) AS newest
  FROM (
  {ends}
  )
  GROUP BY cluster_id
)"""


def _cluster_sql(table: TypedTable) -> str:
    """Return the expression of a row's cluster id, derived from its log's id."""
    if table in METADATA_TABLES:
        return CLUSTER_ID
    return f"regexp_replace({CLUSTER_ID}, '@[^@]*$', '') AS {CLUSTER_ID}"


def _base_sql(state: str) -> str:
    """Return the query of what ``state`` includes of each cluster."""
    return f"""
  SELECT cluster_id, _visible_offset AS base_offset, _incarnation AS base_incarnation,
    row.{PROGRESS}.truncated_to AS truncated_to
  FROM {state} WHERE entity = '{PROGRESS}'
"""


_IS_LATER: Final = (
    "visible_offset > coalesce(base_offset, -1) AND incarnation >= coalesce(base_incarnation, 0)"
)
"""Condition that a change is not included in ``state``, whose base is joined."""
_IS_NOT_REVERTED: Final = (
    "(incarnation >= coalesce(base_incarnation, 0) OR visible_offset <= truncated_to)"
)
"""Condition that no truncation reverted a change."""


class ViewsOfWriter:
    """Callback after a writer's steps that creates a schema's views after the first append.

    It also calls ``after_step``.
    """

    def __init__(self, store: SparkStore, after_step: Callable[[str], None]) -> None:
        self._store = store
        self._after_step = after_step
        self._are_created = False

    def __call__(self, step: str) -> None:
        self._after_step(step)
        if step == CHANGES and not self._are_created:
            self.create()

    def create(self) -> None:
        """Create the views if needed. If that fails, what was written is published anyway."""
        self._are_created = True
        try:
            create_permanent_views(self._store)
        except TablesError as error:
            _LOGGER.warning("%s; the SQL views were not created", error)


def create_permanent_views(store: SparkStore) -> None:
    """Create or replace the views of a schema, unless it has those of this release.

    A missing ``state`` is created without rows. Tables at a path have no such views, and neither
    has a schema without ``changes``. Raises ``TablesError``.
    """
    if store.is_path or not store.exists(CHANGES_TABLE):
        return
    queries, clauses = dict(_queries(store)), dict(_comments())
    digest = hashlib.sha256(json.dumps([queries, clauses]).encode()).hexdigest()
    if store.has_views(queries, CLUSTERS, (DIGEST, digest)):
        return
    store.create(STATE_TABLE)
    _create_view(store, CLUSTERS, "", queries[CLUSTERS])
    clauses[CLUSTERS] = f"TBLPROPERTIES ('{DIGEST}' = '{digest}') "
    typed = [table.name for table in TYPED_TABLES]
    histories = [name for name in queries if name not in (*typed, CLUSTERS)]
    for names in (typed, histories, [CLUSTERS]):
        for_each(lambda name: _create_view(store, name, clauses[name], queries[name]), names)


def _queries(store: SparkStore) -> Iterator[tuple[str, str]]:
    """Yield the names and queries of all views."""
    changes, state = store.reference(CHANGES_TABLE.name), store.reference(STATE_TABLE.name)
    yield CLUSTERS, clusters_sql(state=state, changes=changes)
    for table in TYPED_TABLES:
        yield table.name, rows_sql(table, state=state, changes=changes)
        rows = store.reference(table.name)
        yield f"{table.name}_history", history_sql(table, state=state, changes=changes, rows=rows)


def _comments() -> Iterator[tuple[str, str]]:
    """Yield the names of the views, and the clauses of their comments."""
    for table in TYPED_TABLES:
        columns = column_comments(table)
        comment = TABLE_COMMENTS[table.name]
        yield table.name, _clause(columns, comment)
        versions = {name: columns[name] for name in (CLUSTER_ID, *table.columns)}
        yield (
            f"{table.name}_history",
            _clause({**versions, **HISTORY_COMMENTS}, f"Versions: {comment}"),
        )


def _clause(columns: Mapping[str, str], comment: str) -> str:
    """Return columns with their comments, and the view's comment. Comments contain no quotes."""
    listed = (f"{quoted(name)} COMMENT '{text}'" for name, text in columns.items())
    return f"({_list(*listed)}) COMMENT '{comment}' "


def _create_view(store: SparkStore, name: str, clauses: str, query: str) -> None:
    with store.errors(name):
        store.session.sql(f"CREATE OR REPLACE VIEW {store.reference(name)} {clauses}AS\n{query}")


def _list(*items: str) -> str:
    return ", ".join(items)
