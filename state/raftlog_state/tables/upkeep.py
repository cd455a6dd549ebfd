"""Upkeep of the tables: merging changes into ``state``, compaction, checkpoints and vacuum.

Rules of this file:

1. Upkeep follows the append that publishes a batch. If a part of it fails, the other parts are
   done. The failed part is tried again after a later batch, and in any case at the end of a run.
2. Upkeep in a separate thread has its own store. Of the writer, it uses only rows that never
   change: the changes that ``state`` lacked when it began. To the tables it is another process,
   whose commits are checked for conflicts. Appends do not wait for it.
3. The writer's thread starts it and takes its results. Only the end of a run waits for it.
"""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol

from raftlog.clock import Clock
from raftlog_state.errors import ConcurrentWriterError, TablesError

from .backoff import Backoff
from .cluster_rows import ClusterRows
from .stores.protocol import TableStore
from .unmerged import Tail

MERGE_INTERVAL_S: Final = 60.0
MERGE_ROWS_MAX: Final = 50_000
GROUP_MERGE_ROWS_MAX: Final = 500_000
"""Unmerged rows of a group's clusters; a merge rewrites the rows of each cluster that has any."""
COMPACT_FILES: Final = 200
CHECKPOINT_APPENDS: Final = 100
RETRY_INTERVAL_S: Final = 10.0
"""Shortest time between an error of upkeep and the next try, except at the end of a run."""
VACUUM_INTERVAL_S: Final = 86_400.0
_LOGGER: Final = logging.getLogger("raftlog_state")


class Upkeep:
    """Schedule of upkeep, in seconds of one clock."""

    def __init__(self, target_offset: int | None, merge_rows_max: int = MERGE_ROWS_MAX) -> None:
        """``target_offset`` is the end of the run, exclusive; None if it continues."""
        self._target_offset = target_offset
        self._merge_rows_max = merge_rows_max
        self._merged_at_s: float | None = None
        self._vacuumed_at_s: float | None = None
        self.backoff = Backoff(RETRY_INTERVAL_S, RETRY_INTERVAL_S)
        self._appends_since_checkpoint = CHECKPOINT_APPENDS  # as if left by an earlier run
        self.has_appended = False
        """Whether this run has appended. A run without new records leaves earlier files alone."""
        self.file_count: int | None = None
        """Number of small files of ``changes``, including earlier runs'; None if unknown."""

    def appended(self) -> None:
        """Record one more file."""
        self.has_appended = True
        self._appends_since_checkpoint += 1
        if self.file_count is not None:
            self.file_count += 1

    def is_end(self, read_offset: int) -> bool:
        """Return whether the run ends with a batch; ``read_offset`` follows its last record."""
        return self._target_offset is not None and read_offset >= self._target_offset

    def is_merge_due(self, now_s: float, read_offset: int, unmerged_row_count: int) -> bool:
        """Return whether to merge after a batch; ``read_offset`` follows its last record.

        At the end of a run that record may be in an open transaction, which is not published.
        """
        if self._merged_at_s is None:
            self._merged_at_s = now_s
        is_late = now_s - self._merged_at_s >= MERGE_INTERVAL_S
        return self.is_end(read_offset) or is_late or unmerged_row_count >= self._merge_rows_max

    def merged(self, now_s: float) -> None:
        """Record a merge."""
        self._merged_at_s = now_s

    def is_vacuum_due(self, now_s: float) -> bool:
        """Return whether to delete old files. A run that is shorter than the interval does not."""
        if self._vacuumed_at_s is None:
            self._vacuumed_at_s = now_s
        return now_s - self._vacuumed_at_s >= VACUUM_INTERVAL_S

    def vacuumed(self, now_s: float) -> None:
        """Record a vacuum."""
        self._vacuumed_at_s = now_s

    def is_compaction_due(self) -> bool:
        """Return whether ``changes`` has many small files; the other tables then have them, too."""
        return self.file_count is not None and self.file_count >= COMPACT_FILES

    def compacted(self, file_count: int) -> None:
        """Record a compaction that began with this number of small files."""
        assert self.file_count is not None, "a compaction is due"
        self.file_count -= file_count

    def is_checkpoint_due(self) -> bool:
        """Return whether the tables may need checkpoints."""
        return self._appends_since_checkpoint >= CHECKPOINT_APPENDS

    def checkpointed(self) -> None:
        """Record that checkpoints are written, or begin to be."""
        self._appends_since_checkpoint = 0


class Maintained(Protocol):
    """What upkeep needs of a writer."""

    def small_file_count(self) -> int: ...
    def unmerged_row_count(self) -> int: ...
    def merge_state(self) -> None: ...
    def compact(self) -> None: ...
    def vacuum(self) -> None: ...
    def begin_merge(self) -> Mapping[str, Tail]: ...
    def end_merge(self, tails: Mapping[str, Tail], *, is_merged: bool) -> None: ...
    def forget(self) -> None: ...
    def rows_on(self, store: TableStore) -> ClusterRows: ...


@dataclass(frozen=True, slots=True)
class _Task:
    """Upkeep that is due. ``completed`` and ``failed`` are called in the writer's thread."""

    work: Callable[[], None]
    completed: Callable[[], None]
    failed: Callable[[TablesError], None] = lambda _: None

    def error(self) -> TablesError | None:
        """Do the work; return its error."""
        try:
            self.work()
        except TablesError as error:
            return error
        return None


def _errors(tasks: Sequence[_Task]) -> list[TablesError | None]:
    """Do tasks one after another; a task that fails does not keep the others from being done."""
    return [task.error() for task in tasks]


def _return_freed_memory() -> None:
    """Return memory that glibc's malloc has freed to the system.

    It keeps memory that merges and compactions have freed between blocks that are in use: after
    14,000 batches, 230 MiB in addition to 40 MiB in use.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # of glibc only
    if trim is not None:
        trim(0)


class UpkeepRunner:
    """Runner of the upkeep that is due after appends. Used by the thread that appends."""

    def __init__(
        self,
        writer: Maintained,
        upkeep: Upkeep,
        *,
        store: TableStore | None = None,
        clock: Clock | None = None,
        warn: Callable[[str], None] = _LOGGER.warning,
    ) -> None:
        """``store``: another store of the same place, for a thread concurrent with the appends.

        None: upkeep is done between appends, with the writer's store.
        """
        self._writer = writer
        self._upkeep = upkeep
        self._clock = clock or Clock()
        self._warn = warn
        self._beside = None if store is None else writer.rows_on(store)
        self._thread = ThreadPoolExecutor(1, "raftlog-upkeep")
        self._running: tuple[Sequence[_Task], Future[list[TablesError | None]]] | None = None

    def appended(self) -> None:
        """Record an append."""
        self._upkeep.appended()

    def keep_up(self, read_offset: int) -> None:
        """Do, or begin, the upkeep that is due after a batch.

        ``read_offset`` follows the last record that was read. At the end of a run, this waits for
        upkeep.
        """
        is_end = self._upkeep.is_end(read_offset)
        if self._running is not None and not is_end and not self._running[1].done():
            return
        self._finish()
        if not is_end and self._upkeep.backoff.is_paused(self._now_s()):
            return
        try:
            if self._upkeep.file_count is None and self._upkeep.has_appended:
                self._upkeep.file_count = self._writer.small_file_count()
            tasks = [*self._due(read_offset)]
        except TablesError as error:  # the batch is published
            self._failed(error)
            return
        if self._beside is None:
            self._record(tasks, _errors(tasks))
        elif tasks:
            self._running = (tasks, self._thread.submit(_errors, tasks))
        if is_end:
            self._finish()

    def close(self) -> None:
        """Wait for the upkeep that is running, and end its thread."""
        self._finish()
        self._thread.shutdown()

    def _finish(self) -> None:
        """Wait for the thread, and record what it has done."""
        if self._running is not None:
            (tasks, future), self._running = self._running, None
            self._record(tasks, future.result())

    def _record(self, tasks: Sequence[_Task], errors: Sequence[TablesError | None]) -> None:
        for task, error in zip(tasks, errors, strict=True):
            if error is None:
                task.completed()
                continue
            task.failed(error)
            self._failed(error)
        if tasks:
            _return_freed_memory()

    def _failed(self, error: TablesError) -> None:
        self._upkeep.backoff.failed(error, self._now_s())
        self._warn(f"{error}; retrying in {RETRY_INTERVAL_S:g} s")

    def _now_s(self) -> float:
        return self._clock.now_ms() / 1_000

    def _due(self, read_offset: int) -> Iterator[_Task]:
        """Yield what is due, one after another; files are compacted before a checkpoint."""
        upkeep = self._upkeep
        tables = self._beside or self._writer
        if upkeep.is_merge_due(self._now_s(), read_offset, self._writer.unmerged_row_count()):
            yield self._merge()
        if upkeep.is_compaction_due():
            assert upkeep.file_count is not None
            yield _Task(tables.compact, partial(upkeep.compacted, upkeep.file_count))
        if upkeep.is_vacuum_due(self._now_s()):
            yield _Task(tables.vacuum, lambda: upkeep.vacuumed(self._now_s()))
        if self._beside is not None and upkeep.is_checkpoint_due():
            upkeep.checkpointed()
            yield _Task(self._beside.checkpoint, lambda: None)

    def _merge(self) -> _Task:
        if self._beside is None:
            return _Task(self._writer.merge_state, self._merged)
        tails = self._writer.begin_merge()

        def completed() -> None:
            self._writer.end_merge(tails, is_merged=True)
            self._merged()

        def failed(error: TablesError) -> None:
            if isinstance(error, ConcurrentWriterError):
                self._writer.forget()  # the tables may have been truncated: they are read again
            else:
                self._writer.end_merge(tails, is_merged=False)

        return _Task(partial(self._beside.merge, tails), completed, failed)

    def _merged(self) -> None:
        self._upkeep.merged(self._now_s())
