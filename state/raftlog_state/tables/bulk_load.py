"""``BulkLoad``: loads a long log into the tables with parallel tasks, range by range.

Rules of this file:

1. The records of a range are read once and divided into buckets (``range_routing``). One task for
   each bucket replays them into files (``bucket_replay``). One append then publishes the files, and
   a merge brings them into ``state``. The next range begins at the end of the tables.
2. A range that cannot be split, or that a task cannot replay, is left to the writer of single
   batches up to the record that is the cause. That writer writes it or raises its usual error. It
   also writes snapshots and the last records of the log.
3. The next load continues an interrupted one, even within a range. It finds results of tasks and
   the range that was being published in the staging directory, if the log, the redaction and the
   written tables are the same. Everything in this directory may be deleted, except while a load
   runs and holds its lock (``staging``).
4. A range whose append conflicts with another process's append is loaded again from the new end of
   the tables, but at most ``CONFLICTS_MAX`` times in a row.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, TypeAlias

from raftlog.client import Isolation, LogReader
from raftlog.clock import Clock
from raftlog.errors import OptionError
from raftlog_state.errors import ConcurrentWriterError, TablesError
from raftlog_state.loader.image_reader import check_is_metadata

from .bucket_replay import BucketResult
from .cluster_rows import Step, no_step, now_us
from .convert import microseconds
from .following import check_same_log, next_offset
from .loaded_range import LoadedRange
from .log_follower import FollowSettings, LogFollower
from .progress import NOTHING, SOFTWARE, Progress
from .range_routing import NotSplit, RangeOfLog, RoutedRange, route_range, write_state
from .source_options import SourceOptions
from .staging import exclusive, write_durably
from .stores.protocol import TableStore
from .writer import Writer

RANGE_RECORDS: Final = 1_000_000
"""Records of a range. Readers hold one range in memory if its merge was interrupted."""
SERIAL_RECORDS_MAX: Final = 100_000
"""Up to this many records at the end of a log are written without tasks."""
CONFLICTS_MAX: Final = 10
"""A load ends after this many appends in a row have conflicted with other processes' appends."""

RunTasks: TypeAlias = Callable[[RoutedRange, Sequence[int]], Iterable[BucketResult | NotSplit]]
"""Runs ``replay_bucket`` for each bucket, in parallel; returns the results, in any order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadSettings:
    """How a log is divided.

    ``options`` are the source options that name and open the log, for this process and, with table
    ``log``, for the tasks. ``staging`` is a directory that all of them can access; it needs space
    for a range's records and their rows. ``bucket_count`` is the number of tasks per range,
    ``range_records`` the approximate number of records per range.
    """

    options: Mapping[str, str] = field(repr=False)
    staging: str
    bucket_count: int
    range_records: int = RANGE_RECORDS

    def __post_init__(self) -> None:
        for option in ("bucket_count", "range_records"):
            if getattr(self, option) < 1:
                raise OptionError(option=option, reason="it must be at least 1")

    @property
    def records_min(self) -> int:
        """With fewer records than this, the load writes like ``LogFollower``."""
        return min(SERIAL_RECORDS_MAX, -(-self.range_records // 4))


class BulkLoad:
    """Loads a log up to the end that it has at the start. Used by one thread."""

    def __init__(
        self,
        store: TableStore,
        settings: FollowSettings,
        load: LoadSettings,
        run_tasks: RunTasks,
        *,
        log_event: Callable[[str], None],
        on_progress: Callable[[int, int], None] = lambda done, whole: None,
        uninterrupted: Callable[[], AbstractContextManager[None]] = nullcontext,
        raise_if_stopped: Callable[[], None] = lambda: None,
        after_step: Step = no_step,
        clock: Clock | None = None,
        clock_us: Callable[[], int] = now_us,
    ) -> None:
        """``on_progress`` is called with the number of completed records and of all records.

        ``uninterrupted`` is entered for each append; ``raise_if_stopped`` is called between tasks.
        """
        self._store = store
        record_count = min(settings.record_count_max, load.records_min)
        self._settings = replace(settings, is_once=True, record_count_max=record_count)
        self._load = load
        self._run_tasks = run_tasks
        self._log_event = log_event
        self._on_progress = on_progress
        self._uninterrupted = uninterrupted
        self._raise_if_stopped = raise_if_stopped
        self._after_step = after_step
        self._clock = clock or Clock()
        self._clock_us = clock_us
        self._writer = Writer(
            store,
            cluster_id=settings.cluster_id,
            writes_log=settings.writes_log,
            take_over=settings.take_over,
            after_step=after_step,
            clock_us=clock_us,
        )
        self._directory = Path(load.staging, _name_of(store.place, settings.cluster_id))
        self._conflict_count = 0
        self._end: Progress | None = None
        """End of the tables after the last append, so that it need not be read."""
        self._whole = 0
        """Records that the tables lacked at the start."""

    def run(self) -> int:
        """Load the log; return the last offset in the tables, inclusive, -1 if they are empty.

        Raises:
            As ``LogFollower.append_next``; ConcurrentWriterError: another load has the staging
            directory, or other processes have appended again and again; TablesError: also if a file
            of the staging directory cannot be read or written.
        """
        try:
            self._directory.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with exclusive(self._directory.with_suffix(".lock")):
                return self._run()
        except OSError as error:
            cause = (error.strerror or str(error).partition("\n")[0]).lower()
            raise TablesError(
                place=self._load.staging,
                reason=f"files of a load cannot be read or written: {cause}",
                remedy="fix the cause and run it again: the load is continued",
            ) from error

    def _run(self) -> int:
        log = self._open_log()
        check_is_metadata(log)
        end_offset = log.read_end(
            isolation=Isolation.READ_COMMITTED,
            holdback_ms=self._settings.holdback_ms,
            now_ms=self._clock.wall_ms(),
        ).offset
        self._begin(log)
        self._complete()
        serial_to = 0
        while True:
            self._raise_if_stopped()
            progress = self._end or self._writer.begin_load(log.cluster_id)
            self._end = None
            check_same_log(self._store.place, progress, self._writer.epochs, log)
            start_offset = next_offset(
                self._store.place, progress, log, allows_gap=self._settings.allows_gap
            )
            left = end_offset - progress.next_offset
            self._whole = max(self._whole, left)
            self._on_progress(self._whole - left, self._whole)
            if left < self._load.records_min:
                break
            if start_offset == progress.next_offset and start_offset >= serial_to:
                serial_to = self._load_range(log, progress, end_offset)
            elif not self._append_serially():
                break
        self._writer.forget()
        shutil.rmtree(self._directory, ignore_errors=True)
        if left <= 0 and start_offset is not None:
            return progress.offset
        follower = self._follower()
        follower.run()
        return follower.last_offset()

    def _begin(self, log: LogReader) -> None:
        """Delete what a load of another log, or with other rows, has left for these tables."""
        redactor = self._settings.redactor
        secret_free = (redactor.reveal, redactor.mask(b"", "load"))
        source = (log.path, log.cluster_id, log.topic, log.partition)
        own = _name_of(*source, *secret_free, self._settings.writes_log, SOFTWARE)
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        for other in self._directory.iterdir():
            if other.name != own:
                shutil.rmtree(other)
        self._rows = self._directory / own
        self._rows.mkdir(exist_ok=True)

    # --- ranges -----------------------------------------------------------------------------------

    def _load_range(self, log: LogReader, progress: Progress, end_offset: int) -> int:
        """Load the next range; return the offset up to which records must be written serially."""
        start_offset = progress.next_offset
        before = replace(progress, topic=log.topic, partition=log.partition)
        boundary = log.next_boundary(
            start_offset, end_offset=end_offset, max_records=self._load.range_records
        )
        while True:
            routed = route_range(log, self._task(log, before, boundary))
            found = self._replayed(routed, end_offset)
            causes = [result.offset for result in found if isinstance(result, NotSplit)]
            if isinstance(routed, RoutedRange) and not causes:
                break
            cause = max(start_offset, min(causes))
            self._log_event(f"the record at offset {cause} is replayed by one process")
            if cause - start_offset < self._load.records_min:
                return cause + 1
            boundary = log.next_boundary(
                start_offset, end_offset=cause, max_records=self._load.range_records
            )
            if not start_offset < boundary <= cause:  # a transaction that contains it is the first
                return cause + 1
        results = [result for result in found if isinstance(result, BucketResult)]
        loaded = LoadedRange(
            before=before,
            after=_after(routed, results),
            committed_at=routed.task.committed_at,
            log=[file for result in results for file in result.log],
            changes=[file for result in results for file in result.changes],
            state=[file for result in results for file in result.state],
        )
        loaded.save(self._pending)
        self._after_step("load")
        self._publish(loaded)
        return 0

    def _replayed(
        self, routed: RoutedRange | NotSplit, end_offset: int
    ) -> list[BucketResult | NotSplit]:
        """Return the results of the tasks of a range."""
        if isinstance(routed, NotSplit):
            return [routed]
        found: list[BucketResult | NotSplit] = []
        count, task = self._load.bucket_count, routed.task
        for result in self._run_tasks(routed, range(count)):
            found.append(result)
            self._raise_if_stopped()
            done = (task.end_offset - task.start_offset) * len(found) // count
            self._on_progress(self._whole - end_offset + task.start_offset + done, self._whole)
        return found

    def _task(self, log: LogReader, before: Progress, end_offset: int) -> RangeOfLog:
        """Return the task of a range, with the rows of ``state`` at its start in files."""
        count = self._load.bucket_count
        directory = self._rows / _name_of(before.incarnation, before.offset, end_offset, count)
        directory.mkdir(parents=True, exist_ok=True)
        if before.offset != NOTHING:
            write_state(directory, self._writer.state_at(before))
        self._writer.forget()
        return RangeOfLog(
            options=self._load.options,
            redactor=self._settings.redactor,
            before=before,
            end_offset=end_offset,
            bucket_count=count,
            log_shares=self._shares(log, before.next_offset, end_offset),
            directory=str(directory),
            committed_at=self._committed_at(directory),
        )

    def _committed_at(self, directory: Path) -> int:
        """Return the time of a range's rows: also those that an interrupted load has left."""
        path = directory / "committed_at"
        try:
            return int(path.read_text())
        except (FileNotFoundError, ValueError):  # empty after a loss of power
            found = self._clock_us()
            write_durably(path, str(found))
            return found

    def _shares(self, log: LogReader, start_offset: int, end_offset: int) -> tuple[int, ...]:
        """Return the bounds of each bucket's share of ``log``, empty without that table."""
        if not self._settings.writes_log:
            return ()
        size = -(-(end_offset - start_offset) // self._load.bucket_count)
        bounds = [start_offset]
        for _ in range(self._load.bucket_count):
            start = bounds[-1]
            if start < end_offset:
                start = log.next_boundary(start, end_offset=end_offset, max_records=size)
            bounds.append(start)
        bounds[-1] = end_offset  # shares end at boundaries and may be smaller
        return tuple(bounds)

    @property
    def _pending(self) -> Path:
        return self._rows / "pending.json"

    def _publish(self, loaded: LoadedRange) -> None:
        try:
            with self._uninterrupted():
                self._writer.append_loaded(loaded)
        except ConcurrentWriterError as error:
            self._conflict_count += 1
            if self._conflict_count >= CONFLICTS_MAX:
                raise
            self._log_event(f"{error}")
        else:
            self._conflict_count = 0
            self._end = loaded.after
            self._log_event(f"loaded offsets {loaded.before.next_offset} to {loaded.after.offset}")
        shutil.rmtree(self._rows, ignore_errors=True)

    def _complete(self) -> None:
        """Publish the range that an interrupted load has completed."""
        loaded = LoadedRange.read(self._pending)
        if loaded is not None:
            self._publish(loaded)

    # --- single batches ---------------------------------------------------------------------------

    def _append_serially(self) -> bool:
        """Write one batch, or a snapshot; return False if there is nothing to write."""
        self._writer.forget()
        found = self._follower().append_next()
        self._writer.forget()
        return found is not None

    def _follower(self) -> LogFollower:
        return LogFollower(
            self._open_log,
            self._store,
            self._settings,
            clock=self._clock,
            log_event=self._log_event,
            uninterrupted=self._uninterrupted,
            raise_if_stopped=self._raise_if_stopped,
        )

    def _open_log(self) -> LogReader:
        return SourceOptions.parse(self._load.options).open_log()


def _after(routed: RoutedRange, results: Sequence[BucketResult]) -> Progress:
    """Return the end of the tables after a range."""
    task, before = routed.task, routed.task.before
    versions = [result.metadata_version for result in results]
    counts: dict[str, int] = {}
    for result in results:
        for name, count in result.row_counts.items():
            counts[name] = counts.get(name, 0) + count
    offset, leader_epoch, timestamp_ms = routed.last
    return replace(
        before,
        offset=offset,
        leader_epoch=leader_epoch,
        log_time=microseconds(timestamp_ms),
        from_offset=task.start_offset,
        first_offset=task.start_offset if before.first_offset is None else before.first_offset,
        metadata_version=next((one for one in versions if one is not None), None),
        row_counts=counts,
        software=SOFTWARE,
    )


def _name_of(*parts: object) -> str:
    """Return a directory name for these parts, which contain no secrets."""
    return hashlib.sha256(json.dumps([*map(str, parts)]).encode()).hexdigest()[:20]
