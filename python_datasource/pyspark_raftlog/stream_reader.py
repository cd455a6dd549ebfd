"""The stream reader.

Invariants:

1. Calls have no effect on later results: the contents of a batch depend on the log and on the
   offsets in Spark's checkpoint, never on state of the reader.
2. The reader holds nothing that must be released. Spark creates it twice, pickles one instance to
   the executors, ends the other without ``stop()``, and requests the initial offset again after a
   restart.
3. Only ``latestOffset`` waits, at most ``pollWaitMs``, while there are no new records.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from raftlog import limits as raftlog_limits
from raftlog.client import EndBasis, LogReader, ReadEnd
from raftlog.client.clock import Clock
from raftlog.errors import DivergedLogError
from raftlog_state.source_rows.data_loss import DataLoss
from raftlog_state.source_rows.reading import retry

from .admission import BatchLimits, available_rows, check_data_loss, epoch_before, next_batch
from .compat import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from .errors import data_loss
from .offsets import FROM_SPARK, StreamOffset
from .planning import StartPosition, plan_partitions, start_position
from .reader import open_source, read_partition

if TYPE_CHECKING:
    import pyarrow as pa

    from .options import RaftlogOptions

POLL_STEP_MS: Final = 20

_UNLIMITED_ROWS: Final = 2**63 - 1
_LOGGER: Final = logging.getLogger("pyspark_raftlog")


class RaftlogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Stream reader of one query and one log."""

    def __init__(
        self, options: RaftlogOptions, columns: tuple[str, ...], clock: Clock | None = None
    ) -> None:
        self._options = options
        self._columns = columns
        self._clock = clock or Clock()
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

    # --- Spark's interface ------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Return the start of a new query, determined once."""
        if self._initial is None:
            self._initial = retry(self._initial_position, self._clock)
        return self._initial.to_json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return a limit even without options, so that only ``Trigger.Once`` has no limit."""
        return ReadMaxRows(self._options.max_offsets_per_trigger or _UNLIMITED_ROWS)

    def latestOffset(  # noqa: N802
        self, start: dict[str, Any] | None = None, limit: ReadLimit | None = None
    ) -> dict[str, Any]:
        """Return the end of the next batch, ``start`` itself if there are no new records.

        Waits up to ``pollWaitMs`` for new records, except with ``Trigger.AvailableNow``.

        Raises:
            DataLossError: records after ``start`` were lost.
        """
        if start is None:
            return self._legacy_latest_offset()
        position = StreamOffset.from_json(start, path=self._options.path)
        limits = self._limits(limit)
        remaining_ms = 0 if self._target_offset is not None else self._options.poll_wait_ms
        while True:
            batch = retry(lambda: self._next_batch(position, limits), self._clock)
            if batch is not None:
                self._triggered_at_ms = self._clock.wall_ms()
                return batch.to_json()
            if remaining_ms <= 0:
                return start
            step_ms = min(POLL_STEP_MS, remaining_ms)
            self._clock.pause(step_ms / 1_000)
            remaining_ms -= step_ms

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """Return the latest known end of the log, for the query's progress. Reads no files."""
        if self._end is None or self._log is None:
            return None
        return StreamOffset(
            offset=self._end.offset,
            epoch=self._end.epoch,
            start_offset=self._end.offset,
            cluster_id=self._log.cluster_id,
        ).to_json()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Fix the end offset of this run; later records belong to the next one."""
        self._target_offset = retry(self._refresh, self._clock)[1].offset

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Plan the batch that ends at ``end``, perhaps again after a restart.

        Raises:
            DataLossError: records of the batch were lost.
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
                reason=f"a batch with offsets {batch.start_offset} to {batch.offset} does not "
                f"follow a batch that ends at {before.offset}",
            )
        return retry(lambda: self._plan(batch), self._clock)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one partition; on an executor."""
        return read_partition(partition, self._options, self._columns)

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing: a log does not track its readers."""

    def stop(self) -> None:
        """Do nothing: no file is open between calls."""

    # --- implementation ---------------------------------------------------------------------------

    def _legacy_latest_offset(self) -> dict[str, Any]:
        """Return the end of the next batch for Spark 4.0 and 4.1, which pass no start and no limit.

        A new query starts at its initial offset. A restarted query has not requested it: the start
        of its first batch is ``FROM_SPARK``, and is passed to ``partitions``.
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
            _LOGGER.warning("%s; continuing without these records", loss)
        return plan_partitions(log, self._options, batch_rows.start, batch_rows.end_offset)

    def _limits(self, limit: ReadLimit | None) -> BatchLimits:
        if isinstance(limit, ReadAllAvailable):
            return BatchLimits(whole=True)
        return BatchLimits(
            records_max=self._options.max_offsets_per_trigger,
            bytes_max=self._options.max_bytes_per_trigger,
        )

    def _refresh(self) -> tuple[LogReader, ReadEnd]:
        """List the files of the log again; return the log and its end."""
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
        """Return the start of the next batch, and whether records before it were lost."""
        loss = check_data_loss(log, position, self._options)
        if position.initial and position.snapshot is not None:
            # No rows have been read yet: a newer snapshot is an equally valid start.
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
            _LOGGER.warning("%s; resuming at offset %d", loss.error, loss.resume.offset)
        return loss.resume, True

    def _is_below_min_offsets(self, offset: int, end_offset: int, limits: BatchLimits) -> bool:
        least = self._options.min_offsets_per_trigger
        if least is None or limits.whole or self._target_offset is not None:
            return False
        if end_offset - offset >= least or self._triggered_at_ms is None:
            return False
        waited_ms = self._clock.wall_ms() - self._triggered_at_ms
        return waited_ms < self._options.max_trigger_delay_ms
