"""Reader of a quorum's log over the network, up to its high watermark.

Records below the high watermark are committed, so none is held back and the end never decreases.
The nodes are a raftlog quorum or Kafka's controllers; what controllers do not serve (offsets by
timestamp, transactions) is found by reading the log. A raftlog quorum accepts no transactional
producers, so that every record of a partition is committed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from raftlog.errors import QuorumUnavailableError
from raftlog.limits import DECOMPRESSED_BYTES_MAX, READ_CHUNK_BYTES
from raftlog.log.format.epoch_cache import EpochCache
from raftlog.log.format.small_files import MetaProperties, QuorumState
from raftlog.log.reading.aborted_transactions import AbortedTransactions
from raftlog.log.reading.chunks import BatchDecoder, ColumnDecoder, HeaderDecoder
from raftlog.log.reading.cursor import LogTail
from raftlog.log.reading.log_reader import LogExtent, LogReader, describe_end, not_below_previous
from raftlog.log.reading.reads import (
    EndBasis,
    Isolation,
    LogKind,
    ReadEnd,
    ReadPlan,
    SourceKind,
    plan_range,
)
from raftlog.log.reading.replay import ENDED_RETAINED_MAX
from raftlog.log.reading.snapshot import SnapshotReader
from raftlog.log.reading.timestamps import offset_for_timestamp
from raftlog.log.reading.transactions import TransactionSpan
from raftlog.log.writing.batch_metadata import ValueKind
from raftlog.records.batch import RecordBatch
from raftlog.records.batch_columns import BatchColumns, Column, Scan
from raftlog.types import SnapshotId

from . import messages
from .fetcher import read_chunks
from .leader_client import LeaderClient
from .leader_epochs import fetch_leader_epochs
from .snapshot_files import snapshot_files
from .transactions import TransactionHistory

_ATTEMPTS_MAX: Final = 100
_RETRY_WAIT_MS: Final = 100
_ONE_BATCH: Final = HeaderDecoder(chunk_bytes=1)


@dataclass(frozen=True, slots=True)
class _Extent:
    """Offsets of the log as its leader returned them."""

    start_offset: int
    high_watermark: int
    last_stable_offset: int
    snapshots: tuple[SnapshotId, ...] = ()


class RemoteLog(LogReader):
    """Log of a quorum, over the connections of ``quorum``.

    ``values``: the kind of values, None to request it. A batch that expands to more than
    ``decompressed_bytes_max`` bytes raises ``DecompressionLimitError``.
    """

    def __init__(
        self,
        quorum: LeaderClient,
        values: ValueKind | None = None,
        *,
        decompressed_bytes_max: int = DECOMPRESSED_BYTES_MAX,
    ) -> None:
        identity = quorum.identity()
        self.path = quorum.path
        self.topic = identity.topic
        self.partition = messages.PARTITION
        self.source = SourceKind.QUORUM
        is_metadata = identity.is_controller
        if not is_metadata:
            values = quorum.settings().values if values is None else values
            is_metadata = values is ValueKind.KRAFT
        self.kind = LogKind.METADATA if is_metadata else LogKind.PARTITION
        self._quorum = quorum
        self._decompressed_bytes_max = decompressed_bytes_max
        self._identity = identity
        self._known: _Extent | None = None
        self._epochs: EpochCache | None = None
        self._known_epochs = EpochCache()
        self._history: TransactionHistory | None = None
        self._backlog: TransactionHistory | None = None

    # --- properties -------------------------------------------------------------------------------

    @property
    def log_start_offset(self) -> int:
        return self._extent().start_offset

    @property
    def log_end_offset(self) -> int:
        """The high watermark: later records are not committed, and cannot be read."""
        return self._extent().high_watermark

    @property
    def is_raftlog(self) -> bool:
        return not self._identity.is_controller

    @property
    def snapshots(self) -> tuple[SnapshotId, ...]:
        """The newest one of a controller; none of a raftlog quorum, which serves only replicas."""
        return self._extent().snapshots

    @property
    def epochs(self) -> EpochCache:
        if self._epochs is None:
            start_offset = self.log_start_offset
            self._epochs = fetch_leader_epochs(self._quorum, self._known_epochs, start_offset)
            self._known_epochs = self._epochs
        return self._epochs

    @property
    def tail(self) -> LogTail | None:
        return None

    @property
    def meta_properties(self) -> MetaProperties | None:
        return None

    @property
    def quorum_state(self) -> QuorumState | None:
        return None

    @property
    def cluster_id(self) -> str | None:
        return self._identity.cluster_id

    # --- refresh ----------------------------------------------------------------------------------

    def refresh(self) -> None:
        self._known = None
        self._epochs = None

    def _extent(self) -> _Extent:
        if self._known is None:
            self._known = (
                self._extent_of_controller()
                if self._identity.is_controller
                else self._extent_of_partition()
            )
        return self._known

    def _extent_of_partition(self) -> _Extent:
        """Return the extent. The last stable offset is first, so as not to exceed the end."""
        last_stable_offset = None
        if self.kind is LogKind.METADATA:
            latest = messages.LATEST_TIMESTAMP
            last_stable_offset = self._quorum.list_offset(latest, is_committed_only=True)
        high_watermark = self._quorum.list_offset(messages.LATEST_TIMESTAMP)
        start_offset = self._quorum.list_offset(messages.EARLIEST_TIMESTAMP)
        assert high_watermark is not None, "without it the request is retried"
        if last_stable_offset is None:
            last_stable_offset = high_watermark
        return _Extent(start_offset or 0, high_watermark, last_stable_offset)

    def _extent_of_controller(self) -> _Extent:
        """Return the extent by a Fetch from offset 0, whose response has the newest snapshot."""
        for _ in range(_ATTEMPTS_MAX):
            first = self._quorum.fetch(0, byte_count_max=1)
            if first.high_watermark is None:
                self._quorum.fetch(messages.OFFSET_MAX, wait_ms=_RETRY_WAIT_MS)
                continue
            high_watermark = first.high_watermark
            snapshots = () if first.snapshot_id is None else (first.snapshot_id,)
            # With a snapshot offset 0 cannot be fetched; it has a leader change record only.
            start_offset = max(first.log_start_offset, 1 if snapshots else 0)
            return _Extent(start_offset, high_watermark, high_watermark, snapshots)
        raise QuorumUnavailableError(
            path=self.path, waited_ms=0, reason="the leader does not know its high watermark yet"
        )

    # --- planning ---------------------------------------------------------------------------------

    def read_end(
        self,
        *,
        isolation: Isolation,
        holdback_ms: int = 0,
        now_ms: int | None = None,
        previous: ReadEnd | None = None,
    ) -> ReadEnd:
        del holdback_ms, now_ms  # nothing is held back: records below the end are committed
        extent = self._extent()
        offset = extent.high_watermark
        reasons = [describe_end(EndBasis.HIGH_WATERMARK, None)]
        if isolation is Isolation.READ_COMMITTED:
            stable = min(self._last_stable_offset(extent), offset)
            if stable < offset:
                reasons.append(f"the transaction that begins at offset {stable} is not decided")
            offset = stable
        found = ReadEnd(
            offset, self.epoch_before(offset), EndBasis.HIGH_WATERMARK, "; ".join(reasons)
        )
        log_extent = LogExtent(self.path, extent.start_offset, extent.high_watermark, self.epochs)
        return not_below_previous(found, previous, log_extent)

    def _last_stable_offset(self, extent: _Extent) -> int:
        if not self._identity.is_controller:
            return max(extent.last_stable_offset, extent.start_offset)
        end_offset = extent.high_watermark
        if end_offset <= extent.start_offset:
            return end_offset
        history = self._history
        if history is None or not history.covers_from(end_offset):
            history = self._history = self._begin(end_offset, kept_max=ENDED_RETAINED_MAX)
        history.follow(end_offset)
        return max(history.index.last_stable_offset(end_offset), extent.start_offset)

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
        del with_producers  # a quorum has no transactions of producers
        if start_offset >= end_offset:
            return ReadPlan(start_offset, start_offset, ())
        self.check_range(start_offset, end_offset)
        spans = self._spans(start_offset, end_offset, isolation)
        return plan_range(
            start_offset,
            end_offset,
            spans,
            self._find_batch,
            max_splits=max_splits,
            max_records=max_records_per_split,
        )

    def next_boundary(
        self,
        start_offset: int,
        *,
        end_offset: int,
        max_records: int | None = None,
        max_bytes: int | None = None,
    ) -> int:
        if start_offset >= end_offset or (max_records is None and max_bytes is None):
            return end_offset
        self.check_range(start_offset, end_offset)
        boundary = end_offset
        if max_records is not None and start_offset + max_records < end_offset:
            boundary = self._find_batch(start_offset + max_records)[0]
        if max_bytes is not None:
            boundary = min(boundary, self._within_bytes(start_offset, boundary, max_bytes))
        if boundary <= start_offset:
            boundary = self._find_batch(start_offset)[1]
        return self._outside_transactions(start_offset, boundary, end_offset)

    def _within_bytes(self, start_offset: int, end_offset: int, max_bytes: int) -> int:
        """Return the end of the leading batches that have at most ``max_bytes`` together."""
        boundary, left = start_offset, max_bytes
        decoder = HeaderDecoder(chunk_bytes=READ_CHUNK_BYTES)
        for chunk in read_chunks(self._quorum, decoder, start_offset, end_offset):
            fits = np.cumsum(chunk.batches.byte_count, dtype=np.int64) <= left
            if fits.any():
                boundary = int(chunk.batches.next_offset[fits][-1])
            if not fits.all():
                return boundary
            left -= int(chunk.batches.byte_count.sum(dtype=np.int64))
        return end_offset

    def _outside_transactions(self, start_offset: int, boundary: int, end_offset: int) -> int:
        """Return the last offset up to ``boundary`` outside transactions, else the first after."""
        if self.kind is LogKind.PARTITION:
            return boundary
        index = self._history_covering(start_offset, boundary).index
        stable = index.last_stable_offset(boundary)
        if stable > start_offset:
            return stable
        for span in index.spans(start_offset, boundary, with_committed=True):
            if span.marker_offset is not None and span.first_offset < boundary:
                after = self._find_batch(span.marker_offset)[1]
                if index.last_stable_offset(after) >= after:
                    return min(after, end_offset)
        return end_offset

    def offset_for_timestamp(self, timestamp_ms: int) -> int | None:
        if not self._identity.is_controller:
            return self._quorum.list_offset(max(timestamp_ms, 0))
        columns = Column.OFFSET | Column.TIMESTAMP
        for chunk in self.scan(self.log_start_offset, self.log_end_offset, columns=columns):
            found = offset_for_timestamp(chunk, timestamp_ms)
            if found is not None:
                return found
        return None

    # --- reading ----------------------------------------------------------------------------------

    def scan(
        self,
        start_offset: int,
        end_offset: int,
        *,
        columns: Column = Column.ALL_BUT_HEADERS,
        chunk_bytes: int = READ_CHUNK_BYTES,
    ) -> Iterator[Scan]:
        decoder = ColumnDecoder(columns, chunk_bytes, self._decompressed_bytes_max)
        yield from read_chunks(self._quorum, decoder, start_offset, end_offset)

    def batches(self, start_offset: int, end_offset: int) -> Iterator[RecordBatch]:
        decoder = BatchDecoder(READ_CHUNK_BYTES)
        for chunk in read_chunks(self._quorum, decoder, start_offset, end_offset):
            yield from chunk.objects

    def aborted_transactions(self, start_offset: int, end_offset: int) -> AbortedTransactions:
        return AbortedTransactions((), end_offset)

    def read_snapshot(self, snapshot_id: SnapshotId) -> SnapshotReader:
        files = snapshot_files(self._quorum, snapshot_id, self._decompressed_bytes_max)
        return SnapshotReader(files, snapshot_id)

    # --- inside -----------------------------------------------------------------------------------

    def _find_batch(self, offset: int) -> tuple[int, int]:
        """Return the base offset and the next offset of the batch that contains ``offset``."""
        batches: BatchColumns
        for chunk in read_chunks(self._quorum, _ONE_BATCH, offset, offset + 1):
            batches = chunk.batches
            return int(batches.base_offset[0]), int(batches.next_offset[0])
        return offset, self.log_end_offset

    def _spans(
        self, start_offset: int, end_offset: int, isolation: Isolation
    ) -> tuple[TransactionSpan, ...]:
        if self.kind is LogKind.PARTITION:
            return ()
        index = self._history_covering(start_offset, end_offset).index
        if isolation is Isolation.READ_COMMITTED:
            problem = index.first_problem(start_offset, end_offset)
            if problem is not None:
                raise problem
        return index.spans(start_offset, end_offset, with_committed=True)

    def _history_covering(self, start_offset: int, end_offset: int) -> TransactionHistory:
        """Return a history that has every transaction that overlaps the range."""
        history = self._history
        if history is not None and history.covers_from(start_offset):
            history.settle(end_offset, self.log_end_offset)
            if history.covers_from(start_offset):  # unless the oldest were dropped
                return history
        backlog = self._backlog
        if backlog is None or not backlog.covers_from(start_offset):
            backlog = self._backlog = self._begin(start_offset, kept_max=None)
        backlog.index.drop_ended_before(start_offset)
        backlog.settle(end_offset, self.log_end_offset)
        return backlog

    def _begin(self, before_offset: int, *, kept_max: int | None) -> TransactionHistory:
        """Return a history from the newest snapshot up to an offset, or from the log's start."""
        start_offset = self.log_start_offset
        for snapshot_id in reversed(self.snapshots):
            if start_offset <= snapshot_id.end_offset <= before_offset:
                return TransactionHistory(
                    self._quorum,
                    snapshot_id.end_offset,
                    is_deleted_before=False,
                    kept_max=kept_max,
                    decompressed_bytes_max=self._decompressed_bytes_max,
                )
        return TransactionHistory(
            self._quorum,
            start_offset,
            is_deleted_before=start_offset > 1,
            kept_max=kept_max,
            decompressed_bytes_max=self._decompressed_bytes_max,
        )
