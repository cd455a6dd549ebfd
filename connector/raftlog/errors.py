"""All errors that raftlog raises. Import them from here.

Defined in this module: errors of logs, of metadata records and of options. The others:
``base_errors`` (base classes), ``append_errors`` (appends), ``change_errors`` (changes of cluster
metadata), ``write_errors`` (rows to be written), ``wire_errors`` (Kafka protocol), ``node_errors``
(start of a node), ``remote_errors`` (clients of a quorum).

``str(error)`` is ``[CODE] message``: a stable code, then where, what, why and what to do. The code
is part of the text because Spark keeps only the text of an error that crosses a process.

An error holds its facts as keyword-only fields and survives pickling. No field holds a secret:
values of records and of options are never part of an error.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

from .append_errors import AppendError as AppendError
from .append_errors import AppendUnknownError as AppendUnknownError
from .append_errors import BufferAllocationError as BufferAllocationError
from .append_errors import ForeignCommitError as ForeignCommitError
from .append_errors import FutureEpochError as FutureEpochError
from .append_errors import InvalidAppendError as InvalidAppendError
from .append_errors import InvalidProducerEpochError as InvalidProducerEpochError
from .append_errors import InvalidTimestampError as InvalidTimestampError
from .append_errors import LogClosedError as LogClosedError
from .append_errors import LogLockedError as LogLockedError
from .append_errors import LogReadOnlyError as LogReadOnlyError
from .append_errors import NotLeaderError as NotLeaderError
from .append_errors import OutOfOrderSequenceError as OutOfOrderSequenceError
from .append_errors import RecordBatchTooLargeError as RecordBatchTooLargeError
from .append_errors import StaleCommitError as StaleCommitError
from .append_errors import UnexpectedEndOffsetError as UnexpectedEndOffsetError
from .base_errors import LogError as LogError
from .base_errors import RaftlogError as RaftlogError
from .base_errors import location_text as _location_text
from .change_errors import ChangesNotSupportedError as ChangesNotSupportedError
from .change_errors import InvalidChangesError as InvalidChangesError
from .change_errors import RefusedChange as RefusedChange
from .node_errors import AlreadyFormattedError as AlreadyFormattedError
from .node_errors import ConfigError as ConfigError
from .node_errors import NodeAddressError as NodeAddressError
from .node_errors import NodeRunningError as NodeRunningError
from .node_errors import NotFormattedError as NotFormattedError
from .node_errors import WrongDirectoryError as WrongDirectoryError
from .printable import without_user_info
from .remote_errors import AccessDeniedError as AccessDeniedError
from .remote_errors import NodeRefusedError as NodeRefusedError
from .remote_errors import NotRemoteError as NotRemoteError
from .remote_errors import QuorumUnavailableError as QuorumUnavailableError
from .remote_errors import VoterChangeError as VoterChangeError
from .wire_errors import FrameLengthError as FrameLengthError
from .wire_errors import MalformedMessageError as MalformedMessageError
from .wire_errors import NoCommonVersionError as NoCommonVersionError
from .wire_errors import UnacknowledgedAppendError as UnacknowledgedAppendError
from .wire_errors import UnsupportedApiError as UnsupportedApiError
from .wire_errors import UnsupportedFieldError as UnsupportedFieldError
from .wire_errors import WireError as WireError
from .write_errors import CommitMessageError as CommitMessageError
from .write_errors import CommitTooLargeError as CommitTooLargeError
from .write_errors import InvalidRowError as InvalidRowError
from .write_errors import WriteSchemaError as WriteSchemaError

# --- the log and its files ------------------------------------------------------------------------


@dataclass(kw_only=True, eq=False)
class LogNotFoundError(LogError):
    """A path that does not exist. ``remedy`` replaces the default advice."""

    path: str
    remedy: str | None = None
    code: ClassVar[str] = "RAFTLOG_LOG_NOT_FOUND"

    def message(self) -> str:
        remedy = self.remedy or "check the path and the host that reads it"
        return f"{self.path} does not exist; {remedy}"


@dataclass(kw_only=True, eq=False)
class LogAccessError(LogError):
    """The file system denied a read or a write; the state of the log itself is unknown.

    ``remedy`` replaces the default advice if the reason is not a missing permission.
    """

    path: str
    reason: str
    to_write: bool = False
    remedy: str | None = None
    code: ClassVar[str] = "RAFTLOG_LOG_ACCESS"

    def message(self) -> str:
        verb, right = ("written", "write") if self.to_write else ("read", "read")
        remedy = self.remedy or f"grant this user {right} permission"
        return f"{self.path} cannot be {verb}: {self.reason}; {remedy}"


@dataclass(kw_only=True, eq=False)
class FileExistsLogError(LogError):
    """A file to be created already exists: created by another writer or by a process that died."""

    path: str
    code: ClassVar[str] = "RAFTLOG_FILE_EXISTS"

    def message(self) -> str:
        return (
            f"cannot create {self.path}: it already exists, created by another writer or left by a "
            "process that died; reopen the log"
        )


@dataclass(kw_only=True, eq=False)
class DiskFullError(LogError):
    """The disk is full. Nothing was written, or only a prefix of the bytes."""

    path: str
    reason: str
    code: ClassVar[str] = "RAFTLOG_DISK_FULL"
    kafka_code: ClassVar[int | None] = 56

    def message(self) -> str:
        return f"cannot write to {self.path}: {self.reason}; free space on its disk, then retry"


@dataclass(kw_only=True, eq=False)
class DiskFailedError(LogError):
    """A write or an fsync failed: bytes written since the last successful fsync may be lost.

    Never retry an fsync: the kernel drops pages that it could not write, and the next fsync
    succeeds without them (Rebello et al., "Can Applications Recover from fsync Failures?", ATC
    2020).
    """

    path: str
    reason: str
    code: ClassVar[str] = "RAFTLOG_DISK_FAILED"
    kafka_code: ClassVar[int | None] = 56

    def message(self) -> str:
        return (
            f"write or fsync of {self.path} failed: {self.reason}; data written since the last "
            "successful fsync may be lost although it can still be read: close this log, check "
            "the disk, then reopen the log"
        )


@dataclass(kw_only=True, eq=False)
class NotALogError(LogError):
    """A path that exists and is not a Kafka log."""

    path: str
    reason: str
    code: ClassVar[str] = "RAFTLOG_NOT_A_LOG"

    def message(self) -> str:
        return (
            f"{self.path} is not a Kafka log: {self.reason}; expected a metadata directory, a "
            "node's log directory, a partition directory, a .log segment or a .checkpoint snapshot"
        )


@dataclass(kw_only=True, eq=False)
class UnknownRecordKindError(LogError):
    """The kind of a log's records is unknown, so secrets in them could not be redacted."""

    path: str
    reason: str
    code: ClassVar[str] = "RAFTLOG_UNKNOWN_RECORD_KIND"

    def message(self) -> str:
        return (
            f"cannot determine whether the records of {self.path} are cluster metadata, whose "
            f"secrets are redacted: {self.reason}; declare it with --as metadata or --as "
            'partition, in Spark with .option("values", "kraft") or .option("values", "bytes")'
        )


@dataclass(kw_only=True, eq=False)
class CorruptBatchError(LogError):
    """A corrupt record batch at ``position``. The bytes before it are valid."""

    reason: str
    path: str | None = None
    position: int | None = None
    offset: int | None = None
    code: ClassVar[str] = "RAFTLOG_CORRUPT_BATCH"
    kafka_code: ClassVar[int | None] = 2

    def message(self) -> str:
        location = _location_text(self.path, self.position, self.offset)
        return (
            f"corrupt record batch in {location}: {self.reason}; the batches before it are valid, "
            "run `raftlog check` to examine those after it"
        )


@dataclass(kw_only=True, eq=False)
class UnsupportedMagicError(CorruptBatchError):
    """A batch in the message format of Kafka before 0.11 (magic 0 or 1); KRaft never wrote it."""

    magic: int
    code: ClassVar[str] = "RAFTLOG_UNSUPPORTED_MAGIC"
    kafka_code: ClassVar[int | None] = 43


_RAISE_LIMIT: Final = (
    "raise the limit (--max-decompressed-bytes, in Spark the option maxDecompressedBytes, in "
    "Python decompressed_bytes_max)"
)


@dataclass(kw_only=True, eq=False)
class DecompressionLimitError(CorruptBatchError):
    """A compressed batch expands beyond the limit of its reader. It may be valid."""

    byte_count_max: int
    remedy: ClassVar[str] = _RAISE_LIMIT
    code: ClassVar[str] = "RAFTLOG_DECOMPRESSION_LIMIT"
    kafka_code: ClassVar[int | None] = 10

    def message(self) -> str:
        location = _location_text(self.path, self.position, self.offset)
        return (
            f"record batch in {location} exceeds the decompression limit: {self.reason}; "
            f"{self.remedy}, or read from the next batch on"
        )


@dataclass(kw_only=True, eq=False)
class HeaderLimitError(CorruptBatchError):
    """A record or a batch has more headers than the limit; none of them was decoded."""

    header_count_max: int
    code: ClassVar[str] = "RAFTLOG_HEADER_LIMIT"
    kafka_code: ClassVar[int | None] = 87

    def message(self) -> str:
        location = _location_text(self.path, self.position, self.offset)
        return (
            f"record batch in {location} exceeds the header limit: {self.reason}; read from the "
            "next batch on"
        )


@dataclass(kw_only=True, eq=False)
class MalformedVarintError(LogError):
    """Bytes that are not a varint. Decoders convert it into the error of their own format."""

    position: int
    reason: str
    code: ClassVar[str] = "RAFTLOG_MALFORMED_VARINT"

    def message(self) -> str:
        return f"malformed varint at byte {self.position}: {self.reason}"


@dataclass(kw_only=True, eq=False)
class LogGapError(LogError):
    """A gap or a regression of offsets in a log whose offsets must be contiguous."""

    path: str
    position: int | None
    expected_offset: int
    offset: int
    code: ClassVar[str] = "RAFTLOG_LOG_GAP"

    def message(self) -> str:
        location = _location_text(self.path, self.position)
        if self.offset < self.expected_offset:
            what = (
                f"offset {self.offset} follows offset {self.expected_offset - 1}, offsets must "
                "increase"
            )
        else:
            what = (
                f"offsets {self.expected_offset} to {self.offset - 1} are missing "
                "(a lost segment, or corruption)"
            )
        return f"{location}: {what}; read another voter's replica, or start at a later offset"


@dataclass(kw_only=True, eq=False)
class TransactionMarkerError(LogError):
    """A metadata transaction that begins inside another one, or ends where none is open."""

    path: str
    offset: int
    reason: str
    code: ClassVar[str] = "RAFTLOG_TRANSACTION_MARKER"

    def message(self) -> str:
        return (
            f"{_location_text(self.path, None, self.offset)}: {self.reason}, so it is unknown "
            "which later records are committed; read with isolation level read_uncommitted to "
            "get all of them"
        )


@dataclass(kw_only=True, eq=False)
class CorruptFileError(LogError):
    """A corrupt file beside the segments: index, epoch checkpoint, quorum-state, properties."""

    path: str
    reason: str
    position: int | None = None
    code: ClassVar[str] = "RAFTLOG_CORRUPT_FILE"

    def message(self) -> str:
        return f"{_location_text(self.path, self.position)} is corrupt: {self.reason}"


@dataclass(kw_only=True, eq=False)
class CorruptSnapshotError(CorruptFileError):
    """A snapshot (.checkpoint) without header or footer, or with a corrupt batch."""

    code: ClassVar[str] = "RAFTLOG_CORRUPT_SNAPSHOT"

    def message(self) -> str:
        location = _location_text(self.path, self.position)
        return f"snapshot {location} is corrupt: {self.reason}; use an older snapshot"


@dataclass(kw_only=True, eq=False)
class SnapshotDecompressionLimitError(CorruptSnapshotError):
    """A batch of a snapshot expands beyond the limit of its reader. It may be valid."""

    byte_count_max: int
    remedy: ClassVar[str] = _RAISE_LIMIT
    code: ClassVar[str] = "RAFTLOG_SNAPSHOT_DECOMPRESSION_LIMIT"

    def message(self) -> str:
        location = _location_text(self.path, self.position)
        return (
            f"snapshot {location} exceeds the decompression limit: {self.reason}; {self.remedy}, "
            "or use an older snapshot"
        )


@dataclass(kw_only=True, eq=False)
class SnapshotRefusedError(LogError):
    """A snapshot id that the log does not allow: a bug of the caller. Nothing was written.

    ``end_offset`` is exclusive (Kafka: ``KafkaRaftLog.validateSnapshotId``).
    """

    path: str
    end_offset: int
    epoch: int
    reason: str
    code: ClassVar[str] = "RAFTLOG_SNAPSHOT_REFUSED"

    def message(self) -> str:
        return (
            f"cannot create a snapshot of {self.path} at end offset {self.end_offset}, epoch "
            f"{self.epoch}: {self.reason}; end it after a committed batch, with that batch's epoch"
        )


@dataclass(kw_only=True, eq=False)
class TruncationRefusedError(LogError):
    """A truncation below the high watermark, which would delete committed records."""

    path: str
    offset: int
    high_watermark: int
    code: ClassVar[str] = "RAFTLOG_TRUNCATION_REFUSED"

    def message(self) -> str:
        return (
            f"cannot truncate {self.path} to offset {self.offset}, which is below the high "
            f"watermark {self.high_watermark}; find out which replica is wrong before you continue"
        )


@dataclass(kw_only=True, eq=False)
class OffsetOutOfRangeError(LogError):
    """A requested offset that the log does not have. ``log_end_offset`` is exclusive."""

    path: str
    offset: int
    log_start_offset: int
    log_end_offset: int
    code: ClassVar[str] = "RAFTLOG_OFFSET_OUT_OF_RANGE"
    kafka_code: ClassVar[int | None] = 1

    def message(self) -> str:
        return (
            f"offset {self.offset} is out of range for {self.path}: log start offset "
            f"{self.log_start_offset}, log end offset {self.log_end_offset} (exclusive)"
        )


@dataclass(kw_only=True, eq=False)
class SegmentDeletedError(LogError):
    """The node deleted or rolled a file during a read. List the segments again and retry."""

    path: str
    code: ClassVar[str] = "RAFTLOG_SEGMENT_DELETED"
    retriable: ClassVar[bool] = True

    def message(self) -> str:
        return f"{self.path} was deleted by its node during the read; retry"


@dataclass(kw_only=True, eq=False)
class TooFewVotersError(LogError):
    """Fewer than a majority of the voters' directories were given."""

    given: tuple[int, ...]
    voters: tuple[int, ...]
    code: ClassVar[str] = "RAFTLOG_TOO_FEW_VOTERS"

    def message(self) -> str:
        need = len(self.voters) // 2 + 1
        return (
            f"only the directories of voters {list(self.given)} were given, but {need} of the "
            f"voters {list(self.voters)} are needed to compute the high watermark; add the missing "
            "directories, or read a single directory up to its own end"
        )


@dataclass(kw_only=True, eq=False)
class WrongClusterError(LogError):
    """A cluster id that is not the expected one."""

    path: str
    expected_cluster_id: str
    cluster_id: str
    code: ClassVar[str] = "RAFTLOG_WRONG_CLUSTER"
    kafka_code: ClassVar[int | None] = 104

    def message(self) -> str:
        return (
            f"{self.path} belongs to cluster {self.cluster_id}, "
            f"expected cluster {self.expected_cluster_id}"
        )


@dataclass(kw_only=True, eq=False)
class DivergedLogError(LogError):
    """Different leader epochs at one offset: one of two logs was truncated and rewritten."""

    path: str
    offset: int
    expected_epoch: int
    epoch: int
    remedy: str
    code: ClassVar[str] = "RAFTLOG_DIVERGED"

    def message(self) -> str:
        return (
            f"{self.path} diverged: leader epoch {self.epoch} at offset {self.offset}, "
            f"expected epoch {self.expected_epoch} as read before; {self.remedy}"
        )


@dataclass(kw_only=True, eq=False)
class DataLossError(LogError):
    """Records to be read no longer exist. ``condition`` is stable and machine-readable.

    OFFSETS_DELETED: they are below the log start offset. LOG_TRUNCATED: they are at or above the
    log end offset. The Spark source adds conditions; those with the same name mean the same.
    """

    path: str
    condition: str
    reason: str
    remedy: str
    code: ClassVar[str] = "RAFTLOG_DATA_LOSS"

    def __str__(self) -> str:
        return f"[{self.code}.{self.condition}] {self.message()}"

    def message(self) -> str:
        return f"{self.path}: {self.reason}; {self.remedy}"


# --- metadata records and their state -------------------------------------------------------------


@dataclass(kw_only=True, eq=False)
class StateError(RaftlogError):
    """Base class of errors of metadata records, and of the state and tables built from them."""

    code: ClassVar[str] = "RAFTLOG_STATE"


@dataclass(kw_only=True, eq=False)
class MetadataParseError(StateError):
    """Bytes that do not parse as the metadata record that their frame declares.

    ``version`` is None if the frame itself does not parse.
    """

    record: str
    version: int | None
    position: int
    reason: str
    code: ClassVar[str] = "RAFTLOG_METADATA_PARSE"

    def message(self) -> str:
        version = "" if self.version is None else f" version {self.version}"
        return f"cannot parse {self.record}{version} at byte {self.position}: {self.reason}"


@dataclass(kw_only=True, eq=False)
class InvalidRecordError(StateError):
    """A record, or its JSON, with a value that Kafka's schema does not allow.

    ``field`` is the path in Kafka's field names, empty for the record itself. The value is never
    shown.
    """

    record: str
    version: int | None
    field: str
    reason: str
    code: ClassVar[str] = "RAFTLOG_INVALID_RECORD"

    def message(self) -> str:
        version = "" if self.version is None else f" version {self.version}"
        field = f", field {self.field}" if self.field else ""
        return f"invalid {self.record}{version}{field}: {self.reason}"


@dataclass(kw_only=True, eq=False)
class UnsupportedVersionError(StateError):
    """A record that cannot be written in the requested version."""

    record: str
    version: int
    reason: str
    code: ClassVar[str] = "RAFTLOG_UNSUPPORTED_VERSION"
    kafka_code: ClassVar[int | None] = 35

    def message(self) -> str:
        return f"cannot write {self.record} in version {self.version}: {self.reason}"


@dataclass(kw_only=True, eq=False)
class ReplayError(StateError):
    """A record that contradicts the state before it: earlier records are missing or wrong."""

    offset: int
    record: str
    reason: str
    code: ClassVar[str] = "RAFTLOG_REPLAY"

    def message(self) -> str:
        return (
            f"cannot replay {self.record} at offset {self.offset}: {self.reason}; start at a "
            "snapshot or at the first offset of the log"
        )


@dataclass(kw_only=True, eq=False)
class OffsetGapError(StateError):
    """Input that does not begin at the next offset of the state. Nothing was written."""

    expected_offset: int
    offset: int
    remedy: str
    code: ClassVar[str] = "RAFTLOG_OFFSET_GAP"

    def message(self) -> str:
        return (
            f"expected offset {self.expected_offset} next, got offset {self.offset}; "
            f"nothing was written; {self.remedy}"
        )


@dataclass(kw_only=True, eq=False)
class TablesError(StateError):
    """Delta tables that are not in the state that the call needs. ``place`` is their location."""

    place: str
    reason: str
    remedy: str
    code: ClassVar[str] = "RAFTLOG_TABLES"

    def __post_init__(self) -> None:
        self.place = without_user_info(self.place)

    def message(self) -> str:
        return f"Delta tables at {self.place}: {self.reason}; {self.remedy}"


@dataclass(kw_only=True, eq=False)
class ConcurrentWriterError(TablesError):
    """Another writer committed to the same tables concurrently. No commit is partial."""

    code: ClassVar[str] = "RAFTLOG_CONCURRENT_WRITER"
    retriable: ClassVar[bool] = True


# --- options and write modes ----------------------------------------------------------------------


@dataclass(kw_only=True, eq=False)
class OptionError(RaftlogError):
    """An unknown option, or a value that is not allowed. The value itself is never shown."""

    option: str
    reason: str
    code: ClassVar[str] = "RAFTLOG_OPTION"

    def message(self) -> str:
        return f"option {self.option}: {self.reason}"


@dataclass(kw_only=True, eq=False)
class AppendOnlyError(RaftlogError):
    """A write mode other than append. ``what`` names the mode."""

    what: str
    remedy: str
    code: ClassVar[str] = "RAFTLOG_APPEND_ONLY"

    def message(self) -> str:
        return (
            f"{self.what} is not supported: a log is append-only, records are never replaced; "
            f"{self.remedy}"
        )
