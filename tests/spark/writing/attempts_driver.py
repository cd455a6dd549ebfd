"""Spark driver in its own process whose tasks have several attempts, caused by failures.

``python -m tests.spark.writing.attempts_driver SOURCE HOME WAY-TROUBLE...`` writes a batch or, from
the log SOURCE, a stream to each log ``HOME/<way>-<trouble>``. A task attempt that has consumed
all its rows creates a file ``<partition>.<attempt>`` in ``HOME/<way>-<trouble>.ended``.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark import SparkConf, SparkContext, TaskContext
from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSourceStreamWriter,
    DataSourceWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType
from tests.support.child_processes import python_path_with_sources
from tests.support.spark_session import JVM_OPTIONS

from pyspark_raftlog.sink import RaftlogStreamWriter, RaftlogWriter
from pyspark_raftlog.source import RaftlogDataSource

if TYPE_CHECKING:
    import pyarrow as pa

    from pyspark_raftlog.commit import WritePlan

PARTITIONS = 3
UNLUCKY = 1
"""The partition whose first attempt fails."""
HOSTS = ("127.0.0.1", "127.0.0.2")
"""Spark does not start speculative attempts on the host of the first attempt."""


def is_first_attempt(gate: Path) -> bool:
    """Return whether no other attempt has reached this point.

    On a busy machine that is not necessarily attempt 0: if it starts slowly, Spark starts a second
    attempt, which may overtake it.
    """
    try:
        gate.with_name("first").touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def fail(gate: Path, _attempt: int) -> None:
    """Raise an error in the first attempt."""
    if is_first_attempt(gate):
        raise RuntimeError("the first attempt fails")


def lose_executor(gate: Path, _attempt: int) -> None:
    """Kill the executor of the first attempt."""
    if is_first_attempt(gate):
        output = subprocess.check_output(["ps", "-o", "ppid=", "-p", str(os.getppid())])
        os.kill(int(output), signal.SIGKILL)
        signal.pause()  # its worker ends with it


def straggle(gate: Path, attempt: int) -> None:
    """Delay the first attempt until another one has reached the same point."""
    with gate.open("rb" if attempt == 0 else "wb"):
        pass


def ended_directory(sink: Path) -> Path:
    """Return the directory in which attempts create their files."""
    return sink.with_name(f"{sink.name}.ended")


TROUBLES: dict[str, Callable[[Path, int], None]] = {
    "failed": fail,
    "lost": lose_executor,
    "straggled": straggle,
}


class Troubled:
    """Wrapper of a writer that fails after the last row of the failing partition."""

    _plan: WritePlan

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        message: WriterCommitMessage = super().write(iterator)  # type: ignore[misc]
        context = TaskContext.get()
        assert context is not None
        partition, attempt = context.partitionId(), context.attemptNumber()
        sink = Path(self._plan.options.path)
        ended = ended_directory(sink)
        (ended / f"{partition}.{attempt}").touch()
        if partition == UNLUCKY:
            TROUBLES[sink.name.partition("-")[2]](ended / "gate", attempt)
        return message


class TroubledWriter(Troubled, RaftlogWriter):
    """Batch sink with a failing attempt."""


class TroubledStreamWriter(Troubled, RaftlogStreamWriter):
    """Streaming sink with a failing attempt."""


class TroubledSource(RaftlogDataSource):
    """``format("raftlog-troubled")``."""

    @classmethod
    def name(cls) -> str:
        return "raftlog-troubled"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        sink = super().writer(schema, overwrite)
        assert isinstance(sink, RaftlogWriter)
        return TroubledWriter(sink._plan)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        sink = super().streamWriter(schema, overwrite)
        assert isinstance(sink, RaftlogStreamWriter)
        return TroubledStreamWriter(sink._plan)


def session() -> SparkSession:
    """Return a session on two executors of one core each.

    Master and workers run in this driver's JVM, as with ``local-cluster``, which has one host only.
    """
    os.environ |= {
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": python_path_with_sources(),
        "SPARK_LOCAL_HOSTNAME": HOSTS[0],
    }
    SparkContext._ensure_initialized()
    jvm: Any = SparkContext._jvm
    deploy = jvm.org.apache.spark.deploy
    conf = jvm.org.apache.spark.SparkConf(False).set("spark.master.rest.enabled", "false")
    master = deploy.master.Master.startRpcEnvAndEndpoint(HOSTS[0], 0, 0, conf)
    url = f"spark://{master._1().address().hostPort()}"
    gateway: Any = SparkContext._gateway
    urls = gateway.new_array(jvm.String, 1)
    urls[0] = url
    none = jvm.scala.Option.empty()
    place = os.path.join(os.environ.get("TMPDIR", "."), "workers")
    for number, host in enumerate(HOSTS):
        worker = deploy.worker.Worker
        some = jvm.scala.Option.apply(number)
        worker.startRpcEnvAndEndpoint(host, 0, 0, 1, 1024, urls, place, some, conf, none)
    builder = SparkSession.builder.config(
        conf=SparkConf().setMaster(url).setAll(list(_SETTINGS.items()))
    )
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    return spark


_SETTINGS = {
    "spark.app.name": "raftlog-attempts",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": HOSTS[0],
    "spark.driver.bindAddress": HOSTS[0],
    "spark.executor.memory": "640m",
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.driver.extraJavaOptions": JVM_OPTIONS,
    "spark.executor.extraJavaOptions": JVM_OPTIONS,
    "spark.speculation": "true",
    "spark.speculation.quantile": "0.1",
    "spark.speculation.multiplier": "1",
}


def batch(spark: SparkSession, _source: str, sink: Path) -> None:
    numbers = spark.range(0, 30, 1, PARTITIONS).selectExpr("cast(id AS STRING) AS value")
    numbers.write.format("raftlog-troubled").mode("append").save(str(sink))


def stream(spark: SparkSession, source: str, sink: Path) -> None:
    reading = spark.readStream.format("raftlog").option("startingOffset", "earliest")
    reading = reading.option("tailHoldback", "0").option("minPartitions", str(PARTITIONS))
    writing = reading.load(source).select("value").writeStream.trigger(availableNow=True)
    writing = writing.option("checkpointLocation", f"{sink}.checkpoint")
    writing.format("raftlog-troubled").start(str(sink)).awaitTermination()


WAYS: dict[str, Callable[[SparkSession, str, Path], None]] = {"batch": batch, "stream": stream}


def main() -> None:
    source, home, *names = sys.argv[1:]
    spark = session()
    spark.dataSource.register(TroubledSource)
    for name in names:
        sink = Path(home) / name
        ended = ended_directory(sink)
        ended.mkdir()
        os.mkfifo(ended / "gate")
        WAYS[name.partition("-")[0]](spark, source, sink)
    spark.stop()


if __name__ == "__main__":
    main()
