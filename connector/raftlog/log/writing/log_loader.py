"""Read a log that was not closed in order: what of it stands, and what recovery has to do.

Rules of this file:

1. Nothing is written. What is read is the segment of the recovery point and all behind it; more
   only if no memory is left that is as new.
2. The durable mark is the greatest offset below which everything is known to have been synced: the
   recovery point, the base of the last segment (its forerunner was synced before it was made),
   a snapshot's end, the log's start, and what was published in this boot. What is not sound below
   it is damage, and the log cannot be written; above it nobody was promised anything.
3. What a writer of this boot wrote behind ``published`` was never acknowledged, and goes.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from raftlog.errors import CorruptBatchError, SegmentDeletedError
from raftlog.log.epoch_cache import EpochCache
from raftlog.log.files import LogFiles
from raftlog.log.leader_epochs import epochs_below
from raftlog.log.names import INDEX_SUFFIX, LOG_SUFFIX, TIME_INDEX_SUFFIX, offset_name
from raftlog.records.header import INT64_MAX
from raftlog.storage.protocol import ReadableFile, Storage

from .checkpoint_files import CheckpointFiles
from .index_rebuild import IndexCheck, IndexRebuild
from .located import floor_boundary
from .producer_state_manager import ProducerStateManager
from .producer_state_replay import replay
from .producer_state_source import newest_producer_state
from .properties import LogConfig
from .recovered import Anomaly, ScanEnd, SegmentMetadata
from .segment_recovery import (
    EPOCH_UNKNOWN,
    ScanPosition,
    ScanRules,
    SegmentEnd,
    recover_segment,
    survey_segment,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScannedSegment:
    """One segment that was read. ``end`` says what lies behind its last sound batch."""

    metadata: SegmentMetadata
    end: SegmentEnd
    indexes: IndexRebuild
    has_valid_indexes: bool


@dataclass(slots=True, kw_only=True)
class LoadedLog:
    """What stands of a log, and where it does not go on.

    ``below`` are the segments that were not read. ``unpublished`` and ``overlapping`` are segments
    at the end that are none of the log's: nothing in them was ever acknowledged, as far as anybody
    knows; ``is_contradicted``: the recovery point says otherwise of one that overlaps. ``stop`` is
    where the log ended for another reason than its files' end, and ``durable_offset`` tells whether
    that may be.
    """

    log_start_offset: int
    below: tuple[SegmentMetadata, ...]
    scanned: list[ScannedSegment]
    unpublished: tuple[int, ...]
    producer_state: ProducerStateManager
    epochs: EpochCache
    end_offset: int
    durable_offset: int
    overlapping: tuple[int, ...] = ()
    is_contradicted: bool = False
    stop: SegmentEnd | None = None
    anomalies: list[Anomaly] = field(default_factory=list)

    @property
    def segments(self) -> tuple[SegmentMetadata, ...]:
        return (*self.below, *(one.metadata for one in self.scanned))

    @property
    def is_damaged(self) -> bool:
        """Whether something is missing that was known to be synced, or is there twice."""
        return self.end_offset < self.durable_offset or self.is_contradicted


class LogLoader:
    """One pass over the end of a log."""

    def __init__(
        self, storage: Storage, directory: str, config: LogConfig, checkpoints: CheckpointFiles
    ) -> None:
        self._storage = storage
        self._directory = directory
        self._config = config
        self._checkpoints = checkpoints
        self._bases, self._unpublished = _exclude_unpublished(checkpoints)
        self._log_start = max(checkpoints.log_start_offset, min(self._bases, default=0))

    def load(self) -> LoadedLog:
        """Read what must be read. Raises what the storage raises."""
        producer_state, anomalies = self._producer_state()
        start = self._first_base(producer_state)
        if producer_state is None:
            producer_state = ProducerStateManager(
                self._directory, end_offset=start, is_whole=start == 0
            )
        result = LoadedLog(
            log_start_offset=self._log_start,
            below=self._below(start),
            scanned=[],
            unpublished=self._unpublished,
            producer_state=producer_state,
            epochs=EpochCache(),
            end_offset=start,
            durable_offset=self._checkpoints.durable_offset,
            anomalies=[*self._checkpoints.anomalies, *anomalies],
        )
        scan_position = ScanPosition(position=0, next_offset=start, epoch=self._epoch_before(start))
        for base in [base for base in self._bases if base >= start]:
            if base != scan_position.next_offset:
                self._note_gap(base, scan_position, result)
                break
            scan_position = self._recover_segment(base, scan_position, result)
            if result.stop is not None:
                break
        result.end_offset = scan_position.next_offset
        result.epochs = self._epochs(result)
        return result

    # --- where to begin ---------------------------------------------------------------------------

    def _producer_state(self) -> tuple[ProducerStateManager | None, tuple[Anomaly, ...]]:
        """The newest memory of what is surely of this history."""
        known = max(self._checkpoints.recovery_point, self._log_start)
        return newest_producer_state(
            self._storage, self._directory, self._checkpoints.listing, known
        )

    def _first_base(self, producer_state: ProducerStateManager | None) -> int:
        """The base of the first segment to read."""
        wanted = max(self._checkpoints.recovery_point, self._log_start)
        if producer_state is None:
            wanted = self._log_start
        elif producer_state.end_offset < wanted:
            wanted = max(producer_state.end_offset, self._log_start)
        fitting = [base for base in self._bases if base <= wanted]
        if not fitting:
            return min(self._bases, default=self._log_start)
        while len(fitting) > 1 and not self._ends_at(fitting[-2], fitting[-1]):
            fitting.pop()
        return fitting[-1]

    def _ends_at(self, base: int, end_offset: int) -> bool:
        """Whether a sealed segment ends where the next one begins: a look at its last batches.

        If not, it is read from its beginning, which will say what is wrong.
        """
        if end_offset <= self._log_start:
            return True  # it is forgotten
        with self._open(base, LOG_SUFFIX) as file:
            byte_count = file.byte_count()
        try:
            position, found, _ = floor_boundary(
                self._storage, self._directory, base, byte_count, INT64_MAX
            )
        except CorruptBatchError:
            return False
        return (position, found) == (byte_count, end_offset)

    def _below(self, start: int) -> tuple[SegmentMetadata, ...]:
        """The segments below, without those wholly below the log's start."""
        found = []
        for base, end in zip(self._bases, self._bases[1:], strict=False):
            if base < start and end > self._log_start:
                with self._open(base, LOG_SUFFIX) as file:
                    byte_count = file.byte_count()
                found.append(
                    SegmentMetadata(base_offset=base, end_offset=end, byte_count=byte_count)
                )
        return tuple(found)

    def _epoch_before(self, offset: int) -> int:
        epochs = self._checkpoints.epochs
        epoch = None if epochs is None else epochs.epoch_at(offset - 1)
        return EPOCH_UNKNOWN if epoch is None else epoch

    # --- one segment after the other --------------------------------------------------------------

    def _recover_segment(
        self, base: int, scan_position: ScanPosition, result: LoadedLog
    ) -> ScanPosition:
        indexes = IndexRebuild(base, interval_bytes=self._config.index_interval_bytes)
        check = IndexCheck(base, *map(self._bytes, (base, base), (INDEX_SUFFIX, TIME_INDEX_SUFFIX)))
        rules = self._rules()
        with self._open(base, LOG_SUFFIX) as file:
            scan = recover_segment(
                file, ScanPosition(position=0, next_offset=base, epoch=scan_position.epoch), rules
            )
            while True:
                try:
                    chunk = next(scan)
                except StopIteration as stop:
                    end: SegmentEnd = stop.value
                    break
                indexes.note(chunk.batches)
                check.note(chunk.batches)
                aborted, anomalies = replay(result.producer_state, chunk, self._config.values)
                result.anomalies += anomalies
                for one in aborted:
                    indexes.add_aborted(one)
            self._note_end(file, end, rules, result)
        indexes.close()
        scanned = ScannedSegment(
            metadata=_facts(base, end, indexes),
            end=end,
            indexes=indexes,
            has_valid_indexes=check.is_valid_for(indexes),
        )
        result.scanned.append(scanned)
        following = self._base_after(base)
        if not end.is_clean and following != end.scan_position.next_offset:
            result.stop = end
        return end.scan_position

    def _rules(self) -> ScanRules:
        published = self._checkpoints.published
        limit = None
        if published is not None:
            limit = max(published.end_offset, max(self._bases, default=0))
        return ScanRules(epochs=self._checkpoints.epochs, end_offset=limit)

    def _note_end(
        self, file: ReadableFile, end: SegmentEnd, rules: ScanRules, result: LoadedLog
    ) -> None:
        """Name every place behind the end where something is wrong."""
        if end.end is ScanEnd.END or end.end is ScanEnd.LIMIT:
            return
        result.anomalies += map(_anomaly, survey_segment(file, end.scan_position, rules))

    def _note_gap(self, base: int, scan_position: ScanPosition, result: LoadedLog) -> None:
        """The next segment does not begin where the log ends."""
        result.stop = self._gap(base, scan_position)
        result.anomalies.append(_anomaly(result.stop))
        if base < scan_position.next_offset:
            result.overlapping = tuple(other for other in self._bases if other >= base)
            result.is_contradicted = self._checkpoints.recovery_point > base

    def _gap(self, base: int, scan_position: ScanPosition) -> SegmentEnd:
        path = self._path(base, LOG_SUFFIX)
        end = ScanEnd.GAP if base > scan_position.next_offset else ScanEnd.OVERLAP
        what = "are missing" if end is ScanEnd.GAP else "lie in two segments"
        first, behind = sorted((base, scan_position.next_offset))
        return SegmentEnd(
            end=end,
            path=path,
            scan_position=ScanPosition(
                position=0, next_offset=scan_position.next_offset, epoch=scan_position.epoch
            ),
            byte_count=0,
            reason=f"offsets {first} to {behind - 1} {what}",
            found_base_offset=base,
        )

    def _base_after(self, base: int) -> int | None:
        return next((other for other in self._bases if other > base), None)

    # --- epochs -----------------------------------------------------------------------------------

    def _epochs(self, result: LoadedLog) -> EpochCache:
        """The checkpoint's epochs up to the end, or those of the batches if there is none.

        An epoch that begins at the end has no batch yet and is forgotten (Kafka does so too), but
        not where all batches of the log were deleted: then it is the last one's, unless a snapshot
        that ends there says it better.
        """
        first = min((one.base_offset for one in result.segments), default=self._log_start)
        is_all_deleted = 0 < first == result.end_offset
        newest = self._checkpoints.listing.snapshots[-1:]
        if is_all_deleted and [one.end_offset for one in newest] == [result.end_offset]:
            return EpochCache.of([(newest[0].epoch, result.end_offset)])
        epochs = self._checkpoints.epochs
        if epochs is None:
            files = LogFiles(self._storage, self._directory, self._checkpoints.listing)
            epochs = epochs_below(files, result.end_offset, None)
        return epochs.without_from(result.end_offset + is_all_deleted).without_before(first)

    # --- files ------------------------------------------------------------------------------------

    def _path(self, base: int, suffix: str) -> str:
        return self._storage.join(self._directory, offset_name(base, suffix))

    def _open(self, base: int, suffix: str) -> ReadableFile:
        return self._storage.open_file(self._path(base, suffix))

    def _bytes(self, base: int, suffix: str) -> bytes:
        files = LogFiles(self._storage, self._directory, self._checkpoints.listing)
        try:
            with files.open(self._path(base, suffix)) as file:
                return file.read_at(0, file.byte_count())
        except SegmentDeletedError:
            return b""


def _exclude_unpublished(checkpoints: CheckpointFiles) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The segments that are the log's, and those behind the last one that was published in."""
    bases = checkpoints.listing.segments
    if checkpoints.published is None:
        return bases, ()
    last = checkpoints.published.segment_base_offset
    unpublished = tuple(base for base in bases if base > last)
    return bases[: len(bases) - len(unpublished)], unpublished


def _facts(base: int, end: SegmentEnd, indexes: IndexRebuild) -> SegmentMetadata:
    has_batches = indexes.first_timestamp_ms is not None
    return SegmentMetadata(
        base_offset=base,
        end_offset=end.scan_position.next_offset,
        byte_count=end.scan_position.position,
        first_timestamp_ms=indexes.first_timestamp_ms,
        max_timestamp_ms=indexes.max_timestamp_ms if has_batches else None,
        max_timestamp_offset=indexes.max_timestamp_offset if has_batches else None,
    )


def _anomaly(end: SegmentEnd) -> Anomaly:
    return Anomaly(
        kind=end.end,
        path=end.path,
        position=end.scan_position.position,
        reason=end.reason,
        byte_count=end.byte_count,
        expected_offset=end.scan_position.next_offset,
        found_base_offset=end.found_base_offset,
        found_last_offset=end.found_last_offset,
        found_epoch=end.found_epoch,
        resumes_position=end.resumes_position,
        resumes_offset=end.resumes_offset,
    )
