"""One log of a stream: its end, its data loss, its next batch and the plan of a batch.

Results depend on the log and on the offsets in Spark's checkpoint. State that is kept between calls
only saves reads and repeated warnings: the open log, its last end, and the status of its files when
there were no new records.
"""

from __future__ import annotations

import dataclasses
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from raftlog import limits as raftlog_limits
from raftlog.client import EndBasis, LogReader, RangeSize, ReadEnd, SourceKind
from raftlog.client.watching import DirectoryWatch, Stamp
from raftlog.clock import Clock
from raftlog.errors import DivergedLogError, RaftlogError
from raftlog_state.source_rows.data_loss import DataLoss

from .admission import (
    AvailableRows,
    BatchLimits,
    Loss,
    available_rows,
    check_data_loss,
    epoch_before,
    next_batch,
    topic_id_of,
)
from .errors import data_loss
from .offsets import FROM_SPARK, StreamOffset
from .planning import StartPosition, start_position, starts_at_latest
from .reader import open_source

if TYPE_CHECKING:
    from .options import RaftlogOptions

_NOTHING: Final = RangeSize(byte_count=0, batch_count=0, first_timestamp_ms=None)
_LOGGER: Final = logging.getLogger("pyspark_raftlog")


@dataclass(frozen=True, slots=True, kw_only=True)
class Backlog:
    """Records of a log that a stream has not read. ``lost``: records before them were lost."""

    start: StartPosition
    end_offset: int
    lost: bool = False

    @property
    def record_count(self) -> int:
        """Number of offsets, without the rows of a snapshot."""
        return max(self.end_offset - self.start.offset, 0)

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to read."""
        return self.start.snapshot is None and self.end_offset <= self.start.offset


@dataclass(frozen=True, slots=True)
class _Unread:
    """What a log contains after the end of a batch; ``size`` is None if it could not be read."""

    offset: int
    end_offset: int
    size: RangeSize | None

    def to_json(self, now_ms: int) -> dict[str, int]:
        """Return bytes, batches, and the first record's age in ms, as far as they are known."""
        if self.size is None:
            return {}
        age_ms = 0 if self.size.batch_count == 0 else None
        time_ms = self.size.first_timestamp_ms
        if time_ms is not None and time_ms >= 0:
            age_ms = max(now_ms - time_ms, 0)
        found = {"bytes": self.size.byte_count, "batches": self.size.batch_count, "ms": age_ms}
        return {name: count for name, count in found.items() if count is not None}


class LogStream:
    """Reader of the ends of one log for a stream."""

    def __init__(self, options: RaftlogOptions, clock: Clock) -> None:
        self.options = options
        self._clock = clock
        self._log: LogReader | None = None
        self._end: ReadEnd | None = None
        self._watch: DirectoryWatch | None = None
        self._idle: tuple[StreamOffset, int | None, Stamp] | None = None
        self._checked: StreamOffset | None = None
        self._target_offset: int | None = None
        self._unread: _Unread | None = None
        self._logged_basis: EndBasis | None = None
        self._logged_loss: str | None = None

    @property
    def has_target(self) -> bool:
        """Whether ``fix_target`` has set the last offset of this run."""
        return self._target_offset is not None

    @property
    def log(self) -> LogReader | None:
        """The log as it was last read; None before the first read."""
        return self._log

    def refresh(self) -> tuple[LogReader, ReadEnd]:
        """Open the log, or list its files again; return the log and its end."""
        if self._log is None:
            self._log = open_source(self.options)
            if self._log.source is SourceKind.DIRECTORY:
                self._watch = DirectoryWatch(self._log.path)
        else:
            self._log.refresh()
        given_ms = self.options.tail_holdback_ms
        holdback_ms = raftlog_limits.TAIL_HOLDBACK_MS_DEFAULT if given_ms is None else given_ms

        def read_end(log: LogReader, previous: ReadEnd | None) -> ReadEnd:
            return log.read_end(
                isolation=self.options.isolation,
                holdback_ms=holdback_ms,
                now_ms=self._clock.wall_ms(),
                previous=previous,
            )

        try:
            self._end = read_end(self._log, self._end)
        except DivergedLogError:
            # Records below the previous end may not have been read: `check_data_loss` compares the
            # stream's own offset.
            self._end = read_end(self._log, None)
        if self._logged_basis is not self._end.basis:
            self._logged_basis = self._end.basis
            _LOGGER.info("%s: %s", self._log.path, self._end.explanation)
        return self._log, self._end

    def fix_target(self) -> None:
        """Fix the end offset of this run (``Trigger.AvailableNow``)."""
        self._target_offset = self.refresh()[1].offset

    def latest(self) -> dict[str, Any] | None:
        """Return the latest known end of the log, for the query's progress. Reads no files.

        None before the first read. ``unread`` describes what the log contains after the batch: its
        ``bytes`` and ``batches``, and the age of its first record in ``ms``, without unknown
        values.
        """
        if self._end is None or self._log is None:
            return None
        latest = StreamOffset(
            offset=self._end.offset,
            epoch=self._end.epoch,
            start_offset=self._end.offset,
            cluster_id=self._log.cluster_id,
        )
        unread = self._unread
        if unread is None or unread.end_offset != latest.offset:
            return latest.to_json()
        found = unread.to_json(self._clock.wall_ms())
        return latest.to_json() | ({"unread": found} if found else {})

    def measure(self, offset: int) -> None:
        """Measure what the log contains from ``offset`` on, the end of a batch, for its progress.

        Reads nothing if the end is the last call's, because a stream that waits calls this
        repeatedly.
        """
        log, end = self._log, self._end
        assert log is not None, "a backlog is that of an open log"
        assert end is not None, "a refresh reads the end"
        known = self._unread
        if known is not None and (known.offset, known.end_offset) == (offset, end.offset):
            return
        size: RangeSize | None = _NOTHING
        if offset < end.offset:
            try:
                size = log.range_size(offset, end.offset)
            except RaftlogError as error:
                _LOGGER.debug("the lag at offset %d is unknown: %s", offset, error)
                size = None
        self._unread = _Unread(offset, end.offset, size)

    def initial_position(self) -> StreamOffset:
        """Return the start of a new query."""
        log, end = self.refresh()
        now_ms = self._clock.wall_ms()
        start = start_position(
            log, self.options, end_offset=end.offset, streaming=True, now_ms=now_ms
        )
        return StreamOffset(
            offset=start.offset,
            epoch=epoch_before(log, start.offset),
            start_offset=start.offset,
            cluster_id=log.cluster_id,
            snapshot=start.snapshot,
            initial=True,
            topic_id=topic_id_of(log),
        )

    def end_without_start(self) -> StreamOffset:
        """Return the end of a batch whose start Spark passes to ``partitions`` only."""
        log, end = self.refresh()
        return StreamOffset(
            offset=end.offset,
            epoch=epoch_before(log, end.offset),
            start_offset=FROM_SPARK,
            cluster_id=log.cluster_id,
            topic_id=topic_id_of(log),
        )

    # --- the next batch ---------------------------------------------------------------------------

    def backlog(self, position: StreamOffset) -> Backlog | None:
        """Return the records after ``position``; None if the log is unchanged since it had none.

        Raises:
            DataLossError: records after ``position`` were lost, and ``failOnDataLoss`` is true.
        """
        stamp = None if self._watch is None else self._watch.stamp()
        if stamp is not None and self._idle == (position, self._target_offset, stamp):
            return None
        if self._unread is not None and self._unread.offset != position.offset:
            self._unread = None
        log, end = self.refresh()
        end_offset = min(end.offset, log.log_end_offset)
        if self._target_offset is not None:
            end_offset = min(end_offset, self._target_offset)
        start, lost = self._resume(log, position)
        found = Backlog(start=start, end_offset=end_offset, lost=lost)
        # Records that are held back become readable without a change of the files.
        is_held_back = end.basis is EndBasis.HOLDBACK and end.offset < log.log_end_offset
        is_idle = found.is_empty and not lost and not is_held_back
        self._idle = (position, self._target_offset, stamp) if is_idle and stamp else None
        if found.is_empty:
            self.measure(found.start.offset)
        return found

    def next_batch(self, backlog: Backlog, limits: BatchLimits) -> StreamOffset | None:
        """Return the end of the next batch within the limits; None if there are no records."""
        assert self._log is not None, "the backlog is that of an open log"
        found = next_batch(self._log, backlog.start, backlog.end_offset, limits, lost=backlog.lost)
        self._checked = found
        if found is not None:
            self.measure(found.offset)
        return found

    def _resume(self, log: LogReader, position: StreamOffset) -> tuple[StartPosition, bool]:
        """Return the start of the next batch, and whether records before it were lost."""
        loss = check_data_loss(log, position, self.options)
        if position.initial and position.snapshot is not None:
            # No rows have been read yet, so a newer snapshot is an equally valid start.
            chosen = (
                position.snapshot if position.snapshot in log.snapshots else log.newest_snapshot()
            )
            if chosen is not None and (loss is None or not loss.is_different_log):
                return StartPosition(offset=chosen.end_offset, snapshot=chosen), False
        if loss is None:
            return StartPosition(offset=position.offset), False
        return self._accept(loss), True

    def _accept(self, loss: Loss) -> StartPosition:
        """Return where to resume, with a warning; raise the error if ``failOnDataLoss`` is true."""
        if self.options.fail_on_data_loss:
            raise loss.error
        if self._logged_loss != str(loss.error):
            self._logged_loss = str(loss.error)
            _LOGGER.warning("%s; resuming at offset %d", loss.error, loss.resume.offset)
        return loss.resume

    # --- the plan of a batch ----------------------------------------------------------------------

    def _with_start(self, before: StreamOffset, batch: StreamOffset) -> StreamOffset:
        """Return a batch of ``end_without_start`` with its start, and its snapshot if it has one.

        Spark requests the start of a query's first batch after the batch's end, and again after a
        restart. By then the start may be above that end. If the batch was to start at ``latest``,
        it is empty. If there is a newer snapshot, the batch starts at the newest one that is not
        above its end. If the log begins above the batch's end, its records are lost.

        Other batches follow ``before``, unless its log was deleted, truncated or replaced since.

        Raises:
            DataLossError: records after ``before`` were lost, and ``failOnDataLoss`` is true.
        """
        log, _ = self.refresh()
        loss = check_data_loss(log, before, self.options)
        is_lost = loss is not None and (loss.is_different_log or not before.initial)
        if loss is not None and is_lost:
            start = self._accept(loss)
        elif before.initial:
            start = StartPosition(offset=before.offset, snapshot=before.snapshot)
        else:
            return dataclasses.replace(batch, start_offset=before.offset)
        start_offset, snapshot = start.offset, start.snapshot
        if start_offset > batch.offset:
            if snapshot is not None:
                older = [one for one in log.snapshots if one.end_offset <= batch.offset]
                snapshot = older[-1] if older else None
                start_offset = 0 if snapshot is None else snapshot.end_offset
            elif is_lost or starts_at_latest(log, self.options):
                start_offset = batch.offset
            elif start_offset == log.log_start_offset:
                start_offset = 0  # the records of the batch have been deleted since
        return dataclasses.replace(
            batch, start_offset=start_offset, snapshot=snapshot, lost=is_lost
        )

    def available_rows(
        self, before: StreamOffset | None, batch: StreamOffset
    ) -> tuple[LogReader, AvailableRows]:
        """Return the open log and the rows of ``batch`` that can be read, perhaps again.

        ``before`` is the end of the previous batch, None if the log was added in this batch.

        Raises:
            DataLossError: the batch does not follow ``before``; or records of the batch, or between
                it and ``before``, were lost, and ``failOnDataLoss`` is true.
        """
        if batch.start_offset == FROM_SPARK and before is not None:
            batch = self._with_start(before, batch)
        follows = before is None or before.offset == batch.start_offset
        is_first = before is not None and before.initial
        if batch.start_offset > batch.offset or not (follows or is_first or batch.lost):
            end = "an unknown offset" if before is None else before.offset
            raise data_loss(
                DataLoss.CHECKPOINT_MISMATCH,
                path=self.options.path,
                reason=f"a batch with offsets {batch.start_offset} to {batch.offset} does not "
                f"follow a batch that ends at {end}",
            )
        checked, self._checked = self._checked, None
        if self._log is None or batch != checked:  # else it was read for this batch
            self.refresh()
        log = self._log
        assert log is not None, "a refresh opens the log"
        rows = available_rows(log, batch)
        for loss in rows.losses:
            if self.options.fail_on_data_loss:
                raise loss
            _LOGGER.warning("%s; continuing without these records", loss)
        return log, rows
