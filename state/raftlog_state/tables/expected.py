"""Expected rows of the typed tables: the second replay of ``log``, in parts.

A snapshot in the log replaces the state, so the replay starts again there. The rows before it
provide what a snapshot lacks: leader epochs, transactions, and the offsets at which rows were
created.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Set
from functools import partial, reduce
from typing import Final, NamedTuple

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.pandas.types import from_arrow_schema

from . import sql_cluster, sql_quorum, sql_topics
from .progress import NOTHING
from .schema import BY_NAME, ORIGIN_COLUMNS, TypedTable
from .sql_parts import ABORT, BEGIN, END, Base, Contents, Records, computed
from .stores.spark import for_each

_OF_TOPICS: Final = ("TOPIC_RECORD", "REMOVE_TOPIC_RECORD")

RECORD_TYPES: Final[Mapping[str, frozenset[str]]] = {
    name: frozenset(types)
    for name, types in {
        "features": ("FEATURE_LEVEL_RECORD",),
        "zk_migration": ("ZK_MIGRATION_STATE_RECORD",),
        "brokers": (
            "REGISTER_BROKER_RECORD",
            "BROKER_REGISTRATION_CHANGE_RECORD",
            "FENCE_BROKER_RECORD",
            "UNFENCE_BROKER_RECORD",
            "UNREGISTER_BROKER_RECORD",
        ),
        "controllers": ("REGISTER_CONTROLLER_RECORD", "UNREGISTER_CONTROLLER_RECORD"),
        "topics": _OF_TOPICS,
        "partitions": (
            "PARTITION_RECORD",
            "PARTITION_CHANGE_RECORD",
            "CLEAR_ELR_RECORD",
            *_OF_TOPICS,
        ),
        "configs": ("CONFIG_RECORD", *_OF_TOPICS),
        "quotas": ("CLIENT_QUOTA_RECORD",),
        "producer_ids": ("PRODUCER_IDS_RECORD",),
        "acls": ("ACCESS_CONTROL_ENTRY_RECORD", "REMOVE_ACCESS_CONTROL_ENTRY_RECORD"),
        "scram": ("USER_SCRAM_CREDENTIAL_RECORD", "REMOVE_USER_SCRAM_CREDENTIAL_RECORD"),
        "tokens": ("DELEGATION_TOKEN_RECORD", "REMOVE_DELEGATION_TOKEN_RECORD"),
        "epochs": ("LEADER_CHANGE", "SNAPSHOT_FOOTER", "KRAFT_VERSION", "KRAFT_VOTERS"),
        "transactions": (BEGIN, END, ABORT),
    }.items()
}
"""The record types that change the rows of a table. Others have no rows to replay."""


class Expected(NamedTuple):
    """Rows of each typed table; only those of changed keys unless ``is_complete``.

    A table that is not in ``rows`` has none.
    """

    rows: dict[str, DataFrame]
    is_complete: bool


def no_base(session: SparkSession, offset: int = NOTHING) -> Base:
    """Return a base without rows, from which the replay starts after ``offset``."""
    empty = partial(_no_rows, session)
    return Base(
        offset=offset, rows=empty, changed=empty, changed_tables=frozenset(), is_complete=True
    )


def _no_rows(session: SparkSession, name: str) -> DataFrame:
    columns = pa.schema({**BY_NAME[name].columns, **ORIGIN_COLUMNS})
    return session.createDataFrame([], from_arrow_schema(columns)).where(sf.lit(False))


def expected_tables(rows: DataFrame, contents: Contents, base: Base) -> Expected:
    """Return every typed table after decoded rows of ``log``.

    The first rows may already be in the base.
    """
    at, types = sf.col("offset"), contents.record_types
    starts = [offset for offset in contents.snapshot_offsets if offset > base.offset]
    names = {name for name, of in RECORD_TYPES.items() if not types.isdisjoint(of)}
    names |= _REPLAYS_OF_HISTORY.keys() if starts and not base.is_complete else base.changed_tables
    if not starts:
        found = replayed(Records(rows, base, types), names, base.rows)
        return Expected(found, base.is_complete)
    prior = {name: base.rows(name) for name in names}
    if not rows.where((at > base.offset) & (at < starts[0])).isEmpty():
        before = replayed(Records(rows.where(at < starts[0]), base, types), names, base.rows)
        prior = _computed({name: _merged(name, prior[name], before[name]) for name in prior})
    for start, end in zip(starts, [*starts[1:], None], strict=True):
        part = rows.where((at > start) | ((at == start) & sf.col("snapshot_position").isNotNull()))
        part = part if end is None else part.where(at < end)
        records = Records(part, no_base(rows.sparkSession, start - 1), types)
        found = replayed(records, names, prior.__getitem__)
        prior = {
            name: _with_created_offset(name, found[name], prior[name], start) for name in found
        }
        prior = prior if end is None else _computed(prior)
    return Expected(prior, is_complete=True)


def _computed(tables: Mapping[str, DataFrame]) -> dict[str, DataFrame]:
    return dict(for_each(lambda name: (name, computed(tables[name])), tables))


_REPLAYS: Final[Mapping[str, Callable[[Records], DataFrame]]] = {
    "features": sql_cluster.features,
    "zk_migration": sql_cluster.zk_migration,
    "brokers": sql_cluster.brokers,
    "controllers": sql_cluster.controllers,
    "quotas": sql_cluster.quotas,
    "producer_ids": sql_cluster.producer_ids,
    "acls": sql_cluster.acls,
    "scram": sql_cluster.scram,
    "tokens": sql_cluster.tokens,
}
_REPLAYS_OF_TOPICS: Final[Mapping[str, Callable[[Records, DataFrame], DataFrame]]] = {
    "topics": sql_topics.topics,
    "partitions": sql_topics.partitions,
    "configs": sql_cluster.configs,
}
_REPLAYS_OF_HISTORY: Final[Mapping[str, Callable[[Records, DataFrame], DataFrame]]] = {
    "epochs": sql_quorum.epochs,
    "transactions": sql_quorum.transactions,
}
"""Replays of the tables whose rows are not in a snapshot."""


def replayed(
    records: Records, names: Set[str], prior: Callable[[str], DataFrame]
) -> dict[str, DataFrame]:
    """Return the rows of the named tables. ``prior``: the earlier rows of a table with history."""
    found = {name: replay(records) for name, replay in _REPLAYS.items() if name in names}
    of_topics = [name for name in _REPLAYS_OF_TOPICS if name in names]
    if of_topics:
        lifetimes = computed(sql_topics.lifetimes(records))
        found |= {name: _REPLAYS_OF_TOPICS[name](records, lifetimes) for name in of_topics}
    of_history = [name for name in _REPLAYS_OF_HISTORY if name in names]
    return found | {name: _REPLAYS_OF_HISTORY[name](records, prior(name)) for name in of_history}


def _merged(name: str, base: DataFrame, changed: DataFrame) -> DataFrame:
    """Return the rows of a base, replaced where later records changed them."""
    touched, same = _by_key(name, changed)
    living = changed.where(sf.col("_created_offset").isNotNull())
    return base.join(touched, same, "left_anti").unionByName(living, allowMissingColumns=True)


def _with_created_offset(
    name: str, rows: DataFrame, prior: DataFrame, snapshot_offset: int
) -> DataFrame:
    """Keep the created offset of rows that are older than the snapshot that contains them."""
    before, same = _by_key(name, prior, sf.col("_created_offset").alias("created_before"))
    created = sf.when(
        sf.col("_created_offset") == snapshot_offset,
        sf.coalesce("created_before", "_created_offset"),
    ).otherwise(sf.col("_created_offset"))
    joined = rows.join(before, same, "left").withColumn("_created_offset", created)
    return joined.drop(*before.columns)


def _by_key(name: str, rows: DataFrame, *others: Column) -> tuple[DataFrame, Column]:
    """Return the rows' keys under other names, and the condition that a row has such a key."""
    keys = {f"k{at}": key for at, key in enumerate(key_columns(BY_NAME[name]))}
    same = reduce(operator.and_, (key == sf.col(k) for k, key in keys.items()), sf.lit(True))
    return rows.select(*(key.alias(k) for k, key in keys.items()), *others), same


def key_columns(table: TypedTable) -> list[Column]:
    """Return what identifies a row on both sides. A quota's entity is compared as a map."""
    return [
        comparable(sf.col("entity"), table.columns["entity"])
        if name == "entity_key"
        else sf.col(name)
        for name in table.key
    ]


def comparable(column: Column, kind: pa.DataType) -> Column:
    """Return a comparable form of a column: maps have no order, but their sorted entries have."""
    return sf.array_sort(sf.map_entries(column)) if pa.types.is_map(kind) else column
