"""One group of requests, done to an embedded log while its lock is held.

Rules of this file:

1. Lock, take up what other processes appended, give offsets, write, sync, publish, unlock, answer:
   in this order. Nobody is answered before his records are durable and published.
2. On a full disk what was written whole is synced and answered, the rest was not appended, and the
   log goes on. Any other failure while writing is the group's: nobody knows what will be found on
   the disk (``AppendUnknownError``). After a failed sync the log is closed and stays closed; else
   the next group opens it anew, which cuts off what nobody was promised.
3. One thread. Clocks and pauses are arguments.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Final

from raftlog.errors import (
    AppendUnknownError,
    DiskFailedError,
    DiskFullError,
    LogClosedError,
    LogLockedError,
    RaftlogError,
)
from raftlog.limits import SMALL_FILE_BYTES_MAX
from raftlog.log.names import RAFTLOG_PROPERTIES_NAME
from raftlog.log.writing.properties import parse_log_properties
from raftlog.log.writing.recovered import RecoveryReport
from raftlog.log.writing.replicated_log import ReplicatedLog
from raftlog.storage.protocol import WritableStorage

from .append_batch import AppendBatch, fail_if_unwritten
from .clock import Clock
from .fair_lock import FairLock
from .requests import Done, Request, RequestResult, failed

CLOSE_WAIT_MS: Final = 10_000
"""How long closing waits for the lock; without it the next open looks at the tail again."""
CLEAN_INTERVAL_MS: Final = 5 * 60 * 1000
"""How often retention is looked at (Kafka: ``log.retention.check.interval.ms``)."""


class GroupCommitter:
    """An embedded log as its writer has it. Opened by the first group. Not shared by threads."""

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
        """Told of ``linger.ms`` whenever the log was configured."""
        self.report: RecoveryReport | None = None
        """What was found when the log was opened last."""

    def write(
        self, requests: Sequence[Request], answer: Callable[[Request, RequestResult], None]
    ) -> None:
        """Do what is asked, in order, and answer each request once."""
        began_ms = self._clock.now_ms()
        waiting = list(requests)

        def is_wanted() -> bool:
            """Answer those that would not wait longer; whether anybody is left."""
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
        """Close the log in order, if it was opened and the lock can be had."""
        self._closed = self._closed or "its owner closed it"
        if self._log is None:
            return
        until_ms = self._clock.now_ms() + CLOSE_WAIT_MS
        with contextlib.suppress(RaftlogError):  # all that was answered is durable already
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
        """The log with all that other processes appended. Raises what opening it raises."""
        with self._storage.open_file(self._properties_path) as file:
            properties = file.read_at(0, SMALL_FILE_BYTES_MAX)
        if properties != self._properties:
            self._drop()  # somebody has configured it
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
        """Raises ``LogClosedError`` if another log was made where this one was."""
        topic_id = parse_log_properties(properties, self._properties_path).topic_id
        if self._topic_id not in (None, topic_id):
            self._closed = "another log was made in its place"
            raise LogClosedError(path=self._directory, reason=self._closed)
        self._topic_id = topic_id

    def _apply_retention(self, log: ReplicatedLog) -> ReplicatedLog:
        """Delete what retention no longer wants, now and then; the log to go on with.

        What goes wrong at it is not the matter of who appends, unless the disk failed: it is tried
        again the next time.
        """
        now_ms = self._clock.now_ms()
        if now_ms - self._last_retention_ms < CLEAN_INTERVAL_MS or log.is_read_only:
            return log
        self._last_retention_ms = now_ms
        try:
            log.clean(now_ms=self._clock.wall_ms())
        except DiskFailedError:
            raise
        except (DiskFullError, LogLockedError):  # or a snapshot is being written
            return log
        except RaftlogError:
            self._drop()
            return self._current_log()
        return log

    def _fail(self, problem: RaftlogError) -> None:
        """Give the log up: for good if its disk failed, else until the next group opens it."""
        if isinstance(problem, DiskFailedError):
            self._closed = str(problem)
        self._drop()

    def _drop(self) -> None:
        """Let go of the files, in order if nothing is wrong with them. Under the lock."""
        log, self._log = self._log, None
        if log is not None:
            with contextlib.suppress(RaftlogError):  # what was answered is durable already
                log.close()
