"""Group commit of an embedded log: one group of requests, written while its lock is held.

Invariants:

1. The order is: lock, read what other processes appended, assign offsets, write, sync, publish,
   unlock, answer. No request is answered before its records are durable and published.
2. On a full disk the complete batches are synced and answered, the rest is not appended, and the
   log stays open. After any other write failure the content of the disk is unknown: the appends of
   the group fail with ``AppendUnknownError``. After a failed sync the log stays closed; otherwise
   the next group opens it again, and recovery truncates what was not acknowledged.
3. Single-threaded. Clocks and pauses are arguments.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from typing import Final

from raftlog.append.append_batch import AppendBatch, fail_if_unwritten
from raftlog.append.requests import Done, Request, RequestResult, failed
from raftlog.errors import (
    AppendUnknownError,
    DiskFailedError,
    DiskFullError,
    LogClosedError,
    LogLockedError,
    RaftlogError,
)
from raftlog.limits import SMALL_FILE_BYTES_MAX
from raftlog.log.format.directory import RAFTLOG_PROPERTIES_NAME
from raftlog.log.recovery.recover import RecoveryReport
from raftlog.log.writing.properties import parse_log_properties
from raftlog.log.writing.replicated_log import ReplicatedLog
from raftlog.storage.protocol import FileLock, WritableStorage

from .clock import Clock

# --- Fair file lock that the writers of an embedded log take for each group of appends ------------
# ``.append.lock`` is held while one group is written. It is polled, with pauses that grow to a few
# milliseconds, rather than waited for in the kernel, so that a waiter can give up at its deadline.
#
# A writer that releases the lock and takes it again would nearly always win. So ``.append.turn`` is
# a turnstile: it is taken before the lock is tried, and released once the lock is held. The next
# writer holds the turnstile while it waits for the lock, and the one that returns waits for the
# turnstile.
#
# The operating system releases both locks when their process ends.

LOCK_NAME: Final = ".append.lock"
TURNSTILE_NAME: Final = ".append.turn"

LOCK_WAIT_MS: Final = 30_000
"""Wait for the lock by creation, configuration and repair of a log."""
_PAUSE_FIRST_S: Final = 0.000_1
_PAUSE_LONGEST_S: Final = 0.005


class FairLock:
    """Lock of one log. ``pause`` takes seconds."""

    def __init__(
        self,
        storage: WritableStorage,
        directory: str,
        *,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._storage = storage
        self._directory = directory
        self._lock_path = storage.join(directory, LOCK_NAME)
        self._turnstile_path = storage.join(directory, TURNSTILE_NAME)
        self._pause = pause

    def acquire(self, is_wanted: Callable[[], bool]) -> FileLock | None:
        """Wait for the lock. Returns None once ``is_wanted``, called after each try, is false.

        Raises ``LogAccessError`` if the lock files cannot be created.
        """
        turn = self._wait_for(self._turnstile_path, is_wanted)
        if turn is None:
            return None
        with turn:
            return self._wait_for(self._lock_path, is_wanted)

    def acquire_within(self, wait_ms: float, now_ms: Callable[[], float]) -> FileLock:
        """Wait for the lock for ``wait_ms`` of the monotonic clock ``now_ms``.

        Raises as ``acquire``, and ``LogLockedError``.
        """
        until_ms = now_ms() + wait_ms
        lock = self.acquire(lambda: now_ms() < until_ms)
        if lock is None:
            raise LogLockedError(path=self._directory, waited_ms=round(wait_ms))
        return lock

    def _wait_for(self, path: str, is_wanted: Callable[[], bool]) -> FileLock | None:
        pause_s = _PAUSE_FIRST_S
        while True:
            lock = self._storage.try_lock(path)
            if lock is not None or not is_wanted():
                return lock
            self._pause(pause_s)
            pause_s = min(pause_s * 1.5, _PAUSE_LONGEST_S)


# --- Group commit ---------------------------------------------------------------------------------

CLOSE_WAIT_MS: Final = 10_000
"""Wait of ``close`` for the lock. Without it the next open validates the tail again."""
CLEAN_INTERVAL_MS: Final = 5 * 60 * 1000
"""Interval of retention checks (Kafka: ``log.retention.check.interval.ms``)."""


class GroupCommitter:
    """Embedded log of one writer thread, opened by the first group. Not thread-safe."""

    def __init__(self, storage: WritableStorage, directory: str, clock: Clock) -> None:
        self._storage = storage
        self._directory = directory
        self._clock = clock
        self._fair_lock = FairLock(storage, directory, pause=clock.pause)
        self._properties_path = storage.join(directory, RAFTLOG_PROPERTIES_NAME)
        self._properties: bytes | None = None
        self._topic_id: str | None = None
        self._log: ReplicatedLog | None = None
        self._closed: str | None = None
        self._last_retention_ms = clock.now_ms()
        self.on_linger: Callable[[float], None] | None = None
        """Called with ``linger.ms`` whenever the log is opened, also after a new configuration."""
        self.report: RecoveryReport | None = None
        """Recovery report of the last time the log was opened."""

    def write(
        self, requests: Sequence[Request], answer: Callable[[Request, RequestResult], None]
    ) -> None:
        """Execute requests in order, and answer each once."""
        began_ms = self._clock.now_ms()
        waiting = list(requests)

        def is_wanted() -> bool:
            """Fail requests past their deadline, and return whether any are left."""
            now_ms = self._clock.now_ms()
            for late in [one for one in waiting if one.deadline_ms <= now_ms]:
                waiting.remove(late)
                waited_ms = round(now_ms - began_ms)
                answer(late, failed(LogLockedError(path=self._directory, waited_ms=waited_ms)))
            return bool(waiting)

        try:
            lock = self._fair_lock.acquire(is_wanted)
        except RaftlogError as error:
            answers: list[RequestResult] = [failed(error) for _ in waiting]
        else:
            if lock is None:
                return
            with lock:
                answers = self._write_locked(waiting)
        for request, found in zip(waiting, answers, strict=True):
            answer(request, found)

    def close(self) -> None:
        """Close the log cleanly, if it is open and the lock is free in time."""
        self._closed = self._closed or "close() was called"
        if self._log is None:
            return
        until_ms = self._clock.now_ms() + CLOSE_WAIT_MS
        with contextlib.suppress(RaftlogError):  # acknowledged records are durable already
            lock = self._fair_lock.acquire(lambda: self._clock.now_ms() < until_ms)
            if lock is not None:
                with lock:
                    self._log.refresh(now_ms=self._clock.wall_ms())
                    self._drop()

    # --- inside -----------------------------------------------------------------------------------

    def _write_locked(self, requests: Sequence[Request]) -> list[RequestResult]:
        if self._closed is not None:
            error = LogClosedError(path=self._directory, reason=self._closed)
            return [failed(error) for _ in requests]
        try:
            log = self._apply_retention(self._current_log())
        except RaftlogError as problem:
            self._fail(problem)
            return [failed(problem) for _ in requests]
        group = AppendBatch(log, self._clock.wall_ms())
        answers: list[RequestResult] = []
        try:
            try:
                for request in requests:
                    answers.append(group.process(request))
                group.write()
            except DiskFullError as full:
                answers += group.interrupted()
                answers = [fail_if_unwritten(one, log.end_offset, full) for one in answers]
                answers += [failed(full) for _ in requests[len(answers) :]]
            if log.end_offset != log.synced_end_offset:
                log.flush()
        except RaftlogError as problem:
            self._fail(problem)
            if len(answers) < len(requests):
                answers += group.interrupted()
            unknown = AppendUnknownError(path=self._directory, reason=str(problem))
            answers = [
                failed(unknown if request.writes else problem) if isinstance(one, Done) else one
                for request, one in zip(requests, answers, strict=False)
            ]
            answers += [failed(problem) for _ in requests[len(answers) :]]
        if log.is_read_only:
            self._drop()  # it may be repaired before the next group
        return answers

    def _current_log(self) -> ReplicatedLog:
        """Return the log, with what other processes appended. Raises as ``ReplicatedLog.open``."""
        with self._storage.open_file(self._properties_path) as file:
            properties = file.read_at(0, SMALL_FILE_BYTES_MAX)
        if properties != self._properties:
            self._drop()  # its configuration was changed
            self._check_identity(properties)
            self._properties = properties
        now_ms = self._clock.wall_ms()
        if self._log is None:
            self._log = ReplicatedLog.open(self._storage, self._directory, now_ms=now_ms)
            self.report = self._log.report
            if self.on_linger is not None:
                self.on_linger(self._log.config.linger_ms)
            return self._log
        try:
            self._log.refresh(now_ms=now_ms)
        except LogClosedError:  # it failed in the last group
            self._log = None
            return self._current_log()
        return self._log

    def _check_identity(self, properties: bytes) -> None:
        """Raise ``LogClosedError`` if the directory has another log, by topic id, than before."""
        topic_id = parse_log_properties(properties, self._properties_path).topic_id
        if self._topic_id not in (None, topic_id):
            self._closed = "the directory was replaced by another log"
            raise LogClosedError(path=self._directory, reason=self._closed)
        self._topic_id = topic_id

    def _apply_retention(self, log: ReplicatedLog) -> ReplicatedLog:
        """Apply retention at its interval, and return the log to continue with.

        Errors other than a failed disk do not fail the appends: the next interval retries.
        """
        now_ms = self._clock.now_ms()
        if now_ms - self._last_retention_ms < CLEAN_INTERVAL_MS or log.is_read_only:
            return log
        self._last_retention_ms = now_ms
        try:
            log.clean(now_ms=self._clock.wall_ms())
        except DiskFailedError:
            raise
        except (DiskFullError, LogLockedError):  # locked: a snapshot is being written
            return log
        except RaftlogError:
            self._drop()
            return self._current_log()
        return log

    def _fail(self, problem: RaftlogError) -> None:
        """Close the log: for good if its disk failed, else until the next group opens it."""
        if isinstance(problem, DiskFailedError):
            self._closed = str(problem)
        self._drop()

    def _drop(self) -> None:
        """Close the log's files, cleanly if they are undamaged. Requires the lock."""
        log, self._log = self._log, None
        if log is not None:
            with contextlib.suppress(RaftlogError):  # acknowledged records are durable already
                log.close()
