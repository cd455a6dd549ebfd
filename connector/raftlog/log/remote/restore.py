"""Restore of a log's directory from a backup, in full or up to an earlier offset.

All files are written to ``<directory>.part`` and synced. The log there is read and verified; then
the directory is renamed durably. Thus the directory is either complete or absent.

A segment is byte for byte the log's. A log that is cut at an offset ends at a batch boundary, has
no snapshots and producer states of later offsets, and lower offsets in its checkpoints. A backup
does not contain the indexes of the last segment: they are built for a raftlog log, whereas Kafka
builds those of its own logs when it starts. ``quorum-state`` has the votes at the time of the
backup: see docs/backup-and-rescue.md.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from raftlog.errors import LogNotFoundError, OptionError
from raftlog.log.format.directory import (
    BOOTSTRAP_ID,
    COMPACTED_CHECKPOINT_NAME,
    INCOMPLETE_SUFFIX,
    INDEX_SUFFIX,
    LOG_START_CHECKPOINT_NAME,
    LOG_SUFFIX,
    META_PROPERTIES_NAME,
    RAFTLOG_PROPERTIES_NAME,
    offset_name,
    parse_checkpoint_name,
    parse_single_offset,
)
from raftlog.log.reading.directory_log import DirectoryLog
from raftlog.log.reading.files import LogFiles
from raftlog.log.reading.reads import SourceKind
from raftlog.log.recovery.recover_segment import rebuild_indexes
from raftlog.log.segment import iter_headers
from raftlog.log.writing.atomic_files import replace_checked, replace_file
from raftlog.log.writing.log_copy import check_log
from raftlog.log.writing.properties import parse_log_properties, without_remote_storage
from raftlog.storage.errors import BackupNotFoundError, CorruptRemoteObjectError
from raftlog.storage.objects import ObjectStore
from raftlog.storage.protocol import WritableStorage, split_new

from .inventory import (
    INVENTORY_SUFFIX,
    SMALL_NAMES,
    BackupInventory,
    InventoryFile,
    InventorySegment,
    fit_to_end,
    is_below,
)
from .manifest import RemoteLogManifest
from .objects import read_inventory, read_object
from .segment_metadata import BackupEntry, SegmentRange


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoredLog:
    """Result of a restore. Offsets are [log_start_offset, end_offset).

    The backup was finished at ``backup_time_ms`` and ends at ``backup_end_offset``.
    ``unfinished_time_ms`` is set if an upload is newer than all backups and not finished, because a
    later backup is running, was interrupted, or its manifest is damaged. It is the time when the
    last such upload was started.
    """

    log_start_offset: int
    end_offset: int
    byte_count: int
    backup_time_ms: int
    backup_end_offset: int
    unfinished_time_ms: int | None


def restore_log(
    store: ObjectStore,
    storage: WritableStorage,
    directory: str,
    *,
    to_offset: int | None = None,
) -> RestoredLog:
    """Write the directory of a log from its last backup. Durable on return.

    ``to_offset``: write only the batches that end below this offset, from the last backup that can
    be cut there. A log of raftlog cannot be cut below the end of its compaction, since it lacks
    records that only later ones supersede.

    Raises ``OptionError`` if ``directory`` or its ``.part`` exists, ``BackupNotFoundError``,
    ``RemoteObjectNotFoundError``, ``CorruptRemoteObjectError``, and for damage of the log what a
    reader raises. An error leaves only ``<directory>.part``.
    """
    part = directory + INCOMPLETE_SUFFIX
    split_new(storage, directory)  # raises if its parent does not exist
    with contextlib.suppress(LogNotFoundError):
        storage.is_directory(directory)
        raise OptionError(option="DIR", reason=f"{directory} exists: name a new directory")
    manifest = RemoteLogManifest(store)
    backup, inventory = _choose(store, manifest, to_offset)
    if not storage.make_directory(part):
        reason = f"{part} exists: another restore writes it, or was interrupted; then delete it"
        raise OptionError(option="DIR", reason=reason)
    restored = _Restore(store, manifest, backup, inventory, storage, part).run(to_offset)
    storage.sync_directory(part)
    storage.rename(part, directory)
    storage.sync_directory(storage.split(directory)[0])
    return restored


def _choose(
    store: ObjectStore, manifest: RemoteLogManifest, to_offset: int | None
) -> tuple[BackupEntry, BackupInventory]:
    """Return the last backup, or the last one that can be cut at ``to_offset``."""
    ends, compacted_offset = [], None
    for backup in reversed(manifest.backups):
        first_offset, end_offset = backup.metadata.first_offset, backup.metadata.last_offset + 1
        ends.append((first_offset, end_offset))
        if to_offset is None or first_offset < to_offset <= end_offset:
            inventory = read_inventory(store, backup)
            if to_offset is None:
                return backup, inventory
            if _can_end_at(inventory, to_offset):
                compacted_offset = _compacted_offset(store, backup, inventory)
                if compacted_offset <= to_offset:
                    return backup, inventory
    reason = "it has none that is complete"
    if compacted_offset is not None:
        reason = (
            f"the log was compacted up to offset {compacted_offset}, so records of the state at "
            f"offset {to_offset} may be missing; choose an offset from {compacted_offset} on"
        )
    elif ends:
        first, last = min(ends)[0], max(end for _, end in ends)
        reason = f"none has the records up to offset {to_offset}; they have {first} to {last}"
    raise BackupNotFoundError(location=store.location, reason=reason)


def _compacted_offset(store: ObjectStore, backup: BackupEntry, inventory: BackupInventory) -> int:
    """Return the end of the records that may supersede a removed record; 0 if none was removed."""
    for file in inventory.files:
        if file.name == COMPACTED_CHECKPOINT_NAME:
            data = b"".join(_read_file(store, backup, file))
            return parse_single_offset(data, file.name)
    return 0


def _read_file(store: ObjectStore, backup: BackupEntry, file: InventoryFile) -> Iterator[bytes]:
    """Yield a file beside the segments."""
    name = f"{backup.metadata.directory}/{file.stored_in}/{file.name}"
    return read_object(store, name, byte_count=file.byte_count, crc=file.crc32c)


def _can_end_at(inventory: BackupInventory, offset: int) -> bool:
    """Return whether a log has its records below ``offset``, or a snapshot of the deleted ones."""
    start_offset = inventory.log_start_offset
    if not start_offset < offset <= inventory.end_offset:
        return False
    snapshots = inventory.snapshots()
    return (
        not start_offset
        or not snapshots
        or any(start_offset <= one.end_offset <= offset for one in snapshots)
    )


class _Restore:
    """One restore into the directory ``part``."""

    def __init__(
        self,
        store: ObjectStore,
        manifest: RemoteLogManifest,
        backup: BackupEntry,
        inventory: BackupInventory,
        storage: WritableStorage,
        part: str,
    ) -> None:
        self._store = store
        self._manifest = manifest
        self._backup = backup
        self._inventory = inventory
        self._storage = storage
        self._part = part
        self._byte_count = 0

    def run(self, to_offset: int | None) -> RestoredLog:
        inventory = self._inventory
        end_offset = inventory.end_offset if to_offset is None else to_offset
        segments = [
            one
            for at, one in enumerate(inventory.segments)
            if not at or one.base_offset < end_offset or end_offset == inventory.end_offset
        ]
        ranges = [self._ranges(one) for one in segments]
        for segment, parts in zip(segments, ranges, strict=True):
            self._write_segment(segment, parts, end_offset)
        if end_offset < inventory.end_offset:
            end_offset = self._cut(segments[-1], end_offset) if segments else end_offset
            inventory = replace(inventory, end_offset=end_offset)
        kept = {one.base_offset for one in segments[:-1]}
        self._write_files(inventory, kept)
        self._build_indexes(segments)
        self._verify(inventory)
        return RestoredLog(
            log_start_offset=inventory.log_start_offset,
            end_offset=end_offset,
            byte_count=self._byte_count,
            backup_time_ms=self._backup.metadata.event_timestamp_ms,
            backup_end_offset=self._inventory.end_offset,
            unfinished_time_ms=self._unfinished_time_ms(),
        )

    def _unfinished_time_ms(self) -> int | None:
        finished_ms = max(one.metadata.event_timestamp_ms for one in self._manifest.backups)
        times_ms = [one.event_timestamp_ms for one in self._manifest.unfinished]
        return max((one for one in times_ms if one > finished_ms), default=None)

    # --- segments ---------------------------------------------------------------------------------

    def _ranges(self, segment: InventorySegment) -> list[SegmentRange]:
        """Return the ranges of a segment. Raises ``CorruptRemoteObjectError`` unless they fit."""
        found = []
        position, next_offset = 0, segment.base_offset
        for segment_id in segment.ranges:
            one = self._manifest.ranges.get(segment_id)
            if one is None:
                raise self._corrupt(f"range {segment_id} is not in the manifest, or not finished")
            metadata, backup = one.metadata, self._backup.metadata
            if (metadata.topic_partition, metadata.topic_id) != (
                backup.topic_partition,
                backup.topic_id,
            ):
                raise self._corrupt(f"range {segment_id} is of another log")
            follows = one.position == position and metadata.first_offset >= next_offset
            if one.base_offset != segment.base_offset or not follows:
                reason = f"range {segment_id} overlaps another one, or does not follow it"
                raise self._corrupt(reason)
            found.append(one)
            position, next_offset = one.end_position, metadata.last_offset + 1
        if position != segment.byte_count:
            name, size = segment.base_offset, segment.byte_count
            reason = f"segment {name} has {size} bytes, and {position} in its ranges"
            raise self._corrupt(reason)
        return found

    def _write_segment(
        self, segment: InventorySegment, ranges: list[SegmentRange], end_offset: int
    ) -> None:
        """Write the ranges that begin below the end."""
        self._write(
            offset_name(segment.base_offset, LOG_SUFFIX),
            (
                chunk
                for one in ranges
                if one.metadata.first_offset < end_offset
                for chunk in read_object(
                    self._store,
                    one.metadata.object_name(),
                    byte_count=one.metadata.byte_count,
                    crc=one.crc32c,
                )
            ),
        )

    def _write(self, name: str, chunks: Iterable[bytes]) -> None:
        """Write a file of the directory, and sync it."""
        with self._storage.create_file(self._path(name)) as file:
            position = 0
            for chunk in chunks:
                file.write_at(position, chunk)
                position += len(chunk)
            file.sync()
        self._byte_count += position

    def _cut(self, segment: InventorySegment, end_offset: int) -> int:
        """Truncate the last segment to the batches that end below an offset; return the end."""
        position, next_offset = 0, segment.base_offset
        path = self._path(offset_name(segment.base_offset, LOG_SUFFIX))
        with self._storage.open_for_writing(path) as file:
            byte_count = file.byte_count()
            for header in iter_headers(file, 0, byte_count):
                if header.last_offset >= end_offset:
                    break
                position, next_offset = header.end_position, header.last_offset + 1
            file.truncate(position)
            file.sync()
        self._byte_count -= byte_count - position
        return next_offset

    # --- files beside the segments ----------------------------------------------------------------

    def _write_files(self, inventory: BackupInventory, sealed: set[int]) -> None:
        """Write the files that belong to a log with this end and these sealed segments."""
        small: dict[str, bytes] = {}
        for file in inventory.files:
            if file.name in SMALL_NAMES:
                data = b"".join(self._read(file))
                end_offset, partition = inventory.end_offset, inventory.topic_partition
                data = fit_to_end(file.name, data, end_offset, partition)
                if file.name == RAFTLOG_PROPERTIES_NAME:
                    data = without_remote_storage(data, self._path(file.name))
                small[file.name] = data
            elif self._belongs(file.name, inventory, sealed):
                self._write_file(file)
        start = small.get(LOG_START_CHECKPOINT_NAME)
        if start is not None:
            start_offset = parse_single_offset(start, LOG_START_CHECKPOINT_NAME)
            if start_offset > inventory.end_offset:
                raise self._corrupt(f"the log starts at {start_offset}, after its end")
        if RAFTLOG_PROPERTIES_NAME not in small:
            for name, data in small.items():
                replace_file(self._storage, self._path(name), data)
            return
        meta = small.pop(META_PROPERTIES_NAME, None)  # the node's, whose checksums are elsewhere
        if meta is not None:
            replace_file(self._storage, self._path(META_PROPERTIES_NAME), meta)
        replace_checked(self._storage, self._part, small)

    @staticmethod
    def _belongs(name: str, inventory: BackupInventory, sealed: set[int]) -> bool:
        stem, _, suffix = name.partition(".")
        if suffix in ("index", "timeindex", "txnindex"):
            return int(stem) in sealed
        return is_below(name, inventory.end_offset)

    def _write_file(self, file: InventoryFile) -> None:
        self._write(file.name, self._read(file))
        if parse_checkpoint_name(file.name) not in (None, BOOTSTRAP_ID):
            self._storage.set_read_only(self._path(file.name), owner_only=True)

    def _read(self, file: InventoryFile) -> Iterator[bytes]:
        return _read_file(self._store, self._backup, file)

    def _build_indexes(self, segments: list[InventorySegment]) -> None:
        """Build the indexes that a backup of a raftlog log lacks.

        Kafka builds all three indexes of a segment without ``.index``. If that existed, it would
        not build ``.txnindex``, and its consumers would read aborted records.
        """
        names = set(self._storage.list_names(self._part))
        if RAFTLOG_PROPERTIES_NAME not in names:
            return
        path = self._path(RAFTLOG_PROPERTIES_NAME)
        with self._storage.open_file(path) as file:
            properties = parse_log_properties(file.read_at(0, file.byte_count()), path)
        interval_bytes = properties.config.index_interval_bytes
        for segment in segments:
            if offset_name(segment.base_offset, INDEX_SUFFIX) not in names:
                rebuild_indexes(self._storage, self._part, segment.base_offset, interval_bytes)

    # --- verification -----------------------------------------------------------------------------

    def _verify(self, inventory: BackupInventory) -> None:
        """Read the whole log and its snapshots; raise the first damage found."""
        files = LogFiles.of_directory(self._storage, self._part)
        log = DirectoryLog(
            files,
            self._part,
            inventory.topic_partition,
            inventory.kind,
            source=SourceKind.DIRECTORY,
        )
        if log.log_end_offset != inventory.end_offset:
            raise self._corrupt(
                f"it ends at {inventory.end_offset}, and its records at {log.log_end_offset}"
            )
        check_log(log, files.listing.segments)

    def _path(self, name: str) -> str:
        return self._storage.join(self._part, name)

    def _corrupt(self, reason: str) -> CorruptRemoteObjectError:
        name = self._backup.metadata.object_name(INVENTORY_SUFFIX)
        return CorruptRemoteObjectError(location=self._store.location, name=name, reason=reason)
