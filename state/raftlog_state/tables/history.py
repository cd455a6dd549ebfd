"""Frames of ``changes``: rows as of an offset, intervals of rows, differences, change feed.

Rules of this file:

1. A change counts from its visible offset on; the last one by (visible offset, offset, seq) wins.
2. A change closes the interval of the row before it, which began at the visible offset of
   ``before_origin``. So the rows at a past offset are current rows, and rows that later changes
   closed: the cost is that of the rows and of the later changes, not of the earlier ones.
3. Everything here is a Spark query; nothing is collected.
"""

from __future__ import annotations

from functools import reduce
from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as sf

from .schema import ORIGIN_COLUMNS, TypedTable

OP: Final = "_op"
_ORDER: Final = ("visible_offset", "offset", "seq")
_EXACT_JSON: Final = {"timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX", "timeZone": "UTC"}


def visible_between(changes: DataFrame, after: int, to: int) -> DataFrame:
    """Changes that took effect after an offset and up to another (inclusive)."""
    visible = sf.col("visible_offset")
    return changes.where((visible > after) & (visible <= to))


def same_key(table: TypedTable, left: str, right: str) -> Column:
    """Return whether rows of two aliases have the same key; a table without one has one row."""
    same = [sf.col(f"{left}.{name}") == sf.col(f"{right}.{name}") for name in table.key]
    return reduce(Column.__and__, same, sf.lit(True))


# --- rows as of an offset -------------------------------------------------------------------------


def last_of_all(changes: DataFrame) -> DataFrame:
    """Return the last change of each key of each entity: ``entity``, ``row``, ``_op``, origin.

    ``row`` has the last values of deleted keys, too.
    """
    row = sf.coalesce("after", "before")
    return _last(changes, ["entity", "key"], row).select("entity", "row", OP, *ORIGIN_COLUMNS)


def rows_before(table: TypedTable, offset: int, rows: DataFrame, changes: DataFrame) -> DataFrame:
    """Return the rows after ``offset``, from the ``rows`` after later ``changes``."""
    began = sf.col("before_origin.visible_offset")
    replaced = _closed(table, changes).where(began <= offset)
    was_there = replaced.select(
        *_columns_of(table, "before"),
        *(sf.col(f"before_origin.{name[1:]}").alias(name) for name in ORIGIN_COLUMNS),
    )
    return rows.where(sf.col("_visible_offset") <= offset).unionByName(was_there)


def rows_after(table: TypedTable, rows: DataFrame, changes: DataFrame) -> DataFrame:
    """Return the rows after ``changes``, which are few, from the ``rows`` before them."""
    row = sf.coalesce(sf.col(f"after.{table.entity}"), sf.col(f"before.{table.entity}"))
    tail = (
        _last(_of_entity(table, changes), ["key"], row)
        .select(OP, *(sf.col(f"row.{name}").alias(name) for name in table.columns), *ORIGIN_COLUMNS)
        .alias("tail")
    )
    unchanged = rows.alias("rows").join(tail, same_key(table, "rows", "tail"), "left_anti")
    return unchanged.unionByName(tail.where(sf.col(OP) != "d").drop(OP))


def _last(changes: DataFrame, keys: list[str], row: Column) -> DataFrame:
    newest_first = Window.partitionBy(*keys).orderBy(*(sf.col(name).desc() for name in _ORDER))
    ranked = changes.select(
        *keys,
        row.alias("row"),
        sf.col("op").alias(OP),
        sf.col("offset").alias("_offset"),
        sf.col("visible_offset").alias("_visible_offset"),
        sf.col("leader_epoch").alias("_leader_epoch"),
        sf.col("log_time").alias("_log_time"),
        sf.coalesce("before_origin.created_offset", "offset").alias("_created_offset"),
        sf.row_number().over(newest_first).alias("rank"),
    )
    return ranked.where(sf.col("rank") == 1).drop("rank")


# --- histories ------------------------------------------------------------------------------------


def row_history(table: TypedTable, rows: DataFrame, changes: DataFrame) -> DataFrame:
    """Return each version of each row with the half-open interval in which it was the state.

    ``valid_from`` and ``valid_to`` are visible offsets; ``valid_to`` is null for ``rows``, the
    current ones, which ``changes`` led to.
    """
    closed = _closed(table, changes).select(
        *_columns_of(table, "before"),
        sf.col("before_origin.visible_offset").alias("valid_from"),
        sf.col("visible_offset").alias("valid_to"),
        sf.col("before_origin.log_time").alias("valid_from_time"),
        sf.col("log_time").alias("valid_to_time"),
    )
    current = rows.select(
        *table.columns,
        sf.col("_visible_offset").alias("valid_from"),
        sf.lit(None).cast("bigint").alias("valid_to"),
        sf.col("_log_time").alias("valid_from_time"),
        sf.lit(None).cast("timestamp").alias("valid_to_time"),
    )
    return closed.unionByName(current)


def difference(changes: DataFrame) -> DataFrame:
    """Return the rows that differ before and after ``changes``, one row for each key.

    Columns: ``entity``, ``key``, ``op`` (c, u or d), ``changed`` (columns that any of the changes
    changed), ``before`` and ``after``.
    """
    order = sf.struct(*_ORDER)
    found = changes.groupBy("entity", "key").agg(
        sf.sort_array(sf.array_distinct(sf.flatten(sf.collect_list("changed")))).alias("changed"),
        sf.min_by("before", order).alias("before"),
        sf.max_by("after", order).alias("after"),
    )
    # As text, because maps cannot be compared.
    texts = [sf.to_json(sf.col(name), _EXACT_JSON) for name in ("before", "after")]
    op = sf.when(sf.isnull("before"), "c").when(sf.isnull("after"), "d").otherwise("u")
    is_update = op == "u"
    return found.where(~texts[0].eqNullSafe(texts[1])).select(
        "entity",
        "key",
        op.alias("op"),
        sf.when(is_update, sf.col("changed"))
        .otherwise(sf.array().cast("array<string>"))
        .alias("changed"),
        "before",
        "after",
    )


def change_feed(table: TypedTable, changes: DataFrame) -> DataFrame:
    """Return changes of a table in the columns of Delta's change data feed.

    ``_change_type`` is insert, delete, update_preimage or update_postimage; ``_commit_version``
    the visible offset and ``_commit_timestamp`` the time of the record.
    """
    known = _of_entity(table, changes)
    is_created, is_deleted = sf.isnull("before"), sf.isnull("after")
    is_same = ~is_created & ~is_deleted & (sf.size("changed") == 0)
    sides = (
        ("before", ~is_created, sf.when(is_deleted, "delete").otherwise("update_preimage")),
        ("after", ~is_deleted, sf.when(is_created, "insert").otherwise("update_postimage")),
    )
    frames = [
        known.where(is_there & ~is_same).select(
            *_columns_of(table, side),
            kind.alias("_change_type"),
            sf.col("visible_offset").alias("_commit_version"),
            sf.col("log_time").alias("_commit_timestamp"),
        )
        for side, is_there, kind in sides
    ]
    return frames[0].unionByName(frames[1])


def broken_intervals(changes: DataFrame) -> DataFrame:
    """Return the changes whose ``before_origin`` is not the change before them of the same key."""
    of_key = Window.partitionBy("entity", "key").orderBy(*_ORDER)
    previous = sf.struct(*_ORDER[:2], "leader_epoch", "log_time", "op")
    found = changes.withColumn("previous", sf.lag(previous).over(of_key))
    is_first = sf.isnull("previous") | (sf.col("previous.op") == "d")
    expected = sf.when(~is_first & sf.col("before").isNotNull(), sf.col("previous.visible_offset"))
    return found.where(~sf.col("before_origin.visible_offset").eqNullSafe(expected)).select(
        "entity",
        "key",
        "offset",
        expected.alias("expected"),
        sf.col("before_origin.visible_offset").alias("found"),
    )


def _of_entity(table: TypedTable, changes: DataFrame) -> DataFrame:
    return changes.where(sf.col("entity") == str(table.entity))


def _closed(table: TypedTable, changes: DataFrame) -> DataFrame:
    """Return the changes that ended an interval of at least one offset."""
    began = sf.col("before_origin.visible_offset")
    return _of_entity(table, changes).where(began < sf.col("visible_offset"))


def _columns_of(table: TypedTable, side: str) -> list[Column]:
    return [sf.col(f"{side}.{table.entity}.{name}").alias(name) for name in table.columns]
