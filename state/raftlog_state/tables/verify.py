"""``verify()``: compares the rows of the tables with a second replay of ``log``, in SQL.

Rules of this file:

1. The expected rows are computed from ``log`` alone, by Spark's SQL (the ``sql_*`` modules), not by
   the Python loader that wrote the tables.
2. A difference names table, key, column and both values, and never shows a secret.
3. Each change must begin with the row, and its origin, that the previous change of the key left.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame, Row, Window
from pyspark.sql import functions as sf

from raftlog_state.errors import TablesError
from raftlog_state.image.row_schema import row_schema
from raftlog_state.image.rows import ScramRow
from raftlog_state.records import is_secret_config

from . import sql_cluster, sql_quorum, sql_topics
from .history import EXACT_JSON, broken_chains, row_history
from .invariants import Violation, violations
from .publication import Publication
from .schema import (
    BY_NAME,
    CHANGES,
    LOG,
    ORIGIN_COLUMNS,
    PROGRESS,
    TYPED_TABLES,
    TypedTable,
)
from .sql_parts import Records, computed
from .stores.spark import for_each
from .view import with_cluster

HIDDEN: Final = "(hidden)"
_SCRAM_SECRETS: Final = frozenset(entry.column for entry in row_schema(ScramRow) if entry.is_secret)
_ROW: Final = "(row)"
"""Column of a difference that concerns a whole row: missing, duplicate or unexpected."""
_SIDES: Final = ("expected", "found")


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """The first difference of a table, values as JSON text.

    ``column`` is ``(row)`` where a row is absent on one side, or there more than once;
    ``row_count`` is how many of the table's rows differ.
    """

    table: str
    key: str
    column: str
    expected: str
    found: str
    row_count: int = 1

    def __str__(self) -> str:
        more = f" ({self.row_count} rows differ)" if self.row_count > 1 else ""
        return (
            f"{self.table} {self.key}, {self.column}: log has {self.expected}, "
            f"table has {self.found}{more}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyReport:
    """What ``verify()`` found at ``offset`` (inclusive).

    ``differences``: of the tables from the log; ``violations``: of rules that Kafka keeps, by rows
    of the tables. A violation without a difference is one of the log.
    """

    offset: int
    differences: tuple[Difference, ...]
    rows_compared: Mapping[str, int]
    violations: tuple[Violation, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether the tables match the log, and satisfy the rules."""
        return not self.differences and not self.violations

    @property
    def first(self) -> Difference | None:
        """The first difference, in the order of the tables."""
        return self.differences[0] if self.differences else None

    def __str__(self) -> str:
        rows = sum(self.rows_compared.values())
        found = [f"{rows} rows match the log"]
        if self.differences:
            found = [f"{len(self.differences)} tables differ", str(self.first)]
        if self.violations:
            found += [f"{len(self.violations)} rules are violated", str(self.violations[0])]
        return f"offset {self.offset}: {'; '.join(found)}"


def verify(publication: Publication, offset: int) -> VerifyReport:
    """Compare the rows after an offset with ``log``.

    Raises:
        TablesError: there is no table ``log``, or it ends before the offset.
    """
    expected = expected_tables(_log(publication, offset), offset)
    rows = computed(publication.rows(None, offset))
    found = {table.name: _rows_of(table, rows) for table in TYPED_TABLES}
    results = _compare(
        [_texts(table, expected[table.name], "expected") for table in TYPED_TABLES]
        + [_texts(table, found[table.name], "found") for table in TYPED_TABLES]
    )
    differences = [
        _named(table, results[table.name]["first"], results[table.name]["different"])
        for table in TYPED_TABLES
        if table.name in results and results[table.name]["different"]
    ]
    is_complete = publication.progress.expired_to is None
    differences += _chain_differences(publication.changes(to=offset), is_complete=is_complete)
    differences += _count_differences(publication, offset, rows)
    return VerifyReport(
        offset=offset,
        differences=tuple(differences),
        rows_compared={name: row["rows"] for name, row in results.items()},
        violations=_violations(publication, offset, rows),
    )


def check_invariants(publication: Publication, offset: int) -> tuple[Violation, ...]:
    """Return the rules that the rows after an offset violate."""
    return _violations(publication, offset, computed(publication.rows(None, offset)))


def _violations(publication: Publication, offset: int, rows: DataFrame) -> tuple[Violation, ...]:
    changes = publication.changes(to=offset)
    views = {table.name: _rows_of(table, rows) for table in TYPED_TABLES}
    histories = {
        f"{table.name}_history": row_history(table, views[table.name], changes)
        for table in TYPED_TABLES
    }
    frames = {**views, **histories}
    return violations(
        {name: with_cluster(frame, publication.cluster_id) for name, frame in frames.items()}
    )


def _log(publication: Publication, offset: int) -> DataFrame:
    if publication.log_version is None:
        raise TablesError(
            place=publication.place,
            reason=f"they have no table {LOG}, with which verify() compares them",
            remedy="create tables at another location with open_cluster(..., log=True)",
        )
    log = publication.log()
    if log.where(sf.col("offset") == offset).isEmpty():
        raise TablesError(
            place=publication.place,
            reason=f"table {LOG} does not contain offset {offset}, but table {CHANGES} does",
            remedy="use an earlier offset, or create new tables with open_cluster(..., log=True)",
        )
    return log


def _rows_of(table: TypedTable, rows: DataFrame) -> DataFrame:
    """Return the rows of one table, from those of all entities."""
    of_entity = rows.where(sf.col("entity") == str(table.entity))
    fields = (sf.col(f"row.{table.entity}.{name}").alias(name) for name in table.columns)
    return of_entity.select(*fields, *ORIGIN_COLUMNS)


def expected_tables(log: DataFrame, offset: int) -> dict[str, DataFrame]:
    """Every typed table as ``log`` says it was after ``offset`` (inclusive)."""
    of_snapshot = log.where((sf.col("offset") <= offset) & sf.col("snapshot_position").isNotNull())
    snapshot_offset = of_snapshot.agg(sf.max("offset")).collect()[0][0]
    prior: dict[str, DataFrame] = {}
    if snapshot_offset is not None:
        earlier = log.where(sf.col("offset") < snapshot_offset)
        if not earlier.isEmpty():
            before = expected_tables(log, snapshot_offset - 1)
            prior = dict(for_each(lambda n: (n, computed(before[n])), before))
    records = Records(log, offset=offset, snapshot_offset=snapshot_offset)
    lifetimes = computed(sql_topics.lifetimes(records))
    found = {
        "features": sql_cluster.features(records),
        "zk_migration": sql_cluster.zk_migration(records),
        "brokers": sql_cluster.brokers(records),
        "controllers": sql_cluster.controllers(records),
        "topics": sql_topics.topics(lifetimes),
        "partitions": sql_topics.partitions(records, lifetimes),
        "configs": sql_cluster.configs(records, lifetimes),
        "quotas": sql_cluster.quotas(records),
        "producer_ids": sql_cluster.producer_ids(records),
        "acls": sql_cluster.acls(records),
        "scram": sql_cluster.scram(records),
        "tokens": sql_cluster.tokens(records),
    }
    if snapshot_offset is not None and prior:
        found = {
            name: _with_created_offset(name, frame, prior[name], snapshot_offset)
            for name, frame in found.items()
        }
    found["epochs"] = sql_quorum.epochs(records, prior.get("epochs"))
    found["transactions"] = sql_quorum.transactions(records, prior.get("transactions"))
    return found


def _with_created_offset(
    name: str, frame: DataFrame, prior: DataFrame, snapshot_offset: int
) -> DataFrame:
    """Keep the created offset of rows that are older than a snapshot that contains them."""
    keys = _keys(BY_NAME[name])
    before = prior.select(
        *(key.alias(f"k{at}") for at, key in enumerate(keys)),
        sf.col("_created_offset").alias("created_before"),
    )
    same = sf.lit(True)
    for at, key in enumerate(keys):
        same = same & (key == sf.col(f"k{at}"))
    created = sf.when(
        sf.col("_created_offset") == snapshot_offset,
        sf.coalesce("created_before", "_created_offset"),
    ).otherwise(sf.col("_created_offset"))
    joined = frame.join(before, same, "left").withColumn("_created_offset", created)
    return joined.drop("created_before", *(f"k{at}" for at in range(len(keys))))


def _keys(table: TypedTable) -> list[Column]:
    """What identifies a row on both sides. A quota's entity is compared as what it is, a map."""
    return [
        _comparable(sf.col("entity"), table.columns["entity"])
        if name == "entity_key"
        else sf.col(name)
        for name in table.key
    ]


def _comparable(column: Column, kind: pa.DataType) -> Column:
    """Maps have no order; their sorted entries have."""
    return sf.array_sort(sf.map_entries(column)) if pa.types.is_map(kind) else column


def _texts(table: TypedTable, rows: DataFrame, side: str) -> DataFrame:
    """``table``, ``key`` and, under the name ``side``, all columns of every row as JSON text."""
    columns = {n: k for n, k in {**table.columns, **ORIGIN_COLUMNS}.items() if n != "entity_key"}
    values = sf.struct(*(_comparable(sf.col(n), k).alias(n) for n, k in columns.items()))
    key = sf.struct(*(part.alias(n) for n, part in zip(table.key, _keys(table), strict=True)))
    return rows.select(
        sf.lit(table.name).alias("table"),
        (sf.to_json(key, EXACT_JSON) if table.key else sf.lit("{}")).alias("key"),
        sf.to_json(values, EXACT_JSON).alias(side),
    )


def _compare(sides: list[DataFrame]) -> dict[str, Row]:
    """Of every table that has rows: how many, how many differ, and the first of those by key.

    One query for all: the tables are small, and planning a query costs more than running it.
    """
    together = reduce(partial(DataFrame.unionByName, allowMissingColumns=True), sides)
    rows = together.groupBy("table", "key").agg(
        *(sf.max(side).alias(side) for side in _SIDES),
        *(sf.count(side).alias(f"{side}_count") for side in _SIDES),
    )
    same = sf.col("expected").eqNullSafe(sf.col("found"))
    differs = ~(same & (sf.col("expected_count") <= 1) & (sf.col("found_count") <= 1))
    by_table = rows.groupBy("table").agg(
        sf.count("key").alias("rows"),
        sf.count_if(differs).alias("different"),
        sf.min(sf.when(differs, sf.struct(*rows.columns[1:]))).alias("first"),
    )
    return {row["table"]: row for row in by_table.collect()}


def _named(table: TypedTable, first: Row, row_count: int) -> Difference:
    """Find the column in which the two texts of a row differ."""
    key = first["key"]
    expected, found = (_parsed(first[side]) for side in _SIDES)
    column, values = _ROW, [_presence(first[f"{side}_count"]) for side in _SIDES]
    if values == ["once", "once"]:
        column = next(n for n in expected | found if expected.get(n) != found.get(n))
        values = [json.dumps(side.get(column)) for side in (expected, found)]
        if _is_secret(table, key, column):
            values = [HIDDEN, HIDDEN]
    return Difference(
        table=table.name,
        key=key,
        column=column,
        expected=values[0],
        found=values[1],
        row_count=row_count,
    )


def _parsed(text: str | None) -> dict[str, Any]:
    return {} if text is None else dict(json.loads(text))


def _presence(count: int) -> str:
    return {0: "absent", 1: "once"}.get(count, f"{count} times")


def _is_secret(table: TypedTable, key: str, column: str) -> bool:
    if table.name == "scram":
        return column in _SCRAM_SECRETS
    if table.name == "configs" and column == "value":
        of = json.loads(key)
        return is_secret_config(int(of["resource_type"]), of["name"])
    return False


def _chain_differences(changes: DataFrame, *, is_complete: bool) -> list[Difference]:
    """Return the first change whose row before is not the row after the previous change."""
    count = sf.count("*").over(Window.partitionBy()).alias("count")
    broken = broken_chains(changes, is_complete=is_complete)
    first = broken.select("*", count).orderBy("offset").limit(1).collect()
    return [
        Difference(
            table=CHANGES,
            key=json.dumps({"offset": row["offset"], "entity": row["entity"], "key": row["key"]}),
            column=row["column"],
            expected=HIDDEN if row["column"] == "before" else str(row["expected"]),
            found=HIDDEN if row["column"] == "before" else str(row["found"]),
            row_count=row["count"],
        )
        for row in first
    ]


def _count_differences(publication: Publication, offset: int, rows: DataFrame) -> list[Difference]:
    """Return the row counts of the offset's progress row that are not those of the rows."""
    at_offset = publication.progress_rows().where(sf.col("offset") == offset)
    details = at_offset.select("incarnation", f"after.{PROGRESS}.row_counts").head(1)
    if not details:
        return []
    entities = {row["entity"]: row["count"] for row in rows.groupBy("entity").count().collect()}
    counts = details[0]["row_counts"]
    return [
        Difference(
            table=CHANGES,
            key=json.dumps({"incarnation": details[0]["incarnation"], "offset": offset}),
            column=table.name,
            expected=str(entities.get(str(table.entity), 0)),
            found=str(counts.get(table.name)),
        )
        for table in TYPED_TABLES
        if counts.get(table.name) != entities.get(str(table.entity), 0)
    ]
