"""The append of a write, on the driver, after all tasks have sent their rows.

Invariants:

1. All rows are one record batch, in the order of partitions and then of rows, so that no reader
   sees a part of them.
2. An append with a commit name is retried if its outcome is unknown: the log deduplicates it by the
   name. An append without a name is never retried.
3. The log is open, and locked, only during the append.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Final

from raftlog.client.location import open_log as open_log_of
from raftlog.errors import (
    AppendUnknownError,
    CommitTooLargeError,
    ForeignCommitError,
    RecordBatchTooLargeError,
)
from raftlog.limits import BATCH_HEADER_BYTES

from .commit_message import RowsMessage, unpack_rows
from .write_rows import message_schema, records_of

if TYPE_CHECKING:
    from raftlog import AppendResult, CommitName
    from raftlog.client.location import AnyLog
    from raftlog.records.encoding import RecordToAppend

    from .write_plan import WritePlan

_LOGGER: Final = logging.getLogger("pyspark_raftlog")
ATTEMPTS_MAX: Final = 4
"""Attempts of an append with a commit name while its outcome is unknown."""


def append_rows(
    plan: WritePlan,
    messages: Sequence[RowsMessage],
    commit: CommitName | None = None,
    *,
    open_log: Callable[[str], AbstractContextManager[AnyLog]] | None = None,
) -> AppendResult | None:
    """Append all rows as one batch; return None if there are neither rows nor offsets to check.

    ``open_log`` opens the log for each attempt; by default the log that the options name.

    Raises ``CommitMessageError``, ``CommitTooLargeError``, and what ``EmbeddedLog.append`` raises.
    """
    _check_size(plan, messages)
    schema = message_schema(plan.columns)
    records = [
        record for message in messages for record in records_of(unpack_rows(message, schema))
    ]
    options = plan.options
    tokens = (options.required_base_offset, options.required_end_offset, options.required_epoch)
    if not records and commit is None and all(token is None for token in tokens):
        return None
    opened = open_log or (lambda _: open_log_of(options))
    result = _append_with_retries(plan, records, commit, opened)
    if result.was_duplicate:
        _LOGGER.warning(
            "%s already contains %s, at offsets %d to %d; nothing was written",
            options.path,
            commit,
            result.base_offset,
            result.last_offset,
        )
    return result


def _check_size(plan: WritePlan, messages: Sequence[RowsMessage]) -> None:
    byte_count = BATCH_HEADER_BYTES + sum(message.byte_count for message in messages)
    if byte_count > plan.byte_count_max:
        raise _too_large(plan, byte_count, plan.byte_count_max)


def _too_large(plan: WritePlan, byte_count: int, byte_count_max: int) -> CommitTooLargeError:
    return CommitTooLargeError(
        path=plan.options.path,
        byte_count=byte_count,
        byte_count_max=byte_count_max,
        log_byte_count_max=plan.log_byte_count_max,
    )


def _append_with_retries(
    plan: WritePlan,
    records: list[RecordToAppend],
    commit: CommitName | None,
    open_log: Callable[[str], AbstractContextManager[AnyLog]],
) -> AppendResult:
    for attempt in range(1, ATTEMPTS_MAX + 1):
        try:
            with open_log(plan.options.path) as log:
                return _append(plan, log, records, commit)
        except AppendUnknownError as unknown:
            if commit is None or not records or attempt == ATTEMPTS_MAX:
                raise
            _LOGGER.warning("%s; retrying %s", unknown, commit)
    raise AssertionError("the loop returns or raises")


def _append(
    plan: WritePlan, log: AnyLog, records: list[RecordToAppend], commit: CommitName | None
) -> AppendResult:
    options = plan.options

    def append(take_over_from: str | None) -> AppendResult:
        return log.append(
            records,
            epoch=options.required_epoch,
            required_base_offset=options.required_base_offset,
            required_end_offset=options.required_end_offset,
            atomic=True,
            commit=commit,
            take_over_from=take_over_from,
        )

    try:
        try:
            return append(None)
        except ForeignCommitError as foreign:
            if options.txn_take_over_from != foreign.last_query_id:
                raise
            _LOGGER.warning(
                "%s: %s takes over from query %s", options.path, commit, foreign.last_query_id
            )
            return append(foreign.last_query_id)
    except RecordBatchTooLargeError as large:
        raise _too_large(plan, large.byte_count, large.byte_count_max) from None
