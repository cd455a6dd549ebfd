"""The second replay of what the log records about itself: leader epochs, metadata transactions.

Both are history and outlive a snapshot: ``prior`` contains the rows before it, or the base's.

Source: KIP-595 (leader change), KIP-853 (voters), KIP-868 (transactions).
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as sf
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import ArrayType

from .schema import VOTERS
from .sql_parts import META, Records

_CONTROL: Final = (
    "leaderId INT, kRaftVersion INT, voters ARRAY<STRUCT<voterId: INT, voterDirectoryId: STRING, "
    "endpoints: ARRAY<STRUCT<name: STRING, host: STRING, port: INT>>, "
    "kRaftVersionFeature: STRUCT<minSupportedVersion: INT, maxSupportedVersion: INT>>>"
)
_NO_DIRECTORY: Final = "AAAAAAAAAAAAAAAAAAAAAA"
_LEADER: Final = "LEADER_CHANGE"
_FOOTER: Final = "SNAPSHOT_FOOTER"
_BASE: Final = "BASE"
_QUORUM_RECORDS: Final = ("KRAFT_VERSION", "KRAFT_VOTERS")


def epochs(records: Records, prior: DataFrame) -> DataFrame:
    """Return leader epochs: begun by a leader change, or first seen in a snapshot."""
    begun = _with_prior(_begun(_running(records)), prior)
    by_epoch = Window.orderBy("ord")
    following = {name: sf.lead(f"begin_{name}").over(by_epoch) for name in META[1:]}
    rows = begun.withColumns({f"next_{name}": column for name, column in following.items()})
    closed = sf.col("next_offset").isNotNull() & sf.col("end_offset").isNull()
    rows = rows.select(
        "leader_epoch",
        "start_offset",
        sf.when(closed, sf.col("next_offset")).otherwise(sf.col("end_offset")).alias("end_offset"),
        "leader_id",
        "voters",
        "kraft_version",
        *(
            sf.when(closed, sf.col(f"next_{mine}")).otherwise(sf.col(mine)).alias(column)
            for mine, column in _ORIGINS.items()
        ),
        sf.col("created").alias("_created_offset"),
    )
    untouched = prior.join(rows.select("leader_epoch"), "leader_epoch", "left_anti")
    return rows.unionByName(untouched)


_ORIGINS: Final = {
    "offset": "_offset",
    "visible": "_visible_offset",
    "epoch": "_leader_epoch",
    "time": "_log_time",
}


def _running(records: Records) -> DataFrame:
    """Return control records, each with the quorum after it and the reign to which it belongs.

    The last epoch of the base precedes them, as if it were a record.
    """
    reported = sf.when(sf.col("type") == "KRAFT_VOTERS", _voters())
    rows = records.control(_CONTROL).withColumns({"reported": reported, "named": _voters()})
    rows = rows.drop("voters").unionByName(_last_epoch(records), allowMissingColumns=True)
    so_far = Window.orderBy("ord").rowsBetween(Window.unboundedPreceding, Window.currentRow)
    begins = sf.col("type").isin(_LEADER, _FOOTER, _BASE)
    return rows.withColumns(
        {
            "version": sf.coalesce(
                sf.last("kRaftVersion", ignorenulls=True).over(so_far), sf.lit(0)
            ),
            "quorum": sf.coalesce(sf.last("reported", ignorenulls=True).over(so_far), _no_voters()),
            "reign": sf.sum(begins.cast("int")).over(so_far),
        }
    ).where("reign > 0")


def _last_epoch(records: Records) -> DataFrame:
    base = records.base("epochs")
    last = base.orderBy(sf.col("leader_epoch").desc()).limit(1)
    return last.select(
        *(name for name in META if name != "epoch"),
        sf.col("leader_epoch").alias("epoch"),
        sf.lit(_BASE).alias("type"),
        sf.col("leader_id").alias("leaderId"),
        sf.col("kraft_version").alias("kRaftVersion"),
        sf.when(sf.col("kraft_version") > 0, sf.col("voters")).alias("reported"),
        sf.col("voters").alias("named"),
    )


def _begun(rows: DataFrame) -> DataFrame:
    """Return one row per reign: its first record, and the last control record with voters."""
    is_report = sf.col("type").isin(*_QUORUM_RECORDS)
    meta = sf.struct(*META[1:])
    reigns = rows.groupBy("reign").agg(
        sf.min_by(sf.struct(*META, "type", "leaderId", "version", "quorum", "named"), "ord").alias(
            "b"
        ),
        sf.max_by(
            sf.when(is_report, sf.struct(meta.alias("meta"), "version", "quorum")),
            sf.when(is_report, sf.col("ord")),
        ).alias("t"),
    )
    led = sf.col("b.type") == _LEADER
    is_known = (sf.col("b.type") == _FOOTER) | (_ids("b.quorum") == _ids("b.named"))
    at_first = sf.when(is_known, sf.col("b.quorum")).otherwise(sf.col("b.named"))
    known_later = sf.size("t.quorum") > 0
    return reigns.select(
        sf.col("b.ord").alias("ord"),
        sf.col("b.epoch").alias("leader_epoch"),
        sf.when(led, sf.col("b.offset")).alias("start_offset"),
        sf.lit(None).cast("bigint").alias("end_offset"),
        sf.col("b.leaderId").alias("leader_id"),
        sf.when(known_later, sf.col("t.quorum")).otherwise(at_first).alias("voters"),
        sf.coalesce("t.version", "b.version").alias("kraft_version"),
        *(sf.coalesce(f"t.meta.{name}", f"b.{name}").alias(name) for name in META[1:]),
        *(sf.col(f"b.{name}").alias(f"begin_{name}") for name in META[1:]),
        sf.col("b.offset").alias("created"),
        (sf.col("t.version").isNotNull()).alias("is_reported"),
    )


def _with_prior(begun: DataFrame, prior: DataFrame) -> DataFrame:
    """Keep the start of an epoch that is older than its snapshot, or that is in the base."""
    before = prior.select(
        "leader_epoch",
        *(
            sf.col(name).alias(f"prior_{name}")
            for name in ("start_offset", "end_offset", "leader_id", "voters", "kraft_version")
        ),
        *(sf.col(column).alias(f"prior_{mine}") for mine, column in _ORIGINS.items()),
        sf.col("_created_offset").alias("prior_created"),
    )
    rows = begun.join(before, "leader_epoch", "left")
    known = sf.col("prior_created").isNotNull()
    unreported = known & ~sf.col("is_reported")
    always = ("start_offset", "end_offset", "leader_id", "created")
    while_unreported = ("voters", "kraft_version", *_ORIGINS)
    return rows.withColumns(
        {
            **{n: sf.when(known, sf.col(f"prior_{n}")).otherwise(sf.col(n)) for n in always},
            **{
                n: sf.when(unreported, sf.col(f"prior_{n}")).otherwise(sf.col(n))
                for n in while_unreported
            },
        }
    )


def transactions(records: Records, prior: DataFrame) -> DataFrame:
    """Return the metadata transactions that have ended, and the number of records in each."""
    spans = records.transactions
    counted = (
        records.metadata_offsets()
        .join(
            sf.broadcast(spans.select("begin", "end")),
            (sf.col("at") > sf.col("begin")) & (sf.col("at") < sf.col("end")),
        )
        .groupBy("begin")
        .agg(sf.count("at").cast("int").alias("record_count"))
    )
    rows = spans.join(counted, "begin", "left").select(
        sf.col("begin").alias("begin_offset"),
        (sf.col("end") + 1).alias("end_offset"),
        "outcome",
        "name",
        "reason",
        sf.coalesce("record_count", sf.lit(0)).alias("record_count"),
        sf.col("end").alias("_offset"),
        sf.col("end").alias("_visible_offset"),
        sf.col("end_epoch").alias("_leader_epoch"),
        sf.col("end_time").alias("_log_time"),
        sf.col("end").alias("_created_offset"),
    )
    return rows.unionByName(prior)


def _voters() -> Column:
    voters = sf.transform(
        "voters",
        lambda voter: sf.struct(
            voter["voterId"].alias("voter_id"),
            sf.coalesce(voter["voterDirectoryId"], sf.lit(_NO_DIRECTORY)).alias("directory_id"),
            sf.coalesce(
                voter["endpoints"],
                sf.lit([]).cast("array<struct<name: string, host: string, port: int>>"),
            ).alias("endpoints"),
            sf.coalesce(voter["kRaftVersionFeature"]["minSupportedVersion"], sf.lit(0)).alias(
                "min_kraft_version"
            ),
            sf.coalesce(voter["kRaftVersionFeature"]["maxSupportedVersion"], sf.lit(0)).alias(
                "max_kraft_version"
            ),
        ),
    )
    return sf.array_sort(voters)


def _no_voters() -> Column:
    voters = from_arrow_type(VOTERS)
    assert isinstance(voters, ArrayType)
    return sf.from_json(sf.lit("[]"), voters)


def _ids(voters: str) -> Column:
    return sf.array_sort(sf.transform(voters, lambda voter: voter["voter_id"]))
