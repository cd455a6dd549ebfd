"""Readers of a stream: the calls of Spark, for one log and for several.

Invariants:

1. Calls have no effect on later results: the contents of a batch depend on the log and on the
   offsets in Spark's checkpoint, never on state of the reader.
2. The reader holds nothing that must be released. Spark creates it twice, pickles one instance to
   the executors, drops the other without calling ``stop()``, and requests the initial offset again
   after a restart.
3. Only ``latestOffset`` waits, for at most ``pollWaitMs``, while there are no new records.
"""

from __future__ import annotations

import abc
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, Protocol, Self, TypeVar

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from raftlog.clock import Clock
from raftlog_state.source_rows.reading import retry

from .admission import BatchLimits
from .compat import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from .log_stream import LogStream
from .offsets import StreamOffset
from .planning import plan_partitions
from .reader import read_partition

if TYPE_CHECKING:
    import pyarrow as pa

    from .options import RaftlogOptions

POLL_STEP_MS: Final = 20

_UNLIMITED_ROWS: Final = 2**63 - 1


class _Offset(Protocol):
    def to_json(self) -> dict[str, Any]: ...


P = TypeVar("P", bound=_Offset)


class MicroBatchReader(DataSourceStreamReader, SupportsTriggerAvailableNow, Generic[P]):
    """Stream reader without knowledge of logs: limits, polling and pickling. ``P``: its offsets."""

    poll_step_ms: ClassVar[int] = POLL_STEP_MS

    def __init__(
        self, options: RaftlogOptions, columns: tuple[str, ...], clock: Clock | None = None
    ) -> None:
        self._options = options
        self._columns = columns
        self._clock = clock or Clock()
        self._is_available_now = False
        self._triggered_at_ms: int | None = None

    def __reduce__(self) -> tuple[type[Self], tuple[Any, ...]]:
        """Pickle only the arguments, because an open log belongs to its process."""
        return type(self), (self._options, self._columns, self._clock)

    @abc.abstractmethod
    def _parse(self, written: dict[str, Any]) -> P:
        """Return an offset of Spark's checkpoint."""

    @abc.abstractmethod
    def _next_batch(self, position: P, limits: BatchLimits) -> P | None:
        """Return the end of the next batch; None if there are no new records."""

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
        position = self._parse(start)
        limits = self._limits(limit)
        remaining_ms = 0 if self._is_available_now else self._options.poll_wait_ms
        while True:
            batch = self._next_batch(position, limits)
            if batch is not None:
                self._triggered_at_ms = self._clock.wall_ms()
                return batch.to_json()
            if remaining_ms <= 0:
                return start
            step_ms = min(self.poll_step_ms, remaining_ms)
            self._clock.pause(step_ms / 1_000)
            remaining_ms -= step_ms

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one partition; on an executor."""
        return read_partition(partition, self._options, self._columns)

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing: a log does not track its readers."""

    def stop(self) -> None:
        """Do nothing: no file is open between calls."""

    @abc.abstractmethod
    def _legacy_latest_offset(self) -> dict[str, Any]:
        """Return the end of the next batch for Spark 4.0 and 4.1, which pass no start or limit."""

    def _limits(self, limit: ReadLimit | None) -> BatchLimits:
        if isinstance(limit, ReadAllAvailable):
            return BatchLimits(whole=True)
        return BatchLimits(
            records_max=self._options.max_offsets_per_trigger,
            bytes_max=self._options.max_bytes_per_trigger,
        )

    def _waits_for_more(self, record_count: int, limits: BatchLimits) -> bool:
        """Return whether this many records are below ``minOffsetsPerTrigger`` and may wait."""
        least = self._options.min_offsets_per_trigger
        if least is None or limits.whole or self._is_available_now:
            return False
        if record_count >= least or self._triggered_at_ms is None:
            return False
        waited_ms = self._clock.wall_ms() - self._triggered_at_ms
        return waited_ms < self._options.max_trigger_delay_ms


class RaftlogStreamReader(MicroBatchReader[StreamOffset]):
    """Stream reader of one query and one log."""

    def __init__(
        self, options: RaftlogOptions, columns: tuple[str, ...], clock: Clock | None = None
    ) -> None:
        super().__init__(options, columns, clock)
        self._stream = LogStream(options, self._clock)
        self._initial: StreamOffset | None = None
        self._last: StreamOffset | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Return the start of a new query, determined once."""
        if self._initial is None:
            self._initial = retry(self._stream.initial_position, self._clock)
        return self._initial.to_json()

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """Return the latest known end of the log, for the query's progress. Reads no files."""
        return self._stream.latest()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Fix the end offset of this run; later records belong to the next one."""
        retry(self._stream.fix_target, self._clock)
        self._is_available_now = True

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Plan the batch that ends at ``end``, perhaps again after a restart.

        Raises:
            DataLossError: records of the batch were lost.
        """
        before, batch = self._parse(start), self._parse(end)
        if batch.initial:
            return []

        def plan() -> list[InputPartition]:
            log, rows = self._stream.available_rows(before, batch)
            return [*plan_partitions(log, self._options, rows.start, rows.end_offset)]

        return retry(plan, self._clock)

    def _parse(self, written: dict[str, Any]) -> StreamOffset:
        return StreamOffset.from_json(written, path=self._options.path)

    def _next_batch(self, position: StreamOffset, limits: BatchLimits) -> StreamOffset | None:
        def find() -> StreamOffset | None:
            backlog = self._stream.backlog(position)
            if backlog is None:
                return None
            waits = self._waits_for_more(backlog.record_count, limits)
            if waits and backlog.start.snapshot is None:
                self._stream.measure(backlog.start.offset)
                return None
            return self._stream.next_batch(backlog, limits)

        return retry(find, self._clock)

    def _legacy_latest_offset(self) -> dict[str, Any]:
        """Return the end of the next batch.

        A new query starts at its initial offset. A restarted query has not requested it: the start
        of its first batch is ``FROM_SPARK``, and is passed to ``partitions``.
        """
        if self._last is None:
            self._last = self._initial
        if self._last is None:
            self._last = retry(self._stream.end_without_start, self._clock)
        else:
            self._last = self._next_batch(self._last, BatchLimits(whole=True)) or self._last
        return self._last.to_json()
