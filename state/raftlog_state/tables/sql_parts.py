"""Pieces of the second replay: rows of ``log`` that count, parsed records, the last writer.

Rules of this file:

1. Nothing of the first replay is used: no fold, no image, no decoder. What a record says is read
   from its JSON by Spark, what counts from the transaction markers among the records.
2. ``ord`` orders records: (offset, position in the checkpoint or -1). Records of a transaction take
   effect together, without other records in between, so it orders effects too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as sf

META: Final = ("ord", "offset", "visible", "epoch", "time")
"""Which record: its order, offset, the offset of its effect, leader epoch and log time."""

BEGIN: Final = "BEGIN_TRANSACTION_RECORD"
END: Final = "END_TRANSACTION_RECORD"
NO_OP: Final = "NO_OP_RECORD"
ABORT: Final = "ABORT_TRANSACTION_RECORD"

_COLUMNS: Final = (
    "offset",
    "snapshot_position",
    "leader_epoch",
    "log_time",
    "record_type",
    "is_control",
    "value_json",
)


def computed(frame: DataFrame) -> DataFrame:
    """Rows that several queries read, worked out once, so that their plans stay short."""
    return frame.localCheckpoint()


class Records:
    """The records that make the state at ``offset``: those from the last checkpoint on."""

    def __init__(self, log: DataFrame, *, offset: int, snapshot_offset: int | None) -> None:
        rows = log.select(*_COLUMNS).where(sf.col("offset") <= offset)
        if snapshot_offset is not None:
            at = sf.col("offset")
            of_snapshot = (at == snapshot_offset) & sf.col("snapshot_position").isNotNull()
            rows = rows.where((at > snapshot_offset) | of_snapshot)
        position = sf.coalesce("snapshot_position", sf.lit(-1))
        self._rows = computed(
            rows.withColumn("ord", sf.struct("offset", position.alias("position")))
        )
        spans = computed(_transactions(self._rows))
        self.transactions = spans.where("end IS NOT NULL")
        self._visible = computed(_visible(self._rows, spans))

    def of(self, record_type: str, data: str) -> DataFrame:
        """Records of a type that took effect: ``META`` and the fields that ``data`` declares."""
        parsed = sf.from_json("value_json", data)
        rows = self._visible.where(sf.col("record_type") == record_type)
        return rows.select(*META, parsed.alias("data")).select(*META, "data.*")

    def control(self, data: str) -> DataFrame:
        """All control records: ``META``, ``type`` and the fields that ``data`` declares."""
        parsed = sf.from_json("value_json", data)
        return (
            self._rows.where("is_control")
            .select(
                "ord",
                "offset",
                sf.col("offset").alias("visible"),
                sf.col("leader_epoch").alias("epoch"),
                sf.col("log_time").alias("time"),
                sf.col("record_type").alias("type"),
                parsed.alias("data"),
            )
            .select(*META, "type", "data.*")
        )

    def metadata_offsets(self) -> DataFrame:
        """``at``: the offset of every record that is not a control record, visible or not."""
        return self._rows.where("NOT is_control").select(sf.col("offset").alias("at"))


def _transactions(rows: DataFrame) -> DataFrame:
    """``begin``, ``end`` (the markers' offsets), ``outcome``, ``name``, ``reason``, and its end's
    epoch and time. A transaction that is open at the end of the rows has no end and no outcome."""
    data = sf.from_json("value_json", "name STRING, reason STRING")
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
    """Metadata records that took effect, each with the offset of its effect."""
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
        "value_json",
    )


def last_writer(puts: DataFrame, deletes: DataFrame | None, keys: Sequence[str]) -> DataFrame:
    """The last put of every key that no delete followed, with ``created``, the offset of the first
    put since the key was absent. ``deletes`` has the keys and ``ord``."""
    rows = puts.withColumn("is_delete", sf.lit(False))
    if deletes is not None:
        deleted_rows = deletes.select(*keys, "ord", sf.lit(True).alias("is_delete"))
        rows = rows.unionByName(deleted_rows, allowMissingColumns=True)
    of_key = Window.partitionBy(*keys)
    last_delete = sf.max(sf.when(sf.col("is_delete"), sf.col("ord"))).over(of_key)
    live = rows.withColumn("last_delete", last_delete).where(
        ~sf.col("is_delete")
        & (sf.col("last_delete").isNull() | (sf.col("ord") > sf.col("last_delete")))
    )
    ranked = live.withColumn("created", sf.min("offset").over(of_key)).withColumn(
        "rank", sf.row_number().over(of_key.orderBy(sf.col("ord").desc()))
    )
    return ranked.where(sf.col("rank") == 1).drop("rank", "is_delete", "last_delete")


def origin(rows: DataFrame) -> DataFrame:
    """``META`` and ``created`` under the names that the tables have."""
    return rows.withColumnsRenamed(
        {
            "offset": "_offset",
            "visible": "_visible_offset",
            "epoch": "_leader_epoch",
            "time": "_log_time",
            "created": "_created_offset",
        }
    ).drop("ord")


def words(number: Column, names: Mapping[int, str]) -> Column:
    """The word for a number, or the number itself as text."""
    known = sf.create_map(*(sf.lit(part) for pair in names.items() for part in pair))
    return sf.coalesce(sf.try_element_at(known, number), number.cast("string"))


def sorted_uuids(column: Column) -> Column:
    """Base64 uuids in Kafka's order: by two signed 64-bit numbers."""

    def order(uuid: Column) -> Column:
        padded = sf.concat(sf.translate(uuid, "-_", "+/"), sf.lit("=="))
        digits = sf.hex(sf.unbase64(padded))
        return sf.concat(*(_signed(sf.substring(digits, at, 16)) for at in (1, 17)))

    pairs = sf.transform(
        column, lambda uuid: sf.struct(order(uuid).alias("order"), uuid.alias("uuid"))
    )
    return sf.transform(sf.array_sort(pairs), lambda pair: pair["uuid"])


def _signed(digits: Column) -> Column:
    """Sixteen hex digits of a signed number as text that sorts as the number does."""
    flipped = sf.translate(sf.substring(digits, 1, 1), "0123456789ABCDEF", "89ABCDEF01234567")
    return sf.concat(flipped, sf.substring(digits, 2, 15))
