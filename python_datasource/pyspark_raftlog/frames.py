"""``append``: a DataFrame into a log, with an answer: where its records are.

Rules of this file:

1. The checks, the conversion and the append are those of ``df.write.format("raftlog")``, made in
   the caller's process: so the result and the errors arrive typed.
2. The rows come here as Arrow. They are one record batch, so they are few; what is no small result
   Spark itself refuses (``spark.driver.maxResultSize``).
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

    ``to`` is the log's directory, or what ``raftlog.connect`` gave.

    The arguments are the sink's options. ``required_base_offset`` is the end offset that the caller
    has read; ``AppendResult.end_offset`` is what a next write may require. None if there was no row
    and nothing to check.

    Raises ``UnexpectedEndOffsetError`` (somebody else was first; nothing was written), and else
    what writing raises: ``WriteSchemaError``, ``InvalidRowError``, ``CommitTooLargeError``,
    ``OptionError``, ``LogNotFoundError``, ``NotALogError``, and what ``EmbeddedLog.append`` raises.
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
