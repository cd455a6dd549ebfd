"""Why rows of a table cannot become records: what a bulk writer, such as Spark's sink, refuses.

Rules of this file:

1. Import these from ``raftlog.errors``, whose rules hold here too.
2. All of them are raised before anything is appended: nothing was written.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from .base_errors import RaftlogError


@dataclass(kw_only=True, eq=False)
class WriteSchemaError(RaftlogError):
    """The columns are not those that a log of this kind takes: the caller's mistake."""

    column: str
    reason: str
    code: ClassVar[str] = "RAFTLOG_WRITE_SCHEMA"

    def message(self) -> str:
        return f"column {self.column}: {self.reason}; nothing was written"


@dataclass(kw_only=True, eq=False)
class InvalidRowError(RaftlogError):
    """One row cannot be a record of this log. ``row`` counts from 0 within its task's partition."""

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
    """All rows of a write are one record batch, and this one would be too large.

    ``byte_count`` is what it would take, before compression. ``byte_count_max`` is what was allowed
    for this write, ``log_byte_count_max`` what the log allows.
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
            f"this write is one record batch of {self.byte_count} bytes, and {self.byte_count_max} "
            f"are allowed in {self.path}; nothing was written: write fewer rows at once, or "
            f"{raising}; a stream then goes on from where it stopped"
        )


@dataclass(kw_only=True, eq=False)
class CommitMessageError(RaftlogError):
    """What a task sent to the driver did not arrive whole, or not from this write."""

    reason: str
    code: ClassVar[str] = "RAFTLOG_COMMIT_MESSAGE"
    retriable: ClassVar[bool] = True

    def message(self) -> str:
        return f"rows sent by a task cannot be used: {self.reason}; nothing was written: try again"
