"""Errors of bulk writes, such as those of the Spark sink. Import them from ``raftlog.errors``.

All of them are raised before the append: nothing was written.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from .base_errors import RaftlogError


@dataclass(kw_only=True, eq=False)
class WriteSchemaError(RaftlogError):
    """A column that a log of this kind does not accept."""

    column: str
    reason: str
    code: ClassVar[str] = "RAFTLOG_WRITE_SCHEMA"

    def message(self) -> str:
        return f"column {self.column}: {self.reason}; nothing was written"


@dataclass(kw_only=True, eq=False)
class InvalidRowError(RaftlogError):
    """A row that is not a valid record of the log. ``row`` counts from 0 in its partition."""

    column: str
    partition: int
    row: int
    reason: str
    code: ClassVar[str] = "RAFTLOG_INVALID_ROW"

    def message(self) -> str:
        return (
            f"row {self.row} of partition {self.partition}, column {self.column}: {self.reason}; "
            "nothing was written"
        )


@dataclass(kw_only=True, eq=False)
class CommitTooLargeError(RaftlogError):
    """A write whose rows do not fit into one record batch.

    ``byte_count`` is the size before compression, ``byte_count_max`` the limit of this write and
    ``log_byte_count_max`` the limit of the log.
    """

    path: str
    byte_count: int
    byte_count_max: int
    log_byte_count_max: int
    code: ClassVar[str] = "RAFTLOG_COMMIT_TOO_LARGE"
    kafka_code: ClassVar[int | None] = 10

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


@dataclass(kw_only=True, eq=False)
class CommitMessageError(RaftlogError):
    """A task's commit message that is incomplete, or not of this write."""

    reason: str
    code: ClassVar[str] = "RAFTLOG_COMMIT_MESSAGE"
    retriable: ClassVar[bool] = True

    def message(self) -> str:
        return f"invalid commit message of a task: {self.reason}; nothing was written, retry"
