"""Milliseconds from a commit of the log to its publication in the tables of a running stream.

Each round appends a topic with three partitions to a log and waits for the Delta commit of
``changes`` that publishes it. The reference is the same stream with a ``foreachBatch`` that
collects the rows and appends as few rows to one Delta table: what Spark itself needs. Tables that
`raftlog tables follow` has written in 10,000 batches are measured beside the same ones that it
wrote in a single batch, in turns: as that command follows both, and then as Spark does.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import random
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import chain
from pathlib import Path
from threading import Thread
from typing import Any

from benchmarks.run import Row, print_row, row
from pyspark.sql import DataFrame, SparkSession
from tests.support.jars import delta, spark_jars
from tests.support.small_logs import LogWriter

from pyspark_raftlog import RaftlogDataSource
from raftlog_state.records import PartitionRecord, TopicRecord, encode
from raftlog_state.tables import open_cluster

WARM_UP = 30
ROUNDS = 100
POLL_S = 0.002
PAUSE_S_MAX = 0.2
PATIENCE_S = 60.0
BATCHES = 10_000
OPTIONS = {"tailHoldback": "0"}
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
}


class Topics:
    """Log to which topics are appended, one a batch."""

    def __init__(self, directory: Path) -> None:
        self.log = LogWriter(directory / "__cluster_metadata-0", cluster_id="benchmark")
        self._count = 0

    def append(self) -> None:
        """Append a topic with three partitions."""
        self._count += 1
        topic_id = base64.urlsafe_b64encode(uuid.UUID(int=self._count).bytes).decode()[:22]
        partitions = [
            encode(
                PartitionRecord(
                    partition_id=number, topic_id=topic_id, replicas=(1, 2), isr=(1, 2), leader=1
                )
            )
            for number in range(3)
        ]
        topic = encode(TopicRecord(name=f"topic-{self._count}", topic_id=topic_id))
        self.log.append(topic, *partitions)


class Commits:
    """Commits of a table that are later than the present ones, in their order."""

    def __init__(self, table: Path) -> None:
        self._log = table / "_delta_log"
        newest = max(self._log.glob("[0-9]*.json"), default=None)  # the oldest may be deleted
        self._version = 0 if newest is None else int(newest.stem) + 1

    def wait_for_append(self) -> None:
        """Wait for the next append; a compaction is not an append.

        Raises:
            TimeoutError: there was none.
        """
        deadline = time.perf_counter() + PATIENCE_S
        is_append = False
        while not is_append:
            commit = self._log / f"{self._version:020}.json"
            while not commit.exists():
                if time.perf_counter() > deadline:
                    raise TimeoutError(f"no commit of {self._log.parent.name}")
                time.sleep(POLL_S)
            self._version += 1
            actions = map(json.loads, commit.read_text().splitlines())
            is_append = any(
                action.get("commitInfo", {}).get("operation") == "WRITE" for action in actions
            )


def delays_ms(topics: Topics, table: Path, rounds: int) -> list[float]:
    """Append a topic a round, and return how long each took to be in a commit of ``table``."""
    return delays_in_turns_ms([(topics, table)], rounds)[0]


def delays_in_turns_ms(
    followed: Sequence[tuple[Topics, Path]], rounds: int
) -> tuple[list[float], ...]:
    """Append a topic to each log a round, and return the delays of the tables of each.

    Appends have a random distance to the commits before them: otherwise each would be at the same
    place between two polls of the writer, and the delay that of this place.
    """
    commits = [Commits(table) for _, table in followed]
    taken: tuple[list[float], ...] = tuple([] for _ in followed)
    pauses_s = random.Random(0)
    for _ in range(rounds):
        for (topics, _), later, delays in zip(followed, commits, taken, strict=True):
            time.sleep(pauses_s.uniform(0, PAUSE_S_MAX))
            start = time.perf_counter()
            topics.append()
            later.wait_for_append()
            delays.append(1_000 * (time.perf_counter() - start))
    return taken


@contextmanager
def tables_by_spark(
    spark: SparkSession, directory: Path, topics: Topics, **options: Any
) -> Iterator[Path]:
    """Yield the table ``changes`` of a stream that follows a log."""
    place = directory / "tables"
    cluster = open_cluster(spark, str(place), **options)
    source = {"path": str(topics.log.directory), **OPTIONS}
    query = cluster.materialize(source, checkpoint=str(directory / "checkpoint"))
    try:
        query.processAllAvailable()
        yield place / "changes"
    finally:
        query.stop()


def of_tables(spark: SparkSession, directory: Path, rounds: int, **options: Any) -> list[float]:
    """Return the delays of tables that follow a log."""
    topics = Topics(directory)
    topics.append()
    with tables_by_spark(spark, directory, topics, **options) as table:
        delays_ms(topics, table, WARM_UP)
        return delays_ms(topics, table, rounds)


@contextmanager
def tables_by_command(
    directory: Path, topics: Topics, topic_count: int, batch_count: int
) -> Iterator[Path]:
    """Yield the table ``changes`` of ``raftlog tables follow`` after topics in some batches."""
    place, records = directory / "tables", str(4 * topic_count // batch_count)
    for _ in range(topic_count):
        topics.append()
    command = [sys.executable, "-m", "raftlog_state.cli", "tables", "follow"]
    command += ["--max-records", records]
    command += ["--tail-holdback-ms", "0", str(topics.log.directory), str(place)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            for line in process.stderr:
                if line.rstrip().endswith(f" to {4 * topic_count - 1}"):
                    break
            Thread(target=process.stderr.read, daemon=True).start()
            yield place / "changes"
        finally:
            process.terminate()


def of_appends(spark: SparkSession, directory: Path, rounds: int) -> list[float]:
    """Return the delays of a stream that appends a few rows a batch to a table."""
    topics, table = Topics(directory), directory / "rows"
    topics.append()
    few = spark.range(5).toArrow()

    def write(rows: DataFrame, _batch_id: int) -> None:
        rows.toArrow()
        frame = spark.createDataFrame(few).coalesce(1)
        frame.write.format("delta").mode("append").save(str(table))

    rows = spark.readStream.format("raftlog").options(**OPTIONS).load(str(topics.log.directory))
    stream = rows.writeStream.foreachBatch(write)
    query = stream.option("checkpointLocation", str(directory / "checkpoint")).start()
    try:
        query.processAllAvailable()
        delays_ms(topics, table, WARM_UP)
        return delays_ms(topics, table, rounds)
    finally:
        query.stop()


def delta_session() -> SparkSession:
    """Return a session for small jobs: with fewer tasks than README's settings for the tables."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2]").appName("raftlog-benchmark")
    for name, value in {**SETTINGS, "spark.jars": spark_jars(delta())}.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def quantiles(title: str, delays: list[float], floor: list[float], other: str) -> Iterator[Row]:
    for name, quantile in (("p50", 0.5), ("p95", 0.95)):
        found, against = (
            sorted(one)[min(len(one) - 1, int(quantile * len(one)))] for one in (delays, floor)
        )
        yield row(f"commit to publication, {title}, {name}", found, "ms", against, other)


def measure_growth(
    spark: SparkSession, directory: Path, rounds: int, batch_count: int
) -> Iterator[Row]:
    """Measure tables that were written in many batches, and the same in one batch, in turns."""
    counts = (batch_count, 1)
    directories = [directory / str(count) for count in counts]
    logs = [Topics(each) for each in directories]

    def measured(title: str, tables: Sequence[Path]) -> Iterator[Row]:
        followed = list(zip(logs, tables, strict=True))
        delays_in_turns_ms(followed, WARM_UP)
        many, few = delays_in_turns_ms(followed, rounds)
        yield from quantiles(f"{title}, after {batch_count:,} batches", many, few, "after one")

    with ExitStack() as running:
        tables = [
            running.enter_context(tables_by_command(each, log, batch_count, count))
            for each, log, count in zip(directories, logs, counts, strict=True)
        ]
        yield from measured("without Spark", tables)
    with ExitStack() as running:
        tables = [
            running.enter_context(tables_by_spark(spark, *each))
            for each in zip(directories, logs, strict=True)
        ]
        yield from measured("Spark", tables)


def measure(spark: SparkSession, directory: Path, rounds: int) -> Iterator[Row]:
    floor = of_appends(spark, directory / "floor", rounds)
    other = "foreachBatch with one append of 5 rows"
    engines: tuple[tuple[str, dict[str, Any]], ...] = (
        ("Spark", {}),
        ("Spark, without table log", {"log": False}),
        ("delta-rs", {"engine": "delta-rs"}),
    )
    for title, options in engines:
        delays = of_tables(spark, directory / title, rounds, **options)
        yield from quantiles(title, delays, floor, other)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--batches", type=int, default=BATCHES)
    parser.add_argument("--json", action="store_true", help="print one JSON object a figure")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        spark = delta_session()
        spark.dataSource.register(RaftlogDataSource)
        of_streams = measure(spark, Path(directory), arguments.rounds)
        of_growth = measure_growth(
            spark, Path(directory) / "growth", arguments.rounds, arguments.batches
        )
        for figures in chain(of_streams, of_growth):
            print_row(figures, as_json=arguments.json)
        spark.stop()


if __name__ == "__main__":
    main()
