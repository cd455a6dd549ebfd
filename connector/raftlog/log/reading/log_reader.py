"""Interface of all readers of a log.

A reader shows the state of the log at its last ``refresh``. A read may return later records, but
never fewer. A reader writes and locks nothing, and has no file open between calls. It is not
thread-safe, and each process opens its own. The clock is an argument.
"""

from __future__ import annotations

import abc
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Final

from raftlog.errors import DataLossError, DivergedLogError, OffsetOutOfRangeError
from raftlog.limits import KIB, READ_CHUNK_BYTES
from raftlog.log.format.directory import MetaProperties, QuorumState
from raftlog.log.format.epoch_cache import EpochCache
from raftlog.log.reading.snapshot import SnapshotReader
from raftlog.records.batch import RecordBatch
from raftlog.records.batch_columns import Column, Scan
from raftlog.records.header import TimestampType
from raftlog.storage.protocol import Closeable
from raftlog.types import SnapshotId

from .aborted_transactions import AbortedTransactions
from .files import LogTail
from .range_size import RangeSize
from .reads import EndBasis, Isolation, LogKind, ReadEnd, ReadPlan, SourceKind

_ONE_BATCH_BYTES: Final = 16 * KIB

# --- Validation of the end of a read against an earlier one, and descriptions of ends -------------
# The end of one copy may decrease between two reads, because a voter truncates uncommitted records
# or because another directory is used. No record is lost then: the previous end is kept until the
# log passes it again. Records are lost if there is a conflicting leader epoch at the offset before
# the previous end (``RaftLog.validateOffsetAndEpoch``, ``DivergingEpoch``).


@dataclass(frozen=True, slots=True)
class LogExtent:
    """Path, start and end offset, and leader epochs of one copy of a log."""

    path: str
    log_start_offset: int
    log_end_offset: int
    epochs: EpochCache


def not_below_previous(found: ReadEnd, previous: ReadEnd | None, log: LogExtent) -> ReadEnd:
    """Return ``found``, or ``previous`` with ``lower_offset`` set if the end decreased.

    Raises ``DivergedLogError`` if the record before the previous end has another leader epoch.
    """
    if previous is None:
        return found
    _check_epoch_before(previous, log)
    if found.offset >= previous.offset:
        return found
    return replace(previous, lower_offset=found.offset)


def _check_epoch_before(end: ReadEnd, log: LogExtent) -> None:
    """Check that the record before an end has the end's leader epoch, if the log has the record.

    The check passes if that record was deleted or is not yet replicated to this copy, unless a
    later epoch begins before the end.
    """
    offset, epoch = end.offset, end.epoch
    if epoch <= 0 or offset <= log.log_start_offset:
        return
    actual = log.epochs.epoch_at(offset - 1)
    if actual is None or (actual < epoch and offset > log.log_end_offset):
        return  # unknown, or the copy lags behind
    if actual != epoch:
        raise DivergedLogError(
            path=log.path,
            offset=offset - 1,
            expected_epoch=epoch,
            epoch=actual,
            remedy="the records that were read there were truncated before they were committed: "
            "read again from an offset before them",
        )


def describe_end(basis: EndBasis, tail: LogTail | None, *, holdback_ms: int = 0) -> str:
    """Return text on how an end was chosen, and on the damage after it."""
    match basis:
        case EndBasis.DIRECTORY:
            text = "the end of this one directory: its last records may not be committed"
        case EndBasis.HOLDBACK:
            text = (
                f"the end of this one directory without records younger than {holdback_ms} ms: "
                "very likely committed"
            )
        case EndBasis.EMBEDDED:
            text = "the synced end of this embedded log: committed"
        case EndBasis.HIGH_WATERMARK:
            text = "the high watermark of the quorum's leader: committed"
        case EndBasis.FILE:
            text = "the end of this one file: its last records may not be committed"
        case EndBasis.SNAPSHOT:
            text = "the end of this snapshot: committed"
        case EndBasis.MAJORITY:
            text = "the records that a majority of the voters has: committed"
        case EndBasis.REPLICAS:
            text = (
                "the records that all copies have: committed if they include all in-sync replicas"
            )
    if tail is not None and tail.error is not None:
        text += f"; the {tail.byte_count} bytes after it are damaged: {tail.error.reason}"
    return text


# --- Interface ------------------------------------------------------------------------------------


class LogReader(Closeable, abc.ABC):
    """Readable log: one directory, one file, or the copies of several voters.

    Files are open only during reads; connections to nodes stay open until ``close``.
    """

    path: str
    """Path that was opened."""
    topic: str
    partition: int
    kind: LogKind
    source: SourceKind

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.path!r})"

    # --- properties -------------------------------------------------------------------------------

    @property
    @abc.abstractmethod
    def log_start_offset(self) -> int:
        """First offset on disk."""

    @property
    @abc.abstractmethod
    def log_end_offset(self) -> int:
        """Offset after the last valid batch on disk (exclusive).

        Raises ``CorruptBatchError`` if the log is one file without a valid batch.
        """

    @property
    @abc.abstractmethod
    def is_raftlog(self) -> bool:
        """Whether raftlog writes this log: headers with the prefix ``raftlog.`` are its own then.

        In other logs they are the users' headers.
        """

    @property
    @abc.abstractmethod
    def snapshots(self) -> tuple[SnapshotId, ...]:
        """Ids of the finished snapshots, oldest first.

        A bootstrap checkpoint is included only if its own path was opened.
        """

    @property
    @abc.abstractmethod
    def epochs(self) -> EpochCache:
        """Leader epochs of the batches on disk, and earlier ones where known."""

    @property
    @abc.abstractmethod
    def tail(self) -> LogTail | None:
        """Bytes after the last valid batch: a torn batch, zeros, or damage (``tail.error``)."""

    @property
    @abc.abstractmethod
    def meta_properties(self) -> MetaProperties | None:
        """``meta.properties`` of the node; None without it. Raises ``CorruptFileError``."""

    @property
    @abc.abstractmethod
    def quorum_state(self) -> QuorumState | None:
        """``quorum-state``; None without it. Raises ``CorruptFileError``."""

    @property
    def compacted_offset(self) -> int:
        """Offset below which a state may lack keys, because a compaction removed their records.

        0 for a log that is not compacted. Raises ``CorruptFileError``.
        """
        return 0

    @property
    def cluster_id(self) -> str | None:
        """Cluster id in ``meta.properties``; None if unknown."""
        return self.meta_properties.cluster_id if self.meta_properties else None

    @property
    def topic_id(self) -> str | None:
        """Topic id in ``partition.metadata``; None if unknown.

        A log of ``raftlog.open`` or Kafka that is deleted and created again has another one; a log
        of raftlog's nodes has one id per cluster and name.
        """
        return None

    @property
    def node_id(self) -> int | None:
        """Node id in ``meta.properties``; None if unknown."""
        return self.meta_properties.node_id if self.meta_properties else None

    @property
    def directory_id(self) -> str | None:
        """Directory id in ``meta.properties``; None if unknown."""
        return self.meta_properties.directory_id if self.meta_properties else None

    def epoch_before(self, offset: int) -> int:
        """Return the leader epoch of the record before ``offset``; 0 if unknown."""
        for snapshot_id in reversed(self.snapshots):
            if snapshot_id.end_offset == offset:
                return snapshot_id.epoch
        return self.epochs.epoch_at(offset - 1) or 0

    def check_range(self, start_offset: int, end_offset: int) -> None:
        """Check that the log contains [start_offset, end_offset).

        Raises ``DataLossError`` below its start, and ``OffsetOutOfRangeError`` above its end.
        """
        log_start_offset = self.log_start_offset
        if start_offset < log_start_offset:
            raise DataLossError(
                path=self.path,
                condition="OFFSETS_DELETED",
                reason=f"offset {start_offset} was deleted: the log begins at {log_start_offset}",
                remedy="start at a snapshot or at the first offset of the log",
            )
        self.check_offset(end_offset)

    def check_offset(self, offset: int) -> None:
        """Raise ``OffsetOutOfRangeError`` if ``offset`` is above the log end offset."""
        if offset > self.log_end_offset:
            raise OffsetOutOfRangeError(
                path=self.path,
                offset=offset,
                log_start_offset=self.log_start_offset,
                log_end_offset=self.log_end_offset,
            )

    def newest_snapshot(self) -> SnapshotId | None:
        """Return the id of the newest finished snapshot; None without one."""
        return self.snapshots[-1] if self.snapshots else None

    @abc.abstractmethod
    def refresh(self) -> None:
        """List the files again, at the cost of a listing; batches that were read are kept."""

    def begin_wait(self) -> Future[bool] | None:
        """Start to wait, for at most about a second, for records after those of the last refresh.

        The future's result is whether waiting was possible; it is cancelled when the log is closed.
        Returns None if the log must be refreshed from time to time instead.
        """
        return None

    # --- planning ---------------------------------------------------------------------------------

    @abc.abstractmethod
    def read_end(
        self,
        *,
        isolation: Isolation,
        holdback_ms: int = 0,
        now_ms: int | None = None,
        previous: ReadEnd | None = None,
    ) -> ReadEnd:
        """Return the end of a read that starts now.

        With READ_COMMITTED the end is never inside an open transaction. ``holdback_ms``, which
        requires ``now_ms``, excludes younger records of a log whose committed end is unknown. The
        end of a log may decrease; ``previous`` is then returned.

        Raises:
            DivergedLogError: the log has another leader epoch at ``previous``.
            TooFewVotersError: the given copies are not a majority of the voters.
            WrongClusterError: a copy belongs to another cluster.
        """

    @abc.abstractmethod
    def plan(
        self,
        start_offset: int,
        end_offset: int,
        *,
        isolation: Isolation,
        max_splits: int = 1,
        max_records_per_split: int | None = None,
        with_producers: bool = True,
    ) -> ReadPlan:
        """Divide a range into about ``max_splits`` splits, or more if a split would be too large.

        A split ends between batches, so a large batch may exceed ``max_records_per_split``. In an
        ordinary partition, the splits' transactions require reading all headers of the range. With
        ``with_producers`` false the splits have none, see ``aborted_transactions``.

        Raises:
            DataLossError: ``start_offset`` is below the log's start.
            OffsetOutOfRangeError: ``end_offset`` is above the log's end.
            TransactionMarkerError: with READ_COMMITTED, markers in the range contradict each other.
        """

    @abc.abstractmethod
    def next_boundary(
        self,
        start_offset: int,
        *,
        end_offset: int,
        max_records: int | None = None,
        max_bytes: int | None = None,
    ) -> int:
        """Return the end of a read from ``start_offset`` within the limits, at most ``end_offset``.

        The end is between batches and outside metadata transactions. If the first batch or
        transaction exceeds a limit, it is included as a whole, so that reads advance. The range
        ends before damage, which is raised if it is at ``start_offset``.
        """

    @abc.abstractmethod
    def offset_for_timestamp(self, timestamp_ms: int) -> int | None:
        """Return the first offset whose timestamp is >= ``timestamp_ms``; None without one.

        Kafka: ``ListOffsets`` by timestamp.
        """

    def range_size(self, start_offset: int, end_offset: int) -> RangeSize:
        """Return the bytes and the number of a range's batches, and the time of the first of them.

        Raises what ``scan`` raises.
        """
        batches = self.batches(start_offset, end_offset, chunk_bytes=_ONE_BATCH_BYTES)
        batch = next(batches, None)
        if batch is None:
            return RangeSize(byte_count=0, batch_count=0, first_timestamp_ms=None)
        is_latest = batch.delete_horizon_ms is not None
        if is_latest or batch.timestamp_type is TimestampType.LOG_APPEND_TIME:
            timestamp_ms = batch.max_timestamp_ms
        else:
            timestamp_ms = batch.base_timestamp_ms
        return RangeSize(byte_count=None, batch_count=None, first_timestamp_ms=timestamp_ms)

    # --- reading ----------------------------------------------------------------------------------

    @abc.abstractmethod
    def scan(
        self,
        start_offset: int,
        end_offset: int,
        *,
        columns: Column = Column.ALL_BUT_HEADERS,
        chunk_bytes: int = READ_CHUNK_BYTES,
    ) -> Iterator[Scan]:
        """Yield the records of all batches that overlap [start_offset, end_offset), in order.

        Records of aborted and open transactions are included. Each error is raised after the last
        valid batch.

        Raises:
            CorruptBatchError, LogGapError: a batch is damaged or missing.
            DataLossError: the log does not have the range any more.
            SegmentDeletedError, LogAccessError: a file cannot be read.
        """

    @abc.abstractmethod
    def batches(
        self, start_offset: int, end_offset: int, *, chunk_bytes: int = READ_CHUNK_BYTES
    ) -> Iterator[RecordBatch]:
        """Yield the batches that overlap the range as objects; for tools.

        ``chunk_bytes``: size of one read, unless a batch is larger. Raises what ``scan`` raises.
        """

    @abc.abstractmethod
    def aborted_transactions(self, start_offset: int, end_offset: int) -> AbortedTransactions:
        """Return the transactions of [start_offset, end_offset) that are not committed.

        This is for the ranges of consecutive scans of an ordinary partition. Headers are read ahead
        as far as needed, and none is read twice while ranges ascend. The result is empty for a
        metadata log, whose plans have its transactions. Damage is part of the result; other errors
        are raised as by ``scan``.
        """

    @abc.abstractmethod
    def read_snapshot(self, snapshot_id: SnapshotId) -> SnapshotReader:
        """Return a reader of one of ``snapshots``."""
