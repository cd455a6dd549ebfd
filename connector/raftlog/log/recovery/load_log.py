"""Load a log after an unclean shutdown: scan its last segments, then recover what is wrong there.

Invariants of the scan:

1. Nothing is written. Only the segment of the recovery point and later ones are read. Earlier ones
   are read only if no stored producer state is recent enough.
2. The durable offset is the maximum of the recovery point, the base offset of the last segment (the
   one before it was synced before the last one was created), the end offsets of snapshots, the log
   start offset, and the end that was published in this boot. If a batch below it is not valid, the
   log is damaged and must not be written. Nothing above it was acknowledged.
3. Batches after the end that a writer of this boot published were not acknowledged, and are
   truncated.

The order of the durable steps of the changes:

    1. sync the directory: a killed writer may have renamed and deleted files without a sync,
       and the next steps must not rely on names that a power loss could revert
    2. delete unfinished files (.tmp, .part, ...), unless a writer of this boot may be alive
    3. back up and delete unpublished and overlapping segments, the last one first
    4. back up and truncate the bytes after the valid batches; write and sync the indexes
    5. delete files that belong to no segment, sync the directory
    6. write ``checksums``, ``leader-epoch-checkpoint``, ``log-start-offset-checkpoint``
    7. sync the segments and the directory
    8. write the recovery point
    9. delete old backups

Invariants of the changes:

1. Every step may be interrupted and repeated, with the same result. No byte of the log is deleted
   before its backup is durable.
2. Everything that is kept is durable on return. After a reboot, readable bytes were read from the
   disk. In the same boot, however, a failed fsync may have left pages that are readable but will
   never be written, or a truncation that will never reach the disk. Therefore, unless the synced
   end was published, the last segment is rewritten and truncated again before it is synced.
3. If nothing is wrong, and a writer of this boot published the synced end, only the directory is
   synced, because a live writer may have the log open.
"""

from __future__ import annotations

import contextlib
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

import msgpack
import numpy as np

from raftlog.errors import CorruptBatchError, CorruptFileError, LogReadOnlyError
from raftlog.limits import COMMITS_MAX, INT64_MAX, MIB, PRODUCER_BATCHES_KEPT, PRODUCERS_MAX
from raftlog.log.format.directory import (
    CHECKSUMS_NAME,
    CLEANED_SUFFIX,
    CLEANER_LOCK_NAME,
    DELETED_SUFFIX,
    EPOCH_CHECKPOINT_NAME,
    INDEX_SUFFIX,
    INDEX_SUFFIXES,
    LOG_START_CHECKPOINT_NAME,
    LOG_SUFFIX,
    PARTITION_METADATA_NAME,
    PRODUCER_SNAPSHOT_SUFFIX,
    RAFTLOG_PROPERTIES_NAME,
    RECOVERY_POINT_CHECKPOINT_NAME,
    SWAP_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    offset_name,
    parse_offset_name,
)
from raftlog.log.format.epoch_cache import EpochCache
from raftlog.log.format.remote_chain import read_remote_chain
from raftlog.log.reading.files import LogFiles
from raftlog.log.reading.log_end import epochs_below
from raftlog.log.reading.transactions import (
    COMMIT_HEADER,
    FRAME_VERSION,
    BatchMetadata,
    Marker,
    ValueKind,
    batch_metadata,
    commit_of_header,
)
from raftlog.log.segment import AbortedTransaction, Segment, SegmentMetadata
from raftlog.log.writing.atomic_files import (
    TEMPORARY_SUFFIX,
    back_up,
    delete_old_backups,
    next_backup_ordinal,
    rebuild_checksums,
    truncate_with_backup,
)
from raftlog.log.writing.producer_state import NO_EPOCH, ProducerStateManager
from raftlog.log.writing.properties import LogConfig
from raftlog.log.writing.segments import LogDirectory
from raftlog.log.writing.snapshots import PART_SUFFIX, SNAPSHOT_LOCK_NAME
from raftlog.records.batch_columns import BatchColumns, Bools
from raftlog.storage.protocol import WritableStorage

from .recover import (
    CheckpointFiles,
    RecoveredLog,
    RecoveryReport,
    ScanEnd,
    ScanStop,
    TruncatedTail,
    newest_producer_state,
)
from .recover_segment import (
    EPOCH_UNKNOWN,
    IndexRebuild,
    ScanPosition,
    ScanRules,
    SegmentScan,
    ValidChunk,
    index_bytes,
    survey_segment,
    write_index,
)

# --- Replay scanned batches into a producer state, one call for each run of plain batches ---------
# A batch must be decoded in these cases:
#
# - It is a control batch, it is compressed (so its records are not visible), or its bytes may
#   contain a transaction marker.
# - It is one of its producer's last batches in a chunk, since an entry has the last
#   ``PRODUCER_BATCHES_KEPT`` batches of its epoch.
# - It is the last batch that names a commit of its application id, since the last commit of each id
#   is kept.
#
# From all other batches the producer state needs only the end offset and the timestamp, so a run of
# them is applied as one batch:
# batch:
#
#     batches     [plain plain plain] [producer] [plain plain] [control] [plain]
#     apply()           once             once         once        once     once

_COMMIT_KEY: Final = COMMIT_HEADER.encode()
_MARKER_BYTES: Final = tuple(bytes((FRAME_VERSION, marker)) for marker in Marker)
_ARRAY_OF_THREE: Final = 0x93
_SHORT_TEXT: Final = 0xA0
_SHORT_TEXT_MAX: Final = 0xBF
_TEXT_8: Final = 0xD9
"""First bytes of MessagePack's types that occur in a commit's name."""


def replay(
    producer_state: ProducerStateManager, chunk: ValidChunk, values: ValueKind
) -> tuple[list[AbortedTransaction], list[ScanStop]]:
    """Apply the batches of a scan from ``producer_state.end_offset`` on.

    Returns the aborted transactions, and the control batches whose records do not parse. raftlog
    did not write these, and only their headers are applied. Raises ``DecompressionLimitError``.
    """
    aborted: list[AbortedTransaction] = []
    anomalies: list[ScanStop] = []
    first = int(np.searchsorted(chunk.batches.last_offset, producer_state.end_offset))
    is_needed = _needs_decoding(chunk, first, values) | _is_last_of_producer(
        chunk.batches, first, known_count=producer_state.producer_count
    )
    for ordinal in (first + np.flatnonzero(is_needed[first:])).tolist():
        _skip_batches(producer_state, chunk, first, ordinal)
        try:
            metadata = batch_metadata(chunk.batch(ordinal), values)
        except CorruptBatchError as error:
            if not chunk.batches.is_control[ordinal]:
                raise  # a limit: the batch may contain the name of a commit
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
        run = _run(chunk, start, end)
        # A compaction may have joined batches from before and after a producer snapshot.
        base_offset = max(run.base_offset, producer_state.end_offset)
        producer_state.apply(replace(run, base_offset=base_offset))


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


def _needs_decoding(chunk: ValidChunk, first: int, values: ValueKind) -> Bools:
    """Return which batches from ``first`` on have records that the producer state needs."""
    batches = chunk.batches
    is_needed: Bools = batches.is_control | (batches.compression != 0)
    if first == len(batches):
        return is_needed
    if values is not ValueKind.KRAFT:
        is_needed[_last_commits(chunk, first)] = True
        return is_needed
    found = [position for pattern in _MARKER_BYTES for position in _find_all(chunk.buffer, pattern)]
    if found:
        positions = np.array(found, np.int64) + chunk.buffer_position
        positions = positions[
            (positions >= batches.position[0]) & (positions < chunk.next_position)
        ]
        is_needed[np.searchsorted(batches.position, positions, side="right") - 1] = True
    return is_needed


def _last_commits(chunk: ValidChunk, first: int) -> list[int]:
    """Return the batches from ``first`` on that name the last commits, or may do so.

    The result has the last batch of each application id; if there are more ids than are kept, only
    the most recently used ones. The search runs backward and compares the bytes that follow the
    header's key with the ids found so far. These bytes may be part of a record's value, or an id in
    another encoding, so they may add a batch without need. A batch is left out only if a later one
    names a commit of the same id.
    """
    buffer, batches = chunk.buffer, chunk.batches
    positions, buffer_position = batches.position.data, chunk.buffer_position
    start, at = positions[first] - buffer_position, chunk.next_position - buffer_position
    found: list[int] = []
    known: set[bytes | None] = set()
    while len(known) < COMMITS_MAX and (at := buffer.rfind(_COMMIT_KEY, start, at)) >= 0:
        if _packed_id(buffer, at + len(_COMMIT_KEY)) in known:
            continue
        ordinal = bisect_right(positions, at + buffer_position) - 1
        found.append(ordinal)
        at = positions[ordinal] - buffer_position
        if not batches.is_control[ordinal]:
            name = commit_of_header(chunk.batch(ordinal))
            if name is not None:
                known.add(msgpack.packb(name.application_id))
    return found


def _packed_id(buffer: bytes, at: int) -> bytes | None:
    """Return the application id in a header's value, which is MessagePack, or None.

    ``at``: position of the value's length, a varint of one or two bytes.
    """
    at += 1 + (buffer[at : at + 1] >= b"\x80")
    head = buffer[at : at + 3]
    if len(head) < 3 or head[0] != _ARRAY_OF_THREE:
        return None
    kind = head[1]
    if _SHORT_TEXT <= kind <= _SHORT_TEXT_MAX:
        return buffer[at + 1 : at + 2 + kind - _SHORT_TEXT]
    return buffer[at + 1 : at + 3 + head[2]] if kind == _TEXT_8 else None


def _is_last_of_producer(batches: BatchColumns, first: int, *, known_count: int) -> Bools:
    """Return which batches from ``first`` on affect the entries of their producers.

    These are the last batches of each producer's greatest epoch; its very last batch, which
    determines the time and the last use of its entry; and all transactional batches. If there may
    be more producers than are kept, all batches are returned, because eviction depends on the order
    of use. ``known_count``: number of producers before these batches.
    """
    is_last: Bools = batches.producer_id >= 0
    rows = first + np.flatnonzero(is_last[first:])
    rows = rows[np.argsort(batches.producer_id[rows], kind="stable")]
    starts = np.flatnonzero(np.diff(batches.producer_id[rows], prepend=-1))
    if not len(rows) or known_count + len(starts) > PRODUCERS_MAX:
        return is_last
    counts = np.diff(starts, append=len(rows))
    has_sequence = (batches.base_sequence >= 0) & ~batches.is_control
    epoch = np.where(has_sequence, batches.producer_epoch, NO_EPOCH)[rows]
    is_newest = epoch == np.repeat(np.maximum.reduceat(epoch, starts), counts)
    count_so_far = np.cumsum(is_newest)
    ends = starts + counts - 1
    is_kept = np.repeat(count_so_far[ends], counts) - count_so_far < PRODUCER_BATCHES_KEPT
    is_kept &= is_newest
    is_kept[ends] = True
    is_kept |= batches.is_transactional[rows]
    is_last[rows[~is_kept]] = False
    return is_last


def _find_all(buffer: bytes, pattern: bytes) -> Iterator[int]:
    at = buffer.find(pattern)
    while at >= 0:
        yield at
        at = buffer.find(pattern, at + 1)


# --- Loading --------------------------------------------------------------------------------------

_CHUNK_BYTES: Final = 1 * MIB
_UNPUBLISHED: Final = "a writer died before it synced these batches: they were not acknowledged"
_OVERLAPPING: Final = "its offsets are in the segment before it, and were not acknowledged here"
_UNFINISHED_SUFFIXES: Final = (TEMPORARY_SUFFIX, DELETED_SUFFIX, SWAP_SUFFIX)
_CHECKED_NAMES: Final = (
    EPOCH_CHECKPOINT_NAME,
    LOG_START_CHECKPOINT_NAME,
    PARTITION_METADATA_NAME,
    RAFTLOG_PROPERTIES_NAME,
    RECOVERY_POINT_CHECKPOINT_NAME,
)


@dataclass(frozen=True, slots=True)
class _ScannedSegment:
    """A segment that was read, and the bytes after its last valid batch."""

    metadata: SegmentMetadata
    stop: ScanStop
    indexes: IndexRebuild


class LogLoader:
    """One recovery of a log after an unclean shutdown: a scan, then the changes that it requires.

    - ``_below``: segments that were not read.
    - ``_unpublished``, ``_overlapping``: segments at the end that do not belong to the log and, as
      far as is known, were never acknowledged.
    - ``_is_contradicted``: the recovery point includes an overlapping segment.
    - ``_stop``: where the log ends before its files do. Below the durable offset this is damage.
    """

    def __init__(
        self,
        storage: WritableStorage,
        directory: str,
        config: LogConfig,
        checkpoints: CheckpointFiles,
    ) -> None:
        self._storage = storage
        self._directory = directory
        self._config = config
        self._checkpoints = checkpoints
        self._files = LogDirectory(storage, directory)
        published = checkpoints.published
        last = INT64_MAX if published is None else published.segment_base_offset
        listing = checkpoints.listing
        segments = [
            base
            for base in listing.segments
            if base not in listing.swapped or self._files.has(offset_name(base, LOG_SUFFIX))
        ]
        self._bases = tuple(base for base in segments if base <= last)
        self._unpublished = tuple(base for base in segments if base > last)
        self._log_start = max(checkpoints.log_start_offset, min(self._bases, default=0))
        self._below: tuple[SegmentMetadata, ...] = ()
        self._scanned: list[_ScannedSegment] = []
        self._producer_state = ProducerStateManager(directory)
        self._epochs = EpochCache()
        self._end_offset = 0
        self._overlapping: tuple[int, ...] = ()
        self._is_contradicted = False
        self._stop: ScanStop | None = None
        self._anomalies = list(checkpoints.anomalies)
        self._recovery_point = checkpoints.recovery_point
        self._is_this_boot = published is not None
        self._is_sync_unknown = published is None and not checkpoints.is_after_boot
        self._truncated: list[TruncatedTail] = []
        self._rebuilt: list[str] = []
        self._deleted_backups: tuple[str, ...] = ()

    def load(self) -> RecoveredLog:
        """Scan the log and, unless it is damaged below the durable offset, recover it.

        Raises the storage's errors. After ``DiskFullError`` and ``DiskFailedError`` the log must be
        loaded again.
        """
        self._scan()
        read_only = self._read_only()
        if read_only is None:
            self._apply()
        end_offset = self._end_offset
        return RecoveredLog(
            segments=self._segments,
            log_start_offset=self._log_start,
            end_offset=end_offset,
            epochs=self._epochs,
            producer_state=self._producer_state,
            recovery_point=self._recovery_point,
            report=RecoveryReport(
                was_clean=False,
                truncated=tuple(self._truncated),
                rebuilt=tuple(self._rebuilt),
                deleted_backups=self._deleted_backups,
                anomalies=tuple(self._anomalies),
                read_only=read_only,
            ),
        )

    @property
    def _segments(self) -> tuple[SegmentMetadata, ...]:
        return (*self._below, *(one.metadata for one in self._scanned))

    def _read_only(self) -> LogReadOnlyError | None:
        """Return the error that every append raises if the log must not be written, or None."""
        stop, end, durable = self._stop, self._end_offset, self._checkpoints.durable_offset
        if not self._checkpoints.is_raftlog:
            return LogReadOnlyError(
                path=self._directory,
                reason=f"it has no {RAFTLOG_PROPERTIES_NAME}: it is a Kafka log, "
                "which raftlog does not write",
                remedy="create a raftlog log in another directory",
            )
        if end >= durable and not self._is_contradicted:
            return None
        if self._is_contradicted:
            assert stop is not None, "a contradiction ends the scan"
            return LogReadOnlyError(
                path=stop.path,
                offset=stop.found_base_offset,
                reason=f"{stop.reason}, and both segments were synced",
                remedy="run `raftlog check`, and move the segment that is not of this log "
                "elsewhere",
            )
        lost = f"offsets {end} to {durable - 1}, which were synced,"
        if stop is None:
            path, position, reason = self._directory, None, f"{lost} are missing"
        else:
            path, position = stop.path, stop.position
            reason = f"{lost} are damaged or missing: {stop.reason}"
        return LogReadOnlyError(
            path=path,
            position=position,
            offset=end,
            reason=reason,
            remedy="restore the file from a backup, or run `raftlog check` and then "
            f"`raftlog repair --cut-at {end}`, which truncates the log there and keeps a backup",
        )

    # --- scan -------------------------------------------------------------------------------------

    def _scan(self) -> None:
        """Read the segments from the first that is not known to be valid on. Nothing is written."""
        # A producer state above this offset may belong to another history.
        offset_max = max(self._checkpoints.recovery_point, self._log_start)
        producer_state, anomalies = newest_producer_state(
            self._storage, self._directory, self._checkpoints.listing, offset_max
        )
        self._anomalies += anomalies
        start = self._first_base(producer_state)
        if producer_state is None or producer_state.end_offset < start:
            # It lacks the deleted batches before the first segment.
            producer_state = ProducerStateManager(
                self._directory, end_offset=start, is_whole=start == 0
            )
        self._producer_state = producer_state
        self._below = self._segments_below(start)
        epochs = self._checkpoints.epochs or EpochCache()
        epoch = epochs.epoch_at(start - 1)
        scan_position = ScanPosition(
            position=0, next_offset=start, epoch=EPOCH_UNKNOWN if epoch is None else epoch
        )
        for base in [base for base in self._bases if base >= start]:
            if base != scan_position.next_offset:
                self._add_gap(base, scan_position)
                break
            scan_position = self._recover_segment(base, scan_position)
            if self._stop is not None:
                break
        self._end_offset = scan_position.next_offset
        self._epochs = self._scanned_epochs()

    def _first_base(self, producer_state: ProducerStateManager | None) -> int:
        """Return the base offset of the first segment to scan."""
        wanted = self._log_start
        if producer_state is not None:
            known = min(producer_state.end_offset, self._checkpoints.recovery_point)
            wanted = max(known, self._log_start)
        candidates = [base for base in self._bases if base <= wanted]
        if not candidates:
            return min(self._bases, default=self._log_start)
        while len(candidates) > 1 and not self._ends_at(candidates[-2], candidates[-1]):
            candidates.pop()
        return candidates[-1]

    def _ends_at(self, base: int, end_offset: int) -> bool:
        """Return whether a sealed segment's last batches end at the next segment's base offset.

        If they do not, the segment is scanned from its beginning.
        """
        if end_offset <= self._log_start:
            return True  # below the log start
        segment = Segment.of_file(self._storage, self._directory, base)
        try:
            end = segment.floor(INT64_MAX)
        except CorruptBatchError:
            return False
        return (end.position, end.offset) == (segment.byte_count, end_offset)

    def _segments_below(self, start: int) -> tuple[SegmentMetadata, ...]:
        """Return the segments before the scan that are not wholly below the log start."""
        found = []
        for base, end in zip(self._bases, self._bases[1:], strict=False):
            if base < start and end > self._log_start:
                size = Segment.of_file(self._storage, self._directory, base).byte_count
                found.append(SegmentMetadata(base_offset=base, end_offset=end, byte_count=size))
        return tuple(found)

    def _recover_segment(self, base: int, scan_position: ScanPosition) -> ScanPosition:
        indexes = IndexRebuild(
            base,
            interval_bytes=self._config.index_interval_bytes,
            existing_offsets=index_bytes(self._storage, self._path(base, INDEX_SUFFIX)) or b"",
            existing_times=index_bytes(self._storage, self._path(base, TIME_INDEX_SUFFIX)) or b"",
        )
        rules = self._rules()
        with self._storage.open_file(self._path(base, LOG_SUFFIX)) as file:
            start = ScanPosition(position=0, next_offset=base, epoch=scan_position.epoch)
            scan = SegmentScan(file, start, rules)
            for chunk in scan:
                indexes.add_batches(chunk.batches)
                aborted, anomalies = replay(self._producer_state, chunk, self._config.values)
                self._anomalies += anomalies
                for one in aborted:
                    indexes.add_aborted(one)
            if not scan.stop.is_clean:
                self._anomalies += survey_segment(file, scan.position, rules)
        indexes.close()
        end = scan.position
        metadata = SegmentMetadata(
            base_offset=base,
            end_offset=end.next_offset,
            byte_count=end.position,
            max_timestamp_ms=indexes.max_timestamp_ms if end.position else None,
        )
        self._scanned.append(_ScannedSegment(metadata, scan.stop, indexes))
        following = next((other for other in self._bases if other > base), None)
        if not scan.stop.is_clean and following != end.next_offset:
            self._stop = scan.stop
        return end

    def _rules(self) -> ScanRules:
        published = self._checkpoints.published
        limit = None
        if published is not None:
            limit = max(published.end_offset, max(self._bases, default=0))
        return ScanRules(epochs=self._checkpoints.epochs, end_offset=limit)

    def _add_gap(self, base: int, scan_position: ScanPosition) -> None:
        """End the log before a segment that does not begin at the log's end."""
        is_gap = base > scan_position.next_offset
        first, last = sorted((base, scan_position.next_offset))
        what = "are missing" if is_gap else "are in two segments"
        self._stop = ScanStop(
            kind=ScanEnd.GAP if is_gap else ScanEnd.OVERLAP,
            path=self._path(base, LOG_SUFFIX),
            position=0,
            reason=f"offsets {first} to {last - 1} {what}",
            next_offset=scan_position.next_offset,
            epoch=scan_position.epoch,
            found_base_offset=base,
        )
        self._anomalies.append(self._stop)
        if not is_gap:
            self._overlapping = tuple(other for other in self._bases if other >= base)
            self._is_contradicted = self._checkpoints.recovery_point > base

    def _scanned_epochs(self) -> EpochCache:
        """Return the epochs of ``leader-epoch-checkpoint`` up to the end; without it, the batches'.

        An epoch that begins at the end has no batch and is dropped, as in Kafka. The exception is a
        log whose batches were all deleted: its last epoch is kept, or that of a snapshot at the end
        if there is one.
        """
        first = min((one.base_offset for one in self._segments), default=self._log_start)
        is_all_deleted = 0 < first == self._end_offset
        newest = self._checkpoints.listing.snapshots[-1:]
        if is_all_deleted and [one.end_offset for one in newest] == [self._end_offset]:
            return EpochCache.of([(newest[0].epoch, self._end_offset)])
        epochs = self._checkpoints.epochs
        if epochs is None:
            files = LogFiles(self._storage, self._directory, self._checkpoints.listing)
            epochs = epochs_below(files, self._end_offset, end_epoch=None)
        if self._checkpoints.listing.is_tiered:
            first = self._first_epoch_offset(first)
        return epochs.without_from(self._end_offset + is_all_deleted).without_before(first)

    def _first_epoch_offset(self, local_start: int) -> int:
        """Return the offset from which on a log with remote segments has leader epochs."""
        with contextlib.suppress(CorruptFileError):
            chain = read_remote_chain(self._storage, self._directory)
            start = None if chain is None else chain.start_at(local_start)
            return local_start if start is None else start
        return local_start

    def _path(self, base: int, suffix: str) -> str:
        return self._files.file(offset_name(base, suffix))

    # --- changes ----------------------------------------------------------------------------------

    def _apply(self) -> None:
        """Truncate, rebuild, delete and sync, in the order above."""
        self._files.sync()
        first_backup = next_backup_ordinal(self._storage.list_names(self._directory))
        if not self._is_this_boot:
            self._delete_unfinished()
        self._delete_segments(self._unpublished, _UNPUBLISHED)
        self._delete_segments(self._overlapping, _OVERLAPPING)
        for segment in self._scanned:
            self._truncate(segment)
            self._recover_indexes(segment)
        self._delete_strays()
        self._recover_checksums()
        self._recover_epochs()
        damaged = self._checkpoints.damaged
        if self._checkpoints.log_start_offset != self._log_start or (
            LOG_START_CHECKPOINT_NAME in damaged
        ):
            self._files.write_log_start(self._log_start)
        if PARTITION_METADATA_NAME in damaged and self._checkpoints.topic_id is not None:
            self._files.write_partition_metadata(self._checkpoints.topic_id)
        is_recovery_point_damaged = RECOVERY_POINT_CHECKPOINT_NAME in damaged
        if not self._is_this_boot or self._truncated or is_recovery_point_damaged:
            self._make_durable()
        if self._truncated:
            self._deleted_backups = delete_old_backups(
                self._storage, self._directory, before=first_backup
            )

    def _truncate(self, segment: _ScannedSegment) -> None:
        stop, end_position = segment.stop, segment.metadata.byte_count
        if not stop.byte_count:
            return
        self._truncated.append(
            TruncatedTail(
                path=stop.path,
                position=end_position,
                byte_count=stop.byte_count,
                first_offset=segment.metadata.end_offset,
                reason=_UNPUBLISHED if stop.kind is ScanEnd.LIMIT else stop.reason,
                saved_as=truncate_with_backup(self._storage, stop.path, end_position),
            )
        )

    def _delete_segments(self, bases: tuple[int, ...], reason: str) -> None:
        """Back up and delete segments that were never acknowledged, the last one first.

        Their names may not even be durable, because the directory sync at their creation may have
        failed.
        """
        for base in reversed(bases):
            name = offset_name(base, LOG_SUFFIX)
            path = self._files.file(name)
            with self._storage.open_file(path) as file:
                byte_count = file.byte_count()
            saved_as = back_up(self._storage, path, 0)
            self._files.unlink([name])
            self._files.sync()
            if byte_count:
                self._truncated.append(
                    TruncatedTail(
                        path=path,
                        position=0,
                        byte_count=byte_count,
                        first_offset=base,
                        reason=reason,
                        saved_as=saved_as,
                    )
                )

    def _make_durable(self) -> None:
        """Sync the segments, then raise the recovery point."""
        for segment in self._scanned:
            with self._storage.open_for_writing(segment.stop.path) as file:
                if segment is self._scanned[-1] and self._is_sync_unknown:
                    for position in range(0, segment.metadata.byte_count, _CHUNK_BYTES):
                        wanted = min(_CHUNK_BYTES, segment.metadata.byte_count - position)
                        file.write_at(position, file.read_at(position, wanted))
                    file.truncate(segment.metadata.byte_count)
                file.sync()
        self._files.sync()
        is_damaged = RECOVERY_POINT_CHECKPOINT_NAME in self._checkpoints.damaged
        if self._recovery_point != self._end_offset or is_damaged:
            self._files.write_recovery_point(self._end_offset)
            self._recovery_point = self._end_offset

    def _recover_indexes(self, segment: _ScannedSegment) -> None:
        indexes = segment.indexes
        contents = {TXN_INDEX_SUFFIX: indexes.txn_index}
        if not indexes.is_existing_valid:
            contents[INDEX_SUFFIX] = indexes.offset_index
            contents[TIME_INDEX_SUFFIX] = indexes.time_index
        for suffix, data in contents.items():
            name = offset_name(segment.metadata.base_offset, suffix)
            is_optional = suffix == TXN_INDEX_SUFFIX and not data
            if is_optional and not self._files.has(name):
                continue
            path = self._files.file(name)
            if write_index(self._storage, path, data, sync_equal=not self._is_this_boot):
                self._rebuilt.append(path)

    def _recover_checksums(self) -> None:
        if CHECKSUMS_NAME in self._checkpoints.damaged:
            valid = [name for name in _CHECKED_NAMES if name not in self._checkpoints.damaged]
            rebuild_checksums(self._storage, self._directory, valid)
            self._rebuilt.append(self._files.file(CHECKSUMS_NAME))

    def _recover_epochs(self) -> None:
        if self._checkpoints.epochs == self._epochs:
            return
        if self._checkpoints.epochs is None:
            self._rebuilt.append(self._files.file(EPOCH_CHECKPOINT_NAME))
        self._files.write_epochs(self._epochs)

    def _delete_unfinished(self) -> None:
        """Delete files that were not renamed to their final names."""
        for suffix in _UNFINISHED_SUFFIXES:
            self._files.unlink_suffix(suffix)
        self._files.unlink_unlocked(PART_SUFFIX, SNAPSHOT_LOCK_NAME)
        self._files.unlink_unlocked(CLEANED_SUFFIX, CLEANER_LOCK_NAME)

    def _delete_strays(self) -> None:
        """Delete files that belong to no segment: segments below the log start, indexes, producer
        snapshots.

        Durable on return, because a new segment may reuse one of their names.
        """
        bases = {segment.base_offset for segment in self._segments}
        strays = []
        for name in self._storage.list_names(self._directory):
            for suffix in (LOG_SUFFIX, *INDEX_SUFFIXES):
                base = parse_offset_name(name, suffix)
                if base is not None and base not in bases:
                    strays.append(name)
            offset = parse_offset_name(name, PRODUCER_SNAPSHOT_SUFFIX)
            if offset is not None and offset > self._end_offset:
                strays.append(name)
        if self._files.unlink(strays):
            self._files.sync()
