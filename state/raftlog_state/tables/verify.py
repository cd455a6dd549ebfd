"""``verify()``: compares the tables' rows with a second replay of ``log``, in SQL.

Rules of this file:

1. The expected rows are computed only from the bytes in ``log``, by ``verify_decoder`` and Spark's
   SQL (``expected``, ``sql_*``), not by the decoder and the loader that wrote the tables.
2. A difference names the table, the key, the column and both values, and never shows a secret.
3. Each change must begin with the row and the origin that the previous change of the key left.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, Final

from pyspark.sql import DataFrame, Row, Window
from pyspark.sql import functions as sf

from raftlog_state.errors import TablesError
from raftlog_state.image.row_schema import row_schema
from raftlog_state.image.rows import ScramRow
from raftlog_state.records import is_secret_config

from .expected import comparable, expected_tables, key_columns, no_base
from .history import EXACT_JSON, broken_chains, changed_keys, row_history
from .invariants import Violation, reads, rules, violations
from .progress import NOTHING, check_has_metadata
from .publication import Publication
from .schema import (
    BY_NAME,
    CHANGES,
    LOG,
    METADATA_TABLES,
    ORIGIN_COLUMNS,
    PROGRESS,
    TYPED_TABLES,
    TypedTable,
)
from .sql_parts import Base, Contents, computed, contents_of, decoded
from .stores.spark import shuffle_partitions
from .view import with_cluster

HIDDEN: Final = "(hidden)"
_SCRAM_SECRETS: Final = frozenset(entry.column for entry in row_schema(ScramRow) if entry.is_secret)
_ROW: Final = "(row)"
"""Column of a difference that concerns a whole row: missing, duplicate or unexpected."""
_SIDES: Final = ("expected", "found")


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """The first difference of a table, with values as JSON text.

    ``column`` is ``(row)`` if one side does not have the row, or has it more than once.
    ``row_count``: how many of the table's rows differ.
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
    """What ``verify()`` found at ``offset`` (inclusive), in rows changed after ``since``.

    ``differences``: between the tables and the log. ``violations``: of rules of Kafka, by rows of
    the tables. A violation without a difference is in the log itself.
    """

    offset: int
    differences: tuple[Difference, ...]
    rows_compared: Mapping[str, int]
    violations: tuple[Violation, ...] = ()
    since: int | None = None

    @property
    def ok(self) -> bool:
        """Whether the tables match the log and satisfy the rules."""
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


def verify(publication: Publication, offset: int, since: int | None = None) -> VerifyReport:
    """Compare the rows after an offset with ``log``; with ``since``, only rows changed after it.

    Raises:
        TablesError: there is no table ``log``, or it ends before the offset; or Spark failed.
    """
    check_has_metadata(publication.place, publication.cluster_id, "verify()")
    with publication.store.errors(LOG):
        return _verify(publication, offset, since)


def _verify(publication: Publication, offset: int, since: int | None) -> VerifyReport:
    changes = computed(publication.changes(NOTHING if since is None else since, offset))
    base, base_rows = _base(publication, changes, since)
    log = _log(publication, offset).where(sf.col("offset") > _first_needed(publication, since) - 1)
    decoded_rows = computed(decoded(log.where(sf.col("offset") <= offset)))
    contents = contents_of(decoded_rows)
    expected = expected_tables(decoded_rows, contents, base)
    texts = [_texts(BY_NAME[name], found, "expected") for name, found in expected.rows.items()]
    rows = computed(publication.rows(None, offset))
    row_counts = {row["entity"]: row["count"] for row in rows.groupBy("entity").count().collect()}
    compared, touched = [t for t in TYPED_TABLES if row_counts.get(str(t.entity))], None
    if texts and not expected.is_complete:
        texts = [computed(_union(texts))]
        keys = [_texts(BY_NAME[name], base.changed(name)) for name in base.changed_tables]
        touched = computed(_union([*texts, *keys]).select("table", "key").distinct())
        compared = [table for table in compared if table.name in expected.rows]
    if texts or expected.is_complete:
        texts += [_texts(table, _rows_of(table, rows), "found", touched) for table in compared]
    results = _compare(_union(texts)) if texts else {}
    differences = _damage_differences(contents)
    differences += [
        _named(table, results[table.name]["first"], results[table.name]["different"])
        for table in TYPED_TABLES
        if table.name in results and results[table.name]["different"]
    ]
    differences += _chain_differences(
        changes, base_rows, is_complete=since is not None or publication.progress.expired_to is None
    )
    differences += _count_differences(publication, offset, row_counts)
    return VerifyReport(
        offset=offset,
        since=since,
        differences=tuple(differences),
        rows_compared={name: row["rows"] for name, row in results.items() if row["rows"]},
        violations=_violations(publication.cluster_id, rows, changes),
    )


def _base(
    publication: Publication, changes: DataFrame, since: int | None
) -> tuple[Base, DataFrame | None]:
    """Return the tables after an offset, and their rows of all entities."""
    if since is None:
        return no_base(publication.store.session), None
    rows = computed(publication.rows(None, since))
    entities = {row["entity"] for row in changes.select("entity").distinct().collect()}
    base = Base(
        offset=since,
        rows=lambda name: _rows_of(BY_NAME[name], rows),
        changed=lambda name: changed_keys(BY_NAME[name], changes),
        changed_tables=frozenset(t.name for t in TYPED_TABLES if str(t.entity) in entities),
        is_complete=False,
    )
    return base, rows


def _first_needed(publication: Publication, since: int | None) -> int:
    """Return the first offset of the records after ``since``, and of a transaction open there.

    Appends end outside of transactions.
    """
    if since is None:
        return 0
    ends = publication.progress_rows().where(sf.col("offset") <= since)
    last = ends.agg(sf.max("offset")).collect()[0][0]
    return 0 if last is None else last + 1


def check_invariants(publication: Publication, offset: int) -> tuple[Violation, ...]:
    """Return the rules that the rows after an offset violate."""
    with publication.store.errors(CHANGES):
        rows = computed(publication.rows(None, offset))
        changes = computed(publication.changes(to=offset))
        return _violations(publication.cluster_id, rows, changes)


def _violations(cluster_id: str, rows: DataFrame, changes: DataFrame) -> tuple[Violation, ...]:
    """Return the rules that the rows violate, or that rows replaced by the changes violated.

    Rules that read only tables without rows are left out, because Kafka's first state has no rows.
    """
    known = rows.select("entity").unionByName(changes.select("entity")).distinct()
    entities = {row["entity"] for row in known.collect()}
    filled = [table.name for table in TYPED_TABLES if str(table.entity) in entities]
    names = [name for table in filled for name in (table, f"{table}_history")]
    queries = {
        rule: query for rule, query in rules().items() if any(reads(query, name) for name in names)
    }
    frames = {}
    for table in TYPED_TABLES:
        view, history = table.name, f"{table.name}_history"
        if any(reads(query, view) for query in queries.values()):
            frames[view] = _rows_of(table, rows)
        if any(reads(query, history) for query in queries.values()):
            frames[history] = row_history(table, _rows_of(table, rows), changes)
    if not queries:
        return ()
    views = {name: with_cluster(frame, cluster_id) for name, frame in frames.items()}
    return violations(views, queries)


def _log(publication: Publication, offset: int) -> DataFrame:
    if not publication.has_log:
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


def _texts(
    table: TypedTable, rows: DataFrame, side: str | None = None, only: DataFrame | None = None
) -> DataFrame:
    """Return ``table``, ``key`` and, as ``side``, all columns of every row as JSON text.

    The text is null for the key of a deleted row. ``only``: tables and keys to return.
    """
    parts = zip(table.key, key_columns(table), strict=True)
    key = sf.struct(*(part.alias(name) for name, part in parts))
    texts = rows.withColumns(
        {"table": sf.lit(table.name), "key": sf.to_json(key, EXACT_JSON) if parts else sf.lit("{}")}
    )
    if only is not None:
        texts = texts.join(only, ["table", "key"], "left_semi")
    if side is None:
        return texts.select("table", "key")
    columns = {**table.columns, **ORIGIN_COLUMNS}
    values = sf.struct(
        *(comparable(rows[n], k).alias(n) for n, k in columns.items() if n != "entity_key")
    )
    text = sf.when(rows["_created_offset"].isNotNull(), sf.to_json(values, EXACT_JSON))
    return texts.select("table", "key", text.alias(side))


def _union(frames: list[DataFrame]) -> DataFrame:
    """Return the rows of all frames, in no more partitions than a shuffle has.

    Each task receives the plans of all frames, so one task per partition of each frame would take
    longer to start than to run.
    """
    # In pairs: each union analyzes its plan, so a chain of unions would analyze each prefix.
    while len(frames) > 1:
        pairs = zip_longest(frames[::2], frames[1::2])
        frames = [
            one if other is None else one.unionByName(other, allowMissingColumns=True)
            for one, other in pairs
        ]
    (rows,) = frames
    return rows.coalesce(shuffle_partitions(rows.sparkSession))


def _compare(texts: DataFrame) -> dict[str, Row]:
    """Return each table's row count, number of differing rows, and the first of them by key.

    This is one query for all tables: they are small, and planning a query costs more than running
    it.
    """
    rows = texts.groupBy("table", "key").agg(
        *(sf.max(side).alias(side) for side in _SIDES),
        *(sf.count(side).alias(f"{side}_count") for side in _SIDES),
    )
    same = sf.col("expected").eqNullSafe(sf.col("found"))
    differs = ~(same & (sf.col("expected_count") <= 1) & (sf.col("found_count") <= 1))
    by_table = rows.groupBy("table").agg(
        sf.count(sf.coalesce(*_SIDES)).alias("rows"),
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


def _damage_differences(contents: Contents) -> list[Difference]:
    """Return the first damaged record of the log."""
    first = contents.first_damage
    if first is None:
        return []
    key = {name: first[name] for name in ("offset", "snapshot_position")}
    return [
        Difference(
            table=LOG,
            key=json.dumps({name: value for name, value in key.items() if value is not None}),
            column="value_raw",
            expected="a record",
            found=f"damaged bytes: {first['damage']}",
            row_count=contents.damage_count,
        )
    ]


def _chain_differences(
    changes: DataFrame, base_rows: DataFrame | None, *, is_complete: bool
) -> list[Difference]:
    """Return the first change that does not begin with the row that the previous change left."""
    count = sf.count("*").over(Window.partitionBy()).alias("count")
    broken = broken_chains(changes, base_rows, is_complete=is_complete)
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


def _count_differences(
    publication: Publication, offset: int, entities: Mapping[str, int]
) -> list[Difference]:
    """Return the row counts in the offset's progress row that differ from the rows'."""
    at_offset = publication.progress_rows().where(sf.col("offset") == offset)
    details = at_offset.select("incarnation", f"after.{PROGRESS}.row_counts").head(1)
    if not details:
        return []
    counts = details[0]["row_counts"]
    return [
        Difference(
            table=CHANGES,
            key=json.dumps({"incarnation": details[0]["incarnation"], "offset": offset}),
            column=table.name,
            expected=str(entities.get(str(table.entity), 0)),
            found=str(counts.get(table.name)),
        )
        for table in METADATA_TABLES
        if counts.get(table.name) != entities.get(str(table.entity), 0)
    ]
