"""The log of one replica of a quorum, as the replica uses it.

No other process writes the log, and readers send requests to the node, so ``synced`` is for
recovery only. If another process has written to the log nevertheless, its bytes are truncated, with
a backup, before this process appends or closes.

If the newest snapshot is later than the log's end, the log starts at the snapshot's end (Kafka:
``truncateToLatestSnapshot``). This is applied at every opening, so a fetched snapshot counts as
installed as soon as it has its final name, even if the process then crashes:

    1. validate the received file, sync it, rename it to its final name, durably
       (crash before the rename: the next opening deletes the .part file, the log is unchanged)
    2. ``LogSegments.truncate_fully_and_start_at`` its end
       (crash during this step: the next opening repeats it)
    3. recover; delete older snapshots

A log that has missed tombstones which its leader has since removed is truncated to its start and
fetched again (``truncate_fully``).

Damage below the durable offset makes the log read-only. The replica then finds out whether the
other replicas have the lost records. If so, ``open_damaged`` truncates the log, and the replica
does not vote until it has caught up.
"""

from __future__ import annotations

import contextlib
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from hashlib import sha256
from typing import TYPE_CHECKING, Final, NoReturn, Self, TypeAlias

from raftlog.errors import (
    CorruptBatchError,
    CorruptSnapshotError,
    DiskFullError,
    DivergedLogError,
    ForeignBatchError,
    FutureEpochError,
    LogError,
    LogGapError,
    LogReadOnlyError,
    TruncationRefusedError,
)
from raftlog.limits import INT64_MAX, MIB
from raftlog.log.format.directory import (
    PUBLISHED_NAME,
    RAFTLOG_PROPERTIES_NAME,
    SYNCED_NAME,
    QuorumState,
    checkpoint_name,
)
from raftlog.log.format.epoch_cache import EpochCache, EpochValidation
from raftlog.log.format.remote_chain import RemoteChain
from raftlog.log.reading.foreign_batches import find_foreign_batches
from raftlog.log.reading.transactions import (
    BatchMetadata,
    batch_metadata,
    control_of,
    followed_batches,
)
from raftlog.log.recovery.recover import RecoveredLog
from raftlog.records.batch import RecordBatch, TornTail, read_batch
from raftlog.records.control import ControlRecord, KRaftVoters, OffsetCommit
from raftlog.storage.protocol import WritableStorage
from raftlog.types import OffsetAndEpoch, SnapshotId, Valid, ValidOffsetAndEpoch

from .atomic_files import truncate_with_backup
from .key_offsets import UnchangedKeys
from .properties import LogConfig
from .replicated_log import ReplicatedLog
from .segments import LogDirectory
from .snapshots import RawSnapshotWriter, VotersAt

if TYPE_CHECKING:
    from raftlog.log.cleaning.compaction import Compaction
    from raftlog.log.reading.snapshot import SnapshotReader

# --- Cache of a log's last batches, from which nearly all follower fetches are served -------------
# The cached batches are contiguous. Their total size is bounded, but the newest batch is always
# kept.

_Batches: TypeAlias = list[tuple[bytes | memoryview, BatchMetadata]]
_VALID: Final = Valid()
TAIL_CACHE_BYTES_MAX: Final = 1 * MIB


class TailCache:
    """Consecutive batches, found by base offset."""

    def __init__(self, byte_count_max: int = TAIL_CACHE_BYTES_MAX) -> None:
        self._byte_count_max = byte_count_max
        self._bases: list[int] = []
        self._batches: list[bytes] = []
        self._byte_count = 0

    def add(self, base_offset: int, data: bytes) -> None:
        """Add the batch that was just appended to the log."""
        self._bases.append(base_offset)
        self._batches.append(data)
        self._byte_count += len(data)
        if self._byte_count > self._byte_count_max and len(self._batches) > 1:
            self._evict()

    def clear(self) -> None:
        """Drop all batches, because the log was truncated or recovered."""
        self._bases.clear()
        self._batches.clear()
        self._byte_count = 0

    def read(self, offset: int, byte_count_max: int) -> bytes:
        """Return whole batches from ``offset`` on: the first one always, and the others that fit.

        Returns b"" if no cached batch begins at ``offset``.
        """
        at = bisect_left(self._bases, offset)
        if at == len(self._bases) or self._bases[at] != offset:
            return b""
        end, left = at + 1, byte_count_max - len(self._batches[at])
        while end < len(self._batches) and len(self._batches[end]) <= left:
            left -= len(self._batches[end])
            end += 1
        return b"".join(self._batches[at:end])

    def _evict(self) -> None:
        """Evict the oldest half at a time, so that the cost per appended batch is small."""
        count = 0
        while count < len(self._batches) - 1 and self._byte_count > self._byte_count_max // 2:
            self._byte_count -= len(self._batches[count])
            count += 1
        del self._bases[:count], self._batches[:count]


@lru_cache(maxsize=16)
def _store_id(uri: str) -> int:
    location = uri.partition("?")[0].rstrip("/")
    return int.from_bytes(sha256(location.encode()).digest()[:7], "big") + 1


class TombstonesMissedError(LogError, code="RAFTLOG_TOMBSTONES_MISSED"):
    """A follower was offline for longer than ``delete.retention.ms``, and its leader has removed
    tombstones of keys that the follower may still have. The follower fetches its log again."""

    path: str
    end_offset: int
    tombstone_start_offset: int

    @property
    def reason(self) -> str:
        return (
            f"the log ended at offset {self.end_offset}, and the leader has removed tombstones "
            f"below offset {self.tombstone_start_offset} since, which were older than "
            "delete.retention.ms: keys that they deleted would return. All records of this node "
            "are fetched from the leader again"
        )

    def message(self) -> str:
        return (
            f"{self.path}: {self.reason}; restart the node, and keep nodes off for less than "
            "delete.retention.ms, or increase it"
        )


# --- Log of a replica -----------------------------------------------------------------------------


class QuorumLog(ReplicatedLog):
    """A partition's directory on one node of a quorum. Not shared between threads."""

    def __init__(self, directory: LogDirectory, config: LogConfig) -> None:
        super().__init__(directory, config)
        directory.published_name = SYNCED_NAME
        directory.is_exclusive = True
        self._high_watermark = 0
        self._received: RawSnapshotWriter | None = None
        self._tail_cache = TailCache()
        self._control: list[tuple[int, ControlRecord]] = []

    @classmethod
    def open_or_create(
        cls,
        storage: WritableStorage,
        directory: str,
        *,
        config: LogConfig,
        topic_id: str,
        now_ms: int,
    ) -> Self:
        """Open the log in a directory, or create an empty one."""
        if LogDirectory(storage, directory).has(RAFTLOG_PROPERTIES_NAME):
            log = cls.open(storage, directory, now_ms=now_ms)
        else:
            log = cls.create(
                storage,
                directory,
                config=config,
                topic_id=topic_id,
                now_ms=now_ms,
            )
        log._truncate_to_latest_snapshot()
        return log

    @classmethod
    def open_damaged(
        cls, storage: WritableStorage, directory: str, *, end_offset: int, reason: str, now_ms: int
    ) -> Self:
        """Truncate a damaged log with a backup, and open it.

        Before the truncation, it is stored durably that this replica lost acknowledged records,
        because it must not vote until it has caught up. Raises what ``truncate_log_at`` raises.
        """
        from raftlog.log.recovery.repair import truncate_log_at  # imports numpy

        files = LogDirectory(storage, directory)
        files.leave_election(
            f"the log was damaged and truncated at offset {end_offset}: {reason}\n"
        )
        log = cls.open(storage, directory, now_ms=now_ms)
        if end_offset <= log.log_start_offset > 0:  # nothing remains: start at a snapshot
            if not log.snapshots or log.snapshots[-1].end_offset < log.log_start_offset:
                raise log.report.read_only or LogReadOnlyError(
                    path=log.path,
                    offset=end_offset,
                    reason="its first batch is damaged, and there is no snapshot at the log start",
                    remedy="restart this node with an empty directory: it fetches the log again",
                )
            log._truncate_fully_and_start_at(log.snapshots[-1], is_damaged=True)
            return log
        log.close()
        properties = files.read_properties()
        assert properties is not None, "a raftlog log was opened"
        truncate_log_at(storage, directory, offset=end_offset, config=properties.config)
        log = cls.open(storage, directory, now_ms=now_ms)
        log._truncate_to_latest_snapshot()
        return log

    # --- batches of other processes ---------------------------------------------------------------

    def check_own_batches(self) -> None:
        """Check at start that only the quorum wrote the log. Raises ``ForeignBatchError``."""
        directory = self._directory
        found = find_foreign_batches(
            directory.storage.list_names(self.path),
            self.read_election_state(),
            self.epochs,
            self.log_start_offset,
            self._batch_at,
        )
        if found is not None:
            raise ForeignBatchError(
                path=self.path,
                offset=found.offset,
                reason=found.reason,
                remedy="compare the replicas with `raftlog check A,B,C`; if this one differs, "
                "format the node in a new directory, to which it fetches the log again, and "
                f"otherwise delete the file {PUBLISHED_NAME} and start the node",
            )

    def _batch_at(self, offset: int) -> RecordBatch | None:
        if not self.log_start_offset <= offset < self.end_offset:
            return None
        try:
            return next(self._segments.batches(offset, self.end_offset), None)
        except CorruptBatchError:
            return None  # damage, not another process's batch: handled where it is read

    def _check_byte_count(self) -> None:
        """Check that the active segment ends where this process left it.

        If another process appended to it, truncate these bytes and raise ``ForeignBatchError``.
        """
        active = self._segments.active
        byte_count = active.file.byte_count()
        if byte_count == active.byte_count:
            return
        reason = f"{active.path} has {byte_count} bytes instead of {active.byte_count}"
        if byte_count > active.byte_count:
            saved_as = truncate_with_backup(self._directory.storage, active.path, active.byte_count)
            reason += f"; the bytes after that were removed and saved as {saved_as}"
        raise ForeignBatchError(
            path=self.path,
            offset=self.end_offset,
            reason=reason,
            remedy="find and stop the process that writes to this directory, then start the node",
        )

    def close(self) -> None:
        """Close the log cleanly, after truncating what another process appended.

        If that fails, the files are only closed. Raises ``DiskFullError`` and ``DiskFailedError``.
        """
        try:
            if not self.is_closed and not self.is_read_only:
                with contextlib.suppress(ForeignBatchError):
                    self._check_byte_count()
        finally:
            super().close()

    # --- append -----------------------------------------------------------------------------------

    @property
    def compacted_offset(self) -> int:
        """Offset below which a state may lack keys, because this log, or one that it was fetched
        from, was compacted. 0 without a compaction. If its file is damaged, a read-only log uses
        its end offset."""
        offset = self._directory.compacted_offset()
        return self.end_offset if offset == INT64_MAX else offset

    @property
    def tombstone_start_offset(self) -> int:
        """Offset from which on this log has all tombstones; 0 if neither this log nor one that it
        was fetched from has removed any. If its file is damaged, the compacted offset, which is at
        least as large."""
        offset = self._directory.tombstone_start_offset()
        return self.compacted_offset if offset == INT64_MAX else offset

    def misses_tombstones(self, tombstone_start_offset: int) -> bool:
        """Return whether this log may hold values of keys whose tombstones it can no longer fetch.

        The leader's log has all tombstones only from ``tombstone_start_offset`` on. This log misses
        those between its own end and that offset, unless its own tombstone start is as large: then
        it either was empty when it was first fetched from a leader with that start, or it had the
        tombstones when it removed them.
        """
        end_offset = self.end_offset
        if tombstone_start_offset <= end_offset or end_offset == self.log_start_offset:
            return False
        known = self._directory.tombstone_start_offset()
        return known < tombstone_start_offset or known == INT64_MAX

    def truncate_fully(self, tombstone_start_offset: int) -> NoReturn:
        """Delete all records, durably, because ``misses_tombstones``, and close the log.

        No record is lost: a majority without this replica has them, because they were committed
        before tombstones after them were removed. The order of the durable steps:

            1. store that this replica does not vote until it has caught up, because the deleted
               records may contain voters
            2. delete ``.kafka_cleanshutdown`` and ``synced``
            3. the steps of ``LogSegments.truncate_to``

        After a crash in between, the log may still have records, and all of this is repeated.
        Raises ``TombstonesMissedError``.
        """
        self._check_writable()
        error = TombstonesMissedError(
            path=self.path,
            end_offset=self.end_offset,
            tombstone_start_offset=tombstone_start_offset,
        )
        with self._failing(also_full=True):
            self._directory.leave_election(f"{error.reason}\n")
            self._directory.remove_clean_shutdown()
            self._directory.unpublish()
            self._segments.truncate_to(self.log_start_offset, is_committed=True)
        self._release("its records are fetched again")
        raise error

    def append_as_follower(
        self,
        data: bytes,
        *,
        leader_epoch: int,
        compacted_offset: int = 0,
        tombstone_start_offset: int = 0,
    ) -> int:
        """Append a leader's batches unchanged; return the new end offset. Nothing is durable yet.

        If the leader compacted its log beyond the end of this one, the batches may lack records
        that are superseded below ``compacted_offset``. This offset is therefore stored durably
        before the batches are written. If this log is empty, the offset from which on the leader
        has all tombstones is stored first as well.

        An incomplete last batch is ignored, since fetches are limited in bytes. All batches are
        checked before the first one is written. Raises ``LogGapError`` if a batch does not begin at
        the end of the one before it, ``DivergedLogError`` if an epoch decreases,
        ``FutureEpochError`` for an epoch after ``leader_epoch``, ``CorruptBatchError``, and what
        ``append_as_leader`` raises.
        """
        found = self._plain_batches(data, leader_epoch)
        if found is None:
            found = self._checked_batches(data, leader_epoch)
        if found and compacted_offset > self.end_offset:
            with self._changing():
                self._directory.raise_compacted_offset(compacted_offset)
        if found and self.end_offset == self.log_start_offset:
            with self._changing():
                self._directory.write_tombstone_start(tombstone_start_offset)
        return self._append(found)

    def _plain_batches(self, data: bytes, leader_epoch: int) -> _Batches | None:
        """Return a leader's batches if the compiled core has checked them; otherwise None."""
        plain = followed_batches(
            data,
            self.config.values,
            end_offset=self.end_offset,
            epoch=self.epoch,
            leader_epoch=leader_epoch,
        )
        if plain is None:
            return None
        if len(plain) == 1:
            return [(data, plain[0][1])]
        view, position = memoryview(data), 0
        found: _Batches = []
        for byte_count, metadata in plain:
            found.append((view[position : position + byte_count], metadata))
            position += byte_count
        return found

    def _checked_batches(self, data: bytes, leader_epoch: int) -> _Batches:
        """Return a leader's batches, without an incomplete last one. Raises what
        ``append_as_follower`` raises."""
        found: _Batches = []
        expected, epoch, position = self.end_offset, self.epoch, 0
        while not isinstance(batch := read_batch(data, position), TornTail):
            if batch.base_offset != expected:
                raise LogGapError(
                    path=self.path,
                    position=None,
                    expected_offset=expected,
                    offset=batch.base_offset,
                )
            if batch.leader_epoch < epoch:
                raise DivergedLogError(
                    path=self.path,
                    offset=batch.base_offset,
                    expected_epoch=epoch,
                    epoch=batch.leader_epoch,
                    remedy="fetch from the leader to find the diverging epoch",
                )
            if batch.leader_epoch > leader_epoch:
                raise FutureEpochError(epoch=batch.leader_epoch, current_epoch=leader_epoch)
            view = memoryview(data)[position : position + batch.byte_count]
            found.append((view, batch_metadata(batch, self.config.values)))
            expected, epoch = batch.next_offset, batch.leader_epoch
            position += batch.byte_count
        return found

    # --- high watermark ---------------------------------------------------------------------------

    @property
    def high_watermark(self) -> int:
        """Offset below which everything is committed, as the quorum's leader reports it."""
        return self._high_watermark

    def advance_high_watermark(self, offset: int) -> None:
        """Set the high watermark. It must not decrease."""
        assert self._high_watermark <= offset <= self.end_offset, (
            "the high watermark must not decrease or exceed the end"
        )
        self._high_watermark = offset
        self._producer_state.drop_decided(offset)

    def _install(self, recovered: RecoveredLog) -> None:
        self._high_watermark = max(self._high_watermark, recovered.log_start_offset)
        super()._install(recovered)

    # --- remote storage ---------------------------------------------------------------------------

    @property
    def earliest_offset(self) -> int | None:
        """First offset of the log including its remote segments. Other replicas start there, too.

        None while it is unknown, see ``RemoteStorage``.
        """
        return self.remote.earliest_offset

    @property
    def remote_store_id(self) -> int:
        """Number that identifies the object store to which segments are copied, computed from its
        URI without the query; 0 without remote storage."""
        config = self.config
        return _store_id(config.remote_storage_uri) if config.remote_storage_enable else 0

    def delete_records(self, offset: int, *, now_ms: int, voters_at: VotersAt | None = None) -> int:
        """Delete records as ``ReplicatedLog.delete_records`` does, except with remote storage.

        A log with remote storage starts exactly at ``offset``, as in Kafka, because the batch of
        ``offset`` may be local here and remote on another replica.

        The list of remote segments is replaced before anything is deleted. After a crash in
        between, ``clean`` deletes the local segments. The leader's next runs delete the objects.
        """
        chain = self._directory.read_remote_chain()
        if chain is None and not self.config.remote_storage_enable:
            return super().delete_records(offset, now_ms=now_ms, voters_at=voters_at)
        assert offset <= self.high_watermark, "uncommitted records are not deleted"
        with self._changing():
            if chain is None:  # the next run of remote storage replaces the name of the directory
                partition = str(self._directory.partition)
                chain = RemoteChain(uri=self.config.remote_storage_uri, directory=partition)
            if offset > chain.log_start_offset:
                self._directory.write_remote_chain(chain.starting_at(offset))
        if offset > self.log_start_offset:
            super().delete_records(offset, now_ms=now_ms, voters_at=voters_at)
        return max(offset, chain.log_start_offset)

    def clean(self, *, now_ms: int, voters_at: VotersAt | None = None) -> bool:
        """Apply retention as ``ReplicatedLog.clean`` does, and delete local segments below the
        start of the whole log.

        Kafka: ``UnifiedLog.deleteLogStartOffsetBreachedSegments``.
        """
        before, chain = self.log_start_offset, self.remote.chain()
        if chain is not None and before < chain.log_start_offset <= self.high_watermark:
            super().delete_records(chain.log_start_offset, now_ms=now_ms, voters_at=voters_at)
        is_changed = super().clean(now_ms=now_ms, voters_at=voters_at)
        return is_changed or self.log_start_offset > before

    # --- leader epochs and truncation -------------------------------------------------------------

    @property
    def _epoch_validation(self) -> EpochValidation:
        return EpochValidation(
            log_start_offset=self.log_start_offset,
            log_end_offset=self.end_offset,
            epochs=self.epochs,
            snapshots=self.snapshots,
        )

    def validate_offset_and_epoch(self, *, offset: int, epoch: int) -> ValidOffsetAndEpoch:
        """Return whether a follower whose last record has ``epoch`` may fetch from ``offset``."""
        is_latest = epoch == self.epochs.latest_epoch and not self.snapshots
        if is_latest and self.log_start_offset < offset <= self.end_offset:
            return _VALID  # ``validate`` returns this too, for nearly every fetch of a follower
        return self._epoch_validation.validate(offset=offset, epoch=epoch)

    def truncate_to_end_of_epoch(self, diverging: OffsetAndEpoch) -> int:
        """Truncate as a leader's ``Diverging`` response requires; return the new end offset."""
        self.truncate_to(self._epoch_validation.truncation_offset(diverging))
        return self.end_offset

    def truncate_to(self, offset: int) -> None:
        """Truncate all batches that do not end below ``offset``. Durable on return.

        The order of the durable steps:

            1. delete ``.kafka_cleanshutdown``
            2. raise the recovery point to the high watermark, so that recovery does not treat
               damage below it as a torn tail
            3. delete ``synced``, which would remain valid within this boot
            4. the steps of ``LogSegments.truncate_to``; then recover

        Raises ``TruncationRefusedError`` if ``offset`` is below the high watermark, and
        ``LogReadOnlyError`` if recovery finds damage below it.
        """
        self._check_writable()
        if offset < self.high_watermark:
            raise TruncationRefusedError(
                path=self.path, offset=offset, high_watermark=self.high_watermark
            )
        if offset >= self.end_offset:
            return
        with self._changing(), self._failing(also_full=True):
            committed = min(self._high_watermark, self.synced_end_offset)
            self._segments.write_recovery_point(max(self._segments.recovery_point, committed))
            self._directory.unpublish()
            self._segments.truncate_to(offset)
            self._recover()
            self._check_writable()

    # --- reads ------------------------------------------------------------------------------------

    @property
    def last_fetched_epoch(self) -> int:
        """Epoch of the last record, or of the snapshot at which an empty log starts; else 0."""
        entries = self._segments.epochs.entries  # read in each step of the replica
        return entries[-1].epoch if entries else self._epoch_validation.last_fetched_epoch

    def snapshot_byte_count(self, snapshot_id: SnapshotId) -> int | None:
        """Return the size of a snapshot's file; None if it is not among ``snapshots``."""
        if snapshot_id not in self.snapshots:
            return None
        path = self._directory.file(checkpoint_name(snapshot_id))
        with self._directory.storage.open_file(path) as file:
            return file.byte_count()

    def read_snapshot_bytes(self, snapshot_id: SnapshotId, position: int, byte_count: int) -> bytes:
        """Read bytes of a snapshot's file."""
        path = self._directory.file(checkpoint_name(snapshot_id))
        with self._directory.storage.open_file(path) as file:
            return file.read_at(position, byte_count)

    def read_bytes(self, offset: int, byte_count_max: int) -> bytes:
        """Return batches from a batch boundary on; the last one may be incomplete.

        The result has at least one whole batch and otherwise at most ``byte_count_max`` bytes. It
        is b"" at the end of the log.
        """
        if offset >= self.end_offset:
            return b""
        return self._tail_cache.read(offset, byte_count_max) or self.read_stored_bytes(
            offset, byte_count_max
        )

    def replace_compacted(self, compaction: Compaction) -> Iterator[None]:
        """Replace segments as ``ReplicatedLog.replace_compacted`` does, and clear the tail cache.

        Otherwise a follower could receive removed records from the cache, and then read segments
        that no longer have their tombstones.
        """
        for _ in super().replace_compacted(compaction):
            self._tail_cache.clear()
            yield

    def check_unchanged(self, unchanged: UnchangedKeys, record_count: int) -> None:
        """Check a condition as ``ReplicatedLog.check_unchanged`` does, but read no batches below
        the start of the epoch: this replica may have fetched those from a leader that had compacted
        them."""
        epochs = self.epochs.entries
        self._segments.check_unchanged(
            unchanged,
            record_count,
            end_offset=self.end_offset,
            at_least=epochs[-1].start_offset if epochs else 0,
        )

    def read_stored_bytes(self, offset: int, byte_count_max: int) -> bytes:
        """Return batches as ``read_bytes`` does, without the tail cache."""
        return self._segments.read_bytes(offset, byte_count_max)

    def open_snapshot(self, snapshot_id: SnapshotId) -> SnapshotReader:
        """Open one of ``snapshots`` for reading."""
        from raftlog.log.reading.files import LogFiles  # imports numpy
        from raftlog.log.reading.snapshot import SnapshotReader

        return SnapshotReader(
            LogFiles.of_directory(self._directory.storage, self.path), snapshot_id
        )

    @property
    def is_out_of_election(self) -> bool:
        """Whether this replica lost acknowledged records and has not caught up since."""
        return self._directory.is_out_of_election()

    def out_of_election_reason(self) -> str | None:
        """Return why this replica does not vote; None if it does."""
        return self._directory.read_out_of_election_reason()

    def read_election_state(self) -> QuorumState | None:
        """Read ``quorum-state``; None before the first election."""
        return self._directory.read_quorum_state()

    def snapshot_voters(self) -> tuple[int, KRaftVoters | None, int | None] | None:
        """Return the newest snapshot's last offset, voters and kraft.version; None without one."""
        if not self.snapshots:
            return None
        newest = self.snapshots[-1]
        reader = self.open_snapshot(newest)
        return newest.end_offset - 1, reader.voters, reader.kraft_version or None

    def control_records(self) -> Iterator[tuple[int, ControlRecord]]:
        """Yield the control records after the newest snapshot with their offsets, in order."""
        for batch in self._batches_after_snapshot():
            if batch.is_control:
                yield from control_of(batch_metadata(batch, self.config.values))

    def valid_end_offset(self) -> int:
        """Return where damage begins in the records after the newest snapshot, or their end.

        This reads the segments below the recovery point, too, which recovery does not read.
        """
        offset = self._offset_after_snapshot
        try:
            for batch in self._batches_after_snapshot():
                offset = batch.next_offset
        except CorruptBatchError:
            pass
        return offset

    @property
    def _offset_after_snapshot(self) -> int:
        newest = self.snapshots[-1].end_offset if self.snapshots else 0
        return max(self.log_start_offset, newest)

    def _batches_after_snapshot(self) -> Iterator[RecordBatch]:
        start = self._offset_after_snapshot
        if start < self.end_offset:
            yield from self._segments.batches(start, self.end_offset)

    def drain_control_records(self) -> list[tuple[int, ControlRecord]]:
        """Return the control records appended since the last call, with their offsets, except
        committed offsets of consumer groups."""
        taken, self._control = self._control, []
        return taken

    # --- elections, epochs and snapshots ----------------------------------------------------------

    def write_election_state(self, state: QuorumState) -> None:
        """Replace ``quorum-state``; durable on return. If the disk is full, nothing changes."""
        with self._failing():
            self._directory.write_quorum_state(state)

    def rejoin_election(self) -> None:
        """Let this replica vote again, because it has caught up; durable on return."""
        with self._failing(also_full=True):
            self._directory.rejoin_election()

    def begin_epoch(self, epoch: int, head: Sequence[ControlRecord], *, now_ms: int) -> None:
        """Begin an epoch as leader, with ``head`` as its first batch.

        Only the start of the epoch is durable on return. An open metadata transaction of an earlier
        epoch is aborted right after ``head``. After a ``DiskFullError``, repeat the call with the
        same arguments before any other change.
        """
        assert epoch >= self.epoch, "the epoch must not decrease"
        with self._changing():
            before = self.epochs
            if epoch > self.epoch:
                try:
                    self._segments.begin_epoch(epoch, start_offset=self.end_offset)
                    self.append_control(head, now_ms=now_ms)
                except DiskFullError:
                    self._segments.revert_epoch(before)
                    raise
            if self._producer_state.open_transaction is not None:
                self._append_abort(now_ms)

    @property
    def is_receiving_snapshot(self) -> bool:
        """Whether a snapshot is being fetched and is not installed yet."""
        return self._received is not None

    def store_snapshot_bytes(self, snapshot_id: SnapshotId, position: int, data: bytes) -> None:
        """Store fetched bytes of a snapshot; position 0 starts again.

        Raises ``DiskFullError``, after which all received bytes are deleted and the fetch must
        start again; and ``LogLockedError`` while this node writes another snapshot, in which case
        retry later.
        """
        self._check_writable()
        with self._failing():
            try:
                if position == 0:
                    self.drop_received_snapshot()
                    self._received = RawSnapshotWriter(self._directory, snapshot_id)
                assert self._received is not None, "position 0 must be stored first"
                assert position == self._received.byte_count, "bytes must be received in order"
                self._received.append(data)
            except DiskFullError:
                self.drop_received_snapshot()
                raise

    def drop_received_snapshot(self) -> None:
        """Delete the received bytes of a snapshot and release its lock."""
        received, self._received = self._received, None
        if received is not None:
            with self._failing(also_full=True):
                received.close()

    def install_snapshot(self, snapshot_id: SnapshotId) -> SnapshotReader:
        """Install a completely received snapshot, and start the log at its end, durably.

        Returns its reader, which has read the whole file before the file got its final name. Raises
        ``CorruptSnapshotError``; the snapshot is then deleted and the log is unchanged.
        """
        from raftlog.log.reading.files import LogFiles  # imports numpy
        from raftlog.log.reading.snapshot import SnapshotReader

        self._check_writable()
        received, self._received = self._received, None
        assert received is not None, "its bytes must be stored first"
        assert received.snapshot_id == snapshot_id, "one snapshot is fetched at a time"
        files = LogFiles.of_checkpoint(self._directory.storage, received.path, snapshot_id)
        reader = SnapshotReader(files, snapshot_id)
        with self._failing(also_full=True):
            try:
                with received:  # deletes it unless it is frozen
                    for _ in reader.batches():
                        pass
                    received.freeze()
            except CorruptSnapshotError as error:
                damage = error
            else:
                self._segments.list_snapshots()
                self._truncate_to_latest_snapshot()
                self._segments.delete_snapshots_before(snapshot_id)
                return reader
        raise damage

    def _truncate_to_latest_snapshot(self) -> None:
        """Start at the newest snapshot if it is later than the log and loses no durable record."""
        if not self.snapshots:
            return
        newest = self.snapshots[-1]
        own = SnapshotId(epoch=self.last_fetched_epoch, end_offset=self.end_offset)
        if newest <= own or self._has_lost_records_after(newest):
            return
        self._truncate_fully_and_start_at(newest)

    def _has_lost_records_after(self, snapshot_id: SnapshotId) -> bool:
        """Return whether durable records after the snapshot are missing."""
        if not self.is_read_only:
            return False
        published = self._directory.published()
        synced = 0 if published is None else published.end_offset
        return max(self._segments.recovery_point, synced) > snapshot_id.end_offset

    def _truncate_fully_and_start_at(
        self, snapshot_id: SnapshotId, *, is_damaged: bool = False
    ) -> None:
        with self._failing(also_full=True):
            self._directory.remove_clean_shutdown()
            self._directory.unpublish()
            deleted = self._segments.truncate_fully_and_start_at(snapshot_id, is_damaged=is_damaged)
            self._recover()
            self.report = replace(self.report, deleted_backups=deleted)
            self._high_watermark = max(self._high_watermark, snapshot_id.end_offset)

    def _write(
        self, batches: Sequence[tuple[bytes | memoryview, BatchMetadata]], epochs: EpochCache
    ) -> None:
        self._check_byte_count()
        super()._write(batches, epochs)

    def _note_written(self, data: bytes | memoryview, metadata: BatchMetadata) -> None:
        super()._note_written(data, metadata)
        self._tail_cache.add(metadata.base_offset, bytes(data))
        if metadata.control:
            self._control += [
                one for one in control_of(metadata) if not isinstance(one[1], OffsetCommit)
            ]

    def _recover(self) -> None:
        self._tail_cache.clear()
        super()._recover()
        if not self.is_read_only and self._directory.compacted_offset() == INT64_MAX:
            # The file is damaged. Until it is rewritten, its offset counts as the end of the log,
            # which every append moves, so remote storage would copy nothing. Batches that are
            # fetched from here on have the leader's offset.
            self._directory.raise_compacted_offset(0, offset_max=self.end_offset)

    def _release(self, reason: str) -> None:
        if self._received is not None:
            self._received.abandon()
        super()._release(reason)
