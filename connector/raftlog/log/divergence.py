"""Compare two copies of one log, batch by batch: where do they differ first?

Rules of this file:

1. Replicas hold the same batches, byte for byte. Compaction is each replica's own: a batch that
   lost records, or whose control records wait for deletion, and one that is missing, are passed
   over.
2. Damage ends the comparison: it is reported by the check of that copy.
3. Kafka: KIP-101 (KAFKA-3919): copies may differ in an epoch, and without epochs in bytes alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from raftlog.errors import CorruptBatchError, DataLossError, LogGapError, SegmentDeletedError
from raftlog.records.batch import RecordBatch

from .directory_log import DirectoryLog


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first offset at which two copies differ, and the batch of each that holds it."""

    offset: int
    one: RecordBatch
    other: RecordBatch

    def text(self) -> str:
        """What is where."""
        return f"{_described(self.one)}; {_described(self.other)}"


def first_divergence(one: DirectoryLog, other: DirectoryLog) -> Divergence | None:
    """Return where two copies differ first, in the offsets that both have; None if they agree."""
    start_offset = max(one.log_start_offset, other.log_start_offset)
    end_offset = min(one.log_end_offset, other.log_end_offset)
    of_one = _whole_batches(one, start_offset, end_offset)
    of_other = _whole_batches(other, start_offset, end_offset)
    left, right = next(of_one, None), next(of_other, None)
    while left is not None and right is not None:
        if left.last_offset < right.base_offset:
            left = next(of_one, None)
        elif right.last_offset < left.base_offset:
            right = next(of_other, None)
        elif _identity(left) != _identity(right):
            offset = max(left.base_offset, right.base_offset, start_offset)
            return Divergence(offset, left, right)
        else:
            left, right = next(of_one, None), next(of_other, None)
    return None


def _whole_batches(log: DirectoryLog, start_offset: int, end_offset: int) -> Iterator[RecordBatch]:
    """The batches of a range that compaction did not touch, up to damage."""
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


def _described(batch: RecordBatch) -> str:
    return (
        f"{batch.path} at byte {batch.position} has offsets {batch.base_offset} to "
        f"{batch.last_offset} of epoch {batch.leader_epoch}, {batch.byte_count} bytes with CRC "
        f"{batch.crc:08x}"
    )
