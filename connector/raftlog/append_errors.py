"""Errors of appends. Import them from ``raftlog.errors``.

After an ``AppendError`` nothing has changed: no byte was written and no offset was assigned.
``AppendUnknownError``, whose outcome is unknown, is therefore not an ``AppendError``. Messages
begin with Kafka's text where Kafka has one (Kafka: ``BatchAccumulator``, ``ProducerAppendInfo``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from .base_errors import LogError, location_text


@dataclass(kw_only=True, eq=False)
class AppendError(LogError):
    """Base class of rejected appends. Nothing was written."""

    code: ClassVar[str] = "RAFTLOG_APPEND"


# --- required offsets and the leader epoch --------------------------------------------------------


@dataclass(kw_only=True, eq=False)
class UnexpectedEndOffsetError(AppendError):
    """The log end offset is not the required one: another writer has appended in between.

    ``required_end_offset`` is the offset required for the last record, ``required_base_offset`` the
    one for the first record; None for one that was not required, or that matched.
    ``log_end_offset`` is the offset of the next record.
    """

    required_end_offset: int | None = None
    required_base_offset: int | None = None
    record_count: int
    log_end_offset: int
    code: ClassVar[str] = "RAFTLOG_UNEXPECTED_END_OFFSET"
    kafka_code: ClassVar[int | None] = 95

    @property
    def next_available_offset(self) -> int:
        """The offset that the last record would have been assigned (Kafka: "next available")."""
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
        return f"{what}; read up to log end offset {self.log_end_offset}, then retry"


@dataclass(kw_only=True, eq=False)
class NotLeaderError(AppendError):
    """A stale leader epoch: another leader or writer has claimed the log since."""

    epoch: int
    current_epoch: int
    code: ClassVar[str] = "RAFTLOG_NOT_LEADER"
    kafka_code: ClassVar[int | None] = 6

    def message(self) -> str:
        return (
            f"Append failed because the given epoch {self.epoch} is stale. Current leader epoch = "
            f"{self.current_epoch}; read the log again and append with the current epoch"
        )


@dataclass(kw_only=True, eq=False)
class FutureEpochError(AppendError):
    """A leader epoch larger than the current one: a bug of the caller."""

    epoch: int
    current_epoch: int
    code: ClassVar[str] = "RAFTLOG_FUTURE_EPOCH"
    kafka_code: ClassVar[int | None] = 75

    def message(self) -> str:
        return (
            f"Attempt to append from epoch {self.epoch} which is larger than the current epoch "
            f"{self.current_epoch}; use the epoch that the log returned"
        )


# --- records --------------------------------------------------------------------------------------


@dataclass(kw_only=True, eq=False)
class InvalidAppendError(AppendError):
    """Records or arguments that can never be appended: a bug of the caller. Do not retry."""

    reason: str
    code: ClassVar[str] = "RAFTLOG_INVALID_APPEND"
    kafka_code: ClassVar[int | None] = 87

    def message(self) -> str:
        return f"Append failed because {self.reason}"


@dataclass(kw_only=True, eq=False)
class InvalidTimestampError(AppendError):
    """A record's timestamp is too far ahead of the clock of the log's writer.

    Time-based retention would keep it, and all records after it, until that time has passed.
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
            "correct the timestamp or synchronize the clocks"
        )


@dataclass(kw_only=True, eq=False)
class RecordBatchTooLargeError(AppendError):
    """Records that do not fit into one batch. Split them. Sizes include the batch header."""

    byte_count: int
    byte_count_max: int
    code: ClassVar[str] = "RAFTLOG_RECORD_BATCH_TOO_LARGE"
    kafka_code: ClassVar[int | None] = 10

    def message(self) -> str:
        return (
            f"The total record(s) size of {self.byte_count} exceeds the maximum allowed batch "
            f"size of {self.byte_count_max}; append fewer records per batch"
        )


@dataclass(kw_only=True, eq=False)
class BufferAllocationError(AppendError):
    """The buffer of pending appends is full: the disk is slower than the writers. Retry later."""

    byte_count: int
    byte_count_max: int
    code: ClassVar[str] = "RAFTLOG_BUFFER_ALLOCATION"
    retriable: ClassVar[bool] = True

    def message(self) -> str:
        return (
            f"Append failed because we failed to allocate memory to write the batch: "
            f"{self.byte_count} more bytes would exceed the limit of {self.byte_count_max} bytes "
            "of pending appends; wait for earlier appends, then retry"
        )


# --- producers and applications -------------------------------------------------------------------


@dataclass(kw_only=True, eq=False)
class OutOfOrderSequenceError(AppendError):
    """A producer's batch does not follow its last batch: a batch is missing, or it is a duplicate
    of one older than those that the log remembers (``limits.PRODUCER_BATCHES_KEPT``)."""

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
            f"{self.expected_sequence} (expected); append the missing batch first, or bump the "
            "producer epoch"
        )


@dataclass(kw_only=True, eq=False)
class InvalidProducerEpochError(AppendError):
    """A fenced producer: a newer instance with a higher producer epoch has appended."""

    producer_id: int
    producer_epoch: int
    current_producer_epoch: int
    code: ClassVar[str] = "RAFTLOG_INVALID_PRODUCER_EPOCH"
    kafka_code: ClassVar[int | None] = 47

    def message(self) -> str:
        return (
            f"Epoch of producer {self.producer_id} is {self.producer_epoch}, which is smaller than "
            f"the last seen epoch {self.current_producer_epoch}; a newer instance has fenced this "
            "producer, stop this instance"
        )


@dataclass(kw_only=True, eq=False)
class StaleCommitError(AppendError):
    """A commit version older than the application's last one: a newer run has committed."""

    application_id: str
    query_id: str
    version: int
    last_version: int
    code: ClassVar[str] = "RAFTLOG_STALE_COMMIT"

    def message(self) -> str:
        return (
            f"commit {self.version} of application {self.application_id!r} (query "
            f"{self.query_id!r}) is older than its last commit {self.last_version}; another run "
            "of this application has continued, stop this run"
        )


@dataclass(kw_only=True, eq=False)
class ForeignCommitError(AppendError):
    """An application id that belongs to another query: one of the two has the wrong id."""

    application_id: str
    query_id: str
    version: int
    last_query_id: str
    last_version: int
    code: ClassVar[str] = "RAFTLOG_FOREIGN_COMMIT"

    def message(self) -> str:
        return (
            f"application id {self.application_id!r} belongs to query {self.last_query_id!r} (last "
            f"commit {self.last_version}) and was used by query {self.query_id!r} for commit "
            f"{self.version}; give this query its own application id, or take over the id "
            "(take_over_from) if the other query has ended permanently"
        )


# --- the log --------------------------------------------------------------------------------------


@dataclass(kw_only=True, eq=False)
class LogClosedError(AppendError):
    """The log was closed by its owner, or after a failure, which ``reason`` names.

    ``remedy`` replaces the default advice.
    """

    reason: str
    path: str | None = None
    remedy: str | None = None
    code: ClassVar[str] = "RAFTLOG_LOG_CLOSED"

    def message(self) -> str:
        remedy = self.remedy or "reopen it"
        return f"{self.path or 'the log'} is closed: {self.reason}; {remedy}"


@dataclass(kw_only=True, eq=False)
class LogReadOnlyError(AppendError):
    """A log opened read-only: corruption below the recovery point (acknowledged records), or a log
    that raftlog did not create.

    ``position`` and ``offset`` are the end of the valid records, None if unknown.
    """

    path: str
    reason: str
    remedy: str
    position: int | None = None
    offset: int | None = None
    code: ClassVar[str] = "RAFTLOG_LOG_READ_ONLY"
    kafka_code: ClassVar[int | None] = 56

    def message(self) -> str:
        location = location_text(self.path, self.position, self.offset)
        return f"{location}: the log is read-only: {self.reason}; {self.remedy}"


@dataclass(kw_only=True, eq=False)
class LogLockedError(AppendError):
    """Another writer held the log's lock until the caller's timeout. Retry."""

    path: str
    waited_ms: int
    code: ClassVar[str] = "RAFTLOG_LOG_LOCKED"
    retriable: ClassVar[bool] = True

    def message(self) -> str:
        return (
            f"{self.path} is locked by another writer (waited {self.waited_ms} ms); retry, or look "
            "for a writer process that hangs"
        )


@dataclass(kw_only=True, eq=False)
class AppendUnknownError(LogError):
    """An append with unknown outcome: the response was lost, or the disk failed.

    Not ``retriable``: only an append with a commit name or a producer sequence is recognized as a
    duplicate when it is repeated.
    """

    path: str
    reason: str
    code: ClassVar[str] = "RAFTLOG_APPEND_UNKNOWN"
    kafka_code: ClassVar[int | None] = 7

    def message(self) -> str:
        return (
            f"{self.path}: unknown outcome of an append: {self.reason}; retry with the same commit "
            "name or producer sequence, or read the end of the log before you append again"
        )
