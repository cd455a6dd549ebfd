"""Write a checkpoint: ``<end offset>-<epoch>.checkpoint``, never seen before it is whole (KIP-630).

Rules of this file:

1. ``RawSnapshotWriter`` writes the bytes, and has the lock, the names and the order of the steps.
2. Offsets in it begin at 0; every batch has the epoch of the snapshot's id. It begins with a
   SnapshotHeader, and KRaftVersion and KRaftVoters behind it where they are known, in one control
   batch, and ends with a SnapshotFooter.
3. Kafka: ``RecordsSnapshotWriter``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from raftlog.closeable import Closeable
from raftlog.errors import LogError
from raftlog.limits import BATCH_BYTES_MAX
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
from raftlog.types import SnapshotId

from .log_directory import LogDirectory
from .producer_state_manager import ProducerStateManager
from .raw_snapshot_writer import RawSnapshotWriter


def snapshot_head(
    producer_state: ProducerStateManager,
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
        """How many bytes are written so far."""
        return self._raw.byte_count

    def append(self, records: Sequence[RecordToAppend]) -> None:
        """Append records of the state, split over as many batches as it takes.

        Raises ``RecordBatchTooLargeError`` for one that fits into no batch, ``DiskFullError``.
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
        """Append control records as a batch of their own."""
        self._flush()
        builder = self._new_builder(is_control=True)
        builder.append([NewRecord(*encode_control(record)) for record in records])
        self._write(builder)

    def freeze(self) -> SnapshotId:
        """Finish it: whole, durable and under its name on return."""
        self.append_control([SnapshotFooter()])
        self._raw.freeze()
        self._on_frozen(self.snapshot_id)
        return self.snapshot_id

    def close(self) -> None:
        """Drop what was written, unless it is frozen. Closing twice is allowed."""
        self._raw.close()

    # --- how --------------------------------------------------------------------------------------

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
        self._raw.append(data)
        self._next_offset += builder.record_count
        self._builder = None
