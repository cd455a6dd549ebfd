"""``LogFollower``: follows a log into the tables in one process, without Spark.

Rules of this file:

1. Each record is read and decoded once. Memory is bounded by one batch and the state. A snapshot is
   one batch, and so is an internal log that is read as a whole.
2. A batch is read, then appended. A failed read has no effect and is repeated. Reads begin at the
   end of the tables, which the writer knows.
3. In one directory's log, records younger than the holdback are not read: they may not be
   committed.
4. NoOpRecords at the end of a log, which change nothing, are appended together with the records
   after them, or after a delay. Until then the tables end before them, as if they had not been
   read.
5. If the tables lack records of an internal log that no longer exist, because they were below its
   start or compacted, the tables get the state of the whole log: one of these records may have
   deleted a row. A first load, which continues where it began, has the log's
   ``delete.retention.ms`` for this instead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute

from raftlog.client import LogReader
from raftlog.clock import Clock
from raftlog.errors import DataLossError, RaftlogError
from raftlog.limits import MIB, TAIL_HOLDBACK_MS_DEFAULT
from raftlog.records.batch_columns import Column
from raftlog_state.collection_pause import collection_paused
from raftlog_state.records import NO_OP_VALUE, DecodedRecord, Redactor, decode
from raftlog_state.records.internal_logs import INTERNAL_LOGS
from raftlog_state.source_rows.columns import arrow_schema
from raftlog_state.source_rows.data_loss import DataLoss
from raftlog_state.source_rows.internal_columns import InternalFormat
from raftlog_state.source_rows.reading import RowSettings, retry, snapshot_rows, split_rows

from .backoff import Backoff
from .batch import with_positions
from .cluster_cache import EpochRange
from .following import (
    RECORDS_PER_BATCH_DEFAULT,
    BatchSink,
    check_same_log,
    isolation_of,
    next_offset,
)
from .progress import NOTHING, Progress
from .stores.protocol import TableStore
from .upkeep import Upkeep, UpkeepRunner
from .writer import Writer

if TYPE_CHECKING:
    from raftlog.types import SnapshotId

pc: Any = pyarrow.compute  # pyarrow creates its functions at import, unseen by type checkers

BATCH_BYTES_MAX: Final = 64 * MIB
POLL_MS_DEFAULT: Final = 100
NO_OP_DELAY_MS_DEFAULT: Final = 5_000


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowSettings:
    """Settings of a follower: what is written, and when.

    ``cluster_id``: the log's cluster id, needed if the tables contain other clusters.
    ``allows_gap``: load the newest snapshot if the log begins after the end of the tables.
    ``take_over``: write clusters even if other writers have written them until now.
    ``no_op_delay_ms``: how long NoOpRecords wait for other records, in a run without an end.
    ``is_once``: stop at the end that the log has when the run starts.
    """

    redactor: Redactor
    cluster_id: str | None = None
    writes_log: bool = True
    record_count_max: int = RECORDS_PER_BATCH_DEFAULT
    poll_ms: int = POLL_MS_DEFAULT
    holdback_ms: int = TAIL_HOLDBACK_MS_DEFAULT
    no_op_delay_ms: int = NO_OP_DELAY_MS_DEFAULT
    allows_gap: bool = False
    take_over: bool = False
    is_once: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Appended:
    """Offsets of one append to the tables, inclusive; ``snapshot_id`` if it is a snapshot."""

    first_offset: int
    last_offset: int
    snapshot_id: SnapshotId | None

    def __str__(self) -> str:
        if self.snapshot_id is not None:
            return f"loaded snapshot {self.snapshot_id}: the state after offset {self.last_offset}"
        return f"appended offsets {self.first_offset} to {self.last_offset}"


class DecodedValues:
    """Records decoded for redaction or JSON, so that replay need not decode them again."""

    def __init__(self) -> None:
        self.records: dict[bytes, DecodedRecord] = {}
        """Records by their stored values, which are redacted."""

    def decode(self, value: bytes) -> DecodedRecord:
        """Return the record of a value. Raises ``MetadataParseError``."""
        found = self.records.get(value)
        return decode(value) if found is None else found


def row_settings(
    columns: Sequence[str], settings: FollowSettings, decoded: DecodedValues
) -> RowSettings:
    """Return the settings for reading rows of a log."""
    return RowSettings(
        columns=tuple(columns),
        redactor=settings.redactor,
        with_control=True,
        with_aborted=True,
        decoded=decoded.records,
    )


class DelayedNoOps:
    """NoOpRecords at the end of a log that are not appended yet.

    They are due at the next multiple of the delay, so that those of all logs in a process are
    appended together.
    """

    def __init__(self, delay_ms: int) -> None:
        self._delay_ms = delay_ms
        self._range = (-1, -1)
        self._due_ms = 0.0

    def have_to_wait(self, start_offset: int, end_offset: int, now_ms: float) -> bool:
        """Return whether a range was passed to ``delay`` and is not due yet."""
        return self._range == (start_offset, end_offset) and now_ms < self._due_ms

    def delay(self, start_offset: int, end_offset: int, now_ms: float) -> bool:
        """Return whether a range that contains only NoOpRecords has to wait.

        The first of them decides when they are due.
        """
        if self._range[0] != start_offset and self._delay_ms:
            self._due_ms = (now_ms // self._delay_ms + 1) * self._delay_ms
        self._range = (start_offset, end_offset)
        return now_ms < self._due_ms


class LogTail:
    """Reader of the records of one log that its cluster's tables lack. Used by one thread."""

    def __init__(
        self,
        open_log: Callable[[], LogReader],
        settings: FollowSettings,
        *,
        place: str,
        clock: Clock,
        rows: RowSettings,
        committed_end: Callable[[], int] | None = None,
    ) -> None:
        """``committed_end`` returns the end, exclusive, up to which the log is read at most."""
        self._open_log = open_log
        self._settings = settings
        self._place = place
        self._clock = clock
        self._rows = rows
        self._committed_end = committed_end
        self._log: LogReader | None = None
        self._target_offset: int | None = None
        self._load_end: int | None = None
        """During an internal log's first load here, the end (exclusive) it had at the begin."""
        self._no_ops = DelayedNoOps(settings.no_op_delay_ms)

    @property
    def target_offset(self) -> int | None:
        """The end of the run, exclusive; None if it continues."""
        return self._target_offset

    def refreshed(self) -> LogReader:
        """Open the log, or read its end again; return it."""
        if self._log is None:
            self._log = self._open_log()
            self._rows = replace(self._rows, isolation=isolation_of(self._log))
            form = INTERNAL_LOGS.get(self._log.topic)
            if form is not None:
                internal = InternalFormat(form, self._settings.redactor)
                self._rows = replace(self._rows, redactor=None, internal=internal, decoded=None)
        else:
            self._log.refresh()
        if self._settings.is_once and self._target_offset is None:
            self._target_offset = self._read_end(self._log)
        return self._log

    @collection_paused()
    def read_next(
        self, log: LogReader, progress: Progress, epochs: Callable[[], Sequence[EpochRange]]
    ) -> tuple[Appended, pa.Table] | None:
        """Return the rows of the refreshed log's next batch, or None if there are none.

        Raises:
            WrongClusterError, DivergedLogError: the tables were not written from this log.
            TablesError: there is a gap between tables and log.
            QuorumUnavailableError: no node answers.
        """
        settings = self._settings
        if self._load_end is not None and progress.next_offset >= self._load_end:
            self._load_end = None
        check_same_log(self._place, progress, epochs, log)
        end_offset = self._read_end(log)
        if self._target_offset is not None:
            end_offset = min(end_offset, self._target_offset)
        start_offset = next_offset(self._place, progress, log, allows_gap=settings.allows_gap)
        if start_offset is None:
            snapshot_id = log.newest_snapshot()
            if snapshot_id is not None:
                if snapshot_id.end_offset <= progress.next_offset:
                    return None
                return self._snapshot(log, snapshot_id)
            start_offset = log.log_start_offset  # the writer reports the gap of a metadata log
        if log.topic in INTERNAL_LOGS:
            return self._internal(log, progress, start_offset, end_offset)
        now_ms = self._clock.now_ms()
        if start_offset >= end_offset or self._no_ops.have_to_wait(
            start_offset, end_offset, now_ms
        ):
            return None
        boundary, rows = self._batch(log, start_offset, end_offset)
        may_wait = not settings.is_once and boundary == end_offset and _are_no_ops(rows)
        if may_wait and self._no_ops.delay(start_offset, end_offset, now_ms):
            return None
        appended = Appended(first_offset=start_offset, last_offset=boundary - 1, snapshot_id=None)
        return appended, rows

    def _internal(
        self, log: LogReader, progress: Progress, start_offset: int, end_offset: int
    ) -> tuple[Appended, pa.Table] | None:
        """Return the next batch of an internal log, or all of it if the tables have missed records.

        If all records of the log were deleted, return None until there is another one.
        """
        boundary, rows = start_offset, None
        while boundary < end_offset and (rows is None or not rows.num_rows):  # a batch may be empty
            boundary, rows = self._batch(log, boundary, end_offset)
        if rows is None or not rows.num_rows:
            return None
        if progress.offset == NOTHING:
            self._load_end = end_offset
        is_first_load = self._load_end is not None and progress.next_offset < self._load_end
        if not is_first_load and rows.num_rows < boundary - progress.next_offset:
            boundary, rows = end_offset, self.whole(log, end_offset)
            if not rows.num_rows:
                return None
        return Appended(first_offset=start_offset, last_offset=boundary - 1, snapshot_id=None), rows

    def missed_end(self, log: LogReader, progress: Progress) -> int | None:
        """Return an internal log's end (exclusive) if the tables have missed deleted records.

        Otherwise return None. The log has been refreshed.
        """
        start_offset, end_offset = progress.next_offset, self._read_end(log)
        if progress.offset == NOTHING or end_offset <= start_offset:
            return None
        first = max(start_offset, log.log_start_offset)
        count = 0
        for scan in log.scan(first, end_offset, columns=Column.OFFSET):
            assert scan.records.offset is not None, "a requested column"
            at = scan.records.offset.to_numpy()
            count += int(np.count_nonzero((at >= first) & (at < end_offset)))
        return end_offset if count < end_offset - start_offset else None

    def whole(self, log: LogReader, end_offset: int) -> pa.Table:
        """Return all rows of an internal log, which replace those of its tables."""
        return with_positions(self._rows_between(log, log.log_start_offset, end_offset))

    def _batch(self, log: LogReader, start_offset: int, end_offset: int) -> tuple[int, pa.Table]:
        """Return the end (exclusive) and the rows of the batch from an offset on."""
        boundary = log.next_boundary(
            start_offset,
            end_offset=end_offset,
            max_records=self._settings.record_count_max,
            max_bytes=BATCH_BYTES_MAX,
        )
        return boundary, self._rows_between(log, start_offset, boundary)

    def _rows_between(self, log: LogReader, start_offset: int, boundary: int) -> pa.Table:
        """Return the rows from an offset up to a boundary of batches, exclusive."""
        plan = log.plan(
            start_offset, boundary, isolation=self._rows.isolation, with_producers=False
        )
        batches = [
            batch
            for split in plan.splits
            for batch in split_rows(log, split, self._rows, self._report_loss)
        ]
        return pa.Table.from_batches(batches, arrow_schema(self._rows.columns))

    def _snapshot(self, log: LogReader, snapshot_id: SnapshotId) -> tuple[Appended, pa.Table]:
        # A snapshot may have a million records, and decoded records take more memory than the
        # state.
        settings = replace(self._rows, decoded=None)
        batches = list(snapshot_rows(log, snapshot_id, settings, self._report_loss))
        rows = pa.Table.from_batches(batches, arrow_schema(self._rows.columns))
        last_offset = snapshot_id.end_offset - 1
        appended = Appended(
            first_offset=last_offset, last_offset=last_offset, snapshot_id=snapshot_id
        )
        return appended, rows

    def _read_end(self, log: LogReader) -> int:
        """Return the end, exclusive, up to which the log can be read now."""
        end_offset = log.read_end(
            isolation=self._rows.isolation,
            holdback_ms=self._settings.holdback_ms,
            now_ms=self._clock.wall_ms(),
        ).offset
        return end_offset if self._committed_end is None else min(end_offset, self._committed_end())

    def _report_loss(self, condition: DataLoss, reason: str) -> NoReturn:
        """Raise the error of lost records; the next read determines what the log has now."""
        assert self._log is not None
        raise DataLossError(
            path=self._log.path,
            condition=condition.value,
            reason=reason,
            remedy="run the command again",
        )


def _are_no_ops(rows: pa.Table) -> bool:
    """Return whether all rows of a log are NoOpRecords."""
    are_no_ops = pc.all(pc.equal(rows["value"], NO_OP_VALUE), skip_nulls=False)
    return are_no_ops.as_py() is True


class LogFollower:
    """Follower of one log into the tables of a store. Used by one thread.

    ``upkeep_store`` is another store of the same place, for upkeep concurrent with appends; None:
    upkeep runs between appends. ``committed_end`` returns the end, exclusive, up to which the log
    is read at most. ``wait_for_records`` returns when there may be more records, at the latest
    after its seconds. ``uninterrupted`` is entered for each append; ``raise_if_stopped`` is called
    before each read.
    """

    def __init__(
        self,
        open_log: Callable[[], LogReader],
        store: TableStore,
        settings: FollowSettings,
        *,
        upkeep_store: TableStore | None = None,
        clock: Clock | None = None,
        committed_end: Callable[[], int] | None = None,
        wait_for_records: Callable[[float], None] | None = None,
        log_event: Callable[[str], None],
        uninterrupted: Callable[[], AbstractContextManager[None]] = nullcontext,
        raise_if_stopped: Callable[[], None] = lambda: None,
    ) -> None:
        self._settings = settings
        self._upkeep_store = upkeep_store
        self._clock = clock or Clock()
        self._wait_for_records = wait_for_records or self._clock.pause
        self._log_event = log_event
        self._uninterrupted = uninterrupted
        self._raise_if_stopped = raise_if_stopped
        self._decoded = DecodedValues()
        self._writer = Writer(
            store,
            cluster_id=settings.cluster_id,
            writes_log=settings.writes_log,
            take_over=settings.take_over,
            decode_value=self._decoded.decode,
        )
        self._sink: BatchSink | None = None
        self._tail = LogTail(
            open_log,
            settings,
            place=self._writer.place,
            clock=self._clock,
            rows=row_settings(self._writer.source_columns, settings, self._decoded),
            committed_end=committed_end,
        )

    def run(self) -> None:
        """Append until the end of the run or, without ``is_once``, until an error or a signal.

        Nodes that do not answer are asked again after a growing pause. At the end, the run waits
        for upkeep.

        Raises:
            As ``append_next``.
        """
        try:
            self._run()
        finally:
            self.close()

    def close(self) -> None:
        """Wait for running upkeep."""
        if self._sink is not None:
            self._sink.close()
            self._sink = None

    def _run(self) -> None:
        backoff = Backoff()
        while True:
            self._raise_if_stopped()
            try:
                appended = self.append_next()
            except RaftlogError as error:
                if self._settings.is_once or not error.retriable:
                    raise
                backoff.failed(error, self._clock.now_ms() / 1_000)
                self._log_event(f"{error}; retrying in {backoff.pause_s:g} s")
                self._clock.pause(backoff.pause_s)
                continue
            backoff.succeeded()
            if appended is not None:
                self._log_event(str(appended))
            elif self._settings.is_once:
                return
            else:
                self._wait_for_records(self._settings.poll_ms / 1_000)

    def append_next(self) -> Appended | None:
        """Append the next records, or the rows of a snapshot; return None if there are none.

        Raises:
            WrongClusterError, DivergedLogError: the tables were not written from this log.
            TablesError: there is a gap between tables and log, or Delta failed.
            QuorumUnavailableError: no node answers.
        """
        found = retry(self._read_next, self._clock, is_new_read=True)
        if found is None:
            return None
        appended, rows = found
        assert self._sink is not None, "created before the first rows are read"
        with self._uninterrupted():
            is_new = self._sink.append(rows)
            self._decoded.records.clear()
            del found, rows  # upkeep needs memory, too
            self._sink.keep_up()
        return appended if is_new else None

    def last_offset(self) -> int:
        """Return the last offset in the tables, inclusive; -1 if they are empty."""
        return self._writer.progress().offset

    def _read_next(self) -> tuple[Appended, pa.Table] | None:
        """Return the rows of the next batch."""
        writer = self._writer
        self._decoded.records.clear()
        log = self._tail.refreshed()
        progress = writer.progress()
        if self._sink is None:
            self._log_event(f"following {log.path} from offset {progress.next_offset}")
            upkeep = UpkeepRunner(
                writer,
                Upkeep(self._tail.target_offset),
                store=self._upkeep_store,
                clock=self._clock,
                warn=self._log_event,
            )
            self._sink = BatchSink(writer, log.cluster_id, upkeep)
        return self._tail.read_next(log, progress, writer.epochs)
