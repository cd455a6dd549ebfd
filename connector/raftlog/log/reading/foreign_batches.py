"""Batches in a replica's log that its quorum did not write. No I/O.

Before a node appends a batch of an epoch, it stores the epoch in ``quorum-state``, and its leader
once that is known. Each epoch begins with its leader's leader change record. A log that contradicts
this contains batches of another process. A log with the file ``published`` may contain some too,
because only writers of embedded logs create that file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from raftlog.log.format.directory import PUBLISHED_NAME, QuorumState
from raftlog.log.format.epoch_cache import EpochCache
from raftlog.log.segment import control_records
from raftlog.records.batch import RecordBatch
from raftlog.records.control import LeaderChange


@dataclass(frozen=True, slots=True)
class ForeignBatches:
    """Offset at which they begin, None if unknown, and how they were found."""

    offset: int | None
    reason: str


def find_foreign_batches(
    names: Iterable[str],
    state: QuorumState | None,
    epochs: EpochCache,
    log_start_offset: int,
    batch_at: Callable[[int], RecordBatch | None],
) -> ForeignBatches | None:
    """Return the evidence that a replica's log has batches of another process, or None.

    ``names`` are the files of its directory, and ``state`` is its quorum-state. ``epochs`` are the
    epochs of its batches, the first of which may have begun before ``log_start_offset``.
    ``batch_at`` returns the batch with a base offset, or None.
    """
    if state is not None:
        for entry in epochs.entries:
            batch = batch_at(entry.start_offset) if entry.epoch >= state.leader_epoch else None
            if batch is None:
                continue
            if entry.epoch > state.leader_epoch:
                reason = (
                    f"its leader epoch is {entry.epoch}, and the latest epoch in quorum-state is "
                    f"{state.leader_epoch}"
                )
                return ForeignBatches(entry.start_offset, reason)
            if 0 < entry.start_offset <= log_start_offset:
                continue
            leader_id = _leader_id(batch)
            if state.leader_id not in (None, leader_id):
                begun = "does not begin with a leader change record"
                if leader_id is not None:
                    begun = f"was begun by leader {leader_id}"
                reason = (
                    f"leader epoch {entry.epoch} {begun}, and its leader in quorum-state is "
                    f"{state.leader_id}"
                )
                return ForeignBatches(entry.start_offset, reason)
    if PUBLISHED_NAME in names:
        reason = f"the file {PUBLISHED_NAME} shows that it was opened as an embedded log"
        return ForeignBatches(None, reason)
    return None


def _leader_id(batch: RecordBatch) -> int | None:
    """Return the leader in a batch's first record; None if that is not a leader change."""
    first = next(iter(control_records(batch)), None) if batch.is_control else None
    return first.leader_id if isinstance(first, LeaderChange) else None
