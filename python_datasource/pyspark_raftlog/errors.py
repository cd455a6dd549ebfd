"""Errors of the source and the sink: data loss, rows, and typed errors across Spark."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from typing import Final

from raftlog import errors
from raftlog.client import errors as client_errors
from raftlog.errors import DataLossError, ForeignCommitError, RaftlogError, UnexpectedEndOffsetError
from raftlog_state import errors as state_errors
from raftlog_state.source_rows.data_loss import DataLoss

# --- Remedies of data loss ------------------------------------------------------------------------
# The error contains ``[RAFTLOG_DATA_LOSS.<condition>]``, and Spark keeps only the text of an error.

_NEW_CHECKPOINT: Final = "start a new query with a new checkpointLocation"

_REMEDIES: Final[Mapping[DataLoss, str]] = {
    DataLoss.OFFSETS_DELETED: "read another node's replica, or accept the loss with "
    "failOnDataLoss=false, which resumes at the newest snapshot or at the log start offset",
    DataLoss.LOG_TRUNCATED: "read a more recent replica; with failOnDataLoss=false the stream "
    "waits until the log end offset has reached its offset again",
    DataLoss.WRONG_CLUSTER: f"correct the path, or {_NEW_CHECKPOINT}",
    DataLoss.INCONSISTENT_TOPIC_ID: f"correct the path, {_NEW_CHECKPOINT}, or set "
    "failOnDataLoss=false to read the new log from its start",
    DataLoss.DIVERGED_EPOCH: "records read after that offset were never committed; set "
    "failOnDataLoss=false to resume there, and correct the output of the stream",
    DataLoss.SNAPSHOT_DELETED: f"{_NEW_CHECKPOINT}, or accept the loss with failOnDataLoss=false, "
    "which resumes at the newest snapshot",
    DataLoss.LOG_MISSING: "restore the log or add it to the sources again, or accept the loss with "
    "failOnDataLoss=false, which skips these records",
    DataLoss.CHECKPOINT_MISMATCH: _NEW_CHECKPOINT,
}


def data_loss(condition: DataLoss, *, path: str, reason: str) -> DataLossError:
    """Return the error for ``condition``, with its remedy."""
    return DataLossError(
        path=path, condition=condition.value, reason=reason, remedy=_REMEDIES[condition]
    )


# --- Rows that cannot be written ------------------------------------------------------------------
# Raised before the append: nothing was written.


class WriteSchemaError(RaftlogError, code="RAFTLOG_WRITE_SCHEMA"):
    """A log of this kind does not accept a column."""

    column: str
    reason: str

    def message(self) -> str:
        return f"column {self.column}: {self.reason}; nothing was written"


class InvalidRowError(RaftlogError, code="RAFTLOG_INVALID_ROW"):
    """A row is not a valid record of the log. ``row`` counts from 0 in its partition."""

    column: str
    partition: int
    row: int
    reason: str

    def message(self) -> str:
        return (
            f"row {self.row} of partition {self.partition}, column {self.column}: {self.reason}; "
            "nothing was written"
        )


class CommitTooLargeError(RaftlogError, code="RAFTLOG_COMMIT_TOO_LARGE", kafka_code=10):
    """The rows of a write do not fit into one record batch.

    ``byte_count`` is the size before compression, ``byte_count_max`` the limit of this write and
    ``log_byte_count_max`` the limit of the log.
    """

    path: str
    byte_count: int
    byte_count_max: int
    log_byte_count_max: int

    def message(self) -> str:
        if self.byte_count_max < self.log_byte_count_max:
            raising = "raise maxBytesPerCommit"
        else:
            raising = f"raise its limit with `raftlog configure {self.path} max.message.bytes=...`"
        return (
            f"record batch too large for {self.path}: a write is one batch, this one has "
            f"{self.byte_count} bytes, the limit is {self.byte_count_max}; nothing was written: "
            f"write fewer rows per commit, or {raising}; a stream then resumes where it stopped"
        )


class CommitMessageError(RaftlogError, code="RAFTLOG_COMMIT_MESSAGE", retriable=True):
    """A task's commit message is incomplete or belongs to another write."""

    reason: str

    def message(self) -> str:
        return f"invalid commit message of a task: {self.reason}; nothing was written, retry"


class ResultTooLargeError(RaftlogError, code="RAFTLOG_RESULT_TOO_LARGE"):
    """A call of a table function returns more rows than fit into the memory of a Spark task."""

    path: str
    function: str
    row_count_max: int

    def message(self) -> str:
        return (
            f"{self.function} has more than {self.row_count_max} rows of {self.path}, and Spark "
            "has the rows of a call in memory: select fewer with table, name, from and to, or read "
            "Delta tables of the log (raftlog_state.tables), which have no such limit"
        )


class AppendOnlyError(RaftlogError, code="RAFTLOG_APPEND_ONLY"):
    """A write mode other than append. ``what`` names the mode."""

    what: str
    remedy: str

    def message(self) -> str:
        return (
            f"{self.what} is not supported: a log is append-only, records are never replaced; "
            f"{self.remedy}"
        )


# --- Conversion of typed errors to text and back --------------------------------------------------
# Spark keeps the text of a Python error, but not its type. So the text ends with a marker and the
# error's fields as JSON, which ``typed_error`` parses. Errors contain no secrets. The code in
# brackets and the names of the fields are stable; the rest of the text is not.

MARKER: Final = "raftlog-facts "
"""Text before the JSON."""
_CODE: Final = "code"
_KINDS: Final = {
    kind.code: kind
    for module in (vars(errors), vars(client_errors), vars(state_errors), globals())
    for kind in module.values()
    if isinstance(kind, type) and issubclass(kind, RaftlogError)
}


class RaftlogWriteError(Exception):
    """Text of a sink's error for Spark. ``typed_error`` returns the original error."""


@contextmanager
def as_spark_error() -> Iterator[None]:
    """Convert errors of raftlog to ``RaftlogWriteError``."""
    try:
        yield
    except RaftlogError as error:
        raise RaftlogWriteError(spark_text(error)) from None


def spark_text(error: RaftlogError) -> str:
    """Return the error's text, with its remedy as a Spark option and its fields as JSON."""
    facts = {field.name: getattr(error, field.name) for field in fields(error)}
    try:
        encoded = json.dumps({_CODE: error.code, **facts}, separators=(",", ":"))
    except TypeError:
        return str(error)
    return f"{error}{_remedy(error)} ({MARKER}{encoded})"


def typed_error(problem: BaseException) -> RaftlogError | None:
    """Return the raftlog error in an exception, its text or its causes; None without one."""
    seen: list[BaseException] = []
    at: BaseException | None = problem
    while at is not None and at not in seen:
        if isinstance(at, RaftlogError):
            return at
        found = _read(str(at))
        if found is not None:
            return found
        seen.append(at)
        at = at.__cause__ or at.__context__
    return None


def conflict(problem: BaseException) -> UnexpectedEndOffsetError | None:
    """Return the ``UnexpectedEndOffsetError`` in an exception: another writer has appended.

    Returns None for any other failure. Read the log up to the error's ``log_end_offset``, then
    write again with that as the required base offset.
    """
    found = typed_error(problem)
    return found if isinstance(found, UnexpectedEndOffsetError) else None


def _remedy(error: RaftlogError) -> str:
    if isinstance(error, ForeignCommitError):
        return f": option txnTakeOverFrom={error.last_query_id}"
    return ""


def _read(text: str) -> RaftlogError | None:
    _, marker, rest = text.partition(MARKER)
    if not marker:
        return None
    try:
        facts, _ = json.JSONDecoder().raw_decode(rest)
        kind = _KINDS[facts.pop(_CODE)]
        given = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in facts.items()
        }
        return kind(**given)
    except (ValueError, KeyError, TypeError, AttributeError):
        return None  # another text, or an error of another version
