"""Bring a log's files into the state that ``LogLoader`` found: truncate, rebuild, delete, sync.

The order of the durable steps:

    1. sync the directory: a killed writer may have renamed and deleted files without a sync,
       and nothing may be built on names that a power loss could take back
    2. delete unfinished files (.tmp, .part, ...); not while a writer of this boot may live
    3. back up and delete unpublished and overlapping segments, the last one first
    4. back up and truncate what follows the valid batches; write and sync the indexes
    5. delete files of no segment, sync the directory
    6. write ``checksums``, ``leader-epoch-checkpoint``, ``log-start-offset-checkpoint``
    7. sync the segments and the directory
    8. write the recovery point
    9. delete old backups

Invariants:

1. Every step may be interrupted and repeated, with the same result. No byte of the log is deleted
   before its backup is durable.
2. What is kept is durable on return. After a boot, readable bytes came from the disk. In the same
   boot, a failed fsync may have left pages that are readable but will never be written, or a
   truncation that will not be: so unless the synced end was published, the last segment is
   rewritten and truncated again before it is synced.
3. If nothing is wrong, and a writer of this boot published the synced end, only the directory is
   synced: a live writer may have the log open.
"""

from __future__ import annotations

from typing import Final

from raftlog.limits import MIB
from raftlog.log.epoch_cache import EpochCache
from raftlog.log.names import (
    EPOCH_CHECKPOINT_NAME,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    PARTITION_METADATA_NAME,
    PRODUCER_SNAPSHOT_SUFFIX,
    RAFTLOG_PROPERTIES_NAME,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    offset_name,
    parse_offset_name,
)
from raftlog.log.offset_checkpoint import LOG_START_CHECKPOINT_NAME, RECOVERY_POINT_CHECKPOINT_NAME
from raftlog.storage.protocol import WritableStorage

from .atomic_files import CHECKSUMS_NAME, TEMPORARY_SUFFIX, rebuild_checksums
from .checkpoint_files import CheckpointFiles
from .log_directory import LogDirectory
from .log_loader import LoadedLog, ScannedSegment
from .raw_snapshot_writer import delete_unfinished_snapshots
from .recovered import ScanEnd, TruncatedTail
from .truncate_with_backup import (
    back_up,
    delete_old_backups,
    next_backup_ordinal,
    truncate_with_backup,
)

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
        end = segment.end
        if not end.byte_count:
            return
        reason = end.reason
        if end.end is ScanEnd.LIMIT:
            reason = _UNPUBLISHED
        self.truncated.append(
            TruncatedTail(
                path=end.path,
                position=end.scan_position.position,
                byte_count=end.byte_count,
                first_offset=end.scan_position.next_offset,
                reason=reason,
                saved_as=truncate_with_backup(self._storage, end.path, end.scan_position.position),
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
            with self._storage.open_for_writing(segment.end.path) as file:
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
            if self._write_index(name, data, is_needed=suffix != TXN_INDEX_SUFFIX):
                self.rebuilt.append(self._directory.file(name))

    def _write_index(self, name: str, data: bytes, *, is_needed: bool) -> bool:
        """Write an index file in place; return False if it has this content already."""
        path = self._directory.file(name)
        exists = self._directory.has(name)
        if not exists and not data and not is_needed:
            return False
        opened = self._storage.open_for_writing if exists else self._storage.create_file
        with opened(path) as file:
            if exists and file.read_at(0, file.byte_count()) == data:
                if not self._is_this_boot:
                    file.sync()  # an earlier recovery may have died between write and sync
                return False
            file.truncate(len(data))
            if data:
                file.write_at(0, data)
            file.sync()
        return True

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
