"""Calls of an object store, which may never return, awaited on the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

from raftlog.daemon_threads import DaemonThreads

T = TypeVar("T")


class StoreThreads:
    """At most ``count_max`` threads, started when they are needed. Used on one event loop."""

    def __init__(self, count_max: int, *, name: str) -> None:
        self._count_max = count_max
        self._threads = DaemonThreads(count_max, name)
        self._calls: dict[Any, asyncio.Future[Any]] = {}
        """Results of the calls that have not ended, including cancelled ones."""

    @property
    def waiting_count(self) -> int:
        """Number of calls that wait for a free thread."""
        self._calls = {call: one for call, one in self._calls.items() if not call.done()}
        return max(len(self._calls) - self._count_max, 0)

    def run(self, work: Callable[[], T]) -> asyncio.Future[T]:
        """Call ``work`` in a thread, unless it is cancelled before that."""
        call = self._threads.submit(work)
        result = self._calls[call] = asyncio.wrap_future(call)
        return result

    def close(self) -> None:
        """Cancel all calls. Calls that have begun end by themselves, and their results are dropped.
        There must be no further calls."""
        for result in self._calls.values():
            result.cancel()
        self._threads.close()
