"""``raftlog repair --cut-at``, which truncates a damaged log.

A repair loses acknowledged records and therefore runs only on an operator's request. All truncated
bytes are backed up, and the lost offsets are reported. The order of the durable steps:

    1. delete ``.kafka_cleanshutdown``, ``published`` and ``synced``; rename snapshots after the
       new end; lower the recovery point and the cleaner's offset. Now nothing refers to the old end
    2. rename later segments, the last one first; back up and truncate the segment of the offset
    3. delete later producer snapshots and epochs
    4. recover

If the repair is interrupted, repeat it. From the first step on, the next opening may truncate
damage at the end of the log as a torn tail. The log is truncated before the batch that contains the
offset, which must be below any damage.
"""

from __future__ import annotations

from dataclasses import dataclass

from raftlog.errors import LogReadOnlyError, OptionError
from raftlog.log.format.directory import (
    CLEAN_SHUTDOWN_NAME,
    INDEX_SUFFIXES,
    LOG_SUFFIX,
    PRODUCER_SNAPSHOT_SUFFIX,
    PUBLISHED_NAME,
    RAFTLOG_PROPERTIES_NAME,
    SYNCED_NAME,
    checkpoint_name,
    offset_name,
)
from raftlog.log.format.epoch_cache import EpochCache
from raftlog.log.writing.atomic_files import (
    backup_name,
    delete_old_backups,
    next_backup_ordinal,
    truncate_with_backup,
)
from raftlog.log.writing.properties import LogConfig
from raftlog.log.writing.segments import LogDirectory
from raftlog.storage.protocol import WritableStorage

from .recover import CheckpointFiles, RecoveredLog, TruncatedTail, read_checkpoint_files, recover
from .recover_segment import ScanPosition, ScanRules, SegmentScan


@dataclass(frozen=True, slots=True, kw_only=True)
class Repaired:
    """Result of a repair. ``recovered`` is still read-only if there is more damage below.

    The lost offsets are ``first_lost_offset`` to ``end_offset_before`` (exclusive, as far as the
    log's length is known). ``set_aside``: paths of the renamed snapshots, which ended after the
    new end. ``deleted_backups``: older backups that were deleted to make room.
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
        """Delete, rename or lower everything that refers to a later end."""
        directory = self._directory
        directory.unlink([CLEAN_SHUTDOWN_NAME, PUBLISHED_NAME, SYNCED_NAME])
        for snapshot_id in self._checkpoints.listing.snapshots:
            if snapshot_id.end_offset > end_offset:
                self.set_aside.append(self._rename(checkpoint_name(snapshot_id)))
        directory.sync()
        if self._checkpoints.recovery_point > end_offset:
            directory.write_recovery_point(end_offset)
        cleaner_offset = directory.read_cleaner_offset()
        if cleaner_offset is not None and cleaner_offset > end_offset:
            directory.write_cleaner_offset(end_offset)

    def truncate_segments(self, base: int, scan_position: ScanPosition) -> None:
        """Rename later segments, the last one first, and truncate the segment of the new end."""
        for later in reversed(self._checkpoints.listing.segments):
            if later > base:
                self._rename_segment(later)
        directory = self._directory
        path = directory.file(offset_name(base, LOG_SUFFIX))
        with directory.storage.open_file(path) as file:
            byte_count = file.byte_count() - scan_position.position
        if byte_count > 0:
            saved_as = truncate_with_backup(directory.storage, path, scan_position.position)
            self._add_truncated(
                path,
                position=scan_position.position,
                byte_count=byte_count,
                offset=scan_position.next_offset,
                saved_as=saved_as,
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

    def _rename_segment(self, base: int) -> None:
        directory = self._directory
        name = offset_name(base, LOG_SUFFIX)
        with directory.storage.open_file(directory.file(name)) as file:
            byte_count = file.byte_count()
        saved_as = self._rename(name)
        directory.unlink(offset_name(base, suffix) for suffix in INDEX_SUFFIXES)
        directory.sync()
        self._add_truncated(
            directory.file(name), position=0, byte_count=byte_count, offset=base, saved_as=saved_as
        )

    def _rename(self, name: str) -> str:
        """Rename a file as a backup with its own number; return the path."""
        directory = self._directory
        names = directory.storage.list_names(directory.path)
        path = directory.file(backup_name(name, 0, names))
        directory.storage.rename(directory.file(name), path)
        return path

    def _add_truncated(
        self, path: str, *, position: int, byte_count: int, offset: int, saved_as: str | None
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
