"""Expected rows of the typed tables: the second replay of ``log``, part by part.

A snapshot in the log replaces the state, so the replay starts again there; the rows before it have
what a snapshot lacks: leader epochs, transactions, and the offsets at which rows were created.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from functools import reduce
from typing import NamedTuple

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.pandas.types import from_arrow_schema

from . import sql_cluster, sql_quorum, sql_topics
from .progress import NOTHING
from .schema import BY_NAME, ORIGIN_COLUMNS, TYPED_TABLES, TypedTable
from .sql_parts import Base, Records, computed
from .stores.spark import for_each


class Expected(NamedTuple):
    """Rows of each typed table, or those of changed keys if they are not complete."""

    rows: dict[str, DataFrame]
    is_complete: bool


def no_base(session: SparkSession, offset: int = NOTHING) -> Base:
    """Return a base without rows: the replay starts after ``offset`` with nothing."""
    empty = {
        table.name: session.createDataFrame(
            [], from_arrow_schema(pa.schema({**table.columns, **ORIGIN_COLUMNS}))
        ).where(sf.lit(False))
        for table in TYPED_TABLES
    }
    return Base(offset=offset, rows=empty, changed=empty, is_complete=True)


def expected_tables(rows: DataFrame, base: Base) -> Expected:
    """Return every typed table after decoded rows of ``log``, of which the first ones may be in
    the base."""
    at = sf.col("offset")
    later = rows.where(at > base.offset)
    snapshots = later.where("snapshot_position IS NOT NULL").select("offset").distinct()
    starts = sorted(row[0] for row in snapshots.collect())
    if not starts:
        return Expected(_replayed(Records(rows, base), base.rows), base.is_complete)
    prior = dict(base.rows)
    if not later.where(at < starts[0]).isEmpty():
        before = _replayed(Records(rows.where(at < starts[0]), base), base.rows)
        prior = _computed({name: _merged(name, prior[name], before[name]) for name in prior})
    for start, end in zip(starts, [*starts[1:], None], strict=True):
        part = rows.where((at > start) | ((at == start) & sf.col("snapshot_position").isNotNull()))
        part = part if end is None else part.where(at < end)
        found = _replayed(Records(part, no_base(rows.sparkSession, start - 1)), prior)
        prior = {
            name: _with_created_offset(name, found[name], prior[name], start) for name in found
        }
        prior = prior if end is None else _computed(prior)
    return Expected(prior, is_complete=True)


def _computed(tables: Mapping[str, DataFrame]) -> dict[str, DataFrame]:
    return dict(for_each(lambda name: (name, computed(tables[name])), tables))


def _replayed(records: Records, prior: Mapping[str, DataFrame]) -> dict[str, DataFrame]:
    lifetimes = computed(sql_topics.lifetimes(records))
    return {
        "features": sql_cluster.features(records),
        "zk_migration": sql_cluster.zk_migration(records),
        "brokers": sql_cluster.brokers(records),
        "controllers": sql_cluster.controllers(records),
        "topics": sql_topics.topics(records, lifetimes),
        "partitions": sql_topics.partitions(records, lifetimes),
        "configs": sql_cluster.configs(records, lifetimes),
        "quotas": sql_cluster.quotas(records),
        "producer_ids": sql_cluster.producer_ids(records),
        "acls": sql_cluster.acls(records),
        "scram": sql_cluster.scram(records),
        "tokens": sql_cluster.tokens(records),
        "epochs": sql_quorum.epochs(records, prior["epochs"]),
        "transactions": sql_quorum.transactions(records, prior["transactions"]),
    }


def _merged(name: str, base: DataFrame, changed: DataFrame) -> DataFrame:
    """Return the rows of a base, with those that later records changed."""
    touched, same = _by_key(name, changed)
    living = changed.where(sf.col("_created_offset").isNotNull())
    return base.join(touched, same, "left_anti").unionByName(living, allowMissingColumns=True)


def _with_created_offset(
    name: str, rows: DataFrame, prior: DataFrame, snapshot_offset: int
) -> DataFrame:
    """Keep the created offset of rows that are older than a snapshot that contains them."""
    before, same = _by_key(name, prior, sf.col("_created_offset").alias("created_before"))
    created = sf.when(
        sf.col("_created_offset") == snapshot_offset,
        sf.coalesce("created_before", "_created_offset"),
    ).otherwise(sf.col("_created_offset"))
    joined = rows.join(before, same, "left").withColumn("_created_offset", created)
    return joined.drop(*before.columns)


def _by_key(name: str, rows: DataFrame, *others: Column) -> tuple[DataFrame, Column]:
    """Return the keys of rows under other names, and the condition that a row has such a key."""
    keys = {f"k{at}": key for at, key in enumerate(key_columns(BY_NAME[name]))}
    same = reduce(operator.and_, (key == sf.col(k) for k, key in keys.items()), sf.lit(True))
    return rows.select(*(key.alias(k) for k, key in keys.items()), *others), same


def key_columns(table: TypedTable) -> list[Column]:
    """What identifies a row on both sides. A quota's entity is compared as what it is, a map."""
    return [
        comparable(sf.col("entity"), table.columns["entity"])
        if name == "entity_key"
        else sf.col(name)
        for name in table.key
    ]


def comparable(column: Column, kind: pa.DataType) -> Column:
    """Maps have no order; their sorted entries have."""
    return sf.array_sort(sf.map_entries(column)) if pa.types.is_map(kind) else column
