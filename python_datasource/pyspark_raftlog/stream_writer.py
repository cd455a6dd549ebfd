"""The streaming sink: each micro-batch is one named append, so that it is in the log once.

Rules of this file:

1. Spark makes this writer anew, in two processes, for each micro-batch: what ``commit`` must know
   of the query comes with the rows.
2. A micro-batch is named by (``txnAppId`` or the query's id, the query's id, the batch's id). Asked
   for again, after whatever crash, it is answered with the offsets that it has.
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
    """One micro-batch of a stream."""

    def __init__(self, plan: WritePlan) -> None:
        self._plan = plan

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Check and convert the rows of one partition; on an executor. Nothing touches the log."""
        with as_spark_error():
            return run_task(self._plan, iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Append the micro-batch under its name; on the driver, after all tasks."""
        with as_spark_error():
            rows = in_order(messages)
            if rows:
                commit = self._plan.options.stream_commit(query_of(rows), batchId)
                append_rows(self._plan, rows, commit)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Nothing to do, as in a batch: the micro-batch comes again under its name."""
