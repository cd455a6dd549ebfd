"""Queries of ``state`` and ``changes``: rows at an offset, intervals, differences, change feed.

Rules of this file:

1. A change takes effect at its visible offset. Of several changes, the last one by (visible offset,
   offset, seq) wins.
2. A change ends the interval of the row before it, which began at the visible offset of
   ``before_origin``. The rows at a past offset are therefore current rows and rows that later
   changes replaced. The cost depends on these rows and the later changes, not on the earlier ones.
3. Progress rows are not changes: ``changes_of`` leaves them out.
4. Everything here is a Spark query; nothing is collected.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as sf

from raftlog_state.image.entity_names import RowFilter

from .schema import ORIGIN_COLUMNS, PROGRESS, TypedTable

OP: Final = "_op"
_ORDER: Final = ("visible_offset", "offset", "seq")
EXACT_JSON: Final = {
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timeZone": "UTC",
    "ignoreNullFields": "false",
}


def visible_between(changes: DataFrame, after: int, to: int) -> DataFrame:
    """Return the changes that took effect after an offset and up to another (inclusive)."""
    visible = sf.col("visible_offset")
    return changes.where((visible > after) & (visible <= to))


def changes_of(table: TypedTable | None, changes: DataFrame) -> DataFrame:
    """Return the changes, or rows of ``state``, of a table; None: of all, without progress."""
    entity = sf.col("entity")
    return changes.where(entity != PROGRESS if table is None else entity == str(table.entity))


def living_rows(table: TypedTable | None, state: DataFrame) -> DataFrame:
    """Return the rows of ``state`` that are not deleted.

    In this and the following functions, rows have the columns of ``table`` or, without it,
    ``entity``, ``key`` and ``row``; and ``ORIGIN_COLUMNS``.
    """
    living = changes_of(table, state).where(~sf.col("is_deleted"))
    return living.select(*_columns_of(table, "row"), *ORIGIN_COLUMNS)


def last_rows(table: TypedTable | None, changes: DataFrame) -> DataFrame:
    """Return the row after the last change of each key, unless that deleted it."""
    origin = [column.alias(name) for name, column in _origin_after().items()]
    row = sf.struct(sf.col("op").alias(OP), *_columns_of(table, "after"), *origin)
    of_entity = changes_of(table, changes).groupBy("entity", "key")
    last = of_entity.agg(sf.max_by(row, sf.struct(*_ORDER)).alias("last")).select("last.*")
    return last.where(sf.col(OP) != "d").drop(OP)


def rows_after(table: TypedTable | None, state: DataFrame, changes: DataFrame) -> DataFrame:
    """Return the rows of ``state`` after applying the later ``changes``."""
    changed = changes_of(table, changes).select("entity", "key")
    kept = changes_of(table, state).join(changed, ["entity", "key"], "left_anti")
    return living_rows(table, kept).unionByName(last_rows(table, changes))


def rows_before(
    table: TypedTable | None, offset: int, rows: DataFrame, changes: DataFrame
) -> DataFrame:
    """Return the rows after ``offset``, computed from the ``rows`` after the later ``changes``."""
    began = sf.col("before_origin.visible_offset")
    replaced = _closed(table, changes).where(began <= offset)
    replaced_rows = replaced.select(
        *_columns_of(table, "before"),
        *(sf.col(f"before_origin.{name[1:]}").alias(name) for name in ORIGIN_COLUMNS),
    )
    return rows.where(sf.col("_visible_offset") <= offset).unionByName(replaced_rows)


def row_history(table: TypedTable, rows: DataFrame, changes: DataFrame) -> DataFrame:
    """Return each version of each row: the ``rows``, and those that ``changes`` replaced."""
    closed = _closed(table, changes).select(
        *_columns_of(table, "before"),
        sf.col("before_origin.visible_offset").alias("valid_from"),
        sf.col("visible_offset").alias("valid_to"),
        sf.col("before_origin.log_time").alias("written_time"),
        sf.col("log_time").alias("replaced_time"),
    )
    current = rows.select(
        *table.columns,
        sf.col("_visible_offset").alias("valid_from"),
        sf.lit(None).cast("bigint").alias("valid_to"),
        sf.col("_log_time").alias("written_time"),
        sf.lit(None).cast("timestamp").alias("replaced_time"),
    )
    return closed.unionByName(current)


def difference(changes: DataFrame) -> DataFrame:
    """Return the rows that differ before and after ``changes``, one row for each key.

    Columns: ``entity``, ``key``, ``op`` (c, u or d), ``changed`` (the columns of an update that
    differ), ``before`` and ``after``.
    """
    found = _net_changes(changes, "entity", "key")
    # As JSON, because maps cannot be compared.
    before, after = (_fields(side) for side in ("before", "after"))
    differing = sf.filter(sf.map_keys(after), lambda name: ~before[name].eqNullSafe(after[name]))
    op = sf.when(sf.isnull("before"), "c").when(sf.isnull("after"), "d").otherwise("u")
    nothing = sf.array().cast("array<string>")
    return found.select(
        "entity",
        "key",
        op.alias("op"),
        sf.when(op == "u", differing).otherwise(nothing).alias("changed"),
        "before",
        "after",
    )


def change_feed(table: TypedTable, changes: DataFrame) -> DataFrame:
    """Return a table's changes in the columns of Delta's change data feed.

    A row has one change per ``_commit_version``, which is the visible offset.
    """
    of_entity = changes_of(table, changes)
    known = _net_changes(of_entity, "entity", "key", "visible_offset")
    is_created, is_deleted = sf.isnull("before"), sf.isnull("after")
    sides = (
        ("before", ~is_created, sf.when(is_deleted, "delete").otherwise("update_preimage")),
        ("after", ~is_deleted, sf.when(is_created, "insert").otherwise("update_postimage")),
    )
    frames = [
        known.where(is_there).select(
            *_columns_of(table, side),
            kind.alias("_change_type"),
            sf.col("visible_offset").alias("_commit_version"),
            sf.col("log_time").alias("_commit_timestamp"),
        )
        for side, is_there, kind in sides
    ]
    return frames[0].unionByName(frames[1])


def matching(wanted: RowFilter) -> Column:
    """Return the condition that a change's row, after or before, matches a filter."""
    entity = str(wanted.entity)

    def column(name: str) -> Column:
        return sf.coalesce(*(sf.col(f"{side}.{entity}.{name}") for side in ("after", "before")))

    found = sf.col("entity") == entity
    for name, value in wanted.values:
        found = found & (column(name) == value)
    return found & column("entity_key").contains(wanted.quota_of) if wanted.quota_of else found


def changed_keys(table: TypedTable, changes: DataFrame) -> DataFrame:
    """Return a table's key columns from changes of its rows."""
    names = [name for name in table.columns if name in table.key or name == "entity"]
    sides = [f"{side}.{table.entity}" for side in ("after", "before")]
    columns = (sf.coalesce(*(f"{side}.{name}" for side in sides)).alias(name) for name in names)
    return changes_of(table, changes).select(*columns)


def broken_chains(
    changes: DataFrame, base_rows: DataFrame | None, *, is_complete: bool
) -> DataFrame:
    """Return the changes that do not begin with the row that their key's previous change left.

    Columns: ``entity``, ``key``, ``offset``, ``column``, ``expected`` and ``found``, as JSON.
    ``base_rows``: rows of all entities before the changes. ``is_complete``: whether the first
    change of each key without such a row created a row.
    """
    origin = sf.struct(*(column.alias(name[1:]) for name, column in _origin_after().items()))
    is_there = sf.col("op") != "d"
    links = changes.select(
        *("entity", "key", *_ORDER, "op"),
        sf.to_json("before", EXACT_JSON).alias("before"),
        sf.to_json("before_origin", EXACT_JSON).alias("before_origin"),
        sf.when(is_there, sf.to_json("after", EXACT_JSON)).alias("after"),
        sf.when(is_there, sf.to_json(origin, EXACT_JSON)).alias("origin_after"),
    )
    if base_rows is not None:
        changed = base_rows.join(changes.select("entity", "key"), ["entity", "key"], "left_semi")
        origin = sf.struct(*(sf.col(name).alias(name[1:]) for name in ORIGIN_COLUMNS))
        of_base = changed.select(
            *("entity", "key", sf.lit(-1).alias("visible_offset")),
            sf.to_json("row", EXACT_JSON).alias("after"),
            sf.to_json(origin, EXACT_JSON).alias("origin_after"),
        )
        links = links.unionByName(of_base, allowMissingColumns=True)
    of_key = Window.partitionBy("entity", "key").orderBy(*_ORDER)
    is_comparable = sf.col("op").isNotNull() & (sf.row_number().over(of_key) > int(not is_complete))
    found = links.withColumns(
        {
            "previous": sf.lag("after").over(of_key),
            "origin": sf.lag("origin_after").over(of_key),
            "is_comparable": is_comparable,
        }
    ).where("is_comparable")
    # A snapshot may have several records of a key; each change has the row before the snapshot.
    expected_row = sf.when(sf.col("op") == "r", sf.col("before")).otherwise(sf.col("previous"))
    expected_origin = sf.when(sf.col("before").isNotNull(), sf.col("origin"))
    is_row_wrong = ~sf.col("before").eqNullSafe(expected_row)
    is_origin_wrong = ~sf.col("before_origin").eqNullSafe(expected_origin)
    return found.where(is_row_wrong | is_origin_wrong).select(
        "entity",
        "key",
        "offset",
        sf.when(is_row_wrong, "before").otherwise("before_origin").alias("column"),
        sf.when(is_row_wrong, expected_row).otherwise(expected_origin).alias("expected"),
        sf.when(is_row_wrong, sf.col("before")).otherwise(sf.col("before_origin")).alias("found"),
    )


def _net_changes(changes: DataFrame, *keys: str) -> DataFrame:
    """Return one change for each key, from the first row before to the last row after."""
    order = sf.struct(*_ORDER)
    found = changes.groupBy(*keys).agg(
        sf.min_by("before", order).alias("before"),
        sf.max_by("after", order).alias("after"),
        sf.max_by("log_time", order).alias("log_time"),
    )
    texts = [sf.to_json(side, EXACT_JSON) for side in ("before", "after")]
    return found.where(~texts[0].eqNullSafe(texts[1]))


def _fields(side: str) -> Column:
    """Return the columns of a row before or after as text, by name."""
    text = sf.to_json(side, EXACT_JSON)
    return sf.from_json(text, "map<string,map<string,string>>")[sf.col("entity")]


def _origin_after() -> dict[str, Column]:
    """Return the origin columns of the row after a change."""
    columns = {name: sf.col(name[1:]) for name in ORIGIN_COLUMNS if name != "_created_offset"}
    columns["_created_offset"] = sf.coalesce("before_origin.created_offset", "offset")
    return columns


def _closed(table: TypedTable | None, changes: DataFrame) -> DataFrame:
    """Return the changes that ended an interval of at least one offset."""
    is_later = sf.col("visible_offset") > sf.col("before_origin.visible_offset")
    return changes_of(table, changes).where(is_later)


def _columns_of(table: TypedTable | None, side: str) -> list[Column]:
    """Return the columns of a table from a struct of ``changes`` or ``state``."""
    if table is None:
        return [sf.col("entity"), sf.col("key"), sf.col(side).alias("row")]
    return [sf.col(f"{side}.{table.entity}.{name}").alias(name) for name in table.columns]
