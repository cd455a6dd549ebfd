"""The stream reader: where a stream begins, how far it has come, what its next batch is.

Rules of this file:

1. Asking changes nothing: the same question about the same log has the same answer, and what is
   written in Spark's checkpoint decides what a batch holds, never what this object remembers.
2. Spark makes this object twice, pickles one of them to the executors, kills the other without
   ``stop()`` and asks for the initial offset again after a restart. So it holds nothing that must
   be released, and trusts only the offsets that it is given.
3. The only wait is in ``latestOffset``, at most ``pollWaitMs``, while nothing is new.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from raftlog import limits as raftlog_limits
from raftlog.client import EndBasis, LogReader, ReadEnd
from raftlog.errors import DivergedLogError

from .admission import BatchLimits, available_rows, check_data_loss, epoch_before, next_batch
from .clock import Clock, SystemClock
from .compat import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from .data_loss import DataLoss, data_loss
from .offsets import FROM_SPARK, StreamOffset
from .planning import StartPosition, plan_partitions, start_position
from .reader import open_source, read_partition
from .retry import retry

if TYPE_CHECKING:
    import pyarrow as pa

    from .options import RaftlogOptions

POLL_STEP_MS: Final = 20

_UNLIMITED_ROWS: Final = 2**63 - 1
_LOGGER: Final = logging.getLogger("pyspark_raftlog")


class RaftlogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One streaming query over one log."""

    def __init__(
        self, options: RaftlogOptions, columns: tuple[str, ...], clock: Clock | None = None
    ) -> None:
        self._options = options
        self._columns = columns
        self._clock = clock or SystemClock()
        self._reset()

    def _reset(self) -> None:
        self._log: LogReader | None = None
        self._end: ReadEnd | None = None
        self._initial: StreamOffset | None = None
        self._last: StreamOffset | None = None
        self._target_offset: int | None = None
        self._triggered_at_ms: int | None = None
        self._logged_basis: EndBasis | None = None
        self._logged_loss: str | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"_options": self._options, "_columns": self._columns, "_clock": self._clock}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._options = state["_options"]
        self._columns = state["_columns"]
        self._clock = state["_clock"]
        self._reset()

    # --- what Spark asks --------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Where a new query begins; asked more than once, answered once."""
        if self._initial is None:
            self._initial = retry(self._initial_position, self._clock)
        return self._initial.to_json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Give a limit even if there is none: ``ReadAllAvailable`` then means ``Trigger.Once``."""
        return ReadMaxRows(self._options.max_offsets_per_trigger or _UNLIMITED_ROWS)

    def latestOffset(  # noqa: N802
        self, start: dict[str, Any] | None = None, limit: ReadLimit | None = None
    ) -> dict[str, Any]:
        """Where the next batch ends: ``start`` itself if nothing is new.

        Waits up to ``pollWaitMs`` for news, except with a fixed target.

        Raises:
            DataLossError: the records after ``start`` are not there any more.
        """
        if start is None:
            return self._legacy_latest_offset()
        position = StreamOffset.from_json(start, path=self._options.path)
        limits = self._limits(limit)
        remaining_ms = 0 if self._target_offset is not None else self._options.poll_wait_ms
        while True:
            batch = retry(lambda: self._next_batch(position, limits), self._clock)
            if batch is not None:
                self._triggered_at_ms = self._clock.now_ms()
                return batch.to_json()
            if remaining_ms <= 0:
                return start
            step_ms = min(POLL_STEP_MS, remaining_ms)
            self._clock.sleep_ms(step_ms)
            remaining_ms -= step_ms

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """Give the newest end that was seen, for the query's progress. Reads nothing."""
        if self._end is None or self._log is None:
            return None
        return StreamOffset(
            offset=self._end.offset,
            epoch=self._end.epoch,
            start_offset=self._end.offset,
            cluster_id=self._log.cluster_id,
        ).to_json()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Fix the end of this run: what comes later belongs to the next one."""
        self._target_offset = retry(self._refresh, self._clock)[1].offset

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Plan a batch, or plan one again after a restart: exactly what its end says.

        Raises:
            DataLossError: the batch cannot be read again as it was.
        """
        path = self._options.path
        before = StreamOffset.from_json(start, path=path)
        batch = StreamOffset.from_json(end, path=path)
        if batch.initial:
            return []
        if batch.start_offset == FROM_SPARK:
            batch = dataclasses.replace(batch, start_offset=before.offset)
        follows = before.offset == batch.start_offset
        if batch.start_offset > batch.offset or not (follows or before.initial or batch.lost):
            raise data_loss(
                DataLoss.CHECKPOINT_MISMATCH,
                path=path,
                reason=f"a batch of offsets {batch.start_offset} to {batch.offset} does not follow "
                f"one that ended at {before.offset}",
            )
        return retry(lambda: self._plan(batch), self._clock)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Give the rows of one partition; on an executor."""
        return read_partition(partition, self._options, self._columns)

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing to do: the log is not ours, and nobody waits for us."""

    def stop(self) -> None:
        """Nothing to do: no file is held open between calls."""

    # --- how it is answered -----------------------------------------------------------------------

    def _legacy_latest_offset(self) -> dict[str, Any]:
        """Answer Spark 4.0 and 4.1, which do not say where the query is and know no limits.

        A new query begins where its initial offset says. A restarted one asked for none: then the
        batch begins where Spark will say that it does.
        """
        if self._last is None:
            self._last = self._initial
        self._last = retry(self._legacy_end, self._clock)
        return self._last.to_json()

    def _legacy_end(self) -> StreamOffset:
        if self._last is not None:
            return self._next_batch(self._last, BatchLimits(whole=True)) or self._last
        log, end = self._refresh()
        return StreamOffset(
            offset=end.offset,
            epoch=epoch_before(log, end.offset),
            start_offset=FROM_SPARK,
            cluster_id=log.cluster_id,
        )

    def _initial_position(self) -> StreamOffset:
        log, end = self._refresh()
        start = start_position(log, self._options, end_offset=end.offset, streaming=True)
        return StreamOffset(
            offset=start.offset,
            epoch=epoch_before(log, start.offset),
            start_offset=start.offset,
            cluster_id=log.cluster_id,
            snapshot=start.snapshot,
            initial=True,
        )

    def _plan(self, batch: StreamOffset) -> list[InputPartition]:
        log, _ = self._refresh()
        batch_rows = available_rows(log, batch)
        for loss in batch_rows.losses:
            if self._options.fail_on_data_loss:
                raise loss
            _LOGGER.warning("%s; going on with what is there", loss)
        return plan_partitions(log, self._options, batch_rows.start, batch_rows.end_offset)

    def _limits(self, limit: ReadLimit | None) -> BatchLimits:
        if isinstance(limit, ReadAllAvailable):
            return BatchLimits(whole=True)
        return BatchLimits(
            records_max=self._options.max_offsets_per_trigger,
            bytes_max=self._options.max_bytes_per_trigger,
        )

    def _refresh(self) -> tuple[LogReader, ReadEnd]:
        """List the log again and say where it ends."""
        if self._log is None:
            self._log = open_source(self._options)
        else:
            self._log.refresh()
        given_ms = self._options.tail_holdback_ms
        holdback_ms = raftlog_limits.TAIL_HOLDBACK_MS_DEFAULT if given_ms is None else given_ms

        def read_end(log: LogReader, previous: ReadEnd | None) -> ReadEnd:
            return log.read_end(
                isolation=self._options.isolation,
                holdback_ms=holdback_ms,
                now_ms=self._clock.now_ms(),
                previous=previous,
            )

        try:
            self._end = read_end(self._log, self._end)
        except DivergedLogError:
            # What was seen there may never have been read: the stream's own place decides.
            self._end = read_end(self._log, None)
        if self._logged_basis is not self._end.basis:
            self._logged_basis = self._end.basis
            _LOGGER.info("%s: %s", self._log.path, self._end.explanation)
        return self._log, self._end

    def _next_batch(self, position: StreamOffset, limits: BatchLimits) -> StreamOffset | None:
        log, end = self._refresh()
        end_offset = min(end.offset, log.log_end_offset)
        if self._target_offset is not None:
            end_offset = min(end_offset, self._target_offset)
        start, lost = self._resume(log, position)
        if start.snapshot is None and self._is_below_min_offsets(start.offset, end_offset, limits):
            return None
        return next_batch(log, start, end_offset, limits, lost=lost)

    def _resume(self, log: LogReader, position: StreamOffset) -> tuple[StartPosition, bool]:
        """Where the next batch begins, and whether records were lost on the way there."""
        loss = check_data_loss(log, position, self._options)
        if position.initial and position.snapshot is not None:
            # Nothing has been given out yet: another checkpoint is as good a beginning.
            chosen = (
                position.snapshot if position.snapshot in log.snapshots else log.newest_snapshot()
            )
            if chosen is not None and (loss is None or not loss.is_different_log):
                return StartPosition(offset=chosen.end_offset, snapshot=chosen), False
        if loss is None:
            return StartPosition(offset=position.offset), False
        if self._options.fail_on_data_loss:
            raise loss.error
        if self._logged_loss != str(loss.error):
            self._logged_loss = str(loss.error)
            _LOGGER.warning("%s; going on at offset %d", loss.error, loss.resume.offset)
        return loss.resume, True

    def _is_below_min_offsets(self, offset: int, end_offset: int, limits: BatchLimits) -> bool:
        least = self._options.min_offsets_per_trigger
        if least is None or limits.whole or self._target_offset is not None:
            return False
        if end_offset - offset >= least or self._triggered_at_ms is None:
            return False
        waited_ms = self._clock.now_ms() - self._triggered_at_ms
        return waited_ms < self._options.max_trigger_delay_ms
