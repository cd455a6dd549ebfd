"""One Spark session for a whole test run: two cores, no UI, Unix sockets, Delta.

Starting a session takes about ten seconds, so Spark tests of all areas share this one. No test
stops it; it ends with the process.
"""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from .child_processes import python_path_with_sources
from .jars import delta, spark_jars

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HOME = Path(__file__).parents[2]
JVM_OPTIONS: Final = (
    "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -XX:+UseSerialGC -XX:MetaspaceSize=256m"
    " -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
)
"""In minutes on two cores the second compiler and a concurrent collector cost more than they save.

Without the second compiler the default code cache has 48 MiB. Spark fills them: then nothing is
compiled any more, and a call can fail with "Out of space in CodeCache for method handle intrinsic".
The default threshold of metadata, 21 MiB, causes several collections of the whole heap while Spark
loads its classes. Verification of their bytecode, which released jars pass, takes a sixth of the
processor time of a session with few queries.
"""
HEAP_OPTIONS: Final = "-Xms1g -Xmn600m"
"""Planning a query allocates up to a gigabyte, most of which is garbage at the end. In a young
generation of the default size it becomes old, and is collected with the whole heap."""

HAS_DELTA: Final = "RAFTLOG_WITHOUT_DELTA" not in os.environ
"""False in ``.ci/spark_release``: Delta has no jar for each release of Spark."""
DELTA_SETTINGS: Final = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.databricks.delta.snapshotPartitions": "1",
}
HAS_LIMITS: Final = find_spec("pyspark.sql.streaming.datasource") is not None
"""Whether Spark passes a stream's limits and current offset to its source, as from 4.2 on."""
needs_limits: Final = pytest.mark.skipif(
    not HAS_LIMITS, reason="Spark 4.0 and 4.1 pass neither limits nor starts"
)
"""Mark of tests of streams with several batches of one log, or with several logs."""


def has_java() -> bool:
    """Return whether Spark's launcher would find ``java``."""
    return bool(os.environ.get("JAVA_HOME")) or shutil.which("java") is not None


@functools.cache
def shared_session(task_tries: int = 1) -> SparkSession:
    """Return the session, created at the first call. Delta's jars are downloaded once (87 MB)."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = python_path_with_sources()

    from pyspark.sql import SparkSession

    home = tempfile.mkdtemp(prefix="raftlog-spark-")
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "2g",
        "spark.sql.shuffle.partitions": "1",
        "spark.default.parallelism": "1",
        "spark.sql.leafNodeDefaultParallelism": "1",
        "spark.sql.files.minPartitionNum": "1",
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": os.path.join(home, "warehouse"),
        "spark.local.dir": os.path.join(home, "local"),
        "spark.sql.sources.parallelPartitionDiscovery.parallelism": "2",
        # Code generation would compile every plan, which costs more than tiny plans gain.
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.sql.adaptive.enabled": "false",
        "spark.driver.extraJavaOptions": " ".join(
            (f"-Dderby.system.home={os.path.join(home, 'derby')}", JVM_OPTIONS, HEAP_OPTIONS)
        ),
    }
    builder = SparkSession.builder.master(f"local[2,{task_tries}]").appName("raftlog-tests")
    if HAS_DELTA:
        settings |= {**DELTA_SETTINGS, "spark.jars": spark_jars(delta())}
    for name, value in settings.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    # Of this session only: another one has Spark's default, as that of a user.
    session.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
    for name, size in (("minFileSize", 8 << 20), ("maxFileSize", 64 << 20)):
        session.conf.set(f"spark.databricks.delta.optimize.{name}", str(size))
    return session
