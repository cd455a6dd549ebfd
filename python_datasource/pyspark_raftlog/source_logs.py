"""The logs of ``sources``: their identities, and calls to all of them, some of which may fail.

A log of ``sources`` is identified by its cluster id, a partition of a pattern by its name.

A log that cannot be reached neither delays nor stops a stream of other logs: it is skipped with one
warning and tried again after ``RETRY_MS``. Damage and data loss end the stream, unless
``failOnDataLoss`` is false for that log. Contradictory options always end it.

Logs of nodes are called in threads, because a request may wait for its timeout. A log whose call
does not finish in time is skipped until it does. The caller's thread reads files.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, wait
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from raftlog.clock import Clock
from raftlog.daemon_threads import DaemonThreads
from raftlog.errors import (
    AccessDeniedError,
    DataLossError,
    LogAccessError,
    LogNotFoundError,
    OptionError,
    RaftlogError,
    TooFewVotersError,
    WrongClusterError,
)

from .log_stream import LogStream
from .options import duplicate_cluster
from .reader import check_cluster

if TYPE_CHECKING:
    from raftlog.client import LogReader

    from .options import RaftlogOptions

RETRY_MS: Final = 1_000
"""Time after which a log that could not be read is tried again."""
REMOTE_WAIT_S: Final = 1.0
"""Time that a trigger waits for calls to nodes."""
REMOTE_THREADS_MAX: Final = 64

_LOGGER: Final = logging.getLogger("pyspark_raftlog")

T = TypeVar("T")


class SourceLog:
    """One log of ``sources``. ``position``: its position in the option."""

    def __init__(self, position: int, options: RaftlogOptions, clock: Clock) -> None:
        self.position = position
        self.options = options
        self.stream = LogStream(options, clock)
        self.log_id = options.partition or options.cluster_id
        self.problem: RaftlogError | None = None
        """Reason why the log is skipped; None if it can be read."""
        self.retry_at_ms = 0.0
        self.late: dict[str, tuple[object, Future[Any]]] = {}
        """Calls in threads that did not finish in time, by name, with their keys."""

    def identify(self, log: LogReader) -> None:
        """Set the id: the cluster id of ``log`` or of the option ``clusterId``.

        A partition's id is already known.

        Raises:
            OptionError: neither is known.
            WrongClusterError: they differ, or the log's id has changed.
        """
        if self.options.partition is not None:
            return
        if self.log_id is None:
            self.log_id = log.cluster_id
        if self.log_id is None:
            raise OptionError(
                option=f"sources[{self.position}].clusterId",
                reason=f"is required: the cluster id of {log.path} is unknown",
            )
        check_cluster(log, self.log_id)

    @property
    def identified_id(self) -> str:
        """Id, after the log was identified."""
        assert self.log_id is not None, "the log was read, or the id is given"
        return self.log_id

    def check_cluster(self) -> None:
        """Identify the log as it was last read. Raises the errors of ``identify``."""
        log = self.stream.log
        if log is not None:
            self.identify(log)


class SourceLogs:
    """The logs of ``sources``. Not thread-safe."""

    def __init__(self, options: RaftlogOptions, clock: Clock) -> None:
        self.all = [SourceLog(at, one, clock) for at, one in enumerate(options.sources)]
        self._by_cluster: dict[str, SourceLog] = {}
        self._threads = DaemonThreads(REMOTE_THREADS_MAX, "raftlog-sources")
        self._clock = clock

    @property
    def by_cluster(self) -> Mapping[str, SourceLog]:
        """Logs that have been read at least once, by id."""
        return self._by_cluster

    def close(self) -> None:
        """End the threads; later calls start new ones."""
        self._threads.close()

    def poll(
        self,
        name: str,
        call: Callable[[SourceLog], T],
        keys: Mapping[SourceLog, object],
        *,
        wait_s: float | None = None,
    ) -> dict[str, T]:
        """Call a function for each log in ``keys``; return the results of those that can be read.

        ``wait_s``: how long to wait for calls to nodes; None: until all have finished. The next
        poll with this name and key returns a late result.

        Raises:
            OptionError: two logs have the same cluster id, or one has none.
            RaftlogError: an error of a log with ``failOnDataLoss``, unless the log cannot be
                reached.
        """
        now_ms = self._clock.now_ms()
        ready = {log: key for log, key in keys.items() if self._is_ready(log, now_ms)}
        found: dict[str, T] = {}
        for log, result in self._results(name, partial(_retry_once, call), ready, wait_s):
            try:
                value = result()
            except RaftlogError as error:
                self._skip(log, error, now_ms)
            else:
                found[self._register(log)] = value
        return found

    def each(self, call: Callable[[SourceLog], T], logs: Iterable[SourceLog]) -> dict[str, T]:
        """Call a function for each log, and return all results. Raises the first error."""
        every = dict.fromkeys(logs)
        wait([future for log in every for _, future in log.late.values()])
        results = self._results("each", call, every, None)
        return {self._register(log): value for log, value in [(log, get()) for log, get in results]}

    def _results(
        self,
        name: str,
        call: Callable[[SourceLog], T],
        keys: Mapping[SourceLog, object],
        wait_s: float | None,
    ) -> Iterator[tuple[SourceLog, Callable[[], T]]]:
        """Yield each log with a function that returns its result, unless the result is late."""
        futures: dict[SourceLog, Future[T]] = {}
        for log, key in keys.items():
            if log.options.nodes is not None:
                late = log.late.pop(name, None)
                if late is not None and late[0] == key:
                    futures[log] = late[1]
                else:
                    futures[log] = self._threads.submit(partial(call, log))
        for log in keys:
            if log not in futures:
                yield log, partial(call, log)
        wait(futures.values(), wait_s)
        for log, future in futures.items():
            if future.done():
                yield log, future.result
            else:
                log.late[name] = keys[log], future

    def _is_ready(self, log: SourceLog, now_ms: float) -> bool:
        if any(not future.done() for _, future in log.late.values()):
            return False
        return log.problem is None or now_ms >= log.retry_at_ms

    def _register(self, log: SourceLog) -> str:
        cluster_id = log.identified_id
        first = self._by_cluster.setdefault(cluster_id, log)
        if first is not log:
            raise duplicate_cluster(cluster_id, first.position, log.position)
        if log.problem is not None:
            log.problem = None
            _LOGGER.warning("%s: the log can be read again", log.options.path)
        return cluster_id

    def _skip(self, log: SourceLog, error: RaftlogError, now_ms: float) -> None:
        """Skip a log until ``RETRY_MS`` have passed, or raise the error."""
        is_contradiction = isinstance(error, OptionError | WrongClusterError)
        if is_contradiction or (log.options.fail_on_data_loss and not is_unavailable(error)):
            raise error
        if log.problem is None or log.problem.code != error.code:
            _LOGGER.warning(
                "%s; the stream continues without the log %s and tries it again",
                error,
                log.options.path,
            )
        log.problem, log.retry_at_ms = error, now_ms + RETRY_MS


def is_unavailable(error: RaftlogError) -> bool:
    """Return whether an error means that a log cannot be reached now, not that records are bad."""
    kinds = (LogNotFoundError, LogAccessError, AccessDeniedError, TooFewVotersError)
    return isinstance(error, kinds) or (error.retriable and not isinstance(error, DataLossError))


def _retry_once(call: Callable[[SourceLog], T], log: SourceLog) -> T:
    """Call again after a retriable error of files, as a node may have deleted them meanwhile."""
    try:
        return call(log)
    except RaftlogError as error:
        if not error.retriable or log.options.nodes is not None:
            raise
    return call(log)
