"""Read one copy of a log: a directory, a segment or a checkpoint.

Rules of this file:

1. Nothing is read before it is asked for: a task that scans a planned range pays for that range.
2. Three kinds of knowledge, from cheap to dear: the listing; the outline (where the log ends: one
   look at the last segment); the history (transactions, voters: read forward from a safe place,
   then only what is new).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Final, TypeVar

import numpy as np
import numpy.typing as npt

from raftlog.errors import (
    CorruptBatchError,
    CorruptFileError,
    DataLossError,
    LogGapError,
    SegmentDeletedError,
)
from raftlog.limits import CLOCK_AHEAD_MS_MAX, READ_CHUNK_BYTES
from raftlog.records.batch import RecordBatch
from raftlog.records.columns import BatchColumns, Column, Scan
from raftlog.types import SnapshotId, TopicPartition

from .aborted_transactions import AbortedTransactions, AbortedTransactionsReader
from .chunks import BatchDecoder, ChunkDecoder, ColumnDecoder, HeaderDecoder, P
from .cursor import LogCursor, LogTail
from .ends import LogExtent, describe_end, not_below_previous
from .epoch_cache import EpochCache
from .files import LogFiles
from .knowledge import Knowledge
from .leader_epochs import epoch_mismatches
from .names import META_PROPERTIES_NAME, QUORUM_STATE_NAME, RAFTLOG_PROPERTIES_NAME
from .reader import LogReader
from .reads import EndBasis, Isolation, LogKind, ReadEnd, ReadPlan, SourceKind
from .small_files import MetaProperties, QuorumState, parse_meta_properties, parse_quorum_state
from .snapshot import SnapshotReader
from .splits import plan_range
from .text_files import read_small_file
from .times import find_batch_after_timestamp, offset_for_timestamp
from .transaction_markers import MARKER_COLUMNS, VoterSet, last_voters
from .transactions import TransactionSpan

_ONE_BATCH: Final = HeaderDecoder(chunk_bytes=16 * 1024)
_INT64_MAX: Final = 2**63 - 1
_ATTEMPTS_MAX: Final = 5
"""How often a question is asked while its answer's segments vanish."""

T = TypeVar("T")


class DirectoryLog(LogReader):
    """One copy of a log."""

    def __init__(
        self,
        files: LogFiles,
        *,
        path: str,
        topic_partition: TopicPartition,
        kind: LogKind,
        source: SourceKind,
    ) -> None:
        self.path = path
        self.topic = topic_partition.topic
        self.partition = topic_partition.partition
        self.kind = kind
        self.source = source
        self.files = files
        self.known = Knowledge(files, kind)
        self._is_contiguous = kind is LogKind.METADATA or files.listing.is_embedded
        self._meta_properties: MetaProperties | None = None
        self._is_owner_known = False
        self._aborted_reader: AbortedTransactionsReader | None = None

    # --- what it is -------------------------------------------------------------------------------

    @property
    def log_start_offset(self) -> int:
        return self.known.start_offset

    @property
    def log_end_offset(self) -> int:
        return self.known.end_offset

    @property
    def is_raftlog(self) -> bool:
        if self.source is SourceKind.DIRECTORY:
            return self.files.listing.is_embedded
        return self.files.read_small(RAFTLOG_PROPERTIES_NAME) is not None

    @property
    def snapshots(self) -> tuple[SnapshotId, ...]:
        return self.files.listing.snapshots

    @property
    def tail(self) -> LogTail | None:
        return self.known.log_end().tail if self.files.listing.segments else None

    @property
    def meta_properties(self) -> MetaProperties | None:
        """``meta.properties`` of the log directory above, or of this one if it was copied there."""
        if not self._is_owner_known:
            storage = self.files.storage
            above, _ = storage.split(self.files.directory)
            for directory in (above, self.files.directory):
                path = storage.join(directory, META_PROPERTIES_NAME)
                data = read_small_file(storage, path)
                if data is not None:  # one that is gone since says nothing new
                    self._meta_properties = parse_meta_properties(data, path)
                    break
            self._is_owner_known = True
        return self._meta_properties

    @property
    def quorum_state(self) -> QuorumState | None:
        data = self.files.read_small(QUORUM_STATE_NAME)
        path = self.files.storage.join(self.files.directory, QUORUM_STATE_NAME)
        return None if data is None else parse_quorum_state(data, path)

    @property
    def epochs(self) -> EpochCache:
        return self.known.epochs

    def voters(self) -> VoterSet | None:
        """Who votes, as the newest record or snapshot of this copy says; None if none does.

        Raises ``CorruptBatchError`` if that record does not parse.
        """
        replay = self.known.replay()
        if replay is None:
            return None
        if replay.voters_damage is not None:
            raise replay.voters_damage
        return replay.voters or self._static_voters()

    # --- what happened meanwhile ------------------------------------------------------------------

    def refresh(self) -> None:
        self.known.refresh()
        self._is_owner_known = False
        self._aborted_reader = None

    # --- planning ---------------------------------------------------------------------------------

    def read_end(
        self,
        *,
        isolation: Isolation,
        holdback_ms: int = 0,
        now_ms: int | None = None,
        previous: ReadEnd | None = None,
    ) -> ReadEnd:
        is_committed_only = isolation is Isolation.READ_COMMITTED
        replay = self.known.replay() if is_committed_only else None
        offset = self.log_end_offset
        is_file = self.source in (SourceKind.SEGMENT, SourceKind.CHECKPOINT)
        basis = EndBasis.FILE if is_file else EndBasis.DIRECTORY
        if self.files.listing.is_embedded and not self._is_quorum_replica():
            basis, holdback_ms = EndBasis.EMBEDDED, 0
        reasons = [describe_end(basis, self.tail)]
        if holdback_ms > 0:
            assert now_ms is not None, "holding back needs a clock"
            end_offset, now = offset, now_ms
            offset = self._retry_on_deletion(
                lambda: self._end_before_holdback(end_offset, now, holdback_ms, previous)
            )
            basis = EndBasis.HOLDBACK
            reasons = [describe_end(basis, self.tail, holdback_ms=holdback_ms)]
        if replay is not None:
            stable = self.known.last_stable_offset(offset)
            if stable < offset:
                reasons.append(f"the transaction that begins at offset {stable} is not decided")
            offset = stable
        found = ReadEnd(offset, self.epoch_before(offset), basis, "; ".join(reasons))
        return not_below_previous(found, previous, self.extent())

    def _is_quorum_replica(self) -> bool:
        """Whether a node of a quorum writes this copy: what it has synced may not be committed."""
        return self.files.read_small(QUORUM_STATE_NAME) is not None

    def extent(self) -> LogExtent:
        """Where this copy lies, to compare an earlier end with."""
        return LogExtent(self.path, self.log_start_offset, self.log_end_offset, self.epochs)

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
        if start_offset >= end_offset:
            return ReadPlan(start_offset, start_offset, ())
        self.check_range(start_offset, end_offset)
        spans: tuple[TransactionSpan, ...] = ()
        if with_producers or self.kind is LogKind.METADATA:
            spans = self.known.spans(start_offset, end_offset, isolation)
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
        if start_offset >= end_offset:
            return end_offset
        self.check_range(start_offset, end_offset)
        valid_end = self.known.valid_end(start_offset, end_offset)
        if max_records is None and max_bytes is None and valid_end == end_offset:
            return end_offset
        records_left = _INT64_MAX if max_records is None else max_records
        bytes_left = _INT64_MAX if max_bytes is None else max_bytes
        cursor = LogCursor(self.files, start_offset, contiguous=self._is_contiguous)
        boundary = start_offset
        try:
            for chunk in cursor.read(HeaderDecoder(), valid_end):
                batches = chunk.batches
                count = np.cumsum(batches.record_count, dtype=np.int64)
                byte_count = np.cumsum(batches.byte_count, dtype=np.int64)
                fits = (count <= records_left) & (byte_count <= bytes_left)
                allowed = batches.next_offset[self._are_outside_transactions(batches, start_offset)]
                within = allowed[allowed <= batches.next_offset[fits][-1]] if fits.any() else []
                if len(within):
                    boundary = int(within[-1])
                if not fits.all():
                    if boundary > start_offset:
                        return boundary
                    if len(allowed):
                        return int(allowed[0])
                records_left -= int(count[-1])
                bytes_left -= int(byte_count[-1])
        except (CorruptBatchError, LogGapError):
            if boundary == start_offset:
                raise
            return boundary
        if valid_end < end_offset and boundary > start_offset:
            return boundary
        return end_offset

    def offset_for_timestamp(self, timestamp_ms: int) -> int | None:
        return self._retry_on_deletion(lambda: self._offset_for_timestamp(timestamp_ms))

    def _offset_for_timestamp(self, timestamp_ms: int) -> int | None:
        end_offset = self.log_end_offset
        start_offset = self.log_start_offset
        while True:
            batch = find_batch_after_timestamp(
                self.files,
                timestamp_ms - 1,
                start_offset=start_offset,
                end_offset=end_offset,
                contiguous=self._is_contiguous,
            )
            if batch is None:
                return None
            base_offset, next_offset = int(batch.base_offset[0]), int(batch.next_offset[0])
            columns = Column.OFFSET | Column.TIMESTAMP
            for scan in self.scan(base_offset, next_offset, columns=columns):
                found = offset_for_timestamp(scan, timestamp_ms)
                if found is not None:
                    return found
            start_offset = next_offset  # a batch may claim a time that none of its records has

    # --- reading ----------------------------------------------------------------------------------

    def scan(
        self,
        start_offset: int,
        end_offset: int,
        *,
        columns: Column = Column.ALL_BUT_HEADERS,
        chunk_bytes: int = READ_CHUNK_BYTES,
    ) -> Iterator[Scan]:
        decoder = ColumnDecoder(columns, chunk_bytes, self.files.decompressed_bytes_max)
        yield from self._read(decoder, start_offset, end_offset)

    def batches(self, start_offset: int, end_offset: int) -> Iterator[RecordBatch]:
        for chunk in self._read(BatchDecoder(READ_CHUNK_BYTES), start_offset, end_offset):
            yield from chunk.objects

    def _read(self, decoder: ChunkDecoder[P], start_offset: int, end_offset: int) -> Iterator[P]:
        """Pieces of [start_offset, end_offset), each batch of the epoch that it must have."""
        if start_offset >= end_offset:
            return
        epochs = self._durable_epochs()
        cursor = LogCursor(self.files, start_offset, contiguous=self._is_contiguous)
        for chunk in cursor.read(decoder, end_offset):
            wrong, _ = epoch_mismatches(chunk.batches, epochs)
            if wrong.any():
                at = int(np.argmax(wrong))
                if at:
                    yield decoder.first(chunk, at)
                base_offset = int(chunk.batches.base_offset[at])
                raise CorruptBatchError(
                    reason=f"its epoch is {int(chunk.batches.leader_epoch[at])}, and that of its "
                    f"offset is {epochs.epoch_at(base_offset)}",
                    path=self.files.segment_path(cursor.segment),
                    position=int(chunk.batches.position[at]),
                    offset=base_offset,
                )
            yield chunk

    def _durable_epochs(self) -> EpochCache:
        """What an embedded log noted of its epochs before it wrote a batch of them.

        Kafka's nodes do not promise that much of the file, and it may be a copy's old one.
        """
        if self.files.listing.is_embedded:
            with contextlib.suppress(CorruptFileError):
                return self.known.epoch_checkpoint or EpochCache()
        return EpochCache()

    def aborted_transactions(self, start_offset: int, end_offset: int) -> AbortedTransactions:
        if self.kind is LogKind.METADATA:
            return AbortedTransactions((), end_offset)
        if self._aborted_reader is None or not self._aborted_reader.can_continue_at(start_offset):
            is_embedded = self.files.listing.is_embedded
            self._aborted_reader = AbortedTransactionsReader(
                self.files,
                start_offset,
                contiguous=self._is_contiguous,
                log_end_offset=self.log_end_offset if is_embedded else None,
            )
        return self._aborted_reader.aborted_transactions(start_offset, end_offset)

    def read_snapshot(self, snapshot_id: SnapshotId) -> SnapshotReader:
        return SnapshotReader(self.files, snapshot_id)

    # --- inside -----------------------------------------------------------------------------------

    def _static_voters(self) -> VoterSet | None:
        """Voters that no checkpoint names, as the newest leader on disk named them."""
        newest = self.epochs.entries[-1:]
        if not newest or newest[0].start_offset < self.log_start_offset:
            return None
        start_offset = newest[0].start_offset
        for scan in self.scan(start_offset, start_offset + 1, columns=MARKER_COLUMNS):
            return last_voters(scan, None, self.path)
        return None

    def _retry_on_deletion(self, ask: Callable[[], T]) -> T:
        """Ask until the node deletes nothing that the answer needs: it may trim the log meanwhile.

        Raises ``SegmentDeletedError`` if that does not end.
        """
        for _ in range(_ATTEMPTS_MAX):
            start_offset = self.log_start_offset
            try:
                return ask()
            except SegmentDeletedError:
                self.files.refresh()
            except DataLossError:
                if self.log_start_offset == start_offset:
                    raise
        raise SegmentDeletedError(path=self.path)

    def _end_before_holdback(
        self, end_offset: int, now_ms: int, holdback_ms: int, previous: ReadEnd | None
    ) -> int:
        """Where the young tail begins.

        A time far ahead of the clock is some producer's mistake, and would hold all up until then.
        """
        start_offset = self.log_start_offset
        if previous is not None:
            start_offset = max(start_offset, min(previous.offset, end_offset))
        try:
            young = find_batch_after_timestamp(
                self.files,
                now_ms - holdback_ms,
                start_offset=start_offset,
                end_offset=end_offset,
                contiguous=self._is_contiguous,
                timestamp_ms_max=now_ms + CLOCK_AHEAD_MS_MAX,
            )
        except (CorruptBatchError, LogGapError):
            return end_offset  # nothing before the damage is young, and nobody reads beyond it
        return end_offset if young is None else max(int(young.base_offset[0]), start_offset)

    def _are_outside_transactions(
        self, batches: BatchColumns, start_offset: int
    ) -> npt.NDArray[np.bool_]:
        """Behind which batches a micro-batch may end. (Producers' transactions may be cut.)"""
        ends = batches.next_offset
        outside = np.ones(len(ends), np.bool_)
        if self.kind is LogKind.PARTITION:
            return outside
        last = int(ends[-1])
        replay = self.known.covering(start_offset, last)
        spans = (
            ()
            if replay is None
            else replay.transactions.spans(start_offset, last + 1, with_committed=True)
        )
        for span in spans:
            marker_offset = _INT64_MAX if span.marker_offset is None else span.marker_offset
            outside &= (ends <= span.first_offset) | (ends > marker_offset)
        return outside

    def _find_batch(self, offset: int) -> tuple[int, int]:
        """Base and next offset of the batch that holds ``offset``, or of the next one."""
        cursor = LogCursor(self.files, offset, contiguous=self._is_contiguous)
        for chunk in cursor.read(_ONE_BATCH, self.log_end_offset):
            return int(chunk.batches.base_offset[0]), int(chunk.batches.next_offset[0])
        return offset, self.log_end_offset
