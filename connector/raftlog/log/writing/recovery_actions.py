"""Make a log's directory what its scan says that it is: cut, rebuild, tidy up, and sync.

Rules of this file:

1. Whatever is done may be cut short anywhere and done again: it ends in the same files. Nothing of
   the log is removed before its copy is durable.
2. What is kept is durable when this returns. After a boot, what can be read came from the disk. In
   the boot of a writer that died a failed sync may have left pages that read well and will never be
   written, or a cut that was: so unless it said how far it was synced, the last segment is written
   once more, and cut once more where it ends.
3. Where nothing is wrong and a writer of this boot said how far it is synced, nothing is touched:
   that writer, or another one, may have the log open. But names are synced in any case, first of
   all: one that was killed may have renamed and deleted in memory only, and who builds on that
   must not have it taken back by a power loss.
4. The recovery point is raised last.
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
_UNPUBLISHED: Final = "a writer died before it had synced this: nobody was told of it"
_OVERLAPPING: Final = "the segment before it holds these offsets, and nobody was told of this one"
_UNFINISHED_SUFFIXES: Final = (TEMPORARY_SUFFIX, ".deleted", ".cleaned", ".swap")
_CHECKED_NAMES: Final = (
    EPOCH_CHECKPOINT_NAME,
    LOG_START_CHECKPOINT_NAME,
    PARTITION_METADATA_NAME,
    RAFTLOG_PROPERTIES_NAME,
    RECOVERY_POINT_CHECKPOINT_NAME,
)


class RecoveryActions:
    """Carries out what a scan of one directory asks for.

    ``truncated`` and ``rebuilt`` say what was done.
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
        self._is_doubtful = not self._is_this_boot and not checkpoints.is_after_boot

    def apply(self, loaded: LoadedLog) -> None:
        """Do it all. Raises ``DiskFullError`` and ``DiskFailedError``: then it must be done again,
        by a process that reads everything anew."""
        self._directory.sync()
        first_backup = next_backup_ordinal(self._storage.list_names(self._directory.path))
        if not self._is_this_boot:
            self._delete_unfinished()
        self._delete_segments(loaded.unpublished, _UNPUBLISHED)
        self._delete_segments(loaded.overlapping, _OVERLAPPING)
        for segment in loaded.scanned:
            self._cut(segment)
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

    # --- the log ----------------------------------------------------------------------------------

    def _cut(self, segment: ScannedSegment) -> None:
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
        """Take away segments in which nobody was promised anything, the last one first.

        Even the name of one may be lost: a directory's sync may have failed when it was made.
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
        """Sync what stands, then say so."""
        for segment in loaded.scanned:
            with self._storage.open_for_writing(segment.end.path) as file:
                if segment is loaded.scanned[-1] and self._is_doubtful:
                    for position in range(0, segment.metadata.byte_count, _CHUNK_BYTES):
                        wanted = min(_CHUNK_BYTES, segment.metadata.byte_count - position)
                        file.write_at(position, file.read_at(position, wanted))
                    file.truncate(segment.metadata.byte_count)
                file.sync()
        self._directory.sync()
        if self._checkpoints.recovery_point != loaded.end_offset:
            self._directory.write_recovery_point(loaded.end_offset)

    # --- beside the log ---------------------------------------------------------------------------

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
        """Make an index file hold this, in place; False if it does already."""
        path = self._directory.file(name)
        exists = self._directory.has(name)
        if not exists and not data and not is_needed:
            return False
        opened = self._storage.open_for_writing if exists else self._storage.create_file
        with opened(path) as file:
            if exists and file.read_at(0, file.byte_count()) == data:
                if not self._is_this_boot:
                    file.sync()  # an earlier recovery may have written it, and died before this
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

    # --- what is left over ------------------------------------------------------------------------

    def _delete_unfinished(self) -> None:
        """Files that were never in force under their own names."""
        names = self._storage.list_names(self._directory.path)
        self._directory.unlink(name for name in names if name.endswith(_UNFINISHED_SUFFIXES))
        delete_unfinished_snapshots(self._directory)

    def _delete_strays(self, loaded: LoadedLog) -> None:
        """Whole segments below the log's start, indexes of no segment, and producer snapshots of
        what is no more. Gone for good before anything new may get their names."""
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
