"""Planning of a read: start and end offset, and input partitions.

An input partition is an offset range or a snapshot. Reading it again yields the same rows. It lists
the metadata transactions that overlap its range, because its task cannot find them there. The task
finds the outcomes of producers' transactions, because their markers follow their records and do not
change. Planning reads no records.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from pyspark.sql.datasource import InputPartition

from raftlog.client import LogKind, LogReader, SourceKind, Split
from raftlog.client.offset_spec import (
    EARLIEST,
    LATEST,
    SNAPSHOT,
    OffsetSpec,
    OffsetSpecKind,
    resolve,
)
from raftlog.errors import OffsetOutOfRangeError, OptionError
from raftlog.types import SnapshotId
from raftlog_state.source_rows.data_loss import DataLoss

from .errors import data_loss
from .options import RaftlogOptions, TimestampStrategy

RECORDS_PER_PARTITION_DEFAULT: Final = 250_000
"""Default of ``maxRecordsPerPartition``: a task of one or two seconds, JSON included."""

RECORDS_PER_TASK_MIN: Final = 10_000
"""Records of several logs that are read by one task, even if other cores are idle."""
OPEN_LOG_ROWS: Final = 50
"""Cost of opening one log in a task, in rows."""
SNAPSHOT_ROWS_ESTIMATE: Final = 10_000

_LOGGER: Final = logging.getLogger("pyspark_raftlog")


@dataclass(frozen=True)
class LogRange(InputPartition):
    """Records of the log in ``[split.start_offset, split.end_offset)``."""

    split: Split


@dataclass(frozen=True)
class SnapshotRows(InputPartition):
    """All rows of one snapshot."""

    snapshot_id: SnapshotId


@dataclass(frozen=True)
class LogPart:
    """Rows of one of several logs. ``log_id``: its cluster id, or the name of the partition."""

    log_id: str
    options: RaftlogOptions
    rows: LogRange | SnapshotRows

    @property
    def row_count(self) -> int:
        """Size of the part in rows: an estimate for a snapshot, whose rows are not counted."""
        if isinstance(self.rows, SnapshotRows):
            return SNAPSHOT_ROWS_ESTIMATE
        return self.rows.split.end_offset - self.rows.split.start_offset


@dataclass(frozen=True)
class PackedParts(InputPartition):
    """Rows of several logs that one task reads."""

    parts: tuple[LogPart, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StartPosition:
    """Start of a read: the rows of ``snapshot``, if any, then the log from ``offset``."""

    offset: int
    snapshot: SnapshotId | None = None


def starting_offset_spec(log: LogReader, options: RaftlogOptions, *, streaming: bool) -> OffsetSpec:
    """Return ``startingOffset``, or its default for this log and kind of read."""
    given = options.starting_offset
    if given is None:
        if log.source is SourceKind.CHECKPOINT or (streaming and log.kind is LogKind.METADATA):
            return SNAPSHOT
        return LATEST if streaming else EARLIEST
    if given == EARLIEST and log.source is SourceKind.CHECKPOINT:
        return SNAPSHOT
    return given


def starts_at_latest(log: LogReader, options: RaftlogOptions) -> bool:
    """Return whether a new stream reads only what is appended after its start."""
    if options.starting_timestamp_ms is not None:
        return False
    spec = starting_offset_spec(log, options, streaming=True)
    return spec.kind is OffsetSpecKind.LATEST


def start_position(
    log: LogReader, options: RaftlogOptions, *, end_offset: int, streaming: bool, now_ms: int
) -> StartPosition:
    """Return the start of a new read.

    Args:
        end_offset: the offset of ``latest``, exclusive.

    Raises:
        OptionError: the option does not apply to this log, or no record has a timestamp >= the
            time to start at.
        OffsetNotFoundError: the log does not have the leader epoch to start at.
        DataLossError: OFFSETS_DELETED, a numeric offset is below the log start offset.
        OffsetOutOfRangeError: a numeric offset is above the log end offset.
    """
    if options.starting_timestamp_ms is not None:
        time_ms = options.starting_timestamp_ms
        offset = _offset_at(log, options, time_ms, end_offset, "startingTimestamp")
        return StartPosition(offset=offset)
    spec = starting_offset_spec(log, options, streaming=streaming).at(now_ms)
    match spec.kind:
        case OffsetSpecKind.EARLIEST:
            return _earliest(log)
        case OffsetSpecKind.LATEST:
            if not streaming:
                raise OptionError(
                    option="startingOffset",
                    reason="latest is allowed in streams only: a batch read ends there; give an "
                    "offset, a time or earliest",
                )
            return StartPosition(offset=end_offset)
        case OffsetSpecKind.SNAPSHOT:
            if log.kind is not LogKind.METADATA and log.source is not SourceKind.CHECKPOINT:
                raise OptionError(
                    option="startingOffset",
                    reason="snapshot is for metadata logs; other partitions have no snapshots",
                )
            newest = log.newest_snapshot()
            if newest is None:
                return _earliest(log)
            return StartPosition(offset=newest.end_offset, snapshot=newest)
        case OffsetSpecKind.TIME:
            offset = _offset_at(log, options, spec.number, end_offset, "startingOffset")
            return StartPosition(offset=offset)
    found = resolve(spec, log, now_ms=now_ms, read_end=lambda: end_offset)
    return StartPosition(offset=_check_exists(log, options, found.offset))


def _earliest(log: LogReader) -> StartPosition:
    start = log.log_start_offset
    if start > 0:
        _LOGGER.warning(
            "%s: log start offset is %d: earlier records were deleted, their history is missing",
            log.path,
            start,
        )
    return StartPosition(offset=start)


def _offset_at(
    log: LogReader, options: RaftlogOptions, timestamp_ms: int, end_offset: int, option: str
) -> int:
    offset = log.offset_for_timestamp(timestamp_ms)
    if offset is not None:
        return min(offset, end_offset)
    if options.starting_timestamp_strategy is TimestampStrategy.LATEST:
        return end_offset
    raise OptionError(
        option=option,
        reason="no record has this time or a later one; set "
        "startingTimestampStrategy=latest to start at the end",
    )


def _check_exists(log: LogReader, options: RaftlogOptions, offset: int) -> int:
    if offset > log.log_end_offset:
        raise OffsetOutOfRangeError(
            path=log.path,
            offset=offset,
            log_start_offset=log.log_start_offset,
            log_end_offset=log.log_end_offset,
        )
    if offset >= log.log_start_offset:
        return offset
    deleted = data_loss(
        DataLoss.OFFSETS_DELETED,
        path=log.path,
        reason=f"startingOffset is {offset}, but the log start offset is {log.log_start_offset}",
    )
    if options.fail_on_data_loss:
        raise deleted
    _LOGGER.warning("%s", deleted)
    return log.log_start_offset


def batch_end_offset(log: LogReader, options: RaftlogOptions, *, now_ms: int) -> int:
    """Return the end offset of a batch read, exclusive.

    Raises:
        OffsetOutOfRangeError: ``endingOffset`` is above the log end offset.
    """
    end = log.read_end(
        isolation=options.isolation, holdback_ms=options.tail_holdback_ms or 0, now_ms=now_ms
    )
    _LOGGER.info("%s: reading up to offset %d: %s", log.path, end.offset, end.explanation)
    if options.ending_timestamp_ms is not None:
        offset = log.offset_for_timestamp(options.ending_timestamp_ms)
        return end.offset if offset is None else min(offset, end.offset)
    if options.ending_offset == LATEST:
        return end.offset
    ending = resolve(options.ending_offset, log, now_ms=now_ms, read_end=lambda: end.offset)
    if ending.offset > log.log_end_offset:
        raise OffsetOutOfRangeError(
            path=log.path,
            offset=ending.offset,
            log_start_offset=log.log_start_offset,
            log_end_offset=log.log_end_offset,
        )
    if ending.offset > end.offset:
        _LOGGER.warning(
            "%s: reading only up to offset %d, not to endingOffset: %s",
            log.path,
            end.offset,
            end.explanation,
        )
    return min(ending.offset, end.offset)


def batch_range(
    log: LogReader, options: RaftlogOptions, *, now_ms: int
) -> tuple[StartPosition, int]:
    """Return the start of a batch read, and its end offset (exclusive).

    Raises the errors of ``start_position`` and ``batch_end_offset``, and ``OptionError`` if the end
    is below the start.
    """
    end_offset = batch_end_offset(log, options, now_ms=now_ms)
    start = start_position(log, options, end_offset=end_offset, streaming=False, now_ms=now_ms)
    ending = options.ending_offset if options.ending_timestamp_ms is None else LATEST
    if ending.kind is OffsetSpecKind.OFFSET and ending.number < start.offset:
        raise OptionError(option="endingOffset", reason="is less than the start of the read")
    return start, end_offset


def plan_batch(log: LogReader, options: RaftlogOptions, *, now_ms: int) -> list[InputPartition]:
    """Return the partitions of a batch read of one log.

    The list is never empty, because Spark would replace an empty list with its own partition.
    """
    start, end_offset = batch_range(log, options, now_ms=now_ms)
    return [*plan_partitions(log, options, start, end_offset)] or [
        LogRange(Split(start_offset=start.offset, end_offset=start.offset, spans=()))
    ]


def plan_partitions(
    log: LogReader,
    options: RaftlogOptions,
    start: StartPosition,
    end_offset: int,
    *,
    records_max: int | None = None,
) -> list[LogRange | SnapshotRows]:
    """Return a partition of the snapshot, if any, and some of ``[start.offset, end_offset)``.

    The range is split at batch boundaries. ``records_max`` is the size of a partition in a read of
    several logs, instead of the options'.
    """
    partitions: list[LogRange | SnapshotRows] = []
    if start.snapshot is not None:
        partitions.append(SnapshotRows(start.snapshot))
    if start.offset < end_offset:
        per_partition = options.max_records_per_partition or RECORDS_PER_PARTITION_DEFAULT
        min_partitions = options.min_partitions or 1
        if records_max is not None:
            per_partition, min_partitions = records_max, 1
        wanted = -(-(end_offset - start.offset) // per_partition)
        plan = log.plan(
            start.offset,
            end_offset,
            isolation=options.isolation,
            max_splits=max(wanted, min_partitions),
            max_records_per_split=per_partition,
            with_producers=False,
        )
        partitions += [LogRange(split) for split in plan.splits]
    return partitions


# --- several logs ---------------------------------------------------------------------------------


def records_per_task(options: RaftlogOptions, sizes: Sequence[int], parallelism: int) -> int:
    """Return the size of a task that reads parts of several logs, given the rows of each log.

    There are about ``minPartitions`` tasks if that is set. Otherwise there are about
    ``parallelism``, or fewer if there is little to read.
    """
    total = sum(sizes) + OPEN_LOG_ROWS * len(sizes)
    least = RECORDS_PER_TASK_MIN if options.min_partitions is None else 1
    most = options.max_records_per_partition or RECORDS_PER_PARTITION_DEFAULT
    return min(max(total // (options.min_partitions or parallelism), least), most)


def pack(parts: Iterable[LogPart], records_max: int) -> list[PackedParts]:
    """Combine parts, in order, into partitions of at most ``records_max`` rows, unsplit."""
    packed: list[list[LogPart]] = []
    size = 0
    for part in parts:
        added = part.row_count + OPEN_LOG_ROWS
        if not packed or size + added > records_max:
            packed.append([])
            size = 0
        packed[-1].append(part)
        size += added
    return [PackedParts(tuple(one)) for one in packed]
