"""Seconds of an ``availableNow`` run of Spark for which the log has no new records.

It opens tables and compares them with the log. They have many partitions or a tenth of them, and
many commits of ``changes`` or a few; upkeep has merged and compacted them, as it does beside a
stream. The reference is a run with an empty ``foreachBatch`` that reads the same last record. Both
alternate in one session, and the first of each is left out.
"""

from __future__ import annotations

import argparse
import base64
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from benchmarks.freshness import OPTIONS, delta_session
from benchmarks.run import Row, print_row, row
from benchmarks.scale import OFFSET, TIME_MS, make_snapshot
from pyspark.sql import DataFrame, SparkSession
from tests.support.small_logs import LogWriter

from pyspark_raftlog import RaftlogDataSource
from raftlog.client import open_path
from raftlog_state.records import Redactor, TopicRecord, encode
from raftlog_state.tables import open_cluster
from raftlog_state.tables.log_follower import FollowSettings, LogFollower
from raftlog_state.tables.stores.delta_rs import DeltaRsStore

PARTITIONS = 1_000_000
COMMITS = 2_000
FEW_PARTITIONS, FEW_COMMITS = 1_000, 10
RUNS = 5


def make_tables(directory: Path, partition_count: int, commit_count: int) -> None:
    """Write a log and its tables: a snapshot, and then a commit for each record."""
    log = LogWriter(
        directory / "__cluster_metadata-0", base_offset=OFFSET + 1, cluster_id="benchmark"
    )
    make_snapshot(log.directory, partition_count)
    for number in range(commit_count):
        topic_id = base64.urlsafe_b64encode(uuid.UUID(int=OFFSET + number).bytes).decode()[:22]
        topic = TopicRecord(name=f"new-{number}", topic_id=topic_id)
        log.append(encode(topic), epoch=3, timestamp_ms=TIME_MS + number)
    settings = FollowSettings(
        redactor=Redactor(), writes_log=False, is_once=True, holdback_ms=0, record_count_max=1
    )
    LogFollower(
        partial(open_path, str(log.directory)),
        DeltaRsStore(str(directory / "tables")),
        settings,
        log_event=lambda _: None,
    ).run()


def restart(spark: SparkSession, directory: Path, checkpoint: str) -> None:
    """Follow the log to its end, which the tables have."""
    cluster = open_cluster(spark, str(directory / "tables"), log=False)
    source = {"path": str(directory / "__cluster_metadata-0"), **OPTIONS}
    query = cluster.materialize(source, checkpoint=checkpoint, trigger="availableNow")
    query.awaitTermination()


def read_last_record(spark: SparkSession, directory: Path, checkpoint: str) -> None:
    """Run a query that collects the last record of the log."""

    def collect(rows: DataFrame, _batch_id: int) -> None:
        rows.toArrow()

    path = str(directory / "__cluster_metadata-0")
    last_offset = str(open_path(path).log_end_offset - 1)
    reader = spark.readStream.format("raftlog").options(**OPTIONS, startingOffset=last_offset)
    stream = reader.load(path).writeStream.foreachBatch(collect)
    query = stream.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
    query.awaitTermination()


def seconds_of(run: Callable[[str], None]) -> float:
    with tempfile.TemporaryDirectory() as checkpoint:
        start = time.perf_counter()
        run(checkpoint)
        return time.perf_counter() - start


def measure(spark: SparkSession, directory: Path, title: str) -> Row:
    runs = [partial(one, spark, directory) for one in (restart, read_last_record)]
    taken = [[seconds_of(run) for run in runs] for _ in range(RUNS + 1)][1:]
    found, against = (statistics.median(times) for times in zip(*taken, strict=True))
    title = f"restart without new records, Spark, {title}"
    return row(title, found, "s", against, "a run that reads one record")


def figures(directory: Path, partition_count: int, commit_count: int) -> Iterator[Row]:
    places = {
        f"{partition_count // 10:,} partitions": (partition_count // 10, FEW_COMMITS),
        f"{partition_count:,} partitions": (partition_count, FEW_COMMITS),
        f"{FEW_COMMITS} commits of changes": (FEW_PARTITIONS, FEW_COMMITS),
        f"{commit_count:,} commits of changes": (FEW_PARTITIONS, commit_count),
    }
    for number, counts in enumerate(places.values()):
        print(f"writing tables of {counts[0]:,} partitions", file=sys.stderr)
        make_tables(directory / str(number), *counts)
    spark = delta_session()
    spark.dataSource.register(RaftlogDataSource)
    for number, title in enumerate(places):
        yield measure(spark, directory / str(number), title)
    spark.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--partitions", type=int, default=PARTITIONS)
    parser.add_argument("--commits", type=int, default=COMMITS)
    parser.add_argument("--json", action="store_true", help="print one JSON object a figure")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        found = figures(Path(directory), arguments.partitions, arguments.commits)
        for figure in found:
            print_row(figure, as_json=arguments.json, decimals=2)


if __name__ == "__main__":
    main()
