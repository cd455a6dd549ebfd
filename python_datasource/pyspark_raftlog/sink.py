"""The batch sink and the streaming sink."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from .commit import WritePlan, append_rows, in_order, query_of, run_task
from .errors import as_spark_error

if TYPE_CHECKING:
    import pyarrow as pa


# --- The batch sink: tasks send their rows, and the driver appends them as one batch --------------


class RaftlogWriter(DataSourceArrowWriter):
    """Writer of one ``save()``. Spark pickles it and sends it to executors: it has only a plan."""

    def __init__(self, plan: WritePlan) -> None:
        self._plan = plan

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Check and convert the rows of one partition; on an executor, without the log."""
        with as_spark_error():
            return run_task(self._plan, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Append all rows as one batch; on the driver, after all tasks."""
        with as_spark_error():
            append_rows(self._plan, in_order(messages), self._plan.options.batch_commit())

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Do nothing: nothing is written before ``commit``.

        Spark also calls this after a failed ``commit``. If the outcome of its append is unknown,
        the rows may be in the log; appended records cannot be removed.
        """


# --- The streaming sink: each micro-batch is one idempotent append --------------------------------
# The commit name of a micro-batch is (``txnAppId`` or query id, query id, batch id): if Spark
# repeats it after a crash, the append returns the existing offsets. Spark creates a new writer for
# each micro-batch, on driver and executors; the query id is sent with the rows.


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
