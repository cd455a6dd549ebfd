"""The batch sink: tasks send their rows, and the driver makes one append of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from .appending import append_rows
from .commit_message import in_order
from .typed_errors import as_spark_error
from .write_plan import WritePlan, run_task

if TYPE_CHECKING:
    import pyarrow as pa


class RaftlogWriter(DataSourceArrowWriter):
    """One ``save()``. It is pickled and sent to executors, so it holds nothing but its plan."""

    def __init__(self, plan: WritePlan) -> None:
        self._plan = plan

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Check and convert the rows of one partition; on an executor. Nothing touches the log."""
        with as_spark_error():
            return run_task(self._plan, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Append all rows as one batch; on the driver, after all tasks."""
        with as_spark_error():
            append_rows(self._plan, in_order(messages), self._plan.options.batch_commit())

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Nothing to do: nothing was written before ``commit``.

        Spark calls this also after ``commit`` failed. Then the rows may be in the log, if nobody
        knows what became of the append, and to take them out is nobody's right.
        """
