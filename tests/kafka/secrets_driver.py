"""Spark driver in its own process that reads with secrets, and stores all that Spark shows of it.

``python -m tests.kafka.secrets_driver HOME``: options of the source are a JSON object on stdin.
Below HOME it writes Spark's event log, the checkpoint of a stream, plans, progress, pages of the
UI and the list of processes. It prints the number of records of the batch and of the stream.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from tests.support.child_processes import python_path_with_sources
from tests.support.spark_session import JVM_OPTIONS

PAGES = (
    "/environment/",
    "/SQL/",
    "/StreamingQuery/",
    "/api/v1/applications/{}/environment",
    "/api/v1/applications/{}/sql?details=true&planDescription=true",
    "/api/v1/applications/{}/jobs",
    "/api/v1/applications/{}/stages?details=true",
)


def session(home: Path) -> SparkSession:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = python_path_with_sources()
    (home / "events").mkdir()
    builder = SparkSession.builder.master("local[2]").appName("raftlog-secrets-driver")
    for name, value in {
        "spark.ui.enabled": "true",
        "spark.ui.port": "0",
        "spark.ui.showConsoleProgress": "false",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.compress": "false",
        "spark.eventLog.dir": str(home / "events"),
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.shuffle.partitions": "1",
        "spark.sql.warehouse.dir": str(home / "warehouse"),
        "spark.driver.extraJavaOptions": JVM_OPTIONS,
    }.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def batch(spark: SparkSession, home: Path, options: dict[str, str], wrong: dict[str, str]) -> int:
    """Read a batch, directly and by a view of SQL; and once with credentials that are refused."""
    frame = spark.read.format("raftlog").options(**options).load()
    pairs = ", ".join(f"`{name}` '{value}'" for name, value in options.items())
    spark.sql(f"CREATE TEMPORARY VIEW records USING raftlog OPTIONS ({pairs})")
    for one in (frame, spark.table("records")):
        with (home / "plans").open("a") as file, contextlib.redirect_stdout(file):
            for mode in ("simple", "extended", "formatted", "cost"):
                one.explain(mode=mode)
        one.count()
    try:
        spark.read.format("raftlog").options(**wrong).load().count()
    except PySparkException as error:
        (home / "error").write_text(str(error))
    return frame.count()


def stream(spark: SparkSession, home: Path, options: dict[str, str]) -> int:
    """Read all records by a stream; store its progress and what it shows."""
    counts: list[int] = []
    query = (
        spark.readStream.format("raftlog")
        .options(**options)
        .option("startingOffset", "earliest")
        .load()
        .writeStream.foreachBatch(lambda frame, _: counts.append(frame.count()))
        .option("checkpointLocation", str(home / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    shown = (query.recentProgress, query.lastProgress, query.status, query)
    (home / "progress").write_text("\n".join(map(str, shown)))
    return sum(counts)


def store_pages(spark: SparkSession, home: Path) -> None:
    """Store pages of the UI, and the arguments of all processes."""
    context: Any = spark.sparkContext
    for number, page in enumerate(PAGES):
        url = context.uiWebUrl + page.format(context.applicationId)
        with urllib.request.urlopen(url) as response:
            (home / f"page-{number}").write_bytes(response.read())
    processes = subprocess.run(["ps", "-eo", "args"], capture_output=True, check=True)
    (home / "processes").write_bytes(processes.stdout)


def main() -> None:
    home = Path(sys.argv[1])
    given = json.load(sys.stdin)
    spark = session(home)
    counts = [
        batch(spark, home, given["right"], given["wrong"]),
        stream(spark, home, given["right"]),
    ]
    store_pages(spark, home)
    spark.stop()
    sys.stdout.write(f"{json.dumps(counts)}\n")


if __name__ == "__main__":
    main()
