"""Why an append was refused, or what became of it.

Rules of this file:

1. Import these from ``raftlog.errors``, whose rules hold here too.
2. An ``AppendError`` changed nothing: no byte was written and no offset given. The one error after
   which that is not known is ``AppendUnknownError``, and it is none.
3. Where Kafka has words for a refusal (Kafka: ``BatchAccumulator``), ours begin with them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from .base_errors import LogError, location_text


@dataclass(kw_only=True, eq=False)
class AppendError(LogError):
    """An append was refused and changed nothing. Catch it to catch every refusal."""

    code: ClassVar[str] = "RAFTLOG_APPEND"


# --- the token and the epoch ----------------------------------------------------------------------


@dataclass(kw_only=True, eq=False)
class UnexpectedEndOffsetError(AppendError):
    """A rival was first: the log's end is not where the caller's token says.

    ``required_end_offset`` is the offset that the last record was to get and
    ``required_base_offset`` the first one's: that of the two which does not hold, or both.
    ``log_end_offset`` is where the next record goes.
    """

    required_end_offset: int | None = None
    required_base_offset: int | None = None
    record_count: int
    log_end_offset: int
    code: ClassVar[str] = "RAFTLOG_UNEXPECTED_END_OFFSET"
    kafka_code: ClassVar[int | None] = 95

    @property
    def next_available_offset(self) -> int:
        """The offset that the last record would have got (Kafka's "next available")."""
        return self.log_end_offset + self.record_count - 1

    def message(self) -> str:
        if self.required_end_offset is not None:
            what = (
                f"Wanted end offset {self.required_end_offset}, "
                f"but next available was {self.next_available_offset}"
            )
        else:
            what = (
                f"Wanted base offset {self.required_base_offset}, "
                f"but the next offset was {self.log_end_offset}"
            )
        return f"{what}; read up to log end offset {self.log_end_offset}, decide again and retry"


@dataclass(kw_only=True, eq=False)
class NotLeaderError(AppendError):
    """The caller's epoch is over: another leader or writer has claimed the log since."""

    epoch: int
    current_epoch: int
    code: ClassVar[str] = "RAFTLOG_NOT_LEADER"
    kafka_code: ClassVar[int | None] = 6

    def message(self) -> str:
        return (
            f"Append failed because the given epoch {self.epoch} is stale. Current leader epoch = "
            f"{self.current_epoch}; read the log again and append under that epoch"
        )


@dataclass(kw_only=True, eq=False)
class FutureEpochError(AppendError):
    """The caller's bug: it names an epoch that has not begun."""

    epoch: int
    current_epoch: int
    code: ClassVar[str] = "RAFTLOG_FUTURE_EPOCH"
    kafka_code: ClassVar[int | None] = 75

    def message(self) -> str:
        return (
            f"Attempt to append from epoch {self.epoch} which is larger than the current epoch "
            f"{self.current_epoch}; use the epoch that the log answered with"
        )


# --- what was to be appended ----------------------------------------------------------------------


@dataclass(kw_only=True, eq=False)
class InvalidAppendError(AppendError):
    """The caller's bug: these records, or these arguments together, can never be appended."""

    reason: str
    code: ClassVar[str] = "RAFTLOG_INVALID_APPEND"
    kafka_code: ClassVar[int | None] = 87

    def message(self) -> str:
        return f"Append failed because {self.reason}"


@dataclass(kw_only=True, eq=False)
class InvalidTimestampError(AppendError):
    """A record's timestamp is too far ahead of the clock of the log's writer.

    Time retention would keep it, and all that follows, until that time has passed.
    """

    timestamp_ms: int
    now_ms: int
    after_ms_max: int
    code: ClassVar[str] = "RAFTLOG_INVALID_TIMESTAMP"
    kafka_code: ClassVar[int | None] = 32

    def message(self) -> str:
        return (
            f"Timestamp {self.timestamp_ms} of a record is out of range. The timestamp should be "
            f"at most {self.after_ms_max} ms after {self.now_ms}, the clock of the log's writer; "
            "correct the timestamp, or the clocks"
        )


@dataclass(kw_only=True, eq=False)
class RecordBatchTooLargeError(AppendError):
    """The records do not fit into one batch: the caller must split them."""

    byte_count: int
    byte_count_max: int
    code: ClassVar[str] = "RAFTLOG_RECORD_BATCH_TOO_LARGE"
    kafka_code: ClassVar[int | None] = 10

    def message(self) -> str:
        return (
            f"The total record(s) size of {self.byte_count} exceeds the maximum allowed batch "
            f"size of {self.byte_count_max}; append fewer records at once"
        )


@dataclass(kw_only=True, eq=False)
class BufferAllocationError(AppendError):
    """Too much is waiting to be written: the disk is slower than the callers. Wait and retry."""

    byte_count: int
    byte_count_max: int
    code: ClassVar[str] = "RAFTLOG_BUFFER_ALLOCATION"
    retriable: ClassVar[bool] = True

    def message(self) -> str:
        return (
            f"Append failed because we failed to allocate memory to write the batch: "
            f"{self.byte_count} more bytes would exceed the {self.byte_count_max} that may wait to "
            "be written; let earlier appends finish and retry"
        )


# --- who appends ----------------------------------------------------------------------------------


@dataclass(kw_only=True, eq=False)
class OutOfOrderSequenceError(AppendError):
    """A producer's batch does not follow its last one: one was lost, or is too old to be known."""

    producer_id: int
    producer_epoch: int
    sequence: int
    expected_sequence: int
    code: ClassVar[str] = "RAFTLOG_OUT_OF_ORDER_SEQUENCE"
    kafka_code: ClassVar[int | None] = 45

    def message(self) -> str:
        return (
            f"Out of order sequence number for producer {self.producer_id} in epoch "
            f"{self.producer_epoch}: {self.sequence} (incoming seq. number), "
            f"{self.expected_sequence} (expected); append the missing batch first, or begin a new "
            "producer epoch"
        )


@dataclass(kw_only=True, eq=False)
class InvalidProducerEpochError(AppendError):
    """The producer is fenced: a later incarnation of it has appended."""

    producer_id: int
    producer_epoch: int
    current_producer_epoch: int
    code: ClassVar[str] = "RAFTLOG_INVALID_PRODUCER_EPOCH"
    kafka_code: ClassVar[int | None] = 47

    def message(self) -> str:
        return (
            f"Epoch of producer {self.producer_id} is {self.producer_epoch}, which is smaller than "
            f"the last seen epoch {self.current_producer_epoch}; a later incarnation took over, so "
            "stop this one"
        )


@dataclass(kw_only=True, eq=False)
class StaleCommitError(AppendError):
    """A named commit is older than the application's last one: a later run has gone past it."""

    application_id: str
    query_id: str
    version: int
    last_version: int
    code: ClassVar[str] = "RAFTLOG_STALE_COMMIT"

    def message(self) -> str:
        return (
            f"commit {self.version} of application {self.application_id!r} (query "
            f"{self.query_id!r}) is older than its last one, {self.last_version}; another run of "
            "it has gone on, so stop this one"
        )


@dataclass(kw_only=True, eq=False)
class ForeignCommitError(AppendError):
    """Another query commits under the same application id: one of the two has the wrong name."""

    application_id: str
    query_id: str
    version: int
    last_query_id: str
    last_version: int
    code: ClassVar[str] = "RAFTLOG_FOREIGN_COMMIT"

    def message(self) -> str:
        return (
            f"application {self.application_id!r} belongs to query {self.last_query_id!r} (last "
            f"commit {self.last_version}), and query {self.query_id!r} wants to write its commit "
            f"{self.version}; give this query an application id of its own, or take the name over "
            "if the other one is gone for good"
        )


# --- the log that should have taken it ------------------------------------------------------------


@dataclass(kw_only=True, eq=False)
class LogClosedError(AppendError):
    """The log was closed by its owner, or closed itself after the error that ``reason`` names.

    ``remedy`` replaces the usual advice.
    """

    reason: str
    path: str | None = None
    remedy: str | None = None
    code: ClassVar[str] = "RAFTLOG_LOG_CLOSED"

    def message(self) -> str:
        remedy = self.remedy or "open it again"
        return f"{self.path or 'the log'} is closed: {self.reason}; {remedy}"


@dataclass(kw_only=True, eq=False)
class LogReadOnlyError(AppendError):
    """Damage below the durable mark: acknowledged records are hurt, and nothing is built on that.

    ``position`` and ``offset`` are where what is whole ends.
    """

    path: str
    reason: str
    remedy: str
    position: int | None = None
    offset: int | None = None
    code: ClassVar[str] = "RAFTLOG_LOG_READ_ONLY"
    kafka_code: ClassVar[int | None] = 56

    def message(self) -> str:
        place = location_text(self.path, self.position, self.offset)
        return f"{place}: the log can only be read: {self.reason}; {self.remedy}"


@dataclass(kw_only=True, eq=False)
class LogLockedError(AppendError):
    """Another writer held the log's lock for as long as the caller would wait. Retry."""

    path: str
    waited_ms: int
    code: ClassVar[str] = "RAFTLOG_LOG_LOCKED"
    retriable: ClassVar[bool] = True

    def message(self) -> str:
        return (
            f"{self.path} was held by another writer for {self.waited_ms} ms; retry, or look for a "
            "writer that hangs"
        )


@dataclass(kw_only=True, eq=False)
class AppendUnknownError(LogError):
    """It is not known whether the records were appended: the answer was lost, or the disk failed.

    Not ``retriable`` as it is: only an append that names its commit or its producer's sequence is
    recognised when it comes again.
    """

    path: str
    reason: str
    code: ClassVar[str] = "RAFTLOG_APPEND_UNKNOWN"
    kafka_code: ClassVar[int | None] = 7

    def message(self) -> str:
        return (
            f"{self.path}: unknown outcome of an append: {self.reason}; append again under the "
            "same commit name or producer sequence, or read the end of the log before you do"
        )
