"""What recovery does after a scan, and ``raftlog repair --cut-at``, which truncates a damaged log.

A repair runs only on an operator's request, because acknowledged records are lost. All truncated
bytes are backed up, and the lost offsets are reported. The order of the durable steps:

    1. delete ``.kafka_cleanshutdown``, ``published`` and ``synced``; rename snapshots after the
       new end; lower the recovery point: nothing claims the old end any more
    2. rename later segments, the last one first; back up and truncate the segment of the offset
    3. delete later producer snapshots and epochs
    4. recover

An interrupted repair leaves a log that is still damaged, and is repeated. The log is truncated
before the batch that contains the offset, which must be below any damage.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from raftlog.errors import LogNotFoundError, LogReadOnlyError, OptionError
from raftlog.limits import MIB
from raftlog.log.format.directory import (
    CHECKSUMS_NAME,
    CLEAN_SHUTDOWN_NAME,
    EPOCH_CHECKPOINT_NAME,
    INDEX_SUFFIX,
    LOG_START_CHECKPOINT_NAME,
    LOG_SUFFIX,
    PARTITION_METADATA_NAME,
    PRODUCER_SNAPSHOT_SUFFIX,
    PUBLISHED_NAME,
    RAFTLOG_PROPERTIES_NAME,
    RECOVERY_POINT_CHECKPOINT_NAME,
    SYNCED_NAME,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    checkpoint_name,
    offset_name,
    parse_offset_name,
)
from raftlog.log.format.epoch_cache import EpochCache
from raftlog.log.recovery.recover import recover
from raftlog.log.writing.log_directory import TEMPORARY_SUFFIX, LogDirectory, rebuild_checksums
from raftlog.log.writing.properties import LogConfig
from raftlog.log.writing.snapshots import delete_unfinished_snapshots
from raftlog.log.writing.truncate_with_backup import (
    back_up,
    backup_name,
    delete_old_backups,
    next_backup_ordinal,
    truncate_with_backup,
)
from raftlog.storage.protocol import WritableStorage

from .checkpoints import CheckpointFiles, read_checkpoint_files
from .load_log import LoadedLog, ScannedSegment
from .recover_segment import IndexCheck, IndexRebuild, ScanPosition, ScanRules, SegmentScan
from .report import RecoveredLog, ScanEnd, TruncatedTail

# --- Actions after a scan: truncate, rebuild, delete, sync, as ``LogLoader`` found ----------------
# The order of the durable steps:
#
#     1. sync the directory: a killed writer may have renamed and deleted files without a sync,
#        and nothing may be built on names that a power loss could take back
#     2. delete unfinished files (.tmp, .part, ...); not while a writer of this boot may live
#     3. back up and delete unpublished and overlapping segments, the last one first
#     4. back up and truncate what follows the valid batches; write and sync the indexes
#     5. delete files of no segment, sync the directory
#     6. write ``checksums``, ``leader-epoch-checkpoint``, ``log-start-offset-checkpoint``
#     7. sync the segments and the directory
#     8. write the recovery point
#     9. delete old backups
#
# Invariants:
#
# 1. Every step may be interrupted and repeated, with the same result. No byte of the log is deleted
#    before its backup is durable.
# 2. What is kept is durable on return. After a boot, readable bytes came from the disk. In the same
#    boot, a failed fsync may have left pages that are readable but will never be written, or a
#    truncation that will not be: so unless the synced end was published, the last segment is
#    rewritten and truncated again before it is synced.
# 3. If nothing is wrong, and a writer of this boot published the synced end, only the directory is
#    synced: a live writer may have the log open.

_CHUNK_BYTES: Final = 1 * MIB
_INDEX_SUFFIXES: Final = (INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX)
_UNPUBLISHED: Final = "a writer died before it synced these batches: they were not acknowledged"
_OVERLAPPING: Final = "its offsets are in the segment before it, and were not acknowledged here"
_UNFINISHED_SUFFIXES: Final = (TEMPORARY_SUFFIX, ".deleted", ".cleaned", ".swap")
_CHECKED_NAMES: Final = (
    EPOCH_CHECKPOINT_NAME,
    LOG_START_CHECKPOINT_NAME,
    PARTITION_METADATA_NAME,
    RAFTLOG_PROPERTIES_NAME,
    RECOVERY_POINT_CHECKPOINT_NAME,
)


class RecoveryActions:
    """The changes that the scan of one directory requires.

    ``truncated``, ``rebuilt`` and ``deleted_backups`` are what was done.
    """

    def __init__(
        self, storage: WritableStorage, directory: str, checkpoints: CheckpointFiles
    ) -> None:
        self.truncated: list[TruncatedTail] = []
        self.deleted_backups: tuple[str, ...] = ()
        self.rebuilt: list[str] = []
        self._storage = storage
        self._directory = LogDirectory(storage, directory)
        self._checkpoints = checkpoints
        self._is_this_boot = checkpoints.published is not None
        self._is_sync_unknown = not self._is_this_boot and not checkpoints.is_after_boot

    def apply(self, loaded: LoadedLog) -> None:
        """Apply all changes.

        Raises ``DiskFullError`` and ``DiskFailedError``: then the log must be loaded and recovered
        again.
        """
        self._directory.sync()
        first_backup = next_backup_ordinal(self._storage.list_names(self._directory.path))
        if not self._is_this_boot:
            self._delete_unfinished()
        self._delete_segments(loaded.unpublished, _UNPUBLISHED)
        self._delete_segments(loaded.overlapping, _OVERLAPPING)
        for segment in loaded.scanned:
            self._truncate(segment)
            self._recover_indexes(segment)
        self._delete_strays(loaded)
        self._recover_checksums()
        self._recover_epochs(loaded.epochs)
        if self._checkpoints.log_start_offset != loaded.log_start_offset:
            self._directory.write_log_start(loaded.log_start_offset)
        if not self._is_this_boot or self.truncated:
            self._make_durable(loaded)
        if self.truncated:
            self.deleted_backups = delete_old_backups(
                self._storage, self._directory.path, before=first_backup
            )

    # --- segments ---------------------------------------------------------------------------------

    def _truncate(self, segment: ScannedSegment) -> None:
        stop, end_position = segment.stop, segment.metadata.byte_count
        if not stop.byte_count:
            return
        self.truncated.append(
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

        Even their names may be lost: the sync of the directory may have failed at their creation.
        """
        for base in reversed(bases):
            name = offset_name(base, LOG_SUFFIX)
            path = self._directory.file(name)
            with self._storage.open_file(path) as file:
                byte_count = file.byte_count()
            saved_as = back_up(self._storage, path, 0)
            self._directory.unlink([name])
            self._directory.sync()
            if byte_count:
                self.truncated.append(
                    TruncatedTail(
                        path=path,
                        position=0,
                        byte_count=byte_count,
                        first_offset=base,
                        reason=reason,
                        saved_as=saved_as,
                    )
                )

    def _make_durable(self, loaded: LoadedLog) -> None:
        """Sync the segments, then raise the recovery point."""
        for segment in loaded.scanned:
            with self._storage.open_for_writing(segment.stop.path) as file:
                if segment is loaded.scanned[-1] and self._is_sync_unknown:
                    for position in range(0, segment.metadata.byte_count, _CHUNK_BYTES):
                        wanted = min(_CHUNK_BYTES, segment.metadata.byte_count - position)
                        file.write_at(position, file.read_at(position, wanted))
                    file.truncate(segment.metadata.byte_count)
                file.sync()
        self._directory.sync()
        if self._checkpoints.recovery_point != loaded.end_offset:
            self._directory.write_recovery_point(loaded.end_offset)

    # --- indexes and checkpoints ------------------------------------------------------------------

    def _recover_indexes(self, segment: ScannedSegment) -> None:
        indexes = segment.indexes
        contents = {TXN_INDEX_SUFFIX: indexes.txn_index}
        if not segment.has_valid_indexes:
            contents[INDEX_SUFFIX] = indexes.offset_index
            contents[TIME_INDEX_SUFFIX] = indexes.time_index
        for suffix, data in contents.items():
            name = offset_name(segment.metadata.base_offset, suffix)
            is_optional = suffix == TXN_INDEX_SUFFIX and not data
            if is_optional and not self._directory.has(name):
                continue
            path = self._directory.file(name)
            if _write_index(self._storage, path, data, sync_equal=not self._is_this_boot):
                self.rebuilt.append(path)

    def _recover_checksums(self) -> None:
        if CHECKSUMS_NAME in self._checkpoints.damaged:
            valid = [name for name in _CHECKED_NAMES if name not in self._checkpoints.damaged]
            rebuild_checksums(self._storage, self._directory.path, valid)
            self.rebuilt.append(self._directory.file(CHECKSUMS_NAME))

    def _recover_epochs(self, epochs: EpochCache) -> None:
        if self._checkpoints.epochs == epochs:
            return
        if self._checkpoints.epochs is None:
            self.rebuilt.append(self._directory.file(EPOCH_CHECKPOINT_NAME))
        self._directory.write_epochs(epochs)

    # --- leftover files ---------------------------------------------------------------------------

    def _delete_unfinished(self) -> None:
        """Delete files that were not renamed to their final names."""
        names = self._storage.list_names(self._directory.path)
        self._directory.unlink(name for name in names if name.endswith(_UNFINISHED_SUFFIXES))
        delete_unfinished_snapshots(self._directory)

    def _delete_strays(self, loaded: LoadedLog) -> None:
        """Delete files of no segment: segments below the log start, indexes, producer snapshots.

        Durable on return, before a new segment can get one of their names.
        """
        bases = {segment.base_offset for segment in loaded.segments}
        strays = []
        for name in self._storage.list_names(self._directory.path):
            for suffix in (LOG_SUFFIX, *_INDEX_SUFFIXES):
                base = parse_offset_name(name, suffix)
                if base is not None and base not in bases:
                    strays.append(name)
            offset = parse_offset_name(name, PRODUCER_SNAPSHOT_SUFFIX)
            if offset is not None and offset > loaded.end_offset:
                strays.append(name)
        if self._directory.unlink(strays):
            self._directory.sync()


# --- Rebuild indexes ------------------------------------------------------------------------------


def rebuild_indexes(
    storage: WritableStorage, directory: str, base_offset: int, interval_bytes: int
) -> tuple[str, ...]:
    """Read a whole segment and rewrite its indexes if they are wrong; return the files' paths.

    Only those of a segment that is valid to its end. No writer may have the segment open.
    """
    names = [offset_name(base_offset, suffix) for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX)]
    paths = [storage.join(directory, name) for name in names]
    contents = [_content(storage, path) for path in paths]
    indexes = IndexRebuild(base_offset, interval_bytes=interval_bytes)
    check = IndexCheck(base_offset, *(content or b"" for content in contents))
    with storage.open_file(storage.join(directory, offset_name(base_offset, LOG_SUFFIX))) as log:
        scan = SegmentScan(log, ScanPosition(position=0, next_offset=base_offset), ScanRules())
        for chunk in scan:
            indexes.add_batches(chunk.batches)
            check.add_batches(chunk.batches)
    indexes.close()
    is_valid = None not in contents and check.is_valid_for(indexes)
    if scan.stop.kind is not ScanEnd.END or is_valid:
        return ()
    new = (indexes.offset_index, indexes.time_index)
    rebuilt = [
        path
        for path, data in zip(paths, new, strict=True)
        if _write_index(storage, path, data, sync_equal=False)
    ]
    storage.sync_directory(directory)
    return tuple(rebuilt)


def _content(storage: WritableStorage, path: str) -> bytes | None:
    try:
        with storage.open_file(path) as file:
            return file.read_at(0, file.byte_count())
    except LogNotFoundError:
        return None


def _write_index(storage: WritableStorage, path: str, data: bytes, *, sync_equal: bool) -> bool:
    """Write an index file in place and sync it; return False if it has this content already.

    ``sync_equal``: sync it then too, as an earlier recovery may have died between write and sync.
    """
    content = _content(storage, path)
    if content == data and not sync_equal:
        return False
    opened = storage.create_file if content is None else storage.open_for_writing
    with opened(path) as file:
        if content != data:
            file.truncate(len(data))
            if data:
                file.write_at(0, data)
        file.sync()
    return content != data


# --- Repair by an operator ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Repaired:
    """Result of a repair. ``recovered`` is still read-only if there is more damage below.

    The lost offsets are ``first_lost_offset`` to ``end_offset_before`` (exclusive, as far as the
    log's length is known). ``set_aside`` ended after the new end; ``deleted_backups``:
    older backups that were deleted to make room.
    """

    first_lost_offset: int
    end_offset_before: int
    truncated: tuple[TruncatedTail, ...]
    set_aside: tuple[str, ...]
    deleted_backups: tuple[str, ...]
    recovered: RecoveredLog


def truncate_log_at(
    storage: WritableStorage, directory: str, *, offset: int, config: LogConfig
) -> Repaired:
    """Truncate a raftlog log before the batch that contains ``offset``, and recover it.

    The caller holds the log's lock, and no other process writes. Raises ``OptionError`` for an
    offset outside the valid part of the log, ``LogReadOnlyError`` for a Kafka log, and what
    ``recover`` raises.
    """
    first_backup = next_backup_ordinal(storage.list_names(directory))
    checkpoints = read_checkpoint_files(storage, directory)
    if not checkpoints.is_raftlog:
        raise LogReadOnlyError(
            path=directory,
            reason=f"it has no {RAFTLOG_PROPERTIES_NAME}: it is a Kafka log, "
            "which raftlog does not write",
            remedy="start its Kafka node, which recovers it",
        )
    base, scan_position = _find_truncation(storage, directory, checkpoints, offset)
    repair = _Repair(LogDirectory(storage, directory), checkpoints)
    repair.delete_later_checkpoints(scan_position.next_offset)
    repair.truncate_segments(base, scan_position)
    repair.truncate_state(scan_position.next_offset)
    recovered = recover(storage, directory, config=config)
    deleted = delete_old_backups(storage, directory, before=first_backup)
    return Repaired(
        first_lost_offset=scan_position.next_offset,
        end_offset_before=max(repair.end_offset_before, scan_position.next_offset),
        truncated=(*repair.truncated, *recovered.report.truncated),
        set_aside=tuple(repair.set_aside),
        deleted_backups=(*recovered.report.deleted_backups, *deleted),
        recovered=recovered,
    )


def _find_truncation(
    storage: WritableStorage, directory: str, checkpoints: CheckpointFiles, offset: int
) -> tuple[int, ScanPosition]:
    """Return the base offset of the segment to truncate, and the position in it."""
    bases = [base for base in checkpoints.listing.segments if base <= offset]
    first = max(checkpoints.log_start_offset, min(checkpoints.listing.segments, default=0))
    if not bases or offset < first:
        raise OptionError(
            option="cut-at", reason=f"it must not be below the log start offset {first}"
        )
    base = bases[-1]
    with storage.open_file(storage.join(directory, offset_name(base, LOG_SUFFIX))) as file:
        start = ScanPosition(position=0, next_offset=base)
        scan = SegmentScan(file, start, ScanRules(epochs=checkpoints.epochs))
        for chunk in scan:
            batches = chunk.batches
            below = int((batches.last_offset < offset).sum())
            if below < len(batches):
                at = int(batches.position[below])
                return base, ScanPosition(position=at, next_offset=int(batches.base_offset[below]))
    if scan.position.next_offset < offset:
        raise OptionError(
            option="cut-at",
            reason=f"the log is valid only up to offset {scan.position.next_offset}: "
            f"{scan.stop.description}; choose this offset or a lower one",
        )
    return base, scan.position


class _Repair:
    """The steps of a repair, each one durable before the next."""

    def __init__(self, directory: LogDirectory, checkpoints: CheckpointFiles) -> None:
        self.truncated: list[TruncatedTail] = []
        self.set_aside: list[str] = []
        self._directory = directory
        self._checkpoints = checkpoints
        published = 0 if checkpoints.published is None else checkpoints.published.end_offset
        clean = 0 if checkpoints.clean is None else checkpoints.clean.end_offset
        self.end_offset_before = max(
            checkpoints.recovery_point,
            published,
            clean,
            max(checkpoints.listing.segments, default=0),
            max((one.end_offset for one in checkpoints.listing.snapshots), default=0),
        )

    def delete_later_checkpoints(self, end_offset: int) -> None:
        """Delete, rename or lower everything that claims a later end."""
        directory = self._directory
        directory.unlink([CLEAN_SHUTDOWN_NAME, PUBLISHED_NAME, SYNCED_NAME])
        names = set(directory.storage.list_names(directory.path))
        for snapshot_id in self._checkpoints.listing.snapshots:
            if snapshot_id.end_offset > end_offset:
                name = checkpoint_name(snapshot_id)
                path = directory.file(backup_name(name, 0, names))
                directory.storage.rename(directory.file(name), path)
                self.set_aside.append(path)
        directory.sync()
        if self._checkpoints.recovery_point > end_offset:
            directory.write_recovery_point(end_offset)

    def truncate_segments(self, base: int, scan_position: ScanPosition) -> None:
        """Rename later segments, the last one first, and truncate the segment of the new end."""
        for later in reversed(self._later(base)):
            self._rename_segment(later)
        directory = self._directory
        path = directory.file(offset_name(base, LOG_SUFFIX))
        with directory.storage.open_file(path) as file:
            byte_count = file.byte_count() - scan_position.position
        if byte_count > 0:
            saved_as = truncate_with_backup(directory.storage, path, scan_position.position)
            self._add_truncated(
                path, scan_position.position, byte_count, scan_position.next_offset, saved_as
            )

    def truncate_state(self, end_offset: int) -> None:
        """Delete producer snapshots and epochs after the new end."""
        directory = self._directory
        deleted = [at for at in self._checkpoints.listing.producer_snapshots if at > end_offset]
        directory.unlink(offset_name(at, PRODUCER_SNAPSHOT_SUFFIX) for at in deleted)
        directory.sync()
        epochs = (self._checkpoints.epochs or EpochCache()).without_from(end_offset)
        if epochs.entries and epochs != self._checkpoints.epochs:
            directory.write_epochs(epochs)

    def _later(self, base: int) -> tuple[int, ...]:
        return tuple(other for other in self._checkpoints.listing.segments if other > base)

    def _rename_segment(self, base: int) -> None:
        directory = self._directory
        name = offset_name(base, LOG_SUFFIX)
        with directory.storage.open_file(directory.file(name)) as file:
            byte_count = file.byte_count()
        names = set(directory.storage.list_names(directory.path))
        saved_as = directory.file(backup_name(name, 0, names))
        directory.storage.rename(directory.file(name), saved_as)
        directory.unlink(offset_name(base, suffix) for suffix in _INDEX_SUFFIXES)
        directory.sync()
        self._add_truncated(directory.file(name), 0, byte_count, base, saved_as)

    def _add_truncated(
        self, path: str, position: int, byte_count: int, offset: int, saved_as: str | None
    ) -> None:
        self.truncated.append(
            TruncatedTail(
                path=path,
                position=position,
                byte_count=byte_count,
                first_offset=offset,
                reason="truncated on request",
                saved_as=saved_as,
            )
        )
