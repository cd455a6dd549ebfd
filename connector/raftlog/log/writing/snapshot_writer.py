"""Write a checkpoint: ``<end offset>-<epoch>.checkpoint``, never seen before it is whole (KIP-630).

Rules of this file:

1. It is written as ``<name>-<n>.checkpoint.part``; ``freeze`` syncs it, takes the right to write
   away, renames it and syncs the directory. Whatever lies under the first name is of no use.
2. Offsets in it begin at 0; every batch has the epoch of the snapshot's id. It begins with a
   SnapshotHeader, and KRaftVersion and KRaftVoters behind it where they are known, in one control
   batch, and ends with a SnapshotFooter.
3. One is written at a time: who begins holds ``.snapshot.lock``, and so may take away what a dead
   one left. Kafka: ``RecordsSnapshotWriter``, ``FileRawSnapshotWriter``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Final

from raftlog.closing import Closing
from raftlog.errors import LogError, LogLockedError, LogNotFoundError, RecordBatchTooLargeError
from raftlog.limits import BATCH_BYTES_MAX
from raftlog.log.names import CHECKPOINT_SUFFIX, checkpoint_name
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

from .log_directory import LogDirectory
from .memory import LogMemory

PART_SUFFIX: Final = CHECKPOINT_SUFFIX + ".part"
SNAPSHOT_LOCK_NAME: Final = ".snapshot.lock"


def snapshot_head(
    memory: LogMemory,
    *,
    last_contained_log_timestamp_ms: int,
    kraft_version: int | None,
    voters: KRaftVoters | None,
) -> tuple[ControlRecord, ...]:
    """The first batch of a checkpoint: what Kafka says there, and what the log remembered.

    A ``kraft_version`` of None or 0 is not written, as Kafka does not write it.
    """
    head: list[ControlRecord] = [
        SnapshotHeader(
            last_contained_log_timestamp_ms=last_contained_log_timestamp_ms,
            tagged_fields=(memory.to_header_field(),),
        )
    ]
    if kraft_version:
        head.append(KRaftVersion(kraft_version=kraft_version))
        if voters is not None:
            head.append(voters)
    return tuple(head)


class SnapshotWriter(Closing):
    """One checkpoint that is being written. Not shared between threads.

    Give it back: by ``freeze``, or by ``close``, which drops what was written. Raises
    ``LogLockedError`` if another one is being written.
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
        self._directory = directory
        self._now_ms = now_ms
        self._batch_bytes_max = batch_bytes_max
        self._compression = compression
        self._on_frozen = on_frozen
        self._byte_count = 0
        self._next_offset = 0
        self._builder: BatchBuilder | None = None
        lock = directory.storage.try_lock(directory.file(SNAPSHOT_LOCK_NAME))
        if lock is None:
            raise LogLockedError(path=directory.file(SNAPSHOT_LOCK_NAME), waited_ms=0)
        self._lock = lock
        self._file: WritableFile | None = None
        try:
            self._name = self._fresh_name()
            self._file = directory.storage.create_file(directory.file(self._name))
            self.append_control(head)
        except LogError:
            self.close()
            raise

    @property
    def byte_count(self) -> int:
        """How many bytes are written so far."""
        return self._byte_count

    def append(self, records: Sequence[RecordToAppend]) -> None:
        """Append records of the state, split over as many batches as it takes.

        Raises ``RecordBatchTooLargeError`` for one that fits into no batch, ``DiskFullError``.
        """
        at = 0
        while at < len(records):
            builder = self._builder or self._new_builder(is_control=False)
            self._builder = builder
            count = builder.count_that_fits(records, at)
            if count:
                builder.append(records[at : at + count])
                at += count
            elif builder.record_count:
                self._write(builder)
            else:
                needed = builder.bytes_needed(records[at : at + 1])
                raise RecordBatchTooLargeError(
                    byte_count=needed or self._batch_bytes_max,
                    byte_count_max=self._batch_bytes_max,
                )

    def append_control(self, records: Sequence[ControlRecord]) -> None:
        """Append control records as a batch of their own."""
        self._flush()
        builder = self._new_builder(is_control=True)
        builder.append([NewRecord(*encode_control(record)) for record in records])
        self._write(builder)

    def freeze(self) -> SnapshotId:
        """Finish it: whole, durable and under its name on return."""
        self.append_control([SnapshotFooter()])
        storage = self._directory.storage
        part = self._directory.file(self._name)
        file = self._open_file()
        file.sync()
        file.close()
        self._file = None
        storage.set_read_only(part)
        storage.rename(part, self._directory.file(checkpoint_name(self.snapshot_id)))
        self._directory.sync()
        self._lock.release()
        self._on_frozen(self.snapshot_id)
        return self.snapshot_id

    def close(self) -> None:
        """Drop what was written, unless it is frozen. Closing twice is allowed."""
        if self._file is not None:
            self._file.close()
            self._file = None
            with contextlib.suppress(LogNotFoundError):
                self._directory.storage.unlink(self._directory.file(self._name))
        self._lock.release()

    # --- how --------------------------------------------------------------------------------------

    def _fresh_name(self) -> str:
        names = self._directory.storage.list_names(self._directory.path)
        self._directory.unlink(name for name in names if name.endswith(PART_SUFFIX))
        return f"{self.snapshot_id}-0{PART_SUFFIX}"

    def _open_file(self) -> WritableFile:
        assert self._file is not None, "it is neither frozen nor closed"
        return self._file

    def _new_builder(self, *, is_control: bool) -> BatchBuilder:
        return BatchBuilder(
            base_timestamp_ms=self._now_ms,
            byte_count_max=max(self._batch_bytes_max, BATCH_BYTES_MAX)
            if is_control  # the header holds what the log remembers, whatever its batches may
            else self._batch_bytes_max,
            compression=Compression.NONE if is_control else self._compression,
            is_control=is_control,
        )

    def _flush(self) -> None:
        if self._builder is not None and self._builder.record_count:
            self._write(self._builder)

    def _write(self, builder: BatchBuilder) -> None:
        data = builder.build(self._next_offset, self.snapshot_id.epoch)
        self._open_file().write_at(self._byte_count, data)
        self._byte_count += len(data)
        self._next_offset += builder.record_count
        self._builder = None
