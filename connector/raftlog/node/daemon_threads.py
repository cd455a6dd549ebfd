"""Threads for calls of an object store, which may not return.

The threads of ``concurrent.futures`` are joined at the end of the interpreter: a process could not
end while a store does not answer. These are daemons, so that only what waits for their results
waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from threading import Semaphore, Thread
from types import TracebackType
from typing import Any, Final, TypeAlias, TypeVar

T = TypeVar("T")
_Queue: TypeAlias = "SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None]"


class DaemonThreads:
    """At most ``count_max`` threads, started when they are needed. Used on one event loop."""

    def __init__(self, count_max: int, *, name: str) -> None:
        self._count_max = count_max
        self._name = name
        self._queue: Final[_Queue] = SimpleQueue()
        self._idle = Semaphore(0)
        """Released by a thread after each call, acquired for each call that needs no new thread."""
        self._thread_count = 0
        self._calls: dict[Future[Any], asyncio.Future[Any]] = {}
        """Results of the calls that have not ended, those that are cancelled included."""

    @property
    def waiting_count(self) -> int:
        """Number of calls that wait until a thread is free."""
        self._calls = {call: one for call, one in self._calls.items() if not call.done()}
        return max(len(self._calls) - self._count_max, 0)

    def run(self, work: Callable[[], T]) -> asyncio.Future[T]:
        """Call ``work`` in a thread. Cancelled before, it is not called."""
        call: Future[T] = Future()
        result = asyncio.wrap_future(call)
        self._calls[call] = result
        self._queue.put((call, work))
        if not self._idle.acquire(blocking=False) and self._thread_count < self._count_max:
            self._thread_count += 1
            name = f"{self._name}-{self._thread_count}"
            Thread(target=_run, args=(self._queue, self._idle), name=name, daemon=True).start()
        return result

    def close(self) -> None:
        """Cancel all calls: those that have begun end by themselves, and their results are dropped.
        There must be no further calls."""
        for result in self._calls.values():
            result.cancel()
        for _ in range(self._thread_count):
            self._queue.put(None)


class _ErrorsOf:
    """Context whose error is that of a call, to be raised where its result is awaited."""

    def __init__(self, call: Future[Any]) -> None:
        self._call = call

    def __enter__(self) -> None:
        """Begin the call."""

    def __exit__(
        self, _: object, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        if error is not None:
            self._call.set_exception(error)
        return True


def _run(queue: _Queue, idle: Semaphore) -> None:
    """Make the calls of a queue, until it has an end for this thread."""
    while (found := queue.get()) is not None:
        call, work = found
        if call.set_running_or_notify_cancel():
            with _ErrorsOf(call):
                call.set_result(work())
        del found, call, work  # not kept while the thread waits
        idle.release()
