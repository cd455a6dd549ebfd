"""Every error that raftlog raises: the page to import them from.

Those of an append are told in ``append_errors``, those of writing rows in ``write_errors``, those
of messages between processes in ``wire_errors``, of a node that cannot start in ``node_errors``,
of a quorum's clients in ``remote_errors``, the root of all in ``base_errors``.

Rules of this file:

1. An error holds facts as fields; ``__str__`` puts them into one sentence that says where, what,
   why and what to do, after a stable code in brackets. Spark keeps only the text of an error that
   crosses a process, so the code must be in it.
2. Fields are keyword-only and every error survives pickling.
3. No field ever holds a secret: values of records and of options are not facts of an error.
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
from .base_errors import location_text as _place
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
    """The caller named a path that does not exist. ``remedy`` replaces the usual advice."""

    path: str
    remedy: str | None = None
    code: ClassVar[str] = "RAFTLOG_LOG_NOT_FOUND"

    def message(self) -> str:
        remedy = self.remedy or "check the path and the host it is read on"
        return f"{self.path} does not exist; {remedy}"


@dataclass(kw_only=True, eq=False)
class LogAccessError(LogError):
    """The file system refused to let us read or write; nothing is known about the log itself.

    ``remedy`` replaces the advice where access rights are not the reason.
    """

    path: str
    reason: str
    to_write: bool = False
    remedy: str | None = None
    code: ClassVar[str] = "RAFTLOG_LOG_ACCESS"

    def message(self) -> str:
        verb, right = ("written", "write") if self.to_write else ("read", "read")
        remedy = self.remedy or f"give this user {right} access to it"
        return f"{self.path} cannot be {verb}: {self.reason}; {remedy}"


@dataclass(kw_only=True, eq=False)
class FileExistsLogError(LogError):
    """A file was to be made and its name is taken: another writer, or what a dead one left."""

    path: str
    code: ClassVar[str] = "RAFTLOG_FILE_EXISTS"

    def message(self) -> str:
        return (
            f"{self.path} is there already and was to be made anew; another writer made it, or a "
            "dead one left it: open the log again"
        )


@dataclass(kw_only=True, eq=False)
class DiskFullError(LogError):
    """The file system has no room. What was to be written is not there, or a first part of it."""

    path: str
    reason: str
    code: ClassVar[str] = "RAFTLOG_DISK_FULL"
    kafka_code: ClassVar[int | None] = 56

    def message(self) -> str:
        return f"{self.path} cannot grow: {self.reason}; make room on its disk, then try again"


@dataclass(kw_only=True, eq=False)
class DiskFailedError(LogError):
    """A write or a sync failed: what was written since the last good sync may be lost.

    Never retry a sync: the kernel forgets pages that it could not write, and the next one succeeds
    without them (Rebello et al., "Can Applications Recover from fsync Failures?", ATC 2020).
    """

    path: str
    reason: str
    code: ClassVar[str] = "RAFTLOG_DISK_FAILED"
    kafka_code: ClassVar[int | None] = 56

    def message(self) -> str:
        return (
            f"{self.path} could not be made durable: {self.reason}; what was written since the "
            "last sync may be lost although it can still be read: close this log, see to the "
            "disk, open the log again"
        )


@dataclass(kw_only=True, eq=False)
class NotALogError(LogError):
    """The path exists and holds no Kafka log: the caller's mistake."""

    path: str
    reason: str
    code: ClassVar[str] = "RAFTLOG_NOT_A_LOG"

    def message(self) -> str:
        return (
            f"{self.path} is not a Kafka log: {self.reason}; give a metadata directory, a node's "
            "log directory, a partition's directory, a .log segment or a .checkpoint"
        )


@dataclass(kw_only=True, eq=False)
class UnknownRecordKindError(LogError):
    """What the records of a log are is not known, so secrets among them could not be redacted."""

    path: str
    reason: str
    code: ClassVar[str] = "RAFTLOG_UNKNOWN_RECORD_KIND"

    def message(self) -> str:
        return (
            f"{self.path} is not read: whether its records are cluster metadata, whose secrets are "
            f"redacted, is not known: {self.reason}; declare it: --as metadata or --as partition, "
            'in Spark .option("values", "kraft") or .option("values", "bytes")'
        )


@dataclass(kw_only=True, eq=False)
class CorruptBatchError(LogError):
    """Bytes of a record batch are damaged. Everything before ``position`` was whole."""

    reason: str
    path: str | None = None
    position: int | None = None
    offset: int | None = None
    code: ClassVar[str] = "RAFTLOG_CORRUPT_BATCH"
    kafka_code: ClassVar[int | None] = 2

    def message(self) -> str:
        place = _place(self.path, self.position, self.offset)
        return (
            f"damaged record batch in {place}: {self.reason}; "
            "what lies before it is whole, `raftlog check` tells what lies behind it"
        )


@dataclass(kw_only=True, eq=False)
class UnsupportedMagicError(CorruptBatchError):
    """A batch in the format of Kafka before 0.11 (magic 0 or 1), which no KRaft log holds."""

    magic: int
    code: ClassVar[str] = "RAFTLOG_UNSUPPORTED_MAGIC"
    kafka_code: ClassVar[int | None] = 43


_RAISE_LIMIT: Final = (
    "raise the limit (--max-decompressed-bytes, in Spark the option maxDecompressedBytes, in "
    "Python decompressed_bytes_max)"
)


@dataclass(kw_only=True, eq=False)
class DecompressionLimitError(CorruptBatchError):
    """A compressed batch expands beyond the limit of its reader. It may be whole."""

    byte_count_max: int
    remedy: ClassVar[str] = _RAISE_LIMIT
    code: ClassVar[str] = "RAFTLOG_DECOMPRESSION_LIMIT"
    kafka_code: ClassVar[int | None] = 10

    def message(self) -> str:
        place = _place(self.path, self.position, self.offset)
        return (
            f"record batch in {place} is not read: {self.reason}; {self.remedy}, or read "
            "from the next batch on"
        )


@dataclass(kw_only=True, eq=False)
class HeaderLimitError(CorruptBatchError):
    """A record, or a batch, has more headers than are decoded; none of them was."""

    header_count_max: int
    code: ClassVar[str] = "RAFTLOG_HEADER_LIMIT"
    kafka_code: ClassVar[int | None] = 87

    def message(self) -> str:
        place = _place(self.path, self.position, self.offset)
        return f"record batch in {place} is not read: {self.reason}; read from the next batch on"


@dataclass(kw_only=True, eq=False)
class MalformedVarintError(LogError):
    """Bytes are not a varint. Decoders turn it into the error of what they were decoding."""

    position: int
    reason: str
    code: ClassVar[str] = "RAFTLOG_MALFORMED_VARINT"

    def message(self) -> str:
        return f"the varint at byte {self.position} is malformed: {self.reason}"


@dataclass(kw_only=True, eq=False)
class LogGapError(LogError):
    """Offsets skip or go back in a log that must be contiguous."""

    path: str
    position: int | None
    expected_offset: int
    offset: int
    code: ClassVar[str] = "RAFTLOG_LOG_GAP"

    def message(self) -> str:
        place = _place(self.path, self.position)
        if self.offset < self.expected_offset:
            what = f"offset {self.offset} comes after {self.expected_offset - 1}: offsets go back"
        else:
            what = (
                f"offsets {self.expected_offset} to {self.offset - 1} are missing "
                "(a lost segment, or damage)"
            )
        return f"{place}: {what}; read another voter's copy, or from a checkpoint behind the gap"


@dataclass(kw_only=True, eq=False)
class TransactionMarkerError(LogError):
    """A metadata transaction begins inside another, or ends where none is open."""

    path: str
    offset: int
    reason: str
    code: ClassVar[str] = "RAFTLOG_TRANSACTION_MARKER"

    def message(self) -> str:
        return (
            f"{_place(self.path, None, self.offset)}: {self.reason}, so what is committed from "
            "here on is not known; read with isolation level high_watermark to see it as it lies"
        )


@dataclass(kw_only=True, eq=False)
class CorruptFileError(LogError):
    """A small file beside the log (index, epochs, quorum-state, properties) does not parse."""

    path: str
    reason: str
    position: int | None = None
    code: ClassVar[str] = "RAFTLOG_CORRUPT_FILE"

    def message(self) -> str:
        return f"{_place(self.path, self.position)} is damaged: {self.reason}"


@dataclass(kw_only=True, eq=False)
class CorruptSnapshotError(CorruptFileError):
    """A .checkpoint is not whole: no header, no footer, or damage between."""

    code: ClassVar[str] = "RAFTLOG_CORRUPT_SNAPSHOT"

    def message(self) -> str:
        place = _place(self.path, self.position)
        return f"checkpoint {place} is not whole: {self.reason}; use an older one"


@dataclass(kw_only=True, eq=False)
class SnapshotDecompressionLimitError(CorruptSnapshotError):
    """A batch of a .checkpoint expands beyond the limit of its reader. It may be whole."""

    byte_count_max: int
    remedy: ClassVar[str] = _RAISE_LIMIT
    code: ClassVar[str] = "RAFTLOG_SNAPSHOT_DECOMPRESSION_LIMIT"

    def message(self) -> str:
        place = _place(self.path, self.position)
        return f"checkpoint {place} is not read: {self.reason}; {self.remedy}, or use an older one"


@dataclass(kw_only=True, eq=False)
class SnapshotRefusedError(LogError):
    """A snapshot was to end (exclusive) where none may: the caller's bug. Nothing was written."""

    path: str
    end_offset: int
    epoch: int
    reason: str
    code: ClassVar[str] = "RAFTLOG_SNAPSHOT_REFUSED"

    def message(self) -> str:
        return (
            f"{self.path} takes no snapshot that ends at offset {self.end_offset}, epoch "
            f"{self.epoch}: {self.reason}; end it behind a committed batch, in that one's epoch"
        )


@dataclass(kw_only=True, eq=False)
class TruncationRefusedError(LogError):
    """Committed records were to be cut off: who asks for it does not lead this log."""

    path: str
    offset: int
    high_watermark: int
    code: ClassVar[str] = "RAFTLOG_TRUNCATION_REFUSED"

    def message(self) -> str:
        return (
            f"{self.path} is not cut at offset {self.offset}: it is committed up to "
            f"{self.high_watermark}; find out which of the copies is wrong before you go on"
        )


@dataclass(kw_only=True, eq=False)
class OffsetOutOfRangeError(LogError):
    """The caller asked for offsets that this log does not hold."""

    path: str
    offset: int
    log_start_offset: int
    log_end_offset: int
    code: ClassVar[str] = "RAFTLOG_OFFSET_OUT_OF_RANGE"
    kafka_code: ClassVar[int | None] = 1

    def message(self) -> str:
        return (
            f"offset {self.offset} is not in {self.path}, which holds offsets from "
            f"{self.log_start_offset} up to, not including, {self.log_end_offset}"
        )


@dataclass(kw_only=True, eq=False)
class SegmentDeletedError(LogError):
    """The node deleted or rolled a file while it was read. List again and retry."""

    path: str
    code: ClassVar[str] = "RAFTLOG_SEGMENT_DELETED"
    retriable: ClassVar[bool] = True

    def message(self) -> str:
        return f"{self.path} was deleted by its node while it was read; read again"


@dataclass(kw_only=True, eq=False)
class TooFewVotersError(LogError):
    """Fewer than a majority of the voters' directories were given."""

    given: tuple[int, ...]
    voters: tuple[int, ...]
    code: ClassVar[str] = "RAFTLOG_TOO_FEW_VOTERS"

    def message(self) -> str:
        need = len(self.voters) // 2 + 1
        return (
            f"the directories of voters {list(self.given)} were given and {need} of the voters "
            f"{list(self.voters)} are needed to know what is committed; add the missing "
            "directories, or give a single one and accept its own end"
        )


@dataclass(kw_only=True, eq=False)
class WrongClusterError(LogError):
    """Two things that must belong to one cluster do not."""

    path: str
    expected_cluster_id: str
    cluster_id: str
    code: ClassVar[str] = "RAFTLOG_WRONG_CLUSTER"
    kafka_code: ClassVar[int | None] = 104

    def message(self) -> str:
        return (
            f"{self.path} belongs to cluster {self.cluster_id}, "
            f"and cluster {self.expected_cluster_id} was expected"
        )


@dataclass(kw_only=True, eq=False)
class DivergedLogError(LogError):
    """Two histories disagree about one offset: one of them was truncated and rewritten."""

    path: str
    offset: int
    expected_epoch: int
    epoch: int
    remedy: str
    code: ClassVar[str] = "RAFTLOG_DIVERGED"

    def message(self) -> str:
        return (
            f"{self.path} has leader epoch {self.epoch} at offset {self.offset} where epoch "
            f"{self.expected_epoch} was read before; {self.remedy}"
        )


@dataclass(kw_only=True, eq=False)
class DataLossError(LogError):
    """Records that were to be read are gone. ``condition`` is stable and machine-readable.

    OFFSETS_DELETED: the log begins behind them; LOG_TRUNCATED: it ends before them. The Spark
    source knows more of them, under the same names where they mean the same.
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


# --- what the records mean ------------------------------------------------------------------------


@dataclass(kw_only=True, eq=False)
class StateError(RaftlogError):
    """The records could be read and do not make sense."""

    code: ClassVar[str] = "RAFTLOG_STATE"


@dataclass(kw_only=True, eq=False)
class MetadataParseError(StateError):
    """Bytes are not the metadata record that their frame says they are.

    ``version`` is None where not even the frame could be read.
    """

    record: str
    version: int | None
    position: int
    reason: str
    code: ClassVar[str] = "RAFTLOG_METADATA_PARSE"

    def message(self) -> str:
        version = "" if self.version is None else f" version {self.version}"
        return f"{self.record}{version}, byte {self.position}: {self.reason}"


@dataclass(kw_only=True, eq=False)
class InvalidRecordError(StateError):
    """A record, or JSON of one, holds what Kafka's type cannot: the caller's mistake.

    ``field`` is its path in Kafka's names, empty for the record itself. The value is never shown.
    """

    record: str
    version: int | None
    field: str
    reason: str
    code: ClassVar[str] = "RAFTLOG_INVALID_RECORD"

    def message(self) -> str:
        version = "" if self.version is None else f" version {self.version}"
        field = f", field {self.field}" if self.field else ""
        return f"{self.record}{version}{field}: {self.reason}"


@dataclass(kw_only=True, eq=False)
class UnsupportedVersionError(StateError):
    """A record cannot be written in this version: the caller's mistake."""

    record: str
    version: int
    reason: str
    code: ClassVar[str] = "RAFTLOG_UNSUPPORTED_VERSION"
    kafka_code: ClassVar[int | None] = 35

    def message(self) -> str:
        return f"{self.record} cannot be written in version {self.version}: {self.reason}"


@dataclass(kw_only=True, eq=False)
class ReplayError(StateError):
    """A record contradicts the state before it: the log is incomplete, or not what it seems."""

    offset: int
    record: str
    reason: str
    code: ClassVar[str] = "RAFTLOG_REPLAY"

    def message(self) -> str:
        return (
            f"{self.record} at offset {self.offset} cannot be replayed: {self.reason}; begin at "
            "a checkpoint or at the first offset of the log"
        )


@dataclass(kw_only=True, eq=False)
class OffsetGapError(StateError):
    """Input does not begin where the state ends. Nothing was written."""

    expected_offset: int
    offset: int
    remedy: str
    code: ClassVar[str] = "RAFTLOG_OFFSET_GAP"

    def message(self) -> str:
        return (
            f"offset {self.expected_offset} was expected next and {self.offset} came; "
            f"nothing was written; {self.remedy}"
        )


@dataclass(kw_only=True, eq=False)
class TablesError(StateError):
    """The Delta tables are not in the state that the call needs."""

    place: str
    reason: str
    remedy: str
    code: ClassVar[str] = "RAFTLOG_TABLES"

    def __post_init__(self) -> None:
        self.place = without_user_info(self.place)

    def message(self) -> str:
        return f"tables at {self.place}: {self.reason}; {self.remedy}"


@dataclass(kw_only=True, eq=False)
class ConcurrentWriterError(TablesError):
    """Somebody else wrote to the same tables at the same time. Nothing is half written."""

    code: ClassVar[str] = "RAFTLOG_CONCURRENT_WRITER"
    retriable: ClassVar[bool] = True


# --- what the caller wrote ------------------------------------------------------------------------


@dataclass(kw_only=True, eq=False)
class OptionError(RaftlogError):
    """An option is unknown or its value is not allowed. The value itself is never shown."""

    option: str
    reason: str
    code: ClassVar[str] = "RAFTLOG_OPTION"

    def message(self) -> str:
        return f"option {self.option}: {self.reason}"


@dataclass(kw_only=True, eq=False)
class AppendOnlyError(RaftlogError):
    """A log is append-only: overwrite cannot be done."""

    what: str
    remedy: str
    code: ClassVar[str] = "RAFTLOG_APPEND_ONLY"

    def message(self) -> str:
        return (
            f"{self.what} is refused: a log can only be appended to, never replaced; {self.remedy}"
        )
