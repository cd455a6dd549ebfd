"""One compaction of a log: plan, two passes over sealed segments, replacement of the segments.

The active segment is never compacted, nor anything above the last stable offset. Appends wait for
the first and the last step only:

    begin      under the log's lock: which segments, and what must be retained in any case
    run        in any thread: map the keys of the dirty segments, write what each segment retains
               to <base>.log.cleaned and its indexes, read them back, sync
    replace    under the log's lock: rename them over the segments

The order of the durable steps of ``replace``:

    1. compacted-offset-checkpoint := end of what was compacted  a reader of an earlier state
                                                                 detects that it may lack keys
    2. delete the indexes of a segment, sync the directory       an index never has positions of
                                                                 another file
    3. rename <base>.log.cleaned to <base>.log, sync the         a tombstone is deleted after what
       directory                                                 it deletes; as for 2
    4. rename the indexes
       2 to 4 for each segment, oldest first; other calls may be between those of two segments
    5. sync the directory
    6. cleaner-offset-checkpoint := end of what was compacted

A crash between two steps leaves whole segments, compacted or not: the next opening rebuilds missing
indexes, and the next compaction deletes ``.cleaned`` files and starts again. Readers that have a
replaced file open read it to its end.

``.cleaner.lock`` excludes a second compaction, in this process or another.

Kafka: ``LogCleanerManager.cleanableOffsets``, ``Cleaner.clean``, ``UnifiedLog.replaceSegments``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from raftlog.errors import CorruptFileError, LogNotFoundError
from raftlog.limits import MIB, OFFSET_MAP_BYTES_MAX
from raftlog.log.format.directory import (
    CLEANED_SUFFIX,
    CLEANER_LOCK_NAME,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    TIME_INDEX_SUFFIX,
    offset_name,
)
from raftlog.log.reading.transactions import batch_metadata
from raftlog.log.recovery.recover import newest_producer_state
from raftlog.log.segment import BatchCursor, Segment, SegmentMetadata
from raftlog.log.writing.producer_state import ProducerStateManager
from raftlog.records.batch import RecordBatch
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
    """Return what to compact of the sealed segments, oldest first; None if there is too little.

    Compacted is a log whose dirty part exceeds ``min.cleanable.dirty.ratio``, or has a record older
    than ``max.compaction.lag.ms``, by ``first_dirty_timestamp_ms``: that of the first dirty
    segment's first batch, -1 if unknown. Segments with a record younger than
    ``min.compaction.lag.ms``, and those after them, are left out.
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


def begin_compaction(
    segments: LogSegments,
    last_stable_offset: int,
    *,
    now_ms: int,
    offset_map_bytes_max: int = OFFSET_MAP_BYTES_MAX,
) -> Compaction | None:
    """Return the compaction that is due, to be run and closed; None if none is, or one is running.

    Raises ``CorruptBatchError`` if the first dirty batch is damaged.
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
    return Compaction(segments, plan, lock, offset_map_bytes_max, now_ms=now_ms)


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
    """Rate of the bytes that compactions read and write (Kafka: ``Throttler``).

    A rate of 0 has no pauses. What was not used before a compaction, or in a pause that was longer,
    is not used later, so there are no bursts. ``now_s`` is monotonic.
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
        """Time at which everything that was transferred is within the rate."""

    def add(self, byte_count: int, is_aborted: Callable[[], bool]) -> None:
        """Add transferred bytes, and pause until they are within the rate, or ``is_aborted``."""
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
class CompactedSegment:
    """A segment and its compacted file, which is synced and not yet renamed."""

    before: SegmentMetadata
    byte_count: int


class Compaction(Closeable):
    """One compaction of a log. Not shared between threads; ``close`` it in any case."""

    def __init__(
        self,
        segments: LogSegments,
        plan: CompactionPlan,
        lock: FileLock,
        offset_map_bytes_max: int,
        *,
        now_ms: int,
    ) -> None:
        self.plan: Final = plan
        self.counts = CleanedCounts()
        self.end_offset = plan.first_dirty_offset
        """Exclusive end of what is compacted, after ``run``."""
        self.replaced_byte_counts: list[tuple[int, int]] = []
        """Bytes of each segment that was replaced, before and after."""
        self._directory = segments.directory
        self._epochs = segments.epochs
        self._interval_bytes = segments.config.index_interval_bytes
        self._now_ms = now_ms
        self._delete_retention_ms = segments.config.delete_retention_ms
        self._values = segments.config.values
        self._lock = lock
        self._offset_map_bytes_max = offset_map_bytes_max
        self._compacted: list[CompactedSegment] = []
        self._has_files = False
        self._is_closed = False
        self._is_aborted: Callable[[], bool] = lambda: False
        self._throttle = UNTHROTTLED

    def run(
        self, is_aborted: Callable[[], bool] = lambda: False, throttle: Throttle = UNTHROTTLED
    ) -> None:
        """Write the compacted segments beside the segments, at the rate of ``throttle``.

        Memory is bounded by the map of keys and a batch. If a segment is deleted meanwhile, as by
        retention, or ``is_aborted``, called after each MiB, returns true, nothing is compacted.
        Raises ``CorruptBatchError``, ``DiskFullError``, ``DiskFailedError`` and ``LogAccessError``:
        the log is unchanged.
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
        offsets = OffsetMap(self.plan.first_dirty_offset, self._offset_map_bytes_max)
        for cursor in self._dirty_cursors():
            is_added = offsets.add_all(cursor)
            self._transferred(cursor.at)
            if not is_added:
                break
        self.end_offset = offsets.end_offset
        batches = BatchFilter(offsets, self._rules(), self.counts)
        for segment in self.plan.segments:
            if segment.base_offset < offsets.end_offset:
                self._write(segment, batches)

    def _rules(self) -> RetentionRules:
        """Return what is retained in any case, by the producer state at the end of the plan: what
        is after it may not be committed, and be truncated."""
        state = self._producer_state()
        return RetentionRules(
            now_ms=self._now_ms,
            delete_retention_ms=self._delete_retention_ms,
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
                    state.apply(batch_metadata(batch, self._values))
        return state

    def replace_segments(self, segments: LogSegments) -> Iterator[None]:
        """Replace the segments of the log by what ``run`` wrote: in each step one of them.

        Durable at the end. A segment that was deleted since ``begin`` is left out. Nothing is
        replaced

        - after ``close``: files of a later compaction may have the same names;
        - once ``cleanup.policy`` is ``delete``: other processes expect that segments keep their
          sizes;
        - after a repair has truncated these segments: what superseded a record may be removed.
        """
        if self._is_closed or not segments.config.cleanup_policy.compacts:
            return
        first = segments.first_base_offset
        planned = [_extent(one) for one in self.plan.segments if one.base_offset >= first]
        if planned != [_extent(one) for one in segments.sealed[: len(planned)]]:
            return
        compacted = [one for one in self._compacted if one.before.base_offset >= first]
        storage, directory = self._directory.storage, self._directory
        if compacted:
            sealed_end_offset = segments.active.base_offset
            directory.raise_compacted_offset(self.end_offset, offset_max=sealed_end_offset)
        for one in compacted:
            if self._is_closed or _extent(one.before) not in map(_extent, segments.sealed):
                return  # changed by a call between two steps
            base_offset = one.before.base_offset
            names = [offset_name(base_offset, at) for at in (INDEX_SUFFIX, TIME_INDEX_SUFFIX)]
            directory.unlink(names)
            directory.sync()
            path = directory.file(offset_name(base_offset, LOG_SUFFIX))
            storage.rename(path + CLEANED_SUFFIX, path)
            directory.sync()
            segments.replace_sealed(replace(one.before, byte_count=one.byte_count))
            for name in names:
                storage.rename(directory.file(name + CLEANED_SUFFIX), directory.file(name))
            self.replaced_byte_counts.append((one.before.byte_count, one.byte_count))
            yield
        if compacted:
            directory.sync()
        directory.write_cleaner_offset(self.end_offset)
        self._compacted = []

    def close(self) -> None:
        """Delete what was not used, and release the lock. May be called twice."""
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

    def _write(self, segment: SegmentMetadata, batches: BatchFilter) -> None:
        """Write and sync the compacted segment and its indexes, unless it has the same bytes."""
        path = self._directory.file(offset_name(segment.base_offset, LOG_SUFFIX))
        with self._directory.storage.create_file(path + CLEANED_SUFFIX) as file:
            pending, byte_count = bytearray(), 0
            for cursor in self._cursors(segment, segment.base_offset):
                for data in batches.clean(cursor):
                    pending += data
                self._transferred(cursor.at)
                if len(pending) >= _WRITE_BYTES:
                    byte_count += self._append(file, byte_count, pending)
                    pending.clear()
            pending += batches.finish()
            byte_count += self._append(file, byte_count, pending)
            if byte_count == segment.byte_count and self._is_same(path, byte_count):
                self._directory.storage.unlink(path + CLEANED_SUFFIX)
                return
            file.sync()
        self._write_indexes(segment, path + CLEANED_SUFFIX)
        self._compacted.append(CompactedSegment(segment, byte_count))

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
        indexes = IndexRebuild(segment.base_offset, interval_bytes=self._interval_bytes)
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


def _extent(segment: SegmentMetadata) -> tuple[int, int, int]:
    return segment.base_offset, segment.end_offset, segment.byte_count
