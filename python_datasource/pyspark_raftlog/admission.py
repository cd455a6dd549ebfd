"""Admission of micro-batches: detection of data loss, and the end offset of the next batch.

Results depend only on the log's offsets, epochs and snapshots and on Spark's checkpointed offset;
there is no clock and no state. The log end may move back between two calls (a voter's directory
lags). That is not a loss, and the stream waits. These are data losses: the log start offset is
after the stream's offset, a single log ends before it, the log is another cluster's or has another
topic id, or the record before the offset has another epoch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from raftlog.client import LogKind, LogReader, SourceKind
from raftlog.client.offset_spec import SNAPSHOT
from raftlog.errors import DataLossError
from raftlog_state.source_rows.data_loss import DataLoss

from .errors import data_loss
from .offsets import StreamOffset
from .options import RaftlogOptions
from .planning import StartPosition, starting_offset_spec

_DIFFERENT_LOG: Final = (DataLoss.WRONG_CLUSTER, DataLoss.INCONSISTENT_TOPIC_ID)


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """Data loss, and the position where a stream resumes with ``failOnDataLoss=false``."""

    error: DataLossError
    resume: StartPosition

    @property
    def is_different_log(self) -> bool:
        """Whether the stream has read another log: another cluster's, or one that was deleted."""
        return self.error.condition in _DIFFERENT_LOG


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLimits:
    """Limits of one micro-batch, None for no limit. A snapshot's rows are exempt."""

    records_max: int | None = None
    bytes_max: int | None = None
    whole: bool = False
    """Whether all records are one batch (``Trigger.Once``), even a snapshot and what follows it."""


def share_limit(limit: int | None, backlogs: Mapping[str, int]) -> Mapping[str, int | None]:
    """Divide a limit of a micro-batch among logs, in proportion to their backlogs.

    Each log gets at least 1, so that it advances by a record batch: the sum may exceed the limit.
    """
    total = sum(backlogs.values())
    if limit is None or total == 0:
        return dict.fromkeys(backlogs, limit)
    return {log: max(limit * backlog // total, 1) for log, backlog in backlogs.items()}


def check_data_loss(log: LogReader, position: StreamOffset, options: RaftlogOptions) -> Loss | None:
    """Return the data loss at ``position``, None if its records are unchanged."""
    different = _check_identity(log, position)
    if different is not None:
        return Loss(error=different, resume=earliest_position(log, options))
    if position.offset < log.log_start_offset:
        return Loss(
            error=data_loss(
                DataLoss.OFFSETS_DELETED,
                path=log.path,
                reason=f"the stream is at offset {position.offset}, but the log start offset is "
                f"now {log.log_start_offset}",
            ),
            resume=earliest_position(log, options),
        )
    if position.offset > log.log_end_offset:
        return _check_truncated(log, position)
    return _check_diverged(log, position)


def earliest_position(log: LogReader, options: RaftlogOptions) -> StartPosition:
    """Return where a stream restarts: at the newest snapshot if it began with one."""
    if starting_offset_spec(log, options, streaming=True) == SNAPSHOT:
        newest = log.newest_snapshot()
        if newest is not None:
            return StartPosition(offset=newest.end_offset, snapshot=newest)
    return StartPosition(offset=log.log_start_offset)


def _check_identity(log: LogReader, position: StreamOffset) -> DataLossError | None:
    """Return the error if the log is another one than that of ``position``."""
    if _is_other_cluster(log, position):
        return data_loss(
            DataLoss.WRONG_CLUSTER,
            path=log.path,
            reason=f"the stream has read cluster {position.cluster_id}, but this is the log of "
            f"cluster {log.cluster_id}",
        )
    topic_id = topic_id_of(log)
    if position.topic_id is None or topic_id in (None, position.topic_id):
        return None
    return data_loss(
        DataLoss.INCONSISTENT_TOPIC_ID,
        path=log.path,
        reason=f"the stream has read the log with topic id {position.topic_id}, but the topic id "
        f"is now {topic_id}: the log was deleted and created again",
    )


def _is_other_cluster(log: LogReader, position: StreamOffset) -> bool:
    known = position.cluster_id is not None and log.cluster_id is not None
    return known and position.cluster_id != log.cluster_id


def topic_id_of(log: LogReader) -> str | None:
    """Return the topic id of a log; None if it is unknown, or that of all metadata logs."""
    return None if log.kind is LogKind.METADATA else log.topic_id


def _check_truncated(log: LogReader, position: StreamOffset) -> Loss | None:
    diverged = _check_diverged(log, position)
    if diverged is not None or log.source is SourceKind.VOTERS:
        return diverged
    return Loss(
        error=data_loss(
            DataLoss.LOG_TRUNCATED,
            path=log.path,
            reason=f"the stream is at offset {position.offset}, but the log end offset is now "
            f"{log.log_end_offset}",
        ),
        resume=StartPosition(offset=position.offset),
    )


def _check_diverged(log: LogReader, position: StreamOffset) -> Loss | None:
    """Compare the epoch of the record before ``position`` with the log's epoch at that offset.

    If the log ends before that record, a later epoch in the log shows that it was truncated.
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
            reason=f"the record before offset {position.offset} had leader epoch {position.epoch}, "
            f"and has epoch {epoch} now; the logs diverge at offset {resume}",
        ),
        resume=StartPosition(offset=resume),
    )


def _is_compacted(log: LogReader, offset: int) -> bool:
    """Return whether log compaction removed the record at ``offset``: its epoch is unknown."""
    if log.kind is LogKind.METADATA or offset >= log.log_end_offset:
        return False
    return next(log.batches(offset, offset + 1), None) is None


def epoch_before(log: LogReader, offset: int) -> int:
    """Return the leader epoch of the record before ``offset``, -1 if it is unknown."""
    if log.log_start_offset < offset <= log.log_end_offset:
        epoch = log.epochs.epoch_at(offset - 1)
        if epoch is not None:
            return epoch
    epochs = [snapshot.epoch for snapshot in log.snapshots if snapshot.end_offset == offset]
    return max(epochs, default=-1)


def next_batch(
    log: LogReader, start: StartPosition, end_offset: int, limits: BatchLimits, *, lost: bool
) -> StreamOffset | None:
    """Return the next batch from ``start`` towards ``end_offset``, None if there are no records.

    A snapshot's rows are a separate batch, regardless of the limits. Other batches end between
    record batches and outside metadata transactions; a record batch or transaction that exceeds the
    limits is not split.
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
        topic_id=topic_id_of(log),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class AvailableRows:
    """The rows of a planned batch that can be read, perhaps again after a restart.

    ``losses`` contains the missing records; it is empty if the batch is complete.
    """

    start: StartPosition
    end_offset: int
    losses: tuple[DataLossError, ...]


def available_rows(log: LogReader, batch: StreamOffset) -> AvailableRows:
    """Return which rows of ``batch`` are available: those of its snapshot, then of its range.

    There are none in another log than that of the batch.
    """
    different = _check_identity(log, batch)
    if different is not None:
        nowhere = StartPosition(offset=batch.offset)
        return AvailableRows(start=nowhere, end_offset=batch.offset, losses=(different,))
    losses: list[DataLossError] = []

    def lose(condition: DataLoss, reason: str) -> None:
        losses.append(data_loss(condition, path=log.path, reason=reason))

    snapshot, offset, end_offset = batch.snapshot, batch.start_offset, batch.offset
    if snapshot is not None and snapshot not in log.snapshots:
        lose(DataLoss.SNAPSHOT_DELETED, f"snapshot {snapshot} of the batch has been deleted")
        snapshot = log.newest_snapshot()
        offset = max(offset, snapshot.end_offset if snapshot is not None else 0)
    if offset < end_offset:
        extent = f"the batch has offsets {offset} to {end_offset} (exclusive), but the log now"
        if offset < log.log_start_offset:
            lose(DataLoss.OFFSETS_DELETED, f"{extent} begins at {log.log_start_offset}")
            offset = min(log.log_start_offset, end_offset)
        if end_offset > log.log_end_offset:
            lose(DataLoss.LOG_TRUNCATED, f"{extent} ends at {log.log_end_offset}")
            end_offset = max(log.log_end_offset, offset)
        diverged = _check_diverged(log, batch)
        if diverged is not None:
            losses.append(diverged.error)
    return AvailableRows(
        start=StartPosition(offset=offset, snapshot=snapshot),
        end_offset=end_offset,
        losses=tuple(losses),
    )
