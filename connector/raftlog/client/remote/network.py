"""Network thread of a client, and calls to it from other threads.

Connections are used on this thread's event loop only. It is a daemon thread, and does not exist in
a forked child.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future
from typing import Any, Final, TypeVar

from raftlog.errors import LogClosedError

T = TypeVar("T")
_FINAL_ITERATIONS: Final = 3


class NetworkThread:
    """Thread with an event loop, from the first call to ``stop``. Thread-safe."""

    def __init__(self, path: str, on_end: Callable[[], None]) -> None:
        """``path`` names the quorum; ``on_end`` closes, on the loop, what is open."""
        self._path = path
        self._on_end = on_end
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._is_stopped = False
        self.process_id = os.getpid()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop and wait for its result. An interrupt cancels it."""
        future = self.start(work)
        try:
            return future.result()
        except CancelledError:
            raise self._closed() from None
        except BaseException:  # such as Ctrl-C: the result is not used
            future.cancel()
            raise

    def start(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Start a coroutine on the loop. Raises ``LogClosedError`` after ``stop``."""
        try:
            loop = self._running_loop()
        except LogClosedError:
            work.close()
            raise
        return asyncio.run_coroutine_threadsafe(work, loop)

    def call(self, function: Callable[[], object]) -> None:
        """Call a function on the loop, without waiting for it."""
        self._running_loop().call_soon_threadsafe(function)

    def stop(self) -> None:
        """Cancel all tasks and end the thread. It may be called twice."""
        if os.getpid() != self.process_id:
            return
        with self._lock:
            self._is_stopped = True
            loop, thread = self._loop, self._thread
        if loop is None or thread is None or not thread.is_alive():
            return
        with contextlib.suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(loop.stop)
        if thread is not threading.current_thread():
            thread.join()

    @property
    def is_this_thread(self) -> bool:
        return self._thread is threading.current_thread()

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._is_stopped:
                raise self._closed()
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(
                    target=_serve,
                    args=(self._loop, self._on_end),
                    name=f"raftlog client of {self._path}",
                    daemon=True,
                )
                self._thread.start()
            return self._loop

    def _closed(self) -> LogClosedError:
        return LogClosedError(path=self._path, reason="close() was called")


def _serve(loop: asyncio.AbstractEventLoop, on_end: Callable[[], None]) -> None:
    """Run a loop until it is stopped, then cancel its tasks and close it."""
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
    finally:
        tasks = asyncio.all_tasks(loop)
        for task in tasks:
            task.cancel()
        if tasks:
            loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        on_end()
        for _ in range(_FINAL_ITERATIONS):  # for the callbacks of closed connections
            loop.run_until_complete(asyncio.sleep(0))
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.run_until_complete(loop.shutdown_default_executor())  # used by host lookups
        loop.close()
