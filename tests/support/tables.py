"""Short ways to fill tables and to read all their rows."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from raftlog_state.image import MetadataImage
from raftlog_state.image.rows import Entity, Key, Row
from raftlog_state.loader.metadata_loader import LogRecord
from raftlog_state.tables import ClusterTables, ClusterView, open_cluster
from raftlog_state.tables.convert import rows_of
from raftlog_state.tables.latest import rows_of_state
from raftlog_state.tables.reader import open_tables
from raftlog_state.tables.schema import BY_NAME, CHANGES, LOG
from tests.support.source_rows import source_rows
from tests.support.written_tables import CrashError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

VOLATILE = ("incarnation", "_incarnation", "committed_at", "cluster_id")


class Feed:
    """Records of a log as frames of the source, range by range."""

    def __init__(self, spark: SparkSession, records: Sequence[LogRecord]) -> None:
        self.spark = spark
        self.rows = source_rows(records)

    def open(self, place: Path | str, **options: Any) -> ClusterTables:
        return open_cluster(self.spark, str(place), **options)

    def frame(self, start_offset: int, end_offset: int) -> DataFrame:
        """Return the records of [start_offset, end_offset); the log starts at offset 0."""
        return self.of(self.rows.slice(start_offset, end_offset - start_offset))

    def of(self, rows: pa.Table) -> DataFrame:
        return self.spark.createDataFrame(rows)


def crash_after(step: str) -> dict[str, Any]:
    """Return options of tables whose process ends right after a step."""

    def after_step(done: str) -> None:
        if done == step:
            raise CrashError(step)

    return {"after_step": after_step}


def contents(place: Path, offset: int | None = None) -> list[tuple[str, str]]:
    """Return all published rows with their origins, in an order that does not depend on files.

    They are read as Arrow: with Spark a query of each table takes seconds.
    ``test_arrow_and_spark_read_the_same`` compares both. ``offset``: None for the newest state.
    """
    tables = open_tables(str(place))
    view = tables.latest() if offset is None else tables.at(offset=offset)
    found = {name: view.table(name) for name in (*BY_NAME, CHANGES, LOG)}
    return sorted(
        (name, json.dumps(row, default=str, sort_keys=True))
        for name, rows in found.items()
        for row in rows.drop_columns([*{*VOLATILE} & {*rows.column_names}]).to_pylist()
    )


def apply_feed(rows: dict[Key, Row], feed: DataFrame, entity: Entity) -> set[str]:
    """Apply the change feed of a table to its rows; return the kinds of its changes.

    Each change must begin with the row that is there.
    """
    order = [("_commit_version", "ascending"), ("_change_type", "descending")]
    found = feed.toArrow().sort_by(order)
    kinds = found["_change_type"].to_pylist()
    for kind, row in zip(kinds, rows_of(entity, found), strict=True):
        if kind in ("delete", "update_preimage"):
            assert rows.pop(row.key) == row
        else:
            assert row.key not in rows
            rows[row.key] = row
    return set(kinds)


def image_of(view: ClusterView) -> MetadataImage:
    """Return the state of a view as an image that can be written as Kafka's records.

    This is one query for all tables, whose rows are also those of ``view.table(name)``.
    """
    publication = view._publication
    rows = rows_of_state(publication.rows(None, view.offset).toArrow())
    assert len({(row.ENTITY, row.key) for row in rows}) == len(rows), "each row once"
    return MetadataImage.from_rows(rows, offset=view.offset, leader_epoch=0)


def offsets_once(rows: list[tuple[str, str]]) -> bool:
    """Return whether contents have every offset of ``log`` and every change once."""
    keys = [
        (name, row["offset"], row.get("seq"))
        for name, text in rows
        if name in (CHANGES, LOG)
        for row in [json.loads(text)]
    ]
    return len(set(keys)) == len(keys)
