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
from .options import Edge, RaftlogOptions
from .planning import Begin, starting_edge


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """What was lost, and where a stream goes on that accepts it."""

    error: DataLossError
    resume: Begin

    @property
    def is_another_log(self) -> bool:
        """Nothing that was read before belongs to this log."""
        return self.error.condition == DataLoss.WRONG_CLUSTER


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How much one micro-batch may hold; ``None`` is no limit. A checkpoint's rows are exempt."""

    records_max: int | None = None
    bytes_max: int | None = None
    whole: bool = False
    """Everything belongs into one batch (``Trigger.Once``), a checkpoint and its tail too."""


def find_loss(log: LogReader, here: StreamOffset, options: RaftlogOptions) -> Loss | None:
    """Say whether the records behind ``here`` are still what they were."""
    if _other_cluster(log, here):
        return Loss(
            error=data_loss(
                DataLoss.WRONG_CLUSTER,
                path=log.path,
                reason=f"the stream read cluster {here.cluster_id}, and this is the log of "
                f"cluster {log.cluster_id}",
            ),
            resume=oldest(log, options),
        )
    if here.offset < log.log_start_offset:
        return Loss(
            error=data_loss(
                DataLoss.OFFSETS_DELETED,
                path=log.path,
                reason=f"the stream is at offset {here.offset}, and the log now begins at "
                f"{log.log_start_offset}",
            ),
            resume=oldest(log, options),
        )
    if here.offset > log.log_end_offset:
        return _ends_before(log, here)
    return _diverged(log, here)


def oldest(log: LogReader, options: RaftlogOptions) -> Begin:
    """Where a stream begins again: at the newest checkpoint, if that is how it began."""
    if starting_edge(log, options, streaming=True) is Edge.SNAPSHOT:
        newest = log.newest_snapshot()
        if newest is not None:
            return Begin(offset=newest.end_offset, snapshot=newest)
    return Begin(offset=log.log_start_offset)


def _other_cluster(log: LogReader, here: StreamOffset) -> bool:
    known = here.cluster_id is not None and log.cluster_id is not None
    return known and here.cluster_id != log.cluster_id


def _ends_before(log: LogReader, here: StreamOffset) -> Loss | None:
    rewritten = _diverged(log, here)
    if rewritten is not None or log.source is SourceKind.VOTERS:
        return rewritten
    return Loss(
        error=data_loss(
            DataLoss.LOG_TRUNCATED,
            path=log.path,
            reason=f"the stream is at offset {here.offset}, and the log now ends at "
            f"{log.log_end_offset}",
        ),
        resume=Begin(offset=here.offset),
    )


def _diverged(log: LogReader, here: StreamOffset) -> Loss | None:
    """Compare the epoch of the record before ``here`` with the log's own there.

    Where the log ends before that record, a later epoch in the log says that it was replaced.
    """
    if here.offset <= log.log_end_offset:
        epoch = epoch_before(log, here.offset)
        differs = epoch not in (-1, here.epoch)
    else:
        epoch = -1 if log.epochs.latest_epoch is None else log.epochs.latest_epoch
        differs = epoch > here.epoch
    if here.epoch < 0 or not differs or _is_compacted(log, here.offset - 1):
        return None
    parted = log.epochs.end_offset_for(here.epoch, log.log_end_offset)
    resume = here.offset if parted is None else min(parted.offset, here.offset)
    resume = max(resume, log.log_start_offset)
    return Loss(
        error=data_loss(
            DataLoss.DIVERGED_EPOCH,
            path=log.path,
            reason=f"the record before offset {here.offset} was of leader epoch {here.epoch}, and "
            f"is of epoch {epoch} now; the histories part at offset {resume}",
        ),
        resume=Begin(offset=resume),
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
    log: LogReader, begin: Begin, end_offset: int, limits: Limits, *, lost: bool
) -> StreamOffset | None:
    """The next batch from ``begin`` towards ``end_offset``; ``None`` if nothing is new.

    A checkpoint's rows are a batch of their own, whatever the limits. Any other batch ends at a
    boundary between record batches and outside metadata transactions; one of those that is larger
    than the limits is taken whole.
    """
    offset = max(begin.offset, end_offset)
    if begin.snapshot is not None:
        offset = offset if limits.whole else begin.offset
    elif offset == begin.offset:
        return None
    elif limits.records_max is not None or limits.bytes_max is not None:
        offset = log.next_boundary(
            begin.offset,
            end_offset=end_offset,
            max_records=limits.records_max,
            max_bytes=limits.bytes_max,
        )
    return StreamOffset(
        offset=offset,
        epoch=epoch_before(log, offset),
        start_offset=begin.offset,
        cluster_id=log.cluster_id,
        snapshot=begin.snapshot,
        lost=lost,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """What can be read of a batch that is planned, perhaps once more after a restart.

    ``losses`` is empty if that is exactly the batch; else it says what is missing.
    """

    begin: Begin
    end_offset: int
    losses: tuple[DataLossError, ...]


def replay_of(log: LogReader, batch: StreamOffset) -> Replay:
    """Look at the log for the rows of ``batch``: its checkpoint first, then its range."""
    losses: list[DataLossError] = []

    def lose(condition: DataLoss, reason: str) -> None:
        losses.append(data_loss(condition, path=log.path, reason=reason))

    if _other_cluster(log, batch):
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
        rewritten = _diverged(log, batch)
        if rewritten is not None:
            losses.append(rewritten.error)
    return Replay(
        begin=Begin(offset=offset, snapshot=snapshot),
        end_offset=end_offset,
        losses=tuple(losses),
    )
