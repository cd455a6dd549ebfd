"""One compaction of a log: plan, two passes over sealed segments, replacement of the segments.

The active segment and batches above the last stable offset are never compacted. Appends wait only
for the first and the last step:

    begin      under the log's lock: choose the segments, and what must be retained in any case
    run        in any thread: map the keys of the dirty segments, write what the segments retain
               to <base>.log.cleaned and its indexes, read them back, sync
    replace    under the log's lock: rename them over the segments

Adjacent small segments are joined into one (``group_segments``). The order of the durable steps of
``replace``, in which 2 to 4 are repeated for each group, oldest first. Other calls may run
between two groups:

    1. compacted-offset-checkpoint := end of the compacted segments.
       A reader of an earlier state then detects that it may lack keys.
    2. tombstone-start-offset-checkpoint := end of the tombstones whose delete horizon has passed,
       up to the end of the group; delete the indexes of a segment, sync the directory.
       A follower whose log ends below this offset does not append the batches after it. A follower
       that begins to fetch gets this offset, and a log in which the values that these tombstones
       delete have been replaced. As indexes are deleted first, none has positions of another file.
    3. rename <base>.log.cleaned to <base>.log, sync the directory.
       Groups are replaced oldest first, so a tombstone is removed after the values it deletes.
    4. rename the indexes
    5. sync the directory
    6. cleaner-offset-checkpoint := end of the compacted segments

For a group of several segments, the first of which is <base>, these steps replace step 3:

    a. replace the file published.
       Other writers list the segments again before their next change.
    b. rename <base>.log.cleaned to <base>.log.swap, sync the directory.
       From here on, readers and recovery use it in place of the group.
    c. delete the other segments of the group, sync the directory.
       The same offsets are in two segments only while there is a .swap file.
    d. rename <base>.log.swap to <base>.log, sync the directory

A crash between two steps leaves whole segments, compacted or not. The next opening completes c and
d (``recovery.recover.complete_swaps``) and rebuilds missing indexes. The next compaction deletes
``.cleaned`` files and starts again. Readers that have a replaced file open read it to its end.

``.cleaner.lock`` excludes a second compaction, in this process or another.

Kafka: ``LogCleanerManager.cleanableOffsets``, ``Cleaner.clean``, ``UnifiedLog.replaceSegments``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from raftlog.errors import CorruptFileError, DiskFailedError, DiskFullError, LogNotFoundError
from raftlog.limits import (
    BATCH_HEADER_BYTES,
    INT32_MAX,
    LOG_OVERHEAD_BYTES,
    MIB,
    OFFSET_MAP_BYTES_MAX,
)
from raftlog.log.format.directory import (
    CLEANED_SUFFIX,
    CLEANER_LOCK_NAME,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SWAP_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    offset_name,
    read_small_file,
)
from raftlog.log.reading.transactions import batch_metadata
from raftlog.log.recovery.recover import complete_swap, newest_producer_state
from raftlog.log.segment import (
    AbortedTransaction,
    BatchCursor,
    Segment,
    SegmentMetadata,
    parse_txn_index,
)
from raftlog.log.writing.producer_state import ProducerStateManager
from raftlog.records.batch import RecordBatch
from raftlog.records.header import BATCH_HEADER, DELETE_HORIZON_BIT, LENGTH_MIN
from raftlog.storage.protocol import Closeable, FileLock, WritableFile

from .retained_records import BatchFilter, CleanedCounts, OffsetMap, RetentionRules

if TYPE_CHECKING:
    from raftlog.log.writing.properties import LogConfig
    from raftlog.log.writing.segments import LogSegments

_WRITE_BYTES: Final = 1 * MIB


# --- Plan -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CompactionPlan:
    """Segments to compact, oldest first, and the first offset that was not compacted before."""

    segments: tuple[SegmentMetadata, ...]
    first_dirty_offset: int


def plan_compaction(
    segments: Sequence[SegmentMetadata],
    *,
    first_dirty_offset: int,
    last_stable_offset: int,
    first_dirty_timestamp_ms: int,
    now_ms: int,
    config: LogConfig,
) -> CompactionPlan | None:
    """Return which sealed segments to compact, oldest first; None if too few are dirty.

    A log is compacted if its dirty ratio exceeds ``min.cleanable.dirty.ratio``, or if it has a
    dirty record older than ``max.compaction.lag.ms``. The latter is decided by
    ``first_dirty_timestamp_ms``, the timestamp of the first batch of the first dirty segment, or -1
    if unknown. Segments with a record younger than ``min.compaction.lag.ms``, and all segments
    after them, are left out.
    """
    chosen: list[SegmentMetadata] = []
    clean_bytes = dirty_bytes = 0
    for segment in segments:
        newest_ms = segment.max_timestamp_ms
        is_dirty = segment.end_offset > first_dirty_offset
        is_young = newest_ms is not None and newest_ms > now_ms - config.min_compaction_lag_ms
        if segment.end_offset > last_stable_offset:
            break
        if is_dirty and is_young and config.min_compaction_lag_ms:
            break
        clean_bytes += 0 if is_dirty else segment.byte_count
        dirty_bytes += segment.byte_count if is_dirty else 0
        chosen.append(segment)
    if not dirty_bytes:
        return None
    lag_ms = config.max_compaction_lag_ms
    is_overdue = lag_ms is not None and 0 <= first_dirty_timestamp_ms < now_ms - lag_ms
    ratio = dirty_bytes / (clean_bytes + dirty_bytes)
    if ratio <= config.min_cleanable_dirty_ratio and not is_overdue:
        return None
    return CompactionPlan(tuple(chosen), first_dirty_offset)


@dataclass(frozen=True, slots=True)
class SegmentSizes:
    """A segment with the sizes of its log file and its indexes in bytes."""

    segment: SegmentMetadata
    offset_index_bytes: int
    time_index_bytes: int


def group_segments(
    segments: Sequence[SegmentSizes],
    *,
    segment_bytes: int,
    index_bytes: int,
    first_uncleanable_offset: int,
) -> list[tuple[SegmentMetadata, ...]]:
    """Return groups of adjacent segments, each of which is replaced by one segment.

    The sizes before the compaction decide: the files of a group together do not exceed
    ``segment.bytes`` and ``segment.index.bytes``, and its offsets do not exceed the 32 bits of an
    index entry (Kafka: ``Cleaner.groupSegmentsBySize``).
    """
    groups: list[list[SegmentMetadata]] = []
    limits = segment_bytes, index_bytes, index_bytes
    sums = limits
    for ordinal, one in enumerate(segments):
        segment, following = one.segment, segments[ordinal + 1 : ordinal + 2]
        end_offset = following[0].segment.base_offset if following else first_uncleanable_offset
        sizes = segment.byte_count, one.offset_index_bytes, one.time_index_bytes
        joined = sums[0] + sizes[0], sums[1] + sizes[1], sums[2] + sizes[2]
        if (
            groups
            and all(map(int.__le__, joined, limits))
            and (not segment.byte_count or end_offset - 1 - groups[-1][0].base_offset <= INT32_MAX)
        ):
            groups[-1].append(segment)
            sums = joined
        else:
            groups.append([segment])
            sums = sizes
    return list(map(tuple, groups))


def begin_compaction(
    segments: LogSegments,
    last_stable_offset: int,
    *,
    now_ms: int,
    keeps_tombstones: bool = False,
    offset_map_bytes_max: int = OFFSET_MAP_BYTES_MAX,
) -> Compaction | None:
    """Return the compaction that is due; None if none is due or one is running.

    The caller must run and close it. ``keeps_tombstones``: it removes no tombstones. Raises
    ``CorruptBatchError`` if the first dirty batch is damaged.
    """
    config, directory = segments.config, segments.directory
    first_dirty_offset = directory.read_cleaner_offset() or 0
    if not segments.log_start_offset <= first_dirty_offset <= last_stable_offset:
        first_dirty_offset = segments.log_start_offset
    sealed = segments.timed_segments()
    plan = plan_compaction(
        sealed,
        first_dirty_offset=first_dirty_offset,
        last_stable_offset=last_stable_offset,
        first_dirty_timestamp_ms=_first_timestamp_ms(segments, sealed, first_dirty_offset),
        now_ms=now_ms,
        config=config,
    )
    if plan is None:
        return None
    lock = directory.storage.try_lock(directory.file(CLEANER_LOCK_NAME))
    if lock is None:
        return None
    return Compaction(
        segments,
        plan,
        lock,
        offset_map_bytes_max,
        now_ms=now_ms,
        keeps_tombstones=keeps_tombstones,
    )


def _first_timestamp_ms(
    segments: LogSegments, sealed: Sequence[SegmentMetadata], first_dirty_offset: int
) -> int:
    """Return the greatest timestamp of the first dirty segment's first batch; -1 if unknown."""
    for one in sealed:
        if one.end_offset > first_dirty_offset:
            storage, path = segments.directory.storage, segments.directory.path
            segment = Segment(storage, path, one.base_offset, one.byte_count)
            batches = segment.batches(one.base_offset, segments.epochs)
            return next((batch.max_timestamp_ms for batch in batches), -1)
    return -1


# --- Passes and replacement -----------------------------------------------------------------------


_PAUSE_S_MAX: Final = 0.1


class Throttle:
    """Limit on the rate at which compactions read and write bytes (Kafka: ``Throttler``).

    A rate of 0 means no pauses. Unused rate, before a compaction or in a longer pause, does not
    accumulate, so there are no bursts. ``now_s`` is monotonic.
    """

    def __init__(
        self,
        bytes_per_second: int,
        *,
        now_s: Callable[[], float] = lambda: 0.0,
        pause: Callable[[float], None] = lambda _: None,
    ) -> None:
        self._bytes_per_second = bytes_per_second
        self._now_s = now_s
        self._pause = pause
        self._free_s = 0.0
        """Time from which on everything transferred so far is within the rate."""

    def add(self, byte_count: int, is_aborted: Callable[[], bool]) -> None:
        """Add transferred bytes, and pause until they are within the rate or ``is_aborted``."""
        if not self._bytes_per_second:
            return
        now_s = self._now_s()
        self._free_s = max(self._free_s, now_s) + byte_count / self._bytes_per_second
        while now_s < self._free_s and not is_aborted():
            self._pause(min(self._free_s - now_s, _PAUSE_S_MAX))
            now_s = self._now_s()


UNTHROTTLED: Final = Throttle(0)


class _AbortedError(Exception):
    """The compaction was aborted by its caller."""


@dataclass(frozen=True, slots=True)
class CompactedGroup:
    """Adjacent segments and their compacted file, which is synced and not yet renamed."""

    before: tuple[SegmentMetadata, ...]
    byte_count: int
    tombstone_start_offset: int
    """End of the last batch whose delete horizon has passed, up to the end of the segments."""

    @property
    def after(self) -> SegmentMetadata:
        """Segment that replaces them."""
        return SegmentMetadata(
            base_offset=self.before[0].base_offset,
            end_offset=self.before[-1].end_offset,
            byte_count=self.byte_count,
            max_timestamp_ms=max(
                (one.max_timestamp_ms for one in self.before if one.max_timestamp_ms is not None),
                default=None,
            ),
        )


class Compaction(Closeable):
    """One compaction of a log. Not shared between threads. ``close`` must always be called."""

    def __init__(
        self,
        segments: LogSegments,
        plan: CompactionPlan,
        lock: FileLock,
        offset_map_bytes_max: int,
        *,
        now_ms: int,
        keeps_tombstones: bool,
    ) -> None:
        self.plan: Final = plan
        self.counts = CleanedCounts()
        self.end_offset = plan.first_dirty_offset
        """Exclusive end of the compacted range, after ``run``."""
        self.replaced_byte_counts: list[tuple[int, int]] = []
        """Bytes of each replaced group of segments, before and after."""
        self._directory = segments.directory
        self._epochs = segments.epochs
        self._config = segments.config
        self._now_ms = now_ms
        self._keeps_tombstones = keeps_tombstones
        self._lock = lock
        self._offset_map_bytes_max = offset_map_bytes_max
        self._compacted: list[CompactedGroup] = []
        self._tombstone_start_offset = 0
        self._has_files = False
        self._is_closed = False
        self._is_aborted: Callable[[], bool] = lambda: False
        self._throttle = UNTHROTTLED

    def run(
        self, is_aborted: Callable[[], bool] = lambda: False, throttle: Throttle = UNTHROTTLED
    ) -> None:
        """Write the compacted segments next to the segments, at the rate of ``throttle``.

        Memory is bounded by the map of keys and one batch. Nothing is compacted if a segment is
        deleted meanwhile, for example by retention, or if ``is_aborted``, which is called after
        each MiB, returns true. Raises ``CorruptBatchError``, ``DiskFullError``, ``DiskFailedError``
        and ``LogAccessError``; the log is then unchanged.
        """
        self._is_aborted, self._throttle = is_aborted, throttle
        try:
            self._run()
        except (LogNotFoundError, _AbortedError):
            self._compacted = []
            self.end_offset = self.plan.first_dirty_offset

    def _run(self) -> None:
        self._has_files = True
        self._directory.unlink_suffix(CLEANED_SUFFIX)
        offsets = OffsetMap(
            self.plan.first_dirty_offset, self._offset_map_bytes_max, self._aborted()
        )
        for cursor in self._dirty_cursors():
            is_added = offsets.add_all(cursor)
            self._transferred(cursor.at)
            if not is_added:
                break
        self.end_offset = offsets.end_offset
        batches = BatchFilter(offsets, self._rules(), self.counts)
        for group in self._groups():
            self._write(group, batches)

    def _aborted(self) -> Iterator[AbortedTransaction]:
        """Yield the aborted transactions of the log. A transaction that begins in the plan's
        segments may have its marker in a later one, but below the last stable offset."""
        directory = self._directory
        for base_offset in directory.listing().segments:
            path = directory.file(offset_name(base_offset, TXN_INDEX_SUFFIX))
            data = read_small_file(directory.storage, path)
            yield from parse_txn_index(data or b"", path)

    def _groups(self) -> list[tuple[SegmentMetadata, ...]]:
        """Return the segments that the map of keys covers, in groups."""
        sizes = [
            SegmentSizes(
                one,
                self._byte_count(one, INDEX_SUFFIX),
                self._byte_count(one, TIME_INDEX_SUFFIX),
            )
            for one in self.plan.segments
            if one.base_offset < self.end_offset
        ]
        return group_segments(
            sizes,
            segment_bytes=self._config.segment_bytes,
            index_bytes=self._config.segment_index_bytes,
            first_uncleanable_offset=self.plan.segments[-1].end_offset,
        )

    def _byte_count(self, segment: SegmentMetadata, suffix: str) -> int:
        """Return the size of a file of a segment; 0 if it does not exist."""
        path = self._directory.file(offset_name(segment.base_offset, suffix))
        try:
            with self._directory.storage.open_file(path) as file:
                return file.byte_count()
        except LogNotFoundError:
            return 0

    def _rules(self) -> RetentionRules:
        """Return what must be retained in any case, from the producer state at the end of the
        plan. Later batches may be uncommitted and may still be truncated."""
        state = self._producer_state()
        return RetentionRules(
            now_ms=self._now_ms,
            delete_retention_ms=self._config.delete_retention_ms,
            keeps_tombstones=self._keeps_tombstones,
            last_producer_batches=frozenset(
                one.batches[-1].last_offset for one in state.producers if one.batches
            ),
            last_commits=frozenset(one.last_offset for one in state.commits),
            last_group_offsets=frozenset(one.record_offset for one in state.group_offsets.values()),
        )

    def _producer_state(self) -> ProducerStateManager:
        segments, directory = self.plan.segments, self._directory
        first, end_offset = segments[0].base_offset, segments[-1].end_offset
        state, _ = newest_producer_state(
            directory.storage, directory.path, directory.listing(), end_offset
        )
        if state is None or state.end_offset < first:
            state = ProducerStateManager(directory.path, end_offset=first, is_whole=first == 0)
        for segment in segments:
            if segment.end_offset > state.end_offset:
                offset = max(state.end_offset, segment.base_offset)
                for batch in self._batches(segment, offset):
                    state.apply(batch_metadata(batch, self._config.values))
        return state

    def replace_segments(self, segments: LogSegments) -> Iterator[None]:
        """Replace the log's segments by those that ``run`` wrote, one group in each step.

        Durable at the end. A group that was deleted since ``begin`` is left out. Nothing is
        replaced

        - after ``close``, because files of a later compaction may have the same names;
        - once ``cleanup.policy`` is ``delete``, because other processes then expect that segments
          keep their sizes;
        - after a repair has truncated these segments, because it may have removed the record that
          superseded another one;
        - from a group on of which only the first segments were deleted.
        """
        if self._is_closed or not segments.config.cleanup_policy.compacts:
            return
        first = segments.first_base_offset
        planned = [one for one in self.plan.segments if one.base_offset >= first]
        is_first = all(one.base_offset == first for one in planned[:1])
        if not is_first or not segments.has_sealed(planned):
            return
        compacted = [one for one in self._compacted if one.before[-1].base_offset >= first]
        if compacted:
            sealed_end_offset = segments.active.base_offset
            self._directory.raise_compacted_offset(self.end_offset, offset_max=sealed_end_offset)
        for group in compacted:
            if self._is_closed or not segments.has_sealed(group.before):
                return  # changed by a call between two steps
            self._directory.raise_tombstone_start(group.tombstone_start_offset)
            self._replace(segments, group)
            yield
        if compacted:
            self._directory.sync()
        self._directory.write_cleaner_offset(self.end_offset)
        self._compacted = []

    def _replace(self, segments: LogSegments, group: CompactedGroup) -> None:
        """Replace the segments of a group. After ``DiskFullError`` they are as before."""
        storage, directory = self._directory.storage, self._directory
        base_offset, *others = (one.base_offset for one in group.before)
        names = [offset_name(base_offset, at) for at in (INDEX_SUFFIX, TIME_INDEX_SUFFIX)]
        path = directory.file(offset_name(base_offset, LOG_SUFFIX))
        directory.unlink(names)
        directory.sync()
        if others:
            directory.renew_published()
            storage.rename(path + CLEANED_SUFFIX, path + SWAP_SUFFIX)
            try:
                directory.sync()
                complete_swap(storage, directory.path, base_offset, others)
            except DiskFullError as error:
                reason = f"it was full before segments were replaced by {path}"
                raise DiskFailedError(path=error.path, reason=reason) from None
        else:
            storage.rename(path + CLEANED_SUFFIX, path)
            directory.sync()
        segments.replace_sealed(group.before, group.after)
        for name in names:
            storage.rename(directory.file(name + CLEANED_SUFFIX), directory.file(name))
        before = sum(one.byte_count for one in group.before)
        self.replaced_byte_counts.append((before, group.byte_count))

    def close(self) -> None:
        """Delete unused files and release the lock. May be called twice."""
        self._is_closed = True
        try:
            if self._has_files:
                self._has_files = False
                self._directory.unlink_suffix(CLEANED_SUFFIX)
        finally:
            self._lock.release()

    # --- passes -----------------------------------------------------------------------------------

    def _dirty_cursors(self) -> Iterator[BatchCursor]:
        offset = self.plan.first_dirty_offset
        for segment in self.plan.segments:
            if segment.end_offset > offset:
                yield from self._cursors(segment, max(offset, segment.base_offset))

    def _cursors(self, segment: SegmentMetadata, offset: int) -> Iterator[BatchCursor]:
        storage, path = self._directory.storage, self._directory.path
        source = Segment(storage, path, segment.base_offset, segment.byte_count)
        return source.cursors(offset, self._epochs)

    def _batches(self, segment: SegmentMetadata, offset: int) -> Iterator[RecordBatch]:
        for cursor in self._cursors(segment, offset):
            while (batch := cursor.next_batch()) is not None:
                self._transferred(batch.byte_count)
                yield batch

    def _transferred(self, byte_count: int) -> None:
        """Account for bytes that were read or written. Raises ``_AbortedError``."""
        self._throttle.add(byte_count, self._is_aborted)
        if self._is_aborted():
            raise _AbortedError

    def _write(self, segments: tuple[SegmentMetadata, ...], batches: BatchFilter) -> None:
        """Write and sync the compacted segment of a group and its indexes. Write nothing if a
        single segment already has the same bytes."""
        path = self._directory.file(offset_name(segments[0].base_offset, LOG_SUFFIX))
        with self._directory.storage.create_file(path + CLEANED_SUFFIX) as file:
            pending, byte_count = bytearray(), 0
            for segment in segments:
                for cursor in self._cursors(segment, segment.base_offset):
                    if not self._keeps_tombstones:
                        self._note_expired(cursor)
                    for data in batches.clean(cursor):
                        pending += data
                    self._transferred(cursor.at)
                    if len(pending) >= _WRITE_BYTES:
                        byte_count += self._append(file, byte_count, pending)
                        pending.clear()
            pending += batches.finish()
            byte_count += self._append(file, byte_count, pending)
            is_same_size = len(segments) == 1 and byte_count == segments[0].byte_count
            if is_same_size and self._is_same(path, byte_count):
                self._directory.storage.unlink(path + CLEANED_SUFFIX)
                return
            file.sync()
        group = CompactedGroup(segments, byte_count, self._tombstone_start_offset)
        self._write_indexes(group.after, path + CLEANED_SUFFIX)
        self._compacted.append(group)

    def _note_expired(self, cursor: BatchCursor) -> None:
        """Note the end of the last batch whose delete horizon has passed. It will have no
        tombstones after this compaction. The batches are checked later."""
        data, at, end_offset = cursor.data, cursor.at, self.end_offset
        last = len(data) - BATCH_HEADER_BYTES
        while at <= last:
            fields = BATCH_HEADER.unpack_from(data, at)
            base_offset, length = fields[:2]
            attributes, last_delta, horizon_ms = fields[5:8]
            if length < LENGTH_MIN or base_offset >= end_offset:
                return
            if attributes & DELETE_HORIZON_BIT and horizon_ms <= self._now_ms:
                self._tombstone_start_offset = min(base_offset + last_delta + 1, end_offset)
            at += LOG_OVERHEAD_BYTES + length

    def _append(self, file: WritableFile, position: int, data: bytearray) -> int:
        file.write_at(position, bytes(data))
        self._transferred(len(data))
        return len(data)

    def _is_same(self, path: str, byte_count: int) -> bool:
        storage = self._directory.storage
        with storage.open_file(path) as old, storage.open_file(path + CLEANED_SUFFIX) as new:
            return all(
                old.read_at(at, _WRITE_BYTES) == new.read_at(at, _WRITE_BYTES)
                for at in range(0, byte_count, _WRITE_BYTES)
            )

    def _write_indexes(self, segment: SegmentMetadata, path: str) -> None:
        """Read the compacted segment back, check that it is whole, and write its indexes."""
        from raftlog.log.recovery.recover_segment import (  # imports numpy, not on an event loop
            IndexRebuild,
            ScanPosition,
            ScanRules,
            SegmentScan,
        )

        storage = self._directory.storage
        indexes = IndexRebuild(
            segment.base_offset, interval_bytes=self._config.index_interval_bytes
        )
        with storage.open_file(path) as file:
            start = ScanPosition(
                position=0,
                next_offset=segment.base_offset,
                epoch=self._epochs.epoch_at(segment.base_offset) or 0,
            )
            scan = SegmentScan(file, start, ScanRules(epochs=self._epochs))
            for chunk in scan:
                indexes.add_batches(chunk.batches)
        indexes.close()
        if not scan.stop.is_clean or scan.position.next_offset != segment.end_offset:
            reason = f"compaction wrote {scan.stop.description}; the segment is unchanged"
            raise CorruptFileError(path=path, position=scan.position.position, reason=reason)
        contents = {INDEX_SUFFIX: indexes.offset_index, TIME_INDEX_SUFFIX: indexes.time_index}
        for suffix, data in contents.items():
            name = offset_name(segment.base_offset, suffix) + CLEANED_SUFFIX
            with storage.create_file(self._directory.file(name)) as file:
                file.write_at(0, bytes(data))
                file.sync()
