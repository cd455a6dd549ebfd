"""Writer thread of an embedded log: queued requests are written in groups that share one sync.

Invariants:

1. Requests are answered in queue order. While one group is written the next one is collected; an
   idle writer starts a group ``linger_ms`` after its first request.
2. The bytes of requests without an answer are bounded. ``submit`` blocks for room until the
   request's deadline (``BufferAllocationError``, Kafka: ``max.block.ms``).
3. Every future completes: with its result; with ``LogClosedError`` if the request was never
   started; with ``AppendUnknownError`` if the thread failed while the request was being written.
4. Requests queued in a handle that is not closed are written before the process exits. A forked
   child has no writer thread: ``submit`` raises before it takes the lock, which the parent may have
   held during the fork.
5. This module uses no files or file locks: ``write_group`` writes a group and answers its requests.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

from raftlog.append.requests import Done, Request, RequestResult, failed
from raftlog.errors import (
    AppendUnknownError,
    BufferAllocationError,
    LogClosedError,
    RaftlogError,
)
from raftlog.limits import MIB

WAITING_BYTES_MAX: Final = 64 * MIB
"""Bound on the bytes of requests without an answer; a single larger request is accepted."""
GROUP_BYTES_MAX: Final = 16 * MIB
"""Bound on a group, so that other processes get the lock in between."""
GROUP_REQUESTS_MAX: Final = 4096

WriteGroup: TypeAlias = Callable[
    [Sequence[Request], Callable[[Request, RequestResult], None]], None
]
"""Executes requests in order and answers each once. An exception from it is a bug."""


class WriterThread:
    """Request queue and the thread that writes it, started by the first request. Thread-safe.

    ``on_close`` is called on the thread after the last group.
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
        self._waiting_bytes_max = waiting_bytes_max
        self._now_ms = now_ms
        self._changed = threading.Condition()
        self._queue: deque[tuple[Request, int]] = deque()
        self._queue_bytes = 0
        self._held_bytes = 0
        self._linger_until_ms = 0.0
        self._closed: str | None = None
        self._thread: threading.Thread | None = None
        self._process_id = os.getpid()

    def submit(self, request: Request) -> None:
        """Queue a request, whose future gets the result.

        Raises ``LogClosedError``, and ``BufferAllocationError`` if there is no room until the
        request's deadline.
        """
        byte_count = request.byte_count()
        if os.getpid() != self._process_id:
            reason = "it was opened before this process was forked"
            raise LogClosedError(path=self._path, reason=reason)
        with self._changed:
            self._check_open()
            while self._held_bytes and self._held_bytes + byte_count > self._waiting_bytes_max:
                left_ms = request.deadline_ms - self._now_ms()
                if left_ms <= 0:
                    raise BufferAllocationError(
                        byte_count=byte_count, byte_count_max=self._waiting_bytes_max
                    )
                self._changed.wait(left_ms / 1000)
                self._check_open()
            if not self._queue:
                self._linger_until_ms = self._now_ms() + self._linger_ms
            self._queue.append((request, byte_count))
            self._queue_bytes += byte_count
            self._held_bytes += byte_count
            if self._thread is None:
                self._start()
            self._changed.notify_all()

    def close(self, timeout_ms: float | None = None) -> bool:
        """Refuse new requests, write the queued ones and end the thread.

        Returns False if that takes longer than ``timeout_ms``. A second call waits like the first.
        """
        if os.getpid() != self._process_id:
            return True  # the parent writes the requests that the fork copied
        with self._changed:
            if self._closed is None:
                self._closed = "close() was called"
                if self._thread is None:
                    self._start()
                self._changed.notify_all()
            thread = self._thread
        if thread is None or thread is threading.current_thread():
            return True
        thread.join(None if timeout_ms is None else timeout_ms / 1000)
        return not thread.is_alive()

    def set_linger(self, linger_ms: float) -> None:
        """Set the linger time of the next groups."""
        with self._changed:
            self._linger_ms = linger_ms

    # --- inside -----------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self._closed is not None:
            raise LogClosedError(path=self._path, reason=self._closed)

    def _start(self) -> None:
        name = f"raftlog append {self._path}"
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        _running.add(self)
        self._thread.start()

    def _run(self) -> None:
        try:
            while group := self._next_group():
                self._answer(group)
            self._on_close()
        finally:
            self._fail_queued()
            _running.discard(self)

    def _next_group(self) -> list[tuple[Request, int]]:
        """Wait for the next group. Empty if the queue is drained and the log is being closed."""
        with self._changed:
            while not self._is_due():
                if not self._queue:
                    if self._closed is not None:
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
            self._closed is not None
            or self._queue_bytes >= GROUP_BYTES_MAX
            or self._now_ms() >= self._linger_until_ms
        )

    def _answer(self, group: list[tuple[Request, int]]) -> None:
        """Write a group and complete its futures. Cancelled requests are skipped."""
        taken = [request for request, _ in group if request.future.set_running_or_notify_cancel()]
        try:
            if taken:
                self._write_group(taken, _answer)
        finally:
            reason = "the writer thread failed"
            for request in taken:
                unknown = AppendUnknownError(path=self._path, reason=reason)
                closed = LogClosedError(path=self._path, reason=reason)
                _fail([request], unknown if request.writes else closed)
            with self._changed:
                self._held_bytes -= sum(byte_count for _, byte_count in group)
                self._changed.notify_all()

    def _fail_queued(self) -> None:
        """Fail the requests that are still queued: the thread ends."""
        with self._changed:
            if self._closed is None:
                self._closed = "the writer thread failed"
            left = [request for request, _ in self._queue]
            self._queue.clear()
            reason = self._closed
            self._changed.notify_all()
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
