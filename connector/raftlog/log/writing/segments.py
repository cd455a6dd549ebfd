"""Directory of one log: its small files and segments, and every change of them.

Invariants:

1. A file is durable before another one refers to it. A file that permits a deletion is durable
   before the deletion. The recovery point never exceeds the synced end.
2. Segments below the log start are deleted oldest first. Segments above a new end are deleted
   newest first, each one durably before the next. Thus a crash leaves no gap between segments.
3. An append does not list the directory. Where another process may have changed names (log start,
   snapshots), the directory is listed again.
"""

from __future__ import annotations

import contextlib
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final, cast

from raftlog.errors import (
    CorruptFileError,
    DiskFullError,
    FileExistsLogError,
    LogNotFoundError,
    NotALogError,
)
from raftlog.limits import INT64_MAX
from raftlog.log.format.directory import (
    CLEAN_SHUTDOWN_NAME,
    CLEANER_CHECKPOINT_NAME,
    COMPACTED_CHECKPOINT_NAME,
    EPOCH_CHECKPOINT_NAME,
    INDEX_SUFFIXES,
    LOG_START_CHECKPOINT_NAME,
    LOG_SUFFIX,
    OUT_OF_ELECTION_NAME,
    PARTITION_METADATA_NAME,
    PRODUCER_SNAPSHOT_SUFFIX,
    PUBLISHED_BYTES_MAX,
    PUBLISHED_NAME,
    QUORUM_STATE_NAME,
    RAFTLOG_PROPERTIES_NAME,
    RECOVERY_POINT_CHECKPOINT_NAME,
    REMOTE_SEGMENTS_NAME,
    TOMBSTONE_CHECKPOINT_NAME,
    UNNAMED_PARTITION,
    CleanShutdown,
    Listing,
    PartitionMetadata,
    Published,
    QuorumState,
    checkpoint_name,
    encode_clean_shutdown,
    encode_epoch_checkpoint,
    encode_offset_checkpoint,
    encode_partition_metadata,
    encode_published,
    encode_quorum_state,
    offset_name,
    parse_partition_name,
    parse_published,
    parse_quorum_state,
    parse_single_offset,
    read_listing,
    read_small_file,
)
from raftlog.log.format.epoch_cache import EpochCache
from raftlog.log.format.remote_chain import (
    RemoteChain,
    encode_remote_chain,
    read_remote_chain,
)
from raftlog.log.reading.transactions import batch_metadata
from raftlog.log.recovery.recover import newest_producer_state
from raftlog.log.segment import NO_TIMESTAMP_MS, Segment, SegmentMetadata
from raftlog.records.batch import RecordBatch
from raftlog.records.record import Record
from raftlog.storage.protocol import WritableFile, WritableStorage
from raftlog.types import SnapshotId

from .active_segment import ActiveSegment, open_or_create
from .atomic_files import (
    DAMAGED_SUFFIX,
    back_up,
    delete_old_backups,
    next_backup_ordinal,
    read_checked,
    replace_checked,
    replace_file,
)
from .key_offsets import KeyOffsets, UnchangedKeys
from .producer_state import ProducerStateManager
from .properties import LogConfig, LogProperties, encode_log_properties, parse_log_properties

# --- Directory of a log ---------------------------------------------------------------------------


def _partition_metadata(topic_id: str) -> bytes:
    return encode_partition_metadata(PartitionMetadata(version=0, topic_id=topic_id))


class LogDirectory:
    """A partition's directory, open for writing. Not shared between threads."""

    def __init__(self, storage: WritableStorage, path: str) -> None:
        self.storage = storage
        self.path = path
        name = storage.split(path)[1]
        self.partition = parse_partition_name(name) or UNNAMED_PARTITION
        self.boot_id = storage.boot_id()
        self.published_name = PUBLISHED_NAME
        self.is_exclusive = False
        """Whether no other process writes files here. If so, the list of remote segments and the
        checkpoints of compaction are read only once."""
        self._known_offsets: dict[str, int] = {}
        self._remote_chain: RemoteChain | CorruptFileError | None = None
        self._is_chain_known = False
        self._published_file: WritableFile | None = None
        self._published: bytes | None = None
        self.may_be_clean = True
        """Whether a clean shutdown file may exist."""

    def file(self, name: str) -> str:
        """Return the path of a file of this directory."""
        return self.storage.join(self.path, name)

    def listing(self) -> Listing:
        """List the directory."""
        return read_listing(self.storage.list_names(self.path))

    def sync(self) -> None:
        """Sync the directory, so that created, renamed and deleted names are durable."""
        self.storage.sync_directory(self.path)

    def close(self) -> None:
        """Close the ``published`` file."""
        if self._published_file is not None:
            self._published_file.close()
            self._published_file = None

    # --- identity ---------------------------------------------------------------------------------

    def read_properties(self) -> LogProperties | None:
        """Read ``raftlog.properties``; None if missing, in which case this is not a raftlog log.

        Raises ``CorruptFileError``.
        """
        path = self.file(RAFTLOG_PROPERTIES_NAME)
        data = read_checked(self.storage, path)
        return None if data is None else parse_log_properties(data, path)

    def check_is_free(self) -> None:
        """Raise ``FileExistsLogError`` if there is a raftlog log, ``NotALogError`` for Kafka's."""
        listing = self.listing()
        is_raftlog = self.read_properties() is not None
        if is_raftlog and listing.segments:
            raise FileExistsLogError(path=self.path)
        if not is_raftlog and (listing.segments or listing.snapshots):
            raise NotALogError(
                path=self.path,
                expected="a log of raftlog",
                reason="it contains a Kafka log, which raftlog does not write",
                remedy="use another directory",
            )

    def write_identity(self, properties: LogProperties, epochs: EpochCache) -> None:
        """Create ``raftlog.properties``, ``partition.metadata`` and ``leader-epoch-checkpoint``."""
        files = {
            RAFTLOG_PROPERTIES_NAME: encode_log_properties(properties),
            PARTITION_METADATA_NAME: _partition_metadata(properties.topic_id),
            EPOCH_CHECKPOINT_NAME: encode_epoch_checkpoint(epochs),
        }
        replace_checked(self.storage, self.path, files)

    def write_partition_metadata(self, topic_id: str) -> None:
        """Replace ``partition.metadata``."""
        self._replace(PARTITION_METADATA_NAME, _partition_metadata(topic_id))

    # --- checkpoints ------------------------------------------------------------------------------

    def write_epochs(self, epochs: EpochCache) -> None:
        """Replace ``leader-epoch-checkpoint``. It must be durable before an epoch's first batch."""
        self._replace(EPOCH_CHECKPOINT_NAME, encode_epoch_checkpoint(epochs))

    def write_log_start(self, offset: int) -> None:
        """Replace the log start checkpoint. Must be durable before anything below it is deleted."""
        self._replace(LOG_START_CHECKPOINT_NAME, encode_offset_checkpoint(self.partition, offset))

    def write_recovery_point(self, offset: int) -> None:
        """Replace the recovery point. Everything below ``offset`` must be synced."""
        self._replace(
            RECOVERY_POINT_CHECKPOINT_NAME, encode_offset_checkpoint(self.partition, offset)
        )

    def read_cleaner_offset(self) -> int | None:
        """Return the first offset that no compaction has read; None if unknown."""
        path = self.file(CLEANER_CHECKPOINT_NAME)
        try:
            data = read_checked(self.storage, path)
            return None if data is None else parse_single_offset(data, path)
        except CorruptFileError:
            return None  # a compaction that begins at the log start is correct, too

    def write_cleaner_offset(self, offset: int) -> None:
        """Replace the cleaner's checkpoint. Everything below ``offset`` must be compacted."""
        self._replace(CLEANER_CHECKPOINT_NAME, encode_offset_checkpoint(self.partition, offset))

    def compacted_offset(self) -> int:
        """Return the end of the records that may supersede a removed record; 0 without a
        compaction. Read only once, unless another process may write it.

        A damaged file may have had any offset, so the greatest offset is returned for it.
        """
        return self._read_offset(COMPACTED_CHECKPOINT_NAME)

    def raise_compacted_offset(self, offset: int, *, offset_max: int | None = None) -> None:
        """Raise the end of the records that may supersede a removed record.

        Call it before any record is removed, and before batches are appended from which records
        were removed.

        A damaged file may have had any offset up to ``offset_max``, so that is written to it. If
        ``offset_max`` is None, the file stays damaged.
        """
        known = self.compacted_offset()
        if known == INT64_MAX and offset_max is not None:
            known, offset = -1, offset_max
        if offset > known:
            self._write_offset(COMPACTED_CHECKPOINT_NAME, offset)

    def tombstone_start_offset(self) -> int:
        """Return the offset from which on the log has all tombstones; 0 if none was removed. A
        damaged file is handled as by ``compacted_offset``."""
        return self._read_offset(TOMBSTONE_CHECKPOINT_NAME)

    def raise_tombstone_start(self, offset: int) -> None:
        """Raise the start of the tombstones, before any tombstone below ``offset`` is removed. A
        damaged file stays so: the compacted offset, which is at least as large, is used instead."""
        if offset > self.tombstone_start_offset():
            self._write_offset(TOMBSTONE_CHECKPOINT_NAME, offset)

    def write_tombstone_start(self, offset: int) -> None:
        """Replace the start of the tombstones by the leader's, before the first records are
        appended to an empty log."""
        if offset != self.tombstone_start_offset():
            self._write_offset(TOMBSTONE_CHECKPOINT_NAME, offset)

    def _read_offset(self, name: str) -> int:
        """Return the offset in a checkpoint: 0 without a file, the greatest offset if it is
        damaged. Read only once, unless another process may write it."""
        known = self._known_offsets.get(name)
        if known is not None:
            return known
        path = self.file(name)
        try:
            data = read_checked(self.storage, path)
            offset = 0 if data is None else parse_single_offset(data, path)
        except CorruptFileError:
            offset = INT64_MAX
        if self.is_exclusive:
            self._known_offsets[name] = offset
        return offset

    def _write_offset(self, name: str, offset: int) -> None:
        self._known_offsets.pop(name, None)
        self._replace(name, encode_offset_checkpoint(self.partition, offset))
        if self.is_exclusive:
            self._known_offsets[name] = offset

    def read_remote_chain(self) -> RemoteChain | None:
        """Read the list of remote segments; None if the log has never had any. Even if it is
        damaged, it is read only once, unless another process may write it.

        Raises ``CorruptFileError``. The next run of remote storage writes the list again.
        """
        if not self._is_chain_known:
            try:
                self._remote_chain = read_remote_chain(self.storage, self.path)
            except CorruptFileError as error:
                self._remote_chain = error
            self._is_chain_known = self.is_exclusive
        if isinstance(self._remote_chain, CorruptFileError):
            raise self._remote_chain.with_traceback(None)
        return self._remote_chain

    def write_remote_chain(self, chain: RemoteChain) -> None:
        """Replace the list of remote segments. It must be durable before any remote segment, or a
        local segment that it lists, is deleted."""
        self._is_chain_known = False
        replace_file(self.storage, self.file(REMOTE_SEGMENTS_NAME), encode_remote_chain(chain))
        self._remote_chain, self._is_chain_known = chain, self.is_exclusive

    def read_quorum_state(self) -> QuorumState | None:
        """Read ``quorum-state``; None before the first election.

        Raises ``CorruptFileError``; the replica's last vote is then unknown.
        """
        path = self.file(QUORUM_STATE_NAME)
        data = read_checked(self.storage, path)
        return None if data is None else parse_quorum_state(data, path)

    def write_quorum_state(self, state: QuorumState) -> None:
        """Replace ``quorum-state``. Must be durable before a vote or an epoch is sent."""
        self._replace(QUORUM_STATE_NAME, encode_quorum_state(state))

    def is_out_of_election(self) -> bool:
        """Return whether this replica lost acknowledged records and has not caught up since."""
        return self.has(OUT_OF_ELECTION_NAME)

    def read_out_of_election_reason(self) -> str | None:
        """Return why this replica does not vote; None if it does."""
        data = read_small_file(self.storage, self.file(OUT_OF_ELECTION_NAME))
        return None if data is None else data.decode("utf-8", errors="replace").strip()

    def leave_election(self, reason: str) -> None:
        """Store that this replica must not vote. Must be durable before anything is truncated."""
        replace_file(self.storage, self.file(OUT_OF_ELECTION_NAME), reason.encode())

    def rejoin_election(self) -> None:
        """Let this replica vote again, because it has caught up. Durable on return."""
        if self.unlink([OUT_OF_ELECTION_NAME]):
            self.sync()

    def write_producer_snapshot(self, producer_state: ProducerStateManager) -> None:
        """Write ``<end offset>.snapshot``."""
        name = offset_name(producer_state.end_offset, PRODUCER_SNAPSHOT_SUFFIX)
        replace_file(self.storage, self.file(name), producer_state.encode_snapshot())

    def write_clean_shutdown(self, marker: CleanShutdown) -> None:
        """Write ``.kafka_cleanshutdown``."""
        replace_file(self.storage, self.file(CLEAN_SHUTDOWN_NAME), encode_clean_shutdown(marker))
        self.may_be_clean = True

    def remove_clean_shutdown(self) -> None:
        """Delete ``.kafka_cleanshutdown`` before the first write; durable on return."""
        if self.may_be_clean:
            if self.unlink([CLEAN_SHUTDOWN_NAME]):
                self.sync()
            self.may_be_clean = False

    def unlink(self, names: Iterable[str]) -> int:
        """Delete files in this order, not durably. Return how many existed."""
        count = 0
        for name in names:
            with contextlib.suppress(LogNotFoundError):
                self.storage.unlink(self.file(name))
                count += 1
        return count

    def unlink_suffix(self, suffix: str) -> None:
        """Delete the files whose names have this suffix, not durably."""
        names = self.storage.list_names(self.path)
        self.unlink(name for name in names if name.endswith(suffix))

    def unlink_unlocked(self, suffix: str, lock_name: str) -> None:
        """Delete the files with this suffix, which a dead process left. Delete none while the lock
        under which they are written is held."""
        if any(name.endswith(suffix) for name in self.storage.list_names(self.path)):
            lock = self.storage.try_lock(self.file(lock_name))
            if lock is not None:
                with lock:
                    self.unlink_suffix(suffix)

    def has(self, name: str) -> bool:
        """Return whether a file or directory of this name exists."""
        try:
            self.storage.is_directory(self.file(name))
        except LogNotFoundError:
            return False
        return True

    def _replace(self, name: str, data: bytes) -> None:
        replace_checked(self.storage, self.path, {name: data})

    # --- published synced end ---------------------------------------------------------------------

    def publish(self, published: Published) -> None:
        """Publish the synced end to other processes.

        The line is written in place with a single write, so that readers see the old or the new
        one.
        """
        line = encode_published(published)
        if line == self._published:
            return
        if self._published_file is None:
            path = self.file(self.published_name)
            self._published_file = open_or_create(self.storage, path)
        self._published = None
        self._published_file.write_at(0, line)
        self._published = line

    def published(self) -> Published | None:
        """Return what this boot's last writer published; None if there is no valid line."""
        if self.is_published_replaced():
            self.close()
        if self._published_file is None:
            try:
                self._published_file = self.storage.open_for_writing(self.file(self.published_name))
            except LogNotFoundError:
                return None
        self._published = None
        data = self._published_file.read_at(0, PUBLISHED_BYTES_MAX)
        published = parse_published(data)
        if published is None or published.boot_id != self.boot_id:
            return None
        self._published = data
        return published

    def is_published_replaced(self) -> bool:
        """Return whether ``published`` was replaced or deleted since this process opened it. This
        is done by a compaction, which deletes segments; by a repair, which removes acknowledged
        records; and by deleting the whole directory."""
        return self._published_file is not None and not self._published_file.is_in_place()

    def renew_published(self) -> None:
        """Replace the file ``published`` by one with the same line.

        Other writers then list the segments again before their next change. A replica of a quorum
        has no such file.
        """
        path = self.file(self.published_name)
        data = read_small_file(self.storage, path)
        if self.published_name == PUBLISHED_NAME and data is not None:
            self.close()
            self._published = None
            replace_file(self.storage, path, data)

    def unpublish(self) -> None:
        """Delete ``published``, because the log is about to be truncated below it."""
        self.close()
        self._published = None
        self.unlink([self.published_name])


if TYPE_CHECKING:
    from raftlog.log.recovery.recover import RecoveredLog


_NOT_OPEN: Final = cast("ActiveSegment", None)
"""Active segment of a log that is not open for writing. Any use of it is an error."""


class LogSegments:
    """The files of one log that is open for writing. Not shared between threads.

    ``sealed`` are the segments before the active one, oldest first: complete and synced.
    """

    def __init__(self, directory: LogDirectory, config: LogConfig) -> None:
        self.directory = directory
        self.config = config
        self.sealed: list[SegmentMetadata] = []
        self.epochs = EpochCache()
        self.log_start_offset = 0
        self.recovery_point = 0
        self.snapshots: tuple[SnapshotId, ...] = ()
        self._is_epoch_reverted = False
        self._key_offsets: KeyOffsets | None = None
        """None until a condition on keys is checked."""
        self.active = _NOT_OPEN
        """The active segment, while the log is open for writing."""

    @property
    def first_base_offset(self) -> int:
        """The base offset of the oldest segment."""
        return self.sealed[0].base_offset if self.sealed else self.active.base_offset

    def check_invariants(self, end_offset: int) -> None:
        """Assert what holds after every change of a log that ends at ``end_offset``."""
        active = self.active
        assert self.first_base_offset <= self.log_start_offset <= end_offset
        assert (active.byte_count > 0) is (active.base_offset < end_offset), active.byte_count
        if self.sealed:
            assert self.sealed[-1].end_offset == active.base_offset, "segments are contiguous"
        if self.epochs.entries:
            assert self.epochs.entries[-1].start_offset <= end_offset

    # --- open and close ---------------------------------------------------------------------------

    def create_first_segment(self) -> None:
        """Create the first segment of an empty log. Its names are not durable yet."""
        self.active = self._create_segment(0)

    def install(self, recovered: RecoveredLog) -> None:
        """Replace the state by that of a recovered log, and open its last segment."""
        self.close()
        self.epochs = recovered.epochs
        self._is_epoch_reverted = False  # recovery has rewritten the checkpoint
        self._key_offsets = None
        self.log_start_offset = recovered.log_start_offset
        self.recovery_point = recovered.recovery_point
        self.list_snapshots()
        is_read_only = recovered.report.read_only is not None
        self.sealed = list(recovered.segments if is_read_only else recovered.segments[:-1])
        if is_read_only:
            return
        if not recovered.segments:
            self.directory.remove_clean_shutdown()
            self.active = self._create_segment(recovered.end_offset)
            self.directory.sync()
            return
        last = recovered.segments[-1]
        self.active = ActiveSegment.open(
            self.directory.storage,
            self.directory.path,
            last.base_offset,
            last.byte_count,
            self.config,
        )

    def close(self) -> None:
        """Close the active segment's files."""
        if self.active is not _NOT_OPEN:
            self.active.close()
            self.active = _NOT_OPEN

    def list_snapshots(self) -> None:
        """List the snapshots in the directory again, without the bootstrap checkpoint."""
        self.snapshots = self.directory.listing().snapshots

    # --- epochs and rolls -------------------------------------------------------------------------

    def begin_epoch(self, epoch: int, *, start_offset: int) -> None:
        """Store the start offset of an epoch; durable on return."""
        epochs = self.epochs.assign(epoch, start_offset)
        if epochs != self.epochs or self._is_epoch_reverted:
            self.directory.write_epochs(epochs)
            self.epochs = epochs
            self._is_epoch_reverted = False

    def revert_epoch(self, epochs: EpochCache) -> None:
        """Revert to ``epochs``, because the disk was full for the new epoch's first batch.

        ``leader-epoch-checkpoint`` keeps the new epoch until the next batch or the next opening.
        """
        self._is_epoch_reverted |= epochs != self.epochs
        self.epochs = epochs

    def is_new_epoch(self, epoch: int) -> bool:
        """Return whether ``begin_epoch`` must precede a batch of this epoch."""
        entries = self.epochs.entries
        return self._is_epoch_reverted or epoch > (entries[-1].epoch if entries else 0)

    def roll(self, end_offset: int, producer_state: ProducerStateManager) -> None:
        """Create the next segment at ``end_offset``. The active one must be sealed."""
        old = self.active
        self.directory.write_producer_snapshot(producer_state)
        new = self._create_segment(end_offset)
        try:
            self.directory.sync()
            self.write_recovery_point(end_offset)
        except BaseException:
            new.close()
            raise
        self.sealed.append(
            SegmentMetadata(
                base_offset=old.base_offset,
                end_offset=end_offset,
                byte_count=old.byte_count,
                max_timestamp_ms=old.max_timestamp_ms,
            )
        )
        self.active = new
        old.close()

    def write_recovery_point(self, offset: int) -> None:
        """Set the recovery point, below which everything must be synced. Durable on return."""
        if offset != self.recovery_point:
            self.directory.write_recovery_point(offset)
            self.recovery_point = offset

    def delete_stray_producer_snapshots(self, end_offset: int) -> None:
        """Delete producer snapshots that are neither at a base offset nor at ``end_offset``."""
        kept = {segment.base_offset for segment in self.sealed}
        kept |= {self.active.base_offset, end_offset}
        self._unlink_producer_snapshots(lambda offset: offset not in kept)

    def _create_segment(self, base_offset: int) -> ActiveSegment:
        return ActiveSegment.create(
            self.directory.storage, self.directory.path, base_offset, self.config
        )

    # --- log start --------------------------------------------------------------------------------

    def advance_start(self, offset: int) -> None:
        """Advance the log start to ``offset``, as a snapshot or retention allows.

        Segments wholly below it are deleted, but never the active one. Durable on return. The order
        of the durable steps:

            1. log-start-offset-checkpoint := offset     after a crash, recovery completes the rest
            2. leader-epoch-checkpoint without the epochs of deleted segments
            3. delete segments, oldest first, and producer snapshots; sync the directory
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

    def _drop_before(self, offset: int) -> list[SegmentMetadata]:
        """Drop the segments that end at or below an offset, and their epochs; return them."""
        deleted = [segment for segment in self.sealed if segment.end_offset <= offset]
        self.sealed = self.sealed[len(deleted) :]
        self.epochs = self.epochs.without_before(self._first_epoch_offset())
        return deleted

    def _first_epoch_offset(self) -> int:
        """Return the offset from which on the log keeps leader epochs. It includes remote segments,
        because consumers validate their positions against these epochs."""
        first = self.first_base_offset
        with contextlib.suppress(CorruptFileError):
            chain = self.directory.read_remote_chain()
            start = None if chain is None else chain.start_at(first)
            return first if start is None else start
        return first

    def delete_snapshots_before(self, snapshot_id: SnapshotId) -> None:
        """Delete the snapshots older than ``snapshot_id``. Durable on return."""
        self.list_snapshots()
        names = [checkpoint_name(one) for one in self.snapshots if one < snapshot_id]
        if self.directory.unlink(names):
            self.directory.sync()
        self.snapshots = tuple(one for one in self.snapshots if one >= snapshot_id)

    # --- truncation -------------------------------------------------------------------------------

    def truncate_to(self, offset: int, *, is_committed: bool = False) -> None:
        """Truncate all batches that do not end below ``offset``. Durable on return.

        The order of the durable steps:

            1. lower the recovery point to the new end if it is above that
            2. back up the bytes that will be truncated, if the disk has room. Unless
               ``is_committed``, they may be the only copy of an append whose result is unknown
            3. delete later segments, newest first, and later producer snapshots
            4. truncate the segment of ``offset``, sync
            5. leader-epoch-checkpoint without later epochs

        After a crash in between, the log may still have its old end; the truncation is then
        repeated. The files are closed on return, and the log must be recovered.
        """
        segments = [self._sealed_segment(one) for one in self.sealed]
        segments.append(self._segment(self.active.base_offset, self.active.byte_count))
        self.close()
        kept = [one for one in segments if one.base_offset < offset] or segments[:1]
        last, storage = kept[-1], self.directory.storage
        new_end = last.floor(offset)
        end_offset = new_end.offset
        if self.recovery_point > end_offset:
            self.write_recovery_point(end_offset)
        deleted = [one.base_offset for one in segments[len(kept) :]]
        if not is_committed:
            self._back_up(last.path(), new_end.position, deleted)
        self._unlink_segments(deleted)
        self._unlink_producer_snapshots(lambda at: at > end_offset)
        self.directory.sync()
        with storage.open_for_writing(last.path()) as file:
            file.truncate(new_end.position)
            file.sync()
        epochs = self.epochs.without_from(end_offset)
        if epochs != self.epochs:
            self.directory.write_epochs(epochs)
            self.epochs = epochs

    def _back_up(self, last_path: str, position: int, deleted: Sequence[int]) -> None:
        """Back up a segment from a position on, and the segments with these base offsets, if the
        disk has room. Then delete older backups."""
        storage = self.directory.storage
        first_backup = next_backup_ordinal(storage.list_names(self.directory.path))
        with contextlib.suppress(DiskFullError):
            back_up(storage, last_path, position)
            for base in deleted:
                back_up(storage, self.directory.file(offset_name(base, LOG_SUFFIX)), 0)
        delete_old_backups(storage, self.directory.path, before=first_backup)

    def truncate_fully_and_start_at(
        self, snapshot_id: SnapshotId, *, is_damaged: bool = False
    ) -> tuple[str, ...]:
        """Delete all records and start the log at the end of a later snapshot. Durable on return.

        The order of the durable steps:

            1. lower the recovery point to the snapshot's end if it is above that, so that deleted
               records do not count as missing
            2. delete the segments, newest first; rename those of a damaged log as backups instead
            3. leader-epoch-checkpoint := (epoch, end offset of the snapshot)
            4. log-start-offset-checkpoint, then recovery point := end offset of the snapshot

        After a crash in between, the log is empty or ends below the snapshot, and all of this is
        repeated. The files are closed on return, and the log must be recovered. Returns the older
        backups that were deleted to make room.
        """
        self.close()
        if self.recovery_point > snapshot_id.end_offset:
            self.write_recovery_point(snapshot_id.end_offset)
        listing = self.directory.listing()
        deleted: tuple[str, ...] = ()
        if is_damaged:
            deleted = self._rename_damaged(listing.segments)
        self._unlink_segments(listing.segments)
        self._unlink_producer_snapshots(lambda at: at != snapshot_id.end_offset)
        self.directory.sync()
        self.epochs = EpochCache.of([(snapshot_id.epoch, snapshot_id.end_offset)])
        self.directory.write_epochs(self.epochs)
        self.directory.write_log_start(snapshot_id.end_offset)
        self.log_start_offset = snapshot_id.end_offset
        self.write_recovery_point(snapshot_id.end_offset)
        return deleted

    # --- reads ------------------------------------------------------------------------------------

    def is_boundary(self, offset: int, end_offset: int) -> bool:
        """Return whether a batch begins at ``offset`` or the log ends there."""
        if offset == end_offset:
            return True
        return self._segment_of(offset) is not None and self.boundary_at(offset) == offset

    def check_unchanged(
        self,
        unchanged: UnchangedKeys,
        record_count: int,
        *,
        end_offset: int,
        at_least: int = 0,
    ) -> None:
        """Check the condition of an append of ``record_count`` records at the end of the log.

        Nothing below ``at_least`` is read, nor records whose tombstones compaction may have
        removed. Raises ``KeyChangedError``, and ``UnexpectedEndOffsetError`` if the writer must
        first read the log to its end.
        """
        local_start = max(self.log_start_offset, self.first_base_offset)
        keys, start_offset = self._key_offsets, max(local_start, at_least)
        if keys is None or keys.end_offset < self.active.base_offset:
            start_offset = max(start_offset, min(self.directory.compacted_offset(), end_offset))
        if keys is None:
            start_offset = min(max(start_offset, unchanged.read_from()), end_offset)
            keys = KeyOffsets(self.directory.path, self.read_bytes, self.boundary_at)
            self._key_offsets = keys
        keys.follow(start_offset, end_offset)
        keys.check(unchanged, record_count)

    def boundary_at(self, offset: int) -> int:
        """Return the base offset of the batch that contains ``offset``."""
        segment = self._segment_of(offset)
        assert segment is not None, "the offset must be in the log"
        return segment.floor(offset).offset

    def batches(self, start_offset: int, end_offset: int) -> Iterator[RecordBatch]:
        """Yield the batches in [start_offset, end_offset), both batch boundaries, CRCs checked."""
        offset = start_offset
        while offset < end_offset and (segment := self._segment_of(offset)) is not None:
            for batch in segment.batches(offset, self.epochs):
                if batch.base_offset >= end_offset:
                    return
                offset = batch.next_offset
                yield batch

    def read_bytes(self, offset: int, byte_count_max: int) -> bytes:
        """Return batches of one segment, from a batch boundary on; the last may be incomplete.

        The result has at least one whole batch and otherwise at most ``byte_count_max`` bytes. It
        is b"" at the end.
        """
        segment = self._segment_of(offset)
        return b"" if segment is None else segment.read_bytes(offset, byte_count_max, self.epochs)

    def record_for_timestamp(
        self, timestamp_ms: int, *, start_offset: int, end_offset: int
    ) -> Record | None:
        """Return the first record in [start_offset, end_offset) with a timestamp >= the given one.

        The arguments and errors are the same as for ``find_record_for_timestamp``.
        """
        from raftlog.log.reading.files import LogFiles  # imports numpy
        from raftlog.log.reading.log_end import find_record_for_timestamp

        return find_record_for_timestamp(
            LogFiles.of_directory(self.directory.storage, self.directory.path),
            timestamp_ms,
            start_offset=start_offset,
            end_offset=end_offset,
            read_batches=self.batches,
        )

    def max_timestamp_ms(self) -> int:
        """Return the greatest timestamp of any batch on disk; -1 if no batch has one."""
        return max(self.active.max_timestamp_ms, *map(_time_ms, self.timed_segments()), -1)

    def producer_state_at(self, end_offset: int) -> ProducerStateManager:
        """Return the producer state at a batch boundary.

        It is loaded from a producer snapshot, or from a checkpoint at which the log may start. The
        batches after that are replayed.
        """
        directory, first = self.directory, self.first_base_offset
        producer_state, _ = newest_producer_state(
            directory.storage, directory.path, directory.listing(), end_offset
        )
        if producer_state is None or producer_state.end_offset < first:
            producer_state = ProducerStateManager(
                directory.path, end_offset=first, is_whole=first == 0
            )
        for batch in self.batches(producer_state.end_offset, end_offset):
            producer_state.apply(batch_metadata(batch, self.config.values))
        return producer_state

    def has_sealed(self, segments: Sequence[SegmentMetadata]) -> bool:
        """Return whether these adjacent segments are sealed ones, with unchanged offsets and sizes,
        and follow each other."""
        at = self._ordinal_of(segments[0].base_offset) if segments else 0
        found = self.sealed[at : at + len(segments)]
        return list(map(_extent, found)) == list(map(_extent, segments))

    def replace_sealed(self, before: Sequence[SegmentMetadata], after: SegmentMetadata) -> None:
        """Replace the metadata of adjacent sealed segments by that of their compacted segment."""
        at = self._ordinal_of(after.base_offset)
        self.sealed[at : at + len(before)] = [after]

    def _ordinal_of(self, base_offset: int) -> int:
        """Return where a sealed segment with this base offset is in ``sealed``, or would be."""
        return bisect_left(self.sealed, base_offset, key=lambda one: one.base_offset)

    def timed_segments(self) -> tuple[SegmentMetadata, ...]:
        """Return the sealed segments with their current sizes; read unknown timestamps."""
        for ordinal, one in enumerate(self.sealed):
            segment, time_ms = self._sealed_segment(one), one.max_timestamp_ms
            if time_ms is None:
                time_ms = segment.read_max_timestamp_ms()
            if (segment.byte_count, time_ms) != (one.byte_count, one.max_timestamp_ms):
                self.sealed[ordinal] = replace(
                    one, byte_count=segment.byte_count, max_timestamp_ms=time_ms
                )
        return tuple(self.sealed)

    def _segment_of(self, offset: int) -> Segment | None:
        """Return the segment that contains ``offset``; None below the first one."""
        active = self.active
        if active is not _NOT_OPEN and offset >= active.base_offset:
            return self._segment(active.base_offset, active.byte_count)
        for segment in reversed(self.sealed):
            if offset >= segment.base_offset:
                return self._sealed_segment(segment)
        return None

    def _sealed_segment(self, segment: SegmentMetadata) -> Segment:
        """Return a sealed segment with its file's current size, because another process may have
        compacted it."""
        if self.config.cleanup_policy.compacts:
            return Segment.of_file(self.directory.storage, self.directory.path, segment.base_offset)
        return self._segment(segment.base_offset, segment.byte_count)

    def _segment(self, base_offset: int, byte_count: int) -> Segment:
        return Segment(self.directory.storage, self.directory.path, base_offset, byte_count)

    # --- deletion ---------------------------------------------------------------------------------

    def _rename_damaged(self, bases: Sequence[int]) -> tuple[str, ...]:
        """Rename segments as backups, newest first; return the older backups that were deleted."""
        storage = self.directory.storage
        first = next_backup_ordinal(storage.list_names(self.directory.path))
        for ordinal, base in enumerate(reversed(bases), first):
            path = self.directory.file(offset_name(base, LOG_SUFFIX))
            storage.rename(path, f"{path}{DAMAGED_SUFFIX}-{ordinal}")
            self.directory.sync()
        return delete_old_backups(storage, self.directory.path, before=first)

    def _unlink_segments(self, bases: Sequence[int]) -> None:
        """Delete segments at the log's end, newest first. ``bases`` are in ascending order."""
        for base in reversed(bases):
            self.directory.unlink([offset_name(base, LOG_SUFFIX)])
            self.directory.sync()  # one by one: a crash must leave no gap
        for base in bases:
            self._unlink_segment(base)

    def _unlink_segment(self, base_offset: int) -> None:
        suffixes = (LOG_SUFFIX, *INDEX_SUFFIXES)
        self.directory.unlink(offset_name(base_offset, suffix) for suffix in suffixes)

    def _unlink_producer_snapshots(self, is_deleted: Callable[[int], bool]) -> None:
        offsets = filter(is_deleted, self.directory.listing().producer_snapshots)
        self.directory.unlink(offset_name(at, PRODUCER_SNAPSHOT_SUFFIX) for at in offsets)


def _extent(segment: SegmentMetadata) -> tuple[int, int, int]:
    return segment.base_offset, segment.end_offset, segment.byte_count


def _time_ms(segment: SegmentMetadata) -> int:
    return NO_TIMESTAMP_MS if segment.max_timestamp_ms is None else segment.max_timestamp_ms
