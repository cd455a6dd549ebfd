"""Writer of an embedded log: the lock of its files, group commit, and a handle's writer thread."""

from __future__ import annotations

import atexit
import contextlib
import math
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

from raftlog.append import (
    WAITING_BYTES_MAX,
    AppendBatch,
    BufferPool,
    Done,
    Request,
    RequestResult,
    fail_if_unwritten,
    failed,
)
from raftlog.clock import Clock
from raftlog.errors import (
    AppendUnknownError,
    DiskFailedError,
    DiskFullError,
    LogClosedError,
    LogLockedError,
    RaftlogError,
)
from raftlog.limits import MIB
from raftlog.log.format.directory import RAFTLOG_PROPERTIES_NAME, read_small
from raftlog.log.recovery.recover import RecoveryReport
from raftlog.log.writing.properties import parse_log_properties
from raftlog.log.writing.single_voter_log import SingleVoterLog
from raftlog.storage.protocol import FileLock, WritableStorage

# --- Fair file lock that the writers of an embedded log take for each group of appends ------------
# ``.append.lock`` is held while one group is written. A waiter polls it, with pauses that grow to a
# few milliseconds, instead of blocking in the kernel, so that it can stop at its deadline.
#
# A writer that releases the lock and immediately takes it again would nearly always win. So
# ``.append.turn`` is a turnstile: a writer takes it before it tries the lock, and releases it once
# it holds the lock. The next writer holds the turnstile while it waits for the lock, and a writer
# that returns has to wait for the turnstile.
#
# The operating system releases both locks when the process ends.

LOCK_NAME: Final = ".append.lock"
TURNSTILE_NAME: Final = ".append.turn"

LOCK_WAIT_MS: Final = 30_000
"""How long creation, configuration and repair of a log wait for the lock."""
_PAUSE_FIRST_S: Final = 0.000_1
_PAUSE_LONGEST_S: Final = 0.005


class FairLock:
    """Fair lock of one log."""

    def __init__(self, storage: WritableStorage, directory: str, clock: Clock) -> None:
        self._storage = storage
        self._directory = directory
        self._lock_path = storage.join(directory, LOCK_NAME)
        self._turnstile_path = storage.join(directory, TURNSTILE_NAME)
        self._clock = clock

    def acquire(self, keeps_waiting: Callable[[], bool]) -> FileLock | None:
        """Wait for the lock. Returns None once ``keeps_waiting``, called after each try, is false.

        Raises ``LogAccessError`` if the lock files cannot be created.
        """
        turn = self._wait_for(self._turnstile_path, keeps_waiting)
        if turn is None:
            return None
        with turn:
            return self._wait_for(self._lock_path, keeps_waiting)

    def acquire_within(self, wait_ms: float) -> FileLock:
        """Wait up to ``wait_ms`` for the lock. Raises like ``acquire``, and ``LogLockedError``."""
        until_ms = self._clock.now_ms() + wait_ms
        lock = self.acquire(lambda: self._clock.now_ms() < until_ms)
        if lock is None:
            raise LogLockedError(path=self._directory, waited_ms=round(wait_ms))
        return lock

    def _wait_for(self, path: str, keeps_waiting: Callable[[], bool]) -> FileLock | None:
        pause_s = _PAUSE_FIRST_S
        while True:
            lock = self._storage.try_lock(path)
            if lock is not None or not keeps_waiting():
                return lock
            self._clock.pause(pause_s)
            pause_s = min(pause_s * 1.5, _PAUSE_LONGEST_S)


# --- Group commit: one group of requests, written while the lock is held --------------------------
# Invariants:
#
# 1. The order is: lock, read what other processes appended, assign offsets, write, sync, publish,
#    unlock, answer. No request is answered before its records are durable and published.
# 2. If the disk is full, the complete batches are synced and answered, the rest is not appended,
#    and the log stays open. After any other write failure the content of the disk is unknown, so
#    the group's appends fail with ``AppendUnknownError``. After a failed sync the log stays closed.
#    Otherwise the next group opens it again, and recovery truncates what was not acknowledged.
# 3. Single-threaded. Clocks and pauses are arguments.

CLOSE_WAIT_MS: Final = 10_000
"""How long ``close`` waits for the lock; without it the next open validates the tail again."""
CLEAN_INTERVAL_MS: Final = 5 * 60 * 1000
"""Interval of retention checks (Kafka: ``log.retention.check.interval.ms``)."""


class GroupCommitter:
    """Embedded log of one writer thread, opened by the first group. Not thread-safe."""

    def __init__(self, storage: WritableStorage, directory: str, clock: Clock) -> None:
        self._storage = storage
        self._directory = directory
        self._clock = clock
        self._fair_lock = FairLock(storage, directory, clock)
        self._properties_path = storage.join(directory, RAFTLOG_PROPERTIES_NAME)
        self._properties: bytes | None = None
        self._topic_id: str | None = None
        self._log: SingleVoterLog | None = None
        self._closed: str | None = None
        self._last_retention_ms = clock.now_ms()
        self.on_linger: Callable[[float], None] | None = None
        """Called with ``linger.ms`` whenever the log is opened, even after a change of settings."""
        self.on_clean: Callable[[], None] | None = None
        """Called at the retention check interval if the log is compacted or has remote storage. It
        must not block."""
        self.report: RecoveryReport | None = None
        """Recovery report of the last time the log was opened."""

    def write(
        self, requests: Sequence[Request], answer: Callable[[Request, RequestResult], None]
    ) -> None:
        """Execute requests in order, and answer each one exactly once."""
        began_ms = self._clock.now_ms()
        waiting = list(requests)

        def has_requests() -> bool:
            """Fail requests whose deadline has passed, and return whether any are left."""
            now_ms = self._clock.now_ms()
            for late in [one for one in waiting if one.deadline_ms <= now_ms]:
                waiting.remove(late)
                waited_ms = round(now_ms - began_ms)
                answer(late, failed(LogLockedError(path=self._directory, waited_ms=waited_ms)))
            return bool(waiting)

        try:
            lock = self._fair_lock.acquire(has_requests)
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
        # Ignored: acknowledged records are already durable, and the next open validates the tail.
        with contextlib.suppress(RaftlogError), self._fair_lock.acquire_within(CLOSE_WAIT_MS):
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

    def _current_log(self) -> SingleVoterLog:
        """Return the log with other processes' appends. Raises like ``SingleVoterLog.open``."""
        with self._storage.open_file(self._properties_path) as file:
            properties = read_small(file)
        if properties != self._properties:
            self._drop()  # its configuration was changed
            self._check_identity(properties)
            self._properties = properties
        now_ms = self._clock.wall_ms()
        if self._log is None:
            self._log = SingleVoterLog.open(self._storage, self._directory, now_ms=now_ms)
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
        """Raise ``LogClosedError`` if the directory now has a log with another topic id."""
        topic_id = parse_log_properties(properties, self._properties_path).topic_id
        if self._topic_id not in (None, topic_id):
            self._closed = "the directory was replaced by another log"
            raise LogClosedError(path=self._directory, reason=self._closed)
        self._topic_id = topic_id

    def _apply_retention(self, log: SingleVoterLog) -> SingleVoterLog:
        """Apply retention at its interval, and return the log to continue with.

        Only a failed disk fails the appends; after any other error the next interval retries.
        """
        now_ms = self._clock.now_ms()
        if now_ms - self._last_retention_ms < CLEAN_INTERVAL_MS or log.is_read_only:
            return log
        self._last_retention_ms = now_ms
        config = log.config
        if self.on_clean is not None and (
            config.cleanup_policy.compacts or config.remote_storage_enable
        ):
            self.on_clean()
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
        """Close the log: permanently if its disk failed, else until the next group opens it."""
        if isinstance(problem, DiskFailedError):
            self._closed = str(problem)
        self._drop()

    def _drop(self) -> None:
        """Close the log's files, cleanly if they are undamaged. Requires the lock."""
        log, self._log = self._log, None
        if log is not None:
            with contextlib.suppress(RaftlogError):  # acknowledged records are durable already
                log.close()


# --- Writer thread: queued requests are written in groups that share one sync ---------------------
# Invariants:
#
# 1. Requests are answered in queue order. While one group is written, the next one is collected. An
#    idle writer starts a group ``linger_ms`` after its first request.
# 2. The bytes of unanswered requests are bounded. ``submit`` blocks until there is room or the
#    request's deadline passes (``BufferAllocationError``, Kafka: ``max.block.ms``).
# 3. Every future completes: with its result; with ``LogClosedError`` if the request was never
#    started; with ``AppendUnknownError`` if the thread failed while the request was being written.
# 4. Requests queued in a handle that is not closed are written before the process exits. A forked
#    child has no writer thread, so ``submit`` raises. It does so before it takes the lock, which
#    the parent may have held during the fork.
# 5. The thread itself uses no files or file locks: ``write_group`` writes a group and answers its
#    requests.

GROUP_BYTES_MAX: Final = 16 * MIB
"""Bound on a group's size, so that other processes get the lock in between."""
GROUP_REQUESTS_MAX: Final = 4096

WriteGroup: TypeAlias = Callable[
    [Sequence[Request], Callable[[Request, RequestResult], None]], None
]
"""Executes requests in order and answers each one exactly once. An exception from it is a bug."""


class WriterThread:
    """Request queue and the thread that writes it, started by the first request. Thread-safe.

    ``on_close`` is called on the thread after the last group, or by ``close`` if there is no
    thread.
    """

    def __init__(
        self,
        path: str,
        write_group: WriteGroup,
        *,
        on_close: Callable[[], None],
        linger_ms: float = 0,
        waiting_bytes_max: int = WAITING_BYTES_MAX,
        now_ms: Callable[[], float],
    ) -> None:
        self._path = path
        self._write_group = write_group
        self._on_close = on_close
        self._linger_ms = linger_ms
        self._now_ms = now_ms
        self._pool = BufferPool(path, waiting_bytes_max, now_ms)
        self._changed = self._pool.changed
        self._queue: deque[tuple[Request, int]] = deque()
        self._queue_bytes = 0
        self._answered_bytes = 0
        """Bytes of answered requests that are still allocated. Used only on the thread."""
        self._linger_until_ms = 0.0
        self._thread: threading.Thread | None = None

    def submit(self, request: Request) -> None:
        """Queue a request, whose future gets the result.

        Raises ``LogClosedError``, and ``BufferAllocationError`` if there is no room by the
        request's deadline, or now if this is the thread that makes room.
        """
        self._pool.check_process("it was opened")
        byte_count = request.byte_count()
        wait_until_ms = -math.inf if self.is_current else request.deadline_ms
        with self._changed:
            if self.is_current:  # in a callback, while the rest of the group is unanswered
                self._release_answered()
            self._pool.wait_for_room(byte_count, wait_until_ms)
            if self._thread is None:
                self._start()
            if not self._queue:
                self._linger_until_ms = self._now_ms() + self._linger_ms
            self._queue.append((request, byte_count))
            self._queue_bytes += byte_count
            self._pool.allocate(byte_count)
            self._changed.notify_all()

    def close(self, timeout_ms: float | None = None) -> bool:
        """Refuse new requests, write the queued ones and end the thread.

        Returns False if that takes longer than ``timeout_ms``. A second call waits like the first.
        """
        if self._pool.is_forked:
            return True  # the parent writes the requests that the fork copied
        with self._changed:
            is_first = self._pool.close("close() was called")
            thread = self._thread
        if thread is None:
            if is_first:
                self._on_close()
            return True
        if thread is threading.current_thread():
            return True
        thread.join(None if timeout_ms is None else timeout_ms / 1000)
        return not thread.is_alive()

    @property
    def is_current(self) -> bool:
        """Whether the caller runs on the thread, as the callback of a future does."""
        return self._thread is threading.current_thread()

    def set_linger(self, linger_ms: float) -> None:
        """Set the linger time of the next groups."""
        with self._changed:
            self._linger_ms = linger_ms

    # --- inside -----------------------------------------------------------------------------------

    def _start(self) -> None:
        name = f"raftlog append {self._path}"
        thread = threading.Thread(target=self._run, name=name, daemon=True)
        thread.start()  # raises if the process has too many threads
        self._thread = thread
        _running.add(self)

    def _run(self) -> None:
        try:
            while group := self._next_group():
                self._write(group)
            self._on_close()
        finally:
            self._fail_queued()
            _running.discard(self)

    def _next_group(self) -> list[tuple[Request, int]]:
        """Wait for the next group; empty if the queue is drained and the log is being closed."""
        with self._changed:
            while not self._is_due():
                if not self._queue:
                    if self._pool.closed is not None:
                        return []
                    self._changed.wait()
                else:
                    self._changed.wait((self._linger_until_ms - self._now_ms()) / 1000)
            group: list[tuple[Request, int]] = []
            group_bytes = 0
            while self._queue and len(group) < GROUP_REQUESTS_MAX:
                request, byte_count = self._queue[0]
                if group and group_bytes + byte_count > GROUP_BYTES_MAX:
                    break
                self._queue.popleft()
                self._queue_bytes -= byte_count
                group_bytes += byte_count
                group.append((request, byte_count))
            return group

    def _is_due(self) -> bool:
        if not self._queue:
            return False
        return (
            self._pool.closed is not None
            or self._queue_bytes >= GROUP_BYTES_MAX
            or self._now_ms() >= self._linger_until_ms
        )

    def _write(self, group: list[tuple[Request, int]]) -> None:
        """Write a group and complete its futures. Cancelled requests are skipped."""
        unanswered = {id(request): byte_count for request, byte_count in group}

        def answer(request: Request, result: RequestResult) -> None:
            self._answered_bytes += unanswered.pop(id(request))
            _answer(request, result)

        taken = [request for request, _ in group if request.future.set_running_or_notify_cancel()]
        try:
            if taken:
                self._write_group(taken, answer)
        finally:
            reason = "the writer thread failed"
            for request in taken:
                unknown = AppendUnknownError(path=self._path, reason=reason)
                closed = LogClosedError(path=self._path, reason=reason)
                _fail([request], unknown if request.writes else closed)
            with self._changed:
                self._answered_bytes += sum(unanswered.values())
                self._release_answered()

    def _release_answered(self) -> None:
        """Return the bytes of answered requests. Requires the pool's lock."""
        self._pool.release(self._answered_bytes)
        self._answered_bytes = 0

    def _fail_queued(self) -> None:
        """Fail the requests that are still queued, because the thread ends."""
        with self._changed:
            self._pool.close("the writer thread failed")
            left = [request for request, _ in self._queue]
            self._queue.clear()
            reason = self._pool.closed
        assert reason is not None, "the pool is closed"
        waiting = [request for request in left if request.future.set_running_or_notify_cancel()]
        _fail(waiting, LogClosedError(path=self._path, reason=reason))


_running: Final[set[WriterThread]] = set()


@atexit.register
def _close_all() -> None:
    """Write what is still queued when the interpreter exits."""
    for writer in list(_running):
        writer.close()


def _answer(request: Request, answer: RequestResult) -> None:
    if isinstance(answer, Done):
        request.future.set_result(answer.value)
    else:
        request.future.set_exception(answer.error)


def _fail(requests: Sequence[Request], error: RaftlogError) -> None:
    for request in requests:
        if not request.future.done():
            _answer(request, failed(error))
