"""Spark driver in its own process that writes to a log.

``python -m tests.support.sink_driver race SINK NAME COUNT`` competes with others for offsets until
it has won this many; it prints the offsets, one per line.

``python -m tests.support.sink_driver stream SOURCE SINK CHECKPOINT POINT OCCURRENCE`` copies a log
and kills itself at a named point. The first attempt of each task fails, so that every batch is
retried. The exit status is 0 if it was not killed.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSourceStreamWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from pyspark_raftlog import conflict
from pyspark_raftlog.commit import append_rows, in_order, query_of
from pyspark_raftlog.sink import RaftlogStreamWriter
from pyspark_raftlog.source import RaftlogDataSource
from raftlog.client.embedded.handle import EmbeddedLog, open_embedded
from raftlog.storage.local import WritableLocalFile, WritableLocalStorage
from tests.support.child_processes import python_path_with_sources
from tests.support.kill_points import arm, reach
from tests.support.spark_session import JVM_OPTIONS

if TYPE_CHECKING:
    import pyarrow as pa

POINTS = (
    "offset log written",
    "during a task",
    "tasks done",
    "before the lock",
    "token checked",
    "before the sync",
    "after the sync",
    "answered",
    "commit log written",
)
_CALLS_PER_BATCH = 2
"""How often Spark creates a stream's writer per batch."""


class KillingFile(WritableLocalFile):
    """File of the log whose writes and syncs are kill points."""

    def write_at(self, position: int, data: bytes | memoryview) -> None:
        if b"raftlog.commit" not in bytes(data):
            super().write_at(position, data)
            return
        reach("token checked")
        super().write_at(position, data)
        self.holds_commit = True

    def sync(self) -> None:
        if not getattr(self, "holds_commit", False):
            super().sync()
            return
        reach("before the sync")
        super().sync()
        reach("after the sync")


class KillingStorage(WritableLocalStorage):
    """Local files with kill points."""

    def create_file(self, path: str) -> KillingFile:
        file = super().create_file(path)
        file.__class__ = KillingFile
        assert isinstance(file, KillingFile)
        return file

    def open_for_writing(self, path: str) -> KillingFile:
        opened = super().open_for_writing(path)
        opened.__class__ = KillingFile
        assert isinstance(opened, KillingFile)
        return opened

    def try_lock(self, path: str) -> Any:
        reach("before the lock")
        return super().try_lock(path)


def open_killing(path: str) -> EmbeddedLog:
    return open_embedded(path, create=False, storage=KillingStorage())


class KillingWriter(RaftlogStreamWriter):
    """Streaming sink with kill points, and a first attempt of each task that fails."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        first = next(iterator, None)
        context = TaskContext.get()
        assert context is not None
        if context.attemptNumber() == 0:
            raise RuntimeError("the first attempt of every task fails")
        reach("during a task")
        rows = iter(()) if first is None else self._all(first, iterator)
        return super().write(rows)

    def _all(
        self, first: pa.RecordBatch, rest: Iterator[pa.RecordBatch]
    ) -> Iterator[pa.RecordBatch]:
        yield first
        yield from rest

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        reach("tasks done")
        rows = in_order(messages)
        if rows:
            commit = self._plan.options.stream_commit(query_of(rows), batchId)
            append_rows(self._plan, rows, commit, open_log=open_killing)
        reach("answered")


class KillingSource(RaftlogDataSource):
    """``format("raftlog-killing")``."""

    @classmethod
    def name(cls) -> str:
        return "raftlog-killing"

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        file = super().streamWriter(schema, overwrite)
        reach("offset log written")
        assert isinstance(file, RaftlogStreamWriter)
        return KillingWriter(file._plan)


def session() -> SparkSession:
    """Return a small session that tries each task three times."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = python_path_with_sources()
    builder = SparkSession.builder.master("local[2,3]").appName("raftlog-sink-driver")
    for name, value in {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.driver.extraJavaOptions": JVM_OPTIONS,
    }.items():
        builder = builder.config(name, value)
    file = builder.getOrCreate()
    file.sparkContext.setLogLevel("OFF")
    return file


def stream(
    spark: SparkSession, source: str, sink: str, checkpoint: str, *, sink_format: str
) -> None:
    """Copy one log to another until all existing records are copied."""
    frame = (
        spark.readStream.format("raftlog")
        .option("startingOffset", "earliest")
        .option("tailHoldback", "0")
        .option("maxOffsetsPerTrigger", "6")
        .load(source)
    )
    query = (
        frame.select("key", "value", "timestamp")
        .writeStream.format(sink_format)
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start(sink)
    )
    query.awaitTermination()


def race(spark: SparkSession, sink: str, name: str, count: int) -> list[int]:
    """Write one record at the log end offset, repeatedly, until this many writes have won.

    Returns their offsets.
    """
    spark.dataSource.register(RaftlogDataSource)
    frame = spark.createDataFrame([(name,)], "value STRING")
    at, won = 0, list[int]()
    while len(won) < count:
        writing = frame.write.format("raftlog").mode("append").option("requiredBaseOffset", at)
        try:
            writing.save(sink)
        except PySparkException as error:
            lost = conflict(error)
            if lost is None:
                raise
            at = lost.log_end_offset
        else:
            won.append(at)
            at += 1
    return won


def main() -> None:
    work, *rest = sys.argv[1:]
    if work == "race":
        sink, name, count = rest
        won = race(session(), sink, name, int(count))
        os.write(1, b"".join(b"%d\n" % offset for offset in won))
        return
    assert work == "stream"
    source, sink, checkpoint, point, occurrence = rest
    times = int(occurrence)
    if point == "commit log written":  # that of a batch is, once the next one's writer is created
        point, times = "offset log written", times * _CALLS_PER_BATCH + 1
    arm(point, times, f"{checkpoint}.{os.getpid()}")
    spark = session()
    spark.dataSource.register(KillingSource)
    stream(spark, source, sink, checkpoint, sink_format=KillingSource.name())


if __name__ == "__main__":
    main()
