"""Threads for calls that may not return, which do not keep the process alive.

The threads of ``concurrent.futures`` are joined at the end of the interpreter: a process could not
end while a node or an object store does not answer. These are daemons, so that only what waits for
their results waits.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import TypeAlias, TypeVar

T = TypeVar("T")

_Calls: TypeAlias = "queue.SimpleQueue[Callable[[], None] | None]"


class DaemonThreads:
    """Up to ``count_max`` threads, each started by a call that finds none idle.

    Used by one thread, as are its callers.
    """

    def __init__(self, count_max: int, name: str) -> None:
        self._count_max = count_max
        self._name = name
        self._begin()

    def submit(self, call: Callable[[], T]) -> Future[T]:
        """Run ``call`` in a thread, and return its future. Cancelled before, it is not run."""
        future: Future[T] = Future()
        self._calls.put(partial(_run, future, call))
        if not self._idle.acquire(blocking=False) and self._count < self._count_max:
            self._count += 1
            work = partial(_serve, self._calls, self._idle)
            name = f"{self._name}-{self._count}"
            threading.Thread(target=work, name=name, daemon=True).start()
        return future

    def close(self) -> None:
        """End the threads after the calls that they have; later calls start others."""
        for _ in range(self._count):
            self._calls.put(None)
        self._begin()

    def _begin(self) -> None:
        self._count = 0
        self._idle = threading.Semaphore(0)
        self._calls: _Calls = queue.SimpleQueue()


def _serve(calls: _Calls, idle: threading.Semaphore) -> None:
    while (call := calls.get()) is not None:
        call()
        del call  # not kept while the thread waits
        idle.release()


def _run(future: Future[T], call: Callable[[], T]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        future.set_result(call())
    except BaseException as error:  # noqa: BLE001 - raised in the thread that waits
        future.set_exception(error)
