"""Run a Databricks-style notebook here: `python notebooks/run.py NOTEBOOK [name=value ...]`.

A notebook here is plain Python: Databricks supplies `spark`, `dbutils` and `display`; this file
supplies the same three, with a local session that has Delta. Widgets take `name=value` arguments.
"""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

LOG4J = Path(__file__).with_name("log4j2.properties")


def local_session() -> Any:
    """A quiet session with Delta on two cores."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    from delta import configure_spark_with_delta_pip
    from pyspark.sql import SparkSession

    from pyspark_raftlog import RaftlogDataSource

    builder = (
        SparkSession.builder.appName("raftlog")
        .master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "1")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.python.unix.domain.socket.enabled", "true")
        .config("spark.databricks.delta.snapshotPartitions", "1")
        # Generated code pays for itself on large data only; here its compilation is the cost.
        .config("spark.sql.codegen.wholeStage", "false")
        .config("spark.sql.codegen.factoryMode", "NO_CODEGEN")
        .config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
        .config(
            "spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog"
        )
        .config(
            "spark.driver.extraJavaOptions",
            # One compiler and one collector: a demo is over before more of them pay.
            f"-Dlog4j2.configurationFile={LOG4J.as_uri()} -XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        )
    )
    session = configure_spark_with_delta_pip(builder).getOrCreate()
    # An installed wheel is found by its name; an editable install is not, so it is registered.
    session.dataSource.register(RaftlogDataSource)
    return session


class Widgets:
    """`dbutils.widgets`: a value given on the command line, else the notebook's default."""

    def __init__(self, values: dict[str, str]) -> None:
        self._values = values
        self._defaults: dict[str, str] = {}

    def text(self, name: str, default: str, label: str | None = None) -> None:
        self._defaults[name] = default

    def get(self, name: str) -> str:
        return self._values.get(name, self._defaults[name])


def display(frame: Any) -> None:
    """Print a frame as a table, every column whole."""
    frame.show(n=40, truncate=60)


def main(arguments: list[str]) -> None:
    notebook, *pairs = arguments
    values = dict(pair.split("=", 1) for pair in pairs)
    spark = local_session()
    names = {
        "spark": spark,
        "dbutils": SimpleNamespace(widgets=Widgets(values)),
        "display": display,
    }
    try:
        runpy.run_path(notebook, init_globals=names)
    finally:
        spark.stop()


if __name__ == "__main__":
    main(sys.argv[1:])
