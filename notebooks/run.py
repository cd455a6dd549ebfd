"""Run a Databricks notebook locally: `python notebooks/run.py NOTEBOOK [name=value ...]`.

The notebooks are plain Python. This script provides the globals that Databricks provides: `spark`
(a local session with Delta), `dbutils`, `display` and `displayHTML`. Arguments `name=value` set
widgets. With SPARK_REMOTE=local[2] the session is that of a local Spark Connect server.
"""

from __future__ import annotations

import os
import runpy
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

HOME = Path(__file__).resolve().parents[1]
LOG4J = Path(__file__).with_name("log4j2.properties")


def local_session() -> Any:
    """Return a local session with Delta on two cores, without log output."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if str(HOME) not in sys.path:
        sys.path.append(str(HOME))
    from pyspark.sql import SparkSession
    from tests.support.jars import delta, spark_jars

    from pyspark_raftlog import RaftlogDataSource

    builder = (
        SparkSession.builder.appName("raftlog")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "1")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.python.unix.domain.socket.enabled", "true")
        .config("spark.databricks.delta.snapshotPartitions", "1")
        # Compiling generated code takes longer than it saves on small data.
        .config("spark.sql.codegen.wholeStage", "false")
        .config("spark.sql.codegen.factoryMode", "NO_CODEGEN")
        .config("spark.jars", spark_jars(delta()))  # verified: .ci/jars.lock
        .config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
        .config(
            "spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog"
        )
        .config(
            "spark.driver.extraJavaOptions",
            # The demo ends before the second compiler and a concurrent collector pay off. Without
            # that compiler the default code cache is too small for Spark.
            f"-Dlog4j2.configurationFile={LOG4J.as_uri()} -XX:TieredStopAtLevel=1 "
            "-XX:ReservedCodeCacheSize=240m -XX:+UseSerialGC",
        )
    )
    if "SPARK_REMOTE" not in os.environ:
        builder = builder.master("local[2]")
    session = builder.getOrCreate()
    # Spark finds an installed wheel by name, but not an editable install.
    session.dataSource.register(RaftlogDataSource)
    return session


class Widgets:
    """`dbutils.widgets`: the value on the command line, or the default of the notebook."""

    def __init__(self, values: dict[str, str]) -> None:
        self._values = values
        self._defaults: dict[str, str] = {}

    def text(self, name: str, default: str, label: str | None = None) -> None:
        self._defaults[name] = default

    def get(self, name: str) -> str:
        return self._values.get(name, self._defaults[name])


def display(frame: Any) -> None:
    """Print a DataFrame as a table."""
    frame.show(n=40, truncate=60)


def display_html(html: str) -> None:
    """Write a picture to a file and print its path."""
    with tempfile.NamedTemporaryFile("w", suffix=".html", prefix="raftlog-", delete=False) as file:
        file.write(html)
    print(f"picture: {file.name}")


def run(notebook: str, values: dict[str, str], spark: Any) -> None:
    """Run a notebook in a session. `values`: of its widgets."""
    names = {
        "spark": spark,
        "dbutils": SimpleNamespace(widgets=Widgets(values)),
        "display": display,
        "displayHTML": display_html,
    }
    runpy.run_path(notebook, init_globals=names)


def main(arguments: list[str]) -> None:
    notebook, *pairs = arguments
    spark = local_session()
    try:
        run(notebook, dict(pair.split("=", 1) for pair in pairs), spark)
    finally:
        spark.stop()


if __name__ == "__main__":
    main(sys.argv[1:])
