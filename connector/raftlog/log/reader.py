"""The one interface through which a log is read, whatever was opened.

Rules of this file:

1. A reader sees the log as it was at its last ``refresh``. Reading may go beyond, never below.
2. It writes nothing, locks nothing, and holds no file open between calls. Not shared between
   threads; every process opens its own.
3. The clock is an argument.
"""

from __future__ import annotations

import abc
from collections.abc import Iterator

from raftlog.errors import DataLossError, OffsetOutOfRangeError
from raftlog.limits import READ_CHUNK_BYTES
from raftlog.records.batch import RecordBatch
from raftlog.records.columns import Column, Scan
from raftlog.types import SnapshotId

from .aborted_transactions import AbortedTransactions
from .cursor import LogTail
from .epoch_cache import EpochCache
from .reads import Isolation, LogKind, ReadEnd, ReadPlan, SourceKind
from .small_files import MetaProperties, QuorumState
from .snapshot import SnapshotReader


class LogReader(abc.ABC):
    """A log that can be read: one directory, one file, or several voters' copies."""

    path: str
    """What was opened."""
    topic: str
    partition: int
    kind: LogKind
    source: SourceKind

    # --- what it is -------------------------------------------------------------------------------

    @property
    @abc.abstractmethod
    def log_start_offset(self) -> int:
        """The first offset on disk."""

    @property
    @abc.abstractmethod
    def log_end_offset(self) -> int:
        """The offset behind the last whole, sound batch on disk (exclusive).

        Raises ``CorruptBatchError`` if there is one file and nothing in it is a batch.
        """

    @property
    @abc.abstractmethod
    def is_raftlog(self) -> bool:
        """Whether raftlog writes it: headers whose names begin with ``raftlog.`` are then its own.

        Elsewhere they are whatever a user called so.
        """

    @property
    @abc.abstractmethod
    def snapshots(self) -> tuple[SnapshotId, ...]:
        """The finished snapshots, oldest first.

        A bootstrap checkpoint is among them only if it was opened by its own path.
        """

    @property
    @abc.abstractmethod
    def epochs(self) -> EpochCache:
        """The leader epochs of the batches on disk, and of older ones as far as they are known."""

    @property
    @abc.abstractmethod
    def tail(self) -> LogTail | None:
        """What lies behind the last sound batch: a torn one, zeros, or damage (``tail.error``)."""

    @property
    @abc.abstractmethod
    def meta_properties(self) -> MetaProperties | None:
        """``meta.properties`` of the node, if it is there. Raises ``CorruptFileError``."""

    @property
    @abc.abstractmethod
    def quorum_state(self) -> QuorumState | None:
        """``quorum-state``, if it is there. Raises ``CorruptFileError``."""

    @property
    def cluster_id(self) -> str | None:
        """The cluster that the log belongs to, if ``meta.properties`` says so."""
        return self.meta_properties.cluster_id if self.meta_properties else None

    @property
    def node_id(self) -> int | None:
        """The node whose copy this is."""
        return self.meta_properties.node_id if self.meta_properties else None

    @property
    def directory_id(self) -> str | None:
        """The id of the log directory that it lies in."""
        return self.meta_properties.directory_id if self.meta_properties else None

    def epoch_before(self, offset: int) -> int:
        """The epoch of the record before ``offset``; 0 if nothing tells."""
        for snapshot_id in reversed(self.snapshots):
            if snapshot_id.end_offset == offset:
                return snapshot_id.epoch
        return self.epochs.epoch_at(offset - 1) or 0

    def check_range(self, start_offset: int, end_offset: int) -> None:
        """Check that the log holds a range.

        Raises ``DataLossError`` below its start, ``OffsetOutOfRangeError`` beyond its end.
        """
        log_start_offset = self.log_start_offset
        if start_offset < log_start_offset:
            raise DataLossError(
                path=self.path,
                condition="OFFSETS_DELETED",
                reason=f"offset {start_offset} is gone: the log begins at {log_start_offset}",
                remedy="begin at a snapshot or at the first offset of the log",
            )
        self.check_offset(end_offset)

    def check_offset(self, offset: int) -> None:
        """Raise ``OffsetOutOfRangeError`` for an offset beyond the end of the log."""
        if offset > self.log_end_offset:
            raise OffsetOutOfRangeError(
                path=self.path,
                offset=offset,
                log_start_offset=self.log_start_offset,
                log_end_offset=self.log_end_offset,
            )

    def newest_snapshot(self) -> SnapshotId | None:
        """The newest finished snapshot."""
        return self.snapshots[-1] if self.snapshots else None

    # --- what happened meanwhile ------------------------------------------------------------------

    @abc.abstractmethod
    def refresh(self) -> None:
        """Look at the files again. Costs a listing; what was read already is not read again."""

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
        """Choose where a read ends that begins now.

        With READ_COMMITTED never inside a transaction that is not decided before it.
        ``holdback_ms`` (which needs ``now_ms``) holds back what is younger, where nothing better
        is known.

        An end may fall between two looks: then ``previous`` is given back. Raises
        ``DivergedLogError`` if the log disagrees about the epoch there; for several voters also
        ``TooFewVotersError`` and ``WrongClusterError``.
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
        """Divide a range into about ``max_splits`` splits, more if one would be too long.

        A split is cut between batches, so one batch may be longer than ``max_records_per_split``.
        The range must lie on disk: ``OffsetOutOfRangeError`` beyond its end, ``DataLossError``
        below its start. With READ_COMMITTED raises ``TransactionMarkerError`` if the transactions
        in the range contradict each other.

        In an ordinary partition naming the transactions means to read all headers of the range.
        Without ``with_producers`` none are named there: ``aborted_transactions`` names them.
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
        """How far a read from ``start_offset`` may go within the limits, at most ``end_offset``.

        The answer lies between batches and outside every metadata transaction. A first batch or
        transaction that is larger than a limit is taken whole, so there is always progress. Damage
        ends the range; raises it if it is the first thing there.
        """

    @abc.abstractmethod
    def offset_for_timestamp(self, timestamp_ms: int) -> int | None:
        """The first offset with a timestamp at or behind ``timestamp_ms``; None if there is none.

        Kafka: ``ListOffsets`` by timestamp.
        """

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
        """The records of [start_offset, end_offset), of all batches that overlap it, in order.

        Errors come behind what was whole: ``CorruptBatchError``, ``LogGapError``,
        ``DataLossError``, ``SegmentDeletedError``, ``LogAccessError``. Transactions are not looked
        at: records come as they lie there.
        """

    @abc.abstractmethod
    def batches(self, start_offset: int, end_offset: int) -> Iterator[RecordBatch]:
        """The batches that overlap the range, one object each: for tools. Errors as ``scan``."""

    @abc.abstractmethod
    def aborted_transactions(self, start_offset: int, end_offset: int) -> AbortedTransactions:
        """Which transactions of [start_offset, end_offset) are not committed, in a partition.

        For the range of one scan after another: reads headers ahead as far as it must, and none of
        them twice while ranges ascend. In a metadata log there is nothing to tell: plans name its
        transactions. Damage and what is missing are told in the answer; other errors as ``scan``.
        """

    @abc.abstractmethod
    def read_snapshot(self, snapshot_id: SnapshotId) -> SnapshotReader:
        """Open one of ``snapshots``."""
