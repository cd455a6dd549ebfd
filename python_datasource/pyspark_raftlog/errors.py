"""Errors of the source: data loss conditions, and typed errors across Spark."""

from __future__ import annotations

import enum
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from typing import Final

from raftlog import errors
from raftlog.errors import DataLossError, ForeignCommitError, RaftlogError, UnexpectedEndOffsetError

# --- Conditions of data loss, and their remedies --------------------------------------------------
# The names are stable: the error's text contains ``[RAFTLOG_DATA_LOSS.<condition>]``, and Spark
# keeps only the text of an error.


class DataLoss(enum.StrEnum):
    """Reason why records cannot be read."""

    OFFSETS_DELETED = "OFFSETS_DELETED"
    """The log start offset is greater than the requested offset: segments were deleted."""

    LOG_TRUNCATED = "LOG_TRUNCATED"
    """The log ends before an offset that was already read: it was truncated, or is an old copy."""

    WRONG_CLUSTER = "WRONG_CLUSTER"
    """The path now contains the log of another cluster."""

    DIVERGED_EPOCH = "DIVERGED_EPOCH"
    """The last record read now has another leader epoch: the log was truncated and rewritten."""

    SNAPSHOT_DELETED = "SNAPSHOT_DELETED"
    """The snapshot whose rows are to be read again was deleted."""

    CHECKPOINT_MISMATCH = "CHECKPOINT_MISMATCH"
    """The checkpoint of the stream was not written by this source for this stream."""


_NEW_CHECKPOINT: Final = "start a new query with a new checkpointLocation"

_REMEDIES: Final[Mapping[DataLoss, str]] = {
    DataLoss.OFFSETS_DELETED: "read another node's replica, or accept the loss with "
    "failOnDataLoss=false, which resumes at the newest snapshot or at the log start offset",
    DataLoss.LOG_TRUNCATED: "read a more recent replica; with failOnDataLoss=false the stream "
    "waits until the log end offset has reached its offset again",
    DataLoss.WRONG_CLUSTER: f"correct the path, or {_NEW_CHECKPOINT}",
    DataLoss.DIVERGED_EPOCH: "records read after that offset were never committed; set "
    "failOnDataLoss=false to resume there, and correct the output of the stream",
    DataLoss.SNAPSHOT_DELETED: f"{_NEW_CHECKPOINT}, or accept the loss with failOnDataLoss=false, "
    "which resumes at the newest snapshot",
    DataLoss.CHECKPOINT_MISMATCH: _NEW_CHECKPOINT,
}


def data_loss(condition: DataLoss, *, path: str, reason: str) -> DataLossError:
    """Return the error for ``condition``, with its remedy."""
    return DataLossError(
        path=path, condition=condition.value, reason=reason, remedy=_REMEDIES[condition]
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
    for kind in vars(errors).values()
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

    None for any other failure. Read the log up to ``log_end_offset`` of the error, and write again
    with that as required base offset.
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
