"""Load a log after an unclean shutdown: scan its last segments and decide what recovery does.

Invariants:

1. Nothing is written. Read are the segment of the recovery point and those after it; earlier ones
   only if there is no producer state that is as new.
2. The durable offset is the maximum of the recovery point, the base offset of the last segment (the
   one before it was synced before it was created), the end offsets of snapshots, the log start
   offset, and the end that was published in this boot. If a batch below it is not valid, the log is
   damaged and must not be written; nothing above it was acknowledged.
3. Batches after the end that a writer of this boot published were not acknowledged, and are
   truncated.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from raftlog.errors import CorruptBatchError, SegmentDeletedError
from raftlog.log.format.directory import INDEX_SUFFIX, LOG_SUFFIX, TIME_INDEX_SUFFIX, offset_name
from raftlog.log.format.epoch_cache import EpochCache
from raftlog.log.format.indexes import AbortedTransaction
from raftlog.log.reading.files import LogFiles
from raftlog.log.reading.log_end import epochs_below
from raftlog.log.reading.transactions import FRAME_VERSION, Marker
from raftlog.log.segment import Segment, SegmentMetadata
from raftlog.log.writing.batch_metadata import (
    COMMIT_HEADER,
    BatchMetadata,
    ValueKind,
    batch_metadata,
)
from raftlog.log.writing.producer_state import ProducerStateManager
from raftlog.log.writing.properties import LogConfig
from raftlog.records.batch_columns import Bools
from raftlog.records.header import INT64_MAX
from raftlog.storage.protocol import ReadableFile, Storage

from .checkpoints import CheckpointFiles, newest_producer_state
from .recover_segment import (
    EPOCH_UNKNOWN,
    IndexCheck,
    IndexRebuild,
    ScanPosition,
    ScanRules,
    SegmentScan,
    ValidChunk,
    survey_segment,
)
from .report import ScanEnd, ScanStop

# --- Replay scanned batches into a producer state, one call for each run of plain batches ---------
# A batch must be decoded if it is a control batch, has a producer, is compressed (its records are
# not visible), or if its bytes may contain a commit's name or a transaction marker. Of all others
# the producer state needs only end offset and timestamp, so a run of them is applied as one batch:
#
#     batches     [plain plain plain] [producer] [plain plain] [control] [plain]
#     apply()           once             once         once        once     once

_COMMIT_BYTES: Final = (COMMIT_HEADER.encode(),)
_MARKER_BYTES: Final = tuple(bytes((FRAME_VERSION, marker)) for marker in Marker)


def replay(
    producer_state: ProducerStateManager, chunk: ValidChunk, values: ValueKind
) -> tuple[list[AbortedTransaction], list[ScanStop]]:
    """Apply the batches of a scan from ``producer_state.end_offset`` on.

    Returns the aborted transactions, and the control batches whose records do not parse: raftlog
    did not write them, and only their headers are applied. Raises ``DecompressionLimitError``.
    """
    aborted: list[AbortedTransaction] = []
    anomalies: list[ScanStop] = []
    first = int(np.searchsorted(chunk.batches.base_offset, producer_state.end_offset))
    is_needed = np.flatnonzero(_needs_decoding(chunk, values))
    for ordinal in is_needed[is_needed >= first].tolist():
        _skip_batches(producer_state, chunk, first, ordinal)
        try:
            metadata = batch_metadata(chunk.batch(ordinal), values)
        except CorruptBatchError as error:
            if not chunk.batches.is_control[ordinal]:
                raise  # a limit: the batch may hold the name of a commit
            metadata = replace(_run(chunk, ordinal, ordinal + 1), is_control=True)
            anomalies.append(
                ScanStop(
                    kind=ScanEnd.DAMAGE,
                    path=chunk.path,
                    position=error.position,
                    reason=f"{error.reason}; only its header is used",
                    found_base_offset=metadata.base_offset,
                    found_last_offset=metadata.last_offset,
                    found_epoch=metadata.leader_epoch,
                )
            )
        aborted += producer_state.apply(metadata)
        first = ordinal + 1
    _skip_batches(producer_state, chunk, first, len(chunk.batches))
    return aborted, anomalies


def _skip_batches(
    producer_state: ProducerStateManager, chunk: ValidChunk, start: int, end: int
) -> None:
    if start < end:
        producer_state.apply(_run(chunk, start, end))


def _run(chunk: ValidChunk, start: int, end: int) -> BatchMetadata:
    """Return the metadata of the batches [start, end) as one batch."""
    batches = chunk.batches
    return BatchMetadata(
        base_offset=int(batches.base_offset[start]),
        last_offset=int(batches.last_offset[end - 1]),
        leader_epoch=int(batches.leader_epoch[end - 1]),
        max_timestamp_ms=int(batches.max_timestamp_ms[start:end].max()),
        record_count=int(batches.record_count[start:end].sum()),
    )


def _needs_decoding(chunk: ValidChunk, values: ValueKind) -> Bools:
    batches = chunk.batches
    is_needed: Bools = batches.is_control | (batches.producer_id >= 0) | (batches.compression != 0)
    patterns = _MARKER_BYTES if values is ValueKind.KRAFT else _COMMIT_BYTES
    found = [position for pattern in patterns for position in _find_all(chunk.buffer, pattern)]
    if found and len(batches):
        positions = np.array(found, np.int64) + chunk.buffer_position
        positions = positions[
            (positions >= batches.position[0]) & (positions < chunk.next_position)
        ]
        is_needed[np.searchsorted(batches.position, positions, side="right") - 1] = True
    return is_needed


def _find_all(buffer: bytes, pattern: bytes) -> Iterator[int]:
    at = buffer.find(pattern)
    while at >= 0:
        yield at
        at = buffer.find(pattern, at + 1)


# --- Loading --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ScannedSegment:
    """A segment that was read, and what follows its last valid batch."""

    metadata: SegmentMetadata
    stop: ScanStop
    indexes: IndexRebuild
    has_valid_indexes: bool


@dataclass(slots=True, kw_only=True)
class LoadedLog:
    """The valid part of a log, and why it ends there.

    ``below``: segments that were not read. ``unpublished``, ``overlapping``: segments at the end
    that do not belong to the log and, as far as is known, were never acknowledged;
    ``is_contradicted``: the recovery point includes an overlapping one. ``stop``: where the log
    ends before its files do, which is damage if it is below ``durable_offset``.
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
    stop: ScanStop | None = None
    anomalies: list[ScanStop] = field(default_factory=list)

    @property
    def segments(self) -> tuple[SegmentMetadata, ...]:
        return (*self.below, *(one.metadata for one in self.scanned))

    @property
    def is_damaged(self) -> bool:
        """Whether synced offsets are missing, or are in two segments."""
        return self.end_offset < self.durable_offset or self.is_contradicted


class LogLoader:
    """One scan of the end of a log."""

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
        """Scan the log. Raises what the storage raises."""
        producer_state, anomalies = self._producer_state()
        start = self._first_base(producer_state)
        if producer_state is None or producer_state.end_offset < start:
            # It lacks the batches up to the first segment, which were deleted.
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
                self._add_gap(base, scan_position, result)
                break
            scan_position = self._recover_segment(base, scan_position, result)
            if result.stop is not None:
                break
        result.end_offset = scan_position.next_offset
        result.epochs = self._epochs(result)
        return result

    # --- first segment to scan --------------------------------------------------------------------

    def _producer_state(self) -> tuple[ProducerStateManager | None, tuple[ScanStop, ...]]:
        """Return the newest producer state that certainly belongs to this history."""
        known = max(self._checkpoints.recovery_point, self._log_start)
        return newest_producer_state(
            self._storage, self._directory, self._checkpoints.listing, known
        )

    def _first_base(self, producer_state: ProducerStateManager | None) -> int:
        """Return the base offset of the first segment to scan."""
        wanted = max(self._checkpoints.recovery_point, self._log_start)
        if producer_state is None:
            wanted = self._log_start
        elif producer_state.end_offset < wanted:
            wanted = max(producer_state.end_offset, self._log_start)
        candidates = [base for base in self._bases if base <= wanted]
        if not candidates:
            return min(self._bases, default=self._log_start)
        while len(candidates) > 1 and not self._ends_at(candidates[-2], candidates[-1]):
            candidates.pop()
        return candidates[-1]

    def _ends_at(self, base: int, end_offset: int) -> bool:
        """Return whether a sealed segment ends at the next one's base offset, by its last batches.

        If not, the segment is scanned from its beginning.
        """
        if end_offset <= self._log_start:
            return True  # below the log start
        segment = Segment.of_file(self._storage, self._directory, base)
        try:
            end = segment.floor(INT64_MAX)
        except CorruptBatchError:
            return False
        return (end.position, end.offset) == (segment.byte_count, end_offset)

    def _below(self, start: int) -> tuple[SegmentMetadata, ...]:
        """Return the segments before the scan that are not wholly below the log start."""
        found = []
        for base, end in zip(self._bases, self._bases[1:], strict=False):
            if base < start and end > self._log_start:
                size = Segment.of_file(self._storage, self._directory, base).byte_count
                found.append(SegmentMetadata(base_offset=base, end_offset=end, byte_count=size))
        return tuple(found)

    def _epoch_before(self, offset: int) -> int:
        epochs = self._checkpoints.epochs
        epoch = None if epochs is None else epochs.epoch_at(offset - 1)
        return EPOCH_UNKNOWN if epoch is None else epoch

    # --- scan of segments -------------------------------------------------------------------------

    def _recover_segment(
        self, base: int, scan_position: ScanPosition, result: LoadedLog
    ) -> ScanPosition:
        indexes = IndexRebuild(base, interval_bytes=self._config.index_interval_bytes)
        check = IndexCheck(base, *map(self._bytes, (base, base), (INDEX_SUFFIX, TIME_INDEX_SUFFIX)))
        rules = self._rules()
        with self._open(base, LOG_SUFFIX) as file:
            start = ScanPosition(position=0, next_offset=base, epoch=scan_position.epoch)
            scan = SegmentScan(file, start, rules)
            for chunk in scan:
                indexes.add_batches(chunk.batches)
                check.add_batches(chunk.batches)
                aborted, anomalies = replay(result.producer_state, chunk, self._config.values)
                result.anomalies += anomalies
                for one in aborted:
                    indexes.add_aborted(one)
            if not scan.stop.is_clean:
                result.anomalies += survey_segment(file, scan.position, rules)
        indexes.close()
        end = scan.position
        scanned = ScannedSegment(
            metadata=SegmentMetadata(
                base_offset=base,
                end_offset=end.next_offset,
                byte_count=end.position,
                max_timestamp_ms=indexes.max_timestamp_ms if end.position else None,
            ),
            stop=scan.stop,
            indexes=indexes,
            has_valid_indexes=check.is_valid_for(indexes),
        )
        result.scanned.append(scanned)
        following = self._base_after(base)
        if not scan.stop.is_clean and following != end.next_offset:
            result.stop = scan.stop
        return end

    def _rules(self) -> ScanRules:
        published = self._checkpoints.published
        limit = None
        if published is not None:
            limit = max(published.end_offset, max(self._bases, default=0))
        return ScanRules(epochs=self._checkpoints.epochs, end_offset=limit)

    def _add_gap(self, base: int, scan_position: ScanPosition, result: LoadedLog) -> None:
        """End the log before a segment that does not begin at the log's end."""
        result.stop = self._gap(base, scan_position)
        result.anomalies.append(result.stop)
        if base < scan_position.next_offset:
            result.overlapping = tuple(other for other in self._bases if other >= base)
            result.is_contradicted = self._checkpoints.recovery_point > base

    def _gap(self, base: int, scan_position: ScanPosition) -> ScanStop:
        kind = ScanEnd.GAP if base > scan_position.next_offset else ScanEnd.OVERLAP
        what = "are missing" if kind is ScanEnd.GAP else "are in two segments"
        first, last = sorted((base, scan_position.next_offset))
        return ScanStop(
            kind=kind,
            path=self._path(base, LOG_SUFFIX),
            position=0,
            reason=f"offsets {first} to {last - 1} {what}",
            next_offset=scan_position.next_offset,
            epoch=scan_position.epoch,
            found_base_offset=base,
        )

    def _base_after(self, base: int) -> int | None:
        return next((other for other in self._bases if other > base), None)

    # --- epochs -----------------------------------------------------------------------------------

    def _epochs(self, result: LoadedLog) -> EpochCache:
        """Return the epochs of ``leader-epoch-checkpoint`` up to the end; without it, the batches'.

        An epoch that begins at the end has no batch and is dropped, as in Kafka, except if all
        batches of the log were deleted: then the last epoch is kept, that of a snapshot at the end
        if there is one.
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
    """Return the log's segments, and those after the last segment that was published."""
    bases = checkpoints.listing.segments
    if checkpoints.published is None:
        return bases, ()
    last = checkpoints.published.segment_base_offset
    unpublished = tuple(base for base in bases if base > last)
    return bases[: len(bases) - len(unpublished)], unpublished
