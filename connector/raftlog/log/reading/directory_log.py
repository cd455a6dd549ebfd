"""Reader of one copy of a log: a directory, a segment or a checkpoint.

Nothing is read before it is requested: a task that scans a planned range reads only that range.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Final, TypeVar

import numpy as np
import numpy.typing as npt

from raftlog.errors import (
    CorruptBatchError,
    CorruptFileError,
    CorruptSnapshotError,
    DataLossError,
    LogGapError,
    SegmentDeletedError,
)
from raftlog.limits import CLOCK_AHEAD_MS_MAX, INT64_MAX, READ_CHUNK_BYTES
from raftlog.log.format.directory import (
    CLEANER_CHECKPOINT_NAME,
    COMPACTED_CHECKPOINT_NAME,
    EPOCH_CHECKPOINT_NAME,
    LOG_START_CHECKPOINT_NAME,
    META_PROPERTIES_NAME,
    QUORUM_STATE_NAME,
    RAFTLOG_PROPERTIES_NAME,
    RECOVERY_POINT_CHECKPOINT_NAME,
    Listing,
    MetaProperties,
    QuorumState,
    parse_epoch_checkpoint,
    parse_meta_properties,
    parse_offset_checkpoint,
    parse_quorum_state,
    parse_single_offset,
    read_published,
    read_small_file,
)
from raftlog.log.format.epoch_cache import EpochCache
from raftlog.records.batch import RecordBatch
from raftlog.records.batch_columns import BatchColumns, Column, Scan
from raftlog.storage.protocol import WritableStorage
from raftlog.types import SnapshotId, TopicPartition

from .aborted_transactions import (
    MARKER_COLUMNS,
    AbortedTransactions,
    AbortedTransactionsReader,
    VoterSet,
    last_voters,
    replica_keys,
)
from .chunks import (
    BatchDecoder,
    ChunkDecoder,
    ColumnDecoder,
    HeaderDecoder,
    P,
    epoch_mismatches,
)
from .files import LogCursor, LogFiles, LogTail
from .log_end import (
    LogEnd,
    epochs_below,
    find_batch_after_timestamp,
    find_durable_log_end,
    find_log_end,
    offset_for_timestamp,
)
from .log_reader import LogExtent, LogReader, describe_end, not_below_previous
from .range_size import RangeSize, size_in_files
from .reads import EndBasis, Isolation, LogKind, ReadEnd, ReadPlan, SourceKind, plan_range
from .replay import LogReplay, LogTruncated, metadata_replay, partition_replay
from .snapshot import SnapshotReader
from .transactions import TransactionSpan

# --- Cached state of one copy: its end, leader epochs, transactions and voters --------------------
# In order of increasing cost: the directory listing, the end of the log (one read in the last
# segment), and a replay (forward from a snapshot; afterwards only new batches).
#
# Invariants:
#
# 1. The main replay follows the end of the log. A second one, the backlog, serves reads below the
#    main replay's start.
# 2. If the node truncated records that a replay has read, the replay starts again.
# 3. An embedded log ends at the offset that its writers published in this boot. Without one, it
#    ends after the batches that follow its recovery point. Bytes after its end belong to a running
#    or crashed writer and are not read.

_RESTARTS_MAX: Final = 5
"""Maximum restarts of a replay in one call, because segments were truncated or deleted."""
_SETTLE_STEP: Final = 65_536
"""Offsets per step of the search for the end of a transaction."""
_NO_EPOCHS: Final = EpochCache()


class LogStateCache:
    """Cached state of one copy of a log. Not thread-safe."""

    def __init__(self, files: LogFiles, kind: LogKind) -> None:
        self.files = files
        self._kind = kind
        self._log_end: LogEnd | None = None
        self._replay: LogReplay | None = None
        self._backlog: LogReplay | None = None
        self._is_replayed = False
        self._leader_epochs: tuple[EpochCache, int, EpochCache] | None = None
        self._start: tuple[Listing, int] | None = None

    def refresh(self) -> None:
        """List the directory again; batches that were read are kept."""
        self.files.refresh()
        self._log_end = None
        self._is_replayed = False

    @property
    def epoch_checkpoint(self) -> EpochCache | None:
        """``leader-epoch-checkpoint``, not validated against the batches; None without the file.

        Raises ``CorruptFileError``.
        """
        return self.files.parse_small(EPOCH_CHECKPOINT_NAME, parse_epoch_checkpoint)

    @property
    def epochs(self) -> EpochCache:
        """Leader epochs of the batches on disk, and earlier ones from the checkpoint."""
        replay = self._replay if self._is_replayed else None
        if replay is None or replay.damage is not None:
            known, below, first = _NO_EPOCHS, self.end_offset, None
        else:
            known, below = replay.epochs, replay.start_offset
            first = known.entries[0].epoch if known.entries else None
        if (
            self._leader_epochs is None
            or self._leader_epochs[0] is not known
            or self._leader_epochs[1] != below
        ):
            found = self.files.retry_on_deletion(lambda: self._epochs_below(below, end_epoch=first))
            cache = self._with_checkpointed_epochs(found)
            cache = cache.assign_all((one.epoch, one.start_offset) for one in known.entries)
            self._leader_epochs = known, below, cache
        return self._leader_epochs[2]

    def log_end(self) -> LogEnd:
        """Return the end of the log.

        Raises ``CorruptBatchError`` if the log is one segment without a valid batch.
        """
        if self._log_end is None:
            self._log_end = self._find_log_end()
        return self._log_end

    def replay(self) -> LogReplay | None:
        """Return the replay up to the end of the log; None for a log without segments."""
        if not self._is_replayed:
            self._replay = self._follow()
            self._is_replayed = True
        return self._replay

    @property
    def start_offset(self) -> int:
        """Start offset of the log; for an embedded log, the checkpointed one if that is greater.

        For a tiered log this is the local start; the log itself starts at its first remote segment.
        """
        listing = self.files.listing
        if self._start is None or self._start[0] is not listing:
            start_offset = self.files.listing.start_offset
            if listing.is_embedded:
                start_offset = self.files.log_start_offset(
                    self._checkpointed_offset(LOG_START_CHECKPOINT_NAME)
                )
            self._start = listing, start_offset
        return self._start[1]

    @property
    def end_offset(self) -> int:
        """End offset of the log (exclusive)."""
        return max(self.log_end().end_offset, self.start_offset)

    def last_stable_offset(self, end_offset: int) -> int:
        """Return the last stable offset that a log ending at ``end_offset`` would have.

        ``end_offset`` must be a batch boundary.
        """
        replay = self.replay()
        start_offset = self.files.listing.start_offset
        if replay is None or end_offset <= start_offset:
            return end_offset
        if end_offset < replay.transactions.complete_from:
            replay = self._begin(before_offset=end_offset)
            replay.follow(end_offset)
        # A transaction that never ended may have begun in a deleted segment.
        return max(replay.transactions.last_stable_offset(end_offset), start_offset)

    def valid_end(self, start_offset: int, end_offset: int) -> int:
        """Return the offset of the first known damage in the range, or ``end_offset``.

        Raises the damage if it is at ``start_offset``.
        """
        replay = self.replay()
        if replay is None or replay.damage is None:
            return end_offset
        if not replay.start_offset <= start_offset <= replay.next_offset < end_offset:
            return end_offset
        if replay.next_offset == start_offset:
            raise replay.damage
        return replay.next_offset

    def spans(
        self, start_offset: int, end_offset: int, isolation: Isolation
    ) -> tuple[TransactionSpan, ...]:
        """Return the transactions that touch the range; in a partition, the uncommitted ones.

        With READ_COMMITTED, raises damage and contradictory markers in the range.
        """
        is_metadata = self._kind is LogKind.METADATA
        if not is_metadata and isolation is Isolation.READ_UNCOMMITTED:
            return ()
        replay = self.covering(start_offset, end_offset)
        if replay is None:
            return ()
        if isolation is Isolation.READ_COMMITTED:
            if replay.damage is not None and replay.next_offset < end_offset:
                raise replay.damage  # the range's transactions after the damage are unknown
            problem = replay.transactions.first_problem(start_offset, end_offset)
            if problem is not None:
                raise problem
        return replay.transactions.spans(start_offset, end_offset, with_committed=is_metadata)

    def covering(self, start_offset: int, end_offset: int) -> LogReplay | None:
        """Return a replay that has every transaction touching the range, up to the first damage.

        Returns None for a log without segments.
        """
        replay = self.replay()
        if replay is None or _covers(replay, start_offset):
            return replay
        for _ in range(_RESTARTS_MAX):
            backlog = self._backlog
            if backlog is None or not _covers(backlog, start_offset):
                backlog = self._backlog = self._begin(before_offset=start_offset)
                backlog.transactions.retain_all(with_committed=self._kind is LogKind.METADATA)
            backlog.transactions.drop_ended_before(start_offset)
            try:
                backlog.follow(end_offset)
                settled = end_offset
                while settled < self.end_offset and backlog.transactions.opened_before(end_offset):
                    settled = min(settled + _SETTLE_STEP, self.end_offset)
                    backlog.follow(settled)
            except (LogTruncated, DataLossError, SegmentDeletedError):
                self._backlog = None
                self.files.refresh()
                continue
            return backlog
        raise SegmentDeletedError(path=self.files.path)

    # --- private ----------------------------------------------------------------------------------

    def _find_log_end(self) -> LogEnd:
        published = self._published()
        if published is None:
            found = self.files.retry_on_deletion(self._find_end_in_segments)
            # A writer publishes before its first append: an end published meanwhile is the bound.
            published = self._published()
            if published is None:
                return found
        return published

    def _published(self) -> LogEnd | None:
        """Return the end that an embedded log's writers have published since the last boot."""
        storage = self.files.storage
        if not self.files.listing.is_embedded or not isinstance(storage, WritableStorage):
            return None
        published = read_published(storage, self.files.directory, storage.boot_id())
        if published is None:
            return None
        path = self.files.segment_path(published.segment_base_offset)
        tail = LogTail(path, published.file_position, 0)
        return LogEnd(end_offset=published.end_offset, epoch=published.epoch, tail=tail)

    def _find_end_in_segments(self) -> LogEnd:
        if not self.files.listing.segments:
            start_offset = self.files.listing.start_offset
            return LogEnd(end_offset=start_offset, epoch=None, tail=LogTail(self.files.path, 0, 0))
        log_end = self._durable_log_end() or find_log_end(
            self.files, contiguous=self._kind is LogKind.METADATA
        )
        is_alone = len(self.files.listing.segments) == 1 and not self.files.listing.snapshots
        if log_end.tail.error is not None and log_end.epoch is None and is_alone:
            raise log_end.tail.error
        return log_end

    def _durable_log_end(self) -> LogEnd | None:
        """Return the end of an embedded log that no writer has opened since the last boot."""
        if not self.files.listing.is_embedded:
            return None
        return find_durable_log_end(
            self.files, self._checkpointed_offset(RECOVERY_POINT_CHECKPOINT_NAME)
        )

    def _checkpointed_offset(self, name: str) -> int:
        """Return the offset in an embedded log's checkpoint file; 0 if missing or damaged."""
        with contextlib.suppress(CorruptFileError):
            return self.files.parse_small(name, parse_single_offset) or 0
        return 0

    def _follow(self) -> LogReplay | None:
        is_embedded = self.files.listing.is_embedded
        for _ in range(_RESTARTS_MAX):
            if not self.files.listing.segments:
                return None
            try:
                if self._replay is None:
                    self.log_end()  # raises if the file is not a log
                    self._replay = self._begin()
                replay = self._replay
                replay.follow(self.log_end().end_offset if is_embedded else None)
            except (LogTruncated, DataLossError, SegmentDeletedError):
                self._replay = self._backlog = self._leader_epochs = None
                self.files.refresh()
                continue
            if replay.damage is None and replay.tail is not None:
                latest = replay.epochs.latest_epoch
                self._log_end = LogEnd(
                    end_offset=replay.next_offset, epoch=latest, tail=replay.tail
                )
            return replay
        raise SegmentDeletedError(path=self.files.path)

    def _begin(self, before_offset: int | None = None) -> LogReplay:
        if self._kind is LogKind.PARTITION:
            return partition_replay(self.files, before_offset)
        replay = metadata_replay(self.files, before_offset)
        replay.voters = self._snapshot_voters(replay.start_offset)
        return replay

    def _snapshot_voters(self, end_offset: int) -> VoterSet | None:
        for snapshot_id in self.files.listing.snapshots:
            if snapshot_id.end_offset == end_offset:
                try:
                    voters = SnapshotReader(self.files, snapshot_id).voters
                except (CorruptSnapshotError, SegmentDeletedError):
                    return None
                return None if voters is None else VoterSet(end_offset - 1, replica_keys(voters))
        return None

    def _epochs_below(self, end_offset: int, *, end_epoch: int | None) -> EpochCache:
        """Return the epochs of all batches below an offset, as ``epochs_below``.

        Those of remote segments are in the checkpoint, except in a copy that began after them. So
        local records are read without a request to the store for each segment.
        """
        segments = self.files.listing.segments
        local = [base for base in segments if not self.files.is_remote(base)]
        if len(local) == len(segments):
            return epochs_below(self.files, end_offset, end_epoch=end_epoch)
        checkpoint = self._valid_checkpoint()
        if checkpoint is None or checkpoint.epoch_at(segments[0]) is None:
            return epochs_below(self.files, end_offset, end_epoch=end_epoch)
        start = local[0] if local else end_offset
        found = epochs_below(self.files, end_offset, end_epoch=end_epoch, start_offset=start)
        return checkpoint.without_from(min(start, end_offset)).assign_all(
            (one.epoch, one.start_offset) for one in found.entries
        )

    def _valid_checkpoint(self) -> EpochCache | None:
        with contextlib.suppress(CorruptFileError):
            return self.epoch_checkpoint
        return None

    def _with_checkpointed_epochs(self, cache: EpochCache) -> EpochCache:
        """Add epochs that ended before the first batch on disk, from the checkpoint."""
        checkpoint = self._valid_checkpoint()
        if checkpoint is None:
            return cache
        if not cache.entries:
            return checkpoint
        first = cache.entries[0]
        older = []
        for entry in checkpoint.entries:
            if entry.start_offset >= first.start_offset or entry.epoch > first.epoch:
                break
            older.append(entry)
        rest = cache.entries[1:] if older and older[-1].epoch == first.epoch else cache.entries
        return EpochCache((*older, *rest))


def _covers(replay: LogReplay, offset: int) -> bool:
    """Return whether a replay knows every transaction that ends at or after ``offset``."""
    is_whole = replay.damage is None or replay.next_offset > offset
    return is_whole and replay.transactions.complete_from <= offset


# --- Reader ---------------------------------------------------------------------------------------

_ONE_BATCH: Final = HeaderDecoder(chunk_bytes=16 * 1024)
_ATTEMPTS_MAX: Final = 5
_BASES: Final = {
    SourceKind.DIRECTORY: EndBasis.DIRECTORY,
    SourceKind.SEGMENT: EndBasis.FILE,
    SourceKind.CHECKPOINT: EndBasis.SNAPSHOT,
}
"""Attempts of a lookup, during which the segments that it needs may be deleted."""

T = TypeVar("T")


class DirectoryLog(LogReader):
    """Log of one directory, one segment file or one checkpoint file."""

    def __init__(
        self,
        files: LogFiles,
        path: str,
        topic_partition: TopicPartition,
        kind: LogKind,
        *,
        source: SourceKind,
    ) -> None:
        self.path = path
        self.topic = topic_partition.topic
        self.partition = topic_partition.partition
        self.kind = kind
        self.source = source
        self.files = files
        self.cached = LogStateCache(files, kind)
        self._is_contiguous = kind is LogKind.METADATA or files.listing.is_embedded
        self._meta_properties: MetaProperties | None = None
        self._is_meta_properties_read = False
        self._topic_id: str | None = None
        self._is_topic_id_read = False
        self._aborted_reader: AbortedTransactionsReader | None = None

    # --- properties -------------------------------------------------------------------------------

    @property
    def log_start_offset(self) -> int:
        return self.cached.start_offset

    @property
    def log_end_offset(self) -> int:
        return self.cached.end_offset

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
        return self.cached.log_end().tail if self.files.listing.segments else None

    @property
    def meta_properties(self) -> MetaProperties | None:
        """``meta.properties`` of the node's log directory, or of this directory if it is a copy."""
        if not self._is_meta_properties_read:
            storage = self.files.storage
            above, _ = storage.split(self.files.directory)
            for directory in (above, self.files.directory):
                path = storage.join(directory, META_PROPERTIES_NAME)
                data = read_small_file(storage, path)
                if data is not None:  # None if it was deleted meanwhile
                    self._meta_properties = parse_meta_properties(data, path)
                    break
            self._is_meta_properties_read = True
        return self._meta_properties

    @property
    def topic_id(self) -> str | None:
        """Topic id, read once per refresh: what is checked and what is stored are the same id."""
        if not self._is_topic_id_read:
            self._topic_id = self.files.topic_id()
            self._is_topic_id_read = True
        return self._topic_id

    @property
    def compacted_offset(self) -> int:
        """End of the records that may supersede a removed one.

        For Kafka's logs this is the cleaner's checkpoint, a file for all logs of a log directory.
        Kafka writes it after it has replaced segments, so until then the offset is too low. A
        replica of a quorum also stores the offset of the leader if it fetches from below it.
        """
        if self.files.listing.is_embedded:
            return self.files.parse_small(COMPACTED_CHECKPOINT_NAME, parse_single_offset) or 0
        if self.source is not SourceKind.DIRECTORY:
            return 0
        storage = self.files.storage
        above, _ = storage.split(self.files.directory)
        path = storage.join(above, CLEANER_CHECKPOINT_NAME)
        data = read_small_file(storage, path)
        offsets = {} if data is None else parse_offset_checkpoint(data, path)
        return offsets.get(TopicPartition(self.topic, self.partition), 0)

    @property
    def quorum_state(self) -> QuorumState | None:
        return self.files.parse_small(QUORUM_STATE_NAME, parse_quorum_state)

    @property
    def epochs(self) -> EpochCache:
        return self.cached.epochs

    def voters(self) -> VoterSet | None:
        """Return the voters from the newest record or snapshot of this copy; None without one.

        Raises ``CorruptBatchError`` if the newest record of the voters cannot be parsed.
        """
        replay = self.cached.replay()
        if replay is None:
            return None
        if replay.voters_damage is not None:
            raise replay.voters_damage
        return replay.voters or self._static_voters()

    def refresh(self) -> None:
        self.cached.refresh()
        self._is_meta_properties_read = False
        self._is_topic_id_read = False
        self._aborted_reader = None

    def close(self) -> None:
        """Do nothing, because files are open only during reads."""

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
        replay = self.cached.replay() if is_committed_only else None
        offset = self.log_end_offset
        basis = _BASES[self.source]
        if self.files.listing.is_embedded and not self._is_quorum_replica():
            basis, holdback_ms = EndBasis.EMBEDDED, 0
        reasons = [describe_end(basis, self.tail)]
        if holdback_ms > 0:
            assert now_ms is not None, "holdback_ms needs now_ms"
            end_offset, now = offset, now_ms
            offset = self._retry_on_deletion(
                lambda: self._end_before_holdback(end_offset, now, holdback_ms, previous)
            )
            basis = EndBasis.HOLDBACK
            reasons = [describe_end(basis, self.tail, holdback_ms=holdback_ms)]
        if replay is not None:
            stable = self.cached.last_stable_offset(offset)
            if stable < offset:
                reasons.append(f"the transaction at offset {stable} is still open")
            offset = stable
        found = ReadEnd(
            offset=offset,
            epoch=self.epoch_before(offset),
            basis=basis,
            reason="; ".join(reasons),
        )
        return not_below_previous(found, previous, self.extent())

    def _is_quorum_replica(self) -> bool:
        """Return whether a node of a quorum writes this copy.

        Unlike an embedded log's, its synced records may be uncommitted.
        """
        return self.files.read_small(QUORUM_STATE_NAME) is not None

    def extent(self) -> LogExtent:
        """Return this copy's path, offsets and leader epochs, to validate an earlier end."""
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
            spans = self.cached.spans(start_offset, end_offset, isolation)
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
        valid_end = self.cached.valid_end(start_offset, end_offset)
        if max_records is None and max_bytes is None and valid_end == end_offset:
            return end_offset
        records_left = INT64_MAX if max_records is None else max_records
        bytes_left = INT64_MAX if max_bytes is None else max_bytes
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
            start_offset = next_offset  # no record has the batch's maximum timestamp: continue

    def range_size(self, start_offset: int, end_offset: int) -> RangeSize:
        found = super().range_size(start_offset, end_offset)
        if found.first_timestamp_ms is None:
            return found
        byte_count, batch_count = self._retry_on_deletion(
            lambda: size_in_files(
                self.files, start_offset, end_offset, contiguous=self._is_contiguous
            )
        )
        return replace(found, byte_count=byte_count, batch_count=batch_count)

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

    def batches(
        self, start_offset: int, end_offset: int, *, chunk_bytes: int = READ_CHUNK_BYTES
    ) -> Iterator[RecordBatch]:
        for chunk in self._read(BatchDecoder(chunk_bytes), start_offset, end_offset):
            yield from chunk.objects

    def _read(self, decoder: ChunkDecoder[P], start_offset: int, end_offset: int) -> Iterator[P]:
        """Yield the chunks of [start_offset, end_offset), validated against the leader epochs."""
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
                    reason=f"its leader epoch is {int(chunk.batches.leader_epoch[at])}, and the "
                    f"leader epoch of its offset is {epochs.epoch_at(base_offset)}",
                    path=self.files.segment_path(cursor.segment),
                    position=int(chunk.batches.position[at]),
                    offset=base_offset,
                )
            yield chunk

    def _durable_epochs(self) -> EpochCache:
        """Return the epochs that an embedded log's writer stored before their batches.

        The result is empty for Kafka's logs, whose ``leader-epoch-checkpoint`` may be older than
        the batches.
        """
        if self.files.listing.is_embedded:
            with contextlib.suppress(CorruptFileError):
                return self.cached.epoch_checkpoint or EpochCache()
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

    # --- private ----------------------------------------------------------------------------------

    def _static_voters(self) -> VoterSet | None:
        """Return static voters, which no snapshot has, from the last epoch's leader change."""
        newest = self.epochs.entries[-1:]
        if not newest or newest[0].start_offset < self.log_start_offset:
            return None
        start_offset = newest[0].start_offset
        for scan in self.scan(start_offset, start_offset + 1, columns=MARKER_COLUMNS):
            return last_voters(scan, None, self.path)
        return None

    def _retry_on_deletion(self, read: Callable[[], T]) -> T:
        """Call ``read`` again while retention deletes segments that it needs.

        Raises ``SegmentDeletedError`` after ``_ATTEMPTS_MAX`` attempts.
        """
        for _ in range(_ATTEMPTS_MAX):
            start_offset = self.log_start_offset
            try:
                return read()
            except SegmentDeletedError:
                self.files.refresh()
            except DataLossError:
                if self.log_start_offset == start_offset:
                    raise
        raise SegmentDeletedError(path=self.path)

    def _end_before_holdback(
        self, end_offset: int, now_ms: int, holdback_ms: int, previous: ReadEnd | None
    ) -> int:
        """Return the offset of the first batch that is younger than ``holdback_ms``.

        A timestamp far in the future is due to a producer's wrong clock and is skipped, because it
        would hold back everything until that time.
        """
        start_offset = self.log_start_offset
        if previous is not None:
            start_offset = max(start_offset, min(previous.offset, end_offset))
        try:
            first_recent = find_batch_after_timestamp(
                self.files,
                now_ms - holdback_ms,
                start_offset=start_offset,
                end_offset=end_offset,
                contiguous=self._is_contiguous,
                timestamp_ms_max=now_ms + CLOCK_AHEAD_MS_MAX,
            )
        except (CorruptBatchError, LogGapError):
            return end_offset  # no batch before the damage is younger, and no read passes it
        return (
            end_offset
            if first_recent is None
            else max(int(first_recent.base_offset[0]), start_offset)
        )

    def _are_outside_transactions(
        self, batches: BatchColumns, start_offset: int
    ) -> npt.NDArray[np.bool_]:
        """Return for each batch whether a micro-batch may end after it.

        It may not end inside a metadata transaction. Producers' transactions in an ordinary
        partition may be split.
        """
        ends = batches.next_offset
        outside = np.ones(len(ends), np.bool_)
        if self.kind is LogKind.PARTITION:
            return outside
        last = int(ends[-1])
        replay = self.cached.covering(start_offset, last)
        spans = (
            ()
            if replay is None
            else replay.transactions.spans(start_offset, last + 1, with_committed=True)
        )
        for span in spans:
            marker_offset = INT64_MAX if span.marker_offset is None else span.marker_offset
            outside &= (ends <= span.first_offset) | (ends > marker_offset)
        return outside

    def _find_batch(self, offset: int) -> tuple[int, int]:
        """Return base and next offset of the batch at ``offset``, or of the next batch."""
        cursor = LogCursor(self.files, offset, contiguous=self._is_contiguous)
        for chunk in cursor.read(_ONE_BATCH, self.log_end_offset):
            return int(chunk.batches.base_offset[0]), int(chunk.batches.next_offset[0])
        return offset, self.log_end_offset
