"""How a stream goes on: is its place still in the log, and where does the next batch end.

Rules of this file:

1. Every answer follows from the log's ends, epochs and checkpoints and from the offset that Spark
   kept. Nothing here waits, looks at a clock or remembers.
2. A log's end may fall between two looks (a voter's directory lags): that is no loss, the stream
   waits. Loss is a start that moved past us, a single log that ends before us, another cluster, or
   another epoch at the record before us.
"""

from __future__ import annotations

from dataclasses import dataclass

from raftlog.client import LogKind, LogReader, SourceKind
from raftlog.errors import DataLossError

from .data_loss import DataLoss, data_loss
from .offsets import StreamOffset
from .options import OffsetSpec, RaftlogOptions
from .planning import StartPosition, starting_offset_spec


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """What was lost, and where a stream goes on that accepts it."""

    error: DataLossError
    resume: StartPosition

    @property
    def is_different_log(self) -> bool:
        """Nothing that was read before belongs to this log."""
        return self.error.condition == DataLoss.WRONG_CLUSTER


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLimits:
    """How much one micro-batch may hold; ``None`` is no limit. A checkpoint's rows are exempt."""

    records_max: int | None = None
    bytes_max: int | None = None
    whole: bool = False
    """Everything belongs into one batch (``Trigger.Once``), a checkpoint and its tail too."""


def check_data_loss(log: LogReader, position: StreamOffset, options: RaftlogOptions) -> Loss | None:
    """Say whether the records behind ``position`` are still what they were."""
    if _is_other_cluster(log, position):
        return Loss(
            error=data_loss(
                DataLoss.WRONG_CLUSTER,
                path=log.path,
                reason=f"the stream read cluster {position.cluster_id}, and this is the log of "
                f"cluster {log.cluster_id}",
            ),
            resume=earliest_position(log, options),
        )
    if position.offset < log.log_start_offset:
        return Loss(
            error=data_loss(
                DataLoss.OFFSETS_DELETED,
                path=log.path,
                reason=f"the stream is at offset {position.offset}, and the log now begins at "
                f"{log.log_start_offset}",
            ),
            resume=earliest_position(log, options),
        )
    if position.offset > log.log_end_offset:
        return _check_truncated(log, position)
    return _check_diverged(log, position)


def earliest_position(log: LogReader, options: RaftlogOptions) -> StartPosition:
    """Where a stream begins again: at the newest checkpoint, if that is how it began."""
    if starting_offset_spec(log, options, streaming=True) is OffsetSpec.SNAPSHOT:
        newest = log.newest_snapshot()
        if newest is not None:
            return StartPosition(offset=newest.end_offset, snapshot=newest)
    return StartPosition(offset=log.log_start_offset)


def _is_other_cluster(log: LogReader, position: StreamOffset) -> bool:
    known = position.cluster_id is not None and log.cluster_id is not None
    return known and position.cluster_id != log.cluster_id


def _check_truncated(log: LogReader, position: StreamOffset) -> Loss | None:
    diverged = _check_diverged(log, position)
    if diverged is not None or log.source is SourceKind.VOTERS:
        return diverged
    return Loss(
        error=data_loss(
            DataLoss.LOG_TRUNCATED,
            path=log.path,
            reason=f"the stream is at offset {position.offset}, and the log now ends at "
            f"{log.log_end_offset}",
        ),
        resume=StartPosition(offset=position.offset),
    )


def _check_diverged(log: LogReader, position: StreamOffset) -> Loss | None:
    """Compare the epoch of the record before ``position`` with the log's own there.

    Where the log ends before that record, a later epoch in the log says that it was replaced.
    """
    if position.offset <= log.log_end_offset:
        epoch = epoch_before(log, position.offset)
        differs = epoch not in (-1, position.epoch)
    else:
        epoch = -1 if log.epochs.latest_epoch is None else log.epochs.latest_epoch
        differs = epoch > position.epoch
    if position.epoch < 0 or not differs or _is_compacted(log, position.offset - 1):
        return None
    divergence = log.epochs.end_offset_for(position.epoch, log.log_end_offset)
    resume = position.offset if divergence is None else min(divergence.offset, position.offset)
    resume = max(resume, log.log_start_offset)
    return Loss(
        error=data_loss(
            DataLoss.DIVERGED_EPOCH,
            path=log.path,
            reason=f"the record before offset {position.offset} was of leader epoch "
            f"{position.epoch}, and is of epoch {epoch} now; the histories part at offset {resume}",
        ),
        resume=StartPosition(offset=resume),
    )


def _is_compacted(log: LogReader, offset: int) -> bool:
    """Whether a cleaner took away the record that would tell its epoch: then nothing does."""
    if log.kind is LogKind.METADATA or offset >= log.log_end_offset:
        return False
    return next(log.batches(offset, offset + 1), None) is None


def epoch_before(log: LogReader, offset: int) -> int:
    """Leader epoch of the record before ``offset``; -1 where neither log nor checkpoint knows."""
    if log.log_start_offset < offset <= log.log_end_offset:
        epoch = log.epochs.epoch_at(offset - 1)
        if epoch is not None:
            return epoch
    epochs = [snapshot.epoch for snapshot in log.snapshots if snapshot.end_offset == offset]
    return max(epochs, default=-1)


def next_batch(
    log: LogReader, start: StartPosition, end_offset: int, limits: BatchLimits, *, lost: bool
) -> StreamOffset | None:
    """The next batch from ``begin`` towards ``end_offset``; ``None`` if nothing is new.

    A checkpoint's rows are a batch of their own, whatever the limits. Any other batch ends at a
    boundary between record batches and outside metadata transactions; one of those that is larger
    than the limits is taken whole.
    """
    offset = max(start.offset, end_offset)
    if start.snapshot is not None:
        offset = offset if limits.whole else start.offset
    elif offset == start.offset:
        return None
    elif limits.records_max is not None or limits.bytes_max is not None:
        offset = log.next_boundary(
            start.offset,
            end_offset=end_offset,
            max_records=limits.records_max,
            max_bytes=limits.bytes_max,
        )
    return StreamOffset(
        offset=offset,
        epoch=epoch_before(log, offset),
        start_offset=start.offset,
        cluster_id=log.cluster_id,
        snapshot=start.snapshot,
        lost=lost,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class AvailableRows:
    """What can be read of a batch that is planned, perhaps once more after a restart.

    ``losses`` is empty if that is exactly the batch; else it says what is missing.
    """

    start: StartPosition
    end_offset: int
    losses: tuple[DataLossError, ...]


def available_rows(log: LogReader, batch: StreamOffset) -> AvailableRows:
    """Look at the log for the rows of ``batch``: its checkpoint first, then its range."""
    losses: list[DataLossError] = []

    def lose(condition: DataLoss, reason: str) -> None:
        losses.append(data_loss(condition, path=log.path, reason=reason))

    if _is_other_cluster(log, batch):
        lose(
            DataLoss.WRONG_CLUSTER,
            f"the batch is of cluster {batch.cluster_id}, this is the log of {log.cluster_id}",
        )
    snapshot, offset, end_offset = batch.snapshot, batch.start_offset, batch.offset
    if snapshot is not None and snapshot not in log.snapshots:
        lose(DataLoss.SNAPSHOT_DELETED, f"the batch begins with checkpoint {snapshot}, now deleted")
        snapshot = log.newest_snapshot()
        offset = max(offset, snapshot.end_offset if snapshot is not None else 0)
    if offset < end_offset:
        place = f"the batch is of offsets {offset} to {end_offset} (exclusive), and the log now"
        if offset < log.log_start_offset:
            lose(DataLoss.OFFSETS_DELETED, f"{place} begins at {log.log_start_offset}")
            offset = min(log.log_start_offset, end_offset)
        if end_offset > log.log_end_offset:
            lose(DataLoss.LOG_TRUNCATED, f"{place} ends at {log.log_end_offset}")
            end_offset = max(log.log_end_offset, offset)
        diverged = _check_diverged(log, batch)
        if diverged is not None:
            losses.append(diverged.error)
    return AvailableRows(
        start=StartPosition(offset=offset, snapshot=snapshot),
        end_offset=end_offset,
        losses=tuple(losses),
    )
