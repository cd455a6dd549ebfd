"""Writing snapshots: bytes that are visible only when they are complete, and a state's records."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Final

from raftlog.closeable import Closeable
from raftlog.errors import LogError, LogLockedError, LogNotFoundError
from raftlog.limits import BATCH_BYTES_MAX
from raftlog.log.format.directory import CHECKPOINT_SUFFIX, checkpoint_name
from raftlog.records.builder import BatchBuilder
from raftlog.records.compression import Compression
from raftlog.records.control import (
    ControlRecord,
    KRaftVersion,
    KRaftVoters,
    SnapshotFooter,
    SnapshotHeader,
    encode_control,
)
from raftlog.records.encoding import RecordToAppend
from raftlog.records.record import NewRecord
from raftlog.storage.protocol import WritableFile
from raftlog.types import SnapshotId

from .producer_state import ProducerStateManager
from .segments import LogDirectory

# --- Write the bytes of one checkpoint, which gets its name when it is complete and synced --------
#     create   <end offset>-<epoch>-0.checkpoint.part     ignored by every reader
#     write, sync, set read-only
#     rename   <end offset>-<epoch>.checkpoint
#     sync the directory                                  the snapshot is durable
#
# A directory has at most one writer at a time, whether a state machine, retention or a fetch from
# the leader writes the snapshot: the writer holds ``.snapshot.lock``. Only the holder of the lock
# deletes ``.part`` files, because then no live writer has them open.
#
# Kafka: ``FileRawSnapshotWriter``, used by ``RecordsSnapshotWriter`` and by
# ``KafkaRaftClient.handleFetchSnapshotResponse``.

PART_SUFFIX: Final = CHECKPOINT_SUFFIX + ".part"
SNAPSHOT_LOCK_NAME: Final = ".snapshot.lock"


class RawSnapshotWriter(Closeable):
    """One checkpoint file that is being written. Not shared between threads.

    End it with ``freeze``, or with ``close``, which deletes it. Raises ``LogLockedError`` if
    another snapshot is being written in this directory.
    """

    def __init__(self, directory: LogDirectory, snapshot_id: SnapshotId) -> None:
        self.snapshot_id: Final = snapshot_id
        self.path: Final = directory.file(f"{snapshot_id}-0{PART_SUFFIX}")
        self.byte_count = 0
        self._directory = directory
        self._file: WritableFile | None = None
        lock = directory.storage.try_lock(directory.file(SNAPSHOT_LOCK_NAME))
        if lock is None:
            raise LogLockedError(path=directory.file(SNAPSHOT_LOCK_NAME), waited_ms=0)
        self._lock = lock
        try:
            directory.unlink(_part_names(directory))
            self._file = directory.storage.create_file(self.path)
        except LogError:
            lock.release()
            raise

    def append(self, data: bytes) -> None:
        """Append bytes. Raises ``DiskFullError`` and ``DiskFailedError``."""
        self._open_file().write_at(self.byte_count, data)
        self.byte_count += len(data)

    def freeze(self) -> None:
        """Sync the file, rename it to its final name, durably, and release the lock."""
        file = self._open_file()
        file.sync()
        file.close()
        self._file = None
        storage = self._directory.storage
        storage.set_read_only(self.path)
        storage.rename(self.path, self._directory.file(checkpoint_name(self.snapshot_id)))
        self._directory.sync()
        self._lock.release()

    def close(self) -> None:
        """Delete the file unless it is frozen, and release the lock. May be called twice."""
        try:
            if self._file is not None:
                self._file.close()
                self._file = None
                with contextlib.suppress(LogNotFoundError):
                    self._directory.storage.unlink(self.path)
        finally:
            self._lock.release()

    def abandon(self) -> None:
        """Close the file after a storage failure, without deleting it: the next writer does."""
        if self._file is not None:
            self._file.close()
            self._file = None
        self._lock.release()

    def _open_file(self) -> WritableFile:
        assert self._file is not None, "the writer is frozen or closed"
        return self._file


def delete_unfinished_snapshots(directory: LogDirectory) -> None:
    """Delete ``.part`` files of dead writers; none while a live writer holds the lock."""
    if not _part_names(directory):
        return
    lock = directory.storage.try_lock(directory.file(SNAPSHOT_LOCK_NAME))
    if lock is None:
        return
    with lock:
        directory.unlink(_part_names(directory))


def _part_names(directory: LogDirectory) -> list[str]:
    names = directory.storage.list_names(directory.path)
    return [name for name in names if name.endswith(PART_SUFFIX)]


# --- Write a checkpoint of records: ``<end offset>-<epoch>.checkpoint`` (KIP-630) -----------------
# Offsets in it start at 0, and every batch has the epoch of the snapshot id. The first batch is a
# control batch of SnapshotHeader and, where known, KRaftVersion and KRaftVoters; the last one is a
# SnapshotFooter. ``RawSnapshotWriter`` has the lock, the names and the order of the durable steps.
# Kafka: ``RecordsSnapshotWriter``.


def snapshot_head(
    producer_state: ProducerStateManager,
    *,
    last_contained_log_timestamp_ms: int,
    kraft_version: int | None,
    voters: KRaftVoters | None,
) -> tuple[ControlRecord, ...]:
    """Return the first batch of a checkpoint: Kafka's control records and the producer state.

    A ``kraft_version`` of None or 0 is not written, as in Kafka.
    """
    head: list[ControlRecord] = [
        SnapshotHeader(
            last_contained_log_timestamp_ms=last_contained_log_timestamp_ms,
            tagged_fields=(producer_state.to_header_field(),),
        )
    ]
    if kraft_version:
        head.append(KRaftVersion(kraft_version=kraft_version))
        if voters is not None:
            head.append(voters)
    return tuple(head)


class SnapshotWriter(Closeable):
    """One checkpoint that is being written. Not shared between threads.

    End it with ``freeze``, or with ``close``, which deletes it. Raises ``LogLockedError`` if
    another snapshot is being written in this directory.
    """

    def __init__(
        self,
        directory: LogDirectory,
        snapshot_id: SnapshotId,
        head: Sequence[ControlRecord],
        *,
        now_ms: int,
        batch_bytes_max: int,
        compression: Compression,
        on_frozen: Callable[[SnapshotId], None],
    ) -> None:
        self.snapshot_id: Final = snapshot_id
        self._now_ms = now_ms
        self._batch_bytes_max = batch_bytes_max
        self._compression = compression
        self._on_frozen = on_frozen
        self._next_offset = 0
        self._builder: BatchBuilder | None = None
        self._raw = RawSnapshotWriter(directory, snapshot_id)
        try:
            self.append_control(head)
        except LogError:
            self.close()
            raise

    @property
    def byte_count(self) -> int:
        """Bytes that were written so far."""
        return self._raw.byte_count

    def append(self, records: Sequence[RecordToAppend]) -> None:
        """Append records of the state, in as many batches as needed.

        Raises ``RecordBatchTooLargeError`` for a record that fits into no batch, ``DiskFullError``.
        """
        at = 0
        while at < len(records):
            builder = self._builder or self._new_builder(is_control=False)
            self._builder = builder
            count = builder.fitting_record_count(records, at)
            if count:
                builder.append(records[at : at + count])
                at += count
            elif builder.record_count:
                self._write(builder)
            else:
                raise builder.too_large(records[at : at + 1])

    def append_control(self, records: Sequence[ControlRecord]) -> None:
        """Append control records in a batch of their own."""
        self._flush()
        builder = self._new_builder(is_control=True)
        builder.append([NewRecord(*encode_control(record)) for record in records])
        self._write(builder)

    def freeze(self) -> SnapshotId:
        """Append the footer and rename the file to its final name; durable on return."""
        self.append_control([SnapshotFooter()])
        self._raw.freeze()
        self._on_frozen(self.snapshot_id)
        return self.snapshot_id

    def close(self) -> None:
        """Delete the file unless it is frozen. May be called twice."""
        self._raw.close()

    # --- batches ----------------------------------------------------------------------------------

    def _new_builder(self, *, is_control: bool) -> BatchBuilder:
        return BatchBuilder(
            base_timestamp_ms=self._now_ms,
            byte_count_max=max(self._batch_bytes_max, BATCH_BYTES_MAX)
            if is_control  # the header holds the whole producer state
            else self._batch_bytes_max,
            compression=Compression.NONE if is_control else self._compression,
            is_control=is_control,
        )

    def _flush(self) -> None:
        if self._builder is not None and self._builder.record_count:
            self._write(self._builder)

    def _write(self, builder: BatchBuilder) -> None:
        data = builder.build(self._next_offset, self.snapshot_id.epoch).data
        self._raw.append(data)
        self._next_offset += builder.record_count
        self._builder = None
