"""Seconds of questions about the past of a cluster's tables, compared with a window query.

The reference ranks all changes up to an offset by a window and keeps the last one of each key; it
does not use ``before_origin``. Both read the same Parquet files and write to Spark's ``noop`` sink
in the same session, alternating; the median of several runs is used.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet as pq
from benchmarks.run import Row, print_row, row
from benchmarks.spark_read import TIME_MS, session
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as sf

from raftlog_state.image.rows import Entity
from raftlog_state.loader.metadata_loader import MetadataLoader
from raftlog_state.records import PartitionChangeRecord, PartitionRecord, TopicRecord, encode
from raftlog_state.tables.convert import changes_table
from raftlog_state.tables.history import difference, rows_before, visible_between
from raftlog_state.tables.latest import overlay, state_rows
from raftlog_state.tables.origins import RowOrigins
from raftlog_state.tables.schema import BY_ENTITY, ORIGIN_COLUMNS, STATE_TABLE

pc: Any = pyarrow.compute

VERSIONS = 500_000
PARTITIONS = 5_000
SLICE = 50_000
RUNS = 5
TOPIC_ID = "I9iQnKeLSA2lyZwVZic7Xg"
SHARED = {"cluster_id": None, "topic": "", "partition": 0, "incarnation": 0, "committed_at": 0}


def records(version_count: int) -> Iterator[bytes]:
    """Yield one topic, its partitions, and changes of each partition in turn."""
    yield encode(TopicRecord(name="orders", topic_id=TOPIC_ID))
    for number in range(PARTITIONS):
        created = PartitionRecord(
            partition_id=number, topic_id=TOPIC_ID, replicas=(7, 8), isr=(7, 8), leader=7
        )
        yield encode(created)
    for number in range(version_count):
        leader = 7 + number // PARTITIONS % 2
        changed = PartitionChangeRecord(
            partition_id=number % PARTITIONS, topic_id=TOPIC_ID, isr=(leader,), leader=leader
        )
        yield encode(changed)


def write_tables(directory: Path, version_count: int) -> int:
    """Write ``changes`` and ``partitions`` as Parquet files; return the last offset."""
    loader, origins = MetadataLoader(), RowOrigins()
    state = STATE_TABLE.schema.empty_table()
    values = list(records(version_count))
    (directory / "changes").mkdir()
    for start in range(0, len(values), SLICE):
        part = values[start : start + SLICE]
        offsets = range(start, start + len(part))
        times = [TIME_MS + offset for offset in offsets]
        changes = loader.append_columns(offsets, [1] * len(part), times, part)
        befores = origins.apply(changes)
        rows = changes_table(changes, befores, SHARED)
        state = overlay(state, state_rows(rows))
        path = directory / "changes" / f"{start:09d}.parquet"
        write(rows, path)
    (directory / "partitions").mkdir()
    write(partition_rows(state), directory / "partitions" / "rows.parquet")
    return len(values) - 1


def partition_rows(state: pa.Table) -> pa.Table:
    """Return the rows of ``partitions`` with their origins."""
    found = state.filter(pc.equal(state["entity"], str(Entity.PARTITION))).combine_chunks()
    rows = pa.Table.from_struct_array(pc.struct_field(found["row"].combine_chunks(), ["partition"]))
    for name in ORIGIN_COLUMNS:
        rows = rows.append_column(name, found[name])
    return rows


def write(table: pa.Table, path: Path) -> None:
    pq.write_table(table, path, row_group_size=SLICE)


def by_window(changes: DataFrame, offset: int) -> DataFrame:
    """Return the partitions after an offset: the last change of each."""
    newest = Window.partitionBy("key").orderBy(
        *(sf.col(name).desc() for name in ("visible_offset", "offset", "seq"))
    )
    known = visible_between(changes, -1, offset).where(sf.col("entity") == "partition")
    ranked = known.select("*", sf.row_number().over(newest).alias("rank"))
    return ranked.where((sf.col("rank") == 1) & (sf.col("op") != "d")).select("after.partition.*")


def seconds_of(frame: Callable[[], DataFrame]) -> float:
    start = time.perf_counter()
    frame().write.format("noop").mode("overwrite").save()
    return time.perf_counter() - start


def measure(spark: SparkSession, directory: Path, version_count: int) -> Iterator[Row]:
    last = write_tables(directory, version_count)
    table = BY_ENTITY[Entity.PARTITION]
    changes = spark.read.parquet(str(directory / "changes"))
    rows = spark.read.parquet(str(directory / "partitions"))
    for what, offset in (("a recent state", last - 5_000), ("a state half way", last // 2)):
        later = visible_between(changes, offset, last)
        by_interval = partial(rows_before, table, offset, rows, later)
        reference = partial(by_window, changes, offset)
        assert by_interval().count() == reference().count() == PARTITIONS
        times: dict[Callable[[], DataFrame], list[float]] = {by_interval: [], reference: []}
        for _ in range(RUNS):
            for frame, taken in times.items():
                taken.append(seconds_of(frame))
        found, against = map(statistics.median, times.values())
        title = f"{what} of {PARTITIONS:,} partitions, {version_count:,} versions"
        yield row(title, found, "s", against, "the last change of each key, by a window")
    between = visible_between(changes, last - 1_000, last)
    seconds = statistics.median(seconds_of(lambda: difference(between)) for _ in range(RUNS))
    yield row(f"difference of 1,000 offsets, {version_count:,} versions", seconds, "s")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--versions", type=int, default=VERSIONS)
    parser.add_argument("--json", action="store_true", help="print one JSON object a figure")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        spark = session()
        for figures in measure(spark, Path(directory), arguments.versions):
            print_row(figures, as_json=arguments.json, decimals=2)
        spark.stop()


if __name__ == "__main__":
    main()
