"""``GroupFollower``: follows many clusters' logs into the tables in one process, without Spark.

Rules of this file:

1. A round reads the new records of each log, and appends them for all clusters together.
2. If a log cannot be read or its rows are rejected, it is read again later, after a growing pause,
   from the end that its tables have then. Its error is logged only if it differs from the last one.
   Other clusters are not affected.
3. A run with an end raises the remaining errors after the other clusters have reached their ends.
4. Threads ask nodes for the ends of their logs, because a request to nodes that do not answer lasts
   until its timeout. A round waits, for at most ``REMOTE_WAIT_S``, for nodes that have answered
   before. The others are read in the round after their answer.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa

from raftlog.client import LogReader
from raftlog.clock import Clock
from raftlog.daemon_threads import DaemonThreads
from raftlog.errors import OptionError, RaftlogError
from raftlog_state.errors import ClustersFailedError, TablesError
from raftlog_state.records.internal_logs import INTERNAL_LOGS, is_internal, log_id_of
from raftlog_state.source_rows.reading import retry

from .backoff import Backoff
from .group_writer import GroupWriter
from .incarnations import owned
from .log_follower import DecodedValues, FollowSettings, LogTail, row_settings
from .progress import NOTHING
from .stores.protocol import TableStore
from .upkeep import GROUP_MERGE_ROWS_MAX, Upkeep, UpkeepRunner

REMOTE_WAIT_S: Final = 1.0
"""Longest time for which a round waits for nodes."""
REMOTE_THREADS_MAX: Final = 64


@dataclass(slots=True)
class _Source:
    """A log of the group. ``cluster_id`` is known once the log has been opened."""

    name: str
    tail: LogTail
    cluster_id: str | None = None
    backoff: Backoff = field(default_factory=Backoff)
    is_remote: bool = False
    refresh: Future[LogReader] | None = None
    """Call that reads the end of the log, in a thread."""
    read_offset: int = 0
    """Start of the last read: the end of the tables at that time, exclusive."""

    @property
    def is_running(self) -> bool:
        """Whether its nodes have not answered yet."""
        return self.refresh is not None and not self.refresh.done()


class GroupFollower:
    """Follower of a group of clusters' logs into the tables of a store. Used by one thread.

    ``open_logs`` contains the function that opens each log, by the log's name in messages;
    ``remote`` contains the names of logs that are read from nodes. ``upkeep_store`` is another
    store of the same place, for upkeep concurrent with appends; None: upkeep runs between appends.
    ``uninterrupted`` is entered for each append; ``raise_if_stopped`` is called before each read of
    a log.
    """

    def __init__(
        self,
        open_logs: Mapping[str, Callable[[], LogReader]],
        store: TableStore,
        settings: FollowSettings,
        *,
        group: str,
        remote: Container[str] = (),
        upkeep_store: TableStore | None = None,
        clock: Clock | None = None,
        log_event: Callable[[str], None],
        uninterrupted: Callable[[], AbstractContextManager[None]] = nullcontext,
        raise_if_stopped: Callable[[], None] = lambda: None,
    ) -> None:
        self._settings = settings
        self._clock = clock or Clock()
        self._log_event = log_event
        self._uninterrupted = uninterrupted
        self._raise_if_stopped = raise_if_stopped
        self._decoded = DecodedValues()
        self._group = group
        self._threads = DaemonThreads(REMOTE_THREADS_MAX, "raftlog-logs")
        self._writer = GroupWriter(
            store,
            group,
            take_over=settings.take_over,
            writes_log=settings.writes_log,
            decode_value=self._decoded.decode,
        )
        rows = row_settings(self._writer.source_columns, settings, self._decoded)
        self._sources = [
            _Source(
                name,
                LogTail(open_log, settings, place=store.place, clock=self._clock, rows=rows),
                is_remote=name in remote,
            )
            for name, open_log in open_logs.items()
        ]
        self._upkeep = UpkeepRunner(
            self._writer,
            Upkeep(None, GROUP_MERGE_ROWS_MAX),
            store=upkeep_store,
            clock=self._clock,
            warn=log_event,
        )

    def run(self) -> None:
        """Append until the end of the run or, without ``is_once``, until a signal.

        Raises:
            ClustersFailedError: at the end of a run, errors of single clusters.
            TablesError: Delta failed; without ``is_once``, an append is repeated if possible.
        """
        try:
            self._run()
        finally:
            self._upkeep.close()
            self._threads.close()

    def _run(self) -> None:
        backoff = Backoff()
        while True:
            self._raise_if_stopped()
            try:
                cluster_count = self.append_round()
            except TablesError as error:
                if self._settings.is_once or not error.retriable:
                    raise
                backoff.failed(error, self._now_s())
                self._log_event(f"{error}; retrying in {backoff.pause_s:g} s")
                self._clock.pause(backoff.pause_s)
                continue
            backoff.succeeded()
            if cluster_count:
                noun = "cluster" if cluster_count == 1 else "clusters"
                self._log_event(f"appended rows of {cluster_count} {noun}")
            if cluster_count is not None:
                continue
            refreshes = [one.refresh for one in self._sources if one.refresh is not None]
            if self._settings.is_once and not refreshes:
                self._end()
                return
            if self._settings.is_once:
                wait(refreshes, REMOTE_WAIT_S, return_when=FIRST_COMPLETED)
                continue
            self._clock.pause(self._settings.poll_ms / 1_000)

    def append_round(self) -> int | None:
        """Append the next records of all logs; return how many clusters have some, None: no one.

        0: all rows that were read were rejected.

        Raises:
            TablesError: Delta failed.
        """
        self._decoded.records.clear()
        batches: dict[str, pa.Table] = {}
        sources: dict[str, _Source] = {}
        row_count = 0
        due = self._due()
        failed = (source.backoff.error for source in due)
        if any(error is not None and not error.retriable for error in failed):
            self._writer.refresh()  # the tables may have been truncated since
        for source in self._refreshed(due):
            self._raise_if_stopped()
            self._sources.remove(source)  # the next round begins with the logs that this one leaves
            self._sources.append(source)
            try:
                found = self._read(source)
            except RaftlogError as error:
                self._failed(source, error)
                continue
            assert source.cluster_id is not None, "the log is open"
            if found is None:
                self._succeeded(source)
                continue
            batches[source.cluster_id], sources[source.cluster_id] = found, source
            row_count += found.num_rows
            if row_count >= self._settings.record_count_max:
                break
        if not batches:
            return None
        with self._uninterrupted():
            ends = {name: one.read_offset for name, one in sources.items() if is_internal(name)}
            applied = self._writer.apply(batches, ends)
            for cluster_id, source in sources.items():
                if cluster_id in applied.failures:
                    self._failed(source, applied.failures[cluster_id])
                else:
                    self._succeeded(source)
            self._upkeep.appended()
            self._upkeep.keep_up(0)
        return len(applied.appended)

    def merge_state(self) -> None:
        """Merge the appended changes into ``state``. Raises ``TablesError``."""
        with self._uninterrupted():
            self._writer.merge_state()

    @property
    def failures(self) -> dict[str, RaftlogError]:
        """Errors of the logs that are not being followed, by name."""
        errors = {source.name: source.backoff.error for source in self._sources}
        return {name: error for name, error in errors.items() if error is not None}

    def _due(self) -> list[_Source]:
        """Return the logs to read now."""
        now_s = self._now_s()
        return [source for source in self._sources if not source.backoff.is_paused(now_s)]

    def _refreshed(self, due: Sequence[_Source]) -> list[_Source]:
        """Begin to read the ends of nodes' logs; return the logs that can be read now."""
        new = []
        for source in due:
            if source.is_remote and source.refresh is None:
                source.refresh = self._threads.submit(source.tail.refreshed)
                if source.backoff.error is None:
                    new.append(source.refresh)
        wait(new, REMOTE_WAIT_S)
        return [source for source in due if not source.is_running]

    def _read(self, source: _Source) -> pa.Table | None:
        """Return the next rows of a log, None if there are none."""
        first, source.refresh = source.refresh, None

        def read() -> pa.Table | None:
            nonlocal first
            if first is None:
                return self._read_next(source, source.tail.refreshed())
            refreshed, first = first, None
            return self._read_next(source, refreshed.result())

        return retry(read, self._clock, is_new_read=True)

    def _read_next(self, source: _Source, log: LogReader) -> pa.Table | None:
        if source.cluster_id is None:
            source.cluster_id = self._checked_id(source, log)
        cluster_id = source.cluster_id
        progress = self._writer.progress(cluster_id)
        is_owned = progress.offset != NOTHING and progress.group != self._group
        if is_owned and not self._settings.take_over:
            raise owned(self._writer.place, progress)
        source.read_offset = progress.next_offset
        found = source.tail.read_next(log, progress, lambda: self._writer.epochs(cluster_id))
        return None if found is None else found[1]

    def _checked_id(self, source: _Source, log: LogReader) -> str:
        """Return a log's cluster id, or an internal log's id, which no other log here has."""
        found = self._settings.cluster_id or log.cluster_id
        if found is None:
            raise OptionError(option="sources", reason=f"the cluster id of {log.path} is unknown")
        if log.topic in INTERNAL_LOGS:
            found = log_id_of(found, log.topic, log.partition)
        for other in self._sources:
            if other is not source and other.cluster_id == found:
                reason = f"{other.name} and {source.name} are logs of one cluster, {found}"
                raise OptionError(option="sources", reason=reason)
        return found

    def _failed(self, source: _Source, error: RaftlogError) -> None:
        if source.backoff.failed(error, self._now_s()):
            self._log_event(f"{source.name} is not followed: {error}")

    def _succeeded(self, source: _Source) -> None:
        if source.backoff.succeeded():
            self._log_event(f"{source.name} is followed again")

    def _now_s(self) -> float:
        return self._clock.now_ms() / 1_000

    def _end(self) -> None:
        """Merge the appended changes; raise the errors of clusters that missed their end."""
        self._upkeep.close()
        self.merge_state()
        if self.failures:
            raise ClustersFailedError(place=self._writer.place, failures=self.failures)
