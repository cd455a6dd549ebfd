"""``commit_loop``: optimistic concurrency control by the end offset of the log.

A decision based on all records below an offset is appended at exactly that offset; if another
writer has appended there, the loop reads the new records and decides again. The first retry is
immediate; later ones wait with exponential backoff and full jitter.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import raftlog
from raftlog.client.log_handle import without_scheme
from raftlog.errors import LogLockedError, UnexpectedEndOffsetError

from .commit import append_rows, plan_write, run_task
from .options import WriteOptions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from raftlog import AppendResult, ConnectedLog, EmbeddedLog
    from raftlog.append import UserRecord
    from raftlog.client.log_records import LogRecords


# --- ``append``: writes a DataFrame to a log and returns the offsets of its records ---------------
# Checks, conversion and append are those of ``df.write.format("raftlog")``, but run in the driver's
# process, so that result and errors are typed. Rows are collected as Arrow, within
# ``spark.driver.maxResultSize``.


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

    Raises ``UnexpectedEndOffsetError`` (another writer has appended, and nothing was written),
    ``WriteSchemaError``, ``InvalidRowError``, ``CommitTooLargeError``, ``OptionError``,
    ``LogNotFoundError``, ``NotALogError``, and the errors of ``EmbeddedLog.append``.
    """
    if isinstance(to, str | os.PathLike):
        log, path = None, os.path.abspath(without_scheme(os.fspath(to)))
    else:
        log, path = to, to.path
    options = WriteOptions(
        path=path,
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


# --- ``commit_loop`` ------------------------------------------------------------------------------

TRIES_MAX: Final = 20
PAUSE_FIRST_S: Final = 0.01
PAUSE_LONGEST_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class NewRecords:
    """Input of a decision.

    ``records`` are the new records since the previous call, from ``start_offset`` to ``end_offset``
    (exclusive); iterate over them, or use ``records.to_arrow()``. The decision will be appended at
    ``end_offset``. ``attempt`` counts from 1.
    """

    records: LogRecords
    attempt: int

    @property
    def start_offset(self) -> int:
        return self.records.start_offset

    @property
    def end_offset(self) -> int:
        return self.records.end_offset


Decision: TypeAlias = "Iterable[UserRecord] | DataFrame | None"
"""Records as for ``EmbeddedLog.append``, a DataFrame as for ``append``, or None."""


def commit_loop(
    log: EmbeddedLog | ConnectedLog | str | os.PathLike[str],
    decide: Callable[[NewRecords], Decision],
    *,
    from_offset: int | None = None,
    tries_max: int = TRIES_MAX,
    pause: Callable[[float], object] = time.sleep,
    jitter: Callable[[], float] = random.random,
) -> AppendResult | None:
    """Append the decision of ``decide`` if the log is unchanged; otherwise call ``decide`` again.

    ``decide`` is called with the records from ``from_offset`` on (default: the log start offset),
    and after a conflict with the records appended since, so it must keep its own state. It returns
    the records to append as one batch, or None to end the loop, which then returns None.

    Args:
        pause: sleeps for a number of seconds.
        jitter: returns a random number in [0, 1), the fraction of the backoff to wait.

    Raises ``UnexpectedEndOffsetError`` or ``LogLockedError`` after ``tries_max`` attempts (nothing
    was written), and the errors of ``decide`` and of the append.
    """
    if isinstance(log, str | os.PathLike):
        with raftlog.open(log, create=False) as opened:
            return commit_loop(
                opened,
                decide,
                from_offset=from_offset,
                tries_max=tries_max,
                pause=pause,
                jitter=jitter,
            )
    at = from_offset
    for attempt in range(1, tries_max + 1):
        new_records = NewRecords(log.read(at), attempt)
        at = new_records.end_offset
        decision = decide(new_records)
        if decision is None:
            return None
        try:
            return _append(log, decision, at)
        except (UnexpectedEndOffsetError, LogLockedError):
            if attempt == tries_max:
                raise
        if attempt > 1:
            pause(jitter() * min(PAUSE_LONGEST_S, PAUSE_FIRST_S * 2 ** (attempt - 2)))
    raise ValueError("tries_max must be at least 1")


def _append(log: EmbeddedLog | ConnectedLog, decision: Any, at: int) -> AppendResult | None:
    if hasattr(decision, "mapInArrow"):
        to = log.path if isinstance(log, raftlog.EmbeddedLog) else log
        return append(decision, to=to, required_base_offset=at)
    return log.append(decision, required_base_offset=at)
