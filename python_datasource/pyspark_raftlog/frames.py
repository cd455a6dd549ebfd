"""``append``: writes a DataFrame to a log and returns the offsets of its records.

Checks, conversion and append are those of ``df.write.format("raftlog")``, but run in the driver's
process, so that result and errors are typed. Rows are collected as Arrow, within
``spark.driver.maxResultSize``.
"""

from __future__ import annotations

import os
from contextlib import nullcontext
from typing import TYPE_CHECKING

from .appending import append_rows
from .write_options import WriteOptions
from .write_plan import plan_write, run_task

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from raftlog import AppendResult, ConnectedLog


def append(
    frame: DataFrame,
    *,
    to: str | os.PathLike[str] | ConnectedLog,
    required_base_offset: int | None = None,
    required_end_offset: int | None = None,
    required_epoch: int | None = None,
    txn_app_id: str | None = None,
    txn_version: int | None = None,
    txn_take_over_from: str | None = None,
    max_bytes_per_commit: int | None = None,
) -> AppendResult | None:
    """Append the rows of ``frame`` to a log as one record batch.

    ``to`` is the log's directory, or a log returned by ``raftlog.connect``. The other arguments are
    the options of the sink. ``required_base_offset`` is the end offset up to which the caller has
    read the log; the next write can require ``AppendResult.end_offset``. Returns None if there are
    neither rows nor offsets to check.

    Raises ``UnexpectedEndOffsetError`` (another writer has appended; nothing was written),
    ``WriteSchemaError``, ``InvalidRowError``, ``CommitTooLargeError``, ``OptionError``,
    ``LogNotFoundError``, ``NotALogError``, and the errors of ``EmbeddedLog.append``.
    """
    log = None if isinstance(to, str | os.PathLike) else to
    options = WriteOptions(
        path=os.path.abspath(os.fspath(to)) if isinstance(to, str | os.PathLike) else to.path,
        required_base_offset=required_base_offset,
        required_end_offset=required_end_offset,
        required_epoch=required_epoch,
        txn_app_id=txn_app_id,
        txn_version=txn_version,
        txn_take_over_from=txn_take_over_from,
        max_bytes_per_commit=max_bytes_per_commit,
    )
    options.check_batch()
    plan = plan_write(options, frame.schema, log=log)
    message = run_task(plan, frame.toArrow().to_batches())
    opened = None if log is None else lambda _: nullcontext(log)
    return append_rows(plan, [message], options.batch_commit(), open_log=opened)
