"""Readers of several logs: the rows of all logs of ``sources``, with their cluster ids.

The invariants are those of ``stream_reader``. A stream's offset contains the offset of each log.
Decisions about one log depend only on that offset and on the log, except for its share of a limit.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Container, Mapping, Sequence, Set
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeVar

from pyspark.sql.datasource import InputPartition

from raftlog.client import LogReader
from raftlog.clock import Clock
from raftlog.errors import DataLossError, LogNotFoundError, OptionError
from raftlog_state.source_rows.data_loss import DataLoss
from raftlog_state.source_rows.reading import retry

from .admission import BatchLimits, share_limit
from .errors import data_loss
from .log_stream import Backlog
from .offsets import FROM_SPARK, SOURCES_VERSION, VERSION, KnownOffsets, SourcesOffset, StreamOffset
from .planning import (
    SNAPSHOT_ROWS_ESTIMATE,
    LogPart,
    PackedParts,
    StartPosition,
    batch_range,
    pack,
    plan_partitions,
    records_per_task,
)
from .reader import RaftlogReader, open_source
from .source_logs import REMOTE_WAIT_S, SourceLog, SourceLogs
from .stream_reader import MicroBatchReader

if TYPE_CHECKING:
    from .options import RaftlogOptions

SNAPSHOTS_PER_BATCH: Final = 16
"""Number of logs whose snapshots are in one micro-batch, if its size is limited."""

_LOGGER: Final = logging.getLogger("pyspark_raftlog")

T = TypeVar("T")


class RaftlogSourcesReader(RaftlogReader):
    """Reader of one DataFrame of several logs, whose ranges are fixed when it is planned."""

    def partitions(self) -> list[InputPartition]:
        """Plan the partitions; on the driver, once. Every log must be readable."""
        with closing(SourceLogs(self._options, self._clock)) as logs:
            return self._planned(logs)

    def _planned(self, logs: SourceLogs) -> list[InputPartition]:
        with ExitStack() as opened:
            ranges = logs.each(partial(self._find_range, opened), logs.all)
            sizes = [_row_count(start, end_offset) for _, start, end_offset in ranges.values()]
            records_max = _records_per_task(self._options, sizes)

            def plan(log: SourceLog) -> list[LogPart]:
                return _parts(log, *ranges[log.identified_id], records_max)

            return _packed(logs.each(plan, logs.all), records_max) or [PackedParts(())]

    def _find_range(
        self, opened: ExitStack, log: SourceLog
    ) -> tuple[LogReader, StartPosition, int]:
        def find() -> tuple[LogReader, StartPosition, int]:
            reader = opened.enter_context(open_source(log.options))
            log.identify(reader)
            return reader, *batch_range(reader, log.options, now_ms=self._clock.wall_ms())

        return retry(find, self._clock, is_new_read=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class News:
    """Records of one log after ``position``. ``is_added``: the stream has not stored it yet."""

    position: StreamOffset
    backlog: Backlog | None
    is_added: bool


class RaftlogSourcesStreamReader(MicroBatchReader[SourcesOffset]):
    """Stream reader of one query and several logs."""

    poll_step_ms: ClassVar[int] = 100

    def __init__(
        self, options: RaftlogOptions, columns: tuple[str, ...], clock: Clock | None = None
    ) -> None:
        super().__init__(options, columns, clock)
        self._logs = SourceLogs(options, self._clock)
        self._initial: SourcesOffset | None = None
        self._known: KnownOffsets = {}

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Return the start of a new query in the logs that can be read, determined once."""
        if self._initial is None:
            keys = dict.fromkeys(self._logs.all)
            found = self._logs.poll("initial", _initial_position, keys)
            self._check_any(found)
            self._initial = SourcesOffset(found)
        return self._initial.to_json()

    def stop(self) -> None:
        """End the threads of the logs."""
        self._logs.close()

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """Return the latest known ends of the logs, and those that cannot be read, for progress."""
        ends = {key: log.stream.latest() for key, log in self._logs.by_cluster.items()}
        if not ends:
            return None
        known = {key: end for key, end in sorted(ends.items()) if end is not None}
        report = {"v": SOURCES_VERSION, "logs": known}
        failed = {
            log.log_id or log.options.path: log.problem.code
            for log in self._logs.all
            if log.problem is not None
        }
        return report | {"unavailable": failed} if failed else report

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Fix the end offsets of this run; a log that cannot be read now belongs to the next."""
        found = self._logs.poll("target", _fix_target, dict.fromkeys(self._logs.all))
        self._check_any(found)
        self._is_available_now = True

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Plan the batch that ends at ``end``, perhaps again after a restart.

        Raises:
            DataLossError: records of the batch were lost.
            RaftlogError: a log with records of the batch cannot be read.
        """
        before = self._parse(start)
        batches = self._parse(end).batches_after(before)
        logs = self._find(batches.keys())
        sizes = [_batch_size(before.logs.get(key), batches[key]) for key in logs]
        records_max = _records_per_task(self._options, sizes)

        def plan(log: SourceLog) -> list[LogPart]:
            key = log.identified_id
            return retry(
                lambda: _plan(log, before.logs.get(key), batches[key], records_max), self._clock
            )

        return _packed(self._logs.each(plan, logs.values()), records_max)

    def _legacy_latest_offset(self) -> dict[str, Any]:
        reason = "is for batch reads only in Spark 4.0 and 4.1, and for streams from Spark 4.2 on"
        raise OptionError(option="sources", reason=reason)

    def _parse(self, written: dict[str, Any]) -> SourcesOffset:
        offset = SourcesOffset.from_json(written, self._known, path=self._options.path)
        if written["v"] == VERSION and not offset.logs.keys() <= self._logs.by_cluster.keys():
            self._identify()
            if not offset.logs.keys() <= self._logs.by_cluster.keys():
                cluster_id = next(iter(offset.logs))
                raise data_loss(
                    DataLoss.CHECKPOINT_MISMATCH,
                    path=self._options.path,
                    reason=f"the checkpoint is that of a stream of cluster {cluster_id} alone, "
                    "which no source that can be read belongs to",
                )
        return offset

    def _next_batch(self, position: SourcesOffset, limits: BatchLimits) -> SourcesOffset | None:
        """Return the end of the next batch, in which each log has its share of the limits.

        A log that was added is stored with its initial position even if it has no rows.
        """
        found = self._poll("news", lambda log: _find_news(log, position.logs), position)
        added = {key: news.position for key, news in found.items() if news.is_added}
        backlogs = _admitted(found, limits)
        counts = {
            key: one.record_count for key, one in backlogs.items() if one.start.snapshot is None
        }
        is_urgent = bool(added) or len(counts) < len(backlogs)
        if not is_urgent and self._waits_for_more(sum(counts.values()), limits):
            return None
        shares = _shares(limits, counts)

        def advance(log: SourceLog) -> StreamOffset | None:
            key = log.identified_id
            return log.stream.next_batch(backlogs[key], shares.get(key, limits))

        ends = self._poll("end", advance, position, only=backlogs)
        updates = added | {key: end for key, end in ends.items() if end is not None}
        return SourcesOffset({**position.logs, **updates}) if updates else None

    def _poll(
        self,
        name: str,
        call: Callable[[SourceLog], T],
        position: SourcesOffset,
        only: Container[str] | None = None,
    ) -> dict[str, T]:
        """Return the results of the logs of this run that can be read, by cluster id."""
        keys = {
            log: position.logs.get(log.log_id or "")
            for log in self._logs.all
            if (only is None or log.log_id in only)
            and (log.stream.has_target or not self._is_available_now)
        }
        wait_s = None if self._is_available_now else REMOTE_WAIT_S
        return self._logs.poll(name, call, keys, wait_s=wait_s)

    def _check_any(self, found: Mapping[str, object]) -> None:
        """Raise the first log's error if no log can be read."""
        problems = [log.problem for log in self._logs.all if log.problem is not None]
        if not found and problems:
            raise problems[0]

    def _identify(self) -> None:
        """Open the logs whose cluster ids have not been read yet."""
        known = set(self._logs.by_cluster.values())
        self._logs.poll("open", _open, {log: None for log in self._logs.all if log not in known})

    def _find(self, cluster_ids: Set[str]) -> dict[str, SourceLog]:
        """Return the logs of these clusters, without those whose loss is accepted.

        Raises:
            DataLossError: LOG_MISSING: no source has a cluster's log, and ``failOnDataLoss``.
            RaftlogError: logs cannot be read, and a cluster's may be one of them.
        """
        if not cluster_ids <= self._logs.by_cluster.keys():
            self._identify()
        found = {}
        for key in sorted(cluster_ids):
            log = self._logs.by_cluster.get(key)
            if log is not None:
                found[key] = log
                continue
            accepting = self._options
            for candidate in self._logs.all:
                if candidate.problem is None or candidate.log_id not in (None, key):
                    continue
                is_deleted = isinstance(candidate.problem, LogNotFoundError)
                if candidate.options.fail_on_data_loss or not is_deleted:
                    raise candidate.problem
                accepting = candidate.options
            _lose_log(key, "no source that can be read is its log", accepting)
        return found


# --- calls to one log -----------------------------------------------------------------------------


def _open(log: SourceLog) -> None:
    log.stream.refresh()
    log.check_cluster()


def _initial_position(log: SourceLog) -> StreamOffset:
    found = log.stream.initial_position()
    log.check_cluster()
    return found


def _fix_target(log: SourceLog) -> None:
    log.stream.fix_target()
    log.check_cluster()


def _find_news(log: SourceLog, positions: Mapping[str, StreamOffset]) -> News:
    if log.log_id is None:
        _open(log)
    stored = positions.get(log.identified_id)
    position = log.stream.initial_position() if stored is None else stored
    try:
        backlog = log.stream.backlog(position)
    except DataLossError:
        log.check_cluster()  # another cluster's log has other offsets
        raise
    if backlog is not None:
        log.check_cluster()
    return News(position=position, backlog=backlog, is_added=stored is None)


def _plan(
    log: SourceLog, before: StreamOffset | None, batch: StreamOffset, records_max: int
) -> list[LogPart]:
    try:
        reader, rows = log.stream.available_rows(before, batch)
    except LogNotFoundError as error:
        _lose_log(error.path, "the log was deleted", log.options)
        return []
    log.check_cluster()
    return _parts(log, reader, rows.start, rows.end_offset, records_max)


def _parts(
    log: SourceLog, reader: LogReader, start: StartPosition, end_offset: int, records_max: int
) -> list[LogPart]:
    rows = plan_partitions(reader, log.options, start, end_offset, records_max=records_max)
    return [LogPart(log.identified_id, log.options, one) for one in rows]


def _lose_log(where: str, reason: str, options: RaftlogOptions) -> None:
    loss = data_loss(DataLoss.LOG_MISSING, path=where, reason=reason)
    if options.fail_on_data_loss:
        raise loss
    _LOGGER.warning("%s; continuing without its records", loss)


# --- sizes ----------------------------------------------------------------------------------------


def _admitted(found: Mapping[str, News], limits: BatchLimits) -> dict[str, Backlog]:
    """Return what the next batch reads; if its size is limited, the snapshots of few logs."""
    admitted: dict[str, Backlog] = {}
    is_limited = limits.records_max is not None or limits.bytes_max is not None
    snapshots = 0
    for key in sorted(found):
        backlog = found[key].backlog
        if backlog is None or backlog.is_empty:
            continue
        if backlog.start.snapshot is not None:
            snapshots += 1
            if is_limited and snapshots > SNAPSHOTS_PER_BATCH:
                continue
        admitted[key] = backlog
    return admitted


def _shares(limits: BatchLimits, counts: Mapping[str, int]) -> dict[str, BatchLimits]:
    records = share_limit(limits.records_max, counts)
    byte_counts = share_limit(limits.bytes_max, counts)
    return {
        key: replace(limits, records_max=records[key], bytes_max=byte_counts[key]) for key in counts
    }


def _batch_size(before: StreamOffset | None, end: StreamOffset) -> int:
    start_offset = end.start_offset
    if start_offset == FROM_SPARK and before is not None:
        start_offset = before.offset
    return _row_count(StartPosition(offset=start_offset, snapshot=end.snapshot), end.offset)


def _row_count(start: StartPosition, end_offset: int) -> int:
    of_snapshot = 0 if start.snapshot is None else SNAPSHOT_ROWS_ESTIMATE
    return max(end_offset - start.offset, 0) + of_snapshot


def _records_per_task(options: RaftlogOptions, sizes: Sequence[int]) -> int:
    return records_per_task(options, sizes, os.cpu_count() or 1)


def _packed(parts: Mapping[str, list[LogPart]], records_max: int) -> list[InputPartition]:
    return [*pack([part for key in sorted(parts) for part in parts[key]], records_max)]
