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

from raftlog.errors import CorruptBatchError, SegmentVanishedError
from raftlog.log.epoch_cache import EpochCache
from raftlog.log.files import LogFiles
from raftlog.log.lineage import lineage_below
from raftlog.log.names import INDEX_SUFFIX, LOG_SUFFIX, TIME_INDEX_SUFFIX, offset_name
from raftlog.records.header import INT64_MAX
from raftlog.storage.protocol import ReadableFile, Storage

from .index_rebuild import IndexCheck, IndexRebuild
from .located import boundary_at_or_below
from .marks import Marks
from .memory import LogMemory
from .memory_source import newest_memory
from .properties import LogConfig
from .recovered import Anomaly, ScanEnd, SegmentFacts
from .remembering import remember
from .segment_scan import (
    EPOCH_UNKNOWN,
    Place,
    ScanRules,
    SegmentEnd,
    scan_segment,
    survey_segment,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScannedSegment:
    """One segment that was read. ``end`` says what lies behind its last sound batch."""

    facts: SegmentFacts
    end: SegmentEnd
    indexes: IndexRebuild
    has_true_indexes: bool


@dataclass(slots=True, kw_only=True)
class LogScan:
    """What stands of a log, and where it does not go on.

    ``below`` are the segments that were not read. ``unpublished`` and ``overlapping`` are segments
    at the end that are none of the log's: nothing in them was ever acknowledged, as far as anybody
    knows; ``is_contradicted``: the recovery point says otherwise of one that overlaps. ``stop`` is
    where the log ended for another reason than its files' end, and ``durable_offset`` tells whether
    that may be.
    """

    log_start_offset: int
    below: tuple[SegmentFacts, ...]
    scanned: list[ScannedSegment]
    unpublished: tuple[int, ...]
    memory: LogMemory
    epochs: EpochCache
    end_offset: int
    durable_offset: int
    overlapping: tuple[int, ...] = ()
    is_contradicted: bool = False
    stop: SegmentEnd | None = None
    anomalies: list[Anomaly] = field(default_factory=list)

    @property
    def segments(self) -> tuple[SegmentFacts, ...]:
        return (*self.below, *(one.facts for one in self.scanned))

    @property
    def is_damaged(self) -> bool:
        """Whether something is missing that was known to be synced, or is there twice."""
        return self.end_offset < self.durable_offset or self.is_contradicted


class LogScanner:
    """One pass over the end of a log."""

    def __init__(self, storage: Storage, directory: str, config: LogConfig, marks: Marks) -> None:
        self._storage = storage
        self._directory = directory
        self._config = config
        self._marks = marks
        self._bases, self._unpublished = _split_unpublished(marks)
        self._log_start = max(marks.log_start_offset, min(self._bases, default=0))

    def scan(self) -> LogScan:
        """Read what must be read. Raises what the storage raises."""
        memory, anomalies = self._memory()
        start = self._first_base(memory)
        if memory is None:
            memory = LogMemory(self._directory, end_offset=start, is_whole=start == 0)
        result = LogScan(
            log_start_offset=self._log_start,
            below=self._below(start),
            scanned=[],
            unpublished=self._unpublished,
            memory=memory,
            epochs=EpochCache(),
            end_offset=start,
            durable_offset=self._marks.durable_offset,
            anomalies=[*self._marks.anomalies, *anomalies],
        )
        place = Place(position=0, next_offset=start, epoch=self._epoch_before(start))
        for base in [base for base in self._bases if base >= start]:
            if base != place.next_offset:
                self._note_hole(base, place, result)
                break
            place = self._scan_segment(base, place, result)
            if result.stop is not None:
                break
        result.end_offset = place.next_offset
        result.epochs = self._epochs(result)
        return result

    # --- where to begin ---------------------------------------------------------------------------

    def _memory(self) -> tuple[LogMemory | None, tuple[Anomaly, ...]]:
        """The newest memory of what is surely of this history."""
        known = max(self._marks.recovery_point, self._log_start)
        return newest_memory(self._storage, self._directory, self._marks.listing, known)

    def _first_base(self, memory: LogMemory | None) -> int:
        """The base of the first segment to read."""
        wanted = max(self._marks.recovery_point, self._log_start)
        if memory is None:
            wanted = self._log_start
        elif memory.end_offset < wanted:
            wanted = max(memory.end_offset, self._log_start)
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
            position, found, _ = boundary_at_or_below(
                self._storage, self._directory, base, byte_count, INT64_MAX
            )
        except CorruptBatchError:
            return False
        return (position, found) == (byte_count, end_offset)

    def _below(self, start: int) -> tuple[SegmentFacts, ...]:
        """The segments below, without those wholly below the log's start."""
        found = []
        for base, end in zip(self._bases, self._bases[1:], strict=False):
            if base < start and end > self._log_start:
                with self._open(base, LOG_SUFFIX) as file:
                    byte_count = file.byte_count()
                found.append(SegmentFacts(base_offset=base, end_offset=end, byte_count=byte_count))
        return tuple(found)

    def _epoch_before(self, offset: int) -> int:
        epochs = self._marks.epochs
        epoch = None if epochs is None else epochs.epoch_at(offset - 1)
        return EPOCH_UNKNOWN if epoch is None else epoch

    # --- one segment after the other --------------------------------------------------------------

    def _scan_segment(self, base: int, place: Place, result: LogScan) -> Place:
        indexes = IndexRebuild(base, interval_bytes=self._config.index_interval_bytes)
        check = IndexCheck(base, *map(self._bytes, (base, base), (INDEX_SUFFIX, TIME_INDEX_SUFFIX)))
        rules = self._rules()
        with self._open(base, LOG_SUFFIX) as file:
            scan = scan_segment(file, Place(position=0, next_offset=base, epoch=place.epoch), rules)
            while True:
                try:
                    piece = next(scan)
                except StopIteration as stop:
                    end: SegmentEnd = stop.value
                    break
                indexes.note(piece.batches)
                check.note(piece.batches)
                aborted, anomalies = remember(result.memory, piece, self._config.values)
                result.anomalies += anomalies
                for one in aborted:
                    indexes.note_aborted(one)
            self._note_end(file, end, rules, result)
        indexes.close()
        scanned = ScannedSegment(
            facts=_facts(base, end, indexes),
            end=end,
            indexes=indexes,
            has_true_indexes=check.is_as_good_as(indexes),
        )
        result.scanned.append(scanned)
        following = self._base_after(base)
        if not end.is_clean and following != end.place.next_offset:
            result.stop = end
        return end.place

    def _rules(self) -> ScanRules:
        published = self._marks.published
        limit = None
        if published is not None:
            limit = max(published.end_offset, max(self._bases, default=0))
        return ScanRules(epochs=self._marks.epochs, end_offset=limit)

    def _note_end(
        self, file: ReadableFile, end: SegmentEnd, rules: ScanRules, result: LogScan
    ) -> None:
        """Name every place behind the end where something is wrong."""
        if end.end is ScanEnd.END or end.end is ScanEnd.LIMIT:
            return
        result.anomalies += map(_anomaly, survey_segment(file, end.place, rules))

    def _note_hole(self, base: int, place: Place, result: LogScan) -> None:
        """The next segment does not begin where the log ends."""
        result.stop = self._hole(base, place)
        result.anomalies.append(_anomaly(result.stop))
        if base < place.next_offset:
            result.overlapping = tuple(other for other in self._bases if other >= base)
            result.is_contradicted = self._marks.recovery_point > base

    def _hole(self, base: int, place: Place) -> SegmentEnd:
        path = self._path(base, LOG_SUFFIX)
        end = ScanEnd.GAP if base > place.next_offset else ScanEnd.OVERLAP
        what = "are missing" if end is ScanEnd.GAP else "lie in two segments"
        first, behind = sorted((base, place.next_offset))
        return SegmentEnd(
            end=end,
            path=path,
            place=Place(position=0, next_offset=place.next_offset, epoch=place.epoch),
            byte_count=0,
            reason=f"offsets {first} to {behind - 1} {what}",
            found_base_offset=base,
        )

    def _base_after(self, base: int) -> int | None:
        return next((other for other in self._bases if other > base), None)

    # --- epochs -----------------------------------------------------------------------------------

    def _epochs(self, result: LogScan) -> EpochCache:
        """The checkpoint's epochs up to the end, or those of the batches if there is none.

        An epoch that begins at the end has no batch yet and is forgotten (Kafka does so too), but
        not where all batches of the log were deleted: then it is the last one's, unless a snapshot
        that ends there says it better.
        """
        first = min((one.base_offset for one in result.segments), default=self._log_start)
        is_all_deleted = 0 < first == result.end_offset
        newest = self._marks.listing.snapshots[-1:]
        if is_all_deleted and [one.end_offset for one in newest] == [result.end_offset]:
            return EpochCache.of([(newest[0].epoch, result.end_offset)])
        epochs = self._marks.epochs
        if epochs is None:
            files = LogFiles(self._storage, self._directory, self._marks.listing)
            epochs = lineage_below(files, result.end_offset, None)
        return epochs.without_from(result.end_offset + is_all_deleted).without_before(first)

    # --- files ------------------------------------------------------------------------------------

    def _path(self, base: int, suffix: str) -> str:
        return self._storage.join(self._directory, offset_name(base, suffix))

    def _open(self, base: int, suffix: str) -> ReadableFile:
        return self._storage.open_file(self._path(base, suffix))

    def _bytes(self, base: int, suffix: str) -> bytes:
        files = LogFiles(self._storage, self._directory, self._marks.listing)
        try:
            with files.open(self._path(base, suffix)) as file:
                return file.read_at(0, file.byte_count())
        except SegmentVanishedError:
            return b""


def _split_unpublished(marks: Marks) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The segments that are the log's, and those behind the last one that was published in."""
    bases = marks.listing.segments
    if marks.published is None:
        return bases, ()
    last = marks.published.segment_base_offset
    unpublished = tuple(base for base in bases if base > last)
    return bases[: len(bases) - len(unpublished)], unpublished


def _facts(base: int, end: SegmentEnd, indexes: IndexRebuild) -> SegmentFacts:
    has_batches = indexes.first_timestamp_ms is not None
    return SegmentFacts(
        base_offset=base,
        end_offset=end.place.next_offset,
        byte_count=end.place.position,
        first_timestamp_ms=indexes.first_timestamp_ms,
        max_timestamp_ms=indexes.max_timestamp_ms if has_batches else None,
        max_timestamp_offset=indexes.max_timestamp_offset if has_batches else None,
    )


def _anomaly(end: SegmentEnd) -> Anomaly:
    return Anomaly(
        kind=end.end,
        path=end.path,
        position=end.place.position,
        reason=end.reason,
        byte_count=end.byte_count,
        expected_offset=end.place.next_offset,
        found_base_offset=end.found_base_offset,
        found_last_offset=end.found_last_offset,
        found_epoch=end.found_epoch,
        resumes_position=end.resumes_position,
        resumes_offset=end.resumes_offset,
    )
