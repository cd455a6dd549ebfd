"""All errors that raftlog raises to its callers, except those of ``raftlog.storage.errors``,
``raftlog.client.errors``, ``raftlog.node.errors``, ``raftlog_state.errors`` and
``pyspark_raftlog.errors``. An error that raftlog itself handles is defined next to the code that
raises it.

``str(error)`` is ``[CODE] message``: a stable code, then where, what, why and what to do. The code
is part of the text because Spark keeps only the text of an error that crosses a process.

An error stores its facts as keyword-only fields and survives pickling. No field contains a secret:
values of records and of options, passwords, and the contents of keys and requests are never part
of an error.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, ClassVar, Final, dataclass_transform


def location_text(path: str | None, position: int | None = None, offset: int | None = None) -> str:
    """Format a location as ``path at byte 61, offset 7``, without the parts that are None."""
    text = path or "the buffer"
    if position is not None:
        text += f" at byte {position}"
    if offset is not None:
        text += f", offset {offset}"
    return text


@dataclass_transform(kw_only_default=True, eq_default=False)
@dataclass(kw_only=True, eq=False)
class RaftlogError(Exception):
    """Base class of all errors of raftlog. A subclass is a dataclass with keyword-only fields.

    ``code`` is stable. ``retriable``: the same call may succeed later. ``kafka_code`` is the number
    in Kafka's ``Errors``, None if Kafka has no such error. A subclass sets them as keywords;
    otherwise it inherits those of its base class.
    """

    code: ClassVar[str] = "RAFTLOG_ERROR"
    retriable: ClassVar[bool] = False
    kafka_code: ClassVar[int | None] = None

    def __init_subclass__(
        cls,
        *,
        code: str | None = None,
        retriable: bool | None = None,
        kafka_code: int | None = None,
    ) -> None:
        super().__init_subclass__()
        cls.code = code or cls.code
        cls.retriable = cls.retriable if retriable is None else retriable
        cls.kafka_code = cls.kafka_code if kafka_code is None else kafka_code
        dataclass(kw_only=True, eq=False)(cls)

    def message(self) -> str:
        """Return the text without the code."""
        return type(self).__name__

    def __str__(self) -> str:
        return f"[{self.code}] {self.message()}"

    def __reduce__(self) -> tuple[Any, ...]:
        facts = {field.name: getattr(self, field.name) for field in fields(self)}
        return _rebuild, (type(self), facts)


def _rebuild(kind: type[RaftlogError], facts: dict[str, Any]) -> RaftlogError:
    return kind(**facts)


class LogError(RaftlogError, code="RAFTLOG_LOG"):
    """Base class of errors of a log and of requests to it."""


class OptionError(RaftlogError, code="RAFTLOG_OPTION"):
    """An option is unknown, or its value is not allowed. The value itself is never shown."""

    option: str
    reason: str

    def message(self) -> str:
        return f"option {self.option}: {self.reason}"


# --- A log and its files --------------------------------------------------------------------------


class LogNotFoundError(LogError, code="RAFTLOG_LOG_NOT_FOUND"):
    """The path does not exist. ``remedy`` replaces the default advice."""

    path: str
    remedy: str | None = None

    def message(self) -> str:
        remedy = self.remedy or "check the path and the host that reads it"
        return f"{self.path} does not exist; {remedy}"


class LogAccessError(LogError, code="RAFTLOG_LOG_ACCESS"):
    """The file system denied a read or a write; the state of the log itself is unknown.

    ``remedy`` replaces the default advice if the reason is not a missing permission.
    """

    path: str
    reason: str
    to_write: bool = False
    remedy: str | None = None

    def message(self) -> str:
        verb, right = ("written", "write") if self.to_write else ("read", "read")
        remedy = self.remedy or f"grant this user {right} permission"
        return f"{self.path} cannot be {verb}: {self.reason}; {remedy}"


class FileExistsLogError(LogError, code="RAFTLOG_FILE_EXISTS"):
    """A file to be created already exists: created by another writer or by a process that died.

    ``remedy`` replaces the default advice.
    """

    path: str
    remedy: str | None = None

    def message(self) -> str:
        return (
            f"cannot create {self.path}: it already exists, created by another writer or left by a "
            f"process that died; {self.remedy or 'reopen the log'}"
        )


class DiskFullError(LogError, code="RAFTLOG_DISK_FULL", kafka_code=56):
    """The disk is full. Nothing was written, or only a prefix of the bytes."""

    path: str
    reason: str

    def message(self) -> str:
        return f"cannot write to {self.path}: {self.reason}; free space on its disk, then retry"


class DiskFailedError(LogError, code="RAFTLOG_DISK_FAILED", kafka_code=56):
    """A write or an fsync failed: bytes written since the last successful fsync may be lost.

    Never retry an fsync: the kernel drops pages that it could not write, and the next fsync
    succeeds without them (Rebello et al., "Can Applications Recover from fsync Failures?", ATC
    2020).
    """

    path: str
    reason: str

    def message(self) -> str:
        return (
            f"write or fsync of {self.path} failed: {self.reason}; data written since the last "
            "successful fsync may be lost although it can still be read: close this log, check "
            "the disk, then reopen the log"
        )


class NotALogError(LogError, code="RAFTLOG_NOT_A_LOG"):
    """The path is not an ``expected`` log. ``remedy`` replaces the list of what can be read."""

    path: str
    reason: str
    remedy: str | None = None
    expected: str = "a Kafka log"

    def message(self) -> str:
        remedy = self.remedy or (
            "expected a metadata directory, a node's log directory, a partition directory, a .log "
            "segment or a .checkpoint snapshot"
        )
        return f"{self.path} is not {self.expected}: {self.reason}; {remedy}"


class UnknownRecordKindError(LogError, code="RAFTLOG_UNKNOWN_RECORD_KIND"):
    """The kind of a log's records is unknown, so secrets in them could not be redacted."""

    path: str
    reason: str

    def message(self) -> str:
        return (
            f"cannot determine whether the records of {self.path} are cluster metadata, whose "
            f"secrets are redacted: {self.reason}; declare it with --as metadata or --as "
            'partition, in Spark with .option("values", "kraft") or .option("values", "bytes")'
        )


class CorruptBatchError(LogError, code="RAFTLOG_CORRUPT_BATCH", kafka_code=2):
    """A corrupt record batch at ``position``. The bytes before it are valid."""

    reason: str
    path: str | None = None
    position: int | None = None
    offset: int | None = None

    def message(self) -> str:
        location = location_text(self.path, self.position, self.offset)
        return (
            f"corrupt record batch in {location}: {self.reason}; the batches before it are valid, "
            "run `raftlog check` to examine those after it"
        )


class UnsupportedMagicError(CorruptBatchError, code="RAFTLOG_UNSUPPORTED_MAGIC", kafka_code=43):
    """A batch has the message format of Kafka before 0.11 (magic 0 or 1); KRaft never wrote it."""

    magic: int


_RAISE_LIMIT: Final = (
    "raise the limit (--max-decompressed-bytes, in Spark the option maxDecompressedBytes, in "
    "Python decompressed_bytes_max)"
)


class DecompressionLimitError(CorruptBatchError, code="RAFTLOG_DECOMPRESSION_LIMIT", kafka_code=10):
    """A batch exceeds the reader's limit when it is decompressed. It may be valid."""

    byte_count_max: int
    remedy: ClassVar[str] = _RAISE_LIMIT

    def message(self) -> str:
        location = location_text(self.path, self.position, self.offset)
        return (
            f"record batch in {location} exceeds the decompression limit: {self.reason}; "
            f"{self.remedy}, or read from the next batch on"
        )


class HeaderLimitError(CorruptBatchError, code="RAFTLOG_HEADER_LIMIT", kafka_code=87):
    """A record or a batch has more headers than the limit; none of them was decoded."""

    header_count_max: int

    def message(self) -> str:
        location = location_text(self.path, self.position, self.offset)
        return (
            f"record batch in {location} exceeds the header limit: {self.reason}; read from the "
            "next batch on"
        )


class LogGapError(LogError, code="RAFTLOG_LOG_GAP"):
    """Offsets that must be contiguous have a gap or decrease."""

    path: str
    position: int | None
    expected_offset: int
    offset: int

    def message(self) -> str:
        location = location_text(self.path, self.position)
        if self.offset < self.expected_offset:
            last = self.expected_offset - 1
            what = f"offset {self.offset} follows offset {last}, offsets must increase"
        else:
            what = (
                f"offsets {self.expected_offset} to {self.offset - 1} are missing "
                "(a lost segment, or corruption)"
            )
        return f"{location}: {what}; read another voter's replica, or start at a later offset"


class ForeignBatchError(LogError, code="RAFTLOG_FOREIGN_BATCH"):
    """Another process wrote or removed bytes or batches in the log of a quorum's node.

    ``offset`` is where they begin, None if unknown.
    """

    path: str
    reason: str
    remedy: str
    offset: int | None = None

    def message(self) -> str:
        location = location_text(self.path, offset=self.offset)
        return f"{location}: another process changed this node's log: {self.reason}; {self.remedy}"


class StateMachineError(RaftlogError, code="RAFTLOG_STATE_MACHINE"):
    """A node's state machine cannot apply a committed record."""

    offset: int
    reason: str

    def message(self) -> str:
        return (
            f"the record at offset {self.offset} cannot be applied: {self.reason}; compare the "
            "nodes' logs with `raftlog check`"
        )


class TransactionMarkerError(LogError, code="RAFTLOG_TRANSACTION_MARKER"):
    """A metadata transaction begins inside another one, or ends where none is open."""

    path: str
    offset: int
    reason: str

    def message(self) -> str:
        return (
            f"{location_text(self.path, None, self.offset)}: {self.reason}, so it is unknown "
            "which later records are committed; read with isolation level read_uncommitted to "
            "get all of them"
        )


class CorruptFileError(LogError, code="RAFTLOG_CORRUPT_FILE"):
    """A file next to the segments is corrupt: index, epoch checkpoint, quorum-state, properties."""

    path: str
    reason: str
    position: int | None = None

    def message(self) -> str:
        return f"{location_text(self.path, self.position)} is corrupt: {self.reason}"


class CorruptSnapshotError(CorruptFileError, code="RAFTLOG_CORRUPT_SNAPSHOT"):
    """A snapshot (.checkpoint) has no header or footer, or contains a corrupt batch."""

    def message(self) -> str:
        location = location_text(self.path, self.position)
        return f"snapshot {location} is corrupt: {self.reason}; use an older snapshot"


class SnapshotDecompressionLimitError(
    CorruptSnapshotError, code="RAFTLOG_SNAPSHOT_DECOMPRESSION_LIMIT"
):
    """A snapshot's batch exceeds the reader's limit when it is decompressed. It may be valid."""

    byte_count_max: int
    remedy: ClassVar[str] = _RAISE_LIMIT

    def message(self) -> str:
        location = location_text(self.path, self.position)
        return (
            f"snapshot {location} exceeds the decompression limit: {self.reason}; {self.remedy}, "
            "or use an older snapshot"
        )


class SnapshotRefusedError(LogError, code="RAFTLOG_SNAPSHOT_REFUSED"):
    """The log does not allow the snapshot id: a bug of the caller. Nothing was written.

    ``end_offset`` is exclusive (Kafka: ``KafkaRaftLog.validateSnapshotId``).
    """

    path: str
    end_offset: int
    epoch: int
    reason: str

    def message(self) -> str:
        return (
            f"cannot create a snapshot of {self.path} at end offset {self.end_offset}, epoch "
            f"{self.epoch}: {self.reason}; end it after a committed batch, with that batch's epoch"
        )


class TruncationRefusedError(LogError, code="RAFTLOG_TRUNCATION_REFUSED"):
    """A truncation below the high watermark would delete committed records."""

    path: str
    offset: int
    high_watermark: int

    def message(self) -> str:
        return (
            f"cannot truncate {self.path} to offset {self.offset}, which is below the high "
            f"watermark {self.high_watermark}; find out which replica is wrong before you continue"
        )


class OffsetOutOfRangeError(LogError, code="RAFTLOG_OFFSET_OUT_OF_RANGE", kafka_code=1):
    """The requested offset is not in the log. ``log_end_offset`` is exclusive."""

    path: str
    offset: int
    log_start_offset: int
    log_end_offset: int

    def message(self) -> str:
        is_time = self.offset >= 10**12
        remedy = f"a time is timestamp:{self.offset}" if is_time else "give an offset between them"
        return (
            f"offset {self.offset} is out of range for {self.path}: log start offset "
            f"{self.log_start_offset}, log end offset {self.log_end_offset} (exclusive); {remedy}"
        )


class OffsetNotFoundError(LogError, code="RAFTLOG_OFFSET_NOT_FOUND"):
    """The log does not contain the leader epoch or snapshot that specifies an offset."""

    path: str
    wanted: str
    remedy: str

    def message(self) -> str:
        return f"{self.path} has no {self.wanted}; {self.remedy}"


class SegmentDeletedError(LogError, code="RAFTLOG_SEGMENT_DELETED", retriable=True):
    """The node deleted or rolled a file during a read. List the segments again and retry."""

    path: str

    def message(self) -> str:
        return f"{self.path} was deleted by its node during the read; retry"


class TooFewVotersError(LogError, code="RAFTLOG_TOO_FEW_VOTERS"):
    """Fewer than a majority of the voters' directories were given."""

    given: tuple[int, ...]
    voters: tuple[int, ...]

    def message(self) -> str:
        need = len(self.voters) // 2 + 1
        return (
            f"only the directories of voters {list(self.given)} were given, but {need} of the "
            f"voters {list(self.voters)} are needed to compute the high watermark; add the missing "
            "directories, or read a single directory up to its own end"
        )


class WrongClusterError(LogError, code="RAFTLOG_WRONG_CLUSTER", kafka_code=104):
    """The cluster id is not the expected one."""

    path: str
    expected_cluster_id: str
    cluster_id: str
    remedy: str

    def message(self) -> str:
        return (
            f"{self.path} belongs to cluster {self.cluster_id}, "
            f"expected cluster {self.expected_cluster_id}; {self.remedy}"
        )


class DivergedLogError(LogError, code="RAFTLOG_DIVERGED"):
    """Leader epochs differ at one offset: one of two logs was truncated and rewritten."""

    path: str
    offset: int
    expected_epoch: int
    epoch: int
    remedy: str

    def message(self) -> str:
        return (
            f"{self.path} diverged: leader epoch {self.epoch} at offset {self.offset}, "
            f"expected epoch {self.expected_epoch} as read before; {self.remedy}"
        )


class DataLossError(LogError, code="RAFTLOG_DATA_LOSS"):
    """Records to be read no longer exist. ``condition`` is stable and machine-readable.

    OFFSETS_DELETED: they are below the log start offset. LOG_TRUNCATED: they are at or above the
    log end offset. OFFSETS_COMPACTED: compaction may have removed some of them. The Spark source
    adds conditions; conditions with the same name have the same meaning.
    """

    path: str
    condition: str
    reason: str
    remedy: str

    def __str__(self) -> str:
        return f"[{self.code}.{self.condition}] {self.message()}"

    def message(self) -> str:
        return f"{self.path}: {self.reason}; {self.remedy}"


class TableLagError(LogError, code="RAFTLOG_TABLE_LAG", retriable=True, kafka_code=7):
    """A table did not apply the record at ``offset`` in time. ``end_offset`` is exclusive."""

    path: str
    offset: int
    end_offset: int
    waited_ms: int

    def message(self) -> str:
        return (
            f"the table of {self.path} has records below offset {self.end_offset}, and not that at "
            f"{self.offset} (waited {self.waited_ms} ms); retry, or check that the log has it"
        )


# --- Appends --------------------------------------------------------------------------------------
# After an ``AppendError`` nothing has changed: no byte was written and no offset was assigned.
# ``AppendUnknownError``, whose outcome is unknown, is therefore not an ``AppendError``. Messages
# begin with Kafka's text where Kafka has one (Kafka: ``BatchAccumulator``, ``ProducerAppendInfo``).


class AppendError(LogError, code="RAFTLOG_APPEND"):
    """Base class of rejected appends. Nothing was written."""


class UnexpectedEndOffsetError(AppendError, code="RAFTLOG_UNEXPECTED_END_OFFSET", kafka_code=95):
    """The log end offset is not the required one: another writer has appended in the meantime.

    ``required_end_offset`` is the offset required for the last record, ``required_base_offset`` the
    one for the first record; None for one that was not required, or that matched.
    ``log_end_offset`` is the offset of the next record.
    """

    required_end_offset: int | None = None
    required_base_offset: int | None = None
    record_count: int
    log_end_offset: int

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


class KeyChangedError(AppendError, code="RAFTLOG_KEY_CHANGED", kafka_code=95):
    """The last record of a key is not the required one: another writer has changed the key.

    An offset is None for a key that has no record or was deleted.
    """

    path: str
    expected_offset: int | None
    offset: int | None

    def message(self) -> str:
        expected, actual = (
            "no record" if one is None else f"offset {one}"
            for one in (self.expected_offset, self.offset)
        )
        return (
            f"{self.path}: a key changed: {expected} was expected as that of its last record, and "
            f"{actual} was found; read the key again, then decide again"
        )


class NotLeaderError(AppendError, code="RAFTLOG_NOT_LEADER", kafka_code=6):
    """The leader epoch is stale, or the node is not the leader of the current epoch."""

    epoch: int
    current_epoch: int

    def message(self) -> str:
        if self.epoch == self.current_epoch:
            leader = f"the leader of epoch {self.epoch}"
            return f"Append failed because this node is not {leader}; append at the leader"
        return (
            f"Append failed because the given epoch {self.epoch} is stale. Current leader epoch = "
            f"{self.current_epoch}; read the log again and append with the current epoch"
        )


class FutureEpochError(AppendError, code="RAFTLOG_FUTURE_EPOCH", kafka_code=75):
    """The leader epoch is larger than the current one: a bug of the caller."""

    epoch: int
    current_epoch: int

    def message(self) -> str:
        return (
            f"Attempt to append from epoch {self.epoch} which is larger than the current epoch "
            f"{self.current_epoch}; use the epoch that the log returned"
        )


class InvalidAppendError(AppendError, code="RAFTLOG_INVALID_APPEND", kafka_code=87):
    """The records or arguments can never be appended: a bug of the caller. Do not retry."""

    reason: str

    def message(self) -> str:
        return f"Append failed because {self.reason}"


class InvalidUpdateVersionError(InvalidAppendError, code="RAFTLOG_UPDATE_VERSION", kafka_code=95):
    """A quorum's kraft.version cannot be raised to the requested version."""


class InvalidTimestampError(AppendError, code="RAFTLOG_INVALID_TIMESTAMP", kafka_code=32):
    """A record's timestamp is too far ahead of the clock of the log's writer. Time-based retention
    would keep this record and all later ones until that time has passed."""

    timestamp_ms: int
    now_ms: int
    after_ms_max: int

    def message(self) -> str:
        return (
            f"Timestamp {self.timestamp_ms} of a record is out of range. The timestamp should be "
            f"at most {self.after_ms_max} ms after {self.now_ms}, the clock of the log's writer; "
            "correct the timestamp or synchronize the clocks"
        )


class RecordBatchTooLargeError(AppendError, code="RAFTLOG_RECORD_BATCH_TOO_LARGE", kafka_code=10):
    """The records do not fit into one batch. Split them. Sizes include the batch header."""

    byte_count: int
    byte_count_max: int

    def message(self) -> str:
        return (
            f"The total record(s) size of {self.byte_count} exceeds the maximum allowed batch "
            f"size of {self.byte_count_max}; append fewer records per batch"
        )


class BufferAllocationError(AppendError, code="RAFTLOG_BUFFER_ALLOCATION", retriable=True):
    """The buffer of pending appends is full: the disk is slower than the writers. Retry later."""

    byte_count: int
    byte_count_max: int

    def message(self) -> str:
        return (
            f"Append failed because we failed to allocate memory to write the batch: "
            f"{self.byte_count} more bytes would exceed the limit of {self.byte_count_max} bytes "
            "of pending appends; wait for earlier appends, then retry"
        )


class OutOfOrderSequenceError(AppendError, code="RAFTLOG_OUT_OF_ORDER_SEQUENCE", kafka_code=45):
    """A producer's batch does not follow its last batch: a batch is missing, or this one repeats a
    batch older than those that the log remembers (``limits.PRODUCER_BATCHES_KEPT``)."""

    producer_id: int
    producer_epoch: int
    sequence: int
    expected_sequence: int

    def message(self) -> str:
        return (
            f"Out of order sequence number for producer {self.producer_id} in epoch "
            f"{self.producer_epoch}: {self.sequence} (incoming seq. number), "
            f"{self.expected_sequence} (expected); append the missing batch first, or bump the "
            "producer epoch"
        )


class InvalidProducerEpochError(AppendError, code="RAFTLOG_INVALID_PRODUCER_EPOCH", kafka_code=47):
    """The producer is fenced: a newer instance with a higher producer epoch has appended."""

    producer_id: int
    producer_epoch: int
    current_producer_epoch: int

    def message(self) -> str:
        return (
            f"Epoch of producer {self.producer_id} is {self.producer_epoch}, which is smaller than "
            f"the last seen epoch {self.current_producer_epoch}; a newer instance has fenced this "
            "producer, stop this instance"
        )


class StaleCommitError(AppendError, code="RAFTLOG_STALE_COMMIT"):
    """The commit version is older than the application's last one: a newer run has committed."""

    application_id: str
    query_id: str
    version: int
    last_version: int

    def message(self) -> str:
        return (
            f"commit {self.version} of application {self.application_id!r} (query "
            f"{self.query_id!r}) is older than its last commit {self.last_version}; another run "
            "of this application has continued, stop this run"
        )


class ForeignCommitError(AppendError, code="RAFTLOG_FOREIGN_COMMIT"):
    """The application id belongs to another query: one of the two uses the wrong id."""

    application_id: str
    query_id: str
    version: int
    last_query_id: str
    last_version: int

    def message(self) -> str:
        return (
            f"application id {self.application_id!r} belongs to query {self.last_query_id!r} (last "
            f"commit {self.last_version}) and was used by query {self.query_id!r} for commit "
            f"{self.version}; give this query its own application id, or take over the id "
            "(take_over_from) if the other query has ended permanently"
        )


class LogClosedError(AppendError, code="RAFTLOG_LOG_CLOSED"):
    """The log was closed by its owner, or after a failure, which ``reason`` names; ``remedy``
    replaces the default advice."""

    reason: str
    path: str | None = None
    remedy: str | None = None

    def message(self) -> str:
        remedy = self.remedy or "reopen it"
        return f"{self.path or 'the log'} is closed: {self.reason}; {remedy}"


class LogReadOnlyError(AppendError, code="RAFTLOG_LOG_READ_ONLY", kafka_code=56):
    """The log is read-only because acknowledged records (below the recovery point) are corrupt, or
    because raftlog did not create it.

    ``position`` and ``offset`` are the end of the valid records, None if unknown.
    """

    path: str
    reason: str
    remedy: str
    position: int | None = None
    offset: int | None = None

    def message(self) -> str:
        location = location_text(self.path, self.position, self.offset)
        return f"{location}: the log is read-only: {self.reason}; {self.remedy}"


class LogLockedError(AppendError, code="RAFTLOG_LOG_LOCKED", retriable=True):
    """Another writer held the log's lock until the caller's timeout. Retry."""

    path: str
    waited_ms: int

    def message(self) -> str:
        return (
            f"{self.path} is locked by another writer (waited {self.waited_ms} ms); retry, or look "
            "for a writer process that hangs"
        )


class AppendUnknownError(LogError, code="RAFTLOG_APPEND_UNKNOWN", kafka_code=7):
    """The outcome of an append is unknown: the response was lost, or the disk failed.

    Not ``retriable``: only an append with a commit name or a producer sequence is recognized as a
    duplicate when it is repeated.
    """

    path: str
    reason: str

    def message(self) -> str:
        return (
            f"{self.path}: unknown outcome of an append: {self.reason}; retry with the same commit "
            "name or producer sequence, or read the end of the log before you append again"
        )


# --- Clients of a quorum --------------------------------------------------------------------------


class QuorumUnavailableError(
    AppendError, code="RAFTLOG_QUORUM_UNAVAILABLE", retriable=True, kafka_code=5
):
    """No leader was found, or none responded in time. ``reason`` is the last failure."""

    path: str
    waited_ms: int
    reason: str

    def message(self) -> str:
        return (
            f"{self.path}: no leader available within {self.waited_ms} ms: {self.reason}; check "
            "that a majority of the nodes is running and that the addresses are correct, then "
            "retry"
        )


class BrokersUnavailableError(RaftlogError, code="RAFTLOG_BROKERS_UNAVAILABLE", retriable=True):
    """Brokers of a Kafka cluster did not return everything in time.

    ``reason`` is the last failure.
    """

    path: str
    waited_ms: int
    reason: str

    def message(self) -> str:
        return (
            f"{self.path}: no complete response of the brokers within {self.waited_ms} ms: "
            f"{self.reason}; check that the brokers are running and that the addresses are "
            "correct, then retry"
        )


class AccessDeniedError(AppendError, code="RAFTLOG_ACCESS_DENIED", kafka_code=31):
    """Authentication failed, or the principal is not authorized for the operation.

    ``remedy`` replaces the default advice.
    """

    path: str
    reason: str
    remedy: str | None = None

    def message(self) -> str:
        remedy = self.remedy or (
            "check the certificates of client and node and the rights of this principal in the "
            "node's configuration"
        )
        return f"{self.path}: access denied: {self.reason}; {remedy}"


class SaslAuthenticationError(AccessDeniedError, code="RAFTLOG_SASL_AUTHENTICATION", kafka_code=58):
    """SASL authentication failed: wrong credentials, an expired token, or an untrusted node."""


class UnsupportedSaslMechanismError(
    SaslAuthenticationError, code="RAFTLOG_UNSUPPORTED_SASL_MECHANISM", kafka_code=33
):
    """The node does not offer the SASL mechanism. ``reason`` lists those that it offers."""


class SecurityProtocolError(AccessDeniedError, code="RAFTLOG_SECURITY_PROTOCOL", kafka_code=34):
    """Client and node use different security protocols: plaintext, TLS, SASL or both."""


class NodeRefusedError(AppendError, code="RAFTLOG_NODE_REFUSED"):
    """A node returned an ``error`` of Kafka's ``Errors`` that has no class of its own here.

    ``remedy`` replaces the default advice.
    """

    path: str
    api: str
    error: int
    reason: str
    remedy: str | None = None

    def message(self) -> str:
        answered = f"answered {self.api} with Kafka error code {self.error}"
        remedy = self.remedy or "check that the address belongs to a node of the quorum"
        return f"{self.path} {answered if self.error else 'is wrong'}: {self.reason}; {remedy}"


class NotRemoteError(RaftlogError, code="RAFTLOG_NOT_REMOTE"):
    """A client of a quorum does not support the operation."""

    what: str
    remedy: str

    def message(self) -> str:
        return f"{self.what} is not supported by a client of a quorum; {self.remedy}"


class VoterChangeError(RaftlogError, code="RAFTLOG_VOTER_CHANGE"):
    """A voter was not added or removed, or kraft.version was not raised. After error 7
    (REQUEST_TIMED_OUT), the change may still take effect.

    ``error`` is the code in Kafka's ``Errors``, ``reason`` the node's error message.
    """

    path: str
    error: int
    reason: str

    def message(self) -> str:
        return (
            f"voter change rejected by {self.path}: {self.reason} (Kafka error code {self.error}); "
            "list the current voters with `raftlog quorum` before you retry"
        )


class NodeRunningError(LogError, code="RAFTLOG_NODE_RUNNING", retriable=True):
    """The node's directory is in use by another process."""

    path: str

    def message(self) -> str:
        return (
            f"{self.path} is in use by another process: this node is already running, or its "
            "previous process has not ended; stop that process first"
        )
