"""Permanent views of a schema, for SQL: typed tables and their history, as of the query.

Rules of this file:

1. A view reads the newest ``state`` and ``changes``. Delta pins both once for each query, so a
   join of views is one state of the cluster. For another offset there is ``ClusterTables.at``.
2. Its rows are those of ``ClusterView``: the last change of a key replaces its row of ``state``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from pyspark.sql.pandas.types import from_arrow_schema

from .parallel import for_each
from .schema import (
    CHANGES_TABLE,
    ORIGIN_COLUMNS,
    PROGRESS,
    STATE_TABLE,
    TYPED_TABLES,
    StoredTable,
    TypedTable,
)
from .stores.spark import SparkStore

_ORIGIN: Final[Mapping[str, str]] = {
    **{name: name[1:] for name in ORIGIN_COLUMNS},
    "_created_offset": "coalesce(before_origin.created_offset, offset)",
}
"""The origin columns of the row after a change."""


def rows_sql(table: TypedTable, *, state: str, changes: str) -> str:
    """Return the query of a typed table; ``state`` and ``changes`` are names of these tables."""
    columns = [*table.columns, *ORIGIN_COLUMNS]
    after = [f"after.{table.entity}.{_quoted(name)} AS {_quoted(name)}" for name in table.columns]
    origin = [f"{value} AS {name}" for name, value in _ORIGIN.items()]
    last = _list("op AS _op", *after, *origin)
    of_state = [f"row.{table.entity}.{_quoted(name)} AS {_quoted(name)}" for name in table.columns]
    return f"""WITH tail AS (
  SELECT key, max_by(struct({last}), struct(visible_offset, offset, seq)) AS last
  FROM {changes}
  WHERE entity = '{table.entity}' AND visible_offset > (
    SELECT coalesce(max(_visible_offset), -1) FROM {state} WHERE entity = '{PROGRESS}'
  ) AND incarnation >= (
    SELECT coalesce(max(_incarnation), 0) FROM {state} WHERE entity = '{PROGRESS}'
  )
  GROUP BY key
)
SELECT {_list(*of_state, *ORIGIN_COLUMNS)}
FROM {state}
LEFT ANTI JOIN (SELECT key AS changed_key FROM tail) ON key = changed_key
WHERE entity = '{table.entity}' AND NOT is_deleted
  AND {_is_not_reverted(state, "_incarnation", "_visible_offset")}
UNION ALL
SELECT {_list(*(f"last.{_quoted(name)}" for name in columns))}
FROM tail
WHERE last._op <> 'd'"""


def history_sql(table: TypedTable, *, state: str, changes: str, rows: str) -> str:
    """Return the query of a table's history; see ``ClusterView.history``. ``rows`` is its view."""
    before = [f"before.{table.entity}.{_quoted(name)} AS {_quoted(name)}" for name in table.columns]
    names = [_quoted(name) for name in table.columns]
    return f"""SELECT {_list(*before)},
  before_origin.visible_offset AS valid_from, visible_offset AS valid_to,
  before_origin.log_time AS written_time, log_time AS replaced_time
FROM {changes}
WHERE entity = '{table.entity}' AND visible_offset > before_origin.visible_offset
  AND {_is_not_reverted(state, "incarnation", "visible_offset")}
UNION ALL
SELECT {_list(*names)}, _visible_offset, CAST(NULL AS BIGINT), _log_time, CAST(NULL AS TIMESTAMP)
FROM {rows}"""


def _is_not_reverted(state: str, incarnation: str, offset: str) -> str:
    """Return the condition that no truncation reverted a row."""
    of_progress = f"FROM {state} WHERE entity = '{PROGRESS}'"
    return f"""(
    {incarnation} >= (SELECT coalesce(max(_incarnation), 0) {of_progress})
    OR {offset} <= (SELECT max(row.{PROGRESS}.truncated_to) {of_progress})
  )"""


def create_permanent_views(store: SparkStore) -> tuple[str, ...]:
    """Create or replace the views of a schema that has ``changes``; return their names.

    A missing ``state`` is created without rows. Tables at a path have no such views. Raises
    ``TablesError``.
    """
    if store.is_path:
        return ()
    _create_state(store)
    queries = dict(_queries(store))
    typed = [table.name for table in TYPED_TABLES]
    for names in (typed, [name for name in queries if name not in typed]):
        for_each(lambda name: _create_view(store, name, queries[name]), names)
    return tuple(queries)


def _queries(store: SparkStore) -> Iterator[tuple[str, str]]:
    """Yield the names and queries of all views."""
    changes, state = store.reference(CHANGES_TABLE), store.reference(STATE_TABLE)
    for table in TYPED_TABLES:
        yield table.name, rows_sql(table, state=state, changes=changes)
        rows = _reference(store, table.name)
        yield f"{table.name}_history", history_sql(table, state=state, changes=changes, rows=rows)


def _create_state(store: SparkStore) -> None:
    if store.exists(STATE_TABLE):
        return
    with store.errors(STATE_TABLE.name):
        empty = store.session.createDataFrame([], from_arrow_schema(STATE_TABLE.schema))
        writer = empty.write.format("delta").options(**STATE_TABLE.properties).mode("ignore")
        writer.saveAsTable(store.reference(STATE_TABLE))


def _create_view(store: SparkStore, name: str, query: str) -> None:
    with store.errors(name):
        store.session.sql(f"CREATE OR REPLACE VIEW {_reference(store, name)} AS\n{query}")


def _reference(store: SparkStore, name: str) -> str:
    return store.reference(StoredTable(name=name, columns={}, checks={}, skipping=()))


def _quoted(name: str) -> str:
    return f"`{name}`"


def _list(*items: str) -> str:
    return ", ".join(items)
