"""Spark driver in its own process that materializes a log to tables, and kills itself.

``python -m tests.state.tables.tables_driver LOG TABLES CHECKPOINT POINT OCCURRENCE`` kills itself
at the named point, or ends with status 0. A file of ``log`` is created before the commit that adds
it; the other points are after commits. The first attempt of each task that reads the log fails.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType
from tests.support.kill_points import arm, arm_files, reach
from tests.support.spark_session import shared_session

from pyspark_raftlog.source import RaftlogDataSource
from pyspark_raftlog.stream_reader import RaftlogStreamReader
from raftlog_state.tables import ClusterTables, open_cluster

if TYPE_CHECKING:
    import pyarrow as pa

FILE_CREATED = "file of log"
LOG_WRITTEN = "log"
CHANGES_WRITTEN = "changes"
STATE_WRITTEN = "state"
POINTS = (FILE_CREATED, LOG_WRITTEN, CHANGES_WRITTEN, STATE_WRITTEN)
A_BATCH = 37
"""Largest number of offsets per micro-batch, unless a batch of the log is larger."""


class FailOnceReader(RaftlogStreamReader):
    """The source, with a first attempt of each task that fails."""

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        if context.attemptNumber() == 0:
            raise RuntimeError("the first attempt of every task fails")
        return super().read(partition)


class FailOnceSource(RaftlogDataSource):
    """``format("raftlog")`` in this driver's session."""

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        reader = super().streamReader(schema)
        reader.__class__ = FailOnceReader
        return reader


def materialize(tables: ClusterTables, log: str, checkpoint: str) -> None:
    """Materialize everything that exists."""
    options = {"path": log, "tailHoldback": "0", "maxOffsetsPerTrigger": str(A_BATCH)}
    tables.materialize(options, checkpoint=checkpoint, trigger="availableNow").awaitTermination()


def main() -> None:
    log, place, checkpoint, point, occurrence = sys.argv[1:]
    arm(point, int(occurrence), f"{checkpoint}.{os.getpid()}")
    if point == FILE_CREATED:
        arm_files(Path(place, "log"), int(occurrence))
    spark = shared_session(task_tries=3)
    spark.sparkContext.setLogLevel("OFF")
    spark.dataSource.register(FailOnceSource)
    materialize(open_cluster(spark, place, after_step=reach), log, checkpoint)


if __name__ == "__main__":
    main()
