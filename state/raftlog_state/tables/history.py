"""From ``changes`` to rows: the last change of every key, up to an offset.

Rules of this file:

1. A change counts from its visible offset on; the last one by (visible offset, offset, seq) wins.
2. Everything here is a Spark query; nothing is collected.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as sf

from .schema import ORIGIN_COLUMNS, TypedTable

OP: Final = "_op"
_ORDER: Final = ("visible_offset", "offset", "seq")


def visible_between(changes: DataFrame, after: int, to: int) -> DataFrame:
    """Changes that took effect after an offset and up to another (inclusive)."""
    visible = sf.col("visible_offset")
    return changes.where((visible > after) & (visible <= to))


def last_of_all(changes: DataFrame) -> DataFrame:
    """Return the last change of each key of each entity: ``entity``, ``row``, ``_op``, origin.

    ``row`` has the last values of deleted keys, too. ``_created_offset`` is null if the row was
    created before ``changes``.
    """
    now, was = sf.col("after"), sf.col("before")
    return _last(changes, ["entity", "key"], sf.coalesce(now, was), was.isNull()).select(
        "entity", "row", OP, *ORIGIN_COLUMNS
    )


def rows_at(changes: DataFrame, table: TypedTable, offset: int) -> DataFrame:
    """The rows of ``table`` as they were after ``offset``, inclusive."""
    entity = str(table.entity)
    known = visible_between(changes, -1, offset).where(sf.col("entity") == entity)
    row, was = sf.col(f"after.{entity}"), sf.col(f"before.{entity}")
    return (
        _last(known, ["key"], row, was.isNull())
        .where(sf.col(OP) != "d")
        .select(*(sf.col(f"row.{name}").alias(name) for name in table.columns), *ORIGIN_COLUMNS)
    )


def _last(changes: DataFrame, keys: list[str], row: Column, was_absent: Column) -> DataFrame:
    of_key = Window.partitionBy(*keys)
    newest_first = of_key.orderBy(*(sf.col(name).desc() for name in _ORDER))
    created = sf.when(was_absent & (sf.col("op") != "d"), sf.col("offset"))
    ranked = changes.select(
        *keys,
        row.alias("row"),
        sf.col("op").alias(OP),
        sf.col("offset").alias("_offset"),
        sf.col("visible_offset").alias("_visible_offset"),
        sf.col("leader_epoch").alias("_leader_epoch"),
        sf.col("log_time").alias("_log_time"),
        sf.max(created).over(of_key).alias("_created_offset"),
        sf.row_number().over(newest_first).alias("rank"),
    )
    return ranked.where(sf.col("rank") == 1).drop("rank")
