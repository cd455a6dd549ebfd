"""Comparison of two copies of one log, batch by batch.

Replicas hold the same batches, byte for byte; copies may differ within one leader epoch (KIP-101,
KAFKA-3919). Compaction runs on each replica by itself: batches that it touched and batches that are
missing are skipped. Damage ends the comparison; ``raftlog check`` of that copy reports it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from raftlog.errors import CorruptBatchError, DataLossError, LogGapError, SegmentDeletedError
from raftlog.records.batch import RecordBatch

from .directory_log import DirectoryLog


@dataclass(frozen=True, slots=True)
class Divergence:
    """First offset at which two copies differ, and the batch of each copy that contains it."""

    offset: int
    one: RecordBatch
    other: RecordBatch

    def text(self) -> str:
        """Return both batches as text: path, position, offsets, epoch, size and CRC."""
        return f"{_describe(self.one)}; {_describe(self.other)}"


def first_divergence(one: DirectoryLog, other: DirectoryLog) -> Divergence | None:
    """Return the first divergence in the offsets that both copies have; None if they are equal."""
    start_offset = max(one.log_start_offset, other.log_start_offset)
    end_offset = min(one.log_end_offset, other.log_end_offset)
    one_batches = _whole_batches(one, start_offset, end_offset)
    other_batches = _whole_batches(other, start_offset, end_offset)
    left, right = next(one_batches, None), next(other_batches, None)
    while left is not None and right is not None:
        if left.last_offset < right.base_offset:
            left = next(one_batches, None)
        elif right.last_offset < left.base_offset:
            right = next(other_batches, None)
        elif _identity(left) != _identity(right):
            offset = max(left.base_offset, right.base_offset, start_offset)
            return Divergence(offset, left, right)
        else:
            left, right = next(one_batches, None), next(other_batches, None)
    return None


def _whole_batches(log: DirectoryLog, start_offset: int, end_offset: int) -> Iterator[RecordBatch]:
    """Yield the batches of a range that compaction did not touch, up to the first damage."""
    try:
        for batch in log.batches(start_offset, end_offset):
            is_dense = batch.last_offset - batch.base_offset + 1 == batch.record_count
            if is_dense and batch.delete_horizon_ms is None:
                yield batch
    except (CorruptBatchError, DataLossError, LogGapError, SegmentDeletedError):
        return


def _identity(batch: RecordBatch) -> tuple[int, int, int, int, int]:
    return (
        batch.base_offset,
        batch.last_offset,
        batch.leader_epoch,
        batch.byte_count,
        batch.crc,
    )


def _describe(batch: RecordBatch) -> str:
    return (
        f"{batch.path} at byte {batch.position} has offsets {batch.base_offset} to "
        f"{batch.last_offset} of epoch {batch.leader_epoch}, {batch.byte_count} bytes with CRC "
        f"{batch.crc:08x}"
    )
