"""Writing to a log from Spark, compared with writing the same frame to Spark's ``noop`` sink.

Commits of two sizes in rows a second; the latency of a small conditional write; the time from one
micro-batch to the next, from a log into a log.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from benchmarks.run import Row, row
from pyspark.sql import DataFrame, SparkSession

import raftlog
from pyspark_raftlog import RaftlogDataSource
from raftlog import LogConfig
from raftlog.limits import LOG_BATCH_BYTES_MAX, MIB

VALUE_BYTES = 100
ROW_BYTES = VALUE_BYTES + 12
"""Size of a row in its batch, at most: the value and the fields around it."""
RUNS = 5
SMALL_WRITES = 200
WARM_UP = 3
"""Small writes that are not measured: the first run of a frame takes the JVM seconds."""
MICRO_BATCHES = 60


def session() -> SparkSession:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark_session = (
        SparkSession.builder.master("local[2]")
        .appName("raftlog-benchmark")
        .config("spark.ui.enabled", "false")
        .config("spark.python.unix.domain.socket.enabled", "true")
        .config("spark.driver.host", "127.0.0.1")
        .getOrCreate()
    )
    spark_session.sparkContext.setLogLevel("ERROR")
    spark_session.dataSource.register(RaftlogDataSource)
    return spark_session


def new_log(path: Path) -> Path:
    raftlog.open(path, config=LogConfig(batch_bytes_max=LOG_BATCH_BYTES_MAX)).close()
    return path


def save(frame: DataFrame, path: Path, **options: int) -> None:
    frame.write.format("raftlog").mode("append").options(**options).save(str(path))


def noop(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


def seconds(action: Callable[[], None]) -> float:
    started = time.perf_counter()
    action()
    return time.perf_counter() - started


def commits(spark: SparkSession, home: Path, mib: int) -> Row:
    """Measure commits of the largest permitted size, from two tasks."""
    row_count = mib * MIB // ROW_BYTES
    frame = spark.range(0, row_count, 1, 2).selectExpr(f"lpad(id, {VALUE_BYTES}, 'x') AS value")
    path = new_log(home / f"rows-{mib}")
    measured = min(seconds(lambda: save(frame, path)) for _ in range(RUNS))
    other = min(seconds(lambda: noop(frame)) for _ in range(RUNS))
    return row(
        f"Spark batch write, a commit of {mib} MiB",
        row_count / measured,
        "rows/s",
        row_count / other,
        "noop, the same frame",
    )


def small_writes(spark: SparkSession, home: Path) -> list[Row]:
    """Measure conditional writes of one row, without a concurrent writer."""
    frame = spark.createDataFrame([("one small decision",)], "value STRING").coalesce(1)
    path = new_log(home / "small-0")
    for _ in range(WARM_UP):
        noop(frame)
        save(frame, path)
    measured, other = [], []
    for at in range(1 + WARM_UP, 1 + WARM_UP + SMALL_WRITES):
        measured.append(seconds(partial(save, frame, path, requiredBaseOffset=at)))
        other.append(seconds(partial(noop, frame)))
    return [
        row(
            f"Spark conditional write of one row, p{percent}",
            1000 * statistics.quantiles(measured, n=100)[percent - 1],
            "ms",
            1000 * statistics.quantiles(other, n=100)[percent - 1],
            "noop, the same frame",
        )
        for percent in (50, 99)
    ]


def micro_batches(spark: SparkSession, home: Path) -> Row:
    """Measure the time between micro-batches of ten records."""
    source = home / "source-0"
    with raftlog.open(source) as log:
        for _ in range(MICRO_BATCHES):
            log.append([b"x" * VALUE_BYTES] * 10, atomic=True)
    frame = (
        spark.readStream.format("raftlog")
        .options(startingOffset="earliest", tailHoldback="0", maxOffsetsPerTrigger="10")
        .load(str(source))
        .select("value")
    )
    sink = new_log(home / "sink-0")

    def median_ms(name: str) -> float:
        writing = frame.writeStream.format(name).trigger(availableNow=True)
        writing = writing.option("checkpointLocation", str(home / f"checkpoint-{name}"))
        query = writing.start(str(sink)) if name == "raftlog" else writing.start()
        query.awaitTermination()
        taken: list[int] = [
            one["durationMs"]["triggerExecution"] for one in query.recentProgress[5:]
        ]
        return statistics.median(taken)

    return row(
        "Spark micro-batch, log into log, median",
        median_ms("raftlog"),
        "ms",
        median_ms("noop"),
        "log into noop",
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    as_json = parser.parse_args().json
    with tempfile.TemporaryDirectory(prefix="raftlog-bench-") as name:
        home = Path(name)
        spark = session()
        figures = [commits(spark, home, 8), commits(spark, home, 64)]
        figures += [*small_writes(spark, home), micro_batches(spark, home)]
        spark.stop()
    for figure in figures:
        if as_json:
            print(json.dumps(figure))
        else:
            print(
                f"{figure['what']:45} {figure['measured']:12,.0f} {figure['unit']}, "
                f"{figure['against']:,.0f} {figure['other']}"
            )


if __name__ == "__main__":
    main()
