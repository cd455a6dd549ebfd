"""The batch sink: tasks send their rows, and the driver appends them as one batch."""

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
    """Writer of one ``save()``. Spark pickles it and sends it to executors: it has a plan only."""

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
