"""The streaming sink: each micro-batch is one idempotent append.

The commit name of a micro-batch is (``txnAppId`` or query id, query id, batch id): if Spark repeats
it after a crash, the append returns the existing offsets. Spark creates a new writer for each
micro-batch, on driver and executors; the query id is sent with the rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage

from .appending import append_rows
from .commit_message import in_order, query_of
from .typed_errors import as_spark_error
from .write_plan import WritePlan, run_task

if TYPE_CHECKING:
    import pyarrow as pa


class RaftlogStreamWriter(DataSourceStreamArrowWriter):
    """Writer of one micro-batch."""

    def __init__(self, plan: WritePlan) -> None:
        self._plan = plan

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Check and convert the rows of one partition; on an executor, without the log."""
        with as_spark_error():
            return run_task(self._plan, iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Append the micro-batch under its commit name; on the driver, after all tasks."""
        with as_spark_error():
            rows = in_order(messages)
            if rows:
                commit = self._plan.options.stream_commit(query_of(rows), batchId)
                append_rows(self._plan, rows, commit)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Do nothing: Spark repeats the micro-batch, with the same commit name."""
