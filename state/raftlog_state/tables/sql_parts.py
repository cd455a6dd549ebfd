"""Parts of the second replay: effective rows of ``log``, parsed records, the last writer.

Rules of this file:

1. Nothing of the first replay is used: no fold, no image, no decoder. ``verify_decoder`` reads a
   record's content from its bytes, and the transaction markers among the records decide which
   records take effect.
2. ``ord`` orders records by (offset, position in the snapshot or -1). Records of a transaction take
   effect together, without other records in between, so it orders effects, too. Rows of the base
   are before all records.
3. After a base, only changed rows are computed, that is, rows whose keys occur in records or
   ``changes``. A row that was deleted has its key and no origin.
4. Planning a query costs more than running it, so a query has no part for record types that do not
   occur. ``Contents`` is therefore read first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pyspark.sql import Column, DataFrame, Row, Window
from pyspark.sql import functions as sf

from .verify_decoder import DECODED, decode

META: Final = ("ord", "offset", "visible", "epoch", "time")
"""Columns that identify a record: order, offset, visible offset, leader epoch and log time."""

BEGIN: Final = "BEGIN_TRANSACTION_RECORD"
END: Final = "END_TRANSACTION_RECORD"
NO_OP: Final = "NO_OP_RECORD"
ABORT: Final = "ABORT_TRANSACTION_RECORD"

WRITTEN: Final = {
    "created": "BIGINT",
    "offset": "BIGINT",
    "visible": "BIGINT",
    "epoch": "INT",
    "time": "TIMESTAMP",
}
"""Types of the last fields of a fold's state: the records that created and wrote a row."""

_ORIGINS: Final = {
    "_offset": "offset",
    "_visible_offset": "visible",
    "_leader_epoch": "epoch",
    "_log_time": "time",
    "_created_offset": "created",
}
"""``META`` and ``created`` by their names in the tables."""


def computed(frame: DataFrame) -> DataFrame:
    """Compute rows that several queries read once, so that their plans stay short."""
    return frame.localCheckpoint()


def decoded(log: DataFrame) -> DataFrame:
    """Return rows of ``log`` with the types and JSON of their records, decoded from the bytes."""
    # A function of whole batches (``mapInArrow``) would require pandas.
    found = sf.udf(decode, DECODED, useArrow=False)("key_raw", "value_raw")
    kept = ("offset", "snapshot_position", "leader_epoch", "log_time")
    return log.select(*kept, found.alias("decoded")).select(*kept, "decoded.*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """What decoded rows of ``log`` contain.

    ``snapshot_offsets``: those of the snapshots, in order; ``first_damage``: offset, snapshot
    position and damage of the first damaged record.
    """

    record_types: frozenset[str]
    snapshot_offsets: tuple[int, ...]
    first_damage: Row | None
    damage_count: int


def contents_of(rows: DataFrame) -> Contents:
    """Return what decoded rows contain, from one query."""
    is_damaged = sf.col("damage").isNotNull()
    is_of_snapshot = sf.col("snapshot_position").isNotNull()
    place = sf.struct("offset", "snapshot_position", "damage")
    (found,) = rows.agg(
        sf.collect_set("record_type").alias("types"),
        sf.collect_set(sf.when(is_of_snapshot, sf.col("offset"))).alias("snapshots"),
        sf.min(sf.when(is_damaged, place)).alias("first_damage"),
        sf.count_if(is_damaged).alias("damage_count"),
    ).collect()
    return Contents(
        record_types=frozenset(found["types"]),
        snapshot_offsets=tuple(sorted(found["snapshots"])),
        first_damage=found["first_damage"],
        damage_count=found["damage_count"],
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Base:
    """Typed tables after ``offset``, from which a replay starts, and the keys that changed later.

    ``rows`` and ``changed`` return those of a table; ``changed_tables`` contains the tables with
    changed keys. ``is_complete``: there is no base, and the frames have no rows.
    """

    offset: int
    rows: Callable[[str], DataFrame]
    changed: Callable[[str], DataFrame]
    changed_tables: frozenset[str]
    is_complete: bool


class Records:
    """Records among decoded rows of ``log`` that change the rows of a base.

    The rows may begin before the end of the base, so that they contain the begin of an open
    transaction. ``record_types``: the types of the rows, and perhaps others.
    """

    def __init__(self, rows: DataFrame, base: Base, record_types: frozenset[str]) -> None:
        position = sf.coalesce("snapshot_position", sf.lit(-1))
        self._base = base
        self._types = record_types
        self._rows = computed(
            rows.withColumn("ord", sf.struct("offset", position.alias("position")))
        )
        spans = computed(_transactions(self._rows))
        self.transactions = spans.where(sf.col("end") > base.offset)
        visible = _visible(self._rows, spans).where(sf.col("visible") > base.offset)
        self._visible = computed(visible)

    @property
    def has_base(self) -> bool:
        """Whether the replay starts from rows."""
        return not self._base.is_complete

    def has(self, *record_types: str) -> bool:
        """Return whether there may be a record of one of the types."""
        return not self._types.isdisjoint(record_types)

    def of(self, record_type: str, data: str) -> DataFrame:
        """Return effective records of a type: ``META`` and the fields that ``data`` declares."""
        rows = self._visible.where(sf.col("record_type") == record_type)
        return rows.select(*META, sf.from_json("data", data).alias("data")).select(*META, "data.*")

    def removals(self, record_type: str, data: str, columns: Mapping[str, str]) -> DataFrame | None:
        """Return records that remove rows, with the table's column names; None without any."""
        if not self.has(record_type):
            return None
        return self.of(record_type, data).withColumnsRenamed(dict(columns))

    def control(self, data: str) -> DataFrame:
        """Return all control records: ``META``, ``type`` and the fields that ``data`` declares."""
        return (
            self._rows.where(sf.col("is_control") & (sf.col("offset") > self._base.offset))
            .select(
                "ord",
                "offset",
                sf.col("offset").alias("visible"),
                sf.col("leader_epoch").alias("epoch"),
                sf.col("log_time").alias("time"),
                sf.col("record_type").alias("type"),
                sf.from_json("data", data).alias("data"),
            )
            .select(*META, "type", "data.*")
        )

    def metadata_offsets(self) -> DataFrame:
        """Return ``at``: the offset of every record except control records, visible or not."""
        return self._rows.where("NOT is_control").select(sf.col("offset").alias("at"))

    def base(self, name: str) -> DataFrame:
        """Return a table's rows in the base: ``META``, ``created`` and the table's columns."""
        first = sf.struct(sf.lit(-1).cast("bigint").alias("offset"), sf.lit(-1).alias("position"))
        return self._base.rows(name).withColumnsRenamed(_ORIGINS).withColumn("ord", first)

    def changed(self, name: str) -> DataFrame:
        """Return the keys of a table's rows that ``changes`` has changed after the base."""
        return self._base.changed(name)

    def with_deleted(self, rows: DataFrame, keys: Sequence[str], touched: DataFrame) -> DataFrame:
        """Return rows with touched keys; after a base, also the touched keys without a row."""
        if not self.has_base or not keys:
            return rows
        return touched.select(*keys).distinct().join(rows, [*keys], "left")


def _transactions(rows: DataFrame) -> DataFrame:
    """Return the metadata transactions.

    Columns: ``begin`` and ``end`` (the markers' offsets), ``outcome``, ``name``, ``reason``, and
    the epoch and time of the end. A transaction that is open at the end of the rows has no end and
    no outcome.
    """
    data = sf.from_json("data", "name STRING, reason STRING")
    in_order = Window.orderBy("offset")
    ends = ("offset", "record_type", "reason", "leader_epoch", "log_time")
    markers = (
        rows.where(sf.col("record_type").isin(BEGIN, END, ABORT))
        .withColumn("name", data["name"])
        .withColumn("reason", data["reason"])
        .select(
            "offset",
            "record_type",
            "name",
            *(sf.lead(column).over(in_order).alias(f"end_{column}") for column in ends),
        )
    )
    ended, aborted = sf.col("end_offset").isNotNull(), sf.col("end_record_type") == ABORT
    outcome = sf.when(aborted, "aborted").when(ended, "committed")
    return markers.where(sf.col("record_type") == BEGIN).select(
        sf.col("offset").alias("begin"),
        sf.col("end_offset").alias("end"),
        outcome.alias("outcome"),
        "name",
        sf.col("end_reason").alias("reason"),
        sf.col("end_leader_epoch").alias("end_epoch"),
        sf.col("end_log_time").alias("end_time"),
    )


def _visible(rows: DataFrame, transactions: DataFrame) -> DataFrame:
    """Return the metadata records that took effect, each with the offset of its effect."""
    spans = sf.broadcast(transactions.select("begin", "end", "outcome"))
    is_before_end = sf.col("end").isNull() | (sf.col("offset") <= sf.col("end"))
    inside = (sf.col("offset") >= sf.col("begin")) & is_before_end
    says_something = (sf.col("record_type") != NO_OP) & ~sf.col("is_control")
    joined = rows.where(says_something).join(spans, inside, "left")
    counts = sf.coalesce(sf.col("outcome") == "committed", sf.col("begin").isNull())
    return joined.where(counts).select(
        "ord",
        "offset",
        sf.coalesce("end", "offset").alias("visible"),
        sf.col("leader_epoch").alias("epoch"),
        sf.col("log_time").alias("time"),
        "record_type",
        "data",
    )


def last_writer(
    records: Records,
    name: str,
    puts: DataFrame,
    deletes: DataFrame | None,
    keys: Sequence[str],
    of_base: Callable[[DataFrame], DataFrame] = lambda rows: rows,
) -> DataFrame:
    """Return each key's last put that no delete followed.

    ``created`` is the offset of the first put since the key was absent. ``deletes`` has the keys
    and ``ord``; ``of_base`` converts rows of the table to rows like those of ``puts``.
    """
    rows = puts.withColumns({"created": sf.col("offset"), "is_delete": sf.lit(False)})
    if deletes is not None:
        deleted_rows = deletes.select(*keys, "ord", sf.lit(True).alias("is_delete"))
        rows = rows.unionByName(deleted_rows, allowMissingColumns=True)
    touched = rows
    if records.has_base:
        base = of_base(records.base(name))
        if keys:
            changed = of_base(records.changed(name)).select(*keys)
            touched = computed(rows.select(*keys).unionByName(changed).distinct())
            base = base.join(touched, [*keys], "left_semi")
        is_delete = sf.lit(False).alias("is_delete")
        rows = rows.unionByName(base.select(*puts.columns, "created", is_delete))
    of_key = Window.partitionBy(*keys)
    last_delete = sf.max(sf.when(sf.col("is_delete"), sf.col("ord"))).over(of_key)
    live = rows.withColumn("last_delete", last_delete).where(
        ~sf.col("is_delete")
        & (sf.col("last_delete").isNull() | (sf.col("ord") > sf.col("last_delete")))
    )
    ranked = live.withColumn("created", sf.min("created").over(of_key)).withColumn(
        "rank", sf.row_number().over(of_key.orderBy(sf.col("ord").desc()))
    )
    last = ranked.where(sf.col("rank") == 1).drop("rank", "is_delete", "last_delete")
    return records.with_deleted(last, keys, touched)


def origin(rows: DataFrame) -> DataFrame:
    """Return ``META`` and ``created`` under their names in the tables."""
    return rows.withColumnsRenamed({mine: name for name, mine in _ORIGINS.items()}).drop("ord")


def struct_type(fields: Mapping[str, str]) -> str:
    """Return the type of a struct in Spark's SQL."""
    return f"STRUCT<{', '.join(f'{name}: {kind}' for name, kind in fields.items())}>"


def words(number: Column, names: Mapping[int, str]) -> Column:
    """Return the word for a number, or the number itself as text."""
    known = sf.create_map(*(sf.lit(part) for pair in names.items() for part in pair))
    return sf.coalesce(sf.try_element_at(known, number), number.cast("string"))


def sorted_uuids(column: Column) -> Column:
    """Sort base64 uuids in Kafka's order: by two signed 64-bit numbers."""

    def order(uuid: Column) -> Column:
        padded = sf.concat(sf.translate(uuid, "-_", "+/"), sf.lit("=="))
        digits = sf.hex(sf.unbase64(padded))
        return sf.concat(*(_signed(sf.substring(digits, at, 16)) for at in (1, 17)))

    pairs = sf.transform(
        column, lambda uuid: sf.struct(order(uuid).alias("order"), uuid.alias("uuid"))
    )
    return sf.transform(sf.array_sort(pairs), lambda pair: pair["uuid"])


def _signed(digits: Column) -> Column:
    """Convert sixteen hex digits of a signed number to text that sorts like the number."""
    flipped = sf.translate(sf.substring(digits, 1, 1), "0123456789ABCDEF", "89ABCDEF01234567")
    return sf.concat(flipped, sf.substring(digits, 2, 15))
