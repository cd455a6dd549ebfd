"""Backup of a log's directory to an object store, which uploads only what the store lacks.

The steps of one backup, each of which is durable before the next one:

    manifest    range A is STARTED
    object      the bytes of A
    manifest    A is FINISHED, with its CRC; range B is STARTED
    ...
    manifest    the last range is FINISHED; the backup is STARTED
    objects     files beside the segments; the inventory
    manifest    the backup is FINISHED

A crash leaves FINISHED ranges, which the next backup uses, and objects that no finished entry
names. A backup exists when its entry is FINISHED.

Invariants:

1. Every uploaded range is read and verified first: CRCs, order and leader epochs of its batches.
2. A range is reused if the log has the range's last batch at the same position, because then all
   batches before it are the same, too. Otherwise the segment was truncated or compacted since, and
   is uploaded again.
3. The log is not locked and may be written during the backup. If retention or compaction changes a
   sealed segment, or if a range that was started more than a day ago is pruned, the backup starts
   again, at most ``_ATTEMPTS_MAX`` times.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from crc32c import crc32c

from raftlog.errors import CorruptBatchError, LogNotFoundError, NotALogError, SegmentDeletedError
from raftlog.limits import BATCH_HEADER_BYTES
from raftlog.log.format.directory import (
    INDEX_SUFFIXES,
    LOG_START_CHECKPOINT_NAME,
    LOG_SUFFIX,
    META_PROPERTIES_NAME,
    PARTITION_METADATA_NAME,
    PRODUCER_SNAPSHOT_SUFFIX,
    checkpoint_name,
    encode_offset_checkpoint,
    offset_name,
    parse_offset_name,
    parse_partition_metadata,
    parse_single_offset,
)
from raftlog.log.format.epoch_cache import EpochCache, EpochEntry
from raftlog.log.reading.directory_log import DirectoryLog
from raftlog.log.reading.reads import SourceKind
from raftlog.log.writing.atomic_files import read_checked
from raftlog.records.batch_columns import Column
from raftlog.storage.errors import WrongBackupError
from raftlog.storage.objects import ObjectStore
from raftlog.storage.protocol import ReadableFile
from raftlog.types import ZERO_UUID, TopicPartition

from .inventory import (
    INVENTORY_SUFFIX,
    SMALL_NAMES,
    BackupInventory,
    InventoryFile,
    InventorySegment,
    bootstrap_name,
    fit_to_end,
    is_below,
)
from .manifest import ManifestCache, ManifestWriter, RemoteLogManifest, Surroundings
from .objects import read_inventory, read_range
from .segment_metadata import (
    NO_NODE,
    BackupEntry,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
    SegmentRange,
)

_ATTEMPTS_MAX: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class BackupReport:
    """Result of a backup. Offsets are [log_start_offset, end_offset).

    ``is_new`` is False if the last backup has the same files, so that nothing was written.
    """

    log_start_offset: int
    end_offset: int
    is_new: bool
    uploaded_bytes: int
    reused_bytes: int


def identity_of(log: DirectoryLog) -> tuple[TopicPartition, str]:
    """Return the partition and the topic id of a log's entries and objects."""
    metadata = log.files.parse_small(PARTITION_METADATA_NAME, parse_partition_metadata)
    topic_id = ZERO_UUID if metadata is None else metadata.topic_id
    return TopicPartition(log.topic, log.partition), topic_id


def back_up_log(log: DirectoryLog, store: ObjectStore, context: Surroundings) -> BackupReport:
    """Upload the files of a log's directory that the store lacks, and publish them as a backup.

    Raises ``NotALogError`` if the source is not a directory or the log is empty,
    ``WrongBackupError`` if the store has backups of another log, the first damage found in what is
    uploaded, and the store's errors.
    """
    if log.source is not SourceKind.DIRECTORY:
        raise NotALogError(path=log.path, expected="the directory of a log", reason="it is a file")
    for attempt in range(_ATTEMPTS_MAX):
        try:
            return _Backup(log, store, context).run()
        except SegmentDeletedError:
            if attempt == _ATTEMPTS_MAX - 1:
                raise
        log.refresh()
    raise AssertionError("the last attempt returns or raises")


class _Backup:
    """One attempt."""

    def __init__(
        self,
        log: DirectoryLog,
        store: ObjectStore,
        context: Surroundings,
    ) -> None:
        self._log = log
        self._files = log.files
        self._store = store
        self._context = context
        self._cache: ManifestCache = {}
        self._manifest = RemoteLogManifest(store, self._cache)
        self._ranges: defaultdict[int, list[SegmentRange]] = defaultdict(list)
        self._writer: ManifestWriter | None = None
        self._unfinished: SegmentRange | None = None
        self._start_offset, self._end_offset = log.log_start_offset, log.log_end_offset
        if not self._end_offset:
            raise NotALogError(path=log.path, reason="it is empty: there is nothing to back up")
        self._partition, self._topic_id = identity_of(log)
        for one in self._manifest.ranges.values():
            metadata = one.metadata
            if (metadata.topic_partition, metadata.topic_id) == (self._partition, self._topic_id):
                self._ranges[one.base_offset].append(one)
        self._sizes = self._segment_sizes()
        self._previous = self._read_previous()
        files = () if self._previous is None else self._previous.files
        self._stored = {one.name: one for one in files}
        self._uploaded_bytes = 0
        self._reused_bytes = 0

    def run(self) -> BackupReport:
        segments = tuple(self._segment(base) for base in self._sizes)
        local = self._local_files(segments)
        backup_id = self._context.new_id()
        stored_in = f"{offset_name(self._extent()[0], '')}-{backup_id}"
        files = tuple(self._inventory_file(one, stored_in) for one in local)
        self._check_is_unchanged()
        inventory = BackupInventory(
            topic_partition=self._partition,
            topic_id=self._topic_id,
            cluster_id=self._log.cluster_id,
            kind=self._log.kind,
            log_start_offset=self._start_offset,
            end_offset=self._end_offset,
            segments=segments,
            files=files,
        )
        is_new = inventory != self._previous
        if is_new:
            new = [
                one for one, file in zip(local, files, strict=True) if file.stored_in == stored_in
            ]
            self._publish(backup_id, inventory, new)
        return BackupReport(
            log_start_offset=inventory.log_start_offset,
            end_offset=inventory.end_offset,
            is_new=is_new,
            uploaded_bytes=self._uploaded_bytes,
            reused_bytes=self._reused_bytes,
        )

    def _publish(self, backup_id: str, inventory: BackupInventory, new: list[_LocalFile]) -> None:
        data = inventory.encode()
        entry = self._entry(backup_id, *self._extent(), byte_count=len(data))
        backups = self._manifest.backups
        backup = BackupEntry(
            metadata=entry,
            ordinal=backups[-1].ordinal + 1 if backups else 0,
            crc32c=crc32c(data),
        )
        self._start(entry)
        for file in new:
            self._store.put(f"{entry.object_name('')}/{file.name}", file.chunks())
            self._uploaded_bytes += file.byte_count
        self._store.put(entry.object_name(INVENTORY_SUFFIX), [data])
        self._check_is_stored(inventory.segments)
        self._finish(backup)

    # --- state of the log -------------------------------------------------------------------------

    def _segment_sizes(self) -> dict[int, int]:
        """Return the valid bytes of each segment by base offset, ascending.

        Raises ``SegmentDeletedError`` if the listing is older than the end of the log.
        """
        tail = self._log.tail
        if tail is None:
            return {}
        last = parse_offset_name(self._files.storage.split(tail.path)[1], LOG_SUFFIX)
        bases = [base for base in self._files.listing.segments if last is None or base <= last]
        if not bases or last not in (None, bases[-1]):
            raise SegmentDeletedError(path=tail.path)
        sizes = {base: self._size_of(base) for base in bases[:-1]}
        return {**sizes, bases[-1]: tail.position}

    def _size_of(self, base_offset: int) -> int:
        with self._files.open(self._files.segment_path(base_offset)) as file:
            return file.byte_count()

    def _check_is_unchanged(self) -> None:
        """Raise ``SegmentDeletedError`` if a sealed segment was deleted or replaced meanwhile."""
        self._files.refresh()
        for base, size in list(self._sizes.items())[:-1]:
            if self._size_of(base) != size:
                raise SegmentDeletedError(path=self._files.segment_path(base))

    def _check_is_stored(self, segments: tuple[InventorySegment, ...]) -> None:
        """Raise ``SegmentDeletedError`` if a range was pruned because the backup took too long."""
        manifest = RemoteLogManifest(self._store, self._cache)
        pruned = {one.segment_id for one in (*manifest.deleting, *manifest.deleted)}
        for segment in segments:
            if not pruned.isdisjoint(segment.ranges):
                raise SegmentDeletedError(path=self._files.segment_path(segment.base_offset))

    def _read_previous(self) -> BackupInventory | None:
        """Return the inventory of the last backup. Raises ``WrongBackupError``."""
        if not self._manifest.backups:
            return None
        previous = read_inventory(self._store, self._manifest.backups[-1])
        reason = None
        cluster_ids = {previous.cluster_id, self._log.cluster_id} - {None}
        if previous.topic_partition != self._partition:
            reason = f"it is {previous.topic_partition}, not {self._partition}"
        elif previous.topic_id != self._topic_id:
            reason = f"its topic id is {previous.topic_id}, not {self._topic_id}"
        elif len(cluster_ids) > 1:
            reason = f"its cluster is {previous.cluster_id}, not {self._log.cluster_id}"
        if reason is not None:
            raise WrongBackupError(
                location=self._store.location, path=self._log.path, reason=reason
            )
        return previous

    def _extent(self) -> tuple[int, int]:
        """Return the first and last offset of the log; for a snapshot alone, its last offset."""
        last_offset = self._end_offset - 1
        return min(self._start_offset, last_offset), last_offset

    def _entry(
        self, segment_id: str, first_offset: int, last_offset: int, *, byte_count: int
    ) -> RemoteLogSegmentMetadata:
        """Return an entry of the manifest with the log's identity and its last epoch."""
        node_id = self._log.node_id
        return RemoteLogSegmentMetadata(
            segment_id=segment_id,
            topic_partition=self._partition,
            topic_id=self._topic_id,
            first_offset=first_offset,
            last_offset=last_offset,
            broker_id=NO_NODE if node_id is None else node_id,
            max_timestamp_ms=-1,
            event_timestamp_ms=self._context.now_ms(),
            leader_epochs=(EpochEntry(epoch=self._last_epoch(), start_offset=first_offset),),
            byte_count=byte_count,
            state=RemoteLogSegmentState.COPY_SEGMENT_STARTED,
        )

    def _last_epoch(self) -> int:
        newest = self._log.newest_snapshot()
        epoch = self._log.epochs.epoch_at(self._end_offset - 1)
        return epoch if epoch is not None else 0 if newest is None else newest.epoch

    # --- segments ---------------------------------------------------------------------------------

    def _segment(self, base_offset: int) -> InventorySegment:
        """Upload what the store lacks of a segment."""
        size = self._sizes[base_offset]
        path = self._files.segment_path(base_offset)
        with self._files.open(path) as file:
            ranges = self._matching_ranges(base_offset, file, size)
            position = ranges[-1].end_position if ranges else 0
            next_offset = ranges[-1].metadata.last_offset + 1 if ranges else base_offset
            self._reused_bytes += position
            if position < size:
                ranges.append(
                    self._upload(
                        file,
                        base_offset=base_offset,
                        position=position,
                        first_offset=next_offset,
                        end_position=size,
                    )
                )
        ids = tuple(one.metadata.segment_id for one in ranges)
        return InventorySegment(base_offset=base_offset, byte_count=size, ranges=ids)

    def _matching_ranges(
        self, base_offset: int, file: ReadableFile, size: int
    ) -> list[SegmentRange]:
        """Return contiguous ranges from position 0 on, each the longest one that matches."""
        found: list[SegmentRange] = []
        position = 0
        candidates = self._ranges[base_offset]
        for one in sorted(candidates, key=lambda one: (one.position, -one.end_position)):
            if one.position == position and one.end_position <= size and _matches(one, file):
                found.append(one)
                position = one.end_position
        return found

    def _upload(
        self,
        file: ReadableFile,
        *,
        base_offset: int,
        position: int,
        first_offset: int,
        end_position: int,
    ) -> SegmentRange:
        """Upload a range. Its entry is finished together with the start of the next one."""
        following = [base for base in self._sizes if base > base_offset]
        end_offset = following[0] if following else self._end_offset
        new = self._verified(
            file,
            base_offset=base_offset,
            position=position,
            first_offset=first_offset,
            end_offset=end_offset,
            end_position=end_position,
        )
        self._start(new.metadata)
        crc = 0

        def chunks() -> Iterator[bytes]:
            nonlocal crc
            for chunk in read_range(file, position, end_position):
                crc = crc32c(chunk, crc)
                yield chunk

        self._store.put(new.metadata.object_name(), chunks())
        if not _matches(new, file):
            raise SegmentDeletedError(path=file.path)  # the range was truncated meanwhile
        self._unfinished = replace(new, crc32c=crc)
        self._uploaded_bytes += end_position - position
        return self._unfinished

    def _verified(
        self,
        file: ReadableFile,
        *,
        base_offset: int,
        position: int,
        first_offset: int,
        end_offset: int,
        end_position: int,
    ) -> SegmentRange:
        """Read the batches of a range; return it, without CRC. Raises their first damage."""
        bounds: list[int] = []
        last_position, max_timestamp_ms, at = position, -1, position
        epochs = EpochCache()
        for scan in self._log.scan(first_offset, end_offset, columns=Column.NONE):
            batches = scan.batches
            if not len(batches):
                continue
            if int(batches.position[0]) != at:
                break
            last_position = int(batches.position[-1])
            at = last_position + int(batches.byte_count[-1])
            bounds += [int(batches.base_offset[0]), int(batches.last_offset[-1])]
            max_timestamp_ms = max(max_timestamp_ms, int(batches.max_timestamp_ms.max()))
            for first in np.flatnonzero(np.diff(batches.leader_epoch, prepend=-1)):
                epoch, start_offset = batches.leader_epoch[first], batches.base_offset[first]
                epochs = epochs.assign(int(epoch), int(start_offset))
        if at != end_position:
            raise CorruptBatchError(
                reason=f"its batches end at byte {at}, and its records at byte {end_position}",
                path=file.path,
                position=at,
            )
        new_id = self._context.new_id()
        entry = self._entry(new_id, bounds[0], bounds[-1], byte_count=end_position - position)
        return SegmentRange(
            metadata=replace(
                entry, max_timestamp_ms=max_timestamp_ms, leader_epochs=epochs.entries
            ),
            base_offset=base_offset,
            position=position,
            crc32c=0,
            last_batch_position=last_position,
            last_batch_crc32c=crc32c(file.read_at(last_position, BATCH_HEADER_BYTES)),
        )

    # --- the manifest -----------------------------------------------------------------------------

    def _start(self, metadata: RemoteLogSegmentMetadata) -> None:
        """Append an entry as STARTED, and the preceding one as FINISHED."""
        if self._writer is None:
            self._writer = self._manifest.new_writer(self._context.new_partition)
        done, self._unfinished = self._unfinished, None
        if done is None:
            self._writer.append([metadata])
        else:
            self._writer.finish(done, now_ms=self._context.now_ms(), then=[metadata])

    def _finish(self, backup: BackupEntry) -> None:
        assert self._writer is not None, "the backup was started"
        self._writer.finish(backup, now_ms=self._context.now_ms())

    # --- files beside the segments ----------------------------------------------------------------

    def _local_files(self, segments: tuple[InventorySegment, ...]) -> list[_LocalFile]:
        """Return the other files of the log, in the order of their names."""
        found = [*self._small_files(), *self._index_files(segments)]
        listing = self._files.listing
        names = [checkpoint_name(one) for one in listing.snapshots]
        if bootstrap_name() in self._files.storage.list_names(self._files.directory):
            names.append(bootstrap_name())
        producers = [
            offset_name(one, PRODUCER_SNAPSHOT_SUFFIX) for one in listing.producer_snapshots
        ]
        for name in [*names, *producers]:
            if is_below(name, self._end_offset):
                file = self._large_file(name, is_immutable=name in names)
                if file is not None:
                    found.append(file)
                elif name in names:
                    # A later snapshot replaced it, and is needed if the log starts at its end.
                    raise SegmentDeletedError(
                        path=self._files.storage.join(self._files.directory, name)
                    )
        return sorted(found, key=lambda one: one.name)

    def _small_files(self) -> Iterator[_LocalFile]:
        storage = self._files.storage
        for name in SMALL_NAMES:
            data = read_checked(storage, storage.join(self._files.directory, name))
            if data is None and name == META_PROPERTIES_NAME:
                above, _ = storage.split(self._files.directory)
                data = read_checked(storage, storage.join(above, name))
            if data is not None:
                if name == LOG_START_CHECKPOINT_NAME:  # it may have advanced since the beginning
                    start_offset = parse_single_offset(data, name)
                    if self._has_remote_segments:
                        start_offset = self._start_offset
                        data = encode_offset_checkpoint(self._partition, start_offset)
                    self._start_offset = max(self._start_offset, start_offset)
                    if start_offset > self._end_offset:
                        raise SegmentDeletedError(path=self._files.path)
                data = fit_to_end(name, data, self._end_offset, self._partition)
                yield _LocalFile(name=name, byte_count=len(data), crc32c=crc32c(data), content=data)

    @property
    def _has_remote_segments(self) -> bool:
        """Whether the log starts in an object store, so that its checkpoint is the local start."""
        segments = self._files.listing.segments
        return bool(segments) and self._files.is_remote(segments[0])

    def _index_files(self, segments: tuple[InventorySegment, ...]) -> Iterator[_LocalFile]:
        """Yield the indexes of the sealed segments. Those of the last one may be of a later end."""
        before = {} if self._previous is None else _sealed(self._previous.segments)
        for base_offset, segment in _sealed(segments).items():
            for suffix in INDEX_SUFFIXES:
                name = offset_name(base_offset, suffix)
                file = self._large_file(name, is_immutable=before.get(base_offset) == segment)
                if file is not None:
                    yield file

    def _large_file(self, name: str, *, is_immutable: bool) -> _LocalFile | None:
        """Return a file; None if it does not exist or was deleted.

        If it is immutable, and the last backup has it with this size, it is not read.
        """
        path = self._files.storage.join(self._files.directory, name)
        try:
            with self._files.storage.open_file(path) as file:
                byte_count = file.byte_count()
                known = self._stored.get(name)
                if is_immutable and known is not None and known.byte_count == byte_count:
                    crc = known.crc32c
                else:
                    crc = 0
                    for chunk in read_range(file, 0, byte_count):
                        crc = crc32c(chunk, crc)
        except LogNotFoundError:
            return None

        def read() -> Iterator[bytes]:
            with self._files.open(path) as opened:
                yield from read_range(opened, 0, byte_count)

        return _LocalFile(name=name, byte_count=byte_count, crc32c=crc, content=read)

    def _inventory_file(self, file: _LocalFile, stored_in: str) -> InventoryFile:
        """Return a file's line in the inventory; that of the last backup if that has the file."""
        known = self._stored.get(file.name)
        if known is not None and (known.byte_count, known.crc32c) == (
            file.byte_count,
            file.crc32c,
        ):
            self._reused_bytes += file.byte_count
            return known
        return InventoryFile(
            name=file.name, byte_count=file.byte_count, crc32c=file.crc32c, stored_in=stored_in
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _LocalFile:
    """File of the log. ``content``: its bytes if it is small, else a function that reads it."""

    name: str
    byte_count: int
    crc32c: int
    content: bytes | Callable[[], Iterator[bytes]]

    def chunks(self) -> Iterator[bytes]:
        """Yield the content. Raises ``SegmentDeletedError`` if it has changed."""
        if isinstance(self.content, bytes):
            yield self.content
            return
        crc = 0
        for chunk in self.content():
            crc = crc32c(chunk, crc)
            yield chunk
        if crc != self.crc32c:
            raise SegmentDeletedError(path=self.name)


def _sealed(segments: tuple[InventorySegment, ...]) -> dict[int, InventorySegment]:
    return {one.base_offset: one for one in segments[:-1]}


def _matches(one: SegmentRange, file: ReadableFile) -> bool:
    header = file.read_at(one.last_batch_position, BATCH_HEADER_BYTES)
    return crc32c(header) == one.last_batch_crc32c
