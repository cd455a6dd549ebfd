"""What lies in a log's directory: segments, epochs, snapshots, start. Every change of it is here.

Rules of this file:

1. Order makes a crash harmless: a file is durable before another one says so, and what says that
   something may go is durable before it goes. The recovery point is never ahead of what is synced.
2. What lies wholly below the log's start counts for nothing, so those segments go at once. Above a
   new end the newest goes first, and its name for good before the next: what is left has no gap.
3. No listing of the directory for an append. Where another process may have changed names (start,
   snapshots), the directory is looked at again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from raftlog.errors import CorruptFileError, DiskFullError, LogNotFoundError
from raftlog.log.epoch_cache import EpochCache
from raftlog.log.names import (
    INDEX_SUFFIX,
    LOG_SUFFIX,
    PRODUCER_SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    checkpoint_name,
    offset_name,
)
from raftlog.records.batch import RecordBatch
from raftlog.types import SnapshotId

from .active_segment import ActiveSegment
from .batch_headers import header_at
from .batch_metadata import batch_metadata
from .indexer import NO_TIMESTAMP_MS
from .located import contiguous_bytes, floor_boundary, largest_timestamp_ms, read_batches
from .log_directory import LogDirectory
from .producer_state_manager import ProducerStateManager
from .properties import LogConfig
from .retention import RetentionSegment
from .truncate_with_backup import DAMAGED_SUFFIX, back_up, delete_old_backups, next_backup_ordinal

if TYPE_CHECKING:
    from .recovered import RecoveredLog

_SEGMENT_SUFFIXES: Final = (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX)


@dataclass(frozen=True, slots=True)
class SealedSegment:
    """A segment that is complete and synced. ``end_offset`` is exclusive.

    ``max_timestamp_ms`` None: nobody has looked yet.
    """

    base_offset: int
    end_offset: int
    byte_count: int
    max_timestamp_ms: int | None = None


class LogSegments:
    """The files of one log that is open for writing. Not shared between threads."""

    def __init__(self, directory: LogDirectory, config: LogConfig) -> None:
        self.directory = directory
        self.config = config
        self.sealed: list[SealedSegment] = []
        self.epochs = EpochCache()
        self.log_start_offset = 0
        self.recovery_point = 0
        self.snapshots: tuple[SnapshotId, ...] = ()
        self._is_epoch_reverted = False
        self._active: ActiveSegment | None = None

    @property
    def active(self) -> ActiveSegment:
        """The segment that is written. There is none while the log is closed or read-only."""
        assert self._active is not None, "the log is open for writing"
        return self._active

    @property
    def first_base_offset(self) -> int:
        """The base offset of the oldest segment."""
        return self.sealed[0].base_offset if self.sealed else self.active.base_offset

    # --- opening and closing ----------------------------------------------------------------------

    def create_first_segment(self, base_offset: int) -> None:
        """Begin an empty log. Names are not durable yet."""
        self._active = self._created(base_offset)

    def install(self, recovered: RecoveredLog) -> None:
        """Go on from what recovery found."""
        self.close()
        self.epochs = recovered.epochs
        self._is_epoch_reverted = False  # recovery has mended the checkpoint
        self.log_start_offset = recovered.log_start_offset
        self.recovery_point = recovered.recovery_point
        self.list_snapshots()
        is_read_only = recovered.report.read_only is not None
        self.sealed = [
            SealedSegment(one.base_offset, one.end_offset, one.byte_count, one.max_timestamp_ms)
            for one in (recovered.segments if is_read_only else recovered.segments[:-1])
        ]
        if is_read_only:
            return
        if not recovered.segments:
            self.directory.remove_clean_shutdown()
            self._active = self._created(recovered.end_offset)
            self.directory.sync()
            return
        last = recovered.segments[-1]
        self._active = ActiveSegment.open(
            self.directory.storage,
            self.directory.path,
            last.base_offset,
            last.byte_count,
            self.config,
        )

    def close(self) -> None:
        """Give the active segment's files back."""
        if self._active is not None:
            self._active.close()
            self._active = None

    def list_snapshots(self) -> None:
        """See which snapshots there are now; the bootstrap's is none."""
        self.snapshots = self.directory.listing().snapshots

    # --- going on ---------------------------------------------------------------------------------

    def begin_epoch(self, epoch: int, start_offset: int) -> None:
        """Note where an epoch begins; durable on return."""
        epochs = self.epochs.assign(epoch, start_offset)
        if epochs != self.epochs or self._is_epoch_reverted:
            self.directory.write_epochs(epochs)
            self.epochs = epochs
            self._is_epoch_reverted = False

    def revert_epoch(self, epochs: EpochCache) -> None:
        """An epoch was begun and its first batch found no room: ``epochs`` are those before it.

        The checkpoint says more until the next batch, whatever its epoch, or the next opening.
        """
        self._is_epoch_reverted |= epochs != self.epochs
        self.epochs = epochs

    def is_new_epoch(self, epoch: int) -> bool:
        """Whether ``begin_epoch`` comes before a batch of this epoch."""
        return self._is_epoch_reverted or epoch > (self.epochs.latest_epoch or 0)

    def roll(self, end_offset: int, producer_state: ProducerStateManager) -> None:
        """Begin a segment at ``end_offset``; the active one has been sealed."""
        old = self.active
        self.directory.write_producer_snapshot(producer_state)
        new = self._created(end_offset)
        try:
            self.directory.sync()
            self.write_recovery_point(end_offset)
        except BaseException:
            new.close()
            raise
        self.sealed.append(
            SealedSegment(old.base_offset, end_offset, old.byte_count, old.max_timestamp_ms)
        )
        self._active = new
        old.close()

    def write_recovery_point(self, offset: int) -> None:
        """Say that everything below ``offset`` is synced. Durable on return."""
        if offset != self.recovery_point:
            self.directory.write_recovery_point(offset)
            self.recovery_point = offset

    def delete_stray_producer_snapshots(self, end_offset: int) -> None:
        """Delete producer snapshots that no segment begins with, but that of ``end_offset``."""
        kept = {segment.base_offset for segment in self.sealed}
        kept |= {self.active.base_offset, end_offset}
        self._unlink_producer_snapshots(lambda offset: offset not in kept)

    def _created(self, base_offset: int) -> ActiveSegment:
        return ActiveSegment.create(
            self.directory.storage, self.directory.path, base_offset, self.config
        )

    # --- forgetting the beginning -----------------------------------------------------------------

    def advance_start(self, offset: int) -> None:
        """Begin the log at ``offset``, which a snapshot or retention allows. Durable on return.

        Segments wholly below go. The active one stays, whatever is in it.
        """
        if offset > self.log_start_offset:
            self.directory.write_log_start(offset)
            self.log_start_offset = offset
        deleted = self._drop_before(offset)
        self.directory.write_epochs(self.epochs)
        for segment in deleted:
            self._unlink_segment(segment.base_offset)
        first = self.first_base_offset
        self._unlink_producer_snapshots(lambda at: at < first)
        self.directory.sync()

    def _drop_before(self, offset: int) -> list[SealedSegment]:
        """Forget the segments that end at or below an offset, and their epochs."""
        deleted = [segment for segment in self.sealed if segment.end_offset <= offset]
        self.sealed = self.sealed[len(deleted) :]
        self.epochs = self.epochs.without_before(self.first_base_offset)
        return deleted

    def delete_snapshots_before(self, snapshot_id: SnapshotId) -> None:
        """Delete the snapshots that are older than this one. Durable on return."""
        self.list_snapshots()
        names = [checkpoint_name(one) for one in self.snapshots if one < snapshot_id]
        if self.directory.unlink(names):
            self.directory.sync()
        self.snapshots = tuple(one for one in self.snapshots if one >= snapshot_id)

    # --- forgetting the end -----------------------------------------------------------------------

    def truncate_to(self, offset: int) -> None:
        """Cut off every batch that does not end below ``offset``; durable on return.

        What is cut is saved aside first, if the disk has room for it: it was never committed, but
        it may be all that is left of an append without an answer.
        The files are closed, and to be recovered anew. A crash in the middle may leave the end as
        it was: then it is cut again.
        """
        segments = [(one.base_offset, one.byte_count) for one in self.sealed]
        segments.append((self.active.base_offset, self.active.byte_count))
        self.close()
        kept = [one for one in segments if one[0] < offset] or segments[:1]
        base_offset, byte_count = kept[-1]
        storage, path = self.directory.storage, self.directory.path
        position, end_offset, _ = floor_boundary(storage, path, base_offset, byte_count, offset)
        if self.recovery_point > end_offset:
            self.write_recovery_point(end_offset)
        deleted = [base for base, _ in segments[len(kept) :]]
        first_backup = next_backup_ordinal(storage.list_names(self.directory.path))
        with contextlib.suppress(DiskFullError):
            back_up(storage, self.directory.file(offset_name(base_offset, LOG_SUFFIX)), position)
            for base in deleted:
                back_up(storage, self.directory.file(offset_name(base, LOG_SUFFIX)), 0)
        delete_old_backups(storage, self.directory.path, before=first_backup)
        self._unlink_segments(deleted)
        self._unlink_producer_snapshots(lambda at: at > end_offset)
        self.directory.sync()
        log_path = self.directory.file(offset_name(base_offset, LOG_SUFFIX))
        with storage.open_for_writing(log_path) as file:
            file.truncate(position)
            file.sync()
        epochs = self.epochs.without_from(end_offset)
        if epochs != self.epochs:
            self.directory.write_epochs(epochs)
            self.epochs = epochs

    def truncate_fully_and_start_at(
        self, snapshot_id: SnapshotId, *, is_damaged: bool = False
    ) -> tuple[str, ...]:
        """Give up every record, and begin behind a snapshot that is further; durable on return.

        Segments of a damaged log are kept under other names. Returns older copies that were deleted
        to make room for them.

        The files are closed, and to be recovered anew. A crash in the middle leaves a log that is
        still behind the snapshot, or has nothing: then it is begun anew again.
        """
        self.close()
        if self.recovery_point > snapshot_id.end_offset:
            self.write_recovery_point(snapshot_id.end_offset)  # what is given up is not missed
        listing = self.directory.listing()
        deleted: tuple[str, ...] = ()
        if is_damaged:
            deleted = self._rename_aside(listing.segments)
        self._unlink_segments(listing.segments)
        self._unlink_producer_snapshots(lambda at: at != snapshot_id.end_offset)
        self.directory.sync()
        self.epochs = EpochCache.of([(snapshot_id.epoch, snapshot_id.end_offset)])
        self.directory.write_epochs(self.epochs)
        self.directory.write_log_start(snapshot_id.end_offset)
        self.log_start_offset = snapshot_id.end_offset
        self.write_recovery_point(snapshot_id.end_offset)
        return deleted

    # --- looking back -----------------------------------------------------------------------------

    def is_boundary(self, offset: int, end_offset: int) -> bool:
        """Whether a batch begins at ``offset``, or the log ends there."""
        if offset == end_offset:
            return True
        return self._segment_of(offset) is not None and self.boundary_at(offset) == offset

    def boundary_at(self, offset: int) -> int:
        """The base offset of the batch that holds ``offset``, which lies in the log."""
        found = self._segment_of(offset)
        assert found is not None, "it lies in the log"
        base_offset, byte_count = found
        _, boundary, _ = floor_boundary(
            self.directory.storage, self.directory.path, base_offset, byte_count, offset
        )
        return boundary

    def batches(self, start_offset: int, end_offset: int) -> Iterator[RecordBatch]:
        """The batches in [start_offset, end_offset), both batch boundaries, each CRC checked."""
        storage, path = self.directory.storage, self.directory.path
        offset = start_offset
        while offset < end_offset and (found := self._segment_of(offset)) is not None:
            base_offset, byte_count = found
            position, boundary, _ = floor_boundary(storage, path, base_offset, byte_count, offset)
            with storage.open_file(
                self.directory.file(offset_name(base_offset, LOG_SUFFIX))
            ) as log:
                for batch in read_batches(log, position, byte_count, boundary, self.epochs):
                    if batch.base_offset >= end_offset:
                        return
                    offset = batch.next_offset
                    yield batch

    def read_bytes(self, offset: int, byte_count_max: int) -> bytes:
        """The log's bytes from a batch boundary on: one whole batch at least, and no more than fits
        of what follows it in its segment. Nothing at the end."""
        found = self._segment_of(offset)
        if found is None:
            return b""
        base_offset, byte_count = found
        storage, path = self.directory.storage, self.directory.path
        position, boundary, _ = floor_boundary(storage, path, base_offset, byte_count, offset)
        if boundary != offset or position >= byte_count:
            return b""
        with storage.open_file(self.directory.file(offset_name(base_offset, LOG_SUFFIX))) as log:
            first = header_at(log, position, byte_count)
            wanted = min(max(byte_count_max, first.byte_count), byte_count - position)
            data = log.read_at(position, wanted)
            return contiguous_bytes(data, offset, self.epochs, log.path, position)

    def producer_state_at(self, end_offset: int) -> ProducerStateManager:
        """What the log remembered at a batch boundary: a producer snapshot and what follows it."""
        producer_state = ProducerStateManager(
            self.directory.path,
            end_offset=self.first_base_offset,
            is_whole=self.first_base_offset == 0,
        )
        for offset in reversed(self.directory.listing().producer_snapshots):
            if self.first_base_offset <= offset <= end_offset:
                found = self._producer_snapshot(offset)
                if found is not None:
                    producer_state = found
                    break
        for batch in self.batches(producer_state.end_offset, end_offset):
            producer_state.apply(batch_metadata(batch, self.config.values))
        return producer_state

    def retention_segments(self) -> list[RetentionSegment]:
        """The sealed segments as retention looks at them."""
        self.sealed = [self._with_time(segment) for segment in self.sealed]
        return [
            RetentionSegment(
                one.end_offset,
                one.byte_count,
                NO_TIMESTAMP_MS if one.max_timestamp_ms is None else one.max_timestamp_ms,
            )
            for one in self.sealed
        ]

    def _with_time(self, segment: SealedSegment) -> SealedSegment:
        if segment.max_timestamp_ms is not None:
            return segment
        max_ms = largest_timestamp_ms(
            self.directory.storage, self.directory.path, segment.base_offset, segment.byte_count
        )
        return SealedSegment(segment.base_offset, segment.end_offset, segment.byte_count, max_ms)

    def _segment_of(self, offset: int) -> tuple[int, int] | None:
        """Base offset and size of the segment that holds ``offset``."""
        active = self._active  # None in a log that can only be read
        if active is not None and offset >= active.base_offset:
            return active.base_offset, active.byte_count
        for segment in reversed(self.sealed):
            if offset >= segment.base_offset:
                return segment.base_offset, segment.byte_count
        return None

    def _producer_snapshot(self, offset: int) -> ProducerStateManager | None:
        path = self.directory.file(offset_name(offset, PRODUCER_SNAPSHOT_SUFFIX))
        try:
            with self.directory.storage.open_file(path) as file:
                return ProducerStateManager.decode_snapshot(
                    file.read_at(0, file.byte_count()), path, offset
                )
        except (LogNotFoundError, CorruptFileError):
            return None

    # --- deleting ---------------------------------------------------------------------------------

    def _rename_aside(self, bases: Sequence[int]) -> tuple[str, ...]:
        """Give segments another name, those at the end first; older copies that were deleted."""
        storage = self.directory.storage
        first = next_backup_ordinal(storage.list_names(self.directory.path))
        for ordinal, base in enumerate(reversed(bases), first):
            path = self.directory.file(offset_name(base, LOG_SUFFIX))
            storage.rename(path, f"{path}{DAMAGED_SUFFIX}-{ordinal}")
            self.directory.sync()
        return delete_old_backups(storage, self.directory.path, before=first)

    def _unlink_segments(self, bases: Sequence[int]) -> None:
        """Delete segments at the log's end, given in their order."""
        for base in reversed(bases):
            self.directory.unlink([offset_name(base, LOG_SUFFIX)])
            self.directory.sync()  # one by one: a crash must leave no gap
        for base in bases:
            self._unlink_segment(base)

    def _unlink_segment(self, base_offset: int) -> None:
        self.directory.unlink(offset_name(base_offset, suffix) for suffix in _SEGMENT_SUFFIXES)

    def _unlink_producer_snapshots(self, is_deleted: Callable[[int], bool]) -> None:
        offsets = filter(is_deleted, self.directory.listing().producer_snapshots)
        self.directory.unlink(offset_name(at, PRODUCER_SNAPSHOT_SUFFIX) for at in offsets)
